package interp

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
	"github.com/kern-sbx/kern-sbx/pkg/agent/wire"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// warm is a driver that waits, as the agent keeps one.
type warm struct {
	t    testing.TB
	dir  string
	cmd  *exec.Cmd
	sock *os.File
	// log is what came to the streams of the box.
	log  bytes.Buffer
	done chan error
}

func startWarm(t testing.TB, python, dir, mode string) *warm {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(p[1]), "socket")
	defer theirs.Close()
	if err := unix.SetNonblock(p[0], true); err != nil {
		t.Fatal(err)
	}
	w := &warm{t: t, dir: dir, sock: os.NewFile(uintptr(p[0]), "socket"), done: make(chan error, 1)}
	w.cmd = exec.Command(python, "-u", filepath.Join(dir, driver), "serve", mode)
	w.cmd.Dir, w.cmd.Env = "/", append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	w.cmd.ExtraFiles = []*os.File{theirs}
	w.cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	w.cmd.Stdout, w.cmd.Stderr = &w.log, &w.log
	w.cmd.WaitDelay = 5 * time.Second
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { w.done <- w.cmd.Wait() }()
	t.Cleanup(func() {
		w.sock.Close()
		unix.Kill(-w.cmd.Process.Pid, unix.SIGKILL)
	})
	if got := w.hear(); got != "ready" {
		<-w.done
		t.Fatalf("the driver said %q\n%s", got, w.log.String())
	}
	return w
}

// hear gives the next packet, "" at the end.
func (w *warm) hear() string {
	w.t.Helper()
	w.sock.SetReadDeadline(time.Now().Add(time.Minute))
	var b [256]byte
	n, err := w.sock.Read(b[:])
	if err != nil && err != io.EOF {
		w.t.Errorf("waiting for the driver: %v", err)
	}
	return string(b[:n])
}

type streams struct{ out, err chan string }

// send gives the driver a cell. in nil: no stdin.
func (w *warm) send(y wire.Body, in *os.File) streams {
	w.t.Helper()
	memory, err := agent.Seal(y.Append(nil))
	if err != nil {
		w.t.Fatal(err)
	}
	files := []*os.File{memory}
	var s streams
	for _, c := range []*chan string{&s.out, &s.err} {
		r, f, err := os.Pipe()
		if err != nil {
			w.t.Fatal(err)
		}
		*c = make(chan string, 1)
		go func() {
			defer r.Close()
			b, _ := io.ReadAll(r)
			*c <- string(b)
		}()
		files = append(files, f)
	}
	if in != nil {
		files = append(files, in)
	}
	w.sendFiles(y.ID, files...)
	return s
}

