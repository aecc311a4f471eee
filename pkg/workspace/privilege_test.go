package workspace

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// capData is a security.capability value (VFS_CAP_REVISION_2, or 3 with the
// root user of a namespace) with cap_setuid permitted and effective.
func capData(revision byte) []byte {
	b := make([]byte, 20, 24)
	binary.LittleEndian.PutUint32(b, uint32(revision)<<24|1)
	binary.LittleEndian.PutUint32(b[4:], 1<<unix.CAP_SETUID)
	if revision == 3 {
		b = append(b, 0, 0, 0, 0)
	}
	return b
}

func modeOf(t *testing.T, path string) uint32 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return st.Mode & 0o7777
}

func clearAll(t *testing.T, dir string, since time.Time) map[string]string {
	t.Helper()
	list, err := ClearPrivilege(t.Context(), openDir(t, dir), since)
	must(t, err)
	got := map[string]string{}
	for _, c := range list {
		got[c.Path] = c.What
	}
	return got
}

func TestClearPrivilege(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		dir := scratch(t)
		outside := scratch(t)
		write(t, outside+"/su", "x")
		must(t, unix.Chmod(outside+"/su", 0o4755))
		ws := dir + "/ws"
		mkdir(t, ws+"/a/b/c/d/e/f/g")
		mkdir(t, ws+"/shared")
		must(t, unix.Chmod(ws+"/shared", 0o2775))
		mkdir(t, ws+"/su-dir")
		must(t, unix.Chmod(ws+"/su-dir", 0o4755))
		must(t, os.Symlink(outside+"/su", ws+"/link"))
		must(t, os.Symlink(outside, ws+"/dirlink"))
		must(t, unix.Mkfifo(ws+"/fifo", 0o600))
		must(t, unix.Chmod(ws+"/fifo", 0o4755))
		must(t, unix.Mknod(ws+"/sock", unix.S_IFSOCK|0o600, 0))
		files := map[string]struct {
			mode, want uint32
			what       string
		}{
			"plain":             {0o755, 0o755, ""},
			"s":                 {0o6755, 0o755, "setuid, setgid"},
			"a/b/u":             {0o4711, 0o711, "setuid"},
			"a/b/c/d/e/f/g/g":   {0o2750, 0o750, "setgid"},
			"a/unreadable":      {0o4111, 0o111, "setuid"},
			"a/b/c/none":        {0o6000, 0, "setuid, setgid"},
			"sticky":            {0o7777, 0o1777, "setuid, setgid"},
			"a/ \n\x1b[31m\xff": {0o4755, 0o755, "setuid"},
		}
		for name, f := range files {
			write(t, ws+"/"+name, "x")
			must(t, unix.Chmod(ws+"/"+name, f.mode))
		}
		var got map[string]string
		atMost(t, 7, func() { got = clearAll(t, ws, time.Now()) })
		for name, f := range files {
			if got[name] != f.what {
				t.Errorf("%q: reported %q, want %q", name, got[name], f.what)
			}
			delete(got, name)
			if m := modeOf(t, ws+"/"+name); m != f.want {
				t.Errorf("%q: mode %o, want %o", name, m, f.want)
			}
		}
		if len(got) > 0 {
			t.Errorf("also reported %v", got)
		}
		for p, want := range map[string]uint32{ws + "/shared": 0o2775, ws + "/su-dir": 0o4755, ws + "/fifo": 0o4755, outside + "/su": 0o4755} {
			if m := modeOf(t, p); m != want {
				t.Errorf("%s: mode %o, want %o as before", p, m, want)
			}
		}
		if got := clearAll(t, ws, time.Time{}); len(got) > 0 {
			t.Errorf("a second time: %v", got)
		}
	})
}

