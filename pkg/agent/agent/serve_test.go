package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
)

var built struct {
	once  sync.Once
	dir   string
	err   error
	agent string
	probe string
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// programs builds the agent, as the Makefile does, and the probe.
func programs(t testing.TB) (self, probe string) {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "agent-test-"); built.err != nil {
			return
		}
		// An ordinary user of the box must get there as well.
		os.Chmod(built.dir, 0o755)
		built.agent, built.probe = filepath.Join(built.dir, "agent"), filepath.Join(built.dir, "probe")
		for out, pkg := range map[string]string{built.agent: ".", built.probe: "./testdata/probe"} {
			c := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out, pkg)
			c.Env = append(os.Environ(), "CGO_ENABLED=0")
			if b, err := c.CombinedOutput(); err != nil {
				built.err = fmt.Errorf("%w: %s", err, b)
				return
			}
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.agent, built.probe
}

// box is an agent that serves, and the host's end of its socket.
type box struct {
	t     testing.TB
	conn  *agent.Conn
	cmd   *exec.Cmd
	probe string        // its path in the box
	said  *bytes.Buffer // what the box itself printed, readable once it has ended
	ids   int
	ended bool
}

// start starts an agent as PID 1, in bare namespaces or, with kern, in a box of
// its.
func start(t testing.TB, kern bool, env ...string) *box {
	t.Helper()
	self, probe := programs(t)
	conn, theirs, err := agent.Pair()
	if err != nil {
		t.Fatal(err)
	}
	b := &box{t: t, conn: conn, said: &bytes.Buffer{}}
	if kern {
		b.kern(self, probe)
	} else {
		b.probe = probe
		b.cmd = exec.Command(probe, "init", self, "serve")
		b.cmd.Dir = "/"
		b.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
		if os.Geteuid() != 0 {
			b.cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
			b.cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
			b.cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
		}
	}
	b.cmd.Env = append(append(b.cmd.Env, "PATH=/bin:/usr/bin", "X=box", "HOME=/"), env...)
	b.cmd.Stdin, b.cmd.Stdout, b.cmd.Stderr = theirs, b.said, b.said
	err = b.cmd.Start()
	theirs.Close()
	if err != nil {
		conn.Close()
		t.Skip("no namespaces here: ", err)
	}
	t.Cleanup(func() {
		b.conn.Close()
		b.end()
		if t.Failed() {
			t.Logf("the box said: %s", b.said)
		}
	})
	if e := b.event(); e.Event != agent.Ready {
		b.conn.Close()
		b.end()
		if strings.Contains(b.said.String(), "probe:") {
			t.Skip("no namespaces here: ", b.said)
		}
		t.Fatalf("%+v, said %s", e, b.said)
	}
	return b
}

func (b *box) kern(self, probe string) {
	kern := os.Getenv("KERN_BIN")
	if kern == "" {
		b.t.Skip("KERN_BIN names no kern")
	}
	root := b.t.TempDir()
	for _, d := range []string{"bin", "proc", "dev", "tmp", "sys", "etc", "probe"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
			b.t.Fatal(err)
		}
	}
	state := b.t.TempDir()
	b.probe = "/probe/probe"
	b.cmd = exec.Command(kern, "box", fmt.Sprintf("agent-test-%d-%d", os.Getpid(), time.Now().UnixNano()), "--rootfs", root, "--read-only",
		"-v", filepath.Dir(probe)+":/probe:ro", "--cap-drop", "ALL", "--no-uid-range", "--timeout", "60", "--stop-timeout", "0", "--tmpfs", "/tmp:8m",
		"--env", "PATH=/bin:/usr/bin", "--env", "X=box", "--", "/probe/"+filepath.Base(self), "serve")
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL}
	b.cmd.Env = []string{"XDG_RUNTIME_DIR=" + state, "XDG_DATA_HOME=" + state, "XDG_CONFIG_HOME=" + state}
}

// end waits for the end of the box, which must be near: its socket is closed, or
// it has been given a reason.
func (b *box) end() *os.ProcessState {
	b.t.Helper()
	if b.ended {
		return b.cmd.ProcessState
	}
	b.ended = true
	done := make(chan error, 1)
	go func() { done <- b.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		b.t.Error("the box has not ended")
		b.cmd.Process.Kill()
		<-done
	}
	return b.cmd.ProcessState
}

// event waits for the next event.
func (b *box) event() agent.Event {
	b.t.Helper()
	b.conn.File().SetReadDeadline(time.Now().Add(20 * time.Second))
	var e agent.Event
	files, err := b.conn.Receive(&e)
	if err != nil {
		return agent.Event{Event: "none", What: err.Error()}
	}
	if len(files) > 0 {
		b.t.Error("descriptors came with an event")
	}
	return e
}

