package workspace

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

func openTree(t testing.TB, path string) *Tree {
	t.Helper()
	tr, err := OpenTree(path)
	must(t, err)
	t.Cleanup(func() { tr.Close() })
	return tr
}

func read(t *Tree, path string) (string, error) {
	f, size, err := t.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, size))
	return string(b), err
}

// isRefused: a refusal whose line holds want.
func isRefused(t *testing.T, err error, want string) {
	t.Helper()
	var v *validate.Error
	if !errors.As(err, &v) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want a refusal with %q", err, want)
	}
}

func TestSplitPath(t *testing.T) {
	for path, want := range map[string][]string{
		"": nil, ".": nil, "./": nil, "a": {"a"}, "a/b": {"a", "b"}, "./a//b/./c/": {"a", "b", "c"},
		"...": {"..."}, "..a/b..": {"..a", "b.."}, "-rf": {"-rf"}, "a\nb": {"a\nb"}, "\xff": {"\xff"},
	} {
		got, err := SplitPath(path)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %q, %v", path, got, err)
		}
	}
	for _, path := range []string{
		"/", "/etc/passwd", "//a", "..", "../a", "a/..", "a/../b", "a/b/../../..", "./..", "a\x00b", "a/\x00",
		strings.Repeat("n", 256), strings.Repeat("a/", 2048),
	} {
		_, err := SplitPath(path)
		isRefused(t, err, "")
	}
}

func FuzzSplitPath(f *testing.F) {
	for _, s := range []string{"", "/", "a/../b", "./a//b", "a\x00", "..", "...", "\xff/\xfe"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		parts, err := SplitPath(path)
		if err != nil {
			return
		}
		for _, p := range parts {
			if p == "" || p == "." || p == ".." || len(p) > unix.NAME_MAX || strings.ContainsAny(p, "/\x00") {
				t.Errorf("%q has the component %q", path, p)
			}
		}
		again, err := SplitPath(strings.Join(parts, "/"))
		if err != nil || !slices.Equal(again, parts) {
			t.Errorf("%q: not the same when joined: %q, %v", path, again, err)
		}
	})
}

func TestOpenTreeRefuses(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		dir := scratch(t)
		mkdir(t, dir+"/real/in")
		write(t, dir+"/file", "x")
		must(t, os.Symlink("real", dir+"/link"))
		for path, want := range map[string]string{
			"": "empty", "a\x00": "zero byte", dir + "/link": "symbolic link", dir + "/link/in": "symbolic link",
			dir + "/none": "no directory", dir + "/file": "not a directory",
		} {
			_, err := OpenTree(path)
			isRefused(t, err, want)
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		dir, outside := scratch(t), scratch(t)
		write(t, outside+"/secret", "secret")
		mkdir(t, dir+"/sub")
		write(t, dir+"/sub/f", "content")
		must(t, os.Symlink(outside+"/secret", dir+"/abs"))
		must(t, os.Symlink("sub/f", dir+"/rel"))
		must(t, os.Symlink(outside, dir+"/sub/out"))
		must(t, os.Symlink("/proc/self/root", dir+"/magic"))
		must(t, unix.Mkfifo(dir+"/fifo", 0o600))
		l, err := net.Listen("unix", dir+"/sock")
		must(t, err)
		defer l.Close()
		if os.Geteuid() == 0 {
			must(t, unix.Mknod(dir+"/null", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
		}
		tr := openTree(t, dir)
		got, err := read(tr, "./sub//f")
		if err != nil || got != "content" {
			t.Errorf("got %q, %v", got, err)
		}
		begin := time.Now()
		for path, want := range map[string]string{
			"abs": "symbolic link", "rel": "symbolic link", "sub/out/secret": "symbolic link", "magic/etc/passwd": "symbolic link",
			"magic": "symbolic link", "fifo": "a FIFO", "sock": "a socket", "sub": "a directory", ".": "a directory", "": "a directory",
			"../" + dir: "..", outside + "/secret": "absolute", "sub/f/x": "not a directory", "fifo/x": "not a directory",
		} {
			_, err := read(tr, path)
			isRefused(t, err, want)
		}
		if os.Geteuid() == 0 {
			_, err := read(tr, "null")
			isRefused(t, err, "character device")
		}
		if _, err := read(tr, "none"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got %v", err)
		}
		if d := time.Since(begin); d > time.Second {
			t.Errorf("took %v", d)
		}
	})
}

func TestOpenMountPoint(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		bothWays(t, func(t *testing.T) {
			dir, other := scratch(t), scratch(t)
			write(t, other+"/secret", "x")
			mkdir(t, dir+"/m")
			write(t, dir+"/f", "x")
			must(t, unix.Mount(other, dir+"/m", "", unix.MS_BIND, ""))
			defer unix.Unmount(dir+"/m", unix.MNT_DETACH)
			must(t, unix.Mount(other+"/secret", dir+"/f", "", unix.MS_BIND, ""))
			defer unix.Unmount(dir+"/f", unix.MNT_DETACH)
			tr := openTree(t, dir)
			for _, p := range []string{"m/secret", "m", "f"} {
				_, err := read(tr, p)
				isRefused(t, err, "mounted there")
			}
		})
	})
}

