package workspace

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestRemoveShapes(t *testing.T) {
	outside := scratch(t)
	write(t, outside+"/kept", "kept")
	tests := []struct {
		name  string
		build func(t *testing.T, p string) // makes p
	}{
		{"absent", func(*testing.T, string) {}},
		{"empty directory", func(t *testing.T, p string) { mkdir(t, p) }},
		{"file", func(t *testing.T, p string) { write(t, p, "x") }},
		{"link to a directory", func(t *testing.T, p string) { must(t, os.Symlink(outside, p)) }},
		{"dangling link", func(t *testing.T, p string) { must(t, os.Symlink("/nowhere/at/all", p)) }},
		{"fifo", func(t *testing.T, p string) { must(t, unix.Mkfifo(p, 0o600)) }},
		{"socket, fifo and links inside", func(t *testing.T, p string) {
			mkdir(t, p+"/a/b/c/d/e/f")
			must(t, os.Symlink(outside, p+"/a/b/c/d/e/f/out"))
			must(t, os.Symlink("..", p+"/a/up"))
			must(t, unix.Mkfifo(p+"/a/b/fifo", 0))
			must(t, unix.Mknod(p+"/a/b/sock", unix.S_IFSOCK|0o600, 0))
			must(t, os.Symlink("loop", p+"/loop"))
		}},
		{"any bytes", func(t *testing.T, p string) {
			for i := 1; i < 256; i++ {
				if i != '/' {
					mkdir(t, p+"/"+string([]byte{byte(i), '\n', 0xff})+"/-rf/ ")
				}
			}
			mkdir(t, p+"/"+strings.Repeat("n", 255)+"/"+strings.Repeat("\xff", 255))
		}},
		{"no permissions", func(t *testing.T, p string) {
			for _, mode := range []os.FileMode{0, 0o100, 0o200, 0o300, 0o400, 0o500, 0o600} {
				d := p + "/" + strconv.Itoa(int(mode))
				in := d
				for range 9 { // deeper than what is held open
					in += "/in"
				}
				mkdir(t, in)
				write(t, in+"/file", "x")
				for q := in; q != p; q = filepath.Dir(q) {
					must(t, os.Chmod(q, mode))
				}
			}
			must(t, os.Chmod(p, 0))
		}},
		{"names like ours", func(t *testing.T, p string) {
			mkdir(t, p+"/.kern-sbx-x-0/a/b/c/d/e/f/g")
			mkdir(t, p+"/.kern-sbx-x-left-0/a/b/c/d/e/f/g")
		}},
		{"bushy", func(t *testing.T, p string) {
			var grow func(p string, depth int)
			grow = func(p string, depth int) {
				mkdir(t, p)
				write(t, p+"/f", "x")
				if depth > 0 {
					for i := range 3 {
						grow(p+"/"+strconv.Itoa(i), depth-1)
					}
				}
			}
			grow(p, 5)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bothWays(t, func(t *testing.T) {
				dir := scratch(t)
				tt.build(t, dir+"/x")
				write(t, dir+"/beside", "kept")
				parent := openDir(t, dir)
				var err error
				atMost(t, 7, func() { err = RemoveAt(parent, "x") })
				must(t, err)
				absent(t, dir+"/x")
				content(t, dir+"/beside", "kept")
				content(t, outside+"/kept", "kept")
			})
		})
	}
}

func TestRemoveDescriptors(t *testing.T) {
	dir := scratch(t)
	deepTree(t, dir, 100, func(fd int) { must(t, unix.Fchmod(fd, 0)) })
	parent := openDir(t, dir)
	var err error
	atMost(t, 5, func() { err = RemoveAt(parent, "d") }) // and parent makes six
	must(t, err)
}

func TestRemoveNames(t *testing.T) {
	dir := scratch(t)
	mkdir(t, dir+"/in/side")
	parent := openDir(t, dir+"/in")
	for _, name := range []string{"", ".", "..", "../in", "side/", "/", "side/../..", "a\x00b"} {
		if err := RemoveAt(parent, name); err == nil {
			t.Errorf("RemoveAt(%q) was accepted", name)
		}
	}
	for _, path := range []string{"", "/", ".", "..", dir + "/in/.", dir + "/in/..", "///"} {
		if err := Remove(path); err == nil {
			t.Errorf("Remove(%q) was accepted", path)
		}
	}
	if _, err := os.Stat(dir + "/in/side"); err != nil {
		t.Error(err)
	}
}