// silent checks that nothing is said for a while.
func (b *box) silent() {
	b.t.Helper()
	b.conn.File().SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	var e agent.Event
	if _, err := b.conn.Receive(&e); !errors.Is(err, os.ErrDeadlineExceeded) {
		b.t.Errorf("surplus event %+v %v", e, err)
	}
}

func (b *box) want(want agent.Event) agent.Event {
	b.t.Helper()
	got := b.event()
	cmp := got
	cmp.CPU, cmp.MaxRSS = 0, 0
	if want.What == "*" {
		want.What = cmp.What
	}
	if cmp != want {
		b.t.Errorf("event %+v, want %+v", got, want)
	}
	return got
}

// job is what was asked for, and what comes out of it.
type job struct {
	id       string
	out, err *bytes.Buffer
	wait     sync.WaitGroup
}

// request sends a request with pipes for its streams. stdin "-" is none.
func (b *box) request(op string, body agent.Body, stdin string) *job {
	b.t.Helper()
	b.ids++
	j := &job{id: fmt.Sprintf("id-%d", b.ids), out: &bytes.Buffer{}, err: &bytes.Buffer{}}
	body.ID = j.id
	packed, err := agent.Pack(body)
	if err != nil {
		b.t.Fatal(err)
	}
	files := []*os.File{packed}
	for _, to := range []*bytes.Buffer{j.out, j.err} {
		r, w, err := os.Pipe()
		if err != nil {
			b.t.Fatal(err)
		}
		files = append(files, w)
		j.wait.Add(1)
		go func() {
			defer j.wait.Done()
			io.Copy(to, r)
			r.Close()
		}()
	}
	if stdin != "-" {
		r, w, err := os.Pipe()
		if err != nil {
			b.t.Fatal(err)
		}
		files = append(files, r)
		go func() {
			io.WriteString(w, stdin)
			w.Close()
		}()
	}
	if err := b.conn.Send(agent.Request{Op: op, ID: j.id, Stdin: stdin != "-"}, files...); err != nil {
		b.t.Fatal(err)
	}
	for _, f := range files {
		f.Close()
	}
	return j
}

// output is what was printed, when nobody can print any more.
func (j *job) output() string {
	j.wait.Wait()
	return j.out.String()
}

func (b *box) exec(argv ...string) *job {
	b.t.Helper()
	return b.request(agent.OpExec, agent.Body{Argv: words(argv...)}, "-")
}

func words(s ...string) (w [][]byte) {
	for _, v := range s {
		w = append(w, []byte(v))
	}
	return w
}

// run runs the probe to its end.
func (b *box) run(args ...string) (string, agent.Event) {
	b.t.Helper()
	j := b.exec(append([]string{b.probe}, args...)...)
	b.want(agent.Event{Event: agent.Started, ID: j.id})
	e := b.event()
	if e.Event != agent.Exited || e.ID != j.id {
		b.t.Fatalf("event %+v", e)
	}
	return j.output(), e
}

// both runs a test in bare namespaces and in a box of kern's.
func both(t *testing.T, f func(t *testing.T, b *box)) {
	for _, kern := range []bool{false, true} {
		t.Run(map[bool]string{false: "bare", true: "kern"}[kern], func(t *testing.T) { f(t, start(t, kern)) })
	}
}

func TestExec(t *testing.T) {
	both(t, func(t *testing.T, b *box) {
		j := b.request(agent.OpExec, agent.Body{Argv: words(b.probe, "show", "a", "", "b c\n"), Env: words("Y=why", "X=over"), Dir: "/proc"}, "hello")
		b.want(agent.Event{Event: agent.Started, ID: j.id})
		e := b.want(agent.Event{Event: agent.Exited, ID: j.id})
		if e.MaxRSS < 1<<20 || e.CPU < 0 {
			t.Errorf("usage %+v", e)
		}
		if got, want := j.output(), "args [\"a\" \"\" \"b c\\n\"]\ndir /proc\nstdin \"hello\" <nil>\nX=over Y=why\nleader true true\nparent 1\n"; got != want {
			t.Errorf("printed %q, want %q", got, want)
		}
		for code := range 3 {
			if _, e := b.run("exit", fmt.Sprint(code*127)); e.Code != code*127 || e.Signal != 0 {
				t.Errorf("exit %d: %+v", code*127, e)
			}
		}
		for _, sig := range []int{1, 9, 11, 15, 31, 34} {
			if _, e := b.run("die", fmt.Sprint(sig)); e.Code != 0 || e.Signal != sig {
				t.Errorf("signal %d: %+v", sig, e)
			}
		}
		if out, _ := b.run("dispositions"); out != "SigBlk: 0000000000000000\nSigIgn: 0000000000000000\n" {
			t.Errorf("a command starts with %s", out)
		}
		b.silent()
	})
}

