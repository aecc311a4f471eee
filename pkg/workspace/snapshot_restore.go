package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"golang.org/x/sys/unix"
)

// RestoreOptions say how a snapshot is restored.
type RestoreOptions struct {
	ReadOptions
	// Replace allows a directory that is not empty: all that is in it goes.
	Replace bool
	// Quota is how many bytes the restored files and directories may occupy, as
	// --workspace-max counts them; 0 for no limit (rule S12).
	Quota int64
}

// Restored says what a restore brought.
type Restored struct {
	ArchiveContents
	// Left is where the former contents still lie, in part, when they could not
	// be deleted, and Why is why; empty otherwise.
	Left string
	Why  error
}

// restorePrefix begins the names of the directories that a restore works in.
const restorePrefix = ".kern-sbx-restore-"

// RestoreSnapshot makes the contents of an archive the contents of the directory
// dir, which is created if it is not there. The archive may be hostile (see
// ReadArchive) and so may what is in dir; the archive is read once.
//
// All of it is checked and written into a new directory, and only then does
// that take the place of dir, in one step of the kernel: whatever happens, and
// whenever we are killed, dir holds what it held or what the archive holds. So
// dir gets a new inode: a process whose current directory it was stays in the
// former one, and it cannot be a mount point. Its mode and, for root, its owner
// stay. No promise is made for a power cut.
//
// Work goes on in a directory .kern-sbx-restore-… (mode 0700, locked) beside
// dir. A kill leaves it there, and the next restore beside it removes it.
//
// Contents, permission bits and times in whole seconds are restored; owner and
// extended attributes are not. Long runs of zeros become holes. No component of
// the path dir may be a symbolic link. A refusal is a *validate.Error.
func RestoreSnapshot(ctx context.Context, archive *os.File, dir string, o RestoreOptions) (Restored, error) {
	var done Restored
	t, err := openTarget(dir)
	if err != nil {
		return done, err
	}
	defer t.close()
	if t.holds(archive) {
		return done, &validate.Error{Field: "FILE", Value: archive.Name(), Reason: "it lies in the directory whose contents it would replace", Fix: "move it out of there first"}
	}
	if empty, err := t.empty(); err != nil {
		return done, err
	} else if !empty && !o.Replace {
		// An archive that is no good is the greater news.
		ro := o.ReadOptions
		ro.Member = nil
		if done.ArchiveContents, err = ReadArchive(ctx, archive, ro); err != nil {
			return done, err
		}
		return done, &validate.Error{Field: "DIR", Value: dir, Reason: "it is not empty, and a restore replaces all that is in it", Fix: "give --replace if that is meant"}
	}
	sweepRestores(t.parent)
	w, err := newRestoreDir(t.parent)
	if err != nil {
		return done, fmt.Errorf("cannot make a directory beside %s, which a restore needs: %w", strconv.QuoteToGraphic(dir), err)
	}
	defer w.close()
	done.ArchiveContents, err = w.fill(ctx, archive, o)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = t.exchange(w)
	}
	rmErr := w.remove()
	if err != nil {
		return done, err
	}
	if rmErr != nil {
		done.Left, done.Why = filepath.Join(filepath.Dir(t.path), w.name), rmErr
	}
	return done, nil
}

// target is the directory that is to be replaced.
type target struct {
	path   string // absolute, without symbolic links
	base   string
	parent *os.File
	old    int // -1 if it is not there
	st     unix.Stat_t
}

