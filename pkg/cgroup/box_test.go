package cgroup

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary is also what runs in the groups, so that the same tests run
// in a guest that has nothing else.
const roleEnv = "KERN_SBX_CGROUP_TEST_ROLE"

// expectEnv says what a guest's set-up has to answer: "bound", or a part of the
// reason. Unset, a host that cannot is skipped.
const expectEnv = "KERN_SBX_CGROUP_TEST_EXPECT"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(play(role))
	}
	os.Exit(m.Run())
}

// play is one process in a group. The first waits for its gate.
func play(role string) int {
	role, isChild := strings.CutPrefix(role, "child:")
	if !isChild {
		io.ReadAll(os.Stdin)
	}
	switch role {
	case "spin":
		for time.Now().Unix() > 0 {
		}
	case "sleep":
		time.Sleep(time.Minute)
	case "touch":
		b := make([]byte, 100<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
	case "read":
		f, err := os.Open("/dev/zero")
		if err != nil {
			return 3
		}
		b := make([]byte, 100<<20)
		if _, err := io.ReadFull(f, b); err != nil {
			fmt.Println("read:", err)
			return 4
		}
	case "shell-touch", "shell-read":
		// What `sh -c 'hog || echo handled'` does.
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{roleEnv + "=child:" + strings.TrimPrefix(role, "shell-")}
		cmd.Stdout = os.Stdout
		if err := cmd.Run(); err != nil {
			fmt.Println("handled", err)
		}
	case "fork":
		for n := 0; ; n++ {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = []string{roleEnv + "=child:sleep"}
			if err := cmd.Start(); err != nil || n == 200 {
				fmt.Println(n, errors.Is(err, syscall.EAGAIN))
				return 0
			}
		}
	case "create":
		g, _, err := Create(os.Args[1], Limits{Memory: 64 << 20, PIDs: 40, CPUs: 1})
		if err == nil {
			pid, _ := strconv.Atoi(os.Args[2])
			err = g.Add(pid)
		}
		fmt.Println(err)
		time.Sleep(time.Minute)
	}
	return 0
}

func newName() string {
	b := make([]byte, 8)
	rand.Read(b)
	return prefix + hex.EncodeToString(b)
}

// create makes a group, or skips where this host cannot.
func create(t testing.TB, l Limits) *Group {
	t.Helper()
	g, b, err := Create(newName(), l)
	all := b.Memory == (l.Memory > 0) && b.PIDs == (l.PIDs > 0) && b.CPU == (l.CPUs > 0)
	if all != (b.Reason == "") {
		t.Errorf("bound %+v of %+v", b, l)
	}
	if !all {
		if err == nil {
			g.Remove()
		}
		switch want := os.Getenv(expectEnv); {
		case want == "":
			t.Skip("no group can be made here: " + b.Reason)
		case want == "bound" || !strings.Contains(b.Reason, want):
			t.Fatalf("got %+v (%v), want %s", b, err, want)
		default:
			t.Skip("as it has to be here: " + b.Reason)
		}
	}
	if want := os.Getenv(expectEnv); want != "" && want != "bound" {
		t.Errorf("it binds, and must not: %s", want)
	}
	t.Cleanup(func() {
		g.Kill()
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
		gone(t, g.name)
	})
	return g
}

// gone checks that nothing of a group is left anywhere.
func gone(t testing.TB, name string) {
	t.Helper()
	trees, err := host.trees()
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range trees {
		below(tr.mount, func(dir string) {
			if strings.HasSuffix(dir, "/"+name) {
				t.Errorf("%s is left", dir)
			}
		})
	}
}

// box is PID 1 of a pid namespace, as kern's is, waiting at its gate.
type box struct {
	*exec.Cmd
	gate io.Closer
	out  bytes.Buffer
	once sync.Once
	err  error
}

// Wait may be called twice, and at once.
func (b *box) Wait() error {
	b.once.Do(func() { b.err = b.Cmd.Wait() })
	return b.err
}

func newBox(t testing.TB, role string, args ...string) *box {
	t.Helper()
	b := &box{Cmd: exec.Command("/proc/self/exe", args...)}
	b.Env = []string{roleEnv + "=" + role}
	b.Stdout, b.Stderr = &b.out, &b.out
	b.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if os.Geteuid() != 0 {
		b.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
	}
	gate, err := b.StdinPipe()
	if err == nil {
		b.gate = gate
		err = b.Start()
	}
	if err != nil {
		t.Skip("no pid namespace here: " + err.Error())
	}
	t.Cleanup(func() { b.Process.Kill(); b.Wait() })
	return b
}

func start(t testing.TB, g *Group, role string, args ...string) *box {
	t.Helper()
	b := newBox(t, role, args...)
	if err := g.Add(b.Process.Pid); err != nil {
		t.Fatal(err)
	}
	b.gate.Close()
	return b
}

// end waits for a box as the runner does: it ends it when the group says so.
func (b *box) end(t testing.TB, g *Group, limit time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	watch := g.Watch(ctx)
	done := make(chan error, 1)
	go func() { done <- b.Wait() }()
	select {
	case <-watch:
		b.Process.Kill()
		<-done
	case <-done:
	case <-ctx.Done():
		b.Process.Kill()
		<-done
		t.Fatalf("the box did not end in %v; it wrote %q", limit, b.out.String())
	}
}

// TestOutOfMemory: the whole box ends, also what would have lived on, and the
// kernel's own word for it is there afterwards. Memory is touched by the
// program, and by the kernel for it: two ways through the kernel.
func TestOutOfMemory(t *testing.T) {
	for _, role := range []string{"touch", "read", "shell-touch", "shell-read"} {
		t.Run(role, func(t *testing.T) {
			g := create(t, Limits{Memory: 64 << 20})
			b := start(t, g, role)
			b.end(t, g, time.Minute)
			if !g.OOM() {
				t.Error("no OOM is counted")
			}
			if s := b.out.String(); s != "" {
				t.Errorf("the box lived on and wrote %q", s)
			}
			if ws := b.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
				t.Errorf("it ended with %v", b.ProcessState)
			}
			peak := g.Peak()
			if _, err := os.Stat(g.memory.dir + "/memory.peak"); (err == nil || !g.memory.v2) && (peak < 60<<20 || peak > 65<<20) {
				t.Errorf("peak %d", peak)
			}
		})
	}
}

