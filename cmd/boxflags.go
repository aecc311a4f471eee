package cmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/hostroot"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// boxFlags are the flags of a box, as they were written. All commands that
// start one share them; every one of them is also a configuration key of the
// same name.
type boxFlags struct {
	image, rootfs, pull, pullTimeout string
	hostTools                        []string

	workspace          string
	rootWorkspace      bool
	volumes, env       []string
	envFiles           []string
	workdir            string
	memory, cpus, pids string
	timeout            string
	startTimeout       string
	maxOutput          string
	requireLimits      bool
	stdin, tty         bool

	// typedEnv is what of env was on the command line.
	typedEnv []string
	// given tells where each value comes from that is not a default.
	given map[string]string
}

// hostImage is the reserved name of the host's own /usr as an image.
const hostImage = "host"

// add declares the flags of a box on a command.
func (b *boxFlags) add(c *cobra.Command) {
	f := c.Flags()
	in := func(group string, names ...string) {
		for _, n := range names {
			f.SetAnnotation(n, flagGroup, []string{group})
		}
	}
	f.StringVar(&b.image, "image", runner.DefaultImage, "run in the image `REF`; host is this machine's own /usr")
	f.StringVar(&b.rootfs, "rootfs", "", "use the directory `DIR` as the root instead of an image")
	f.StringVar(&b.pull, "pull", "missing", "fetch the image `WHEN`: missing, never or always")
	f.StringArrayVar(&b.hostTools, "host-tool", nil, "with --image host: bring the program `NAME` from outside /usr")
	f.StringVar(&b.pullTimeout, "pull-timeout", runner.DefaultPullTimeout.String(), "fetch an image within `TIME`")
	in(inRoot, "image", "rootfs", "pull", "host-tool")
	in(inAdvanced, "pull-timeout")

	f.StringVarP(&b.workspace, "workspace", "W", "", "mount `DIR` at /workspace and keep it (else: a private one, removed)")
	f.StringArrayVarP(&b.volumes, "volume", "v", nil, "mount a directory or file, `SRC:DST[:ro]`")
	f.StringArrayVarP(&b.env, "env", "e", nil, "set a variable, `K[=V]`; K alone takes the caller's value")
	f.StringArrayVar(&b.envFiles, "env-file", nil, "read variables from `FILE`, as docker does")
	f.StringVarP(&b.workdir, "workdir", "w", runner.WorkspaceDir, "start the command in `DIR`")
	f.BoolVarP(&b.stdin, "interactive", "i", false, "give standard input to the command")
	f.BoolVarP(&b.tty, "tty", "t", false, "give the command a terminal of its own; ^] ^] ^] ends it")
	f.BoolVar(&b.rootWorkspace, "allow-root-workspace", false, "as root: keep a workspace that other users can reach")
	in(inFiles, "workspace", "volume", "env", "env-file", "workdir", "interactive", "tty")
	in(inAdvanced, "allow-root-workspace")

	f.StringVarP(&b.memory, "memory", "m", runner.DefaultMemory.String(), "cap the memory of the whole box at `SIZE`, or none")
	f.StringVar(&b.cpus, "cpus", "none", "let the box use `N` CPUs, like 0.5")
	f.StringVar(&b.pids, "pids-limit", strconv.Itoa(runner.DefaultPIDs), "let the box have `N` processes and threads, or none")
	f.StringVar(&b.timeout, "timeout", runner.DefaultTimeout.String(), "end the code after `TIME`, or none")
	f.StringVar(&b.startTimeout, "start-timeout", runner.DefaultStartTimeout.String(), "let the box take `TIME` to start")
	f.StringVar(&b.maxOutput, "max-output", runner.DefaultMaxOutput.String(), "pass on `SIZE` of each stream; the job runs on")
	f.BoolVar(&b.requireLimits, "require-limits", false, "refuse to run when memory and processes cannot be capped here")
	in(inLimits, "memory", "cpus", "pids-limit", "timeout", "max-output", "require-limits")
	in(inAdvanced, "start-timeout")

	// Other spellings that docker's users type.
	f.Bool("rm", true, "")
	f.MarkHidden("rm")

	c.RegisterFlagCompletionFunc("image", completeImages)
	c.RegisterFlagCompletionFunc("pull", cobra.FixedCompletions([]cobra.Completion{"missing", "never", "always"}, cobra.ShellCompDirectiveNoFileComp))
	c.RegisterFlagCompletionFunc("rootfs", completeDirs)
	c.RegisterFlagCompletionFunc("workspace", completeDirs)
	for _, n := range []string{"memory", "cpus", "pids-limit", "timeout", "start-timeout", "pull-timeout", "max-output", "host-tool", "workdir"} {
		c.RegisterFlagCompletionFunc(n, cobra.NoFileCompletions)
	}
}

