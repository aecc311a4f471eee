package cmd

import (
	"cmp"
	"context"
	_ "embed" // the schema
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/doctor"
	"github.com/kern-sbx/kern-sbx/pkg/hints"
	"github.com/kern-sbx/kern-sbx/pkg/kernbin"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

//go:embed schema/diagnosis-v1.json
var diagnosisSchema []byte

const (
	// mostCopied is how large a workspace may be that is copied for each trial
	// without being asked to (rule "Where a toy" 8).
	mostCopied = 2 << 30
	// mostTrialOutput of each stream is kept of a trial, and of that both ends read.
	mostTrialOutput = validate.Size(16 << 20)
	endOfOutput     = 32 << 10
	// trialRemoval is how long the removal of a trial's workspace is waited for.
	trialRemoval = 20 * time.Second
)

// diagnoseFlags are those of `doctor -- CMD` beside the box's.
type diagnoseFlags struct {
	allowRelax, inPlace bool
	budget              string
	expectExit          int
}

func (d *diagnoseFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&d.allowRelax, "allow-relax", false, "with CMD: also try what relaxes the box (network, capabilities, user, more of this machine)")
	f.StringVar(&d.budget, "budget", doctor.DefaultBudget.String(), "with CMD: take `TIME` at most for all trials")
	f.IntVar(&d.expectExit, "expect-exit", 0, "with CMD: it works when it exits with `CODE`")
	f.BoolVar(&d.inPlace, "in-place-copy", false, "with CMD: copy a workspace of more than 2 GiB too, beside it")
	for _, n := range []string{"allow-relax", "budget", "expect-exit", "in-place-copy"} {
		f.SetAnnotation(n, flagGroup, []string{inCode})
	}
	c.RegisterFlagCompletionFunc("budget", cobra.NoFileCompletions)
	c.RegisterFlagCompletionFunc("expect-exit", cobra.NoFileCompletions)
}

// diagnose finds out why argv fails in the box that the flags describe. The
// configuration has been applied to them.
func (a *app) diagnose(c *cobra.Command, b *boxFlags, d *diagnoseFlags, argv []string) error {
	budget, err := validate.ParseDuration(d.budget)
	if err == nil && budget < 4*time.Second {
		err = &validate.Error{Value: d.budget, Reason: "too short for two trials and an answer", Fix: "give 10s or more"}
	}
	if err != nil {
		return validate.In("--budget", err)
	}
	switch {
	case argv[0] == "":
		return &validate.Error{Field: "command", Value: "", Reason: "the name of the command is empty", Fix: "give a command after --"}
	case b.tty:
		return &validate.Error{Field: "--tty", Value: "true", Reason: "trials have no terminal", Fix: "leave out -t"}
	case b.stdin:
		return &validate.Error{Field: "--interactive", Value: "true", Reason: "standard input can be read once, and there are many trials", Fix: "leave out -i, and let the command read a file of the workspace"}
	}
	ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	l := &lab{app: a, flags: b, argv: argv, dirs: runner.FindDirs(a.env)}
	if l.kern, err = a.findKern(ctx, l.dirs); err != nil {
		return err
	}
	defer l.close()
	if err := l.prepare(ctx, d); err != nil {
		return interruptedOr(ctx, err)
	}
	box, err := l.box(ctx)
	if err != nil {
		return interruptedOr(ctx, err)
	}
	if dirs := l.writable(); len(dirs) > 0 {
		a.note("every trial may write to what is mounted beside the workspace: " + strings.Join(dirs, ", "))
	}
	show, done := func(string) {}, func() {}
	if !a.global.quiet {
		p := term.NewProgress(a.err, "trying")
		show, done = p.Update, p.Stop
	}
	res, err := doctor.Diagnose(ctx, doctor.Question{
		Box: box, Try: l.try, AllowRelax: d.allowRelax, ExpectExit: d.expectExit, Budget: budget, Progress: show,
	})
	done()
	if err != nil {
		return interruptedOr(ctx, err)
	}
	if res.Fix != nil {
		res.Fix.Command, res.Fix.Config = l.useFrom(c, res.Fix.Changes)
		if l.source != nil && slices.ContainsFunc(res.Fix.Changes, func(ch doctor.Change) bool { return ch.Flag == "user" }) {
			res.Advice = "that user of the box has to be let into the workspace (chmod o+rwx), or take --workspace-copy instead of -W"
		}
	}
	if a.global.json {
		err = a.printJSON(res)
	} else {
		err = a.writeDiagnosis(res)
	}
	if errors.Is(err, unix.EPIPE) {
		return &exitError{code: 141}
	}
	if err != nil {
		return fmt.Errorf("the diagnosis could not be written: %w", err)
	}
	if res.Verdict != doctor.Works && res.Verdict != doctor.Fixed {
		return &exitError{code: 1}
	}
	return nil
}

func interruptedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &exitError{code: 130, err: errors.New("ended by a signal before there was an answer")}
	}
	return err
}

// lab makes the trials of one diagnosis.
type lab struct {
	*app
	flags *boxFlags
	argv  []string
	dirs  runner.Dirs
	kern  *kernbin.Kern

	// source is the workspace that trials get copies of; nil for a private one.
	source *os.File
	place  *os.File // holds the copies, locked for as long as we live
	at     string   // its path
	mu     sync.Mutex
	count  int
}

// prepare opens the workspace and makes the place for its copies.
func (l *lab) prepare(ctx context.Context, d *diagnoseFlags) error {
	b := l.flags
	if err := b.oneWorkspace(); err != nil {
		return err
	}
	if b.workspace == "" {
		return nil
	}
	budget, cancel, err := l.budget(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	dir, pin := "", runner.Pin{}
	if strings.HasPrefix(b.workspace, workspace.NamePrefix) {
		if dir, _, err = l.workspacePath(b.workspace, toMake); err != nil {
			return validate.In("--workspace", err)
		}
		if pin, err = runner.PinSource(dir); err != nil {
			return err
		}
	} else {
		// What run refuses to mount is copied into no box either.
		checked, quiet := *b, *l.app
		quiet.global.quiet = true
		s, err := checked.spec(&quiet, budget, l.dirs)
		if err != nil {
			return err
		}
		dir, pin = s.Workspace, s.Pins[s.Workspace]
	}
	err = budget.Touch(dir, func() error {
		f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return &validate.Error{Field: "--workspace", Value: b.workspace, Reason: reason(err), Fix: "name a directory"}
		}
		l.source = f
		if now, err := runner.PinSource(dir); err != nil || now != pin {
			return fmt.Errorf("%s was exchanged for another directory after it was checked", dir)
		}
		return nil
	})
	if err != nil {
		return err
	}
	base, err := l.dirs.Usable(l.dirs.Cache)
	if err != nil {
		return err
	}
	if !d.inPlace {
		used, err := workspace.Usage(ctx, l.source, mostCopied)
		if err != nil {
			return err
		}
		if used.Bytes > mostCopied {
			return &validate.Error{
				Field: "--workspace", Value: b.workspace, Reason: "it holds more than 2 GiB, and every trial gets a copy of it",
				Fix: "name a smaller directory, or add --in-place-copy: copies beside it, which cost little where the file system can share blocks",
			}
		}
		base = filepath.Join(base, "doctor")
	} else {
		base = filepath.Join(filepath.Dir(l.source.Name()), ".kern-sbx-doctor-"+fmt.Sprint(os.Getuid()))
	}
	return l.makePlace(base)
}

