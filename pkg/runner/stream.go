package runner

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// relay carries one stream of a box to where it is shown and kept.
type relay struct {
	src   *os.File
	out   io.Writer // where it is shown, nil for nowhere
	keep  *capture  // where it is kept, nil for nowhere
	limit int64     // bytes passed on, 0 for no limit
	sniff bool      // remember the beginning, for hints
	// divert takes kern's late lines out, nil for none.
	divert *diverter

	head, tail []byte // with sniff; read after done

	taken     atomic.Int64 // bytes taken from the box
	passed    atomic.Int64 // those passed on
	truncated atomic.Bool
	showing   atomic.Bool // in a write to out: the wait is for whoever reads it
	left      atomic.Bool // await gave up: what still comes is dropped
	outErr    atomic.Pointer[error]
	outGone   chan struct{} // closed when out refused a write
	done      chan struct{}
}

func newRelay(src *os.File, out io.Writer, keep *capture, limit int64) *relay {
	return &relay{src: src, out: out, keep: keep, limit: limit, outGone: make(chan struct{}), done: make(chan struct{})}
}

// sniffed is how much of a stream's beginning, and of its end, hints may look at.
const sniffed = 8 << 10

// pipeRoom is the capacity asked for of the pipes of a spliced stream: what any
// user may have (fs.pipe-max-size).
const pipeRoom = 1 << 20

// A stream is a fast one of small pieces after manySmall of them without a pause
// of pauseTime. Only then is something delayed, and by gatherTime.
const (
	smallPiece = 64 << 10
	manySmall  = 16
	pauseTime  = 2 * time.Millisecond
	gatherTime = 50 * time.Microsecond
)

// relayBuffer is the size of one read. Larger gains nothing: a pipe holds
// 64 KiB unless it was made larger.
const relayBuffer = 128 << 10

// run copies until the box's end of the pipe is closed. Past the limit, and
// when out is gone, it goes on reading and drops, so that the job runs on.
func (r *relay) run() {
	defer close(r.done)
	if r.keep == nil && !r.sniff {
		// A file is faster written to: a splice into one copies page by page.
		if f, ok := r.out.(*os.File); ok && isPipe(f) {
			if done := r.splice(f); done {
				return
			}
		}
	}
	buf := make([]byte, relayBuffer)
	for {
		n, err := r.src.Read(buf)
		if n > 0 {
			r.take(buf[:n])
		}
		if err != nil {
			if r.divert != nil {
				r.pass(r.divert.end())
			}
			return
		}
	}
}

func (r *relay) take(p []byte) {
	defer r.taken.Add(int64(len(p)))
	if r.divert != nil {
		p = r.divert.pass(p)
	}
	r.pass(p)
}

func (r *relay) pass(p []byte) {
	if r.left.Load() {
		return
	}
	if r.limit > 0 {
		if room := r.limit - r.passed.Load(); int64(len(p)) > room {
			r.truncated.Store(true)
			p = p[:room]
		}
	}
	if len(p) == 0 {
		return
	}
	if r.keep != nil {
		r.keep.Write(p)
	}
	if room := sniffed - len(r.head); r.sniff && room > 0 {
		r.head = append(r.head, p[:min(room, len(p))]...)
	}
	if r.sniff {
		r.tail = append(r.tail, p[max(0, len(p)-sniffed):]...)
		if n := len(r.tail); n > 4*sniffed {
			r.tail = append(r.tail[:0], r.tail[n-sniffed:]...)
		}
	}
	r.passed.Add(int64(len(p)))
	if r.out != nil && r.outErr.Load() == nil {
		r.showing.Store(true)
		_, err := r.out.Write(p)
		r.showing.Store(false)
		if err != nil {
			r.fail(err)
		}
	}
}

func (r *relay) fail(err error) {
	if r.outErr.CompareAndSwap(nil, &err) {
		close(r.outGone)
	}
}

