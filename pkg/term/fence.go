package term

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// fenceDrain is how long Close waits, at most, for the reader of a log to have
// taken what the box wrote.
const fenceDrain = time.Second

// Fence keeps a box from giving orders to GitHub Actions, whose runner obeys
// lines such as ::add-mask:: on the output of a step (rules F7). Between the
// lines ::stop-commands::TOKEN and ::TOKEN:: it obeys none but the second, and
// TOKEN is 128 random bits, fresh for each fence, that the box never sees.
//
// The runner has one switch for both streams of a step, so both are fenced
// with one token, and neither is opened again before both have ended. What
// passes between the two lines is not altered.
type Fence struct {
	token    string
	out, err fenced
	once     sync.Once
	closed   error
}

// fenced is one stream inside the fence.
type fenced struct {
	mu      sync.Mutex
	w       io.Writer
	midline bool
	done    bool
}

// NewFence writes the opening line to both streams and returns the fence. The
// opening line begins with a newline: the runner knows a command only at the
// start of a line, and what an earlier command of the step printed last is
// not ours to know.
func NewFence(out, err io.Writer) (*Fence, error) {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the program instead
	f := &Fence{token: hex.EncodeToString(b[:]), out: fenced{w: out}, err: fenced{w: err}}
	open := "\n::stop-commands::" + f.token + "\n"
	if _, e := io.WriteString(out, open); e != nil {
		return nil, e
	}
	if _, e := io.WriteString(err, open); e != nil {
		return nil, e
	}
	return f, nil
}

// Stdout is where the box's standard output goes. It and Stderr may be used
// from two goroutines; writes after Close are refused.
func (f *Fence) Stdout() io.Writer { return &f.out }

// Stderr is where the box's standard error goes.
func (f *Fence) Stderr() io.Writer { return &f.err }

func (s *fenced) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return 0, os.ErrClosed
	}
	n, err := s.w.Write(p)
	if n > 0 && n <= len(p) {
		s.midline = p[n-1] != '\n'
	}
	return n, err
}

// Close ends both streams and lifts the fence: a newline after an unfinished
// line, then ::TOKEN::. Before that it gives the reader of either stream, if
// that is a pipe, up to a second to take what the box wrote last, because the
// runner reads the two streams separately and would obey a line of one that
// it reads after the end of the fence on the other. Close may be called again;
// it then returns the first answer.
func (f *Fence) Close() error {
	f.once.Do(func() {
		e1, e2 := f.out.finish(), f.err.finish()
		deadline := time.Now().Add(fenceDrain)
		if waited := drained(f.err.w, deadline); drained(f.out.w, deadline) || waited {
			time.Sleep(20 * time.Millisecond) // taken from the pipe is not yet looked at
		}
		end := "::" + f.token + "::\n"
		_, e3 := io.WriteString(f.out.w, end)
		_, e4 := io.WriteString(f.err.w, end)
		f.closed = errors.Join(e1, e2, e3, e4)
	})
	return f.closed
}

// finish refuses further writes and ends an unfinished line.
func (s *fenced) finish() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = true
	if !s.midline {
		return nil
	}
	_, err := io.WriteString(s.w, "\n")
	return err
}

// drained waits until the pipe behind w is empty and says whether there is one.
func drained(w io.Writer, deadline time.Time) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	if st, err := file.Stat(); err != nil || st.Mode()&os.ModeNamedPipe == 0 {
		return false
	}
	for time.Now().Before(deadline) {
		if n, err := unix.IoctlGetInt(int(file.Fd()), unix.TIOCINQ); err != nil || n == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return true
}
