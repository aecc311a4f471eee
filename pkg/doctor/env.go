package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
	"github.com/kern-sbx/kern-sbx/pkg/config"
	"github.com/kern-sbx/kern-sbx/pkg/kernbin"
	"github.com/kern-sbx/kern-sbx/pkg/pool"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Env is what the checks look at. Everything that touches the machine goes through
// it; a nil function is one that the caller does not have, and what needs it is
// skipped.
type Env struct {
	// Root is put before the path of every file of the host that is read; "" on a
	// real machine.
	Root   string
	Getenv func(string) string
	UID    int
	Dirs   runner.Dirs

	// Kern is nil where there is none; KernErr says why then.
	Kern    *kernbin.Kern
	KernErr error
	// KernDoctor gives what `kern doctor` prints.
	KernDoctor func(context.Context, *kernbin.Kern) ([]byte, error)
	// TryUserNS makes a user namespace, and says what kept it from that.
	TryUserNS func(context.Context, *kernbin.Kern) error

	// Room looks at the file system of a directory, or of the nearest one above it
	// that is there.
	Room func(path string) (Room, error)

	// Config resolves the configuration.
	Config func() (*config.Config, error)
	// Holders lists the background processes of this user, alive and dead.
	Holders func() []*pool.Entry

	// Spec is the box that the flags describe, without a command; nil when they
	// were refused, for which SpecErr is the reason.
	Spec    *runner.Spec
	SpecErr error
	// Given says where each setting comes from that is not a default, by the name
	// of its flag.
	Given map[string]string
	// Start runs one box to its end.
	Start func(context.Context, *runner.Spec) (*runner.Result, error)
	// Listen opens a port on the host's loopback and an abstract unix socket, for
	// boxes to try whether they reach them.
	Listen func() (*Listener, error)

	// Deep uses the user's own numbers to break promises, and measures what takes
	// seconds.
	Deep bool

	wanted   bool // some check looks at a box
	boxes    map[boxKind]*box
	listener *Listener
	turn     chan struct{} // one token for each box that may run at the same time
	running  sync.WaitGroup
}

// boxKind names the few boxes that all checks share.
type boxKind int

const (
	noBox boxKind = iota
	// probeBox has exactly the user's settings and answers all questions.
	probeBox
	// smallBox is to run into its caps on processes, /tmp and output.
	smallBox
	// memoryBox is to run into its cap on memory.
	memoryBox
	// lateBox is to run into its deadline.
	lateBox
)

// box is one of them, and what came of it.
type box struct {
	spec  *runner.Spec
	ended chan struct{}
	res   *runner.Result
	err   error
	facts Facts
	whole bool
	took  time.Duration
}

// lowMemory is how much has to be available for boxes to be broken at the same
// time (rule S13).
const lowMemory = 2 << 30

// begin starts the boxes that the checks need.
func (e *Env) begin(ctx context.Context, checks []Check) {
	e.boxes = map[boxKind]*box{}
	n := 3
	if free := e.memInfo("MemAvailable"); free > 0 && free < lowMemory {
		n = 1
	}
	e.turn = make(chan struct{}, n)
	e.wanted = NeedsBox(checks)
	if !e.wanted || e.missing() != "" {
		return
	}
	if e.Listen != nil {
		e.listener, _ = e.Listen()
	}
	for _, c := range checks {
		if c.needs == noBox || e.boxes[c.needs] != nil || c.deep && !e.Deep {
			continue
		}
		b := &box{ended: make(chan struct{}), spec: e.specOf(c.needs)}
		e.boxes[c.needs] = b
		if b.spec == nil {
			close(b.ended)
			continue
		}
		e.running.Go(func() {
			defer close(b.ended)
			defer func() {
				if p := recover(); p != nil {
					b.err = fmt.Errorf("starting a box failed: %v", p)
				}
			}()
			e.turn <- struct{}{}
			defer func() { <-e.turn }()
			e.runBox(ctx, b)
		})
	}
}

// runBox runs a box and reads what its probe says.
func (e *Env) runBox(ctx context.Context, b *box) {
	begin := time.Now()
	limit := b.spec.StartTimeout + b.spec.Timeout + CanaryTime
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	b.res, b.err = e.Start(ctx, b.spec)
	b.took = time.Since(begin)
	if b.err == nil && b.res != nil && b.res.Stdout != nil {
		b.facts, b.whole, _ = parseFacts(b.res.Stdout.Head(maxProbe + 1))
	}
}

