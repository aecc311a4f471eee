package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/hints"
)

// fakeHost knows files, programs and what is in the workspace.
type fakeHost struct {
	files    map[string]string // path: "dir", "file" or where a link leads
	programs map[string]string
	public   []string
	ws       map[string]string // path in the box: content, or "-> target"
	empty    []string
	foreign  string
}

func (h *fakeHost) Exists(p string) (bool, bool) { k, ok := h.files[p]; return ok, k == "dir" }
func (h *fakeHost) Resolve(p string) string {
	if k := h.files[p]; strings.HasPrefix(k, "/") {
		return k
	} else if k != "" {
		return p
	}
	return ""
}
func (h *fakeHost) Find(n string) string    { return h.programs[n] }
func (h *fakeHost) Public(p string) bool    { return slices.Contains(h.public, p) }
func (h *fakeHost) Links(string) []string   { return nil }
func (h *fakeHost) EmptyDirs() []string     { return h.empty }
func (h *fakeHost) Foreign([]string) string { return h.foreign }
func (h *fakeHost) Head(p string) ([]byte, string, bool) {
	c, ok := h.ws[p]
	if to, link := strings.CutPrefix(c, "-> "); link {
		return nil, to, true
	}
	return []byte(c), "", ok
}

func testBox(argv ...string) Box {
	if len(argv) == 0 {
		argv = []string{"tool"}
	}
	return Box{
		Argv: argv, Home: "/root", HostHome: "/home/u", HostImage: true, Memory: 512 << 20, HostMemory: 16 << 30, PIDs: 256,
		Tmp: 64 << 20, Timeout: 30 * time.Second, Workdir: "/workspace", Host: &fakeHost{},
	}
}

// fakeLab answers as a command would that needs all of some changes: with the text
// of the first that is missing.
type fakeLab struct {
	mu    sync.Mutex
	needs []Change
	says  []string
	ran   [][]Change
	do    func(n int, have []Change) *Outcome // instead, when it is set
}

func (l *fakeLab) try(_ context.Context, have []Change, _ time.Duration) (*Outcome, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ran = append(l.ran, have)
	if l.do != nil {
		return l.do(len(l.ran), have), nil
	}
	for i, n := range l.needs {
		if !slices.Contains(have, n) {
			return failed(l.says[i]), nil
		}
	}
	return &Outcome{}, nil
}

func failed(stderr string) *Outcome { return &Outcome{Exit: 1, Stderr: []byte(stderr + "\n")} }

