package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

// inMemory says whether the box has its workspace in memory (Spec.WorkspaceSize).
func (s *Spec) inMemory() bool { return s.WorkspaceSize > 0 && !s.prepares }

// useMemory gives the box a tmpfs in the place of the workspace, once that is
// prepared on disk.
func (s *Spec) useMemory() {
	if s.inMemory() {
		s.Tmpfs = append(slices.Clip(s.Tmpfs), validate.Tmpfs{Target: WorkspaceDir, Size: s.WorkspaceSize})
	}
}

// fillMemory copies the prepared workspace into the tmpfs, while the box waits at
// the gate. The descriptor that it opens keeps the tmpfs when the box is gone.
func (r *run) fillMemory(ctx context.Context) error {
	s := r.spec
	if !s.inMemory() {
		return nil
	}
	// No code of the box has run, so nothing in it is hostile yet.
	at := "/proc/" + strconv.Itoa(r.box.w.pid) + "/root" + WorkspaceDir
	tmp, err := os.OpenFile(at, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("the workspace of the box cannot be opened: %w", err)
	}
	r.atEnd(func() { tmp.Close() })
	w := &r.watching
	w.memory = tmp
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(tmp.Fd()), &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return errors.New("the workspace of the box is not the memory it should be")
	}
	if s.Workspace != "" || s.CopyOf != "" || s.Setup != nil {
		if w.kept, err = r.openWorkspace(); err != nil {
			return err
		}
		var left workspace.Copied
		err = r.budget.Touch(r.ws, func() (err error) {
			left, err = workspace.Copy(r.budget.ctx, w.kept, tmp, nil)
			return err
		})
		var full *workspace.NoSpaceError
		switch {
		case errors.As(err, &full):
			return fmt.Errorf("--workspace-size %s: the workspace needs %s", s.WorkspaceSize, validate.Size(full.Need).Human())
		case errors.Is(err, unix.ENOSPC):
			return fmt.Errorf("--workspace-size %s: the workspace needs more", s.WorkspaceSize)
		case err != nil:
			return err
		case left.Unreadable > 0 && s.Workspace != "":
			// It would be missing afterwards.
			return fmt.Errorf("--workspace-size: %d entries of the workspace cannot be read, the first is %s", left.Unreadable, term.VisibleLine(left.FirstUnreadable))
		case left.Special+left.Mounts > 0 && s.Workspace != "":
			return fmt.Errorf("--workspace-size: the workspace holds %d FIFOs, sockets, devices or mount points, which cannot be copied back", left.Special+left.Mounts)
		}
	}
	// What is mounted in the workspace has a link there, made after this.
	for _, p := range r.placed {
		if name, ok := strings.CutPrefix(p.link, WorkspaceDir+"/"); ok {
			name, _, below := strings.Cut(name, "/")
			if below {
				continue
			}
			w.keep = append(w.keep, name)
			if err := workspace.RemoveAt(tmp, name); err != nil {
				return err
			}
		}
	}
	if !s.rootUser() {
		if err := tmp.Chmod(0o777); err != nil {
			return err
		}
	}
	if s.Track && w.kept != nil {
		w.before, err = workspace.ScanDir(ctx, tmp, workspace.ScanOptions{Ignore: s.TrackIgnore, Except: r.notBack()})
	}
	return err
}

// notBack are names directly in a workspace in memory that are not copied back.
func (r *run) notBack() []string {
	return append(slices.Clip(r.watching.keep), r.spec.Keep...)
}

// keepMemory copies a kept workspace back once the box is gone and its code has
// run; what the host's programs obey (Spec.Keep) stays as it was.
func (r *run) keepMemory(ctx context.Context) {
	w := &r.watching
	if w.memory == nil || w.kept == nil || r.spec.Workspace == "" || !r.ev.ran || w.copied {
		return
	}
	w.copied = true
	left, err := workspace.Replace(context.WithoutCancel(ctx), w.memory, w.kept, r.notBack())
	if err != nil {
		r.reported = append(r.reported, "the workspace is not what the run made of it: "+term.VisibleLine(err.Error()))
		r.lost = err
	}
	if left.Special > 0 {
		r.reported = append(r.reported, fmt.Sprintf("left out of the workspace: %d FIFOs, sockets or devices", left.Special))
	}
	if left.Unreadable > 0 {
		r.reported = append(r.reported, fmt.Sprintf("left out of the workspace: %d entries that the run closed to you, the first is %s", left.Unreadable, term.VisibleLine(left.FirstUnreadable)))
	}
}

// openWorkspace opens the workspace that was checked, without the right to read it.
func (r *run) openWorkspace() (*os.File, error) {
	fd, err := unix.Open(r.ws, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: r.ws, Err: err}
	}
	f := os.NewFile(uintptr(fd), r.ws)
	r.atEnd(func() { f.Close() })
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if want, ok := r.spec.Pins[r.ws]; ok && want != (Pin{st.Dev, st.Ino}) {
		return nil, fmt.Errorf("%s was exchanged for another directory after it was checked", r.ws)
	}
	return f, nil
}