func TestRemovePath(t *testing.T) {
	dir := scratch(t)
	mkdir(t, dir+"/real/tree/in")
	must(t, os.Symlink("real", dir+"/link"))
	for _, path := range []string{dir + "/link/tree", dir + "/link//tree", dir + "/link//tree//"} {
		if err := Remove(path); !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("%s: %v, want the link refused", path, err)
		}
	}
	must(t, Remove(dir+"/real//tree/"))
	absent(t, dir+"/real/tree")
	must(t, Remove(dir+"/real/tree"))
	must(t, Remove(dir+"/not/there"))
	must(t, Remove(dir+"/link"))
	absent(t, dir+"/link")
	t.Chdir(dir)
	must(t, Remove("real"))
	absent(t, dir+"/real")
}

func TestRemoveDeep(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 10_000
	}
	dir := bigScratch(t)
	mkdir(t, dir+"/x")
	deepTree(t, dir+"/x", n, func(fd int) { touchAt(t, fd, "leaf", 0o600) })
	parent := openDir(t, dir)
	start := time.Now()
	must(t, RemoveAt(parent, "x"))
	t.Logf("%d nested: %v", n, time.Since(start))
	absent(t, dir+"/x")
}

// Deep chains beside each other, so that what is moved up lies in layers.
func TestRemoveDeepForest(t *testing.T) {
	dir := scratch(t)
	for i := range 30 {
		p := fmt.Sprintf("%s/x/%d/a/b/c", dir, i)
		mkdir(t, p)
		for j := range 5 {
			mkdir(t, p+"/"+strconv.Itoa(j))
			deepTree(t, p+"/"+strconv.Itoa(j), 40, func(fd int) {
				for k := range 10 {
					must(t, unix.Mkdirat(fd, strconv.Itoa(k), 0o700))
					touchAt(t, fd, strconv.Itoa(k)+"/f", 0)
				}
			})
		}
	}
	must(t, RemoveAt(openDir(t, dir), "x"))
	absent(t, dir+"/x")
}

func TestRemoveWide(t *testing.T) {
	n := 200_000
	switch {
	case os.Getenv("KERN_SBX_BIG") == "1":
		n = 1_000_000
	case testing.Short():
		n = 20_000
	}
	dir := bigScratch(t)
	mkdir(t, dir+"/x")
	x := openDir(t, dir+"/x")
	for i := range n {
		name := strconv.Itoa(i)
		if i%20 == 0 {
			must(t, unix.Mkdirat(int(x.Fd()), name, 0o755))
			name += "/f"
		}
		must(t, unix.Mknodat(int(x.Fd()), name, unix.S_IFREG|0o600, 0))
	}
	parent := openDir(t, dir)
	start := time.Now()
	must(t, RemoveAt(parent, "x"))
	t.Logf("%d wide: %v", n, time.Since(start))
	absent(t, dir+"/x")
}

func TestRemoveStopsAtMounts(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		for _, deep := range []string{"", "/1/2", "/1/2/3/4/5/6/7/8"} {
			bothWays(t, func(t *testing.T) {
				dir := scratch(t)
				mkdir(t, dir+"/outside/sub")
				write(t, dir+"/outside/sub/kept", "kept")
				at := dir + "/x" + deep
				mkdir(t, at+"/mnt")
				mkdir(t, at+"/beside/more")
				write(t, at+"/file", "inside")
				write(t, at+"/mounted-file", "")
				// Bind mounts of the same file system: st_dev does not tell.
				must(t, unix.Mount(dir+"/outside", at+"/mnt", "", unix.MS_BIND, ""))
				must(t, unix.Mount(dir+"/outside/sub/kept", at+"/mounted-file", "", unix.MS_BIND, ""))

				err := RemoveAt(openDir(t, dir), "x")
				if !errors.Is(err, unix.EBUSY) {
					t.Errorf("error %v, want one about a mount", err)
				} else if !strings.Contains(err.Error(), "mount") {
					t.Errorf("%v: does not say that something is mounted", err)
				}
				content(t, dir+"/outside/sub/kept", "kept")
				left := 0
				must(t, filepath.Walk(dir+"/x", func(p string, fi os.FileInfo, err error) error {
					if fi != nil && (fi.Name() == "file" || fi.Name() == "beside") {
						t.Errorf("%s was left", p)
					}
					if fi != nil && fi.Name() == "mnt" {
						left++
						must(t, unix.Unmount(p, unix.MNT_DETACH))
						return filepath.SkipDir
					}
					if fi != nil && fi.Name() == "mounted-file" {
						left++
						must(t, unix.Unmount(p, unix.MNT_DETACH))
					}
					return nil
				}))
				if left != 2 {
					t.Errorf("%d mount points left, want 2", left)
				}
				must(t, RemoveAt(openDir(t, dir), "x"))

				// The tree itself a mount point: nothing in it is touched.
				mkdir(t, dir+"/y")
				must(t, unix.Mount(dir+"/outside", dir+"/y", "", unix.MS_BIND, ""))
				if err := RemoveAt(openDir(t, dir), "y"); err == nil {
					t.Error("removed a mount point")
				}
				must(t, unix.Unmount(dir+"/y", unix.MNT_DETACH))
				content(t, dir+"/outside/sub/kept", "kept")
			})
		}
	})
}