// makePlace makes and locks a directory below base for this diagnosis, and removes
// those of others that were killed.
func (l *lab) makePlace(base string) error {
	if err := os.MkdirAll(base, 0o700); err != nil {
		return err
	}
	all, err := os.OpenFile(base, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer all.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(all.Fd()), &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s cannot be used: others can write to it", base)
	}
	names, _ := all.Readdirnames(100)
	for _, n := range names {
		if f, err := os.OpenFile(filepath.Join(base, n), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0); err == nil {
			if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
				workspace.RemoveAt(all, n)
			}
			f.Close()
		}
	}
	for range 10 {
		if l.at, err = os.MkdirTemp(base, ""); err != nil {
			return err
		}
		if l.place, err = os.OpenFile(l.at, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0); err != nil {
			continue // taken for a dead one's
		}
		if err = unix.Flock(int(l.place.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return nil
		}
		l.place.Close()
	}
	return err
}

func (l *lab) close() {
	if l.place != nil {
		workspace.Remove(l.at)
		l.place.Close()
		os.Remove(filepath.Dir(l.at)) // when no other diagnosis is in it
	}
	if l.source != nil {
		l.source.Close()
	}
}

func (l *lab) budget(ctx context.Context) (*runner.Budget, context.CancelFunc, error) {
	d, err := validate.ParseDuration(l.flags.startTimeout)
	if err != nil {
		return nil, nil, validate.In("--start-timeout", err)
	}
	b, cancel := runner.NewBudget(ctx, d)
	return b, cancel, nil
}

