package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Served is a box whose PID 1 is our agent: it waits for commands or cells, one
// at a time. It is what --init, kernels and pools stand on.
type Served struct {
	r      *run
	conn   *agent.Conn
	events chan agent.Event // closed when the agent is gone
	driver bool             // an interpreter waits in it

	mu      sync.Mutex
	ended   *Result // what ended the box, once it is over
	down    bool    // the box has been ended
	closed  bool
	closing []string // what Close has to report
}

// Call is one command or cell for a Served box.
type Call struct {
	// Argv is the command, without an ENTRYPOINT of the image. Cell, where it is not
	// nil, stands for it if an interpreter waits that can take Env.
	Argv []string
	Cell *Cell
	// Files are put under CodeDir first, unless they are there.
	Files []CodeFile
	// Env is set over what the box has; Workdir is "" for that of the box.
	Env     []validate.KV
	Workdir string
	// Stdin is nil for an empty one. They are given away: the box gets duplicates.
	Stdin, Stdout, Stderr *os.File
	// TTY, the slave of a pty, stands for all three.
	TTY *os.File
	// Track lists what the call changed in the workspace, without what TrackIgnore
	// names.
	Track       bool
	TrackIgnore []string
	// Timeout is for this call; 0 for none. Wait is how long a Claimer waits for a
	// box.
	Timeout, Wait time.Duration
	// Signals are passed on to the command; the second ends the box. Kill ends it
	// at once, as does the end of the context, which stands for StopSignal.
	Signals <-chan os.Signal
	Kill    <-chan struct{}
	// Sent is called once the box has the streams, Started when the command runs.
	Sent, Started func()
}

// driverTime bounds the start of an interpreter that is to wait in a box.
const driverTime = 60 * time.Second

// Boot starts a box that waits. With driver, a command line, it starts that as
// well and waits until it is ready for cells. A Result says why there is no box;
// an error, what kept us from trying. The context only bounds the start.
func Boot(ctx context.Context, budget *Budget, dirs Dirs, s *Spec, driver []string) (b *Served, res *Result, err error) {
	for range mostTries {
		if b, res, err = bootOnce(ctx, budget, dirs, s, driver); !raced(res) {
			break
		}
	}
	return b, res, err
}

func bootOnce(ctx context.Context, budget *Budget, dirs Dirs, s *Spec, driver []string) (*Served, *Result, error) {
	own := *s
	own.served, own.Track = true, false
	r := &run{spec: &own, budget: budget, dirs: dirs, errMark: -1}
	b := &Served{r: r, events: make(chan agent.Event, 16)}
	res, err := b.boot(ctx, driver)
	if res != nil || err != nil {
		if r.box != nil && res == nil {
			r.box.finish(s.Kern.Path, true)
		}
		r.close()
		if res != nil {
			res.Notes = r.reported
		}
		return nil, res, err
	}
	return b, nil, nil
}

func (b *Served) boot(ctx context.Context, driver []string) (*Result, error) {
	r := b.r
	if _, ok := agent.Binary(); !ok {
		return nil, ErrNoAgent
	}
	var err error
	if b.conn, r.socket, err = agent.Pair(); err != nil {
		return nil, err
	}
	res, err := r.start(ctx)
	if res != nil || err != nil {
		r.socket.Close()
		b.conn.Close()
		return res, err
	}
	r.atEnd(func() { b.conn.Close() })
	go b.listen()
	// What the box itself prints is of nobody: kern's notes until the gate opens,
	// and a driver's that is between two cells.
	r.noRelays()
	if !r.awaitStart(ctx) {
		return b.failed(ctx), nil
	}
	go drain(r.box.stdout, r.spec.Log)
	go drain(r.box.stderr, r.spec.Log)
	r.sweepOthers()
	if why := b.await(ctx, agent.Ready, nil); why != nil {
		r.ev.startErr = why
		return b.failed(ctx), nil
	}
	if driver != nil {
		body, err := agent.Pack(agent.Body{Argv: bytesOf(driver)})
		if err == nil {
			err = b.conn.Send(agent.Request{Op: agent.OpWarm}, body)
			body.Close()
		}
		if err != nil {
			r.ev.startErr = err
			return b.failed(ctx), nil
		}
		r.ev.argv0 = driver[0]
		if why := b.await(ctx, agent.Warm, driver); why != nil {
			if r.ev.word == nil {
				r.ev.startErr = why
			}
			return b.failed(ctx), nil
		}
		b.driver = true
	}
	return nil, nil
}

