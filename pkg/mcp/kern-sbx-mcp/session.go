package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
	"github.com/kern-sbx/kern-sbx/pkg/interp"
	"github.com/kern-sbx/kern-sbx/pkg/mcp"
	"github.com/kern-sbx/kern-sbx/pkg/pool"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

const (
	// mostAtOnce is how many boxes run at once for one client; further calls wait.
	mostAtOnce = 8
	// mostTrees is how many calls read or write files of the workspace at once: each
	// may have as much of one in memory as a message can carry.
	mostTrees = 4
	// mostOutput is what is kept of each stream when --max-output asks for more, in
	// bytes: the answer shows less, and the rest can be read for a while.
	mostOutput = validate.Size(16 << 20)
	// leftTime is what the deletion of a workspace may keep the end of the server.
	leftTime = 300 * time.Millisecond
)

// Why calls are ended that did not end by themselves.
var (
	errEnding = errors.New("the server is ending")
	errReset  = errors.New("the session was reset")
)

// session is what one connection has: a workspace, an interpreter if there is
// one, and snapshots.
type session struct {
	h   *mcp.Handover
	log *slog.Logger
	// life ends with the server.
	life  context.Context
	held  *workspace.Held // the workspace that is kept by name
	slots chan struct{}   // boxes that run
	trees chan struct{}   // calls that are at the files
	calls atomic.Int64

	opening chan struct{} // whoever holds its one word may change place and store
	place   *place
	store   *runner.Room // where snapshots lie

	// Not under opening, which somebody holds who waits for calls to end.
	names sync.Mutex
	saved map[string]bool // snapshots; false for one that is not whole yet
}

// place is a workspace and the boxes that have it. A reset takes another one.
type place struct {
	life context.Context
	end  context.CancelCauseFunc
	spec runner.Spec
	room *runner.Room // nil for a directory of the user's
	dirs runner.Dirs
	log  *slog.Logger

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup

	want  int         // boxes that are to wait
	ready *pool.Ready // nil for none

	starting chan struct{} // whoever holds its one word may start the kernel
	kernel   *pool.Kernel  // nil: none was started
	replace  context.CancelCauseFunc
	stale    string // why the one that is there has to be replaced, under mu
	running  sync.WaitGroup
	before   string // why the one before ended, for the next answer
}

func newSession(life context.Context, h *mcp.Handover, log *slog.Logger) *session {
	s := &session{h: h, log: log, life: life, slots: make(chan struct{}, mostAtOnce), trees: make(chan struct{}, mostTrees), opening: make(chan struct{}, 1), saved: map[string]bool{}}
	if h.Spec.MaxOutput == 0 || h.Spec.MaxOutput > mostOutput {
		h.Spec.MaxOutput = mostOutput
	}
	return s
}

// hold takes the workspace that is kept by name, for the life of the server.
func (s *session) hold() error {
	if s.h.Named == "" || s.held != nil {
		return nil
	}
	data, err := s.h.Dirs.Usable(s.h.Dirs.Data)
	if err != nil {
		return err
	}
	held, err := workspace.NewStore(data).Hold(strings.TrimPrefix(s.h.Named, workspace.NamePrefix), true)
	if err != nil {
		return err
	}
	if u, _, _ := strings.Cut(s.h.Spec.User, ":"); u != "" && u != "0" && u != "root" {
		// Another user of the box; the directory above keeps everybody else out.
		if err := os.Chmod(held.Path, 0o777); err != nil {
			held.Release()
			return err
		}
	}
	pin, err := runner.PinSource(held.Path)
	if err != nil {
		held.Release()
		return err
	}
	if s.h.Spec.Pins == nil {
		s.h.Spec.Pins = map[string]runner.Pin{}
	}
	s.held, s.h.Spec.Workspace, s.h.Spec.Pins[held.Path] = held, held.Path, pin
	return nil
}

// kept says that the workspace outlives the session. (With Named, hold sets
// Spec.Workspace at a time when others ask.)
func (s *session) kept() bool { return s.h.Named != "" || s.h.Spec.Workspace != "" }

// owned says that the workspace is a directory of the user's own.
func (s *session) owned() bool { return s.h.Named == "" && s.h.Spec.Workspace != "" }

