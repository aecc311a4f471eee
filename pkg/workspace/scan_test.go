package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// changed runs f between two scans of dir, and gives what differs, one text each.
func changed(t *testing.T, dir string, ignore []string, f func()) []string {
	t.Helper()
	d := openDir(t, dir)
	before, err := ScanDir(t.Context(), d, ScanOptions{Ignore: ignore})
	must(t, err)
	time.Sleep(time.Until(before.Settles()))
	f()
	after, err := ScanDir(t.Context(), d, ScanOptions{Ignore: ignore, Before: before})
	must(t, err)
	list, more := Changes(before, after, 1000)
	if more != 0 {
		t.Errorf("%d more", more)
	}
	return texts(list)
}

func texts(list []Change) []string {
	var all []string
	for _, c := range list {
		all = append(all, fmt.Sprintf("%s %s %d", c.Change, c.Path, c.Size))
	}
	return all
}

func TestChanges(t *testing.T) {
	tests := []struct {
		name   string
		before func(dir string)
		run    func(t *testing.T, dir string)
		ignore []string
		want   []string
	}{
		{"nothing", nil, func(*testing.T, string) {}, nil, nil},
		{"created", nil, func(t *testing.T, d string) { write(t, d+"/n", "12345") }, nil, []string{"created n 5"}},
		{"modified, longer", nil, func(t *testing.T, d string) { write(t, d+"/a", "longer") }, nil, []string{"modified a 6"}},
		{"same size", nil, func(t *testing.T, d string) { write(t, d+"/a", "B") }, nil, []string{"modified a 1"}},
		{"same size, the old time put back", nil, func(t *testing.T, d string) {
			st, err := os.Stat(d + "/a")
			must(t, err)
			write(t, d+"/a", "B")
			must(t, os.Chtimes(d+"/a", st.ModTime(), st.ModTime()))
		}, nil, []string{"modified a 1"}},
		{"another inode with the same looks", nil, func(t *testing.T, d string) {
			st, err := os.Stat(d + "/a")
			must(t, err)
			write(t, d+"/b", "B")
			must(t, os.Chtimes(d+"/b", st.ModTime(), st.ModTime()))
			must(t, os.Rename(d+"/b", d+"/a"))
		}, nil, []string{"modified a 1"}},
		{"deleted", nil, func(t *testing.T, d string) { must(t, os.Remove(d+"/sub/b")) }, nil, []string{"deleted sub/b 2"}},
		{"renamed", nil, func(t *testing.T, d string) { must(t, os.Rename(d+"/a", d+"/z")) }, nil, []string{"deleted a 1", "created z 1"}},
		{"a directory renamed", nil, func(t *testing.T, d string) { must(t, os.Rename(d+"/sub", d+"/new")) }, nil, []string{"created new/b 2", "deleted sub/b 2"}},
		{"written through one of two names", func(d string) { _ = os.Link(d+"/a", d+"/sub/l") }, func(t *testing.T, d string) {
			f, err := os.OpenFile(d+"/a", os.O_WRONLY, 0)
			must(t, err)
			_, err = f.WriteString("C")
			must(t, errors.Join(err, f.Close()))
		}, nil, []string{"modified a 1", "modified sub/l 1"}},
		{"a new hard link", nil, func(t *testing.T, d string) { must(t, os.Link(d+"/sub/b", d+"/l")) }, nil, []string{"created l 2", "modified sub/b 2"}},
		{"a file becomes a directory", nil, func(t *testing.T, d string) {
			must(t, os.Remove(d+"/a"))
			mkdir(t, d+"/a")
			write(t, d+"/a/x", "x")
		}, nil, []string{"created a/x 1", "deleted a 1"}},
		{"a directory becomes a link to elsewhere", nil, func(t *testing.T, d string) {
			must(t, os.RemoveAll(d+"/sub"))
			must(t, os.Symlink("/etc", d+"/sub"))
		}, nil, []string{"deleted sub/b 2"}},
		{"not regular", nil, func(t *testing.T, d string) {
			must(t, unix.Mkfifo(d+"/fifo", 0o600))
			must(t, unix.Mknod(d+"/sock", unix.S_IFSOCK|0o600, 0))
			must(t, os.Symlink("a", d+"/link"))
			mkdir(t, d+"/empty")
		}, nil, nil},
		{".deps", nil, func(t *testing.T, d string) {
			mkdir(t, d+"/.deps/p")
			write(t, d+"/.deps/p/f", "x")
			mkdir(t, d+"/sub/.deps")
			write(t, d+"/sub/.deps/hidden", "x")
		}, nil, []string{"created sub/.deps/hidden 1"}},
		{"ignored", nil, func(t *testing.T, d string) {
			mkdir(t, d+"/x/__pycache__/y")
			write(t, d+"/x/__pycache__/y/f", "x")
			write(t, d+"/x/a.log", "x")
			write(t, d+"/x/b.txt", "x")
			write(t, d+"/b.txt", "x")
		}, []string{"__pycache__/", "*.log", "x/b.*"}, []string{"created b.txt 1"}},
		{"any bytes", nil, func(t *testing.T, d string) { write(t, d+"/\xff\n\x1b[2J", "x") }, nil, []string{"created \xff\n\x1b[2J 1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bothWays(t, func(t *testing.T) {
				dir := scratch(t)
				write(t, dir+"/a", "A")
				mkdir(t, dir+"/sub")
				write(t, dir+"/sub/b", "bb")
				if tt.before != nil {
					tt.before(dir)
				}
				got := changed(t, dir, tt.ignore, func() { tt.run(t, dir) })
				if !slices.Equal(got, tt.want) {
					t.Errorf("got %q, want %q", got, tt.want)
				}
			})
		})
	}
}

