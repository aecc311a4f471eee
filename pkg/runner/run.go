package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
	"github.com/kern-sbx/kern-sbx/pkg/images"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

// coldImage is how long after its unpacking a first read of an image explains a
// slow start.
const coldImage = 10 * time.Minute

// grace is how long a command that catches the signal sent to us may take to
// end by itself.
const grace = 2 * time.Second

// notesLimit bounds what is kept of kern's own lines.
const notesLimit = 64 << 10

// Run starts the box, waits for its end, and says what happened. The budget is
// the one the caller's own looks at paths were counted against; its clock runs
// until the code starts. Whatever happens, nothing of the run is left behind:
// no process, no file, no cgroup.
//
// The error is for what kept us from trying: a root that is not there, a
// directory that cannot be made. The box never started then.
func Run(ctx context.Context, budget *Budget, dirs Dirs, s *Spec) (*Result, error) {
	if res, err, done := claimed(ctx, budget, dirs, s); done {
		return res, err
	}
	if s.Init {
		return runServed(ctx, budget, dirs, s)
	}
	before := *s
	for tries := 1; ; tries++ {
		r := &run{spec: s, budget: budget, dirs: dirs, errMark: -1}
		res, err := r.do(ctx)
		if res != nil {
			res.Notes = r.reported
		}
		if tries == mostTries || !raced(res) || s.Stdin != nil || s.TTY != nil {
			return res, err
		}
		*s = before
	}
}

// mostTries is how often a box is started for a run that kern's race kept from
// starting.
const mostTries = 3

// raced says that kern found its slice of a systemd user manager gone or half
// delegated: the manager removes it when the last box has ended, also while the next
// one is being put there. kern refuses then, and nothing has run; the next start
// makes a new one. (Seen on kern 0.33, in one of some hundred starts that follow each
// other.)
func raced(res *Result) bool {
	return res != nil && res.Started == nil && res.Fault != nil && res.Fault.Type == StartupFailed &&
		strings.Contains(res.Fault.Message, "delegation raced")
}

type run struct {
	spec   *Spec
	budget *Budget
	dirs   Dirs

	base  string // our cache directory
	dir   *runDir
	ends  []func() // what close does
	ws    string   // the workspace
	calls int      // of a served box, so far
	// compile: the bytecode of the image's library shall be made afterwards.
	compile bool
	watching
	// socket is the box's end of the agent's, until kern has it.
	socket *os.File
	out    *os.File // what the box has at ResultsDir, nil without
	box    *box
	ev     evidence
	image  Image
	placed []placed
	kernAt time.Time // when kern was started
	// unpacked is when the image came into the cache; zero for another root.
	unpacked time.Time

	notes    *capture // kern's lines from before the command started
	stdout   *relay
	stderr   *relay
	peak     int64 // of our own cgroup, in bytes
	errMark  int64 // bytes of stderr that the code can have written; -1: not known
	cgroup   *peakReader
	deps     *depsRecord // held while the box may use what a setup made
	caps     caps
	reported []string
}

func (r *run) do(ctx context.Context) (*Result, error) {
	defer r.close()
	res, err := r.start(ctx)
	if res != nil || err != nil {
		return res, err
	}
	s := r.spec
	r.stdout.src, r.stderr.src = r.box.stdout, r.box.stderr
	if s.Stdin != nil {
		go relayStdin(s.Stdin, r.box.stdin)
	}
	if s.TTY != nil {
		if err := s.TTYStarted(); err != nil {
			r.ev.startErr = err
			r.noRelays()
			r.box.finish(s.Kern.Path, true)
			return r.result(), nil
		}
	}
	if r.awaitStart(ctx) {
		if s.TTY != nil {
			r.noRelays()
		} else {
			go r.stdout.run()
			go r.stderr.run()
		}
		r.sweepOthers()
		r.awaitEnd(ctx)
	} else {
		r.noRelays()
	}
	r.end(ctx)
	return r.conclude(), nil
}