func completeImages(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return append(runner.CachedImages(os.Getenv), hostImage), cobra.ShellCompDirectiveNoFileComp
}

func completeDirs(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// spec turns the flags into a Spec. Every look at a path of the user's counts
// against the start budget. What it leaves for the caller: Argv, Code, streams.
func (b *boxFlags) spec(a *app, budget *runner.Budget, dirs runner.Dirs) (*runner.Spec, error) {
	s := &runner.Spec{Pull: b.pull, RequireLimits: b.requireLimits}
	var err error
	set := func(field string, e error) {
		if err == nil {
			err = validate.In(field, e)
		}
	}
	var e error
	if b.pull != "missing" && b.pull != "never" && b.pull != "always" {
		set("--pull", &validate.Error{Value: b.pull, Reason: "not one of missing, never, always"})
	}
	s.PullTimeout, e = validate.ParseDuration(b.pullTimeout)
	set("--pull-timeout", e)
	s.Memory, e = validate.ParseLimit(b.memory)
	set("--memory", e)
	if e == nil && s.Memory > 0 && s.Memory < leastMemory {
		set("--memory", &validate.Error{Value: b.memory, Reason: "too small for anything to start", Fix: "the least is " + leastMemory.String()})
	}
	s.CPUs, e = validate.CPUs(b.cpus)
	set("--cpus", e)
	s.PIDs, e = validate.Count(b.pids, 2)
	set("--pids-limit", e)
	s.Timeout, e = validate.ParseDuration(b.timeout)
	set("--timeout", e)
	s.MaxOutput, e = validate.ParseLimit(b.maxOutput)
	set("--max-output", e)
	s.Workdir, e = validate.Workdir(b.workdir)
	set("--workdir", e)
	s.Tmp = validate.DefaultTmp(s.Memory)
	s.StartTimeout = budget.Time
	if err != nil {
		return nil, err
	}
	if s.Env, err = b.environment(a, budget); err != nil {
		return nil, err
	}
	rules := validate.SourceRules{
		Home: a.env("HOME"), UID: os.Getuid(), Env: a.env,
		OwnDirs: dirs.List(),
	}
	if err := b.files(s, budget, rules); err != nil {
		return nil, err
	}
	return s, b.root(a, s, budget, dirs)
}

// leastMemory is the smallest cap that is worth trying; kern itself refuses
// less than 128 KiB, in which not even a shell starts.
const leastMemory = validate.Size(1 << 20)

func (b *boxFlags) files(s *runner.Spec, budget *runner.Budget, rules validate.SourceRules) error {
	if b.workspace == "" && len(b.volumes) == 0 {
		return nil
	}
	cwd, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("the current directory is not there: %w", err)
	}
	check := func(field, path string) (resolved string, err error) {
		err = budget.Touch(path, func() error {
			r, _, e := rules.Check(path)
			if e != nil {
				return e
			}
			resolved = r
			return nil
		})
		return resolved, validate.In(field, err)
	}
	if b.workspace != "" {
		path := b.workspace
		if !filepath.IsAbs(path) {
			path = filepath.Join(cwd, path)
		}
		if s.Workspace, err = check("--workspace", path); err != nil {
			return err
		}
		if err := budget.Touch(path, func() error { return b.workspaceDir(s.Workspace) }); err != nil {
			return err
		}
	}
	for _, v := range b.volumes {
		m, err := validate.ParseVolume(v, cwd)
		if err != nil {
			return validate.In("--volume", err)
		}
		if m.Source, err = check("--volume", m.Source); err != nil {
			return err
		}
		switch {
		case m.Target == "/tmp":
			s.Tmp = 0 // the default steps aside for a directory of the user's
		case strings.HasPrefix(m.Target, "/tmp/"):
			// kern mounts a tmpfs after every bind, whatever the order.
			return &validate.Error{Field: "--volume", Value: v, Reason: "the box's own /tmp would hide it", Fix: "choose a target outside /tmp"}
		}
		s.Mounts = append(s.Mounts, m)
	}
	return nil
}