// lock waits for its turn to change the place.
func (s *session) lock(ctx context.Context) error {
	select {
	case s.opening <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *session) unlock() { <-s.opening }

// enter gives the place for one call, which has to leave it.
func (s *session) enter(ctx context.Context, progress func(string) func()) (*place, error) {
	if s.h.Refusal != "" {
		return nil, errors.New(s.h.Refusal)
	}
	for {
		if err := s.lock(ctx); err != nil {
			return nil, err
		}
		if s.place == nil {
			p, err := s.open(ctx, progress, nil)
			if err != nil {
				s.unlock()
				return nil, err
			}
			s.place = p
		}
		p := s.place
		s.unlock()
		p.mu.Lock()
		closed := p.closed
		if !closed {
			p.calls.Add(1)
		}
		p.mu.Unlock()
		if !closed {
			return p, nil
		}
	}
}

func (p *place) leave() { p.calls.Done() }

// open makes a place: the workspace, and the boxes that wait. fill, unless it is
// nil, changes a private workspace before a box has it.
func (s *session) open(ctx context.Context, progress func(string) func(), fill func(*place) error) (*place, error) {
	if err := s.hold(); err != nil {
		return nil, err
	}
	p := &place{spec: *s.h.Spec, dirs: s.h.Dirs, log: s.log, starting: make(chan struct{}, 1)}
	p.spec.Sweeper = []string{sweepWord, p.spec.Kern.Path}
	if s.h.PycCache {
		p.spec.Compiler = []string{compileWord, p.spec.Kern.Path}
	}
	if p.spec.Workspace == "" {
		spec := p.spec
		spec.Progress = progress
		budget, cancel := runner.NewBudget(ctx, spec.StartTimeout)
		defer cancel()
		room, err := runner.OpenRoom(ctx, budget, s.h.Dirs, &spec)
		if err != nil {
			return nil, err
		}
		p.room = room
		err = room.Use(&p.spec)
		if err == nil && fill != nil {
			err = fill(p)
		}
		if err != nil {
			room.Close(leftTime)
			return nil, err
		}
	}
	p.life, p.end = context.WithCancelCause(s.life)
	if !s.h.Kernel {
		p.want = s.h.Prewarm
	}
	if p.spec.Setup == nil {
		p.keepReady(ctx, progress)
	}
	return p, nil
}

// box gives the Spec of a new box, with what differs from call to call.
func (p *place) box() runner.Spec {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.guard()
	spec := p.spec
	spec.Env, spec.Ulimits = slices.Clone(spec.Env), slices.Clone(spec.Ulimits)
	return spec
}

// guard looks again for what programs of the host would obey (rule S2): what has
// come into the workspace, whoever made it, boxes can only read from now on. Those
// that are there already could write it, and are replaced.
func (p *place) guard() {
	if len(p.spec.Watch) == 0 {
		return
	}
	names, had := p.spec.Watch, len(p.spec.Mounts)
	p.spec.Watch, p.spec.Mounts = nil, slices.Clip(p.spec.Mounts)
	if err := p.spec.Guard(names); err != nil {
		p.log.Warn("the workspace could not be looked at", "why", err.Error())
	}
	came := p.spec.Mounts[had:]
	if len(came) == 0 || p.closed {
		return
	}
	p.stale = path.Base(came[0].Target) + " has come into the workspace, which boxes may only read"
	if old := p.ready; old != nil {
		p.ready = nil
		p.running.Go(func() {
			old.Close()
			p.keepReady(p.life, func(string) func() { return func() {} })
		})
	}
}

// isSetUp is told that the workspace has what --setup installs. What comes finds
// it there, and boxes can wait for it.
func (p *place) isSetUp(ctx context.Context, progress func(string) func()) {
	p.mu.Lock()
	first := p.spec.Setup != nil
	p.spec.Setup = nil
	p.mu.Unlock()
	if first {
		p.keepReady(ctx, progress)
	}
}

// keepReady begins to keep boxes ready for calls, as many as are wanted.
func (p *place) keepReady(ctx context.Context, progress func(string) func()) {
	if p.want == 0 {
		return
	}
	if err := p.tryReady(ctx, progress); err != nil {
		p.log.Warn("no boxes are kept ready", "why", err.Error())
	}
}

func (p *place) tryReady(ctx context.Context, progress func(string) func()) error {
	spec := p.box()
	spec.Workdir, spec.Timeout, spec.Env, spec.Results = "", 0, nil, true
	base, err := p.dirs.Usable(p.dirs.Cache)
	if err != nil {
		return err
	}
	if spec.Image != "" && spec.Pull != "never" && !runner.IsCachedImage(os.Getenv, spec.Image) {
		done := progress("pulling " + spec.Image)
		err := runner.Pull(ctx, runner.Fetch{Kern: spec.Kern, Image: spec.Image, Timeout: spec.PullTimeout})
		done()
		if err != nil {
			return err
		}
	}
	key, err := spec.PoolKey(base)
	if err != nil {
		return err
	}
	driver, files := interp.Driver("python", interp.Once)
	spec.Code = files
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.ready = pool.KeepReady(p.life, key, pool.BoxesOptions{Want: p.want, TTL: 5 * time.Minute, Boot: func(ctx context.Context) (*runner.Served, error) {
		boot := func(driver []string) (*runner.Served, *runner.Result, error) {
			budget, cancel := runner.NewBudget(ctx, spec.StartTimeout)
			defer cancel()
			own := spec
			own.Ulimits = slices.Clone(spec.Ulimits)
			return runner.Boot(ctx, budget, p.dirs, &own, driver)
		}
		b, res, err := boot(driver)
		if err == nil && res != nil && res.Fault != nil && res.Fault.Type == runner.ExecFailed && driver != nil {
			driver = nil // an image without python serves commands
			b, res, err = boot(nil)
		}
		if err == nil && res != nil {
			err = errors.New(res.Fault.Message)
		}
		return b, err
	}})
	return nil
}

// close ends all that runs in a place, and removes it.
func (p *place) close(why error, patience time.Duration) {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.end(why)
	p.calls.Wait()
	p.running.Wait()
	if r := p.readyBoxes(); r != nil {
		r.Close()
	}
	if p.room != nil {
		if err := p.room.Close(patience); err != nil {
			p.log.Warn("the workspace could not be removed wholly", "why", err.Error())
		}
	}
}

// close ends the session with all that it has.
func (s *session) close() {
	s.opening <- struct{}{} // for good: nothing is opened any more
	if s.place != nil {
		s.place.close(errEnding, leftTime)
	}
	if s.store != nil {
		s.store.Close(leftTime)
	}
	if s.held != nil {
		s.held.Release()
	}
}

// reset takes what runs, the interpreter's names and a private workspace away.
func (s *session) reset(ctx context.Context) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	if s.place != nil {
		s.place.close(errReset, leftTime)
		s.place = nil
	}
	return nil
}

