package workspace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"golang.org/x/sys/unix"
)

// Output is a host file that will be written after a box has run. It is opened
// before the box starts, so that a symbolic link which the box plants under
// that name leads nowhere (rule S4).
type Output struct {
	path    string
	f       *os.File
	plain   bool // handed to us open, by /dev/fd/N: written where it stands
	wrote   bool
	dir     int // of a file that OpenOutput created, else -1
	dev     uint64
	ino     uint64
	closing error
	closed  bool
}

// OpenOutput opens the file path for writing, and creates it (mode 0644) if it
// is not there. What it holds stays until Write: a run that is refused loses
// nothing.
//
// The path may be relative and may hold "..", but no component of it may be a
// symbolic link. It must be a regular file with one name: a second hard link
// may be one that a box made from here to a file which it could not write, or
// the user would not want overwritten. /dev/stdout, /dev/stderr, /dev/fd/N and
// /proc/self/fd/N (what a shell's >(cmd) becomes) stand for the descriptor that
// the caller passed us; it may be of any kind.
//
// A box that can write the directory can still change the file, move or delete
// it; what it cannot do is make us write to another one. A refusal is a
// *validate.Error.
func OpenOutput(path string) (*Output, error) {
	if n, ok := inheritedFd(path); ok {
		return dupOutput(path, n)
	}
	refuse := func(reason, fix string) (*Output, error) {
		return nil, &validate.Error{Value: path, Reason: reason, Fix: fix}
	}
	dirPath, base := filepath.Split(path)
	switch {
	case path == "":
		return refuse("an empty path", "name a file")
	case strings.IndexByte(path, 0) >= 0:
		return refuse("a path with a zero byte", "name a file")
	case base == "" || base == "." || base == "..":
		return refuse("a directory, not a file", "name a file in it")
	}
	if dirPath == "" {
		dirPath = "."
	}
	dir, err := openPlainDir(dirPath)
	if err != nil {
		return nil, refuseDir(path, dirPath, err)
	}
	o, err := openOutputAt(dir, base, path)
	if err != nil || o.dir < 0 {
		_ = unix.Close(dir)
	}
	return o, err
}

func openOutputAt(dir int, base, path string) (*Output, error) {
	refuse := func(reason, fix string) (*Output, error) {
		return nil, &validate.Error{Value: path, Reason: reason, Fix: fix}
	}
	const flags = unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	var st unix.Stat_t
	// Looked at first, since opening a device can act on it.
	switch err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case err != nil && err != unix.ENOENT:
		return refuse(reasonOf(err), "")
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return nil, refuseLink(path, path)
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return refuse("a directory, not a file", "name a file in it")
	case err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG:
		return refuse("not a regular file", "name a regular file, or >(cmd) to write to a command")
	}
	// Not O_CREAT alone: Close must know whether the file is ours.
	fd, created, err := -1, false, error(nil)
	for range 16 {
		fd, err = retry(func() (int, error) { return unix.Openat(dir, base, flags, 0) })
		if err != unix.ENOENT {
			break
		}
		fd, err = retry(func() (int, error) {
			return unix.Openat(dir, base, flags|unix.O_CREAT|unix.O_EXCL, 0o644)
		})
		if created = err == nil; err != unix.EEXIST {
			break
		}
	}
	switch err {
	case nil:
	case unix.ELOOP:
		return nil, refuseLink(path, path)
	default:
		return refuse(reasonOf(err), "")
	}
	if err := unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 1 {
		_ = unix.SetNonblock(fd, false)
		o := &Output{path: path, f: os.NewFile(uintptr(fd), path), dir: -1, dev: st.Dev, ino: st.Ino}
		if created {
			o.dir = dir
		}
		return o, nil
	}
	_ = unix.Close(fd)
	if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink > 1 {
		return refuse("has "+strconv.FormatUint(uint64(st.Nlink), 10)+" hard links, one of which may be a file that should not be overwritten",
			"delete this name first, or write to another one")
	}
	return refuse("changed while it was opened", "write where nothing else writes")
}

// Write replaces the file by what write writes. A write that failed or was cut
// short (a full disk) is an error, also when write ignored it; what fitted is
// then left in the file. Called again, it replaces what was written before,
// except for a descriptor handed over by /dev/fd/N, which is never truncated.
func (o *Output) Write(write func(io.Writer) error) error {
	o.wrote = true
	w := &keepError{w: o.f}
	err := error(nil)
	if !o.plain {
		if err = o.f.Truncate(0); err == nil {
			_, err = o.f.Seek(0, io.SeekStart)
		}
	}
	if err == nil {
		err = write(w)
	}
	if w.err != nil { // the cause, where write wrapped or hid it
		err = w.err
	}
	return o.wrap(err)
}

// Close closes the file. One that OpenOutput created and that is still empty,
// because Write was never called, is removed again. Only the first call counts;
// its error is that of delayed writing (network file systems, quotas).
func (o *Output) Close() error {
	if o.closed {
		return o.closing
	}
	o.closed = true
	if o.dir >= 0 {
		var st unix.Stat_t
		// By name, but only while the name is that file. Whoever swaps it in
		// between could have deleted that entry as well.
		if !o.wrote && unix.Fstatat(o.dir, filepath.Base(o.path), &st, unix.AT_SYMLINK_NOFOLLOW) == nil &&
			st.Dev == o.dev && st.Ino == o.ino && st.Size == 0 {
			_ = unix.Unlinkat(o.dir, filepath.Base(o.path), 0)
		}
		_ = unix.Close(o.dir)
	}
	o.closing = o.wrap(o.f.Close())
	return o.closing
}

