package cmd

import (
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kern-sbx/kern-sbx/pkg/images"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
)

// boxFlags are the flags of a box, as they were written. All commands that
// start one share them; every one of them is also a configuration key of the
// same name.
type boxFlags struct {
	image, rootfs, pull, pullTimeout string
	hostTools                        []string

	workspace, copyOf  string
	workspaceMax       string
	workspaceSize      string
	trackFiles         bool
	trackIgnore        []string
	rootWorkspace      bool
	setup              string
	setupForce         bool
	setupEnv           bool
	depsReadOnly       bool
	volumes, env       []string
	envFiles           []string
	mounts, tmpfs      []string
	writable           []string
	workdir            string
	memory, cpus, pids string
	cpuset             string
	ulimits            []string
	fitCPUs            string
	timeout            string
	startTimeout       string
	maxOutput          string
	limits             string
	requireLimits      bool
	stdin, tty, init   bool
	pool               string

	network         string
	egress          []string
	user, hostname  string
	capDrop, capAdd []string
	security        string
	apparmor        string
	profiles        []string
	kernConfig      string
	pycCache        string

	// typedEnv is what of env was on the command line.
	typedEnv []string
	// given tells where each value comes from that is not a default.
	given map[string]string
}

// ofBox marks a flag of a box, which is a configuration key as well.
const ofBox = "kern-sbx-box"

// list declares a flag that may be given several times. (pflag's own makes a CSV
// writer of 4 KiB for each, to write the default.)
func list(f *pflag.FlagSet, to *[]string, name, short string, value []string, usage string) {
	*to = value
	f.VarP(&listValue{all: to}, name, short, usage)
}

// listValue is a pflag.Value and pflag.SliceValue. The first value that is set takes
// the place of the default.
type listValue struct {
	all   *[]string
	given bool
}

func (l *listValue) Set(s string) error {
	if !l.given {
		l.given, *l.all = true, nil
	}
	*l.all = append(*l.all, s)
	return nil
}

// Type is pflag's name for it, which cobra's completion knows.
func (l *listValue) Type() string { return "stringArray" }

func (l *listValue) String() string { return "[" + strings.Join(*l.all, ",") + "]" }

func (l *listValue) Append(s string) error {
	*l.all = append(*l.all, s)
	return nil
}

func (l *listValue) Replace(all []string) error {
	*l.all = all
	return nil
}

func (l *listValue) GetSlice() []string { return *l.all }

// hostImage is the reserved name of the host's own /usr as an image.
const hostImage = "host"