func TestClosedDirectoriesAreOpened(t *testing.T) {
	ordinary(t, func(t *testing.T) {
		bothWays(t, func(t *testing.T) {
			dir := scratch(t)
			mkdir(t, dir+"/a/b")
			write(t, dir+"/a/b/f", "x")
			write(t, dir+"/a/b/mine", "x")
			must(t, os.Chmod(dir+"/a/b/f", 0))
			must(t, os.Chmod(dir+"/a/b", 0))
			must(t, os.Chmod(dir+"/a", 0))
			tr := openTree(t, dir)
			if got, err := read(tr, "a/b/mine"); err != nil || got != "x" {
				t.Errorf("got %q, %v", got, err)
			}
			if got := tr.Restored(); !slices.Equal(got, []string{"a", "a/b"}) {
				t.Errorf("restored %q", got)
			}
			if _, err := read(tr, "a/b/f"); !errors.Is(err, os.ErrPermission) {
				t.Errorf("a file of mode 0: %v", err)
			}
			must(t, os.Chmod(dir+"/a/b", 0o500))
			_, err := tr.Put(t.Context(), "a/b/new", strings.NewReader("n"), PutOptions{})
			must(t, err)
			content(t, dir+"/a/b/new", "n")
			must(t, os.Chmod(dir+"/a/b", 0))
			must(t, tr.Remove("a/b/new", false))
			must(t, os.Chmod(dir+"/a/b", 0))
			var got []string
			must(t, tr.List(t.Context(), "", true, func(e *Entry) error { got = append(got, e.Path); return nil }))
			if want := []string{"a", "a/b", "a/b/f", "a/b/mine"}; !slices.Equal(got, want) {
				t.Errorf("got %q", got)
			}
		})
	})
}