// spec makes the box of one trial, without a workspace of the user's.
func (l *lab) spec(ctx context.Context, changes []doctor.Change) (*runner.Spec, *boxFlags, error) {
	b := *l.flags
	for _, ch := range changes {
		if err := b.change(ch); err != nil {
			return nil, nil, err
		}
	}
	b.writable = nil // no one obeys what is in a copy
	if l.source != nil {
		b.workspace = ""
	}
	budget, cancel, err := l.budget(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer cancel()
	quiet := *l.app
	quiet.global.quiet = true // each note once for each trial would be many
	s, err := b.spec(&quiet, budget, l.dirs)
	if err != nil {
		return nil, nil, err
	}
	s.Argv, s.Init, s.Kern = l.argv, b.init, l.kern
	s.Capture, s.Sweeper = true, []string{sweepName}
	return s, &b, nil
}

// change sets one flag as `kern-sbx run` would.
func (b *boxFlags) change(c doctor.Change) error {
	add := func(list *[]string) { *list = append(slices.Clip(*list), c.Value) }
	switch c.Flag {
	case "env":
		add(&b.env)
	case "tmpfs":
		at, _, _ := strings.Cut(c.Value, ":")
		b.tmpfs = slices.DeleteFunc(slices.Clone(b.tmpfs), func(have string) bool {
			return have == "none" || have == at || strings.HasPrefix(have, at+":")
		})
		add(&b.tmpfs)
	case "volume":
		add(&b.volumes)
	case "host-tool":
		add(&b.hostTools)
	case "cap-add":
		add(&b.capAdd)
	case "cap-drop":
		b.capDrop = []string{c.Value}
	case "ulimit":
		add(&b.ulimits)
	case "init":
		b.init = true
	default:
		single, ok := map[string]*string{
			"memory": &b.memory, "pids-limit": &b.pids, "timeout": &b.timeout, "workspace-max": &b.workspaceMax,
			"network": &b.network, "user": &b.user, "hostname": &b.hostname,
		}[c.Flag]
		if !ok {
			return fmt.Errorf("no trial is made with --%s", c.Flag)
		}
		*single = c.Value
	}
	return nil
}

// box says what is known of the box as it was asked for.
func (l *lab) box(ctx context.Context) (doctor.Box, error) {
	s, b, err := l.spec(ctx, nil)
	if err != nil {
		return doctor.Box{}, err
	}
	if s.Image != "" && s.Pull != "never" && (s.Pull == "always" || !runner.IsCachedImage(l.env, s.Image)) {
		// Once, and not in the time of the trials.
		done := func() {}
		if !l.global.quiet {
			done = term.NewProgress(l.err, "fetching "+s.Image).Stop
		}
		err := runner.Pull(ctx, runner.Fetch{Kern: l.kern, Image: s.Image, Anew: s.Pull == "always", Timeout: s.PullTimeout})
		done()
		if err != nil {
			return doctor.Box{}, err
		}
		l.flags.pull = "missing"
	}
	f := hints.Of(s)
	box := doctor.Box{
		Argv: l.argv, Home: cmp.Or(f.Home, "/root"), HostHome: l.env("HOME"), HostPath: l.env("PATH"), HostImage: s.Host != nil,
		Memory: s.Memory, PIDs: s.PIDs, Timeout: s.Timeout, Egress: len(s.Egress) > 0, HostNetwork: s.HostNetwork,
		HostMemory: validate.Size(f.HostMemory), Tmp: validate.Size(f.Tmp), NoTmp: slices.Contains(b.tmpfs, "none"), Env: f.EnvGiven, ReadOnly: f.ReadOnlyMounts,
		Kept: l.source != nil, Workdir: s.Workdir, User: b.user,
	}
	dir := ""
	switch {
	case l.source != nil:
		dir = l.source.Name()
	case s.CopyOf != "":
		dir = s.CopyOf
	}
	box.Workspace = dir
	box.Host = newHostView(dir, s.Workdir, l.env("PATH"))
	return box, nil
}

// try is one trial (doctor.Question.Try).
func (l *lab) try(ctx context.Context, changes []doctor.Change, limit time.Duration) (*doctor.Outcome, error) {
	s, b, err := l.spec(ctx, changes)
	if err != nil {
		if len(changes) == 0 || ctx.Err() != nil {
			return nil, err
		}
		return &doctor.Outcome{Exit: -1, Fault: string(runner.StartupFailed), Message: err.Error()}, nil
	}
	if l.source != nil {
		dir, err := l.copy(ctx)
		if dir != "" {
			defer l.discard(dir)
		}
		if err != nil {
			return nil, err
		}
		if u, _, _ := strings.Cut(b.user, ":"); u != "" && u != "0" && u != "root" {
			if err := os.Chmod(dir, 0o777); err != nil {
				return nil, err
			}
		}
		pin, err := runner.PinSource(dir)
		if err != nil {
			return nil, err
		}
		s.Workspace, s.Pins[dir] = dir, pin
		if err := b.guard(s); err != nil {
			return nil, err
		}
	}
	out := &doctor.Outcome{Exit: -1, Bounded: s.Timeout == 0 || limit < s.Timeout}
	s.Timeout = limit
	if s.MaxOutput == 0 || s.MaxOutput > mostTrialOutput {
		s.MaxOutput = mostTrialOutput
	}
	budget, cancel, err := l.budget(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	begun := time.Now()
	res, err := runner.Run(ctx, budget, l.dirs, s)
	out.Time = time.Since(begun)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		out.Fault, out.Message = string(runner.StartupFailed), err.Error()
		return out, nil
	}
	if res.ExitCode != nil {
		out.Exit = *res.ExitCode
	}
	if f := res.Fault; f != nil {
		out.Fault, out.Message = string(f.Type), f.Message
		if f.Type == runner.ExecFailed || f.Type == runner.StartupFailed {
			out.Message += "\n" + string(res.RuntimeNotes.Head(2<<10))
		}
		if f.Type != runner.Timeout {
			out.Bounded = false
		}
	}
	if n := res.Usage.CPUTimeMS; n != nil {
		out.CPU = time.Duration(*n) * time.Millisecond
	}
	out.Stdout, out.Stderr = bothEnds(res.Stdout), bothEnds(res.CodeStderr)
	return out, nil
}

// bothEnds gives the beginning and the end of a text, each at most endOfOutput.
func bothEnds(t *runner.Text) []byte {
	r := t.Reader()
	b, err := io.ReadAll(io.LimitReader(r, endOfOutput))
	if err != nil || t.Len() <= endOfOutput {
		return b
	}
	if skip := t.Len() - 2*endOfOutput; skip > 0 {
		if _, err := io.CopyN(io.Discard, r, skip); err != nil {
			return b
		}
		b = append(b, '\n')
	}
	rest, _ := io.ReadAll(io.LimitReader(r, endOfOutput))
	return append(b, rest...)
}

// copy makes a fresh copy of the workspace. For root, files keep their owners,
// which decide what the box may do with them.
func (l *lab) copy(ctx context.Context) (string, error) {
	l.mu.Lock()
	l.count++
	dir := filepath.Join(l.at, fmt.Sprint(l.count))
	l.mu.Unlock()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	to, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return dir, err
	}
	defer to.Close()
	// Each its own position in the directory: trials may run side by side.
	from, err := os.OpenFile(l.source.Name(), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return dir, err
	}
	defer from.Close()
	if a, err := l.source.Stat(); err != nil {
		return dir, err
	} else if b, err := from.Stat(); err != nil || !os.SameFile(a, b) {
		return dir, fmt.Errorf("%s was exchanged for another directory", l.source.Name())
	}
	var full *workspace.NoSpaceError
	if _, err = workspace.Copy(ctx, from, to, nil); errors.As(err, &full) {
		err = &validate.Error{
			Field: "--workspace", Value: l.flags.workspace,
			Reason: fmt.Sprintf("a copy needs %s, and %s are free in %s", validate.Size(full.Need).Human(), validate.Size(full.Free).Human(), l.at),
			Fix:    "name a smaller directory, or let XDG_CACHE_HOME name a larger disk",
		}
	}
	if err == nil && os.Geteuid() == 0 {
		l.keepOwners(ctx, dir)
	}
	return dir, err
}

