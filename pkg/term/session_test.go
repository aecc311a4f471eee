package term

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// The test binary is also the program that a tmux window or another terminal
// runs: one session around the shell command in its last argument.
func TestMain(m *testing.M) {
	if mode := os.Getenv("TERM_TEST_SESSION"); mode != "" {
		os.Exit(sessionProgram(mode))
	}
	os.Exit(m.Run())
}

func sessionProgram(mode string) int {
	cmd := exec.Command("sh", "-c", os.Args[len(os.Args)-1])
	s, err := OpenSession(SessionOptions{In: os.Stdin, Out: os.Stdout, Kill: func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 125
	}
	defer s.Close()
	attach(cmd, s)
	if err := cmd.Start(); err != nil {
		return 125
	}
	if err := s.Start(); err != nil {
		return 125
	}
	if mode == "panic" {
		time.Sleep(300 * time.Millisecond)
		panic("on purpose")
	}
	_ = cmd.Wait()
	if err := s.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	fmt.Println("session-over")
	return cmd.ProcessState.ExitCode()
}

func attach(cmd *exec.Cmd, s *Session) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Slave, s.Slave, s.Slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
}

// console is the terminal of a person: a pty whose other end we read.
type console struct {
	master, tty *os.File
	mu          sync.Mutex
	got         bytes.Buffer
	answer      func(out []byte) []byte // what the terminal types by itself
}

func newConsole(t *testing.T) *console {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Skip("no pseudo-terminal:", err)
	}
	c := &console{master: master, tty: tty}
	done := make(chan struct{})
	type typed struct {
		at   time.Time
		what []byte
	}
	answers := make(chan typed, 100)
	go func() { // in order, each a while after its question
		for a := range answers {
			time.Sleep(time.Until(a.at.Add(60 * time.Millisecond)))
			_, _ = master.Write(a.what)
		}
	}()
	go func() {
		defer close(done)
		defer close(answers)
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			c.mu.Lock()
			c.got.Write(b[:n])
			answer := c.answer
			c.mu.Unlock()
			if answer != nil {
				if a := answer(b[:n]); len(a) > 0 {
					answers <- typed{time.Now(), a}
				}
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = tty.Close()
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			t.Error("someone still holds the caller's terminal")
		}
		_ = master.Close()
	})
	return c
}

func (c *console) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got.String()
}

func (c *console) waitFor(t *testing.T, what string) string {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if s := c.text(); strings.Contains(s, what) {
			return s
		}
		if time.Now().After(end) {
			t.Fatalf("%q never came; have %q", what, c.text())
		}
	}
}

