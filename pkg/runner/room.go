package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

// Room is a private workspace that several boxes share: it is there until Close,
// or, when this process is killed, until the next start of a box on this machine
// sweeps it (rule S8).
type Room struct {
	// Dir is the workspace, for Spec.Workspace. Own is a directory beside it that no
	// box sees.
	Dir, Own string

	dir     *runDir
	sweeper []string
}

// OpenRoom makes one for boxes like that of a Spec: with a copy of Spec.CopyOf in
// it where that is set, and open to the Spec's user. A signal of the Spec's or the
// end of the context ends the preparations.
func OpenRoom(ctx context.Context, budget *Budget, dirs Dirs, s *Spec) (*Room, error) {
	base, err := dirs.Usable(dirs.Cache)
	if err != nil {
		return nil, err
	}
	own := *s
	own.Workspace, own.Setup = "", nil
	r := &run{spec: &own, budget: budget, dirs: dirs}
	if r.dir, err = makeRunDir(base); err != nil {
		return nil, fmt.Errorf("cannot make a directory for the workspace: %w", err)
	}
	room := &Room{dir: r.dir, sweeper: s.Sweeper}
	if s.Kern != nil {
		r.dir.kern = s.Kern.Path
	}
	room.Dir, _, err = r.prepareWorkspace(ctx)
	if err == nil {
		room.Own, err = r.dir.mkdir("own", 0o700)
	}
	if errors.Is(err, errInterrupted) {
		err = errors.New("stopped while the workspace was made ready")
	}
	if err != nil {
		room.Close(removeTime)
		return nil, err
	}
	return room, nil
}

// Use makes the room the workspace of a Spec, once more when the directory was
// exchanged for another. A limit that is AutoSize becomes
// that of a private workspace, which this is.
func (m *Room) Use(s *Spec) error {
	pin, err := PinSource(m.Dir)
	if err != nil {
		return err
	}
	pins := map[string]Pin{m.Dir: pin}
	for path, p := range s.Pins {
		if path != s.CopyOf && path != m.Dir {
			pins[path] = p
		}
	}
	s.Workspace, s.CopyOf, s.Pins = m.Dir, "", pins
	if s.WorkspaceMax == AutoSize {
		s.WorkspaceMax = validate.Size(workspace.DefaultMax(m.Dir))
	}
	return nil
}

// Close removes it with all that is in it, however hostile. What takes longer than
// patience is left to Spec.Sweeper.
func (m *Room) Close(patience time.Duration) error { return m.dir.remove(patience, m.sweeper) }
