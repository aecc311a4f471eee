package testscripts

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// withPython skips where the host's root has no interpreter.
func withPython(t *testing.T) *poolCaller {
	p := newPoolCaller(t)
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		t.Skip("no python3 in /usr")
	}
	return p
}

// await calls f until it gives true, for some seconds.
func await(f func() bool) bool {
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if f() {
			return true
		}
	}
	return false
}

// deadOf is what kernel ls says of a kernel that died, "" while it lives.
func (p *poolCaller) deadOf() string {
	out := p.must("kernel", "ls")
	if _, why, ok := strings.Cut(out, "dead: "); ok {
		return why
	}
	return ""
}

// What a cell left running makes setuid, after the answer, is not left to the host
// by the end of the kernel.
func TestKernelLeavesNoSetuid(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the files of an ordinary user's box give nobody more rights")
	}
	p := withPython(t)
	ws := filepath.Join(t.TempDir(), "ws")
	if err := os.Mkdir(ws, 0o700); err != nil {
		t.Fatal(err)
	}
	p.must("kernel", "start", "-W", ws)
	p.must("kernel", "exec", "-c", `import subprocess
subprocess.Popen(["sh", "-c", "sleep 0.3; echo x >/workspace/s; while :; do chmod 6755 /workspace/s; done"], start_new_session=True)`)
	file := filepath.Join(ws, "s")
	special := func() bool {
		st, err := os.Stat(file)
		return err == nil && st.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0
	}
	if !await(special) {
		t.Fatal("the code in the box made no setuid file")
	}
	p.must("kernel", "stop")
	if special() {
		t.Error("a setuid file was left")
	}
}

// The directory of the results is on the host's disk, and no place to fill it.
func TestResultsDirectoryIsBounded(t *testing.T) {
	p := withPython(t)
	const fill = `
b = bytes(1 << 20)
for i in range(60):
    f = open("/run/kern-sbx/out/f%d" % i, "wb")
    for _ in range(10): f.write(b)
    f.close()
import time; time.sleep(20)
`
	c := p.command("run", "--json", "--timeout", "30s", "-c", fill)
	out, _ := c.Output()
	var doc struct {
		Fault struct{ Type, Message string }
	}
	json.Unmarshal(out, &doc)
	if c.ProcessState.ExitCode() != 122 || doc.Fault.Type != "workspace_full" || !strings.Contains(doc.Fault.Message, "results") {
		t.Errorf("exit %d, %+v", c.ProcessState.ExitCode(), doc.Fault)
	}
	p.must("kernel", "start")
	p.must("kernel", "exec", "-c", "import threading\ndef f():\n    "+strings.ReplaceAll(strings.TrimSpace(fill), "\n", "\n    ")+"\nthreading.Thread(target=f, daemon=True).start()")
	if !await(func() bool { return strings.Contains(p.deadOf(), "workspace_full") }) {
		t.Errorf("the kernel: %q", p.deadOf())
	}
	p.must("kernel", "stop")
	p.gone()
}

// The memory cap of a kernel is watched for as long as it lives, not only while it
// starts: no cell goes on after a child of its own was ended for it.
func TestKernelOutOfMemory(t *testing.T) {
	p := withPython(t)
	if os.Geteuid() != 0 {
		t.Skip("who caps an ordinary user's box depends on the host")
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		t.Skip("with cgroup v2 the kernel ends the whole group")
	}
	p.must("kernel", "start", "--memory", "64m")
	c := p.command("kernel", "exec", "-c", `import subprocess
subprocess.run(["python3", "-c", "x = b'a' * (300 << 20)"]); print("went on")`)
	out, _ := c.Output()
	if c.ProcessState.ExitCode() != 137 || len(out) != 0 {
		t.Errorf("exit %d, %q", c.ProcessState.ExitCode(), out)
	}
	p.must("kernel", "start", "--name", "idle", "--memory", "64m")
	p.must("kernel", "exec", "idle", "-c", `import subprocess
subprocess.Popen(["python3", "-c", "import time; time.sleep(0.5); x = b'a' * (300 << 20)"])`)
	if !await(func() bool {
		return strings.Contains(p.must("kernel", "ls"), "between two cells, the box needed more than its memory cap")
	}) {
		t.Error(p.must("kernel", "ls"))
	}
}