func TestExecFails(t *testing.T) {
	both(t, func(t *testing.T, b *box) {
		dir := filepath.Dir(b.probe)
		for _, c := range []struct {
			body  agent.Body
			what  string
			errno syscall.Errno
		}{
			{agent.Body{Argv: words("/no/such")}, "exec", unix.ENOENT},
			{agent.Body{Argv: words("no-such")}, "exec", unix.ENOENT},
			{agent.Body{Argv: words("")}, "exec", unix.ENOENT},
			{agent.Body{Argv: words(dir)}, "exec", unix.EACCES},
			{agent.Body{Argv: words(filepath.Base(dir)), Env: words("PATH=" + filepath.Dir(dir))}, "exec", unix.EACCES},
			{agent.Body{Argv: words("agent"), Env: words("PATH=/nowhere")}, "exec", unix.ENOENT},
			{agent.Body{Argv: words(b.probe + "/x")}, "exec", unix.ENOTDIR},
			{agent.Body{Argv: words("/etc\x00x")}, "exec", unix.EINVAL},
			{agent.Body{Argv: words(b.probe), Dir: "/no/such"}, "chdir", unix.ENOENT},
			{agent.Body{Argv: words(b.probe), Dir: b.probe}, "chdir", unix.ENOTDIR},
			{agent.Body{}, "request", unix.EINVAL},
		} {
			j := b.request(agent.OpExec, c.body, "-")
			b.want(agent.Event{Event: agent.Failed, ID: j.id, What: c.what, Errno: int(c.errno)})
			if out := j.output(); out != "" {
				t.Errorf("%q printed", out)
			}
		}
		// What failed has changed nothing, and PATH is the command's own.
		j := b.request(agent.OpExec, agent.Body{Argv: words("probe", "show"), Env: words("PATH=/nowhere::" + dir)}, "-")
		b.want(agent.Event{Event: agent.Started, ID: j.id})
		b.want(agent.Event{Event: agent.Exited, ID: j.id})
		if out := j.output(); !strings.Contains(out, "dir /\n") || !strings.Contains(out, "stdin \"\" <nil>") {
			t.Errorf("printed %s", out)
		}
	})
}

func TestBusy(t *testing.T) {
	b := start(t, false)
	first := b.exec(b.probe, "sleep")
	b.want(agent.Event{Event: agent.Started, ID: first.id})
	for _, op := range []string{agent.OpExec, agent.OpCell} {
		j := b.request(op, agent.Body{Argv: words(b.probe, "exit", "0")}, "-")
		b.want(agent.Event{Event: agent.Failed, ID: j.id, What: "busy", Errno: int(unix.EBUSY)})
	}
	b.warm("good")
	b.want(agent.Event{Event: agent.Failed, What: "busy", Errno: int(unix.EBUSY)})
	b.signal(unix.SIGKILL, "")
	b.want(agent.Event{Event: agent.Exited, ID: first.id, Signal: 9})
	if _, e := b.run("exit", "4"); e.Code != 4 {
		t.Errorf("%+v", e)
	}
}

func (b *box) signal(sig unix.Signal, id string) {
	b.t.Helper()
	if err := b.conn.Send(agent.Request{Op: agent.OpSignal, Signal: int(sig), ID: id}); err != nil {
		b.t.Fatal(err)
	}
}

func TestSignals(t *testing.T) {
	b := start(t, false)
	b.signal(unix.SIGKILL, "") // nobody there
	for _, sig := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGWINCH} {
		// The line comes once the handler is there.
		j := b.exec("/bin/sh", "-c", fmt.Sprintf("trap 'echo caught; exit 41' %d; echo waiting; while :; do sleep 0.05; done", sig))
		b.want(agent.Event{Event: agent.Started, ID: j.id})
		time.Sleep(100 * time.Millisecond)
		b.signal(sig, "somebody-else")
		b.signal(sig, j.id)
		b.want(agent.Event{Event: agent.Exited, ID: j.id, Code: 41})
		if out := j.output(); out != "waiting\ncaught\n" {
			t.Errorf("%v: %q", sig, out)
		}
	}
	// Without handlers: what a signal does to a command it does here, where the
	// command as PID 1 would not feel it. And Ctrl-C reaches what a shell waits
	// for.
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM} {
		j := b.exec("/bin/sh", "-c", "sleep 50")
		b.want(agent.Event{Event: agent.Started, ID: j.id})
		time.Sleep(100 * time.Millisecond) // a shell that has just begun may lose it
		b.signal(sig, "")
		b.want(agent.Event{Event: agent.Exited, ID: j.id, Signal: int(sig)})
	}
	j := b.exec("/bin/sh", "-c", "trap : INT; sleep 50; echo $?")
	b.want(agent.Event{Event: agent.Started, ID: j.id})
	time.Sleep(200 * time.Millisecond)
	b.signal(unix.SIGINT, "")
	b.want(agent.Event{Event: agent.Exited, ID: j.id})
	if out := j.output(); out != "130\n" {
		t.Errorf("the child of a shell ended with %q", out)
	}
}

