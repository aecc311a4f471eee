package cmd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/hints"
	"github.com/kern-sbx/kern-sbx/pkg/interp"
	"github.com/kern-sbx/kern-sbx/pkg/pool"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

func (a *app) kernelCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "kernel",
		Short:   "keep an interpreter with its names between command lines",
		GroupID: groupBox,
		Long: `Keep a Python interpreter in a box of its own, in the background. Its names, its
/tmp and its workspace stay from one cell to the next. A fault (timeout, oom,
killed, escape_blocked) ends it; so does an hour without a cell.`,
		Example: `  kern-sbx kernel start --image host
  kern-sbx kernel exec -c 'x = 41'
  kern-sbx kernel exec -c 'print(x + 1)'
  kern-sbx kernel repl
  kern-sbx kernel stop`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return a.unknownCommand(c, args[0])
		},
	}
	a.addSubcommands(
		c, subcommand{"start", a.kernelStart}, subcommand{"exec", a.kernelExec}, subcommand{"repl", a.kernelRepl},
		subcommand{"ls", a.kernelList}, subcommand{"logs", a.kernelLogs}, subcommand{"stop", a.kernelStop},
	)
	return c
}

// kernels opens the place of the kernels, and clears up after those that were
// killed.
func (a *app) kernels(dirs runner.Dirs) (*pool.Place, error) {
	place, err := pool.Open(a.env, dirs)
	if err == nil {
		place.Sweep(pool.Kernels, pool.GraveTime, pool.KilledGrave)
	}
	return place, err
}

func (a *app) completeKernels(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	place, err := pool.Open(a.env, runner.FindDirs(a.env))
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer place.Close()
	return place.Names(pool.Kernels), cobra.ShellCompDirectiveNoFileComp
}

// kernelName is the one that is named, or else the default.
func kernelName(args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	return pool.DefaultKernel
}

type kernelStart struct {
	runOpts
	name, idle, age string
}

