package runner

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The descriptors that kern is given beside 0, 1 and 2. The numbers are those
// they have in kern, by their position in box.start.
const (
	fdStarted = 3 + iota
	fdAlive
	fdGate
	fdEnv
)

// box is one running `kern box`.
type box struct {
	name string
	s    proc // kern's supervisor, our child and the leader of its own session
	w    proc // PID 1 of the box, as the host numbers it; zero until known
	wfd  int  // pidfd of w, -1 until known
	// wfile is the file of it, which the runtime polls.
	wfile *os.File
	// helpers are other children of the supervisor (its watchdog).
	helpers []proc

	pidfd          *os.File // of the supervisor; nil where the kernel gave none
	stdin          *os.File // write end, nil without stdin
	stdout, stderr *os.File // read ends
	started        *os.File // KERN_STARTED_FD
	gate           *os.File // KERN_GATE_FD: one byte lets the command start

	alive  alive
	opened time.Time // just before the gate was opened, zero before
	unsent bool      // nobody was at the gate any more

	exited  chan struct{} // closed when the supervisor has been waited for
	state   *exitState    // nil when it could not be waited for
	ended   chan struct{} // closed when PID 1 of the box is gone
	release chan struct{} // closed when the thread that started kern may go
	once    sync.Once
}

// exitState is what the kernel says of a process that has ended.
type exitState struct {
	wait  unix.WaitStatus
	usage unix.Rusage
}

// alive is what KERN_ALIVE_FD has said so far.
type alive struct {
	ack, fail, eof atomic.Bool
	// parked is closed when the box is built and its PID 1 waits at the gate,
	// closed at the end of the stream.
	parked, closed chan struct{}
	at             time.Time // when it ended; read after closed
}

// watch reads the stream to its end. Bytes other than kern's three are ignored.
func (a *alive) watch(r *os.File) {
	defer r.Close()
	buf := make([]byte, 16)
	waits := false
	for {
		n, err := r.Read(buf)
		for _, c := range buf[:n] {
			switch c {
			case 'A':
				a.ack.Store(true)
			case 'P':
				if !waits {
					waits = true
					close(a.parked)
				}
			case 'x':
				a.fail.Store(true)
			}
		}
		if err != nil {
			a.at = time.Now()
			a.eof.Store(true)
			close(a.closed)
			return
		}
	}
}

// streams are the descriptors of a box that are not made for it.
type streams struct {
	env *os.File
	// tty, a terminal of ours, is the box's input and output; its stderr is a pipe
	// for what kern says.
	tty *os.File
	in  *os.File // standard input, nil for another one
	// stdin: it is a pipe, and box.stdin our end of it.
	stdin bool
}

// startBox starts kern. All pipes are ours: kern gets no descriptor of the
// caller's, and no terminal, into which a box could type.
func startBox(kern string, argv []string, name string, s streams) (b *box, err error) {
	b = &box{name: name, wfd: -1, exited: make(chan struct{}), ended: make(chan struct{}), release: make(chan struct{})}
	b.alive.parked, b.alive.closed = make(chan struct{}), make(chan struct{})
	var theirs, ours []*os.File
	pipe := func(childReads bool) (child, own *os.File) {
		var p [2]int
		if err != nil {
			return nil, nil // one reason is enough
		}
		if e := unix.Pipe2(p[:], unix.O_CLOEXEC); e != nil {
			err = e
			return nil, nil
		}
		i := 1
		if childReads {
			i = 0
		}
		// Their end stays blocking, as any program expects of its output; ours
		// is polled.
		unix.SetNonblock(p[1-i], true)
		child, own = os.NewFile(uintptr(p[i]), "pipe"), os.NewFile(uintptr(p[1-i]), "pipe")
		theirs, ours = append(theirs, child), append(ours, own)
		return child, own
	}
	var in, out, errw, startedW, aliveW, gateR, aliveR *os.File
	switch {
	case s.tty != nil:
		in = s.tty
	case s.in != nil:
		in = s.in
	case s.stdin:
		in, b.stdin = pipe(true)
	default:
		in, err = os.Open(os.DevNull)
		if in != nil {
			theirs = append(theirs, in)
		}
	}
	if out = s.tty; out == nil {
		out, b.stdout = pipe(false)
	}
	errw, b.stderr = pipe(false)
	startedW, b.started = pipe(false)
	aliveW, aliveR = pipe(false)
	gateR, b.gate = pipe(true)
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
		if err != nil {
			for _, f := range ours {
				f.Close()
			}
		}
	}()
	if err != nil {
		return nil, err
	}
	pidfd := -1
	attr := &syscall.ProcAttr{
		Files: []uintptr{in.Fd(), out.Fd(), errw.Fd(), fdStarted: startedW.Fd(), fdAlive: aliveW.Fd(), fdGate: gateR.Fd(), fdEnv: s.env.Fd()},
		Env: kernEnv(
			"KERN_STARTED_FD="+strconv.Itoa(fdStarted),
			"KERN_ALIVE_FD="+strconv.Itoa(fdAlive),
			"KERN_GATE_FD="+strconv.Itoa(fdGate),
		),
		// Its own session: a box shares kern's process group, and kill(0, …) in
		// the box must not reach us.
		Sys: &unix.SysProcAttr{Setsid: true, PidFD: &pidfd},
	}
	started := make(chan error)
	go func() {
		// kern asks to be killed when the thread that started it goes, so this
		// one stays until the box is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var e error
		// Not os.StartProcess: it forks once more the first time, to see whether
		// the kernel knows pidfds.
		b.s.pid, e = syscall.ForkExec(kern, argv, attr)
		started <- e
		if e == nil {
			<-b.release
		}
	}()
	if err = <-started; err != nil {
		return nil, err
	}
	if pidfd >= 0 {
		b.pidfd = pollable(pidfd)
	}
	b.s.start = procStart(b.s.pid)
	go b.alive.watch(aliveR)
	go b.await()
	return b, nil
}