func TestClearFileCapabilities(t *testing.T) {
	asRoot(t)
	ws := scratch(t)
	for _, name := range []string{"v2", "v3", "both", "not-executable"} {
		write(t, ws+"/"+name, "x")
		must(t, unix.Chmod(ws+"/"+name, 0o755))
	}
	must(t, unix.Chmod(ws+"/both", 0o4755))
	must(t, unix.Chmod(ws+"/not-executable", 0o600))
	for _, name := range []string{"v2", "v3", "both", "not-executable"} {
		rev := byte(2)
		if name == "v3" {
			rev = 3
		}
		if err := unix.Setxattr(ws+"/"+name, capsAttr, capData(rev), 0); err != nil {
			t.Skipf("no file capabilities here: %v", err)
		}
	}
	want := map[string]string{
		"v2": "file capabilities", "v3": "file capabilities",
		"both": "setuid, file capabilities", "not-executable": "file capabilities",
	}
	write(t, ws+"/none", "x")
	must(t, os.Symlink("v2", ws+"/link"))
	must(t, unix.Setxattr(ws+"/link", capsAttr, capData(2), 0))
	fd := int(openDir(t, ws).Fd())
	for _, old := range []bool{false, true} {
		noGetxattrat.Store(old)
		for name, has := range map[string]bool{"v2": true, "v3": true, "none": false, "link": false} {
			if hasCaps(fd, name) != has {
				t.Errorf("hasCaps(%s) without getxattrat %v: %v, want %v", name, old, !has, has)
			}
		}
	}
	noGetxattrat.Store(false)
	got := clearAll(t, ws, time.Now())
	for name, what := range want {
		if got[name] != what {
			t.Errorf("%s: reported %q, want %q", name, got[name], what)
		}
		if _, err := unix.Getxattr(ws+"/"+name, capsAttr, nil); err != unix.ENODATA {
			t.Errorf("%s: capabilities still there (%v)", name, err)
		}
	}
}

// What the user had before the run stays; what the run touched in any way, also
// only by a hard link or its times, does not.
func TestClearSince(t *testing.T) {
	ws := scratch(t)
	for _, name := range []string{"before", "touched", "linked"} {
		write(t, ws+"/"+name, "x")
		must(t, unix.Chmod(ws+"/"+name, 0o4755))
	}
	time.Sleep(1100 * time.Millisecond) // the slack of cutoff
	since := time.Now()
	write(t, ws+"/new", "x")
	must(t, unix.Chmod(ws+"/new", 0o4755))
	old := time.Unix(1, 0)
	must(t, os.Chtimes(ws+"/new", old, old))
	must(t, os.Chtimes(ws+"/touched", old, old))
	must(t, os.Link(ws+"/linked", ws+"/second"))
	got := clearAll(t, ws, since)
	if len(got) != 3 || got["new"] == "" || got["touched"] == "" || got["linked"]+got["second"] == "" {
		t.Errorf("reported %v", got)
	}
	if m := modeOf(t, ws+"/before"); m != 0o4755 {
		t.Errorf("before: mode %o, want 4755", m)
	}
}

// File times may be older than the clock says. ClearPrivilege must find what is
// changed right after since, whatever the kernel's clock step is.
func TestClearCoarseClock(t *testing.T) {
	dir := scratch(t)
	var worst time.Duration
	for i := range 300 {
		p := dir + "/" + strconv.Itoa(i)
		since := time.Now()
		write(t, p, "")
		var st unix.Stat_t
		must(t, unix.Stat(p, &st))
		worst = max(worst, since.Sub(time.Unix(st.Ctim.Unix())))
	}
	t.Logf("a file time was at most %v older than the clock, tick %v", worst, clockTick())
	if worst > time.Second {
		t.Errorf("file times lag by %v, more than the slack", worst)
	}
}

