package workspace

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func saveTo(t testing.TB, dir, path string, o SaveOptions) (Saved, error) {
	t.Helper()
	to, err := CreateArchive(path)
	must(t, err)
	defer to.Close()
	s, err := SaveSnapshot(t.Context(), openDir(t, dir), to, o)
	return s, errors.Join(err, to.Close())
}

func save(t testing.TB, dir, path string) Saved {
	t.Helper()
	s, err := saveTo(t, dir, path, SaveOptions{Limits: DefaultArchiveLimits(), Record: ArchiveRecord{Image: "a:1", Machine: "m"}})
	must(t, err)
	return s
}

func restoreFrom(t testing.TB, path, dir string, o RestoreOptions) (Restored, error) {
	t.Helper()
	f, err := OpenArchive(path)
	must(t, err)
	defer f.Close()
	o.Limits = DefaultArchiveLimits()
	return RestoreSnapshot(t.Context(), f, dir, o)
}

// describe tells everything about a tree that a snapshot keeps.
func describe(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		fmt.Fprintf(&b, "%q %v %d", rel, st.Mode(), st.ModTime().Unix())
		if st.Mode().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %x", sha256.Sum256(text))
		}
		b.WriteByte('\n')
		return nil
	}))
	return b.String()
}

// oddTree has what a snapshot must bring back, and nothing else.
func oddTree(t testing.TB, dir string) {
	t.Helper()
	mkdir(t, dir)
	old := time.Unix(1_000_000_000, 0)
	for name, text := range map[string]string{
		"plain": "1", "empty": "", "ü": "2", "new\nline": "3", "esc\x1b[31m": "4", "\xff\xfe": "5", "-rf": "6", " ": "7", "a.b": "8",
		"a/b": "9", "a/ü/c": "10", ".deps/mod/__init__.py": "11", ".kern-snapshot.json": "{}",
		strings.Repeat("n", 255): "12", strings.Repeat("d", 200) + "/" + strings.Repeat("e", 200) + "/f": "13", "big": random(3<<20 + 17),
	} {
		mkdir(t, filepath.Dir(filepath.Join(dir, name)))
		write(t, filepath.Join(dir, name), text)
		must(t, os.Chtimes(filepath.Join(dir, name), old, old))
	}
	mkdir(t, filepath.Join(dir, "nothing"))
	must(t, os.Chmod(filepath.Join(dir, "plain"), 0o751))
	must(t, os.Chmod(filepath.Join(dir, "empty"), 0o400))
	must(t, os.Chmod(filepath.Join(dir, "a/ü"), 0o555))
	must(t, os.Chtimes(filepath.Join(dir, "nothing"), old, old))
	f, err := os.Create(filepath.Join(dir, "sparse"))
	must(t, err)
	_, err = f.WriteAt([]byte("end"), 8<<20)
	must(t, errors.Join(err, f.Close()))
}

