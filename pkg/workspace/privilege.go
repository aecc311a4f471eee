package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// clearedMax is how many files ClearPrivilege names.
const clearedMax = 1000

const capsAttr = "security.capability"

// Cleared is a file that ClearPrivilege took a privilege from, or the number
// of further ones.
type Cleared struct {
	// Path is relative to the searched directory. Its bytes are the box's: make
	// control characters visible before printing it.
	Path string
	// What was taken away: "setuid", "setgid", "file capabilities", or more of
	// them with ", " between.
	What string
	// More is 0, except in a last element without Path and What, which stands
	// for that many files beyond the 1000 that are named.
	More int
}

// ClearPrivilege removes the setuid and setgid bits and the file capabilities
// (security.capability) of every regular file below dir that was changed since
// a run began, and says which (rule S1: a box that runs as host root leaves a
// mode 6755 shell in the workspace, and any local user is root afterwards).
//
// "Changed" means ctime, which a box cannot set: since is the time just before
// the box started, from time.Now, so that a step of the clock during the run is
// noticed. Files older than that keep what they have, they are the user's. On a
// file system whose clock may be another machine's (network, FUSE) every file
// counts as changed.
//
// Only what exec honours is cleared. setgid on a directory stays: it hands the
// group down to new entries, which is ordinary in shared trees, and lends
// nobody an identity.
//
// Nothing is opened but directories and, without any access right (O_PATH),
// files that have something to clear; bits are changed through a descriptor
// that was seen to be a regular file. At most seven descriptors are open, dir
// included. Mount points are not crossed: each writable mount of a box needs a
// call of its own.
//
// The box must be dead. If another box writes to the same tree, that one can
// rename a directory to where the walk has been (it begins anew when it notices)
// or set a bit right after it; only the call after that box's own end finds
// that. A file with several hard links is cleared under all its names, also
// those outside dir.
//
// An error means that something may be left: directories or files that could
// not be handled (the first is named), or the end of ctx. What was cleared is
// returned with it.
func ClearPrivilege(ctx context.Context, dir *os.File, since time.Time) ([]Cleared, error) {
	c := clearer{cutoff: cutoff(since, time.Now(), clockTick())}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &fs); err != nil || !localClock(int64(fs.Type)) {
		c.all = true
	}
	c.walker = walker{visit: c.file, failed: c.failed}
	err := c.walk(ctx, dir)
	if c.more > 0 {
		c.list = append(c.list, Cleared{More: c.more})
	}
	if err == nil {
		err = c.first
	}
	if err != nil {
		err = fmt.Errorf("setuid bits and file capabilities may be left: %w", err)
	}
	return c.list, err
}

// clockTick is the longest step of the clock that file times are taken from:
// one tick of the kernel, 1 to 10 ms.
func clockTick() time.Duration {
	var ts unix.Timespec
	if unix.ClockGetres(unix.CLOCK_REALTIME_COARSE, &ts) != nil {
		return 10 * time.Millisecond
	}
	return time.Duration(ts.Nano())
}

// cutoff is the ctime from which on a file counts as changed since a time.
//
// File times come from a clock that moves once a tick, so a file changed at
// since may carry a time that is one tick older. A virtual CPU that is not
// scheduled also skips ticks while its neighbours go on with the old time (on
// two busy ones 6 ms were seen with a tick of 4): one second is far above any
// such gap, and it errs on the safe side (a file that
// got its bit in the second before the run and was left alone loses it).
// A clock that was set back during the run is seen by comparing with the
// monotonic one.
func cutoff(since, now time.Time, tick time.Duration) time.Time {
	back := now.Sub(since) - now.Round(0).Sub(since.Round(0))
	return since.Add(-max(back, 0) - max(tick, time.Second)).Round(0)
}

// localClock tells file systems whose file times are this kernel's.
func localClock(magic int64) bool {
	switch magic {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, 0x2fc12fc1 /* ZFS */ :
		return true
	}
	return false
}

type clearer struct {
	walker
	cutoff time.Time
	all    bool
	list   []Cleared
	more   int
	first  error
}