// workspaceDir checks what is a matter of workspaces alone: it is a directory,
// and, for root, nobody else can reach what hostile code makes in it (S1: a
// setuid file made by root in the box is setuid root on the host).
func (b *boxFlags) workspaceDir(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return &validate.Error{Field: "--workspace", Value: dir, Reason: "not a directory", Fix: "name a directory"}
	}
	if os.Geteuid() != 0 || b.rootWorkspace || !othersCanEnter(dir) {
		return nil
	}
	return &validate.Error{
		Field: "--workspace", Value: dir,
		Reason: "as root, a file that the box makes here could be run by other users with root's rights",
		Fix:    "make the directory or one above it private (chmod 700), or add --allow-root-workspace if no other user's programs run on this machine",
	}
}

func othersCanEnter(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		st, err := os.Stat(dir)
		if err != nil || st.Mode().Perm()&0o011 == 0 {
			return false
		}
		if dir == "/" {
			return true
		}
	}
}

// environment reads --env-file and --env, in docker's order: files first, then
// flags; the last one wins.
func (b *boxFlags) environment(a *app, budget *runner.Budget) ([]validate.KV, error) {
	var all []validate.KV
	for _, name := range b.envFiles {
		err := budget.Touch(name, func() error {
			f, err := os.Open(name) // a FIFO is fine: --env-file <(…)
			if err != nil {
				return &validate.Error{Field: "--env-file", Value: name, Reason: reason(err), Fix: "name a file with one K=V a line"}
			}
			defer f.Close()
			kv, err := validate.ParseEnvFile(f, os.LookupEnv)
			all = append(all, kv...)
			return validate.In("--env-file "+name, err)
		})
		if err != nil {
			return nil, err
		}
	}
	for _, e := range b.env {
		k, v, has, err := validate.ParseEnv(e)
		if err != nil {
			return nil, validate.In("--env", err)
		}
		if !has {
			var ok bool
			if v, ok = os.LookupEnv(k); !ok {
				continue
			}
		}
		all = append(all, validate.KV{Key: k, Value: v})
	}
	return lastWins(all), validate.In("--env", validate.CheckEnv(all))
}

// secretOnTheCommandLine names a variable whose value was written into argv,
// where every user of the machine can read it, and that looks like a secret.
func (b *boxFlags) secretOnTheCommandLine() string {
	for _, e := range b.typedEnv {
		k, v, has := strings.Cut(e, "=")
		if !has || v == "" {
			continue
		}
		up := strings.ToUpper(k)
		for _, w := range []string{"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "API_KEY", "APIKEY", "PRIVATE_KEY", "ACCESS_KEY", "CREDENTIAL"} {
			if strings.Contains(up, w) {
				return k
			}
		}
	}
	return ""
}

func lastWins(all []validate.KV) []validate.KV {
	at := make(map[string]int, len(all))
	out := all[:0:0]
	for _, kv := range all {
		if i, ok := at[kv.Key]; ok {
			out[i] = kv
			continue
		}
		at[kv.Key] = len(out)
		out = append(out, kv)
	}
	return out
}

