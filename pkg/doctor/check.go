package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Status is the outcome of a check.
type Status string

// The outcomes. Only Warn and Fail stand for something to change; Skipped says
// that nothing is known.
const (
	OK      Status = "ok"
	Info    Status = "info" // worth knowing, nothing wrong
	Warn    Status = "warn"
	Fail    Status = "fail"
	Skipped Status = "skipped"
)

// Value is one thing that was measured, as text for a person.
type Value struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Result is what a check answers.
type Result struct {
	Status Status
	// Values are in the order they are shown. They may hold text from a box or a
	// file: whoever prints them makes them safe to show.
	Values []Value
	// Why is one sentence, lower case, without a full stop.
	Why string
	// Remedy is one flag, configuration key or command of the host, exactly as it
	// is typed; "" when there is nothing to do.
	Remedy string
}

// The groups of checks, in the order they are shown.
const (
	GroupHost     = "host"     // this machine; no box is needed
	GroupBox      = "box"      // what a box with the given settings looks like from within
	GroupPromises = "promises" // limits that small boxes were made to break
)

// Times that a check may take. What a check waits for, a box, has limits of its
// own and does not count.
const (
	CheckTime  = 5 * time.Second
	CanaryTime = 10 * time.Second
)

// Check is one check.
type Check struct {
	ID    string
	Group string
	Title string
	// Topic is what `kern-sbx explain` calls it.
	Topic string
	// needs is the box whose end the check waits for; "" for none.
	needs boxKind
	// deep checks run with Options.Deep alone.
	deep bool
	// Run looks. It may be left behind when it does not answer in time.
	Run func(context.Context, *Env) Result
}

// Checks lists all of them, in the order they are shown.
func Checks() []Check {
	return slices.Concat(hostChecks(), boxChecks(), promiseChecks())
}

// Choose gives the checks that --only and --skip leave. An id that is not known is
// refused.
func Choose(all []Check, only, skip []string) ([]Check, error) {
	ids := make([]string, len(all))
	for i := range all {
		ids[i] = all[i].ID
	}
	for _, l := range []struct {
		field string
		list  []string
	}{{"--only", only}, {"--skip", skip}} {
		for _, id := range l.list {
			if slices.Contains(ids, id) {
				continue
			}
			e := &validate.Error{Field: l.field, Value: id, Reason: "there is no check of that name", Fix: "there are " + strings.Join(ids, ", ")}
			if near := validate.Nearest(id, ids); near != "" {
				e.Fix = "did you mean " + near + "?"
			}
			return nil, e
		}
	}
	var out []Check
	for _, c := range all {
		if (len(only) == 0 || slices.Contains(only, c.ID)) && !slices.Contains(skip, c.ID) {
			out = append(out, c)
		}
	}
	if len(out) == 0 {
		return nil, &validate.Error{Field: "--skip", Value: strings.Join(skip, ","), Reason: "no check is left", Fix: "leave one of them out"}
	}
	return out, nil
}

// Finding is a check with its result.
type Finding struct {
	Check
	Result
	Took time.Duration
}

// NeedsBox says whether any of the checks looks at a box.
func NeedsBox(checks []Check) bool {
	return slices.ContainsFunc(checks, func(c Check) bool { return c.needs != noBox })
}

// Run runs the checks at the same time and gives their findings in the same
// order. A check that panics or does not answer hides none of the others.
func Run(ctx context.Context, env *Env, checks []Check) []Finding {
	out := make([]Finding, len(checks))
	env.begin(ctx, checks)
	var wait sync.WaitGroup
	for i, c := range checks {
		wait.Go(func() {
			r, took := runOne(ctx, env, &c)
			out[i] = Finding{Check: c, Result: r, Took: took}
		})
	}
	wait.Wait()
	env.end()
	return out
}

func runOne(ctx context.Context, env *Env, c *Check) (Result, time.Duration) {
	if c.deep && !env.Deep {
		return Result{Status: Skipped, Why: "takes longer than the other checks", Remedy: "--deep"}, 0
	}
	limit := CheckTime
	if c.needs != noBox {
		if why := env.await(ctx, c.needs); why != "" {
			r := Result{Status: Skipped, Why: "there is no box: " + why}
			if c.ID == boxID {
				r.Status, r.Why = Fail, "no box can be started: "+why
			}
			return r, 0
		}
	}
	if c.deep {
		limit = env.deepTime()
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer := make(chan Result, 1)
	if c.deep { // it starts a box
		env.running.Add(1)
	}
	go func() {
		if c.deep {
			defer env.running.Done()
		}
		defer func() {
			if p := recover(); p != nil {
				answer <- Result{Status: Fail, Why: fmt.Sprintf("the check itself failed: %v", p)}
			}
		}()
		answer <- c.Run(ctx, env)
	}()
	select {
	case r := <-answer:
		return r, time.Since(begin)
	case <-ctx.Done():
		return Result{Status: Skipped, Why: "no answer within " + limit.String()}, time.Since(begin)
	}
}

// Worst is the exit code that findings stand for: 0, 1 when something failed, or
// 125 when boxes were asked for and none could start. Strict counts a warning as
// a failure.
func Worst(found []Finding, env *Env, strict bool) int {
	if env.NoBox() != "" {
		return 125
	}
	for _, f := range found {
		if f.Status == Fail || strict && f.Status == Warn {
			return 1
		}
	}
	return 0
}

// values makes a list of pairs, leaving out those without a value.
func values(pairs ...string) []Value {
	var out []Value
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			out = append(out, Value{pairs[i], pairs[i+1]})
		}
	}
	return out
}