// endTime is how long boxes are waited for that were told to end.
const endTime = 20 * time.Second

// end waits until no box is left, however early the checks were given up.
func (e *Env) end() {
	gone := make(chan struct{})
	go func() { e.running.Wait(); close(gone) }()
	select {
	case <-gone:
	case <-time.After(endTime):
	}
	if e.listener != nil {
		e.listener.Close()
		e.listener = nil
	}
}

// await waits for a box to end, and says why there was none.
func (e *Env) await(ctx context.Context, kind boxKind) (why string) {
	if why := e.missing(); why != "" {
		return why
	}
	select {
	case <-e.boxes[kind].ended:
	case <-ctx.Done():
		return "ended before there was an answer"
	}
	return ""
}

// missing is why no box can be started at all; "" when one can be tried.
func (e *Env) missing() string {
	switch {
	case e.SpecErr != nil:
		return e.SpecErr.Error()
	case e.KernErr != nil:
		return e.KernErr.Error()
	case e.Kern == nil:
		return "there is no kern"
	case e.Spec == nil || e.Start == nil:
		return "none was asked for"
	}
	return ""
}

// NoBox says, once Run has returned, why a box was wanted and none started; ""
// when one did, or none was wanted.
func (e *Env) NoBox() string {
	switch {
	case e.SpecErr != nil: // what was written is refused in any case
		return e.SpecErr.Error()
	case !e.wanted:
		return ""
	case e.missing() != "":
		return e.missing()
	}
	b := e.boxes[probeBox]
	if b == nil {
		// Only the small boxes were wanted.
		for _, k := range []boxKind{smallBox, memoryBox, lateBox} {
			if o := e.boxes[k]; o != nil && o.spec != nil {
				b = o
				break
			}
		}
		if b == nil {
			return ""
		}
	}
	return b.noStart()
}

// noStart is why a box did not start.
func (b *box) noStart() string {
	switch {
	case b.err != nil:
		return b.err.Error()
	case b.res == nil:
		return ""
	case b.res.Started == nil && b.res.Fault != nil:
		return b.res.Fault.Message
	case b.res.Started == nil:
		return "kern did not say why"
	}
	return ""
}

// probeName is the probe's file in a box, beside the code of a run.
const probeName = "doctor-probe"

// Bounds of the boxes that are there to be broken, small enough to do no harm
// where nothing is in force (rule S13).
const (
	canaryMemory = validate.Size(64 << 20)
	canaryPIDs   = 32
	canaryOver   = 8 // how far beyond a cap is gone: MiB, or processes
	canaryTmp    = validate.Size(1 << 20)
	canaryOutput = validate.Size(64 << 10)
	canaryLife   = 150 * time.Millisecond
	probeLife    = 5 * time.Second
)

// specOf makes the Spec of one of the boxes; nil when it has nothing to show.
func (e *Env) specOf(kind boxKind) *runner.Spec {
	program, ok := agent.Binary()
	if !ok {
		return nil
	}
	s := *e.Spec
	s.Code = []runner.CodeFile{{Name: probeName, Content: program, Executable: true}}
	s.Capture, s.Stdin, s.TTY, s.Stdout, s.Stderr = true, nil, nil, nil, nil
	s.Cell, s.Results, s.Setup, s.Compiler, s.Claimer, s.PoolRequired = nil, false, nil, nil, nil, false
	s.Track, s.Init, s.Progress = false, false, nil
	ask := func(q ...string) {
		s.Argv = append([]string{runner.CodeDir + "/" + probeName, "probe"}, q...)
	}
	if kind == probeBox {
		s.CopyOf = "" // what is in a copy changes no answer, and it may be large
		s.Timeout, s.MaxOutput = probeLife, maxProbe+1
		ask(e.questions()...)
		return &s
	}
	// None of the user's files come near a box that is to be broken.
	s.Workspace, s.CopyOf, s.Keep, s.Mounts, s.Watch, s.Pins = "", "", nil, nil, nil, nil
	s.WorkspaceMax, s.WorkspaceSize, s.Workdir = runner.AutoSize, 0, ""
	s.RequireLimits = false // what is not in force is said
	n := e.numbers()
	s.Memory, s.PIDs, s.CPUs, s.Tmpfs = canaryMemory, canaryPIDs, 0, nil
	s.Timeout, s.MaxOutput = probeLife, maxProbe+1
	switch kind {
	case smallBox:
		s.PIDs, s.MaxOutput = n.pids, canaryOutput
		s.Timeout = e.deepOr(probeLife)
		q := []string{"P:" + strconv.Itoa(n.pids+canaryOver)}
		if n.tmp > 0 {
			s.Tmpfs = []validate.Tmpfs{{Target: "/tmp", Size: n.tmp}}
			s.Memory = max(s.Memory, 2*n.tmp)
			q = append(q, tmpQuestion(n.tmp))
		}
		ask(append(q, "O:"+strconv.Itoa(int(2*canaryOutput)))...)
	case memoryBox:
		s.Memory, s.Timeout = n.memory, e.deepOr(probeLife)
		ask("u:", memoryQuestion(n.memory))
	case lateBox:
		s.Timeout = n.time
		ask("u:", "S:")
	}
	return &s
}

