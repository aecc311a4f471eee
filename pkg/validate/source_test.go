package validate

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// world is a home directory with what a home directory has, and the rules for
// its owner.
func world(t *testing.T) (root string, r SourceRules) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{
		"h/u/.ssh", "h/u/.config/gh", "h/u/.config/kern", "h/u/.cache/kern/images", "h/u/.cache/pip", "h/u/.local/share/kern",
		"h/u/proj/gh/src", "h/u/proj/.aws", "h/u/.cargo/registry", "h/u/.m2", "h/u/.gem", "run/kern", "run/x", "own/t/run1", "agent/d", "other",
		"xc/gh", "xc/kern", "engine/d", "h/v/.docker",
	} {
		mkdir(t, root, d)
	}
	for _, f := range []string{"h/u/f", "h/u/.npmrc", "other/f"} {
		if err := os.WriteFile(filepath.Join(root, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r = SourceRules{
		Home: root + "/h/u",
		UID:  os.Getuid(),
		Env: func(k string) string {
			return map[string]string{
				"XDG_RUNTIME_DIR": root + "/run",
				"XDG_CONFIG_HOME": root + "/xc",
				"SSH_AUTH_SOCK":   root + "/agent/sock",
				"DOCKER_HOST":     "unix://" + root + "/engine/sock",
			}[k]
		},
		OwnDirs: []string{root + "/own/t", ""},
	}
	return root, r
}

func mkdir(t *testing.T, root, d string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, to, name string) {
	t.Helper()
	if err := os.Symlink(to, name); err != nil {
		t.Fatal(err)
	}
}

func TestSourceAllowed(t *testing.T) {
	root, r := world(t)
	link(t, root+"/h/u/proj", root+"/other/l")
	for in, want := range map[string]string{
		root + "/h/u/proj":                 root + "/h/u/proj",
		root + "/h/u/proj/":                root + "/h/u/proj",
		root + "//h/./u/proj/../f":         root + "/h/u/f",
		root + "/h/u/proj/gh/src":          root + "/h/u/proj/gh/src",
		root + "/other/l/gh/..":            root + "/h/u/proj",
		root + "/h/u/.cache/pip":           root + "/h/u/.cache/pip",
		root + "/agent/d":                  root + "/agent/d",
		root + "/engine/d":                 root + "/engine/d",
		root + "/h/u/.cargo/registry":      root + "/h/u/.cargo/registry",
		root + "/other/../h/u/proj/../../": "",
		"/usr":                             "/usr",
	} {
		got, notes, err := r.Check(in)
		if want == "" {
			wantRefused(t, in, err, "")
			continue
		}
		if err != nil || got != want || len(notes) != 0 {
			t.Errorf("Check(%q) = %q, %q, %v", in, got, notes, err)
		}
	}
	for _, d := range []string{"/.cargo", "/.m2", "/.gem"} {
		if _, notes, err := r.Check(r.Home + d); err != nil || len(notes) != 1 || !strings.Contains(notes[0], "credentials") {
			t.Errorf("%s: %q, %v", d, notes, err)
		}
	}
	for _, d := range []string{"/etc/ssl/certs", "/etc/ca-certificates", "/etc/pki/ca-trust/extracted"} {
		if _, err := os.Stat(d); err == nil {
			if _, _, err := r.Check(d); err != nil {
				t.Error(err)
			}
		}
	}
	// Nobody's rules are rules all the same, and a home that is none adds none.
	for _, r := range []SourceRules{{}, {Home: "relative"}, {Home: ""}} {
		if _, _, err := r.Check(root + "/h/u/proj"); err != nil {
			t.Error(err)
		}
		_, _, err := r.Check("/etc")
		wantRefused(t, "/etc", err, "system")
	}
}

func TestSourceRefused(t *testing.T) {
	root, r := world(t)
	links := map[string]string{
		"l1": root + "/h/u", "l2": "l1", "l3": "../h/u/.ssh", "l4": "/etc", "l5": "/proc/self/root", "l6": "/proc/self/cwd", "loop": "loop",
		"l7": root, "l8": "l7/h/u/.config", "l9": "/proc/self/fd", "dangling": "nowhere", "l10": "/proc/1/root/etc",
	}
	for name, to := range links {
		link(t, to, filepath.Join(root, "other", name))
	}
	// Credentials that live elsewhere, by a link in the home directory.
	mkdir(t, root, "vault/keys/sub")
	if err := os.Remove(root + "/h/u/.ssh"); err != nil {
		t.Fatal(err)
	}
	link(t, root+"/vault/keys", root+"/h/u/.ssh")

	for in, reason := range map[string]string{
		"": "no source", "rel": "not an absolute", "./x": "not an absolute", "~": "not an absolute", "/a\n": "line break", "/a\x00b": "line break", "/a\rb": "line break",
		"/": "root", "//": "root", "/.": "root", "/..": "root", "/usr/..": "root", "/boot": "", "/dev": "system", "/dev/": "system", "//dev//shm": "system",
		"/etc": "system", "/etc/": "system", "/etc/passwd": "system", "/etc/ssl": "", "/etc/../etc/passwd": "system", "/usr/../etc/./passwd": "system",
		"/proc": "system", "/proc/1": "system", "/sys/kernel": "system", "/proc/self/root": "link of /proc", "/proc/self/root/etc": "link of /proc",
		"/proc/self/cwd": "link of /proc", "/proc/thread-self/root" + root + "/h/u/proj": "link of /proc", "/dev/fd/0": "", "/dev/stdin": "", "/dev/null": "system",
		"/run": "listen", "/var/run": "listen", "/var": "", "/root": "", "/home": "",
		root + "/h": "contains", root + "/h/u": "home", root + "/h/u/": "home", root + "/h/u/.": "home", root + "/h/u/proj/..": "home", root + "/h/v/../u": "home",
		root:                                  "contains",
		root + "/h/u/.config":                 "contains",
		root + "/h/u/.config/gh":              "credentials",
		root + "/h/u/.config/kern":            "kern's own",
		root + "/h/u/.cache":                  "contains",
		root + "/h/u/.cache/kern":             "kern's own",
		root + "/h/u/.cache/kern/images/":     "kern's own",
		root + "/h/u/.local":                  "contains",
		root + "/h/u/.local/share":            "contains",
		root + "/h/u/.local/share/kern":       "kern's own",
		root + "/h/u/.npmrc":                  "credentials",
		root + "/h/u/proj/.aws":               "credentials",
		root + "/h/u/.ssh":                    "credentials",
		root + "/h/u/.ssh/sub":                "credentials",
		root + "/h/v/.docker":                 "credentials",
		root + "/vault/keys":                  "credentials",
		root + "/vault/keys/sub":              "credentials",
		root + "/vault":                       "contains",
		root + "/run":                         "listen",
		root + "/run/x":                       "listen",
		root + "/run/kern":                    "",
		root + "/xc":                          "contains",
		root + "/xc/gh":                       "credentials",
		root + "/xc/kern":                     "kern's own",
		root + "/own":                         "contains",
		root + "/own/t":                       "kern-sbx's own",
		root + "/own/t/run1":                  "kern-sbx's own",
		root + "/agent":                       "agent",
		root + "/engine":                      "engine",
		root + "/other/l1":                    "home",
		root + "/other/l2":                    "home",
		root + "/other/l2/../../h":            "contains",
		root + "/other/l3":                    "credentials",
		root + "/other/l4/passwd":             "system",
		root + "/other/l5":                    "link of /proc",
		root + "/other/l5/etc":                "link of /proc",
		root + "/other/l6":                    "link of /proc",
		root + "/other/l8":                    "contains",
		root + "/other/l8/gh":                 "credentials",
		root + "/other/l9/0":                  "",
		root + "/other/l10":                   "",
		root + "/other/loop":                  "too many",
		root + "/other/dangling":              "no such",
		root + "/other/nope":                  "no such",
		root + "/other/f/x":                   "",
		root + "/other/f/../../h/u":           "",
		root + "/" + strings.Repeat("a", 300): "too long",
	} {
		if in == "/boot" || in == "/home" || in == "/root" {
			if _, err := os.Stat(in); err != nil {
				continue
			}
		}
		_, _, err := r.Check(in)
		wantRefused(t, in, err, reason)
	}
	if _, err := os.Lstat(root + "/other/nope"); err == nil {
		t.Error("a missing source was created")
	}
}

// The rules hold when the home directory is reached through a link, as on
// systems where /home is one.
func TestSourceRulesThroughLinks(t *testing.T) {
	root, r := world(t)
	link(t, root+"/h", root+"/home")
	r.Home = root + "/home/u"
	r.OwnDirs = []string{root + "/home/u/own"}
	mkdir(t, root, "h/u/own/x")
	for _, in := range []string{"/home/u", "/h/u", "/h", "/home", "/h/u/.config", "/h/u/.cache/kern", "/h/u/own", "/h/u/own/x", "/home/u/own/x"} {
		_, _, err := r.Check(root + in)
		wantRefused(t, in, err, "")
	}
	if got, _, err := r.Check(root + "/home/u/proj"); err != nil || got != root+"/h/u/proj" {
		t.Errorf("got %q, %v", got, err)
	}
}

// follow gives what the kernel makes of a path, and ends on what has no end.
func TestFollow(t *testing.T) {
	root, _ := world(t)
	mkdir(t, root, "a/b/c")
	for name, to := range map[string]string{"l": "a/b/c", "up": "l/../x", "abs": root + "/l/..", "loop": "loop/loop/loop", "x1": "x2", "x2": "x1/y", "gone": "nowhere/z"} {
		link(t, to, filepath.Join(root, name))
	}
	for in, want := range map[string]string{
		"/l": "/a/b/c", "/l/q/r": "/a/b/c/q/r", "/up": "/a/b/x", "/abs": "/a/b", "/abs/c": "/a/b/c", "/gone/k": "/nowhere/z/k", "/none/k": "/none/k",
	} {
		f := follower{}
		for range 2 {
			if got := f.follow(root + in); got != root+want {
				t.Errorf("follow(%s) = %s, want %s", in, got, want)
			}
		}
	}
	f := follower{}
	f.follow(root + "/loop/x")
	f.follow(root + "/x1/x")
	if got := f.follow("/"); got != "/" {
		t.Error(got)
	}
}

func TestSourceKinds(t *testing.T) {
	root, r := world(t)
	d := root + "/h/u/proj"
	// A socket's path is short, hence not below the test's directory.
	short, err := os.MkdirTemp("", "v")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(short) })
	l, err := net.Listen("unix", short+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, _, err = r.Check(short + "/s")
	wantRefused(t, "socket", err, "socket")
	if _, notes, err := r.Check(short); err != nil || len(notes) != 1 || !strings.Contains(notes[0], "socket") {
		t.Errorf("a directory with a socket: %q, %v", notes, err)
	}
	link(t, short+"/s", d+"/s")
	_, _, err = r.Check(d + "/s")
	wantRefused(t, "link to a socket", err, "socket")
	if err := syscall.Mkfifo(d+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = r.Check(d + "/fifo")
	wantRefused(t, "fifo", err, "neither")
	if os.Getuid() != 0 {
		if err := os.Chmod(d, 0); err != nil {
			t.Fatal(err)
		}
		_, _, err = r.Check(d + "/gh")
		wantRefused(t, "closed", err, "permission")
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzSource(f *testing.F) {
	for _, s := range []string{"/etc/passwd", "/proc/self/root/etc", "/usr/../etc", "//dev/fd/0", "/tmp/./", "/var/run/x", "/root/"} {
		f.Add(s)
	}
	r := SourceRules{Home: "/root", UID: os.Getuid(), Env: os.Getenv, OwnDirs: []string{os.TempDir() + "/kern-sbx-0"}}
	f.Fuzz(func(t *testing.T, s string) {
		p, _, err := r.Check(s)
		if err != nil {
			wantRefused(t, s, err, "")
			return
		}
		if real, err := filepath.EvalSymlinks(s); err != nil || real != p {
			t.Fatalf("%q: %q, and by the library %q, %v", s, p, real, err)
		}
		for _, bad := range []string{"/proc", "/sys", "/dev", "/boot", "/run"} {
			if within(p, bad) {
				t.Fatalf("%q passed as %q", s, p)
			}
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	dir := b.TempDir()
	r := SourceRules{Home: "/root", UID: os.Getuid(), Env: os.Getenv}
	for b.Loop() {
		if _, _, err := r.Check(dir); err != nil {
			b.Fatal(err)
		}
	}
}
