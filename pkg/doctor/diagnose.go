package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/hints"
)

// DiagnosisSchema is the name of the document that a Diagnosis is written as.
const DiagnosisSchema = "kern-sbx/diagnosis/v1"

// DefaultBudget bounds a whole diagnosis unless the user says otherwise.
const DefaultBudget = 2 * time.Minute

// The verdicts of a Diagnosis.
const (
	// Works: the command does what was expected, as it was asked for.
	Works = "works"
	// Fixed: it fails, and works with Diagnosis.Fix, which was tried twice.
	Fixed = "fixed"
	// Flaky: the same box gave two answers, so no comparison means anything.
	Flaky = "flaky"
	// NotSandbox: the failure is the command's own, or the image's.
	NotSandbox = "not-sandbox"
	// Unfixable: the sandbox forbids it by design, and no flag allows it.
	Unfixable = "sandbox-unfixable"
	// NotFound: nothing that was tried helped, and nothing says whose it is.
	NotFound = "not-found"
)

// Bounds of the search.
const (
	mostPerLevel = 9 // trials with one more change each
	mostChanges  = 6 // remedies in one set
	beam         = 2 // sets of one size that are built upon
	shareOfTry   = 4 // one trial gets the budget divided by this
	leastTry     = time.Second
	slowTry      = 3 * time.Second // from here on trials share the machine
)

// Change is one flag of `kern-sbx run` with its value, as the table of hints has it.
type Change hints.Change

func (c Change) String() string { return hints.Change(c).String() }

// Remedy is a set of changes that may help together.
type Remedy struct {
	Changes []Change
	// Why is one sentence: what in the box is in the way.
	Why string
	// Hint is the id of the hint that knows it, "" for none.
	Hint string
	// Relaxes says that the box becomes less of a wall: network, capabilities,
	// another user, more of the host to read.
	Relaxes bool

	// trigger is the line of output that it answers, normalised.
	trigger string
}

// Outcome is what one trial came to.
type Outcome struct {
	// Exit is the command's own code, -1 when it did not end by itself.
	Exit int
	// Fault and Message are the sandbox's verdict, "" for none.
	Fault, Message string
	// Stdout and Stderr are the beginning and the end of what the code wrote. They
	// are hostile.
	Stdout, Stderr []byte
	// Time is from the start of the box to its end, CPU what it used.
	Time, CPU time.Duration
	// Bounded says that Fault is the timeout of the trial, which is shorter than
	// the box's own.
	Bounded bool
}

// Question is what a diagnosis is about.
type Question struct {
	Box Box
	// Try runs the command in a fresh box with the changes, in a fresh copy of the
	// workspace, for at most limit. The error is for what keeps every trial from
	// being made; a box that could not be started is an Outcome (startup_failed).
	Try func(ctx context.Context, changes []Change, limit time.Duration) (*Outcome, error)
	// AllowRelax lets remedies be tried that relax the box.
	AllowRelax bool
	// ExpectExit is the exit code that counts as success.
	ExpectExit int
	// Budget bounds the whole of it; zero means DefaultBudget.
	Budget time.Duration
	// Progress is told what is being tried; nil: nobody wants to know.
	Progress func(what string)
}

// Diagnosis is the answer: the document of `doctor --json -- CMD`, schema
// kern-sbx/diagnosis/v1. Every field is always present.
type Diagnosis struct {
	Schema string `json:"schema"`
	// Verdict is one of works, fixed, flaky, not-sandbox, sandbox-unfixable and
	// not-found; Why is one sentence about it, and Advice what to do, or "".
	Verdict string `json:"verdict"`
	Why     string `json:"why"`
	Advice  string `json:"advice"`
	// Topic is what `kern-sbx explain` says more about, or "".
	Topic   string   `json:"topic"`
	Command []string `json:"command"`
	// Noise says that the command succeeded and complained; the fix silences it.
	Noise bool `json:"noise"`
	// Tried lists the trials in order. The first two are the command as asked.
	Tried []Trial `json:"tried"`
	// Fix is null unless Verdict is fixed.
	Fix *Fix `json:"fix"`
	// NotTried are remedies that fit the failure and would relax the box.
	NotTried []Likely `json:"not_tried"`
	// BudgetSpent says that the search ended because its time was over.
	BudgetSpent bool  `json:"budget_spent"`
	BudgetMS    int64 `json:"budget_ms"`
	DurationMS  int64 `json:"duration_ms"`
}

