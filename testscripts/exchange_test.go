package testscripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestExchange swaps a directory that may be mounted with a link to one that may
// not, as fast as it can, while boxes mount it: by the check of the path alone
// the secret would come through in about half of the runs.
func TestExchange(t *testing.T) {
	sh := build(t)
	home := t.TempDir()
	for name, text := range map[string]string{"p/a/f": "allowed", "q/a/f": "allowed", ".ssh/f": "secret", "s/.ssh/f": "secret", "run/x": ""} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(home, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home, name), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// One swap of the last component, and one of a directory above it.
	if err := os.Symlink(filepath.Join(home, ".ssh"), filepath.Join(home, "p", "l")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(home, "s", ".ssh", "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(home, "s", ".ssh", "f"), filepath.Join(home, "s", ".ssh", "a", "f")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(home, "s", ".ssh"), filepath.Join(home, "link")); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var swaps sync.WaitGroup
	for _, pair := range [][2]string{{"p/a", "p/l"}, {"q", "link"}} {
		swaps.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					unix.Renameat2(unix.AT_FDCWD, filepath.Join(home, pair[0]), unix.AT_FDCWD, filepath.Join(home, pair[1]), unix.RENAME_EXCHANGE)
				}
			}
		})
	}
	defer swaps.Wait()
	defer close(stop)
	seen := map[string]int{}
	for i := range 60 {
		source := []string{"p/a", "q/a"}[i%2]
		c := exec.Command(filepath.Join(sh.dir, "bin", "kern-sbx"), "run", "-q", "--image", "host", "-v", filepath.Join(home, source)+":/x:ro", "--", "cat", "/x/f")
		c.Env = []string{"HOME=" + home, "XDG_RUNTIME_DIR=" + filepath.Join(home, "run"), "PATH=" + scriptPath(sh.dir), "KERN_BIN=" + filepath.Join(sh.dir, "kern", "kern")}
		out, _ := c.CombinedOutput()
		switch text := string(out); {
		case strings.Contains(text, "secret"):
			t.Fatalf("%s: the secret came through:\n%s", source, text)
		case text == "allowed\n":
			seen["mounted"]++
		case c.ProcessState.ExitCode() == 125:
			seen["refused"]++
		default:
			t.Errorf("%s: exit %d: %s", source, c.ProcessState.ExitCode(), text)
		}
	}
	t.Logf("%v", seen)
	if seen["mounted"] == 0 || seen["refused"] == 0 {
		t.Logf("the swap was not seen from both sides: %v", seen)
	}
}