// Many directories that cannot be removed, above and below those that can.
func TestRemoveAroundObstacles(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		dir := scratch(t)
		var mounts []string
		for i := range 12 {
			p := fmt.Sprintf("%s/x/%d", dir, i)
			for d := range 30 {
				p += "/d"
				mkdir(t, p+"/other/a/b/c/d/e")
				if d%6 == 5 {
					mkdir(t, p+"/mnt")
					mounts = append(mounts, p+"/mnt")
				}
			}
		}
		for _, m := range mounts {
			must(t, unix.Mount("tmpfs", m, "tmpfs", 0, "size=4k"))
		}
		if err := RemoveAt(openDir(t, dir), "x"); err == nil {
			t.Fatal("no error")
		}
		seen := 0
		must(t, filepath.WalkDir(dir+"/x", func(p string, e os.DirEntry, err error) error {
			switch e.Name() {
			case "other":
				t.Errorf("%s was left", p)
			case "mnt":
				seen++
				must(t, unix.Unmount(p, 0))
			}
			return nil
		}))
		if seen != len(mounts) {
			t.Errorf("%d mount points left, want %d", seen, len(mounts))
		}
		must(t, RemoveAt(openDir(t, dir), "x"))
	})
}

// A directory on a full disk has no room for what is moved up, until other
// entries are gone.
func TestRemoveOnFullDisk(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		dir := scratch(t)
		mkdir(t, dir+"/m")
		must(t, unix.Mount("tmpfs", dir+"/m", "tmpfs", 0, "size=1m,nr_inodes=700"))
		defer unix.Unmount(dir+"/m", unix.MNT_DETACH)
		deep := dir + "/m/x"
		for range 300 {
			deep += "/d"
		}
		mkdir(t, deep)
		for i := 0; ; i++ {
			if err := os.WriteFile(fmt.Sprintf("%s/%d", deep, i), make([]byte, 8192), 0o600); err != nil {
				break
			}
		}
		for i := 0; ; i++ {
			if err := unix.Mknod(fmt.Sprintf("%s/m/x/%d", dir, i), unix.S_IFREG|0o600, 0); err != nil {
				break
			}
		}
		must(t, RemoveAt(openDir(t, dir+"/m"), "x"))
		absent(t, dir+"/m/x")
	})
}

// A lower layer of an overlay refuses to rename its directories.
func TestRemoveOverlay(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		dir := scratch(t)
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"))
		defer unix.Unmount(dir, unix.MNT_DETACH)
		for _, p := range []string{"/upper", "/work", "/all"} {
			mkdir(t, dir+p)
		}
		for i := range 5 {
			p := fmt.Sprintf("%s/lower/x/%d", dir, i)
			for d := range 40 {
				p += "/d"
				mkdir(t, fmt.Sprintf("%s/e/f/g", p))
				write(t, fmt.Sprintf("%s/%d", p, d), "x")
			}
		}
		options := fmt.Sprintf("lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", dir, dir, dir)
		uids, err := os.ReadFile("/proc/self/uid_map")
		must(t, err)
		if !strings.HasSuffix(strings.TrimSpace(string(uids)), " 4294967295") {
			options += ",userxattr" // in a user namespace it may not write its trusted ones
		}
		err = unix.Mount("overlay", dir+"/all", "overlay", 0, options)
		if err != nil {
			t.Skipf("no overlay here: %v", err)
		}
		defer unix.Unmount(dir+"/all", unix.MNT_DETACH)
		parent := openDir(t, dir+"/all")
		atMost(t, 6, func() { err = RemoveAt(parent, "x") })
		must(t, err)
		absent(t, dir+"/all/x")
	})
}

func TestRemoveNotOurs(t *testing.T) {
	asRoot(t)
	dir := scratch(t)
	must(t, os.Chmod(dir, 0o755))
	mkdir(t, dir+"/x/mine/a/b/c/d/e/f")
	mkdir(t, dir+"/x/foreign/full")
	write(t, dir+"/x/foreign/full/f", "x")
	mkdir(t, dir+"/x/empty-foreign")
	const uid = 61234
	for _, p := range []string{"", "/x", "/x/mine", "/x/mine/a", "/x/mine/a/b", "/x/mine/a/b/c", "/x/mine/a/b/c/d", "/x/mine/a/b/c/d/e"} {
		must(t, os.Chown(dir+p, uid, uid))
	}
	var err error
	asUser(t, uid, func() {
		fd, e := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if e != nil {
			err = e
			return
		}
		parent := os.NewFile(uintptr(fd), dir)
		defer parent.Close()
		err = RemoveAt(parent, "x")
	})
	if !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), "/x/foreign/full") {
		t.Errorf("error %v, want EACCES that names what is in the way", err)
	}
	absent(t, dir+"/x/mine")
	absent(t, dir+"/x/empty-foreign")
	content(t, dir+"/x/foreign/full/f", "x")
}