// Trial is one run.
type Trial struct {
	Changes []Change `json:"changes"`
	// Verdict is works, same (it fails in the same way), other (it fails in another
	// way), refused (there was no box with these flags) or cut (by the budget).
	Verdict string `json:"verdict"`
	// Exit is null when the command did not end by itself; Fault is "" for none.
	Exit  *int   `json:"exit_code"`
	Fault string `json:"fault"`
	// Says is the line that the failure is known by, or "".
	Says       string `json:"says"`
	DurationMS int64  `json:"duration_ms"`
}

// Fix is the smallest set of changes found with which the command works.
type Fix struct {
	Changes []Change `json:"changes"`
	Why     string   `json:"why"`
	Hint    string   `json:"hint"`
	Relaxes bool     `json:"relaxes"`
	// Command is the line to use from now on, Config what makes it lasting.
	Command string   `json:"command"`
	Config  []string `json:"config"`
}

// Likely is a remedy that was not tried.
type Likely struct {
	Changes []Change `json:"changes"`
	Why     string   `json:"why"`
	Reason  string   `json:"reason"`
}

// node is a set of remedies that was tried.
type node struct {
	remedies []Remedy
	out      *Outcome
	score    int
}

func (n *node) changes() []Change { return flatten(n.remedies) }

func flatten(list []Remedy) []Change {
	var all []Change
	for _, r := range list {
		for _, c := range r.Changes {
			all = merge(all, c)
		}
	}
	return all
}

// merge adds a change to a set; of one setting, the later value counts.
func merge(all []Change, c Change) []Change {
	for i, have := range all {
		if settingOf(have) == settingOf(c) {
			out := slices.Clone(all)
			out[i] = c
			return out
		}
	}
	return append(slices.Clip(all), c)
}

// settingOf names what a change sets: a variable and a mount point are settings
// of their own.
func settingOf(c Change) string {
	switch c.Flag {
	case "env":
		k, _, _ := strings.Cut(c.Value, "=")
		return c.Flag + " " + k
	case "tmpfs":
		at, _, _ := strings.Cut(c.Value, ":")
		return c.Flag + " " + at
	case "ulimit":
		k, _, _ := strings.Cut(c.Value, "=")
		return c.Flag + " " + k
	case "volume", "cap-add", "host-tool", "egress-allow":
		return c.Flag + " " + c.Value
	}
	return c.Flag
}

func keyOf(changes []Change) string {
	words := make([]string, len(changes))
	for i, c := range changes {
		words[i] = c.Flag + "=" + c.Value
	}
	slices.Sort(words)
	return strings.Join(words, "\x00")
}

// search is one diagnosis on its way.
type search struct {
	*Question
	ctx   context.Context
	begun time.Time
	end   time.Time
	d     *Diagnosis
	mu    sync.Mutex // of d.Tried
	base  *Outcome
	noise string // the trigger that shall be gone, when the command succeeds
	seen  map[string]bool
	// skipped are the relaxing remedies, by key.
	skipped map[string]bool
	// parallel is how many trials may run at once.
	parallel int
	// leads are the remedies of the first failure, in order.
	leads []Remedy
}

var errSpent = errors.New("the budget is spent")

