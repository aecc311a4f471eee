package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Copied says what a Copy left out.
type Copied struct {
	// Special counts FIFOs, sockets and devices.
	Special int
	// Mounts counts mount points.
	Mounts int
	// Unreadable counts files and directories that the caller may not read, and
	// FirstUnreadable is the first of them, relative to the copied directory. Its
	// bytes may be hostile: make control characters visible before printing it.
	Unreadable      int
	FirstUnreadable string
}

// NoSpaceError says that a copy was not begun because it would not fit.
type NoSpaceError struct {
	Need, Free int64 // bytes
}

func (e *NoSpaceError) Error() string {
	return fmt.Sprintf("the copy needs %d bytes and %d are free", e.Need, e.Free)
}

// Copy copies what is in the directory from into the empty directory to, which
// nothing else may be using: no box has it yet. from may be hostile, and may be
// written to meanwhile; nothing in it is changed, also not the permissions of
// what cannot be read.
//
// Regular files share their blocks with the original where the file system can
// (FICLONE), else their data is copied and their holes stay holes. Modes are
// kept without setuid and setgid, and modification times are kept; the owner is
// the caller, extended attributes (file capabilities, ACLs) are dropped, and
// further hard links become files of their own. A symbolic link is copied as a
// link, never followed. What Copied counts is left out: special files, mount
// points, what the caller may not read.
//
// A *NoSpaceError is returned before anything is copied when the data is more
// than the file system of to has room for. At most ten descriptors are open,
// both directories included, and the memory used does not grow with the width
// of the tree. progress, unless it is nil, changes for as long as the copy gets
// on, so that a caller can tell slow from stuck (a dead network mount). After an
// error, to holds what had been copied.
func Copy(ctx context.Context, from, to *os.File, progress *atomic.Uint64) (Copied, error) {
	defer runtime.KeepAlive(from)
	defer runtime.KeepAlive(to)
	if progress == nil {
		progress = new(atomic.Uint64)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := &copier{ctx: ctx, stop: cancel, root: int(to.Fd()), to: int(to.Fd()), progress: progress}
	err := c.fits(int(from.Fd()), from)
	if err == nil {
		c.done = Copied{}
		c.walker = walker{visit: c.entry, failed: c.unread, enter: c.enter, leave: c.leave, mount: c.mount, asIs: true}
		err = c.once(ctx, int(from.Fd()))
	}
	c.up()
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err == errMoved {
		err = errors.New("directories were moved while they were copied")
	}
	return c.done, err
}

type copier struct {
	walker
	ctx      context.Context
	stop     context.CancelCauseFunc
	progress *atomic.Uint64
	root, to int  // the destination, and the directory in it that is being filled
	clone    bool // FICLONE works from there to here, as far as is known
	noRange  bool // copy_file_range does not
	buf      []byte
	done     Copied
}

// fits compares what the files occupy with what is free.
func (c *copier) fits(fd int, from *os.File) error {
	var here, there unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &here), unix.Fstat(c.root, &there)); err != nil {
		return err
	}
	c.clone = here.Dev == there.Dev
	var fs unix.Statfs_t
	if err := unix.Fstatfs(c.root, &fs); err != nil {
		return err
	}
	need, tried := int64(0), false
	w := walker{asIs: true, failed: func(int, string, error) {}}
	w.visit = func(dirfd int, name string, typ byte) {
		c.progress.Add(1)
		if typ != unix.DT_REG && typ != unix.DT_UNKNOWN {
			return
		}
		var st unix.Stat_t
		if unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			return
		}
		// What a sparse file does not occupy is not copied.
		need += min(st.Size, st.Blocks*512)
		if c.clone && !tried && st.Size > 0 {
			tried = true
			c.clone = c.tryClone(dirfd, name)
		}
	}
	if err := w.walk(c.ctx, from); err != nil {
		return err
	}
	free := int64(fs.Bavail) * fs.Bsize
	if need > free && !(tried && c.clone) {
		return &NoSpaceError{need, free}
	}
	return nil
}

