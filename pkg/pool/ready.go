package pool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/runner"
)

// Ready keeps boxes ready for calls of this process alone; it is a
// runner.Claimer.
type Ready struct {
	key string
	b   *boxes
}

// KeepReady begins to start boxes of that key (runner.Spec.PoolKey), until Close
// or the end of the context.
func KeepReady(ctx context.Context, key string, o BoxesOptions) *Ready {
	r := &Ready{key, newBoxes(ctx, BoxesMeta{Key: key, Want: o.Want}, o)}
	r.b.start(nil, nil)
	return r
}

// Status says how many boxes wait, and why there are none.
func (r *Ready) Status() BoxesStatus { return r.b.now() }

// Close takes all boxes down. It returns when the last is gone.
func (r *Ready) Close() { r.b.end() }

// Claim is that of runner.Claimer.
func (r *Ready) Claim(ctx context.Context, key string, c *runner.Call) (*runner.Result, error) {
	if key != r.key {
		return nil, fmt.Errorf("%w: another kind of box is kept ready", runner.ErrNotPooled)
	}
	begun := time.Now()
	box := r.b.take(ctx, c.Wait)
	if box == nil {
		return nil, fmt.Errorf("%w: %w", runner.ErrNotPooled, errors.New("none is ready"))
	}
	defer func() {
		r.b.discard(box)
		r.b.change(func() { r.b.status.Busy--; r.b.status.Served++; r.b.lastUsed = time.Now() })
	}()
	suit(box, c)
	c.Started = func() {
		r.b.change(func() { r.b.claims = append(r.b.claims[max(0, len(r.b.claims)-49):], time.Since(begun)) })
	}
	return box.Call(ctx, c), nil
}
