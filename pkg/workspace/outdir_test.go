package workspace

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

func TestOutputDir(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		dir := scratch(t)
		mkdir(t, dir+"/sub/there")
		t.Chdir(dir + "/sub")
		for _, path := range []string{"there", "there/", "new", "new2/", "./there/../new3", dir + "/abs", "../up"} {
			d, err := OpenOutputDir(path)
			must(t, err)
			must(t, d.WriteFile("a", text("first and longer")))
			must(t, d.WriteFile("a", text("second")))
			must(t, d.WriteFile("b", text("")))
			content(t, d.Path("a"), "second")
			content(t, d.Path("b"), "")
			for _, name := range []string{"", ".", "..", "x/y", "../x", "/etc/x", "x\x00"} {
				if d.WriteFile(name, text("x")) == nil {
					t.Errorf("a file called %q", name)
				}
			}
			d.Close()
			d.Close()
			entries, err := os.ReadDir(path)
			must(t, err)
			if len(entries) != 2 {
				t.Errorf("%s: %v", path, entries)
			}
		}
	})
}

// TestOutputDirUnused: one that nothing came into is as it was before.
func TestOutputDirUnused(t *testing.T) {
	dir := scratch(t)
	mkdir(t, dir+"/there")
	for _, name := range []string{"there", "new", "slash/"} {
		d, err := OpenOutputDir(dir + "/" + name)
		must(t, err)
		d.Close()
	}
	absent(t, dir+"/new")
	absent(t, dir+"/slash")
	if _, err := os.Stat(dir + "/there"); err != nil {
		t.Error(err)
	}
	// Somebody else put a file into it.
	d, err := OpenOutputDir(dir + "/shared")
	must(t, err)
	write(t, dir+"/shared/f", "x")
	d.Close()
	content(t, dir+"/shared/f", "x")
}

func TestOutputDirRefusals(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		dir := scratch(t)
		mkdir(t, dir+"/real/in")
		write(t, dir+"/file", "")
		must(t, os.Symlink("real", dir+"/link"))
		must(t, os.Symlink("nowhere", dir+"/dangling"))
		for path, word := range map[string]string{
			"":                        "empty path",
			"a\x00b":                  "zero byte",
			dir + "/link":             "symbolic link",
			dir + "/link/":            "symbolic link",
			dir + "/link/in":          "symbolic link",
			dir + "/link/new":         "symbolic link",
			dir + "/dangling":         "symbolic link",
			dir + "/file":             "not a directory",
			dir + "/file/x":           "not a directory",
			dir + "/none/x":           "there is no directory",
			dir + "/none/..":          "there is no directory",
			dir + "/esc\x1b[31m/x":    "there is no directory",
			"/proc/self/root/nothing": "symbolic link",
		} {
			d, err := OpenOutputDir(path)
			if err == nil {
				d.Close()
				t.Errorf("%q was accepted", path)
				continue
			}
			var v *validate.Error
			if !errors.As(err, &v) || v.Value != path || !strings.Contains(err.Error(), word) || strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("%q: %v, want %q", path, err, word)
			}
		}
		absent(t, dir+"/nowhere")
		absent(t, dir+"/real/new")
	})
}

// TestOutputDirPlanted: what a box put there while it ran leads nowhere.
func TestOutputDirPlanted(t *testing.T) {
	dir := scratch(t)
	mkdir(t, dir+"/ws/out")
	mkdir(t, dir+"/host")
	write(t, dir+"/host/f", "precious")
	write(t, dir+"/host/1-1.txt", "precious")
	d, err := OpenOutputDir(dir + "/ws/out")
	must(t, err)
	defer d.Close()
	temp := ".1-2.txt.kern-sbx-" + strconv.Itoa(os.Getpid())
	must(t, os.Symlink(dir+"/host/f", dir+"/ws/out/1-1.txt"))
	must(t, os.Symlink(dir+"/host/f", dir+"/ws/out/"+temp))
	must(t, os.Link(dir+"/host/f", dir+"/ws/out/1-3.txt"))
	must(t, unix.Mkfifo(dir+"/ws/out/1-4.txt", 0o600))
	mkdir(t, dir+"/ws/out/1-5.txt/in")
	// And the directory itself becomes a link to one of the host.
	must(t, os.Rename(dir+"/ws/out", dir+"/ws/moved"))
	must(t, os.Symlink(dir+"/host", dir+"/ws/out"))
	for _, name := range []string{"1-1.txt", "1-2.txt", "1-3.txt", "1-4.txt"} {
		must(t, d.WriteFile(name, text("result")))
		content(t, dir+"/ws/moved/"+name, "result")
	}
	if err := d.WriteFile("1-5.txt", text("result")); err == nil || !strings.Contains(err.Error(), "1-5.txt") {
		t.Errorf("over a directory: %v", err)
	}
	content(t, dir+"/host/f", "precious")
	content(t, dir+"/host/1-1.txt", "precious")
	entries, err := os.ReadDir(dir + "/ws/moved")
	must(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			t.Errorf("left behind: %s", e.Name())
		}
	}
}

func TestOutputDirErrors(t *testing.T) {
	dir := scratch(t)
	d, err := OpenOutputDir(dir + "/out")
	must(t, err)
	defer d.Close()
	must(t, d.WriteFile("f", text("before")))
	broken := errors.New("broken")
	if err := d.WriteFile("f", func(w io.Writer) error { io.WriteString(w, "half"); return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	content(t, dir+"/out/f", "before")
	must(t, os.RemoveAll(dir+"/out"))
	if err := d.WriteFile("f", text("x")); !errors.Is(err, unix.ENOENT) {
		t.Errorf("into a deleted directory: %v", err)
	}
}
