package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// resolveBelow keeps a lookup inside the tree: no link, no mount point, no way
// up.
const resolveBelow = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// Tree is a workspace directory whose contents are read and written from the
// host. Code in a box may have made what is in it, and may be changing it
// meanwhile: names are relative to the directory, ".." and absolute ones are
// refused, no symbolic link is followed and no mount point crossed at any
// component, and what is not a regular file is refused without being opened.
//
// Directories that the caller owns and that were closed to it (mode 0) get the
// owner's permissions back, for good; Restored names them. A refusal is a
// *validate.Error; other errors are of work that was tried.
//
// A Tree is not for concurrent use.
type Tree struct {
	root     *os.File // O_PATH
	path     string
	restored []string
}

// OpenTree opens the directory of a workspace. No component of path may be a
// symbolic link, since a box may have planted it.
func OpenTree(path string) (*Tree, error) {
	switch {
	case path == "":
		return nil, &validate.Error{Value: path, Reason: "an empty path", Fix: "name a directory, or @NAME"}
	case strings.IndexByte(path, 0) >= 0:
		return nil, &validate.Error{Value: path, Reason: "a path with a zero byte", Fix: "name a directory, or @NAME"}
	}
	fd, err := openPlainDir(path)
	if err != nil {
		return nil, refuseDir(path, path, err)
	}
	return &Tree{root: os.NewFile(uintptr(fd), path), path: path}, nil
}

// Close closes the tree.
func (t *Tree) Close() error { return t.root.Close() }

// Dir is the directory itself, open without the right to read it (O_PATH): for
// Usage, Watch, Scan and the other functions that take one. It is the Tree's.
func (t *Tree) Dir() *os.File { return t.root }

// Restored are the directories that were closed to their owner and no longer
// are, relative to the tree. Their bytes are a box's: make control characters
// visible before printing them.
func (t *Tree) Restored() []string { return t.restored }

// SplitPath checks a path inside a workspace, and gives its components. "." and
// "" give none: the workspace itself. Refused are absolute paths, "..", zero
// bytes, and what is longer than the kernel takes.
func SplitPath(path string) ([]string, error) {
	switch {
	case strings.IndexByte(path, 0) >= 0:
		return nil, &validate.Error{Value: path, Reason: "a path with a zero byte"}
	case strings.HasPrefix(path, "/"):
		return nil, &validate.Error{Value: path, Reason: "an absolute path", Fix: "write it relative to the workspace"}
	case len(path) >= unix.PathMax:
		return nil, &validate.Error{Value: path, Reason: "longer than a path can be"}
	}
	var parts []string
	for p := range strings.SplitSeq(path, "/") {
		switch {
		case p == "" || p == ".":
		case p == "..":
			return nil, &validate.Error{Value: path, Reason: "it holds \"..\", which could lead out of the workspace", Fix: "write the path that is meant"}
		case len(p) > unix.NAME_MAX:
			return nil, &validate.Error{Value: path, Reason: "a name longer than " + strconv.Itoa(unix.NAME_MAX) + " bytes"}
		default:
			parts = append(parts, p)
		}
	}
	return parts, nil
}

