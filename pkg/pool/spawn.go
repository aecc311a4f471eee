package pool

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
)

// Descriptors of a holder.
const (
	fdReady = 3 + iota // on which it says that it is ready
	fdArgs             // sealed memory with its command line
)

// HoldName is the command as which Spawn starts this program: it takes its
// command line from Args, so that values of the environment in it are not shown
// to every user of the machine for as long as the holder lives.
const HoldName = "hold"

// Spawn starts this program again with args, as a holder: in a session of its
// own, with nothing to read and nothing to print on. Until it is ready it has
// our standard error, so that its notes and its refusal are the user's to see,
// and our working directory (or dir, unless that is ""), to which its paths are
// relative.
//
// It returns when the holder is ready. code is 0 then; else the exit code of a
// holder that refused, which has said why. A signal ends the start; code is 128
// and its number.
func Spawn(args []string, dir string, sigs <-chan os.Signal) (code int, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	line, err := json.Marshal(args)
	if err != nil {
		return 0, err
	}
	sealed, err := agent.Seal(line)
	if err != nil {
		return 0, err
	}
	defer sealed.Close()
	// A holder that nobody waits for any more shall not come up. The kernel tells
	// it of the end of the thread that started it, which is ours until then.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child, err := os.StartProcess("/proc/self/exe", []string{"kern-sbx", HoldName}, &os.ProcAttr{
		Dir: dir, Env: os.Environ(), Sys: &unix.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGTERM},
		Files: []*os.File{null, null, os.Stderr, fdReady: w, fdArgs: sealed},
	})
	w.Close()
	if err != nil {
		return 0, fmt.Errorf("the background process cannot be started: %w", err)
	}
	said := make(chan bool, 1)
	go func() {
		n, _ := r.Read(make([]byte, 1))
		said <- n == 1
	}()
	for stopped := 0; ; {
		select {
		case sig := <-sigs:
			if n, ok := sig.(unix.Signal); ok {
				how := unix.SIGTERM
				if stopped > 0 {
					how = unix.SIGKILL
				}
				stopped = int(n)
				child.Signal(how)
			}
		case ready := <-said:
			if ready && stopped == 0 {
				return 0, child.Release()
			}
			if ready {
				child.Signal(unix.SIGTERM)
			}
			st, err := child.Wait()
			switch {
			case stopped > 0:
				return 128 + stopped, nil
			case err != nil:
				return 0, err
			case st.ExitCode() > 0:
				return st.ExitCode(), nil
			}
			return 0, fmt.Errorf("the background process ended before it was ready (%s)", st)
		}
	}
}

var errNotSpawned = errors.New("this command is for kern-sbx itself, which starts it in the background")

// Args is the command line of a holder, which Spawn gave. It refuses when the
// process was not started in that way.
func Args() ([]string, error) {
	var args []string
	unix.CloseOnExec(fdArgs)
	f := os.NewFile(fdArgs, "args")
	defer f.Close()
	if agent.Unpack(f, &args) != nil {
		return nil, errNotSpawned
	}
	return args, nil
}

// Startup is the side of the holder.
type Startup struct {
	ready     *os.File
	inherited []int
}

// Inherited takes what Spawn gave. It refuses when the process was not started
// in that way.
func Inherited() (*Startup, error) {
	var st unix.Stat_t
	if unix.Fstat(fdReady, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil, errNotSpawned
	}
	s := &Startup{}
	// The caller may have had more open than it knew of: a pipe that somebody
	// waits for the end of. Until the flags are read they may be meant, as
	// /dev/fd/63; no program that we start gets them.
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		fd, err := strconv.Atoi(n.Name())
		if err != nil || fd <= fdReady {
			continue
		}
		if fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && fl&unix.FD_CLOEXEC == 0 {
			unix.CloseOnExec(fd)
			s.inherited = append(s.inherited, fd)
		}
	}
	unix.CloseOnExec(fdReady)
	s.ready = os.NewFile(fdReady, "ready")
	return s, nil
}

// Ready lets go of everything of the caller's and tells it so. An error: nobody
// waits any more, and the holder should end.
func (s *Startup) Ready() error {
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// It is set for the first thread, and this may be another one.
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, 0, 0); e != 0 {
		return e
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for fd := range 3 {
		if err := unix.Dup3(null, fd, 0); err != nil && null != fd {
			return err
		}
	}
	if null > 2 {
		unix.Close(null)
	}
	for _, fd := range s.inherited {
		unix.Close(fd)
	}
	_, err = s.ready.Write([]byte{1})
	if cerr := s.ready.Close(); err == nil {
		err = cerr
	}
	return err
}
