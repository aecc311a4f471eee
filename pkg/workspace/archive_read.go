package workspace

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/flate"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// ArchiveMember is one file or directory of an archive that passed all checks.
type ArchiveMember struct {
	// Name is relative, without ".", ".." and empty parts; its bytes are those of
	// the archive: make control characters visible before printing it.
	Name string
	// Dir tells a directory from a regular file.
	Dir bool
	// Mode is the permission bits, at most 0777.
	Mode uint32
	// Size is the bytes of a file.
	Size int64
	// MTime is the time of the last change, in seconds since 1970.
	MTime int64
}

// ArchiveContents sums up an archive.
type ArchiveContents struct {
	// Record says where the archive comes from; nil if it does not say so.
	Record *ArchiveRecord
	// Files and Dirs count its members, without the record.
	Files, Dirs int
	// Bytes is what the files hold together.
	Bytes int64
	// Deps says that there are installed packages (.deps) among the members.
	Deps bool
}

// ReadOptions are what ReadArchive can be asked for.
type ReadOptions struct {
	// Name is what messages call the archive.
	Name   string
	Limits ArchiveLimits
	// StripSetuid takes files with the setuid or setgid bit, without that bit;
	// else they are refused.
	StripSetuid bool
	// Read, unless it is nil, counts the bytes that were read of the archive.
	Read *atomic.Int64
	// Member, unless it is nil, gets each member that has passed the checks; r
	// holds the bytes of a file. What comes later may still be refused.
	Member func(m *ArchiveMember, r io.Reader) error

	// index gets, before the first member, what tells what the archive has said
	// of a directory so far.
	index func(dir func(name string) (dirMeta, bool))
}

// ReadArchive reads a snapshot, ours or one of kern's SDK, to its very end and
// checks all of it: tar in gzip or bzip2 or plain. Everything but relative
// regular files and directories is refused, and so are two members of one name,
// a member below a file, setuid and setgid files, sparse files, whatever
// exceeds a limit, an archive that is cut short or damaged, and one with
// anything after its end. Such a refusal is a *validate.Error that names the
// member; other errors come from r, from Member, or from ctx.
//
// Memory does not depend on the size of the archive; the names of a million
// members take some 60 MB.
func ReadArchive(ctx context.Context, r io.Reader, o ReadOptions) (ArchiveContents, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if o.Read == nil {
		o.Read = new(atomic.Int64)
	}
	src := &archiveSource{r: r, n: o.Read, name: o.Name}
	unpacked, err := unpack(src)
	if err != nil {
		return ArchiveContents{}, src.refusal(err)
	}
	ahead := readAhead(ctx, unpacked)
	a := &archiveReader{
		ctx: ctx, in: src, limits: o.Limits.orNone(), strip: o.StripSetuid,
		index: map[nameKey]uint32{}, visit: o.Member,
	}
	a.stream.r, a.stream.a = ahead, a
	if o.index != nil {
		o.index(a.dir)
	}
	err = a.run()
	cancel()
	if err != nil {
		if ctxErr := context.Cause(ctx); a.stopped && ctxErr != nil {
			err = ctxErr
		}
		err = src.refusal(err)
	}
	return a.sum, err
}

// archiveSource counts what is read of the archive, and keeps its errors apart
// from those of what it holds.
type archiveSource struct {
	r    io.Reader
	n    *atomic.Int64
	name string
	mu   sync.Mutex
	err  error
}

func (s *archiveSource) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.n.Add(int64(n))
	if err != nil && err != io.EOF {
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
	}
	return n, err
}

// refusal turns what the readers say of a damaged archive into a refusal.
func (s *archiveSource) refusal(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	var corrupt flate.CorruptInputError
	var structure bzip2.StructuralError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		err = refuseArchive("it is cut short", "fetch or save it again")
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum), errors.Is(err, tar.ErrHeader),
		errors.Is(err, tar.ErrFieldTooLong), errors.As(err, &corrupt), errors.As(err, &structure):
		err = refuseArchive("it is damaged, or something follows its end", "fetch or save it again")
	}
	var bad *validate.Error
	if errors.As(err, &bad) && bad.Field == archiveField && bad.Value == "" {
		bad.Value = s.name
	}
	return err
}