// start prepares everything and starts kern. A Result means that the run is over
// before there was a box.
func (r *run) start(ctx context.Context) (*Result, error) {
	s := r.spec
	base, err := r.dirs.Usable(r.dirs.Cache)
	if err != nil {
		return nil, err
	}
	var pulled bool
	r.image, pulled, err = r.prepareRoot(ctx, base)
	if errors.Is(err, errInterrupted) {
		return r.result(), nil
	}
	if err != nil {
		return nil, err
	}
	renew := func() {
		// The start budget is for the box alone.
		var cancel context.CancelFunc
		r.budget, cancel = NewBudget(ctx, s.StartTimeout)
		r.atEnd(cancel)
	}
	if pulled {
		renew()
	}
	if s.agentIn() && s.Image != "" && len(s.Code) == 0 {
		// The agent takes the place of an ENTRYPOINT, and puts it before the command.
		s.entrypoint = images.Entrypoint(images.Cache(os.Getenv), s.Image)
	}
	if err := r.budget.Touch(s.root(), r.checkAliases); err != nil {
		return nil, err
	}
	if r.dir, err = makeRunDir(base); err != nil {
		return nil, fmt.Errorf("cannot make a directory for the run: %w", err)
	}
	r.dir.kern = s.Kern.Path
	r.atEnd(r.removeDir)
	ws, spent, err := r.prepareWorkspace(ctx)
	r.atEnd(r.deps.close)
	if errors.Is(err, errInterrupted) {
		return r.result(), nil
	}
	if err != nil {
		return nil, err
	}
	r.ws = ws
	if spent {
		renew()
	}
	if err := r.watchWorkspace(ctx); err != nil {
		return nil, err
	}
	r.compile = r.adoptBytecode(base, ws)
	code, env, err := r.lay()
	if err != nil {
		return nil, err
	}
	s.useMemory()
	name := namePrefix + r.dir.name
	r.placed = s.place(ws, code, r.outPath())
	argv, err := s.argv(name, r.placed, fdEnv)
	if err != nil {
		env.Close()
		return nil, err
	}
	// What kern leaves behind when it is killed becomes our child.
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	r.base, r.kernAt = base, time.Now()
	r.box, err = startBox(s.Kern.Path, argv, name, streams{env: env, tty: s.TTY, in: r.socket, stdin: s.Stdin != nil})
	env.Close()
	if r.socket != nil {
		r.socket.Close()
	}
	if err != nil {
		r.ev.startErr = fmt.Errorf("kern could not be started: %w", err)
		return r.result(), nil
	}
	r.atEnd(r.box.close)
	r.notes = &capture{dir: r.dir.path}
	r.makeRelays()
	r.makeGroupEarly(ctx)
	return nil, nil
}

// atEnd adds what close does, the last first.
func (r *run) atEnd(f func()) { r.ends = append(r.ends, f) }

func (r *run) close() {
	for len(r.ends) > 0 {
		f := r.ends[len(r.ends)-1]
		r.ends = r.ends[:len(r.ends)-1]
		f()
	}
}

// sweepOthers clears up after runs whose kern-sbx was killed, while our own box
// runs. A box of theirs has to be ended by this start, short as our own may live.
func (r *run) sweepOthers() {
	swept := make(chan struct{})
	go func() { sweep(r.base, r.spec.Kern.Path); close(swept) }()
	r.atEnd(func() {
		select {
		case <-swept:
		case <-time.After(sweepTime):
		}
	})
}

// end ends the box, whatever state it is in, and takes what is left of it.
func (r *run) end(ctx context.Context) {
	if r.box.initGone() {
		r.lookAtWorkspace(ctx)
		if r.private() {
			r.dir.empty()
		}
		r.dropGroup() // while kern tears down
	}
	r.box.finish(r.spec.Kern.Path, r.ev.stop != stopNone)
	r.lookAtWorkspace(ctx)
	r.ev.elapsed = time.Since(r.kernAt)
	r.keepMemory(ctx)
	r.dropGroup()
	r.settle(ctx)
}

// conclude makes the Result of a box that is gone, and does what is due on the
// host's side.
func (r *run) conclude() *Result {
	res := r.result()
	r.results(res, resultsFile)
	res.ColdImage = r.ev.stop == stopStart && !r.unpacked.IsZero() && time.Since(r.unpacked) < coldImage
	r.afterwards()
	if r.compile && r.ev.ran && r.ev.stop == stopNone {
		r.startCompiler()
	}
	return res
}

