package cgroup

import (
	"bytes"
	"errors"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The kernel's files are small and never block, so they are read and written
// without the runtime's poller.

// writeFile writes a value to a file that exists, in one call as the kernel wants it.
func writeFile(path, value string) error {
	fd, err := open(path, unix.O_WRONLY|unix.O_TRUNC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		_, err = unix.Write(fd, []byte(value))
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// readFile reads a file whole, without the last newline.
func readFile(path string) (string, error) {
	fd, err := open(path, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var out []byte
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", err
		}
		if n == 0 {
			return string(bytes.TrimSuffix(out, []byte("\n"))), nil
		}
		out = append(out, buf[:n]...)
	}
}

func open(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// number reads a file that holds one number.
func number(path string) (int64, error) {
	s, err := readFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(s, 10, 64)
}

// field reads one number of a file of "name number" lines; 0 when it is not
// there.
func field(path, name string) int64 {
	s, err := readFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(s, "\n") {
		if k, v, ok := strings.Cut(line, " "); ok && k == name {
			n, _ := strconv.ParseInt(v, 10, 64)
			return n
		}
	}
	return 0
}