func TestCutoff(t *testing.T) {
	now := time.Now()
	since := now.Add(-time.Minute)
	if got := since.Sub(cutoff(since, now, 4*time.Millisecond)); got != time.Second {
		t.Errorf("slack %v, want 1s", got)
	}
	if got := since.Sub(cutoff(since, now, 2*time.Second)); got != 2*time.Second {
		t.Errorf("slack %v, want a tick of 2s", got)
	}
	// A time without a monotonic part cannot show a step.
	if got := since.Sub(cutoff(since.Round(0), now, 0)); got != time.Second {
		t.Errorf("slack %v, want 1s", got)
	}
	if !cutoff(time.Time{}, now, 0).Before(time.Unix(0, 0)) {
		t.Error("the zero time must mean every file")
	}
}

func TestClearReportIsCapped(t *testing.T) {
	ws := scratch(t)
	fd := int(openDir(t, ws).Fd())
	for i := range clearedMax + 7 {
		touchAt(t, fd, strconv.Itoa(i), 0o4755)
	}
	list, err := ClearPrivilege(t.Context(), openDir(t, ws), time.Time{})
	must(t, err)
	if len(list) != clearedMax+1 || list[clearedMax] != (Cleared{More: 7}) || list[0].Path == "" {
		t.Errorf("%d elements, the last %+v", len(list), list[len(list)-1])
	}
}

// Directories that we may not read keep their modes and hide nothing.
func TestClearUnreadable(t *testing.T) {
	for _, mode := range []uint32{0, 0o100, 0o300, 0o311, 0o400, 0o444, 0o600} {
		t.Run(fmt.Sprintf("%o", mode), func(t *testing.T) {
			ws := scratch(t)
			root := openDir(t, ws) // before the box could change it
			p := ws
			var dirs []string
			for range 8 {
				write(t, p+"/s", "x")
				must(t, unix.Chmod(p+"/s", 0o4755))
				dirs = append(dirs, p)
				p += "/d"
				mkdir(t, p)
			}
			for i := len(dirs) - 1; i >= 0; i-- {
				must(t, unix.Chmod(dirs[i], mode))
			}
			list, err := ClearPrivilege(t.Context(), root, time.Time{})
			must(t, err)
			if len(list) != 8 {
				t.Errorf("%d files cleared, want 8", len(list))
			}
			for _, d := range dirs {
				if m := modeOf(t, d); m != mode {
					t.Errorf("%s: mode %o, want %o as before", d, m, mode)
				}
				must(t, unix.Chmod(d, 0o755))
			}
		})
	}
}

func TestClearDeep(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 10_000
	}
	dir := bigScratch(t)
	write(t, dir+"/a-first", "")
	must(t, unix.Chmod(dir+"/a-first", 0o4755))
	deepTree(t, dir, n, func(fd int) { touchAt(t, fd, "leaf", 0o4755) })
	write(t, dir+"/z-last", "")
	must(t, unix.Chmod(dir+"/z-last", 0o4755))
	start := time.Now()
	var list []Cleared
	var err error
	root := openDir(t, dir)
	atMost(t, 7, func() { list, err = ClearPrivilege(t.Context(), root, time.Time{}) })
	must(t, err)
	t.Logf("%d nested: %v", n, time.Since(start))
	if len(list) != 3 {
		t.Fatalf("%d cleared, want 3", len(list))
	}
	for _, c := range list {
		if filepath.Base(c.Path) == "leaf" && (len(c.Path) > walkPath+100 || !strings.HasPrefix(c.Path, "d/d/")) {
			t.Errorf("the path of the deepest file has %d bytes", len(c.Path))
		}
	}
}