// keepOwners gives what lies in a copy, which nothing else uses yet, the owners of
// the originals.
func (l *lab) keepOwners(ctx context.Context, dir string) {
	filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil {
			return ctx.Err()
		}
		var st unix.Stat_t
		if unix.Lstat(l.source.Name()+p[len(dir):], &st) == nil && (st.Uid != 0 || st.Gid != 0) {
			_ = unix.Lchown(p, int(st.Uid), int(st.Gid))
		}
		return nil
	})
}

// discard removes a copy. One that hostile code made hard to remove goes on being
// removed when everything else is done.
func (l *lab) discard(dir string) {
	done := make(chan struct{})
	go func() {
		workspace.Remove(dir)
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(trialRemoval):
	}
}

// writable lists what the user mounts for writing; it is the same in all trials.
func (l *lab) writable() (dirs []string) {
	for _, v := range l.flags.volumes {
		if m, err := validate.ParseVolume(v, "/"); err == nil && !m.ReadOnly {
			dirs = append(dirs, v)
		}
	}
	for _, v := range l.flags.mounts {
		if m, err := validate.ParseMountSpec(v, "/"); err == nil && !m.ReadOnly {
			dirs = append(dirs, v)
		}
	}
	return dirs
}

// useFrom gives the command line with the changes, and the configuration that makes
// them lasting.
func (l *lab) useFrom(c *cobra.Command, changes []doctor.Change) (line string, config []string) {
	words := []string{"kern-sbx", "run"}
	var b boxFlags
	known := &cobra.Command{}
	b.add(known)
	secret := l.flags.secretOnTheCommandLine()
	lists := map[string][]string{}
	changed := map[string]bool{}
	for _, ch := range changes {
		changed[ch.Flag] = true
	}
	c.Flags().Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "config", "preset", "kern":
			words = append(words, "--"+f.Name, term.ShellWord(f.Value.String()))
			return
		}
		if known.Flags().Lookup(f.Name) == nil || f.Name == "rm" {
			return
		}
		if v, ok := f.Value.(pflag.SliceValue); ok {
			values := v.GetSlice()
			if f.Name == "env" {
				values = l.flags.typedEnv
			}
			for _, x := range values {
				if !replaced(f.Name, x, changes) {
					lists[f.Name] = append(lists[f.Name], x)
					if k, _, _ := strings.Cut(x, "="); f.Name == "env" && secret != "" && k == secret {
						x = k // it belongs into no line that is shown
					}
					words = append(words, "--"+f.Name, term.ShellWord(x))
				}
			}
			return
		}
		if changed[f.Name] {
			return
		}
		switch {
		case f.Value.Type() == "bool" && f.Value.String() == "true":
			words = append(words, "--"+f.Name)
		case f.Value.Type() == "bool", f.NoOptDefVal != "":
			words = append(words, "--"+f.Name+"="+term.ShellWord(f.Value.String()))
		default:
			words = append(words, "--"+f.Name, term.ShellWord(f.Value.String()))
		}
	})
	var box, env []string
	for _, ch := range changes {
		if ch.Value == "true" {
			words = append(words, "--"+ch.Flag)
			box = append(box, ch.Flag+" = true")
			continue
		}
		words = append(words, "--"+ch.Flag, term.ShellWord(ch.Value))
		f := known.Flags().Lookup(ch.Flag)
		switch {
		case ch.Flag == "env":
			k, v, _ := strings.Cut(ch.Value, "=")
			env = append(env, k+" = "+term.TOMLString(v))
		case f != nil && f.Value.Type() == "stringArray":
			lists[ch.Flag] = append(lists[ch.Flag], ch.Value)
		default:
			box = append(box, ch.Flag+" = "+term.TOMLString(ch.Value))
		}
	}
	for _, ch := range changes {
		if list := lists[ch.Flag]; ch.Flag != "env" && len(list) > 0 {
			for i := range list {
				list[i] = term.TOMLString(list[i])
			}
			box = append(box, ch.Flag+" = ["+strings.Join(list, ", ")+"]")
			delete(lists, ch.Flag)
		}
	}
	words = append(words, "--")
	for _, w := range l.argv {
		words = append(words, term.ShellWord(w))
	}
	if len(box) > 0 {
		config = append(append(config, "[box]"), box...)
	}
	if len(env) > 0 {
		config = append(append(config, "[box.env]"), env...)
	}
	return strings.Join(words, " "), config
}

