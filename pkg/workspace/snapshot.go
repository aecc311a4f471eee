package workspace

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"golang.org/x/sys/unix"
)

// SaveOptions say how a snapshot is taken.
type SaveOptions struct {
	// Record is what is written about where the snapshot comes from; Deps is
	// filled in.
	Record ArchiveRecord
	// Limits bound it, Ratio excepted: what goes beyond them could not be restored
	// under the same limits.
	Limits ArchiveLimits
	// Done, unless it is nil, counts the bytes of files that were read.
	Done *atomic.Int64
}

// Saved says what a snapshot holds and what not.
type Saved struct {
	Record ArchiveRecord `json:"record"`
	// Files and Dirs count what is in it.
	Files int `json:"files"`
	Dirs  int `json:"dirs"`
	// Bytes is what the files hold, Size what the archive has, both in bytes.
	Bytes int64 `json:"bytes"`
	Size  int64 `json:"size"`
	// Skipped is what was left out, in the order of names; SkippedMore counts
	// what did not fit into the list, which holds names of 16 MiB together.
	Skipped     []SkippedEntry `json:"skipped"`
	SkippedMore int            `json:"skipped_more"`
	// Changed counts the files that were written to while they were read, so
	// that their contents may be of two moments; FirstChanged is one of them.
	Changed      int     `json:"changed"`
	FirstChanged RawName `json:"first_changed,omitzero"`
}

// SkippedEntry is something that is not in a snapshot.
type SkippedEntry struct {
	Path RawName `json:"path"`
	// Why is what it is: "symbolic link", "FIFO", "socket", "device", "mount
	// point", "the archive itself", "the SDK's file of variables", "name too long".
	Why string `json:"why"`
}

// RawName is a name as a file system has it. In JSON, one that is not UTF-8 is
// an object with base64 in it, so that nothing of it is lost.
type RawName string

// MarshalJSON gives a string, or {"base64": "…"}.
func (n RawName) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(n)) {
		return json.Marshal(string(n))
	}
	return json.Marshal(map[string]string{"base64": base64.StdEncoding.EncodeToString([]byte(n))})
}

const skippedMax = 16 << 20

// SaveSnapshot writes what is in the directory root to an archive: a tar in
// gzip that any tar reads, kern's SDK included. The directory may be hostile and
// be written to meanwhile: no link is followed, no mount point crossed, nothing
// blocks on a FIFO, and at most 24 descriptors are open.
//
// Regular files and directories go in; links, FIFOs, sockets, devices, mount
// points and the archive itself are left out and listed. A second hard link is a
// file of its own. Names, contents, permission bits (not setuid, setgid, sticky)
// and times in whole seconds are kept; owners, extended attributes and the
// directory's own mode are not. The same in all of these, and in the record,
// gives the same bytes, with the same version of this program.
//
// A directory of ours that its mode closes to us is opened for the moment; a
// file that cannot be read is an error, since a snapshot without it would be
// taken for whole. Nothing is there under the archive's name until all is on
// the disk; then Close must still be called.
func SaveSnapshot(ctx context.Context, root *os.File, to *ArchiveFile, o SaveOptions) (Saved, error) {
	defer runtime.KeepAlive(root)
	if o.Done == nil {
		o.Done = new(atomic.Int64)
	}
	s := &saver{ctx: ctx, to: to, limits: o.Limits.orNone(), progress: o.Done, sum: Saved{Record: o.Record, Skipped: []SkippedEntry{}}}
	s.out = newGzipBlocks(to.f)
	err := s.save(int(root.Fd()))
	if cerr := s.out.close(); err == nil {
		err = cerr
	}
	s.sum.Size = s.out.size.Load()
	if ctxErr := context.Cause(ctx); err != nil && ctx.Err() != nil {
		err = ctxErr
	}
	if err == nil {
		err = to.commit()
	}
	return s.sum, to.wrap(err)
}

// saveOpen is how many directories inside each other are held open.
const saveOpen = 16

type saver struct {
	ctx      context.Context
	to       *ArchiveFile
	out      *gzipBlocks
	limits   ArchiveLimits
	progress *atomic.Int64
	sum      Saved

	levels  []saveLevel
	path    []byte // of the deepest level, with a slash at its end
	entries int
	listed  int
	head    []byte
	reader  dirReader
}

type saveLevel struct {
	fd       int // -1: closed for now
	dev, ino uint64
	names    []string // what is still to be saved
	pathLen  int
	mode     uint32 // to be given back if granted
	granted  bool
}

