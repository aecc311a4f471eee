package pool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Kernels is the kind of holder that keeps one interpreter with its names.
const Kernels = "kernel"

// Defaults of a kernel.
const (
	// DefaultKernel is the name of the one that is meant when none is given.
	DefaultKernel = "default"
	// DefaultIdle ends a kernel in which nothing has run for that long.
	DefaultIdle = time.Hour
	// DefaultAge ends a kernel, whatever it does.
	DefaultAge = 24 * time.Hour
	// GraveTime is how long it is remembered what ended a kernel.
	GraveTime = 24 * time.Hour
)

const (
	// lostTime is what a cell may still take whose caller is gone, once it has
	// been interrupted; less where its own timeout is shorter.
	lostTime = 30 * time.Second
	// mostQueued may wait for their turn.
	mostQueued = 128
)

// KernelMeta is what a kernel says of itself: the document beside its socket.
type KernelMeta struct {
	Name string `json:"name"`
	Lang string `json:"lang"`
	// Root is the image, the directory of --rootfs, or host.
	Root string `json:"root"`
	// Workspace is the directory that is kept, "" for a private one.
	Workspace string    `json:"workspace"`
	PID       int       `json:"pid"`
	Started   time.Time `json:"started"`
	// Timeout is that of a cell which brings none, in milliseconds; 0 for none.
	// TimeoutFrom says where it was set, "" for the default.
	TimeoutMS   int64  `json:"timeout_ms"`
	TimeoutFrom string `json:"timeout_from"`
	// MaxOutput is what is passed on of each stream of a cell, in bytes.
	MaxOutput int64 `json:"max_output"`
	// Memory and PIDs are the caps, 0 for none.
	Memory int64 `json:"memory"`
	PIDs   int   `json:"pids"`
	// IdleMS and AgeMS are its lifetimes, in milliseconds; 0 for no limit.
	IdleMS int64 `json:"idle_timeout_ms"`
	AgeMS  int64 `json:"max_age_ms"`
	// Args is the command line that started it, in Dir.
	Args []string `json:"args"`
	Dir  string   `json:"dir"`
}

// KernelGrave says what ended a kernel.
type KernelGrave struct {
	At time.Time `json:"at"`
	// Cell is the number of the cell that ended it, 0 when none did. Fault is the
	// fault of that cell, "" for none.
	Cell  int              `json:"cell"`
	Fault runner.FaultType `json:"fault"`
	// Reason is one sentence.
	Reason string `json:"reason"`
	// Workspace is the directory that is still there, "" when it was private.
	Workspace string `json:"workspace"`
}

// Stopped says that it was ended because somebody wanted that.
func (g *KernelGrave) Stopped() bool { return g.Reason == errStopped.Error() }

// KilledGrave is what Sweep leaves of a kernel whose process was killed.
func KilledGrave(meta json.RawMessage) any {
	var m KernelMeta
	if json.Unmarshal(meta, &m) != nil {
		return nil
	}
	return &KernelGrave{At: time.Now().UTC(), Reason: "its background process was killed", Workspace: m.Workspace}
}

// Sentence says that a kernel is dead, of what, and what is left.
func (g *KernelGrave) Sentence(name string) string {
	why := g.Reason
	if g.Cell > 0 && g.Fault != "" {
		why = fmt.Sprintf("a prior cell ended it (%s)", g.Fault)
	}
	left := "its names and its private workspace are gone"
	if g.Workspace != "" {
		left = "its names are gone, and " + g.Workspace + " is still there"
	}
	return fmt.Sprintf("kernel %s is dead: %s; %s", name, why, left)
}

// KernelOptions say how long a kernel lives. 0 is for ever.
type KernelOptions struct {
	Idle, Age time.Duration
	// Timeout is for a cell that brings none.
	Timeout time.Duration
}

// Kernel is one interpreter, and those who wait for it.
type Kernel struct {
	holder *Holder
	box    *runner.Served
	meta   KernelMeta
	opts   KernelOptions

	wake chan struct{}
	life context.Context // ends with the kernel, for the reason that stop is given
	stop context.CancelCauseFunc

	mu      sync.Mutex
	queue   []*job
	running *job
	cells   int
	used    time.Time
	memory  int64 // the most at the end of the last cell
	over    *KernelGrave

	limits runner.Limits
	reason string // why one of them is not in force
}

