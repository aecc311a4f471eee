package runner

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

func TestInRoot(t *testing.T) {
	root := t.TempDir()
	for _, d := range []string{"run", "mnt", "var", "a/b"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{
		"var/run": "/run", "var/mnt": "../mnt", "up": "../../../../etc", "loop": "loop", "a/b/c": "/var/run/x",
		"self": "/proc/self/root", // what it would be on the host must not matter
	} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for target, want := range map[string]string{
		"/run": "/run", "/var/run": "/run", "/var/run/x/y": "/run/x/y", "/var/mnt/z": "/mnt/z", "/up": "/etc",
		"/loop": "/loop", "/a/b/c": "/run/x", "/not/there": "/not/there", "/self/etc": "/proc/self/root/etc",
	} {
		if got := inRoot(root, target); got != want {
			t.Errorf("inRoot(%s) = %s, want %s", target, got, want)
		}
	}
	if got := inRoot(filepath.Join(root, "absent"), "/x"); got != "/x" {
		t.Errorf("without a root the target changed: %s", got)
	}
}

func TestPlaceBelowTmpfs(t *testing.T) {
	s := &Spec{
		Tmpfs:  []validate.Tmpfs{{Target: "/tmp", Size: 1 << 20}, {Target: "/run", Size: 1 << 20}},
		Mounts: []validate.Mount{{Source: "/src/a", Target: "/tmp/a/b"}, {Source: "/src/b", Target: "/tmpfoo"}, {Source: "/src/c", Target: "/data", ReadOnly: true}},
	}
	links := map[string]string{}
	for _, p := range s.place("/ws", "/code", "") {
		if p.link != "" {
			links[p.Source] = p.link
			if filepath.Dir(p.Target) != asideDir {
				t.Errorf("%s is put at %s", p.Source, p.Target)
			}
		}
	}
	if len(links) != 2 || links["/src/a"] != "/tmp/a/b" || links["/code"] != CodeDir {
		t.Errorf("links %v: the mount below /tmp and our own below /run have to be put aside, nothing else", links)
	}
}

// TestPinSourceRefusesLinks: a link that came up after the check is not followed.
func TestPinSourceRefusesLinks(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	a, err := PinSource(filepath.Join(dir, "d"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/", filepath.Join(dir, "l")); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"l", "l/etc", "absent"} {
		if _, err := PinSource(filepath.Join(dir, p)); err == nil {
			t.Errorf("%s was pinned", p)
		}
	}
	if err := os.Remove(filepath.Join(dir, "d")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "e"), 0o755); err != nil {
		t.Fatal(err)
	}
	if b, err := PinSource(filepath.Join(dir, "e")); err != nil || a == b && b.ino == 0 {
		t.Errorf("pin %v, %v", b, err)
	}
}