func TestSnapshotRoundTrip(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		top := scratch(t)
		tree, a := filepath.Join(top, "tree"), filepath.Join(top, "a.tar.gz")
		oddTree(t, tree)
		s := save(t, tree, a)
		if len(s.Skipped) != 0 || s.Files != 17 || s.Dirs != 7 || !s.Record.Deps || s.Changed != 0 {
			t.Errorf("%+v", s)
		}
		st, err := os.Stat(a)
		must(t, err)
		if st.Mode().Perm() != 0o600 || st.Size() != s.Size {
			t.Errorf("%v %d", st.Mode(), st.Size())
		}
		for _, where := range []string{"new", "empty", "full"} {
			dir := filepath.Join(top, where)
			if where != "new" {
				mkdir(t, dir)
				must(t, os.Chmod(dir, 0o710))
			}
			if where == "full" {
				write(t, filepath.Join(dir, "plain"), "old")
				write(t, filepath.Join(dir, "mine"), "old")
				before := describe(t, dir)
				_, err := restoreFrom(t, a, dir, RestoreOptions{})
				refusedFor(t, err, "give --replace")
				if describe(t, dir) != before {
					t.Error("changed by a refusal")
				}
			}
			got, err := restoreFrom(t, a, dir, RestoreOptions{Replace: where == "full"})
			must(t, err)
			if got.Files != 17 || got.Dirs != 7 || got.Record == nil || !got.Deps || got.Left != "" {
				t.Errorf("%+v", got)
			}
			if want, have := describe(t, tree), describe(t, dir); have != want {
				t.Errorf("%s:\n%s\nwant\n%s", where, have, want)
			}
			if st, err := os.Stat(dir); where != "new" && (err != nil || st.Mode().Perm() != 0o710) {
				t.Errorf("mode %v", st.Mode())
			}
			// Holes came back as holes.
			var sparse unix.Stat_t
			must(t, unix.Stat(filepath.Join(dir, "sparse"), &sparse))
			if sparse.Blocks*512 > 1<<20 {
				t.Errorf("the sparse file occupies %d bytes", sparse.Blocks*512)
			}
			// And what was restored is the same tree.
			again := filepath.Join(top, "b.tar.gz")
			save(t, dir, again)
			same(t, a, again)
		}
		holdsOnly(t, top, "a.tar.gz", "b.tar.gz", "empty", "full", "new", "tree")
	})
}

func same(t *testing.T, a, b string) {
	t.Helper()
	x, err := os.ReadFile(a)
	y, err2 := os.ReadFile(b)
	must(t, errors.Join(err, err2))
	if !bytes.Equal(x, y) {
		t.Errorf("%s and %s differ", a, b)
	}
}

// TestSnapshotReproducible: neither the order in which files were made, nor
// owners, links, fractions of seconds, or the number of processors matter.
func TestSnapshotReproducible(t *testing.T) {
	top := scratch(t)
	var first string
	for i := range 3 {
		dir := filepath.Join(top, fmt.Sprint("w", i))
		list := []string{"z", "a/1", "a/2", "a.x", "m", "a-"}
		rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		for _, n := range list {
			p := filepath.Join(dir, n)
			mkdir(t, filepath.Dir(p))
			write(t, p, n+random(2<<20))
			when := time.Unix(1_000_000_000, int64(rand.IntN(1e9)))
			must(t, os.Chtimes(p, when, when))
		}
		when := time.Unix(1_000_000_001, int64(i))
		must(t, os.Chtimes(filepath.Join(dir, "a"), when, when))
		if os.Geteuid() == 0 {
			must(t, os.Lchown(filepath.Join(dir, "m"), 1000+i, 2000+i))
		}
		a := filepath.Join(top, fmt.Sprint(i, ".tar.gz"))
		save(t, dir, a)
		if first == "" {
			first = a
		}
		same(t, first, a)
	}
	var got []string
	b, err := os.ReadFile(first)
	must(t, err)
	_, err = readBytes(b, ReadOptions{Member: func(m *ArchiveMember, _ io.Reader) error { got = append(got, m.Name); return nil }})
	must(t, err)
	if want := []string{"a", "a/1", "a/2", "a-", "a.x", "m", "z"}; !slices.Equal(got, want) {
		t.Errorf("order %q, want %q", got, want)
	}
}