// afterwards looks at what the code did to directories that are kept.
func (r *run) afterwards() {
	r.clearPrivilege()
	for _, name := range r.spec.Watch {
		if _, err := os.Lstat(filepath.Join(r.ws, name)); err == nil {
			r.reported = append(r.reported, fmt.Sprintf("the run made %s in the workspace; programs on this machine may obey it", name))
		}
	}
}

// lay makes what the box is built from beside its workspace: the code, and its
// environment in memory that has no name.
func (r *run) lay() (code string, env *os.File, err error) {
	s := r.spec
	files := s.Code
	if s.agentIn() {
		program, ok := agent.Binary()
		if !ok {
			return "", nil, ErrNoAgent
		}
		files = append(slices.Clip(files), CodeFile{Name: agent.Name, Content: program, Executable: true})
	}
	if len(files) > 0 {
		if code, err = r.dir.mkdir(codeName, 0o755); err != nil {
			return "", nil, err
		}
		if s.Results {
			if err = r.makeOut(); err != nil {
				return "", nil, err
			}
		}
		for _, f := range files {
			if err = r.dir.write(codeName+"/"+f.Name, f.mode(), f.Content); err != nil {
				return "", nil, err
			}
		}
	}
	env, err = secretFile(validate.EncodeEnvFile(s.Env))
	return code, env, err
}

// ErrNoAgent says that this build lacks the program that runs inside a box.
var ErrNoAgent = errors.New("this build carries no program that runs inside a box; make build gives one that does")

// secretFile puts bytes where only this process and those it hands the
// descriptor to can read them, and where nothing is left of them afterwards.
func secretFile(b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("kern-sbx-env", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("no memory for the environment of the box: %w", err)
	}
	f := os.NewFile(uintptr(fd), "env")
	if _, err := f.Write(b); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// makeRelays makes the relays, which are given their sources later. They run once
// the command does: until then what comes is kern's, and is not shown as the
// program's.
func (r *run) makeRelays() {
	s := r.spec
	var keepOut, keepErr *capture
	if s.Capture {
		keepOut, keepErr = &capture{dir: r.dir.path}, &capture{dir: r.dir.path}
	}
	r.stdout = newRelay(nil, s.Stdout, keepOut, int64(s.MaxOutput))
	r.stderr = newRelay(nil, s.Stderr, keepErr, int64(s.MaxOutput))
	r.stderr.sniff = true
	if len(s.Egress) > 0 {
		r.stderr.divert = &diverter{notes: &capture{dir: r.dir.path}}
	}
}

// noRelays says that nothing is to be relayed.
func (r *run) noRelays() {
	close(r.stdout.done)
	close(r.stderr.done)
}

func relayStdin(from, to *os.File) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	to.Close()
}

// lookEvery is how often kern's stderr is emptied while it builds, lest it fill.
const lookEvery = 50 * time.Millisecond

// awaitStart waits until the command runs. Before it lets it start, it has
// found and recorded PID 1 of the box, and has taken from stderr what kern
// wrote there: at that moment nothing else can have written.
func (r *run) awaitStart(ctx context.Context) bool {
	b := r.box
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for b.wfd < 0 {
		select {
		case <-b.alive.parked:
			// Not sooner: until then kern is still mounting.
			if !b.findInit() {
				r.ev.startErr = errors.New("the first process of the box cannot be found")
				return false
			}
		case <-tick.C:
			drainNow(b.stderr, r.notes, notesLimit)
		case <-b.alive.closed:
			// It failed, or it does not know the gate.
			if !b.waitExit(drainTime) {
				r.ev.startErr = fmt.Errorf("%s starts the command of a box at once; kern-sbx needs one that waits for it", r.spec.Kern.Path)
			}
			return false
		case <-b.exited:
			return false
		case <-r.budget.ctx.Done():
			return r.startEnded(ctx)
		case sig := <-r.spec.Signals:
			r.stopFor(stopSignal, sig)
			return false
		}
	}
	if err := r.dir.record(b.s, b.w); err != nil {
		// A run that could not be recorded could outlive us unseen.
		r.ev.startErr = fmt.Errorf("the box cannot be recorded: %w", err)
		return false
	}
	if err := r.fillMemory(ctx); err != nil {
		r.ev.startErr = err
		return false
	}
	if err := r.recordKept(); err != nil {
		r.ev.startErr = err
		return false
	}
	if err := r.dressBox(); err != nil {
		r.ev.startErr = err
		return false
	}
	if err := r.cap(ctx); err != nil {
		r.ev.startErr = err
		return false
	}
	drainNow(b.stderr, r.notes, notesLimit)
	b.open()
	r.startWatch() // a workspace does not fill in the meantime
	select {
	case <-b.alive.closed:
	case <-b.exited:
		<-b.alive.closed
	case <-r.budget.ctx.Done():
		select {
		case <-b.alive.closed: // in the very last moment, but it runs
		default:
			return r.startEnded(ctx)
		}
	case sig := <-r.spec.Signals:
		r.stopFor(stopSignal, sig)
		return false
	}
	r.ev.ran = b.alive.ack.Load() && !b.alive.fail.Load() && b.passed()
	return r.ev.ran
}

