package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/hints"
	"github.com/kern-sbx/kern-sbx/pkg/hostroot"
	"github.com/kern-sbx/kern-sbx/pkg/interp"
	"github.com/kern-sbx/kern-sbx/pkg/kernbin"
	"github.com/kern-sbx/kern-sbx/pkg/pool"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

type runOpts struct {
	*app
	box              boxFlags
	code, file, lang string
	outDir           string
	hasCode, hasFile bool
	plan             bool
	argv             []string
}

func (a *app) runCommand() *cobra.Command {
	o := &runOpts{app: a}
	c := &cobra.Command{
		Use:     "run [flags] [--] CMD [ARG...] | -c CODE [ARG...] | -f FILE [ARG...]",
		Short:   "run a command or a piece of code in a fresh box",
		GroupID: groupBox,
		Long: `Run a command, or code, in a fresh box and pass its output on as it comes.
Exits as the command does; 124 timeout, 137 oom or killed, 159 forbidden system
call, 126/127 not executable/not found, 125 the box never started.`,
		Example: `  kern-sbx run -c 'print(sum(range(100)))'
  kern-sbx run --image host -f check.sh ./a ./b
  kern-sbx run --image node:22 -W . --timeout 5m -- npm test
  echo '{"a":1}' | kern-sbx run -i --image host -- python3 -m json.tool`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			o.argv = args
			o.hasCode, o.hasFile = c.Flags().Changed("code"), c.Flags().Changed("file")
			return o.run(c)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.SortFlags = false
	f.StringVarP(&o.code, "code", "c", "", "run `CODE`; what follows are its arguments")
	f.StringVarP(&o.file, "file", "f", "", "run `FILE`, or - for standard input; what follows are its arguments")
	f.StringVar(&o.lang, "lang", "", "run it as `NAME`: python, node, bash, sh (else: by the file's ending)")
	f.StringVar(&o.outDir, "out", "", "write what the code displays, and its last value, as files into `DIR`")
	f.BoolVar(&o.plan, "plan", false, "show what would be started, and start nothing")
	for _, n := range []string{"code", "file", "lang", "out"} {
		f.SetAnnotation(n, flagGroup, []string{inCode})
	}
	f.SetAnnotation("plan", flagGroup, []string{inAdvanced})
	o.box.add(c)
	c.RegisterFlagCompletionFunc("code", cobra.NoFileCompletions)
	c.RegisterFlagCompletionFunc("lang", cobra.FixedCompletions(interp.Languages(), cobra.ShellCompDirectiveNoFileComp))
	return c
}

// run is one `kern-sbx run`, from the flags to the exit code.
func (o *runOpts) run(c *cobra.Command) error {
	a := o.app
	sigs := make(chan os.Signal, 4)
	notify := []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGQUIT}
	if !signal.Ignored(unix.SIGHUP) { // nohup
		notify = append(notify, unix.SIGHUP)
	}
	signal.Notify(sigs, notify...)
	// A write to a closed pipe shall be an error that we see, and not the end
	// of this process with the box still there. Caught, not ignored: what is
	// ignored would stay so in the box.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)

	res, report, err := o.execute(c, sigs)
	if err != nil && res == nil {
		res = runner.Refused(err)
	}
	if a.global.json && res != nil {
		if werr := res.WriteJSON(a.out); werr != nil {
			if errors.Is(werr, unix.EPIPE) {
				return &exitError{code: 141}
			}
			return fmt.Errorf("the result could not be written: %w", werr)
		}
	}
	if err != nil {
		var x *exitError
		if errors.As(err, &x) {
			return err
		}
		return &exitError{code: refused, err: err}
	}
	if report != nil {
		report()
	}
	if res == nil || res.Status == 0 { // nil: a plan was all
		return nil
	}
	return &exitError{code: res.Status}
}

// writePlan says what would be started.
func (o *runOpts) writePlan(ctx context.Context, budget *runner.Budget, dirs runner.Dirs, s *runner.Spec) error {
	if o.box.tty {
		s.TTY = o.in // only that there is one counts
	}
	p, err := runner.NewPlan(ctx, budget, dirs, s)
	if err != nil {
		return err
	}
	write := p.WriteText
	if o.global.json {
		write = p.WriteJSON
	}
	if err := write(o.out); errors.Is(err, unix.EPIPE) {
		return &exitError{code: 141}
	} else if err != nil {
		return fmt.Errorf("the plan could not be written: %w", err)
	}
	return nil
}

