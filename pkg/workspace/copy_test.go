package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func copyTree(t testing.TB, from, to string) (Copied, error) {
	t.Helper()
	if err := os.Mkdir(to, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	a, b := openDir(t, from), openDir(t, to)
	defer a.Close()
	defer b.Close()
	return Copy(context.Background(), a, b, nil)
}

// inventory lists a tree with all that a copy may not change in the original.
func inventory(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.Walk(dir, func(path string, fi os.FileInfo, err error) error {
		if err != nil && !errors.Is(err, os.ErrPermission) {
			return err
		}
		var st unix.Stat_t
		must(t, unix.Lstat(path, &st))
		fmt.Fprintln(&b, path, st.Ino, st.Mode, st.Size, st.Mtim, st.Ctim, st.Nlink)
		return nil
	}))
	return b.String()
}

func TestCopy(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		dir := scratch(t)
		from, to := dir+"/from", dir+"/to"
		mkdir(t, from+"/.git/hooks")
		mkdir(t, from+"/empty")
		mkdir(t, from+"/closed/in")
		write(t, dir+"/outside", "secret")
		write(t, from+"/run.sh", "#!/bin/sh\n")
		must(t, os.Chmod(from+"/run.sh", 0o755))
		write(t, from+"/suid", "x")
		must(t, unix.Chmod(from+"/suid", 0o6711))
		write(t, from+"/.git/hooks/pre-commit", "theirs")
		write(t, from+"/closed/in/f", "inside")
		write(t, from+"/-rf \n\x1b[31m\xff", "odd")
		must(t, os.Symlink("../outside", from+"/link"))
		must(t, os.Symlink("/etc", from+"/etc"))
		must(t, os.Symlink("nowhere", from+"/dangling"))
		must(t, os.Symlink(strings.Repeat("x", 4000), from+"/long"))
		must(t, os.Link(from+"/run.sh", from+"/hard"))
		must(t, unix.Mkfifo(from+"/fifo", 0o644))
		must(t, unix.Mknod(from+"/sock", unix.S_IFSOCK|0o644, 0))
		big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		must(t, os.WriteFile(from+"/big", big, 0o600))
		past := time.Unix(1_000_000_000, 123456789)
		for _, n := range []string{"/run.sh", "/closed/in", "/closed"} {
			must(t, os.Chtimes(from+n, past, past))
		}
		must(t, os.Chmod(from+"/closed", 0o500))
		before := inventory(t, from)

		got, err := copyTree(t, from, to)
		must(t, err)
		if got != (Copied{Special: 2}) {
			t.Errorf("left out: %+v, want two special files", got)
		}
		if after := inventory(t, from); after != before {
			t.Errorf("the original was changed:\n%s\nwas\n%s", after, before)
		}
		for name, want := range map[string]string{
			"run.sh": "#!/bin/sh\n", "hard": "#!/bin/sh\n", ".git/hooks/pre-commit": "theirs",
			"closed/in/f": "inside", "-rf \n\x1b[31m\xff": "odd", "big": string(big),
		} {
			content(t, to+"/"+name, want)
		}
		for name, want := range map[string]string{"link": "../outside", "etc": "/etc", "dangling": "nowhere", "long": strings.Repeat("x", 4000)} {
			if l, err := os.Readlink(to + "/" + name); err != nil || l != want {
				t.Errorf("%s leads to %.40q (%v)", name, l, err)
			}
		}
		for name, want := range map[string]uint32{"run.sh": 0o755, "suid": 0o711, "closed": 0o500, "empty": 0o755, "big": 0o600} {
			if m := modeOf(t, to+"/"+name); m != want {
				t.Errorf("%s has mode %o, want %o", name, m, want)
			}
		}
		for _, n := range []string{"/run.sh", "/closed/in", "/closed"} {
			if fi, err := os.Stat(to + n); err != nil || !fi.ModTime().Equal(past) {
				t.Errorf("%s: %v %v, want the time kept", n, fi.ModTime(), err)
			}
		}
		absent(t, to+"/fifo")
		absent(t, to+"/sock")
		absent(t, to+"/.kern-sbx-clone")
		// A write into the copy stays there.
		write(t, to+"/.git/hooks/pre-commit", "evil")
		write(t, to+"/hard", "evil")
		content(t, from+"/.git/hooks/pre-commit", "theirs")
		content(t, from+"/run.sh", "#!/bin/sh\n")
		content(t, to+"/run.sh", "#!/bin/sh\n")
	})
}