// at opens an entry of the tree without any right (O_PATH), a symbolic link in
// the last place as itself.
func (t *Tree) at(parts []string) (int, error) {
	defer runtime.KeepAlive(t.root)
	if len(parts) == 0 {
		return unix.FcntlInt(t.root.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	}
	fd, err := openat2(int(t.root.Fd()), strings.Join(parts, "/"), unix.O_PATH|unix.O_NOFOLLOW, resolveBelow)
	if err == nil {
		return fd, nil
	}
	// Again by components: an old kernel, a closed directory, or something to
	// be explained.
	return t.descend(parts, anything)
}

// What descend wants at the end.
const (
	anything  = iota
	directory // a directory that is there
	made      // the same, made with those above it where it is missing
)

// descend is at by components.
func (t *Tree) descend(parts []string, want int) (int, error) {
	cur, err := unix.FcntlInt(t.root.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return -1, err
	}
	defer runtime.KeepAlive(t.root)
	for i, name := range parts {
		next, err := openEntry(cur, name, unix.O_PATH)
		if err == unix.EACCES && t.open(cur, parts[:i], 0o500) {
			next, err = openEntry(cur, name, unix.O_PATH)
		}
		if err == unix.ENOENT && want == made {
			err = unix.Mkdirat(cur, name, 0o755)
			if err == unix.EACCES && t.open(cur, parts[:i], 0o700) {
				err = unix.Mkdirat(cur, name, 0o755)
			}
			if err == nil || err == unix.EEXIST {
				next, err = openEntry(cur, name, unix.O_PATH)
			}
		}
		_ = unix.Close(cur)
		if err != nil {
			return -1, t.explain(parts[:i+1], err)
		}
		cur = next
		if i == len(parts)-1 && want == anything {
			break
		}
		var st unix.Stat_t
		if err = unix.Fstat(cur, &st); err == nil {
			switch st.Mode & unix.S_IFMT {
			case unix.S_IFDIR:
			case unix.S_IFLNK:
				err = unix.ELOOP
			default:
				err = unix.ENOTDIR
			}
		}
		if err != nil {
			_ = unix.Close(cur)
			return -1, t.explain(parts[:i+1], err)
		}
	}
	return cur, nil
}

// open gives the owner of a directory its permissions back, and says whether
// that changed anything.
func (t *Tree) open(fd int, parts []string, bits uint32) bool {
	_, changed, _ := grant(fd, bits)
	if changed {
		t.restored = append(t.restored, nameOf(parts))
	}
	return changed
}

func nameOf(parts []string) string {
	if len(parts) == 0 {
		return "."
	}
	return strings.Join(parts, "/")
}

// explain makes an errno of a lookup a refusal, or an error that names the place.
func (t *Tree) explain(parts []string, err error) error {
	name := nameOf(parts)
	switch err {
	case unix.ELOOP:
		return refuseKind(name, unix.S_IFLNK)
	case unix.EXDEV:
		return &validate.Error{Value: name, Reason: "something else is mounted there", Fix: "name the directory that is mounted as the workspace"}
	case unix.ENOTDIR:
		return &validate.Error{Value: name, Reason: "not a directory", Fix: "see what there is with files ls"}
	case unix.ENOENT:
		return fmt.Errorf("there is no %s in %s: %w", strconv.QuoteToGraphic(name), strconv.QuoteToGraphic(t.path), err)
	}
	return fmt.Errorf("%s in %s: %w", strconv.QuoteToGraphic(name), strconv.QuoteToGraphic(t.path), err)
}

// refuseKind refuses what is not a regular file.
func refuseKind(name string, mode uint32) error {
	e := &validate.Error{Value: name, Fix: "name a regular file"}
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		e.Reason = "a directory, not a file"
		e.Fix = "name a file in it"
	case unix.S_IFLNK:
		e.Reason = "a symbolic link, which a box may have planted and which is never followed"
		e.Fix = "name the file itself"
	default:
		e.Reason = "a " + kindWords[kindOf(mode)] + ", not a regular file"
	}
	return e
}

// Kinds of entries, as Entry.Kind gives them.
const (
	KindFile   = "file"
	KindDir    = "dir"
	KindLink   = "symlink"
	KindFIFO   = "fifo"
	KindSocket = "socket"
	KindChar   = "char"
	KindBlock  = "block"
)

var kindWords = map[string]string{
	KindFile: "regular file", KindDir: "directory", KindLink: "symbolic link", KindFIFO: "FIFO",
	KindSocket: "socket", KindChar: "character device", KindBlock: "block device",
}

func kindOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return KindFile
	case unix.S_IFDIR:
		return KindDir
	case unix.S_IFLNK:
		return KindLink
	case unix.S_IFIFO:
		return KindFIFO
	case unix.S_IFSOCK:
		return KindSocket
	case unix.S_IFCHR:
		return KindChar
	}
	return KindBlock
}