// add declares the flags of a box on a command.
func (b *boxFlags) add(c *cobra.Command) {
	f := c.Flags()
	groups := map[string]map[string][]string{}
	in := func(group string, names ...string) {
		// One map for all of a group: each shell line pays for what is made here.
		if groups[group] == nil {
			groups[group] = map[string][]string{flagGroup: {group}, ofBox: nil}
		}
		for _, n := range names {
			f.Lookup(n).Annotations = groups[group]
		}
	}
	f.StringVar(&b.image, "image", runner.DefaultImage, "run in the image `REF`; host is this machine's own /usr")
	f.StringVar(&b.rootfs, "rootfs", "", "use the directory `DIR` as the root instead of an image")
	f.StringVar(&b.pull, "pull", "missing", "fetch the image `WHEN`: missing, never or always")
	list(f, &b.hostTools, "host-tool", "", nil, "with --image host: bring the program `NAME` from outside /usr")
	f.StringVar(&b.pullTimeout, "pull-timeout", runner.DefaultPullTimeout.String(), "fetch an image within `TIME`")
	f.StringVar(&b.pycCache, "pyc-cache", "auto", "give Python the compiled library of its image `WHEN`: auto or off")
	in(inRoot, "image", "rootfs", "pull", "host-tool")
	in(inAdvanced, "pull-timeout", "pyc-cache")

	f.StringVarP(&b.workspace, "workspace", "W", "", "mount `DIR` at /workspace, or one kept as @NAME (else: a private one, removed)")
	f.BoolVar(&b.trackFiles, "track-files", false, "list the changed files (by itself with --json and a private workspace)")
	list(f, &b.trackIgnore, "track-ignore", "", nil, "with --track-files: leave out names or paths that match `PATTERN`")
	f.StringVar(&b.workspaceMax, "workspace-max", "auto", "let the workspace hold `SIZE`, or none; auto is 10g, and none for -W")
	f.StringVar(&b.workspaceSize, "workspace-size", "none", "put the workspace into the memory of the box, at most `SIZE`; with -W copied back")
	in(inAdvanced, "workspace-size")
	in(inFiles, "track-files")
	in(inLimits, "workspace-max")
	in(inAdvanced, "track-ignore")
	f.StringVar(&b.copyOf, "workspace-copy", "", "put a copy of `DIR` at /workspace; what the box does to it is thrown away")
	f.StringVar(&b.setup, "setup", "", "first run `CMD` in a box with network, like 'pip install numpy'")
	f.BoolVar(&b.setupForce, "setup-force", false, "with --setup: run it even when its packages are there")
	f.BoolVar(&b.setupEnv, "setup-env", false, "with --setup: give --env and --env-file to it too, with the network")
	f.BoolVar(&b.depsReadOnly, "deps-readonly", true, "keep the box from changing what --setup installed")
	list(f, &b.volumes, "volume", "v", nil, "mount a directory or file, `SRC:DST[:ro]`")
	list(f, &b.mounts, "mount", "", nil, "the same with named fields, `type=bind,src=S,dst=D[,ro]`")
	list(f, &b.tmpfs, "tmpfs", "", nil, "memory at a path, `PATH:SIZE` (default /tmp:64m), or none")
	list(f, &b.writable, "writable", "", nil, "with -W: let the box write `NAME`, one of "+strings.Join(guarded, " "))
	list(f, &b.env, "env", "e", nil, "set a variable, `K[=V]`; K alone takes the caller's value")
	list(f, &b.envFiles, "env-file", "", nil, "read variables from `FILE`, as docker does")
	f.StringVarP(&b.workdir, "workdir", "w", runner.WorkspaceDir, "start the command in `DIR`")
	f.BoolVarP(&b.stdin, "interactive", "i", false, "give standard input to the command")
	f.StringVar(&b.pool, "pool", "auto", "take a box that waits (kern-sbx prewarm): `WHEN` is auto, off or require")
	f.BoolVar(&b.init, "init", false, "put a small init in front of the command: it reaps processes and passes signals on")
	f.BoolVarP(&b.tty, "tty", "t", false, "give the command a terminal of its own; ^] ^] ^] ends it")
	f.BoolVar(&b.rootWorkspace, "allow-root-workspace", false, "as root: keep a workspace that other users can reach")
	in(inFiles, "workspace", "workspace-copy", "setup", "volume", "tmpfs", "env", "env-file", "workdir", "interactive", "tty")
	in(inAdvanced, "init", "pool")
	in(inAdvanced, "setup-force", "setup-env", "deps-readonly", "mount", "writable", "allow-root-workspace")

	f.StringVarP(&b.memory, "memory", "m", runner.DefaultMemory.String(), "cap the memory of the whole box at `SIZE`, or none")
	f.StringVar(&b.cpus, "cpus", "none", "let the box use `N` CPUs, like 0.5")
	f.StringVar(&b.pids, "pids-limit", strconv.Itoa(runner.DefaultPIDs), "let the box have `N` processes and threads, or none")
	f.StringVar(&b.timeout, "timeout", runner.DefaultTimeout.String(), "end the code after `TIME`, or none")
	f.StringVar(&b.startTimeout, "start-timeout", runner.DefaultStartTimeout.String(), "let the box take `TIME` to start")
	f.StringVar(&b.maxOutput, "max-output", runner.DefaultMaxOutput.String(), "pass on `SIZE` of each stream; the job runs on")
	f.StringVar(&b.limits, "limits", runner.LimitsAuto, "let `WHO` enforce the caps: auto, kern, own (a cgroup of ours) or off")
	f.BoolVar(&b.requireLimits, "require-limits", false, "refuse to run when memory and processes cannot be capped here")
	f.StringVar(&b.cpuset, "cpuset-cpus", "", "run on these CPUs of the host, `LIST` like 0-3 or 0,2")
	list(f, &b.ulimits, "ulimit", "", nil, "set a resource limit, `NAME=SOFT[:HARD]`")
	f.StringVar(&b.fitCPUs, "fit-cpus", "", "let programs see as many CPUs as --cpus gives; java,node,make add their own settings (`FOR`)")
	f.Lookup("fit-cpus").NoOptDefVal = "all"
	in(inLimits, "memory", "cpus", "pids-limit", "timeout", "require-limits")
	in(inAdvanced, "start-timeout", "max-output", "limits", "cpuset-cpus", "ulimit", "fit-cpus")

	f.StringVar(&b.network, "network", "none", "network `MODE`: none, or host, this machine's own with its loopback")
	list(f, &b.egress, "egress-allow", "", nil, "let the box reach these domains by HTTP, `A,B`, and nothing else")
	in(inNetwork, "network", "egress-allow")

	f.StringVarP(&b.user, "user", "u", "", "run as `USER[:GROUP]` of the box (default its root)")
	f.StringVar(&b.hostname, "hostname", "", "call the box `NAME`")
	list(f, &b.capDrop, "cap-drop", "", []string{"ALL"}, "drop the capability `CAP`; none drops no more than kern does")
	list(f, &b.capAdd, "cap-add", "", nil, "keep the capability `CAP`")
	f.StringVar(&b.security, "security-profile", "", "kern's bundle `NAME`: untrusted")
	f.StringVar(&b.apparmor, "apparmor", "", "enter the loaded AppArmor profile `NAME`")
	list(f, &b.profiles, "profile", "", nil, "attach a resource profile of kern.toml, `KIND:NAME`")
	f.StringVar(&b.kernConfig, "kern-config", "", "take resource profiles from `FILE`")
	in(inAdvanced, "user", "hostname", "cap-drop", "cap-add", "security-profile", "apparmor", "profile", "kern-config")

	// Other spellings that docker's users type.
	f.Bool("rm", true, "")
	f.MarkHidden("rm")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "net" {
			name = "network"
		}
		return pflag.NormalizedName(name)
	})

	c.RegisterFlagCompletionFunc("image", completeImages)
	c.RegisterFlagCompletionFunc("pyc-cache", cobra.FixedCompletions([]cobra.Completion{"auto", "off"}, cobra.ShellCompDirectiveNoFileComp))
	c.RegisterFlagCompletionFunc("pull", cobra.FixedCompletions([]cobra.Completion{"missing", "never", "always"}, cobra.ShellCompDirectiveNoFileComp))
	c.RegisterFlagCompletionFunc("rootfs", completeDirs)
	c.RegisterFlagCompletionFunc("workspace", completeWorkspaces)
	c.RegisterFlagCompletionFunc("workspace-copy", completeDirs)
	c.RegisterFlagCompletionFunc("limits", cobra.FixedCompletions([]cobra.Completion{"auto", "kern", "own", "off"}, cobra.ShellCompDirectiveNoFileComp))
	c.RegisterFlagCompletionFunc("network", cobra.FixedCompletions([]cobra.Completion{"none", "host"}, cobra.ShellCompDirectiveNoFileComp))
	c.RegisterFlagCompletionFunc("security-profile", cobra.FixedCompletions([]cobra.Completion{"untrusted"}, cobra.ShellCompDirectiveNoFileComp))
	c.RegisterFlagCompletionFunc("writable", cobra.FixedCompletions(guarded, cobra.ShellCompDirectiveNoFileComp))
	for _, n := range []string{"memory", "cpus", "pids-limit", "timeout", "start-timeout", "pull-timeout", "max-output", "workspace-max", "workspace-size", "track-ignore", "host-tool", "workdir", "setup"} {
		c.RegisterFlagCompletionFunc(n, cobra.NoFileCompletions)
	}
}

func completeImages(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return append(images.Cached(images.Cache(os.Getenv)), hostImage), cobra.ShellCompDirectiveNoFileComp
}

func completeDirs(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// fromFlag is the origin of a value on the command line.
const fromFlag = "flag"