func (o *Output) wrap(err error) error {
	if err == nil {
		return nil
	}
	var pe *os.PathError
	if errors.As(err, &pe) && pe.Path == o.path {
		err = pe.Err
	}
	return fmt.Errorf("cannot write %s: %w", strconv.QuoteToGraphic(o.path), err)
}

// keepError remembers the first error, for callers that do not look.
type keepError struct {
	w   io.Writer
	err error
}

func (k *keepError) Write(p []byte) (int, error) {
	if k.err != nil {
		return 0, k.err
	}
	n, err := k.w.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	k.err = err
	return n, err
}

// inheritedFd reads the paths that stand for a descriptor of this process.
func inheritedFd(path string) (int, bool) {
	switch path {
	case "/dev/stdout":
		return 1, true
	case "/dev/stderr":
		return 2, true
	}
	s, ok := strings.CutPrefix(path, "/dev/fd/")
	if !ok {
		s, ok = strings.CutPrefix(path, "/proc/self/fd/")
	}
	n, err := strconv.Atoi(s)
	return n, ok && err == nil && n >= 0 && strconv.Itoa(n) == s
}

func dupOutput(path string, n int) (*Output, error) {
	refuse := func(reason, fix string) (*Output, error) {
		return nil, &validate.Error{Value: path, Reason: reason, Fix: fix}
	}
	// What came through exec has no close-on-exec flag, and everything we open
	// has it: descriptors of our own cannot be meant.
	flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC != 0 {
		return refuse("descriptor "+strconv.Itoa(n)+" was not passed to us", "redirect it on the command line, like "+strconv.Itoa(n)+">file")
	}
	mode, err := unix.FcntlInt(uintptr(n), unix.F_GETFL, 0)
	if err != nil {
		return refuse(reasonOf(err), "")
	}
	if mode&unix.O_PATH != 0 || mode&unix.O_ACCMODE == unix.O_RDONLY {
		return refuse("descriptor "+strconv.Itoa(n)+" is not open for writing", "redirect it on the command line, like "+strconv.Itoa(n)+">file")
	}
	fd, err := unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return refuse(reasonOf(err), "")
	}
	return &Output{path: path, f: os.NewFile(uintptr(fd), path), plain: true, dir: -1}, nil
}

// openPlainDir opens a directory (O_PATH) no component of which is a symbolic
// link; ELOOP or ENOTDIR if one is.
func openPlainDir(path string) (int, error) {
	fd, err := openat2(unix.AT_FDCWD, path, unix.O_PATH|unix.O_DIRECTORY, unix.RESOLVE_NO_SYMLINKS)
	if err == unix.ENOSYS {
		fd, _, err = openByParts(path)
	}
	return fd, err
}

// openByParts is openPlainDir without openat2, one component at a time. On
// failure it gives the path up to the component that it failed at.
func openByParts(path string) (fd int, at string, err error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	start := "."
	if strings.HasPrefix(path, "/") {
		start = "/"
	}
	if fd, err = unix.Open(start, flags, 0); err != nil {
		return -1, start, err
	}
	for i := 0; i < len(path); {
		if path[i] == '/' {
			i++
			continue
		}
		end := i + strings.IndexByte(path[i:]+"/", '/')
		next, err := retry(func() (int, error) { return unix.Openat(fd, path[i:end], flags, 0) })
		if err == unix.ENOTDIR {
			var st unix.Stat_t
			if unix.Fstatat(fd, path[i:end], &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
				err = unix.ELOOP
			}
		}
		_ = unix.Close(fd)
		if err != nil {
			return -1, path[:end], err
		}
		fd, i = next, end
	}
	return fd, "", nil
}

// refuseDir explains why the directory of an output could not be opened.
func refuseDir(path, dir string, err error) error {
	fd, at, e := openByParts(dir)
	if e == nil {
		_ = unix.Close(fd)
		at = dir
	} else {
		err = e
	}
	quoted := strconv.QuoteToGraphic(at)
	switch err {
	case unix.ELOOP:
		return refuseLink(path, at)
	case unix.ENOENT:
		return &validate.Error{Value: path, Reason: "there is no directory " + quoted, Fix: "create it first"}
	case unix.ENOTDIR:
		return &validate.Error{Value: path, Reason: quoted + " is not a directory", Fix: "name a file in a directory"}
	}
	return &validate.Error{Value: path, Reason: quoted + ": " + reasonOf(err)}
}

// refuseLink refuses a path for the symbolic link at, which is a beginning of
// it, and says where the link leads.
func refuseLink(path, at string) error {
	e := &validate.Error{
		Value:  path,
		Reason: strconv.QuoteToGraphic(at) + " is a symbolic link, which a box may have planted",
		Fix:    "write a path without symbolic links",
	}
	// Only text: the path that is then given is checked like any other.
	if real, err := filepath.EvalSymlinks(at); err == nil {
		real += path[len(at):]
		if dir, err := filepath.EvalSymlinks(filepath.Dir(real)); err == nil {
			real = filepath.Join(dir, filepath.Base(real))
		}
		e.Fix = "if that is meant, write " + strconv.QuoteToGraphic(real)
	}
	return e
}

func reasonOf(err error) string {
	if e, ok := err.(syscall.Errno); ok {
		return e.Error()
	}
	return err.Error()
}
