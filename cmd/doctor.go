package cmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/config"
	"github.com/kern-sbx/kern-sbx/pkg/doctor"
	"github.com/kern-sbx/kern-sbx/pkg/pool"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

type doctorOpts struct {
	*app
	box          boxFlags
	why          diagnoseFlags
	only, skip   []string
	strict, deep bool
}

func (a *app) doctorCommand() *cobra.Command {
	o := &doctorOpts{app: a}
	c := &cobra.Command{
		Use:     "doctor [flags] [-- CMD [ARG...]]",
		Short:   "examine this machine and a box, or find out why CMD fails in one",
		GroupID: groupHost,
		Long: `Examine this machine, and a real box with exactly these flags: what it may
write, how many CPUs it sees and gets, what it reaches. Small boxes are made to
break each promise, and the verdicts are shown. With CMD, find out why it fails in
such a box, and which is the smallest change that helps.
Exits with 0; with 1 when something failed; with 125 when no box starts.`,
		Example: `  kern-sbx doctor --image host
  kern-sbx doctor --image node:22 --cpus 0.5 --verbose
  kern-sbx doctor --only cgroups --only promise-memory
  kern-sbx doctor --image golang:1.23 -W . -- go build ./...`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, args) },
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.SortFlags = false
	list(f, &o.only, "only", "", nil, "run the check `ID` alone; may be given several times")
	list(f, &o.skip, "skip", "", nil, "leave out the check `ID`; may be given several times")
	f.BoolVar(&o.strict, "strict", false, "a warning counts as a failure")
	f.BoolVar(&o.deep, "deep", false, "break the promises with the numbers of the flags, and measure what takes seconds")
	for _, n := range []string{"only", "skip", "strict", "deep"} {
		f.SetAnnotation(n, flagGroup, []string{inCode})
		if n == "only" || n == "skip" {
			c.RegisterFlagCompletionFunc(n, completeChecks)
		}
	}
	o.why.add(c)
	o.box.add(c)
	return c
}

func completeChecks(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var all []cobra.Completion
	for _, c := range doctor.Checks() {
		all = append(all, cobra.CompletionWithDesc(c.ID, c.Title))
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

func (o *doctorOpts) run(c *cobra.Command, argv []string) error {
	a := o.app
	if a.global.result != "" {
		return &validate.Error{Field: "--result", Value: a.global.result, Reason: "doctor runs nothing that has a result", Fix: "--json prints its findings as a document"}
	}
	if len(argv) > 0 {
		for name, on := range map[string]bool{"--only": len(o.only) > 0, "--skip": len(o.skip) > 0, "--strict": o.strict, "--deep": o.deep} {
			if on {
				return &validate.Error{Field: name, Value: argv[0], Reason: "with a command, no checks are run", Fix: "leave out one of the two"}
			}
		}
		if err := a.configure(c, &o.box); err != nil {
			return err
		}
		return a.diagnose(c, &o.box, &o.why, argv)
	}
	for _, n := range []string{"allow-relax", "budget", "expect-exit", "in-place-copy"} {
		if c.Flags().Changed(n) {
			return &validate.Error{Field: "--" + n, Value: c.Flag(n).Value.String(), Reason: "it is about a command, and there is none", Fix: "give the command after --"}
		}
	}
	checks, err := doctor.Choose(doctor.Checks(), o.only, o.skip)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(c.Context())
	defer cancel(nil)
	sigs := make(chan os.Signal, 1)
	signal.Notify(sigs, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	// A closed output is an error of a write, and not the end of us beside boxes.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	go func() {
		select {
		case s := <-sigs:
			cancel(&stoppedError{s.(unix.Signal)})
		case <-ctx.Done():
		}
	}()

	begin := time.Now()
	progress := func(label string) func() {
		if a.global.quiet {
			return func() {}
		}
		return term.NewProgress(a.err, label).Stop
	}
	env := o.env(ctx, c, doctor.NeedsBox(checks), progress)
	done := progress("looking at this machine and at boxes")
	found := doctor.Run(ctx, env, checks)
	done()
	var stopped *stoppedError
	if errors.As(context.Cause(ctx), &stopped) {
		return &exitError{code: 128 + int(stopped.signal), err: stopped}
	}
	report := doctor.NewReport(found, env, o.strict)
	report.Version, _ = a.build.version()
	report.DurationMS = time.Since(begin).Milliseconds()
	if a.global.json {
		err = a.printJSON(report)
	} else {
		mode := a.global.color
		if mode == "" {
			mode = "auto"
		}
		err = report.WriteTable(a.out, term.NewStyle(term.Enabled(a.out, mode, a.env)), a.global.verbose)
	}
	switch {
	case errors.Is(err, unix.EPIPE):
		return &exitError{code: 141}
	case err != nil:
		return fmt.Errorf("the findings could not be written: %w", err)
	case report.NoBox != nil:
		return &exitError{code: report.ExitCode, err: errors.New("no box can be started: " + *report.NoBox)}
	case report.ExitCode != 0:
		return &exitError{code: report.ExitCode}
	}
	return nil
}

// stoppedError says that a signal ended the checks; no box is left then.
type stoppedError struct{ signal unix.Signal }

func (e *stoppedError) Error() string { return "ended by " + unix.SignalName(e.signal) }

// env is the machine as the checks see it. A mistake in the flags or in the
// configuration leaves the box out, and not the machine.
func (o *doctorOpts) env(ctx context.Context, c *cobra.Command, box bool, progress func(string) func()) *doctor.Env {
	a := o.app
	dirs := runner.FindDirs(a.env)
	e := &doctor.Env{
		Getenv: a.env, UID: os.Getuid(), Dirs: dirs, Deep: o.deep,
		KernDoctor: doctor.RunKernDoctor, TryUserNS: doctor.TryUserNS,
		Listen: doctor.Listen, Room: doctor.RoomOf,
		Config:  func() (*config.Config, error) { return config.Load(a.configOptions(nil)) },
		Holders: func() []*pool.Entry { return a.holders(dirs) },
	}
	var start time.Duration
	e.SpecErr = a.configure(c, &o.box)
	e.Kern, e.KernErr = a.findKern(ctx, dirs)
	if e.SpecErr == nil {
		if start, e.SpecErr = validate.ParseDuration(o.box.startTimeout); e.SpecErr != nil {
			e.SpecErr = validate.In("--start-timeout", e.SpecErr)
		}
	}
	if e.SpecErr != nil {
		return e
	}
	budget, cancel := runner.NewBudget(ctx, start)
	defer cancel()
	e.Spec, e.SpecErr = o.box.spec(a, budget, dirs)
	if e.SpecErr != nil {
		e.Spec = nil
		return e
	}
	e.Given, e.Spec.Kern = o.box.given, e.Kern
	e.Start = func(ctx context.Context, s *runner.Spec) (*runner.Result, error) {
		budget, cancel := runner.NewBudget(ctx, s.StartTimeout)
		defer cancel()
		return runner.Run(ctx, budget, dirs, s)
	}
	if s := e.Spec; box && e.Kern != nil && s.Image != "" && s.Pull != "never" && (s.Pull == "always" || !runner.IsCachedImage(a.env, s.Image)) {
		// Once, and not by each of the boxes.
		done := progress("fetching " + s.Image)
		e.SpecErr = runner.Pull(ctx, runner.Fetch{Kern: e.Kern, Image: s.Image, Anew: s.Pull == "always", Timeout: s.PullTimeout})
		done()
		s.Pull = "missing"
	}
	return e
}

// holders lists the background processes of this user. It makes no directory.
func (a *app) holders(dirs runner.Dirs) []*pool.Entry {
	place := dirs.Private
	if x := a.env("XDG_RUNTIME_DIR"); filepath.IsAbs(x) {
		place = filepath.Join(x, "kern-sbx")
	}
	if _, err := os.Lstat(place); err != nil {
		return nil
	}
	p, err := pool.Open(a.env, dirs)
	if err != nil {
		return nil
	}
	defer p.Close()
	var all []*pool.Entry
	for _, kind := range []string{pool.Boxes, pool.Kernels} {
		for _, name := range p.Names(kind) {
			if h, err := p.Look(kind, name); err == nil {
				all = append(all, h)
			}
		}
	}
	return all
}
