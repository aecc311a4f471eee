package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// relaxing is every setting that opens, feeds or aims a box, as a line of
// [box]; none may come out of a file that nobody trusted.
var relaxing = []string{
	"setup=['curl x|sh']", "image='evil'", "rootfs='/'", "env-file=['/etc/shadow']", "result='/etc/cron.d/x'",
	"spill='/x'", "workspace='/'", "volume=['/:/host']", "volume='/:/host'", "mount=['type=bind,src=/,dst=/h']", "profile=['vgpio:x']",
	"user='0'", "cap-drop=[]", "cap-add=['SYS_ADMIN']", "security-profile='off'", "apparmor='unconfined'", "limits='off'",
	"timeout='none'", "timeout='0'", "timeout='31s'", "memory='none'", "memory='513m'", "memory='99999g'", "memory=0", "pids-limit='none'",
	"pids-limit=257", "pids-limit=-1", "cpus='none'", "workspace-max='none'", "tmpfs=['none']", "tmpfs=[]", "tmpfs=[\"/tmp:1m\\n/x:9g\"]",
	"kern-config='/x'", "deps-readonly=false", "network='host'", "network='NONE'", "network=\"none\\n\"", "network=''",
	"egress-allow=['evil.example']", "hostname='h'", "workdir='/'", "pull='always'", "pool='p'", "ulimit=['nofile=9']",
	"host-tool=['sh']", "writable=['.git']", "setup-force=true", "setup-env=true", "require-limits=false",
	"allow-root-workspace=true", "ci-fence=false", "fit-cpus=true", "track-ignore=[]", "lang=\"a\\u001b[2J\"",
	"env={LD_PRELOAD='x'}", "env.HOME='/x'",
}

// untouched says that nothing but the allowed keys has another value than
// without the project file.
func untouched(t *testing.T, what string, c *Config, before map[string]string) {
	t.Helper()
	for _, s := range c.All() {
		if got := fmt.Sprintf("%q", s.Values); got != before[s.Key.Name] {
			t.Errorf("%s: %s is %s, was %s", what, s.Key.Name, got, before[s.Key.Name])
		}
		if s.Source.Layer == LayerProject {
			t.Errorf("%s: %s is said to come from the project", what, s.Key.Name)
		}
	}
}

func values(c *Config) map[string]string {
	m := map[string]string{}
	for _, s := range c.All() {
		m[s.Key.Name] = fmt.Sprintf("%q", s.Values)
	}
	return m
}