// replaced says whether a value of a list is another one's that a change sets.
func replaced(flag, value string, changes []doctor.Change) bool {
	head := func(s, sep string) string { h, _, _ := strings.Cut(s, sep); return h }
	for _, c := range changes {
		if c.Flag != flag {
			continue
		}
		switch flag {
		case "env":
			if head(value, "=") == head(c.Value, "=") {
				return true
			}
		case "tmpfs":
			if value == "none" || head(value, ":") == head(c.Value, ":") {
				return true
			}
		case "cap-drop":
			return true
		}
	}
	return false
}

// writeDiagnosis prints the answer for a person.
func (a *app) writeDiagnosis(d *doctor.Diagnosis) error {
	var b strings.Builder
	style := term.NewStyle(term.Enabled(a.out, a.global.color, a.env))
	rows := make([][3]string, len(d.Tried))
	wide := [3]int{}
	for i, t := range d.Tried {
		r := [3]string{"as asked", trialAnswer(t), fmt.Sprintf("%.1f s", float64(t.DurationMS)/1000)}
		if len(t.Changes) > 0 {
			r[0] = changesText(t.Changes)
		}
		for j := range r {
			r[j] = term.VisibleLine(r[j])
			wide[j] = max(wide[j], min(len(r[j]), 60))
		}
		rows[i] = r
	}
	for i, r := range rows {
		mark := style.Red("✗")
		if d.Tried[i].Verdict == "works" {
			mark = style.Green("✓")
		}
		says := ""
		if d.Tried[i].Verdict != "works" {
			says = term.VisibleLine(d.Tried[i].Says)
			if r := []rune(says); len(r) > 80 {
				says = string(r[:79]) + "…"
			}
		}
		line := fmt.Sprintf("%s %-*s  %-*s  %*s  %s", mark, wide[0], r[0], wide[1], r[1], wide[2], r[2], style.Dim(says))
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	fmt.Fprintf(&b, "\n%s: %s\n", d.Verdict, term.VisibleLine(d.Why))
	if d.Advice != "" {
		fmt.Fprintf(&b, "  %s\n", term.VisibleLine(d.Advice))
	}
	for _, n := range d.NotTried {
		fmt.Fprintf(&b, "  not tried: %s (%s)\n", term.VisibleLine(changesText(n.Changes)), n.Reason)
	}
	if d.Topic != "" {
		fmt.Fprintf(&b, "  kern-sbx explain %s says more\n", d.Topic)
	}
	if d.Fix != nil {
		if d.Fix.Relaxes {
			b.WriteString("  this relaxes the box: give it only to code that may have it\n")
		}
		fmt.Fprintf(&b, "\nfrom now on:\n  %s\n\nor lasting, in the configuration:\n", visibleCommand(d.Fix.Command))
		for _, l := range d.Fix.Config {
			fmt.Fprintf(&b, "  %s\n", term.VisibleLine(l))
		}
	}
	_, err := io.WriteString(a.out, b.String())
	return err
}

// visibleCommand keeps the line breaks of a quoted word, and no other control
// character.
func visibleCommand(s string) string { return term.Visible(s) }

func trialAnswer(t doctor.Trial) string {
	switch {
	case t.Verdict == "works":
		return "works"
	case t.Verdict == "refused":
		return "no box"
	case t.Fault != "":
		return t.Fault
	case t.Exit == nil:
		return "no end"
	}
	return fmt.Sprintf("exit %d", *t.Exit)
}

func changesText(changes []doctor.Change) string {
	words := make([]string, len(changes))
	for i, c := range changes {
		words[i] = c.String()
	}
	return strings.Join(words, " ")
}

// hostView is what a diagnosis sees of this machine (doctor.Host). A path may come
// from a box, so no look is waited for long.
type hostView struct {
	root    *os.Root // the workspace, nil for none
	workdir string
	path    string // the caller's PATH
}

func newHostView(workspace, workdir, path string) *hostView {
	h := &hostView{workdir: workdir, path: path}
	if workspace != "" {
		h.root, _ = soon(func() *os.Root { r, _ := os.OpenRoot(workspace); return r })
	}
	return h
}

func (h *hostView) Exists(p string) (is, dir bool) {
	st, _ := soon(func() os.FileInfo { st, _ := os.Stat(p); return st })
	return st != nil, st != nil && st.IsDir()
}

func (h *hostView) Resolve(p string) string {
	real, _ := soon(func() string { r, _ := filepath.EvalSymlinks(p); return r })
	return real
}

func (h *hostView) Find(name string) string {
	if name == "" || strings.Contains(name, "/") {
		return ""
	}
	p, _ := soon(func() string {
		for dir := range strings.SplitSeq(h.path, ":") {
			if !filepath.IsAbs(dir) {
				continue
			}
			p := filepath.Join(dir, name)
			if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && unix.Access(p, unix.X_OK) == nil {
				return p
			}
		}
		return ""
	})
	return p
}

// mostLooked bounds a look at a tree of this machine.
const mostLooked = 4000

func (h *hostView) Public(p string) bool {
	ok, _ := soon(func() bool {
		for d := filepath.Dir(p); d != "/"; d = filepath.Dir(d) {
			if st, err := os.Stat(d); err != nil || st.Mode().Perm()&0o001 == 0 {
				return false
			}
		}
		n := 0
		err := filepath.WalkDir(p, func(_ string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if n++; n > mostLooked {
				return fs.ErrInvalid
			}
			if e.Type()&fs.ModeSymlink != 0 {
				return nil
			}
			st, err := e.Info()
			if err != nil {
				return err
			}
			if need := fs.FileMode(0o004); st.Mode().Perm()&need == 0 || st.IsDir() && st.Mode().Perm()&0o001 == 0 || !st.IsDir() && !st.Mode().IsRegular() {
				return fs.ErrPermission
			}
			return nil
		})
		return err == nil
	})
	return ok
}

func (h *hostView) Links(dir string) []string {
	out, _ := soon(func() []string {
		var out []string
		n := 0
		filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
			if n++; err != nil || n > mostLooked {
				return fs.SkipAll
			}
			if e.IsDir() && strings.Count(p[len(dir):], "/") > 3 {
				return fs.SkipDir
			}
			if e.Type()&fs.ModeSymlink == 0 {
				return nil
			}
			if real, err := filepath.EvalSymlinks(p); err == nil && !strings.HasPrefix(real, dir+"/") && !slices.Contains(out, real) && len(out) < 40 {
				out = append(out, real)
			}
			return nil
		})
		return out
	})
	return out
}

