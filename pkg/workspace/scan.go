package workspace

import (
	"context"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

const (
	// scanMax bounds the memory of a scan: entries, directories among them.
	scanMax = 1 << 20
	// scanWorkers is how many directories are read at a time, two descriptors
	// each. More would only wait for each other in the kernel.
	scanWorkers = 4
	// scanSplit is how many names of one directory one worker looks at.
	scanSplit = 2048
)

// depsEntry is what a setup installs. It is no change of the code's.
const depsEntry = ".deps"

// Scan is what a tree held at one moment, for Changes to compare.
type Scan struct {
	// Restored are directories that the box had closed to the host, and that were
	// given the owner's permissions back, for good; relative to the tree.
	Restored []string
	// Unreadable counts directories that the caller may not read, and
	// FirstUnreadable is one of them. What is in them is not known.
	Unreadable      int
	FirstUnreadable string
	// TooDeep counts directories whose path is longer than the kernel takes. No
	// report could name what is in them.
	TooDeep int

	dirs    []scanDir
	entries int
	newest  int64 // the latest ctime, in ns
}

// ScanOptions say what a scan is for.
type ScanOptions struct {
	// Ignore are patterns, as path.Match reads them, of what is left out: of a
	// name, or, with a slash, of a path relative to the tree. A directory is left
	// out with all that is in it. .deps directly in the tree always is.
	Ignore []string
	// Except are names directly in the tree that are left out as .deps is.
	Except []string
	// Before is a scan of the same tree from before a box had it; nil: the box
	// began with an empty one. It is what makes this one the scan after the
	// box: directories that the box closed are opened again.
	Before *Scan
	// After makes it the scan after a box that began with an empty tree.
	After bool
}

// CheckIgnore refuses a pattern that path.Match cannot read.
func CheckIgnore(pattern string) error {
	_, err := path.Match(pattern, "")
	switch {
	case pattern == "":
		return &validate.Error{Value: pattern, Reason: "an empty pattern", Fix: "write a name like __pycache__, or a pattern like '*.log'"}
	case strings.HasPrefix(pattern, "/"):
		return &validate.Error{Value: pattern, Reason: "an absolute path", Fix: "write it relative to the workspace"}
	case err != nil:
		return &validate.Error{Value: pattern, Reason: "not a pattern", Fix: "close the bracket, or write \\[ for a bracket itself"}
	}
	return nil
}

// ScanDir takes down the regular files below dir: their names and, from the inode,
// size, number, mode and times. Contents are not read. It is safe on a hostile tree
// and on one that is being written to: no symbolic link is followed, no mount point
// crossed, nothing but directories is opened, at most two for each of up to four
// workers, and a tree of more than a million entries is an error. A scan of
// 100 000 files takes 0.1 to 0.2 s and keeps 8 MiB.
func ScanDir(ctx context.Context, dir *os.File, o ScanOptions) (*Scan, error) {
	s, err := scanTree(ctx, dir, scanOptions{ignore: o.Ignore, except: append(slices.Clip(o.Except), depsEntry), restore: o.After || o.Before != nil, before: o.Before})
	if err != nil {
		return nil, fmt.Errorf("the workspace could not be searched: %w", err)
	}
	return s, nil
}

// Settles is when a change would carry a time other than the latest one seen:
// a box that starts sooner could rewrite a file unnoticed within one tick of the
// clock. It is in the past unless the tree was changed just now.
func (s *Scan) Settles() time.Time {
	if s.newest == 0 {
		return time.Time{}
	}
	return time.Unix(0, s.newest).Add(FingerprintSettle)
}

// How a file changed.
const (
	Created  = "created"
	Modified = "modified"
	Deleted  = "deleted"
)

// Change is one file that a box changed.
type Change struct {
	// Path is relative to the tree. Its bytes are a box's: make control
	// characters visible before printing it.
	Path string
	// Change is created, modified or deleted.
	Change string
	// Size in bytes: of a deleted file, what it had.
	Size int64
}

// Changes compares two scans of one tree, and gives what differs in the order of
// the paths; before is nil for a tree that began empty. A renamed file is deleted
// and created. A file with several names is listed once for each.
//
// Modified is every file whose inode is another one, or shows any change that no
// program can undo: a rewrite of the same size with the old time put back has a
// new ctime. So has a file that only got other permissions or a further hard link:
// in doubt it is listed. (On tmpfs, writes through mmap leave no trace.)
//
// At most most changes are given, and paths of no more than 16 MiB; more is how
// many there are besides.
func Changes(before, after *Scan, most int) (list []Change, more int) {
	room := 16 << 20
	add := func(p, change string, size int64) {
		if len(list) == most || len(p) > room {
			more++
			return
		}
		room -= len(p)
		list = append(list, Change{p, change, size})
	}
	if before == nil {
		before = &Scan{dirs: make([]scanDir, 1)}
	}
	d := differ{before, after, add}
	d.compare(0, 0, "")
	return list, more
}

// record is one entry of a directory.
type record struct {
	name         string
	mode         uint32
	dir          int32 // its place in Scan.dirs, for a directory that was entered
	ino          uint64
	size         int64
	mtime, ctime int64 // ns
}

type scanDir struct {
	parent  int32
	pathLen int32
	name    string
	entries []record // sorted by name
	unread  bool
}

type differ struct {
	a, b *Scan
	add  func(path, change string, size int64)
}

const none = int32(-1)

// compare goes through two directories side by side; none for one that is not
// there. The depth of the recursion is bounded by that of a path.
func (d *differ) compare(i, j int32, prefix string) {
	var x, y []record
	if i != none {
		x = d.a.dirs[i].entries
	}
	if j != none {
		y = d.b.dirs[j].entries
	}
	if i != none && j != none && (d.a.dirs[i].unread || d.b.dirs[j].unread) {
		return // what was or is in it is not known
	}
	for len(x) > 0 || len(y) > 0 {
		var a, b *record
		switch c := compareFirst(x, y); {
		case c < 0:
			a, x = &x[0], x[1:]
		case c > 0:
			b, y = &y[0], y[1:]
		default:
			a, x, b, y = &x[0], x[1:], &y[0], y[1:]
		}
		d.pair(a, b, prefix)
	}
}

func compareFirst(x, y []record) int {
	switch {
	case len(x) == 0:
		return 1
	case len(y) == 0:
		return -1
	}
	return strings.Compare(x[0].name, y[0].name)
}

// pair judges one name.
func (d *differ) pair(a, b *record, prefix string) {
	i, j := none, none
	if a != nil && a.isDir() {
		i = a.dir
	}
	if b != nil && b.isDir() {
		j = b.dir
	}
	if i != none || j != none {
		name := ""
		if a != nil {
			name = a.name
		} else {
			name = b.name
		}
		d.compare(i, j, prefix+name+"/")
	}
	was, is := a != nil && a.isFile(), b != nil && b.isFile()
	switch {
	case was && is:
		if a.ino != b.ino || a.size != b.size || a.mode != b.mode || a.mtime != b.mtime || a.ctime != b.ctime {
			d.add(prefix+b.name, Modified, b.size)
		}
	case is:
		d.add(prefix+b.name, Created, b.size)
	case was:
		d.add(prefix+a.name, Deleted, a.size)
	}
}

func (r *record) isDir() bool  { return r.mode&unix.S_IFMT == unix.S_IFDIR }
func (r *record) isFile() bool { return r.mode&unix.S_IFMT == unix.S_IFREG }

type scanOptions struct {
	all     bool // entries of every kind, not only regular files and directories
	flat    bool // this directory alone
	restore bool // open directories of ours that are closed to us
	except  []string
	ignore  []string
	before  *Scan // directories that were closed already there stay so
}

// scanner is one scan that is going on. Directories to read are a stack that all
// workers share, so that what one of them opens is often in the one it had open.
type scanner struct {
	scanOptions
	ctx  context.Context
	root int
	dev  uint64

	mu   sync.Mutex
	cond sync.Cond
	todo []int32
	busy int
	err  error
	Scan
}

func scanTree(ctx context.Context, dir *os.File, o scanOptions) (*Scan, error) {
	defer runtime.KeepAlive(dir)
	s := &scanner{scanOptions: o, ctx: ctx, root: int(dir.Fd())}
	s.cond.L = &s.mu
	var st unix.Stat_t
	if err := unix.Fstat(s.root, &st); err != nil {
		return nil, err
	}
	s.dev = st.Dev
	s.dirs = []scanDir{{parent: none}}
	s.todo = []int32{0}
	w := scanWorker{s: s, last: none, fd: -1}
	// A small tree is not worth a second thread.
	for range 4 {
		if !w.step() {
			break
		}
	}
	if len(s.todo) > 0 && s.err == nil {
		var all sync.WaitGroup
		for range scanThreads() - 1 {
			all.Go(func() {
				w := scanWorker{s: s, last: none, fd: -1}
				w.run()
			})
		}
		w.run()
		all.Wait()
	}
	w.close()
	if s.err != nil {
		return nil, s.err
	}
	slices.Sort(s.Restored)
	return &s.Scan, nil
}

type scanWorker struct {
	s    *scanner
	r    dirReader
	last int32 // the directory that is open, as fd
	fd   int
	buf  []record
	path []byte
}

func (w *scanWorker) close() {
	if w.fd >= 0 {
		_ = unix.Close(w.fd)
		w.fd = -1
	}
}

// run reads directories until none is left.
func (w *scanWorker) run() {
	defer w.close()
	for w.step() {
	}
}

// step reads one directory, and says whether there may be another.
func (w *scanWorker) step() bool {
	s := w.s
	s.mu.Lock()
	for {
		switch {
		case s.err != nil:
			s.mu.Unlock()
			return false
		case len(s.todo) == 0 && s.busy == 0:
			s.cond.Broadcast()
			s.mu.Unlock()
			return false
		case len(s.todo) > 0:
			n := s.todo[len(s.todo)-1]
			s.todo = s.todo[:len(s.todo)-1]
			s.busy++
			d := s.dirs[n]
			w.path = s.pathOf(w.path[:0], n)
			s.mu.Unlock()
			w.read(n, d)
			s.mu.Lock()
			s.busy--
			if s.busy == 0 || len(s.todo) > 0 {
				s.cond.Broadcast()
			}
			s.mu.Unlock()
			return true
		}
		s.cond.Wait()
	}
}

// pathOf gives the path of a directory with a slash at its end, "" for the root.
func (s *scanner) pathOf(buf []byte, n int32) []byte {
	size := int(s.dirs[n].pathLen)
	buf = slices.Grow(buf, size)[:size]
	for at := size; n != 0; n = s.dirs[n].parent {
		at--
		buf[at] = '/'
		at -= len(s.dirs[n].name)
		copy(buf[at:], s.dirs[n].name)
	}
	return buf
}

// open opens a directory for reading: by its name in the one that is open, if it
// lies there, else by its path from the root.
func (w *scanWorker) open(n int32, d scanDir) (int, error) {
	s := w.s
	if n == 0 {
		return openDirAt(s.root, ".")
	}
	if d.parent == w.last && w.fd >= 0 {
		return openDirAt(w.fd, d.name)
	}
	return openDirBelow(s.root, string(w.path))
}

// openDirBelow opens the directory at a relative path for reading.
func openDirBelow(root int, path string) (int, error) {
	fd, err := openat2(root, strings.TrimSuffix(path, "/"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, resolveBelow)
	if err != unix.ENOSYS {
		return fd, err
	}
	cur := root
	for part := range strings.SplitSeq(strings.TrimSuffix(path, "/"), "/") {
		next, err := openDirAt(cur, part)
		if cur != root {
			_ = unix.Close(cur)
		}
		if err != nil {
			return -1, err
		}
		cur = next
	}
	return cur, nil
}

// grant opens a closed directory to us, if it is ours and the box closed it.
func (w *scanWorker) grant(n int32, d scanDir) bool {
	s := w.s
	if !s.restore || s.before.wasShut(string(w.path)) {
		return false
	}
	var changed bool
	switch {
	case n == 0:
		_, changed, _ = grant(s.root, 0o500)
	case d.parent == w.last && w.fd >= 0:
		_, changed, _ = grantAt(w.fd, d.name, 0o500)
	default:
		up := strings.TrimSuffix(string(w.path), d.name+"/")
		fd := s.root
		if up != "" {
			var err error
			if fd, err = openDirBelow(s.root, up); err != nil {
				return false
			}
			defer unix.Close(fd)
		}
		_, changed, _ = grantAt(fd, d.name, 0o500)
	}
	if changed {
		s.noteRestored(string(w.path))
	}
	return changed
}

func (s *scanner) noteRestored(path string) {
	if path == "" {
		path = "./"
	}
	s.mu.Lock()
	// However many a box closes, some names are enough for the report.
	if len(s.Restored) < clearedMax {
		s.Restored = append(s.Restored, strings.TrimSuffix(path, "/"))
	}
	s.mu.Unlock()
}

// wasShut says whether a directory, by its path with a slash, could not be read in
// an earlier scan.
func (s *Scan) wasShut(p string) bool {
	if s == nil {
		return false
	}
	n := int32(0)
	for p != "" {
		name, rest, _ := strings.Cut(p, "/")
		e := s.dirs[n].entries
		i, ok := slices.BinarySearchFunc(e, name, func(r record, name string) int { return strings.Compare(r.name, name) })
		if !ok || !e[i].isDir() || e[i].dir == none {
			return false
		}
		n, p = e[i].dir, rest
	}
	return s.dirs[n].unread
}

// unsearchable says whether a directory of ours lacks the owner's r or x.
func (s *scanner) unsearchable(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && int(st.Uid) == os.Geteuid() && st.Mode&0o500 != 0o500
}

// read takes down one directory.
func (w *scanWorker) read(n int32, d scanDir) {
	s := w.s
	if err := s.ctx.Err(); err != nil {
		s.fail(context.Cause(s.ctx))
		return
	}
	fd, err := w.open(n, d)
	if err == unix.EACCES && w.grant(n, d) {
		fd, err = w.open(n, d)
	}
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV: // gone, swapped, or a mount point
		if n == 0 {
			s.fail(err)
		}
		return
	case unix.EACCES, unix.EPERM:
		s.unread(n, w.path)
		return
	default:
		s.fail(err)
		return
	}
	w.close()
	w.fd, w.last = fd, n
	if os.Geteuid() != 0 && s.unsearchable(fd) {
		// Its names can be read, and not looked up.
		changed := false
		if s.restore && !s.before.wasShut(string(w.path)) {
			_, changed, _ = grant(fd, 0o500)
		}
		if !changed {
			s.unread(n, w.path)
			return
		}
		s.noteRestored(string(w.path))
	}
	w.entries(n, d)
}

func (s *scanner) unread(n int32, path []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirs[n].unread = true
	if s.Unreadable++; s.FirstUnreadable == "" {
		s.FirstUnreadable = "."
		if len(path) > 0 {
			s.FirstUnreadable = string(path[:len(path)-1])
		}
	}
}

func (s *scanner) fail(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.cond.Broadcast()
	s.mu.Unlock()
}

// entries reads the directory that is open.
func (w *scanWorker) entries(n int32, d scanDir) {
	s := w.s
	list := w.buf[:0]
	w.r.open(w.fd)
	for {
		e, ok, err := w.r.next()
		if err != nil {
			s.fail(err)
			return
		}
		if !ok {
			break
		}
		if len(list) == scanMax {
			s.fail(errTooMany)
			return
		}
		if s.ignored(w.path, e.name) {
			continue
		}
		r := record{name: e.name, dir: none}
		switch e.typ {
		case unix.DT_DIR:
			r.mode = unix.S_IFDIR
		case unix.DT_REG, unix.DT_UNKNOWN:
		default:
			if !s.all {
				continue
			}
		}
		list = append(list, r)
	}
	w.buf = list
	s.stat(w.fd, list)
	// What is gone again, or of no interest, goes.
	list = slices.DeleteFunc(list, func(r record) bool {
		return r.mode == 0 || !s.all && !r.isFile() && !r.isDir()
	})
	own := slices.Clone(list)
	slices.SortFunc(own, func(a, b record) int { return strings.Compare(a.name, b.name) })

	newest := int64(0)
	for i := range own {
		newest = max(newest, own[i].ctime)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest = max(s.newest, newest)
	if s.entries += len(own); s.entries > scanMax {
		if s.err == nil {
			s.err = errTooMany
		}
		s.cond.Broadcast()
		return
	}
	for i := range own {
		r := &own[i]
		if !r.isDir() || s.flat {
			continue
		}
		long := d.pathLen + int32(len(r.name)) + 1
		if long >= unix.PathMax {
			s.TooDeep++
			continue
		}
		r.dir = int32(len(s.dirs))
		s.dirs = append(s.dirs, scanDir{parent: n, pathLen: long, name: r.name})
		s.todo = append(s.todo, r.dir)
	}
	s.dirs[n].entries = own
}

var errTooMany = fmt.Errorf("more than %d entries", scanMax)

// ignored says whether an entry is left out.
func (s *scanner) ignored(dir []byte, name string) bool {
	if len(dir) == 0 && slices.Contains(s.except, name) {
		return true
	}
	for _, p := range s.ignore {
		p = strings.TrimSuffix(p, "/")
		what := name
		if strings.Contains(p, "/") {
			what = string(dir) + name
		}
		if ok, _ := path.Match(p, what); ok {
			return true
		}
	}
	return false
}

// stat looks at the entries of a directory; at those of a wide one side by side.
func (s *scanner) stat(fd int, list []record) {
	var at atomic.Int64
	part := func() {
		for {
			from := int(at.Add(scanSplit)) - scanSplit
			if from >= len(list) || s.ctx.Err() != nil {
				return
			}
			s.statEach(fd, list[from:min(from+scanSplit, len(list))])
		}
	}
	var all sync.WaitGroup
	if len(list) > 2*scanSplit {
		for range scanThreads() - 1 {
			all.Go(part)
		}
	}
	part()
	all.Wait()
}

func scanThreads() int { return min(scanWorkers, runtime.GOMAXPROCS(0)) }

func (s *scanner) statEach(fd int, list []record) {
	var st unix.Stat_t
	for i := range list {
		r := &list[i]
		if r.mode == unix.S_IFDIR && !s.all {
			continue // its type is all that counts
		}
		err := unix.Fstatat(fd, r.name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil { // gone, or closed to us that very moment
			r.mode = 0
			continue
		}
		r.mode, r.ino, r.size = st.Mode, st.Ino, st.Size
		r.mtime, r.ctime = st.Mtim.Nano(), st.Ctim.Nano()
	}
}

// walk calls visit for all entries below a directory, in the order of the paths.
func (s *Scan) walk(n int32, prefix string, visit func(path string, r *record) error) error {
	for i := range s.dirs[n].entries {
		r := &s.dirs[n].entries[i]
		if err := visit(prefix+r.name, r); err != nil {
			return err
		}
		if r.isDir() && r.dir != none {
			if err := s.walk(r.dir, prefix+r.name+"/", visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// Len is how many entries were taken down, directories among them.
func (s *Scan) Len() int { return s.entries }
