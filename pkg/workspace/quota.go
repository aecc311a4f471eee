package workspace

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

const (
	// quotaLinks bounds the memory of a measurement: so many inodes with several
	// names are counted once each, further ones once for each name.
	quotaLinks = 1 << 20

	// A look at the file system's own counter costs up to 200 µs of CPU, nearly all of
	// it for waking up; so while less than quotaSlow comes between two looks, they are
	// quotaIdle apart.
	quotaLeast = 2 * time.Millisecond
	quotaIdle  = 22 * time.Millisecond
	quotaSlow  = 1 << 20
	quotaMost  = 250 * time.Millisecond
	// quotaRate is how fast a box could write at the most, in bytes a second.
	quotaRate = 8 << 30
	// quotaRest is how long a watch rests after a measurement that nothing gave
	// cause for, in multiples of what that took, and quotaPause the least.
	quotaRest  = 300
	quotaPause = time.Second
	// quotaDisturbed is how many measurements in a row may be spoiled by
	// directories that are moved about.
	quotaDisturbed = 3

	// MostDefault is the largest limit that a private workspace has by default.
	MostDefault = int64(10 << 30)
)

// Used is what a tree occupies.
type Used struct {
	// Bytes are the allocated ones (st_blocks), as du counts them: each inode
	// once, directories and links among them, holes not.
	Bytes int64
	// Partial says that the tree holds more: a directory could not be read, or
	// directories were moved while they were measured.
	Partial bool
}

// Usage measures what is below dir and dir itself. It follows no symbolic link
// and crosses no mount point; the tree may be hostile and may be written to
// meanwhile. A limit above 0 ends the measurement as soon as it is exceeded: the
// tree then holds at least what is returned. The error is that of the context.
func Usage(ctx context.Context, dir *os.File, limit int64) (Used, error) {
	m := meter{limit: limit}
	ctx, m.stop = context.WithCancelCause(ctx)
	defer m.stop(nil)
	var st unix.Stat_t
	if unix.Fstat(int(dir.Fd()), &st) == nil {
		m.used.Bytes = st.Blocks * 512
	}
	m.walker = walker{visit: m.visit, failed: m.failed, leave: m.leave}
	defer runtime.KeepAlive(dir)
	err := m.once(ctx, int(dir.Fd()))
	switch {
	case errors.Is(context.Cause(ctx), errExceeded):
		return m.used, nil
	case ctx.Err() != nil:
		return m.used, context.Cause(ctx)
	case err != nil: // moved, gone, or too deep
		m.used.Partial = true
	}
	return m.used, nil
}

var errExceeded = errors.New("the limit is exceeded")

type meter struct {
	walker
	used  Used
	limit int64
	links map[[2]uint64]struct{}
	stop  context.CancelCauseFunc
}

func (m *meter) add(st *unix.Stat_t) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR && len(m.links) < quotaLinks {
		if m.links == nil {
			m.links = map[[2]uint64]struct{}{}
		}
		id := [2]uint64{st.Dev, st.Ino}
		if _, seen := m.links[id]; seen {
			return
		}
		m.links[id] = struct{}{}
	}
	if m.used.Bytes += st.Blocks * 512; m.limit > 0 && m.used.Bytes > m.limit {
		m.stop(errExceeded)
	}
}

func (m *meter) visit(dirfd int, name string, _ byte) {
	var st unix.Stat_t
	switch err := unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err {
	case nil:
		m.add(&st)
	case unix.ENOENT: // gone
	default:
		m.used.Partial = true
	}
}

func (m *meter) leave(fd int) {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil {
		m.add(&st)
	}
}

func (m *meter) failed(int, string, error) { m.used.Partial = true }

// DefaultMax is the limit of a workspace that nobody set one for and that is
// removed afterwards (rule S12): half of what is free where dir lies, and no more
// than MostDefault. 0 when it cannot be told.
func DefaultMax(dir string) int64 {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0
	}
	return max(min(MostDefault, int64(fs.Bavail)*fs.Bsize/2), 1<<20)
}

// TooFull is the refusal for a workspace that holds more than it may. field is
// the flag.
func TooFull(field string, used, limit int64) error {
	return &validate.Error{
		Field: field, Value: validate.Size(limit).String(),
		Reason: "the workspace would hold " + validate.Size(used).Human(),
		Fix:    "remove something from it, or allow more",
	}
}

// Quota is a limit on what a tree may occupy, and what is needed to watch it.
type Quota struct {
	// Max is the limit in allocated bytes, as Usage counts them.
	Max int64
	// Used is what the tree holds when the watch begins.
	Used Used
	// Hidden, unless it is nil, gives what the box keeps on the device dev
	// without a name in the tree: files that it deleted and still has open.
	Hidden func(dev uint64) int64
}

// Watch looks after a tree while a box writes to it, until it is stopped. It does
// not end the box itself: Full says when it is time.
//
// It asks the file system how much is free, which costs next to nothing, and
// measures the tree when the box could have reached the limit since the last
// time, and every second or so (less often in a large tree). Where that number
// follows late (other than ext4, XFS, tmpfs and overlayfs) it measures more often.
// Only a measurement decides, but for a tree that cannot be measured: one with
// directories that are closed to us, or that are moved about all the time, is
// charged with all that the file system lost since the beginning.
//
// A watch that has nothing to do takes about 1 % of a CPU close to the limit, and
// next to nothing far from it; measurements of a large tree, one after the other,
// are spaced to take a tenth of a CPU, or a quarter of one when three quarters of
// the limit are used. The box can exceed the limit by what it writes during one
// interval (2 ms near the limit, 22 ms after a rest), one measurement (some 2 µs an entry) and its
// own end.
type Watch struct {
	full   chan int64
	used   atomic.Int64
	cancel context.CancelFunc
	done   chan struct{}
	w      watcher
}