func openTarget(dir string) (*target, error) {
	refuse := func(reason, fix string) (*target, error) {
		return nil, &validate.Error{Field: "DIR", Value: dir, Reason: reason, Fix: fix}
	}
	if dir == "" || strings.IndexByte(dir, 0) >= 0 {
		return refuse("not a directory's name", "name a directory")
	}
	t := &target{old: -1}
	at, err := openPlainDir(dir)
	switch err {
	case nil:
		// Where it is by the kernel's word, so that "." has a name and a parent.
		t.path, err = os.Readlink(fdPath(at))
		_ = unix.Close(at)
		if err != nil {
			return refuse(reasonOf(err), "")
		}
	case unix.ENOENT:
		trimmed := strings.TrimRight(dir, "/")
		parent, base := filepath.Split(trimmed)
		if parent == "" {
			parent = "."
		}
		at, err := openPlainDir(parent)
		if err != nil {
			return nil, validate.In("DIR", refuseDir(dir, parent, err))
		}
		t.path, err = os.Readlink(fdPath(at))
		_ = unix.Close(at)
		if err != nil || base == "." || base == ".." {
			return refuse("there is no such directory", "name a directory")
		}
		t.path = filepath.Join(t.path, base)
	default:
		return nil, validate.In("DIR", refuseDir(dir, dir, err))
	}
	if t.path == "/" || !strings.HasPrefix(t.path, "/") {
		return refuse("it cannot be replaced", "name a directory below another one")
	}
	t.base = filepath.Base(t.path)
	fd, err := openPlainDir(filepath.Dir(t.path))
	if err == nil {
		at, err = openDirAt(fd, ".")
		_ = unix.Close(fd)
	}
	if err != nil {
		return refuse("the directory it lies in: "+reasonOf(err), "")
	}
	t.parent = os.NewFile(uintptr(at), filepath.Dir(t.path))
	t.old, err = openDirAt(at, t.base)
	if err == unix.EACCES {
		if mode, granted, _ := grantAt(at, t.base, 0o500); granted {
			if t.old, err = openDirAt(at, t.base); err == nil {
				_ = chmodFd(t.old, mode)
			}
		}
	}
	switch err {
	case nil:
		err = unix.Fstat(t.old, &t.st)
	case unix.ENOENT:
		t.old, err = -1, nil
	}
	if err != nil {
		t.close()
		if err == unix.EXDEV {
			return refuse("something is mounted there, so that it cannot be replaced", "name a directory in it")
		}
		return refuse(reasonOf(err), "")
	}
	return t, nil
}

func (t *target) close() {
	if t.old >= 0 {
		_ = unix.Close(t.old)
		t.old = -1
	}
	t.parent.Close()
}

func (t *target) empty() (bool, error) {
	if t.old < 0 {
		return true, nil
	}
	var r dirReader
	r.open(t.old)
	_, some, err := r.next()
	if err == nil {
		err = r.seek(0)
	}
	return !some, err
}

// holds says whether a file lies in the directory, as far as it has a name.
func (t *target) holds(f *os.File) bool {
	if t.old < 0 {
		return false
	}
	at, err := os.Readlink(fdPath(int(f.Fd())))
	return err == nil && strings.HasPrefix(at, t.path+"/")
}

// exchange puts what was restored in the place of the directory.
func (t *target) exchange(w *restoreDir) error {
	refuse := func(err error) error {
		what := "it cannot be replaced: " + reasonOf(err)
		if err == unix.EINVAL || err == unix.EXDEV {
			what = "the file system cannot exchange it with another directory"
		}
		return &validate.Error{Field: "DIR", Value: t.path, Reason: what, Fix: "restore into a directory that is not there yet"}
	}
	parent := int(t.parent.Fd())
	if t.old < 0 {
		if err := unix.Fchmod(w.root, 0o755); err != nil {
			return err
		}
		err := unix.Renameat2(w.fd, restoreNew, parent, t.base, unix.RENAME_NOREPLACE)
		if err == unix.EINVAL || err == unix.ENOSYS { // it does not know the flag
			err = unix.Renameat(w.fd, restoreNew, parent, t.base)
		}
		if err == unix.EEXIST || err == unix.ENOTEMPTY {
			return &validate.Error{Field: "DIR", Value: t.path, Reason: "it was created meanwhile", Fix: "try again when nothing else writes there"}
		}
		if err != nil {
			return refuse(err)
		}
		return nil
	}
	// Somebody else's place must not be taken; who swaps it after this look could
	// as well do so after the exchange.
	var now unix.Stat_t
	if err := unix.Fstatat(parent, t.base, &now, unix.AT_SYMLINK_NOFOLLOW); err != nil || now.Dev != t.st.Dev || now.Ino != t.st.Ino {
		return &validate.Error{Field: "DIR", Value: t.path, Reason: "it was moved or replaced meanwhile", Fix: "try again when nothing else writes there"}
	}
	if os.Geteuid() == 0 {
		if err := unix.Fchown(w.root, int(t.st.Uid), int(t.st.Gid)); err != nil {
			return fmt.Errorf("cannot give %s its owner: %w", strconv.QuoteToGraphic(t.path), err)
		}
	}
	// Moving a directory takes the right to write to it.
	oldMode, granted, _ := grant(t.old, 0o300)
	if err := unix.Renameat2(w.fd, restoreNew, parent, t.base, unix.RENAME_EXCHANGE); err != nil {
		if granted {
			_ = chmodFd(t.old, oldMode)
		}
		return refuse(err)
	}
	_ = unix.Fchmod(w.root, t.st.Mode&0o7777)
	return nil
}

// restoreNew is the directory in a restoreDir that is filled and exchanged.
const restoreNew = "new"