// inside is the name below the workspace of a path in the box.
func (h *hostView) inside(p string) (string, bool) {
	if h.root == nil {
		return "", false
	}
	if !strings.HasPrefix(p, "/") {
		p = path.Join(h.workdir, p)
	}
	rest, ok := strings.CutPrefix(path.Clean(p), runner.WorkspaceDir+"/")
	return rest, ok
}

func (h *hostView) Head(p string) (head []byte, link string, ok bool) {
	type answer struct {
		head []byte
		link string
		ok   bool
	}
	x, _ := soon(func() (x answer) {
		name, in := h.inside(p)
		if !in {
			return x
		}
		for range 8 {
			st, err := h.root.Lstat(name)
			if err != nil {
				return answer{}
			}
			x.ok = true
			if st.Mode()&fs.ModeSymlink == 0 {
				break
			}
			to, err := h.root.Readlink(name)
			if err != nil {
				return x
			}
			if !path.IsAbs(to) {
				to = path.Join(runner.WorkspaceDir, path.Dir(name), to)
			}
			if name, in = h.inside(to); !in {
				x.link = path.Clean(to)
				return x
			}
		}
		f, err := h.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return x
		}
		defer f.Close()
		if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
			return x
		}
		x.head, _ = io.ReadAll(io.LimitReader(f, 256))
		return x
	})
	return x.head, x.link, x.ok
}

func (h *hostView) EmptyDirs() []string {
	if h.root == nil {
		return nil
	}
	out, _ := soon(func() []string {
		var out []string
		d, err := h.root.Open(".")
		if err != nil {
			return nil
		}
		defer d.Close()
		list, _ := d.ReadDir(200)
		for _, e := range list {
			if !e.IsDir() || len(out) == 8 {
				continue
			}
			if f, err := h.root.Open(e.Name()); err == nil {
				if names, _ := f.Readdirnames(1); len(names) == 0 {
					out = append(out, e.Name())
				}
				f.Close()
			}
		}
		slices.Sort(out)
		return out
	})
	return out
}

func (h *hostView) Foreign(words []string) string {
	name, _ := soon(func() string {
		for _, w := range words {
			in, ok := h.inside(w)
			if !ok {
				continue
			}
			st, err := h.root.Lstat(in)
			if err != nil || !st.Mode().IsRegular() || st.Mode().Perm()&0o004 != 0 {
				continue
			}
			var s unix.Stat_t
			if unix.Lstat(filepath.Join(h.root.Name(), in), &s) == nil && int(s.Uid) != os.Geteuid() {
				return w
			}
		}
		return ""
	})
	return name
}