// splice moves pages from pipe to pipe (or file) without copying them through
// us. It returns false when the kernel cannot do that for this output; nothing
// is lost then, and the caller goes on by reading and writing.
func (r *relay) splice(out *os.File) (finished bool) {
	in, err := r.src.SyscallConn()
	if err != nil {
		return false
	}
	// The flags of the caller's standard output are shared with other programs
	// and stay as they are: it may be blocking or not.
	dst := -1
	oc, err := out.SyscallConn()
	if err != nil || oc.Control(func(fd uintptr) { dst = int(fd) }) != nil {
		return false
	}
	// Room for more than the 64 KiB of a new pipe, on both sides: fewer switches
	// between the three processes. Where the user's share of pipe memory is used
	// up, it stays as it was.
	unix.FcntlInt(uintptr(dst), unix.F_SETPIPE_SZ, pipeRoom)
	in.Control(func(fd uintptr) { unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeRoom) })
	unsupported, small := false, 0
	for {
		var n int64
		var serr error
		if small >= manySmall {
			// A program that writes a page at a time, fast: let some gather, or
			// the three processes take turns page by page.
			// (Go's own sleep waits for a millisecond at least.)
			nap := unix.NsecToTimespec(int64(gatherTime))
			unix.Nanosleep(&nap, nil)
		}
		begun := time.Now()
		rerr := in.Read(func(fd uintptr) bool {
			max := int64(1 << 20)
			if r.limit > 0 {
				max = min(max, r.limit-r.passed.Load())
			}
			if max == 0 {
				return true
			}
			for {
				r.showing.Store(true)
				// Without NONBLOCK a splice into a file waits inside the kernel for
				// the box, where no deadline reaches it.
				n, serr = unix.Splice(int(fd), nil, dst, nil, int(max), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
				r.showing.Store(false)
				switch {
				case errors.Is(serr, unix.EINTR):
					continue
				case !errors.Is(serr, unix.EAGAIN):
					return true
				}
				// Nothing to read, or no room to write: the error is the same.
				if !ready(int(fd), unix.POLLIN, 0) {
					return false
				}
				r.showing.Store(true)
				ready(dst, unix.POLLOUT, -1)
				r.showing.Store(false)
			}
		})
		switch {
		case rerr != nil:
			return true
		case errors.Is(serr, unix.EINVAL), errors.Is(serr, unix.ENOSYS):
			unsupported = true
		case serr != nil:
			r.fail(serr)
			unsupported = true
		case n > 0:
			r.passed.Add(n)
			r.taken.Add(n)
			if time.Since(begun) > pauseTime {
				small = 0
			} else if n < smallPiece {
				small++
			}
			continue
		case r.limit > 0 && r.passed.Load() >= r.limit:
			// The rest is read and dropped, by the ordinary loop.
			unsupported = true
		default:
			return true
		}
		if unsupported {
			return false
		}
	}
}

func ready(fd int, events int16, timeout int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: events}}
	for {
		n, err := unix.Poll(p, timeout)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n > 0 || err != nil
	}
}

// drainMost is how much one drainNow takes: more than the largest pipe holds, so
// that a writer who never stops cannot keep us here.
const drainMost = 1 << 20

// drainNow takes what is in the pipe at this moment without waiting.
func drainNow(f *os.File, into *capture, limit int64) {
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 8<<10)
	conn.Read(func(fd uintptr) bool {
		for taken := 0; taken <= drainMost; {
			n, err := unix.Read(int(fd), buf)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n <= 0 {
				return true
			}
			taken += n
			if into.size < limit {
				into.Write(buf[:n])
			}
		}
		return true
	})
}

// queued is the number of bytes waiting in a pipe.
func queued(f *os.File) int64 {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	return queuedIn(conn)
}

func queuedIn(conn syscall.RawConn) int64 {
	n := 0
	conn.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return int64(n)
}

// drainTime is how long a stream may stay open after the box is gone. Nobody
// in the box can hold it then; it is for what we do not know of.
const drainTime = time.Second

// hurryTime replaces drainTime for the user who asked us to end.
const hurryTime = 200 * time.Millisecond

// await waits for the rest of the stream: without limit while whoever reads
// our output is slow, within drainTime when nothing comes. Once hurry is closed
// a reader that does not read counts as nothing coming. It says whether the
// stream was taken to its end.
func (r *relay) await(hurry <-chan struct{}) bool {
	wait, given, hurried := drainTime, false, false
	for last := int64(-1); ; {
		select {
		case <-hurry:
			wait, hurried = hurryTime, true
		default:
		}
		t := time.NewTimer(wait)
		select {
		case <-r.done:
			t.Stop()
			return true
		case <-t.C:
		}
		switch n := r.passed.Load(); {
		case n != last || r.showing.Load() && !hurried:
			last = n
		case given:
			r.left.Store(true)
			return false
		default:
			r.src.SetReadDeadline(time.Now())
			given = true
		}
	}
}

// awaitNow waits until what is in the pipe now has been passed on: its writers
// have ended, or count no more.
func (r *relay) awaitNow(hurry <-chan struct{}) bool {
	mark := r.taken.Load() + queued(r.src)
	for nap := 50 * time.Microsecond; ; nap = min(2*nap, 5*time.Millisecond) {
		select {
		case <-r.done:
			return true
		default:
		}
		if r.taken.Load() >= mark && !r.showing.Load() {
			// It reads no more; what it has read and not yet counted, which was in the
			// pipe no longer when that was asked, it still passes on.
			r.src.SetReadDeadline(time.Now())
			return r.await(hurry)
		}
		select {
		case <-r.done:
		case <-hurry:
			return r.await(hurry)
		case <-time.After(nap):
		}
	}
}

func isPipe(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeNamedPipe != 0
}

// isClosedOutput says whether a write failed because nobody reads any more.
func isClosedOutput(err error) bool { return errors.Is(err, syscall.EPIPE) }

// errno is the part of an error that says why, without the path.
func errno(err error) string {
	var n syscall.Errno
	if errors.As(err, &n) {
		return n.Error()
	}
	return err.Error()
}