func TestClearWide(t *testing.T) {
	n := 100_000
	switch {
	case os.Getenv("KERN_SBX_BIG") == "1":
		n = 1_000_000
	case testing.Short():
		n = 10_000
	}
	dir := bigScratch(t)
	for i := range n / 1000 {
		d := dir + "/" + strconv.Itoa(i)
		mkdir(t, d)
		fd, err := unix.Open(d, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(t, err)
		for j := range 1000 {
			must(t, unix.Mknodat(fd, strconv.Itoa(j), unix.S_IFREG|0o644, 0))
		}
		unix.Close(fd)
	}
	root := openDir(t, dir)
	start := time.Now()
	list, err := ClearPrivilege(t.Context(), root, start.Add(time.Hour))
	must(t, err)
	t.Logf("%d files, none changed: %v", n, time.Since(start))
	start = time.Now()
	all, err := ClearPrivilege(t.Context(), root, time.Time{})
	must(t, err)
	t.Logf("%d files, all changed: %v", n, time.Since(start))
	if len(list)+len(all) > 0 {
		t.Errorf("cleared %v %v", list, all)
	}
}

func TestClearStopsAtMounts(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		bothWays(t, func(t *testing.T) {
			dir := scratch(t)
			mkdir(t, dir+"/outside")
			write(t, dir+"/outside/s", "x")
			must(t, unix.Chmod(dir+"/outside/s", 0o4755))
			mkdir(t, dir+"/ws/d/mnt")
			write(t, dir+"/ws/d/file", "")
			must(t, unix.Mount(dir+"/outside", dir+"/ws/d/mnt", "", unix.MS_BIND, ""))
			must(t, unix.Mount(dir+"/outside/s", dir+"/ws/d/file", "", unix.MS_BIND, ""))
			defer func() {
				must(t, unix.Unmount(dir+"/ws/d/mnt", unix.MNT_DETACH))
				must(t, unix.Unmount(dir+"/ws/d/file", unix.MNT_DETACH))
			}()
			if got := clearAll(t, dir+"/ws", time.Time{}); len(got) > 0 {
				t.Errorf("cleared %v on another mount", got)
			}
			if m := modeOf(t, dir+"/outside/s"); m != 0o4755 {
				t.Errorf("mode %o, want 4755", m)
			}
		})
	})
}

func TestClearSaysWhatItCouldNot(t *testing.T) {
	asRoot(t)
	const uid = 61234
	dir := scratch(t)
	must(t, os.Chmod(dir, 0o755))
	write(t, dir+"/root-owned", "x")
	must(t, unix.Chmod(dir+"/root-owned", 0o4755))
	write(t, dir+"/theirs", "x")
	must(t, os.Chown(dir+"/theirs", uid, uid))
	must(t, unix.Chmod(dir+"/theirs", 0o4755))
	must(t, os.Mkdir(dir+"/closed", 0o700))
	root := openDir(t, dir)
	var list []Cleared
	var err error
	asUser(t, uid, func() { list, err = ClearPrivilege(t.Context(), root, time.Time{}) })
	if len(list) != 1 || list[0].Path != "theirs" {
		t.Errorf("cleared %v, want theirs", list)
	}
	if err == nil || !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
		t.Errorf("error %v, want what was in the way", err)
	}
}

