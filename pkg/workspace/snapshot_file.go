package workspace

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"golang.org/x/sys/unix"
)

// ArchiveFile is a snapshot that is being written. Until it is whole, nothing
// is there under its name, or what was there before.
type ArchiveFile struct {
	path  string
	dir   int // the directory it goes to, or -1 for a descriptor of the caller's
	base  string
	f     *os.File
	temp  string // its name for now; empty if it has none
	mode  uint32
	own   [2]uint64 // device and inode of the new file
	old   [2]uint64 // and of what has its name, zero if nothing has
	done  bool
	close func() error
}

// CreateArchive prepares to write the snapshot path, by rule S4: no component
// of the path may be a symbolic link, and what it names must be a regular file
// or nothing. A new file has mode 0600, because it holds the contents of files
// whose own mode may have been that; one that is replaced hands its mode down.
// /dev/stdout and /dev/fd/N stand for the descriptors of the caller and are
// written as they are. A refusal is a *validate.Error.
//
// A kill leaves nothing behind where the file system has files without a name
// (O_TMPFILE), else a file .kern-sbx-save-… beside the archive.
func CreateArchive(path string) (*ArchiveFile, error) {
	if n, ok := inheritedFd(path); ok {
		o, err := dupOutput(path, n)
		if err != nil {
			return nil, err
		}
		return &ArchiveFile{path: path, dir: -1, f: o.f, close: o.Close}, nil
	}
	dirPath, base := filepath.Split(path)
	if path == "" || base == "" || base == "." || base == ".." || strings.IndexByte(path, 0) >= 0 {
		return nil, &validate.Error{Value: path, Reason: "not the name of a file", Fix: "name a file, like work.tar.gz"}
	}
	if dirPath == "" {
		dirPath = "."
	}
	dir, err := openPlainDir(dirPath)
	if err != nil {
		return nil, refuseDir(path, dirPath, err)
	}
	a := &ArchiveFile{path: path, dir: dir, base: base, mode: 0o600}
	if err := a.create(); err != nil {
		_ = unix.Close(dir)
		return nil, err
	}
	return a, nil
}

