package pool

import "syscall"

type (
	unixIDMap  = syscall.SysProcIDMap
	credential = syscall.Credential
)