// asUser runs f on a thread with another user's identity.
func asUser(t *testing.T, uid int, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); e != 0 {
			done <- e
			return
		}
		f()
		done <- nil
	}()
	must(t, <-done)
}

// Another process swaps directories of the tree with links to the outside and
// moves them about while the tree goes. Nothing outside may be harmed.
func TestRemoveRaces(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 20
	}
	bothWays(t, func(t *testing.T) {
		dir := scratch(t)
		outside := dir + "/outside"
		mkdir(t, outside+"/a/b/c/d/e/f")
		var kept []string
		for p := outside + "/a/b/c/d/e/f"; p != dir; p = filepath.Dir(p) {
			write(t, p+"/kept", "kept")
			kept = append(kept, p+"/kept")
		}
		parent := openDir(t, dir)
		for round := range rounds {
			x := dir + "/x"
			for i := range 4 {
				mkdir(t, fmt.Sprintf("%s/%d/a/b/c/d/e/f/g/h", x, i))
			}
			for i := range 4 {
				must(t, os.Symlink(outside, fmt.Sprintf("%s/link%d", x, i)))
			}
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for g := range 2 {
				wg.Go(func() {
					rnd := rand.New(rand.NewPCG(uint64(round), uint64(g)))
					parts := []string{"", "/a", "/a/b", "/a/b/c", "/a/b/c/d", "/a/b/c/d/e", "/a/b/c/d/e/f"}
					for {
						select {
						case <-stop:
							return
						default:
						}
						p := fmt.Sprintf("x/%d%s", rnd.IntN(4), parts[rnd.IntN(len(parts))])
						q := fmt.Sprintf("x/link%d", rnd.IntN(4))
						if rnd.IntN(3) == 0 {
							q = fmt.Sprintf("x/%d%s", rnd.IntN(4), parts[rnd.IntN(len(parts))])
						}
						exchange(int(parent.Fd()), p, q)
					}
				})
			}
			err := RemoveAt(parent, "x")
			close(stop)
			wg.Wait()
			if err != nil {
				// Swapped under our hands; at rest it must go.
				err = RemoveAt(parent, "x")
			}
			must(t, err)
			for _, k := range kept {
				content(t, k, "kept")
			}
		}
	})
}

// exchange swaps two entries. Its own way to them leads through no link, or it
// would itself move what is outside into the tree.
func exchange(root int, p, q string) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH}
	pd, err := unix.Openat2(root, filepath.Dir(p), &how)
	if err != nil {
		return
	}
	defer unix.Close(pd)
	qd, err := unix.Openat2(root, filepath.Dir(q), &how)
	if err != nil {
		return
	}
	defer unix.Close(qd)
	_ = unix.Renameat2(pd, filepath.Base(p), qd, filepath.Base(q), unix.RENAME_EXCHANGE)
}

// A process that goes on filling the tree cannot keep RemoveAt for ever.
func TestRemoveWhileFilled(t *testing.T) {
	dir := scratch(t)
	mkdir(t, dir+"/x/in")
	in := openDir(t, dir+"/x/in")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_ = unix.Mknodat(int(in.Fd()), strconv.Itoa(i), unix.S_IFREG|0o600, 0)
			}
		}
	})
	done := make(chan error, 1)
	parent := openDir(t, dir)
	go func() { done <- RemoveAt(parent, "x") }()
	select {
	case <-done: // either outcome: it may have won the race for the empty directory
	case <-time.After(time.Minute):
		t.Error("still at it after a minute")
	}
	close(stop)
	wg.Wait()
}

func BenchmarkRemoveAt(b *testing.B) {
	for _, files := range []int{0, 3} {
		b.Run(fmt.Sprintf("%d files", files), func(b *testing.B) {
			dir := scratch(b)
			parent := openDir(b, dir)
			for b.Loop() {
				b.StopTimer()
				must(b, unix.Mkdirat(int(parent.Fd()), "x", 0o700))
				for i := range files {
					touchAt(b, int(parent.Fd()), "x/"+strconv.Itoa(i), 0o600)
				}
				b.StartTimer()
				must(b, RemoveAt(parent, "x"))
			}
		})
	}
}