func (s *saver) rel(name string) string { return string(s.path) + name }

func (s *saver) save(root int) error {
	defer s.end()
	if _, err := s.down(root, "."); err != nil {
		return fmt.Errorf("cannot read the directory: %w", err)
	}
	_, s.sum.Record.Deps = slices.BinarySearch(s.levels[0].names, depsName)
	record, err := s.sum.Record.encode()
	if err != nil {
		return err
	}
	if err := s.header(recordName, false, 0o644, int64(len(record)), 0); err != nil {
		return err
	}
	if _, err := s.out.Write(record); err != nil {
		return err
	}
	if err := s.out.zeros(padding(int64(len(record)))); err != nil {
		return err
	}
	for len(s.levels) > 0 {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		l := &s.levels[len(s.levels)-1]
		if len(l.names) == 0 {
			if err := s.up(); err != nil {
				return err
			}
			continue
		}
		name := l.names[0]
		l.names = l.names[1:]
		if err := s.entry(l.fd, name); err != nil {
			return err
		}
	}
	return s.out.zeros(2 * tarBlock)
}

func (s *saver) header(name string, dir bool, mode uint32, size, mtime int64) error {
	s.head = appendTarHeader(s.head[:0], name, dir, mode, size, mtime)
	_, err := s.out.Write(s.head)
	return err
}

func (s *saver) skip(name, why string) {
	rel := s.rel(name)
	if s.listed += len(rel) + 64; s.listed > skippedMax {
		s.sum.SkippedMore++
		return
	}
	s.sum.Skipped = append(s.sum.Skipped, SkippedEntry{RawName(rel), why})
}

func (s *saver) fail(name string, err error) error {
	what := strconv.QuoteToGraphic(s.rel(name))
	switch err {
	case unix.EACCES, unix.EPERM:
		return fmt.Errorf("cannot read %s, and a snapshot without it would not be whole: %w; make it readable, or delete it", what, err)
	case errMoved:
		return fmt.Errorf("%s was moved while it was saved: save again when nothing writes there", what)
	}
	return fmt.Errorf("cannot save %s: %w", what, err)
}

// sdkVariables tells the files in which kern's SDK keeps variables for a box,
// and which it leaves behind when it is killed.
func sdkVariables(name string) bool {
	return name == ".kern-env" || strings.HasPrefix(name, ".kern-env.pysbx-") || strings.HasPrefix(name, ".kern-env.jssbx-") ||
		strings.HasPrefix(name, ".kern-env.kern-sbx-")
}

// entry saves one name of the deepest directory, whatever it is by now.
func (s *saver) entry(dirfd int, name string) error {
	if len(s.path)+len(name) > s.limits.Name {
		s.skip(name, "name too long")
		return nil
	}
	fd, st, err := openRegular(dirfd, name)
	switch err {
	case nil:
		defer unix.Close(fd)
		if s.to.is(&st) {
			s.skip(name, "the archive itself")
			return nil
		}
		if len(s.path) == 0 && sdkVariables(name) {
			s.skip(name, "the SDK's file of variables")
			return nil
		}
		if err := s.file(fd, name, &st); err != nil {
			return err
		}
		return nil
	case errNotRegular:
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			return s.dir(dirfd, name)
		case unix.S_IFLNK:
			s.skip(name, "symbolic link")
		case unix.S_IFIFO:
			s.skip(name, "FIFO")
		case unix.S_IFSOCK:
			s.skip(name, "socket")
		default:
			s.skip(name, "device")
		}
		return nil
	case unix.ENOENT: // gone
		return nil
	case unix.EXDEV:
		s.skip(name, "mount point")
		return nil
	}
	return s.fail(name, err)
}

func (s *saver) dir(dirfd int, name string) error {
	st, err := s.down(dirfd, name)
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP: // gone, or no longer a directory
		return nil
	case unix.EXDEV:
		s.skip(name, "mount point")
		return nil
	default:
		var bad *validate.Error
		if errors.As(err, &bad) {
			return err
		}
		return s.fail(name, err)
	}
	s.sum.Dirs++
	return s.header(string(s.path[:len(s.path)-1]), true, st.Mode&0o777, 0, st.Mtim.Sec)
}