// await waits for the supervisor, without a thread of its own where the kernel
// gave a descriptor: on a short run each thread costs.
func (b *box) await() {
	defer close(b.exited)
	if b.pidfd != nil {
		awaitPidfd(b.pidfd)
	}
	st := &exitState{}
	for {
		_, err := unix.Wait4(b.s.pid, &st.wait, 0, &st.usage)
		if err == nil {
			b.state = st
		}
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// findInit looks for PID 1 of the box among the children of the supervisor.
func (b *box) findInit() bool {
	for _, pid := range children(b.s.pid) {
		if !isBoxInit(pid) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		// The supervisor is alive and has not waited for it, so the number
		// still means the same process.
		b.w, b.wfd = proc{pid, procStart(pid)}, fd
		b.wfile = pollable(fd)
		go func() {
			awaitPidfd(b.wfile)
			close(b.ended)
		}()
		break
	}
	if b.wfd < 0 {
		return false
	}
	for _, pid := range children(b.s.pid) {
		if pid != b.w.pid {
			b.helpers = append(b.helpers, proc{pid, procStart(pid)})
		}
	}
	return true
}

// pollable makes a file of a descriptor that the runtime's poller waits for.
func pollable(fd int) *os.File {
	unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), "pidfd")
}

// awaitPidfd returns when the process has ended. PID 1 of a namespace ends
// only after everything else in it has.
func awaitPidfd(f *os.File) {
	ready := func(fd uintptr, wait int) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, wait)
		return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
	}
	if conn, err := f.SyscallConn(); err == nil && conn.Read(func(fd uintptr) bool { return ready(fd, 0) }) == nil {
		return
	}
	for !ready(f.Fd(), -1) { // not one for the poller
	}
}

// open lets the command start.
func (b *box) open() {
	b.opened = time.Now()
	_, err := b.gate.Write([]byte{1})
	b.unsent = err != nil
}

// passed says, once ALIVE has ended, whether PID 1 took the byte: a supervisor
// that died at the gate ends the stream as well.
func (b *box) passed() bool {
	conn, err := b.gate.SyscallConn()
	if err != nil {
		return true
	}
	// An error or a hang-up means that nobody is left to read. That is so for a
	// box that runs, too, so only the byte itself tells.
	return !b.unsent && queuedIn(conn) == 0
}

// initGone says whether PID 1 of the box, and so everything in it, is dead.
func (b *box) initGone() bool {
	select {
	case <-b.ended:
		return true
	default:
		return false
	}
}

func (b *box) hasEnded() bool {
	select {
	case <-b.ended:
		return true
	case <-b.exited:
		return true
	default:
		return false
	}
}

// killInit ends the box the clean way: its PID 1 dies, with it everything in
// the box, and the supervisor, which the box may have stopped, tears down.
func (b *box) killInit() {
	if b.wfd >= 0 {
		unix.PidfdSendSignal(b.wfd, unix.SIGKILL, nil, 0)
	}
	unix.Kill(-b.s.pid, unix.SIGCONT)
}

func (b *box) signalInit(sig unix.Signal) {
	if b.wfd >= 0 {
		unix.PidfdSendSignal(b.wfd, sig, nil, 0)
	}
}

