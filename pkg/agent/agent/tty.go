package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent/wire"
)

// tty never returns.
func tty(argv []string) {
	report, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 3)
	if err == nil {
		_, err = unix.Setsid()
	}
	if err == nil {
		err = unix.IoctlSetInt(0, unix.TIOCSCTTY, 0)
	}
	if err == nil {
		err = unix.Dup3(0, 2, 0)
	}
	if err != nil {
		say(max(report, 2), wire.NotExecutable+" the terminal cannot be set up: "+err.Error())
		unix.Exit(126)
	}
	env := os.Environ()
	errno := lookup(argv[0], env, func(path string) error { return unix.Exec(path, argv, env) })
	word, code := wire.NotExecutable, 126
	if errno == unix.ENOENT {
		word, code = wire.NotFound, 127
	}
	say(report, word+" "+errno.Error())
	unix.Exit(code)
}

func say(fd int, line string) { unix.Write(fd, append([]byte(line), '\n')) }

// lookup tries to start a program, looked up as execvp does: a name without a
// slash along the PATH of the environment that it will have, where a file that
// may not be executed does not end the search but decides its error.
func lookup(name string, env []string, start func(path string) error) syscall.Errno {
	for i := 0; i < len(name); i++ {
		if name[i] == '/' {
			return number(start(name))
		}
	}
	if name == "" {
		return unix.ENOENT
	}
	last := unix.ENOENT
	path, more := variable(env, "PATH")
	for more {
		var dir string
		dir, path, more = cut(path, ':')
		if dir != "" {
			dir += "/"
		} else {
			dir = "./"
		}
		// Asking costs less than a process that fails to execute.
		err := number(unix.Access(dir+name, unix.X_OK))
		if err == 0 {
			err = number(start(dir + name))
		}
		switch err {
		case 0:
			return 0
		case unix.ENOENT, unix.ENOTDIR:
		case unix.EACCES:
			last = err
		default:
			return err
		}
	}
	return last
}

// number is the errno of an error of a system call; an error that is none says
// that an argument could not be given to one.
func number(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if n, ok := err.(syscall.Errno); ok {
		return n
	}
	return unix.EINVAL
}

// variable finds a variable; of several the first, as getenv does.
func variable(env []string, name string) (string, bool) {
	for _, kv := range env {
		if len(kv) > len(name) && kv[len(name)] == '=' && kv[:len(name)] == name {
			return kv[len(name)+1:], true
		}
	}
	return "", false
}

func cut(s string, sep byte) (before, after string, found bool) {
	for i := 0; i < len(s); i++ {
		if s[i] == sep {
			return s[:i], s[i+1:], true
		}
	}
	return s, "", false
}