const archiveField = "archive"

func refuseArchive(reason, fix string) error {
	return &validate.Error{Field: archiveField, Reason: reason, Fix: fix}
}

func refuseMember(name, reason, fix string) error {
	return &validate.Error{Field: "member", Value: name, Reason: reason, Fix: fix}
}

// unpack finds out how an archive is compressed.
func unpack(r io.Reader) (io.Reader, error) {
	in := bufio.NewReaderSize(r, 256<<10)
	head, err := in.Peek(tarBlock)
	if err != nil && err != io.EOF {
		return nil, err
	}
	const fix = "give a .tar.gz"
	switch {
	case len(head) == 0:
		return nil, refuseArchive("it is empty", fix)
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzip.NewReader(in)
	case bytes.HasPrefix(head, []byte("BZh")):
		return bzip2.NewReader(in), nil
	case bytes.HasPrefix(head, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		return nil, refuseArchive("compressed with xz, which is not read here", "write xz -dc FILE | kern-sbx snapshot restore - DIR")
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return nil, refuseArchive("compressed with zstd, which is not read here", "write zstd -dc FILE | kern-sbx snapshot restore - DIR")
	case len(head) == tarBlock && (bytes.HasPrefix(head[257:], []byte("ustar")) || len(bytes.Trim(head, "\x00")) == 0):
		return in, nil
	}
	return nil, refuseArchive("not a tar archive", fix)
}

// readAhead reads in another goroutine, so that unpacking and writing go on at
// the same time. It ends with its context.
func readAhead(ctx context.Context, r io.Reader) io.Reader {
	const size, ahead = 256 << 10, 8
	full := make(chan aheadPart, ahead)
	free := make(chan []byte, ahead+2)
	for range ahead + 2 {
		free <- make([]byte, size)
	}
	go func() {
		for {
			var b []byte
			select {
			case b = <-free:
			case <-ctx.Done():
				return
			}
			n, err := io.ReadFull(r, b)
			if err == io.ErrUnexpectedEOF && n > 0 {
				// ReadFull's word for a short last part; the reader's own is told
				// apart by asking once more.
				err = nil
			}
			select {
			case full <- aheadPart{b[:n], err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return &aheadReader{ctx: ctx, full: full, free: free}
}

type aheadPart struct {
	b   []byte
	err error
}

type aheadReader struct {
	ctx         context.Context
	full        chan aheadPart
	free        chan []byte
	whole, rest []byte
	err         error
}

func (a *aheadReader) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if a.err != nil {
			return 0, a.err
		}
		if a.whole != nil {
			a.free <- a.whole[:cap(a.whole)]
			a.whole = nil
		}
		select {
		case part := <-a.full:
			a.whole, a.rest, a.err = part.b, part.b, part.err
		case <-a.ctx.Done():
			a.err = a.ctx.Err()
		}
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// archiveReader checks an archive while it reads it.
type archiveReader struct {
	ctx     context.Context
	in      *archiveSource
	limits  ArchiveLimits
	strip   bool
	visit   func(*ArchiveMember, io.Reader) error
	stream  tarStream
	sum     ArchiveContents
	members int // headers, and directories that only a longer name tells of
	stopped bool

	index  map[nameKey]uint32
	times  []dirMeta
	parent string // the last directory that was looked up
	any    bool   // one was
}

// nameKey stands for a name: a million names of 4 KiB would not fit.
type nameKey [16]byte

func keyOf(name string) nameKey {
	sum := sha256.Sum256([]byte(name))
	return nameKey(sum[:16])
}

// What a name is in the index; from indexDir on it is a directory with a header
// of its own, whose dirMeta is at the difference.
const (
	indexFile uint32 = iota
	indexImplied
	indexDir
)

// dirMeta is what is set once a directory is filled.
type dirMeta struct {
	mode  uint32
	mtime int64
}

// tarStream is the tar as it comes, counted.
type tarStream struct {
	r   io.Reader
	a   *archiveReader
	off int64
}

const (
	// headerRoom is what may stand beside the data of each member: headers with a
	// long name, and padding; headerSlack is what may stand at the end.
	headerRoom  = 16 << 10
	headerSlack = 1 << 20
	// ratioFrom is how many bytes may come out at any ratio.
	ratioFrom = 1 << 20
)

func (s *tarStream) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.off += int64(n)
	a := s.a
	if e := a.ctx.Err(); e != nil {
		a.stopped = true
		return 0, e
	}
	if s.off > ratioFrom {
		if in := a.in.n.Load(); a.limits.Ratio < math.MaxInt && s.off/int64(a.limits.Ratio) > in {
			return 0, refuseArchive(fmt.Sprintf("more than %d bytes come out for each one in it", a.limits.Ratio), "raise --max-ratio if it is meant so")
		}
		if s.off-a.sum.Bytes > headerSlack+int64(a.members+1)*headerRoom {
			return 0, refuseArchive("its headers are larger than names can make them", "")
		}
	}
	return n, err
}

func (a *archiveReader) run() error {
	t := tar.NewReader(&a.stream)
	end := int64(0)
	for first := true; ; first = false {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		end = a.stream.off + h.Size + padding(h.Size)
		var content io.Reader = t
		if first && h.Name == recordName && h.Typeflag == tar.TypeReg && h.Size <= recordMax {
			b, err := io.ReadAll(t)
			if err != nil {
				return err
			}
			if r, ok := parseRecord(b); ok {
				a.sum.Record = r
				continue
			}
			content = bytes.NewReader(b)
		}
		m, err := a.check(h)
		if err != nil {
			return err
		}
		if m == nil {
			continue
		}
		if a.visit != nil {
			if err := a.visit(m, content); err != nil {
				return err
			}
		}
		// A member that is cut short is found now, and not at the next header.
		if _, err := io.Copy(io.Discard, t); err != nil {
			return err
		}
	}
	return a.rest(end)
}

// rest reads what follows the last member: the end mark, padding, and no more.
func (a *archiveReader) rest(end int64) error {
	if a.stream.off < end+tarBlock {
		return refuseArchive("it is cut short: its end mark is missing", "fetch or save it again")
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := a.stream.Read(buf)
		for _, c := range buf[:n] {
			if c != 0 {
				return refuseArchive("something follows its end", "give an archive that holds nothing else")
			}
		}
		if err == io.EOF {
			return nil
		}
		if err == io.ErrUnexpectedEOF {
			// A few bytes of something else look like a part that is cut short.
			return refuseArchive("its end is cut short, or something follows it", "fetch or save it again")
		}
		if err != nil {
			return err
		}
	}
}

// check vets one header; no member and no error is one that says nothing.
func (a *archiveReader) check(h *tar.Header) (*ArchiveMember, error) {
	if a.members++; a.members > a.limits.Entries {
		return nil, a.tooMany()
	}
	m := &ArchiveMember{Dir: h.Typeflag == tar.TypeDir, Mode: uint32(h.Mode) & 0o777, Size: h.Size, MTime: h.ModTime.Unix()}
	if kind := memberKind(h); kind != "" {
		return nil, refuseMember(h.Name, kind+", and only files and directories are restored", "leave it out of the archive")
	}
	name, err := memberName(h.Name, a.limits.Name)
	if err != nil {
		return nil, err
	}
	switch {
	case m.Dir && h.Size != 0:
		return nil, refuseMember(h.Name, "a directory with contents of a file", "")
	case name == "" && m.Dir:
		return nil, nil
	case name == "":
		return nil, refuseMember(h.Name, "a file without a name", "")
	case !m.Dir && h.Mode&0o6000 != 0 && !a.strip:
		return nil, refuseMember(h.Name, "a setuid or setgid file, which lends its owner's rights to whoever starts it", "give --strip-setuid to restore it without the bit")
	case h.Size < 0 || h.Size > a.limits.Bytes-a.sum.Bytes:
		return nil, refuseMember(h.Name, "with it the files hold more than the limit of "+validate.Size(a.limits.Bytes).Human(), "raise --max-bytes")
	}
	m.Name = name
	if err := a.add(m); err != nil {
		return nil, err
	}
	if m.Dir {
		a.sum.Dirs++
	} else {
		a.sum.Files++
		a.sum.Bytes += h.Size
	}
	a.sum.Deps = a.sum.Deps || name == depsName || strings.HasPrefix(name, depsName+"/")
	return m, nil
}

func (a *archiveReader) tooMany() error {
	return refuseArchive("it holds more than "+strconv.Itoa(a.limits.Entries)+" files and directories", "raise --max-entries")
}

// memberKind says what a member is that is neither a file nor a directory.
func memberKind(h *tar.Header) string {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return "a sparse file"
		}
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir:
		return ""
	case tar.TypeSymlink:
		return "a symbolic link"
	case tar.TypeLink:
		return "a hard link"
	case tar.TypeChar, tar.TypeBlock:
		return "a device"
	case tar.TypeFifo:
		return "a FIFO"
	case tar.TypeGNUSparse:
		return "a sparse file"
	case tar.TypeXGlobalHeader:
		return "a global header"
	}
	return "of the unknown type " + strconv.QuoteToASCII(string(rune(h.Typeflag)))
}

// memberName checks a name and brings it into the one form that names are
// compared in; the name of the top itself is empty.
func memberName(name string, most int) (string, error) {
	switch {
	case strings.HasPrefix(name, "/"):
		return "", refuseMember(name, "an absolute name", "make the archive with relative names")
	case strings.IndexByte(name, 0) >= 0:
		return "", refuseMember(name, "a name with a zero byte", "")
	case len(name) > most+2: // "./" may stand before it
		return "", refuseMember(name, "a name of more than "+strconv.Itoa(most)+" bytes", "raise --max-name, if it is below "+strconv.Itoa(DefaultArchiveName))
	}
	clean := make([]byte, 0, len(name))
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
			continue
		case part == "..":
			return "", refuseMember(name, "a name that leads out of its directory", "make the archive without .. in names")
		case len(part) > 255:
			return "", refuseMember(name, "a part of the name has more than 255 bytes", "")
		}
		if len(clean) > 0 {
			clean = append(clean, '/')
		}
		clean = append(clean, part...)
	}
	if len(clean) > most {
		return "", refuseMember(name, "a name of more than "+strconv.Itoa(most)+" bytes", "raise --max-name, if it is below "+strconv.Itoa(DefaultArchiveName))
	}
	return string(clean), nil
}

