package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

// Setup is a shell command that readies the workspace in a box of its own, which
// has the host's network and the same caps, before the box of the run starts.
//
// The workspace may be hostile, and nothing in it may be run by the setup itself
// (rule S7): the command starts in / with Python's safe path.
type Setup struct {
	Command string
	// Force runs it even when .deps is what it made before.
	Force bool
	// Env is what the command finds set besides what is ours.
	Env []validate.KV
	// Tmpfs are those of Spec.Tmpfs that the user asked for. The default /tmp is
	// none: an install needs scratch on disk.
	Tmpfs []validate.Tmpfs
}

const (
	depsName = ".deps"
	depsDir  = WorkspaceDir + "/" + depsName
	// setupTime is the least that a setup may take: it fetches things.
	setupTime = 120 * time.Second
	// pipLeft begins the names of what a killed pip leaves behind.
	pipLeft = "pip-unpack-"
)

// setupTimeout bounds a setup, and the wait for another one.
func (s *Spec) setupTimeout() time.Duration {
	if s.Timeout <= 0 {
		return 0
	}
	return max(s.Timeout, setupTime)
}

// pipRoutes are the ways to begin a command that installs Python packages.
var pipRoutes = []string{"pip install ", "pip3 install ", "python3 -m pip install ", "python -m pip install "}

// routePip lets a plain pip install into the workspace: the root is read-only.
func routePip(command string) string {
	command = strings.TrimLeft(command, " \t")
	for _, p := range pipRoutes {
		if rest, ok := strings.CutPrefix(command, p); ok {
			return p + "--target " + depsDir + " --no-cache-dir --disable-pip-version-check " + rest
		}
	}
	return command
}

// prepareSpec is a box that readies the workspace ws for the one of s.
func (s *Spec) prepareSpec(ws string, argv ...string) *Spec {
	p := *s
	p.prepares, p.served, p.Init, p.Results = true, false, false, false
	p.Workspace, p.CopyOf, p.Setup, p.Watch = ws, "", nil, nil
	p.Pull = "never" // the root is here by now
	p.Argv, p.Code, p.Workdir = argv, nil, "/"
	p.Claimer, p.Cell = nil, nil
	p.TTY, p.TTYStarted, p.Kill, p.Stdin = nil, nil, nil, nil
	p.Stdout, p.Stderr, p.Capture, p.Progress = nil, nil, true, nil
	p.MaxOutput = DefaultMaxOutput
	p.Timeout = s.setupTimeout()
	p.Egress, p.HostNetwork = nil, false
	return &p
}

// setupSpec is the box of the command itself. tmp is the directory on disk that
// is its /tmp.
func (s *Spec) setupSpec(ws, tmp string) *Spec {
	p := s.prepareSpec(ws, "sh", "-c", routePip(s.Setup.Command))
	p.HostNetwork = true
	p.Tmpfs = s.Setup.Tmpfs
	// HOME lies in the read-only root, where npm and others cannot keep what
	// they must.
	ours := []validate.KV{{Key: "HOME", Value: "/tmp"}}
	p.Env = lastOf(append(append(ours, s.Setup.Env...), validate.KV{Key: "PYTHONSAFEPATH", Value: "1"}))
	taken := slices.ContainsFunc(p.Tmpfs, func(t validate.Tmpfs) bool { return t.Target == "/tmp" }) ||
		slices.ContainsFunc(s.Mounts, func(m validate.Mount) bool { return m.Target == "/tmp" })
	if !taken {
		p.Mounts = append([]validate.Mount{{Source: tmp, Target: "/tmp"}}, s.Mounts...)
	}
	return p
}

// compileSpec is the box that compiles what was installed, before it becomes
// read-only. Python isolated (-I) has neither the directory it starts in nor
// PYTHONPATH among its modules.
func (s *Spec) compileSpec(ws string) *Spec {
	p := s.prepareSpec(ws, "sh", "-c", "python3 -I -m compileall -q "+depsDir+" || true")
	p.Env = nil
	if s.Host != nil {
		p.Env = append(p.Env, validate.KV{Key: "PATH", Value: s.Host.Path})
	}
	p.Env = append(p.Env, validate.KV{Key: "PYTHONSAFEPATH", Value: "1"})
	return p
}

