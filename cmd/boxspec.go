package cmd

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/hostroot"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

// spec turns the flags into a Spec. Every look at a path of the user's counts
// against the start budget. What it leaves for the caller: Argv, Code, streams.
func (b *boxFlags) spec(a *app, budget *runner.Budget, dirs runner.Dirs) (*runner.Spec, error) {
	s := &runner.Spec{Pull: b.pull, RequireLimits: b.requireLimits, Limits: b.limits}
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
	set("--limits", oneOf("auto", "kern", "own", "off")(b.limits))
	set("--pool", oneOf(runner.PoolAuto, runner.PoolOff, runner.PoolRequire)(b.pool))
	if b.limits == runner.LimitsOff && b.requireLimits {
		set("--require-limits", &validate.Error{Value: "--limits off", Reason: "nobody enforces anything then", Fix: "leave out one of the two"})
	}
	if b.pycCache != "auto" && b.pycCache != "off" {
		set("--pyc-cache", &validate.Error{Value: b.pycCache, Reason: "neither auto nor off"})
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
	s.WorkspaceMax, e = workspaceMax(b.workspaceMax)
	set("--workspace-max", e)
	if b.workspaceMax == "auto" {
		s.WorkspaceMax = runner.AutoSize
	}
	s.WorkspaceSize, e = validate.ParseLimit(b.workspaceSize)
	set("--workspace-size", e)
	if e == nil && s.WorkspaceSize > 0 {
		set("--workspace-size", b.sizeFits(s))
	}
	for _, p := range b.trackIgnore {
		set("--track-ignore", workspace.CheckIgnore(p))
	}
	s.TrackIgnore = b.trackIgnore
	s.Workdir, e = validate.Workdir(b.workdir)
	set("--workdir", e)
	s.StartTimeout = budget.Time
	if err == nil {
		err = b.posture(s)
	}
	if err != nil {
		return nil, err
	}
	if s.Env, err = b.environment(a, budget); err != nil {
		return nil, err
	}
	if err := b.setUp(s); err != nil {
		return nil, err
	}
	rules := validate.SourceRules{
		Home: a.env("HOME"), UID: os.Getuid(), Env: a.env,
		OwnDirs: dirs.List(),
	}
	if err := b.files(a, s, budget, rules); err != nil {
		return nil, err
	}
	if err := b.root(a, s, budget, dirs); err != nil {
		return nil, err
	}
	if s.Setup != nil && s.Host != nil && !validate.HasKey(s.Setup.Env, "PATH") {
		s.Setup.Env = append(s.Setup.Env, validate.KV{Key: "PATH", Value: s.Host.Path})
	}
	return s, b.fit(s)
}

// mostSetup keeps a setup within what the kernel takes as one argument.
const mostSetup = 100 << 10

// sizeFits refuses a workspace in memory together with what it cannot be had with.
func (b *boxFlags) sizeFits(s *runner.Spec) error {
	u, _, _ := strings.Cut(b.user, ":")
	switch {
	case s.Memory > 0 && s.WorkspaceSize > s.Memory:
		return &validate.Error{Value: b.workspaceSize, Reason: "more than the memory of the box (" + s.Memory.String() + "), which it is part of", Fix: "write less, or raise --memory"}
	case b.given["workspace-max"] != "" && s.WorkspaceMax > 0:
		return &validate.Error{Value: b.workspaceSize, Reason: "--workspace-max limits the workspace already", Fix: "give one of the two"}
	case b.workspace != "" && u != "" && u != "0" && u != "root":
		return &validate.Error{Value: b.workspaceSize, Reason: "what another user of the box makes could not be copied back", Fix: "leave out --user or -W"}
	}
	return nil
}

// tracks says whether changed files are looked for: when that was asked for, and
// by itself for a document about a private workspace, where it costs one look at
// what the run left (rule F12).
func (b *boxFlags) tracks(s *runner.Spec) bool {
	return b.trackFiles || b.given["track-files"] == "" && s.Capture && s.Workspace == ""
}

// setUp takes what makes the workspace ready before the run.
func (b *boxFlags) setUp(s *runner.Spec) error {
	s.DepsWritable = !b.depsReadOnly
	if strings.TrimSpace(b.setup) == "" {
		for flag, on := range map[string]bool{"--setup-force": b.setupForce, "--setup-env": b.setupEnv} {
			if on && b.given[flag[2:]] == fromFlag {
				return &validate.Error{Field: flag, Value: "true", Reason: "there is no setup", Fix: "add --setup CMD"}
			}
		}
		return nil
	}
	switch {
	case strings.ContainsRune(b.setup, 0):
		return &validate.Error{Field: "--setup", Value: b.setup, Reason: "a zero byte in a command"}
	case len(b.setup) > mostSetup:
		return &validate.Error{Field: "--setup", Value: b.setup[:64], Reason: "longer than a command may be", Fix: "put it into a script, mount that with -v, and name it"}
	}
	s.Setup = &runner.Setup{Command: b.setup, Force: b.setupForce}
	if b.setupEnv {
		s.Setup.Env = slices.Clone(s.Env)
	}
	return nil
}

// oneWorkspace settles which of -W and --workspace-copy counts: the one on the
// command line, before one of a configuration.
func (b *boxFlags) oneWorkspace() error {
	if b.workspace == "" || b.copyOf == "" {
		return nil
	}
	switch kept, copied := b.given["workspace"] == fromFlag, b.given["workspace-copy"] == fromFlag; {
	case kept == copied:
		return &validate.Error{Field: "--workspace-copy", Value: b.copyOf, Reason: "--workspace names another one", Fix: "give one of the two"}
	case kept:
		b.copyOf = ""
	default:
		b.workspace = ""
	}
	return nil
}

// posture takes what makes the walls of a box: network, capabilities, user.
func (b *boxFlags) posture(s *runner.Spec) error {
	switch b.network {
	case "none":
	case "host":
		s.HostNetwork = true
	default:
		return &validate.Error{Field: "--network", Value: b.network, Reason: "a box has no network, or the host's", Fix: "write none or host; --egress-allow lets single domains through"}
	}
	if len(b.egress) > 0 {
		if s.HostNetwork {
			return &validate.Error{Field: "--egress-allow", Value: strings.Join(b.egress, ","), Reason: "--network host gives the whole network", Fix: "leave out --network host"}
		}
		var err error
		if s.Egress, err = validate.Domains(strings.Join(b.egress, ",")); err != nil {
			return validate.In("--egress-allow", err)
		}
	}
	caps := func(field string, list []string) (out []string, err error) {
		for _, c := range list {
			if c == "none" && len(list) == 1 {
				return nil, nil
			}
			c, err = validate.Capability(c)
			if err != nil {
				return nil, validate.In(field, err)
			}
			out = append(out, c)
		}
		return out, nil
	}
	var err error
	if s.CapDrop, err = caps("--cap-drop", b.capDrop); err != nil {
		return err
	}
	if s.CapAdd, err = caps("--cap-add", b.capAdd); err != nil {
		return err
	}
	if s.Security = b.security; s.Security != "" && s.Security != "untrusted" {
		return &validate.Error{Field: "--security-profile", Value: b.security, Reason: "kern has no such bundle", Fix: "write untrusted"}
	}
	if s.Security != "" && (len(s.CapAdd) > 0 || len(s.CapDrop) == 0) {
		return &validate.Error{Field: "--security-profile", Value: b.security, Reason: "the bundle drops all capabilities, whatever --cap-add and --cap-drop say", Fix: "leave out one of them"}
	}
	checks := []struct {
		field, value string
		check        func(string) error
		to           *string
	}{
		{"--apparmor", b.apparmor, validate.AppArmor, &s.AppArmor},
		{"--user", b.user, validate.User, &s.User},
		{"--hostname", b.hostname, validate.Hostname, &s.Hostname},
		{"--cpuset-cpus", b.cpuset, validate.CPUSet, &s.CPUSet},
	}
	for _, c := range checks {
		if c.value == "" {
			continue
		}
		if err := c.check(c.value); err != nil {
			return validate.In(c.field, err)
		}
		*c.to = c.value
	}
	for _, u := range b.ulimits {
		if err := validate.Ulimit(u); err != nil {
			return validate.In("--ulimit", err)
		}
		s.Ulimits = append(s.Ulimits, u)
	}
	for _, p := range b.profiles {
		if err := validate.Profile(p); err != nil {
			return validate.In("--profile", err)
		}
		s.Profiles = append(s.Profiles, p)
	}
	return nil
}

// guarded are entries directly below a workspace that the next program on the
// host would run or obey (rule S2): an existing one is read-only in the box.
var guarded = []string{".git", ".kern-sbx.toml", ".envrc", ".vscode", ".idea", ".husky"}

// guard keeps the box from writing them, but those that the user wants written.
func (b *boxFlags) guard(s *runner.Spec) error {
	return s.Guard(slices.DeleteFunc(slices.Clone(guarded), func(name string) bool { return slices.Contains(b.writable, name) }))
}

// fit makes programs see as many CPUs as they may use (rule F9). The CPUs are
// drawn at random, or many boxes would share the first one.
func (b *boxFlags) fit(s *runner.Spec) error {
	if b.fitCPUs == "" {
		return nil
	}
	if s.CPUs == 0 {
		return &validate.Error{Field: "--fit-cpus", Value: b.fitCPUs, Reason: "there is no cap to fit to", Fix: "add --cpus N"}
	}
	var mask unix.CPUSet
	if err := unix.SchedGetaffinity(0, &mask); err != nil {
		return err
	}
	var ours []int
	for i := range len(mask) * 64 {
		if mask.IsSet(i) {
			ours = append(ours, i)
		}
	}
	n := min(int(math.Ceil(s.CPUs)), len(ours))
	count := strconv.Itoa(n)
	if s.CPUSet == "" {
		rand.Shuffle(len(ours), func(i, j int) { ours[i], ours[j] = ours[j], ours[i] })
		picked := ours[:n]
		slices.Sort(picked)
		var list []string
		for _, c := range picked {
			list = append(list, strconv.Itoa(c))
		}
		s.CPUSet = strings.Join(list, ",")
	}
	set := []validate.KV{
		{Key: "GOMAXPROCS", Value: count},
		{Key: "OMP_NUM_THREADS", Value: count},
		{Key: "OPENBLAS_NUM_THREADS", Value: count},
		{Key: "MKL_NUM_THREADS", Value: count},
	}
	if b.fitCPUs != "all" {
		for what := range strings.SplitSeq(b.fitCPUs, ",") {
			switch what {
			case "java":
				set = append(set, validate.KV{Key: "JAVA_TOOL_OPTIONS", Value: "-XX:ActiveProcessorCount=" + count})
			case "node":
				set = append(set, validate.KV{Key: "UV_THREADPOOL_SIZE", Value: count})
			case "make":
				set = append(set, validate.KV{Key: "MAKEFLAGS", Value: "-j" + count})
			default:
				return &validate.Error{Field: "--fit-cpus", Value: b.fitCPUs, Reason: "nothing is known of " + strconv.Quote(what), Fix: "write java, node or make, joined by commas, or nothing"}
			}
		}
	}
	s.Env = lastWins(append(set, s.Env...)) // the user's own settings win
	return nil
}

// leastMemory is the smallest cap that is worth trying; kern itself refuses
// less than 128 KiB, in which not even a shell starts.
const leastMemory = validate.Size(1 << 20)

func (b *boxFlags) files(a *app, s *runner.Spec, budget *runner.Budget, rules validate.SourceRules) error {
	if err := b.oneWorkspace(); err != nil {
		return err
	}
	if len(b.writable) > 0 && b.workspace == "" {
		return &validate.Error{Field: "--writable", Value: b.writable[0], Reason: "the private workspace has nothing to guard", Fix: "add -W DIR, or leave it out"}
	}
	for _, w := range b.writable {
		if !slices.Contains(guarded, w) {
			return &validate.Error{Field: "--writable", Value: w, Reason: "not one of the guarded names", Fix: "there are " + strings.Join(guarded, ", ")}
		}
	}
	cwd := "/"
	if b.workspace != "" || b.copyOf != "" || len(b.volumes)+len(b.mounts) > 0 || b.kernConfig != "" {
		var err error
		if cwd, err = os.Getwd(); err != nil {
			return fmt.Errorf("the current directory is not there: %w", err)
		}
	}
	s.Pins = map[string]runner.Pin{}
	source := func(field, path string) (resolved string, err error) {
		err = budget.Touch(path, func() error {
			r, notes, err := rules.Check(path)
			if err != nil {
				return err
			}
			pin, err := runner.PinSource(r)
			if err != nil {
				return err
			}
			for _, n := range notes {
				// A copy has no sockets.
				if field != "--workspace-copy" || !strings.Contains(n, "is a socket") {
					a.note(n)
				}
			}
			resolved, s.Pins[r] = r, pin
			return nil
		})
		return resolved, validate.In(field, err)
	}
	abs := func(path string) string {
		if !filepath.IsAbs(path) {
			path = filepath.Join(cwd, path)
		}
		return path
	}
	if b.copyOf != "" {
		path := abs(b.copyOf)
		var err error
		if s.CopyOf, err = source("--workspace-copy", path); err != nil {
			return err
		}
		// What root's boxes make of a copy lies where nobody else can enter.
		if err := budget.Touch(path, func() error { return isDir("--workspace-copy", s.CopyOf) }); err != nil {
			return err
		}
	}
	switch {
	case strings.HasPrefix(b.workspace, workspace.NamePrefix):
		if err := b.named(a, s, budget); err != nil {
			return err
		}
	case b.workspace != "":
		path := abs(b.workspace)
		var err error
		if s.Workspace, err = source("--workspace", path); err != nil {
			return err
		}
		if err := budget.Touch(path, func() error {
			if err := b.workspaceDir(s.Workspace); err != nil {
				return err
			}
			return b.guard(s)
		}); err != nil {
			return err
		}
	}
	if err := b.volumesAndMounts(a, s, cwd, source); err != nil {
		return err
	}
	if b.kernConfig != "" {
		path := abs(b.kernConfig)
		s.KernConfig = filepath.Clean(path)
		if err := budget.Touch(path, func() error { _, err := os.Stat(path); return err }); err != nil {
			return &validate.Error{Field: "--kern-config", Value: b.kernConfig, Reason: reason(err), Fix: "name a kern.toml"}
		}
	}
	return b.memoryFiles(s)
}

// named takes a workspace that is kept by name. It lies among our own files, where
// nothing else may be mounted from, and nobody obeys what is in it: so the rules
// about a directory of the user's are not asked. It stays this process's alone
// until its end.
func (b *boxFlags) named(a *app, s *runner.Spec, budget *runner.Budget) error {
	dir, _, err := a.workspacePath(b.workspace, toMake)
	if err != nil {
		return validate.In("--workspace", err)
	}
	if u, _, _ := strings.Cut(b.user, ":"); u != "" && u != "0" && u != "root" {
		// Another user of the box; the directory above keeps everybody else out.
		if err := os.Chmod(dir, 0o777); err != nil {
			return err
		}
	}
	return budget.Touch(dir, func() error {
		pin, err := runner.PinSource(dir)
		if err == nil {
			s.Workspace, s.Pins[dir] = dir, pin
		}
		return validate.In("--workspace", err)
	})
}

func (b *boxFlags) volumesAndMounts(a *app, s *runner.Spec, cwd string, source func(field, path string) (string, error)) error {
	add := func(field, text string, parse func(s, cwd string) (validate.Mount, error)) error {
		m, err := parse(text, cwd)
		if err != nil {
			return validate.In(field, err)
		}
		if m.Source, err = source(field, m.Source); err != nil {
			return err
		}
		for _, other := range s.Mounts {
			if other.Target == m.Target {
				return &validate.Error{Field: field, Value: text, Reason: "another mount has the same target", Fix: "give each its own"}
			}
		}
		if m.Target == "/dev/shm" && !m.ReadOnly {
			a.note("a directory at /dev/shm takes disk without a limit, and what is written there is still on this machine after the box")
		}
		s.Mounts = append(s.Mounts, m)
		return nil
	}
	for _, v := range b.volumes {
		if err := add("--volume", v, validate.ParseVolume); err != nil {
			return err
		}
	}
	for _, v := range b.mounts {
		if err := add("--mount", v, validate.ParseMountSpec); err != nil {
			return err
		}
	}
	return nil
}

// memoryFiles decides what of the box lies in memory: the user's tmpfs, and the
// default /tmp, which steps aside for whatever else is wanted there.
func (b *boxFlags) memoryFiles(s *runner.Spec) error {
	list, none, err := validate.ParseTmpfsList(b.tmpfs)
	if err != nil {
		return validate.In("--tmpfs", err)
	}
	targets := make([]string, 0, len(s.Mounts))
	taken := none || s.Security != ""
	for _, m := range s.Mounts {
		targets = append(targets, m.Target)
		taken = taken || m.Target == "/tmp"
	}
	for _, t := range list {
		taken = taken || t.Target == "/tmp"
	}
	if err := validate.CheckTmpfs(list, targets, s.Memory); err != nil {
		return validate.In("--tmpfs", err)
	}
	if s.Setup != nil {
		s.Setup.Tmpfs = list
	}
	if !taken {
		list = append([]validate.Tmpfs{{Target: "/tmp", Size: validate.DefaultTmp(s.Memory)}}, list...)
	}
	s.Tmpfs = list
	return nil
}

// workspaceDir checks what is a matter of workspaces alone: it is a directory,
// and, for root, nobody else can reach what hostile code makes in it (S1: a
// setuid file made by root in the box is setuid root on the host).
func (b *boxFlags) workspaceDir(dir string) error {
	if err := isDir("--workspace", dir); err != nil {
		return err
	}
	if u, _, _ := strings.Cut(b.user, ":"); u != "" && u != "0" && u != "root" {
		// Another user of the box is another user of the host, by its number.
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm()&0o007 == 0o007 {
			return err
		}
		return &validate.Error{
			Field: "--user", Value: b.user,
			Reason: "that user of the box cannot write this workspace",
			Fix:    "let it in (chmod o+rwx " + dir + "), or take --workspace-copy, or leave out --user",
		}
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

func isDir(field, dir string) error {
	st, err := os.Stat(dir)
	if err == nil && !st.IsDir() {
		err = &validate.Error{Field: field, Value: dir, Reason: "not a directory", Fix: "name a directory"}
	}
	return err
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

// runSize is a /run that is memory because there is no other.
const runSize = validate.Size(1 << 20)

func ownedByUs(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && int(st.Uid) == os.Geteuid()
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
			if os.Geteuid() != 0 && !ownedByUs(filepath.Join(dir, "run")) && !slices.ContainsFunc(s.Tmpfs, func(t validate.Tmpfs) bool { return t.Target == "/run" }) {
				// kern cannot make the places of our mounts in a directory whose owner
				// the box does not know.
				s.Tmpfs = append(slices.Clip(s.Tmpfs), validate.Tmpfs{Target: "/run", Size: runSize})
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
