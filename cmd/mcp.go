package cmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/mcp"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

// What a box of the server has that is not said otherwise: the defaults of kern's
// own server.
const (
	mcpMemory  = "1g"
	mcpTimeout = "1m"
)

type mcpOpts struct {
	*app
	box                   boxFlags
	kernel                bool
	prewarm               int
	maxMemory, maxTimeout string
	logFile, printConfig  string
}

func (a *app) mcpCommand() *cobra.Command {
	o := &mcpOpts{app: a}
	c := &cobra.Command{
		Use:     "mcp [flags]",
		Short:   "serve boxes as tools for agents (Model Context Protocol)",
		GroupID: groupBox,
		Long: `Serve the Model Context Protocol on standard input and output: an agent runs code
and commands in boxes with these flags, and handles the files of one workspace. It
may ask for time and memory, up to --max-timeout and --max-memory, and for nothing
else. kern-sbx help agents says more.`,
		Example: `  kern-sbx mcp --print-config claude-code --image host
  kern-sbx mcp --image python:3.12-slim --kernel --memory 2g
  kern-sbx mcp -W ./project --prewarm 2 --max-timeout 10m`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.serve(c) },
	}
	f := c.Flags()
	f.SortFlags = false
	f.BoolVar(&o.kernel, "kernel", false, "run python in one interpreter, whose variables stay from call to call")
	f.IntVar(&o.prewarm, "prewarm", 0, "keep `N` boxes ready for calls")
	f.StringVar(&o.maxMemory, "max-memory", "", "let a call ask for so much memory, `SIZE` (default: that of --memory)")
	f.StringVar(&o.maxTimeout, "max-timeout", "10m", "let a call ask for so much time, `TIME`; never less than --timeout")
	f.StringVar(&o.logFile, "log-file", "", "append what happens to `FILE`; never code, output or variables")
	f.StringVar(&o.printConfig, "print-config", "", "print what the client `NAME` needs to start this, and end")
	for _, n := range []string{"kernel", "prewarm", "max-memory", "max-timeout", "log-file", "print-config"} {
		f.SetAnnotation(n, flagGroup, []string{inCode})
	}
	o.box.add(c)
	for name, value := range map[string]string{"memory": mcpMemory, "timeout": mcpTimeout} {
		flag := f.Lookup(name)
		flag.DefValue = value
		flag.Value.Set(value)
	}
	for _, n := range []string{"interactive", "tty", "init"} { // check refuses them
		f.MarkHidden(n)
	}
	c.RegisterFlagCompletionFunc("print-config", cobra.FixedCompletions(mcp.Clients(), cobra.ShellCompDirectiveNoFileComp))
	for _, n := range []string{"prewarm", "max-memory", "max-timeout"} {
		c.RegisterFlagCompletionFunc(n, cobra.NoFileCompletions)
	}
	return c
}

func (o *mcpOpts) serve(c *cobra.Command) error {
	if c.Flags().Changed("print-config") {
		return o.config(c)
	}
	if err := o.configure(c, &o.box); err != nil {
		return err
	}
	if err := o.adopt(c.Flags()); err != nil {
		return err
	}
	h, err := o.handover(c)
	if err != nil {
		return err
	}
	program, err := serverPath()
	if err != nil {
		return err
	}
	var log *os.File
	if o.logFile != "" {
		fd, err := unix.Open(o.logFile, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return &validate.Error{Field: "--log-file", Value: o.logFile, Reason: err.Error(), Fix: "name a file that can be written to"}
		}
		log = os.NewFile(uintptr(fd), o.logFile)
		if st, err := log.Stat(); err != nil || !st.Mode().IsRegular() {
			return &validate.Error{Field: "--log-file", Value: o.logFile, Reason: "not a regular file", Fix: "name a file that can be written to"}
		}
		_ = unix.SetNonblock(fd, false)
	}
	return h.Exec(program, log)
}

// serverPath finds the server beside this program.
func serverPath() (string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(self), mcp.Program)
	if err := unix.Access(path, unix.X_OK); err != nil {
		return "", &exitError{
			code: refused, err: fmt.Errorf("%s, the server, is not beside this program (%s): %w", mcp.Program, filepath.Dir(self), err),
			hint: "make build makes both; they have to be installed into one directory",
		}
	}
	return path, nil
}