// sendFiles sends the packet of a cell, and closes the files.
func (w *warm) sendFiles(id string, files ...*os.File) {
	w.t.Helper()
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	rc, err := w.sock.SyscallConn()
	if err != nil {
		w.t.Fatal(err)
	}
	rc.Write(func(fd uintptr) bool {
		err = unix.Sendmsg(int(fd), []byte("cell "+id+"\n"), unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
		return err != unix.EAGAIN
	})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range files {
		f.Close()
	}
}

func runOnce(t *testing.T, python, dir, script, src string, args []string) string {
	t.Helper()
	w := startWarm(t, python, dir, Once)
	y := wire.Body{ID: "x1", File: script, Dir: dir, Code: []byte(src)}
	for _, a := range args {
		y.Argv = append(y.Argv, []byte(a))
	}
	s := w.send(y, nil)
	select {
	case <-w.done:
	case <-time.After(2 * time.Minute):
		t.Fatal("it does not end")
	}
	text := told(<-s.out, <-s.err, w.cmd)
	if got := w.hear(); got != "" {
		t.Errorf("it said %q", got)
	}
	if w.log.Len() > 0 {
		t.Errorf("written to the box's streams: %s", w.log.String())
	}
	return text
}

// exec is the driver's answer to a cell.
func (w *warm) exec(id, src string, args ...string) (answer, out, err string) {
	w.t.Helper()
	y := wire.Body{ID: id, Dir: w.dir, Code: []byte(src)}
	for _, a := range args {
		y.Argv = append(y.Argv, []byte(a))
	}
	s := w.send(y, nil)
	answer = w.hear()
	return answer, <-s.out, <-s.err
}

func TestKernel(t *testing.T) {
	t.Parallel()
	w := startWarm(t, python(t), install(t, true), Kernel)
	for i, c := range []struct{ src, answer, out, err string }{
		{"x = 1\nprint('hello')", "0", "hello\n", ""},
		{"print(x, __name__)", "0", "1 __main__\n", ""},
		{"x + 1", "0", "", ""},
		{"print(_)", "0", "2\n", ""},
		{"None", "0", "", ""},
		{"print(_)", "0", "2\n", ""},
		{"import sys\nsys.exit(7)", "7", "", ""},
		{"sys.exit('why not')", "1", "", "why not\n"},
		{"sys.exit()", "0", "", ""},
		{"sys.exit(-1)", "255", "", ""},
		{"sys.exit(2**70)", "255", "", ""},
		{"def f():\n    return 1/0\n", "0", "", ""},
		{"f()", "1", "", "Traceback (most recent call last):\n  File \"cell-13\", line 1, in <module>\n    f()\n  File \"cell-12\", line 2, in f\n    return 1/0\n           ~^~\nZeroDivisionError: division by zero\n"},
		{"def g(:", "1", "", "  File \"cell-14\", line 1\n    def g(:\n          ^\nSyntaxError: invalid syntax\n"},
		{"return 3", "1", "", "  File \"cell-15\", line 1\n    return 3\n    ^^^^^^^^\nSyntaxError: 'return' outside function\n"},
		{"raise KeyboardInterrupt", "130", "", "Traceback (most recent call last):\n  File \"cell-16\", line 1, in <module>\n    raise KeyboardInterrupt\nKeyboardInterrupt\n"},
		{"import inspect\nprint(inspect.getsource(f))", "0", "def f():\n    return 1/0\n\n", ""},
		{"sys.stdout = None\nsys.stderr = None", "0", "", ""},
		{"print('again')", "0", "again\n", ""},
		{"sys.stdout.close()\nsys.stderr.detach()", "0", "", ""},
		{"print('again'); print('and', file=sys.stderr)", "0", "again\n", "and\n"},
		{"import os\nos.close(0)\nos.close(1)\nos.close(2)", "0", "", ""},
		{"print('again'); print('and', file=sys.stderr)", "0", "again\n", "and\n"},
		{"print(sys.argv, sys.stdin.read() == '', os.getcwd() == '" + w.dir + "')", "0", "['cell-24'] True True\n", ""},
		{"sys.excepthook = lambda *a: print('hook', a[0].__name__)\n1/0", "1", "hook ZeroDivisionError\n", ""},
		{"del sys.excepthook\n1/0", "1", "", "sys.excepthook is missing\nTraceback (most recent call last):\n  File \"cell-26\", line 2, in <module>\n    1/0\n    ~^~\nZeroDivisionError: division by zero\n"},
		{"sys.excepthook = sys.__excepthook__\nglobals().clear()", "0", "", ""},
		{"print(sorted(globals()))", "0", "['__builtins__']\n", ""},
		{"import os\nif os.fork() == 0:\n    print('child')\nelse:\n    os.wait(); print('parent')", "0", "child\nparent\n", ""},
		{"import os\nif os.fork() == 0:\n    1/0\nprint(os.wait()[1] >> 8)", "0", "1\n", "Traceback (most recent call last):\n  File \"cell-30\", line 3, in <module>\n    1/0\n    ~^~\nZeroDivisionError: division by zero\n"},
		{"import ctypes; ctypes.CDLL(None).printf(b'from c')", "0", "from c", ""},
		{"os.closerange(3, 200)", "0", "", ""},
		{"print('here')", "0", "here\n", ""},
		{"import signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)", "130", "", "Traceback (most recent call last):\n  File \"cell-34\", line 2, in <module>\n    os.kill(os.getpid(), signal.SIGINT)\nKeyboardInterrupt\n"},
		{"signal.signal(signal.SIGINT, lambda *a: print('mine'))", "0", "", ""},
		{"os.kill(os.getpid(), signal.SIGINT)", "0", "mine\n", ""},
	} {
		id := "id" + strconv.Itoa(i)
		answer, out, err := w.exec(id, c.src)
		if want := "done " + id + " " + c.answer; answer != want || out != c.out || err != c.err {
			t.Fatalf("%s\ngot  %q %q %q\nwant %q %q %q", c.src, answer, out, err, want, c.out, c.err)
		}
	}
}

// wait returns how the driver ended.
func (w *warm) wait() string {
	w.t.Helper()
	select {
	case <-w.done:
	case <-time.After(30 * time.Second):
		w.t.Fatal("it does not end")
	}
	return w.cmd.ProcessState.String()
}

// TestKernelEnds are cells after which the driver cannot go on. It must end, or
// say something that the agent takes for a break of the protocol, and not hang.
func TestKernelEnds(t *testing.T) {
	python := python(t)
	for name, c := range map[string]struct{ src, heard, end string }{
		"os._exit":       {"import os\nos._exit(9)", "", "exit status 9"},
		"killed":         {"import os\nos.kill(os.getpid(), 9)", "", "signal: killed"},
		"all closed":     {"import os\nos.closerange(0, 65536)", "", "exit status 0"},
		"closed, failed": {"import os\nos.closerange(0, 65536)\nraise SystemExit(5)", "", "exit status 5"},
		"forged":         {"import os\nfor fd in range(3, 1100):\n    try: os.write(fd, b'done id 0')\n    except OSError: pass\nos._exit(1)", "done id 0", ""},
		"forged, fork":   {"import os\nif os.fork() == 0:\n    for fd in range(3, 1100):\n        try: os.write(fd, b'done x 0')\n        except OSError: pass\n    os._exit(0)\nos.wait()\nos._exit(1)", "done x 0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := startWarm(t, python, install(t, true), Kernel)
			heard, _, _ := w.exec("id", c.src)
			if heard != c.heard {
				t.Errorf("heard %q, want %q", heard, c.heard)
			}
			if end := w.wait(); c.end != "" && end != c.end {
				t.Errorf("%s, want %s", end, c.end)
			}
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		t.Parallel()
		w := startWarm(t, python, install(t, true), Kernel)
		w.sock.Close()
		if end := w.wait(); end != "exit status 0" {
			t.Error(end)
		}
	})
}

func TestKernelStreams(t *testing.T) {
	t.Parallel()
	dir := install(t, true)
	w := startWarm(t, python(t), dir, Kernel)
	ok := func(id, src, out string) {
		t.Helper()
		answer, o, e := w.exec(id, src)
		if answer != "done "+id+" 0" || o != out || e != "" {
			t.Fatalf("%s: %q %.200q %.200q", src, answer, o, e)
		}
	}
	// What a thread says after its cell goes to the box, not into another cell.
	ok("t1", "import threading, os, sys, time\ngo = threading.Event()\nthreading.Thread(target=lambda: (go.wait(), time.sleep(.2), print('late')), daemon=True).start()", "")
	ok("t2", "go.set()", "")
	time.Sleep(500 * time.Millisecond)
	ok("t3", "print(1)", "1\n")
	// A session of its own, and the process group, change nothing.
	ok("s1", "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(.1)\n    os._exit(0)\nos.wait()\nprint(2)", "2\n")
	// A GiB to a reader that takes it.
	answer, out, _ := w.exec("big", "b = b'x' * (1 << 20)\nfor i in range(256): os.write(1, b)")
	if answer != "done big 0" || len(out) != 256<<20 {
		t.Errorf("%q, %d bytes", answer, len(out))
	}
	// Standard input of a cell, and none of it for the next.
	r, f, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		io.WriteString(f, "one\ntwo\nthree")
		f.Close()
	}()
	s := w.send(wire.Body{ID: "in", Dir: dir, Env: [][]byte{[]byte("A=b\n=c")}, Code: []byte("print(input(), repr(os.environ['A']), os.getenvb(b'A'))")}, r)
	if got := w.hear() + <-s.out + <-s.err; got != "done in 0one 'b\\n=c' b'b\\n=c'\n" {
		t.Errorf("%q", got)
	}
	ok("in2", "print(sys.stdin.read() == '')", "True\n")
	// A directory that is not there.
	s = w.send(wire.Body{ID: "dir", Dir: dir + "/none", Code: []byte("1")}, nil)
	if got := w.hear() + <-s.out + <-s.err; got != "done dir 126kern-sbx: the working directory "+dir+"/none: No such file or directory\n" {
		t.Errorf("%q", got)
	}
	// Results lie in a file for each cell, and figures are closed after each.
	ok("r1", "display(1)\n2", "")
	ok("r2", matplotlib+"f = plt.figure()\n_", "")
	ok("r3", "plt.get_fignums()", "")
	for id, want := range map[string]string{
		"r1": `["plain=1" "plain=2"]`,
		"r2": `["plain=2" "image/png=\x89PNG\r\n\x1a\n1 | plain=<Figure 1>"]`,
		"r3": `["plain=[]"]`,
	} {
		if got := fmt.Sprintf("%q", written(t, dir, id)); got != want {
			t.Errorf("%s: %s, want %s", id, got, want)
		}
	}
	// An interrupt between cells is nothing.
	for range 20 {
		w.cmd.Process.Signal(unix.SIGINT)
		time.Sleep(5 * time.Millisecond)
	}
	ok("i1", "print(3)", "3\n")
	// One that comes during a cell ends it, and keeps the names; also when it
	// represents its value.
	for id, src := range map[string]string{"i2": "x = 5\nprint('.', flush=True)\ntime.sleep(20)", "i3": "class C:\n    def __repr__(self):\n        print('.', flush=True)\n        time.sleep(20)\nC()"} {
		r, f, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		memory, err := agent.Seal((&wire.Body{ID: id, Code: []byte(src)}).Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		w.sendFiles(id, memory, f, f)
		var b [1]byte
		if _, err := r.Read(b[:]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		w.cmd.Process.Signal(unix.SIGINT)
		text, _ := io.ReadAll(r)
		if got := w.hear(); got != "done "+id+" 130" || !strings.HasSuffix(string(text), "KeyboardInterrupt\n") || strings.Contains(string(text), reserved) {
			t.Errorf("%q %s", got, text)
		}
	}
	ok("i4", "print(x)", "5\n")
	w.sock.Close()
	w.wait()
	if got := w.log.String(); got != "late\n" {
		t.Errorf("the box's log: %q", got)
	}
}

// TestKernelManyInterrupts: however an interrupt falls, each cell is answered
// once.
func TestKernelManyInterrupts(t *testing.T) {
	t.Parallel()
	w := startWarm(t, python(t), install(t, true), Kernel)
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				w.cmd.Process.Signal(unix.SIGINT)
				time.Sleep(300 * time.Microsecond)
			}
		}
	}()
	for i := range 300 {
		id := strconv.Itoa(i)
		answer, _, _ := w.exec(id, "x = sum(range(20000))\nx")
		if answer != "done "+id+" 0" && answer != "done "+id+" 130" {
			t.Fatalf("%d: %q\n%s", i, answer, w.log.String())
		}
	}
	close(stop)
	<-stopped
	if answer, out, errs := w.exec("last", "print('fine')"); answer+out+errs != "done last 0fine\n" {
		t.Errorf("%q %q %q", answer, out, errs)
	}
}

