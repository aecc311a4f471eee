package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

// abandonTime is how long a copy that was told to end may take for it. One that
// is stuck in the kernel cannot be ended, and is left behind.
const abandonTime = time.Second

// copyWorkspace fills the private workspace with a copy of Spec.CopyOf. It may
// take as long as it gets on; only a standstill counts against the start budget.
func (r *run) copyWorkspace(ctx context.Context, ws string) error {
	s := r.spec
	if s.Progress != nil {
		defer s.Progress("copying " + s.CopyOf)()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var moved atomic.Uint64
	var left workspace.Copied
	done := make(chan error, 1)
	go func() {
		got, err := s.copyTo(ctx, ws, &moved)
		left = got
		done <- err
	}()
	abandon := func() {
		cancel()
		select {
		case <-done:
		case <-time.After(abandonTime):
		}
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for last, since := moved.Load(), time.Now(); ; {
		select {
		case err := <-done:
			if err == nil {
				r.reportCopy(left)
			}
			var full *workspace.NoSpaceError
			if errors.As(err, &full) {
				err = &validate.Error{
					Field: "--workspace-copy", Value: s.CopyOf,
					Reason: fmt.Sprintf("the copy needs %s, and %s are free in %s", validate.Size(full.Need).Human(), validate.Size(full.Free).Human(), filepath.Dir(r.dir.path)),
					Fix:    "copy a smaller directory, or let XDG_CACHE_HOME name a larger disk",
				}
			}
			return validate.In("--workspace-copy", err)
		case <-tick.C:
			if n := moved.Load(); n != last {
				last, since = n, time.Now()
			} else if s.StartTimeout > 0 && time.Since(since) > s.StartTimeout {
				abandon()
				return &StalledError{s.CopyOf, s.StartTimeout}
			}
		case sig := <-s.Signals:
			abandon()
			r.stopFor(stopSignal, sig)
			return errInterrupted
		case <-ctx.Done():
			abandon()
			r.stopFor(stopSignal, unix.SIGINT)
			return errInterrupted
		}
	}
}

// copyTo copies what was checked, and nothing that has taken its place.
func (s *Spec) copyTo(ctx context.Context, ws string, moved *atomic.Uint64) (workspace.Copied, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, s.CopyOf, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return workspace.Copied{}, &os.PathError{Op: "open", Path: s.CopyOf, Err: err}
	}
	from := os.NewFile(uintptr(fd), s.CopyOf)
	defer from.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return workspace.Copied{}, err
	}
	if want, ok := s.Pins[s.CopyOf]; ok && want != (Pin{st.Dev, st.Ino}) {
		return workspace.Copied{}, fmt.Errorf("%s was exchanged for another directory after it was checked", s.CopyOf)
	}
	to, err := os.OpenFile(ws, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return workspace.Copied{}, err
	}
	defer to.Close()
	return workspace.Copy(ctx, from, to, moved)
}

// reportCopy says what the box does not have of the original.
func (r *run) reportCopy(c workspace.Copied) {
	say := func(n int, what string) {
		if n > 0 {
			r.reported = append(r.reported, fmt.Sprintf("left out of the copy of %s: %d %s", r.spec.CopyOf, n, what))
		}
	}
	say(c.Special, "FIFOs, sockets or devices")
	say(c.Mounts, "mount points")
	say(c.Unreadable, "entries that you may not read, the first is "+term.VisibleLine(c.FirstUnreadable))
}