func TestClearCancelled(t *testing.T) {
	dir := scratch(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ClearPrivilege(ctx, openDir(t, dir), time.Time{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// Another box swaps files, links and directories while they are searched:
// nothing outside may change, and no descriptor may leak.
func TestClearRaces(t *testing.T) {
	rounds := 2000
	if testing.Short() {
		rounds = 100
	}
	dir := scratch(t)
	outside := dir + "/outside"
	mkdir(t, outside+"/d")
	for _, p := range []string{"/su", "/d/f"} {
		write(t, outside+p, "x")
		must(t, unix.Chmod(outside+p, 0o4755))
	}
	parent := openDir(t, dir)
	mkdir(t, dir+"/x/1/d/d/d/d/d/d")
	mkdir(t, dir+"/x/2/d/d/d/d/d/d")
	for i := range 2 {
		must(t, os.Symlink(outside+"/su", fmt.Sprintf("%s/x/link%d", dir, i)))
		must(t, os.Symlink(outside, fmt.Sprintf("%s/x/dirlink%d", dir, i)))
		must(t, unix.Mkfifo(fmt.Sprintf("%s/x/fifo%d", dir, i), 0o600))
		touchAt(t, int(parent.Fd()), fmt.Sprintf("x/file%d", i), 0o4755)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for g := range 2 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(g)))
			names := []string{"x/1", "x/2/d", "x/1/d/d", "x/2/d/d/d/d", "x/link0", "x/link1", "x/dirlink0", "x/dirlink1", "x/fifo0", "x/file0", "x/file1", "x/1/d/d/d/d/d/d"}
			for {
				select {
				case <-stop:
					return
				default:
					exchange(int(parent.Fd()), names[rnd.IntN(len(names))], names[rnd.IntN(len(names))])
				}
			}
		})
	}
	before := openFiles(t)
	moved := 0
	x := openDir(t, dir+"/x")
	for range rounds {
		_, err := ClearPrivilege(t.Context(), x, time.Time{})
		if errors.Is(err, errMoved) {
			moved++
		}
	}
	close(stop)
	wg.Wait()
	t.Logf("%d of %d walks gave up because directories were moved", moved, rounds)
	for _, p := range []string{"/su", "/d/f"} {
		if m := modeOf(t, outside+p); m != 0o4755 {
			t.Errorf("outside%s: mode %o, want 4755", p, m)
		}
	}
	if n := openFiles(t); n > before+1 {
		t.Errorf("%d descriptors open, %d before", n, before)
	}
	must(t, func() error { _, err := ClearPrivilege(t.Context(), x, time.Time{}); return err }())
}

// The way back up leads elsewhere: the walk notices, begins anew and still
// visits everything, or says that it could not.
func TestWalkNoticesMoves(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		for _, moves := range []int{1, walkTries - 1, walkTries} {
			dir := scratch(t)
			here, there := dir+"/a/b/c", dir+"/x/y/c"
			mkdir(t, here+"/d/e/f")
			mkdir(t, dir+"/x/y")
			write(t, here+"/d/e/f/leaf", "")
			write(t, dir+"/a/b/beside", "")
			seen := map[string]int{}
			w := walker{
				failed: func(_ int, name string, err error) { t.Errorf("%s: %v", name, err) },
				visit: func(_ int, name string, _ byte) {
					seen[name]++
					if name == "leaf" && seen[name] <= moves {
						must(t, os.Rename(here, there))
						here, there = there, here
					}
				},
			}
			err := w.walk(t.Context(), openDir(t, dir))
			if moves < walkTries && (err != nil || seen["leaf"] != moves+1 || seen["beside"] == 0) {
				t.Errorf("%d moves: error %v, seen %v", moves, err, seen)
			}
			if moves == walkTries && err != errMoved {
				t.Errorf("%d moves: error %v, want errMoved", moves, err)
			}
		}
	})
}

func openFiles(t *testing.T) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(e)
}

func FuzzParseDirent(f *testing.F) {
	fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(f, err)
	buf := make([]byte, 4096)
	n, err := unix.Getdents(fd, buf)
	must(f, err)
	unix.Close(fd)
	f.Add(buf[:n])
	f.Add(make([]byte, 24))
	f.Fuzz(func(t *testing.T, b []byte) {
		for {
			d, rest, ok := parseDirent(b)
			if !ok {
				return
			}
			if len(rest) >= len(b) || strings.IndexByte(d.name, 0) >= 0 {
				t.Fatalf("%q from %x", d.name, b)
			}
			b = rest
		}
	})
}

func BenchmarkClearPrivilege(b *testing.B) {
	dir := scratch(b)
	fd := int(openDir(b, dir).Fd())
	for i := range 1000 {
		touchAt(b, fd, strconv.Itoa(i), 0o644)
	}
	root := openDir(b, dir)
	for name, since := range map[string]time.Time{"unchanged": time.Now().Add(time.Hour), "changed": {}} {
		b.Run(name+" 1000 files", func(b *testing.B) {
			for b.Loop() {
				if _, err := ClearPrivilege(b.Context(), root, since); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
