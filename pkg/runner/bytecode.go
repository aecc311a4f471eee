package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/images"
	"github.com/kern-sbx/kern-sbx/pkg/kernbin"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// BytecodeDir is where a box finds the bytecode of its image's Python library,
// read-only.
const BytecodeDir = "/kern-pyc"

// compileTime bounds the box that compiles an image's library.
const compileTime = 10 * time.Minute

// pythonEnv are variables by which Python takes modules from elsewhere.
var pythonEnv = []string{"PYTHONPYCACHEPREFIX", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}

// modulesIn are names directly below a workspace that say the same of it.
var modulesIn = []string{depsName, ".venv", "venv", "pyvenv.cfg", "__pycache__"}

// adoptBytecode gives the box the bytecode of its image when there is some, and
// says whether some should be made. With it, Python looks for bytecode nowhere
// else and can write none, so a box whose own modules have theirs, or would keep
// it, is better off without.
func (r *run) adoptBytecode(base, ws string) (wanted bool) {
	s := r.spec
	if len(s.Compiler) == 0 || s.Image == "" || r.image.ID == nil {
		return false
	}
	for _, kv := range s.Env {
		if slices.Contains(pythonEnv, kv.Key) {
			return false
		}
	}
	if s.Workspace != "" {
		for _, name := range modulesIn {
			if _, err := os.Lstat(filepath.Join(ws, name)); !errors.Is(err, os.ErrNotExist) {
				return false
			}
		}
	}
	tree, wanted := images.OpenBytecode(base).Adopt(*r.image.ID)
	if tree == "" {
		return wanted
	}
	s.Mounts = append(s.Mounts[:len(s.Mounts):len(s.Mounts)], validate.Mount{Source: tree, Target: BytecodeDir, ReadOnly: true})
	s.Env = append(s.Env[:len(s.Env):len(s.Env)], validate.KV{Key: "PYTHONPYCACHEPREFIX", Value: BytecodeDir})
	return false
}

// startCompiler starts the process that makes the bytecode of the image, for the
// runs to come. It has nothing of ours: no terminal, no pipe, no directory; and
// nobody waits for it.
func (r *run) startCompiler() {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer null.Close()
	p, err := os.StartProcess("/proc/self/exe", append([]string{"kern-sbx"}, append(r.spec.Compiler, r.spec.Image)...), &os.ProcAttr{
		Dir: "/", Env: os.Environ(), Sys: &unix.SysProcAttr{Setsid: true}, Files: []*os.File{null, null, null},
	})
	if err == nil {
		_ = p.Release()
	}
}

// CompileInBackground makes the bytecode of a cached image: what Spec.Compiler
// calls, with the reference added. It is in nobody's way: it runs at the lowest
// priority, one at a time on a machine, and ends without a word when there is
// nothing to do.
func CompileInBackground(ctx context.Context, k *kernbin.Kern, dirs Dirs, ref string) error {
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 19) // kern inherits it
	base, err := dirs.Usable(dirs.Cache)
	if err != nil {
		return err
	}
	cache := images.Cache(os.Getenv)
	id, ok := images.ID(cache, ref)
	if !ok {
		return fmt.Errorf("image %s is not on this machine", ref)
	}
	all := images.OpenBytecode(base)
	if _, wanted := all.Adopt(id); !wanted {
		return nil
	}
	b, err := all.Begin(id)
	if errors.Is(err, images.ErrBusy) {
		return nil
	}
	if err != nil {
		return err
	}
	out, err := compilePython(ctx, k, dirs, ref, "auto", nil)
	if now, ok := images.ID(cache, ref); err == nil && (!ok || now != id) {
		err = fmt.Errorf("image %s was replaced meanwhile", ref)
	}
	if err != nil {
		b.Fail()
		return err
	}
	_, err = b.Finish(out)
	return err
}