// job is one run of code or of a command.
type job struct {
	lang, code string   // code, or
	argv       []string // a command
	stdin      string
	timeout    time.Duration
	memory     validate.Size
	progress   func(string) func()
}

// outcome is what became of one.
type outcome struct {
	res    *runner.Result
	number int64
	// ended says that the interpreter ended with this cell, and why; fresh, why the
	// one before had, when this cell found another one.
	ended, fresh string
	// stopped is who ended it, if not itself or the sandbox.
	stopped error
	spec    *runner.Spec
	lang    string
}

// also is a context that ends with another one as well, for the reason of the one
// that was first.
func also(ctx, other context.Context) (context.Context, func()) {
	both, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { end(context.Cause(other)) })
	return both, func() {
		stop()
		end(nil)
	}
}

// do runs one, when it is its turn.
func (s *session) do(ctx context.Context, j *job) (*outcome, error) {
	ctx, end := also(ctx, s.life)
	defer end()
	p, err := s.enter(ctx, j.progress)
	if err != nil {
		return nil, err
	}
	defer p.leave()
	ctx, end = also(ctx, p.life)
	defer end()
	spec := p.box()
	spec.Timeout, spec.Capture, spec.Track, spec.Progress = j.timeout, true, s.h.Track, j.progress
	if j.memory > 0 {
		spec.Memory = j.memory
	}
	if j.stdin != "" {
		if spec.Stdin, err = agent.Seal([]byte(j.stdin)); err != nil {
			return nil, err
		}
		defer spec.Stdin.Close()
	}
	out := &outcome{spec: &spec, lang: j.lang}
	if s.h.Kernel && j.lang == "python" {
		err = p.cell(ctx, &spec, j, out)
	} else {
		err = s.run(ctx, p, &spec, j, out)
	}
	if err != nil {
		return nil, err
	}
	out.number = s.calls.Add(1)
	if ctx.Err() != nil && out.res.ExitCode == nil {
		out.stopped = context.Cause(ctx)
	}
	return out, nil
}

// run starts a box for a job, or takes one that waits.
func (s *session) run(ctx context.Context, p *place, spec *runner.Spec, j *job, out *outcome) error {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	spec.Argv = j.argv
	if j.lang != "" {
		program, err := interp.Build(j.lang, "", []byte(j.code), nil)
		if err != nil {
			return err
		}
		program.Into(spec, nil)
		spec.Results = j.lang == "python"
	}
	if len(spec.Argv) == 0 || !strings.HasPrefix(spec.Argv[0], "python") {
		spec.Compiler = nil
	}
	switch {
	case p.readyBoxes() != nil:
		spec.Claimer = p.readyBoxes()
	case s.h.Pool != runner.PoolOff:
		if found := pool.FindClaimer(os.Getenv, s.h.Dirs); found != nil {
			spec.Claimer = found
		}
	}
	budget, cancel := runner.NewBudget(ctx, spec.StartTimeout)
	defer cancel()
	var err error
	out.res, err = runner.Run(ctx, budget, s.h.Dirs, spec)
	if err == nil && spec.Setup != nil && out.res.Started != nil {
		p.isSetUp(ctx, j.progress)
	}
	return err
}