// TestNoOOM: nothing is claimed of a box that ended by itself.
func TestNoOOM(t *testing.T) {
	g := create(t, Limits{Memory: 2 << 30})
	b := start(t, g, "shell-touch")
	b.end(t, g, time.Minute)
	if g.OOM() || b.out.Len() != 0 || !b.ProcessState.Success() {
		t.Errorf("oom %v, %v, %q", g.OOM(), b.ProcessState, b.out.String())
	}
}

// TestWatchStops: a watch ends with its context, or with its group, and says
// nothing then.
func TestWatchStops(t *testing.T) {
	g := create(t, Limits{Memory: 64 << 20})
	before := openEvents(t)
	ctx, cancel := context.WithCancel(t.Context())
	watches := []<-chan struct{}{g.Watch(ctx), g.Watch(t.Context())}
	cancel()
	g.Remove()
	for range 200 {
		if openEvents(t) == before {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if n := openEvents(t); n != before {
		t.Errorf("%d descriptors are left", n-before)
	}
	for _, w := range watches {
		select {
		case <-w:
			t.Error("it speaks of an OOM")
		default:
		}
	}
	if g.OOM() {
		t.Error("an OOM is claimed")
	}
}

// TestHurry: the thread is an ordinary one again afterwards.
func TestHurry(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	enough := hurry()
	during, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	enough()
	after, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("policy %d", during.Policy)
	if after.Policy != before.Policy || after.Priority != before.Priority || after.Nice != before.Nice {
		t.Errorf("from %+v to %+v", before, after)
	}
}

func openEvents(t *testing.T) (n int) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); to == "anon_inode:[eventfd]" {
			n++
		}
	}
	return n
}

func TestForks(t *testing.T) {
	g := create(t, Limits{PIDs: 60})
	b := start(t, g, "fork")
	b.end(t, g, time.Minute)
	var n int
	var again bool
	// Go's own threads count too.
	if _, err := fmt.Sscan(b.out.String(), &n, &again); err != nil || !again || n < 2 || n > 60 {
		t.Errorf("%v: %q", b.ProcessState, b.out.String())
	}
}

func TestCPU(t *testing.T) {
	g := create(t, Limits{CPUs: 0.5})
	began := time.Now()
	b := start(t, g, "spin")
	time.Sleep(2 * time.Second)
	counted := g.CPUTime()
	b.Process.Kill()
	wall := time.Since(began)
	b.Wait()
	used := b.ProcessState.UserTime() + b.ProcessState.SystemTime()
	t.Logf("%v at 0.5 CPU: rusage %v, counted %v", wall, used, counted)
	// A busy host gives less; never more.
	if used > wall*65/100 || used < wall/10 {
		t.Errorf("it used %v of %v", used, wall)
	}
	if counted != 0 && (counted < used/2 || counted > used*3/2) {
		t.Errorf("counted %v, used %v", counted, used)
	}
}

// TestKill: all end, and the group can be removed at once.
func TestKill(t *testing.T) {
	g := create(t, Limits{Memory: 256 << 20, PIDs: 100, CPUs: 1})
	b := start(t, g, "fork")
	time.Sleep(50 * time.Millisecond)
	go b.Wait()
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
}