// lastOf keeps the last value of each variable.
func lastOf(all []validate.KV) []validate.KV {
	var out []validate.KV
	for i, kv := range all {
		if !slices.ContainsFunc(all[i+1:], func(o validate.KV) bool { return o.Key == kv.Key }) {
			out = append(out, kv)
		}
	}
	return out
}

// prepareWorkspace makes the workspace what the box of the run is to find. spent
// is true when that took time of its own, which the start budget is not for.
func (r *run) prepareWorkspace(ctx context.Context) (ws string, spent bool, err error) {
	s := r.spec
	if ws = s.Workspace; ws == "" {
		if ws, err = r.dir.mkdir(workspaceName, 0o755); err != nil {
			return "", false, err
		}
		if !s.rootUser() {
			// Another user of the box; on the host the directory above keeps
			// everybody else out.
			if err := os.Chmod(ws, 0o777); err != nil {
				return "", false, err
			}
		}
		if s.CopyOf != "" {
			if err := r.copyWorkspace(ctx, ws); err != nil {
				return "", true, err
			}
			spent = true
		}
	}
	r.limitFiles(ws)
	switch {
	case s.prepares:
	case s.Setup != nil:
		spent = true
		err = r.setup(ctx, ws)
	case s.Workspace != "":
		err = r.useDeps(ws)
	}
	return ws, spent, err
}

// useDeps puts a .deps on Python's path that an earlier run's setup made and
// nobody has changed since. Any other is not ours: what a hostile .deps holds
// would run in every box of this workspace.
func (r *run) useDeps(ws string) error {
	if _, err := os.Lstat(filepath.Join(ws, depsName)); err != nil {
		return nil // also when it cannot be told: the box then does without
	}
	rec := r.openRecord(ws, false)
	ours := false
	if rec != nil && flock(rec.file, unix.LOCK_SH|unix.LOCK_NB) == nil && rec.read() {
		pin, ok, err := r.verify(ws, rec)
		if err != nil {
			return err
		}
		if ours = ok; ours {
			r.mountDeps(ws, pin)
		}
	}
	if !ours {
		r.reported = append(r.reported, fmt.Sprintf("%s is not what a --setup made here, so it is not on PYTHONPATH", filepath.Join(ws, depsName)))
	}
	return nil
}

// setup runs the setup command, or finds that it need not be run.
func (r *run) setup(ctx context.Context, ws string) error {
	s := r.spec
	var rec *depsRecord
	if s.Workspace != "" {
		// Without a place to remember it in, it is run each time.
		rec = r.openRecord(ws, true)
	}
	want := s.setupKey(ws, r.image)
	// reuse says whether .deps is already what is wanted.
	reuse := func() (bool, error) {
		if !rec.read() || s.Setup.Force || rec.setup != want {
			return false, nil
		}
		pin, ok, err := r.verify(ws, rec)
		if ok {
			r.mountDeps(ws, pin)
		}
		return ok, err
	}
	if rec != nil {
		for _, how := range []int{unix.LOCK_SH, unix.LOCK_EX} {
			if err := r.await(ctx, rec.file, how); err != nil {
				return err
			}
			if ok, err := reuse(); ok || err != nil {
				return err // the lock is kept: nobody rebuilds it while we use it
			}
		}
	}
	if err := r.clearDeps(ws, rec, want); err != nil {
		return err
	}
	if s.Progress != nil {
		defer s.Progress("setting up")()
	}
	if err := r.install(ctx, ws); err != nil {
		return err
	}
	return r.finishSetup(ctx, ws, rec, want)
}