// TestOnce is what only a pooled run has.
func TestOnce(t *testing.T) {
	t.Parallel()
	python := python(t)
	dir := install(t, true)
	if err := os.WriteFile(dir+"/main.py", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := startWarm(t, python, dir, Once)
	for range 5 { // while it waits
		w.cmd.Process.Signal(unix.SIGINT)
		time.Sleep(5 * time.Millisecond)
	}
	r, f, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		io.WriteString(f, "line")
		f.Close()
	}()
	s := w.send(wire.Body{ID: "id", File: dir + "/main.py", Dir: dir, Env: [][]byte{[]byte("A=1")}, Code: []byte(`
import os, sys, signal, threading
def kind(fd):
    try: return os.readlink("/proc/self/fd/" + fd)
    except OSError: return ""
print([k for k in map(kind, os.listdir("/proc/self/fd")) if "socket" in k or "memfd" in k], sys.stdin.read(), sys.stdin.seekable(), os.environ["A"])
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, threading.active_count(), getattr(sys, "orig_argv", sys.argv)[-1])
print([m for m in ("_socket", "traceback", "ctypes") if m in sys.modules])
`)}, r)
	if end := w.wait(); end != "exit status 0" {
		t.Error(end)
	}
	want := "[] line False 1\nTrue 1 " + dir + "/main.py\n[]\n"
	if out, errs := <-s.out, <-s.err; out != want || errs != "" {
		t.Errorf("%q %q, want %q", out, errs, want)
	}
}