func (c *console) key(t *testing.T, keys string) {
	t.Helper()
	if _, err := c.master.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

func (c *console) modes(t *testing.T) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(c.tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

// pendingKeys is how many bytes the next reader of the terminal would get.
func (c *console) pendingKeys(t *testing.T) int {
	t.Helper()
	raw := c.modes(t)
	raw.Lflag &^= unix.ICANON // lines are counted only when complete
	_ = unix.IoctlSetTermios(int(c.tty.Fd()), unix.TCSETS, &raw)
	n, err := unix.IoctlGetInt(int(c.tty.Fd()), unix.TIOCINQ)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

type run struct {
	*Session
	c      *console
	cmd    *exec.Cmd
	before unix.Termios
	killed chan struct{}
	exited chan error
}

// begin starts argv in a session on a new console.
func begin(t *testing.T, stderr io.Writer, argv ...string) *run {
	t.Helper()
	r := &run{c: newConsole(t), killed: make(chan struct{}), exited: make(chan error, 1)}
	_ = pty.Setsize(r.c.tty, &pty.Winsize{Rows: 31, Cols: 101})
	r.before = r.c.modes(t)
	r.cmd = exec.Command(argv[0], argv[1:]...)
	var err error
	r.Session, err = OpenSession(SessionOptions{In: r.c.tty, Out: r.c.tty, Kill: func() {
		_ = syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL)
		close(r.killed)
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	attach(r.cmd, r.Session)
	if stderr != nil {
		r.cmd.Stderr = stderr
	}
	if r.c.modes(t) != r.before {
		t.Error("the terminal is changed before Start")
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL) })
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { r.exited <- r.cmd.Wait() }()
	return r
}

// finish waits for the child, closes the session and checks that the caller
// has the terminal back.
func (r *run) finish(t *testing.T) string {
	t.Helper()
	select {
	case <-r.exited:
	case <-time.After(20 * time.Second):
		t.Fatalf("the child does not end; have %q", r.c.text())
	}
	start := time.Now()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if d := time.Since(start); d > sessionDrain+2*time.Second {
		t.Errorf("Close took %v", d)
	}
	if r.c.modes(t) != r.before {
		t.Error("the modes of the terminal are not restored")
	}
	if n := r.c.pendingKeys(t); n != 0 {
		t.Errorf("%d bytes are left for the caller's shell", n)
	}
	s := r.c.waitFor(t, Leave)
	return s[:strings.Index(s, Leave)]
}

func TestSessionRefusesWithoutTerminal(t *testing.T) {
	r, w, _ := os.Pipe()
	defer r.Close()
	defer w.Close()
	for _, in := range []*os.File{nil, r} {
		if s, err := OpenSession(SessionOptions{In: in, Out: os.Stdout}); !errors.Is(err, ErrNotTerminal) || s != nil {
			t.Errorf("%v: %v, %v", in, s, err)
		}
	}
}

func TestSessionOpenedAndClosed(t *testing.T) {
	c := newConsole(t)
	before := c.modes(t)
	s, err := OpenSession(SessionOptions{In: c.tty, Out: c.tty})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if c.modes(t) != before || c.text() != "" {
		t.Errorf("a session that never started left %q", c.text())
	}
}

func TestSessionShell(t *testing.T) {
	r := begin(t, nil, "bash", "--norc", "--noprofile", "-i")
	r.c.key(t, "PS1='ok> '; stty size; tty\r")
	r.c.waitFor(t, "31 101")
	if s := r.c.text(); strings.Contains(s, r.c.tty.Name()+"\r") {
		t.Errorf("the child got the caller's terminal: %q", s)
	}
	_ = pty.Setsize(r.c.tty, &pty.Winsize{Rows: 40, Cols: 120})
	_ = syscall.Kill(os.Getpid(), syscall.SIGWINCH)
	time.Sleep(50 * time.Millisecond)
	r.c.key(t, "stty size\r")
	r.c.waitFor(t, "40 120")
	r.c.key(t, "cat\r")
	time.Sleep(200 * time.Millisecond)
	r.c.key(t, "\x03")
	time.Sleep(300 * time.Millisecond) // an interrupt drops what was typed ahead
	r.c.key(t, "echo int=$?\r")
	r.c.waitFor(t, "int=130")
	r.c.key(t, "cat\r")
	time.Sleep(200 * time.Millisecond)
	r.c.key(t, "\x1a")
	r.c.waitFor(t, "Stopped")
	r.c.key(t, "echo > /dev/tty dev''tty; kill -9 %1; sleep 0.3; exit 7\r")
	r.c.waitFor(t, "devtty")
	r.finish(t)
	if code := r.cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit %d", code)
	}
	if r.Ended() {
		t.Error("counted as ended by ^]")
	}
}

func TestSessionLosesNothing(t *testing.T) {
	for range 5 {
		r := begin(t, nil, "seq", "1", "20000")
		var want bytes.Buffer
		for i := 1; i <= 20000; i++ {
			fmt.Fprintf(&want, "%d\r\n", i)
		}
		if got := r.finish(t); got != want.String() {
			t.Fatalf("%d bytes of %d", len(got), want.Len())
		}
	}
}

func TestSessionBytesAreUntouched(t *testing.T) {
	out := "\x1b]0;title\a\x1b[6n\xff\xfe\x9b31m\x00x\u202e"
	var octal strings.Builder
	for _, c := range []byte(out) {
		fmt.Fprintf(&octal, `\%03o`, c)
	}
	r := begin(t, nil, "sh", "-c", `stty raw -echo; printf ready; head -c 7 | od -An -tx1; printf '`+octal.String()+`'`)
	r.c.waitFor(t, "ready")
	r.c.key(t, "\x03\x1a\x1c\x1d\x00\xff\x11")
	got := r.finish(t)
	if !strings.Contains(got, "03 1a 1c 1d 00 ff 11") {
		t.Errorf("keys arrive altered: %q", got)
	}
	if !strings.HasSuffix(got, out) {
		t.Errorf("output arrives altered: %q", got)
	}
}

func TestSessionEndKey(t *testing.T) {
	r := begin(t, nil, "sh", "-c", "trap '' INT TERM HUP QUIT; stty raw -echo; printf ready; while :; do sleep 1; done")
	r.c.waitFor(t, "ready")
	for range 4 { // slower than three in a second
		r.c.key(t, "\x1d")
		time.Sleep(600 * time.Millisecond)
	}
	select {
	case <-r.killed:
		t.Fatal("slow presses ended the box")
	default:
	}
	r.c.key(t, strings.Repeat("x", 3000)) // the box reads nothing
	for range 3 {
		r.c.key(t, "\x1d")
	}
	select {
	case <-r.killed:
	case <-time.After(5 * time.Second):
		t.Fatal("three ^] did nothing")
	}
	r.finish(t)
	if !r.Ended() {
		t.Error("Ended is false")
	}
}

func TestEndKeys(t *testing.T) {
	t0 := time.Unix(1000, 0)
	ms := func(n int) time.Time { return t0.Add(time.Duration(n) * time.Millisecond) }
	type typed struct {
		at int
		s  string
	}
	for _, c := range []struct {
		name string
		in   []typed
		want bool
	}{
		{"three", []typed{{0, "\x1d"}, {400, "\x1d"}, {1000, "\x1d"}}, true},
		{"at once", []typed{{0, "\x1d\x1d\x1d"}}, true},
		{"two", []typed{{0, "\x1d\x1d"}}, false},
		{"too slow", []typed{{0, "\x1d"}, {500, "\x1d"}, {1001, "\x1d"}}, false},
		{"the last three", []typed{{0, "\x1d"}, {900, "\x1d"}, {1200, "\x1d"}, {1500, "\x1d"}}, true},
		{"kitty", []typed{{0, "\x1b[93;5u\x1b[93;5u\x1b[93;5u"}}, true},
		{"kitty, events", []typed{{0, "\x1b[57442;5u\x1b[93;5:1u\x1b[93;5:3u"}, {200, "\x1b[93;5:1u\x1b[93;5:3u"}, {400, "\x1b[93;5:1u"}}, true},
		{"kitty, let go", []typed{{0, "\x1b[93;5:3u\x1b[93;5:3u\x1b[93;5:3u"}}, false},
		{"kitty, num lock", []typed{{0, "\x1b[93;133u\x1b[93::91;133u\x1b[93;133u"}}, true},
		{"kitty, no ctrl", []typed{{0, "\x1b[93;2u\x1b[93;2u\x1b[93u"}}, false},
		{"xterm", []typed{{0, "\x1b[27;5;93~\x1b[27;5;93~\x1b[27;5;93~"}}, true},
		{"windows", []typed{{0, "\x1b[221;27;29;1;8;1_\x1b[221;27;29;0;8;1_\x1b[221;27;29;1;8;1_\x1b[221;27;29;1;8;1_"}}, true},
		{"mixed", []typed{{0, "\x1d\x1b[93;5u\x1b[27;5;93~"}}, true},
		{"split", []typed{{0, "\x1b"}, {1, "[9"}, {2, "3;5"}, {3, "u\x1b[93;5u\x1b["}, {4, "93;5u"}}, true},
		{"long", []typed{{0, "\x1b[" + strings.Repeat("1;", 500) + "u\x1d\x1d\x1d"}}, true},
		{"arrows", []typed{{0, "\x1b[A\x1bOB\x1b[1;5C\x1bu\x1b[u\x1b[~\x1b[_"}}, false},
		{"text", []typed{{0, "]]]93;5u"}}, false},
	} {
		var k endKeys
		got := false
		for _, x := range c.in {
			got = k.press([]byte(x.s), ms(x.at)) || got
		}
		if got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestQueries(t *testing.T) {
	for _, c := range []struct {
		in            string
		asked, status bool
	}{
		{"plain 5n äöü\n", false, false},
		{"\x05", true, false},
		{"\x1b[32mgreen\x1b[0m n", true, false},
		{"\x1b[6n", true, true},
		{"\x1b[05\x00;1n", true, true},
		{"\x1b\x00[?15n", true, true},
		{"\x9b5n", true, true},
		{"\u009b5n", true, true},
		{"\x1bn", true, false},
	} {
		for i := range len(c.in) + 1 {
			var q queries
			q.see([]byte(c.in[:i]))
			q.see([]byte(c.in[i:]))
			if q.asked != c.asked || q.status != c.status {
				t.Errorf("%q at %d: %+v", c.in, i, q)
			}
		}
	}
}

func FuzzEndKeys(f *testing.F) {
	f.Add([]byte("\x1b[93;5u\x1d\x1b[27;5;93~"), uint8(3))
	f.Fuzz(func(t *testing.T, in []byte, at uint8) {
		i := int(at) % (len(in) + 1)
		var whole, split endKeys
		now := time.Unix(1, 0)
		a := whole.press(in, now)
		b := split.press(in[:i], now)
		b = split.press(in[i:], now) || b
		if a != b {
			t.Fatalf("%q at %d: %v, whole %v", in, i, b, a)
		}
		if len(whole.seq) > maxSequence {
			t.Fatalf("keeps %d bytes", len(whole.seq))
		}
	})
}

// Some process keeps the box's side open, silent or not: Close does not wait.
func TestSessionSlaveHeldOpen(t *testing.T) {
	for _, loop := range []string{"exec sleep 60", "while :; do echo flood; done"} {
		r := begin(t, nil, "sh", "-c", `(trap '' HUP; `+loop+`) & echo pid=$! last-words; sleep 0.3; exit 0`)
		s := r.finish(t)
		m := regexp.MustCompile(`pid=(\d+)`).FindStringSubmatch(s)
		if m == nil || !strings.Contains(s, "last-words") {
			t.Fatalf("%s: output is lost: %.80q", loop, s)
		}
		pid, _ := strconv.Atoi(m[1])
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

func TestSessionChildKilled(t *testing.T) {
	r := begin(t, nil, "sh", "-c", `printf '\033[?1049h\033[?1000h\033[?2004h\033[?25l\033[8m'; echo ready; sleep 60`)
	r.c.waitFor(t, "ready")
	_ = syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL)
	r.finish(t)
}

// What the terminal answers to the box's queries is not typed into the shell.
func TestSessionSwallowsAnswers(t *testing.T) {
	for _, ask := range []string{
		`printf '\033[6n\033[c'; printf '\033]2;x\a\033[21t'`,
		`printf '\033[6n\033[5n\033[c'; printf '\033]2;x\a\033[21t'`, // our own question, asked first
	} {
		swallows(t, ask)
	}
}

func swallows(t *testing.T, ask string) {
	r := begin(t, nil, "sh", "-c", ask)
	known := regexp.MustCompile("\x1b\\[(6n|5n|c|21t)")
	r.c.mu.Lock()
	r.c.answer = func(out []byte) (a []byte) {
		for _, q := range known.FindAllString(string(out), -1) {
			a = append(a, map[string]string{"\x1b[6n": "\x1b[1;1R", "\x1b[5n": "\x1b[0n", "\x1b[c": "\x1b[?62c", "\x1b[21t": "\x1b]lrm -rf\x1b\\"}[q]...)
		}
		return a
	}
	r.c.mu.Unlock()
	<-r.exited
	r.exited <- nil
	time.Sleep(10 * time.Millisecond)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	time.Sleep(100 * time.Millisecond)
	r.finish(t) // checks that nothing is pending
}

func TestSessionTerminalGone(t *testing.T) {
	master, tty, err := pty.Open()
	if err != nil {
		t.Skip("no pseudo-terminal:", err)
	}
	defer tty.Close()
	killed := make(chan struct{})
	s, err := OpenSession(SessionOptions{In: tty, Out: tty, Kill: func() { close(killed) }})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "60")
	attach(cmd, s)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	_ = master.Close()
	select {
	case <-killed:
	case <-time.After(5 * time.Second):
		t.Error("nobody is there and the box lives on")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	start := time.Now()
	_ = s.Close()
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("Close took %v", d)
	}
}

// A terminal that takes nothing (a stopped window) does not hold Close up for
// good.
func TestSessionTerminalStuck(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as the limit it tests")
	}
	master, tty, err := pty.Open()
	if err != nil {
		t.Skip("no pseudo-terminal:", err)
	}
	defer tty.Close()
	before, _ := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	cmd := exec.Command("sh", "-c", "while :; do echo flood; done")
	s, err := OpenSession(SessionOptions{In: tty, Out: tty})
	if err != nil {
		t.Fatal(err)
	}
	attach(cmd, s)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	_ = cmd.Wait()
	start := time.Now()
	if err := s.Close(); err == nil {
		t.Error("nothing is said about the output that was dropped")
	}
	if d := time.Since(start); d > sessionStuck+2*time.Second {
		t.Errorf("Close took %v", d)
	}
	after, _ := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if *after != *before {
		t.Error("the modes are not restored")
	}
	_ = master.Close() // lets the writer that was left behind end
}

func TestSessionOutputToFile(t *testing.T) {
	c := newConsole(t)
	file := filepath.Join(t.TempDir(), "out")
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	s, err := OpenSession(SessionOptions{In: c.tty, Out: out})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("printf", `\033[6nhi`)
	attach(cmd, s)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(file); string(b) != "\x1b[6nhi" {
		t.Errorf("the file has %q", b)
	}
	if c.text() != "" {
		t.Errorf("the terminal has %q", c.text())
	}
}

// A panic with the deferred Close of the documentation restores the terminal.
func TestSessionPanic(t *testing.T) {
	c := newConsole(t)
	before := c.modes(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "echo up; sleep 60")
	cmd.Env = append(os.Environ(), "TERM_TEST_SESSION=panic")
	cmd.Stdin, cmd.Stdout = c.tty, c.tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Run(); err == nil {
		t.Error("no panic")
	}
	if c.modes(t) != before {
		t.Error("the modes are not restored")
	}
	c.waitFor(t, Leave)
}

// A real terminal around it: the modes a person's shell sees, keys, a resize
// of the window, a full-screen program.
func TestSessionTmux(t *testing.T) {
	tmux, err := exec.LookPath("tmux")
	if err != nil {
		t.Skip("tmux is not installed")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	mux := func(args ...string) string {
		out, err := exec.Command(tmux, append([]string{"-S", socket, "-f", "/dev/null"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("tmux %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	mux("new-session", "-d", "-x", "90", "-y", "25", "PS1='outer> ' HISTFILE= sh")
	t.Cleanup(func() { _ = exec.Command(tmux, "-S", socket, "kill-server").Run() })
	seen := func(what string) {
		t.Helper()
		for end := time.Now().Add(15 * time.Second); ; time.Sleep(30 * time.Millisecond) {
			screen := mux("capture-pane", "-p")
			if strings.Contains(screen, what) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%q is not on the screen:\n%s", what, screen)
			}
		}
	}
	line := func(s string) { mux("send-keys", "-l", s); mux("send-keys", "Enter") }
	session := func(cmd string) { line("TERM_TEST_SESSION=run '" + self + "' '" + cmd + "'") }

	line("stty -a > '" + dir + "/before'; echo is''saved")
	seen("issaved")
	session(`PS1="inner> " exec sh -i`)
	seen("inner>")
	line("stty size")
	seen("25 90")
	mux("resize-window", "-x", "70", "-y", "20")
	time.Sleep(300 * time.Millisecond)
	line("stty size")
	seen("20 70")
	line("cat")
	time.Sleep(400 * time.Millisecond)
	mux("send-keys", "C-c")
	seen("^C")
	time.Sleep(300 * time.Millisecond) // an interrupt drops what was typed ahead
	line("echo code=$?")
	seen("code=130")
	line("exit 3")
	seen("session-over")
	mux("resize-window", "-x", "90", "-y", "25")
	line("clear; stty -a > '" + dir + "/after'; echo al''so")
	seen("also")
	before, _ := os.ReadFile(dir + "/before")
	after, _ := os.ReadFile(dir + "/after")
	if len(before) == 0 || !bytes.Equal(before, after) {
		t.Errorf("modes before:\n%s\nafter:\n%s", before, after)
	}

	// A box that leaves everything on and asks what it can.
	line("clear")
	session(`printf "\033[?1049h\033[?1000h\033[?1006h\033[?2004h\033[?25l\033[?1h\033=\033[3;5r\033(0\033[8m\033[6n\033[c\033[5n"`)
	seen("session-over")
	seen("session-over\nouter>")
	flags := mux("display-message", "-p", "#{alternate_on} #{mouse_any_flag}#{mouse_sgr_flag} #{cursor_flag} #{keypad_cursor_flag}#{keypad_flag} #{scroll_region_upper}-#{scroll_region_lower}")
	if flags != "0 00 1 00 0-24\n" {
		t.Errorf("the terminal is left with %q", flags)
	}
	line("echo still''here")
	seen("outer> echo still''here\nstillhere\n")

	if _, err := exec.LookPath("vim"); err == nil {
		line("clear")
		session("vim -u NONE -N '" + dir + "/text'")
		seen("~")
		mux("send-keys", "i")
		mux("send-keys", "-l", "typed in vim")
		mux("send-keys", "Escape")
		time.Sleep(200 * time.Millisecond)
		line(":wq")
		seen("session-over")
		if b, _ := os.ReadFile(dir + "/text"); string(b) != "typed in vim\n" {
			t.Errorf("vim wrote %q", b)
		}
	}
	if _, err := exec.LookPath("less"); err == nil {
		line("clear")
		session("seq 1 500 | less")
		seen("24")
		mux("send-keys", "-l", "G")
		seen("500")
		mux("send-keys", "-l", "q")
		seen("session-over")
	}
}
