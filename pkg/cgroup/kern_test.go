package cgroup

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// kernBox starts a kern box as the runner does, and returns the supervisor with
// PID 1 of the box waiting at the gate.
func kernBox(t *testing.T, flags []string, argv ...string) (s *exec.Cmd, w int, gate *os.File, out *bytes.Buffer) {
	t.Helper()
	kern := os.Getenv("KERN_BIN")
	if kern == "" {
		t.Skip("KERN_BIN is not set: no kern to try")
	}
	root := t.TempDir()
	for _, d := range strings.Fields("dev etc proc sys tmp usr") {
		os.Mkdir(root+"/"+d, 0o755)
	}
	for _, l := range strings.Fields("bin lib lib64 sbin") {
		os.Symlink("usr/"+l, root+"/"+l)
	}
	alive, aliveW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	gateR, gate, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out = new(bytes.Buffer)
	args := append([]string{
		"box", newName(), "--rootfs", root, "--read-only", "-v", "/usr:/usr:ro", "--no-uid-range", "--cap-drop", "ALL",
		"--stop-timeout", "0", "--timeout", "60", "--allow-uncapped",
	}, flags...)
	s = exec.Command(kern, append(append(args, "--"), argv...)...)
	s.Env = []string{"KERN_ALIVE_FD=3", "KERN_GATE_FD=4", "PATH=/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + t.TempDir(), "XDG_RUNTIME_DIR=" + t.TempDir()}
	s.ExtraFiles = []*os.File{aliveW, gateR}
	s.Stdout, s.Stderr = out, out
	s.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// kern goes when the thread that started it does.
	started := make(chan error)
	release := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- s.Start()
		<-release
	}()
	t.Cleanup(func() { close(release) })
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	aliveW.Close()
	gateR.Close()
	t.Cleanup(func() {
		gate.Close()
		syscall.Kill(-s.Process.Pid, syscall.SIGKILL)
		s.Wait()
	})
	alive.Read(make([]byte, 1))
	go func() { // kept open, so that kern can write to it
		for n := 1; n > 0; n, _ = alive.Read(make([]byte, 8)) {
		}
		alive.Close()
	}()
	for range 4000 {
		for _, pid := range host.children(s.Process.Pid) {
			status, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
			if _, rest, ok := strings.Cut(string(status), "NSpid:"); ok {
				line, _, _ := strings.Cut(rest, "\n")
				if f := strings.Fields(line); len(f) == 2 && f[1] == "1" {
					return s, pid, gate, out
				}
			}
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("no box: %s", out)
	return nil, 0, nil, nil
}

// TestKernBox: a real box, put under our caps while it waits at its gate.
func TestKernBox(t *testing.T) {
	const hog = `/usr/bin/perl -e '$x = "a" x (100 << 20)' || echo handled; echo lived`
	for _, tt := range []struct {
		name   string
		flags  []string
		limits Limits
		script string
		oom    bool
		out    string
	}{
		{"oom", nil, Limits{Memory: 64 << 20}, hog, true, ""},
		{"oom with an init", []string{"--init"}, Limits{Memory: 64 << 20}, hog, true, ""},
		{"no oom", nil, Limits{Memory: 1 << 30, PIDs: 100, CPUs: 1}, hog, false, "lived"},
		{
			"fork bomb", nil,
			Limits{PIDs: 20},
			`/usr/bin/perl -e 'use Errno; while (defined($p = fork)) { $p or sleep 100; $n++ } print "$n ", $!{EAGAIN} ? "EAGAIN" : $!; kill 9, -1'`,
			false, "EAGAIN",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := create(t, tt.limits)
			s, w, gate, out := kernBox(t, tt.flags, "/bin/sh", "-c", tt.script)
			if KernEnforces(w, 0) {
				t.Log("kern caps this box too; it leaves kern's cgroup for ours")
			}
			began := time.Now()
			if err := g.Add(w); err != nil {
				t.Fatal(err)
			}
			t.Logf("added in %v", time.Since(began))
			gate.Write([]byte{1})
			gate.Close()
			watch := g.Watch(t.Context())
			done := make(chan struct{})
			go func() { s.Wait(); close(done) }()
			select {
			case <-watch:
				syscall.Kill(w, syscall.SIGKILL)
			case <-done:
			case <-time.After(time.Minute):
				t.Fatal("it does not end")
			}
			<-done
			if ws := s.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
				t.Errorf("kern's supervisor died of %v", ws.Signal())
			}
			if g.OOM() != tt.oom || (tt.oom && (strings.Contains(out.String(), "handled") || strings.Contains(out.String(), "lived"))) {
				t.Errorf("oom %v, %q", g.OOM(), out)
			}
			if !strings.Contains(out.String(), tt.out) {
				t.Errorf("%v, %q", s.ProcessState, out)
			}
			if err := g.Remove(); err != nil {
				t.Error(err)
			}
		})
	}
}