// clearDeps makes room for what the setup makes.
func (r *run) clearDeps(ws string, rec *depsRecord, want string) error {
	s := r.spec
	path := filepath.Join(ws, depsName)
	_, err := os.Lstat(path)
	there := err == nil
	known := rec != nil && rec.setup != ""
	switch {
	case !there:
	case s.Workspace != "" && !known && !s.Setup.Force:
		// Perhaps a build's own, which uses the same name.
		return &validate.Error{Field: "--setup", Value: path, Reason: "it was not made by --setup, which would replace it", Fix: "remove it, or add --setup-force"}
	case s.Workspace == "":
		r.reported = append(r.reported, fmt.Sprintf("the copy of %s does not have its %s, which --setup makes anew", s.CopyOf, depsName))
	case !s.Setup.Force && rec.setup == want && rec.tree != unfinished:
		r.reported = append(r.reported, fmt.Sprintf("%s was changed since --setup made it, and was made anew", path))
	}
	if rec != nil {
		// From here on it is ours, also when we are killed.
		if err := rec.write(want, unfinished); err != nil {
			return err
		}
	}
	return removeIn(ws, depsName)
}

func removeIn(dir, name string) error {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	return workspace.RemoveAt(d, name)
}

// install runs the command in its box. When it fails, what it left of .deps and
// what pip left are removed.
func (r *run) install(ctx context.Context, ws string) (err error) {
	s := r.spec
	tmp, err := r.dir.mkdir("tmp", 0o700)
	if err != nil {
		return err
	}
	before := pipLeftovers(ws)
	defer func() {
		if err != nil {
			left := slices.DeleteFunc(pipLeftovers(ws), func(n string) bool { return slices.Contains(before, n) })
			for _, n := range append(left, depsName) {
				if rerr := removeIn(ws, n); rerr != nil {
					r.reported = append(r.reported, rerr.Error())
				}
			}
		}
		_ = removeIn(r.dir.path, "tmp")
	}()
	res, err := r.step(ctx, s.setupSpec(ws, tmp))
	if err == nil && !res.OK {
		err = setupFailed(s, res)
	}
	return err
}

// step runs one box that prepares. It goes the same way as any other.
func (r *run) step(ctx context.Context, s *Spec) (*Result, error) {
	budget, cancel := NewBudget(ctx, s.StartTimeout)
	defer cancel()
	sub := &run{spec: s, budget: budget, dirs: r.dirs, errMark: -1}
	res, err := sub.do(ctx)
	r.reported = append(r.reported, sub.reported...)
	if err != nil {
		return nil, fmt.Errorf("setup failed: %w", err)
	}
	if sub.ev.stop == stopSignal {
		r.stopFor(stopSignal, sub.ev.signal)
		return nil, errInterrupted
	}
	return res, nil
}

// finishSetup compiles, remembers and mounts what was installed.
func (r *run) finishSetup(ctx context.Context, ws string, rec *depsRecord, want string) error {
	s := r.spec
	d, pin, err := openDeps(ws)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it made something else
	}
	if err != nil {
		_ = removeIn(ws, depsName) // perhaps a link out of the workspace
		return fmt.Errorf("setup failed: it left %s as something that is no directory", depsDir)
	}
	d.Close()
	if !s.DepsWritable {
		res, err := r.step(ctx, s.compileSpec(ws))
		if err != nil {
			return err
		}
		if res.Fault != nil {
			r.reported = append(r.reported, "the packages of --setup are not compiled, and will be slow to import: "+res.Fault.Message)
		}
	}
	if rec != nil {
		time.Sleep(workspace.FingerprintSettle)
		tree, err := treeOf(ctx, ws)
		if err != nil {
			return fmt.Errorf("what --setup made cannot be read: %w", err)
		}
		if err := rec.write(want, tree); err != nil {
			return err
		}
		// Others may use it now; nobody may replace it while we do.
		if err := flock(rec.file, unix.LOCK_SH); err != nil {
			return err
		}
	}
	r.mountDeps(ws, pin)
	return nil
}

// mountDeps gives the box of the run what was installed.
func (r *run) mountDeps(ws string, pin Pin) {
	s := r.spec
	if !s.DepsWritable {
		m := validate.Mount{Source: filepath.Join(ws, depsName), Target: depsDir, ReadOnly: true}
		s.Mounts = append(slices.Clip(s.Mounts), m)
		if s.Pins == nil {
			s.Pins = map[string]Pin{}
		}
		s.Pins[m.Source] = pin
	}
	if !slices.ContainsFunc(s.Env, func(kv validate.KV) bool { return kv.Key == "PYTHONPATH" }) {
		s.Env = append(slices.Clip(s.Env), validate.KV{Key: "PYTHONPATH", Value: depsDir})
	}
}