// job is one cell that somebody waits for.
type job struct {
	body    agent.Body
	files   []*os.File // stdout, stderr, perhaps stdin
	sent    func()     // told when the box has them; nil closes them
	timeout time.Duration
	signals chan os.Signal
	lost    bool
	ended   bool // somebody asked for the end of the kernel, for its sake
	number  int

	// hold is not nil for one that runs nothing and keeps the kernel still until
	// it is closed; held is closed when it does.
	hold, held chan struct{}

	once sync.Once
	done chan struct{} // closed when res or dead is set
	res  *runner.Result
	dead *KernelGrave
	over bool // the kernel ended with it
}

func (j *job) closeFiles() {
	j.once.Do(func() {
		if j.sent != nil {
			j.sent()
			return
		}
		for _, f := range j.files {
			f.Close()
		}
	})
}

// signal passes a signal on, unless more are waiting than anybody means.
func (j *job) signal(s os.Signal) {
	select {
	case j.signals <- s:
	default:
	}
}

// What ends a kernel without a fault.
var (
	errStopped = errors.New("it was stopped")
	errOld     = errors.New("it reached the end of its time (--max-age)")
	errIdle    = errors.New("nothing ran in it for so long (--idle-timeout)")
)

// NewKernel puts a booted box, whose interpreter waits for cells, behind a
// holder; nil for none.
func NewKernel(h *Holder, box *runner.Served, meta KernelMeta, opts KernelOptions) *Kernel {
	k := &Kernel{holder: h, box: box, meta: meta, opts: opts, wake: make(chan struct{}, 1), used: time.Now()}
	k.life, k.stop = context.WithCancelCause(context.Background())
	k.limits, k.reason = box.Limits()
	k.memory = box.Memory()
	return k
}

// Serve runs cells until something ends the kernel: the context, a stop, its age,
// or its box. Then nothing of the box is left, and the holder has given up its
// name; only a kernel that was stopped leaves nothing to be told of it.
func (k *Kernel) Serve(ctx context.Context) {
	serving, hangUp := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		k.holder.Serve(serving, k.handle)
	}()
	grave := k.Run(ctx)
	hangUp()
	<-served
	if grave.Stopped() {
		k.holder.Leave()
		return
	}
	k.holder.Bury(grave)
}

// Run is Serve without a holder: cells come from Do alone. It gives what ended the
// kernel.
func (k *Kernel) Run(ctx context.Context) *KernelGrave {
	defer k.stop(nil)
	defer context.AfterFunc(ctx, func() { k.stop(context.Cause(ctx)) })()
	grave := k.loop(k.life)
	k.bury(grave)
	k.box.Close()
	return grave
}

// bury refuses all that wait.
func (k *Kernel) bury(g *KernelGrave) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.over = g
	for _, j := range k.queue {
		j.dead = g
		close(j.done)
	}
	k.queue = nil
}

func (k *Kernel) grave(reason string) *KernelGrave {
	return &KernelGrave{At: time.Now().UTC(), Reason: reason, Workspace: k.meta.Workspace}
}

// loop runs one cell after the other, and looks at the box between them.
func (k *Kernel) loop(ctx context.Context) *KernelGrave {
	if k.opts.Age > 0 {
		t := time.AfterFunc(k.opts.Age, func() { k.stop(errOld) })
		defer t.Stop()
	}
	reason := func() *KernelGrave {
		err := context.Cause(ctx)
		if errors.Is(err, context.Canceled) {
			err = errStopped
		}
		return k.grave(err.Error())
	}
	var idle <-chan time.Time
	for {
		if k.opts.Idle > 0 {
			idle = time.After(k.opts.Idle)
		}
		watching, enough := context.WithCancel(context.Background())
		ended := make(chan *runner.Result, 1)
		go func() { ended <- k.box.Watch(watching) }()
		var why *KernelGrave
		select {
		case <-k.wake:
		case <-ctx.Done():
			why = reason()
		case <-idle:
			if !k.busy() {
				why = k.grave(errIdle.Error())
			}
		case <-k.box.Ended(): // Watch says how
		case res := <-ended:
			ended <- res
		}
		enough()
		if res := <-ended; res != nil {
			return k.fallen(res, 0)
		}
		if why != nil {
			return why
		}
		for j := k.next(); j != nil; j = k.next() {
			if k.run(ctx, j) {
				return k.buried()
			}
			if ctx.Err() != nil {
				return reason()
			}
		}
	}
}

