package doctor

import (
	"context"
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/hostroot"
	"github.com/kern-sbx/kern-sbx/pkg/kernbin"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

var updateDoctor = flag.Bool("update-doctor", false, "write the golden tables of the checks")

// tree writes the files of a made-up machine.
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// fakeBox is what boxes do on a made-up machine.
type fakeBox struct {
	enforced string            // who enforces caps, "none" for nobody
	answers  map[string]string // over those of a box that is as it should be
	refused  string            // why no box starts
	err      error
	panics   bool
}

func (f *fakeBox) start(_ context.Context, s *runner.Spec) (*runner.Result, error) {
	if f.panics {
		panic("a fake that panics")
	}
	if f.err != nil {
		return nil, f.err
	}
	ptr := func(v float64) *float64 { return &v }
	now := time.Now()
	r := &runner.Result{Started: &now, Image: runner.Image{Ref: "host"}, Kern: runner.Kern{}}
	if f.refused != "" {
		r.Started, r.Status = nil, 125
		r.Fault = &runner.Fault{Type: runner.StartupFailed, Message: f.refused}
		return r, nil
	}
	limit := func(n float64) runner.Cap {
		if n == 0 {
			return runner.Cap{}
		}
		return runner.Cap{Requested: ptr(n), EnforcedBy: &f.enforced}
	}
	r.Limits = runner.Limits{Memory: limit(float64(s.Memory)), PIDs: limit(float64(s.PIDs)), CPU: limit(s.CPUs)}
	if f.enforced == "none" {
		r.LimitsReason = "the cgroup tree is mounted read-only"
	}
	var out strings.Builder
	code := 0
	r.ExitCode = &code
	for _, q := range s.Argv[2:] {
		a, ok := f.answers[q]
		if !ok {
			a = f.answer(s, q, r)
		}
		if r.Fault != nil {
			r.ExitCode = nil
			r.Stdout = runner.TextOf([]byte(out.String()))
			return r, nil
		}
		out.WriteString(q + "\x00" + a + "\x00")
	}
	out.WriteString("end\x00\x00")
	r.Stdout = runner.TextOf([]byte(out.String()))
	return r, nil
}

// answer is that of a good box.
func (f *fakeBox) answer(s *runner.Spec, q string, r *runner.Result) string {
	switch q {
	case "t:":
		return strconv.FormatInt(time.Now().UnixMilli(), 10)
	case "u:":
		return "0 0 4"
	case "m:":
		return "tmpfs 536870912 536870912 /dev/shm\next4 1000000000000 500000000000 /workspace\ntmpfs 67108864 67108864 /tmp\n"
	case "p:":
		return "/usr/lib/python3.11 171 171"
	case "f:/proc/self/status":
		return "Name:\tx\nCapBnd:\t0000000000000000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"
	case "f:/proc/self/uid_map", "f:/proc/self/gid_map":
		return "         0       1000          1\n"
	case "e:HOME":
		return "/root"
	case "e:LANG":
		return "C.UTF-8"
	case "w:/workspace", "w:/tmp", "w:/dev/shm":
		return "ok " + q[2:]
	case "x:python3", "x:sh":
		return "/usr/bin/" + q[2:]
	case "l:/usr/bin/python3":
		return "-> python3.11"
	case "l:/var/run":
		return "-> /run"
	case "l:/etc/ssl/certs/ca-certificates.crt", "l:/tmp", "l:/usr/share/zoneinfo":
		return "dir"
	}
	_, n := "", 0
	if i := strings.LastIndex(q, ":"); i >= 0 {
		n, _ = strconv.Atoi(q[i+1:])
	}
	switch q[0] {
	case 'w':
		return "EROFS /"
	case 'c':
		if strings.HasPrefix(q, unroutable) {
			return "ENETUNREACH"
		}
		return "ECONNREFUSED"
	case 'a':
		return "ECONNREFUSED"
	case 'M':
		if f.enforced != "none" {
			r.Fault = &runner.Fault{Type: runner.OOM, Message: "the box needed more than its memory cap"}
		}
		return strconv.Itoa(n) + " ok"
	case 'P':
		if f.enforced != "none" {
			return strconv.Itoa(s.PIDs-5) + " EAGAIN"
		}
		return strconv.Itoa(n) + " ok"
	case 'T':
		return strconv.Itoa(int(s.Tmpfs[0].Size)) + " ENOSPC"
	case 'O':
		r.Truncated.Stderr = true
		r.Stderr = runner.TextOf(make([]byte, s.MaxOutput))
		return strconv.Itoa(n) + " ok"
	case 'S':
		r.DurationMS = 150
		r.Fault = &runner.Fault{Type: runner.Timeout, Message: "still running after 150ms"}
	}
	return ""
}

const kernReady = `kern doctor
  ✔ unprivileged user namespaces: enabled
  ✔ overlayfs: available unprivileged
      and so on
  ! sshd: not found - kern box --ssh unavailable
      install openssh-server in your images

ready - 2 ok, 1 warnings. ` + "`kern box`" + ` will run here.
`

const kernBlocked = `kern doctor
  ✘ unprivileged user namespaces: disabled
      sysctl
  ! sshd: not found

not ready - 1 blocker, 0 ok, 1 warnings. Fix the ✘ items above.
`

// v2 is a machine with a systemd login: cgroups are handed down to user@1000.
var v2 = map[string]string{
	"proc/self/cgroup":                     "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run.scope\n",
	"proc/self/mountinfo":                  "25 1 0:1 / / rw - ext4 /dev/vda rw\n31 25 0:2 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
	"sys/fs/cgroup/cgroup.controllers":     "cpu memory pids\n",
	"sys/fs/cgroup/cgroup.subtree_control": "cpu memory pids\n",
	"sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/cgroup.controllers":     "cpu memory pids\n",
	"sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/cgroup.subtree_control": "cpu memory pids\n",
	"sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/run.scope/cgroup.procs": "1\n",
	"proc/meminfo":                              "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapTotal: 0 kB\n",
	"proc/filesystems":                          "nodev\ttmpfs\nnodev\toverlay\n",
	"proc/sys/user/max_user_namespaces":         "96365\n",
	"proc/sys/kernel/unprivileged_userns_clone": "1\n",
	"proc/version":                              "Linux version 6.1.0\n",
	"etc/passwd":                                "root:x:0:0::/root:/bin/sh\nsam:x:1000:1000::/home/sam:/bin/sh\n",
	"etc/subuid":                                "sam:100000:65536\n",
	"etc/subgid":                                "sam:100000:65536\n",
	"usr/bin/newuidmap":                         "x", "usr/bin/newgidmap": "x",
}

// machine is one that is well.
func machine(t testing.TB, change func(files map[string]string, e *Env, b *fakeBox)) *Env {
	t.Helper()
	b := &fakeBox{enforced: "kern"}
	env := map[string]string{"HOME": "/home/sam", "PATH": "/usr/bin"}
	files := maps.Clone(v2)
	e := &Env{
		Getenv: func(k string) string { return env[k] }, UID: 1000,
		Dirs:       runner.Dirs{Cache: "/home/sam/.cache/kern-sbx", Data: "/home/sam/.local/share/kern-sbx", Private: "/tmp/kern-sbx-1000"},
		Kern:       &kernbin.Kern{Path: "/usr/bin/kern", Version: "0.33.0", Source: kernbin.SourceBundled},
		KernDoctor: func(context.Context, *kernbin.Kern) ([]byte, error) { return []byte(kernReady), nil },
		TryUserNS:  func(context.Context, *kernbin.Kern) error { return nil },
		Room:       func(string) (Room, error) { return Room{Free: 50 << 30}, nil },
		Listen: func() (*Listener, error) {
			return &Listener{Port: 4242, Abstract: "x"}, nil
		},
		Spec: &runner.Spec{
			Host: &hostroot.Root{ID: "host:debian-12:0"}, Memory: 512 << 20, PIDs: 256, CapDrop: []string{"ALL"}, WorkspaceMax: runner.AutoSize,
			Tmpfs: []validate.Tmpfs{{Target: "/tmp", Size: 64 << 20}}, StartTimeout: time.Minute, Timeout: 30 * time.Second, Limits: runner.LimitsAuto,
		},
	}
	e.Start = b.start
	if change != nil {
		change(files, e, b)
	}
	for k, v := range files {
		if v, ok := strings.CutPrefix(v, "env "); ok {
			env[k] = v
			delete(files, k)
		}
	}
	e.Root = tree(t, files)
	for _, p := range []string{"usr/bin/newuidmap", "usr/bin/newgidmap"} {
		os.Chmod(filepath.Join(e.Root, p), 0o755)
	}
	return e
}

func needAgent(t *testing.T) {
	t.Helper()
	e := machine(t, nil)
	if e.specOf(probeBox) == nil {
		t.Skip("this build has no agent; make agent, and -tags embedkern")
	}
}

var spans = regexp.MustCompile(`within [0-9.]+[mµn]?s`)

// TestTables shows what a person reads on some machines.
func TestTables(t *testing.T) {
	needAgent(t)
	for _, c := range []struct {
		name   string
		code   int
		change func(map[string]string, *Env, *fakeBox)
	}{
		{"healthy", 0, nil},
		{"undelegated", 0, func(f map[string]string, e *Env, b *fakeBox) {
			for k := range f {
				if strings.HasSuffix(k, "cgroup.subtree_control") {
					delete(f, k)
				}
			}
			f["proc/self/cgroup"] = "0::/\n"
			f["proc/self/mountinfo"] = strings.Replace(f["proc/self/mountinfo"], "rw,nosuid - cgroup2", "ro,nosuid - cgroup2", 1)
			f[".dockerenv"] = ""
			delete(f, "etc/subuid")
			b.enforced = "none"
		}},
		{"no-kern", 125, func(_ map[string]string, e *Env, _ *fakeBox) {
			e.Kern, e.KernErr = nil, &kernbin.MissingError{}
		}},
		{"no-userns", 125, func(f map[string]string, e *Env, b *fakeBox) {
			f[".dockerenv"] = ""
			e.TryUserNS = func(context.Context, *kernbin.Kern) error { return unix.EPERM }
			e.KernDoctor = func(context.Context, *kernbin.Kern) ([]byte, error) { return []byte(kernBlocked), nil }
			b.refused = "cannot unshare: Operation not permitted"
		}},
		{"ci-throttled", 0, func(f map[string]string, e *Env, b *fakeBox) {
			dir := "sys/fs/cgroup/user.slice/"
			f[dir+"memory.max"], f[dir+"cpu.max"], f[dir+"pids.max"] = "268435456\n", "150000 100000\n", "100\n"
			f["GITHUB_ACTIONS"] = "env true"
			e.Spec.Workspace = "/home/sam/project"
			e.Spec.WorkspaceMax = 0
			b.answers = map[string]string{"x:java": "/usr/bin/java", "x:go": "/usr/bin/go", "x:npm": "/usr/bin/npm"}
			e.Spec.Env = []validate.KV{{Key: "JAVA_TOOL_OPTIONS", Value: "-Xmx480m"}}
		}},
		{"hostile-box", 1, func(_ map[string]string, e *Env, b *fakeBox) {
			b.answers = map[string]string{
				"e:HOME": "/\x1b[2J\u009bx", "l:/tmp": "-> ../\x1b]0;x\a", "x:node": "/bin/\xffnode",
				"w:/": "ok /", unroutable: "ETIMEDOUT", "f:/proc/self/status": "CapEff: ff\nSeccomp: 0\n", "p:": "/usr/lib/python3.1;reboot 100 0",
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := machine(t, c.change)
			r := NewReport(Run(t.Context(), e, Checks()), e, false)
			if r.ExitCode != c.code {
				t.Errorf("exit code %d, want %d", r.ExitCode, c.code)
			}
			var b strings.Builder
			if err := r.WriteTable(&b, term.Style{}, false); err != nil {
				t.Fatal(err)
			}
			text := spans.ReplaceAllString(b.String(), "within TIME")
			if strings.ContainsFunc(text, func(r rune) bool { return r < 0x20 && r != '\n' || r >= 0x7f && r < 0xa0 }) {
				t.Errorf("a control character is shown: %q", text)
			}
			name := filepath.Join("testdata", c.name+".golden")
			if *updateDoctor {
				os.MkdirAll("testdata", 0o755)
				if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, _ := os.ReadFile(name)
			if string(want) != text {
				t.Errorf("not as in %s (go test ./pkg/doctor -run Tables -update-doctor):\n%s", name, text)
			}
		})
	}
}

// TestOneBrokenCheck: a check that panics, or never answers, hides no other, and
// neither does a box.
func TestOneBrokenCheck(t *testing.T) {
	e := machine(t, nil)
	stuck := make(chan struct{})
	defer close(stuck)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	found := Run(ctx, e, []Check{
		{ID: "a", Run: func(context.Context, *Env) Result { panic("here") }},
		{ID: "b", Run: func(context.Context, *Env) Result { <-stuck; return Result{} }},
		{ID: "c", Run: func(context.Context, *Env) Result { return Result{Status: OK} }},
	})
	if found[0].Status != Fail || !strings.Contains(found[0].Why, "here") || found[1].Status != Skipped || !strings.Contains(found[1].Why, "no answer") || found[2].Status != OK {
		t.Errorf("%+v", found)
	}
}

func TestBrokenBoxes(t *testing.T) {
	needAgent(t)
	for name, b := range map[string]*fakeBox{
		"panics": {panics: true},
		"error":  {err: errors.New("no directory")},
		"silent": {answers: map[string]string{"t:": "x\x00end\x00more"}},
	} {
		e := machine(t, nil)
		b.enforced = "kern"
		e.Start = b.start
		found := Run(t.Context(), e, Checks())
		if len(found) != len(Checks()) {
			t.Fatal(name, len(found))
		}
		for _, f := range found {
			if f.Group == GroupHost && f.Status == Fail {
				t.Errorf("%s: %s: %s", name, f.ID, f.Why)
			}
			if f.ID == boxID && f.Status != Fail {
				t.Errorf("%s: box is %s: %s", name, f.Status, f.Why)
			}
		}
		if code := Worst(found, e, false); (code == 125) != (name != "silent") {
			t.Errorf("%s: exit code %d", name, code)
		}
	}
}

// TestNothingOfTheUsers: a box that is to be broken has none of the user's files,
// and its own small numbers (rule S13).
func TestNothingOfTheUsers(t *testing.T) {
	needAgent(t)
	e := machine(t, nil)
	s := e.Spec
	s.Workspace, s.Mounts, s.RequireLimits = "/home/sam/x", []validate.Mount{{Source: "/a", Target: "/a"}}, true
	s.Memory, s.PIDs = 64<<30, 100000
	s.Setup = &runner.Setup{Command: "x"}
	for _, k := range []boxKind{smallBox, memoryBox, lateBox} {
		c := e.specOf(k)
		if c.Workspace != "" || len(c.Mounts) > 0 || c.Setup != nil || c.Memory > 64<<20 || c.PIDs > 32 {
			t.Errorf("box %d: %+v", k, c)
		}
	}
	p := e.specOf(probeBox)
	if p.Workspace != s.Workspace || len(p.Mounts) != 1 || p.Memory != s.Memory || p.Setup != nil {
		t.Errorf("the box that is looked at differs from the user's: %+v", p)
	}
	e.Deep = true
	if c := e.specOf(memoryBox); c.Memory != canaryMemory { // the machine has 16 GiB
		t.Error("--deep takes more than there is")
	}
	s.Memory, s.PIDs = 128<<20, 100
	if c, p := e.specOf(memoryBox), e.specOf(smallBox); c.Memory != s.Memory || p.PIDs != 100 {
		t.Error("--deep does not use the user's numbers")
	}
}

func TestChoose(t *testing.T) {
	all := Checks()
	for _, c := range []struct {
		only, skip []string
		n          int
		says       string
	}{
		{nil, nil, len(all), ""},
		{[]string{"kern", "cgroups"}, nil, 2, ""},
		{nil, []string{"kern"}, len(all) - 1, ""},
		{[]string{"cgruops"}, nil, 0, "did you mean cgroups?"},
		{nil, []string{"x/../y"}, 0, "there are kern"},
		{[]string{"kern"}, []string{"kern"}, 0, "no check is left"},
	} {
		got, err := Choose(all, c.only, c.skip)
		var refusal *validate.Error
		if len(got) != c.n || (err != nil) != (c.says != "") || err != nil && (!errors.As(err, &refusal) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%v %v: %d checks, %v", c.only, c.skip, len(got), err)
		}
	}
}

// TestHostOnly: without a check that needs one, no box is started, and its absence
// is no failure.
func TestHostOnly(t *testing.T) {
	e := machine(t, nil)
	e.Start = func(context.Context, *runner.Spec) (*runner.Result, error) {
		t.Error("a box was started")
		return nil, errors.New("no")
	}
	e.Kern, e.KernErr = nil, &kernbin.MissingError{}
	checks, err := Choose(Checks(), []string{"cgroups", "disk"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	found := Run(t.Context(), e, checks)
	if code := Worst(found, e, true); code != 0 {
		t.Errorf("exit code %d: %+v", code, found)
	}
}
