package doctor

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

type (
	sysIDMap = syscall.SysProcIDMap
	sysStat  = syscall.Stat_t
)

// Listener is a port on this machine's loopback, and an abstract unix socket, that
// nobody knows of but the box that is to try them. Nothing is read from whoever
// connects.
type Listener struct {
	// Port is of 127.0.0.1; Abstract is the name without its leading zero.
	Port     int
	Abstract string
	files    []*os.File
}

// Listen is Env.Listen of a real machine.
func Listen() (*Listener, error) {
	l := &Listener{}
	open := func(family int, at unix.Sockaddr) (int, error) {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return -1, err
		}
		l.files = append(l.files, os.NewFile(uintptr(fd), "listener"))
		if err = unix.Bind(fd, at); err == nil {
			err = unix.Listen(fd, 4)
		}
		return fd, err
	}
	fd, err := open(unix.AF_INET, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		var sa unix.Sockaddr
		if sa, err = unix.Getsockname(fd); err == nil {
			l.Port = sa.(*unix.SockaddrInet4).Port
			var id [8]byte
			rand.Read(id[:])
			l.Abstract = "kern-sbx-doctor-" + strconv.Itoa(os.Getpid()) + "-" + hex.EncodeToString(id[:])
			_, err = open(unix.AF_UNIX, &unix.SockaddrUnix{Name: "@" + l.Abstract})
		}
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Close ends it.
func (l *Listener) Close() {
	for _, f := range l.files {
		f.Close()
	}
	l.files = nil
}