func TestUntrustedFileCannotRelax(t *testing.T) {
	r := newRig(t)
	r.user("[box]\nvolume=['/mine:/mine']\ncap-drop=['ALL']\ntrack-ignore=['mine']\n[box.env]\nMINE='1'\n[preset.ci]\n[preset.open]\nmemory='8g'\nsetup='x'\n")
	before := values(r.load())
	for _, line := range relaxing {
		key, val, _ := strings.Cut(line, "=")
		quoted := `"` + key + `"`
		if strings.Contains(key, ".") {
			quoted = key
		}
		esc := `"\u00` + fmt.Sprintf("%02x", key[0]) + key[1:] + `"`
		if strings.Contains(key, ".") {
			esc = key
		}
		for name, text := range map[string]string{
			"box":           "[box]\n" + line,
			"quoted key":    "[\"box\"]\n" + quoted + "=" + val,
			"literal key":   "['box']\n" + line,
			"escaped key":   "[\"\\u0062ox\"]\n" + esc + "=" + val,
			"dotted":        "box." + line,
			"spaced dots":   "box . " + line,
			"inline":        "box={" + line + "}",
			"top level":     line,
			"capitals":      "[box]\n" + strings.ToUpper(key) + "=" + val,
			"capital table": "[BOX]\n" + line,
			"spaces":        "[ box ]\n" + line,
			"array table":   "[[box]]\n" + line,
			"duplicate":     "[box]\nlang='x'\n[box]\n" + line,
			"box in box":    "[box.box]\n" + line,
			"dot in key":    "\"box." + key + "\"=" + val,
			"preset in box": "[box.preset.ci]\n" + line,
			"preset":        "[preset.ci]\n" + line,
			"box in preset": "[preset.ci.box]\n" + line,
			"own preset":    "[preset.own]\n" + line,
			"use own":       "use-preset='own'\n[preset.own]\n" + line,
			"use user's":    "use-preset='open'\n[preset.ci]\n" + line,
			"trust itself":  "[trust]\n\"" + filepath.Dir(r.o.Dir) + "/" + projectName + "\"='" + strings.Repeat("0", 64) + "'\n[box]\n" + line,
			"config":        "config='.kern-sbx.toml'\n[box]\n" + line,
			"crlf":          "[box]\r\n" + line + "\r\n",
			"bom":           "\ufeff[box]\n" + line,
		} {
			r.project(text + "\n")
			for _, preset := range []string{"", "ci", "own"} {
				r.o.Preset = preset
				c, err := Load(r.o)
				if err != nil {
					// Only the absent preset may be an error: it is the user's
					// word that has no meaning.
					if preset != "own" || !strings.HasPrefix(err.Error(), `--preset "own"`) {
						t.Errorf("%s, %s, preset %q: %v", name, line, preset, err)
					}
					continue
				}
				want := before
				if preset != "" {
					want = map[string]string{}
					for k, v := range before {
						want[k] = v
					}
					want["preset"] = fmt.Sprintf("%q", []string{preset})
				}
				untouched(t, fmt.Sprintf("%s, %s, preset %q", name, line, preset), c, want)
				if reached := name == "box" || name == "preset" && preset == "ci" || name == "own preset" && preset == "own"; reached && len(c.Ignored()) == 0 {
					t.Errorf("%s, %s: nothing is said", name, line)
				}
			}
			r.o.Preset = ""
		}
	}
	r.o.Preset = ""
	// Global keys.
	for _, line := range []string{"kern='/tmp/evil'", "color='always'", "quiet=true", "preset='open'", "use-preset='open'", "config='x'"} {
		r.project(line + "\n")
		c := r.load()
		untouched(t, line, c, before)
		if len(c.Ignored()) != 1 {
			t.Errorf("%s: %v", line, c.Ignored())
		}
	}
}

func TestUntrustedFileCanTighten(t *testing.T) {
	r := newRig(t)
	r.user("[box]\nmemory='256m'\nnetwork='host'\ndeps-readonly=false\n")
	r.project("[box]\nmemory='128m'\npids-limit=10\ntimeout='5s'\nnetwork='none'\nlang='node'\ntrack-ignore=['a','b']\ntmpfs='/tmp:1m'\nworkspace-max='1g'\ndeps-readonly=true\n[preset.low]\nmemory='200m'\n[preset.high]\nmemory='300m'\n")
	c := r.load()
	want := map[string]string{
		"memory": "128m", "pids-limit": "10", "timeout": "5s", "network": "none", "lang": "node",
		"track-ignore": "a|b", "tmpfs": "/tmp:1m", "workspace-max": "1g", "deps-readonly": "true",
	}
	for k, v := range want {
		if got := value1(c, k); got != v {
			t.Errorf("%s: %q, want %q", k, got, v)
		}
	}
	if len(c.Ignored()) != 0 {
		t.Errorf("%v", c.Ignored())
	}
	if f := c.Files()[2]; f.State != Untrusted || f.Reason == "" || len(f.SHA256) != 64 {
		t.Errorf("%+v", f)
	}
	// Measured against what applies without the file, not against its [box].
	r.o.Preset = "low"
	if got := value1(r.load(), "memory"); got != "200m" {
		t.Errorf("preset low: %s", got)
	}
	r.o.Preset = "high"
	c = r.load()
	if got := value1(c, "memory"); got != "128m" {
		t.Errorf("preset high: %s", got)
	}
	ig := c.Ignored()
	if len(ig) != 1 || ig[0].Key != "preset.high.memory" || !strings.Contains(ig[0].Reason, "not tighter than 256m") || !strings.Contains(ig[0].Reason, "kern-sbx config trust") {
		t.Errorf("%v", ig)
	}
	// A variable is the caller's own and wins.
	r.o.Environ = []string{"KERN_SBX_MEMORY=4g"}
	if got := value1(r.load(), "memory"); got != "4g" {
		t.Errorf("variable: %s", got)
	}
}