func TestSnapshotSkips(t *testing.T) {
	dir := scratch(t)
	a := filepath.Join(dir, "self.tar.gz")
	write(t, filepath.Join(dir, "f"), "1")
	must(t, os.Link(filepath.Join(dir, "f"), filepath.Join(dir, "hard")))
	must(t, os.Symlink("/etc", filepath.Join(dir, "link")))
	must(t, os.Symlink("f", filepath.Join(dir, "link2")))
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	write(t, filepath.Join(dir, ".kern-env"), "SECRET=1")
	mkdir(t, filepath.Join(dir, "d"))
	write(t, filepath.Join(dir, "d/.kern-env"), "the user's")
	l, err := net.Listen("unix", filepath.Join(dir, "sock"))
	must(t, err)
	defer l.Close()
	want := ".kern-env:the SDK's file of variables fifo:FIFO link:symbolic link link2:symbolic link sock:socket"
	if os.Geteuid() == 0 && unix.Mknod(filepath.Join(dir, "dev"), unix.S_IFCHR|0o600, 0x103) == nil {
		want = strings.Replace(want, "fifo:", "dev:device fifo:", 1)
	}
	mkdir(t, filepath.Join(dir, "deep"))
	deepTree(t, filepath.Join(dir, "deep"), 2100, func(fd int) { touchAt(t, fd, "deepest", 0o644) })
	for i := range 2 {
		s := save(t, dir, a)
		var got []string
		for _, e := range s.Skipped {
			if strings.HasPrefix(string(e.Path), "deep/d/") {
				if e.Why != "name too long" {
					t.Errorf("%+v", e)
				}
				continue
			}
			got = append(got, string(e.Path)+":"+e.Why)
		}
		if i == 1 {
			want = strings.Replace(want, "sock:", "self.tar.gz:the archive itself sock:", 1)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("skipped %q, want %q", got, want)
		}
		if s.Files != 3 {
			t.Errorf("%d files", s.Files)
		}
	}
	_, err = restoreFrom(t, a, dir, RestoreOptions{Replace: true})
	refusedFor(t, err, "lies in the directory whose contents it would replace")
	to := filepath.Join(scratch(t), "r")
	_, err = restoreFrom(t, a, to, RestoreOptions{})
	must(t, err)
	content(t, filepath.Join(to, "hard"), "1")
	content(t, filepath.Join(to, "d/.kern-env"), "the user's")
}

func TestSnapshotBounded(t *testing.T) {
	dir := scratch(t)
	deepTree(t, dir, 500, func(fd int) { touchAt(t, fd, "f", 0o644) })
	root := openDir(t, dir)
	a := filepath.Join(scratch(t), "a.tar.gz")
	r := filepath.Join(scratch(t), "r")
	atMost(t, 24, func() {
		to, err := CreateArchive(a)
		must(t, err)
		s, err := SaveSnapshot(t.Context(), root, to, SaveOptions{Limits: DefaultArchiveLimits()})
		must(t, errors.Join(err, to.Close()))
		if s.Dirs != 500 || s.Files != 1 {
			t.Errorf("%+v", s)
		}
		got, err := restoreFrom(t, a, r, RestoreOptions{})
		if err != nil || got.Dirs != 500 || got.Files != 1 {
			t.Errorf("%+v %v", got, err)
		}
	})
}

func TestSnapshotMany(t *testing.T) {
	top := bigScratch(t)
	dir := filepath.Join(top, "w")
	for i := range 100 {
		sub := filepath.Join(dir, fmt.Sprint(i))
		mkdir(t, sub)
		for j := range 100 {
			write(t, filepath.Join(sub, fmt.Sprint(j)), fmt.Sprint(i, j))
		}
	}
	s := save(t, dir, filepath.Join(top, "a.tar.gz"))
	got, err := restoreFrom(t, filepath.Join(top, "a.tar.gz"), filepath.Join(top, "r"), RestoreOptions{})
	must(t, err)
	if s.Files != 10_000 || got.Files != 10_000 || describe(t, dir) != describe(t, filepath.Join(top, "r")) {
		t.Errorf("%+v %+v", s, got)
	}
}