// execute does the work; report prints what a person should know beside the
// output.
func (o *runOpts) execute(c *cobra.Command, sigs chan os.Signal) (res *runner.Result, report func(), err error) {
	a := o.app
	ctx := c.Context()
	if o.plan && a.global.result != "" {
		return nil, nil, &validate.Error{Field: "--plan", Value: "--result", Reason: "nothing is run, so there is no result", Fix: "leave out --result; --json gives the plan as a document"}
	}
	if err := a.configure(c, &o.box); err != nil {
		return nil, nil, err
	}
	startTime, err := validate.ParseDuration(o.box.startTimeout)
	if err != nil {
		return nil, nil, validate.In("--start-timeout", err)
	}
	// A signal ends the preparations too: nothing is running yet then, so the
	// program may just end. Once there is a box, runner listens.
	early, cancelEarly := context.WithCancelCause(ctx)
	defer cancelEarly(nil)
	budget, cancel := runner.NewBudget(early, startTime)
	defer cancel()
	prepared := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case sig := <-sigs:
			cancelEarly(&interruptedError{sig.(unix.Signal)})
		case <-prepared:
		}
	}()
	dirs := runner.FindDirs(a.env)
	s, program, err := o.prepare(early, budget, dirs)
	var output *workspace.Output
	if err == nil && a.global.result != "" {
		err = budget.Touch(a.global.result, func() (e error) {
			output, e = workspace.OpenOutput(a.global.result)
			return validate.In("--result", e)
		})
	}
	var saved *workspace.OutputDir
	if err == nil && !o.plan {
		if saved, err = openOut(budget, o.outDir); saved != nil {
			defer saved.Close()
		}
	}
	close(prepared)
	<-watched
	var in *interruptedError
	if errors.As(context.Cause(early), &in) {
		return nil, nil, &exitError{code: 128 + int(in.signal), err: in}
	}
	if err != nil {
		return nil, nil, err
	}
	if o.plan {
		return nil, nil, o.writePlan(ctx, budget, dirs, s)
	}
	if output != nil {
		defer output.Close()
	}
	var session *term.Session
	if o.box.tty {
		if session, err = o.openTTY(s); err != nil {
			return nil, nil, err
		}
		defer session.Close()
	}
	show, err := newShow(a)
	if err != nil {
		return nil, nil, err
	}
	s.Signals, s.Sweeper = sigs, []string{"--kern", s.Kern.Path, sweepName}
	s.Capture = a.global.json || output != nil
	s.Track = o.box.tracks(s)
	s.Stdout, s.Stderr = show.out, show.err
	s.Progress = func(label string) func() {
		if a.global.quiet {
			return func() {}
		}
		return term.NewProgress(a.err, label).Stop
	}
	res, err = runner.Run(ctx, budget, dirs, s)
	refusal := err
	if session != nil {
		session.Close()
	}
	show.end()
	if err != nil {
		res = runner.Refused(err)
	}
	if saved != nil && refusal == nil {
		if err := saveResults(saved, 1, res.Results); err != nil {
			a.say("error", "the results could not be written: "+err.Error())
			if res.Status == 0 {
				res.Status, res.OK = 1, false
			}
		}
	}
	hint, found := o.hint(s, program, res, refusal, show)
	if found {
		res.Hints = append(res.Hints, runner.Hint{ID: hint.ID, Text: hint.Why, Flag: hint.Flag})
	}
	if output != nil {
		if err := output.Write(res.WriteJSON); err != nil {
			a.say("error", fmt.Sprintf("the result could not be written to %s: %v", a.global.result, err))
			if res.Status == 0 {
				res.Status, res.OK = 1, false
			}
		}
	}
	if refusal != nil {
		x := &exitError{code: refused, err: refusal}
		if found && !a.global.quiet {
			x.hint = hintText(hint)
		}
		return res, nil, x
	}
	return res, func() { o.report(s, dirs, res, hint, found) }, nil
}