func TestChecksOfWaitingKeysDoNotRun(t *testing.T) {
	r := newRig(t)
	ran := 0
	r.o.Keys = []Key{
		{Name: "volume", Check: func(string) error { ran++; return nil }},
		{Name: "env", Kind: Map, Check: func(string) error { ran++; return nil }},
	}
	r.project("[box]\nvolume='/:/x'\n[box.env]\nA='1'\n")
	if c := r.load(); ran != 0 || len(c.Ignored()) != 2 {
		t.Errorf("%d checks, ignored %v", ran, c.Ignored())
	}
	r.trust()
	if r.load(); ran != 4 {
		t.Errorf("%d checks after trust", ran)
	}
}

func TestTrust(t *testing.T) {
	r := newRig(t)
	path := r.project("use-preset='own'\nkern='/k'\n[box]\nmemory='8g'\nsetup=['x']\n[box.env]\nA='1'\n[preset.own]\nimage='i'\n")
	if c := r.load(); value1(c, "setup") != "" {
		t.Fatal("applied before trust")
	}
	f, err := Trust(r.o, "")
	if err != nil || f.Path != path || len(f.SHA256) != 64 {
		t.Fatalf("%+v %v", f, err)
	}
	record := TrustFile(nil, r.o.Home)
	if st, err := os.Stat(record); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("record: %v %v", st, err)
	}
	c := r.load()
	if value1(c, "setup") != "x" || value1(c, "memory") != "8g" || value1(c, "kern") != "/k" || value1(c, "image") != "i" || c.Files()[2].State != Read {
		t.Errorf("not applied after trust: %+v", c.Files())
	}
	if fs, err := Trusted(r.o); err != nil || len(fs) != 1 || fs[0].State != Read || fs[0].Path != path {
		t.Errorf("%v %v", fs, err)
	}
	// Through a link to the directory it is the same file.
	link := filepath.Join(r.o.Home, "link")
	if err := os.Symlink(filepath.Dir(path), link); err != nil {
		t.Fatal(err)
	}
	saved := r.o.Dir
	r.o.Dir = link
	if value1(r.load(), "setup") != "x" {
		t.Error("not trusted through a symbolic link")
	}
	r.o.Dir = saved
	// The same bytes elsewhere are not.
	data, _ := os.ReadFile(path)
	other := filepath.Join(r.o.Home, "other")
	r.write(filepath.Join(other, projectName), string(data))
	r.o.Dir = other
	if value1(r.load(), "setup") != "" {
		t.Error("a copy elsewhere is trusted")
	}
	r.o.Dir = saved
	// One byte more, and not even the size tells.
	r.project(strings.Replace(string(data), "'x'", "'y'", 1))
	c = r.load()
	if value1(c, "setup") != "" || c.Files()[2].State != Untrusted {
		t.Error("changed bytes are trusted")
	}
	if fs, _ := Trusted(r.o); fs[0].State != Untrusted || fs[0].Reason == "" {
		t.Errorf("%v", fs)
	}
	r.project(string(data))
	if value1(r.load(), "setup") != "x" {
		t.Error("the old bytes are forgotten")
	}
	for _, p := range []string{"..", "../" + projectName, path, filepath.Dir(path)} {
		if _, err := Trust(r.o, p); err != nil {
			t.Errorf("trust %s: %v", p, err)
		}
		if err := Untrust(r.o, p); err != nil {
			t.Errorf("untrust %s: %v", p, err)
		}
	}
	if value1(r.load(), "setup") != "" {
		t.Error("applied after untrust")
	}
	if err := Untrust(r.o, ""); err == nil {
		t.Error("second untrust says nothing")
	}
	r.user("[trust]\n'" + path + "'='sha256:" + f.SHA256 + "'\n")
	if value1(r.load(), "setup") != "x" {
		t.Error("[trust] of the user file does not count")
	}
	for _, other := range []func(string) string{r.system, r.project} {
		other("[trust]\n'" + path + "'='" + f.SHA256 + "'\n")
		if errs := Check(r.o); len(errs) == 0 || !strings.Contains(errs[0].Error(), "only the user file") {
			t.Errorf("%v", errs)
		}
	}
}