// adopt takes the settings of kern's own server for what nothing else says.
func (o *mcpOpts) adopt(f *pflag.FlagSet) error {
	open := func(name string) bool { return o.box.given[name] == "" }
	set := func(variable, name, value string) error {
		if err := f.Lookup(name).Value.Set(value); err != nil {
			return fmt.Errorf("%s: %w", variable, err)
		}
		o.box.given[name] = variable
		return nil
	}
	env := func(name string) string { return o.env("KERN_MCP_" + name) }
	// A number that is none counts as not set, there as here.
	number := func(name string, least int) (int, bool) {
		n, err := strconv.Atoi(strings.TrimSpace(env(name)))
		return n, err == nil && n >= least && n < 1<<31
	}
	for _, t := range []struct{ variable, name string }{{"IMAGE", "image"}, {"SETUP", "setup"}, {"WORKSPACE", "workspace"}, {"USER", "user"}} {
		v := env(t.variable)
		if v == "" || !open(t.name) || t.name == "image" && !open("rootfs") || t.name == "workspace" && !open("workspace-copy") {
			continue
		}
		if err := set("KERN_MCP_"+t.variable, t.name, v); err != nil {
			return err
		}
	}
	if v := env("PROFILES"); v != "" && open("profile") {
		for p := range strings.SplitSeq(v, ",") {
			if p = strings.TrimSpace(p); p == "" {
				continue
			}
			if err := set("KERN_MCP_PROFILES", "profile", p); err != nil {
				return err
			}
		}
	}
	for _, t := range []struct {
		variable, name string
		least          int
		none           bool // 0 is no limit
		unit           string
	}{{"MEMORY_MB", "memory", 0, true, "m"}, {"TIMEOUT", "timeout", 1, false, "s"}, {"WORKSPACE_MAX_MB", "workspace-max", 0, true, "m"}} {
		n, ok := number(t.variable, t.least)
		if !ok || !open(t.name) {
			continue
		}
		value := strconv.Itoa(n) + t.unit
		if n == 0 && t.none {
			value = "none"
		}
		if err := set("KERN_MCP_"+t.variable, t.name, value); err != nil {
			return err
		}
	}
	if n, ok := number("TMPFS_MB", 0); ok && open("tmpfs") {
		value := "none"
		if n > 0 {
			value = "/tmp:" + strconv.Itoa(n) + "m"
		}
		if err := set("KERN_MCP_TMPFS_MB", "tmpfs", value); err != nil {
			return err
		}
	}
	if n, ok := number("PREWARM", 0); ok && !f.Changed("prewarm") {
		o.prewarm = min(n, mostPrewarmed)
	}
	yes := []string{"1", "true", "yes"}
	if !f.Changed("kernel") && slices.Contains(yes, strings.ToLower(env("KERNEL"))) {
		o.kernel = true
		if !f.Changed("prewarm") {
			o.prewarm = 0
		}
	}
	if slices.Contains(yes, strings.ToLower(env("QUIET"))) {
		o.global.quiet = true
	}
	return nil
}

// mostPrewarmed is how many boxes a server keeps ready.
const mostPrewarmed = 64

func (o *mcpOpts) check() error {
	for _, f := range []struct {
		flag string
		on   bool
		why  string
	}{
		{"--interactive", o.box.stdin, "standard input is the client's"},
		{"--tty", o.box.tty, "standard input is the client's"},
		{"--json", o.global.json, "the client decides how it is answered"},
		{"--result", o.global.result != "", "there is one result a call, and the client gets it"},
		{"--init", o.box.init, "calls are one process each"},
	} {
		if f.on {
			return &validate.Error{Field: f.flag, Value: "mcp", Reason: f.why, Fix: "leave it out"}
		}
	}
	switch {
	case o.prewarm < 0 || o.prewarm > mostPrewarmed:
		return &validate.Error{Field: "--prewarm", Value: strconv.Itoa(o.prewarm), Reason: fmt.Sprintf("not between 0 and %d", mostPrewarmed), Fix: "give the number of calls that come at once"}
	case o.kernel && o.prewarm > 0:
		return &validate.Error{Field: "--prewarm", Value: strconv.Itoa(o.prewarm), Reason: "with --kernel, calls have one box together", Fix: "leave out one of the two"}
	case o.kernel && o.box.workspaceSize != "none":
		return &validate.Error{Field: "--workspace-size", Value: o.box.workspaceSize, Reason: "the files of a box that lives on would be in its memory, where the other tools do not see them", Fix: "leave it out, or --kernel"}
	case o.box.pool == runner.PoolRequire:
		return &validate.Error{Field: "--pool", Value: o.box.pool, Reason: "a call would wait for a pool that nobody promised", Fix: "--prewarm N keeps boxes of its own"}
	}
	return nil
}