func TestDriver(t *testing.T) {
	for _, lang := range []string{"node", "bash", "sh", ""} {
		if argv, files := Driver(lang, Once); argv != nil || files != nil {
			t.Errorf("%s: %q", lang, argv)
		}
	}
	if argv, _ := Driver("python", "often"); argv != nil {
		t.Errorf("%q", argv)
	}
	argv, files := Driver("python", Kernel)
	if strings.Join(argv, " ") != "python3 -u /run/kern-sbx/.kern-sbx.py serve kernel" || len(files) != 3 {
		t.Errorf("%q, %d files", argv, len(files))
	}
	for _, f := range files {
		if _, err := Build("", f.Name, nil, nil); err == nil {
			t.Errorf("%s may be a user's file", f.Name)
		}
	}
}

func TestWarmEnv(t *testing.T) {
	for key, want := range map[string]bool{
		"A": true, "API_KEY": true, "OMP_NUM_THREADS": true, "MPLCONFIGDIR": true, "LANGUAGE": true, "LD": true,
		"PATH": false, "HOME": false, "TZ": false, "LANG": false, "LC_ALL": false, "LD_PRELOAD": false,
		"PYTHONPATH": false, "PYTHONHASHSEED": false, "GLIBC_TUNABLES": false, "MALLOC_ARENA_MAX": false,
	} {
		if got := WarmEnv([]validate.KV{{Key: "X"}, {Key: key, Value: "v"}}); got != want {
			t.Errorf("%s: %v", key, got)
		}
	}
}