func TestTrustRefuses(t *testing.T) {
	r := newRig(t)
	if _, err := Trust(r.o, ""); err == nil || !strings.Contains(err.Error(), "no project file here") {
		t.Errorf("nothing there: %v", err)
	}
	path := r.project("[box]\nmemroy='1g'\n")
	if _, err := Trust(r.o, ""); err == nil || !strings.Contains(err.Error(), ":2: box.memroy") {
		t.Errorf("mistake: %v", err)
	}
	r.project("[box]\nlang='x'\n")
	if err := os.Chmod(path, 0o664); err != nil {
		t.Fatal(err)
	}
	if _, err := Trust(r.o, ""); err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Errorf("group-writable: %v", err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	r.o.Home = ""
	if _, err := Trust(r.o, ""); err == nil || !strings.Contains(err.Error(), "set HOME") {
		t.Errorf("no home: %v", err)
	}
}

func TestMistakeInTrustedProjectIsAnError(t *testing.T) {
	r := newRig(t)
	bad := "[box]\nmemory='512'\n"
	path := r.project(bad)
	if c := r.load(); len(c.Ignored()) != 1 || c.Ignored()[0].Key != "box.memory" {
		t.Errorf("%v", c.Ignored())
	}
	r.user("[trust]\n'" + path + "'='" + sum([]byte(bad)) + "'\n")
	if _, err := Load(r.o); err == nil || !strings.Contains(err.Error(), ":2: box.memory") {
		t.Errorf("%v", err)
	}
}

func TestRecordIsNotBelievedFromOthers(t *testing.T) {
	r := newRig(t)
	path := r.project("[box]\nsetup=['x']\n")
	r.trust()
	record := TrustFile(nil, r.o.Home)
	good, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	restore := func() {
		_ = os.Remove(record)
		if err := os.WriteFile(record, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, spoil := range map[string]func() error{
		"group-writable": func() error { return os.Chmod(record, 0o660) },
		"world-writable": func() error { return os.Chmod(record, 0o606) },
		"symlink": func() error {
			if err := os.Rename(record, record+".x"); err != nil {
				return err
			}
			return os.Symlink(record+".x", record)
		},
		"fifo":      func() error { _ = os.Remove(record); return unix.Mkfifo(record, 0o600) },
		"directory": func() error { _ = os.Remove(record); return os.Mkdir(record, 0o700) },
		"not toml":  func() error { return os.WriteFile(record, []byte("[trust\n"), 0o600) },
		"foreign": func() error {
			if os.Getuid() != 0 {
				return os.Chmod(record, 0o666) // the nearest to it without root
			}
			return os.Chown(record, 12345, 12345)
		},
	} {
		restore()
		if value1(r.load(), "setup") != "x" {
			t.Fatal("the good record does not count")
		}
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		c := r.load()
		if value1(c, "setup") != "" {
			t.Errorf("%s: believed", name)
		}
		if w := strings.Join(c.Warnings(), ""); !strings.Contains(w, "no project file is trusted") {
			t.Errorf("%s: warnings %q", name, w)
		}
		if _, err := Trust(r.o, path); err == nil {
			t.Errorf("%s: overwritten", name)
		}
	}
}

func TestRecordSpelling(t *testing.T) {
	r := newRig(t)
	odd := filepath.Join(r.o.Home, "a \"b\" \\ \x1b[31m\n.c = 'é\u202e")
	r.write(filepath.Join(odd, projectName), "[box]\nsetup=['x']\n")
	r.o.Dir = odd
	r.trust()
	if value1(r.load(), "setup") != "x" {
		t.Error("a strange path is not found again")
	}
	c := r.load()
	if s, _ := c.Get("setup"); strings.ContainsAny(s.Source.String(), "\x1b\n\u202e") {
		t.Errorf("%q", s.Source.String())
	}
	bad := filepath.Join(r.o.Home, "x\xff")
	r.write(filepath.Join(bad, projectName), "[box]\n")
	r.o.Dir = bad
	if _, err := Trust(r.o, ""); err == nil || !strings.Contains(err.Error(), "not UTF-8") {
		t.Errorf("%v", err)
	}
}

func TestTrustAtTheSameTime(t *testing.T) {
	r := newRig(t)
	const n = 20
	var wg sync.WaitGroup
	for i := range n {
		d := filepath.Join(r.o.Home, fmt.Sprint("p", i))
		r.write(filepath.Join(d, projectName), "[box]\n")
		wg.Go(func() {
			if _, err := Trust(r.o, d); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if fs, err := Trusted(r.o); err != nil || len(fs) != n {
		t.Errorf("%d of %d recorded, %v", len(fs), n, err)
	}
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(TrustFile(nil, r.o.Home)), ".trusted-*"))
	if len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// Another process swaps the file for one that nobody trusted while we load: in
// no load may a value of the second file appear, because the bytes that are
// hashed are those that are parsed.
func TestSwapWhileLoading(t *testing.T) {
	r := newRig(t)
	path := r.project("[box]\nsetup=['good']\n")
	r.trust()
	evil := r.write(path+".evil", "[box]\nsetup=['evil']\n")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, evil, unix.RENAME_EXCHANGE)
			}
		}
	}()
	seen := map[string]int{}
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
		seen[value1(r.load(), "setup")]++
	}
	close(stop)
	<-done
	if seen["evil"] > 0 {
		t.Errorf("%v", seen)
	}
	if seen["good"] == 0 || seen[""] == 0 {
		t.Logf("the swap was not seen from both sides: %v", seen)
	}
}