func TestSnapshotSaveLimits(t *testing.T) {
	top := scratch(t)
	dir, a := filepath.Join(top, "w"), filepath.Join(top, "a.tar.gz")
	mkdir(t, dir)
	write(t, filepath.Join(dir, "x"), "12345")
	write(t, filepath.Join(dir, "y"), "12345")
	write(t, a, "what was there")
	l := DefaultArchiveLimits()
	l.Bytes = 9
	_, err := saveTo(t, dir, a, SaveOptions{Limits: l})
	refusedFor(t, err, "limit of 9 B")
	l = DefaultArchiveLimits()
	l.Entries = 1
	_, err = saveTo(t, dir, a, SaveOptions{Limits: l})
	refusedFor(t, err, "more than 1 files and directories")
	// A file that says it is immense does not keep us busy.
	must(t, os.Truncate(filepath.Join(dir, "x"), 1<<42))
	_, err = saveTo(t, dir, a, SaveOptions{Limits: DefaultArchiveLimits()})
	refusedFor(t, err, "limit of 10 GiB")
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	to, err := CreateArchive(a)
	must(t, err)
	if _, err := SaveSnapshot(ctx, openDir(t, dir), to, SaveOptions{}); !errors.Is(err, why) {
		t.Error(err)
	}
	must(t, to.Close())
	content(t, a, "what was there")
	holdsOnly(t, top, "a.tar.gz", "w")

	// What we write of zeros passes our own limit on the ratio.
	must(t, os.Truncate(filepath.Join(dir, "x"), 100<<20))
	save(t, dir, a)
	_, err = restoreFrom(t, a, filepath.Join(top, "r"), RestoreOptions{})
	must(t, err)
	_, err = restoreFrom(t, a, filepath.Join(top, "r2"), RestoreOptions{Quota: 50 << 20})
	refusedFor(t, err, "raise --workspace-max")
	absent(t, filepath.Join(top, "r2"))
}

func TestSnapshotUnreadable(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root reads everything")
	}
	top := scratch(t)
	dir, a := filepath.Join(top, "w"), filepath.Join(top, "a.tar.gz")
	for i, mode := range []os.FileMode{0, 0o100, 0o200, 0o400, 0o600} {
		sub := filepath.Join(dir, fmt.Sprint(i))
		mkdir(t, filepath.Join(sub, "in"))
		write(t, filepath.Join(sub, "in/f"), "1")
		must(t, os.Chmod(sub, mode))
	}
	s := save(t, dir, a)
	if s.Files != 5 {
		t.Errorf("%+v", s)
	}
	for i, mode := range []os.FileMode{0, 0o100, 0o200, 0o400, 0o600} {
		if st, err := os.Stat(filepath.Join(dir, fmt.Sprint(i))); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%d: mode %v %v", i, st.Mode(), err)
		}
	}
	// Such directories come back, and are replaced again.
	for range 2 {
		_, err := restoreFrom(t, a, filepath.Join(top, "r"), RestoreOptions{Replace: true})
		must(t, err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "secret"), nil, 0))
	must(t, os.Chmod(filepath.Join(dir, "secret"), 0))
	_, err := saveTo(t, dir, a, SaveOptions{})
	if err == nil || !strings.Contains(err.Error(), `cannot read "secret"`) || !errors.Is(err, unix.EACCES) {
		t.Error(err)
	}
	// Where we may not write, nothing is begun.
	must(t, os.Chmod(top, 0o500))
	defer os.Chmod(top, 0o700)
	if _, err := restoreFrom(t, a, filepath.Join(top, "r"), RestoreOptions{Replace: true}); err == nil || !strings.Contains(err.Error(), "beside") {
		t.Error(err)
	}
	_, err = CreateArchive(filepath.Join(top, "b.tar.gz"))
	refusedFor(t, err, "permission denied")
}

// TestSnapshotReentered: an archive in no order comes out as well as one in order.
func TestSnapshotReentered(t *testing.T) {
	top := scratch(t)
	a := filepath.Join(top, "a.tar")
	when := time.Unix(1_000_000_000, 0)
	d := func(name string, mode int64) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode, ModTime: when}
	}
	write(t, a, string(tarOf(t, d("a", 0o500), file("a/1", "1"), d("b", 0o555), file("a/2", "2"), file("c/d/e", "3"), file("a/x/3", "3"), d("c", 0o711), file("c/d/f", "4"))))
	dir := filepath.Join(top, "r")
	_, err := restoreFrom(t, a, dir, RestoreOptions{})
	must(t, err)
	content(t, filepath.Join(dir, "a/2"), "2")
	content(t, filepath.Join(dir, "c/d/f"), "4")
	for name, mode := range map[string]os.FileMode{"a": 0o500, "b": 0o555, "c": 0o711, "c/d": 0o755} {
		st, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		if st.Mode().Perm() != mode || name != "c/d" && !st.ModTime().Equal(when) {
			t.Errorf("%s: %v %v", name, st.Mode(), st.ModTime())
		}
	}
}

