package runner

import (
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Streams are the caller's side of a Call: pipes whose other ends go to the
// command, wherever it runs, and what carries them to where they are shown and
// kept. Spec.Stdin, Stdout, Stderr, Capture and MaxOutput say how.
type Streams struct {
	// Stdin is nil without one. These are the ends for the box.
	Stdin, Stdout, Stderr *os.File

	spec       *Spec
	in         *os.File
	out, errs  *relay
	begin, end sync.Once
}

// OpenStreams makes them; captured output that is too large for memory goes to
// a file without a name in dir.
func OpenStreams(s *Spec, dir string) (*Streams, error) {
	t := &Streams{spec: s}
	var keepOut, keepErr *capture
	if s.Capture {
		keepOut, keepErr = &capture{dir: dir}, &capture{dir: dir}
	}
	t.out = newRelay(nil, s.Stdout, keepOut, int64(s.MaxOutput))
	t.errs = newRelay(nil, s.Stderr, keepErr, int64(s.MaxOutput))
	t.errs.sniff = true
	var err error
	pipe := func(reads bool) (theirs, ours *os.File) {
		var p [2]int
		if e := unix.Pipe2(p[:], unix.O_CLOEXEC); e != nil {
			err = e
			return nil, nil
		}
		i := 1
		if reads {
			i = 0
		}
		unix.SetNonblock(p[1-i], true)
		return os.NewFile(uintptr(p[i]), "pipe"), os.NewFile(uintptr(p[1-i]), "pipe")
	}
	t.Stdout, t.out.src = pipe(false)
	t.Stderr, t.errs.src = pipe(false)
	if s.Stdin != nil {
		t.Stdin, t.in = pipe(true)
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// Sent lets go of the ends that the box has now, and begins to carry.
func (t *Streams) Sent() {
	t.begin.Do(func() {
		for _, f := range []*os.File{t.Stdin, t.Stdout, t.Stderr} {
			if f != nil {
				f.Close()
			}
		}
		go t.out.run()
		go t.errs.run()
		if t.in != nil {
			go relayStdin(t.spec.Stdin, t.in)
		}
	})
}

// UntilGone is a context that also ends, because of an *OutputGone, when nobody
// reads standard output any more.
func (t *Streams) UntilGone(ctx context.Context) (context.Context, func()) {
	inner, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		select {
		case <-t.out.outGone:
			if p := t.out.outErr.Load(); p != nil && isClosedOutput(*p) {
				cancel(&OutputGone{})
			}
		case <-done:
		}
	}()
	return inner, func() {
		close(done)
		cancel(nil)
	}
}

// Finish passes on what the command left in the pipes, once there is a Result
// for it, and adds to the Result what went through. dead says that no writer is
// left, so that the streams end by themselves.
func (t *Streams) Finish(ctx context.Context, res *Result, dead bool) {
	t.Sent()
	hurry, settled := hurried(ctx, t.spec.Signals, res.Status > 128 && res.ExitCode == nil && ctx.Err() != nil)
	defer settled()
	res.Notes = append(res.Notes, awaitRelays(t.out, t.errs, func(r *relay) bool {
		if dead {
			return r.await(hurry)
		}
		return r.awaitNow(hurry)
	})...)
	res.Notes = append(res.Notes, res.shown(t.out, t.errs)...)
	res.Notes = append(res.Notes, res.unwritten(t.out)...)
	if t.spec.Capture {
		whole := func(c *capture) *Text { return &Text{[]span{{c, 0, c.size}}} }
		res.Stdout, res.CodeStderr = whole(t.out.keep), whole(t.errs.keep)
		res.Stderr = &Text{append(append([]span{}, res.RuntimeNotes.spans...), res.CodeStderr.spans...)}
	}
}

// Close lets go of everything.
func (t *Streams) Close() {
	t.end.Do(func() {
		began := true
		t.begin.Do(func() { began = false })
		for _, f := range []*os.File{t.in, t.out.src, t.errs.src} {
			if f != nil {
				f.Close()
			}
		}
		if !began {
			for _, f := range []*os.File{t.Stdin, t.Stdout, t.Stderr} {
				if f != nil {
					f.Close()
				}
			}
		}
	})
}

// runServed is Run with the agent in front of the command.
func runServed(ctx context.Context, budget *Budget, dirs Dirs, s *Spec) (*Result, error) {
	b, res, err := Boot(ctx, budget, dirs, s, nil)
	if err != nil {
		return nil, err
	}
	if res != nil {
		return res, nil
	}
	b.r.ev.argv0 = s.Argv[0]
	call := &Call{Argv: s.Argv, Track: s.Track, TrackIgnore: s.TrackIgnore, Timeout: s.Timeout, Signals: s.Signals, Kill: s.Kill}
	if s.TTY != nil {
		call.TTY = s.TTY
		var failed error
		call.Started = func() { failed = s.TTYStarted() }
		res = b.Call(ctx, call)
		if failed != nil {
			res = Refused(failed)
		}
	} else {
		var t *Streams
		if t, err = OpenStreams(s, b.r.dir.path); err != nil {
			b.Close()
			return nil, err
		}
		defer t.Close()
		call.Stdin, call.Stdout, call.Stderr = t.Stdin, t.Stdout, t.Stderr
		call.Sent = t.Sent
		inner, stop := t.UntilGone(ctx)
		res = b.Call(inner, call)
		stop()
		b.endIdle()
		t.Finish(ctx, res, true)
	}
	begun := b.r.kernAt
	b.Close()
	res.Notes = append(res.Notes, b.closing...)
	res.DurationMS = time.Since(begun).Milliseconds()
	return res, nil
}