func TestProjectFileIsLookedForInTheRepositoryOnly(t *testing.T) {
	r := newRig(t)
	repo := filepath.Dir(r.o.Dir)
	base := filepath.Dir(repo)
	above := r.write(filepath.Join(base, projectName), "[box]\nlang='above'\n")
	if got := ProjectFile(r.o.Dir); got != "" {
		t.Errorf("found above the repository: %s", got)
	}
	root := r.project("[box]\nlang='root'\n")
	if got := ProjectFile(r.o.Dir); got != root {
		t.Errorf("%s, want %s", got, root)
	}
	sub := r.write(filepath.Join(r.o.Dir, projectName), "[box]\nlang='sub'\n")
	if got := value1(r.load(), "lang"); got != "sub" {
		t.Errorf("not the nearest: %s", got)
	}
	if err := os.Remove(sub); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(repo, ".git")); err != nil {
		t.Fatal(err)
	}
	if got := ProjectFile(r.o.Dir); got != "" {
		t.Errorf("no repository, found %s", got)
	}
	if got := ProjectFile(base); got != above {
		t.Errorf("not found in the directory itself: %s", got)
	}
	// A worktree's .git is a file.
	r.write(filepath.Join(repo, ".git"), "gitdir: x\n")
	if got := ProjectFile(r.o.Dir); got != root {
		t.Errorf("worktree: %s", got)
	}
}