// TestCopyDeepAndWide: what hostile code leaves needs no more descriptors.
func TestCopyDeepAndWide(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		dir := bigScratch(t)
		mkdir(t, dir+"/from/wide")
		depth := 100_000
		if testing.Short() || noOpenat2.Load() { // the old way takes four times as long
			depth = 5_000
		}
		deepTree(t, dir+"/from", depth, func(fd int) { touchAt(t, fd, "leaf", 0o4755) })
		for i := range 3000 {
			write(t, fmt.Sprintf("%s/from/wide/%d", dir, i), "")
		}
		mkdir(t, dir+"/to")
		a, b := openDir(t, dir+"/from"), openDir(t, dir+"/to")
		atMost(t, 9, func() {
			_, err := Copy(context.Background(), a, b, nil)
			must(t, err)
		})
		if names, err := os.ReadDir(dir + "/to/wide"); err != nil || len(names) != 3000 {
			t.Errorf("%d files, %v", len(names), err)
		}
		fd, err := unix.Open(dir+"/to", unix.O_PATH|unix.O_CLOEXEC, 0)
		must(t, err)
		for range depth {
			next, err := unix.Openat(fd, "d", unix.O_PATH|unix.O_CLOEXEC, 0)
			must(t, err)
			unix.Close(fd)
			fd = next
		}
		var st unix.Stat_t
		must(t, unix.Fstatat(fd, "leaf", &st, 0))
		unix.Close(fd)
		if st.Mode&0o7777 != 0o755 {
			t.Errorf("leaf has mode %o", st.Mode&0o7777)
		}
	})
}

// TestCopySparse: a petabyte of nothing is not a petabyte.
func TestCopySparse(t *testing.T) {
	dir := scratch(t)
	mkdir(t, dir+"/from")
	f, err := os.Create(dir + "/from/sparse")
	must(t, err)
	const size = 1 << 40
	if err := f.Truncate(size); err != nil {
		t.Skip("no large sparse files here: ", err)
	}
	_, err = f.WriteAt([]byte("middle"), size/2)
	must(t, err)
	must(t, f.Close())
	_, err = copyTree(t, dir+"/from", dir+"/to")
	must(t, err)
	f, err = os.Open(dir + "/to/sparse")
	must(t, err)
	defer f.Close()
	var st unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &st))
	buf := make([]byte, 6)
	f.ReadAt(buf, size/2)
	if st.Size != size || st.Blocks*512 > 1<<20 || string(buf) != "middle" {
		t.Errorf("size %d, %d bytes occupied, %q in the middle", st.Size, st.Blocks*512, buf)
	}
}

// TestCopyWithoutRanges takes the road of last resort.
func TestCopyWithoutRanges(t *testing.T) {
	dir := scratch(t)
	must(t, os.WriteFile(dir+"/a", bytes.Repeat([]byte("abc"), 400_001), 0o600))
	src, err := os.Open(dir + "/a")
	must(t, err)
	defer src.Close()
	dst, err := os.Create(dir + "/b")
	must(t, err)
	defer dst.Close()
	c := &copier{ctx: context.Background(), noRange: true, progress: new(atomic.Uint64)}
	// The size is that of the moment of opening: more is left, less is no error.
	for _, size := range []int64{0, 1, 256 << 10, 1_200_003, 5_000_000} {
		must(t, dst.Truncate(0))
		must(t, c.data(int(dst.Fd()), int(src.Fd()), size))
		a, _ := os.ReadFile(dir + "/a")
		b, _ := os.ReadFile(dir + "/b")
		if want := a[:min(size, int64(len(a)))]; !bytes.Equal(b[:min(len(b), len(want))], want) || (int64(len(b)) != size && size <= int64(len(a))) {
			t.Errorf("size %d: %d bytes", size, len(b))
		}
	}
}

func TestCopyWhatCannotBeRead(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root can read everything")
	}
	dir := scratch(t)
	mkdir(t, dir+"/from/shut/in")
	write(t, dir+"/from/shut/in/f", "x")
	write(t, dir+"/from/file", "x")
	write(t, dir+"/from/open", "x")
	must(t, os.Chmod(dir+"/from/shut", 0))
	must(t, os.Chmod(dir+"/from/file", 0o200))
	before := inventory(t, dir+"/from")
	got, err := copyTree(t, dir+"/from", dir+"/to")
	must(t, err)
	if got.Unreadable != 2 || got.FirstUnreadable == "" {
		t.Errorf("%+v", got)
	}
	if inventory(t, dir+"/from") != before {
		t.Error("the original was changed")
	}
	content(t, dir+"/to/open", "x")
}