func drain(f *os.File, to io.Writer) {
	if to == nil {
		to = io.Discard
	}
	io.Copy(to, f)
}

func (b *Served) failed(ctx context.Context) *Result {
	b.r.end(ctx)
	return b.r.conclude()
}

// listen passes on what the agent says.
func (b *Served) listen() {
	defer close(b.events)
	for {
		var e agent.Event
		files, err := b.conn.Receive(&e)
		for _, f := range files {
			f.Close()
		}
		if err != nil {
			return
		}
		b.events <- e
	}
}

// await waits for one event of the start.
func (b *Served) await(ctx context.Context, want string, driver []string) error {
	r := b.r
	limit := time.NewTimer(driverTime)
	defer limit.Stop()
	for {
		select {
		case e, ok := <-b.events:
			switch {
			case !ok:
				return errors.New("the program that runs in the box ended at once")
			case e.Event == want:
				return nil
			case e.Event == agent.Failed:
				r.ev.word = &agentWord{event: e}
				return fmt.Errorf("%s did not come up", term.VisibleLine(driver[0]))
			}
		case <-limit.C:
			return fmt.Errorf("not ready within %s", driverTime)
		case <-r.budget.ctx.Done():
			r.startEnded(ctx)
			return errors.New("stopped")
		case sig := <-r.spec.Signals:
			r.stopFor(stopSignal, sig)
			return errors.New("stopped")
		case <-r.box.exited:
			return errors.New("the box ended while it was started")
		}
	}
}

// Ended is closed when the box is gone, whoever ended it.
func (b *Served) Ended() <-chan struct{} { return b.r.box.ended }

// Workspace is the host directory that the box has at /workspace.
func (b *Served) Workspace() string { return b.r.ws }

// Over is the Result that ended the box, nil while it lives.
func (b *Served) Over() *Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

// Call runs one command or cell and says what happened to it, by the same rules
// as a run of its own. The box lives on unless that was ended by the sandbox, or
// the interpreter itself ended: then Over says so, and nothing of it is left but
// its directory, until Close.
//
// Streams are the caller's: the Result has none.
func (b *Served) Call(ctx context.Context, c *Call) *Result {
	if res := b.Over(); res != nil {
		return res
	}
	r := b.r
	call := &call{Call: c, id: newID(), begun: time.Now(), cell: c.Cell != nil && b.driver}
	r.ev = evidence{timeout: c.Timeout, startTimeout: r.spec.StartTimeout}
	r.reported = nil
	r.calls++
	r.spec.Track, r.spec.TrackIgnore = c.Track, c.TrackIgnore
	if c.Track {
		r.scanBefore(ctx)
	}
	if err := b.send(call); err != nil {
		r.ev.startErr = fmt.Errorf("the box cannot be reached: %w", err)
		return b.endBox(ctx, call)
	}
	if c.Sent != nil {
		c.Sent()
	}
	return b.follow(ctx, call)
}

// Watch waits between two calls for an end that nobody asked for: of the box, or
// of the interpreter that waits in it. Then the box is ended and the Result,
// which Over gives as well, says why. It gives nil once the context is done; no
// Call may be made before.
func (b *Served) Watch(ctx context.Context) *Result {
	if res := b.Over(); res != nil {
		return res
	}
	r := b.r
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.box.ended:
		case <-r.box.exited:
		case <-r.caps.full:
		case e, ok := <-b.events:
			if ok && (e.ID != "" || e.Event != agent.Exited && e.Event != agent.Broken) {
				continue // of a call that is over
			}
			r.ev, r.reported = evidence{ran: true}, nil
			if ok {
				r.ev.word = &agentWord{event: e, interpreter: true}
			}
			return b.endBox(context.Background(), &call{Call: &Call{}, begun: time.Now()})
		}
		r.ev, r.reported = evidence{ran: true}, nil
		return b.endBox(context.Background(), &call{Call: &Call{}, begun: time.Now()})
	}
}

// Scratch is what the memory file system at /tmp of the box holds, in bytes.
func (b *Served) Scratch() int64 { return b.r.scratchUsed() }