// fallen says how the box ended by itself.
func (k *Kernel) fallen(res *runner.Result, cell int) *KernelGrave {
	g := k.grave("")
	g.Cell = cell
	switch {
	case res.Fault != nil && cell > 0:
		g.Fault, g.Reason = res.Fault.Type, res.Fault.Message
	case res.Fault != nil:
		g.Fault, g.Reason = res.Fault.Type, fmt.Sprintf("between two cells, %s (%s)", res.Fault.Message, res.Fault.Type)
	case res.Signal != nil:
		g.Reason = "its interpreter was ended by its own " + *res.Signal
	case res.ExitCode != nil:
		g.Reason = fmt.Sprintf("the code ended the interpreter (exit %d)", *res.ExitCode)
	default:
		g.Reason = "its box ended"
	}
	return g
}

func (k *Kernel) busy() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.queue) > 0
}

func (k *Kernel) next() *job {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.queue) == 0 {
		return nil
	}
	j := k.queue[0]
	k.queue = k.queue[1:]
	if j.hold == nil {
		k.cells++
	}
	k.running, j.number = j, k.cells
	return j
}

// buried is the grave that run found.
func (k *Kernel) buried() *KernelGrave {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.over
}

// run runs one cell. True means that the kernel is over because of it.
func (k *Kernel) run(ctx context.Context, j *job) bool {
	if j.hold != nil {
		k.keepStill(ctx, j)
		return false
	}
	name := path.Base(j.body.File)
	if j.body.File == "" {
		name = fmt.Sprintf("cell-%d", j.number)
	} else {
		// What reads the source of a program (__file__, pdb) finds it.
		k.box.AddCode(runner.CodeFile{Name: name, Content: j.body.Code})
	}
	cell := &runner.Cell{File: runner.CodeDir + "/" + name, Code: j.body.Code}
	for _, a := range j.body.Argv {
		cell.Args = append(cell.Args, string(a))
	}
	c := &runner.Call{
		Cell: cell, Stdout: j.files[0], Stderr: j.files[1],
		Timeout: j.timeout, Signals: j.signals, Sent: j.closeFiles,
	}
	if len(j.files) > 2 {
		c.Stdin = j.files[2]
	}
	stopped := context.AfterFunc(ctx, func() { j.signal(unix.SIGTERM) })
	res := k.box.Call(context.Background(), c)
	stopped()
	j.closeFiles()
	over := k.box.Over()
	if ctx.Err() != nil && over != nil {
		res.Notes = append(res.Notes, "the kernel was ended while this cell ran: "+context.Cause(ctx).Error())
	}
	k.mu.Lock()
	k.running, k.used = nil, time.Now()
	j.res, j.over = res, over != nil
	if over != nil && ctx.Err() == nil {
		// Before anybody can ask again.
		cell := j.number
		if over.Started == nil {
			cell = 0 // the box had ended before it
		}
		k.over = k.fallen(over, cell)
		if j.ended {
			k.over.Fault = ""
			k.over.Reason = "a caller ended it, because a cell did not heed interrupts"
			if j.lost {
				k.over.Reason = "the caller of a cell was gone, and the cell did not heed interrupts"
			}
		}
	}
	buried := k.over != nil
	k.mu.Unlock()
	close(j.done)
	if !buried {
		// Nobody waits for this.
		n := k.box.Memory()
		k.mu.Lock()
		k.memory = max(k.memory, n)
		k.mu.Unlock()
	}
	return buried
}

// holdTime is how long a kernel is kept still at most.
const holdTime = 10 * time.Minute

// keepStill stops all that runs in the box until the one who asked lets go.
func (k *Kernel) keepStill(ctx context.Context, j *job) {
	k.box.Pause()
	defer k.box.Resume()
	close(j.held)
	select {
	case <-j.hold:
	case <-ctx.Done():
	case <-k.box.Ended():
	case <-time.After(holdTime):
	}
	k.mu.Lock()
	k.running, k.used = nil, time.Now()
	k.mu.Unlock()
	close(j.done)
}

// hold keeps the kernel still for as long as a peer stays connected.
func (k *Kernel) hold(p *Peer, msgs <-chan incoming) {
	j := &job{hold: make(chan struct{}), held: make(chan struct{}), done: make(chan struct{}), signals: make(chan os.Signal, 1)}
	if _, refusal := k.enqueue(j, true); refusal != nil {
		p.Answer(refusal)
		return
	}
	defer close(j.hold)
	for {
		select {
		case <-j.held:
			p.Answer(k.status())
			for m := range msgs {
				closeAll(m.files)
			}
			return
		case <-j.done:
			p.Answer(cellEvent{Refused: k.buried().Sentence(k.meta.Name)})
			return
		case m, ok := <-msgs:
			if !ok {
				k.drop(j)
				return
			}
			closeAll(m.files)
		}
	}
}