func TestDiagnose(t *testing.T) {
	home := env("HOME", "/workspace")
	const homeText = "mkdir: cannot create directory '/root/.x': Read-only file system"
	for _, r := range []struct {
		name    string
		lab     *fakeLab
		relax   bool
		verdict string
		fix     []Change
	}{
		{"works", &fakeLab{}, false, Works, nil},
		{"one change", &fakeLab{needs: []Change{home}, says: []string{homeText}}, false, Fixed, []Change{home}},
		{
			"two changes, one behind the other",
			&fakeLab{needs: []Change{home, env("TMPDIR", "/workspace")}, says: []string{homeText, "sort: write failed: /tmp/sortAb1: No space left on device"}},
			false, Fixed,
			[]Change{home, env("TMPDIR", "/workspace")},
		},
		{
			"three changes, one of them relaxing",
			&fakeLab{
				needs: []Change{{"tmpfs", "/var/lib/nginx:16m"}, {"cap-drop", "none"}, {"tmpfs", "/run:16m"}},
				says:  []string{`mkdir() "/var/lib/nginx/body" failed (30: Read-only file system)`, `chown("/var/lib/nginx/body", 33) failed (1: Operation not permitted)`, `open() "/run/nginx.pid" failed (30: Read-only file system)`},
			},
			true, Fixed,
			[]Change{{"tmpfs", "/var/lib/nginx:16m"}, {"cap-drop", "none"}, {"tmpfs", "/run:16m"}},
		},
		{"relaxing, and not allowed", &fakeLab{needs: []Change{{"network", "host"}}, says: []string{"curl: (6) Could not resolve host: example.org"}}, false, NotFound, nil},
		{"relaxing, and allowed", &fakeLab{needs: []Change{{"network", "host"}}, says: []string{"curl: (6) Could not resolve host: example.org"}}, true, Fixed, []Change{{"network", "host"}}},
		{"found by everything at once", &fakeLab{needs: []Change{env("LANG", "C.UTF-8")}, says: []string{"strange things happen"}}, false, Fixed, []Change{env("LANG", "C.UTF-8")}},
		{"nobody knows", &fakeLab{do: func(int, []Change) *Outcome { return failed("error: strange") }}, false, NotSandbox, nil},
		{"no name, and no network helps", &fakeLab{do: func(int, []Change) *Outcome { return failed("curl: (6) Could not resolve host: x") }}, true, NotSandbox, nil},
		{"a wall", &fakeLab{do: func(int, []Change) *Outcome { return &Outcome{Exit: -1, Fault: "escape_blocked"} }}, true, Unfixable, nil},
		{"flaky", &fakeLab{do: func(n int, _ []Change) *Outcome { return &Outcome{Exit: n % 2} }}, false, Flaky, nil},
		{"a fix that holds once", &fakeLab{do: func(n int, have []Change) *Outcome {
			if n == 3 {
				return &Outcome{}
			}
			return failed(homeText)
		}}, false, Flaky, nil},
		{"no box", &fakeLab{do: func(int, []Change) *Outcome { return &Outcome{Exit: -1, Fault: "startup_failed", Message: "no root"} }}, false, NotFound, nil},
		{"what helps is refused", &fakeLab{do: func(_ int, have []Change) *Outcome {
			if slices.ContainsFunc(have, func(c Change) bool { return c.Flag == "user" }) {
				return &Outcome{Exit: -1, Fault: "startup_failed", Message: "the user is not mapped"}
			}
			return failed("initdb: error: cannot be run as root")
		}}, true, NotFound, nil},
	} {
		t.Run(r.name, func(t *testing.T) {
			d, err := Diagnose(t.Context(), Question{Box: testBox(), Try: r.lab.try, AllowRelax: r.relax})
			if err != nil {
				t.Fatal(err)
			}
			if d.Verdict != r.verdict {
				t.Fatalf("%s, want %s: %+v", d.Verdict, r.verdict, d)
			}
			if r.fix == nil {
				if d.Fix != nil {
					t.Errorf("a fix: %v", d.Fix)
				}
			} else if keyOf(d.Fix.Changes) != keyOf(r.fix) || d.Fix.Relaxes != relaxes(r.fix) {
				t.Errorf("%v (relaxes %v), want %v", d.Fix.Changes, d.Fix.Relaxes, r.fix)
			}
			if !r.relax {
				for _, have := range r.lab.ran {
					if relaxes(have) {
						t.Errorf("%v was tried without being allowed to", have)
					}
				}
			}
			if d.Verdict == NotFound && d.Why == "" || d.Verdict == Fixed && d.Tried[len(d.Tried)-1].Verdict != "works" {
				t.Errorf("%+v", d)
			}
			if b, err := json.Marshal(d); err != nil || strings.Contains(string(b), ":null") && strings.Count(string(b), "null") > strings.Count(string(b), `"exit_code":null`)+strings.Count(string(b), `"fix":null`) {
				t.Errorf("%s %v", b, err)
			}
		})
	}
}

// TestLikely: what would relax the box is named, when it is not tried.
func TestLikely(t *testing.T) {
	lab := &fakeLab{needs: []Change{{"network", "host"}}, says: []string{"curl: (6) Could not resolve host: example.org"}}
	d, err := Diagnose(t.Context(), Question{Box: testBox(), Try: lab.try})
	if err != nil || len(d.NotTried) == 0 || d.NotTried[0].Changes[0] != (Change{"network", "host"}) || !strings.Contains(d.Advice, "--allow-relax") {
		t.Errorf("%+v %v", d, err)
	}
}