func TestCopyStaysOnItsMount(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		dir := scratch(t)
		mkdir(t, dir+"/from/a/mnt")
		mkdir(t, dir+"/other")
		write(t, dir+"/other/secret", "s")
		write(t, dir+"/from/file", "")
		must(t, unix.Mount(dir+"/other", dir+"/from/a/mnt", "", unix.MS_BIND, ""))
		defer unix.Unmount(dir+"/from/a/mnt", 0)
		must(t, unix.Mount(dir+"/other/secret", dir+"/from/file", "", unix.MS_BIND, ""))
		defer unix.Unmount(dir+"/from/file", 0)
		bothWays(t, func(t *testing.T) {
			to := fmt.Sprintf("%s/to%d", dir, time.Now().UnixNano())
			got, err := copyTree(t, dir+"/from", to)
			must(t, err)
			if got.Mounts != 2 {
				t.Errorf("%+v", got)
			}
			absent(t, to+"/a/mnt")
			absent(t, to+"/file")
		})
	})
}

func TestCopyThatDoesNotFit(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		dir := scratch(t)
		mkdir(t, dir+"/from")
		mkdir(t, dir+"/to")
		must(t, unix.Mount("tmpfs", dir+"/to", "tmpfs", 0, "size=1m"))
		defer unix.Unmount(dir+"/to", unix.MNT_DETACH)
		must(t, os.WriteFile(dir+"/from/big", bytes.Repeat([]byte("x"), 3<<20), 0o600))
		_, err := copyTree(t, dir+"/from", dir+"/to")
		var full *NoSpaceError
		if !errors.As(err, &full) || full.Need < 3<<20 || full.Free > 1<<20 {
			t.Errorf("%v", err)
		}
		absent(t, dir+"/to/big")
		// What grew after the look: ended by the disk, and said.
		a, b := openDir(t, dir+"/from"), openDir(t, dir+"/to")
		ctx, cancel := context.WithCancelCause(context.Background())
		c := &copier{ctx: ctx, stop: cancel, root: int(b.Fd()), to: int(b.Fd()), progress: new(atomic.Uint64)}
		c.walker = walker{visit: c.entry, failed: c.unread, enter: c.enter, leave: c.leave, mount: c.mount, asIs: true}
		_ = c.once(ctx, int(a.Fd()))
		if err := context.Cause(ctx); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), `"big"`) {
			t.Errorf("%v", err)
		}
	})
}

