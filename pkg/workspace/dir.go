package workspace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// direntBytes is the size of one getdents buffer: some 500 entries, which
// makes the call itself a small part of reading a wide directory.
const direntBytes = 16 << 10

// dirent is one entry of a directory as getdents64 gives it.
type dirent struct {
	name string
	next int64 // position of the entry after this one, for lseek
	typ  byte  // unix.DT_*: a hint, another process may have swapped the entry since
}

// parseDirent takes one linux_dirent64 off the front of buf. A record that
// cannot be whole ends the buffer (ok is false), because a wrong length would
// make every later name wrong.
func parseDirent(buf []byte) (d dirent, rest []byte, ok bool) {
	const header = 19 // ino 8, off 8, reclen 2, type 1
	if len(buf) <= header {
		return dirent{}, nil, false
	}
	size := int(binary.NativeEndian.Uint16(buf[16:]))
	if size <= header || size > len(buf) {
		return dirent{}, nil, false
	}
	name := buf[header:size]
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	return dirent{
		name: string(name),
		next: int64(binary.NativeEndian.Uint64(buf[8:])),
		typ:  buf[18],
	}, buf[size:], true
}

// dirReader reads the entries of an open directory without "." and "..".
// Its buffer is kept when it is pointed at another descriptor.
type dirReader struct {
	fd  int
	buf []byte
	got []byte
}

func (r *dirReader) open(fd int) {
	r.fd, r.got = fd, nil
	if r.buf == nil {
		r.buf = make([]byte, direntBytes)
	}
}

// next gives the next entry; ok is false at the end.
func (r *dirReader) next() (d dirent, ok bool, err error) {
	for {
		if len(r.got) == 0 {
			n, err := retry(func() (int, error) { return unix.Getdents(r.fd, r.buf) })
			if err == unix.ENOENT { // removed while it was open
				return dirent{}, false, nil
			}
			if err != nil || n <= 0 {
				return dirent{}, false, err
			}
			r.got = r.buf[:n]
		}
		d, r.got, ok = parseDirent(r.got)
		if !ok {
			return dirent{}, false, unix.EIO
		}
		if d.name != "." && d.name != ".." {
			return d, true, nil
		}
	}
}

// seek goes on at a position taken from a dirent, or at 0 for the start.
func (r *dirReader) seek(pos int64) error {
	r.got = nil
	_, err := unix.Seek(r.fd, pos, unix.SEEK_SET)
	return err
}

// noOpenat2 is set once the kernel, or a seccomp filter around us, has shown
// that it has no openat2 (Linux before 5.6; old container engines answer EPERM).
var noOpenat2 atomic.Bool

// openat2 opens path below dirfd (O_CLOEXEC is added). ENOSYS stands for
// every way in which the call may be missing.
func openat2(dirfd int, path string, flags int, resolve uint64) (int, error) {
	if noOpenat2.Load() {
		return -1, unix.ENOSYS
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve}
	for {
		fd, err := unix.Openat2(dirfd, path, &how)
		switch err {
		case unix.EINTR, unix.EAGAIN:
			continue
		case unix.ENOSYS, unix.EPERM:
			// A filter's EPERM is not told apart from the kernel's; the way
			// without openat2 then meets the kernel's again.
			if err == unix.ENOSYS {
				noOpenat2.Store(true)
			}
			return -1, unix.ENOSYS
		}
		return fd, err
	}
}

// openEntry opens one entry of dirfd: no symbolic link is followed (ELOOP, or
// ENOTDIR with O_DIRECTORY) and no mount point is crossed (EXDEV), also not
// when name is "..". Other than with O_PATH or O_DIRECTORY it must not be
// used, since opening a FIFO or a device can block or act.
func openEntry(dirfd int, name string, flags int) (int, error) {
	flags |= unix.O_NOFOLLOW
	fd, err := openat2(dirfd, name, flags, unix.RESOLVE_NO_XDEV|unix.RESOLVE_NO_MAGICLINKS)
	if err != unix.ENOSYS {
		return fd, err
	}
	fd, err = retry(func() (int, error) { return unix.Openat(dirfd, name, flags|unix.O_CLOEXEC, 0) })
	if err != nil {
		return -1, err
	}
	// st_dev alone would not see a bind mount of the same file system.
	here, err := mountID(dirfd)
	there, err2 := mountID(fd)
	if err = errors.Join(err, err2); err == nil && here != there {
		err = unix.EXDEV
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// openDirAt opens the directory name in dirfd for reading, see openEntry.
func openDirAt(dirfd int, name string) (int, error) {
	return openEntry(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

// mountID is the mount an open descriptor lies on, from its fdinfo.
func mountID(fd int) (string, error) {
	b, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strings.TrimSpace(id), nil
		}
	}
	return "", unix.ENOSYS
}

// fdPath is a path that names the very object behind a descriptor, for calls
// that do not take an O_PATH descriptor.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// grant adds permission bits for the owner to a directory, by descriptor. It
// gives the mode it found; changed is false when the bits were all there.
func grant(fd int, bits uint32) (mode uint32, changed bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, false, err
	}
	mode = st.Mode & 0o7777
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || mode&bits == bits {
		return mode, false, nil
	}
	if err := chmodFd(fd, mode|bits); err != nil {
		return mode, false, err
	}
	return mode, true, nil
}

// grantAt is grant for an entry that cannot be opened for reading.
func grantAt(dirfd int, name string, bits uint32) (mode uint32, changed bool, err error) {
	fd, err := openEntry(dirfd, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return 0, false, err
	}
	defer unix.Close(fd)
	return grant(fd, bits)
}

// chmodFd is fchmod that also takes an O_PATH descriptor.
func chmodFd(fd int, mode uint32) error {
	err := unix.Fchmod(fd, mode)
	if err == unix.EBADF {
		err = unix.Chmod(fdPath(fd), mode)
	}
	return err
}

// retry repeats a call that a signal interrupted (network and FUSE file
// systems return EINTR from calls that never do so elsewhere).
func retry[T any](f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if err != unix.EINTR {
			return v, err
		}
	}
}

// where describes an entry for a message: its real place at this moment as far
// as the kernel can tell it (a path longer than PATH_MAX it cannot), quoted,
// because the name is a box's.
func where(dirfd int, name string) string {
	dir, err := os.Readlink(fdPath(dirfd))
	if err != nil {
		dir = "..."
	}
	return strconv.QuoteToGraphic(dir + "/" + name)
}
