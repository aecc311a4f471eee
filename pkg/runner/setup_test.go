package runner

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

func TestRoutePip(t *testing.T) {
	const flags = "--target /workspace/.deps --no-cache-dir --disable-pip-version-check "
	for in, want := range map[string]string{
		"pip install a b":             "pip install " + flags + "a b",
		"  pip3 install -r f":         "pip3 install " + flags + "-r f",
		"python3 -m pip install x":    "python3 -m pip install " + flags + "x",
		"pip install":                 "pip install",
		"pip installer x":             "pip installer x",
		"pip download x":              "pip download x",
		"npm install":                 "npm install",
		"cd x && pip install y":       "cd x && pip install y",
		"pip install x && touch done": "pip install " + flags + "x && touch done",
	} {
		if got := routePip(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

// TestSetupBox: what reaches a box that has the network, and what does not.
func TestSetupBox(t *testing.T) {
	s := &Spec{
		Rootfs: "/r", Workspace: "/w", Watch: []string{".git"}, Egress: []string{"example.com"}, Workdir: "/workspace/x",
		Env: []validate.KV{{Key: "TOKEN", Value: "secret"}}, Argv: []string{"run"}, Code: []CodeFile{{Name: "a"}}, Stdin: os.Stdin,
		Tmpfs: []validate.Tmpfs{{Target: "/tmp", Size: 1 << 20}}, Timeout: 5, CapDrop: []string{"ALL"}, Memory: 64 << 20, User: "7",
		Mounts: []validate.Mount{{Source: "/m", Target: "/m"}},
		Setup:  &Setup{Command: "pip install x", Env: []validate.KV{{Key: "PYTHONSAFEPATH", Value: ""}, {Key: "HOME", Value: "/h"}}},
	}
	p := s.setupSpec("/w", "/t")
	argv, err := p.argv("n", p.place("/w", "", ""), 6)
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Join(argv, " ")
	for _, want := range []string{
		"--network host", "--workdir / ", "src=/t,dst=/tmp", "src=/m,dst=/m", "--memory 64m", "--cap-drop ALL", "--user 7", "--timeout 122 ",
		"-- sh -c pip install --target",
	} {
		if !strings.Contains(line, want) {
			t.Errorf("%s\nlacks %q", line, want)
		}
	}
	if strings.Contains(line, "--tmpfs") || strings.Contains(line, "--egress") || p.Stdin != nil || len(p.Watch) > 0 {
		t.Errorf("%s\n%+v", line, p)
	}
	if want := []validate.KV{{Key: "HOME", Value: "/h"}, {Key: "PYTHONSAFEPATH", Value: "1"}}; !slices.Equal(p.Env, want) {
		t.Errorf("%v, want %v", p.Env, want)
	}
	c := s.compileSpec("/w")
	if c.HostNetwork || len(c.Egress) > 0 || len(c.Env) != 1 || c.Workdir != "/" {
		t.Errorf("%+v", c)
	}
	if len(s.Mounts) != 1 || len(s.Tmpfs) != 1 || s.Argv[0] != "run" {
		t.Errorf("the run's own box was changed: %+v", s)
	}
	// An image's ENTRYPOINT is not put before a command of ours.
	s.Rootfs, s.Image = "", "i"
	p = s.setupSpec("/w", "/t")
	argv, _ = p.argv("n", nil, 6)
	if !strings.Contains(strings.Join(argv, "|"), "|--entrypoint||") {
		t.Error(argv)
	}
}

func TestSetupKey(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "req")
	if err := os.WriteFile(file, []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	id := "1"
	base := func() (*Spec, Image) {
		return &Spec{
			Mounts: []validate.Mount{{Source: dir, Target: "/wheels"}},
			Setup:  &Setup{Command: "pip install -r/workspace/req --find-links=/wheels /workspacex", Env: []validate.KV{{Key: "A", Value: "1"}}},
		}, Image{Ref: "r", ID: &id}
	}
	s, img := base()
	first := s.setupKey(dir, img)
	if again := s.setupKey(dir, img); again != first || len(again) != 64 {
		t.Fatalf("%s, then %s", first, again)
	}
	other := "2"
	for what, change := range map[string]func(*Spec, *Image){
		"command":  func(s *Spec, _ *Image) { s.Setup.Command += " " },
		"image":    func(_ *Spec, i *Image) { i.ID = &other },
		"variable": func(s *Spec, _ *Image) { s.Setup.Env[0].Value = "2" },
		"user":     func(s *Spec, _ *Image) { s.User = "7" },
		"file":     func(*Spec, *Image) { os.WriteFile(file, []byte("bb"), 0o600) },
	} {
		s, img := base()
		change(s, &img)
		if s.setupKey(dir, img) == first {
			t.Errorf("another %s gives the same key", what)
		}
	}
	for path, want := range map[string]string{"/workspace/a/../b": dir + "/b", "/wheels": dir, "/workspacex": "", "/etc": "", "/workspace/../etc": ""} {
		if got, ok := s.onHost(dir, path); got != want || ok != (want != "") {
			t.Errorf("%s is %q on the host, want %q", path, got, want)
		}
	}
}

func TestSetupFailed(t *testing.T) {
	s := &Spec{Memory: 64 << 20, Timeout: 5}
	res := func(status int, f *Fault, stdout, stderr string) *Result {
		return &Result{Status: status, Fault: f, Stdout: TextOf([]byte(stdout)), CodeStderr: TextOf([]byte(stderr))}
	}
	for want, r := range map[string]*Result{
		"setup failed (exit 7)":                          res(7, nil, "", " \n"),
		"setup failed (exit 7): a b":                     res(7, nil, "out", "a\n b\n"),
		"setup failed (exit 7): out":                     res(7, nil, "out", ""),
		`setup failed (exit 7): \x1b[2J`:                 res(7, nil, "", "\x1b[2J"),
		"setup failed (exit 124, timeout after 2m0s): m": res(124, &Fault{Timeout, "m"}, "", ""),
		"setup failed (exit 137, oom under --memory 64m): x; --memory caps the setup as well, give it more": res(137, &Fault{OOM, "m"}, "", "x"),
	} {
		if got := setupFailed(s, r).Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	long := setupFailed(s, res(1, nil, "", strings.Repeat("é", 1000))).Error()
	if n := strings.Count(long, "é"); n != 400 {
		t.Errorf("%d characters of what it said", n)
	}
}

func FuzzDepsRecord(f *testing.F) {
	f.Add(depsHead + strings.Repeat("a", 64) + "\nunfinished\n")
	f.Add(depsHead + "\n\n")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		setup, tree, ok := parseDeps(text)
		if ok && depsHead+setup+"\n"+tree+"\n" != text || !ok && setup+tree != "" {
			t.Errorf("%q read as %q %q %v", text, setup, tree, ok)
		}
	})
}

// TestCopyOfAnother: a directory that took the place of the one that was checked
// is not copied, nor what a link leads to.
func TestCopyOfAnother(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"a", "b", "ws"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	a := filepath.Join(dir, "a")
	pin, err := PinSource(a)
	if err != nil {
		t.Fatal(err)
	}
	s := &Spec{CopyOf: a, Pins: map[string]Pin{a: pin}}
	try := func() error {
		_, err := s.copyTo(context.Background(), filepath.Join(dir, "ws"), new(atomic.Uint64))
		return err
	}
	if err := try(); err != nil {
		t.Error(err)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, filepath.Join(dir, "b"), unix.RENAME_EXCHANGE); err != nil {
		t.Skip("no exchange here: ", err)
	}
	if err := try(); err == nil || !strings.Contains(err.Error(), "exchanged") {
		t.Error(err)
	}
	os.Remove(a)
	os.Symlink("b", a)
	if err := try(); !errors.Is(err, unix.ELOOP) {
		t.Error(err)
	}
}

// TestShellWord gives every word to a shell and takes it back.
func TestShellWord(t *testing.T) {
	words := []string{"plain", "", "a b", "it's", `back\slash`, "$HOME `x` \"q\"", "-x", "~", "*", "#c", "ünïcode", "a\nb\x1b[31m\x7f", "\xff\xfe'\\", "!x", "\u202e", "{a,b}"}
	for _, shell := range []string{"sh", "bash"} {
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		for _, w := range words {
			q := shellWord(w)
			for i := range len(q) {
				if q[i] < ' ' || q[i] == 0x7f {
					t.Errorf("%q holds a control character", q)
				}
			}
			if shell == "sh" && strings.HasPrefix(q, "$'") {
				continue
			}
			out, err := exec.Command(path, "-c", "printf %s "+strings.Replace(q, "-x", "./-x", 1)).Output()
			if got := strings.Replace(string(out), "./-x", "-x", 1); err != nil || got != w {
				t.Errorf("%s reads %s as %q (%v), want %q", shell, q, got, err, w)
			}
		}
	}
}

// TestPlanChangesNothing: a plan leaves its Spec as it is.
func TestPlanChangesNothing(t *testing.T) {
	s, dirs := testSpec(t, "/nonexistent/kern")
	s.Setup = &Setup{Command: "true"}
	budget, stop := NewBudget(t.Context(), s.StartTimeout)
	defer stop()
	p, err := NewPlan(t.Context(), budget, dirs, s)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Mounts)+len(s.Env)+len(s.Ulimits)+len(s.Pins) > 0 || len(p.Boxes) != 3 || p.Boxes[2].Step != "run" {
		t.Errorf("%+v\n%+v", s, p)
	}
	if files, _ := os.ReadDir(dirs.Cache); len(files) > 0 {
		t.Errorf("made %v", files)
	}
}