func TestPut(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		dir, outside := scratch(t), scratch(t)
		write(t, outside+"/victim", "kept")
		must(t, os.Symlink(outside+"/victim", dir+"/link"))
		must(t, os.Symlink(outside, dir+"/out"))
		must(t, unix.Mkfifo(dir+"/fifo", 0o600))
		write(t, dir+"/old", "old")
		must(t, os.Link(dir+"/old", dir+"/second"))
		tr := openTree(t, dir)
		put := func(path, text string) error {
			_, err := tr.Put(t.Context(), path, strings.NewReader(text), PutOptions{})
			return err
		}
		must(t, put("a/b/c", "new"))
		content(t, dir+"/a/b/c", "new")
		st, err := os.Stat(dir + "/a/b/c")
		must(t, err)
		if st.Mode() != 0o644 {
			t.Errorf("mode %v", st.Mode())
		}
		must(t, put("old", "replaced"))
		content(t, dir+"/old", "replaced")
		content(t, dir+"/second", "old") // a new inode: the other name keeps its content
		for path, want := range map[string]string{
			"link": "symbolic link", "out/victim": "symbolic link", "out/new": "symbolic link", "fifo": "FIFO", "a": "directory",
			"": "directory", "../x": "..", "/x": "absolute", "old/x": "not a directory",
		} {
			isRefused(t, put(path, "bad"), want)
		}
		content(t, outside+"/victim", "kept")
		absent(t, outside+"/new")

		// What cannot be read wholly changes nothing and leaves nothing.
		_, err = tr.Put(t.Context(), "old", io.MultiReader(strings.NewReader("half"), failing{}), PutOptions{})
		if !errors.Is(err, errMoved) {
			t.Errorf("got %v", err)
		}
		content(t, dir+"/old", "replaced")
		entries, err := os.ReadDir(dir)
		must(t, err)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".kern-sbx") {
				t.Errorf("left behind: %s", e.Name())
			}
		}
	})
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errMoved }

func TestPutQuota(t *testing.T) {
	dir := scratch(t)
	write(t, dir+"/have", strings.Repeat("x", 100<<10))
	tr := openTree(t, dir)
	put := func(path string, size int) error {
		_, err := tr.Put(t.Context(), path, bytes.NewReader(make([]byte, size)), PutOptions{Max: 200 << 10})
		return err
	}
	must(t, put("a", 60<<10))
	isRefused(t, put("b", 60<<10), "--workspace-max")
	absent(t, dir+"/b")
	must(t, put("a", 64<<10)) // what it replaces makes room
	must(t, os.Link(dir+"/have", dir+"/have2"))
	isRefused(t, put("have2", 90<<10), "--workspace-max") // its other name keeps the blocks
	write(t, dir+"/more", strings.Repeat("x", 100<<10))
	isRefused(t, put("b", 1), "--workspace-max")
	// An endless source is cut off as soon as it is too much.
	_, err := tr.Put(t.Context(), "c", endless{}, PutOptions{Max: 10 << 20})
	isRefused(t, err, "--workspace-max")
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestTreeRemove(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		dir, outside := scratch(t), scratch(t)
		mkdir(t, outside+"/d")
		write(t, outside+"/d/kept", "kept")
		must(t, os.Symlink(outside+"/d", dir+"/link"))
		mkdir(t, dir+"/tree/x/y")
		write(t, dir+"/tree/x/y/f", "x")
		must(t, unix.Mkfifo(dir+"/fifo", 0))
		write(t, dir+"/f", "x")
		tr := openTree(t, dir)
		isRefused(t, tr.Remove("", true), "the workspace itself")
		isRefused(t, tr.Remove("./", true), "the workspace itself")
		isRefused(t, tr.Remove("../"+dir, true), "..")
		isRefused(t, tr.Remove("link/kept", true), "symbolic link")
		isRefused(t, tr.Remove("tree", false), "-r")
		if err := tr.Remove("none", true); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got %v", err)
		}
		for _, p := range []string{"link", "fifo", "f"} {
			must(t, tr.Remove(p, false))
			absent(t, dir+"/"+p)
		}
		must(t, os.Symlink(outside+"/d", dir+"/link"))
		must(t, tr.Remove("link", true)) // the link, not what it leads to
		must(t, tr.Remove("tree", true))
		absent(t, dir+"/tree")
		content(t, outside+"/d/kept", "kept")
	})
}