// execRequest asks for a cell. Descriptors: body, stdout, stderr, and stdin when
// there is one.
type execRequest struct {
	Hello
	// TimeoutMS is null for that of the kernel, 0 for none.
	TimeoutMS *int64 `json:"timeout_ms"`
	// Wait for those who were first; else a busy kernel refuses.
	Wait bool `json:"wait"`
}

// signalRequest passes a signal on to the cell of the same connection.
type signalRequest struct {
	Hello
	Signal int `json:"signal"`
}

// Operations.
const (
	kernelExec   = "exec"
	kernelSignal = "signal"
	kernelStatus = "status"
	kernelStop   = "stop"
	kernelHold   = "hold"
)

// KernelStatus is how a kernel is doing.
type KernelStatus struct {
	State  string `json:"state"` // idle, busy or dead
	Cells  int    `json:"cells"`
	Queued int    `json:"queued"`
	IdleMS int64  `json:"idle_ms"`
	// Memory is the most it had had at the end of its last cell, in bytes; null
	// where that is not known.
	Memory *int64 `json:"memory"`
	// Ended is why it is dead, when it has not yet removed all of its box.
	Ended string `json:"ended"`
	// Limits are the caps of its box, and Reason why one is not in force.
	Limits runner.Limits `json:"limits"`
	Reason string        `json:"reason"`
	// Dir is the host directory that the box has as its workspace, Scratch what
	// /tmp of the box holds, in bytes.
	Dir     string `json:"dir"`
	Scratch int64  `json:"scratch"`
}

// incoming is one message of a peer.
type incoming struct {
	raw   json.RawMessage
	files []*os.File
}