func TestRestoreTargets(t *testing.T) {
	top := scratch(t)
	a := filepath.Join(top, "a.tar")
	write(t, a, string(tarOf(t, file("f", "1"))))
	mkdir(t, filepath.Join(top, "real"))
	must(t, os.Symlink("real", filepath.Join(top, "link")))
	for dir, want := range map[string]string{
		"":                             "not a directory's name",
		"/":                            "cannot be replaced",
		"/proc":                        "",
		filepath.Join(top, "link"):     "is a symbolic link",
		filepath.Join(top, "link/x"):   "is a symbolic link",
		top + "/real/../link":          "is a symbolic link",
		a:                              "is not a directory",
		filepath.Join(top, "no/such"):  "there is no directory",
		filepath.Join(top, "real\x00"): "not a directory's name",
	} {
		_, err := restoreFrom(t, a, dir, RestoreOptions{Replace: true})
		refusedFor(t, err, want)
	}
	holdsOnly(t, filepath.Join(top, "real"))
	// "." is a directory with a name as well.
	t.Chdir(filepath.Join(top, "real"))
	_, err := restoreFrom(t, a, ".", RestoreOptions{})
	must(t, err)
	content(t, filepath.Join(top, "real/f"), "1")
	t.Chdir(top)
	_, err = restoreFrom(t, a, "new/", RestoreOptions{})
	must(t, err)
	content(t, filepath.Join(top, "new/f"), "1")
	holdsOnly(t, top, "a.tar", "link", "new", "real")
}

func TestRestoreMountPoint(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		top := scratch(t)
		a, dir := filepath.Join(top, "a.tar"), filepath.Join(top, "m")
		write(t, a, string(tarOf(t, file("f", "1"))))
		mkdir(t, dir)
		must(t, unix.Mount("none", dir, "tmpfs", 0, ""))
		defer unix.Unmount(dir, unix.MNT_DETACH)
		_, err := restoreFrom(t, a, dir, RestoreOptions{})
		refusedFor(t, err, "something is mounted there")
		_, err = restoreFrom(t, a, filepath.Join(dir, "in"), RestoreOptions{})
		must(t, err)
		s := save(t, top, filepath.Join(top, "b.tar.gz"))
		if len(s.Skipped) != 1 || s.Skipped[0].Why != "mount point" {
			t.Errorf("%+v", s)
		}
	})
}

func TestCreateArchive(t *testing.T) {
	top := scratch(t)
	for path, want := range map[string]string{
		"": "not the name of a file", top: "a directory", filepath.Join(top, "no/x"): "there is no directory", top + "/": "not the name",
		filepath.Join(top, "fifo"): "not a regular file", filepath.Join(top, "link"): "is a symbolic link", filepath.Join(top, "dirlink/x"): "is a symbolic link",
	} {
		_ = unix.Mkfifo(filepath.Join(top, "fifo"), 0o600)
		_ = os.Symlink("host", filepath.Join(top, "link"))
		_ = os.Symlink(".", filepath.Join(top, "dirlink"))
		_, err := CreateArchive(path)
		refusedFor(t, err, want)
		if path != "" && want != "not the name" {
			_, err = OpenArchive(path)
			refusedFor(t, err, "")
		}
	}
	// A link that a box plants after the look is replaced, and not followed.
	host, a := filepath.Join(top, "host"), filepath.Join(top, "a.tar.gz")
	write(t, host, "host")
	to, err := CreateArchive(a)
	must(t, err)
	must(t, os.Symlink("host", a))
	_, err = SaveSnapshot(t.Context(), openDir(t, t.TempDir()), to, SaveOptions{})
	must(t, errors.Join(err, to.Close()))
	content(t, host, "host")
	if st, err := os.Lstat(a); err != nil || !st.Mode().IsRegular() {
		t.Error(st.Mode(), err)
	}
	// The mode of the one that is replaced stays.
	must(t, os.Chmod(a, 0o640))
	save(t, t.TempDir(), a)
	if st, err := os.Stat(a); err != nil || st.Mode().Perm() != 0o640 {
		t.Error(st.Mode(), err)
	}
	holdsOnly(t, top, "a.tar.gz", "dirlink", "fifo", "host", "link")
}

