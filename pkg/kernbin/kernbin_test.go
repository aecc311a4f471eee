package kernbin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// script writes an executable shell script and gives its path.
func script(t testing.TB, dir, name, body string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// counting is a script that answers as kern does and notes each time it was asked.
func counting(t testing.TB, dir, name, version string) (path string, asked func() int) {
	log := filepath.Join(t.TempDir(), "asked")
	path = script(t, dir, name, "echo x >>'"+log+"'; echo kern "+version)
	return path, func() int {
		b, _ := os.ReadFile(log)
		return strings.Count(string(b), "x")
	}
}

func env(kv ...string) func(string) string {
	return func(k string) string {
		for i := 0; i < len(kv); i += 2 {
			if kv[i] == k {
				return kv[i+1]
			}
		}
		return ""
	}
}

// testFinder has short budgets; settle is negative so that fresh files are remembered.
func testFinder(o Options) *finder {
	return &finder{Options: o, probe: 5 * time.Second, settle: -time.Hour}
}

func fakeBundle(body string) bundle {
	kern := "#!/bin/sh\n" + body + "\n"
	sum := sha256.Sum256([]byte(kern))
	return bundle{kern: kern, sum: hex.EncodeToString(sum[:]), version: "0.33.0"}
}

var goodBundle = fakeBundle("echo kern 0.33.0")

func withBundle(o Options, b bundle) *finder {
	f := testFinder(o)
	f.bundle, f.carries = b, true
	return f
}

func mustFind(t *testing.T, f *finder) *Kern {
	t.Helper()
	k, err := f.find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func wantRefusal(t *testing.T, err error, field, reason string) {
	t.Helper()
	var v *validate.Error
	if !errors.As(err, &v) {
		t.Fatalf("got %v, want a refusal", err)
	}
	if v.Field != field || !strings.Contains(v.Reason, reason) || v.Fix == "" {
		t.Errorf("got field %q reason %q fix %q, want field %q and reason with %q", v.Field, v.Reason, v.Fix, field, reason)
	}
	if strings.ContainsAny(err.Error(), "\x1b\n\r\u202e") {
		t.Errorf("control characters reach the message: %q", err)
	}
}

func TestLookupOrder(t *testing.T) {
	d, data := t.TempDir(), t.TempDir()
	flag := script(t, d, "flag", "echo kern 1.0.1")
	bin := script(t, d, "env", "echo kern 1.0.2")
	conf := script(t, d, "conf", "echo kern 1.0.3")
	onpath := script(t, d, "kern", "echo kern 1.0.5")
	f := withBundle(Options{
		Flag: flag, Config: conf, Env: env("KERN_BIN", bin, "PATH", "/nonexistent:"+d),
		DataDirs: []string{data + "/kern-sbx"},
	}, goodBundle)
	for _, want := range []struct {
		src     Source
		version string
		path    string
		drop    func()
	}{
		{SourceFlag, "1.0.1", flag, func() { f.Flag = "" }},
		{SourceEnv, "1.0.2", bin, func() { f.Env = env("PATH", d) }},
		{SourceConfig, "1.0.3", conf, func() { f.Config = "" }},
		{SourceBundled, "0.33.0", data + "/kern-sbx/kern/0.33.0/kern", func() { f.carries = false }},
		{SourcePath, "1.0.5", onpath, func() { f.Env = nil }},
	} {
		k := mustFind(t, f)
		if k.Source != want.src || k.Version != want.version || k.Path != want.path {
			t.Errorf("got %+v, want %s %s", k, want.src, want.version)
		}
		want.drop()
	}
	var missing *MissingError
	_, err := f.find(t.Context())
	if !errors.As(err, &missing) {
		t.Fatalf("got %v, want a MissingError", err)
	}
	for _, way := range []string{"make build", "--kern", "KERN_BIN", "on PATH", "pip install kern-sandbox"} {
		if !strings.Contains(err.Error(), way) {
			t.Errorf("%q does not name %s", err, way)
		}
	}
}

// A kern that was named is never replaced by another one.
func TestNamedIsRefusedWithoutFallBack(t *testing.T) {
	d := t.TempDir()
	good := script(t, d, "kern", "echo kern 0.33.0")
	plain := filepath.Join(d, "plain")
	fifo := filepath.Join(d, "fifo")
	loop := filepath.Join(d, "loop")
	noInterpreter := filepath.Join(d, "nointerp")
	noProgram := filepath.Join(d, "noprog")
	if err := errors.Join(os.WriteFile(noInterpreter, []byte("#!/nope\n"), 0o755), os.WriteFile(noProgram, []byte("kern 0.33.0\n"), 0o755),
		os.WriteFile(plain, nil, 0o644), unix.Mkfifo(fifo, 0o755), os.Symlink(loop, loop)); err != nil {
		t.Fatal(err)
	}
	cases := []struct{ name, path, reason string }{
		{"missing", "/nope", "no such file"},
		{"missing, with an escape", "/no\x1b[2J\npe", "no such file"},
		{"directory", d, "not a regular file"},
		{"fifo", fifo, "not a regular file"},
		{"device", "/dev/null", "not a regular file"},
		{"not executable", plain, "not executable"},
		{"link to itself", loop, "too many links"},
		{"below a file", good + "/x", "not a directory"},
		{"true", "/bin/true", "not kern"},
		{"false", "/bin/false", "not kern"},
		{"prints, then fails", script(t, d, "fails", "echo kern 0.33.0; exit 1"), "ended with exit status 1"},
		{"on stderr", script(t, d, "stderr", "echo kern 0.33.0 >&2"), "not kern"},
		{"second line", script(t, d, "second", "echo hello; echo kern 0.33.0"), "not kern"},
		{"escape in the version", script(t, d, "esc", `printf 'kern 0.33.0\033[2J\n'`), "not kern"},
		{"escape first", script(t, d, "esc2", `printf '\033]0;x\007kern 0.33.0\n'`), "not kern"},
		{"carriage return", script(t, d, "cr", `printf 'kern 0.33.0\r\n'`), "not kern"},
		{"two numbers", script(t, d, "two", "echo kern 0.33"), "not kern"},
		{"long line", script(t, d, "long", `printf 'kern 0.33.0-%2000d\n' 0`), "not kern"},
		{"floods", script(t, d, "flood", "echo kern 0.33.0; exec yes"), "longer than"},
		{"killed by itself", script(t, d, "kill", "echo kern 0.33.0; kill -9 $$"), "signal: killed"},
		{"says nothing", script(t, d, "silent", ""), "not kern"},
		{"no interpreter", noInterpreter, "cannot be started: no such file"},
		{"not a program", noProgram, "cannot be started: exec format error"},
		{"too old", script(t, d, "old", "echo kern 0.32.9"), "kern 0.32.9 is older than 0.33"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			base := Options{Env: env("PATH", d), DataDirs: []string{t.TempDir() + "/x"}}
			o := base
			o.Flag = c.path
			_, err := withBundle(o, goodBundle).find(t.Context())
			wantRefusal(t, err, "--kern", c.reason)
			o = base
			o.Config = c.path
			_, err = withBundle(o, goodBundle).find(t.Context())
			wantRefusal(t, err, "config key kern", c.reason)
			o = base
			o.Env = env("PATH", d, "KERN_BIN", c.path)
			_, err = withBundle(o, goodBundle).find(t.Context())
			wantRefusal(t, err, "KERN_BIN", c.reason)
		})
	}
	// The exported road, whatever this build carries.
	_, err := Find(t.Context(), Options{Env: env("KERN_BIN", "/nope", "PATH", d)})
	wantRefusal(t, err, "KERN_BIN", "no such file")
}

// Documented: identity is what --version says.
func TestAnImpostorPasses(t *testing.T) {
	k := mustFind(t, testFinder(Options{Flag: script(t, t.TempDir(), "x", "echo kern 9.9.9; echo more")}))
	if k.Major != 9 || k.Minor != 9 || k.Patch != 9 || !k.AtLeast(0, 33) {
		t.Errorf("got %+v", k)
	}
}

func TestRelativePaths(t *testing.T) {
	d := t.TempDir()
	script(t, d, "kern", "echo kern 0.33.0")
	t.Chdir(d)
	k := mustFind(t, testFinder(Options{Flag: "kern"}))
	if k.Path != d+"/kern" {
		t.Errorf("path %s", k.Path)
	}
	_, err := testFinder(Options{Config: "kern"}).find(t.Context())
	wantRefusal(t, err, "config key kern", "not an absolute path")
	for _, list := range []string{"", ".", ":", "bin::."} {
		if _, err := testFinder(Options{Env: env("PATH", list)}).find(t.Context()); !errors.As(err, new(*MissingError)) {
			t.Errorf("PATH=%q: got %v, want nothing from the working directory", list, err)
		}
	}
}

func TestPathPassesOverWhatCannotRun(t *testing.T) {
	a, b, c := t.TempDir(), t.TempDir(), t.TempDir()
	if err := errors.Join(os.Mkdir(a+"/kern", 0o755), os.WriteFile(b+"/kern", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	want := script(t, c, "kern", "echo kern 0.33.0")
	if k := mustFind(t, testFinder(Options{Env: env("PATH", a+":"+b+":"+c)})); k.Path != want {
		t.Errorf("got %s", k.Path)
	}
	other := script(t, t.TempDir(), "kern", "echo another program")
	_, err := testFinder(Options{Env: env("PATH", filepath.Dir(other)+":"+c)}).find(t.Context())
	wantRefusal(t, err, "kern on PATH", "not kern")
}

func TestProbeIsBounded(t *testing.T) {
	d := t.TempDir()
	for name, body := range map[string]string{
		"hangs":                   "echo kern 0.33.0; sleep 60",
		"ignores TERM":            "trap '' TERM INT HUP; while :; do sleep 60; done",
		"closes stdout and hangs": "echo kern 0.33.0; exec >&-; sleep 60",
		"background holds stdout": "echo kern 0.33.0; setsid sleep 3 & exit 0",
	} {
		t.Run(name, func(t *testing.T) {
			f := testFinder(Options{Flag: script(t, d, strings.ReplaceAll(name, " ", "-"), "echo $$ >'"+d+"/pid'\n"+body)})
			f.probe = 300 * time.Millisecond
			start := time.Now()
			_, err := f.find(t.Context())
			wantRefusal(t, err, "--kern", "did not answer --version within")
			if took := time.Since(start); took > 3*time.Second {
				t.Errorf("took %v", took)
			}
			b, err := os.ReadFile(d + "/pid")
			if err != nil {
				t.Fatal(err)
			}
			var pid int
			fmt.Sscan(string(b), &pid)
			for range 100 {
				if len(running(t, pid)) == 0 {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Errorf("its process group is still there: %v", running(t, pid))
		})
	}
}

// running gives the processes of a group, without those that are dead and only
// wait for somebody to notice.
func running(t *testing.T, group int) (stats []string) {
	t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err != nil {
			continue // gone
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if f := strings.Fields(rest); len(f) > 2 && f[0] != "Z" && f[0] != "X" && f[2] == fmt.Sprint(group) {
			stats = append(stats, string(b))
		}
	}
	return stats
}

func TestProbeLeavesNothingRunning(t *testing.T) {
	d := t.TempDir()
	f := testFinder(Options{Flag: script(t, d, "x", "sleep 60 >/dev/null & echo $! >'"+d+"/pid'; echo kern 0.33.0")})
	mustFind(t, f)
	b, _ := os.ReadFile(d + "/pid")
	var pid int
	fmt.Sscan(string(b), &pid)
	for range 100 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("a background child outlived the question")
}

func TestProbeSurroundings(t *testing.T) {
	t.Setenv("KERN_SECCOMP", "denylist")
	t.Setenv("KERN_BIN", "x")
	d := t.TempDir()
	mustFind(t, testFinder(Options{Flag: script(t, d, "x", `
		exec 3>'`+d+`/out'
		env | grep ^KERN_ >&3
		readlink /proc/self/fd/0 /proc/self/fd/2 >&3
		(: </dev/tty) 2>/dev/null && echo terminal >&3
		echo kern 0.33.0`)}))
	b, err := os.ReadFile(d + "/out")
	if err != nil || string(b) != "/dev/null\n/dev/null\n" {
		t.Errorf("the program saw %q (%v)", b, err)
	}
}

func TestFindEndsWithItsContext(t *testing.T) {
	f := script(t, t.TempDir(), "x", "sleep 60")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := Find(ctx, Options{Flag: f})
	if time.Since(start) > 3*time.Second || err == nil {
		t.Errorf("took %v, error %v", time.Since(start), err)
	}
	if !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(err.Error(), "deadline") {
		t.Errorf("got %v", err)
	}
}

func TestIdentityIsRemembered(t *testing.T) {
	d, cache := t.TempDir(), filepath.Join(t.TempDir(), "a", "cache")
	kern, asked := counting(t, d, "kern", "0.33.0")
	f := testFinder(Options{Flag: kern, CacheDir: cache})
	for range 3 {
		if k := mustFind(t, f); k.Version != "0.33.0" || k.Source != SourceFlag {
			t.Errorf("got %+v", k)
		}
	}
	if n := asked(); n != 1 {
		t.Errorf("asked %d times, want once", n)
	}
	st, err := os.Stat(cache)
	files, _ := filepath.Glob(cache + "/kern-*.id")
	if err != nil || st.Mode().Perm() != 0o700 || len(files) != 1 {
		t.Fatalf("cache %v %v %v", st, err, files)
	}
	if st, _ := os.Stat(files[0]); st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", st.Mode())
	}
	// Through a link it is the same file, under the name that was given.
	link := filepath.Join(d, "link")
	if err := os.Symlink(kern, link); err != nil {
		t.Fatal(err)
	}
	f.Flag = link
	if k := mustFind(t, f); k.Path != link || asked() != 1 {
		t.Errorf("got %+v after %d questions", k, asked())
	}
}

// Whatever is changed about a remembered file, it is asked again.
func TestReplacedBinaryIsNoticed(t *testing.T) {
	rewrite := func(t *testing.T, path, body string) {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(body); err != nil {
			t.Fatal(err)
		}
	}
	for name, change := range map[string]func(t *testing.T, path string, old os.FileInfo){
		"renamed over, same size and mtime": func(t *testing.T, path string, old os.FileInfo) {
			b, _ := os.ReadFile(path)
			evil := strings.Replace(string(b), "kern 0.33.0", "evil 0.33.0", 1)
			if err := errors.Join(os.WriteFile(path+"2", []byte(evil), 0o755),
				os.Chtimes(path+"2", old.ModTime(), old.ModTime()), os.Rename(path+"2", path)); err != nil {
				t.Fatal(err)
			}
		},
		"written in place, same size and mtime": func(t *testing.T, path string, old os.FileInfo) {
			b, _ := os.ReadFile(path)
			rewrite(t, path, strings.Replace(string(b), "kern 0.33.0", "evil 0.33.0", 1))
			if err := os.Chtimes(path, old.ModTime(), old.ModTime()); err != nil {
				t.Fatal(err)
			}
		},
		"link turned elsewhere": func(t *testing.T, path string, old os.FileInfo) {
			other := script(t, filepath.Dir(path), "other", "echo evil 0.33.0")
			if err := errors.Join(os.Remove(path), os.Symlink(other, path)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			kern, asked := counting(t, t.TempDir(), "kern", "0.33.0")
			f := testFinder(Options{Flag: kern, CacheDir: t.TempDir() + "/c"})
			mustFind(t, f)
			mustFind(t, f)
			if asked() != 1 {
				t.Fatalf("not remembered")
			}
			old, err := os.Stat(kern)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond) // past the granularity of ctime
			change(t, kern, old)
			_, err = f.find(t.Context())
			wantRefusal(t, err, "--kern", "not kern")
		})
	}
	t.Run("mode", func(t *testing.T) {
		kern, asked := counting(t, t.TempDir(), "kern", "0.33.0")
		f := testFinder(Options{Flag: kern, CacheDir: t.TempDir() + "/c"})
		mustFind(t, f)
		if err := os.Chmod(kern, 0o700); err != nil {
			t.Fatal(err)
		}
		mustFind(t, f)
		if asked() != 2 {
			t.Errorf("asked %d times, want twice", asked())
		}
	})
	t.Run("not executable any more", func(t *testing.T) {
		kern, _ := counting(t, t.TempDir(), "kern", "0.33.0")
		f := testFinder(Options{Flag: kern, CacheDir: t.TempDir() + "/c"})
		mustFind(t, f)
		if err := os.Chmod(kern, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := f.find(t.Context())
		wantRefusal(t, err, "--kern", "not executable")
	})
}

// A file changed a moment ago could change again under the same time stamp.
func TestFreshFileIsNotRemembered(t *testing.T) {
	kern, asked := counting(t, t.TempDir(), "kern", "0.33.0")
	f := testFinder(Options{Flag: kern, CacheDir: t.TempDir() + "/c"})
	f.settle = time.Minute
	mustFind(t, f)
	mustFind(t, f)
	if asked() != 2 {
		t.Errorf("asked %d times, want twice", asked())
	}
}

// A record that is not exactly ours counts as none.
func TestCacheIsReadStrictly(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, file string, b []byte){
		"other path": func(t *testing.T, file string, b []byte) {
			write(t, file, strings.Replace(string(b), "kern\"", "kerm\"", 1))
		},
		"other version shape": func(t *testing.T, file string, b []byte) {
			write(t, file, strings.Replace(string(b), "0.33.0", "0.33", 1))
		},
		"trailing bytes": func(t *testing.T, file string, b []byte) { write(t, file, string(b)+"\n") },
		"empty":          func(t *testing.T, file string, b []byte) { write(t, file, "") },
		"huge":           func(t *testing.T, file string, b []byte) { write(t, file, string(b)+strings.Repeat("x", 1<<20)) },
		"did not run": func(t *testing.T, file string, b []byte) {
			write(t, file, strings.Replace(string(b), "true", "false", 1))
		},
		"link": func(t *testing.T, file string, b []byte) {
			write(t, file+".x", string(b))
			if err := errors.Join(os.Remove(file), os.Symlink(file+".x", file)); err != nil {
				t.Fatal(err)
			}
		},
		"writable by others": func(t *testing.T, file string, b []byte) {
			if err := os.Chmod(file, 0o666); err != nil {
				t.Fatal(err)
			}
		},
		"fifo": func(t *testing.T, file string, b []byte) {
			if err := errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)); err != nil {
				t.Fatal(err)
			}
		},
		"directory": func(t *testing.T, file string, b []byte) {
			if err := errors.Join(os.Remove(file), os.Mkdir(file, 0o700)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			cache := t.TempDir() + "/c"
			kern, asked := counting(t, t.TempDir(), "kern", "0.33.0")
			f := testFinder(Options{Flag: kern, CacheDir: cache})
			mustFind(t, f)
			files, _ := filepath.Glob(cache + "/kern-*.id")
			if len(files) != 1 {
				t.Fatal(files)
			}
			b, err := os.ReadFile(files[0])
			if err != nil {
				t.Fatal(err)
			}
			spoil(t, files[0], b)
			mustFind(t, f)
			if asked() != 2 {
				t.Errorf("asked %d times, want twice", asked())
			}
		})
	}
}

func write(t *testing.T, file, s string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestUnusableCacheIsNoError(t *testing.T) {
	d := t.TempDir()
	open := filepath.Join(d, "open")
	if err := errors.Join(os.Mkdir(open, 0o777), os.Chmod(open, 0o777), os.WriteFile(d+"/file", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, cache := range []string{"", "relative", "/proc/kern-sbx", d + "/file", d + "/file/x", open, open + "/below", "/"} {
		kern, asked := counting(t, d, "kern", "0.33.0")
		f := testFinder(Options{Flag: kern, CacheDir: cache})
		mustFind(t, f)
		mustFind(t, f)
		if asked() != 2 {
			t.Errorf("%q: asked %d times, want twice", cache, asked())
		}
	}
	if e, _ := os.ReadDir(open); len(e) != 0 {
		t.Errorf("something was made in a directory open to all: %v", e)
	}
}

func TestFeatures(t *testing.T) {
	k := mustFind(t, testFinder(Options{Flag: script(t, t.TempDir(), "x", "echo kern 0.33.0")}))
	if !k.Has(FeatureGate) || !k.Has(FeatureAlive) || len(k.Features()) != len(features) || k.Has("teleport") {
		t.Errorf("features of 0.33: %v", k.Features())
	}
	for _, f := range features {
		if f.major == MinMajor && f.minor < MinMinor {
			t.Errorf("%s is said to be older than the oldest kern accepted", f.name)
		}
	}
	old := Kern{Major: 0, Minor: 32, Patch: 9}
	if old.AtLeast(0, 33) || len(old.Features()) != 0 || !(&Kern{Major: 1}).AtLeast(0, 99) {
		t.Error("AtLeast compares wrongly")
	}
}

func TestRealKern(t *testing.T) {
	bin := os.Getenv("KERN_BIN")
	if bin == "" {
		t.Skip("KERN_BIN is not set: no real kern to ask")
	}
	k, err := Find(t.Context(), Options{Flag: bin, CacheDir: t.TempDir() + "/c"})
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(k.Path, "--version").Output()
	if err != nil || strings.TrimSpace(string(out)) != "kern "+k.Version {
		t.Errorf("found %+v, kern says %q (%v)", k, out, err)
	}
}

func asRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: chown and mount")
	}
}

func otherUser(t *testing.T, path string) {
	t.Helper()
	if err := os.Lchown(path, 12345, 12345); err != nil {
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EPERM) {
			t.Skipf("cannot give files away here: %v", err)
		}
		t.Fatal(err)
	}
}
