package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// rig runs the program with directories of its own, so that nothing of the user's
// is met and all that is left can be seen.
type rig struct {
	t   *testing.T
	bin string
	dir string
	env []string
}

// program is the built program, which all tests of this file share.
var program struct {
	once sync.Once
	bin  string
	err  error
}

func builtProgram(t *testing.T) string {
	t.Helper()
	program.once.Do(func() {
		var dir string
		if dir, program.err = os.MkdirTemp("", "kern-sbx-test-"); program.err != nil {
			return
		}
		program.bin = filepath.Join(dir, "kern-sbx")
		c := exec.Command("go", "build", "-tags", "embedkern", "-o", program.bin, ".")
		c.Dir, c.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			program.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return program.bin
}

// removeProgram is called when all tests are done.
func removeProgram() {
	if program.bin != "" {
		os.RemoveAll(filepath.Dir(program.bin))
	}
}

func newRig(t *testing.T) *rig {
	t.Helper()
	if testing.Short() {
		t.Skip("starts boxes")
	}
	for _, need := range []string{"kernbin", "agent"} {
		name := map[string]string{"kernbin": "kern", "agent": "agent"}[need]
		if _, err := os.Stat(filepath.Join("..", "pkg", need, "bundled", runtime.GOARCH, name)); err != nil {
			t.Skip("no kern or agent to test with: `make kern agent` brings them")
		}
	}
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		t.Skip("no python3 in /usr")
	}
	bin := builtProgram(t)
	// Not t.TempDir, whose path is longer than that of a socket may be.
	dir, err := os.MkdirTemp("", "kr")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, bin: bin, dir: dir}
	for _, d := range []string{"run", "home", "tmp"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r.env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8",
		"HOME=" + filepath.Join(dir, "home"), "XDG_RUNTIME_DIR=" + filepath.Join(dir, "run"), "TMPDIR=" + filepath.Join(dir, "tmp"),
	}
	t.Cleanup(func() {
		r.run("kernel", "stop", "--all")
		r.nothingLeft()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return r
}

// answer is what one command line did.
type answer struct {
	out, err string
	code     int
	took     time.Duration
}

func (r *rig) command(args ...string) *exec.Cmd {
	c := exec.Command(r.bin, args...)
	c.Env, c.Dir = r.env, r.dir
	c.WaitDelay = 10 * time.Second
	return c
}

func (r *rig) run(args ...string) answer { return r.runWith("", args...) }

func (r *rig) runWith(in string, args ...string) answer {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, r.bin, args...)
	c.Env, c.Dir, c.WaitDelay = r.env, r.dir, 5*time.Second
	if in != "" {
		c.Stdin = strings.NewReader(in)
	}
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	begun := time.Now()
	err := c.Run()
	if ctx.Err() != nil || c.ProcessState == nil {
		r.t.Fatalf("%q: %v\n%s", args, err, errs.String())
	}
	return answer{out.String(), errs.String(), c.ProcessState.ExitCode(), time.Since(begun)}
}

// want runs a command line that has to end with a code, and to print what is
// given.
func (r *rig) want(code int, out string, args ...string) answer {
	r.t.Helper()
	a := r.run(args...)
	if a.code != code || !strings.Contains(a.out+a.err, out) {
		r.t.Errorf("%q: exit %d, want %d and %q\n%s%s", args, a.code, code, out, a.out, a.err)
	}
	return a
}

// processes lists those of this rig: they have its directory in the environment.
func (r *rig) processes() (found []string) {
	mark := []byte("XDG_RUNTIME_DIR=" + filepath.Join(r.dir, "run"))
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, p := range all {
		if b, err := os.ReadFile(p); err == nil && bytes.Contains(b, mark) {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(p), "cmdline"))
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// boxDirs lists the directories of runs.
func (r *rig) boxDirs() []string {
	all, _ := filepath.Glob(filepath.Join(r.dir, "home/.cache/kern-sbx/run/*"))
	return all
}

func (r *rig) nothingLeft() {
	r.t.Helper()
	var left []string
	for range 150 {
		left = append(r.processes(), r.boxDirs()...)
		entries, _ := filepath.Glob(filepath.Join(r.dir, "run/kern-sbx/kernel/*"))
		records, _ := filepath.Glob(filepath.Join(r.dir, "run/kern/instances/*"))
		if left = append(append(left, entries...), records...); len(left) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	r.t.Errorf("left behind:\n\t%s", strings.Join(left, "\n\t"))
}

func (r *rig) start(flags ...string) {
	r.t.Helper()
	r.want(0, "", append([]string{"kernel", "start", "--image", "host", "-q"}, flags...)...)
}

func (r *rig) holder() int {
	r.t.Helper()
	a := r.run("kernel", "ls", "--json")
	var docs []struct{ PID int }
	if err := json.Unmarshal([]byte(a.out), &docs); err != nil || len(docs) != 1 {
		r.t.Fatalf("%v\n%s%s", err, a.out, a.err)
	}
	return docs[0].PID
}

func TestKernel(t *testing.T) {
	r := newRig(t)
	if a := r.run("kernel", "start", "--image", "host"); a.code != 0 || a.out != "default\n" {
		t.Fatalf("%+v", a)
	}
	r.want(125, "there is a kernel of that name", "kernel", "start", "--image", "host")
	r.want(0, "", "kernel", "exec", "-c", "x = 41")
	if a := r.want(0, "", "kernel", "exec", "-c", "print(x + 1)"); a.out != "42\n" || a.err != "" {
		t.Errorf("%+v", a)
	}
	// Arguments, the name before the flags, a file, standard input.
	r.want(0, "['/run/kern-sbx/cell-3', 'a', '-b', '--json']", "kernel", "exec", "default", "-c", "import sys; print(sys.argv)", "a", "-b", "--json")
	os.WriteFile(filepath.Join(r.dir, "step.py"), []byte("print(__file__, x)\nimport inspect\ndef f(): 1/0\nprint(inspect.getsource(f))\nf()\n"), 0o644)
	r.want(1, `File "/run/kern-sbx/step.py", line 3, in f`, "kernel", "exec", "-f", "step.py")
	r.want(1, "/run/kern-sbx/step.py 41", "kernel", "exec", "-f", "step.py")
	if a := r.runWith("print(x)\n", "kernel", "exec", "-f", "-"); a.out != "41\n" {
		t.Errorf("%+v", a)
	}
	if a := r.runWith("words\n", "kernel", "exec", "-i", "-c", "print(input())"); a.out != "words\n" {
		t.Errorf("%+v", a)
	}
	if a := r.runWith("words\n", "kernel", "exec", "-c", "print(input())"); a.code != 1 || !strings.Contains(a.err, "EOFError") {
		t.Errorf("%+v", a)
	}
	// Codes.
	r.want(3, "", "kernel", "exec", "-c", "raise SystemExit(3)")
	r.want(1, "words", "kernel", "exec", "-c", "raise SystemExit('words')")
	r.want(0, "41", "kernel", "exec", "-c", "print(x)")
	// The document.
	a := r.run("kernel", "exec", "--json", "-c", "print('out'); x")
	var doc struct {
		OK      bool
		Stdout  string
		Results []struct{ Data map[string]string }
	}
	if err := json.Unmarshal([]byte(a.out), &doc); err != nil || !doc.OK || doc.Stdout != "out\n" || len(doc.Results) != 1 || doc.Results[0].Data["text/plain"] != "41" {
		t.Errorf("%v %+v\n%s%s", err, doc, a.out, a.err)
	}
	r.want(0, "", "kernel", "exec", "--result", "res.json", "--out", "made", "-c", "display(1)")
	if b, err := os.ReadFile(filepath.Join(r.dir, "res.json")); err != nil || !bytes.Contains(b, []byte(`"text/plain": "1"`)) {
		t.Errorf("%v %s", err, b)
	}
	if made, _ := filepath.Glob(filepath.Join(r.dir, "made/*")); len(made) != 1 {
		t.Errorf("%v", made)
	}
	// Output is cut here, and the cell runs on.
	if a := r.run("kernel", "exec", "--max-output", "1k", "-c", "print('y'*5000); z = 7"); len(a.out) != 1024 || !strings.Contains(a.err, "cut at 1 KiB") {
		t.Errorf("%d %s", len(a.out), a.err)
	}
	r.want(0, "7", "kernel", "exec", "-c", "print(z)")
	r.want(0, "default  python  host   idle", "kernel", "ls")
	// A box flag names the command that it belongs to.
	for _, flag := range []string{"--memory", "--network", "--image", "--workspace", "-m", "-e", "-W"} {
		if a := r.run("kernel", "exec", flag, "1", "-c", "1"); a.code != 125 || !strings.Contains(a.err, "made by kernel start") {
			t.Errorf("%s: %+v", flag, a)
		}
		if a := r.run("kernel", "exec", "default", flag, "1", "-c", "1"); a.code != 125 || !strings.Contains(a.err, "made by kernel start") {
			t.Errorf("%s after the name: %+v", flag, a)
		}
	}
	for _, bad := range [][]string{
		{"kernel", "exec"},
		{"kernel", "exec", "-c", "1", "-f", "x"},
		{"kernel", "exec", "--stop-on-error", "-c", "1"},
		{"kernel", "exec", "--cells", "x", "-i"},
		{"kernel", "exec", "-i", "-f", "-"},
		{"kernel", "exec", "nobody", "-c", "1"},
		{"kernel", "exec", "../x", "-c", "1"},
		{"kernel", "exec", "--timeout", "x", "-c", "1"},
		{"kernel", "exec", "-f", "nothere.py"},
		{"kernel", "start", "--lang", "node"},
		{"kernel", "start", "--name", "A B"},
		{"kernel", "start", "-i"},
		{"kernel", "start", "-t"},
		{"kernel", "start", "--max-age", "x"},
		{"kernel", "start", "--name", "n", "--image", "host", "-v", "/nothere:/x"},
		{"kernel", "start", "--name", "n", "--rootfs", "."},
		{"kernel", "stop", "nobody"},
		{"kernel", "logs", "nobody"},
		{"kernel", "repl"},
		{"kernel", "nothing"},
		{"hold"},
	} {
		if a := r.run(bad...); a.code != 125 || strings.Count(a.err, "kern-sbx: error:")+strings.Count(a.err, "kern-sbx: startup_failed:") != 1 || a.out != "" {
			t.Errorf("%q: %+v", bad, a)
		}
	}
	r.want(0, "", "kernel", "stop")
	r.nothingLeft()
	r.want(125, "there is no kernel of that name", "kernel", "exec", "-c", "1")
}

func TestKernelCells(t *testing.T) {
	r := newRig(t)
	r.start("--timeout", "20s")
	cells := `{"code": "a = 1"}

{"code": "print(a); a"}
{"code": "1/0"}
{"code": "print('on')", "timeout": "5s"}
{"code": "import time\nwhile True: time.sleep(1)", "timeout": "300ms"}
{"code": "print('never')"}
`
	os.WriteFile(filepath.Join(r.dir, "cells"), []byte(cells), 0o644)
	a := r.run("kernel", "exec", "--json", "--cells", "cells")
	lines := strings.Split(strings.TrimSpace(a.out), "\n")
	if a.code != 124 || len(lines) != 5 {
		t.Fatalf("%+v", a)
	}
	for i, want := range []int{0, 0, 1, 0, 124} {
		var doc struct {
			Status int
			Fault  *struct{ Type string }
		}
		if err := json.Unmarshal([]byte(lines[i]), &doc); err != nil || doc.Status != want || (doc.Fault != nil) != (want == 124) {
			t.Errorf("cell %d: %v %s", i, err, lines[i])
		}
	}
	r.want(125, "a prior cell ended it (timeout)", "kernel", "exec", "-c", "1")
	a = r.run("kernel", "exec", "--restart", "--stop-on-error", "--cells", "cells")
	if a.code != 1 || a.out != "" || !strings.Contains(a.err, "a fresh one is started") || !strings.Contains(a.err, "NameError") {
		// The first cell is whole; a is not printed before 1/0 only if it failed.
		if !strings.Contains(a.err, "ZeroDivisionError") || a.out != "1\n" || a.code != 1 {
			t.Errorf("%+v", a)
		}
	}
	for _, bad := range []string{`{"code": 1}`, `{}`, `[]`, `{"code":"1"} {"code":"2"}`, `{"code":"1","timeout":5}`, `{"code":"1","timeout":"x"}`, `{"code":"1","memory":"1g"}`, "\xff"} {
		if a := r.runWith(bad+"\n", "kernel", "exec", "--cells", "-"); a.code != 125 || !strings.Contains(a.err, "--cells") {
			t.Errorf("%s: %+v", bad, a)
		}
	}
	// A conversation: each answer comes before the next line is written.
	c := r.command("kernel", "exec", "--json", "--cells", "-")
	in, _ := c.StdinPipe()
	out, _ := c.StdoutPipe()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(out)
	for i := range 20 {
		fmt.Fprintf(in, "{\"code\": \"print(%d)\"}\n", i)
		var doc struct{ Stdout string }
		if err := d.Decode(&doc); err != nil || doc.Stdout != strconv.Itoa(i)+"\n" {
			t.Fatalf("%v %q", err, doc.Stdout)
		}
	}
	in.Close()
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
}

// TestHostileCells: whatever a cell does, it is answered in bounded time, and so
// is the next one: by its own answer, or by a refusal that says why.
func TestHostileCells(t *testing.T) {
	r := newRig(t)
	const forge = `
import os, socket, struct
sent = 0
for fd in range(3, 1100):
    for packet in (b"done %s 0", b"ready", b"x" * 500, b""):
        try:
            if packet.count(b"%s"): packet = packet % b"0123456789abcdef"
            socket.socket(fileno=os.dup(fd)).send(packet); sent += 1
        except OSError: pass
print("sent")
`
	for _, c := range []struct {
		name, code string
		codes      []int // any of them
		dead       bool  // the kernel is over afterwards
		either     bool  // it may be
		within     time.Duration
	}{
		{name: "forged answers", code: forge, codes: []int{137}, dead: true, within: 5 * time.Second},
		{name: "close everything", code: "import os; os.closerange(0, 1024)", codes: []int{0, 1, 137}, either: true, within: 5 * time.Second},
		{name: "close what is above", code: "import os; os.closerange(3, 1 << 20)", codes: []int{0, 1, 137}, either: true, within: 5 * time.Second},
		{name: "fork that goes on", code: "import os\npid = os.fork()\nprint('here')\n", codes: []int{0}, within: 5 * time.Second},
		{name: "fork that stays", code: "import os, time\nif os.fork() == 0: time.sleep(600)\n", codes: []int{0}, within: 5 * time.Second},
		{name: "exit", code: "import os; os._exit(3)", codes: []int{3}, dead: true, within: 5 * time.Second},
		{name: "kill", code: "import os; os.kill(os.getpid(), 9)", codes: []int{137}, dead: true, within: 5 * time.Second},
		{name: "segv", code: "import os, signal; os.kill(os.getpid(), 11)", codes: []int{139}, dead: true, within: 5 * time.Second},
		{name: "forbidden call", code: "import ctypes; ctypes.CDLL(None).syscall(246, 0, 0, 0, 0)", codes: []int{159}, dead: true, within: 5 * time.Second},
		{name: "daemon holding stdout", code: "import subprocess; subprocess.Popen(['setsid', 'sleep', '600']); print('gone')", codes: []int{0}, within: 5 * time.Second},
		{name: "daemon that floods", code: "import subprocess; subprocess.Popen(['setsid', 'sh', '-c', 'yes'])", codes: []int{0}, within: 10 * time.Second},
		{name: "stop itself", code: "import os; os.kill(os.getpid(), 19)", codes: []int{124}, dead: true, within: 10 * time.Second},
		{name: "stop the first process", code: "import os\nfor s in (19, 9, 15, 2, 1): os.kill(1, s)\nprint('done')", codes: []int{0, 1}, within: 5 * time.Second},
		{name: "all signals to the first process", code: "import os\nfor s in range(1, 65):\n  try: os.kill(1, s)\n  except OSError: pass", codes: []int{0}, within: 5 * time.Second},
		{name: "kill all", code: "import os, subprocess\nsubprocess.Popen(['sleep', '60'])\nos.kill(-1, 9)", codes: []int{0}, within: 5 * time.Second},
		{name: "read", code: "import sys; print(repr(sys.stdin.read()))", codes: []int{0}, within: 5 * time.Second},
		{name: "threads that go on", code: "import threading, time\ndef f():\n  while True: time.sleep(0.05); print('late')\nthreading.Thread(target=f, daemon=True).start()", codes: []int{0}, within: 5 * time.Second},
		{name: "stdout closed", code: "import sys; sys.stdout.close(); sys.stderr.close()", codes: []int{0}, within: 5 * time.Second},
		{name: "stdout replaced", code: "import sys\nclass X:\n  def __getattr__(self, n): raise RuntimeError(n)\nsys.stdout = sys.stderr = sys.__stdout__ = X()", codes: []int{0}, within: 5 * time.Second},
		{name: "a hook that raises", code: "import sys\nsys.excepthook = lambda *a: 1/0\nsys.displayhook = None\n1/0", codes: []int{1}, within: 5 * time.Second},
		{name: "no interrupts, no end", code: "import signal, time\nsignal.signal(2, signal.SIG_IGN)\nwhile True: time.sleep(1)", codes: []int{124}, dead: true, within: 10 * time.Second},
		{name: "results that are none", code: "import os\nfor n in os.listdir('/run/kern-sbx/out') or ['x']:\n  p = '/run/kern-sbx/out/' + n\n  try: os.unlink(p)\n  except OSError: pass\n  os.mkfifo(p)\n5", codes: []int{0, 1}, within: 10 * time.Second},
		{name: "fork bomb", code: "import os\nwhile True:\n  try:\n    if os.fork() == 0: continue\n  except OSError: pass", codes: []int{124, 137}, dead: true, within: 15 * time.Second},
		{name: "a gigabyte", code: "import os\nb = b'x' * (1 << 20)\nfor _ in range(1024): os.write(1, b)", codes: []int{0}, within: 30 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.t = t
			r.start("--timeout", "3s", "--pids-limit", "40")
			defer r.run("kernel", "stop")
			a := r.run("kernel", "exec", "--max-output", "1m", "-c", c.code)
			ok := false
			for _, n := range c.codes {
				ok = ok || n == a.code
			}
			if !ok || a.took > c.within {
				t.Errorf("exit %d after %s, want one of %v\n%.500s\n%.2000s", a.code, a.took, c.codes, a.out, a.err)
			}
			b := r.run("kernel", "exec", "-c", "print(1 + 1)")
			alive := b.code == 0 && strings.HasPrefix(b.out, "2\n")
			dead := b.code == 125 && strings.Contains(b.err, "is dead")
			if !alive && !dead || c.dead && !dead || !c.dead && !c.either && !alive || b.took > 5*time.Second {
				t.Errorf("the next cell: exit %d after %s\n%.500s\n%.2000s", b.code, b.took, b.out, b.err)
			}
			r.want(0, "", "kernel", "stop")
			r.nothingLeft()
		})
	}
	r.t = t
}

// startCell begins a cell and waits until it says that it runs: at READY, or else
// at its beginning.
func (r *rig) startCell(code string, flags ...string) (*exec.Cmd, *bytes.Buffer) {
	r.t.Helper()
	if !strings.Contains(code, "READY") {
		code = "READY\n" + code
	}
	code = strings.Replace(code, "READY", "print('runs', flush=True)", 1)
	c := r.command(append(append([]string{"kernel", "exec"}, flags...), "-c", code)...)
	out, err := c.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	var errs bytes.Buffer
	c.Stderr = &errs
	if err := c.Start(); err != nil {
		r.t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(out, b); err != nil {
		r.t.Fatalf("%v %s", err, errs.String())
	}
	return c, &errs
}

func code(c *exec.Cmd) int {
	c.Wait()
	return c.ProcessState.ExitCode()
}

func TestKernelSignals(t *testing.T) {
	r := newRig(t)
	r.start("--timeout", "30s")
	sleep := "import time\nkept = 5\nREADY\ntime.sleep(60)"

	// An interrupt ends the cell and keeps the names.
	c, errs := r.startCell(sleep)
	c.Process.Signal(unix.SIGINT)
	if got := code(c); got != 130 || !strings.Contains(errs.String(), "KeyboardInterrupt") {
		t.Errorf("SIGINT: %d %s", got, errs)
	}
	r.want(0, "5", "kernel", "exec", "-c", "print(kept)")

	// So does the end of the caller, by whatever.
	c, _ = r.startCell(sleep)
	c.Process.Signal(unix.SIGTERM)
	if got := code(c); got != 130 {
		t.Errorf("SIGTERM: %d", got)
	}
	c, _ = r.startCell(sleep)
	c.Process.Kill()
	c.Wait()
	if a := r.want(0, "5", "kernel", "exec", "-c", "print(kept)"); a.took > 3*time.Second {
		t.Errorf("after the death of a caller: %s", a.took)
	}

	// Nobody reads.
	c = r.command("kernel", "exec", "-c", "import time\nfor i in range(1000): print('line', flush=True); time.sleep(0.02)")
	out, _ := c.StdoutPipe()
	c.Start()
	io.ReadFull(out, make([]byte, 5))
	out.Close()
	if got := code(c); got != 141 {
		t.Errorf("closed output: %d", got)
	}
	r.want(0, "5", "kernel", "exec", "-c", "print(kept)")

	// A cell that heeds nothing: the third one ends the kernel.
	c, errs = r.startCell("import time, signal\nsignal.signal(2, signal.SIG_IGN)\nsignal.signal(15, signal.SIG_IGN)\nREADY\nwhile True: time.sleep(1)")
	for range 3 {
		c.Process.Signal(unix.SIGINT)
		time.Sleep(50 * time.Millisecond)
	}
	if got := code(c); got != 143 {
		t.Errorf("three interrupts: %d %s", got, errs)
	}
	r.want(125, "a caller ended it", "kernel", "exec", "-c", "1")
	r.want(0, "fresh", "kernel", "exec", "--restart", "-c", "print('fresh')")

	// A caller that was told to end does not wait for ever.
	c, _ = r.startCell("import time, signal\nsignal.signal(2, signal.SIG_IGN)\nREADY\ntime.sleep(60)")
	begun := time.Now()
	c.Process.Signal(unix.SIGTERM)
	if got := code(c); got != 143 || time.Since(begun) > 4*time.Second {
		t.Errorf("SIGTERM to a deaf cell: %d after %s", got, time.Since(begun))
	}
	r.want(125, "is busy with another cell", "kernel", "exec", "--wait=false", "-c", "1")
	// Nor does one who waits for it.
	waiting := r.command("kernel", "exec", "-c", "1")
	said, _ := waiting.StderrPipe()
	waiting.Start()
	io.ReadFull(said, make([]byte, 20))
	waiting.Process.Signal(unix.SIGINT)
	go io.Copy(io.Discard, said)
	if got := code(waiting); got != 130 {
		t.Errorf("interrupted in the queue: %d", got)
	}
	// And a stop does not either.
	if a := r.want(0, "", "kernel", "stop"); a.took > 5*time.Second {
		t.Errorf("a stop takes %s", a.took)
	}
	r.nothingLeft()

	// A stop while a cell runs.
	r.start()
	c, errs = r.startCell(sleep)
	r.want(0, "", "kernel", "stop")
	if got := code(c); got != 143 || !strings.Contains(errs.String(), "it was stopped") {
		t.Errorf("a stop: %d %s", got, errs)
	}
}

func TestKernelMany(t *testing.T) {
	r := newRig(t)
	r.start()
	r.want(0, "", "kernel", "exec", "-c", "n = 0")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				if a := r.run("kernel", "exec", "-q", "-c", "n += 1\nprint('ok')"); a.code != 0 || a.out != "ok\n" {
					t.Errorf("%+v", a)
				}
			}
		})
	}
	all.Wait()
	r.want(0, "160", "kernel", "exec", "-c", "print(n)")

	// One name is for one.
	r.want(0, "", "kernel", "stop")
	codes := make([]int, 6)
	for i := range codes {
		all.Go(func() { codes[i] = r.run("kernel", "start", "--image", "host", "-q").code })
	}
	all.Wait()
	slices.Sort(codes)
	if want := []int{0, 125, 125, 125, 125, 125}; !slices.Equal(codes, want) {
		t.Errorf("%v", codes)
	}
	r.want(0, "1", "kernel", "exec", "-c", "print(1)")
}

