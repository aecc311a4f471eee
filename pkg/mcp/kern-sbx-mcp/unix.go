package main

import (
	"encoding/base64"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

func dupCloexec(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3) }

func dup2(from, to int) error { return unix.Dup3(from, to, 0) }

func decode64(s string) ([]byte, error) { return base64.StdEncoding.DecodeString(s) }

// hungUp says whether the other end of a pipe is closed, though there may still be
// something in it.
func hungUp(r io.Reader) bool {
	f, ok := r.(*os.File)
	if !ok {
		return false
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(p, 0)
		gone = err == nil && n == 1 && p[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
	})
	return gone || err != nil
}
