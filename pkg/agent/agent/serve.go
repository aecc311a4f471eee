package main

import (
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent/wire"
)

const (
	// What the host says is trusted, so what cannot be understood is a bug: the
	// agent ends, and the box with it.
	exitBug = 2
	// The host is gone.
	exitAlone = 0

	// Descriptors of ours stay clear of those that drivers are given.
	firstFD = 10

	// Milliseconds. A child's end interrupts the wait of the main loop. The signal
	// can come just before that begins, or another thread can take it: the loop
	// looks again after a while, sooner when it does not run on the first thread,
	// which is the one that the kernel prefers. What a command or a driver does is
	// never late, for those have descriptors of their own; only their orphans may
	// be dead a little longer.
	reapOften, reapSeldom = 100, 5000
)

// server is all of the agent: one goroutine, nothing in the background.
type server struct {
	host    int
	null    int
	home    int // the working directory that the box began with
	env     []string
	command process
	driver  driver

	packet [wire.MaxPacket]byte
	rights [128]byte
	out    []byte
}

// process is a child that is waited for by name. Its pid is its own until it is
// reaped, which only the server does.
type process struct {
	pid   int // 0: there is none
	pidfd int // becomes readable when it has ended; -1 where the kernel gives none
	id    string
	// reaped: the pid may be somebody else's by now.
	reaped bool
}

func serve() {
	// Whoever may write into a PID 1, or take its descriptors, is the PID 1.
	if os.Getpid() != 1 || unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) != nil {
		unix.Exit(exitBug)
	}
	defaultSignals()
	// One thread that works, and so never more for collecting garbage, whatever
	// the machine has: the threads count against the box's pids.
	runtime.GOMAXPROCS(1)
	// Out of the process group of whoever started us: a command that signals its
	// group must reach nothing outside. (An error says that we lead one already.)
	unix.Setsid()

	// What we were given beside the standard streams is no child's. (kern gives
	// nothing; a kernel without this call has kern's word alone.)
	unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC)

	s := &server{env: syscall.Environ()}
	var err error
	if s.host, err = unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, firstFD); err == nil {
		s.null, err = open("/dev/null", unix.O_RDWR)
	}
	if err == nil {
		s.home, err = open(".", unix.O_PATH|unix.O_DIRECTORY)
	}
	if err == nil {
		err = unix.Dup3(s.null, 0, unix.O_CLOEXEC)
	}
	if err != nil {
		unix.Exit(exitBug)
	}
	s.event(wire.Event{Event: wire.Ready})
	for {
		s.wait()
	}
}

func open(path string, flags int) (int, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, firstFD)
}

// defaultSignals undoes the handlers of the Go runtime: with them a signal from
// a child would end this process as if it had failed by itself. Without them the
// kernel drops all signals from within the box, because this is its PID 1.
// SIGCHLD keeps its handler, which does nothing but interrupt the main loop: the
// runtime ignores that signal. It also loses its own SIGURG, and then preempts a
// goroutine where that calls a function.
func defaultSignals() {
	for sig := uintptr(1); sig <= 64; sig++ {
		if sig == uintptr(unix.SIGCHLD) {
			continue
		}
		var act [4]uint64 // SIG_DFL, no flags, an empty mask
		unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
	}
}

// wait waits for one thing to happen, and does what it calls for.
func (s *server) wait() {
	s.reap()
	fds := [4]unix.PollFd{
		{Fd: int32(s.host), Events: unix.POLLIN},
		{Fd: -1, Events: unix.POLLIN},
		{Fd: -1, Events: unix.POLLIN},
		{Fd: -1, Events: unix.POLLIN | unix.POLLRDHUP},
	}
	if s.command.pid > 0 {
		fds[1].Fd = int32(s.command.pidfd)
	}
	if s.driver.pid > 0 {
		fds[2].Fd = int32(s.driver.pidfd)
		fds[3].Fd = int32(s.driver.sock)
	}
	timeout := -1
	if s.children() {
		timeout = reapSeldom
		if unix.Gettid() != 1 || s.command.pid > 0 && s.command.pidfd < 0 || s.driver.pid > 0 && s.driver.pidfd < 0 {
			timeout = reapOften
		}
	}
	if _, err := unix.Poll(fds[:], timeout); err != nil && err != unix.EINTR {
		unix.Exit(exitBug)
	}
	if fds[3].Revents != 0 {
		s.listen()
	}
	s.reap()
	if fds[0].Revents != 0 {
		s.serve()
	}
}