// Pause stops all processes of the box but the agent; Resume lets them go on.
func (b *Served) Pause() {
	// Who is not stopped yet may start others: until a look finds nobody new.
	stopped := map[int]bool{}
	for range 20 {
		if !b.signalAll(unix.SIGSTOP, stopped) {
			return
		}
	}
}

// Resume is the opposite of Pause.
func (b *Served) Resume() { b.signalAll(unix.SIGCONT, map[int]bool{}) }

// signalAll sends a signal to all processes below PID 1 that were not sent one
// before, and says whether there were any.
func (b *Served) signalAll(sig unix.Signal, before map[int]bool) (any bool) {
	space := pidNamespace(b.r.box.w.pid)
	todo := children(b.r.box.w.pid)
	for len(todo) > 0 {
		pid := todo[len(todo)-1]
		todo = append(todo[:len(todo)-1], children(pid)...)
		if before[pid] {
			continue
		}
		before[pid] = true
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		// The number may be somebody else's by now; what is in the box's own
		// namespace is not.
		if space != "" && pidNamespace(pid) == space {
			unix.PidfdSendSignal(fd, sig, nil, 0)
			any = true
		}
		unix.Close(fd)
	}
	return any
}

func pidNamespace(pid int) string {
	s, _ := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid")
	return s
}

// Limits are the caps of the box, and why one of them is not in force.
func (b *Served) Limits() (Limits, string) { return b.r.limits(), b.r.caps.reason }

// Memory is the most memory that the box had at any moment, in bytes, as the
// cgroup that caps it counts; 0 where that is not known.
func (b *Served) Memory() int64 {
	r := b.r
	if g := r.caps.group; g != nil {
		return g.Peak()
	}
	if p := openPeak(r.box.w.pid); p != nil {
		return p.peak()
	}
	return 0
}

// AddCode puts a file beside the code of the box, where the box can read it and
// not write, in place of an earlier one. It says no, and does nothing, for a name
// that is one of our own files, or none.
func (b *Served) AddCode(f CodeFile) bool {
	r := b.r
	if f.Name == "" || f.Name[0] == '.' || strings.ContainsAny(f.Name, "/\x00") || f.Name == agent.Name || f.Name == filepath.Base(ResultsDir) ||
		slices.ContainsFunc(r.spec.Code, func(c CodeFile) bool { return c.Name == f.Name }) {
		return false
	}
	name := codeName + "/" + f.Name
	// Only we write there; the box may have the old one open.
	unix.Unlinkat(int(r.dir.dir.Fd()), name, 0)
	return r.dir.write(name, f.mode(), f.Content) == nil
}

// Sweep clears up after runs whose kern-sbx was killed, as every start of a box
// does: it ends their boxes and removes their directories.
func Sweep(dirs Dirs) {
	if base, err := dirs.Usable(dirs.Cache); err == nil {
		sweep(base, "")
	}
}

// call is one Call on its way.
type call struct {
	*Call
	id      string
	begun   time.Time
	started time.Time
	cell    bool  // for the interpreter
	scratch int64 // what /tmp held when the command had ended, in bytes
}

func bytesOf(l []string) [][]byte {
	out := make([][]byte, len(l))
	for i, s := range l {
		out[i] = []byte(s)
	}
	return out
}

