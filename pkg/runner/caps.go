package runner

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/cgroup"
)

// Who may enforce the caps of a box, as --limits says.
const (
	LimitsAuto = "auto" // kern where it does, else a cgroup of ours
	LimitsKern = "kern"
	LimitsOwn  = "own"
	LimitsOff  = "off"
)

// The values of Cap.EnforcedBy.
const (
	byKern   = "kern"
	byUs     = "kern-sbx"
	byRlimit = "rlimit"
	byNobody = "none"
)

// caps is who enforces what for one box, as it was found at the gate.
type caps struct {
	memory, pids, cpu string // "" where no cap was asked for
	group             *cgroup.Group
	reason            string // why something is not in force
	full              <-chan struct{}
	dropped           bool

	// early is a group that is being made while kern builds the box: the kernel
	// takes its time to let a process be moved, unless it was asked before.
	early chan madeGroup
	// life ends with the run. The context of its start ends sooner, when its box is
	// one that waits, and the box has to be watched all the same.
	life context.Context
}

type madeGroup struct {
	group *cgroup.Group
	full  <-chan struct{}
	bound cgroup.Bound
	err   error
}

// makeGroupEarly begins to make the cgroup if it is likely to be needed: it was
// the last time on this machine, or there was no last time.
func (r *run) makeGroupEarly(ctx context.Context) {
	s := r.spec
	var end context.CancelFunc
	r.caps.life, end = context.WithCancel(context.WithoutCancel(ctx))
	r.atEnd(end)
	if s.Memory == 0 && s.PIDs == 0 && s.CPUs == 0 {
		return
	}
	if s.Limits != LimitsOwn && (s.Limits != LimitsAuto || remembered(r.base, whoCaps) == byKern) {
		return
	}
	r.caps.early = make(chan madeGroup, 1)
	go func() { r.caps.early <- r.makeGroup() }()
}

func (r *run) makeGroup() madeGroup {
	s := r.spec
	g, b, err := cgroup.Create(r.groupName(), cgroup.Limits{Memory: int64(s.Memory), PIDs: s.pidsInBox(), CPUs: s.CPUs})
	m := madeGroup{group: g, bound: b, err: err}
	if err == nil {
		m.full = g.Watch(r.caps.life)
	}
	return m
}

// dropGroup removes the cgroup, used or not, and keeps what it counted.
func (r *run) dropGroup() {
	g := r.caps.group
	if r.caps.early != nil {
		g = (<-r.caps.early).group
		r.caps.early = nil
	}
	if g == nil || r.caps.dropped {
		return
	}
	r.caps.dropped = true
	if r.caps.group != nil {
		r.ev.oom = g.OOM()
		r.peak = g.Peak()
	}
	g.Remove()
}

// whoCaps is remembered: kern, or we.
const whoCaps = "caps"

// cap finds out, while the box waits at the gate, whether kern's caps are in
// force, and puts PID 1 of the box into a cgroup of ours when they are not.
// kern's supervisor stays outside, so a kill of the whole group does not take
// the verdict with it. Nothing of the box has run, so nothing escapes a cap.
func (r *run) cap(ctx context.Context) error {
	s, c := r.spec, &r.caps
	set := func(by func(kind string) string) {
		for _, k := range []struct {
			asked bool
			kind  string
			to    *string
		}{{s.Memory > 0, "memory", &c.memory}, {s.PIDs > 0, "pids", &c.pids}, {s.CPUs > 0, "cpu", &c.cpu}} {
			if k.asked {
				*k.to = by(k.kind)
			}
		}
	}
	always := func(who string) func(string) string { return func(string) string { return who } }
	pid := r.box.w.pid
	switch {
	case s.Limits == LimitsOff:
		set(always(byNobody))
		return nil
	case s.Limits != LimitsOwn && cgroup.KernEnforces(pid, int64(s.Memory)):
		set(always(byKern))
		remember(r.base, whoCaps, byKern)
		return nil
	case s.Limits == LimitsKern:
		set(always(byNobody))
		c.reason = "kern has no cgroup v2 controllers here"
		return nil
	case s.Memory == 0 && s.PIDs == 0 && s.CPUs == 0:
		return nil
	}
	if s.Limits == LimitsAuto {
		remember(r.base, whoCaps, byUs)
	}
	var made madeGroup
	if c.early != nil {
		made = <-c.early
		c.early = nil
	} else {
		made = r.makeGroup()
	}
	// A systemd user manager that has just come up takes the controllers away
	// again, and gives them back: worth a wait for who insists.
	for end := time.Now().Add(capsSettle); s.RequireLimits && !s.satisfied(made.bound) && time.Now().Before(end); {
		if made.err == nil {
			made.group.Remove()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookEvery):
		}
		if s.Limits != LimitsOwn && cgroup.KernEnforces(pid, int64(s.Memory)) {
			set(always(byKern))
			return nil
		}
		made = r.makeGroup()
	}
	bound := made.bound
	if made.err == nil {
		if err := made.group.Add(pid); err != nil {
			made.group.Remove()
			bound = cgroup.Bound{Reason: err.Error()}
		} else {
			c.group, c.full = made.group, made.full
		}
	}
	c.reason = bound.Reason
	is := map[string]bool{"memory": bound.Memory, "pids": bound.PIDs, "cpu": bound.CPU}
	set(func(kind string) string {
		if is[kind] {
			return byUs
		}
		return byNobody
	})
	if c.pids == byNobody && os.Getuid() != 0 {
		// The kernel counts an ordinary user's processes in the namespace of the
		// box; it lets root of the host have any number.
		n := uint64(s.pidsInBox())
		if unix.Prlimit(pid, unix.RLIMIT_NPROC, &unix.Rlimit{Cur: n, Max: n}, nil) == nil {
			c.pids = byRlimit
		}
	}
	if s.RequireLimits && (c.memory == byNobody || c.pids == byNobody) {
		return fmt.Errorf("--require-limits: %s", c.why())
	}
	return nil
}

// capsSettle is how long a host may take to give back controllers that it took
// away.
const capsSettle = time.Second

// satisfied says whether what --require-limits insists on is in force.
func (s *Spec) satisfied(b cgroup.Bound) bool {
	return (s.Memory == 0 || b.Memory) && (s.PIDs == 0 || b.PIDs)
}

// why is one sentence about what is not in force.
func (c *caps) why() string {
	var open []string
	for _, k := range []struct{ by, name string }{{c.memory, "memory"}, {c.pids, "processes"}, {c.cpu, "CPUs"}} {
		if k.by == byNobody {
			open = append(open, k.name)
		}
	}
	text := strings.Join(open, " and ") + " cannot be capped here"
	if c.reason != "" {
		text += ": " + c.reason
	}
	return text
}

func (r *run) groupName() string { return namePrefix + r.dir.name }

// kernNotes leaves out of kern's notes what is not true when the caps are ours.
func (r *run) kernNotes(notes []byte) []byte {
	if r.caps.group == nil {
		return notes
	}
	var kept []byte
	dropping := false
	for line := range strings.Lines(string(notes)) {
		switch {
		case strings.HasPrefix(line, "kern: ") && (strings.Contains(line, "enforced") || strings.Contains(line, "ENFORCED") || strings.Contains(line, "UNCAPPED")):
			dropping = true
		case dropping && strings.HasPrefix(line, " "):
		default:
			dropping = false
			kept = append(kept, line...)
		}
	}
	return kept
}