// TestSnapshotNoTmpfile: a file system without nameless files.
func TestSnapshotNamedTemp(t *testing.T) {
	top := scratch(t)
	dir := filepath.Join(top, "w")
	mkdir(t, dir)
	a := &ArchiveFile{path: filepath.Join(top, "a.tar.gz"), base: "a.tar.gz", mode: 0o600, temp: ".kern-sbx-save-x"}
	fd, err := openPlainDir(top)
	must(t, err)
	a.dir = fd
	f, err := os.OpenFile(filepath.Join(top, a.temp), os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o600)
	must(t, err)
	a.f = f
	_, err = SaveSnapshot(t.Context(), openDir(t, dir), a, SaveOptions{})
	must(t, errors.Join(err, a.Close()))
	holdsOnly(t, top, "a.tar.gz", "w")
}

// attack runs f in a loop until the test is over.
func attack(t *testing.T, f func()) {
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			f()
		}
	}()
	t.Cleanup(func() { stop.Store(true); <-done })
}

// TestSnapshotSwapped: directories that change places with links while they are
// saved never bring in what lies outside.
func TestSnapshotSwapped(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		top := scratch(t)
		dir, out := filepath.Join(top, "w"), filepath.Join(top, "out")
		for _, d := range []string{dir, out} {
			for i := range 20 {
				mkdir(t, filepath.Join(d, "d/e"))
				write(t, filepath.Join(d, fmt.Sprint("d/e/f", i)), filepath.Base(d))
			}
		}
		mkdir(t, filepath.Join(dir, "spare"))
		must(t, os.Symlink(filepath.Join(out, "d"), filepath.Join(dir, "spare/l")))
		must(t, os.Symlink(filepath.Join(out, "d/e/f1"), filepath.Join(dir, "spare/lf")))
		write(t, filepath.Join(dir, "file"), "w")
		attack(t, func() {
			_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "d"), unix.AT_FDCWD, filepath.Join(dir, "spare/l"), unix.RENAME_EXCHANGE)
			_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "file"), unix.AT_FDCWD, filepath.Join(dir, "spare/lf"), unix.RENAME_EXCHANGE)
		})
		good := 0
		for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end); {
			a := filepath.Join(top, "a.tar.gz")
			if _, err := saveTo(t, dir, a, SaveOptions{}); err != nil {
				continue // it may say that something was moved
			}
			good++
			b, err := os.ReadFile(a)
			must(t, err)
			_, err = readBytes(b, ReadOptions{Member: func(m *ArchiveMember, r io.Reader) error {
				text, err := io.ReadAll(r)
				if string(text) == "out" {
					t.Errorf("%s holds what lies outside", m.Name)
				}
				return err
			}})
			must(t, err)
		}
		if good == 0 {
			t.Error("nothing was ever saved")
		}
	})
}