func (a *app) kernelStart() *cobra.Command {
	o := &kernelStart{runOpts: runOpts{app: a}}
	c := &cobra.Command{
		Use:   "start [--name NAME]",
		Short: "start an interpreter in the background",
		Long: `Start an interpreter in a box, in the background, and print its name. The flags
are those of run; --timeout and --max-output hold for every cell that brings
none of its own.`,
		Example: `  kern-sbx kernel start --image host
  kern-sbx kernel start --name data -W ./data --memory 2g --timeout 5m
  K=$(kern-sbx kernel start --name "job-$$") && kern-sbx kernel exec "$K" -c 'print(1)'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if a.held {
				return o.hold(c)
			}
			return o.start()
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.name, "name", pool.DefaultKernel, "call it `NAME`: letters a to z, digits and dashes")
	f.StringVar(&o.lang, "lang", "python", "the language `NAME`: python")
	f.StringVar(&o.idle, "idle-timeout", "1h", "end it when nothing has run in it for `TIME`, or none")
	f.StringVar(&o.age, "max-age", "24h", "end it after `TIME`, or none")
	for _, n := range []string{"name", "lang", "idle-timeout", "max-age"} {
		f.SetAnnotation(n, flagGroup, []string{inCode})
	}
	o.box.add(c)
	for _, n := range []string{"name", "idle-timeout", "max-age"} {
		c.RegisterFlagCompletionFunc(n, cobra.NoFileCompletions)
	}
	c.RegisterFlagCompletionFunc("lang", cobra.FixedCompletions([]cobra.Completion{"python"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// start leaves the work to a process in the background.
func (o *kernelStart) start() error {
	if code, err := pool.Spawn(o.args, "", holderSignals()); err != nil || code != 0 {
		if err == nil {
			err = &exitError{code: code}
		}
		return err
	}
	var err error
	if o.global.json {
		err = o.printJSON(map[string]string{"name": o.name})
	} else {
		_, err = fmt.Fprintln(o.out, o.name)
	}
	return err
}

func holderSignals() chan os.Signal {
	sigs := make(chan os.Signal, 4)
	signal.Notify(sigs, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	return sigs
}

// times reads how long a kernel may live.
func (o *kernelStart) times() (opts pool.KernelOptions, err error) {
	for _, t := range []struct {
		flag, text string
		to         *time.Duration
	}{{"--idle-timeout", o.idle, &opts.Idle}, {"--max-age", o.age, &opts.Age}, {"--timeout", o.box.timeout, &opts.Timeout}} {
		if *t.to, err = validate.ParseDuration(t.text); err != nil {
			return opts, validate.In(t.flag, err)
		}
	}
	return opts, nil
}

func (o *kernelStart) check() error {
	if err := validate.Name(o.name); err != nil {
		return validate.In("--name", err)
	}
	if o.lang != "python" {
		if err := interp.Check(o.lang); err != nil && o.box.given["lang"] == fromFlag {
			return err
		}
		if o.box.given["lang"] == fromFlag {
			return &validate.Error{Field: "--lang", Value: o.lang, Reason: "a kernel is python only", Fix: "leave it out; kern-sbx run -c knows the other languages"}
		}
		o.lang = "python" // a configured default is for run
	}
	for _, f := range []struct {
		flag string
		on   bool
		fix  string
	}{
		{"--interactive", o.box.stdin, "give -i to kernel exec"},
		{"--tty", o.box.tty, "kern-sbx kernel repl has line editing"},
		{"--pool", o.box.given["pool"] == fromFlag && o.box.pool == runner.PoolRequire, "leave it out"},
		{"--track-files", o.box.given["track-files"] == fromFlag, "leave it out; it is for run"},
	} {
		if f.on {
			return &validate.Error{Field: f.flag, Value: "kernel start", Reason: "a kernel has a box of its own, and runs in the background", Fix: f.fix}
		}
	}
	return nil
}

// hold is the life of the process in the background.
func (o *kernelStart) hold(c *cobra.Command) error {
	a := o.app
	started, err := pool.Inherited()
	if err != nil {
		return err
	}
	sigs := holderSignals()
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) // an error that we see
	cwd, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("the current directory is not there: %w", err)
	}
	if err := a.configure(c, &o.box); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	opts, err := o.times()
	if err != nil {
		return err
	}
	dirs := runner.FindDirs(a.env)
	place, err := a.kernels(dirs)
	if err != nil {
		return err
	}
	h, err := place.Claim(pool.Kernels, o.name)
	if errors.As(err, new(*pool.HeldError)) {
		return &validate.Error{Field: "--name", Value: o.name, Reason: "there is a kernel of that name", Fix: "give another name, or end it: kern-sbx kernel stop " + o.name}
	}
	if err != nil {
		return err
	}
	meta := pool.KernelMeta{
		Name: o.name, Lang: o.lang, PID: os.Getpid(), Started: time.Now().UTC(), Args: a.args, Dir: cwd,
		TimeoutMS: opts.Timeout.Milliseconds(), IdleMS: opts.Idle.Milliseconds(), AgeMS: opts.Age.Milliseconds(),
	}
	switch from := o.box.given["timeout"]; from {
	case "":
	case fromFlag:
		meta.TimeoutFrom = "kernel start --timeout"
	default:
		meta.TimeoutFrom = from
	}
	box, err := o.boot(dirs, sigs, opts, h.Log(), &meta)
	if err != nil {
		h.Leave()
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		<-sigs
		stop()
	}()
	if err = h.Describe(meta); err == nil {
		err = h.Listen()
	}
	if err == nil {
		err = started.Ready()
	}
	if err != nil {
		box.Close()
		h.Leave()
		return err
	}
	pool.NewKernel(h, box, meta, opts).Serve(ctx)
	return nil
}

// boot starts the box with the interpreter in it.
func (o *kernelStart) boot(dirs runner.Dirs, sigs chan os.Signal, opts pool.KernelOptions, log *pool.Log, meta *pool.KernelMeta) (*runner.Served, error) {
	a := o.app
	startTime, err := validate.ParseDuration(o.box.startTimeout)
	if err != nil {
		return nil, validate.In("--start-timeout", err)
	}
	early, cancelEarly := context.WithCancelCause(context.Background())
	defer cancelEarly(nil)
	budget, cancel := runner.NewBudget(early, startTime)
	defer cancel()
	prepared, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case sig := <-sigs:
			cancelEarly(&interruptedError{sig.(unix.Signal)})
		case <-prepared:
		}
	}()
	s, err := o.box.spec(a, budget, dirs)
	if err == nil {
		s.Kern, err = a.findKern(early, dirs)
	}
	close(prepared)
	<-watched
	var in *interruptedError
	if errors.As(context.Cause(early), &in) {
		return nil, &exitError{code: 128 + int(in.signal), err: in}
	}
	if err != nil {
		return nil, err
	}
	s.Kernel, s.Results = true, true
	interp.PythonEnv(s)
	driver, files := interp.Driver(o.lang, interp.Kernel)
	s.Code = files
	// The time of a cell is its own; kern's timer ends the box at the latest.
	s.Timeout = opts.Age
	s.Signals, s.Sweeper, s.Log = sigs, []string{sweepName}, log
	if o.box.pycCache == "auto" {
		s.Compiler = []string{"--kern", s.Kern.Path, compileName}
	}
	s.Progress = func(label string) func() {
		if a.global.quiet {
			return func() {}
		}
		return term.NewProgress(a.err, label).Stop
	}
	a.noteHostNetwork(s)
	box, res, err := runner.Boot(early, budget, dirs, s, driver)
	if err != nil {
		return nil, err
	}
	if res != nil {
		for _, n := range res.Notes {
			a.say("note", n)
		}
		x := &exitError{code: refused}
		if res.Fault == nil || res.Fault.Type == runner.Killed {
			x.code = res.Status
		}
		if res.Fault != nil {
			a.say(string(res.Fault.Type), res.Fault.Message)
		}
		s.Argv = driver
		if h, ok := o.hint(s, &interp.Program{Lang: o.lang}, res, nil, &show{}); ok && !a.global.quiet {
			x.hint = hintText(h)
		}
		return nil, x
	}
	limits, why := box.Limits()
	o.reportUncapped(dirs, &runner.Result{Limits: limits, LimitsReason: why})
	meta.Root, meta.Workspace = imageName(s), s.Workspace
	meta.MaxOutput, meta.Memory, meta.PIDs = int64(s.MaxOutput), int64(s.Memory), s.PIDs
	return box, nil
}

type kernelExec struct {
	runOpts
	timeout, maxOutput   string
	cells                string
	stdin, wait          bool
	restart, stopOnError bool
	name                 string
	cellTime             *time.Duration // nil: the kernel's
	most                 validate.Size
	mostGiven            bool

	flags  *pflag.FlagSet
	dirs   runner.Dirs
	place  *pool.Place
	client *pool.Client
	sigs   chan os.Signal
}

func (a *app) kernelExec() *cobra.Command {
	o := &kernelExec{runOpts: runOpts{app: a}}
	c := &cobra.Command{
		Use:   "exec [NAME] -c CODE [ARG...] | -f FILE [ARG...] | --cells FILE",
		Short: "run a cell in a kernel",
		Long: `Run code in the names of a kernel, and wait for its end. It exits as run does: with
the code of the cell, 124 timeout, 137 oom or killed, 159 forbidden system call;
125 when it was not run. A fault ends the kernel.

Ctrl-C interrupts the cell and keeps the kernel; the third one ends the kernel.
When kern-sbx itself is ended while a cell runs, the cell is interrupted, and the
kernel is ended if the cell has not ended 30 s later.`,
		Example: `  kern-sbx kernel exec -c 'x = 41'
  kern-sbx kernel exec data -f step.py one two
  kern-sbx kernel exec data --json -c 'x'
  kern-sbx kernel exec data --json --cells cells.jsonl
  echo 'print(x)' | kern-sbx kernel exec -f -`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, args) },
		ValidArgsFunction: func(c *cobra.Command, args []string, to string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return a.completeKernels(c, args, to)
		},
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.SortFlags = false
	f.StringVarP(&o.code, "code", "c", "", "run `CODE`; what follows are its arguments")
	f.StringVarP(&o.file, "file", "f", "", "run `FILE`, or - for standard input; what follows are its arguments")
	f.StringVar(&o.cells, "cells", "", "run the cells of `FILE`, or - for standard input: one {\"code\": ..., \"timeout\": ...} a line")
	f.BoolVar(&o.stopOnError, "stop-on-error", false, "with --cells: stop at the first cell that fails")
	f.StringVar(&o.outDir, "out", "", "write what the code displays, and its last value, as files into `DIR`")
	f.BoolVarP(&o.stdin, "interactive", "i", false, "give standard input to the cell")
	f.StringVar(&o.timeout, "timeout", "", "end the cell, and the kernel, after `TIME`, or none (default: that of kernel start)")
	f.StringVar(&o.maxOutput, "max-output", "", "pass on `SIZE` of each stream (default: that of kernel start)")
	f.BoolVar(&o.wait, "wait", true, "wait while the kernel runs another cell")
	f.BoolVar(&o.restart, "restart", false, "when the kernel is dead: start it again with the same flags, and run this")
	for _, n := range []string{"code", "file", "cells", "stop-on-error", "out", "interactive", "timeout", "max-output", "wait", "restart"} {
		f.SetAnnotation(n, flagGroup, []string{inCode})
	}
	c.SetFlagErrorFunc(a.kernelFlagError)
	for _, n := range []string{"code", "timeout", "max-output"} {
		c.RegisterFlagCompletionFunc(n, cobra.NoFileCompletions)
	}
	c.RegisterFlagCompletionFunc("out", completeDirs)
	return c
}

// kernelFlagError refuses the flags of a box by name: a kernel has its box, and
// no call can change that.
func (a *app) kernelFlagError(c *cobra.Command, err error) error {
	name, ok := strings.CutPrefix(err.Error(), "unknown flag: --")
	short := ""
	if !ok {
		// "unknown shorthand flag: 'm' in -m"
		if rest, yes := strings.CutPrefix(err.Error(), "unknown shorthand flag: '"); yes && rest != "" {
			short = rest[:1]
		}
	}
	if ok || short != "" {
		var b boxFlags
		box := &cobra.Command{}
		b.add(box)
		var f *pflag.Flag
		if ok {
			f = box.Flags().Lookup(name)
		} else {
			f = box.Flags().ShorthandLookup(short)
		}
		if f != nil {
			return &validate.Error{Field: "--" + f.Name, Value: "kernel " + c.Name(), Reason: "the box of a kernel is made by kernel start, and every cell has it", Fix: "kern-sbx kernel start --" + f.Name + " ..."}
		}
	}
	return a.flagError(c, err)
}

// parse takes the kernel's name, which may stand before the flags, off the
// command line. True: help was asked for.
func (o *kernelExec) parse(c *cobra.Command, args []string) (help bool, err error) {
	f := c.Flags()
	has := func() bool { return f.Changed("code") || f.Changed("file") || f.Changed("cells") }
	o.name = pool.DefaultKernel
	if !has() && len(args) > 0 {
		o.name = args[0]
		if err := f.Parse(args[1:]); err != nil {
			return false, o.kernelFlagError(c, err)
		}
		args = f.Args()
		if h := f.Lookup("help"); h != nil && h.Changed {
			return true, c.Help()
		}
	}
	o.argv, o.hasCode, o.hasFile = args, f.Changed("code"), f.Changed("file")
	if err := validate.Name(o.name); err != nil {
		return false, validate.In("NAME", err)
	}
	switch n := count(o.hasCode, o.hasFile, f.Changed("cells")); {
	case n == 0:
		return false, &exitError{code: refused, err: errors.New("nothing to run: give code with -c, a file with -f, or several cells with --cells"), hint: "kern-sbx kernel exec --help has examples"}
	case n > 1:
		return false, &validate.Error{Field: "-c, -f, --cells", Value: o.name, Reason: "each of them gives code", Fix: "give one"}
	}
	if f.Changed("cells") {
		for _, x := range []struct {
			flag string
			on   bool
			why  string
		}{
			{"--result", o.global.result != "", "there is one result for each cell; --json prints them"},
			{"--interactive", o.stdin, "the cells have no standard input"},
			{"ARG", len(o.argv) > 0, "the cells have no arguments"},
		} {
			if x.on {
				return false, &validate.Error{Field: x.flag, Value: "--cells", Reason: x.why, Fix: "leave it out"}
			}
		}
	} else if o.stopOnError {
		return false, &validate.Error{Field: "--stop-on-error", Value: "true", Reason: "there is one cell only", Fix: "it goes with --cells"}
	}
	if o.hasFile && o.file == "-" && o.stdin {
		return false, &validate.Error{Field: "--file", Value: "-", Reason: "standard input holds the code, so it cannot go to the cell as well", Fix: "leave out -i, or put the code in a file"}
	}
	for _, w := range o.argv {
		if strings.ContainsRune(w, 0) {
			return false, &validate.Error{Field: "ARG", Value: w, Reason: "a zero byte in an argument"}
		}
	}
	return false, nil
}

func count(all ...bool) (n int) {
	for _, b := range all {
		if b {
			n++
		}
	}
	return n
}

func firstField(s string) string {
	s, _, _ = strings.Cut(s, " ")
	s, _, _ = strings.Cut(s, "=")
	return s
}

// settings reads what the command line says about every cell.
func (o *kernelExec) settings(c *cobra.Command) error {
	o.flags = c.Flags()
	if err := o.configure(c, &o.box); err != nil {
		return err
	}
	if o.box.given["timeout"] == fromFlag {
		d, err := validate.ParseDuration(o.timeout)
		if err != nil {
			return validate.In("--timeout", err)
		}
		o.cellTime = &d
	}
	if o.box.given["max-output"] == fromFlag {
		var err error
		if o.most, err = validate.ParseLimit(o.maxOutput); err != nil {
			return validate.In("--max-output", err)
		}
		o.mostGiven = true
	}
	return nil
}

func (o *kernelExec) run(c *cobra.Command, args []string) error {
	help, err := o.parse(c, args)
	if help || err != nil {
		return err
	}
	if err := o.settings(c); err != nil {
		return err
	}
	o.sigs = make(chan os.Signal, 8)
	notify := []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGQUIT}
	if !signal.Ignored(unix.SIGHUP) { // nohup
		notify = append(notify, unix.SIGHUP)
	}
	signal.Notify(o.sigs, notify...)
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) // an error that we see
	o.dirs = runner.FindDirs(o.env)
	if o.place, err = pool.Open(o.env, o.dirs); err != nil {
		return err
	}
	defer o.place.Close()
	if c.Flags().Changed("cells") {
		return o.runCells()
	}
	return o.runOne()
}

// connect finds the kernel, or starts it again.
func (o *kernelExec) connect() error {
	client, err := o.place.Kernel(o.name)
	for range 100 {
		if !errors.As(err, new(*pool.StartingError)) {
			break
		}
		time.Sleep(20 * time.Millisecond)
		client, err = o.place.Kernel(o.name)
	}
	var dead *pool.DeadKernelError
	switch {
	case errors.As(err, new(*pool.NoneError)):
		err = noKernel(o.name)
	case errors.As(err, &dead) && o.restart:
		if err = o.again(dead); err == nil {
			client, err = o.place.Kernel(o.name)
		}
	}
	o.client = client
	return err
}

func noKernel(name string) error {
	line := "kern-sbx kernel start"
	if name != pool.DefaultKernel {
		line += " --name " + name
	}
	return &validate.Error{Field: "NAME", Value: name, Reason: "there is no kernel of that name", Fix: line + " starts one"}
}

// again starts a dead kernel with the flags that it had.
func (o *kernelExec) again(dead *pool.DeadKernelError) error {
	m := &dead.Meta
	if len(m.Args) == 0 || !o.place.AwaitFree(o.name) {
		return dead
	}
	o.say("note", dead.Grave.Sentence(o.name)+"; a fresh one is started")
	code, err := pool.Spawn(m.Args, m.Dir, o.sigs)
	if err == nil && code != 0 {
		err = &exitError{code: code}
	}
	return err
}

// runOne runs the code of -c or -f.
func (o *kernelExec) runOne() error {
	budget, cancel := runner.NewBudget(context.Background(), runner.DefaultStartTimeout)
	defer cancel()
	cell := &pool.Cell{Code: []byte(o.code), Args: o.argv}
	if o.hasFile {
		early, cancelEarly := context.WithCancelCause(context.Background())
		read := make(chan struct{})
		go func() {
			select {
			case sig := <-o.sigs:
				cancelEarly(&interruptedError{sig.(unix.Signal)})
			case <-read:
			}
		}()
		var err error
		cell.Code, cell.File, err = readCode(early, o.app, budget, o.file)
		close(read)
		var in *interruptedError
		if errors.As(context.Cause(early), &in) {
			return &exitError{code: 128 + int(in.signal), err: in}
		}
		cancelEarly(nil)
		if err != nil {
			return err
		}
	}
	output, err := o.openResult(budget)
	if err != nil {
		return err
	}
	if output != nil {
		defer output.Close()
	}
	saved, err := openOut(budget, o.outDir)
	if err != nil {
		return err
	}
	if saved != nil {
		defer saved.Close()
	}
	capture := o.global.json || output != nil
	err = o.connect()
	var done *finished
	if err == nil {
		defer func() { o.client.Close() }()
		done, err = o.runCell(cell, capture)
		var dead *pool.DeadKernelError
		if errors.As(err, &dead) && o.restart {
			// It died between our connection and the cell.
			o.client.Close()
			if err = o.again(dead); err == nil {
				err = o.connect()
			}
			if err == nil {
				done, err = o.runCell(cell, capture)
			}
		}
	}
	var res *runner.Result
	if err == nil {
		defer done.streams.Close()
		res = done.res
		if saved != nil {
			if werr := saveResults(saved, done.number, res.Results); werr != nil {
				o.failed(res, "the results could not be written: "+werr.Error())
			}
		}
	} else {
		res = runner.Refused(err)
	}
	if output != nil {
		if werr := output.Write(res.WriteJSON); werr != nil {
			o.failed(res, fmt.Sprintf("the result could not be written to %s: %v", o.global.result, werr))
		}
	}
	if o.global.json {
		if werr := res.WriteJSON(o.out); errors.Is(werr, unix.EPIPE) {
			return &exitError{code: 141}
		} else if werr != nil {
			return fmt.Errorf("the result could not be written: %w", werr)
		}
	}
	if err != nil {
		return err
	}
	done.report()
	if res.Status == 0 {
		return nil
	}
	return &exitError{code: res.Status}
}

// openResult opens the file of --result before anything runs; nil without it.
func (o *kernelExec) openResult(budget *runner.Budget) (output *workspace.Output, err error) {
	if o.global.result == "" {
		return nil, nil
	}
	err = budget.Touch(o.global.result, func() (e error) {
		output, e = workspace.OpenOutput(o.global.result)
		return validate.In("--result", e)
	})
	return output, err
}

// failed says that something of ours went wrong after the code had run.
func (o *kernelExec) failed(res *runner.Result, why string) {
	o.say("error", why)
	if res.Status == 0 {
		res.Status, res.OK = 1, false
	}
}

// finished is a cell that has run.
type finished struct {
	res     *runner.Result
	number  int
	over    bool
	streams *runner.Streams
	report  func()
}

// giveUp is how long a cell may take to heed an interrupt when we are told to
// end.
const giveUp = 2 * time.Second

// runCell runs one cell in the kernel, and passes on what it prints.
func (o *kernelExec) runCell(cell *pool.Cell, capture bool) (*finished, error) {
	show, err := newShow(o.app)
	if err != nil {
		return nil, err
	}
	m := &o.client.Meta
	s := &runner.Spec{
		Stdout: show.out, Stderr: show.err, Capture: capture, MaxOutput: validate.Size(m.MaxOutput),
		Memory: validate.Size(m.Memory), Timeout: time.Duration(m.TimeoutMS) * time.Millisecond, Image: m.Root,
		Argv: []string{"python3"},
	}
	if o.mostGiven {
		s.MaxOutput = o.most
	}
	if o.stdin {
		s.Stdin = o.in
	}
	dir := ""
	if capture {
		if dir, err = o.dirs.Usable(o.dirs.Cache); err != nil {
			return nil, err
		}
	}
	t, err := runner.OpenStreams(s, dir)
	if err != nil {
		return nil, err
	}
	if cell.Timeout == nil {
		cell.Timeout = o.cellTime
	}
	if cell.Timeout != nil {
		s.Timeout = *cell.Timeout
	}
	cell.Stdin, cell.Stdout, cell.Stderr, cell.Wait, cell.Sent = t.Stdin, t.Stdout, t.Stderr, o.wait, t.Sent
	cell.Queued = func(ahead int) {
		o.note(fmt.Sprintf("kernel %s is busy; %d before this one", o.name, ahead))
	}
	out, closed, err := o.await(cell, t)
	if err != nil {
		t.Close()
		return nil, err
	}
	res := out.Result
	t.Finish(context.Background(), res, out.Over)
	show.end()
	if closed && res.Fault == nil {
		res.Status, res.OK = 141, false
	}
	hint, found := o.reporter(m, cell, s).hint(s, &interp.Program{Lang: m.Lang}, res, nil, show)
	if found {
		if f := o.flags.Lookup(strings.TrimLeft(firstField(hint.Flag), "-")); f == nil && strings.HasPrefix(hint.Flag, "--") {
			hint.Flag = "kern-sbx kernel start " + hint.Flag // a flag of the box
		}
		res.Hints = append(res.Hints, runner.Hint{ID: hint.ID, Text: hint.Why, Flag: hint.Flag})
	}
	return &finished{res, out.Number, out.Over, t, func() { o.reportCell(m, cell, s, out, hint, found) }}, nil
}

// await waits for the end of a cell, and passes on what signals ask for.
func (o *kernelExec) await(cell *pool.Cell, t *runner.Streams) (out *pool.Outcome, closed bool, err error) {
	type answer struct {
		out *pool.Outcome
		err error
	}
	c := make(chan answer, 1)
	client := o.client
	go func() {
		out, err := client.Exec(cell)
		c <- answer{out, err}
	}()
	open, stop := t.UntilGone(context.Background())
	defer stop()
	gone := open.Done()
	var patience <-chan time.Time
	var asked unix.Signal
	for interrupts := 0; ; {
		select {
		case got := <-c:
			if errors.Is(got.err, pool.ErrInterrupted) {
				if asked == 0 {
					asked = unix.SIGINT
				}
				return nil, closed, &exitError{code: 128 + int(asked), err: got.err}
			}
			return got.out, closed, got.err
		case <-gone:
			gone, closed = nil, true
			client.Signal(unix.SIGINT)
			asked, patience = unix.SIGPIPE, time.After(giveUp)
		case sig := <-o.sigs:
			if sig == unix.SIGINT && asked == 0 {
				interrupts++
				switch {
				case interrupts <= 2:
					client.Signal(unix.SIGINT)
				case interrupts == 3:
					client.Signal(unix.SIGTERM) // and so ends the kernel
				default:
					return nil, closed, &exitError{code: 130, err: fmt.Errorf("kernel %s does not answer", o.name)}
				}
				continue
			}
			if asked != 0 {
				return nil, closed, &exitError{code: 128 + int(asked)}
			}
			asked, patience = sig.(unix.Signal), time.After(giveUp)
			client.Signal(unix.SIGINT)
		case <-patience:
			x := &exitError{code: 128 + int(asked)}
			if asked != unix.SIGPIPE {
				x.err = fmt.Errorf("ended by %s; the cell did not end, and the kernel is ended with it if it has not in %s", unix.SignalName(asked), 30*time.Second)
			}
			return nil, closed, x
		}
	}
}

// reporter says what a person should know of a cell, as run does.
func (o *kernelExec) reporter(m *pool.KernelMeta, cell *pool.Cell, s *runner.Spec) *runOpts {
	r := &runOpts{app: o.app, file: o.file}
	r.box.limits = runner.LimitsOff // said at the start of the kernel
	r.box.timeout, r.box.given = s.Timeout.String(), map[string]string{}
	switch {
	case cell.Timeout != nil:
		r.box.given["timeout"] = fromFlag
	case m.TimeoutFrom != "":
		r.box.given["timeout"] = m.TimeoutFrom
	}
	return r
}

func (o *kernelExec) reportCell(m *pool.KernelMeta, cell *pool.Cell, s *runner.Spec, out *pool.Outcome, hint hints.Hint, found bool) {
	o.reporter(m, cell, s).report(s, o.dirs, out.Result, hint, found)
	if !out.Over {
		return
	}
	left := "its names and its private workspace are gone"
	if m.Workspace != "" {
		left = "its names are gone, and " + m.Workspace + " is still there"
	}
	o.note(fmt.Sprintf("kernel %s has ended with this cell; %s", o.name, left))
}

// cellDoc is one line of --cells.
type cellDoc struct {
	Code    *string          `json:"code"`
	Timeout *json.RawMessage `json:"timeout"`
}

// runCells runs one cell for each line, and answers each before it reads the
// next, so that a program can hold a conversation.
func (o *kernelExec) runCells() error {
	budget, cancel := runner.NewBudget(context.Background(), runner.DefaultStartTimeout)
	defer cancel()
	lines, err := o.openCells(budget)
	if err != nil {
		return err
	}
	saved, err := openOut(budget, o.outDir)
	if err != nil {
		return err
	}
	if saved != nil {
		defer saved.Close()
	}
	if err := o.connect(); err != nil {
		return err
	}
	defer func() { o.client.Close() }()
	status := 0
	for n := 1; ; n++ {
		line, err := o.nextLine(lines)
		if err != nil {
			return err
		}
		if line == nil {
			break
		}
		if len(strings.TrimSpace(string(line))) == 0 {
			continue
		}
		cell, err := parseCell(line, n)
		if err != nil {
			return err
		}
		done, err := o.runCell(cell, o.global.json)
		if err != nil {
			return err
		}
		res := done.res
		if saved != nil {
			if werr := saveResults(saved, done.number, res.Results); werr != nil {
				o.failed(res, "the results could not be written: "+werr.Error())
			}
		}
		if o.global.json {
			err = writeLine(o.out, res)
		}
		done.streams.Close()
		if errors.Is(err, unix.EPIPE) {
			return &exitError{code: 141}
		}
		if err != nil {
			return fmt.Errorf("the result could not be written: %w", err)
		}
		done.report()
		if status == 0 {
			status = res.Status
		}
		if done.over || res.Fault != nil || res.Status == 141 {
			status = res.Status
			break
		}
		if res.Status != 0 && o.stopOnError {
			break
		}
	}
	if status == 0 {
		return nil
	}
	return &exitError{code: status}
}

// lineReader reads lines while somebody may be interrupted.
type lineReader struct {
	lines chan []byte
	err   error
}

// read hands out one line after the other. err is set before the last.
func (r *lineReader) read(in io.Reader) {
	defer close(r.lines)
	b := bufio.NewReaderSize(in, 64<<10)
	for {
		var line []byte
		for {
			part, err := b.ReadSlice('\n')
			line = append(line, part...)
			if len(line) > codeLimit {
				r.err = &validate.Error{Field: "--cells", Value: "a line", Reason: "more than 64 MiB", Fix: "give the code in smaller cells"}
				return
			}
			if errors.Is(err, bufio.ErrBufferFull) {
				continue
			}
			if err != nil && err != io.EOF {
				r.err = fmt.Errorf("--cells: %s", reason(err))
				return
			}
			if len(line) > 0 {
				r.lines <- line
			}
			if err == io.EOF {
				return
			}
			break
		}
	}
}

// writeLine writes a result as one line.
func writeLine(w io.Writer, res *runner.Result) error {
	var doc, line bytes.Buffer
	if err := res.WriteJSON(&doc); err != nil {
		return err
	}
	if err := json.Compact(&line, doc.Bytes()); err != nil {
		return err
	}
	line.WriteByte('\n')
	_, err := line.WriteTo(w)
	return err
}

func (o *kernelExec) openCells(budget *runner.Budget) (*lineReader, error) {
	in := io.Reader(o.in)
	if o.cells != "-" {
		var f *os.File
		err := budget.Touch(o.cells, func() (err error) {
			if f, err = os.Open(o.cells); err != nil {
				return &validate.Error{Field: "--cells", Value: o.cells, Reason: reason(err), Fix: "name a file with one JSON object a line, or - for standard input"}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		in = f
	}
	r := &lineReader{lines: make(chan []byte)}
	go r.read(in)
	return r, nil
}

func (o *kernelExec) nextLine(r *lineReader) ([]byte, error) {
	select {
	case line, ok := <-r.lines:
		if !ok {
			return nil, r.err
		}
		return line, nil
	case sig := <-o.sigs:
		return nil, &exitError{code: 128 + int(sig.(unix.Signal))}
	}
}

func parseCell(line []byte, n int) (*pool.Cell, error) {
	bad := func(why string) error {
		return &validate.Error{Field: "--cells", Value: string(line), Reason: fmt.Sprintf("line %d %s", n, why), Fix: `write {"code": "print(1)"} or {"code": "...", "timeout": "10s"}`}
	}
	d := json.NewDecoder(strings.NewReader(string(line)))
	d.DisallowUnknownFields()
	var doc cellDoc
	if err := d.Decode(&doc); err != nil {
		return nil, bad("is not a cell in JSON")
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, bad("holds more than one value")
	}
	if doc.Code == nil {
		return nil, bad("has no code")
	}
	cell := &pool.Cell{Code: []byte(*doc.Code)}
	if doc.Timeout != nil && string(*doc.Timeout) != "null" {
		var text string
		if json.Unmarshal(*doc.Timeout, &text) != nil {
			return nil, bad(`has a timeout that is no text such as "10s"`)
		}
		t, err := validate.ParseDuration(text)
		if err != nil {
			return nil, validate.In(fmt.Sprintf("--cells, line %d, timeout", n), err)
		}
		cell.Timeout = &t
	}
	return cell, nil
}

// kernelDoc is one kernel in `kernel ls --json`.
type kernelDoc struct {
	Name string `json:"name"`
	Lang string `json:"lang"`
	// Image is the image, the directory of --rootfs, or host.
	Image string `json:"image"`
	// State is idle, busy, dead, starting, or silent (it does not answer).
	State string `json:"state"`
	// Reason is why it is dead, "" while it is not.
	Reason string `json:"reason"`
	PID    int    `json:"pid"`
	Cells  int    `json:"cells"`
	Queued int    `json:"queued"`
	// Started is null while it is being started.
	Started *time.Time `json:"started"`
	IdleMS  int64      `json:"idle_ms"`
	// IdleTimeoutMS and MaxAgeMS end it; 0 for never.
	IdleTimeoutMS int64 `json:"idle_timeout_ms"`
	MaxAgeMS      int64 `json:"max_age_ms"`
	// Memory is the most it had had at the end of its last cell, in bytes, null
	// where that is not known; MemoryLimit is its cap, 0 for none.
	Memory      *int64 `json:"memory"`
	MemoryLimit int64  `json:"memory_limit"`
	// Workspace is the directory that is kept, "" for a private one.
	Workspace string `json:"workspace"`
}

func (a *app) kernelList() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "list the kernels, dead ones too",
		Long:    "List the kernels: what each is doing, its age and its most memory so far, and when it\nends by itself. It is told of a dead one for a day what ended it.",
		Example: "  kern-sbx kernel ls\n  kern-sbx kernel ls --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			dirs := runner.FindDirs(a.env)
			place, err := a.kernels(dirs)
			if err != nil {
				return err
			}
			defer place.Close()
			names := place.Names(pool.Kernels)
			docs := make([]*kernelDoc, len(names))
			var all sync.WaitGroup
			for i, n := range names {
				all.Go(func() { docs[i] = describeKernel(place, n) })
			}
			all.Wait()
			docs = slices.DeleteFunc(docs, func(d *kernelDoc) bool { return d == nil })
			if slices.ContainsFunc(docs, func(d *kernelDoc) bool { return d.State == "dead" }) {
				runner.Sweep(dirs) // its box, if its process was killed
			}
			if a.global.json {
				return a.printJSON(docs)
			}
			return a.printKernels(docs)
		},
	}
}

func describeKernel(place *pool.Place, name string) *kernelDoc {
	e, err := place.Look(pool.Kernels, name)
	if err != nil {
		return nil
	}
	var m pool.KernelMeta
	json.Unmarshal(e.Meta, &m)
	d := &kernelDoc{
		Name: name, Lang: m.Lang, Image: m.Root, PID: m.PID, IdleTimeoutMS: m.IdleMS, MaxAgeMS: m.AgeMS,
		MemoryLimit: m.Memory, Workspace: m.Workspace,
	}
	if !m.Started.IsZero() {
		d.Started = &m.Started
	}
	switch {
	case !e.Alive && e.Meta == nil:
		return nil
	case !e.Alive:
		g := pool.KernelGrave{Reason: "its background process was killed"}
		json.Unmarshal(e.Grave, &g)
		d.State, d.Reason, d.Cells = "dead", g.Reason, g.Cell
		return d
	case e.Meta == nil:
		d.State = "starting"
		return d
	}
	d.State = "silent"
	c, err := place.Kernel(name)
	if err != nil {
		return d
	}
	defer c.Close()
	if s, err := c.Status(); err == nil {
		d.State, d.Reason, d.Cells, d.Queued, d.IdleMS, d.Memory = s.State, s.Ended, s.Cells, s.Queued, s.IdleMS, s.Memory
	}
	return d
}

func (a *app) printKernels(docs []*kernelDoc) error {
	if len(docs) == 0 {
		a.note("there are no kernels; kern-sbx kernel start makes one")
		return nil
	}
	w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tLANG\tIMAGE\tSTATE\tCELLS\tAGE\tENDS\tMEMORY\tWORKSPACE")
	for _, d := range docs {
		age, ends, memory, ws := "-", "-", "-", "private"
		if d.Started != nil {
			lived := time.Since(*d.Started)
			age = round(lived)
			var left []time.Duration
			if d.IdleTimeoutMS > 0 && d.State == "idle" {
				left = append(left, time.Duration(d.IdleTimeoutMS-d.IdleMS)*time.Millisecond)
			}
			if d.MaxAgeMS > 0 {
				left = append(left, time.Duration(d.MaxAgeMS)*time.Millisecond-lived)
			}
			if ends = "never"; len(left) > 0 {
				ends = "in " + round(slices.Min(left))
			}
		}
		if d.Memory != nil {
			memory = validate.Size(*d.Memory).Human()
		}
		if d.Workspace != "" {
			ws = d.Workspace
		}
		state := d.State
		if d.State == "dead" {
			age, ends, state = "-", "-", "dead: "+d.Reason
		}
		cells := fmt.Sprint(d.Cells)
		if d.Queued > 0 {
			cells += fmt.Sprintf("+%d", d.Queued)
		}
		row := []string{d.Name, d.Lang, d.Image, state, cells, age, ends, memory, ws}
		for i := range row {
			row[i] = term.VisibleLine(row[i])
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// round is a time as a person says it.
func round(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < 100*time.Minute:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	}
	return fmt.Sprintf("%dh", int(d.Hours()))
}

func (a *app) kernelLogs() *cobra.Command {
	return &cobra.Command{
		Use:   "logs [NAME]",
		Short: "show what a kernel printed outside of its cells",
		Long: `Show what the box of a kernel printed that belongs to no cell: threads and processes
that go on between them. The last half MiB at least is kept, of a dead kernel too.`,
		Example:           "  kern-sbx kernel logs\n  kern-sbx kernel logs data | tail",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeKernels,
		RunE: func(_ *cobra.Command, args []string) error {
			name := kernelName(args)
			if err := validate.Name(name); err != nil {
				return validate.In("NAME", err)
			}
			signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
			place, err := a.kernels(runner.FindDirs(a.env))
			if err != nil {
				return err
			}
			defer place.Close()
			sh := &show{}
			err = place.CopyLog(pool.Kernels, name, sh.stream(a, a.out))
			sh.end()
			switch {
			case errors.As(err, new(*pool.NoneError)):
				return noKernel(name)
			case errors.Is(err, unix.EPIPE):
				return &exitError{code: 141}
			}
			return err
		},
	}
}

func (a *app) kernelStop() *cobra.Command {
	all := false
	c := &cobra.Command{
		Use:   "stop [NAME]",
		Short: "end a kernel, or forget a dead one",
		Long: `End a kernel with all that is in its box; a cell that runs is asked to end first, and
has 2 s. One that does not answer is killed. A workspace of -W stays. It returns
when nothing of the kernel is left.`,
		Example:           "  kern-sbx kernel stop\n  kern-sbx kernel stop data\n  kern-sbx kernel stop --all",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeKernels,
		RunE: func(_ *cobra.Command, args []string) error {
			if all && len(args) > 0 {
				return &validate.Error{Field: "--all", Value: args[0], Reason: "a name is given as well", Fix: "give one of the two"}
			}
			dirs := runner.FindDirs(a.env)
			place, err := a.kernels(dirs)
			if err != nil {
				return err
			}
			defer place.Close()
			defer runner.Sweep(dirs) // for one whose process was killed
			if !all {
				name := kernelName(args)
				err := place.StopKernel(name)
				switch {
				case errors.As(err, new(*pool.NoneError)):
					return noKernel(name)
				case err != nil && !errors.As(err, new(*validate.Error)):
					return &exitError{code: 1, err: err}
				}
				return err
			}
			names := place.Names(pool.Kernels)
			errs := make([]error, len(names))
			var wait sync.WaitGroup
			for i, n := range names {
				wait.Go(func() {
					if errs[i] = place.StopKernel(n); errors.As(errs[i], new(*pool.NoneError)) {
						errs[i] = nil
					}
				})
			}
			wait.Wait()
			for _, err := range errs {
				if err != nil {
					a.say("error", err.Error())
				}
			}
			if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
				return &exitError{code: 1}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&all, "all", false, "end all kernels, and forget all dead ones")
	c.Flags().SetAnnotation("all", flagGroup, []string{inCode})
	return c
}