func (r *run) startEnded(ctx context.Context) bool {
	if ctx.Err() != nil {
		r.stopFor(stopSignal, unix.SIGINT)
	} else {
		r.stopFor(stopStart, nil)
	}
	return false
}

func (r *run) stopFor(why stopReason, sig os.Signal) {
	if r.ev.stop != stopNone {
		return
	}
	r.ev.stop = why
	if s, ok := sig.(unix.Signal); ok {
		r.ev.signal = s
	}
}

// awaitEnd waits until the box has ended or has to be ended.
func (r *run) awaitEnd(ctx context.Context) {
	b, s := r.box, r.spec
	r.cgroup = openPeak(b.w.pid)
	var deadline <-chan time.Time
	if s.Timeout > 0 {
		t := time.NewTimer(s.Timeout - time.Since(b.alive.at))
		defer t.Stop()
		deadline = t.C
	}
	var graceEnds <-chan time.Time
	var asked os.Signal
	sample := time.NewTicker(samplePeak)
	defer sample.Stop()
	if r.cgroup == nil {
		sample.Stop()
	}
	outGone := r.stdout.outGone
	stop := func(why stopReason, sig os.Signal) {
		// A command that ended by itself at this very moment keeps its verdict.
		if !b.hasEnded() {
			r.stopFor(why, sig)
		}
	}
	for {
		select {
		case <-b.exited:
			return
		case <-b.ended:
			r.markStderr()
			r.cgroup.sample()
			return
		case <-r.caps.full:
			// The kernel is about to end one process of the box; all of it goes.
			return
		case <-sample.C:
			r.cgroup.sample()
		case <-deadline:
			stop(stopDeadline, nil)
			return
		case <-s.Kill:
			stop(stopUser, nil)
			return
		case <-graceEnds:
			stop(stopSignal, asked)
			return
		case <-ctx.Done():
			stop(stopSignal, unix.SIGINT)
			return
		case sig := <-s.Signals:
			n, ok := sig.(unix.Signal)
			if asked != nil || !ok || !forwarded(n) || !catches(b.w.pid, n) {
				if asked != nil {
					sig = asked
				}
				stop(stopSignal, sig)
				return
			}
			asked = sig
			b.signalInit(n)
			t := time.NewTimer(grace)
			defer t.Stop()
			graceEnds = t.C
		case <-outGone:
			outGone = nil
			if isClosedOutput(*r.stdout.outErr.Load()) {
				stop(stopOutput, nil)
				return
			}
		}
	}
}

// forwarded are the signals that a program may want to answer.
func forwarded(s unix.Signal) bool {
	return s == unix.SIGINT || s == unix.SIGTERM || s == unix.SIGHUP
}

// markStderr notes how much the code can have written to stderr: everything in
// the box is dead now, so what comes later is kern's.
func (r *run) markStderr() {
	for range 20 {
		before := r.stderr.passed.Load()
		q := queued(r.box.stderr)
		if r.stderr.passed.Load() == before {
			r.errMark = before + q
			return
		}
	}
	r.errMark = -1
}

