package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

func promiseChecks() []Check {
	check := func(id, title string, needs boxKind, run func(*Env, *box) Result) Check {
		return Check{ID: "promise-" + id, Group: GroupPromises, Title: title, Topic: "promise-" + id, needs: needs, Run: func(_ context.Context, e *Env) Result {
			b := e.boxes[needs]
			switch {
			case b.spec == nil:
				return Result{Status: Skipped, Why: "this build carries no program that runs inside a box"}
			case b.noStart() != "":
				return Result{Status: Skipped, Why: "there is no box: " + b.noStart()}
			case b.res == nil:
				return Result{Status: Skipped, Why: "there is no box"}
			}
			return run(e, b)
		}}
	}
	return []Check{
		check("memory", "a box that takes too much memory is ended", memoryBox, promiseMemory),
		check("pids", "a box cannot have more processes than its cap", smallBox, promisePIDs),
		check("deadline", "a box that runs too long is ended", lateBox, promiseDeadline),
		check("tmp", "/tmp holds what it shall and no more", smallBox, promiseTmp),
		check("output", "too much output is cut, and the program runs on", smallBox, promiseOutput),
		check("network", "the network is what was asked for", probeBox, promiseNetwork),
	}
}

// promise is the row of a limit that was put to the test.
func promise(asked, inForce, seen string, held bool) Result {
	r := Result{Status: OK, Values: []Value{{"requested", asked}, {"in_force", inForce}, {"seen", seen}}}
	if !held {
		r.Status = Fail
	}
	r.Why = asked + " asked for, in force by " + inForce + ": " + seen
	if inForce == "none" {
		r.Why = asked + " asked for, in force by nobody: " + seen
	}
	return r
}

// verdict is the end of a box as a run would tell it.
func verdict(res *runner.Result) string {
	switch {
	case res.Fault != nil:
		return string(res.Fault.Type)
	case res.ExitCode != nil:
		return "exit " + strconv.Itoa(*res.ExitCode)
	case res.Signal != nil:
		return *res.Signal
	}
	return "status " + strconv.Itoa(res.Status)
}

// unenforced turns a failed promise into a warning where nobody promised: the host
// lets nobody cap, which is known and said.
func unenforced(e *Env, r Result, by string) Result {
	switch {
	case e.Spec.Limits == runner.LimitsOff:
		r.Status, r.Remedy = Info, "--limits auto"
	case by == "none" || by == "":
		r.Status, r.Remedy = Warn, "--require-limits"
	}
	return r
}

func promiseMemory(e *Env, b *box) Result {
	by := enforcer(b.res.Limits.Memory)
	over := b.spec.Memory + canaryOver<<20
	held := b.res.Fault != nil && b.res.Fault.Type == runner.OOM
	seen := "ended with " + verdict(b.res)
	if n, why, ok := broke(b.facts[memoryQuestion(b.spec.Memory)]); ok && !held {
		seen = "it took " + validate.Size(n).Human() + " (" + why + ") and went on"
		if by == "none" && n < int64(over) {
			seen = "it was refused " + over.Human() + " (" + why + ")"
		}
	}
	r := promise(b.spec.Memory.Human(), by, seen, held)
	if !held {
		r = unenforced(e, r, by)
	}
	return r
}

func promisePIDs(e *Env, b *box) Result {
	by := enforcer(b.res.Limits.PIDs)
	most := b.spec.PIDs
	n, why, ok := broke(b.facts["P:"+strconv.Itoa(most+canaryOver)])
	if !ok {
		return Result{Status: Skipped, Why: "the box did not get as far: it ended with " + verdict(b.res)}
	}
	// The probe itself has threads, which count.
	held := n < int64(most) && why == "EAGAIN"
	seen := fmt.Sprintf("fork %d was refused (%s)", n+1, why)
	if !held {
		seen = fmt.Sprintf("%d forks went well", n)
	}
	r := promise(fmt.Sprintf("%d processes", most), by, seen, held)
	if !held {
		r = unenforced(e, r, by)
	}
	return r
}

func promiseDeadline(_ *Env, b *box) Result {
	held := b.res.Fault != nil && b.res.Fault.Type == runner.Timeout
	seen := "ended with " + verdict(b.res) + " after " + (time.Duration(b.res.DurationMS) * time.Millisecond).String()
	return promise(b.spec.Timeout.String(), "kern-sbx", seen, held)
}

func promiseTmp(e *Env, b *box) Result {
	n := e.numbers().tmp
	if n == 0 {
		return Result{Status: Skipped, Why: "the box has no /tmp of its own in memory"}
	}
	got, why, ok := broke(b.facts[tmpQuestion(n)])
	if !ok {
		return Result{Status: Skipped, Why: "the box did not get as far: it ended with " + verdict(b.res)}
	}
	held := why == "ENOSPC" && got <= int64(n)
	return promise(n.Human(), "the kernel", "full at "+validate.Size(got).Human()+" ("+why+"), and the box went on", held)
}

func promiseOutput(_ *Env, b *box) Result {
	most := b.spec.MaxOutput
	n, why, ok := broke(b.facts["O:"+strconv.Itoa(int(2*canaryOutput))])
	if !ok {
		return Result{Status: Skipped, Why: "the box did not get as far: it ended with " + verdict(b.res)}
	}
	kept := int64(0)
	if b.res.Stderr != nil {
		kept = b.res.Stderr.Len()
	}
	held := b.res.Truncated.Stderr && why == "ok" && n == int64(2*canaryOutput) && kept <= int64(most)+64<<10
	seen := "of " + validate.Size(n).Human() + ", " + validate.Size(kept).Human() + " were passed on"
	if held {
		seen += ", and the program ran to its end"
	}
	return promise(most.Human(), "kern-sbx", seen, held)
}

func promiseNetwork(e *Env, b *box) Result {
	r := checkNetwork(e, b)
	if len(b.facts) == 0 || b.facts[unroutable] == "" {
		return Result{Status: Skipped, Why: "the probe in the box did not answer"}
	}
	asked := "none"
	switch {
	case e.Spec.HostNetwork:
		asked = "this machine's"
	case len(e.Spec.Egress) > 0:
		asked = "HTTP to " + strings.Join(e.Spec.Egress, ", ")
	}
	seen := "a packet out: " + b.facts[unroutable]
	if e.listener != nil {
		q := e.listener.questions()
		seen += "; loopback here: " + reached(b.facts[q[0]]) + "; abstract socket here: " + reached(b.facts[q[1]])
	}
	return promise(asked, "kern", seen, r.Status != Fail)
}