func TestList(t *testing.T) {
	dir := scratch(t)
	for _, n := range []string{"b", "a", "Z", "\xff", "a\x1b[2J"} {
		write(t, dir+"/"+n, n)
	}
	mkdir(t, dir+"/a.d/in")
	write(t, dir+"/a.d/in/f", "x")
	must(t, os.Symlink("/etc", dir+"/link"))
	must(t, unix.Mkfifo(dir+"/p", 0o600))
	tr := openTree(t, dir)
	list := func(path string, all bool) (got []string) {
		must(t, tr.List(t.Context(), path, all, func(e *Entry) error {
			got = append(got, e.Kind()+" "+e.Path)
			return nil
		}))
		return got
	}
	if got, want := list("", false), []string{"file Z", "file a", "file a\x1b[2J", "dir a.d", "file b", "symlink link", "fifo p", "file \xff"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if got, want := list("a.d", true), []string{"dir a.d/in", "file a.d/in/f"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if got, want := list("link", true), []string{"symlink link"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	isRefused(t, tr.List(t.Context(), "link/x", true, nil), "symbolic link")
}

// TestAccessSwapped: somebody swaps a directory for a link to the outside all the
// time, while it is read, written, listed and removed. What lies there is never
// read, changed or removed.
func TestAccessSwapped(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		dir, outside := scratch(t), scratch(t)
		write(t, outside+"/f", "outside")
		mkdir(t, outside+"/kept")
		write(t, outside+"/kept/x", "outside")
		mkdir(t, dir+"/d/kept")
		write(t, dir+"/d/f", "inside")
		must(t, os.Symlink(outside, dir+"/l"))
		stop := swap(t, dir+"/d", dir+"/l")
		tr := openTree(t, dir)
		reads, writes := 0, 0
		for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); {
			if got, err := read(tr, "d/f"); err == nil {
				if reads++; strings.Contains(got, "outside") {
					t.Fatal("read from outside")
				}
			}
			if _, err := tr.Put(t.Context(), "d/new", strings.NewReader("new"), PutOptions{}); err == nil {
				writes++
			}
			_ = tr.Remove("d/new", false)
			_ = tr.Remove("d/kept", true)
			_ = tr.List(t.Context(), "d", true, func(e *Entry) error {
				if e.Path == "d/kept/x" {
					t.Error("listed from outside")
				}
				return nil
			})
		}
		stop()
		if reads == 0 || writes == 0 {
			t.Logf("read %d times, wrote %d times", reads, writes)
		}
		content(t, outside+"/f", "outside")
		content(t, outside+"/kept/x", "outside")
		absent(t, outside+"/new")
	})
}

