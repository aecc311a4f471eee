package testscripts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// poolCaller is a caller with directories of its own, and a pool.
type poolCaller struct {
	t   *testing.T
	sbx string
	env []string
	run string // where the directories of runs are
}

func newPoolCaller(t *testing.T) *poolCaller {
	sh := build(t)
	if why := setups[0].why(); why != "" {
		t.Skip(why)
	}
	dir := t.TempDir()
	for _, d := range []string{"home", "runtime"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p := &poolCaller{t: t, sbx: filepath.Join(sh.dir, "bin", "kern-sbx"), run: filepath.Join(dir, "home/.cache/kern-sbx/run")}
	p.env = append(os.Environ(), "HOME="+dir+"/home", "XDG_RUNTIME_DIR="+dir+"/runtime", "XDG_CACHE_HOME=", "XDG_DATA_HOME=", "XDG_CONFIG_HOME=", "KERN_SBX_IMAGE=host")
	if !sh.embed {
		p.env = append(p.env, "KERN_BIN="+filepath.Join(sh.dir, "kern", "kern"))
	}
	t.Cleanup(func() {
		p.command("prewarm", "stop", "--all").Run()
		p.command("kernel", "stop", "--all").Run()
	})
	return p
}

func (p *poolCaller) command(args ...string) *exec.Cmd {
	c := exec.Command(p.sbx, args...)
	c.Env = p.env
	return c
}

func (p *poolCaller) must(args ...string) string {
	p.t.Helper()
	c := p.command(args...)
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		p.t.Fatalf("%v: %v\n%s", args, err, errs.String())
	}
	return string(out)
}

// gone says, within some seconds, that no box and no directory of a run is left.
func (p *poolCaller) gone() {
	p.t.Helper()
	var left []string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		left = nil
		if names, err := os.ReadDir(p.run); err == nil {
			for _, n := range names {
				left = append(left, n.Name())
			}
		}
		for _, pid := range holdersOf(p.run) {
			left = append(left, fmt.Sprint("process ", pid))
		}
		if len(left) == 0 {
			return
		}
	}
	p.t.Errorf("still there: %v, held by %v", left, p.holders())
}

// holdersOf lists kern processes whose command line names a path below dir.
func holdersOf(dir string) (pids []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, n := range names {
		if b, err := os.ReadFile(n); err == nil && bytes.HasPrefix(b, []byte("kern\x00")) && bytes.Contains(b, []byte(dir)) {
			pids = append(pids, filepath.Base(filepath.Dir(n)))
		}
	}
	return pids
}

// Every call gets a box of its own, whoever calls at the same time.
func TestPoolClaims(t *testing.T) {
	p := newPoolCaller(t)
	p.must("prewarm", "start", "-n", "4", "--lang", "none")
	const callers, each = 16, 13
	var mu sync.Mutex
	seen := map[string]int{}
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for k := range each {
				mark := fmt.Sprintf("%d-%d", i, k)
				// Its own box is empty, and what it prints comes to itself.
				c := p.command("run", "--pool", "require", "--start-timeout", "2m", "--", "sh", "-c", "ls /workspace /tmp; echo x >/workspace/x; echo x >/tmp/x; echo "+mark)
				out, err := c.Output()
				mu.Lock()
				if got := strings.ReplaceAll(strings.ReplaceAll(string(out), "/tmp:\n\n/workspace:\n", ""), "/workspace:\n\n/tmp:\n", ""); err != nil || got != mark+"\n" {
					t.Errorf("%s: %v, %q", mark, err, out)
				}
				seen[mark]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	var status []struct {
		Served, Failed, Busy int
	}
	if err := json.Unmarshal([]byte(p.must("prewarm", "status", "--json")), &status); err != nil || len(status) != 1 {
		t.Fatal(err, status)
	}
	if s := status[0]; s.Served != callers*each || s.Failed != 0 || s.Busy != 0 {
		t.Errorf("%+v, want %d served", s, callers*each)
	}
	p.must("prewarm", "stop", "--all")
	p.gone()
}

// SIGKILL of the holder, at any moment, leaves nothing, and a call it had gets an
// honest answer.
func TestPoolHolderKilled(t *testing.T) {
	p := newPoolCaller(t)
	p.must("run", "--", "true") // what is made once
	for _, after := range []time.Duration{5 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond, 300 * time.Millisecond} {
		c := p.command("prewarm", "start", "-n", "3")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after)
		for _, pid := range p.holders() {
			unix.Kill(pid, unix.SIGKILL)
		}
		c.Process.Kill()
		c.Wait()
		time.Sleep(100 * time.Millisecond)
		p.must("run", "--", "sleep", "0.3") // sweeps
		p.must("prewarm", "status")
		p.gone()
	}
	p.must("prewarm", "start", "-n", "1", "--wait")
	c := p.command("run", "--pool", "require", "--json", "--timeout", "1m", "--", "sleep", "50")
	var out bytes.Buffer
	c.Stdout = &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	for _, pid := range p.holders() {
		unix.Kill(pid, unix.SIGKILL)
	}
	begun := time.Now()
	c.Wait()
	var doc struct {
		Fault struct{ Type string }
	}
	json.Unmarshal(out.Bytes(), &doc)
	if c.ProcessState.ExitCode() != 137 || doc.Fault.Type != "killed" || time.Since(begun) > 5*time.Second {
		t.Errorf("exit %d, fault %q, after %s", c.ProcessState.ExitCode(), doc.Fault.Type, time.Since(begun))
	}
	p.must("run", "--", "sleep", "0.3")
	p.gone()
}

// holders lists the background processes of this caller.
func (p *poolCaller) holders() (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil || !bytes.Contains(b, []byte("HOME="+filepath.Dir(filepath.Dir(filepath.Dir(p.run))))) {
			continue
		}
		cmd, _ := os.ReadFile(filepath.Join(filepath.Dir(n), "cmdline"))
		if bytes.HasPrefix(cmd, []byte("kern-sbx\x00hold\x00")) {
			var pid int
			fmt.Sscan(filepath.Base(filepath.Dir(n)), &pid)
			pids = append(pids, pid)
		}
	}
	return pids
}

// A caller that is killed takes its box with it, and the next one is served.
func TestPoolCallerKilled(t *testing.T) {
	p := newPoolCaller(t)
	p.must("prewarm", "start", "-n", "1", "--wait", "--lang", "none")
	c := p.command("run", "--pool", "require", "--timeout", "1m", "--", "sleep", "50")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	c.Process.Kill()
	c.Wait()
	if out := p.must("run", "--pool", "require", "--", "echo", "next"); out != "next\n" {
		t.Errorf("%q", out)
	}
	p.must("prewarm", "stop", "--all")
	p.gone()
}