func TestTerminal(t *testing.T) {
	both(t, func(t *testing.T, b *box) {
		m, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Skip(err)
		}
		defer m.Close()
		if err := unix.IoctlSetPointerInt(int(m.Fd()), unix.TIOCSPTLCK, 0); err != nil {
			t.Fatal(err)
		}
		s, _, errno := unix.Syscall(unix.SYS_IOCTL, m.Fd(), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if errno != 0 {
			t.Fatal(errno)
		}
		slave := os.NewFile(s, "slave")
		send := func(f *os.File, args ...string) string {
			b.ids++
			id := fmt.Sprintf("tty-%d", b.ids)
			body, err := agent.Pack(agent.Body{Argv: words(append([]string{b.probe}, args...)...)})
			if err != nil {
				t.Fatal(err)
			}
			defer body.Close()
			if err := b.conn.Send(agent.Request{Op: agent.OpExec, ID: id, TTY: true}, body, f); err != nil {
				t.Fatal(err)
			}
			return id
		}
		null, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		b.want(agent.Event{Event: agent.Failed, ID: send(null, "tty"), What: "terminal", Errno: int(unix.ENOTTY)})
		id := send(slave, "tty")
		b.want(agent.Event{Event: agent.Started, ID: id})
		b.want(agent.Event{Event: agent.Exited, ID: id})
		buf := make([]byte, 1000)
		k, err := m.Read(buf)
		if err != nil || !strings.HasPrefix(string(buf[:k]), "tty true") {
			t.Errorf("printed %q %v", buf[:k], err)
		}
		// Ctrl-C is the terminal's own business.
		id = send(slave, "sleep")
		b.want(agent.Event{Event: agent.Started, ID: id})
		m.Read(buf)
		m.WriteString("\x03")
		b.want(agent.Event{Event: agent.Exited, ID: id, Signal: 2})
		slave.Close()
	})
}

// TestHostGone: whoever holds the socket holds the box.
func TestHostGone(t *testing.T) {
	both(t, func(t *testing.T, b *box) {
		j := b.exec(b.probe, "sleep")
		b.want(agent.Event{Event: agent.Started, ID: j.id})
		b.conn.Close()
		b.end()
		j.output() // ends: nobody is left to print
	})
}

func TestNonsense(t *testing.T) {
	for name, send := range map[string]func(b *box) error{
		"json":       func(b *box) error { return b.conn.Send(map[string]string{"op": "exec"}) },
		"operation":  func(b *box) error { return b.conn.Send(agent.Request{Op: "dance", ID: "x"}) },
		"no signal":  func(b *box) error { return b.conn.Send(agent.Request{Op: agent.OpSignal}) },
		"many files": func(b *box) error { return b.conn.Send(agent.Request{Op: agent.OpExec, ID: "x"}, many(b.t, 40)...) },
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, false)
			if err := send(b); err != nil {
				t.Fatal(err)
			}
			if e := b.event(); e.Event != "none" {
				t.Errorf("%+v", e)
			}
			if st := b.end(); st.ExitCode() != 2 {
				t.Errorf("ended with %v", st)
			}
		})
	}
	for name, files := range map[string]func(t *testing.T) []*os.File{
		"nothing":      func(t *testing.T) []*os.File { return nil },
		"not sealed":   func(t *testing.T) []*os.File { return many(t, 3) },
		"too few":      func(t *testing.T) []*os.File { return append(seal(t, agent.Body{Argv: words("x")}), many(t, 1)...) },
		"too many":     func(t *testing.T) []*os.File { return append(seal(t, agent.Body{Argv: words("x")}), many(t, 3)...) },
		"no body":      func(t *testing.T) []*os.File { return append(seal(t, 5), many(t, 2)...) },
		"body of json": func(t *testing.T) []*os.File { return append(seal(t, []int{1}), many(t, 2)...) },
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, false)
			if err := b.conn.Send(agent.Request{Op: agent.OpExec, ID: "x"}, files(t)...); err != nil {
				t.Fatal(err)
			}
			b.want(agent.Event{Event: agent.Failed, ID: "x", What: "request", Errno: int(unix.EINVAL)})
		})
	}
	self, _ := programs(t)
	c := exec.Command(self, "serve")
	if c.Run(); c.ProcessState.ExitCode() != 2 {
		t.Errorf("not as PID 1 it ended with %v", c.ProcessState)
	}
}

func many(t testing.TB, n int) (files []*os.File) {
	for range n {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		files = append(files, f)
	}
	return files
}

func seal(t testing.TB, doc any) []*os.File {
	f, err := agent.Pack(doc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return []*os.File{f}
}