func (p *place) readyBoxes() *pool.Ready {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready
}

// cell runs a cell in the interpreter of the place. One that ended between two
// cells is replaced, and the answer says so.
func (p *place) cell(ctx context.Context, spec *runner.Spec, j *job, out *outcome) error {
	base, err := p.dirs.Usable(p.dirs.Cache)
	if err != nil {
		return err
	}
	for range 3 {
		k, fresh, err := p.interpreter(ctx, spec)
		if err != nil {
			return err
		}
		if out.fresh == "" {
			out.fresh = fresh
		}
		t, err := runner.OpenStreams(spec, base)
		if err != nil {
			return err
		}
		cell := &pool.Cell{Code: []byte(j.code), Timeout: &j.timeout, Stdin: t.Stdin, Stdout: t.Stdout, Stderr: t.Stderr, Sent: t.Sent}
		begun := time.Now()
		got, err := k.Do(ctx, cell)
		var dead *pool.DeadKernelError
		switch {
		case errors.As(err, &dead) && ctx.Err() == nil:
			t.Close()
			p.buried(k, dead.Grave.Reason)
			continue
		case errors.Is(err, pool.ErrInterrupted):
			t.Close()
			return context.Cause(ctx)
		case err != nil:
			t.Close()
			return err
		}
		t.Finish(ctx, got.Result, got.Over)
		t.Close()
		out.res = got.Result
		out.res.DurationMS = time.Since(begun).Milliseconds()
		if got.Over {
			out.ended = "it ended"
			if g := k.Over(); g != nil {
				out.ended = g.Reason
				if g.Fault != "" {
					out.ended = string(g.Fault)
				}
			}
			p.buried(k, out.ended)
		}
		return nil
	}
	return errors.New("the interpreter ended again and again before the cell could run")
}

// buried forgets an interpreter that has ended. why is for the next answer: a
// model may not have read that of the call which ended it.
func (p *place) buried(k *pool.Kernel, why string) {
	p.starting <- struct{}{}
	if p.kernel == k {
		p.kernel, p.before = nil, why
	}
	<-p.starting
}

// interpreter gives the one that is there, or starts one. fresh says why there
// was another one before.
func (p *place) interpreter(ctx context.Context, like *runner.Spec) (k *pool.Kernel, fresh string, err error) {
	select {
	case p.starting <- struct{}{}:
		defer func() { <-p.starting }()
	case <-ctx.Done():
		return nil, "", context.Cause(ctx)
	}
	p.mu.Lock()
	stale := p.stale
	p.stale = ""
	p.mu.Unlock()
	if p.kernel != nil && stale != "" {
		p.replace(errors.New(stale))
		p.kernel, p.before = nil, stale
	}
	if p.kernel != nil && p.kernel.Over() == nil {
		return p.kernel, "", nil
	}
	if p.kernel != nil {
		p.before, p.kernel = p.kernel.Over().Reason, nil
	}
	spec := p.box()
	spec.Kernel, spec.Results, spec.Timeout, spec.Progress = true, true, 0, like.Progress
	interp.PythonEnv(&spec)
	driver, files := interp.Driver("python", interp.Kernel)
	spec.Code = files
	budget, cancel := runner.NewBudget(ctx, spec.StartTimeout)
	defer cancel()
	box, res, err := runner.Boot(ctx, budget, p.dirs, &spec, driver)
	if err != nil {
		return nil, "", err
	}
	if res != nil {
		why := "it ended while it was started"
		if res.Fault != nil {
			why = fmt.Sprintf("%s (%s)", res.Fault.Message, res.Fault.Type)
		}
		return nil, "", fmt.Errorf("the interpreter did not start: %s", why)
	}
	p.isSetUp(ctx, like.Progress)
	k = pool.NewKernel(nil, box, pool.KernelMeta{Name: "of the session", Lang: "python"}, pool.KernelOptions{})
	life, replace := context.WithCancelCause(p.life)
	p.replace = replace
	p.running.Go(func() {
		k.Run(life)
		replace(nil)
	})
	fresh, p.before, p.kernel = p.before, "", k
	return k, fresh, nil
}
