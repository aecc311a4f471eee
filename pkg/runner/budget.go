package runner

import (
	"context"
	"fmt"
	"time"
)

// Budget is the time for everything before the code starts. A look at a path
// that the user named counts against it: on a network file system whose server
// is gone, even an lstat never returns.
type Budget struct {
	ctx  context.Context
	Time time.Duration
}

// NewBudget starts the clock. The context also ends it (a signal, say).
func NewBudget(ctx context.Context, d time.Duration) (*Budget, context.CancelFunc) {
	if d <= 0 {
		c, cancel := context.WithCancel(ctx)
		return &Budget{ctx: c}, cancel
	}
	c, cancel := context.WithTimeout(ctx, d)
	return &Budget{ctx: c, Time: d}, cancel
}

// StalledError says that a path did not answer within the start budget.
type StalledError struct {
	Path string
	Time time.Duration
}

func (e *StalledError) Error() string {
	return fmt.Sprintf("%s did not answer within %s (--start-timeout); a longer timeout does not help when it lies on a file system that does not answer, such as a network mount whose server is gone", e.Path, e.Time)
}

// Touch runs f, which looks at path, and gives up waiting for it when the
// budget is spent. f goes on in the background then: a thread stuck in the
// kernel cannot be called back, only left behind.
func (b *Budget) Touch(path string, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-b.ctx.Done():
		if context.Cause(b.ctx) == context.DeadlineExceeded { //nolint:errorlint // the cause is this value itself
			return &StalledError{path, b.Time}
		}
		return b.ctx.Err()
	}
}
