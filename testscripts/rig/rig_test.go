//go:build linux && amd64

package rig

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestGuest(t *testing.T) {
	rw := t.TempDir()
	g := Boot(t, Options{RW: []string{rw}})
	sh := func(t *testing.T, o Options, script string) Result {
		t.Helper()
		return g.Run(t, o, "/bin/sh", "-c", script)
	}
	for _, tt := range []struct {
		name   string
		o      Options
		argv   []string
		status int
		stdout string
		stderr string
	}{
		{name: "status and streams", argv: []string{"sh", "-c", "echo out; echo err >&2; exit 42"}, status: 42, stdout: "out\n", stderr: "err\n"},
		{name: "bytes", argv: []string{"printf", `\000\377\r\n\033[m`}, stdout: "\x00\xff\r\n\x1b[m"},
		{name: "words", argv: []string{"printf", "<%s>", "", "a b", `'"$(id)\`, "line\nline", "*"}, stdout: "<><a b><'\"$(id)\\><line\nline><*>"},
		{name: "environment", o: Options{Env: []string{"A=x 'y' $z", "HOME=/"}}, argv: []string{"sh", "-c", `echo "$A $HOME"`}, stdout: "x 'y' $z /\n"},
		{name: "no input", argv: []string{"wc", "-c"}, stdout: "0\n"},
		{name: "signal", argv: []string{"sh", "-c", "kill -9 $$"}, status: 137},
		{name: "no such command", argv: []string{"/no/such"}, status: 127, stderr: "env: ‘/no/such’: No such file or directory\n"},
		{name: "root", argv: []string{"sh", "-c", "id -u; pwd; cat /proc/self/cgroup; mkdir /sys/fs/cgroup/x 2>&1 | grep -o Read-only"}, stdout: "0\n/root\n0::/user.slice/user-0.slice/session-1.scope\nRead-only\n"},
		{name: "root delegated", o: Options{Delegate: true}, argv: []string{"mkdir", "/sys/fs/cgroup/x"}},
		{name: "tester", o: Options{User: Tester}, argv: []string{"sh", "-c", "id -un; pwd; touch ~/f /tmp/f; cat /proc/self/cgroup; ! [ -w /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup) ]"}, stdout: "tester\n/home/tester\n0::/user.slice/user-1000.slice/session-1.scope\n"},
		{
			name: "tester delegated", o: Options{User: Tester, Delegate: true},
			argv:   []string{"sh", "-c", "d=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup); d=${d%/*}; mkdir $d/x; cat $d/x/cgroup.controllers; echo 64M >$d/x/memory.max; echo 0 >$d/x/cgroup.procs; cat /proc/self/cgroup"},
			stdout: "cpu io memory pids\n0::/user.slice/user-1000.slice/user@1000.service/x\n",
		},
		{name: "tester with a manager", o: Options{User: Tester, Manager: true}, argv: []string{"sh", "-c", "cat /proc/self/cgroup; systemctl --user is-system-running"}, stdout: "0::/user.slice/user-1000.slice/session-1.scope\nrunning\n"},
		{name: "host root", argv: []string{"touch", "/etc/passwd", "/usr/x"}, status: 1, stderr: "touch: cannot touch '/usr/x': Read-only file system\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := g.Run(t, tt.o, tt.argv...)
			if want := (Result{tt.status, tt.stdout, tt.stderr}); got != want {
				t.Errorf("got %#v\nwant %#v", got, want)
			}
		})
	}

	t.Run("much output", func(t *testing.T) {
		if got := sh(t, Options{}, "head -c 20000000 /dev/zero; head -c 3000000 /dev/zero >&2"); len(got.Stdout) != 20000000 || len(got.Stderr) != 3000000 {
			t.Errorf("got %d and %d bytes, want 20000000 and 3000000", len(got.Stdout), len(got.Stderr))
		}
	})
	t.Run("shares", func(t *testing.T) {
		ro := t.TempDir()
		for _, d := range []string{ro, rw} {
			if err := os.WriteFile(filepath.Join(d, "f"), []byte("old"), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		o := Options{RO: []string{ro}}
		got := sh(t, o, "cd "+ro+" && cat f && ! touch g && cd "+rw+" && cat f && printf new >f && mkdir d")
		if got.Status != 0 || got.Stdout != "oldold" {
			t.Errorf("got %#v", got)
		}
		if b, err := os.ReadFile(filepath.Join(rw, "f")); err != nil || string(b) != "new" {
			t.Errorf("the writable share holds %q, %v; want new", b, err)
		}
		if _, err := os.Stat(filepath.Join(ro, "g")); err == nil {
			t.Error("the guest wrote to a read-only share")
		}
		// root in the guest cannot make it writable either
		if got := sh(t, o, "mount -o remount,rw / ; mount -o remount,bind,rw "+ro+"; touch "+ro+"/g"); got.Status == 0 {
			t.Error("the guest's root made a read-only share writable")
		}
		file := filepath.Join(ro, "f")
		if got := sh(t, Options{User: Tester, RO: []string{file}}, "cat "+file); got.Stdout != "old" {
			t.Errorf("a shared file: got %#v", got)
		}
	})
	t.Run("nothing stays", func(t *testing.T) {
		sh(t, Options{Delegate: true}, "touch /tmp/x /var/tmp/x /root/x /run/x /home/x; mkdir -p /sys/fs/cgroup/x/y; (setsid sleep 1000 &)")
		got := sh(t, Options{Delegate: true}, "ls /tmp /var/tmp /root /run /home /sys/fs/cgroup | grep -w x; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 100[0]'; exit 0")
		if got.Stdout != "" {
			t.Errorf("left over: %q", got.Stdout)
		}
	})
	t.Run("timeout", func(t *testing.T) {
		began := time.Now()
		got, err := g.Exec(Options{Timeout: time.Second}, "sh", "-c", "echo early; setsid sleep 1000")
		if err == nil || !strings.Contains(err.Error(), "timeout of 1s") || got.Stdout != "early\n" {
			t.Errorf("got %#v, %v", got, err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("took %v", took)
		}
		if got := sh(t, Options{}, "echo alive"); got.Stdout != "alive\n" {
			t.Errorf("after a timeout: got %#v", got)
		}
	})
	t.Run("guest lost", func(t *testing.T) {
		_, err := g.Exec(Options{}, "sh", "-c", "echo c >/proc/sysrq-trigger; sleep 60")
		if err == nil || !strings.Contains(err.Error(), "guest was lost") || !strings.Contains(err.Error(), "sysrq triggered crash") {
			t.Errorf("a command that crashes the guest: got %v", err)
		}
		if _, err := g.Exec(Options{}, "true"); err == nil || !strings.Contains(err.Error(), "guest was lost") {
			t.Errorf("the next command: got %v", err)
		}
		g.Close()
		if _, err := g.Exec(Options{}, "true"); err == nil || !strings.Contains(err.Error(), "closed") {
			t.Errorf("Exec after Close: %v", err)
		}
		if _, err := os.Stat(g.dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Close left %s: %v", g.dir, err)
		}
	})
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		name string
		o    Options
		argv []string
		want string
	}{
		{"no command", Options{}, nil, "no command"},
		{"user", Options{User: "bob; id"}, []string{"true"}, `"bob; id" refused`},
		{"memory", Options{Mem: 64}, []string{"true"}, "Mem and RW refused"},
		{"timeout", Options{Timeout: -1}, []string{"true"}, "Timeout -1ns refused"},
		{"root's manager", Options{Manager: true}, []string{"true"}, "Manager refused"},
		{"relative share", Options{RO: []string{"x"}}, []string{"true"}, "cannot share"},
		{"late share", Options{RW: []string{"/tmp"}}, []string{"true"}, "RW refused"},
		{"missing share", Options{RO: []string{"/no/such"}}, []string{"true"}, "cannot share"},
		{"environment", Options{Env: []string{"A"}}, []string{"true"}, "not K=V"},
		{"environment as an option", Options{Env: []string{"-S=x"}}, []string{"true"}, "not K=V"},
		{"command as a variable", Options{}, []string{"A=b"}, "has a = in its name"},
		{"command as an option", Options{}, []string{"-i"}, "begins with a dash"},
		{"NUL", Options{}, []string{"echo", "a\x00b"}, "NUL"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := new(Guest)
			if _, _, err := g.caseFiles(tt.o, tt.argv); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestSharable(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/etc", link); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"", "x", "/", "/tmp/..", "/tmp/", "/tmp,rw", "/tmp a", "/$(id)", "/no/such", "/etc/passwd", link} {
		if err := sharable([]string{p}, true); err == nil || !strings.Contains(err.Error(), "cannot share") {
			t.Errorf("%q: got %v, want a refusal", p, err)
		}
	}
	if err := sharable([]string{dir}, true); err != nil {
		t.Error(err)
	}
}

func TestDoesNotComeUp(t *testing.T) {
	if reason, ok := Available(); !ok {
		t.Skip(reason)
	}
	defer func(s []byte) { initScript = s }(initScript)
	initScript = []byte("echo broken init >/dev/console; exit 1")
	before := runDirs()
	began := time.Now()
	_, err := Start(Options{})
	if err == nil || !strings.Contains(err.Error(), "did not come up") || !strings.Contains(err.Error(), "broken init") {
		t.Errorf("got %v, want the reason and the console", err)
	}
	if took := time.Since(began); took > BootTimeout/2 {
		t.Errorf("took %v to find out", took)
	}
	if after := runDirs(); len(after) > len(before) {
		t.Errorf("left over: %v", after)
	}
}

func TestTwoAtOnce(t *testing.T) {
	for _, name := range []string{"one", "two"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Run(t, Options{}, "echo", name); got.Stdout != name+"\n" {
				t.Errorf("got %#v", got)
			}
		})
	}
}

// TestKilledRunner: a runner killed with no chance to tidy up takes its guest along,
// and the next run sweeps its directory.
func TestKilledRunner(t *testing.T) {
	if os.Getenv("RIG_TEST_RUNNER") != "" {
		g := Boot(t, Options{})
		os.Stdout.WriteString(g.dir + "\n")
		g.Run(t, Options{}, "sleep", "1000")
		return
	}
	if reason, ok := Available(); !ok {
		t.Skip(reason)
	}
	runner := exec.Command(os.Args[0], "-test.run=^TestKilledRunner$")
	runner.Env = append(os.Environ(), "RIG_TEST_RUNNER=1")
	out, err := runner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := runner.Start(); err != nil {
		t.Fatal(err)
	}
	dir, err := bufio.NewReader(out).ReadString('\n')
	dir = strings.TrimSpace(dir)
	_ = runner.Process.Kill()
	_ = runner.Wait()
	if err != nil || !filepath.IsAbs(dir) {
		t.Fatalf("the runner said %q, %v", dir, err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for len(processesWith(dir)) > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("the guest outlived its runner: processes %v", processesWith(dir))
		}
		time.Sleep(20 * time.Millisecond)
	}
	sweepAll()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s was not swept: %v", dir, err)
	}
}

// processesWith are the processes whose command line or working directory names dir.
// The guest's address spaces are processes of their own, which keep both.
func processesWith(dir string) (pids []string) {
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		line, _ := os.ReadFile(p + "/cmdline")
		cwd, _ := os.Readlink(p + "/cwd")
		if bytes.Contains(line, []byte(dir)) || strings.HasPrefix(cwd, dir) {
			pids = append(pids, filepath.Base(p))
		}
	}
	return pids
}

func runDirs() (dirs []string) {
	for _, base := range bases() {
		d, _ := filepath.Glob(filepath.Join(parentOf(base), "g-*"))
		dirs = append(dirs, d...)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

func TestRunDirectory(t *testing.T) {
	base := t.TempDir()
	live, lock, err := newDir(base)
	if err != nil {
		t.Fatal(err)
	}
	dead, deadLock, err := newDir(base)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dead, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	deadLock.Close()
	elsewhere := t.TempDir()
	link := filepath.Join(parentOf(base), "g-link")
	if err := os.Symlink(elsewhere, link); err != nil {
		t.Fatal(err)
	}
	sweep(parentOf(base))
	for path, want := range map[string]bool{live: true, dead: false, elsewhere: true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("after a sweep, %s: %v, want it there: %v", path, err, want)
		}
	}
	lock.Close()

	t.Run("a parent others can enter", func(t *testing.T) {
		base := t.TempDir()
		if err := os.Mkdir(parentOf(base), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(parentOf(base), 0o755); err != nil {
			t.Fatal(err)
		}
		if dir, _, err := newDir(base); err == nil {
			t.Errorf("made %s in it", dir)
		}
	})
	t.Run("a parent that is a link", func(t *testing.T) {
		base := t.TempDir()
		if err := os.Symlink(t.TempDir(), parentOf(base)); err != nil {
			t.Fatal(err)
		}
		if dir, _, err := newDir(base); !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, syscall.ELOOP) {
			t.Errorf("made %q in it, %v", dir, err)
		}
	})
}