// settle takes what is left once the box is gone.
func (r *run) settle(ctx context.Context) {
	b := r.box
	hurry, settled := hurried(ctx, r.spec.Signals, r.ev.stop == stopSignal)
	defer settled()
	select {
	case <-b.alive.closed:
	case <-time.After(drainTime):
		// A supervisor that cannot even be killed; said below.
	}
	r.ev.ack, r.ev.execFail = b.alive.ack.Load(), b.alive.fail.Load()
	r.ev.ran = r.ev.ack && !r.ev.execFail && r.ev.ran
	r.reported = append(r.reported, awaitRelays(r.stdout, r.stderr, func(s *relay) bool { return s.await(hurry) })...)
	if r.spec.TTY != nil {
		// The pipe never reached the command, so what is in it is kern's, or the
		// agent's that could not execute it.
		from := r.notes.size
		drainNow(b.stderr, r.notes, notesLimit)
		said, _ := io.ReadAll(r.notes.reader(from, r.notes.size))
		if bytes.Contains(said, []byte(agent.NotFound)) || bytes.Contains(said, []byte(agent.NotExecutable)) {
			r.ev.execFail, r.ev.ran = true, false
		}
	}
	if !r.ev.ran {
		// Nothing ran, so all of it is kern's.
		drainNow(b.stderr, r.notes, notesLimit)
	}
	r.ev.payload = b.payload()
	select {
	case <-b.exited:
		if b.state != nil {
			r.ev.wait = b.state.wait
		}
	default:
		r.ev.startErr = fmt.Errorf("kern does not answer and cannot be ended")
	}
	if r.ev.wait.Signaled() {
		forgetBox(b.name, b.s)
	}
}

// hurried is closed when the user asked us to end, at once or while we wait.
func hurried(ctx context.Context, signals <-chan os.Signal, already bool) (hurry <-chan struct{}, settled func()) {
	c, done := make(chan struct{}), make(chan struct{})
	if already {
		close(c)
	} else {
		go func() {
			select {
			case <-signals:
				close(c)
			case <-ctx.Done():
				close(c)
			case <-done:
			}
		}()
	}
	return c, func() { close(done) }
}

// awaitRelays waits for the ends of both streams and says which was lost.
func awaitRelays(out, errs *relay, await func(*relay) bool) (lost []string) {
	for _, s := range []struct {
		name string
		r    *relay
	}{{"output", out}, {"error", errs}} {
		if !await(s.r) {
			lost = append(lost, "the end of standard "+s.name+" is lost: nobody read it before we were told to end")
		}
	}
	return lost
}

func (r *run) result() *Result {
	s := r.spec
	e := &r.ev
	e.kernLimit = s.kernTimeout()
	e.startTimeout = s.StartTimeout
	if !s.served { // a call has its own
		e.timeout = s.Timeout
	}
	if len(s.Argv) > 0 && !s.served {
		e.argv0 = s.Argv[0]
	}
	e.root = s.root()
	if r.notes != nil {
		e.notes = kernSentence(TextOf(nil).with(r.notes).Head(8 << 10))
		if strings.Contains(e.notes, "chdir(workdir)") {
			// kern does not say which directory it is that the box lacks.
			e.notes = fmt.Sprintf("--workdir %s: %s", term.VisibleLine(s.Workdir), e.notes)
		}
	}
	e.space, e.spaceMax = r.space.Load(), r.watching.max
	e.out = r.outFull.Load()
	v := classify(e)
	res := &Result{
		Schema: Schema,
		Status: v.status, ExitCode: v.exit, Fault: v.fault,
		Files: []File{}, Results: []Rich{}, Hints: []Hint{},
		Image: r.image,
		Kern:  Kern{s.Kern.Version, s.Kern.Path},
	}
	res.OK = v.fault == nil && v.status == 0
	if v.signal != "" {
		res.Signal = ptr(v.signal)
	}
	if r.box != nil {
		if e.ran {
			res.Started = ptr(r.box.alive.at.UTC())
		}
		res.DurationMS = e.elapsed.Milliseconds()
		r.texts(res)
	} else {
		res.Stdout, res.Stderr, res.CodeStderr, res.RuntimeNotes = TextOf(nil), TextOf(nil), TextOf(nil), TextOf(nil)
	}
	res.Limits = r.limits()
	res.LimitsReason = r.caps.reason
	res.Usage = r.usage()
	r.trackedFiles(res)
	if r.lost != nil && res.Status == 0 {
		res.OK, res.Status = false, 1
	}
	if r.stdout != nil {
		r.reported = append(r.reported, res.unwritten(r.stdout)...)
	}
	return res
}