// Times of finish. Those for a box that we stop stay below two seconds in all.
const (
	tearDownTime = 700 * time.Millisecond
	// ownEndTime is for a box whose command ended by itself: there is no hurry,
	// and a supervisor that is slow on a busy machine still has the verdict.
	ownEndTime = 10 * time.Second
	stopTime   = 500 * time.Millisecond
	groupTime  = 700 * time.Millisecond
)

// finish ends the box, whatever state it is in, and returns when the
// supervisor is gone and nothing that belongs to it is left.
//
// kern tears down in order when PID 1 dies, so that comes first. `kern stop`
// knows boxes that we do not (an orphan in its own cgroup); the group kill is
// for a supervisor that is still building, or that does not answer.
func (b *box) finish(kern string, stopped bool) {
	select {
	case <-b.exited:
		b.reap()
		return
	default:
	}
	b.killInit()
	patience := tearDownTime
	if !stopped {
		patience = ownEndTime
	}
	if b.wfd >= 0 && b.waitExit(patience) {
		b.reap()
		return
	}
	if b.wfd < 0 {
		// A supervisor that is stopped starts no more helpers. They have sessions of
		// their own, so that reap would not know them for ours.
		unix.Kill(b.s.pid, unix.SIGSTOP)
		for _, pid := range children(b.s.pid) {
			b.helpers = append(b.helpers, proc{pid, procStart(pid)})
		}
		unix.Kill(b.s.pid, unix.SIGCONT)
		b.stopByName(kern)
		for _, pid := range children(b.s.pid) {
			b.helpers = append(b.helpers, proc{pid, procStart(pid)})
		}
	}
	unix.Kill(-b.s.pid, unix.SIGKILL)
	b.s.kill()
	b.waitExit(groupTime)
	b.reap()
}

func (b *box) waitExit(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-b.exited:
		return true
	case <-t.C:
		return false
	}
}

func (b *box) stopByName(kern string) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer null.Close()
	p, err := os.StartProcess(kern, []string{"kern", "stop", b.name}, &os.ProcAttr{
		Env: kernEnv(), Files: []*os.File{null, null, null}, Sys: &unix.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return
	}
	done := make(chan struct{})
	go func() { p.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(stopTime):
		p.Kill()
		<-done
	}
}

// reap kills and waits for what the supervisor left behind when it died of a
// signal. Its children became ours (we are a subreaper), so nothing of a box
// outlives the run, and no zombie stays.
func (b *box) reap() {
	if b.wfd >= 0 {
		unix.PidfdSendSignal(b.wfd, unix.SIGKILL, nil, 0)
	}
	left := append([]proc{b.w}, b.helpers...)
	for _, p := range left {
		p.kill()
	}
	for range 100 {
		waiting := false
		for _, p := range left {
			if p.pid == 0 || procStart(p.pid) != p.start || p.start == 0 {
				continue
			}
			if got, err := unix.Wait4(p.pid, nil, unix.WNOHANG, nil); got == 0 && err == nil {
				waiting = true
			}
		}
		// What the supervisor started besides, and we have not seen, is still
		// in its session; its helpers have one of their own, and its command line.
		for _, pid := range children(os.Getpid()) {
			if pid == b.s.pid || procSession(pid) != b.s.pid && !b.named(pid) {
				continue
			}
			unix.Kill(pid, unix.SIGKILL) // our own child: the number is its own until we wait
			if got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); got == 0 && err == nil {
				waiting = true
			}
		}
		if !waiting {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// named says whether a child of ours, whom the supervisor left us, is one that it
// forked: the name of the box is in the command line, and no other box has it.
func (b *box) named(pid int) bool {
	line, err := readProc("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err == nil && bytes.HasPrefix(line, []byte("kern\x00box\x00"+b.name+"\x00"))
}

// payloadTime bounds the wait for the teardown bytes once kern has exited.
const payloadTime = 2 * time.Second

// payload reads the teardown bytes: all of them, or none.
func (b *box) payload() []byte {
	b.started.SetReadDeadline(time.Now().Add(payloadTime))
	buf := make([]byte, payloadLen+1)
	n := 0
	for n < len(buf) {
		k, err := b.started.Read(buf[n:])
		n += k
		if err != nil {
			break
		}
	}
	if n != payloadLen || buf[byteStarted] != 1 {
		return nil
	}
	return buf[:n]
}

// close lets go of everything. Safe to call twice.
func (b *box) close() {
	b.once.Do(func() {
		close(b.release)
		for _, f := range []*os.File{b.stdin, b.stdout, b.stderr, b.started, b.gate, b.pidfd, b.wfile} {
			if f != nil {
				f.Close()
			}
		}
	})
}