func hintText(h hints.Hint) string {
	if h.Flag == "" {
		return h.Why
	}
	if h.Relaxes {
		// What the box printed led to it, and the box may want just that.
		return h.Why + "; use " + h.Flag + ", if the code may have that"
	}
	return h.Why + "; use " + h.Flag
}

// interruptedError says that a signal came before there was a box.
type interruptedError struct{ signal unix.Signal }

func (e *interruptedError) Error() string {
	return "ended by " + unix.SignalName(e.signal) + " before the box was started"
}

// prepare turns the command line into a Spec.
func (o *runOpts) prepare(ctx context.Context, budget *runner.Budget, dirs runner.Dirs) (*runner.Spec, *interp.Program, error) {
	a := o.app
	var program *interp.Program
	switch {
	case o.hasCode && o.hasFile:
		return nil, nil, &validate.Error{Field: "--file", Value: o.file, Reason: "-c gives other code", Fix: "give one of -c and -f"}
	case o.hasFile && o.file == "-" && o.box.stdin:
		return nil, nil, &validate.Error{Field: "--file", Value: "-", Reason: "standard input holds the code, so it cannot go to the program as well", Fix: "leave out -i, or put the code in a file"}
	case o.lang != "" && interp.Check(o.lang) != nil:
		return nil, nil, interp.Check(o.lang)
	case o.hasCode || o.hasFile:
		code, name := []byte(o.code), ""
		if o.hasFile {
			var err error
			if code, name, err = readCode(ctx, a, budget, o.file); err != nil {
				return nil, nil, err
			}
		}
		var err error
		if program, err = interp.Build(o.lang, name, code, o.argv); err != nil {
			return nil, nil, err
		}
	case len(o.argv) == 0:
		return nil, nil, &exitError{code: refused, err: errors.New("nothing to run: give a command after --, code with -c, or a file with -f"), hint: "kern-sbx run --help has examples"}
	}
	if o.outDir != "" && (program == nil || program.Lang != "python" || o.box.tty) {
		return nil, nil, &validate.Error{Field: "--out", Value: o.outDir, Reason: "only code in python, without -t, has results", Fix: "give the code with -c or -f"}
	}
	for _, w := range o.argv {
		if strings.ContainsRune(w, 0) {
			return nil, nil, &validate.Error{Field: "command", Value: w, Reason: "a zero byte in an argument"}
		}
	}
	if program == nil && o.argv[0] == "" {
		return nil, nil, &validate.Error{Field: "command", Value: "", Reason: "the name of the command is empty", Fix: "give a command after --"}
	}
	s, err := o.box.spec(a, budget, dirs)
	if err != nil {
		return nil, nil, err
	}
	s.Argv = o.argv
	s.Init = o.box.init
	if program != nil {
		program.Into(s, o.argv)
		s.Results = program.Lang == "python" && !o.box.tty && a.wantsResults(o.outDir)
	}
	if o.box.stdin {
		s.Stdin = a.in
	}
	a.noteHostNetwork(s)
	if o.box.tty {
		if err := o.checkTTY(); err != nil {
			return nil, nil, err
		}
		if o.box.given["timeout"] == "" {
			s.Timeout = 0 // somebody sits there
		}
	}
	s.PoolRequired = o.box.pool == runner.PoolRequire
	if o.box.pool != runner.PoolOff && s.TTY == nil && !o.box.tty {
		if found := pool.FindClaimer(a.env, dirs); found != nil {
			s.Claimer = found
		} else if s.PoolRequired {
			s.Claimer = noPools{}
		}
	}
	s.Kern, err = a.findKern(ctx, dirs)
	if err == nil && o.box.pycCache == "auto" && isPython(s.Argv) {
		s.Compiler = []string{"--kern", s.Kern.Path, compileName}
	}
	return s, program, err
}

// noPools is a Claimer that has none.
type noPools struct{}

func (noPools) Claim(context.Context, string, *runner.Call) (*runner.Result, error) {
	return nil, fmt.Errorf("%w: there is no pool", runner.ErrNotPooled)
}

