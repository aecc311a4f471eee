package pool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
)

// dialAs makes the test binary a peer: it connects to the socket named by the
// variable, as whoever and wherever it was started.
const dialAs = "POOL_TEST_DIAL"

func TestMain(m *testing.M) {
	if path := os.Getenv(dialAs); path != "" {
		os.Exit(dialFrom(path))
	}
	os.Exit(m.Run())
}

// dialFrom exits with 0 when it was answered, 3 when it was dropped, 4 when it
// could not even connect.
func dialFrom(path string) int {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 5
	}
	if unix.Connect(fd, &unix.SockaddrUnix{Name: path}) != nil {
		return 4
	}
	c, err := agent.NewConn(os.NewFile(uintptr(fd), "socket"))
	if err != nil {
		return 5
	}
	c.File().SetDeadline(time.Now().Add(10 * time.Second))
	if c.Send(Hello{Version, "ping"}) != nil {
		return 3
	}
	var answer map[string]string
	if _, err := c.Receive(&answer); err != nil || answer["pong"] == "" {
		return 3
	}
	return 0
}

func testPlace(t *testing.T) *Place {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := Open(func(n string) string {
		if n == "XDG_RUNTIME_DIR" {
			return dir
		}
		return ""
	}, runner.Dirs{Private: filepath.Join(dir, "private")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// serve starts a holder that answers pings.
func serve(t *testing.T, p *Place, name string) *Holder {
	t.Helper()
	h, err := p.Claim("test", name)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.Serve(ctx, func(_ context.Context, p *Peer) { p.Answer(map[string]string{"pong": p.Hello.Op}) })
	}()
	t.Cleanup(func() {
		begun := time.Now()
		cancel()
		<-done
		if d := time.Since(begun); d > endTime/2 {
			t.Errorf("it took %s to end", d)
		}
		h.Leave()
	})
	return h
}

func ping(p *Place, name string) error {
	c, err := p.Dial("test", name)
	if err != nil {
		return err
	}
	defer c.Close()
	c.File().SetDeadline(time.Now().Add(10 * time.Second))
	if err := c.Send(Hello{Version, "ping"}); err != nil {
		return err
	}
	var answer map[string]string
	if _, err := c.Receive(&answer); err != nil {
		return err
	}
	if answer["pong"] != "ping" {
		return fmt.Errorf("answered %v", answer)
	}
	return nil
}

func TestPlace(t *testing.T) {
	base := t.TempDir()
	private := filepath.Join(base, "private")
	other := filepath.Join(base, "open")
	link := filepath.Join(base, "link")
	good := filepath.Join(base, "good")
	linked := filepath.Join(base, "linked")
	for dir, mode := range map[string]os.FileMode{other: 0o755, good: 0o700, linked: 0o700} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink(good, link), os.Symlink(other, filepath.Join(linked, "kern-sbx"))); err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]string{
		"":                          private,
		"relative":                  private,
		filepath.Join(base, "none"): private,
		other:                       private, // others can enter
		link:                        private, // somebody may turn it elsewhere
		linked:                      private, // what lies in it is a link
		good:                        filepath.Join(good, "kern-sbx"),
	} {
		p, err := Open(func(string) string { return value }, runner.Dirs{Private: private})
		if err != nil {
			t.Errorf("%q: %v", value, err)
			continue
		}
		if p.Path != want {
			t.Errorf("%q: %s, want %s", value, p.Path, want)
		}
		p.Close()
	}
	if _, err := Open(func(string) string { return "" }, runner.Dirs{Private: other + "/x/../../link"}); err == nil {
		t.Error("a private directory that is a link is used")
	}
}

func TestClaimIsForOne(t *testing.T) {
	p := testPlace(t)
	for range 20 {
		var mu sync.Mutex
		var won []*Holder
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				h, err := p.Claim("test", "one")
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won = append(won, h)
				} else if !errors.As(err, new(*HeldError)) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if len(won) != 1 {
			t.Fatalf("%d have the name", len(won))
		}
		if err := won[0].Leave(); err != nil {
			t.Fatal(err)
		}
		if got := p.Names("test"); len(got) != 0 {
			t.Fatalf("left: %v", got)
		}
	}
	for _, name := range []string{"", "-x", "A", "a/b", "..", "a b", strings.Repeat("a", 33), "a\x00"} {
		if _, err := p.Claim("test", name); err == nil {
			t.Errorf("%q is a name", name)
		}
		if _, err := p.Dial("test", name); err == nil {
			t.Errorf("%q can be called", name)
		}
	}
}

