package images

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pyc is the least that is taken for bytecode.
var pyc = "\xa7\r\r\n\x03\x00\x00\x00hashhashcode"

func framed(files ...string) string {
	s := ""
	for i := 0; i < len(files); i += 2 {
		s += fmt.Sprintf("%d %d\n%s%s", len(files[i]), len(files[i+1]), files[i], files[i+1])
	}
	return s + "end\n"
}

func TestUnpack(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	for _, beside := range []bool{false, true} {
		dir := t.TempDir()
		n, err := Unpack(strings.NewReader(framed("usr/lib/python3/os.pyc", pyc, "usr/lib/python3/json/x y.cpython-311.pyc", pyc)), dir, beside)
		if err != nil || n != 2 {
			t.Fatal(n, err)
		}
		at := filepath.Join(dir, "usr/lib/python3/json")
		if beside {
			at += "/__pycache__"
		}
		b, err := os.ReadFile(at + "/x y.cpython-311.pyc")
		if err != nil || string(b) != pyc {
			t.Errorf("%q %v", b, err)
		}
		err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			i, _ := os.Lstat(p)
			if p != dir && i.Mode() != 0o644 && i.Mode() != fs.ModeDir|0o755 {
				t.Errorf("%s: %v", p, i.Mode())
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestUnpackDistrusts(t *testing.T) {
	deep := strings.Repeat("d/", 50)
	for name, stream := range map[string]string{
		"empty":              "",
		"no end":             strings.TrimSuffix(framed("a.pyc", pyc), "end\n"),
		"cut":                framed("a.pyc", pyc)[:20],
		"more after the end": framed("a.pyc", pyc) + "x",
		"absolute":           framed("/etc/a.pyc", pyc),
		"above":              framed("../a.pyc", pyc),
		"above, inside":      framed("a/../../../a.pyc", pyc),
		"dot":                framed("./a.pyc", pyc),
		"two slashes":        framed("a//b.pyc", pyc),
		"not bytecode":       framed("a.so", pyc),
		"a hidden place":     framed("a/__pycache__/b.pyc", pyc),
		"line break":         framed("a\n.pyc", pyc),
		"escape":             framed("a\x1b[2J.pyc", pyc),
		"zero":               framed("a\x00.pyc", pyc),
		"deep":               framed(deep+"a.pyc", pyc),
		"long part":          framed(strings.Repeat("a", 300)+".pyc", pyc),
		"twice":              framed("a.pyc", pyc, "a.pyc", pyc),
		"file as directory":  framed("a.pyc", pyc, "a.pyc/b.pyc", pyc),
		"by time":            framed("a.pyc", "\xa7\r\r\n\x00\x00\x00\x00timesizecode"),
		"unchecked hash":     framed("a.pyc", "\xa7\r\r\n\x01\x00\x00\x00hashhashcode"),
		"source":             framed("a.pyc", "import os # and so on"),
		"too short":          framed("a.pyc", "\xa7\r\r\n\x03\x00\x00\x00"),
		"negative":           "5 -1\na.pycend\n",
		"no name":            fmt.Sprintf("0 %d\n%send\n", len(pyc), pyc),
		"a long name":        fmt.Sprintf("99999999 %d\n", len(pyc)),
		"huge":               "5 999999999999\na.pyc",
		"overflow":           "5 99999999999999999999\na.pyc",
		"signs":              "+5 +20\na.pyc" + pyc + "end\n",
		"blanks":             "5  20\na.pyc" + pyc + "end\n",
		"a line for ever":    strings.Repeat("1", 1<<20),
	} {
		parent := t.TempDir()
		dir := filepath.Join(parent, "d")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if n, err := Unpack(strings.NewReader(stream), dir, false); err == nil {
			t.Errorf("%s: %d files were taken", name, n)
		} else if strings.ContainsAny(err.Error(), "\x1b\n") {
			t.Errorf("%s: not fit to be shown: %q", name, err)
		}
		if left, _ := os.ReadDir(parent); len(left) != 1 {
			t.Errorf("%s: something was written beside", name)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add([]byte(framed("usr/a.pyc", pyc)))
	f.Add([]byte(framed("../a.pyc", pyc)))
	f.Fuzz(func(t *testing.T, b []byte) {
		parent := t.TempDir()
		dir := filepath.Join(parent, "d")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		_, _ = Unpack(bytes.NewReader(b), dir, false)
		if left, _ := os.ReadDir(parent); len(left) != 1 {
			t.Fatal("something was written beside")
		}
		_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && (!d.Type().IsRegular() || !strings.HasSuffix(p, ".pyc")) {
				t.Fatalf("%s: %v", p, d.Type())
			}
			return nil
		})
	})
}

const someID = "cache:0123456789abcdef0123456789abcdef"

func id(n int) string { return fmt.Sprintf("cache:%032x", n) }

func make1(t *testing.T, b Bytecode, id, stream string) {
	t.Helper()
	n, err := b.Begin(id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Finish(strings.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
}

func TestBytecode(t *testing.T) {
	b := OpenBytecode(t.TempDir())
	if tree, wanted := b.Adopt(someID); tree != "" || !wanted {
		t.Errorf("nothing there: %q %v", tree, wanted)
	}
	for _, bad := range []string{"", "cache:", "cache:../../../../../../etc/passwd/xxxx", "dir:1:2", "cache:0123456789ABCDEF0123456789abcdef"} {
		if tree, wanted := b.Adopt(bad); tree != "" || wanted {
			t.Errorf("%q is adopted: %q %v", bad, tree, wanted)
		}
		if _, err := b.Begin(bad); err == nil {
			t.Errorf("%q is built", bad)
		}
	}
	n, err := b.Begin(someID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Begin(id(2)); !errors.Is(err, ErrBusy) {
		t.Errorf("two at a time: %v", err)
	}
	// Unfinished is not there.
	if tree, _ := b.Adopt(someID); tree != "" {
		t.Error("adopted before it is complete")
	}
	if files, err := n.Finish(strings.NewReader(framed("a.pyc", pyc))); err != nil || files != 1 {
		t.Fatal(files, err)
	}
	tree, wanted := b.Adopt(someID)
	if tree == "" || wanted {
		t.Fatalf("%q %v", tree, wanted)
	}
	if got, err := os.ReadFile(tree + "/a.pyc"); err != nil || string(got) != pyc {
		t.Errorf("%q %v", got, err)
	}
	// An image with its own bytecode: nothing to mount, and nothing to do.
	make1(t, b, id(1), "end\n")
	if tree, wanted := b.Adopt(id(1)); tree != "" || wanted {
		t.Errorf("%q %v", tree, wanted)
	}
	// What is not whole is not published, and not tried again at once.
	if n, err = b.Begin(id(2)); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Finish(strings.NewReader("5 20\na.pyc")); err == nil {
		t.Error("half of it was published")
	}
	if tree, wanted := b.Adopt(id(2)); tree != "" || wanted {
		t.Errorf("after a failure: %q %v", tree, wanted)
	}
	old := time.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(b.entry(id(2))+failedSuffix, old, old); err != nil {
		t.Fatal(err)
	}
	if _, wanted := b.Adopt(id(2)); !wanted {
		t.Error("not tried again a day later")
	}
	make1(t, b, id(2), framed("a.pyc", pyc))
	if tree, _ := b.Adopt(id(2)); tree == "" {
		t.Error("made the second time, and not there")
	}
	b.Forget(id(2))
	if _, wanted := b.Adopt(id(2)); !wanted {
		t.Error("forgotten, and not to be made again")
	}
}

// TestBytecodeIsOurs: what another could have prepared or can change is not
// mounted.
func TestBytecodeIsOurs(t *testing.T) {
	for _, part := range []string{"", "ID", "ID/tree", "ID/complete"} {
		for _, how := range []string{"open", "link", "gone", "other kind"} {
			b := OpenBytecode(t.TempDir())
			make1(t, b, someID, framed("a.pyc", pyc))
			p := filepath.Join(b.dir, strings.Replace(part, "ID", strings.TrimPrefix(someID, "cache:"), 1))
			var err error
			switch how {
			case "open":
				err = os.Chmod(p, 0o777)
			case "link":
				if err = os.Rename(p, p+"x"); err == nil {
					err = os.Symlink(p+"x", p)
				}
			case "gone":
				err = os.RemoveAll(p)
			case "other kind":
				if err = os.RemoveAll(p); err == nil {
					err = unix.Mkfifo(p, 0o600)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			if tree, _ := b.Adopt(someID); tree != "" {
				t.Errorf("%s %s: adopted", part, how)
			}
			if part == "" && how != "gone" {
				if n, err := b.Begin(someID); err == nil {
					n.Fail()
					t.Errorf("%s: built in it", how)
				}
			}
		}
	}
	if os.Geteuid() == 0 {
		b := OpenBytecode(t.TempDir())
		make1(t, b, someID, framed("a.pyc", pyc))
		if err := os.Lchown(b.entry(someID), 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if tree, _ := b.Adopt(someID); tree != "" {
			t.Error("another user's was adopted")
		}
	}
}

func TestBytecodeSweep(t *testing.T) {
	b := OpenBytecode(t.TempDir())
	for i := range 12 {
		make1(t, b, id(i), framed("a.pyc", pyc))
		at := time.Now().Add(-time.Duration(48-i) * time.Hour)
		if err := os.Chtimes(filepath.Join(b.entry(id(i)), wholeFile), at, at); err != nil {
			t.Fatal(err)
		}
	}
	// What killed builds and others leave.
	for _, d := range []string{tempBytecode + "0123", "junk"} {
		if err := os.MkdirAll(filepath.Join(b.dir, d, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	make1(t, b, id(12), framed("a.pyc", pyc))
	var have []string
	for i := range 13 {
		if tree, _ := b.Adopt(id(i)); tree != "" {
			have = append(have, fmt.Sprint(i))
		}
	}
	if got := strings.Join(have, " "); got != "5 6 7 8 9 10 11 12" {
		t.Errorf("kept: %s", got)
	}
	for _, d := range []string{tempBytecode + "0123", "junk"} {
		if _, err := os.Lstat(filepath.Join(b.dir, d)); err == nil {
			t.Errorf("%s is still there", d)
		}
	}
}
