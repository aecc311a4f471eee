//go:build linux

package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The death signal belongs to a thread, so all steps run on the first one.
func init() { runtime.LockOSThread() }

var spun uint64

// Each step takes its arguments from the command line, in order.
func main() {
	args := os.Args[1:]
	next := func() string {
		if len(args) == 0 {
			fail("an argument is missing")
		}
		a := args[0]
		args = args[1:]
		return a
	}
	for len(args) > 0 {
		switch step := next(); step {
		case "raw":
			// The Go runtime handles most signals, and so dies of them even as
			// PID 1; what a C program would feel needs the default actions.
			for sig := uintptr(1); sig <= 64; sig++ {
				var act [4]uint64 // SIG_DFL, no flags, empty mask
				syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
			}
		case "out":
			fmt.Println(next())
		case "err":
			fmt.Fprintln(os.Stderr, next())
		case "outhex":
			b, err := hex.DecodeString(next())
			check(err)
			_, err = os.Stdout.Write(b)
			check(err)
		case "flood": // FD BYTES
			fd, n := number(next()), number(next())
			flood(fd, n)
		case "create":
			check(os.WriteFile(next(), []byte("1\n"), 0o666))
		case "sleep":
			d, err := time.ParseDuration(next())
			check(err)
			time.Sleep(d)
		case "spin":
			for {
				atomic.AddUint64(&spun, 1)
			}
		case "exit":
			os.Exit(number(next()))
		case "kill": // PID SIGNAL
			pid, sig := number(next()), number(next())
			if err := unix.Kill(pid, unix.Signal(sig)); err != nil {
				fmt.Println("kill:", err)
			}
		case "die": // a signal on this very thread, which even PID 1 cannot escape: a fault
			switch next() {
			case "SEGV":
				p := mapped()
				check(unix.Munmap(p))
				p[0] = 1
			}
		case "syscall": // NUMBER, with zero arguments
			_, _, errno := syscall.RawSyscall6(uintptr(number(next())), 0, 0, 0, 0, 0, 0)
			fmt.Println("syscall:", errno)
		case "cleardeath":
			check(unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0))
		case "setsid":
			if _, err := unix.Setsid(); err != nil {
				fmt.Println("setsid:", err)
			}
		case "ignore":
			signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
		case "on": // SIGNAL CODE TEXT: a handler that ends the program
			sig, code, text := number(next()), number(next()), next()
			c := make(chan os.Signal, 1)
			signal.Notify(c, unix.Signal(sig))
			go func() {
				<-c
				fmt.Println(text)
				os.Exit(code)
			}()
		case "catch": // SIGNAL: a handler that does nothing
			signal.Notify(make(chan os.Signal, 1), unix.Signal(number(next())))
		case "cpulimit": // seconds
			n := uint64(number(next()))
			check(unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: n, Max: n}))
		case "forge": // the bytes of a fault, to every descriptor that could be kern's
			for fd := 3; fd < 256; fd++ {
				for _, b := range []string{"Ax", "\x01\x01\x01\x09"} {
					if n, err := unix.Write(fd, []byte(b)); err == nil && !runtimeFD(fd) {
						fmt.Println("forged", n, "bytes on", fd)
					}
				}
			}
		case "child": // the rest of the steps, in a process of their own
			c := exec.Command("/proc/self/exe", args...)
			c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
			check(c.Start())
			args = nil
			if i := indexOf(c.Args, "parent"); i >= 0 {
				args = c.Args[i+1:]
			}
		case "parent":
			return
		case "write": // PATH TEXT, and say how it went
			path, text := next(), next()
			if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
				fmt.Println("write:", err)
			}
		case "stdin":
			b := make([]byte, 1<<16)
			n, err := os.Stdin.Read(b)
			fmt.Printf("stdin: %d %v\n", n, err)
		default:
			fail("no step " + strconv.Quote(step))
		}
	}
}

func indexOf(all []string, word string) int {
	for i, a := range all {
		if a == word {
			return i
		}
	}
	return -1
}

// runtimeFD says whether a descriptor is the Go runtime's own (epoll, eventfd).
func runtimeFD(fd int) bool {
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	return err != nil || strings.HasPrefix(name, "anon_inode:")
}

func mapped() []byte {
	p, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	check(err)
	return p
}

func flood(fd, n int) {
	block := bytes.Repeat([]byte("x"), 1<<16)
	for n > 0 {
		k, err := unix.Write(fd, block[:min(n, len(block))])
		if err != nil {
			fail("flood: " + err.Error())
		}
		n -= k
	}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	check(err)
	return n
}

func check(err error) {
	if err != nil {
		fail(err.Error())
	}
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, "probe:", why)
	os.Exit(99)
}