// TestBusy: a group with a live process is not removed, in bounded time.
func TestBusy(t *testing.T) {
	g := create(t, Limits{PIDs: 40})
	start(t, g, "sleep")
	began := time.Now()
	if err := g.Remove(); err == nil {
		t.Error("removed under a live process")
	}
	if d := time.Since(began); d > 2*removeTime {
		t.Errorf("it took %v", d)
	}
}

// TestSweep: the one that made a group is killed; what it left goes, also when
// the sweeper is in another cgroup than it was.
func TestSweep(t *testing.T) {
	create(t, Limits{Memory: 64 << 20, PIDs: 40, CPUs: 1})
	name := newName()
	t.Cleanup(func() { Remove(name); gone(t, name) })
	b := newBox(t, "sleep")
	creator := exec.Command("/proc/self/exe", name, strconv.Itoa(b.Process.Pid))
	creator.Env = []string{roleEnv + "=create"}
	// Its gate is open: no standard input.
	out, err := creator.StdoutPipe()
	if err == nil {
		err = creator.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	n, _ := out.Read(buf)
	creator.Process.Kill()
	creator.Wait()
	if string(buf[:n]) != "<nil>\n" {
		t.Fatalf("the creator said %q", buf[:n])
	}
	// What is not ours stays.
	for _, other := range []string{"", ".", "..", "/", "kern-sbx-", prefix + "0123456789abcdeg", "../" + name, name + "/..", "kern-box-0123456789abcdef"} {
		Remove(other)
	}
	if b.Process.Signal(syscall.Signal(0)) != nil {
		t.Fatal("the box is gone already")
	}
	b.gate.Close()
	go b.Wait()
	Remove(name)
	gone(t, name)
}

// TestExempt: a caller that the kernel never kills hands that on to the box.
func TestExempt(t *testing.T) {
	g := create(t, Limits{Memory: 64 << 20})
	b := newBox(t, "shell-touch")
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", b.Process.Pid), []byte("-1000"), 0); err != nil {
		t.Skip("only a privileged caller can be exempt: " + err.Error())
	}
	if err := g.Add(b.Process.Pid); err != nil {
		t.Fatal(err)
	}
	b.gate.Close()
	b.end(t, g, time.Minute)
	if !g.OOM() {
		t.Error("no OOM is counted")
	}
}

// TestAddChild: kern's own init has forked the command already when it waits.
func TestAddChild(t *testing.T) {
	g := create(t, Limits{PIDs: 60})
	b := newBox(t, "shell-touch")
	b.gate.Close()
	var kids []int
	for range 2000 {
		if kids = host.children(b.Process.Pid); len(kids) > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if len(kids) == 0 {
		t.Skip("the child was too quick, or too slow")
	}
	err := g.Add(b.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 { // it may be ending
		if err = g.verify(kids[0]); err == nil || !host.alive(kids[0]) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error(err)
}

func TestAddNobody(t *testing.T) {
	g := create(t, Limits{PIDs: 40})
	if err := g.Add(1 << 30); err == nil {
		t.Error("a process that is not there was added")
	}
}

func TestKernEnforcesNot(t *testing.T) {
	if KernEnforces(os.Getpid(), 0) || KernEnforces(1<<30, 0) {
		t.Error("kern is not around this test")
	}
}

// BenchmarkGroup is what caps of ours add to a run, in which Create has the
// time that kern takes to build a box.
func BenchmarkGroup(b *testing.B) {
	var made, added, removed time.Duration
	n := 0
	for b.Loop() {
		box := newBox(b, "sleep")
		// Let the kernel forget the last time.
		time.Sleep(100 * time.Millisecond)
		t0 := time.Now()
		g, bound, err := Create(newName(), Limits{Memory: 64 << 20, PIDs: 40, CPUs: 1})
		if err != nil || bound.Reason != "" {
			b.Skip("no group can be made here: " + bound.Reason)
		}
		t1 := time.Now()
		time.Sleep(18 * time.Millisecond)
		t2 := time.Now()
		if err := g.Add(box.Process.Pid); err != nil {
			b.Fatal(err)
		}
		t3 := time.Now()
		box.Process.Kill()
		box.Wait()
		t4 := time.Now()
		if err := g.Remove(); err != nil {
			b.Fatal(err)
		}
		made, added, removed = made+t1.Sub(t0), added+t3.Sub(t2), removed+time.Since(t4)
		n++
	}
	for _, m := range []struct {
		d    time.Duration
		unit string
	}{{made, "µs-create"}, {added, "µs-add"}, {removed, "µs-remove"}} {
		b.ReportMetric(float64(m.d.Microseconds())/float64(n), m.unit)
	}
}