// restoreDir is the directory that a restore works in. It stays ours, closed to
// others and locked for as long as there is something in it, also after the
// exchange has put the former contents there.
type restoreDir struct {
	parent   *os.File
	name     string
	fd, root int
}

func newRestoreDir(parent *os.File) (*restoreDir, error) {
	w := &restoreDir{parent: parent, name: restorePrefix + randomHex(), fd: -1, root: -1}
	at := int(parent.Fd())
	if err := unix.Mkdirat(at, w.name, 0o700); err != nil {
		return nil, err
	}
	fd, err := openDirAt(at, w.name)
	if err == nil {
		w.fd = fd
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err == nil && (int(st.Uid) != os.Geteuid() || st.Mode&0o7777 != 0o700) {
			// A default ACL or a setgid parent: the mode is what we say.
			if err = unix.Fchmod(fd, 0o700); err == nil && int(st.Uid) != os.Geteuid() {
				err = unix.EPERM
			}
		}
	}
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = unix.Mkdirat(fd, restoreNew, 0o700)
	}
	if err == nil {
		w.root, err = openDirAt(fd, restoreNew)
	}
	if err != nil {
		_ = w.remove()
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *restoreDir) remove() error { return RemoveAt(w.parent, w.name) }

func (w *restoreDir) close() {
	for _, fd := range []int{w.root, w.fd} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// sweepRestores removes what restores left that were killed: directories of
// such a name, of ours, closed to others, and locked by nobody. Where others
// may rename what is ours, a name proves nothing, and all stays.
func sweepRestores(parent *os.File) {
	var st unix.Stat_t
	if unix.Fstat(int(parent.Fd()), &st) != nil {
		return
	}
	if owner := int(st.Uid); owner != 0 && owner != os.Geteuid() || st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return
	}
	var names []string
	var r dirReader
	r.open(int(parent.Fd()))
	for {
		e, ok, err := r.next()
		if !ok || err != nil || len(names) == 100 {
			break
		}
		if hex, is := strings.CutPrefix(e.name, restorePrefix); is && len(hex) == 16 {
			names = append(names, e.name)
		}
	}
	_ = r.seek(0)
	for _, name := range names {
		fd, err := openDirAt(int(parent.Fd()), name)
		if err != nil {
			continue
		}
		if unix.Fstat(fd, &st) == nil && int(st.Uid) == os.Geteuid() && st.Mode&0o7777 == 0o700 && unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = RemoveAt(parent, name)
		}
		_ = unix.Close(fd)
	}
}

// fill writes the archive into the new directory.
func (w *restoreDir) fill(ctx context.Context, archive io.Reader, o RestoreOptions) (ArchiveContents, error) {
	x := &extractor{root: w.root, at: -1, quota: o.Quota, buf: make([]byte, 256<<10)}
	ro := o.ReadOptions
	ro.index = func(dir func(string) (dirMeta, bool)) { x.dir = dir }
	ro.Member = x.member
	sum, err := ReadArchive(ctx, archive, ro)
	if err == nil {
		err = x.goTo("")
	}
	x.close()
	return sum, err
}

// extractor writes members into a directory that nothing else uses, yet as if
// somebody did: no symbolic link is followed there either.
type extractor struct {
	root  int
	dir   func(string) (dirMeta, bool)
	quota int64
	used  int64
	buf   []byte

	cur string // the directory that is being filled; "" is the root
	at  int    // its descriptor, -1 for the root
}

func (x *extractor) close() {
	if x.at >= 0 {
		_ = unix.Close(x.at)
		x.at = -1
	}
}

func (x *extractor) fd() int {
	if x.at < 0 {
		return x.root
	}
	return x.at
}

func (x *extractor) member(m *ArchiveMember, r io.Reader) error {
	// What a file system takes for a name and for data, about.
	x.used += 4096 + (m.Size+4095)&^4095
	if x.quota > 0 && x.used > x.quota {
		return refuseMember(m.Name, "with it the workspace holds more than "+validate.Size(x.quota).Human(), "raise --workspace-max")
	}
	dir := m.Name
	if !m.Dir {
		if dir = path.Dir(m.Name); dir == "." {
			dir = ""
		}
	}
	err := x.goTo(dir)
	if err == nil && !m.Dir {
		err = x.file(path.Base(m.Name), m, r)
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		return fmt.Errorf("cannot restore %s: %w", strconv.QuoteToGraphic(m.Name), errno)
	}
	return err
}