// down opens a directory, reads all its names, and makes it the deepest level.
func (s *saver) down(dirfd int, name string) (st unix.Stat_t, err error) {
	l := saveLevel{}
	fd, err := openDirAt(dirfd, name)
	if err == unix.EACCES {
		if name == "." {
			l.mode, l.granted, _ = grant(dirfd, 0o500)
		} else {
			l.mode, l.granted, _ = grantAt(dirfd, name, 0o500)
		}
		if l.granted {
			fd, err = openDirAt(dirfd, name)
		}
	}
	if err != nil {
		return st, err
	}
	l.fd = fd
	defer func() {
		if err != nil {
			s.leave(&l)
		}
	}()
	if err := unix.Fstat(fd, &st); err != nil {
		return st, err
	}
	l.dev, l.ino = st.Dev, st.Ino
	if st.Mode&0o500 != 0o500 && int(st.Uid) == os.Geteuid() && !l.granted {
		l.mode, l.granted, _ = grant(fd, 0o500)
	}
	if l.granted {
		st.Mode = st.Mode&^0o7777 | l.mode
	}
	s.reader.open(fd)
	for {
		e, ok, err := s.reader.next()
		if err != nil {
			return st, err
		}
		if !ok {
			break
		}
		if s.entries++; s.entries > s.limits.Entries {
			return st, &validate.Error{
				Field: "DIR", Value: s.rel(name), Reason: "there are more than " + strconv.Itoa(s.limits.Entries) + " files and directories", Fix: "raise --max-entries",
			}
		}
		l.names = append(l.names, e.name)
	}
	slices.Sort(l.names)
	n := len(s.levels)
	if n > 0 {
		s.path = append(append(s.path, name...), '/')
		l.pathLen = len(s.path)
	}
	if n >= saveOpen && s.levels[n-saveOpen].fd >= 0 {
		_ = unix.Close(s.levels[n-saveOpen].fd)
		s.levels[n-saveOpen].fd = -1
	}
	s.levels = append(s.levels, l)
	return st, nil
}

// up leaves the deepest level.
func (s *saver) up() error {
	n := len(s.levels) - 1
	l := &s.levels[n]
	var err error
	if n > 0 && s.levels[n-1].fd < 0 {
		err = reopenUp(l.fd, &s.levels[n-1])
	}
	if err != nil {
		err = s.fail("", err)
	}
	s.leave(l)
	s.levels = s.levels[:n]
	if n > 0 {
		s.path = s.path[:s.levels[n-1].pathLen]
	}
	return err
}

// reopenUp opens a level again as ".." of a directory that was in it.
func reopenUp(below int, l *saveLevel) error {
	fd, err := openDirAt(below, "..")
	if err != nil {
		return errMoved
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Dev != l.dev || st.Ino != l.ino {
		_ = unix.Close(fd)
		return errMoved
	}
	l.fd = fd
	return nil
}

func (s *saver) leave(l *saveLevel) {
	if l.fd < 0 {
		return
	}
	if l.granted {
		_ = chmodFd(l.fd, l.mode)
	}
	_ = unix.Close(l.fd)
}

func (s *saver) end() {
	for i := range s.levels {
		s.leave(&s.levels[i])
	}
	s.levels = nil
}

// file saves an open file: as many bytes as it had when it was opened.
func (s *saver) file(fd int, name string, st *unix.Stat_t) error {
	if st.Size > s.limits.Bytes-s.sum.Bytes {
		return &validate.Error{
			Field: "DIR", Value: s.rel(name), Reason: "with it the files hold more than the limit of " + validate.Size(s.limits.Bytes).Human(),
			Fix: "raise --max-bytes, or delete what is not needed",
		}
	}
	if err := s.header(s.rel(name), false, st.Mode&0o777, st.Size, st.Mtim.Sec); err != nil {
		return err
	}
	for left := st.Size; left > 0; {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		buf := s.out.space()
		n, err := retry(func() (int, error) { return unix.Read(fd, buf[:min(left, int64(len(buf)))]) })
		if err != nil {
			return s.fail(name, err)
		}
		if n == 0 {
			return fmt.Errorf("%s became shorter while it was saved: save again when nothing writes there", strconv.QuoteToGraphic(s.rel(name)))
		}
		if err := s.out.took(n); err != nil {
			return err
		}
		left -= int64(n)
		s.progress.Add(int64(n))
	}
	var now unix.Stat_t
	if err := unix.Fstat(fd, &now); err != nil {
		return s.fail(name, err)
	}
	if now.Size != st.Size || now.Mtim != st.Mtim || now.Ctim != st.Ctim {
		if s.sum.Changed++; s.sum.Changed == 1 {
			s.sum.FirstChanged = RawName(s.rel(name))
		}
	}
	s.sum.Files++
	s.sum.Bytes += st.Size
	return s.out.zeros(padding(st.Size))
}