// unwritten says that standard output could not be written.
func (res *Result) unwritten(out *relay) []string {
	p := out.outErr.Load()
	if p == nil || isClosedOutput(*p) {
		return nil
	}
	if res.Status == 0 {
		res.OK, res.Status = false, 1
	}
	return []string{"standard output could not be written, and the rest of it is lost: " + errno(*p)}
}

// texts splits what was captured into the program's bytes and kern's.
func (r *run) texts(res *Result) {
	whole := func(c *capture) span { return span{c, 0, c.size} }
	res.RuntimeNotes = &Text{[]span{whole(r.notes)}}
	if d := r.stderr.divert; d != nil {
		defer func() { res.RuntimeNotes.spans = append(res.RuntimeNotes.spans, whole(d.notes)) }()
	}
	if r.caps.group != nil {
		res.RuntimeNotes = TextOf(r.kernNotes(res.RuntimeNotes.Head(notesLimit)))
	}
	r.reported = append(r.reported, res.shown(r.stdout, r.stderr)...)
	if !r.spec.Capture {
		return
	}
	out, errs := r.stdout.keep, r.stderr.keep
	res.Stdout = &Text{[]span{whole(out)}}
	code := whole(errs)
	if p := r.ev.payload; len(p) == payloadLen && p[byteOOM] == 1 && r.errMark >= 0 && r.errMark < errs.size {
		// kern says what it thinks of the OOM kill after everything in the box
		// is dead.
		code.end = r.errMark
		res.RuntimeNotes.spans = append(res.RuntimeNotes.spans, span{errs, r.errMark, errs.size})
	}
	res.CodeStderr = &Text{[]span{code}}
	res.Stderr = &Text{[]span{whole(r.notes), whole(errs)}}
}

// shown takes from the relays what happened to the streams.
func (res *Result) shown(out, errs *relay) (notes []string) {
	res.head, res.tail = errs.head, errs.tail
	res.Truncated.Stdout, res.Truncated.Stderr = out.truncated.Load(), errs.truncated.Load()
	for _, k := range []struct {
		name string
		keep *capture
		cut  *bool
	}{{"stdout", out.keep, &res.Truncated.Stdout}, {"stderr", errs.keep, &res.Truncated.Stderr}} {
		if k.keep != nil && k.keep.err != nil {
			*k.cut, res.CutByDisk = true, true
			notes = append(notes, k.name+" is cut in the document: the rest could not be kept: "+errno(k.keep.err))
		}
	}
	return notes
}

func (t *Text) with(c *capture) *Text {
	return &Text{append(t.spans, span{c, 0, c.size})}
}

func (r *run) limits() Limits {
	s := r.spec
	c := r.caps
	if p := r.ev.payload; len(p) == payloadLen && p[byteCap] == capNotEnforced && c.memory == byKern {
		// kern's last word on it outranks what we saw at the gate.
		c.memory, c.pids = byNobody, byNobody
	}
	lim := func(n float64, by string) Cap {
		if n <= 0 {
			return Cap{}
		}
		if by == "" {
			return Cap{Requested: &n}
		}
		return Cap{Requested: &n, EnforcedBy: &by}
	}
	l := Limits{Memory: lim(float64(s.Memory), c.memory), PIDs: lim(float64(s.PIDs), c.pids), CPU: lim(s.CPUs, c.cpu)}
	if s.Timeout > 0 {
		l.TimeoutMS = ptr(s.Timeout.Milliseconds())
	}
	return l
}

// Uncapped names the caps that were asked for and are not in force, by the
// names of their flags.
func (l Limits) Uncapped() []string {
	var names []string
	for _, k := range []struct {
		c    Cap
		flag string
	}{{l.Memory, "memory"}, {l.PIDs, "pids-limit"}, {l.CPU, "cpus"}} {
		if k.c.EnforcedBy != nil && *k.c.EnforcedBy == byNobody {
			names = append(names, k.flag)
		}
	}
	return names
}

func (r *run) usage() Usage {
	var u Usage
	if r.box == nil {
		return u
	}
	select {
	case <-r.box.exited:
	default:
		return u // a box that serves more than one call
	}
	if r.box.state == nil {
		return u
	}
	ru := &r.box.state.usage
	u.CPUTimeMS = ptr((ru.Utime.Nano() + ru.Stime.Nano()) / int64(time.Millisecond))
	// Linux gives it in KiB.
	u.PeakMemory, u.PeakMemorySource = ptr(ru.Maxrss<<10), ptr("largest-process")
	if n := max(r.cgroup.peak(), r.peak); n > 0 {
		u.PeakMemory, u.PeakMemorySource = &n, ptr("cgroup")
	}
	return u
}