// checkTTY refuses what a terminal cannot be had together with.
func (o *runOpts) checkTTY() error {
	switch {
	case o.global.json:
		return &validate.Error{Field: "--tty", Value: "--json", Reason: "a terminal's output is for a person, and is not kept", Fix: "leave out -t or --json"}
	case o.global.result != "":
		return &validate.Error{Field: "--tty", Value: "--result", Reason: "a terminal's output is for a person, and is not kept", Fix: "leave out -t or --result"}
	case o.global.ciFence:
		return &validate.Error{Field: "--tty", Value: "--ci-fence", Reason: "a CI job has no terminal", Fix: "leave out one of the two"}
	}
	return nil
}

// openTTY makes the terminal of a box; the caller closes what it returns when
// the box is gone.
func (o *runOpts) openTTY(s *runner.Spec) (*term.Session, error) {
	kill := make(chan struct{})
	session, err := term.OpenSession(term.SessionOptions{In: o.in, Out: o.out, Kill: func() { close(kill) }})
	if err != nil {
		return nil, err
	}
	s.Kill, s.Stdin = kill, nil
	s.TTY, s.TTYStarted = session.Slave, session.Start
	return session, nil
}

func (a *app) noteHostNetwork(s *runner.Spec) {
	if s.HostNetwork {
		a.note("--network host: the box reaches this machine's loopback and abstract sockets, the local network, and a cloud's metadata at 169.254.169.254")
	}
}

// findKern gives the kern that every command uses.
func (a *app) findKern(ctx context.Context, dirs runner.Dirs) (*kernbin.Kern, error) {
	var data []string
	if dirs.Data != "" {
		data = append(data, dirs.Data)
	}
	o := kernbin.Options{Flag: a.global.kern, Env: a.env, DataDirs: append(data, dirs.Private)}
	if c, err := dirs.Usable(dirs.Cache); err == nil {
		o.CacheDir = filepath.Join(c, "identity")
	}
	return kernbin.Find(ctx, o)
}

// hint asks the one table.
func (o *runOpts) hint(s *runner.Spec, p *interp.Program, res *runner.Result, refusal error, show *show) (hints.Hint, bool) {
	f := hints.Of(s)
	f.Ended(res)
	f.ImageGiven = o.box.given["image"] == fromFlag || o.box.given["rootfs"] == fromFlag
	f.TimeoutIsDefault = o.box.given["timeout"] == ""
	f.IsImage = func(w string) bool { return runner.IsCachedImage(os.Getenv, w) }
	f.IsHostFile = isHostFile
	var pull *runner.PullError
	f.PullFailed = errors.As(refusal, &pull)
	if p != nil {
		f.Lang = p.Lang
	}
	if res.Fault != nil && res.Fault.Type == runner.ExecFailed && s.Host != nil {
		f.HostTool, _ = soon(func() string { return hostroot.Outside(s.Argv[0], o.env("PATH")) })
	}
	if s.Stdin == nil && s.TTY == nil && o.file != "-" {
		f.StdinWaiting = stdinWaiting(o.in)
	}
	f.NoTmp = slices.Contains(o.box.tmpfs, "none")
	f.NoStdin = s.Stdin == nil && o.file != "-"
	f.ProgramHead = func(w string) []byte {
		head, link, _ := newHostView(s.Workspace, cmp.Or(s.Workdir, runner.WorkspaceDir), "").Head(w)
		if link != "" {
			return nil
		}
		return head
	}
	f.CIOrders = show.gaveOrders()
	f.SecretFlag = o.box.secretOnTheCommandLine()
	return hints.Find(f)
}

func isHostFile(w string) bool {
	if !strings.Contains(w, "/") {
		return false
	}
	is, _ := soon(func() bool {
		st, err := os.Stat(w)
		return err == nil && st.Mode().IsRegular()
	})
	return is
}

// soon gives what f answers, or false when it takes too long for a hint: the
// path may lie on a file system that never answers.
func soon[T any](f func() T) (answer T, ok bool) {
	c := make(chan T, 1)
	go func() { c <- f() }()
	select {
	case answer = <-c:
		return answer, true
	case <-time.After(300 * time.Millisecond):
		return answer, false
	}
}

// stdinWaiting says whether somebody wrote into a pipe that the box was not
// given.
func stdinWaiting(in *os.File) bool {
	st, err := in.Stat()
	if err != nil || st.Mode()&os.ModeNamedPipe == 0 {
		return false
	}
	n, err := unix.IoctlGetInt(int(in.Fd()), unix.TIOCINQ)
	return err == nil && n > 0
}