// handover is what the server has to know.
func (o *mcpOpts) handover(c *cobra.Command) (*mcp.Handover, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	startTime, err := validate.ParseDuration(o.box.startTimeout)
	if err != nil {
		return nil, validate.In("--start-timeout", err)
	}
	dirs := runner.FindDirs(o.env)
	budget, cancel := runner.NewBudget(c.Context(), startTime)
	defer cancel()
	version, _ := o.build.version()
	h := &mcp.Handover{
		Build: version, Dirs: dirs, Kernel: o.kernel, Prewarm: o.prewarm, Pool: o.box.pool,
		PycCache: o.box.pycCache == "auto", Track: o.box.trackFiles, Quiet: o.global.quiet,
	}
	if strings.HasPrefix(o.box.workspace, workspace.NamePrefix) {
		// The server holds it: a lock of this process would end with the exec.
		h.Named, o.box.workspace = o.box.workspace, ""
		if err := workspace.CheckName(strings.TrimPrefix(h.Named, workspace.NamePrefix)); err != nil {
			return nil, validate.In("--workspace", err)
		}
		if len(o.box.writable) > 0 {
			return nil, &validate.Error{Field: "--writable", Value: o.box.writable[0], Reason: "a workspace that is kept by name has nothing to guard", Fix: "leave it out"}
		}
	}
	if h.Spec, err = o.box.spec(o.app, budget, dirs); err != nil {
		return nil, err
	}
	if h.Named != "" && h.Spec.WorkspaceMax == runner.AutoSize {
		h.Spec.WorkspaceMax = 0
	}
	if h.MaxTimeout, err = validate.ParseDuration(o.maxTimeout); err != nil {
		return nil, validate.In("--max-timeout", err)
	}
	if t := h.Spec.Timeout; h.MaxTimeout > 0 && (t == 0 || t > h.MaxTimeout) {
		h.MaxTimeout = t
	}
	h.MaxMemory = h.Spec.Memory
	if o.maxMemory != "" {
		if h.MaxMemory, err = validate.ParseLimit(o.maxMemory); err != nil {
			return nil, validate.In("--max-memory", err)
		}
		if m := h.Spec.Memory; h.MaxMemory > 0 && (m == 0 || m > h.MaxMemory) {
			return nil, &validate.Error{Field: "--max-memory", Value: o.maxMemory, Reason: "less than --memory, which a call has anyway", Fix: "write more, or lower --memory"}
		}
	}
	if h.Spec.HostNetwork {
		h.Notes = append(h.Notes, "--network host: whatever an agent is talked into reaches this machine's loopback, the local network, and a cloud's metadata at 169.254.169.254")
	}
	// Without kern there still is a server, that says so: many clients show nothing
	// of one that ends at once.
	if h.Spec.Kern, err = o.findKern(c.Context(), dirs); err != nil {
		var x *exitError
		if errors.As(err, &x) && x.code != refused {
			return nil, err
		}
		h.Refusal = err.Error()
		h.Notes = append(h.Notes, h.Refusal)
	}
	return h, nil
}

// config prints what a client needs.
func (o *mcpOpts) config(c *cobra.Command) error {
	asJSON := o.global.json
	o.global.json = false // it is about this answer, and none of the server's flags
	if err := o.check(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cwd, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("the current directory is not there: %w", err)
	}
	args := []string{"mcp"}
	var bad error
	c.Flags().Visit(func(f *pflag.Flag) {
		if f.Name == "print-config" || f.Name == "json" || bad != nil {
			return
		}
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, v := range values {
			// A client starts it in another directory.
			switch {
			case slices.Contains([]string{"workspace", "workspace-copy", "rootfs", "log-file", "config", "kern", "kern-config", "env-file"}, f.Name) && v != "" && !filepath.IsAbs(v) && !strings.HasPrefix(v, workspace.NamePrefix):
				v = filepath.Join(cwd, v)
			case f.Name == "volume" && (strings.HasPrefix(v, ".") || strings.HasPrefix(v, "~")):
				m, err := validate.ParseVolume(v, cwd)
				if err != nil {
					bad = validate.In("--volume", err)
					return
				}
				v = filepath.Clean(m.Source) + ":" + m.Target
				if m.ReadOnly {
					v += ":ro"
				}
			}
			if f.Value.Type() == "bool" && v == "true" {
				args = append(args, "--"+f.Name)
			} else {
				args = append(args, "--"+f.Name+"="+v)
			}
		}
	})
	if bad != nil {
		return bad
	}
	text, where, err := mcp.Config(o.printConfig, self, args)
	if err != nil {
		return err
	}
	if asJSON {
		return o.printJSON(map[string]string{"client": o.printConfig, "where": where, "config": text})
	}
	fmt.Fprintln(o.out, text)
	o.note(o.printConfig + ": " + where)
	return nil
}