// TestUnmapped: whether this machine lends numbers shows when the box may have the
// capabilities that they come with, and no sooner.
func TestUnmapped(t *testing.T) {
	const text = `[emerg] 1#1: chown("/var/lib/nginx/body", 33) failed (22: Invalid argument)`
	all := Change{"cap-drop", "none"}
	ask := func(relax bool, lab *fakeLab) *Diagnosis {
		t.Helper()
		d, err := Diagnose(t.Context(), Question{Box: testBox("nginx"), Try: lab.try, AllowRelax: relax})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := ask(false, &fakeLab{needs: []Change{all}, says: []string{text}})
	if d.Verdict != NotFound || len(d.NotTried) != 1 || !slices.Equal(d.NotTried[0].Changes, []Change{all}) || strings.Contains(d.Why, "lends") || !strings.Contains(d.Advice, "--cap-drop none") {
		t.Errorf("without leave: %+v", d)
	}
	if d = ask(true, &fakeLab{needs: []Change{all}, says: []string{text}}); d.Verdict != Fixed || d.Fix.Hint != "unmapped-owner" || !slices.Equal(d.Fix.Changes, []Change{all}) {
		t.Errorf("with numbers: %+v", d)
	}
	none := &fakeLab{do: func(int, []Change) *Outcome { return failed(text) }}
	if d = ask(true, none); d.Verdict != NotFound || len(d.NotTried) != 0 || !strings.Contains(d.Advice, "/etc/subuid") {
		t.Errorf("without numbers: %+v", d)
	}
	// No single capability helps against it.
	b := testBox("nginx")
	list := propose(&b, failed("[alert] could not open error log file: open() \"/var/log/nginx/error.log\" failed (13: Permission denied)\n"+text), nil)
	for _, r := range list {
		if r.Relaxes && !slices.Equal(r.Changes, []Change{all}) {
			t.Errorf("%v is proposed", r.Changes)
		}
	}
	if !slices.ContainsFunc(list, func(r Remedy) bool { return slices.Equal(r.Changes, []Change{all}) }) {
		t.Errorf("%+v", list)
	}
}

// TestHints: what the table knows gives its name to the fix, and every name that a
// remedy has can be explained.
func TestHints(t *testing.T) {
	lab := &fakeLab{needs: []Change{env("EMAIL", "box@localhost")}, says: []string{"*** Please tell me who you are."}}
	d, err := Diagnose(t.Context(), Question{Box: testBox(), Try: lab.try})
	if err != nil || d.Verdict != Fixed || d.Fix.Hint != "git-identity" || d.Topic != "git-identity" || len(lab.ran) != 4 {
		t.Errorf("%+v %v", d, err)
	}
	topics := hints.Topics()
	for _, id := range append(hints.IDs(), notInTheBox, lastResort) {
		if !slices.ContainsFunc(topics, func(x hints.Topic) bool { return x.ID == id }) {
			t.Errorf("no topic explains %s", id)
		}
	}
}

// TestNoise: a command that succeeds and complains.
func TestNoise(t *testing.T) {
	lab := &fakeLab{do: func(_ int, have []Change) *Outcome {
		if slices.ContainsFunc(have, func(c Change) bool { return strings.HasPrefix(c.Value, "MPLCONFIGDIR=") }) {
			return &Outcome{}
		}
		return &Outcome{Stderr: []byte("mkdir -p failed for path /root/.config/matplotlib: [Errno 30] Read-only file system: '/root/.config'\n")}
	}}
	d, err := Diagnose(t.Context(), Question{Box: testBox(), Try: lab.try})
	if err != nil || d.Verdict != Fixed || !d.Noise || !strings.HasPrefix(d.Fix.Changes[0].Value, "MPLCONFIGDIR=") {
		t.Errorf("%+v %v", d, err)
	}
	lab = &fakeLab{do: func(int, []Change) *Outcome { return &Outcome{Stderr: []byte("warning: the moon is full\n")} }}
	if d, _ = Diagnose(t.Context(), Question{Box: testBox(), Try: lab.try}); d.Verdict != Works || d.Noise {
		t.Errorf("%+v", d)
	}
}

// TestTime: a deadline is not taken for a fix of the box when it is the trial's own.
func TestTime(t *testing.T) {
	slow := func(need, cpu time.Duration) func(context.Context, []Change, time.Duration) (*Outcome, error) {
		return func(_ context.Context, have []Change, limit time.Duration) (*Outcome, error) {
			if limit < need {
				return &Outcome{Exit: -1, Fault: "timeout", Time: limit, CPU: cpu, Bounded: limit < 30*time.Second}, nil
			}
			return &Outcome{Time: need, CPU: cpu}, nil
		}
	}
	d, err := Diagnose(t.Context(), Question{Box: testBox(), Try: slow(40*time.Second, 0)})
	if err != nil || d.Verdict != Fixed || d.Fix.Changes[0] != (Change{"timeout", "2m0s"}) {
		t.Errorf("%+v %v", d, err)
	}
	// It ends within the box's own time, and needs more than one trial may take.
	d, err = Diagnose(t.Context(), Question{Box: testBox(), Budget: 60 * time.Second, Try: slow(25*time.Second, 0)})
	if err != nil || d.Verdict != Works {
		t.Errorf("%+v %v", d, err)
	}
}

// TestBudget: nothing goes on when the time is over.
func TestBudget(t *testing.T) {
	begun := time.Now()
	d, err := Diagnose(t.Context(), Question{Box: testBox(), Budget: 2 * time.Second, AllowRelax: true, Try: func(ctx context.Context, _ []Change, limit time.Duration) (*Outcome, error) {
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return failed("open /root/.x: read-only file system: permission denied, no space left on device"), nil
	}})
	if err != nil || time.Since(begun) > 3*time.Second || !d.BudgetSpent || d.Verdict == Fixed {
		t.Errorf("%v %+v %v", time.Since(begun), d, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Diagnose(ctx, Question{Box: testBox(), Try: func(ctx context.Context, _ []Change, _ time.Duration) (*Outcome, error) {
		return nil, ctx.Err()
	}}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestHostileOutput: what a box prints does not decide what of this machine comes
// into the next one.
func TestHostileOutput(t *testing.T) {
	host := &fakeHost{files: map[string]string{
		"/root/.ssh/id": "file", "/root/.ssh": "dir", "/etc/shadow": "file", "/srv/secret/x": "file", "/srv/secret": "dir", "/data/d/f.csv": "file", "/data/d": "dir", "/etc/x": "dir", "/etc/x/y": "file",
	}, public: []string{"/data/d", "/etc/x"}}
	b := testBox()
	b.Host = host
	for _, p := range []string{"/root/.ssh/id", "/etc/shadow", "/srv/secret/x", "/proc/1/environ", "/dev/sda"} {
		for _, text := range []string{"FileNotFoundError: [Errno 2] No such file or directory: '" + p + "'", "cat: " + p + ": No such file or directory", p + ": not found"} {
			for _, r := range propose(&b, failed(text), nil) {
				for _, c := range r.Changes {
					if c.Flag == "volume" || c.Flag == "host-tool" {
						t.Errorf("%s: %v", text, c)
					}
				}
			}
		}
	}
	for p, want := range map[string]string{"/data/d/f.csv": "/data/d:/data/d:ro", "/etc/x/y": "/etc/x:/etc/x:ro"} {
		if l := propose(&b, failed("open "+p+": No such file or directory"), nil); len(l) == 0 || l[0].Changes[0] != (Change{"volume", want}) || !l[0].Relaxes {
			t.Errorf("%s: %+v", p, l)
		}
	}
	// The user named it.
	b = testBox("cat", "/srv/secret/x")
	b.Host = host
	if l := propose(&b, failed("cat: /srv/secret/x: No such file or directory"), nil); len(l) == 0 || l[0].Changes[0].Value != "/srv/secret:/srv/secret:ro" || !l[0].Relaxes {
		t.Errorf("%+v", l)
	}
}

func TestBlame(t *testing.T) {
	host := &fakeHost{
		programs: map[string]string{"go": "/usr/local/go/bin/go"},
		files:    map[string]string{"/bin/sh": "file"},
		ws:       map[string]string{"/workspace/crlf.sh": "#!/bin/sh\r\n", "/workspace/bad.sh": "#!/no/such/interpreter -x\n", "/workspace/ok.sh": "#!/bin/sh\n", "/workspace/v/python": "-> /opt/py/bin/python3"},
	}
	missing := &Outcome{Exit: -1, Fault: "exec_failed", Message: "No such file or directory"}
	for _, r := range []struct {
		argv []string
		out  *Outcome
		kind string
		sure bool
	}{
		{[]string{"./crlf.sh"}, missing, NotSandbox, true},
		{[]string{"./bad.sh"}, missing, NotSandbox, true},
		{[]string{"./none.sh"}, missing, NotSandbox, true},
		{[]string{"v/python"}, missing, "", false},
		{[]string{"pyhton"}, missing, NotSandbox, true},
		{[]string{"go"}, missing, "", false},
		{[]string{"/no/where"}, missing, NotSandbox, true},
		{[]string{"ping"}, &Outcome{Exit: -1, Fault: "exec_failed", Message: "Operation not permitted"}, "", false},
		{[]string{"java", "-Xmx64m"}, failed("java.lang.OutOfMemoryError: Java heap space"), NotSandbox, true},
		{[]string{"java"}, failed("java.lang.OutOfMemoryError: Java heap space"), "", false},
		{[]string{"npm"}, failed("npm error Missing script: \"biuld\"\nlogs: /root/.npm/_logs"), NotSandbox, false},
		{[]string{"apt-get", "install", "x"}, failed("E: setgroups 65534 failed - setgroups (1: Operation not permitted)"), Unfixable, true},
		{[]string{"nginx"}, failed("[emerg] 1#1: chown(\"/var/lib/nginx/body\", 33) failed (22: Invalid argument)\nnginx: configuration file /etc/nginx/nginx.conf test failed"), NotFound, false},
		{[]string{"x"}, failed("connect() failed (111: Connection refused)"), "", false},
		{[]string{"timeout"}, &Outcome{Exit: 137}, NotSandbox, false},
		{[]string{"x"}, &Outcome{Exit: 137, Fault: "oom"}, "", false},
		{[]string{"sh"}, &Outcome{Exit: 159}, Unfixable, true},
		// What a resolver's error entails is not what is wrong.
		{[]string{"pip"}, failed("Temporary failure in name resolution\nERROR: Could not find a version that satisfies the requirement six (from versions: none)"), "", false},
		// Words within words are none.
		{[]string{"python3"}, failed("ModuleNotFoundError: No module named 'x'"), NotSandbox, false},
	} {
		b := testBox(r.argv...)
		b.Host = host
		v, ok := blame(&b, r.out)
		if ok != (r.kind != "") || v.kind != r.kind || v.sure != r.sure {
			t.Errorf("%v %s: %+v, want %q", r.argv, r.out.Stderr, v, r.kind)
		}
		if ok && (v.why == "" || strings.HasSuffix(v.why, ".") || strings.HasSuffix(v.advice, ".")) {
			t.Errorf("%v: %q, %q", r.argv, v.why, v.advice)
		}
	}
}

// TestPropose: the first remedy of the kinds of failure that are known.
func TestPropose(t *testing.T) {
	eagain := "bash: fork: retry: Resource temporarily unavailable"
	for _, r := range []struct {
		out   *Outcome
		first string // "" for none at all
	}{
		{failed("failed to initialize build cache at /root/.cache/go-build: mkdir /root/.cache: read-only file system"), "--env HOME=/workspace"},
		{failed("npm error enoent Invalid response body while trying to fetch http://x/y: ENOENT: no such file or directory, mkdir '/root/.npm'"), "--env HOME=/workspace"},
		{failed("gpg: Fatal: can't create directory '/root/.gnupg': Read-only file system"), "--env HOME=/workspace"},
		{failed("error: failed to open: /root/.cargo/.crates.toml\n\nCaused by:\n  Read-only file system (os error 30)"), "--env HOME=/workspace"},
		{failed("sort: write failed: /tmp/sorte3VN2u: No space left on device"), "--env TMPDIR=/workspace"},
		{failed("Error: database or disk is full"), "--env TMPDIR=/workspace"},
		{failed("OSError: [Errno 18] Invalid cross-device link: '/tmp/a' -> '/workspace/b'"), "--env TMPDIR=/workspace"},
		{failed("mkdir: cannot create directory '/run/sshd': Read-only file system"), "--tmpfs /run:16m"},
		{failed("open /var/run/x.pid: read-only file system"), "--tmpfs /run:16m"},
		{failed("sh: 1: cannot create /var/lock/app.lock: Directory nonexistent"), "--tmpfs /var/lock:16m"},
		{failed("touch: cannot touch '/etc/x': Read-only file system"), ""},
		{failed("touch: cannot touch '/usr/lib/x': Read-only file system"), ""},
		{failed("RuntimeError: can't start new thread"), "--pids-limit 1024"},
		{failed(eagain), "--pids-limit 1024"},
		{failed("BlockingIOError: [Errno 11] Resource temporarily unavailable"), ""},
		{failed("MemoryError"), "--memory 1g"},
		{failed("FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory"), "--memory 1g"},
		{&Outcome{Exit: -1, Fault: "oom"}, "--memory 1g"},
		{&Outcome{Exit: -1, Fault: "timeout"}, "--init"},
		{failed("-e:1:in `split': invalid byte sequence in US-ASCII (ArgumentError)"), "--env LANG=C.UTF-8"},
		{failed("socket.gaierror: [Errno -3] Temporary failure in name resolution"), "--hostname localhost"},
		{failed("rm: cannot remove 'mod/a/f': Permission denied"), "--cap-add DAC_OVERRIDE"},
		{failed("fatal: detected dubious ownership in repository at '/workspace'"), "--env GIT_CONFIG_COUNT=1 --env GIT_CONFIG_KEY_0=safe.directory --env 'GIT_CONFIG_VALUE_0=*'"},
		{failed("initdb: error: cannot be run as root"), "--user postgres"},
		{failed("ModuleNotFoundError: No module named 'x'"), ""},
		{failed("error: something else"), ""},
		{failed(""), ""},
	} {
		b := testBox()
		list := propose(&b, r.out, nil)
		got := ""
		if len(list) > 0 {
			got = describe(list[0].Changes)
		}
		if got != r.first {
			t.Errorf("%s%s: %q, want %q", r.out.Fault, r.out.Stderr, got, r.first)
		}
		for _, x := range list {
			if x.Why == "" || strings.HasSuffix(x.Why, ".") {
				t.Errorf("%v: %q", x.Changes, x.Why)
			}
			if again := propose(&b, r.out, x.Changes); len(again) > 0 && keyOf(again[0].Changes) == keyOf(x.Changes) {
				t.Errorf("%v is proposed again", x.Changes)
			}
		}
	}
}

func TestAlike(t *testing.T) {
	for _, r := range []struct {
		a, b string
		same bool
	}{
		{"error at 12:01", "error at 13:55", true},
		{"sort: write failed: /tmp/sorte3VN2u: No space", "sort: write failed: /tmp/sortqXb4Zk: No space", true},
		{`chown "/workspace/out/.f.mBmIS8" failed`, `chown "/workspace/out/.f.abCdef" failed`, true},
		{"TypeError: failed", "NameError: failed", false},
		{"error: 'y' undeclared", "error: \u2018y\u2019 undeclared", true},
		{"cannot open a", "cannot open b", false},
		{"read-only: /var/lib", "read-only: /var/log", false},
	} {
		if got := alike(failed(r.a), failed(r.b)); got != r.same {
			t.Errorf("%q and %q: %v", r.a, r.b, got)
		}
	}
	if alike(&Outcome{Exit: 1}, &Outcome{Exit: 2}) || alike(&Outcome{Fault: "oom"}, &Outcome{Fault: "timeout"}) {
		t.Error("another answer is another failure")
	}
}

func TestHeadline(t *testing.T) {
	for text, want := range map[string]string{
		"Traceback (most recent call last):\n  File \"x\", line 1\n    f()\nZeroDivisionError: division by zero": "ZeroDivisionError: division by zero",
		"hello\nrm: cannot remove 'x': Permission denied\nbye":                                                   "rm: cannot remove 'x': Permission denied",
		"\x1b[31mfatal: x\x1b[0m": "[31mfatal: x[0m",
		"one\ntwo":                "two",
	} {
		if got := headline(failed(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// FuzzDiagnose: no output makes it panic, print control characters, claim a fix that
// was not run, or try what relaxes the box.
func FuzzDiagnose(f *testing.F) {
	f.Add([]byte("mkdir: cannot create directory '/root/x': Read-only file system"), []byte(""), 1, "")
	f.Add([]byte("Traceback (most recent call last):\nOSError: [Errno 28] No space left on device: '/tmp/x'"), []byte("x: not found"), 127, "")
	f.Add([]byte("\xff/\x00//:/' /etc/\x1b"), []byte("/"), 137, "timeout")
	f.Fuzz(func(t *testing.T, stderr, stdout []byte, exit int, fault string) {
		b := testBox()
		b.Kept = true
		d, err := Diagnose(t.Context(), Question{Box: b, Try: func(_ context.Context, have []Change, _ time.Duration) (*Outcome, error) {
			if relaxes(have) {
				t.Errorf("%v", have)
			}
			return &Outcome{Exit: exit, Fault: fault, Stderr: stderr, Stdout: stdout}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		if d.Verdict == Fixed || d.Verdict == "" {
			t.Errorf("%+v", d)
		}
		for _, x := range d.Tried {
			if strings.ContainsFunc(x.Says, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }) {
				t.Errorf("%q", x.Says)
			}
			for _, c := range x.Changes {
				at, _, _ := strings.Cut(c.Value, ":")
				if c.Flag == "tmpfs" && (at != path.Clean(at) || slices.Contains([]string{"/", "/etc", "/usr", "/bin", "/lib", "/var", "/dev", "/proc", "/sys", "/workspace", "/var/lib"}, at) && at != "/tmp" && at != "/home" && at != "/root") {
					t.Error(c)
				}
			}
		}
		_ = fmt.Sprint(d)
	})
}