func TestChangesFromEmpty(t *testing.T) {
	dir := scratch(t)
	mkdir(t, dir+"/a/b")
	for i := range 30 {
		write(t, dir+"/a/b/"+strconv.Itoa(i), "x")
	}
	after, err := ScanDir(t.Context(), openDir(t, dir), ScanOptions{After: true})
	must(t, err)
	list, more := Changes(nil, after, 20)
	if len(list) != 20 || more != 10 || list[0] != (Change{"a/b/0", Created, 1}) {
		t.Errorf("got %d (%v) and %d more", len(list), list[0], more)
	}
}

// ordinary runs the test body again as an ordinary user, if we are root.
func ordinary(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		body(t)
		return
	}
	exe := filepath.Join(scratchIn(t, "/tmp"), "test")
	must(t, os.Chmod(filepath.Dir(exe), 0o755))
	b, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, os.WriteFile(exe, b, 0o755))
	cmd := exec.Command(exe, "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 64321, Gid: 64321}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Fatalf("as an ordinary user: %v\n%s", err, out)
	}
}

func TestScanClosedDirectories(t *testing.T) {
	ordinary(t, func(t *testing.T) {
		bothWays(t, func(t *testing.T) {
			dir := scratch(t)
			mkdir(t, dir+"/theirs/x") // closed before the box came: stays so
			must(t, os.Chmod(dir+"/theirs", 0))
			got := changed(t, dir, nil, func() {
				mkdir(t, dir+"/a/b/c")
				write(t, dir+"/a/b/c/f", "x")
				mkdir(t, dir+"/half/in")
				write(t, dir+"/half/f", "x")
				write(t, dir+"/half/in/f", "x")
				must(t, os.Chmod(dir+"/half", 0o400))
				for _, p := range []string{"/a/b/c", "/a/b", "/a"} {
					must(t, os.Chmod(dir+p, 0))
				}
			})
			if want := []string{"created a/b/c/f 1", "created half/f 1", "created half/in/f 1"}; !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			s, err := ScanDir(t.Context(), openDir(t, dir), ScanOptions{})
			must(t, err)
			if s.Unreadable != 1 || s.FirstUnreadable != "theirs" {
				t.Errorf("unreadable: %d, %q", s.Unreadable, s.FirstUnreadable)
			}
			content(t, dir+"/a/b/c/f", "x") // readable from now on
			must(t, os.Chmod(dir, 0))
			s, err = ScanDir(t.Context(), openDirPath(t, dir), ScanOptions{After: true})
			must(t, err)
			if len(s.Restored) == 0 || s.Restored[0] != "." {
				t.Errorf("restored: %q", s.Restored)
			}
		})
	})
}

