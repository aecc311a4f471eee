package main

import (
	"encoding/base64"

	"golang.org/x/sys/unix"
)

func dupCloexec(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3) }

func dup2(from, to int) error { return unix.Dup3(from, to, 0) }

func decode64(s string) ([]byte, error) { return base64.StdEncoding.DecodeString(s) }
