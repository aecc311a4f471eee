//go:build linux && amd64

package rig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// A run directory is base/kern-sbx-rig-UID/g-RANDOM. Its own flock, held by the
// runner and by nobody else, is the proof that the runner lives: the kernel drops
// it however the runner ends. The parent's flock is held only while directories
// are made or swept, so that none is swept between its making and its locking.

// plainPath tells whether path survives the kernel's command line and mount(8)'s
// option list as it is.
func plainPath(path string) bool {
	for _, c := range path {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.ContainsRune("._-/+@:", c):
		default:
			return false
		}
	}
	return filepath.IsAbs(path)
}

func parentOf(base string) string {
	return filepath.Join(base, fmt.Sprintf("kern-sbx-rig-%d", os.Getuid()))
}

// openLocked opens the directory at path and flocks it, provided that it is ours
// alone; how is LOCK_EX, or LOCK_EX|LOCK_NB.
func openLocked(path string, how int) (*os.File, error) {
	for {
		fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		f := os.NewFile(uintptr(fd), path)
		var held, now syscall.Stat_t
		if err = syscall.Fstat(fd, &held); err == nil && (int(held.Uid) != os.Getuid() || held.Mode&0o077 != 0) {
			err = errors.New("not a directory of ours alone (mode 0700)")
		}
		for err == nil {
			if err = syscall.Flock(fd, how); !errors.Is(err, syscall.EINTR) {
				break
			}
			err = nil
		}
		if err != nil {
			f.Close()
			return nil, &os.PathError{Op: "lock", Path: path, Err: err}
		}
		// Another run may have removed it while we waited for the lock.
		if syscall.Lstat(path, &now) == nil && now.Ino == held.Ino && now.Dev == held.Dev {
			return f, nil
		}
		f.Close()
		if how&syscall.LOCK_NB != 0 {
			return nil, &os.PathError{Op: "lock", Path: path, Err: os.ErrNotExist}
		}
		if err := os.Mkdir(path, 0o700); err != nil && !os.IsExist(err) {
			return nil, err
		}
	}
}

// sweep removes the run directories below parent whose runner is gone.
// The caller holds parent's lock.
func sweep(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, "g-*"))
	for _, d := range dirs {
		if f, err := openLocked(d, syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			os.RemoveAll(d)
			f.Close()
		}
	}
}

// sweepAll sweeps every base a run could have used, and removes the parents that
// hold nothing more.
func sweepAll() {
	for _, base := range bases() {
		parent := parentOf(base)
		if f, err := openLocked(parent, syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			sweep(parent)
			syscall.Rmdir(parent)
			f.Close()
		}
	}
}

// newDir makes a run directory below base. It belongs to us while the file is open.
func newDir(base string) (string, *os.File, error) {
	parent := parentOf(base)
	if err := os.Mkdir(parent, 0o700); err != nil && !os.IsExist(err) {
		return "", nil, err
	}
	lock, err := openLocked(parent, syscall.LOCK_EX)
	if err != nil {
		return "", nil, err
	}
	defer lock.Close()
	dir, err := os.MkdirTemp(parent, "g-")
	if err != nil {
		return "", nil, err
	}
	own, err := openLocked(dir, syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		os.Remove(dir)
		return "", nil, err
	}
	return dir, own, nil
}

// bases are the places a run directory may be in, best first. The guest's memory is
// a file there, so a tmpfs is best.
func bases() []string { return []string{"/dev/shm", os.TempDir()} }

// pickBase is the first base that can hold mem MiB and lets memory be executed,
// which a container's /dev/shm often does not.
func pickBase(mem int) (string, error) {
	const noexec = 8 // ST_NOEXEC
	why := ""
	for _, base := range bases() {
		var s syscall.Statfs_t
		switch err := syscall.Statfs(base, &s); {
		case err != nil:
			why += fmt.Sprintf("; %s: %v", base, err)
		case !plainPath(base):
			why += fmt.Sprintf("; %s: has characters other than letters, digits and ._-/+@:", base)
		case s.Flags&noexec != 0:
			why += fmt.Sprintf("; %s: mounted noexec", base)
		case s.Bavail*uint64(s.Bsize) < uint64(mem)<<20:
			why += fmt.Sprintf("; %s: less than %d MiB free", base, mem)
		default:
			return base, nil
		}
	}
	return "", Unavailable("cannot: no place for the guest's memory" + why)
}