// openDirPath opens a directory without the right to read it.
func openDirPath(t *testing.T, path string) *os.File {
	t.Helper()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	f := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestScanDeep(t *testing.T) {
	dir := bigScratch(t)
	write(t, dir+"/top", "x")
	deepTree(t, dir, 20_000, func(fd int) { touchAt(t, fd, "leaf", 0o644) })
	d := openDir(t, dir)
	var s *Scan
	var err error
	begin := time.Now()
	atMost(t, 2*scanWorkers+1, func() { s, err = ScanDir(t.Context(), d, ScanOptions{After: true}) })
	must(t, err)
	if s.TooDeep != 1 || s.Len() < 2000 || time.Since(begin) > 5*time.Second {
		t.Errorf("too deep: %d, entries: %d, in %v", s.TooDeep, s.Len(), time.Since(begin))
	}
	if got := texts(first(Changes(nil, s, 10))); !slices.Equal(got, []string{"created top 1"}) {
		t.Errorf("got %q", got)
	}
}

func first[A, B any](a A, _ B) A { return a }

func TestScanMountPoint(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		dir, other := scratch(t), scratch(t)
		write(t, other+"/secret", "x")
		mkdir(t, dir+"/m")
		must(t, unix.Mount(other, dir+"/m", "", unix.MS_BIND, ""))
		defer unix.Unmount(dir+"/m", unix.MNT_DETACH)
		s, err := ScanDir(t.Context(), openDir(t, dir), ScanOptions{After: true})
		must(t, err)
		if list, _ := Changes(nil, s, 10); len(list) != 0 {
			t.Errorf("what is mounted there was listed: %v", list)
		}
	})
}

// TestScanSwapped: somebody swaps a directory for a link to the outside all the
// time. What lies there is never listed.
func TestScanSwapped(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		dir, outside := scratch(t), scratch(t)
		mkdir(t, outside+"/deep")
		write(t, outside+"/deep/secret", "x")
		write(t, outside+"/secret", "x")
		mkdir(t, dir+"/d/deep")
		must(t, os.Symlink(outside, dir+"/l"))
		stop := swap(t, dir+"/d", dir+"/l")
		d := openDir(t, dir)
		for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end); {
			s, err := ScanDir(t.Context(), d, ScanOptions{After: true})
			must(t, err)
			if list, _ := Changes(nil, s, 10); len(list) != 0 {
				t.Fatalf("listed from outside: %v", list)
			}
		}
		stop()
	})
}

// swap exchanges two entries until it is stopped.
func swap(t *testing.T, a, b string) (stop func()) {
	t.Helper()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
			}
		}
	}()
	var once sync.Once
	stop = func() { once.Do(func() { close(quit); <-done }) }
	t.Cleanup(stop)
	return stop
}

func TestScanEnds(t *testing.T) {
	dir := scratch(t)
	mkdir(t, dir+"/a/b/c/d/e/f")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errMoved)
	if _, err := ScanDir(ctx, openDir(t, dir), ScanOptions{}); !errors.Is(err, errMoved) {
		t.Errorf("got %v", err)
	}
}

func TestCheckIgnore(t *testing.T) {
	for _, p := range []string{"", "/abs", "[", "a[b", "\\"} {
		if CheckIgnore(p) == nil {
			t.Errorf("%q was accepted", p)
		}
	}
	for _, p := range []string{"__pycache__", "*.log", "a/*/b", "node_modules/", "[ab]"} {
		must(t, CheckIgnore(p))
	}
}

// wideTree makes n files in directories of per each.
func wideTree(tb testing.TB, dir string, n, per int) {
	tb.Helper()
	for i := range n {
		d := dir + "/dir-" + strconv.Itoa(i/per)
		if i%per == 0 {
			mkdir(tb, d)
		}
		write(tb, d+"/file-"+strconv.Itoa(i)+".txt", "x")
	}
}

// BenchmarkScan compares two scans of 100 000 files with two runs of find -printf.
func BenchmarkScan(b *testing.B) {
	for _, per := range []int{100, 100_000} {
		dir := scratch(b)
		wideTree(b, dir, 100_000, per)
		d := openDir(b, dir)
		find := func() {
			c := exec.Command("find", dir, "-printf", `%p %s %T@ %i\n`)
			null, _ := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
			defer null.Close()
			c.Stdout = null
			must(b, c.Run())
		}
		b.Run("scan/"+strconv.Itoa(per), func(b *testing.B) {
			for b.Loop() {
				before, err := ScanDir(b.Context(), d, ScanOptions{})
				must(b, err)
				after, err := ScanDir(b.Context(), d, ScanOptions{Before: before})
				must(b, err)
				if list, _ := Changes(before, after, 10); len(list) > 0 {
					b.Fatal(list)
				}
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			b.ReportMetric(float64(m.Sys)/(1<<20), "MiB-sys")
		})
		b.Run("find/"+strconv.Itoa(per), func(b *testing.B) {
			for b.Loop() {
				find()
				find()
			}
		})
	}
}

// BenchmarkUsage is one measurement of 100 000 files.
func BenchmarkUsage(b *testing.B) {
	dir := scratch(b)
	wideTree(b, dir, 100_000, 100)
	d := openDir(b, dir)
	for b.Loop() {
		if _, err := Usage(b.Context(), d, 0); err != nil {
			b.Fatal(err)
		}
	}
}