// reason is the part of an error that says why, without the path, which the
// line names already.
func reason(err error) string {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

// root decides between the three kinds of root.
func (b *boxFlags) root(a *app, s *runner.Spec, budget *runner.Budget, dirs runner.Dirs) error {
	switch {
	case b.given["rootfs"] == fromFlag && b.given["image"] == fromFlag:
		return &validate.Error{Field: "--rootfs", Value: b.rootfs, Reason: "--image names another root", Fix: "give one of the two"}
	case b.rootfs != "" && b.given["image"] != fromFlag:
		dir, err := filepath.Abs(b.rootfs)
		if err != nil {
			return err
		}
		s.Rootfs = dir
		return budget.Touch(dir, func() error {
			st, err := os.Stat(dir)
			if err == nil && !st.IsDir() {
				err = unix.ENOTDIR
			}
			if err != nil {
				return &validate.Error{Field: "--rootfs", Value: b.rootfs, Reason: reason(err), Fix: "name the directory of a root file system"}
			}
			return nil
		})
	case b.image == hostImage:
		cache, err := dirs.Usable(dirs.Cache)
		if err != nil {
			return err
		}
		return budget.Touch("the host root", func() error {
			h, err := hostroot.Prepare(hostroot.Options{
				Cache: cache, Tools: b.hostTools, Path: a.env("PATH"), Home: a.env("HOME"), UID: os.Getuid(),
			})
			if err != nil {
				return err
			}
			s.Host = h
			s.Env = lastWins(append([]validate.KV{{Key: "PATH", Value: h.Path}}, s.Env...))
			return nil
		})
	}
	if len(b.hostTools) > 0 {
		return &validate.Error{Field: "--host-tool", Value: b.hostTools[0], Reason: "it brings a program of this machine into the host image alone", Fix: "add --image host"}
	}
	s.Image = b.image
	return validate.In("--image", validate.ImageRef(b.image))
}

// readCode reads what -f names. "-" is standard input. At most codeLimit, so
// that a device or an endless pipe is refused and does not fill memory.
func readCode(ctx context.Context, a *app, budget *runner.Budget, name string) (code []byte, base string, err error) {
	if name == "-" {
		// Somebody may be typing: only a signal ends the wait.
		type answer struct {
			code []byte
			err  error
		}
		c := make(chan answer, 1)
		go func() {
			code, err := readLimited(a.in, "standard input")
			c <- answer{code, err}
		}()
		select {
		case got := <-c:
			return got.code, "", got.err
		case <-ctx.Done():
			return nil, "", ctx.Err()
		}
	}
	err = budget.Touch(name, func() error {
		f, err := os.Open(name)
		if err != nil {
			return &validate.Error{Field: "--file", Value: name, Reason: reason(err), Fix: "name a file with the code, or - for standard input"}
		}
		defer f.Close()
		if st, err := f.Stat(); err == nil && st.IsDir() {
			return &validate.Error{Field: "--file", Value: name, Reason: "a directory", Fix: "name a file with the code"}
		}
		code, err = readLimited(f, name)
		return err
	})
	base = filepath.Base(name)
	if strings.HasPrefix(name, "/dev/fd/") || strings.HasPrefix(name, "/proc/") {
		base = "" // <(…): the name says nothing
	}
	return code, base, err
}

const codeLimit = 64 << 20

func readLimited(r io.Reader, name string) ([]byte, error) {
	var b bytes.Buffer
	n, err := io.Copy(&b, io.LimitReader(r, codeLimit+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %s", name, reason(err))
	}
	if n > codeLimit {
		return nil, &validate.Error{Field: "--file", Value: name, Reason: "more than 64 MiB of code", Fix: "mount the file with -v and name it after --"}
	}
	return b.Bytes(), nil
}

// fromFlag is the origin of a value on the command line.
const fromFlag = "flag"

// note prints a line that -q leaves out.
func (a *app) note(text string) {
	if !a.global.quiet {
		a.say("note", text)
	}
}