// report prints, after the program's own output, what kern said (--verbose),
// what was cut, who ended the run, and at most one hint.
func (o *runOpts) report(s *runner.Spec, dirs runner.Dirs, res *runner.Result, hint hints.Hint, found bool) {
	a := o.app
	a.showResults(res.Results, res.Truncated.Results)
	if a.global.verbose && !a.global.quiet {
		for line := range strings.Lines(string(res.RuntimeNotes.Head(16 << 10))) {
			a.say("kern", strings.TrimRight(line, "\n"))
		}
	}
	for _, n := range res.Notes {
		a.say("note", n) // what was done to the host's files is said with -q too
	}
	if o.box.given["track-files"] != "" && o.box.trackFiles {
		o.reportFiles(res)
	}
	exit := "still running then"
	if res.ExitCode != nil {
		exit = fmt.Sprintf("exit %d", *res.ExitCode)
	}
	for _, t := range []struct {
		cut  bool
		name string
	}{{res.Truncated.Stdout, "stdout"}, {res.Truncated.Stderr, "stderr"}} {
		if t.cut && !res.CutByDisk {
			a.note(fmt.Sprintf("%s cut at %s; the job ran on (%s); --max-output SIZE passes more on", t.name, s.MaxOutput.Human(), exit))
		}
	}
	o.reportUncapped(dirs, res)
	if f := res.Fault; f != nil {
		a.say(string(f.Type), f.Message+o.budgetNote(f.Type))
	}
	if found && !a.global.quiet {
		a.say("hint", hintText(hint))
	}
	if a.global.verbose {
		a.say("usage", headroom(s, res))
	}
}

// budgetNote adds to a timeout which setting it came from.
func (o *runOpts) budgetNote(t runner.FaultType) string {
	switch from := o.box.given["timeout"]; {
	case t != runner.Timeout:
		return ""
	case from == "":
		return fmt.Sprintf(" (default %s; --timeout 10m)", o.box.timeout)
	case from == fromFlag:
		return " (--timeout " + o.box.timeout + ")"
	default:
		return " (timeout in " + from + ")"
	}
}

// reportUncapped says that caps do not bind here: each time when one was asked
// for, else once per boot.
func (o *runOpts) reportUncapped(dirs runner.Dirs, res *runner.Result) {
	if o.box.limits == runner.LimitsOff {
		return // that was the wish
	}
	open := res.Limits.Uncapped()
	var asked []string
	for _, n := range open {
		if o.box.given[n] != "" {
			asked = append(asked, "--"+n)
		}
	}
	switch {
	case len(open) == 0:
		return
	case len(asked) > 0:
	case runner.OncePerBoot(dirs, "uncapped"):
		asked = []string{"the default caps"}
	default:
		return
	}
	why := ""
	if res.LimitsReason != "" {
		why = " (" + res.LimitsReason + ")"
	}
	verb := " is"
	if len(asked) > 1 || asked[0] == "the default caps" {
		verb = " are"
	}
	o.note(strings.Join(asked, " and ") + verb + " not in force on this host" + why + "; the box stays isolated, and --require-limits refuses to run so")
}

func headroom(s *runner.Spec, res *runner.Result) string {
	var parts []string
	if p := res.Usage.PeakMemory; p != nil {
		t := "peak " + validate.Size(*p).Human()
		if s.Memory > 0 {
			t += fmt.Sprintf(" of %s (%d %%)", s.Memory.Human(), *p*100/int64(s.Memory))
		}
		if *res.Usage.PeakMemorySource == "largest-process" {
			t += ", largest process"
		}
		parts = append(parts, t)
	}
	if c := res.Usage.CPUTimeMS; c != nil {
		parts = append(parts, "cpu "+seconds(*c))
	}
	t := "time " + seconds(res.DurationMS)
	if s.Timeout > 0 {
		t += " of " + s.Timeout.String()
	}
	return strings.Join(append(parts, t), ", ")
}

func seconds(ms int64) string {
	return fmt.Sprintf("%.2f s", float64(ms)/1000)
}