// TestKernelKilled: SIGKILL of the holder leaves nothing, at whatever moment.
func TestKernelKilled(t *testing.T) {
	r := newRig(t)
	r.start("--timeout", "none")
	pid := r.holder()
	c, _ := r.startCell("import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep(600)")
	unix.Kill(pid, unix.SIGKILL)
	begun := time.Now()
	if got := code(c); got != 125 {
		t.Errorf("the caller of a killed kernel: %d", got)
	}
	for len(r.processes()) > 0 && time.Since(begun) < 3*time.Second {
		time.Sleep(20 * time.Millisecond)
	}
	if p := r.processes(); len(p) > 0 {
		t.Errorf("3 s later: %q", p)
	}
	r.want(125, "its background process was killed", "kernel", "exec", "-c", "1")
	r.want(0, "dead: its background process was killed", "kernel", "ls")
	if left := r.boxDirs(); len(left) > 0 {
		t.Errorf("ls sweeps what a killed kernel left: %v", left)
	}
	r.want(0, "again", "kernel", "exec", "--restart", "-c", "print('again')")
	r.want(0, "", "kernel", "stop")
	r.nothingLeft()

	// One that is stopped answers nobody, and can be ended all the same.
	r.start()
	unix.Kill(r.holder(), unix.SIGSTOP)
	r.want(0, "silent", "kernel", "ls")
	r.want(0, "", "kernel", "stop")
	r.nothingLeft()

	// While it starts: after so many milliseconds.
	for after := 0; after <= 120; after += 8 {
		c := r.command("kernel", "start", "--image", "host", "-q")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(after) * time.Millisecond)
		killed := false
		for _, p := range r.holders() {
			unix.Kill(p, unix.SIGKILL)
			killed = true
		}
		got := code(c)
		if got != 0 && got != 125 {
			t.Errorf("killed after %d ms: exit %d", after, got)
		}
		for range 50 {
			if !killed || len(r.processes()) == 0 {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		r.run("kernel", "stop")
		r.nothingLeft()
	}
	// The one who waits for the start.
	for after := 0; after <= 80; after += 16 {
		c := r.command("kernel", "start", "--image", "host", "-q")
		c.Start()
		time.Sleep(time.Duration(after) * time.Millisecond)
		c.Process.Kill()
		c.Wait()
		time.Sleep(100 * time.Millisecond)
		r.run("kernel", "stop")
		r.nothingLeft()
	}
}

// holders are the processes in the background.
func (r *rig) holders() (pids []int) {
	mark := []byte("XDG_RUNTIME_DIR=" + filepath.Join(r.dir, "run"))
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, p := range all {
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(p), "cmdline"))
		if b, err := os.ReadFile(p); err == nil && bytes.Contains(b, mark) && bytes.HasPrefix(line, []byte("kern-sbx\x00hold\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(p)))
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestKernelLife(t *testing.T) {
	r := newRig(t)
	// It returns though the caller has a pipe open that it does not know of.
	pr, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := r.command("kernel", "start", "--image", "host", "-q", "--idle-timeout", "400ms")
	c.ExtraFiles = []*os.File{pw, pw, pw}
	var out bytes.Buffer
	c.Stdout = &out
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	pw.Close()
	pr.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := pr.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("the pipe is still held: %d %v", n, err)
	}
	pr.Close()
	time.Sleep(time.Second)
	r.want(125, "nothing ran in it for so long (--idle-timeout)", "kernel", "exec", "-c", "1")
	r.start("--max-age", "700ms")
	c, errs := r.startCell("import time; time.sleep(60)")
	if got := code(c); got != 143 || !strings.Contains(errs.String(), "--max-age") {
		t.Errorf("%d %s", got, errs)
	}
	r.want(125, "--max-age", "kernel", "exec", "-c", "1")

	// Other directories and flags are those of the start, when it starts again.
	os.Mkdir(filepath.Join(r.dir, "ws"), 0o700)
	c = r.command("kernel", "start", "--image", "host", "-q", "-W", "ws", "-e", "WORD=here", "--timeout", "500ms")
	c.Env = append(r.env, "PWD="+r.dir)
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	r.want(124, "ws is still there", "kernel", "exec", "-c", "open('file', 'w').write('1')\nwhile True: pass")
	r.want(125, filepath.Join(r.dir, "ws")+" is still there", "kernel", "exec", "-c", "1")
	c = r.command("kernel", "exec", "--restart", "-c", "import os; print(os.listdir('.'), os.environ['WORD'])")
	c.Dir = "/"
	if b, err := c.CombinedOutput(); err != nil || !bytes.Contains(b, []byte("['file'] here")) {
		t.Errorf("%v %s", err, b)
	}
	// No value of the environment is in sight.
	for _, p := range r.processes() {
		if strings.Contains(p, "WORD") {
			t.Errorf("shown to all: %s", p)
		}
	}
	r.want(0, "", "kernel", "stop")

	// What is printed between two cells is in the log; the end between two cells is
	// the kernel's.
	r.start()
	r.want(0, "", "kernel", "exec", "-c", "import threading, os, time\ndef f(): time.sleep(0.2); os.write(1, b'late word\\n'); time.sleep(0.1); os._exit(7)\nthreading.Thread(target=f).start()")
	time.Sleep(700 * time.Millisecond)
	r.want(0, "late word", "kernel", "logs")
	r.want(125, "is dead: ", "kernel", "exec", "-c", "1")
	r.want(0, "", "kernel", "stop", "--all")
	r.nothingLeft()
}

// Faults of a kernel are those of a run.
func TestKernelOOM(t *testing.T) {
	r := newRig(t)
	a := r.run("kernel", "start", "--image", "host", "--memory", "64m", "--require-limits")
	if a.code == 125 {
		t.Skip("memory cannot be capped here: " + a.err)
	}
	r.want(0, "", "kernel", "exec", "-c", "x = 41")
	r.want(137, "oom: ", "kernel", "exec", "-c", "b = bytearray(300 << 20)")
	r.want(125, "a prior cell ended it (oom)", "kernel", "exec", "-c", "print(x)")
	// Also when the cell that grows is not the one that runs.
	r.start("--name", "two", "--memory", "64m")
	r.run("kernel", "exec", "two", "-c", "import threading, time\ndef f(): time.sleep(0.3); b = bytearray(300 << 20)\nthreading.Thread(target=f).start()")
	time.Sleep(1500 * time.Millisecond)
	r.want(125, "(oom)", "kernel", "exec", "two", "-c", "1")
}

// TestKernelFromBox: rule S5, with a real box that has the socket's directory.
func TestKernelFromBox(t *testing.T) {
	r := newRig(t)
	r.start()
	kern := filepath.Join("..", "pkg", "kernbin", "bundled", runtime.GOARCH, "kern")
	kern, err := filepath.Abs(kern)
	if err != nil {
		t.Fatal(err)
	}
	roots, _ := filepath.Glob(filepath.Join(r.dir, "home/.cache/kern-sbx/hostroot/*/root"))
	if len(roots) == 0 {
		roots, _ = filepath.Glob(filepath.Join(r.dir, "home/.cache/kern-sbx/hostroot/*"))
	}
	if len(roots) == 0 {
		t.Fatal("no host root to make a box of")
	}
	const call = `
import socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.settimeout(8)
s.connect("/mnt/default/socket")
s.send(b'{"v":1,"op":"status"}')
got = s.recv(65536)
print("ANSWERED" if got else "DROPPED")
`
	// kern refuses the directory itself as its own; a link to it is what code of an
	// earlier run could have left.
	c := exec.Command(kern, "box", "s5test"+strconv.Itoa(os.Getpid()), "--rootfs", roots[0], "-v", "/usr:/usr:ro",
		"-v", filepath.Join(r.dir, "run/kern-sbx/kernel")+":/mnt:ro", "--timeout", "20", "--", "/usr/bin/python3", "-c", call)
	c.Env = r.env
	b, err := c.CombinedOutput()
	text := string(b)
	switch {
	case strings.Contains(text, "ANSWERED"):
		t.Errorf("a box speaks to the kernel\n%s", text)
	case strings.Contains(text, "DROPPED"), strings.Contains(text, "ConnectionResetError"), strings.Contains(text, "BrokenPipeError"):
	default:
		t.Errorf("the box did not get to the socket: %v\n%s", err, text)
	}
	r.want(0, "1", "kernel", "exec", "-c", "print(1)")
}