// TestCopyWhileItIsSwapped: an entry that becomes a link, a FIFO or a directory
// while it is copied leads nowhere and blocks nothing.
func TestCopyWhileItIsSwapped(t *testing.T) {
	dir := scratch(t)
	mkdir(t, dir+"/from")
	write(t, dir+"/secret", "SECRET")
	write(t, dir+"/from/f", "plain")
	must(t, os.Symlink(dir+"/secret", dir+"/link"))
	must(t, unix.Mkfifo(dir+"/fifo", 0o600))
	mkdir(t, dir+"/dir")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			for _, n := range []string{"/link", "/fifo", "/dir"} {
				for range 2 {
					_ = unix.Renameat2(unix.AT_FDCWD, dir+n, unix.AT_FDCWD, dir+"/from/f", unix.RENAME_EXCHANGE)
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	end := time.Now().Add(time.Second)
	for i := 0; time.Now().Before(end); i++ {
		to := fmt.Sprintf("%s/to%d", dir, i)
		_, _ = copyTree(t, dir+"/from", to)
		if b, err := os.ReadFile(to + "/f"); err == nil && string(b) == "SECRET" {
			if fi, _ := os.Lstat(to + "/f"); fi.Mode().IsRegular() {
				t.Fatal("a link was followed")
			}
		}
		must(t, Remove(to))
	}
	close(stop)
	<-done
}

func TestCopyEnds(t *testing.T) {
	dir := scratch(t)
	mkdir(t, dir+"/from")
	mkdir(t, dir+"/to")
	for i := range 1000 {
		write(t, fmt.Sprintf("%s/from/%d", dir, i), "x")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var n atomic.Uint64
	if _, err := Copy(ctx, openDir(t, dir+"/from"), openDir(t, dir+"/to"), &n); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := Copy(context.Background(), openDir(t, dir+"/from"), openDir(t, dir+"/to"), &n); err != nil || n.Load() < 2000 {
		t.Errorf("%v, progress %d", err, n.Load())
	}
	// Into what is not empty: an error, nothing is written over.
	if _, err := Copy(context.Background(), openDir(t, dir+"/from"), openDir(t, dir+"/to"), nil); !errors.Is(err, unix.EEXIST) {
		t.Errorf("%v", err)
	}
}

func fingerprint(t testing.TB, dir string) string {
	t.Helper()
	d := openDir(t, dir)
	defer d.Close()
	sum, err := Fingerprint(context.Background(), d)
	must(t, err)
	return string(sum[:])
}

// TestFingerprint tries what a box can do to a file without its looks changing.
func TestFingerprint(t *testing.T) {
	for name, in := range map[string]string{"disk": "", "memory": "/dev/shm"} {
		t.Run(name, func(t *testing.T) {
			dir := scratchIn(t, in)
			mkdir(t, dir+"/d/pkg")
			write(t, dir+"/d/pkg/a.py", "one = 1\n")
			write(t, dir+"/d/pkg/b.py", "two = 2\n")
			must(t, os.Symlink("a.py", dir+"/d/pkg/l"))
			a := dir + "/d/pkg/a.py"
			look := func() (os.FileInfo, unix.Stat_t) {
				fi, err := os.Stat(a)
				must(t, err)
				var st unix.Stat_t
				must(t, unix.Stat(a, &st))
				return fi, st
			}
			for what, tamper := range map[string]func(){
				"rewritten in place": func() { write(t, a, "one = 9\n") },
				"mapped": func() {
					f, err := os.OpenFile(a, os.O_RDWR, 0)
					must(t, err)
					defer f.Close()
					m, err := unix.Mmap(int(f.Fd()), 0, 8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
					must(t, err)
					m[6] ^= 1
					must(t, unix.Munmap(m))
				},
				"replaced": func() {
					write(t, dir+"/d/pkg/new", "one = 7\n")
					must(t, os.Rename(dir+"/d/pkg/new", a))
				},
				"exchanged": func() {
					must(t, unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, dir+"/d/pkg/b.py", unix.RENAME_EXCHANGE))
				},
				"added": func() { write(t, dir+"/d/sitecustomize.py", "") },
				"moved": func() {
					must(t, os.Rename(dir+"/d/pkg", dir+"/d/other"))
					mkdir(t, dir+"/d/pkg")
					for _, n := range []string{"a.py", "b.py", "l"} {
						must(t, os.Rename(dir+"/d/other/"+n, dir+"/d/pkg/"+n))
					}
					must(t, os.Remove(dir+"/d/other"))
					must(t, os.Rename(dir+"/d/pkg/b.py", dir+"/d/pkg/c.py"))
					write(t, dir+"/d/pkg/b.py", "two = 2\n")
				},
				"link":      func() { os.Remove(dir + "/d/pkg/l"); must(t, os.Symlink("b.py", dir+"/d/pkg/l")) },
				"made x":    func() { must(t, os.Chmod(a, 0o755)) },
				"FIFO":      func() { _ = os.Remove(dir + "/d/fifo"); must(t, unix.Mkfifo(dir+"/d/fifo", 0o600)) },
				"link name": func() { _ = os.Remove(dir + "/d/z.py"); must(t, os.Link(a, dir+"/d/z.py")) },
			} {
				time.Sleep(FingerprintSettle)
				was := fingerprint(t, dir+"/d")
				if fingerprint(t, dir+"/d") != was {
					t.Fatal("not the same twice")
				}
				fi, _ := look()
				tamper()
				// A box can set this one back.
				_ = os.Chtimes(a, fi.ModTime(), fi.ModTime())
				if fingerprint(t, dir+"/d") == was {
					t.Errorf("%s: not seen", what)
				}
			}
		})
	}
}

func TestFingerprintOfWhatCannotBeRead(t *testing.T) {
	dir := scratch(t)
	mkdir(t, dir+"/d")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Fingerprint(ctx, openDir(t, dir+"/d")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func BenchmarkFingerprint(b *testing.B) {
	dir := scratch(b)
	for i := range 200 {
		mkdir(b, fmt.Sprintf("%s/%d", dir, i))
		for j := range 100 {
			write(b, fmt.Sprintf("%s/%d/%d.py", dir, i, j), "x")
		}
	}
	for b.Loop() {
		fingerprint(b, dir)
	}
}

func BenchmarkCopy(b *testing.B) {
	dir := scratch(b)
	for i := range 50 {
		mkdir(b, fmt.Sprintf("%s/from/%d", dir, i))
		for j := range 100 {
			write(b, fmt.Sprintf("%s/from/%d/%d.py", dir, i, j), strings.Repeat("x", 4000))
		}
	}
	for i := 0; b.Loop(); i++ {
		_, err := copyTree(b, dir+"/from", fmt.Sprintf("%s/to%d", dir, i))
		must(b, err)
	}
}