// children says whether there is any process that could become ours to reap.
func (s *server) children() bool {
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err != unix.ECHILD
}

// reap takes the status of all children that have ended: of the command, of the
// driver, and of whatever processes of the box lost their parent.
func (s *server) reap() {
	for {
		var st unix.WaitStatus
		var use unix.Rusage
		pid, err := unix.Wait4(-1, &st, unix.WNOHANG, &use)
		switch {
		case err == unix.EINTR:
		case err != nil || pid <= 0:
			return
		case pid == s.command.pid:
			e := exited(st, &use)
			e.ID = s.command.id
			s.command.close()
			s.event(e)
		case pid == s.driver.pid:
			s.driverEnded(exited(st, &use))
		}
	}
}

func exited(st unix.WaitStatus, use *unix.Rusage) wire.Event {
	e := wire.Event{
		Event: wire.Exited, MaxRSS: use.Maxrss * 1024,
		CPU: (use.Utime.Sec+use.Stime.Sec)*1e6 + use.Utime.Usec + use.Stime.Usec,
	}
	if st.Signaled() {
		e.Signal = int(st.Signal())
	} else {
		e.Code = st.ExitStatus()
	}
	return e
}

func (p *process) close() {
	if p.pid > 0 && p.pidfd >= 0 {
		unix.Close(p.pidfd)
	}
	*p = process{}
}

// end kills the process, and what is left in its group, and waits for it.
func (p *process) end() {
	if !p.reaped {
		p.kill()
		for {
			if _, err := unix.Wait4(p.pid, nil, 0, nil); err != unix.EINTR {
				break
			}
		}
	}
	p.close()
}

func (p *process) kill() {
	if !p.reaped {
		unix.Kill(-p.pid, unix.SIGKILL)
		unix.Kill(p.pid, unix.SIGKILL)
	}
}

// signal delivers a signal as a terminal, or else as kill(1), would.
func (p *process) signal(sig int) {
	if sig == int(unix.SIGINT) || sig == int(unix.SIGQUIT) {
		if unix.Kill(-p.pid, unix.Signal(sig)) == nil {
			return
		}
	}
	unix.Kill(p.pid, unix.Signal(sig))
}

// start starts a program as the leader of a session. It says what failed, and
// why.
func (s *server) start(y *wire.Body, files []uintptr, tty bool) (process, string, syscall.Errno) {
	if len(y.Argv) == 0 {
		return process{}, "request", unix.EINVAL
	}
	if y.Dir != "" {
		// Here, and not in the child, which could not say which step failed.
		if err := unix.Chdir(y.Dir); err != nil {
			return process{}, "chdir", number(err)
		}
		defer unix.Fchdir(s.home)
	}
	argv := make([]string, len(y.Argv))
	for i, a := range y.Argv {
		argv[i] = string(a)
	}
	env := environ(s.env, y.Env)
	p := process{pidfd: -1}
	attr := &syscall.ProcAttr{Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: tty, PidFD: &p.pidfd}}
	errno := lookup(argv[0], env, func(path string) (err error) {
		p.pid, err = syscall.ForkExec(path, argv, attr)
		return err
	})
	if errno != 0 {
		return process{}, "exec", errno
	}
	return p, "", 0
}

// environ is base with pairs laid over it.
func environ(base []string, over [][]byte) []string {
	env := make([]string, 0, len(base)+len(over))
	place := make(map[string]int, len(base)+len(over))
	add := func(kv string) {
		name, _, _ := cut(kv, '=')
		if i, ok := place[name]; ok {
			env[i] = kv
			return
		}
		place[name] = len(env)
		env = append(env, kv)
	}
	for _, kv := range base {
		add(kv)
	}
	for _, kv := range over {
		add(string(kv))
	}
	return env
}

// event tells the host. It waits when the host does not listen: there is nothing
// better to do.
func (s *server) event(e wire.Event) {
	s.out = e.Append(s.out[:0])
	for {
		err := unix.Sendmsg(s.host, s.out, nil, nil, unix.MSG_NOSIGNAL)
		switch err {
		case nil:
			return
		case unix.EINTR:
		default:
			unix.Exit(exitAlone)
		}
	}
}