// TestRestoreSwapped: directories of what is being restored, and the target
// itself, that change places with links never lead it outside.
func TestRestoreSwapped(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		top := scratch(t)
		dir, out, a := filepath.Join(top, "p/w"), filepath.Join(top, "out"), filepath.Join(top, "a.tar")
		var list []tar.Header
		for i := range 200 {
			list = append(list, file(fmt.Sprintf("d/e/f%03d", i), "new"))
		}
		write(t, a, string(tarOf(t, list...)))
		mkdir(t, dir)
		mkdir(t, filepath.Join(out, "e"))
		write(t, filepath.Join(out, "e/f001"), "host")
		link := filepath.Join(top, "p/link")
		must(t, os.Symlink(out, link))
		attack(t, func() {
			found, _ := filepath.Glob(filepath.Join(top, "p", restorePrefix+"*/new"))
			for _, d := range append(found, dir) {
				_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(d, "d"), unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
				_ = unix.Renameat2(unix.AT_FDCWD, d, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
				_ = unix.Renameat2(unix.AT_FDCWD, d, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		})
		before := describe(t, out)
		for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end); {
			_, _ = restoreFrom(t, a, dir, RestoreOptions{Replace: true})
			if got := describe(t, out); got != before {
				t.Fatalf("outside there is\n%s\nand was\n%s", got, before)
			}
		}
	})
}

const killEnv = "WORKSPACE_TEST_SNAPSHOT"