func (b *Served) send(c *call) error {
	s := b.r.spec
	for _, f := range c.Files {
		if slices.ContainsFunc(s.Code, func(have CodeFile) bool { return have.Name == f.Name }) {
			continue
		}
		// The box sees the directory, and cannot write there.
		if err := b.r.dir.write(codeName+"/"+f.Name, f.mode(), f.Content); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	body := agent.Body{ID: c.id, Dir: c.Workdir}
	argv := slices.Concat(s.entrypoint, c.Argv)
	if c.cell {
		argv, body.File, body.Code = c.Cell.Args, c.Cell.File, c.Cell.Code
	}
	body.Argv = bytesOf(argv)
	for _, kv := range c.Env {
		body.Env = append(body.Env, []byte(kv.Key+"="+kv.Value))
	}
	f, err := agent.Pack(body)
	if err != nil {
		return err
	}
	defer f.Close()
	req := agent.Request{Op: agent.OpExec, ID: c.id, Stdin: c.Stdin != nil, TTY: c.TTY != nil}
	files := []*os.File{f, c.Stdout, c.Stderr}
	switch {
	case c.TTY != nil:
		files = []*os.File{f, c.TTY}
		req.Stdin = false
	case c.Stdin != nil:
		files = append(files, c.Stdin)
	}
	if c.cell {
		req.Op = agent.OpCell
	}
	if len(c.Argv) > 0 {
		b.r.ev.argv0 = c.Argv[0]
	}
	return b.conn.Send(req, files...)
}

// killSettles is how long after the agent's word of a SIGKILL the kernel may
// still be ending the whole box for its memory: then that is the reason.
const killSettles = 300 * time.Millisecond

// follow waits for the end of a call.
func (b *Served) follow(ctx context.Context, c *call) *Result {
	r := b.r
	var deadline, graceEnds, settles <-chan time.Time
	// (An old timer that nobody waits for any more is collected.)
	arm := func(d time.Duration) <-chan time.Time { return time.NewTimer(d).C }
	start := arm(max(r.spec.StartTimeout, time.Second))
	var asked os.Signal
	for {
		select {
		case e, ok := <-b.events:
			if !ok {
				return b.endBox(ctx, c)
			}
			if e.ID != c.id && !(e.ID == "" && (e.Event == agent.Exited || e.Event == agent.Broken)) {
				continue // of a call before this one
			}
			switch e.Event {
			case agent.Started:
				c.started, start = time.Now(), nil
				r.ev.ran = true
				if c.Started != nil {
					c.Started()
				}
				if c.Timeout > 0 {
					deadline = arm(c.Timeout)
				}
			case agent.Failed:
				r.ev.ran = true // the box runs; classify reads the word
				r.ev.word = &agentWord{event: e, interpreter: c.cell}
				return b.answer(c)
			case agent.CellDone:
				r.ev.word = &agentWord{event: e, interpreter: true}
				return b.answer(c)
			case agent.Broken:
				r.ev.word = &agentWord{event: e, interpreter: true}
				return b.endBox(ctx, c)
			case agent.Exited:
				r.ev.word = &agentWord{event: e, interpreter: c.cell}
				if e.Signal == int(unix.SIGKILL) {
					settles = arm(killSettles)
					continue
				}
				return b.exited(ctx, c)
			}
		case <-settles:
			return b.exited(ctx, c)
		case <-r.box.ended:
			return b.endBox(ctx, c)
		case <-r.box.exited:
			return b.endBox(ctx, c)
		case <-r.caps.full:
			return b.endBox(ctx, c)
		case <-start:
			r.stopFor(stopStart, nil)
			return b.endBox(ctx, c)
		case <-deadline:
			r.stopFor(stopDeadline, nil)
			return b.endBox(ctx, c)
		case <-c.Kill:
			r.stopFor(stopUser, nil)
			return b.endBox(ctx, c)
		case <-graceEnds:
			r.stopFor(stopSignal, asked)
			return b.endBox(ctx, c)
		case <-ctx.Done():
			why := stopSignal
			var gone *OutputGone
			if errors.As(context.Cause(ctx), &gone) {
				why = stopOutput
			}
			r.stopFor(why, unix.SIGINT)
			return b.endBox(ctx, c)
		case sig := <-c.Signals:
			n, ok := sig.(unix.Signal)
			if asked != nil || !ok {
				if asked != nil {
					sig = asked
				}
				r.stopFor(stopSignal, sig)
				return b.endBox(ctx, c)
			}
			b.conn.Send(agent.Request{Op: agent.OpSignal, ID: c.id, Signal: int(n)})
			if c.cell && n == unix.SIGINT && b.kernel() {
				continue // it ends the cell alone
			}
			asked, graceEnds = sig, arm(grace)
		}
	}
}

func (b *Served) kernel() bool { return b.r.spec.Kernel }

// OutputGone is the cause of a context that ends because nobody reads standard
// output any more.
type OutputGone struct{}

func (*OutputGone) Error() string { return "standard output is closed" }

// exited is the end of a process: of the command, after which the box lives on,
// or of the interpreter of a kernel, which was what the box is for. What a command
// left running could still change a directory that is kept, so there the box is
// ended before that is looked at.
func (b *Served) exited(ctx context.Context, c *call) *Result {
	s := b.r.spec
	kept := s.Workspace != "" || slices.ContainsFunc(s.Mounts, func(m validate.Mount) bool { return !m.ReadOnly })
	c.scratch = b.r.scratchUsed()
	if b.kernel() || kept || c.Track {
		return b.endBox(ctx, c)
	}
	return b.answer(c)
}

// BaseEnv is what the box was started with.
func (b *Served) BaseEnv() []validate.KV { return b.r.spec.Env }

// answer is the Result of a call that left the box alive.
func (b *Served) answer(c *call) *Result {
	r := b.r
	if c.Track && r.ev.ran {
		r.scanAfter(context.Background())
	}
	r.afterwards()
	return b.result(c)
}

// endBox ends the box and says why.
func (b *Served) endBox(ctx context.Context, c *call) *Result {
	r := b.r
	word, ran := r.ev.word, r.ev.ran
	r.end(ctx)
	// What settle knows is of the agent, which was PID 1.
	r.ev.word, r.ev.ran = word, ran
	if !ran && r.ev.stop == stopNone {
		// What ended it was not this command, which did not run.
		switch n := r.space.Load(); {
		case n > 0:
			r.ev.startErr = fmt.Errorf("the box was ended before this was started: the workspace held %s, more than %s (--workspace-max)", validate.Size(n).Human(), validate.Size(r.watching.max).Human())
		case r.outFull.Load() > 0:
			r.ev.startErr = errors.New("the box was ended before this was started: there was too much in the directory of its results")
		case r.ev.oom:
			r.ev.startErr = errors.New("the box was ended before this was started: it needed more than its memory cap")
		case r.ev.startErr == nil:
			r.ev.startErr = errors.New("the box ended before the command was started")
		}
	}
	r.afterwards()
	res := b.result(c)
	b.mu.Lock()
	b.ended, b.down = res, true
	b.mu.Unlock()
	return res
}

// endIdle ends a box that lives. Nothing of it runs on then.
func (b *Served) endIdle() {
	b.mu.Lock()
	down := b.down
	b.down = true
	b.mu.Unlock()
	if !down {
		r := b.r
		r.ev = evidence{stop: stopUser}
		r.end(context.Background())
		// What a call left running may have changed what is kept until now.
		r.reported = nil
		if r.calls > 0 {
			r.afterwards()
		}
		b.closing = r.reported
	}
}

func (b *Served) result(c *call) *Result {
	r := b.r
	r.ev.elapsed = time.Since(c.begun)
	res := r.result()
	res.Stdout, res.Stderr, res.CodeStderr = TextOf(nil), TextOf(nil), TextOf(nil)
	res.Truncated, res.head = Truncated{}, nil
	if c.started.IsZero() {
		res.Started = nil
	} else {
		res.Started = ptr(c.started.UTC())
	}
	res.Limits.TimeoutMS = nil
	if c.Timeout > 0 {
		res.Limits.TimeoutMS = ptr(c.Timeout.Milliseconds())
	}
	if w := r.ev.word; w != nil && w.event.Event == agent.Exited {
		res.Usage.CPUTimeMS = ptr(w.event.CPU / 1000)
		if g := r.caps.group; g != nil && g.Peak() > 0 {
			res.Usage.PeakMemory, res.Usage.PeakMemorySource = ptr(g.Peak()), ptr("cgroup")
		} else if w.event.MaxRSS > 0 {
			res.Usage.PeakMemory, res.Usage.PeakMemorySource = ptr(w.event.MaxRSS), ptr("largest-process")
		}
	}
	name := resultsFile
	if c.cell {
		name = c.id
	}
	r.results(res, name)
	if b.kernel() && r.out != nil {
		unix.Unlinkat(int(r.out.Fd()), name, 0)
	}
	if n := max(c.scratch, r.scratchUsed()); c.Track && n > 0 && len(res.Files) == 0 {
		r.reported = append(r.reported, fmt.Sprintf("nothing changed in the workspace; /tmp of the box holds %s, which is not kept", validate.Size(n).Human()))
	}
	res.Notes = r.reported
	return res
}

// Close ends the box if it lives, and removes all of it.
func (b *Served) Close() {
	b.mu.Lock()
	done := b.closed
	b.closed = true
	b.mu.Unlock()
	if done {
		return
	}
	b.endIdle()
	b.r.reported = nil
	b.r.close()
	b.closing = append(b.closing, b.r.reported...)
	if log := b.r.spec.Log; log != nil {
		for _, n := range b.closing {
			fmt.Fprintln(log, "kern-sbx: note:", n)
		}
	}
}