func (a *ArchiveFile) create() error {
	refuse := func(reason, fix string) error {
		return &validate.Error{Value: a.path, Reason: reason, Fix: fix}
	}
	var st unix.Stat_t
	switch err := unix.Fstatat(a.dir, a.base, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case err == unix.ENOENT:
	case err != nil:
		return refuse(reasonOf(err), "")
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return refuseLink(a.path, a.path)
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return refuse("a directory, not a file", "name a file in it")
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return refuse("not a regular file", "name a regular file, or - for standard output")
	default:
		a.old, a.mode = [2]uint64{st.Dev, st.Ino}, st.Mode&0o777
	}
	fd, err := retry(func() (int, error) {
		return unix.Openat(a.dir, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		a.temp = ".kern-sbx-save-" + randomHex()
		fd, err = retry(func() (int, error) {
			return unix.Openat(a.dir, a.temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		})
	}
	if err != nil {
		return refuse("its directory: "+reasonOf(err), "name a file in a directory that you may write to")
	}
	if err := unix.Fstat(fd, &st); err == nil {
		a.own = [2]uint64{st.Dev, st.Ino}
	}
	a.f = os.NewFile(uintptr(fd), a.path)
	return nil
}

func randomHex() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// is says whether a file is this archive, or the one that it will replace.
func (a *ArchiveFile) is(st *unix.Stat_t) bool {
	id := [2]uint64{st.Dev, st.Ino}
	return a.dir >= 0 && (id == a.own || id == a.old)
}

// commit gives the archive its name, once all of it is on the disk.
func (a *ArchiveFile) commit() error {
	if a.dir < 0 {
		a.done = true
		return nil
	}
	fd := int(a.f.Fd())
	if err := errors.Join(unix.Fchmod(fd, a.mode), unix.Fsync(fd)); err != nil {
		return err
	}
	if a.temp == "" {
		link := func(name string) error {
			return unix.Linkat(unix.AT_FDCWD, fdPath(fd), a.dir, name, unix.AT_SYMLINK_FOLLOW)
		}
		err := unix.EEXIST
		if a.old == [2]uint64{} {
			if e := link(a.base); e == nil {
				a.done = true
				return a.syncDir()
			}
		}
		for range 8 {
			a.temp = ".kern-sbx-save-" + randomHex()
			e := link(a.temp)
			if e == nil {
				err = 0
				break
			}
			if e != unix.EEXIST {
				a.temp = ""
				return e
			}
		}
		if err != 0 {
			return err
		}
	}
	// What was put there meanwhile is replaced: not followed, not written to.
	if err := unix.Renameat(a.dir, a.temp, a.dir, a.base); err != nil {
		return err
	}
	a.temp, a.done = "", true
	return a.syncDir()
}

// syncDir makes the name last. A directory that cannot be opened for that (it
// may only be written to) is the system's to write when it does.
func (a *ArchiveFile) syncDir() error {
	fd, err := unix.Openat(a.dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	if err := unix.Fsync(fd); err != nil && err != unix.EINVAL && err != unix.EROFS {
		return err
	}
	return nil
}

// Close ends the writing. What did not become whole is gone.
func (a *ArchiveFile) Close() error {
	if a.f == nil {
		return nil
	}
	f := a.f
	a.f = nil
	if a.dir < 0 {
		return a.close()
	}
	if a.temp != "" {
		_ = unix.Unlinkat(a.dir, a.temp, 0)
	}
	err := f.Close()
	_ = unix.Close(a.dir)
	return a.wrap(err)
}

// wrap names the archive in an error of writing it.
func (a *ArchiveFile) wrap(err error) error {
	var pe *os.PathError
	var errno unix.Errno
	if errors.As(err, &pe) && pe.Path == a.path {
		err = pe.Err
	} else if !errors.As(err, &errno) || err != error(errno) { //nolint:errorlint // only a bare one lacks its subject
		return err
	}
	return fmt.Errorf("cannot write %s: %w", strconv.QuoteToGraphic(a.path), err)
}

// OpenArchive opens a snapshot for reading: a regular file, no component of
// whose path is a symbolic link (a box may have planted one, to have another
// archive read), or /dev/stdin or /dev/fd/N for a descriptor of the caller's. A
// refusal is a *validate.Error.
func OpenArchive(path string) (*os.File, error) {
	n, inherited := inheritedFd(path)
	if path == "/dev/stdin" {
		n, inherited = 0, true
	}
	if inherited {
		fd, err := unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, &validate.Error{Value: path, Reason: "descriptor " + strconv.Itoa(n) + " was not passed to us", Fix: "name a file"}
		}
		return os.NewFile(uintptr(fd), path), nil
	}
	dirPath, base := filepath.Split(path)
	if path == "" || base == "" || base == "." || base == ".." || strings.IndexByte(path, 0) >= 0 {
		return nil, &validate.Error{Value: path, Reason: "not the name of a file", Fix: "name a file, like work.tar.gz"}
	}
	if dirPath == "" {
		dirPath = "."
	}
	dir, err := openPlainDir(dirPath)
	if err != nil {
		return nil, refuseDir(path, dirPath, err)
	}
	defer unix.Close(dir)
	// Not by openEntry: the file itself may be a mount.
	at, err := unix.Openat(dir, base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &validate.Error{Value: path, Reason: reasonOf(err), Fix: "name a snapshot"}
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return nil, &validate.Error{Value: path, Reason: reasonOf(err)}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFLNK:
		return nil, refuseLink(path, path)
	case unix.S_IFDIR:
		return nil, &validate.Error{Value: path, Reason: "a directory, not a file", Fix: "name a snapshot"}
	default:
		return nil, &validate.Error{Value: path, Reason: "not a regular file", Fix: "name a snapshot, or - for standard input"}
	}
	fd, err := retry(func() (int, error) { return unix.Open(fdPath(at), unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &validate.Error{Value: path, Reason: reasonOf(err), Fix: "name a snapshot that you may read"}
	}
	return os.NewFile(uintptr(fd), path), nil
}
