package hostroot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A skeleton is the directory Cache/hostroot/KEY of mode 0700. It holds root
// (the skeleton itself), empty and nothing (an empty directory and an empty
// file, to cover what a box must not see), and complete, whose time is that of
// the last use, to the day.
const (
	tempPrefix = ".tmp-" // being built
	oldPrefix  = ".old-" // being removed
	tempAge    = time.Hour
	unusedAge  = 7 * 24 * time.Hour
	touchAge   = 24 * time.Hour
)

// cacheDir returns Cache/hostroot, made when missing.
func cacheDir(cache string) (string, error) {
	if !filepath.IsAbs(cache) {
		return "", fmt.Errorf("the cache directory %q is not an absolute path: set XDG_CACHE_HOME to one", cache)
	}
	cache = filepath.Clean(cache)
	base := filepath.Join(cache, "hostroot")
	for _, p := range []string{cache, base} {
		var st unix.Stat_t
		err := lstat(p, &st)
		if err == unix.ENOENT {
			if err := os.MkdirAll(p, 0o700); err != nil {
				return "", fmt.Errorf("cannot make the cache directory: %w: set XDG_CACHE_HOME to a directory of your own", err)
			}
			err = lstat(p, &st)
		}
		if err != nil {
			return "", fmt.Errorf("cannot use the cache directory %q: %w: set XDG_CACHE_HOME to a directory of your own", p, err)
		}
		if why := foreign(&st, unix.S_IFDIR); why != "" {
			return "", fmt.Errorf("the cache directory %q %s: set XDG_CACHE_HOME to a directory of your own", p, why)
		}
	}
	return base, nil
}

// foreign says why something is not safely ours, "" when it is.
func foreign(st *unix.Stat_t, want uint32) string {
	switch {
	case kind(st) == unix.S_IFLNK:
		return "is a symbolic link"
	case kind(st) != want:
		return "is not what it should be (a directory)"
	case int(st.Uid) != os.Geteuid():
		return "belongs to uid " + strconv.Itoa(int(st.Uid)) + ", not to uid " + strconv.Itoa(os.Geteuid())
	case st.Mode&0o022 != 0:
		return "can be written by others"
	}
	return ""
}

// whole reports whether dir is a skeleton that is complete and only ours, and
// when it was last used.
func whole(dir string) (used time.Time, ok bool) {
	var st unix.Stat_t
	for _, e := range [...]struct {
		name string
		kind uint32
	}{{"", unix.S_IFDIR}, {"/root", unix.S_IFDIR}, {"/complete", unix.S_IFREG}} {
		if lstat(dir+e.name, &st) != nil || foreign(&st, e.kind) != "" {
			return used, false
		}
	}
	return time.Unix(st.Mtim.Unix()), true
}

// reuse reports whether dir can be used as it is, and notes that it is.
func reuse(dir string) bool {
	used, ok := whole(dir)
	if !ok || time.Since(used) < touchAge {
		return ok
	}
	// A build elsewhere may be removing dir just now for being old. It looks at
	// the time once more after it has moved dir away, so either it sees this
	// time or we do not find the file.
	now := time.Now()
	if os.Chtimes(dir+"/complete", now, now) != nil {
		return false
	}
	_, ok = whole(dir)
	return ok
}

// build makes the skeleton base/key. Any number of processes may do so at
// once; the first to finish wins, and none ever changes a good one.
func (h host) build(base, key string, v *view) error {
	tmp, lock, err := newTemp(base)
	if err != nil {
		return err
	}
	defer lock.Close()
	done := false
	defer func() {
		if !done {
			_ = os.RemoveAll(tmp)
		}
	}()
	for _, d := range []string{"root", "empty"} {
		if err := mkdir(filepath.Join(tmp, d)); err != nil {
			return err
		}
	}
	if err := h.fill(filepath.Join(tmp, "root"), v); err != nil {
		return err
	}
	for _, f := range []string{"nothing", "complete"} {
		if err := writeFile(filepath.Join(tmp, f), nil, 0o444, time.Time{}); err != nil {
			return err
		}
	}
	if err := os.Remove(filepath.Join(tmp, "lock")); err != nil {
		return err
	}
	done, err = install(base, tmp, key)
	if err != nil {
		return err
	}
	sweep(base, key)
	return nil
}