// NewWatch begins to watch dir, which stays the caller's and has to stay open
// until Stop has returned.
func NewWatch(dir *os.File, q Quota) *Watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Watch{full: make(chan int64, 1), cancel: cancel, done: make(chan struct{})}
	w.w = watcher{Quota: q, dir: dir}
	w.w.begin()
	w.used.Store(q.Used.Bytes)
	go func() {
		defer close(w.done)
		w.w.run(ctx, w)
	}()
	return w
}

// Full gives, once, how much there is when that is more than there may be.
func (w *Watch) Full() <-chan int64 {
	if w == nil {
		return nil
	}
	return w.full
}

// Wait returns when the watch is over: with what there is when that is too much,
// or with false when it was stopped.
func (w *Watch) Wait() (used int64, full bool) {
	<-w.done
	select {
	case used = <-w.full:
		return used, true
	default:
		return 0, false
	}
}

// Used is what was found at the last measurement, in bytes.
func (w *Watch) Used() int64 { return w.used.Load() }

// Stop ends the watch, and returns when it no longer touches the tree.
func (w *Watch) Stop() {
	if w == nil {
		return
	}
	w.cancel()
	<-w.done
}

// Over is for the time after the box: it says whether the tree holds more than it
// may, and how much. It measures only if that is possible at all. The watch has
// to be stopped.
func (w *Watch) Over(ctx context.Context) (used int64, over bool) {
	if w == nil {
		return 0, false
	}
	x := &w.w
	if x.steady && x.counter()-x.atWalk < x.room() {
		return w.Used(), false
	}
	u, err := Usage(ctx, x.dir, 0)
	if err != nil {
		return w.Used(), false
	}
	w.used.Store(u.Bytes)
	return u.Bytes, u.Bytes > x.Max
}

type watcher struct {
	Quota
	dir    *os.File
	dev    uint64
	steady bool // the file system's counter follows every write at once

	begun  int64 // the counter when the watch began
	atWalk int64 // and when the last measurement did
	known  int64 // what that found
	walked time.Time
	cost   time.Duration
	spoilt int // measurements in a row that were spoilt
}

func (x *watcher) begin() {
	var st unix.Stat_t
	if unix.Fstat(int(x.dir.Fd()), &st) == nil {
		x.dev = st.Dev
	}
	var fs unix.Statfs_t
	if unix.Fstatfs(int(x.dir.Fd()), &fs) == nil {
		switch int64(fs.Type) {
		case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC:
			x.steady = fs.Blocks > 0 // a tmpfs without a limit does not count
		}
	}
	x.begun = x.counter()
	x.atWalk, x.known, x.walked = x.begun, x.Used.Bytes, time.Now()
}

// counter is what is in use on the whole file system, in bytes.
func (x *watcher) counter() int64 {
	var fs unix.Statfs_t
	if unix.Fstatfs(int(x.dir.Fd()), &fs) != nil {
		return x.atWalk
	}
	return int64(fs.Blocks-fs.Bfree) * fs.Bsize
}

// room is what was left at the last measurement.
func (x *watcher) room() int64 { return max(x.Max-x.known, 0) }

// rest is how long nothing can happen.
func (x *watcher) rest(grown int64) time.Duration {
	left := max(x.room()-max(grown, 0), 0)
	return min(max(time.Duration(min(float64(left)/2/quotaRate, 1)*float64(time.Second)), quotaLeast), quotaMost)
}

func (x *watcher) run(ctx context.Context, w *Watch) {
	t := time.NewTimer(x.rest(0))
	defer t.Stop()
	last, pause := x.begun, quotaLeast
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := x.counter()
		grown := now - x.atWalk
		if pause = min(pause*2, quotaIdle); now-last >= quotaSlow {
			pause = quotaLeast
		}
		last = now
		since := time.Since(x.walked)
		due := since >= max(quotaRest*x.cost, quotaPause)
		switch {
		case grown >= x.room() && x.steady:
			// At most a tenth of a CPU, or a quarter near the limit.
			times := time.Duration(9)
			if x.known > x.Max/4*3 {
				times = 3
			}
			due = due || since >= times*x.cost
		case !x.steady:
			due = due || since >= 50*x.cost
		}
		if due {
			used, full := x.measure(ctx)
			if ctx.Err() != nil {
				return
			}
			w.used.Store(used)
			if full {
				w.full <- used
				return
			}
			grown = x.counter() - x.atWalk
		}
		t.Reset(max(x.rest(grown), pause))
	}
}

// measure looks at the tree, and says what it holds and whether that is too much.
func (x *watcher) measure(ctx context.Context) (used int64, full bool) {
	before, begin := x.counter(), time.Now()
	u, err := Usage(ctx, x.dir, x.Max)
	if err != nil {
		return x.known, false
	}
	used = u.Bytes
	if x.Hidden != nil && used <= x.Max {
		used += x.Hidden(x.dev)
	}
	if u.Partial {
		x.spoilt++
	} else {
		x.spoilt = 0
	}
	if x.spoilt >= quotaDisturbed {
		used = max(used, x.Used.Bytes+before-x.begun)
	}
	x.atWalk, x.known, x.walked = before, used, time.Now()
	x.cost = x.walked.Sub(begin)
	return used, used > x.Max
}