// goTo makes a directory the one that is being filled: those that are left get
// their mode and time, those that are missing are made.
func (x *extractor) goTo(dir string) error {
	for x.cur != "" && x.cur != dir && !strings.HasPrefix(dir, x.cur+"/") {
		if err := x.finish(); err != nil {
			return err
		}
	}
	for x.cur != dir {
		rest := strings.TrimPrefix(dir[len(x.cur):], "/")
		name, _, _ := strings.Cut(rest, "/")
		if err := x.enter(name); err != nil {
			return err
		}
	}
	return nil
}

func (x *extractor) enter(name string) error {
	err := unix.Mkdirat(x.fd(), name, 0o700)
	if err != nil && err != unix.EEXIST {
		return err
	}
	fd, err := openDirAt(x.fd(), name)
	if err == unix.EACCES { // one that was finished, and is met again
		if _, changed, _ := grantAt(x.fd(), name, 0o700); changed {
			fd, err = openDirAt(x.fd(), name)
		}
	}
	if err != nil {
		return err
	}
	if _, _, err := grant(fd, 0o700); err != nil {
		_ = unix.Close(fd)
		return err
	}
	x.close()
	x.at = fd
	if x.cur != "" {
		x.cur += "/"
	}
	x.cur += name
	return nil
}

// finish gives the directory its mode and time and goes up.
func (x *extractor) finish() error {
	up := path.Dir(x.cur)
	if up == "." {
		up = ""
	}
	parent := -1
	if up != "" {
		var err error
		if parent, err = openBeneath(x.root, up); err != nil {
			return err
		}
	}
	meta, ok := x.dir(x.cur)
	if !ok {
		meta = dirMeta{mode: 0o755, mtime: -1}
	}
	err := finishRestored(x.at, meta.mode, meta.mtime)
	x.close()
	x.cur, x.at = up, parent
	return err
}

// openBeneath opens a directory below root by its path; no component of it may
// be a symbolic link or a mount point.
func openBeneath(root int, path string) (int, error) {
	fd, err := openat2(root, path, unix.O_RDONLY|unix.O_DIRECTORY,
		unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS|unix.RESOLVE_NO_XDEV)
	if err != unix.ENOSYS {
		return fd, err
	}
	at := root
	for part := range strings.SplitSeq(path, "/") {
		next, err := openDirAt(at, part)
		if at != root {
			_ = unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}

// zeroRun is how many zeros in a row become a hole.
const zeroRun = 64 << 10

var zeroBytes [zeroRun]byte

func (x *extractor) file(name string, m *ArchiveMember, r io.Reader) error {
	fd, err := retry(func() (int, error) {
		return unix.Openat(x.fd(), name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return err
	}
	err = x.data(fd, m.Size, r)
	if err == nil {
		err = finishRestored(fd, m.Mode, m.MTime)
	}
	// Some file systems say only here that the disk is full.
	if cerr := unix.Close(fd); err == nil && cerr != nil && cerr != unix.EINTR {
		err = cerr
	}
	return err
}

func (x *extractor) data(fd int, size int64, r io.Reader) error {
	hole := false
	for at := int64(0); at < size; {
		n, err := io.ReadFull(r, x.buf[:min(size-at, int64(len(x.buf)))])
		if err != nil {
			return err
		}
		for done := 0; done < n; {
			part := x.buf[done:min(n, done+zeroRun)]
			if hole = len(part) == zeroRun && bytes.Equal(part, zeroBytes[:]); !hole {
				// As much at once as there is up to the next hole.
				for end := done + len(part); end < n; end = done + len(part) {
					next := x.buf[end:min(n, end+zeroRun)]
					if len(next) == zeroRun && bytes.Equal(next, zeroBytes[:]) {
						break
					}
					part = x.buf[done : end+len(next)]
				}
				for off := 0; off < len(part); {
					k, err := retry(func() (int, error) { return unix.Pwrite(fd, part[off:], at+int64(done+off)) })
					if err != nil {
						return err
					}
					off += k
				}
			}
			done += len(part)
		}
		at += int64(n)
	}
	if hole {
		return unix.Ftruncate(fd, size)
	}
	return nil
}

// mtimeMax is a time that every file system can keep, in the year 2446.
const mtimeMax = 15032385535

// finishRestored sets mode and time, by descriptor; a time that no file can
// have had is left out.
func finishRestored(fd int, mode uint32, mtime int64) error {
	if mtime >= 0 && mtime <= mtimeMax {
		times := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(0)}
		times[1].Sec = mtime
		_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
		if errno != 0 {
			return errno
		}
	}
	return unix.Fchmod(fd, mode)
}
