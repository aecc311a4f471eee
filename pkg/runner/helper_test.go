package runner

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/kernbin"
)

// The test binary also plays other programs, chosen by these variables. (Names
// that begin with KERN_ do not reach kern.)
const (
	fakeVar = "RUNNER_TEST_FAKE" // be kern, and behave so
	runVar  = "RUNNER_TEST_RUN"  // marks all processes of one test
	sweepAs = "test-sweep-inherited"
)

// kern has one thread, and runner relies on it: the fake starts PID 1 from its
// first thread as well.
func init() {
	if os.Getenv(fakeVar) != "" {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	if mode := os.Getenv(fakeVar); mode != "" && len(os.Args) > 1 && (os.Args[1] == "box" || os.Args[1] == "stop" || os.Args[1] == "pid1") {
		fakeKern(mode, os.Args[1])
	}
	if len(os.Args) == 3 && os.Args[1] == sweepAs {
		if err := SweepInherited(os.Args[2], ""); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fakeKern is kern where the real one cannot be made to do what is tested. A
// mode is "kind" or "kind:argument".
func fakeKern(mode, as string) {
	if as == "stop" {
		os.Exit(1)
	}
	kind, arg, _ := strings.Cut(mode, ":")
	num := func(name string) *os.File {
		n, err := strconv.Atoi(os.Getenv(name))
		if err != nil {
			os.Exit(99)
		}
		return os.NewFile(uintptr(n), name)
	}
	started, alive, gate := num("KERN_STARTED_FD"), num("KERN_ALIVE_FD"), num("KERN_GATE_FD")
	if kind == "raced" {
		if as != "pid1" {
			racedStart(arg, alive)
		}
		kind, arg = "payload", "1,1,0,0"
	}
	if as == "pid1" {
		fakeInit(kind, alive, gate)
	}
	fakeBuild(kind, alive)
	alive.Write([]byte("A"))
	self, err := os.Executable()
	if err != nil {
		os.Exit(99)
	}
	w, err := os.StartProcess(self, []string{"kern", "pid1"}, &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, started, alive, gate},
		Sys: &unix.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID,
			UidMappings: []unixIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []unixIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
			Pdeathsig:   unix.SIGKILL,
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "error: no namespaces here:", err)
		os.Exit(1)
	}
	if kind == "die-at-gate" {
		dieOf(unix.SIGSEGV)
	}
	alive.Close()
	st, _ := w.Wait()
	if kind == "payload" {
		for _, f := range strings.Split(arg, ",") {
			if n, err := strconv.Atoi(f); err == nil {
				started.Write([]byte{byte(n)})
			}
		}
	}
	if kind == "hang-at-end" {
		signal.Ignore(unix.SIGTERM)
		forever()
	}
	started.Close()
	os.Exit(st.ExitCode())
}

// racedStart refuses the first starts as kern does whose slice went away: N:FILE
// counts them.
func racedStart(arg string, alive *os.File) {
	most, file, _ := strings.Cut(arg, ":")
	n, err := strconv.Atoi(most)
	f, ferr := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil || ferr != nil {
		os.Exit(99)
	}
	f.WriteString("x")
	if st, err := f.Stat(); err == nil && st.Size() <= int64(n) {
		alive.Write([]byte("A"))
		fmt.Fprintln(os.Stderr, "error: sandbox: resource caps could not be enforced on the direct cgroup path (kern.slice delegation raced, was garbage-collected, or is partial); refusing to start an uncapped box")
		os.Exit(1)
	}
}

// fakeBuild is what the fake does before there is a box.
func fakeBuild(kind string, alive *os.File) {
	switch kind {
	case "help":
		fmt.Println("kern runs boxes")
		os.Exit(0)
	case "usage":
		fmt.Fprintln(os.Stderr, "error: unknown flag \x1b[31m--x")
		os.Exit(1)
	case "refuse": // acks, and refuses before building
		alive.Write([]byte("A"))
		fmt.Fprintln(os.Stderr, "kern: note: this is no reason\nerror: no such image")
		os.Exit(1)
	case "no-ack":
		time.Sleep(time.Hour)
	case "abort":
		alive.Write([]byte("A"))
		dieOf(unix.SIGABRT)
	case "deaf": // ignores everything, with a child in its group that does so too
		signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
		c := exec.Command("sh", "-c", "trap '' TERM INT HUP QUIT; while :; do sleep 1; done")
		c.Start()
		forever()
	case "chatter":
		alive.Write([]byte("A"))
		line := bytes.Repeat([]byte("kern: note: still here\n"), 1000)
		for {
			os.Stderr.Write(line)
		}
	case "rubbish":
		alive.Write(bytes.Repeat([]byte{0, 'B', 0xff, 'a', 'X', '\n'}, 1<<17))
	case "rubbish-x":
		alive.Write([]byte("zzzAzzzxzzz"))
		fmt.Fprintln(os.Stderr, "kern: sandbox setup failed: rubbish")
		os.Exit(125)
	}
}

func forever() {
	for {
		time.Sleep(time.Hour)
	}
}

// dieOf ends this process by a signal that the Go runtime would turn into an
// exit code of its own.
func dieOf(s unix.Signal) {
	unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	exe, _ := exec.LookPath("sh")
	unix.Exec(exe, []string{"sh", "-c", fmt.Sprintf("kill -%d $$; sleep 3600", s)}, os.Environ())
}

// fakeInit is PID 1 of the fake's box.
func fakeInit(kind string, alive, gate *os.File) {
	switch kind {
	case "deaf-gate": // never reads the gate, never starts
		forever()
	case "die-at-gate": // its supervisor goes while it waits
		alive.Write([]byte("P"))
		forever()
	case "no-gate": // starts without waiting
		time.Sleep(200 * time.Millisecond)
	default:
		alive.Write([]byte("P"))
		gate.Read(make([]byte, 1))
	}
	alive.Close()
	// What is said here comes from "the code".
	fmt.Print("out")
	fmt.Fprint(os.Stderr, "error: the code says so\n")
	if kind == "sleep" {
		time.Sleep(time.Hour)
	}
	os.Exit(7)
}

// testSpec is a Spec that needs nothing but its kern.
func testSpec(t testing.TB, kern string) (*Spec, Dirs) {
	t.Helper()
	tmp := t.TempDir()
	for _, d := range []string{"cache", "root"} {
		if err := os.Mkdir(filepath.Join(tmp, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return &Spec{
		Kern: &kernbin.Kern{Path: kern, Version: "test"}, Rootfs: filepath.Join(tmp, "root"),
		Timeout: time.Minute, StartTimeout: time.Minute, Capture: true, Argv: []string{"prog"},
	}, Dirs{
		Cache: filepath.Join(tmp, "cache"), Private: filepath.Join(tmp, "private"),
	}
}

// runFake runs a Spec on the fake, and checks that nothing is left of it.
func runFake(t *testing.T, mode string, change func(*Spec)) *Result {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
	t.Setenv(fakeVar, mode)
	t.Setenv(runVar, id)
	s, dirs := testSpec(t, self)
	if change != nil {
		change(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	budget, stop := NewBudget(ctx, s.StartTimeout)
	defer stop()
	res, err := Run(ctx, budget, dirs, s)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(res.RuntimeNotes.Head(1000)), "no namespaces here") {
		t.Skip("the fake kern needs user namespaces: ", string(res.RuntimeNotes.Head(1000)))
	}
	if left := marked(runVar + "=" + id); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
	runs, err := os.ReadDir(filepath.Join(dirs.Cache, "run"))
	if err != nil || len(runs) > 0 {
		t.Errorf("left below run/: %v %v", runs, err)
	}
	return res
}

// marked lists the living processes that have a variable in their environment,
// other than this one.
func marked(env string) []string {
	// A killed orphan may take a moment.
	for wait := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var found []string
		names, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, n := range names {
			b, err := os.ReadFile(n)
			if err != nil || !bytes.Contains(b, []byte(env)) || n == fmt.Sprintf("/proc/%d/environ", os.Getpid()) {
				continue
			}
			found = append(found, n)
		}
		if len(found) == 0 || time.Now().After(wait) {
			return found
		}
	}
}

func text(t testing.TB, x *Text) string {
	t.Helper()
	b, err := io.ReadAll(x.Reader())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func describe(r *Result) string {
	s := fmt.Sprintf("status %d", r.Status)
	if r.ExitCode != nil {
		s += fmt.Sprintf(" exit %d", *r.ExitCode)
	}
	if r.Fault != nil {
		s += fmt.Sprintf(" %s: %s", r.Fault.Type, r.Fault.Message)
	}
	return s
}

func bytesPtr(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }
