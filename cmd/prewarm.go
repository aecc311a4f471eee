package cmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/interp"
	"github.com/kern-sbx/kern-sbx/pkg/pool"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

type prewarmOpts struct {
	*app
	box               boxFlags
	n                 int
	lang, ttl, idle   string
	wait              bool
	ttlTime, idleTime time.Duration
}

func (a *app) prewarmCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "prewarm",
		Short:   "keep boxes ready, so that a run starts in an instant",
		GroupID: groupBox,
		Long: `A pool keeps booted boxes. A run whose box would be exactly the same takes one
of them instead of starting one; each serves one run and is thrown away. What
differs (another cap, mount, image) is never given one.`,
		Example: `  kern-sbx prewarm start -n 4 --image python:3.12-slim
  kern-sbx run --image python:3.12-slim -c 'print(1)'    # takes a box that waits
  kern-sbx prewarm status
  kern-sbx prewarm stop --all`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return a.unknownCommand(c, args[0])
		},
	}
	a.addSubcommands(
		c, subcommand{"start", a.prewarmStart}, subcommand{"status", a.prewarmStatus}, subcommand{"stop", a.prewarmStop},
	)
	return c
}

func (a *app) prewarmStart() *cobra.Command {
	o := &prewarmOpts{app: a}
	c := &cobra.Command{
		Use:   "start [-n N] [box flags]",
		Short: "start a pool of boxes with these flags",
		Long: `Start a pool in the background. It returns when the first box is ready (--wait:
when all are) and prints the pool's key. The environment, the working directory
and the timeout of a run may differ from those here; all else has to be equal.`,
		Example: `  kern-sbx prewarm start -n 4 --image host
  kern-sbx prewarm start -n 8 --wait --memory 1g --lang none --image node:22`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.start(c) },
	}
	f := c.Flags()
	f.SortFlags = false
	f.IntVarP(&o.n, "boxes", "n", 2, "keep `N` boxes ready (1 to 64)")
	f.StringVar(&o.lang, "lang", "python", "keep an interpreter warm in each: `NAME` is python or none")
	f.BoolVar(&o.wait, "wait", false, "return when all boxes are ready, not only the first")
	f.StringVar(&o.ttl, "ttl", "5m", "replace a box that has waited for `TIME`")
	f.StringVar(&o.idle, "idle-timeout", "1h", "end when no run has asked for a box for `TIME`, none for never")
	for _, n := range []string{"boxes", "lang", "wait", "ttl", "idle-timeout"} {
		f.SetAnnotation(n, flagGroup, []string{inCode})
	}
	o.box.add(c)
	c.RegisterFlagCompletionFunc("lang", cobra.FixedCompletions([]string{"python", "none"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (o *prewarmOpts) check() (err error) {
	switch {
	case o.n < 1 || o.n > 64:
		return &validate.Error{Field: "--boxes", Value: fmt.Sprint(o.n), Reason: "not between 1 and 64", Fix: "give the number of calls that come at once"}
	case o.lang != "python" && o.lang != "none":
		return &validate.Error{Field: "--lang", Value: o.lang, Reason: "only python is kept warm", Fix: "--lang none; commands and code in other languages are served too"}
	case o.box.tty:
		return &validate.Error{Field: "--tty", Value: "-t", Reason: "a box with a terminal is not kept ready", Fix: "leave out -t"}
	case o.box.given["env"] == fromFlag || o.box.given["env-file"] == fromFlag:
		return &validate.Error{Field: "--env", Value: "prewarm", Reason: "the environment belongs to each run, which brings its own", Fix: "give it to run; a pool serves any"}
	case strings.HasPrefix(o.box.workspace, workspace.NamePrefix):
		return &validate.Error{Field: "--workspace", Value: o.box.workspace, Reason: "a workspace that is kept by name is for one run at a time, so boxes cannot have it before", Fix: "name a directory, or leave out -W"}
	case o.box.given["workdir"] == fromFlag:
		return &validate.Error{Field: "--workdir", Value: o.box.workdir, Reason: "the working directory belongs to each run, which brings its own", Fix: "give it to run; a pool serves any"}
	}
	if o.ttlTime, err = validate.ParseDuration(o.ttl); err != nil {
		return validate.In("--ttl", err)
	}
	o.idleTime, err = validate.ParseDuration(o.idle)
	return validate.In("--idle-timeout", err)
}

func (o *prewarmOpts) start(c *cobra.Command) error {
	if err := o.configure(c, &o.box); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	if o.held {
		return o.holdBoxes(c)
	}
	sigs := make(chan os.Signal, 4)
	signal.Notify(sigs, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	dirs := runner.FindDirs(o.env)
	key, err := o.key(c.Context(), dirs)
	if err != nil {
		return err
	}
	done := term.NewProgress(o.err, "starting a box")
	code, err := pool.Spawn(o.args, "", sigs)
	done.Stop()
	if err != nil {
		return err
	}
	if code != 0 {
		return &exitError{code: code}
	}
	if o.global.json {
		return o.printJSON(map[string]any{"key": key, "boxes": o.n})
	}
	fmt.Fprintln(o.out, key)
	return nil
}

// spec is the Spec of each box, and of the runs that may have one.
func (o *prewarmOpts) spec(ctx context.Context, dirs runner.Dirs) (*runner.Spec, error) {
	startTime, err := validate.ParseDuration(o.box.startTimeout)
	if err != nil {
		return nil, validate.In("--start-timeout", err)
	}
	budget, cancel := runner.NewBudget(ctx, startTime)
	defer cancel()
	o.box.env, o.box.envFiles = nil, nil
	s, err := o.box.spec(o.app, budget, dirs)
	if err != nil {
		return nil, err
	}
	s.Workdir, s.Timeout = "", 0
	s.Results = true
	s.Kern, err = o.findKern(ctx, dirs)
	return s, err
}

func (o *prewarmOpts) key(ctx context.Context, dirs runner.Dirs) (string, error) {
	s, err := o.spec(ctx, dirs)
	if err != nil {
		return "", err
	}
	base, err := dirs.Usable(dirs.Cache)
	if err != nil {
		return "", err
	}
	if s.Image != "" && s.Pull != "never" && !runner.IsCachedImage(o.env, s.Image) {
		if err := runner.Pull(ctx, runner.Fetch{Kern: s.Kern, Image: s.Image, Timeout: s.PullTimeout}); err != nil {
			return "", err
		}
	}
	key, err := s.PoolKey(base)
	if errors.Is(err, runner.ErrNotPooled) {
		return "", &validate.Error{Field: "prewarm", Value: "start", Reason: err.Error(), Fix: "leave that out, or run without a pool"}
	}
	return key, err
}

// holdBoxes is the life of the process in the background.
func (o *prewarmOpts) holdBoxes(c *cobra.Command) error {
	started, err := pool.Inherited()
	if err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer cancel()
	signal.Ignore(unix.SIGPIPE)
	dirs := runner.FindDirs(o.env)
	key, err := o.key(c.Context(), dirs)
	if err != nil {
		return err
	}
	s, err := o.spec(c.Context(), dirs)
	if err != nil {
		return err
	}
	var driver []string
	if o.lang == "python" {
		driver, s.Code = interp.Driver("python", interp.Once)
	}
	s.Sweeper = []string{"--kern", s.Kern.Path, sweepName}
	place, err := pool.Open(o.env, dirs)
	if err != nil {
		return err
	}
	defer place.Close()
	place.Sweep(pool.Boxes, 0, nil)
	h, err := place.Claim(pool.Boxes, key)
	var held *pool.HeldError
	if errors.As(err, &held) {
		return &validate.Error{Field: "prewarm", Value: key, Reason: "there is a pool of exactly these boxes", Fix: "kern-sbx prewarm stop " + key + " first, to change how many it keeps"}
	}
	if err != nil {
		return err
	}
	defer h.Leave()
	meta := pool.BoxesMeta{Key: key, Image: imageName(s), Want: o.n, PID: os.Getpid(), Started: time.Now().UTC()}
	if err := h.Describe(meta); err != nil {
		return err
	}
	if err := h.Listen(); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var refusal error
	ready := func() {
		if started.Ready() != nil {
			stop() // nobody waits for it any more
		}
	}
	first := func(err error) {
		switch {
		case err != nil:
			refusal = err
			stop()
		case !o.wait:
			ready()
		}
	}
	all := func() {
		if o.wait {
			ready()
		}
	}
	h.ServeBoxes(ctx, meta, pool.BoxesOptions{
		Want: o.n, TTL: o.ttlTime, IdleTimeout: o.idleTime,
		Boot: func(ctx context.Context) (*runner.Served, error) {
			budget, cancel := runner.NewBudget(ctx, s.StartTimeout)
			defer cancel()
			own := *s
			own.Ulimits = slices.Clone(s.Ulimits)
			b, res, err := runner.Boot(ctx, budget, dirs, &own, driver)
			if err == nil && res != nil && res.Fault != nil && res.Fault.Type == runner.ExecFailed && driver != nil {
				// An image without python serves commands.
				driver = nil
				budget, cancel := runner.NewBudget(ctx, s.StartTimeout)
				defer cancel()
				own := *s
				own.Ulimits = slices.Clone(s.Ulimits)
				b, res, err = runner.Boot(ctx, budget, dirs, &own, nil)
			}
			if err == nil && res != nil {
				err = errors.New(res.Fault.Message)
			}
			return b, err
		},
	}, first, all)
	return refusal
}

func imageName(s *runner.Spec) string {
	switch {
	case s.Host != nil:
		return "host"
	case s.Rootfs != "":
		return s.Rootfs
	}
	return s.Image
}

func (a *app) prewarmStatus() *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "show the pools: boxes ready and busy, calls served, failures",
		Example: "  kern-sbx prewarm status --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			place, err := pool.Open(a.env, runner.FindDirs(a.env))
			if err != nil {
				return err
			}
			defer place.Close()
			place.Sweep(pool.Boxes, 0, nil)
			all, failed := []pool.BoxesStatus{}, false
			for _, key := range place.Names(pool.Boxes) {
				s, err := place.BoxesNow(key)
				if err != nil {
					continue // it ended meanwhile
				}
				failed = failed || s.State == "failed"
				all = append(all, s)
			}
			if a.global.json {
				err = a.printJSON(all)
			} else {
				err = a.printPools(all)
			}
			if err == nil && failed {
				err = &exitError{code: 1}
			}
			return err
		},
	}
}

func (a *app) printPools(all []pool.BoxesStatus) error {
	if len(all) == 0 {
		a.note("no pools; kern-sbx prewarm start makes one")
		return nil
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KEY\tIMAGE\tSTATE\tREADY\tBUSY\tSERVED\tMISSED\tFAILED\tAGE\tSTART\tCLAIM")
	for _, s := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d/%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\n", s.Key, term.VisibleLine(s.Image), s.State, s.Ready, s.Want, s.Busy, s.Served, s.Missed, s.Failed,
			time.Since(s.Started).Round(time.Second), latency(s.StartMS), latency(s.ClaimMS))
		if s.LastError != "" {
			fmt.Fprintf(w, "\t%s\n", strings.TrimSpace(s.LastError))
		}
	}
	return w.Flush()
}

func latency(ms float64) string {
	if ms == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f ms", ms)
}

func (a *app) prewarmStop() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:     "stop KEY... | --all",
		Short:   "end pools and their boxes",
		Example: "  kern-sbx prewarm stop --all",
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			place, err := pool.Open(a.env, runner.FindDirs(a.env))
			if err != nil {
				return err
			}
			defer place.Close()
			names := place.Names(pool.Boxes)
			switch {
			case all && len(args) > 0:
				return &validate.Error{Field: "--all", Value: args[0], Reason: "all are ended already", Fix: "leave out one of the two"}
			case all:
				args = names
			case len(args) == 0:
				return &validate.Error{Field: "KEY", Value: "", Reason: "it is not said which pool to end", Fix: "name its key, from kern-sbx prewarm status, or give --all"}
			}
			for _, key := range args {
				if !slices.Contains(names, key) {
					return &validate.Error{Field: "KEY", Value: key, Reason: "there is no such pool", Fix: "kern-sbx prewarm status lists them"}
				}
			}
			for _, key := range args {
				if err := place.StopBoxes(key); err != nil && !all {
					return &exitError{code: 1, err: err}
				}
			}
			place.Sweep(pool.Boxes, 0, nil)
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			place, err := pool.Open(a.env, runner.FindDirs(a.env))
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			defer place.Close()
			return place.Names(pool.Boxes), cobra.ShellCompDirectiveNoFileComp
		},
	}
	c.Flags().BoolVar(&all, "all", false, "end all pools")
	return c
}
