package workspace

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReplace(t *testing.T) {
	ordinary(t, func(t *testing.T) {
		from, to, outside := scratch(t), scratch(t), scratch(t)
		mkdir(t, from+"/d/e")
		write(t, from+"/d/e/f", "new")
		write(t, from+"/same", "new")
		mkdir(t, from+"/.git/hooks")
		write(t, from+"/.git/hooks/evil", "evil")
		must(t, os.Symlink(outside, from+"/link"))
		must(t, unix.Mkfifo(from+"/fifo", 0o600))
		must(t, os.Chmod(from+"/d/e", 0))
		must(t, os.Chmod(from+"/d", 0))
		write(t, to+"/same", "old")
		write(t, to+"/gone", "old")
		mkdir(t, to+"/shut/in")
		must(t, os.Chmod(to+"/shut", 0o500))
		mkdir(t, to+"/.git")
		write(t, to+"/.git/config", "kept")
		d := openDir(t, to)
		got, err := Replace(t.Context(), openDir(t, from), d, []string{".git", ".envrc"})
		must(t, err)
		if got.Special != 1 || got.Unreadable != 0 {
			t.Errorf("got %+v", got)
		}
		content(t, to+"/d/e/f", "new")
		content(t, to+"/same", "new")
		content(t, to+"/.git/config", "kept")
		absent(t, to+"/.git/hooks")
		absent(t, to+"/gone")
		absent(t, to+"/shut")
		if l, err := os.Readlink(to + "/link"); err != nil || l != outside {
			t.Errorf("got %q, %v", l, err)
		}
		entries, err := os.ReadDir(to)
		must(t, err)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), replacePrefix) {
				t.Errorf("left behind: %s", e.Name())
			}
		}
	})
}

// TestReplaceFails: what cannot be copied leaves the directory as it was.
func TestReplaceFails(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		from, to := scratch(t), scratch(t)
		must(t, unix.Mount("tmpfs", to, "tmpfs", 0, "size=1m"))
		defer unix.Unmount(to, unix.MNT_DETACH)
		write(t, to+"/old", "old")
		write(t, from+"/big", strings.Repeat("x", 2<<20))
		d := openDir(t, to)
		defer d.Close()
		if _, err := Replace(t.Context(), openDir(t, from), d, nil); err == nil {
			t.Error("no error")
		}
		content(t, to+"/old", "old")
		entries, err := os.ReadDir(to)
		must(t, err)
		if len(entries) != 1 {
			t.Errorf("left %v", entries)
		}
	})
}