func TestProjectFilesThatAreNotRead(t *testing.T) {
	const text = "[box]\nlang='x'\nmemory='1m'\n"
	for name, tc := range map[string]struct {
		root bool
		make func(r *rig, path string) error
		want string
	}{
		"group-writable": {false, func(r *rig, p string) error { return os.Chmod(r.project(text), 0o664) }, "others may write it"},
		"world-writable": {false, func(r *rig, p string) error { return os.Chmod(r.project(text), 0o646) }, "others may write it"},
		"directory everybody writes": {false, func(r *rig, p string) error {
			r.project(text)
			return os.Chmod(filepath.Dir(p), 0o1777) //nolint:gosec // the point of the test
		}, "anyone may write its directory"},
		"symlink": {false, func(r *rig, p string) error { return os.Symlink(r.write(p+".real", text), p) }, "symbolic link"},
		"dangling link": {false, func(r *rig, p string) error {
			return os.Symlink("/nonexistent/x", p)
		}, "symbolic link"},
		"FIFO":      {false, func(r *rig, p string) error { return unix.Mkfifo(p, 0o644) }, "not a regular file"},
		"directory": {false, func(r *rig, p string) error { return os.Mkdir(p, 0o755) }, "not a regular file"},
		"device":    {true, func(r *rig, p string) error { return unix.Mknod(p, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))) }, "not a regular file"},
		"foreign":   {true, func(r *rig, p string) error { return os.Chown(r.project(text), 12345, 0) }, "belongs to uid 12345"},
		"foreign directory": {true, func(r *rig, p string) error {
			r.project(text)
			return os.Chown(filepath.Dir(p), 12345, 0)
		}, "its directory belongs to uid 12345"},
		"large":              {false, func(r *rig, p string) error { r.project(text + strings.Repeat("#", maxProject)); return nil }, "larger than 64 KiB"},
		"sparse":             {false, func(r *rig, p string) error { return os.Truncate(r.project(text), 1<<40) }, "larger than 64 KiB"},
		"large before trust": {false, func(r *rig, p string) error { r.project(text + strings.Repeat("#", maxUntrusted)); return nil }, "larger than 16 KiB; run kern-sbx config trust"},
		"not toml":           {false, func(r *rig, p string) error { r.project("not \x1b[2J toml ["); return nil }, "line 1: "},
		"not UTF-8":          {false, func(r *rig, p string) error { r.project("[box]\nlang='\xff'"); return nil }, "not UTF-8"},
		"NUL":                {false, func(r *rig, p string) error { r.project("[box]\x00"); return nil }, "line 1: "},
		"twice a table":      {false, func(r *rig, p string) error { r.project(text + text); return nil }, "line "},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.root && os.Getuid() != 0 {
				t.Skip("needs root to give a file away or make a device")
			}
			r := newRig(t)
			path := filepath.Join(filepath.Dir(r.o.Dir), projectName)
			if err := tc.make(r, path); err != nil {
				t.Fatal(err)
			}
			done := make(chan *Config)
			go func() {
				c, err := Load(r.o)
				if err != nil {
					t.Error(err)
				}
				done <- c
			}()
			var c *Config
			select {
			case c = <-done:
			case <-time.After(10 * time.Second):
				t.Fatal("hangs")
			}
			if c == nil {
				return
			}
			if value1(c, "lang") != "" || value1(c, "memory") != "" {
				t.Error("applied")
			}
			f := c.Files()[2]
			ig := c.Ignored()
			if f.State != Skipped || !strings.Contains(f.Reason, tc.want) || len(ig) != 1 || ig[0].Path != path || ig[0].Reason != f.Reason {
				t.Errorf("%+v %v", f, ig)
			}
			if strings.ContainsAny(f.Reason, "\x1b\x00\n") {
				t.Errorf("control bytes in %q", f.Reason)
			}
			if errs := Check(r.o); len(errs) != 1 {
				t.Errorf("check: %v", errs)
			}
		})
	}
}