// Diagnose finds out why a command fails in a box, by trying. The error says that
// nothing could be tried at all, or is that of the context.
func Diagnose(ctx context.Context, q Question) (*Diagnosis, error) {
	if q.Budget <= 0 {
		q.Budget = DefaultBudget
	}
	if q.Progress == nil {
		q.Progress = func(string) {}
	}
	now := time.Now()
	s := &search{
		Question: &q, begun: now, end: now.Add(q.Budget), seen: map[string]bool{}, skipped: map[string]bool{}, parallel: 1,
		d: &Diagnosis{
			Schema: DiagnosisSchema, Command: q.Box.Argv, Tried: []Trial{}, NotTried: []Likely{},
			BudgetMS: q.Budget.Milliseconds(),
		},
	}
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithDeadline(ctx, s.end)
	defer cancel()
	err := s.run()
	if errors.Is(err, errDecided) {
		err = nil
	}
	if errors.Is(err, errSpent) {
		err, s.d.BudgetSpent = nil, true
		s.giveUp()
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	s.d.DurationMS = time.Since(s.begun).Milliseconds()
	return s.d, err
}

func (s *search) left() time.Duration { return time.Until(s.end) }

// limit is the time of one trial.
func (s *search) limit() time.Duration {
	most := s.Budget / shareOfTry
	if t := s.Box.Timeout; t > 0 && t < most {
		most = t
	}
	return max(min(most, s.left()), leastTry)
}

// try makes one trial and judges it against another outcome.
func (s *search) try(changes []Change, limit time.Duration) (*Outcome, error) {
	if s.left() < leastTry/2 {
		return nil, errSpent
	}
	what := "as asked"
	if len(changes) > 0 {
		what = "with " + describe(changes)
	}
	s.Progress(what)
	out, err := s.Try(s.ctx, changes, limit)
	if err != nil {
		if s.ctx.Err() != nil {
			return nil, errSpent
		}
		return nil, err
	}
	if s.ctx.Err() != nil && out.Fault != "" {
		// It was ended because our time is over.
		s.note(changes, out, "cut")
		return nil, errSpent
	}
	return out, nil
}

func describe(changes []Change) string {
	words := make([]string, len(changes))
	for i, c := range changes {
		words[i] = c.String()
	}
	return strings.Join(words, " ")
}

func (s *search) note(changes []Change, out *Outcome, verdict string) {
	t := Trial{Changes: slices.Clone(changes), Verdict: verdict, Fault: out.Fault, DurationMS: out.Time.Milliseconds()}
	if t.Changes == nil {
		t.Changes = []Change{}
	}
	if out.Exit >= 0 {
		t.Exit = &out.Exit
	}
	if verdict != "works" {
		t.Says = headline(out)
	}
	s.mu.Lock()
	s.d.Tried = append(s.d.Tried, t)
	s.mu.Unlock()
}

// good says whether an outcome is what the user wants.
func (s *search) good(o *Outcome) bool {
	return o.Fault == "" && o.Exit == s.ExpectExit && (s.noise == "" || !hasLine(o, s.noise))
}

func (s *search) verdict(o, than *Outcome) string {
	switch {
	case s.good(o):
		return "works"
	case o.Fault == "startup_failed" && than.Fault != "startup_failed":
		return "refused"
	case alike(o, than):
		return "same"
	}
	return "other"
}

func (s *search) run() error {
	done, err := s.baseline()
	if done || err != nil {
		return err
	}
	if b, ok := blame(&s.Box, s.base); ok && b.sure && s.noise == "" {
		s.conclude(b)
		return nil
	}
	root := &node{out: s.base}
	s.leads = s.remedies(root)
	level := s.expand([]*node{root}, nil)
	var changed []Remedy
	for depth := 1; depth <= mostChanges && len(level) > 0; depth++ {
		tried, found, err := s.level(level)
		if err != nil {
			return err
		}
		if found != nil {
			return s.settle(found)
		}
		if depth == 1 {
			for _, n := range tried {
				changed = append(changed, n.remedies[0])
			}
		}
		slices.SortStableFunc(tried, func(a, b *node) int { return cmp.Compare(b.score, a.score) })
		tried = tried[:min(beam, len(tried))]
		level = s.expand(tried, changed)
		if len(tried) > 0 {
			root = tried[0]
		}
	}
	if s.noise != "" {
		s.d.Verdict, s.d.Why = Works, "it does what was asked; nothing that was tried silences its complaint: "+s.noiseLine()
		return nil
	}
	return s.everything(root)
}

func (s *search) noiseLine() string { return headline(s.base) }

// baseline runs the command as asked, twice. Done means that there is an answer.
func (s *search) baseline() (done bool, err error) {
	first, err := s.try(nil, s.limit())
	if err != nil {
		return true, err
	}
	s.base = first
	// A box that waits costs nobody anything, so several may wait at once.
	if first.Time > slowTry && first.CPU < first.Time*6/10 {
		s.parallel = 3
	}
	if first.Fault == "timeout" {
		// To wait a second time would eat the time of everything else: it is done
		// beside the first trials.
		s.note(nil, first, "same")
		s.parallel = 3
		return false, nil
	}
	if first.Fault == "startup_failed" {
		s.note(nil, first, "refused")
		s.d.Verdict, s.d.Why = NotFound, "no box can be started with these flags: "+first.Message
		s.d.Advice = "kern-sbx doctor with the same flags, without a command, says what is wrong with the box or this machine"
		return true, nil
	}
	second, err := s.try(nil, s.limit())
	if err != nil {
		return true, err
	}
	a, b := s.verdict(first, first), s.verdict(second, first)
	s.note(nil, first, a)
	s.note(nil, second, b)
	if s.good(first) != s.good(second) || first.Fault != second.Fault || first.Exit != second.Exit {
		s.flaky(first, second)
		return true, nil
	}
	if !s.good(first) {
		return false, nil
	}
	if s.noise = complaint(&s.Box, first); s.noise == "" || !hasLine(second, s.noise) {
		s.noise = ""
		s.d.Verdict, s.d.Why = Works, "it works in this box, twice in a row"
		return true, nil
	}
	s.d.Noise = true
	for i := range s.d.Tried {
		s.d.Tried[i].Verdict, s.d.Tried[i].Says = "same", s.noiseLine()
	}
	return false, nil
}

func (s *search) flaky(a, b *Outcome) {
	s.d.Verdict = Flaky
	s.d.Why = fmt.Sprintf("the same box gave two answers: %s, then %s; a comparison would prove nothing", answer(a), answer(b))
	s.d.Advice = "make it fail each time first: look for what depends on time, on chance or on the order of threads"
}

func answer(o *Outcome) string {
	switch {
	case o.Fault != "":
		return o.Fault
	case o.Exit < 0:
		return "no end of its own"
	}
	return fmt.Sprintf("exit %d", o.Exit)
}

// remedies gives what may help against the outcome of n, best first, without
// what cannot be tried.
func (s *search) remedies(n *node) []Remedy {
	var list []Remedy
	for _, r := range propose(&s.Box, n.out, n.changes()) {
		if s.noise != "" && r.Relaxes {
			continue // a complaint is no reason to
		}
		if r.Relaxes && !s.AllowRelax {
			if k := keyOf(r.Changes); !s.skipped[k] {
				s.skipped[k] = true
				s.d.NotTried = append(s.d.NotTried, Likely{r.Changes, r.Why, "needs --allow-relax"})
			}
			continue
		}
		list = append(list, r)
	}
	slices.SortStableFunc(list, func(a, b Remedy) int {
		if a.Relaxes == b.Relaxes {
			return 0
		}
		if a.Relaxes {
			return 1
		}
		return -1
	})
	return list
}

// expand lists the sets with one remedy more: one against how each node fails
// now, or another one of those that changed something by themselves.
func (s *search) expand(from []*node, changed []Remedy) []*node {
	var level []*node
	for _, n := range from {
		for _, r := range append(s.remedies(n), changed...) {
			set := append(slices.Clip(n.remedies), r)
			k := keyOf(flatten(set))
			if s.seen[k] || k == keyOf(n.changes()) {
				continue
			}
			s.seen[k] = true
			level = append(level, &node{remedies: set, out: n.out})
		}
	}
	return level[:min(len(level), mostPerLevel)]
}

// level tries sets. It gives the first that works, else those that changed the
// failure.
func (s *search) level(level []*node) (changed []*node, found *node, err error) {
	for len(level) > 0 {
		batch := level[:min(s.batch(level), len(level))]
		level = level[len(batch):]
		outs := make([]*Outcome, len(batch))
		errs := make([]error, len(batch))
		var again *Outcome
		var againErr error
		var wg sync.WaitGroup
		if s.base.Fault == "timeout" && len(s.d.Tried) == 1 {
			wg.Go(func() { again, againErr = s.try(nil, s.againLimit()) })
		}
		for i, n := range batch {
			wg.Go(func() { outs[i], errs[i] = s.try(n.changes(), s.trialLimit(n)) })
		}
		wg.Wait()
		if again != nil {
			s.note(nil, again, s.verdict(again, s.base))
			switch {
			case s.good(again) && s.base.Bounded:
				s.d.Verdict, s.d.Why = Works, fmt.Sprintf("it works in this box, and takes %s", again.Time.Round(100*time.Millisecond))
				return nil, nil, errDecided
			case s.good(again):
				s.flaky(s.base, again)
				return nil, nil, errDecided
			case again.Fault == "timeout":
				s.base.Bounded = again.Bounded
			}
		}
		if againErr != nil {
			return nil, nil, againErr
		}
		for i, n := range batch {
			if errs[i] != nil {
				if found != nil {
					break
				}
				return nil, nil, errs[i]
			}
			than := n.out
			v := s.verdict(outs[i], than)
			s.note(n.changes(), outs[i], v)
			n.out = outs[i]
			last := n.remedies[len(n.remedies)-1]
			switch v {
			case "works":
				if found == nil {
					found = n
				}
			case "other":
				n.score = 1
				if last.trigger != "" && !hasLine(outs[i], last.trigger) {
					n.score = 2 // what it was meant for is gone
				}
				changed = append(changed, n)
			}
		}
		if found != nil {
			return nil, found, nil
		}
	}
	return changed, nil, nil
}

var errDecided = errors.New("decided")

// againLimit is the time of the second run of a command whose first one ran out of
// time: all that the box allows, where that is more than one trial may take.
func (s *search) againLimit() time.Duration {
	if !s.base.Bounded {
		return s.limit()
	}
	most := s.left() / 2
	if t := s.Box.Timeout; t > 0 {
		most = min(most, t)
	}
	return max(most, leastTry)
}

// batch is how many of the next sets are tried at once. The network of the host
// is one for all boxes: two of them would meet at a port.
func (s *search) batch(level []*node) int {
	for i, n := range level[:min(s.parallel, len(level))] {
		if slices.ContainsFunc(n.changes(), func(c Change) bool { return c.Flag == "network" }) {
			return max(i, 1)
		}
	}
	return s.parallel
}

// trialLimit gives a set with a longer --timeout that time, and leaves as much for
// the run that confirms it.
func (s *search) trialLimit(n *node) time.Duration {
	for _, c := range n.changes() {
		if c.Flag == "timeout" {
			if d, err := time.ParseDuration(c.Value); err == nil {
				return max(min(d, s.left()/2), leastTry)
			}
		}
	}
	return s.limit()
}

// settle proves a set that worked once, and makes it as small as it can be.
func (s *search) settle(n *node) error {
	set := n.changes()
	why, hint := n.remedies[0].Why, n.remedies[0].Hint
	for _, r := range n.remedies[1:] {
		if r.Why != "" && !strings.Contains(why, r.Why) {
			why += "; then " + r.Why
		}
	}
	if len(set) > 1 {
		var err error
		if set, err = s.shrink(set, s.trialLimit(n)); err != nil {
			return err
		}
	}
	limit := s.limit()
	if slices.ContainsFunc(set, func(c Change) bool { return c.Flag == "timeout" }) {
		limit = max(s.left(), leastTry)
	}
	out, err := s.try(set, limit)
	if err != nil {
		return err
	}
	s.note(set, out, s.verdict(out, s.base))
	if !s.good(out) {
		s.d.Verdict = Flaky
		s.d.Why = fmt.Sprintf("with %s it worked once, and gave %s the next time", describe(set), answer(out))
		return nil
	}
	s.d.Verdict, s.d.Why = Fixed, why
	s.d.Fix = &Fix{Changes: set, Why: why, Hint: hint, Relaxes: relaxes(set), Config: []string{}}
	s.d.Topic = hint
	s.d.NotTried = []Likely{}
	return nil
}

// shrink leaves out each change that the command works without.
func (s *search) shrink(set []Change, limit time.Duration) ([]Change, error) {
	if len(set) > 4 {
		for _, half := range [][]Change{set[:len(set)/2], set[len(set)/2:]} {
			works, err := s.worksWith(half, limit)
			if err != nil {
				return nil, err
			}
			if works {
				return s.shrink(half, limit)
			}
		}
	}
	// What relaxes the box goes first.
	order := slices.Clone(set)
	slices.SortStableFunc(order, func(a, b Change) int {
		return cmp.Compare(weight(b), weight(a))
	})
	for _, c := range order {
		if len(set) == 1 {
			break
		}
		without := slices.DeleteFunc(slices.Clone(set), func(x Change) bool { return x == c })
		works, err := s.worksWith(without, limit)
		if err != nil {
			return nil, err
		}
		if works {
			set = without
		}
	}
	return set, nil
}

func weight(c Change) int {
	if relaxes([]Change{c}) {
		return 1
	}
	return 0
}

func (s *search) worksWith(set []Change, limit time.Duration) (bool, error) {
	k := keyOf(set)
	for _, t := range s.d.Tried {
		if keyOf(t.Changes) == k {
			return t.Verdict == "works", nil
		}
	}
	out, err := s.try(set, limit)
	if err != nil {
		return false, err
	}
	s.note(set, out, s.verdict(out, s.base))
	return s.good(out), nil
}

// relaxes says whether a set makes the box less of a wall. A tool that the user asked
// for is what they want to run.
func relaxes(set []Change) bool {
	return slices.ContainsFunc(set, func(c Change) bool { return hints.Relaxing(c.Flag) && c.Flag != "host-tool" })
}

// everything is the last question: with all at once that the flags can change,
// does it still fail in the same way? Then it is not the flags.
func (s *search) everything(last *node) error {
	own, blamed := s.blame(s.base)
	if !blamed || own.weak {
		// What is left after the best changes may say more.
		if v, ok := s.blame(last.out); ok && (!blamed || !v.weak) {
			own, blamed = v, true
		}
	}
	if blamed && !own.weak {
		s.conclude(own)
		return nil
	}
	if s.offline() {
		s.conclude(verdictOf{kind: NotSandbox, why: "with the whole network of this machine it does not get there either", advice: "check the name and the address, and whether this machine has a network"})
		return nil
	}
	if s.base.Fault == "timeout" {
		s.stillRunning()
		return nil
	}
	set := all(&s.Box, s.AllowRelax)
	out, err := s.try(set, s.limit())
	if err != nil {
		return err
	}
	v := s.verdict(out, s.base)
	s.note(set, out, v)
	switch {
	case v == "works":
		small, err := s.shrink(set, s.limit())
		if err != nil {
			return err
		}
		return s.settle(&node{remedies: []Remedy{{Changes: small, Why: "found by leaving out one change after the other"}}})
	case blamed && sameHeadline(out, s.base):
		s.conclude(own)
	case s.untold():
		s.giveUp()
	case v == "same", sameHeadline(out, s.base) && out.Exit == s.base.Exit:
		if b, ok := suspect(s.base); ok {
			s.conclude(b)
			return nil
		}
		s.conclude(verdictOf{kind: NotSandbox, why: s.same(), advice: "look at the command itself, its arguments and its input"})
	default:
		s.giveUp()
	}
	return nil
}

// blame says whose failure an outcome is, as far as that does not depend on what was
// not tried.
func (s *search) blame(o *Outcome) (verdictOf, bool) {
	v, ok := blame(&s.Box, o)
	return v, ok && !(v.open && len(s.d.NotTried) > 0)
}

// offline says whether the network was what it lacked, and was of no help.
func (s *search) offline() bool {
	if !hinted(&s.Box, s.base, "own-name", "no-network", "pip-offline", "unreachable", "egress-not-http") {
		return false
	}
	return s.Box.HostNetwork || slices.ContainsFunc(s.d.Tried, func(t Trial) bool {
		return len(t.Changes) == 1 && t.Changes[0].Flag == "network" && (t.Verdict == "same" || t.Verdict == "other")
	})
}

// hinted says whether the table of hints knows an outcome by one of those names.
func hinted(b *Box, o *Outcome, ids ...string) bool {
	return slices.ContainsFunc(hints.Match(b.facts(o, nil)), func(h hints.Hint) bool { return slices.Contains(ids, h.ID) })
}

// untold says whether trials leave it open whose failure it is: something fits it
// and was not, or could not be, tried, or changed what it fails with.
func (s *search) untold() bool {
	if len(s.d.NotTried) > 0 || hinted(&s.Box, s.base, "pip-offline") {
		return true
	}
	return slices.ContainsFunc(s.d.Tried[:len(s.d.Tried)-1], func(t Trial) bool { return t.Verdict == "refused" || t.Verdict == "other" })
}

func (s *search) same() string {
	w := "it fails in the same way whatever the box is given (memory, processes, HOME, /tmp, locale"
	if s.AllowRelax {
		w += ", capabilities, network"
	}
	return w + ")"
}

func (s *search) stillRunning() {
	s.d.Verdict = NotFound
	if s.base.Bounded {
		s.d.Why = fmt.Sprintf("it did not end within %s, which is what one try may take of the budget", s.limitText())
		s.d.Advice = "give a larger --budget"
		return
	}
	s.d.Why = "it did not end in time, with more time neither; it may wait for something that never comes"
	s.d.Advice = "see where it waits: --timeout none and --verbose, or -t with it running in the foreground"
}

func (s *search) limitText() string { return (s.Budget / shareOfTry).Round(time.Second).String() }

func (s *search) conclude(v verdictOf) {
	s.d.Verdict, s.d.Why, s.d.Advice, s.d.Topic = v.kind, v.why, v.advice, v.topic
	s.d.NotTried = []Likely{}
}

// giveUp is the end without an answer.
func (s *search) giveUp() {
	if s.d.Verdict != "" {
		return
	}
	if s.base != nil {
		if b, ok := s.blame(s.base); ok && !b.weak {
			s.conclude(b)
			return
		}
	}
	s.d.Verdict = NotFound
	switch {
	case s.base == nil:
		s.d.Why = "the budget was spent before the command had run as asked"
	case s.d.BudgetSpent:
		s.d.Why = "the budget was spent before anything was found that helps; --budget gives more"
	case len(s.d.NotTried) > 0:
		s.d.Why = "nothing that leaves the walls of the box as they are helps"
	default:
		s.d.Why = "nothing that was tried helps"
		for _, t := range s.d.Tried {
			if t.Verdict == "refused" && len(t.Changes) > 0 {
				s.d.Why = "what might help could not be tried: with " + describe(t.Changes) + " there was no box: " + t.Says
				break
			}
		}
	}
	if len(s.d.NotTried) > 0 {
		s.d.Advice = "likely, and not tried: " + describe(s.d.NotTried[0].Changes) + " (" + s.d.NotTried[0].Why + "); --allow-relax tries it"
	}
}