// TestSnapshotKilled kills a save and a restore at any moment: the file and the
// directory are the old ones or the new ones.
func TestSnapshotKilled(t *testing.T) {
	if args := strings.Split(os.Getenv(killEnv), "\n"); len(args) == 3 {
		if args[0] == "save" {
			save(t, args[1], args[2])
			return
		}
		_, err := restoreFrom(t, args[1], args[2], RestoreOptions{Replace: true})
		must(t, err)
		return
	}
	top := scratch(t)
	one, two := filepath.Join(top, "one"), filepath.Join(top, "two")
	for i := range 400 {
		mkdir(t, filepath.Join(one, fmt.Sprint(i%20)))
		mkdir(t, filepath.Join(two, fmt.Sprint(i%20)))
		write(t, filepath.Join(one, fmt.Sprint(i%20, "/", i)), "one"+random(10_000))
		write(t, filepath.Join(two, fmt.Sprint(i%20, "/", i)), "two"+random(10_000))
	}
	a1, a2 := filepath.Join(top, "1.tar.gz"), filepath.Join(top, "2.tar.gz")
	save(t, one, a1)
	save(t, two, a2)
	states := map[string]string{describe(t, one): "one", describe(t, two): "two"}
	child := func(args ...string) *exec.Cmd {
		c := exec.Command("/proc/self/exe", "-test.run=^TestSnapshotKilled$")
		c.Env = append(os.Environ(), killEnv+"="+strings.Join(args, "\n"))
		return c
	}
	run := func(after time.Duration, args ...string) {
		c := child(args...)
		must(t, c.Start())
		time.Sleep(after)
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	// How long it takes when nobody kills it, so that kills fall before and after
	// its end.
	whole := func(args ...string) time.Duration {
		start := time.Now()
		if out, err := child(args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return time.Since(start)
	}
	target, place := filepath.Join(top, "t.tar.gz"), filepath.Join(top, "place/w")
	save(t, one, target)
	mkdir(t, filepath.Dir(place))
	_, err := restoreFrom(t, a1, place, RestoreOptions{})
	must(t, err)
	saving, restoring := whole("save", one, target), whole("restore", a1, place)
	seen := map[string]int{}
	x1, err := os.ReadFile(a1)
	must(t, err)
	x2, err := os.ReadFile(a2)
	must(t, err)
	const rounds = 30
	for i := range rounds {
		after := saving * time.Duration(i) * 3 / (2 * rounds)
		from, arch := two, a2
		if i%2 == 1 {
			from, arch = one, a1
		}
		run(after, "save", from, target)
		switch b, err := os.ReadFile(target); {
		case err == nil && bytes.Equal(b, x1):
			seen["file one"]++
		case err == nil && bytes.Equal(b, x2):
			seen["file two"]++
		default:
			t.Fatalf("after %v the archive is neither (%d bytes, %v)", after, len(b), err)
		}
		after = restoring * time.Duration(i) * 3 / (2 * rounds)
		run(after, "restore", arch, place)
		state, ok := states[describe(t, place)]
		if !ok {
			t.Fatalf("after %v the directory is a mix", after)
		}
		seen[state]++
	}
	t.Log(seen)
	// What a kill left is gone with the next one.
	_, err = restoreFrom(t, a1, place, RestoreOptions{Replace: true})
	must(t, err)
	holdsOnly(t, filepath.Dir(place), "w")
	holdsOnly(t, top, "1.tar.gz", "2.tar.gz", "one", "place", "t.tar.gz", "two")
}

func TestSweepRestores(t *testing.T) {
	top := scratch(t)
	name := func(i int) string { return filepath.Join(top, fmt.Sprintf("%s%016d", restorePrefix, i)) }
	for i := range 4 {
		mkdir(t, filepath.Join(name(i), "new/x"))
		must(t, os.Chmod(name(i), 0o700))
	}
	must(t, os.Chmod(name(1), 0o755)) // not as we make them
	must(t, os.Rename(name(2), name(2)+"0"))
	held := openDir(t, name(3))
	must(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	parent := openDir(t, top)
	must(t, os.Chmod(top, 0o777))
	sweepRestores(parent)
	if _, err := os.Stat(name(0)); err != nil {
		t.Error("swept where others could have given the name:", err)
	}
	must(t, os.Chmod(top, 0o755))
	sweepRestores(parent)
	holdsOnly(t, top, filepath.Base(name(1)), filepath.Base(name(2))+"0", filepath.Base(name(3)))
}

// TestSnapshotSDK: kern's SDK restores ours, and we its.
func TestSnapshotSDK(t *testing.T) {
	sdk, kern := os.Getenv("KERN_SBX_TEST_SDK"), os.Getenv("KERN_BIN")
	if sdk == "" || kern == "" {
		t.Skip("set KERN_SBX_TEST_SDK to a directory with kern_sandbox, and KERN_BIN")
	}
	top := scratch(t)
	tree, there, back := filepath.Join(top, "tree"), filepath.Join(top, "there"), filepath.Join(top, "back")
	for name, text := range map[string]string{
		"f": "1", "a/ü/c": "2", "new\nline": "3", ".deps/m.py": "4", "\xff": "5", "x": random(3 << 20),
		strings.Repeat("d", 120) + "/" + strings.Repeat("e", 90): "6",
	} {
		mkdir(t, filepath.Dir(filepath.Join(tree, name)))
		write(t, filepath.Join(tree, name), text)
		must(t, os.Chmod(filepath.Join(tree, name), 0o600)) // the SDK keeps the owner's bits
	}
	mkdir(t, there)
	save(t, tree, filepath.Join(top, "ours.tar.gz"))
	c := exec.Command("python3", "-c", `
import sys, warnings
sys.path.insert(0, sys.argv[1])
from kern_sandbox import Sandbox
with Sandbox(workspace=sys.argv[2], image="b:1") as s, warnings.catch_warnings(record=True) as w:
    warnings.simplefilter("always")
    s.restore(sys.argv[3])
    print([str(x.message) for x in w])
    s.snapshot(sys.argv[4])
`, sdk, there, filepath.Join(top, "ours.tar.gz"), filepath.Join(top, "theirs.tar.gz"))
	c.Env = append(os.Environ(), "KERN_BIN="+kern)
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "'a:1' on 'm'") {
		t.Fatalf("%v: %s", err, out)
	}
	got, err := restoreFrom(t, filepath.Join(top, "theirs.tar.gz"), back, RestoreOptions{})
	must(t, err)
	if got.Record == nil || got.Record.Image != "b:1" || !got.Record.Deps {
		t.Errorf("%+v", got.Record)
	}
	want := describe(t, tree)
	if describe(t, there) != want || describe(t, back) != want {
		t.Errorf("there\n%s\nback\n%s\nwant\n%s", describe(t, there), describe(t, back), want)
	}
	absent(t, filepath.Join(there, recordName))
}