// compilePython runs the image's own Python in a box that holds nothing else: no
// workspace of anybody's, no network, no directory of the host but our program.
// What it wrote is bounded, and for images.Unpack to look at.
func compilePython(ctx context.Context, k *kernbin.Kern, dirs Dirs, ref, mode string, signals <-chan os.Signal) (io.Reader, error) {
	const program = "compile.py"
	s := &Spec{
		Kern: k, Image: ref, Pull: "never",
		Workdir: "/",
		Env:     []validate.KV{{Key: "PYTHONSAFEPATH", Value: "1"}},
		Tmpfs:   []validate.Tmpfs{{Target: "/tmp", Size: 64 << 20}},
		Memory:  DefaultMemory, PIDs: 64, CapDrop: []string{"ALL"}, User: "0",
		Timeout: compileTime, StartTimeout: time.Minute, MaxOutput: images.MaxBytecode,
		// -I: no variable, no directory of the user's and no current directory has
		// a say in what is imported. -B: nothing is written on the way.
		Argv:    []string{"python3", "-I", "-B", CodeDir + "/" + program, mode},
		Code:    []CodeFile{{Name: program, Content: images.Compiler}},
		Capture: true, Signals: signals,
	}
	budget, cancel := NewBudget(ctx, s.StartTimeout)
	defer cancel()
	res, err := Run(ctx, budget, dirs, s)
	switch {
	case err != nil:
		return nil, err
	case res.Fault != nil && res.Fault.Type == Killed && ctx.Err() == nil && res.Status > 128 && res.Status != 137:
		return nil, &StoppedError{unix.Signal(res.Status - 128)}
	case res.Fault != nil:
		return nil, fmt.Errorf("the library of %s was not compiled: %s", ref, res.Fault.Message)
	case res.Status != 0:
		return nil, fmt.Errorf("the library of %s was not compiled: its python3 ended with %d", ref, res.Status)
	case res.Truncated.Stdout:
		return nil, fmt.Errorf("the library of %s was not compiled: more than %s of bytecode", ref, validate.Size(images.MaxBytecode).Human())
	}
	return res.Stdout.Reader(), nil
}

// Precompile makes the image as, which is ref with the bytecode of its Python
// library beside the sources, and counts the files. The library is compiled in a
// box without a network, and no code runs while kern puts the layers together.
func Precompile(ctx context.Context, k *kernbin.Kern, dirs Dirs, ref, as string, signals <-chan os.Signal) (files int, err error) {
	// kern reads both from a file or a command line of its own.
	for _, r := range []string{ref, as} {
		if _, err := images.ParseName(r); err != nil {
			return 0, err
		}
	}
	if _, pinned := validate.HasDigest(as); pinned {
		return 0, &validate.Error{Field: "NEWREF", Value: as, Reason: "an image that is made has no digest yet", Fix: "write a name and a tag"}
	}
	if validate.CacheKey(ref) == validate.CacheKey(as) {
		return 0, &validate.Error{Field: "NEWREF", Value: as, Reason: "the image cannot be built on itself", Fix: "give the new one a name of its own"}
	}
	if !images.IsCached(images.Cache(os.Getenv), ref) {
		return 0, &validate.Error{Field: "REF", Value: ref, Reason: "not on this machine", Fix: "kern-sbx image pull " + ref}
	}
	base, err := dirs.Usable(dirs.Cache)
	if err != nil {
		return 0, err
	}
	out, err := compilePython(ctx, k, dirs, ref, "all", signals)
	if err != nil {
		return 0, err
	}
	dir, err := makeRunDir(base)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dir.remove(removeTime, nil)) }()
	tree := filepath.Join(dir.path, "context", "tree")
	for _, d := range []string{"context", "context/tree"} {
		at, err := dir.mkdir(d, 0o755)
		if err == nil {
			err = os.Chmod(at, 0o755) // kern gives the mode to the image's own
		}
		if err != nil {
			return 0, err
		}
	}
	if files, err = images.Unpack(out, tree, true); err != nil {
		return 0, err
	}
	if files == 0 {
		return 0, fmt.Errorf("image %s has no Python library", ref)
	}
	text := "FROM " + ref + "\nCOPY tree/ /\n"
	if err := dir.write("Containerfile", 0o600, []byte(text)); err != nil {
		return 0, err
	}
	print, st, err := kernCall{
		argv: []string{"build", "-t", as, "-f", filepath.Join(dir.path, "Containerfile"), filepath.Join(dir.path, "context")}, signals: signals,
	}.run(ctx, k.Path)
	if err == nil && !st.Success() {
		err = fmt.Errorf("kern could not build %s: %s", as, sentenceOr(print, st))
	}
	return files, err
}