// tryClone says whether a file of the tree can share its blocks with a copy.
func (c *copier) tryClone(dirfd int, name string) bool {
	src, _, err := openRegular(dirfd, name)
	if err != nil {
		return true // not known; the copy will find out
	}
	defer unix.Close(src)
	const probe = ".kern-sbx-clone"
	dst, err := unix.Openat(c.root, probe, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return false
	}
	defer unix.Unlinkat(c.root, probe, 0)
	defer unix.Close(dst)
	return unix.IoctlFileClone(dst, src) == nil
}

// errNotRegular stands for a name that is not, or no longer, a regular file.
var errNotRegular = errors.New("not a regular file")

// openRegular opens a regular file of a hostile directory for reading. What it
// is, is looked at before it is opened: a FIFO would block, a device might act.
func openRegular(dirfd int, name string) (int, unix.Stat_t, error) {
	var st unix.Stat_t
	path, err := openEntry(dirfd, name, unix.O_PATH)
	if err != nil {
		return -1, st, err
	}
	defer unix.Close(path)
	if err := unix.Fstat(path, &st); err != nil {
		return -1, st, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, st, errNotRegular
	}
	fd, err := retry(func() (int, error) { return unix.Open(fdPath(path), unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	return fd, st, err
}

// fail ends the copy.
func (c *copier) fail(name string, err error) {
	if errno, ok := err.(unix.Errno); ok {
		err = fmt.Errorf("cannot copy %s: %w", strconv.QuoteToGraphic(c.rel(name)), errno)
	}
	c.stop(err)
}

func (c *copier) stopped() bool { return c.ctx.Err() != nil }

// unread is about a directory that could not be opened, or read to its end.
func (c *copier) unread(_ int, name string, err error) {
	if err != unix.EACCES && err != unix.EPERM {
		c.fail(name, err)
		return
	}
	if c.done.Unreadable++; c.done.FirstUnreadable == "" {
		c.done.FirstUnreadable = c.rel(name)
	}
}

func (c *copier) mount() { c.done.Mounts++ }

// enter makes the directory that the walk went down into, and goes there.
func (c *copier) enter(name string) {
	if c.stopped() {
		return
	}
	c.progress.Add(1)
	err := unix.Mkdirat(c.to, name, 0o700)
	if err == nil {
		var fd int
		if fd, err = openDirAt(c.to, name); err == nil {
			c.up()
			c.to = fd
			return
		}
	}
	c.stop(fmt.Errorf("cannot copy the directory %s: %w", strconv.QuoteToGraphic(c.rel("")), err))
}

// up lets go of the directory that is being filled.
func (c *copier) up() {
	if c.to != c.root {
		_ = unix.Close(c.to)
		c.to = c.root
	}
}

// leave finishes the directory that is being filled, and goes back up: nobody
// else can have moved it.
func (c *copier) leave(fd int) {
	if c.stopped() {
		return
	}
	// First, as the mode may be one that keeps us from it.
	parent, err := openDirAt(c.to, "..")
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err == nil {
		err = finishCopy(c.to, &st)
	}
	if err != nil {
		c.stop(fmt.Errorf("cannot copy the directory %s: %w", strconv.QuoteToGraphic(c.rel("")), err))
		return
	}
	c.up()
	if same, err := sameFile(parent, c.root); err == nil && same {
		_ = unix.Close(parent)
		return
	}
	c.to = parent
}

func sameFile(a, b int) (bool, error) {
	var x, y unix.Stat_t
	err := errors.Join(unix.Fstat(a, &x), unix.Fstat(b, &y))
	return x.Dev == y.Dev && x.Ino == y.Ino, err
}

// finishCopy gives a copied file or directory its mode and time.
func finishCopy(fd int, st *unix.Stat_t) error {
	times := []unix.Timespec{st.Atim, st.Mtim}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, fdPath(fd), times, 0); err != nil {
		return err
	}
	return unix.Fchmod(fd, st.Mode&0o1777)
}

// entry copies what is not a directory.
func (c *copier) entry(dirfd int, name string, _ byte) {
	if c.stopped() {
		return
	}
	c.progress.Add(1)
	src, st, err := openRegular(dirfd, name)
	switch err {
	case nil:
		err = c.regular(src, name, &st)
		_ = unix.Close(src)
	case errNotRegular:
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			err = c.link(dirfd, name, &st)
		case unix.S_IFDIR:
			err = errMoved
		default:
			c.done.Special++
			err = nil
		}
	case unix.ENOENT: // gone
		err = nil
	case unix.EXDEV:
		c.mount()
		err = nil
	case unix.EACCES, unix.EPERM:
		c.unread(dirfd, name, err)
		err = nil
	}
	if err != nil {
		c.fail(name, err)
	}
}

func (c *copier) link(dirfd int, name string, st *unix.Stat_t) error {
	if c.buf == nil {
		c.buf = make([]byte, copyBuffer)
	}
	n, err := unix.Readlinkat(dirfd, name, c.buf[:unix.PathMax])
	if err == unix.EINVAL || err == unix.ENOENT {
		return errMoved
	}
	if err != nil {
		return err
	}
	if err := unix.Symlinkat(string(c.buf[:n]), c.to, name); err != nil {
		return err
	}
	return unix.UtimesNanoAt(c.to, name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

func (c *copier) regular(src int, name string, st *unix.Stat_t) error {
	dst, err := unix.Openat(c.to, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	if st.Size > 0 {
		if c.clone {
			err = unix.IoctlFileClone(dst, src)
			c.clone = err == nil
		}
		if !c.clone {
			err = c.data(dst, src, st.Size)
		}
	}
	if err == nil {
		err = finishCopy(dst, st)
	}
	// Some file systems say only here that the disk is full.
	if cerr := unix.Close(dst); err == nil && cerr != unix.EINTR {
		err = cerr
	}
	return err
}

const (
	copyBuffer = 256 << 10
	// copyChunk is how much is copied before we look whether to go on.
	copyChunk = 16 << 20
)

// data copies the first size bytes of a file, holes left out: the size is that
// of the moment it was opened, so a file that grows does not keep us here.
func (c *copier) data(dst, src int, size int64) error {
	for at := int64(0); at < size; {
		from, err := unix.Seek(src, at, unix.SEEK_DATA)
		to := size
		switch err {
		case nil:
			if end, err := unix.Seek(src, from, unix.SEEK_HOLE); err == nil {
				to = min(to, end)
			}
		case unix.ENXIO: // a hole to the end
			from = size
		default: // a file system that knows no holes
			from = at
		}
		for from < to {
			if err := c.ctx.Err(); err != nil {
				return err
			}
			n, err := c.part(dst, src, from, min(to-from, copyChunk))
			if err != nil {
				return err
			}
			if n == 0 { // it became shorter
				return unix.Ftruncate(dst, from)
			}
			from += int64(n)
			c.progress.Add(1)
		}
		at = max(to, from)
	}
	return unix.Ftruncate(dst, size)
}

// part copies at most n bytes at the offset at, 0 only at the end of the file.
func (c *copier) part(dst, src int, at, n int64) (int, error) {
	if !c.noRange {
		r, w := at, at
		k, err := retry(func() (int, error) { return unix.CopyFileRange(src, &r, dst, &w, int(n), 0) })
		switch err {
		case nil:
			if k > 0 {
				return k, nil
			}
			// Some file systems give 0 for what read can read.
		case unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EFBIG:
			return 0, err
		default:
			c.noRange = true
		}
	}
	if c.buf == nil {
		c.buf = make([]byte, copyBuffer)
	}
	k, err := retry(func() (int, error) { return unix.Pread(src, c.buf[:min(n, copyBuffer)], at) })
	for done := 0; err == nil && done < k; {
		var m int
		m, err = retry(func() (int, error) { return unix.Pwrite(dst, c.buf[done:k], at+int64(done)) })
		done += m
	}
	return max(k, 0), err
}
