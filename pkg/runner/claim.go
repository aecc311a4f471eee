package runner

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// How a run may use a pool, as --pool says.
const (
	PoolAuto    = "auto" // a box that waits where there is one, else a fresh one
	PoolOff     = "off"
	PoolRequire = "require"
)

// A Claimer knows of boxes that wait.
type Claimer interface {
	// Claim has a call done in a box of that key, and gives its Result without the
	// streams. It calls Call.Sent when the box has them. ErrNotPooled: there is no
	// such box, and nothing ran.
	Claim(ctx context.Context, key string, c *Call) (*Result, error)
}

// claim tries to have the run done in a box that waits.
func claim(ctx context.Context, budget *Budget, dirs Dirs, s *Spec) (*Result, error) {
	base, err := dirs.Usable(dirs.Cache)
	if err != nil {
		return nil, err
	}
	var key string
	if err := budget.Touch(s.root(), func() (err error) { key, err = s.PoolKey(base); return err }); err != nil {
		return nil, err
	}
	t, err := OpenStreams(s, base)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	c := &Call{
		Argv: s.Argv, Files: s.Code, Cell: s.Cell, Env: s.Env, Workdir: s.Workdir, Timeout: s.Timeout,
		Track: s.Track, TrackIgnore: s.TrackIgnore,
		Stdin: t.Stdin, Stdout: t.Stdout, Stderr: t.Stderr, Signals: s.Signals, Kill: s.Kill, Sent: t.Sent,
	}
	if s.PoolRequired {
		c.Wait = s.StartTimeout
	}
	begun := time.Now()
	inner, stop := t.UntilGone(ctx)
	defer stop()
	res, err := s.Claimer.Claim(inner, key, c)
	if err != nil {
		return nil, err
	}
	t.Finish(ctx, res, false)
	res.DurationMS = time.Since(begun).Milliseconds()
	return res, nil
}

// poolRefusal is what --pool require says when there is no box.
func poolRefusal(err error) error {
	return fmt.Errorf("--pool require: %w; kern-sbx prewarm start with the same flags makes some, and --pool auto goes on without", err)
}

// claimed says whether a run was, or has to be, done by a pool; else it goes on
// with a box of its own.
func claimed(ctx context.Context, budget *Budget, dirs Dirs, s *Spec) (res *Result, err error, done bool) {
	if s.Claimer == nil {
		return nil, nil, false
	}
	res, err = claim(ctx, budget, dirs, s)
	switch {
	case err == nil:
		return res, nil, true
	case s.PoolRequired:
		return nil, poolRefusal(err), true
	case errors.Is(err, ErrNotPooled):
		return nil, nil, false
	}
	return nil, err, true
}
