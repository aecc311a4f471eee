package pool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
	"github.com/kern-sbx/kern-sbx/pkg/interp"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Boxes is the kind of the holders that keep boxes ready. Their name is the key
// of their boxes (runner.Spec.PoolKey).
const Boxes = "boxes"

// Operations of a pool of boxes.
const (
	opClaim  = "claim"
	opStatus = "status"
	opStop   = "stop"
	// From the one who claimed, while the call runs.
	opSignal = "signal"
	opKill   = "kill"
	opGone   = "gone" // nobody reads standard output any more
)

// BoxesMeta is what others may know of a pool without speaking to it.
type BoxesMeta struct {
	Key     string    `json:"key"`
	Image   string    `json:"image"`
	Want    int       `json:"want"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
}

// BoxesStatus is what a pool says of itself.
type BoxesStatus struct {
	BoxesMeta
	// State is "filling", "ready" (all wanted boxes wait) or "failed" (it gave up).
	State string `json:"state"`
	Ready int    `json:"ready"`
	Busy  int    `json:"busy"`
	// Served counts the calls done, Missed those that found no box ready, Failed
	// the boxes that did not come up.
	Served int64 `json:"served"`
	Missed int64 `json:"missed"`
	Failed int64 `json:"failed"`
	// LastError is why the last one did not, "" when the last one did.
	LastError string `json:"last_error"`
	// OldestSeconds is the age of the oldest box that waits.
	OldestSeconds int64 `json:"oldest_seconds"`
	// StartMS is the median time of a start of a box, ClaimMS of a claim until its
	// command ran, in milliseconds; 0 when there was none.
	StartMS float64 `json:"start_ms"`
	ClaimMS float64 `json:"claim_ms"`
}

// BoxesOptions say how a pool keeps its boxes.
type BoxesOptions struct {
	Want int
	// TTL is how old a box that waits may become, IdleTimeout how long the pool
	// lives without a claim; 0 for no limit.
	TTL, IdleTimeout time.Duration
	// Boot starts one box. The context ends with the pool.
	Boot func(context.Context) (*runner.Served, error)
}

// Times of a pool.
const (
	// mostFailures in a row make a pool give up; before that it waits longer and
	// longer, from firstPause on.
	mostFailures = 5
	firstPause   = 500 * time.Millisecond
	// yieldTime is how long a new box waits for calls that run: they are why it is
	// there, and have the machine first.
	yieldTime = 250 * time.Millisecond
	// settleTime is how long after a call the next start waits while there are other
	// boxes: whoever called still reads the answer, prints it and ends.
	settleTime = 20 * time.Millisecond
	tidyEvery  = time.Second
)

// waiting is one box that waits.
type waiting struct {
	box *runner.Served
	at  time.Time
}

// boxes is a pool at work.
type boxes struct {
	o    BoxesOptions
	meta BoxesMeta
	life context.Context
	stop context.CancelFunc
	// filled is closed when nothing is started any more.
	filled chan struct{}

	mu       sync.Mutex
	changed  chan struct{} // closed, and made anew, at each change
	ready    []waiting
	status   BoxesStatus
	closing  sync.WaitGroup
	lastUsed time.Time
	starts   []time.Duration
	claims   []time.Duration
	retryAt  time.Time
	fails    int // in a row
}

// ServeBoxes keeps boxes ready, and has calls done in them, until the context is
// done, it is told to stop, or nobody has asked for idle time. first is called
// once the first box is ready, or with why there is none; all when every one is.
func (h *Holder) ServeBoxes(ctx context.Context, meta BoxesMeta, o BoxesOptions, first func(error), all func()) {
	b := newBoxes(ctx, meta, o)
	b.start(first, all)
	h.Serve(b.life, b.handle)
	b.end()
}

func newBoxes(ctx context.Context, meta BoxesMeta, o BoxesOptions) *boxes {
	b := &boxes{o: o, meta: meta, changed: make(chan struct{}), lastUsed: time.Now(), filled: make(chan struct{})}
	b.status.State = "filling"
	b.life, b.stop = context.WithCancel(ctx)
	return b
}

func (b *boxes) start(first func(error), all func()) {
	go func() {
		defer close(b.filled)
		b.fill(b.life, first, all)
	}()
}

// end takes all boxes down that wait, and returns when the last one is gone.
func (b *boxes) end() {
	b.stop()
	<-b.filled
	b.mu.Lock()
	rest := b.ready
	b.ready = nil
	b.mu.Unlock()
	for _, w := range rest {
		b.discard(w.box)
	}
	b.closing.Wait()
}

func (b *boxes) change(f func()) {
	b.mu.Lock()
	f()
	close(b.changed)
	b.changed = make(chan struct{})
	b.mu.Unlock()
}

// discard takes a box down, at nobody's expense.
func (b *boxes) discard(box *runner.Served) { b.closing.Go(box.Close) }

// fill keeps as many boxes ready as are wanted, one start at a time.
func (b *boxes) fill(ctx context.Context, first func(error), all func()) {
	report := func(err error) {
		if first != nil {
			first(err)
			first = nil
		}
	}
	for ctx.Err() == nil {
		b.tidy()
		b.mu.Lock()
		missing, busy, pause := b.o.Want-len(b.ready), b.status.Busy, time.Until(b.retryAt)
		changed, gaveUp := b.changed, b.status.State == "failed"
		var settle time.Duration
		if len(b.ready) > 0 && b.status.Served > 0 {
			settle = settleTime - time.Since(b.lastUsed)
		}
		b.mu.Unlock()
		wait := tidyEvery
		switch {
		case gaveUp:
		case missing <= 0:
			if all != nil {
				all()
				all = nil
			}
		case pause > 0:
			wait = min(wait, pause)
			changed = nil
		case settle > 0:
			wait = settle
		case busy > 0 && !b.quiet(ctx):
			fallthrough
		default:
			begun := time.Now()
			box, err := b.o.Boot(ctx)
			if ctx.Err() != nil {
				if box != nil {
					b.discard(box)
				}
				return
			}
			b.change(func() { b.booted(box, err, begun) })
			report(err)
			continue
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(wait):
		}
	}
}

// quiet waits until no call runs, for yieldTime at most.
func (b *boxes) quiet(ctx context.Context) bool {
	limit := time.After(yieldTime)
	for {
		b.mu.Lock()
		busy, changed := b.status.Busy, b.changed
		b.mu.Unlock()
		if busy == 0 {
			return true
		}
		select {
		case <-changed:
		case <-limit:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

func (b *boxes) booted(box *runner.Served, err error, begun time.Time) {
	if err != nil {
		b.fails++
		b.status.Failed++
		b.status.LastError = term.VisibleLine(err.Error())
		b.retryAt = time.Now().Add(firstPause << (b.fails - 1))
		if b.fails >= mostFailures {
			b.status.State = "failed"
		}
		return
	}
	b.fails, b.status.LastError, b.retryAt = 0, "", time.Time{}
	b.ready = append(b.ready, waiting{box, time.Now()})
	b.starts = append(b.starts, time.Since(begun))
	b.starts = b.starts[max(0, len(b.starts)-50):]
	if len(b.ready) >= b.o.Want {
		b.status.State = "ready"
	}
}

// tidy discards boxes that are too old or have ended, and ends a pool that
// nobody uses.
func (b *boxes) tidy() {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := b.ready[:0]
	for _, w := range b.ready {
		if ended(w.box) || b.o.TTL > 0 && time.Since(w.at) > b.o.TTL {
			b.discard(w.box)
		} else {
			kept = append(kept, w)
		}
	}
	b.ready = kept
	if len(kept) < b.o.Want && b.status.State == "ready" {
		b.status.State = "filling"
	}
	if b.o.IdleTimeout > 0 && b.status.Busy == 0 && time.Since(b.lastUsed) > b.o.IdleTimeout {
		b.stop()
	}
}

func ended(box *runner.Served) bool {
	select {
	case <-box.Ended():
		return true
	default:
		return false
	}
}

// take gives the box that has waited longest, nil for none within wait.
func (b *boxes) take(ctx context.Context, wait time.Duration) *runner.Served {
	limit := time.NewTimer(wait)
	defer limit.Stop()
	for {
		box := b.takeNow()
		if box != nil {
			return box
		}
		b.mu.Lock()
		changed, gaveUp := b.changed, b.status.State == "failed"
		b.mu.Unlock()
		if gaveUp || wait <= 0 {
			break
		}
		select {
		case <-changed:
			continue
		case <-limit.C:
		case <-ctx.Done():
		}
		break
	}
	b.change(func() { b.status.Missed++ })
	return nil
}

func (b *boxes) takeNow() *runner.Served {
	var box *runner.Served
	take := func() {
		b.lastUsed = time.Now()
		for len(b.ready) > 0 && box == nil {
			w := b.ready[0]
			b.ready = b.ready[1:]
			if ended(w.box) {
				b.discard(w.box)
			} else {
				box = w.box
			}
		}
		if box == nil {
			return
		}
		b.status.Busy++
		if b.status.State == "ready" {
			b.status.State = "filling"
		}
	}
	b.mu.Lock()
	some := len(b.ready) > 0
	b.mu.Unlock()
	if some {
		b.change(take)
	}
	return box
}

func (b *boxes) handle(ctx context.Context, p *Peer) {
	switch p.Hello.Op {
	case opClaim:
		b.claim(ctx, p)
	case opStatus:
		p.Answer(b.now())
	case opStop:
		p.Answer(struct{}{})
		b.stop()
	default:
		p.Refuse("a pool of boxes does not know " + term.VisibleLine(p.Hello.Op))
	}
}

func (b *boxes) now() BoxesStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.status
	s.BoxesMeta, s.Ready = b.meta, len(b.ready)
	if len(b.ready) > 0 {
		s.OldestSeconds = int64(time.Since(b.ready[0].at).Seconds())
	}
	s.StartMS, s.ClaimMS = median(b.starts), median(b.claims)
	return s
}

// claimBody is the long part of a claim, in a sealed memfd.
type claimBody struct {
	Argv  [][]byte          `json:"argv"`
	Files []runner.CodeFile `json:"files"`
	Cell  *runner.Cell      `json:"cell"`
	// CellFile is the number, from 1, of the file that holds the code of the cell,
	// which is then not sent a second time; 0 for none.
	CellFile int           `json:"cell_file"`
	Env      [][2][]byte   `json:"env"`
	Workdir  string        `json:"workdir"`
	Timeout  time.Duration `json:"timeout"`
	Stdin    bool          `json:"stdin"`
	Track    bool          `json:"track"`
	Ignore   []string      `json:"ignore"`
	// Wait is how long to wait for a box when none is ready.
	Wait time.Duration `json:"wait"`
}

// order is what the one who claimed says while its call runs.
type order struct {
	Op     string `json:"op"`
	Signal int    `json:"signal,omitempty"`
}

// taken says that a box was found; the streams belong to it now.
type taken struct {
	Taken bool `json:"taken"`
}

// claim has one call done. The box serves nobody after it.
func (b *boxes) claim(ctx context.Context, p *Peer) {
	begun := time.Now()
	var body claimBody
	if len(p.Files) < 3 || agent.Unpack(p.Files[0], &body) != nil || body.Stdin != (len(p.Files) == 4) {
		p.Refuse("a claim that cannot be read")
		return
	}
	if i := body.CellFile; i > 0 && i <= len(body.Files) && body.Cell != nil {
		body.Cell.Code = body.Files[i-1].Content
	}
	box := b.take(ctx, body.Wait)
	if box == nil {
		p.Answer(taken{false})
		return
	}
	defer func() {
		b.discard(box)
		b.change(func() { b.status.Busy--; b.status.Served++; b.lastUsed = time.Now() })
	}()
	if p.Answer(taken{true}) != nil {
		return
	}
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	signals := make(chan os.Signal, 4)
	go p.orders(signals, cancel)
	c := &runner.Call{
		Track: body.Track, TrackIgnore: body.Ignore,
		Files: body.Files, Cell: body.Cell, Workdir: body.Workdir, Timeout: body.Timeout,
		Stdout: p.Files[1], Stderr: p.Files[2], Signals: signals,
		Started: func() { b.change(func() { b.claims = append(b.claims[max(0, len(b.claims)-49):], time.Since(begun)) }) },
	}
	if body.Stdin {
		c.Stdin = p.Files[3]
	}
	for _, a := range body.Argv {
		c.Argv = append(c.Argv, string(a))
	}
	for _, kv := range body.Env {
		c.Env = append(c.Env, validate.KV{Key: string(kv[0]), Value: string(kv[1])})
	}
	suit(box, c)
	res := box.Call(inner, c)
	p.CloseFiles()
	if ctx.Err() != nil && res.Fault != nil && res.Fault.Type == runner.Killed {
		// Nobody sent the caller a signal.
		res.Status, res.Fault.Message = 137, "the pool of its box was stopped while it ran"
	}
	if f, err := agent.Pack(runner.NewAnswer(res)); err == nil {
		p.Answer(struct{}{}, f)
		f.Close()
	}
}

// suit leaves the interpreter that waits in a box out of a call whose variables it
// cannot take any more.
func suit(box *runner.Served, c *runner.Call) {
	var more []validate.KV
	for _, e := range c.Env {
		if !slices.Contains(box.BaseEnv(), e) {
			more = append(more, e)
		}
	}
	if c.Cell != nil && !interp.WarmEnv(more) {
		c.Cell = nil
	}
}

// orders passes on what the one who claimed says, until it is gone. Then its box
// has nobody to work for.
func (p *Peer) orders(signals chan<- os.Signal, cancel context.CancelCauseFunc) {
	for {
		var o order
		files, err := p.Receive(&o)
		closeAll(files)
		switch {
		case err != nil || o.Op == opKill:
			cancel(errors.New("the caller is gone"))
			return
		case o.Op == opGone:
			cancel(&runner.OutputGone{})
			return
		case o.Op == opSignal && o.Signal > 0 && o.Signal < 65:
			select {
			case signals <- unix.Signal(o.Signal):
			default:
			}
		}
	}
}

// Claimer finds boxes of the pools of a place; it is a runner.Claimer.
type Claimer struct{ Place *Place }

// Claim is that of runner.Claimer.
func (l *Claimer) Claim(ctx context.Context, key string, c *runner.Call) (*runner.Result, error) {
	none := func(why error) (*runner.Result, error) { return nil, fmt.Errorf("%w: %w", runner.ErrNotPooled, why) }
	conn, err := l.Place.Dial(Boxes, key)
	var nobody *NoneError
	if errors.As(err, &nobody) {
		return none(errors.New("no pool keeps such boxes"))
	}
	if err != nil {
		return none(err)
	}
	defer conn.Close()
	body := claimBody{Files: c.Files, Cell: c.Cell, Workdir: c.Workdir, Timeout: c.Timeout, Stdin: c.Stdin != nil, Wait: c.Wait, Track: c.Track, Ignore: c.TrackIgnore}
	if c.Cell != nil {
		body.CellFile = 1 + slices.IndexFunc(c.Files, func(f runner.CodeFile) bool { return bytes.Equal(f.Content, c.Cell.Code) })
		if body.CellFile > 0 {
			bare := *c.Cell
			bare.Code, body.Cell = nil, &bare
		}
	}
	for _, a := range c.Argv {
		body.Argv = append(body.Argv, []byte(a))
	}
	for _, kv := range c.Env {
		body.Env = append(body.Env, [2][]byte{[]byte(kv.Key), []byte(kv.Value)})
	}
	f, err := agent.Pack(body)
	if err != nil {
		return none(err)
	}
	defer f.Close()
	files := []*os.File{f, c.Stdout, c.Stderr}
	if c.Stdin != nil {
		files = append(files, c.Stdin)
	}
	if err := conn.Send(Hello{Version, opClaim}, files...); err != nil {
		return none(err)
	}
	conn.File().SetReadDeadline(time.Now().Add(firstTime + c.Wait))
	var got struct {
		taken
		Refusal
	}
	// A holder that does not answer must not keep a caller who wants to end.
	heard := make(chan error, 1)
	go func() {
		files, err := conn.Receive(&got)
		closeAll(files)
		heard <- err
	}()
	var stopped *runner.Result
	for waits := true; waits; {
		select {
		case err = <-heard:
			waits = false
		case sig := <-c.Signals:
			n, ok := sig.(unix.Signal)
			if !ok || stopped != nil {
				continue
			}
			stopped = runner.Stopped(n)
			conn.File().SetReadDeadline(time.Now())
		case <-ctx.Done():
			return runner.Stopped(unix.SIGINT), nil
		case <-c.Kill:
			return runner.Lost("ended at the terminal, by ^] ^] ^]"), nil
		}
	}
	if stopped != nil {
		return stopped, nil
	}
	if err != nil {
		return none(err)
	}
	switch {
	case got.Refused != "":
		return none(errors.New(term.VisibleLine(got.Refused)))
	case !got.Taken:
		return none(errors.New("all its boxes are taken; the next are being made"))
	}
	// From here on something may have run: no other box is tried.
	conn.File().SetReadDeadline(time.Time{})
	if c.Timeout > 0 {
		conn.File().SetReadDeadline(time.Now().Add(c.Timeout + lateWord))
	}
	c.Sent()
	return wait(ctx, conn, c.Signals, c.Kill)
}

// lastWord is how long a holder may take for its answer once the end was asked
// for.
const lastWord = 3 * time.Second

// lateWord is how long after the deadline of a call a holder may still take: it
// ends the box, and reads what there is of results. One that is stopped never
// answers.
const lateWord = 5 * time.Second

// wait waits for the answer to a call, and passes on what the caller wants.
func wait(ctx context.Context, conn *agent.Conn, signals <-chan os.Signal, kill <-chan struct{}) (*runner.Result, error) {
	type answered struct {
		res *runner.Result
		err error
	}
	done := make(chan answered, 1)
	go func() {
		res, err := receiveAnswer(conn)
		done <- answered{res, err}
	}()
	gone := ctx.Done()
	sent := 0
	for {
		select {
		case a := <-done:
			if errors.Is(a.err, os.ErrDeadlineExceeded) {
				return runner.Lost("the background process that holds the box does not answer; it ends the box when it goes on"), nil
			}
			if a.err != nil {
				return runner.Lost("the background process that held the box ended, and its box with it"), nil
			}
			return a.res, nil
		case sig := <-signals:
			if n, ok := sig.(unix.Signal); ok {
				conn.Send(order{Op: opSignal, Signal: int(n)})
				if sent++; sent == 2 { // which ends the box
					conn.File().SetReadDeadline(time.Now().Add(lastWord))
				}
			}
		case <-kill:
			kill = nil
			conn.Send(order{Op: opKill})
			conn.File().SetReadDeadline(time.Now().Add(lastWord))
		case <-gone:
			gone = nil
			op := opKill
			var closed *runner.OutputGone
			if errors.As(context.Cause(ctx), &closed) {
				op = opGone
			}
			conn.Send(order{Op: op})
			conn.File().SetReadDeadline(time.Now().Add(lastWord))
		}
	}
}

// receiveAnswer takes the Result of a call.
func receiveAnswer(conn *agent.Conn) (*runner.Result, error) {
	var said json.RawMessage
	files, err := conn.Receive(&said)
	if err != nil {
		return nil, err
	}
	defer closeAll(files)
	if len(files) != 1 {
		return nil, errors.New("an answer without a result")
	}
	var a runner.Answer
	if err := agent.Unpack(files[0], &a); err != nil {
		return nil, err
	}
	return a.Take(), nil
}

// BoxesNow asks a pool how it is.
func (p *Place) BoxesNow(key string) (BoxesStatus, error) {
	var s struct {
		BoxesStatus
		Refusal
	}
	conn, err := p.Dial(Boxes, key)
	if err != nil {
		return BoxesStatus{}, err
	}
	defer conn.Close()
	conn.File().SetDeadline(time.Now().Add(firstTime))
	if err := conn.Send(Hello{Version, opStatus}); err != nil {
		return BoxesStatus{}, err
	}
	if _, err := conn.Receive(&s); err != nil {
		return BoxesStatus{}, err
	}
	if s.Refused != "" {
		return BoxesStatus{}, errors.New(term.VisibleLine(s.Refused))
	}
	return s.BoxesStatus, nil
}

// stopTime is how long a pool may take to end its boxes.
const stopTime = 20 * time.Second

// StopBoxes ends a pool and returns when nothing of it is left.
func (p *Place) StopBoxes(key string) error {
	conn, err := p.Dial(Boxes, key)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.File().SetDeadline(time.Now().Add(firstTime))
	if err := conn.Send(Hello{Version, opStop}); err != nil {
		return err
	}
	conn.Receive(&struct{}{})
	for end := time.Now().Add(stopTime); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if e, err := p.Look(Boxes, key); err != nil || !e.Alive {
			return nil
		}
	}
	return errors.New("the pool " + key + " does not end")
}

// median is in milliseconds, 0 of nothing.
func median(all []time.Duration) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return float64(sorted[len(sorted)/2].Microseconds()) / 1000
}

// FindClaimer gives a Claimer where there may be a pool, and nil where there has
// never been one since the machine was started: a run pays a look at one path.
func FindClaimer(env func(string) string, dirs runner.Dirs) *Claimer {
	for _, base := range []string{filepath.Join(env("XDG_RUNTIME_DIR"), "kern-sbx"), dirs.Private} {
		if !filepath.IsAbs(base) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(base, Boxes)); err == nil {
			if p, err := Open(env, dirs); err == nil {
				return &Claimer{p}
			}
		}
	}
	return nil
}