// kernSentence finds kern's own reason in what it printed: what follows "error: "
// or "sandbox setup failed: " at the margin, else its first line that is not a
// note, else the last line. Safe to print.
func kernSentence(b []byte) string {
	first, last := "", ""
	for line := range strings.Lines(string(b)) {
		line = strings.TrimRight(line, "\r\n")
		said, byKern := strings.CutPrefix(line, "kern: ")
		for _, mark := range []string{"error: ", "kern: sandbox setup failed: "} {
			if rest, ok := strings.CutPrefix(line, mark); ok {
				return term.VisibleLine(rest)
			}
		}
		switch {
		case line == "", strings.HasPrefix(line, " "), strings.HasPrefix(said, "warning:"), strings.HasPrefix(said, "note:"):
		case byKern && first == "":
			first = said
		case !byKern:
			last = line
		}
	}
	if first != "" {
		last = first
	}
	return term.VisibleLine(last)
}

// keptDirs are the host's directories that the box may write and that are kept.
func (r *run) keptDirs() []string {
	dirs := []string{}
	if r.spec.Workspace != "" {
		dirs = append(dirs, r.ws)
	}
	for _, m := range r.spec.Mounts {
		if !m.ReadOnly {
			dirs = append(dirs, m.Source)
		}
	}
	return dirs
}

// recordKept notes them for a sweep.
func (r *run) recordKept() error {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, dir := range r.keptDirs() {
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		if err := r.dir.recordKept(dir, &st); err != nil {
			return err
		}
	}
	return nil
}

// clearPrivilege applies rule S1: what hostile code makes setuid in a kept
// directory is setuid root on the host when we are root.
func (r *run) clearPrivilege() {
	if os.Geteuid() != 0 || r.box.opened.IsZero() {
		return
	}
	for _, dir := range r.keptDirs() {
		d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if errors.Is(err, unix.ENOTDIR) {
			what, err := clearFile(dir)
			if what != "" {
				r.reported = append(r.reported, fmt.Sprintf("%s: %s removed from a file that the run could change", term.VisibleLine(dir), what))
			}
			if err != nil {
				r.reported = append(r.reported, fmt.Sprintf("%s could not be searched for setuid bits: %v", dir, err))
			}
			continue
		}
		if err != nil {
			r.reported = append(r.reported, fmt.Sprintf("%s could not be searched for setuid files: %v", dir, err))
			continue
		}
		cleared, err := workspace.ClearPrivilege(context.Background(), d, r.box.opened)
		d.Close()
		for _, c := range cleared {
			r.reported = append(r.reported, fmt.Sprintf("%s: %s removed from a file that the run changed", term.VisibleLine(filepath.Join(dir, c.Path)), c.What))
		}
		if err != nil {
			r.reported = append(r.reported, fmt.Sprintf("%s could not be searched for setuid files: %v", dir, err))
		}
	}
}

// clearFile does the same for a single file that was mounted to be written.
func clearFile(path string) (what string, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return "", err
	}
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		if err := unix.Fchmod(int(f.Fd()), st.Mode&0o1777); err != nil {
			return "", err
		}
		what = "setuid"
	}
	if unix.Fremovexattr(int(f.Fd()), "security.capability") == nil {
		what = strings.TrimPrefix(what+" and file capabilities", " and ")
	}
	return what, nil
}

// sweepTime is how long the end of a run waits for a sweep that is not done.
const sweepTime = 50 * time.Millisecond

// removeTime is how long the caller waits for the run's directory to go; less
// when the box was stopped, and has taken its time already.
const removeTime = 2 * time.Second

func (r *run) removeDir() {
	patience := removeTime
	if r.ev.stop != stopNone {
		patience /= 2
	}
	if err := r.dir.remove(patience, r.spec.Sweeper); err != nil {
		r.reported = append(r.reported, fmt.Sprintf("the run's directory could not be removed wholly: %v", err))
	}
}