// A holder that does not answer keeps nobody who wants to end.
func TestStoppedHolder(t *testing.T) {
	p := newPoolCaller(t)
	p.must("prewarm", "start", "-n", "1", "--wait", "--lang", "none")
	pids := p.holders()
	if len(pids) != 1 {
		t.Fatal(pids)
	}
	start := func(args ...string) (*exec.Cmd, *bytes.Buffer) {
		c, errs := p.command(args...), &bytes.Buffer{}
		c.Stderr = errs
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c, errs
	}
	ends := func(c *exec.Cmd, errs *bytes.Buffer, code int, within time.Duration) {
		t.Helper()
		begun := time.Now()
		stuck := time.AfterFunc(within+5*time.Second, func() { c.Process.Kill() })
		defer stuck.Stop()
		c.Wait()
		if took := time.Since(begun); c.ProcessState.ExitCode() != code || took > within {
			t.Errorf("exit %d after %s, want %d: %s", c.ProcessState.ExitCode(), took, code, errs)
		}
	}
	unix.Kill(pids[0], unix.SIGSTOP)
	defer unix.Kill(pids[0], unix.SIGCONT)
	for _, mode := range []string{"auto", "require"} {
		c, errs := start("run", "--pool", mode, "--", "true")
		time.Sleep(300 * time.Millisecond)
		c.Process.Signal(unix.SIGTERM)
		ends(c, errs, 143, 2*time.Second)
	}
	unix.Kill(pids[0], unix.SIGCONT)
	c, errs := start("run", "--pool", "require", "--timeout", "1m", "--", "sleep", "50")
	time.Sleep(500 * time.Millisecond)
	unix.Kill(pids[0], unix.SIGSTOP)
	for range 2 {
		c.Process.Signal(unix.SIGTERM)
		time.Sleep(100 * time.Millisecond)
	}
	ends(c, errs, 137, 5*time.Second)
	unix.Kill(pids[0], unix.SIGCONT)
	if out := p.must("run", "--pool", "require", "--", "echo", "next"); out != "next\n" {
		t.Errorf("%q", out)
	}
	p.must("prewarm", "stop", "--all")
	p.gone()
}

// A pool that is stopped ends the calls it has, and says so: nobody sent the caller
// a signal.
func TestPoolStoppedDuringCall(t *testing.T) {
	p := newPoolCaller(t)
	p.must("prewarm", "start", "-n", "1", "--wait", "--lang", "none")
	c := p.command("run", "--pool", "require", "--json", "--timeout", "1m", "--", "sleep", "50")
	var out bytes.Buffer
	c.Stdout = &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	p.must("prewarm", "stop", "--all")
	c.Wait()
	var doc struct {
		Fault struct{ Type, Message string }
	}
	json.Unmarshal(out.Bytes(), &doc)
	if c.ProcessState.ExitCode() != 137 || doc.Fault.Type != "killed" || !strings.Contains(doc.Fault.Message, "pool") {
		t.Errorf("exit %d, %+v", c.ProcessState.ExitCode(), doc.Fault)
	}
	p.gone()
}

// As much code as a box of its own takes is taken by one that waits.
func TestPoolTakesLongCode(t *testing.T) {
	p := withPython(t)
	p.must("prewarm", "start", "-n", "1", "--wait")
	file := filepath.Join(t.TempDir(), "long.py")
	if err := os.WriteFile(file, append(bytes.Repeat([]byte("# a comment of 32 bytes, or so.\n"), 60<<15), "print(5)\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := p.must("run", "--pool", "require", "-f", file); out != "5\n" {
		t.Errorf("%q", out)
	}
}