// openDeps opens .deps if it is a directory: what made it may have made a link.
func openDeps(ws string) (*os.File, Pin, error) {
	d, err := os.OpenFile(filepath.Join(ws, depsName), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, Pin{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		d.Close()
		return nil, Pin{}, err
	}
	return d, Pin{st.Dev, st.Ino}, nil
}

// verify says whether .deps is as rec has it.
func (r *run) verify(ws string, rec *depsRecord) (pin Pin, ok bool, err error) {
	err = r.budget.Touch(filepath.Join(ws, depsName), func() error {
		d, p, err := openDeps(ws)
		if err != nil {
			return nil
		}
		defer d.Close()
		pin = p
		if r.spec.DepsWritable && rec.tree != unfinished {
			ok = true // boxes may change it, the user said
			return nil
		}
		sum, err := workspace.Fingerprint(r.budget.ctx, d)
		ok = err == nil && hex.EncodeToString(sum[:]) == rec.tree
		return nil
	})
	return pin, ok, err
}

func treeOf(ctx context.Context, ws string) (string, error) {
	d, _, err := openDeps(ws)
	if err != nil {
		return "", err
	}
	defer d.Close()
	sum, err := workspace.Fingerprint(ctx, d)
	return hex.EncodeToString(sum[:]), err
}

// setupKey is what a .deps depends on: the command, the image it was made in,
// the variables the command saw, and the files that it names (not what is in a
// directory that it names).
func (s *Spec) setupKey(ws string, image Image) string {
	h := sha256.New()
	id := "unknown"
	if image.ID != nil {
		id = *image.ID
	}
	fmt.Fprintf(h, "%q %q %q %q\n", routePip(s.Setup.Command), image.Ref, id, s.User)
	for _, kv := range s.Setup.Env {
		fmt.Fprintf(h, "%q=%q\n", kv.Key, kv.Value)
	}
	words := strings.FieldsFunc(s.Setup.Command, func(c rune) bool { return strings.ContainsRune(" \t\n'\"=;&|()<>", c) })
	for _, w := range words {
		if i := strings.IndexByte(w, '/'); i > 0 && w[0] == '-' {
			w = w[i:] // -r/workspace/requirements.txt
		}
		if host, ok := s.onHost(ws, w); ok {
			var st unix.Stat_t
			err := unix.Lstat(host, &st)
			fmt.Fprintf(h, "%q %v %d %d %d %d\n", w, err, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// onHost finds the file of the host that a path in the box stands for.
func (s *Spec) onHost(ws, path string) (string, bool) {
	path = filepath.Clean(path)
	for _, m := range append([]validate.Mount{{Source: ws, Target: WorkspaceDir}}, s.Mounts...) {
		if rest, ok := strings.CutPrefix(path, m.Target); ok && path != WorkspaceDir && (rest == "" || rest[0] == '/') {
			return m.Source + rest, true
		}
	}
	return "", false
}

// setupFailed says in one line why: what ended it, and its own words.
func setupFailed(s *Spec, res *Result) error {
	how := fmt.Sprintf("exit %d", res.Status)
	if f := res.Fault; f != nil {
		how += ", " + string(f.Type)
		switch {
		case f.Type == Timeout:
			how += " after " + s.setupTimeout().String()
		case (f.Type == OOM || f.Type == Killed) && s.Memory > 0:
			how += " under --memory " + s.Memory.String()
		}
	}
	said := strings.Join(strings.Fields(string(res.CodeStderr.Head(4<<10))), " ")
	if said == "" {
		said = strings.Join(strings.Fields(string(res.Stdout.Head(4<<10))), " ")
	}
	advice := ""
	switch {
	case res.Fault != nil && res.Fault.Type == OOM:
		advice = "; --memory caps the setup as well, give it more"
	case strings.Contains(said, "Could not open requirements file"):
		advice = "; the setup starts in /, so write " + WorkspaceDir + "/FILE"
	}
	if r := []rune(said); len(r) > 400 {
		said = string(r[:400]) + "..."
	}
	if said = term.VisibleLine(said); said == "" && res.Fault != nil {
		said = res.Fault.Message
	}
	if said != "" {
		said = ": " + said
	}
	return fmt.Errorf("setup failed (%s)%s%s", how, said, advice)
}

// pipLeftovers lists what killed pips left in a workspace.
func pipLeftovers(ws string) []string {
	d, err := os.OpenFile(ws, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer d.Close()
	var found []string
	for {
		names, err := d.Readdirnames(1000)
		for _, n := range names {
			if strings.HasPrefix(n, pipLeft) {
				found = append(found, n)
			}
		}
		if err != nil {
			return found
		}
	}
}

// depsRecord remembers, where no box can write, which setup made the .deps of a
// kept workspace and what it looked like then. Its file is also a lock: shared
// by the runs that use that .deps, held alone by the one that makes it.
type depsRecord struct {
	file        *os.File
	setup, tree string
}

// unfinished stands for the tree of a .deps that is being made.
const unfinished = "unfinished"

// openRecord opens the record of a workspace. Nil: there is none, or no place
// for it. It stays open, and with it the lock, until the run is over.
func (r *run) openRecord(ws string, create bool) *depsRecord {
	var st unix.Stat_t
	if unix.Stat(ws, &st) != nil {
		return nil
	}
	data, err := r.dirs.Usable(r.dirs.Data)
	if err != nil {
		return nil
	}
	dir, flags := filepath.Join(data, "setup"), os.O_RDWR|unix.O_NOFOLLOW
	if create {
		flags |= os.O_CREATE
		if err := ownDir(dir); err != nil {
			return nil
		}
	} else if checkDir(dir) != nil {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("%x-%x", uint64(st.Dev), st.Ino)), flags, 0o600)
	if err != nil {
		return nil
	}
	r.deps = &depsRecord{file: f}
	return r.deps
}

func (d *depsRecord) close() {
	if d != nil {
		d.file.Close()
	}
}

// read takes the record in, and says whether there is one.
func (d *depsRecord) read() bool {
	b, err := io.ReadAll(io.NewSectionReader(d.file, 0, 1024))
	if err != nil {
		return false
	}
	var ok bool
	d.setup, d.tree, ok = parseDeps(string(b))
	return ok
}

const depsHead = "kern-sbx deps 1\n"

func parseDeps(text string) (setup, tree string, ok bool) {
	rest, ok := strings.CutPrefix(text, depsHead)
	f := strings.Split(rest, "\n")
	if !ok || len(f) != 3 || len(f[0]) != 2*sha256.Size || f[1] == "" || f[2] != "" {
		return "", "", false
	}
	return f[0], f[1], true
}

func (d *depsRecord) write(setup, tree string) error {
	d.setup, d.tree = setup, tree
	err := d.file.Truncate(0)
	if err == nil {
		_, err = d.file.WriteAt([]byte(depsHead+setup+"\n"+tree+"\n"), 0)
	}
	if err != nil {
		return fmt.Errorf("the setup cannot be remembered: %w", err)
	}
	return nil
}

// await takes a lock that another run may have.
func (r *run) await(ctx context.Context, f *os.File, how int) error {
	s := r.spec
	begin := time.Now()
	for first := true; ; first = false {
		err := flock(f, how|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if first && s.Progress != nil {
			defer s.Progress("waiting for another run that uses this workspace")()
		}
		if limit := s.setupTimeout(); limit > 0 && time.Since(begin) > limit {
			return &validate.Error{Field: "--setup", Value: s.Workspace, Reason: "other runs are using its " + depsName, Fix: "wait for them to end, or give this run a workspace of its own"}
		}
		select {
		case <-time.After(lookEvery):
		case sig := <-s.Signals:
			r.stopFor(stopSignal, sig)
			return errInterrupted
		case <-ctx.Done():
			r.stopFor(stopSignal, unix.SIGINT)
			return errInterrupted
		}
	}
}