// A path longer than the address of a socket is no obstacle.
func TestLongPath(t *testing.T) {
	dir := t.TempDir()
	for range 6 {
		dir = filepath.Join(dir, strings.Repeat("d", 40))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := Open(func(string) string { return dir }, runner.Dirs{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	serve(t, p, "far")
	if err := ping(p, "far"); err != nil {
		t.Fatal(err)
	}
}

func TestDeath(t *testing.T) {
	p := testPlace(t)
	if _, err := p.Dial("test", "x"); !errors.As(err, new(*NoneError)) {
		t.Fatalf("%v", err)
	}
	h, err := p.Claim("test", "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Dial("test", "x"); !errors.As(err, new(*StartingError)) {
		t.Fatalf("before it listens: %v", err)
	}
	if err := errors.Join(h.Describe("meta"), h.Listen()); err != nil {
		t.Fatal(err)
	}
	io.WriteString(h.Log(), "words")
	if err := h.Bury("grave"); err != nil {
		t.Fatal(err)
	}
	var dead *DeadError
	if _, err := p.Dial("test", "x"); !errors.As(err, &dead) || string(dead.Meta) != `"meta"` || string(dead.Grave) != `"grave"` {
		t.Fatalf("%v %+v", err, dead)
	}
	var log bytes.Buffer
	if err := p.CopyLog("test", "x", &log); err != nil || log.String() != "words" {
		t.Fatalf("%q, %v", log.String(), err)
	}
	p.Sweep("test", time.Hour, nil)
	if len(p.Names("test")) != 1 {
		t.Fatal("a grave is swept at once")
	}
	p.Sweep("test", 0, nil)
	if len(p.Names("test")) != 0 {
		t.Fatal("an old grave stays")
	}

	// Killed: its lock is free, and it left no word.
	killed := func(meta any) {
		t.Helper()
		h, err := p.Claim("test", "y")
		if err != nil {
			t.Fatal(err)
		}
		if meta != nil {
			h.Describe(meta)
		}
		h.Listen()
		h.free()
	}
	bury := func(meta json.RawMessage) any { return "killed " + string(meta) }
	killed(nil)
	if _, err := p.Dial("test", "y"); !errors.As(err, new(*NoneError)) {
		t.Fatalf("one that was never ready: %v", err)
	}
	p.Sweep("test", time.Hour, bury)
	if len(p.Names("test")) != 0 {
		t.Fatal("one that was never ready is kept")
	}
	killed("m")
	p.Sweep("test", time.Hour, bury)
	if _, err := p.Dial("test", "y"); !errors.As(err, &dead) || string(dead.Grave) != `"killed \"m\""` {
		t.Fatalf("%v", err)
	}
	if err := p.Remove("test", "y"); err != nil {
		t.Fatal(err)
	}
	killed("m")
	p.Sweep("test", time.Hour, nil)
	if len(p.Names("test")) != 0 {
		t.Fatal("one that nobody wants to hear of is kept")
	}
	// A living one is left alone by all of them.
	serve(t, p, "z")
	p.Sweep("test", 0, nil)
	if err := p.Remove("test", "z"); !errors.As(err, new(*HeldError)) {
		t.Fatalf("%v", err)
	}
	if err := ping(p, "z"); err != nil {
		t.Fatal(err)
	}
}

// Sweeps, looks and claims at the same time lose nothing.
func TestSweepRaces(t *testing.T) {
	p := testPlace(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for ctx.Err() == nil {
				p.Sweep("test", 0, nil)
				p.Look("test", "r")
			}
		})
	}
	for range 3 {
		all.Go(func() {
			for ctx.Err() == nil {
				h, err := p.Claim("test", "r")
				if errors.As(err, new(*HeldError)) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if err := errors.Join(h.Describe(1), h.Listen()); err != nil {
					t.Error(err)
				}
				if e, err := p.Look("test", "r"); err != nil || !e.Alive {
					t.Errorf("a living holder is not seen: %v %v", e, err)
				}
				if err := h.Leave(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func TestHostilePeers(t *testing.T) {
	p := testPlace(t)
	serve(t, p, "h")
	raw := func() int {
		t.Helper()
		d, err := p.entry("test", "h")
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: below(d, socketFile)}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	dropped := func(name string, fd int, within time.Duration) {
		t.Helper()
		begun := time.Now()
		tv := unix.NsecToTimeval(int64(within + 2*time.Second))
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
		n, err := unix.Read(fd, make([]byte, 4096))
		if n > 0 || errors.Is(err, unix.EAGAIN) || time.Since(begun) > within {
			t.Errorf("%s: not dropped within %s (%d, %v)", name, within, n, err)
		}
	}
	// Nothing, and many of them: others are served meanwhile.
	var silent []int
	for range 40 {
		silent = append(silent, raw())
	}
	for range 20 {
		if err := ping(p, "h"); err != nil {
			t.Fatal(err)
		}
	}
	for name, packet := range map[string][]byte{
		"empty":     {},
		"garbage":   {0xff, 0, 1},
		"no object": []byte(`[1,2]`),
		"deep":      bytes.Repeat([]byte("["), 60000),
		"half":      []byte(`{"v":1,"op":"pi`),
		"number":    []byte(`{"v":"1"}`),
	} {
		fd := raw()
		if err := unix.Sendmsg(fd, packet, nil, nil, unix.MSG_NOSIGNAL); err != nil {
			t.Fatal(err)
		}
		dropped(name, fd, time.Second)
	}
	fd := raw()
	if err := unix.Sendmsg(fd, append([]byte(`{"v":1,"op":"`), bytes.Repeat([]byte("x"), 100<<10)...), nil, nil, unix.MSG_NOSIGNAL); err == nil {
		dropped("too long", fd, time.Second)
	}
	// More descriptors than anybody sends; none of them stays open.
	before := openFDs(t)
	var fds []int
	for range 200 {
		fds = append(fds, 0)
	}
	for range 20 {
		fd = raw()
		if err := unix.Sendmsg(fd, []byte(`{"v":1,"op":"x"}`), unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL); err != nil {
			t.Fatal(err)
		}
		dropped("too many descriptors", fd, time.Second)
	}
	if n := openFDs(t) - before; n > 60 {
		t.Errorf("%d more descriptors are open", n)
	}
	// Another version is told so.
	c, err := p.Dial("test", "h")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Send(Hello{Version + 1, "ping"})
	var r Refusal
	if _, err := c.Receive(&r); err != nil || !strings.Contains(r.Refused, "another version") {
		t.Errorf("%v %v", r, err)
	}
	dropped("silent", silent[0], firstTime+time.Second)
	if err := ping(p, "h"); err != nil {
		t.Fatal(err)
	}
}

func openFDs(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// TestOtherNamespace: rule S5. The socket is reached by a process of our own uid
// that is in another pid namespace, as every box is.
func TestOtherNamespace(t *testing.T) {
	p := testPlace(t)
	serve(t, p, "n")
	// (The way through our descriptor is not open to another process.)
	path := filepath.Join(p.Path, "test", "n", socketFile)
	if len(path) > 100 {
		t.Skip("the path of the temporary directory is too long for a plain connect")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(attr *unix.SysProcAttr) int {
		c := exec.Command(self)
		c.Env = append(os.Environ(), dialAs+"="+path)
		c.SysProcAttr = attr
		if err := c.Run(); c.ProcessState == nil {
			t.Skip("no namespaces here: ", err)
		}
		return c.ProcessState.ExitCode()
	}
	if got := run(nil); got != 0 {
		t.Fatalf("one of our own is not answered: %d", got)
	}
	attr := &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []unixIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []unixIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	if got := run(attr); got != 3 {
		t.Errorf("one in another pid namespace: %d, want to be dropped", got)
	}
}

// TestOtherUser: the directory keeps others out; and where it does not, the
// holder does.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	top, err := os.MkdirTemp("/tmp", "pool")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	p, err := Open(func(string) string { return top }, runner.Dirs{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	serve(t, p, "u")
	path := filepath.Join(p.Path, "test", "u", socketFile)
	self := filepath.Join(top, "dial")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(exe)
	if err == nil {
		err = os.WriteFile(self, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	run := func() int {
		c := exec.Command(self)
		c.Env, c.Dir = append(os.Environ(), dialAs+"="+path), "/"
		c.SysProcAttr = &unix.SysProcAttr{Credential: &credential{Uid: 12345, Gid: 12345}}
		c.Run()
		return c.ProcessState.ExitCode()
	}
	open := func(mode os.FileMode) {
		for _, d := range []string{top, p.Path, filepath.Join(p.Path, "test"), filepath.Join(p.Path, "test", "u")} {
			if err := os.Chmod(d, mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Chmod(top, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := run(); got != 4 {
		t.Errorf("another user: %d, want not to get to the socket", got)
	}
	open(0o755)
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if got := run(); got != 3 {
		t.Errorf("another user with a way to the socket: %d, want to be dropped", got)
	}
	open(0o700)
}

// The log keeps the end, however much is written.
func TestLog(t *testing.T) {
	p := testPlace(t)
	h, err := p.Claim("test", "l")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Leave()
	line := strings.Repeat("x", 999) + "\n"
	for range 5000 {
		io.WriteString(h.Log(), line)
	}
	h.Log().Write(bytes.Repeat([]byte("y"), 100<<10))
	io.WriteString(h.Log(), "the end")
	var b bytes.Buffer
	if err := p.CopyLog("test", "l", &b); err != nil {
		t.Fatal(err)
	}
	if n := b.Len(); n < logHalf || n > 2*logHalf {
		t.Errorf("%d bytes are kept", n)
	}
	if !strings.HasSuffix(b.String(), "the end") {
		t.Error("the end is lost")
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(h.dir.Fd()), logFile, &st, 0); err != nil || st.Mode&0o777 != 0o600 {
		t.Errorf("mode %o, %v", st.Mode, err)
	}
}

func TestHostileFiles(t *testing.T) {
	p := testPlace(t)
	h, err := p.Claim("test", "f")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Leave()
	at := filepath.Join(p.Path, "test", "f", metaFile)
	if err := os.Symlink("/etc/passwd", at); err != nil {
		t.Fatal(err)
	}
	if readDoc(h.dir, metaFile) != nil {
		t.Error("a link is followed")
	}
	os.Remove(at)
	if err := unix.Mkfifo(at, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan bool, 1)
	go func() { done <- readDoc(h.dir, metaFile) == nil }()
	select {
	case ok := <-done:
		if !ok {
			t.Error("a FIFO is read")
		}
	case <-time.After(5 * time.Second):
		t.Error("a FIFO is waited for")
	}
	if err := h.Describe("x"); err != nil || string(readDoc(h.dir, metaFile)) != `"x"` {
		t.Error("it cannot be replaced:", err)
	}
}

func TestResultTravels(t *testing.T) {
	code := 3
	res := runner.Refused(errors.New("x"))
	res.ExitCode, res.Notes, res.LimitsReason = &code, []string{"n"}, "why"
	res.Results = []runner.Rich{{Data: map[string]string{"text/plain": "1"}, Files: []string{}}}
	res.RuntimeNotes = runner.TextOf([]byte("kern: \xff"))
	res.Truncated.Results = true
	b, err := encodeResult(res)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeResult(b)
	if err != nil {
		t.Fatal(err)
	}
	var want, have bytes.Buffer
	if err := errors.Join(res.WriteJSON(&want), got.WriteJSON(&have)); err != nil {
		t.Fatal(err)
	}
	if want.String() != have.String() {
		t.Errorf("was\n%s\nis\n%s", want.String(), have.String())
	}
	if got.LimitsReason != "why" || len(got.Notes) != 1 || got.Notes[0] != "n" {
		t.Errorf("%+v", got)
	}
}

func FuzzDecodeResult(f *testing.F) {
	b, err := encodeResult(runner.Refused(errors.New("x")))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"schema":"kern-sbx/result/v1","stdout":{},"results":[null]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		res, err := decodeResult(b)
		if err != nil {
			return
		}
		if err := res.WriteJSON(io.Discard); err != nil {
			t.Error(err)
		}
	})
}

// Whatever a peer writes as its request, it is a job or a refusal, and no
// descriptor of it is lost.
func FuzzJob(f *testing.F) {
	f.Add([]byte(`{"v":1,"op":"exec","timeout_ms":5,"wait":true}`), []byte("0\n0\n0\n1\n01\n01\n1"), 3)
	f.Add([]byte(`{}`), []byte{}, 4)
	f.Fuzz(func(t *testing.T, raw, body []byte, n int) {
		k := &Kernel{}
		m := incoming{raw: raw}
		if n < 0 || n > agentFiles {
			return
		}
		for i := range n {
			b := body
			if i > 0 {
				b = nil
			}
			file, err := agent.Seal(b)
			if err != nil {
				t.Skip(err)
			}
			m.files = append(m.files, file)
		}
		j, refusal := k.jobFor(m)
		if (j == nil) == (refusal == nil) {
			t.Fatal("neither a job nor a refusal, or both")
		}
		if j != nil {
			if j.timeout < 0 || strings.ContainsAny(j.body.File, "/\x00") {
				t.Errorf("%+v", j)
			}
			j.closeFiles()
		} else {
			closeAll(m.files)
		}
		for _, file := range m.files {
			if file.Close() == nil {
				t.Error("a descriptor was left open")
			}
		}
	})
}

const agentFiles = 8

func TestGoroutinesEnd(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("serve", func(t *testing.T) {
		p := testPlace(t)
		serve(t, p, "g")
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if err := ping(p, "g"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
	for range 100 {
		if runtime.NumGoroutine() <= before+1 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}