// add puts a member into the index, with the directories on the way to it.
func (a *archiveReader) add(m *ArchiveMember) error {
	if dir := path.Dir(m.Name); dir != "." && (!a.any || dir != a.parent) {
		if err := a.imply(m.Name, dir); err != nil {
			return err
		}
		a.parent, a.any = dir, true
	}
	key := keyOf(m.Name)
	kind, known := a.index[key]
	switch {
	case !known:
	case m.Dir != (kind != indexFile):
		return refuseMember(m.Name, "in the archive both as a file and as a directory", "make the archive anew")
	case kind != indexImplied:
		return refuseMember(m.Name, "twice in the archive", "make the archive anew")
	default:
		a.members-- // it was counted
	}
	if !m.Dir {
		a.index[key] = indexFile
		return nil
	}
	a.index[key] = indexDir + uint32(len(a.times))
	a.times = append(a.times, dirMeta{m.Mode, m.MTime})
	return nil
}

func (a *archiveReader) imply(name, dir string) error {
	for ; dir != "."; dir = path.Dir(dir) {
		key := keyOf(dir)
		kind, known := a.index[key]
		if known && kind == indexFile {
			return refuseMember(name, "it lies in "+strconv.QuoteToGraphic(dir)+", which is a file", "")
		}
		if known {
			return nil
		}
		if a.members++; a.members > a.limits.Entries {
			return a.tooMany()
		}
		a.index[key] = indexImplied
	}
	return nil
}

// dir is what the archive says of a directory; ok is false if it has no header.
func (a *archiveReader) dir(name string) (meta dirMeta, ok bool) {
	if n := a.index[keyOf(name)]; n >= indexDir {
		return a.times[n-indexDir], true
	}
	return dirMeta{}, false
}