// serve takes one request.
func (s *server) serve() {
	n, oobn, flags, _, err := unix.Recvmsg(s.host, s.packet[:], s.rights[:], unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return
	case err != nil || n == 0:
		unix.Exit(exitAlone)
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		// Descriptors are lost also when code in the box has lowered our limit.
		unix.Exit(exitBug)
	}
	fds := received(s.rights[:oobn])
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	r, err := wire.ParseRequest(s.packet[:n])
	if err != nil {
		unix.Exit(exitBug)
	}
	var e wire.Event
	switch r.Op {
	case wire.OpSignal:
		s.signal(r)
		return
	case wire.OpExec:
		e = s.exec(r, fds)
	case wire.OpWarm:
		e = s.warm(r, fds)
	case wire.OpCell:
		e = s.cell(r, fds)
	default:
		unix.Exit(exitBug)
	}
	if e.Event != "" {
		e.ID = r.ID
		s.event(e)
	}
}

func received(oob []byte) []int {
	var all []int
	if len(oob) == 0 {
		return nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range msgs {
		if fds, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			all = append(all, fds...)
		}
	}
	return all
}

func failed(what string, errno syscall.Errno) wire.Event {
	return wire.Event{Event: wire.Failed, What: what, Errno: int(errno)}
}

func (s *server) exec(r wire.Request, fds []int) wire.Event {
	if s.command.pid > 0 || s.driver.pid > 0 && s.driver.state != idle {
		return failed("busy", unix.EBUSY)
	}
	files, ok := s.streams(r, fds)
	y, err := readBody(fds)
	if !ok || err != nil || !wire.ValidID(r.ID) {
		return failed("request", unix.EINVAL)
	}
	if r.TTY {
		if _, err := unix.IoctlGetTermios(fds[1], unix.TCGETS); err != nil {
			return failed("terminal", number(err))
		}
	}
	var warm process
	if s.driver.pid > 0 {
		// Its memory and its processes are not the command's. That it is gone is not
		// waited for, a millisecond that a command would pay: reap takes it. What the
		// kernel has to take down of it comes behind whoever works for the command.
		warm = s.driver.process
		unix.Setpriority(unix.PRIO_PROCESS, warm.pid, 19)
		s.driver.close()
	}
	p, what, errno := s.start(&y, files, r.TTY)
	if warm.pid > 0 {
		warm.kill()
	}
	if errno != 0 {
		return failed(what, errno)
	}
	p.id = r.ID
	s.command = p
	return wire.Event{Event: wire.Started}
}

// streams are the standard streams of a command, from the descriptors of its
// request.
func (s *server) streams(r wire.Request, fds []int) ([]uintptr, bool) {
	switch {
	case r.TTY && len(fds) == 2:
		return []uintptr{uintptr(fds[1]), uintptr(fds[1]), uintptr(fds[1])}, true
	case !r.TTY && !r.Stdin && len(fds) == 3:
		return []uintptr{uintptr(s.null), uintptr(fds[1]), uintptr(fds[2])}, true
	case !r.TTY && r.Stdin && len(fds) == 4:
		return []uintptr{uintptr(fds[3]), uintptr(fds[1]), uintptr(fds[2])}, true
	}
	return nil, false
}

// readBody reads the first descriptor of a request.
func readBody(fds []int) (wire.Body, error) {
	b, err := body(fds, wire.MaxBody)
	if err != nil {
		return wire.Body{}, err
	}
	return wire.ParseBody(b)
}

// body gives at most the first bytes of sealed memory: nothing else can be read
// without it changing, or blocking.
func body(fds []int, most int64) ([]byte, error) {
	if len(fds) == 0 {
		return nil, unix.EBADF
	}
	seals, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GET_SEALS, 0)
	if err != nil || seals&wire.Seals != wire.Seals {
		return nil, unix.EPERM
	}
	var st unix.Stat_t
	if err := unix.Fstat(fds[0], &st); err != nil {
		return nil, err
	}
	if st.Size > wire.MaxBody {
		return nil, unix.EFBIG
	}
	b := make([]byte, min(st.Size, most))
	for got := 0; got < len(b); {
		n, err := unix.Pread(fds[0], b[got:], int64(got))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return nil, unix.EIO
		}
		got += n
	}
	return b, nil
}

func (s *server) signal(r wire.Request) {
	var p *process
	switch {
	case r.Signal < 1:
		unix.Exit(exitBug)
	case s.command.pid > 0:
		p = &s.command
	case s.driver.pid > 0 && s.driver.state == running:
		p = &s.driver.process
	}
	if p != nil && (r.ID == "" || r.ID == p.id) {
		p.signal(r.Signal)
	}
}