// Deep nesting costs the parser the cube of the depth; a project file must not
// be able to make every command in its directory hang.
func TestHostileNestingIsCheap(t *testing.T) {
	const n = maxUntrusted - 100
	line := strings.Repeat("a.", 32)
	files := map[string]string{
		"dotted":       strings.Repeat("a.", n/2) + "a=1",
		"header":       "[" + strings.Repeat("a.", n/2) + "a]",
		"spaced":       strings.Repeat("a . ", n/4) + "a=1",
		"quoted":       strings.Repeat(`"=\n,".`, n/7) + "a=1",
		"inline":       strings.Repeat("a={", n/3),
		"inline lines": strings.Repeat("a={\n", n/4),
		"arrays":       "a=" + strings.Repeat("[", n),
		"array tables": strings.Repeat("[[a]]\n", n/6),
		"keys":         strings.Repeat("k", 10) + "\n" + strings.Repeat("a=1\n", n/4),
		"cr":           strings.Repeat("a.\r", n/3) + "a=1",
		"multi-line":   strings.Repeat("\"\"\"\n\"\"\".", n/8) + "a=1",
		"most allowed": strings.Repeat(strings.TrimSuffix(line, ".")+"={\n", 8) + func() string {
			var b strings.Builder
			for i := 0; b.Len() < n-1000; i++ {
				fmt.Fprintf(&b, "k%d=1,\n", i)
			}
			return b.String()
		}() + strings.Repeat("}", 8),
		"most keys": func() string {
			var b strings.Builder
			for i := 0; b.Len() < n-100; i++ {
				fmt.Fprintf(&b, "%sk%d=1\n", line, i)
			}
			return b.String()
		}(),
	}
	for name, text := range files {
		r := newRig(t)
		r.project(text)
		start := time.Now()
		c := r.load()
		took := time.Since(start)
		t.Logf("%s: %v %+v", name, took, c.Files()[2].Reason)
		if took > 5*time.Second { // tens of ms; the margin is for -race on a busy machine
			t.Errorf("%s: %v", name, took)
		}
		if len(c.Ignored()) == 0 {
			t.Errorf("%s: nothing is said", name)
		}
	}
}

// FuzzProjectFile: no bytes may panic, make a run fail, hide in a message or set
// a key that has no rule, whichever preset is chosen.
func FuzzProjectFile(f *testing.F) {
	for _, line := range relaxing {
		f.Add([]byte("[box]\n"+line+"\n"), "ci")
	}
	f.Add([]byte("use-preset='ci'\n[preset.ci]\nmemory='1m'\nsetup='x'\n[preset.ci.env]\nA='1'\n"), "ci")
	f.Add([]byte("[box]\nmemory='1m'\n[trust]\n\"/x\"='y'\n"), "")
	f.Add([]byte("\"box\".\"memory\"='1m'\nbox.setup=[['x']]\n"), "ci")
	dir, err := filepath.EvalSymlinks(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	free := []string{"memory", "pids-limit", "timeout", "workspace-max", "tmpfs", "lang", "track-ignore", "network", "deps-readonly"}
	o := Options{Keys: keys(), Dir: dir, UID: os.Getuid(), SystemFile: filepath.Join(dir, "sys.toml")}
	if err := os.WriteFile(o.SystemFile, []byte("[preset.ci]\n"), 0o644); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte, preset string) {
		if preset != "ci" {
			preset = ""
		}
		o := o
		o.Preset = preset
		path := filepath.Join(dir, projectName)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(o)
		if err != nil {
			t.Fatalf("a run fails: %v", err)
		}
		for _, s := range c.All() {
			if s.Source.Layer != LayerProject {
				continue
			}
			if !slices.Contains(free, s.Key.Name) {
				t.Errorf("%s set to %q", s.Key.Name, s.Values)
			}
			for _, v := range s.Values {
				switch s.Key.Name {
				case "memory":
					if !smallerSize(v, "512m") {
						t.Errorf("memory %q", v)
					}
				case "timeout":
					if !smallerTime(v, "30s") {
						t.Errorf("timeout %q", v)
					}
				case "network":
					if v != "none" {
						t.Errorf("network %q", v)
					}
				}
			}
		}
		for _, ig := range c.Ignored() {
			for _, r := range ig.Key + ig.Reason {
				if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == 0x202e {
					t.Errorf("control character in %q %q", ig.Key, ig.Reason)
				}
			}
		}
		// The same bytes as the user's own file: errors, but no panic.
		o.File = path
		_, _ = Load(o)
	})
}