func tmpQuestion(n validate.Size) string {
	return "T:/tmp:" + strconv.FormatInt(int64(n)+canaryOver<<20, 10)
}

func memoryQuestion(n validate.Size) string {
	return "M:" + strconv.FormatInt(int64(n)+canaryOver<<20, 10)
}

// numbers are those of the promises that are put to the test.
type numbers struct {
	memory, tmp validate.Size
	pids        int
	time        time.Duration
}

// Bounds of what is tried with Deep: how long a deadline is waited for, and how
// many processes are made.
const (
	deepLimit = 30 * time.Second
	deepPIDs  = 2048
)

func (e *Env) numbers() numbers {
	n := numbers{canaryMemory, 0, canaryPIDs, canaryLife}
	for _, t := range e.Spec.Tmpfs {
		if t.Target == "/tmp" {
			n.tmp = canaryTmp
			if e.Deep && t.Size > 0 {
				n.tmp = t.Size
			}
		}
	}
	if !e.Deep {
		return n
	}
	// Where nothing is in force, even the user's numbers must not hurt the machine.
	if m := e.Spec.Memory; m > 0 && int64(m) <= e.memInfo("MemAvailable")/2 {
		n.memory = m
	}
	if p := e.Spec.PIDs; p > 0 && p <= deepPIDs {
		n.pids = p
	}
	if e.Spec.Timeout > 0 && e.Spec.Timeout <= deepLimit {
		n.time = e.Spec.Timeout
	}
	return n
}

func (e *Env) deepOr(d time.Duration) time.Duration {
	if e.Deep {
		return deepLimit
	}
	return d
}

func (e *Env) deepTime() time.Duration { return deepLimit + e.Spec.StartTimeout }

// read gives a file of the host without the white space around it; "" when it
// cannot be read.
func (e *Env) read(path string) string {
	f, err := os.Open(e.Root + path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, 1<<20))
	return strings.TrimSpace(string(b))
}

func (e *Env) exists(path string) bool {
	_, err := os.Stat(e.Root + path)
	return err == nil
}

// memInfo is a field of /proc/meminfo in bytes; 0 when it is not there.
func (e *Env) memInfo(field string) int64 {
	f := strings.Fields(status(e.read("/proc/meminfo"), field))
	if len(f) == 0 {
		return 0
	}
	n, _ := strconv.ParseInt(f[0], 10, 64)
	return n << 10
}

// RunKernDoctor is Env.KernDoctor of a real machine.
func RunKernDoctor(ctx context.Context, k *kernbin.Kern) ([]byte, error) {
	c := exec.CommandContext(ctx, k.Path, "doctor")
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "XDG_RUNTIME_DIR=" + os.Getenv("XDG_RUNTIME_DIR"), "NO_COLOR=1"}
	c.WaitDelay = time.Second
	var out limited
	c.Stdout = &out
	err := c.Run()
	return out.b, err
}

// limited keeps the beginning of what is written.
type limited struct{ b []byte }

func (l *limited) Write(p []byte) (int, error) {
	l.b = append(l.b, p[:min(len(p), 64<<10-len(l.b))]...)
	return len(p), nil
}

// TryUserNS is Env.TryUserNS of a real machine: it starts kern, to say its version,
// in a user namespace.
func TryUserNS(ctx context.Context, k *kernbin.Kern) error {
	c := exec.CommandContext(ctx, k.Path, "--version")
	c.SysProcAttr = &unix.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		UidMappings: []sysIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []sysIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   unix.SIGKILL,
	}
	c.WaitDelay = time.Second
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil // it ran
	}
	return err
}