func (c *clearer) failed(_ int, name string, err error) {
	if name == "" {
		name = "."
	}
	if c.first == nil {
		c.first = fmt.Errorf("%s: %w", strconv.QuoteToGraphic(c.rel(name)), err)
	}
}

// file looks at one entry and clears it if it must be.
func (c *clearer) file(dirfd int, name string, typ byte) {
	if typ != unix.DT_REG && typ != unix.DT_UNKNOWN && typ != unix.DT_DIR {
		return
	}
	var st unix.Statx_t
	err := unix.Statx(dirfd, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT,
		unix.STATX_TYPE|unix.STATX_MODE|unix.STATX_CTIME, &st)
	if err == unix.ENOENT {
		return
	}
	if err != nil {
		c.failed(dirfd, name, err)
		return
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	if !c.all && time.Unix(st.Ctime.Sec, int64(st.Ctime.Nsec)).Before(c.cutoff) {
		return
	}
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) == 0 && !hasCaps(dirfd, name) {
		return
	}
	what, err := clearFile(dirfd, name)
	if err != nil {
		c.failed(dirfd, name, err)
	}
	switch {
	case what == "":
	case len(c.list) == clearedMax:
		c.more++
	default:
		c.list = append(c.list, Cleared{Path: c.rel(name), What: what})
	}
}

// noGetxattrat is set once the kernel (before Linux 6.13) or a seccomp filter
// has shown that it has no getxattrat.
var noGetxattrat atomic.Bool

// hasCaps is a cheap first look, by name and without following a link there.
// What cannot be told counts as yes.
func hasCaps(dirfd int, name string) bool {
	err := error(unix.ENOSYS)
	if !noGetxattrat.Load() {
		err = getxattrat(dirfd, name, capsAttr)
		if err == unix.ENOSYS || err == unix.EPERM {
			noGetxattrat.Store(true)
			err = unix.ENOSYS
		}
	}
	if err == unix.ENOSYS { // twice the time, for the way through /proc
		_, err = unix.Lgetxattr(fdPath(dirfd)+"/"+name, capsAttr, nil)
	}
	return err != unix.ENODATA && err != unix.EOPNOTSUPP
}

// getxattrat asks whether an entry has an attribute: nil or ENODATA.
func getxattrat(dirfd int, name, attr string) error {
	n, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	a, err := unix.BytePtrFromString(attr)
	if err != nil {
		return err
	}
	var args struct { // struct xattr_args; a size of 0 asks for the length alone
		value       uint64
		size, flags uint32
	}
	_, _, errno := unix.Syscall6(unix.SYS_GETXATTRAT, uintptr(dirfd), uintptr(unsafe.Pointer(n)), unix.AT_SYMLINK_NOFOLLOW,
		uintptr(unsafe.Pointer(a)), uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args))
	if errno != 0 {
		return errno
	}
	return nil
}

// clearFile takes the privileges from an entry if it is a regular file on the
// same mount, and says which there were.
func clearFile(dirfd int, name string) (what string, err error) {
	fd, err := openEntry(dirfd, name, unix.O_PATH)
	if err == unix.EXDEV || err == unix.ENOENT || err == unix.ELOOP { // a mount point, or swapped
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return "", nil
	}
	var done []string
	var errs error
	if bits := st.Mode & (unix.S_ISUID | unix.S_ISGID); bits != 0 {
		errs = chmodFd(fd, st.Mode&0o7777&^bits)
		if errs == nil && bits&unix.S_ISUID != 0 {
			done = append(done, "setuid")
		}
		if errs == nil && bits&unix.S_ISGID != 0 {
			done = append(done, "setgid")
		}
	}
	switch err := unix.Removexattr(fdPath(fd), capsAttr); err {
	case nil:
		done = append(done, "file capabilities")
	case unix.ENODATA, unix.EOPNOTSUPP:
	case unix.EPERM:
		// An ordinary user may not remove capabilities, nor could its box add them.
		if n, e := unix.Getxattr(fdPath(fd), capsAttr, nil); e == nil && n > 0 {
			errs = errors.Join(errs, err)
		}
	default:
		errs = errors.Join(errs, err)
	}
	return strings.Join(done, ", "), errs
}