func TestUsage(t *testing.T) {
	dir := scratch(t)
	usage := func() int64 {
		u, err := Usage(t.Context(), openDir(t, dir), 0)
		must(t, err)
		return u.Bytes
	}
	empty := usage()
	write(t, dir+"/a", strings.Repeat("x", 1<<20))
	one := usage() - empty
	if one < 1<<20 || one > 1<<20+64<<10 {
		t.Errorf("a file of 1 MiB counts %d", one)
	}
	must(t, os.Link(dir+"/a", dir+"/b"))
	must(t, os.Symlink("/usr", dir+"/usr"))
	f, err := os.Create(dir + "/hole")
	must(t, err)
	must(t, f.Truncate(1<<40))
	must(t, f.Close())
	if got := usage() - empty; got > one+64<<10 {
		t.Errorf("with a link, a second name and a hole: %d", got)
	}
	// The limit ends it early; a context does as well.
	u, err := Usage(t.Context(), openDir(t, dir), 1000)
	if err != nil || u.Bytes <= 1000 {
		t.Errorf("got %v, %v", u, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Usage(ctx, openDir(t, dir), 0); err == nil {
		t.Error("no error of the context")
	}
}

func TestUsageDeep(t *testing.T) {
	dir := bigScratch(t)
	deepTree(t, dir, 20_000, func(fd int) {
		f, err := unix.Openat(fd, "big", unix.O_CREAT|unix.O_WRONLY, 0o600)
		must(t, err)
		defer unix.Close(f)
		_, err = unix.Write(f, make([]byte, 1<<20))
		must(t, err)
	})
	d := openDir(t, dir)
	atMost(t, 8, func() {
		u, err := Usage(t.Context(), d, 0)
		if err != nil || u.Bytes < 1<<20 || u.Partial {
			t.Errorf("got %+v, %v", u, err)
		}
	})
}

// full waits for the end of a watch.
func full(t *testing.T, w *Watch, within time.Duration) (int64, bool) {
	t.Helper()
	select {
	case n := <-w.Full():
		return n, true
	case <-time.After(within):
		return 0, false
	}
}

func TestWatch(t *testing.T) {
	for _, in := range []string{"", "/dev/shm"} {
		dir := scratchIn(t, in)
		u, err := Usage(t.Context(), openDir(t, dir), 0)
		must(t, err)
		w := NewWatch(openDir(t, dir), Quota{Max: 8 << 20, Used: u})
		defer w.Stop()
		write(t, dir+"/a", strings.Repeat("x", 6<<20))
		if n, is := full(t, w, 100*time.Millisecond); is {
			t.Errorf("full at %d", n)
		}
		write(t, dir+"/b", strings.Repeat("x", 3<<20))
		if n, is := full(t, w, 5*time.Second); !is || n <= 8<<20 {
			t.Errorf("not full: %d", n)
		}
		w.Stop()
		if n, over := w.Over(t.Context()); !over || n < 9<<20 {
			t.Errorf("over: %d, %v", n, over)
		}
		if dir := scratchIn(t, in); true {
			w := NewWatch(openDir(t, dir), Quota{Max: 8 << 20})
			write(t, dir+"/a", strings.Repeat("x", 6<<20))
			w.Stop()
			if n, over := w.Over(t.Context()); over {
				t.Errorf("over: %d", n)
			}
		}
	}
	// There may be no watch at all.
	var none *Watch
	none.Stop()
	if _, over := none.Over(t.Context()); over || none.Full() != nil {
		t.Error("a watch that is not there is full")
	}
}

// TestWatchMoved: a tree whose directories are moved about is charged with what
// the file system lost.
func TestWatchMoved(t *testing.T) {
	dir := scratch(t)
	for i := range 40 {
		mkdir(t, dir+"/"+strconv.Itoa(i)+"/a/b/c/d/e/f/g")
	}
	mkdir(t, dir+"/x")
	quit := make(chan struct{})
	defer close(quit)
	go func() {
		for {
			select {
			case <-quit:
				return
			default:
				for i := range 40 {
					_ = os.Rename(dir+"/"+strconv.Itoa(i)+"/a/b/c", dir+"/x/"+strconv.Itoa(i))
					_ = os.Rename(dir+"/x/"+strconv.Itoa(i), dir+"/"+strconv.Itoa(i)+"/a/b/c")
				}
			}
		}
	}()
	w := NewWatch(openDir(t, dir), Quota{Max: 30 << 20})
	defer w.Stop()
	write(t, dir+"/x/big", strings.Repeat("x", 40<<20))
	if _, is := full(t, w, 10*time.Second); !is {
		t.Error("not full")
	}
}

// TestWatchHidden: what has no name any more counts too.
func TestWatchHidden(t *testing.T) {
	dir := scratch(t)
	f, err := os.Create(dir + "/f")
	must(t, err)
	defer f.Close()
	must(t, os.Remove(dir+"/f"))
	w := NewWatch(openDir(t, dir), Quota{Max: 8 << 20, Hidden: func(dev uint64) int64 {
		var st unix.Stat_t
		if unix.Fstat(int(f.Fd()), &st) != nil || st.Dev != dev || st.Nlink != 0 {
			return 0
		}
		return st.Blocks * 512
	}})
	defer w.Stop()
	_, err = f.Write(make([]byte, 12<<20))
	must(t, err)
	if n, is := full(t, w, 5*time.Second); !is || n <= 8<<20 {
		t.Errorf("not full: %d", n)
	}
}

// TestWatchIdle: a watch with nothing to do costs about 1 % of a CPU, also close to
// the limit and with a large tree. The bound leaves room for a busy machine.
func TestWatchIdle(t *testing.T) {
	dir := scratch(t)
	wideTree(t, dir, 5000, 100)
	d := openDir(t, dir)
	u, err := Usage(t.Context(), d, 0)
	must(t, err)
	w := NewWatch(d, Quota{Max: u.Bytes + 1<<20, Used: u})
	cpu := func() time.Duration {
		var r unix.Rusage
		must(t, unix.Getrusage(unix.RUSAGE_SELF, &r))
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	const long = 3 * time.Second
	before := cpu()
	time.Sleep(long)
	spent := cpu() - before
	w.Stop()
	t.Logf("%.2f %% of a CPU", 100*spent.Seconds()/long.Seconds())
	if !raceEnabled && spent > long/12 {
		t.Errorf("took %v of %v", spent, long)
	}
}

func TestNames(t *testing.T) {
	for _, n := range []string{"a", "0", "a.b-c_d", strings.Repeat("n", 64)} {
		must(t, CheckName(n))
	}
	for _, n := range []string{"", ".", "..", ".a", "-a", "_a", "A", "a/b", "a b", "ü", "a\n", "a\x00", strings.Repeat("n", 65), "@a"} {
		isRefused(t, CheckName(n), "not the name")
	}
}

func TestStore(t *testing.T) {
	s := NewStore(scratch(t) + "/data")
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("got %v, %v", list, err)
	}
	_, err := s.Path("a")
	isRefused(t, err, "no workspace of that name")
	_, err = s.Hold("a", false)
	isRefused(t, err, "no workspace of that name")
	isRefused(t, s.Remove("a"), "no workspace of that name")
	isRefused(t, s.Remove("../data"), "not the name")

	h, err := s.Hold("a", true)
	must(t, err)
	write(t, h.Path+"/f", "x")
	if !h.Made {
		t.Error("it was not made")
	}
	for _, create := range []bool{true, false} {
		_, err = s.Hold("a", create)
		isRefused(t, err, "process "+strconv.Itoa(os.Getpid())+" is using")
	}
	isRefused(t, s.Remove("a"), "is using")
	if p, err := s.Path("a"); err != nil || p != h.Path {
		t.Errorf("got %q, %v", p, err)
	}
	list, err := s.List()
	must(t, err)
	if len(list) != 1 || list[0].Name != "a" || list[0].Holder != os.Getpid() || time.Since(list[0].Used) > time.Minute {
		t.Errorf("got %+v", list)
	}
	h.Release()
	if h, err = s.Hold("a", false); err != nil || h.Made {
		t.Fatalf("got %+v, %v", h, err)
	}
	h.Release()
	if list, _ = s.List(); list[0].Holder != 0 {
		t.Errorf("held by %d", list[0].Holder)
	}
	mkdir(t, list[0].Path+"/m/n")
	must(t, os.Chmod(list[0].Path+"/m", 0))
	must(t, s.Remove("a"))
	absent(t, list[0].Path)
	left, err := os.ReadDir(s.dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestStoreRace: many that hold, remove and make the same one: never two at a time.
func TestStoreRace(t *testing.T) {
	s := NewStore(scratch(t))
	holders := make(chan struct{}, 1)
	done := make(chan error, 8)
	for i := range 8 {
		go func() {
			for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
				if i == 0 {
					_ = s.Remove("a")
					continue
				}
				h, err := s.Hold("a", true)
				if err != nil {
					continue
				}
				select {
				case holders <- struct{}{}:
				default:
					done <- errors.New("two hold it")
					return
				}
				if _, err := os.Stat(h.Path); err != nil {
					done <- err
					return
				}
				<-holders
				h.Release()
			}
			done <- nil
		}()
	}
	for range 8 {
		must(t, <-done)
	}
}