// install gives tmp its final name, unless a good skeleton has it already.
func install(base, tmp, key string) (moved bool, err error) {
	dir := filepath.Join(base, key)
	if err := os.Rename(tmp, dir); err == nil {
		return true, nil
	}
	if _, ok := whole(dir); ok {
		return false, nil
	}
	// Something incomplete is in the way. Only one process at a time decides
	// so, or the second would move away the good one of the first.
	l, err := lockFile(filepath.Join(base, "lock"), 5*time.Second)
	if err != nil {
		return false, err
	}
	defer l.Close()
	if _, ok := whole(dir); ok {
		return false, nil
	}
	old := filepath.Join(base, oldPrefix+random())
	if err := os.Rename(dir, old); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	err = os.Rename(tmp, dir)
	_ = os.RemoveAll(old)
	return err == nil, err
}

// lockFile opens and locks a file, and waits at most that long.
func lockFile(p string, wait time.Duration) (*os.File, error) {
	f, err := os.OpenFile(p, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(wait); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR || time.Now().After(end) {
			f.Close()
			return nil, fmt.Errorf("cannot lock %q: %w", p, err)
		}
	}
}

// newTemp makes a directory for a build and a file in it that stays locked
// while this process lives.
func newTemp(base string) (string, *os.File, error) {
	for range 10 {
		tmp := filepath.Join(base, tempPrefix+random())
		if err := os.Mkdir(tmp, 0o700); err != nil {
			if errors.Is(err, os.ErrExist) {
				continue
			}
			return "", nil, err
		}
		f, err := os.OpenFile(filepath.Join(tmp, "lock"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			return "", nil, err
		}
		// A sweep may have found the file before it was locked.
		var st unix.Stat_t
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil && lstat(f.Name(), &st) == nil {
			return tmp, f, nil
		}
		f.Close()
		_ = os.RemoveAll(tmp)
	}
	return "", nil, fmt.Errorf("cannot make a directory in %q", base)
}

func random() string {
	var b [8]byte
	if _, err := unix.Getrandom(b[:], 0); err != nil {
		return strconv.FormatInt(time.Now().UnixNano(), 36)
	}
	return fmt.Sprintf("%x", b)
}

// sweep removes what killed builds left and skeletons that nobody has used for
// a week. It fails silently: the next build tries again.
func sweep(base, keep string) {
	l, err := lockFile(filepath.Join(base, "lock"), 0)
	if err != nil {
		return // another one is at it
	}
	defer l.Close()
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, e := range entries {
		name, p := e.Name(), filepath.Join(base, e.Name())
		switch {
		case !e.IsDir() || name == keep:
		case strings.HasPrefix(name, tempPrefix):
			if deadBuild(p) {
				_ = os.RemoveAll(p)
			}
		case strings.HasPrefix(name, oldPrefix):
			_ = os.RemoveAll(p)
		case len(name) == 32:
			removeUnused(base, name)
		}
	}
}

func deadBuild(tmp string) bool {
	var st unix.Stat_t
	if lstat(tmp, &st) != nil {
		return false
	}
	if time.Since(time.Unix(st.Mtim.Unix())) > tempAge {
		return true
	}
	f, err := os.OpenFile(filepath.Join(tmp, "lock"), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false // it is just beginning or ending
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	// Removed while the lock is held, so that its builder cannot begin now.
	_ = os.RemoveAll(tmp)
	return false
}

func removeUnused(base, name string) {
	dir := filepath.Join(base, name)
	unused := func(d string) bool {
		var st unix.Stat_t
		return lstat(d+"/complete", &st) == nil && time.Since(time.Unix(st.Mtim.Unix())) > unusedAge
	}
	if !unused(dir) {
		return
	}
	if mounted(dir) {
		// A box may run for a month, and the files are below its root.
		now := time.Now()
		_ = os.Chtimes(dir+"/complete", now, now)
		return
	}
	old := filepath.Join(base, oldPrefix+random())
	if os.Rename(dir, old) != nil {
		return
	}
	if !unused(old) { // taken into use in between, see reuse
		_ = os.Rename(old, dir)
		return
	}
	_ = os.RemoveAll(old)
}

// mounted reports whether the root of a process that we can look at is made
// of the skeleton dir: kern's overlay names it as a layer.
func mounted(dir string) bool {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return true
	}
	mine, _ := os.Readlink("/proc/self/ns/mnt")
	// The path may begin otherwise for them; skeletons of other caches of this
	// machine have the same key.
	all := filepath.Dir(dir)
	needle := filepath.Join(filepath.Base(filepath.Dir(all)), filepath.Base(all), filepath.Base(dir), "root")
	for _, e := range procs {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		if ns, err := os.Readlink("/proc/" + e.Name() + "/ns/mnt"); err != nil || ns == mine {
			continue
		}
		if data, err := os.ReadFile("/proc/" + e.Name() + "/mounts"); err == nil && strings.Contains(string(data), needle) {
			return true
		}
	}
	return false
}