// Open opens a regular file of the tree for reading, and gives its size at that
// moment: who reads no more than that is not kept by a file that grows for ever.
// A FIFO, a socket, a device, a link or a directory is refused at once, without
// being opened.
func (t *Tree) Open(path string) (f *os.File, size int64, err error) {
	parts, err := SplitPath(path)
	if err != nil {
		return nil, 0, err
	}
	fd, err := t.at(parts)
	if err != nil {
		return nil, 0, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, 0, refuseKind(nameOf(parts), st.Mode)
	}
	// The very inode that was looked at.
	r, err := retry(func() (int, error) {
		return unix.Open(fdPath(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, 0, t.explain(parts, err)
	}
	_ = unix.SetNonblock(r, false)
	return os.NewFile(uintptr(r), path), st.Size, nil
}

// PutOptions bound a Put.
type PutOptions struct {
	// Max is the most that the whole workspace may occupy afterwards, in
	// allocated bytes; 0 for no limit.
	Max int64
}

// Put makes or replaces a regular file of the tree by what src gives, and says
// how many bytes that were. Directories above it are made (0755). The file
// appears whole or not at all, with mode 0644 and the caller as its owner; an
// error, or the end of this process, leaves the old one. What stands there and is
// not a regular file is refused, a link among them.
//
// A write past the limit of o is refused with a *validate.Error for
// --workspace-max.
func (t *Tree) Put(ctx context.Context, path string, src io.Reader, o PutOptions) (int64, error) {
	parts, err := SplitPath(path)
	if err != nil {
		return 0, err
	}
	if len(parts) == 0 {
		return 0, refuseKind(".", unix.S_IFDIR)
	}
	room := int64(-1)
	if o.Max > 0 {
		used, err := Usage(ctx, t.root, 0)
		if err != nil {
			return 0, err
		}
		if room = o.Max - used.Bytes; room < 0 {
			return 0, TooFull("--workspace-max", used.Bytes, o.Max)
		}
	}
	up, base := parts[:len(parts)-1], parts[len(parts)-1]
	dir, err := t.descend(up, made)
	if err != nil {
		return 0, err
	}
	defer unix.Close(dir)
	replaces := func() error {
		var st unix.Stat_t
		switch err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); {
		case err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG:
			return refuseKind(nameOf(parts), st.Mode)
		case err == nil && room >= 0 && st.Nlink == 1:
			room += st.Blocks * 512
		case err == unix.EACCES && t.open(dir, up, 0o700):
		case err != nil && err != unix.ENOENT:
			return t.explain(parts, err)
		}
		return nil
	}
	if err := replaces(); err != nil {
		return 0, err
	}
	tmp := ".kern-sbx-put-" + strconv.FormatUint(rand.Uint64(), 36)
	f, named, err := t.temporary(dir, up, tmp)
	if err != nil {
		return 0, t.explain(parts, err)
	}
	defer f.Close()
	fail := func(err error) (int64, error) {
		if named {
			_ = unix.Unlinkat(dir, tmp, 0)
		}
		return 0, err
	}
	w := io.Writer(f)
	if room >= 0 {
		w = &roomWriter{f, room}
	}
	n, err := io.Copy(w, &untilDone{ctx, src})
	var st unix.Stat_t
	if err == nil {
		err = errors.Join(unix.Fchmod(int(f.Fd()), 0o644), f.Sync(), unix.Fstat(int(f.Fd()), &st))
	}
	if errors.Is(err, errNoRoom) || err == nil && room >= 0 && st.Blocks*512 > room {
		return fail(TooFull("--workspace-max", o.Max-room+max(n, st.Blocks*512), o.Max))
	}
	if err != nil {
		return fail(fmt.Errorf("cannot write %s: %w", strconv.QuoteToGraphic(nameOf(parts)), plain(err)))
	}
	if !named {
		// It gets a name for the moment of the rename alone.
		if err := unix.Linkat(unix.AT_FDCWD, fdPath(int(f.Fd())), dir, tmp, unix.AT_SYMLINK_FOLLOW); err != nil {
			return fail(t.explain(parts, err))
		}
		named = true
	}
	room = -1
	if err := replaces(); err != nil { // it may have been exchanged meanwhile
		return fail(err)
	}
	if err := unix.Renameat(dir, tmp, dir, base); err != nil {
		return fail(t.explain(parts, err))
	}
	var now unix.Stat_t
	if err := unix.Fstatat(dir, base, &now, unix.AT_SYMLINK_NOFOLLOW); err != nil || now.Dev != st.Dev || now.Ino != st.Ino {
		return 0, fmt.Errorf("%s was exchanged by somebody else while it was written", strconv.QuoteToGraphic(nameOf(parts)))
	}
	return n, nil
}

// temporary makes the file that will take the place: without a name where the
// file system can, so that nothing is left when we are killed.
func (t *Tree) temporary(dir int, up []string, name string) (f *os.File, named bool, err error) {
	for {
		fd, err := unix.Open(fdPath(dir), unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err == unix.EOPNOTSUPP || err == unix.EISDIR || err == unix.EINVAL {
			named = true
			fd, err = unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		}
		if err == unix.EACCES && t.open(dir, up, 0o700) {
			continue
		}
		if err != nil {
			return nil, named, err
		}
		return os.NewFile(uintptr(fd), name), named, nil
	}
}

// plain takes the path from an error whose line names it already.
func plain(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

var errNoRoom = errors.New("no room left")

// roomWriter refuses what is more than there is room for.
type roomWriter struct {
	w    io.Writer
	room int64
}

func (r *roomWriter) Write(p []byte) (int, error) {
	if r.room -= int64(len(p)); r.room < 0 {
		return 0, errNoRoom
	}
	return r.w.Write(p)
}

// Remove removes an entry of the tree: a link as itself, a directory only when
// it is asked for all below it. Directories without permissions are no obstacle,
// see RemoveAt.
func (t *Tree) Remove(path string, recursive bool) error {
	parts, err := SplitPath(path)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return &validate.Error{Value: path, Reason: "that is the workspace itself", Fix: "name what is in it, or use workspace rm"}
	}
	up, base := parts[:len(parts)-1], parts[len(parts)-1]
	fd, err := t.descend(up, directory)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), nameOf(up))
	defer dir.Close()
	var st unix.Stat_t
	err = unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.EACCES && t.open(fd, up, 0o700) {
		err = unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return t.explain(parts, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if !recursive {
			return &validate.Error{Value: nameOf(parts), Reason: "a directory", Fix: "add -r to remove all that is in it"}
		}
		return RemoveAt(dir, base)
	}
	err = unlink(fd, base, 0)
	if err == unix.EACCES && t.open(fd, up, 0o700) {
		err = unlink(fd, base, 0)
	}
	if err != nil {
		return t.explain(parts, err)
	}
	return nil
}

// Entry is one entry of a tree.
type Entry struct {
	// Path is relative to the tree. Its bytes are a box's: make control
	// characters visible before printing it.
	Path string
	// Mode is st_mode: the kind and the permissions.
	Mode uint32
	// Size is in bytes, for a link the length of its target.
	Size  int64
	MTime time.Time
}

// Kind is file, dir, symlink, fifo, socket, char or block.
func (e *Entry) Kind() string { return kindOf(e.Mode) }

// List calls visit for what is in a directory of the tree, or, with recursive,
// for all below it, in the order of the paths: names by their bytes, a directory
// before what is in it. For anything else it is called once, with that. More than
// a million entries are an error. Paths longer than the kernel takes are left out.
func (t *Tree) List(ctx context.Context, path string, recursive bool, visit func(*Entry) error) error {
	parts, err := SplitPath(path)
	if err != nil {
		return err
	}
	fd, err := t.at(parts)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), nameOf(parts))
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return visit(&Entry{nameOf(parts), st.Mode, st.Size, time.Unix(st.Mtim.Unix())})
	}
	s, err := scanTree(ctx, dir, scanOptions{all: true, flat: !recursive, restore: true})
	if err != nil {
		return fmt.Errorf("cannot list %s: %w", strconv.QuoteToGraphic(filepath.Join(t.path, nameOf(parts))), err)
	}
	prefix := ""
	if len(parts) > 0 {
		prefix = nameOf(parts) + "/"
	}
	for _, r := range s.Restored {
		t.restored = append(t.restored, strings.TrimSuffix(prefix+r, "/."))
	}
	if n := s.Unreadable; n > 0 && s.FirstUnreadable == "." {
		return t.explain(parts, unix.EACCES)
	}
	return s.walk(0, prefix, func(path string, r *record) error {
		return visit(&Entry{path, r.mode, r.size, time.Unix(0, r.mtime)})
	})
}