// handle serves one connection: one cell after the other.
func (k *Kernel) handle(ctx context.Context, p *Peer) {
	done := make(chan struct{})
	defer close(done)
	msgs := make(chan incoming)
	go func() {
		defer close(msgs)
		for {
			var m incoming
			var err error
			if m.files, err = p.Receive(&m.raw); err != nil {
				return
			}
			select {
			case msgs <- m:
			case <-done:
				closeAll(m.files)
				return
			}
		}
	}()
	m := incoming{p.Message, p.Files}
	p.Files = nil
	for ok := true; ok; m, ok = <-msgs {
		var hello Hello
		if json.Unmarshal(m.raw, &hello) != nil {
			closeAll(m.files)
			return
		}
		if hello.Op == kernelExec {
			if !k.exec(p, m, msgs) {
				return
			}
			continue
		}
		closeAll(m.files)
		switch hello.Op {
		case kernelStatus:
			p.Answer(k.status())
		case kernelStop:
			k.stop(errStopped)
			return
		case kernelHold:
			k.hold(p, msgs)
			return
		case kernelSignal: // its cell is over
		default:
			p.Refuse("it is of a version that knows nothing of this request; stop it and start it again")
			return
		}
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func (k *Kernel) status() *KernelStatus {
	s := &KernelStatus{Limits: k.limits, Reason: k.reason, Dir: k.box.Workspace(), Scratch: k.box.Scratch()}
	k.mu.Lock()
	defer k.mu.Unlock()
	if n := k.memory; n > 0 {
		s.Memory = &n
	}
	s.State, s.Cells, s.Queued = "idle", k.cells, len(k.queue)
	switch {
	case k.over != nil:
		s.State, s.Ended = "dead", k.over.Reason
	case k.running != nil:
		s.State = "busy"
	default:
		s.IdleMS = time.Since(k.used).Milliseconds()
	}
	return s
}

// cellEvent is what a client hears of its cell.
type cellEvent struct {
	// Ahead, when not null: it waits for so many others.
	Ahead *int `json:"ahead,omitempty"`
	// Result, or a descriptor with it when it is long; Over: the kernel ended.
	Done   bool            `json:"done,omitempty"`
	Number int             `json:"number,omitempty"`
	Over   bool            `json:"over,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	// Refused: it was not run; Grave: because the kernel is dead; Busy: because
	// others were first; Interrupted: because it was, while it waited for them.
	Refused     string       `json:"refused,omitempty"`
	Grave       *KernelGrave `json:"grave,omitempty"`
	Busy        bool         `json:"busy,omitempty"`
	Interrupted bool         `json:"interrupted,omitempty"`
}

// inline is the longest result that goes along in the packet.
const inline = 32 << 10

// exec runs one cell for a peer; false ends the connection.
func (k *Kernel) exec(p *Peer, m incoming, msgs <-chan incoming) bool {
	j, refusal := k.jobFor(m)
	if refusal != nil {
		closeAll(m.files)
		return p.Answer(refusal) == nil
	}
	defer j.closeFiles()
	var how execRequest
	json.Unmarshal(m.raw, &how)
	ahead, refusal := k.enqueue(j, how.Wait)
	if refusal != nil {
		return p.Answer(refusal) == nil
	}
	if ahead > 0 && p.Answer(cellEvent{Ahead: &ahead}) != nil {
		k.abandon(j)
		return false
	}
	gone := false
	for {
		select {
		case <-j.done:
			return !gone && k.answer(p, j) && !j.over
		case next, ok := <-msgs:
			if !ok {
				if k.abandon(j) {
					return false
				}
				gone, msgs = true, nil
				continue
			}
			closeAll(next.files)
			var s signalRequest
			if json.Unmarshal(next.raw, &s) != nil || s.Op != kernelSignal {
				k.abandon(j) // a second cell before the first has ended
				return false
			}
			if n := unix.Signal(s.Signal); n == unix.SIGINT || n == unix.SIGTERM {
				if k.drop(j) {
					return p.Answer(cellEvent{Refused: ErrInterrupted.Error(), Interrupted: true}) == nil
				}
				k.pass(j, n)
			}
		}
	}
}

// pass passes a signal on if the cell is running.
func (k *Kernel) pass(j *job, n unix.Signal) {
	k.mu.Lock()
	runs := k.running == j
	j.ended = j.ended || runs && n != unix.SIGINT
	k.mu.Unlock()
	if runs {
		j.signal(n)
	}
}

// drop takes a cell out of the queue; false when it is not in it any more.
func (k *Kernel) drop(j *job) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.Index(k.queue, j)
	if i < 0 {
		return false
	}
	k.queue = slices.Delete(k.queue, i, i+1)
	return true
}

// abandon gives up a cell whose caller is gone. One that still waits is dropped
// (true). One that runs is interrupted, and if it does not end then, the kernel
// is ended: nobody shall have to wait for it for ever.
func (k *Kernel) abandon(j *job) (dropped bool) {
	if k.drop(j) {
		return true
	}
	k.mu.Lock()
	runs := k.running == j
	j.lost = true
	k.mu.Unlock()
	if !runs {
		return false // it has just ended
	}
	j.signal(unix.SIGINT)
	time.AfterFunc(lostTime, func() {
		select {
		case <-j.done:
		default:
			k.pass(j, unix.SIGTERM)
			k.pass(j, unix.SIGTERM)
		}
	})
	return false
}

// doGrace is what a cell may take once the context of Do is done, before the
// kernel is ended for it.
const doGrace = time.Second

// Do runs one cell for this process, after those that were first. The end of the
// context interrupts it, and ends the kernel when it does not heed that, or at once
// for another cause than a mere cancellation. The error is a *DeadKernelError, or ErrInterrupted for a cell that did not run.
func (k *Kernel) Do(ctx context.Context, cell *Cell) (*Outcome, error) {
	j := &job{
		body: agent.Body{File: cell.File, Code: cell.Code}, signals: make(chan os.Signal, 8), done: make(chan struct{}), timeout: k.opts.Timeout,
		files: []*os.File{cell.Stdout, cell.Stderr}, sent: cell.Sent,
	}
	if cell.Stdin != nil {
		j.files = append(j.files, cell.Stdin)
	}
	for _, a := range cell.Args {
		j.body.Argv = append(j.body.Argv, []byte(a))
	}
	if cell.Timeout != nil {
		j.timeout = *cell.Timeout
	}
	dead := func(g *KernelGrave) error { return &DeadKernelError{Name: k.meta.Name, Meta: k.meta, Grave: *g} }
	_, refusal := k.enqueue(j, true)
	switch {
	case refusal != nil && refusal.Grave != nil:
		return nil, dead(refusal.Grave)
	case refusal != nil:
		return nil, &BusyError{refusal.Refused}
	}
	cancelled := ctx.Done()
	var force <-chan time.Time
	for {
		select {
		case <-j.done:
			if j.dead != nil {
				return nil, dead(j.dead)
			}
			return &Outcome{j.res, j.number, j.over}, nil
		case <-cancelled:
			if k.drop(j) {
				return nil, ErrInterrupted
			}
			cancelled, force = nil, time.After(doGrace)
			if !errors.Is(context.Cause(ctx), context.Canceled) {
				force = time.After(0)
			}
			k.pass(j, unix.SIGINT)
		case <-force:
			k.pass(j, unix.SIGTERM)
			k.pass(j, unix.SIGTERM)
			force = nil
		}
	}
}

// Over says what ended the kernel, nil while it lives.
func (k *Kernel) Over() *KernelGrave { return k.buried() }

// jobFor reads a request.
func (k *Kernel) jobFor(m incoming) (*job, *cellEvent) {
	var req execRequest
	if json.Unmarshal(m.raw, &req) != nil || len(m.files) < 3 || len(m.files) > 4 {
		return nil, &cellEvent{Refused: "the request for a cell is not whole"}
	}
	j := &job{signals: make(chan os.Signal, 8), done: make(chan struct{}), timeout: k.opts.Timeout}
	if err := agent.Unpack(m.files[0], &j.body); err != nil {
		return nil, &cellEvent{Refused: err.Error()}
	}
	if n := j.body.File; strings.ContainsAny(n, "/\x00") || n == "." || n == ".." || len(n) > 255 {
		return nil, &cellEvent{Refused: "the name of the file is none that can be used in the box"}
	}
	if t := req.TimeoutMS; t != nil {
		if *t < 0 || *t > int64(1<<53) {
			return nil, &cellEvent{Refused: "the timeout is none"}
		}
		j.timeout = time.Duration(*t) * time.Millisecond
	}
	m.files[0].Close()
	j.files = m.files[1:]
	return j, nil
}

// enqueue gives the number of those that were first.
func (k *Kernel) enqueue(j *job, wait bool) (int, *cellEvent) {
	k.mu.Lock()
	defer k.mu.Unlock()
	ahead := len(k.queue)
	if k.running != nil {
		ahead++
	}
	switch {
	case k.over != nil:
		return 0, &cellEvent{Refused: k.over.Sentence(k.meta.Name), Grave: k.over}
	case ahead > 0 && !wait:
		return 0, &cellEvent{Refused: fmt.Sprintf("kernel %s is busy with another cell", k.meta.Name), Busy: true}
	case ahead > mostQueued:
		return 0, &cellEvent{Refused: fmt.Sprintf("kernel %s is busy, and %d more wait for it", k.meta.Name, len(k.queue)), Busy: true}
	}
	k.queue = append(k.queue, j)
	select {
	case k.wake <- struct{}{}:
	default:
	}
	return ahead, nil
}

// answer sends what became of a cell.
func (k *Kernel) answer(p *Peer, j *job) bool {
	if j.dead != nil {
		return p.Answer(cellEvent{Refused: j.dead.Sentence(k.meta.Name), Grave: j.dead}) == nil
	}
	e := cellEvent{Done: true, Number: j.number, Over: j.over}
	doc, err := encodeResult(j.res)
	if err != nil {
		return p.Answer(cellEvent{Refused: fmt.Sprintf("the result cannot be written: %v", err)}) == nil
	}
	if len(doc) <= inline {
		e.Result = doc
		return p.Answer(e) == nil
	}
	f, err := agent.Seal(doc)
	if err != nil {
		return p.Answer(cellEvent{Refused: fmt.Sprintf("no memory for the result: %v", err)}) == nil
	}
	defer f.Close()
	return p.Answer(e, f) == nil
}

// encodeResult is for a Result without streams, which went to the client itself.
func encodeResult(res *runner.Result) ([]byte, error) { return json.Marshal(runner.NewAnswer(res)) }

func decodeResult(doc []byte) (*runner.Result, error) {
	var a runner.Answer
	if err := json.Unmarshal(doc, &a); err != nil {
		return nil, err
	}
	if a.Result == nil || a.Result.Schema != runner.Schema {
		return nil, errors.New("the answer of the kernel cannot be read")
	}
	return a.Take(), nil
}

// checkKernel refuses a name that none can have.
func checkKernel(name string) error { return validate.In("NAME", validate.Name(name)) }
