package cmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/images"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

func (a *app) imageCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "image",
		Short:   "list, fetch, load, pin and remove images",
		GroupID: groupHost,
		Long: `List, fetch, load, pin and remove the images that kern keeps on this machine.
A pull records the registry's digest, which a run then reports as image.digest.`,
		Example: `  kern-sbx image pull python:3.12-slim
  kern-sbx run --image "$(kern-sbx image resolve python:3.12-slim)" -c 'print(1)'
  kern-sbx image ls`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	var timeout string
	pull := &cobra.Command{
		Use: "pull REF", Short: "fetch an image, and record the registry's digest", Args: cobra.ExactArgs(1),
		Long: `Fetch an image into kern's cache. The registry is always asked; nothing is fetched
when what is here is known to be what the registry has. The digest is recorded when
the registry names the same one before and after, so that a run can report it.`,
		Example: "  kern-sbx image pull python:3.12-slim\n  kern-sbx image pull --pull-timeout 1h localhost:5000/big:1",
		RunE:    func(c *cobra.Command, args []string) error { return a.imagePull(c, args[0], &timeout) },
	}
	pull.Flags().StringVar(&timeout, "pull-timeout", runner.DefaultPullTimeout.String(), "fetch it within `TIME`")
	pull.RegisterFlagCompletionFunc("pull-timeout", cobra.NoFileCompletions)
	c.AddCommand(
		&cobra.Command{
			Use: "ls", Short: "list the images on this machine", Args: cobra.NoArgs,
			Example: "  kern-sbx image ls\n  kern-sbx image ls --json",
			RunE:    func(*cobra.Command, []string) error { return a.imageList() },
		},
		pull,
		&cobra.Command{
			Use: "load FILE|-", Short: "load an archive made by docker save", Args: cobra.ExactArgs(1),
			Long:    "Load an archive made by docker save, or - for standard input. The archive says\nwhat its images are called.",
			Example: "  kern-sbx image load app.tar\n  docker save app:1 | kern-sbx image load -",
			RunE:    func(c *cobra.Command, args []string) error { return a.imageLoad(c, args[0]) },
		},
		&cobra.Command{
			Use: "rm REF...", Short: "remove images that no box uses", Args: cobra.MinimumNArgs(1),
			Example:           "  kern-sbx image rm alpine:3.19",
			RunE:              func(c *cobra.Command, args []string) error { return a.imageRemove(c, args) },
			ValidArgsFunction: completeCached,
		},
		&cobra.Command{
			Use: "resolve REF...", Short: "print what a tag is now, as REF@sha256:…", Args: cobra.MinimumNArgs(1),
			Long:              "Ask the registry which image a reference means now, and print the reference pinned\nto it. Nothing is fetched.",
			Example:           "  kern-sbx image resolve python:3.12-slim",
			RunE:              func(c *cobra.Command, args []string) error { return a.imageResolve(c, args) },
			ValidArgsFunction: completeCached,
		},
		&cobra.Command{
			Use: "precompile REF NEWREF", Short: "make an image with its Python library compiled", Args: cobra.ExactArgs(2),
			Long: `Make the image NEWREF, which is REF with the bytecode of its Python library in it:
python3 then starts faster on any machine that has the image. It is built on REF,
which has to stay. No network is needed and none is given.`,
			Example:           "  kern-sbx image precompile python:3.12-slim my-python:3.12",
			RunE:              func(c *cobra.Command, args []string) error { return a.imagePrecompile(c, args[0], args[1]) },
			ValidArgsFunction: completeCached,
		},
	)
	return c
}

// compileName is how this program is started again to compile the library of an
// image when nobody waits for it.
const compileName = "compile-inherited"

func (a *app) compileCommand() *cobra.Command {
	return &cobra.Command{
		Use:     compileName + " REF",
		Short:   "compile the Python library of an image (kern-sbx starts this itself)",
		Example: `  kern-sbx ` + compileName + ` python:3.12-slim`,
		GroupID: groupHost,
		Hidden:  true,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := imageRef(args[0]); err != nil {
				return err
			}
			dirs := runner.FindDirs(a.env)
			k, err := a.findKern(c.Context(), dirs)
			if err != nil {
				return err
			}
			return imageError(runner.CompileInBackground(c.Context(), k, dirs, args[0]))
		},
	}
}

// isPython says whether a command is an image's Python by its name: the one
// program that the bytecode of the image's library is for.
func isPython(argv []string) bool {
	v, ok := strings.CutPrefix(path.Base(argv[0]), "python")
	return ok && strings.Trim(v, "0123456789.") == ""
}

func (a *app) imagePrecompile(c *cobra.Command, ref, as string) error {
	for _, r := range []string{ref, as} {
		if err := imageRef(r); err != nil {
			return err
		}
	}
	dirs := runner.FindDirs(a.env)
	sigs := imageSignals()
	k, err := a.findKern(c.Context(), dirs)
	if err != nil {
		return err
	}
	done := a.progress("compiling " + ref)
	files, err := runner.Precompile(c.Context(), k, dirs, ref, as, sigs)
	done()
	if err != nil {
		return imageError(err)
	}
	a.note(strconv.Itoa(files) + " files compiled")
	if a.global.json {
		e, _ := images.Look(images.Cache(a.env), "", as)
		return a.printJSON(e)
	}
	_, err = fmt.Fprintln(a.out, term.VisibleLine(as))
	return err
}

func completeCached(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return images.Cached(images.Cache(os.Getenv)), cobra.ShellCompDirectiveNoFileComp
}

// failed is the code of work that was accepted and did not succeed.
const failed = 1

// imageSignals are what ends kern's work, which a signal of the terminal does
// not reach: it has a session of its own.
func imageSignals() chan os.Signal {
	c := make(chan os.Signal, 4)
	signal.Notify(c, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	return c
}

// imageError gives an error of the work its code.
func imageError(err error) error {
	var stopped *runner.StoppedError
	var bad *validate.Error
	switch {
	case err == nil, errors.As(err, &bad):
		return err
	case errors.As(err, &stopped):
		return &exitError{code: 128 + int(stopped.Signal), err: err}
	}
	return &exitError{code: failed, err: err}
}

// imageRef checks a reference, and refuses the word that names no image.
func imageRef(ref string) error {
	if ref == hostImage {
		return &validate.Error{Field: "REF", Value: ref, Reason: "this machine's own /usr is not an image", Fix: "give an image its registry too, HOST/NAME, if it is called so"}
	}
	return validate.In("REF", validate.ImageRef(ref))
}

func (a *app) imageList() error {
	records, err := runner.ImageRecords(runner.FindDirs(a.env))
	if err != nil {
		records = ""
	}
	all := images.List(images.Cache(a.env), records)
	if a.global.json {
		return a.printJSON(all)
	}
	if len(all) == 0 {
		a.note("there are no images on this machine; kern-sbx image pull REF fetches one, and --image host needs none")
		return nil
	}
	w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "REFERENCE\tID\tDIGEST\tSIZE\tPULLED")
	for _, e := range all {
		digest, size := e.DigestSource, "-"
		if e.Digest != nil {
			digest = short(*e.Digest)
		}
		if e.Size != nil {
			size = validate.Size(*e.Size).Human()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", term.VisibleLine(e.Ref), short(e.ID), digest, size, e.Pulled.Local().Format("2006-01-02 15:04"))
	}
	return w.Flush()
}

// short cuts the hex digits of a name like sha256:… to what people compare.
func short(s string) string {
	kind, hex, _ := strings.Cut(s, ":")
	return kind + ":" + hex[:min(12, len(hex))]
}

func (a *app) imagePull(c *cobra.Command, ref string, timeout *string) error {
	if err := imageRef(ref); err != nil {
		return err
	}
	var b boxFlags
	if err := a.configure(c, &b); err != nil {
		return err
	}
	limit, err := validate.ParseDuration(*timeout)
	if err != nil {
		return validate.In("--pull-timeout", err)
	}
	dirs := runner.FindDirs(a.env)
	records, err := runner.ImageRecords(dirs)
	if err != nil {
		return err
	}
	sigs := imageSignals()
	k, err := a.findKern(c.Context(), dirs)
	if err != nil {
		return err
	}
	done := a.progress("pulling " + ref)
	fresh, note, err := runner.PullRecorded(c.Context(), runner.Fetch{Kern: k, Image: ref, Timeout: limit, Signals: sigs}, records)
	done()
	if err != nil {
		return imageError(err)
	}
	if note != "" {
		a.note(note)
	}
	if !fresh {
		a.note("it is up to date")
	}
	e, ok := images.Look(images.Cache(a.env), records, ref)
	if !ok {
		return &exitError{code: failed, err: fmt.Errorf("image %s was pulled and is gone already", ref)}
	}
	if a.global.json {
		return a.printJSON(e)
	}
	if e.Digest != nil {
		ref = images.Pinned(ref, *e.Digest)
	}
	_, err = fmt.Fprintln(a.out, term.VisibleLine(ref))
	return err
}

// progress shows that something takes its time, and gives what ends that.
func (a *app) progress(label string) (done func()) {
	if a.global.quiet {
		return func() {}
	}
	return term.NewProgress(a.err, label).Stop
}

func (a *app) imageLoad(c *cobra.Command, name string) error {
	archive := a.in
	if name == "-" {
		if term.IsTerminal(a.in) {
			return &validate.Error{Field: "FILE", Value: name, Reason: "standard input is a terminal", Fix: "name a file, or pipe an archive in"}
		}
	} else {
		f, err := os.Open(name)
		if err != nil {
			return &validate.Error{Field: "FILE", Value: name, Reason: reason(err), Fix: "name an archive made by docker save"}
		}
		defer f.Close()
		if st, err := f.Stat(); err == nil && st.IsDir() {
			return &validate.Error{Field: "FILE", Value: name, Reason: "a directory", Fix: "name an archive made by docker save"}
		}
		archive = f
	}
	sigs := imageSignals()
	k, err := a.findKern(c.Context(), runner.FindDirs(a.env))
	if err != nil {
		return err
	}
	cache := images.Cache(a.env)
	before := map[string]bool{}
	for _, ref := range images.Cached(cache) {
		before[ref] = true
	}
	done := a.progress("loading " + name)
	refs, err := runner.Load(c.Context(), k, archive, sigs)
	done()
	for _, ref := range refs {
		if before[ref] {
			a.note(ref + " takes the place of the image that had this name")
		}
	}
	if err != nil {
		return imageError(err)
	}
	if a.global.json {
		list := []images.Entry{}
		for _, ref := range refs {
			if e, ok := images.Look(cache, "", ref); ok {
				list = append(list, e)
			}
		}
		return a.printJSON(list)
	}
	for _, ref := range refs {
		if _, err := fmt.Fprintln(a.out, term.VisibleLine(ref)); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) imageRemove(c *cobra.Command, refs []string) error {
	cache := images.Cache(a.env)
	// All are looked at before the first is gone.
	for _, ref := range refs {
		if err := imageRef(ref); err != nil {
			return err
		}
		if on := images.Dependents(cache, ref); len(on) > 0 {
			return &validate.Error{Field: "REF", Value: ref, Reason: "other images are built on it: " + strings.Join(on, ", "), Fix: "remove these first"}
		}
		if pids := images.Users(cache, ref); len(pids) > 0 {
			return &validate.Error{Field: "REF", Value: ref, Reason: "a box that is running uses it (process " + strconv.Itoa(pids[0]) + ")", Fix: "end the box first"}
		}
	}
	for _, ref := range refs {
		if !images.IsCached(cache, ref) {
			return &exitError{code: failed, err: fmt.Errorf("image %s is not on this machine", ref)}
		}
	}
	dirs := runner.FindDirs(a.env)
	records, err := runner.ImageRecords(dirs)
	if err != nil {
		return err
	}
	sigs := imageSignals()
	k, err := a.findKern(c.Context(), dirs)
	if err != nil {
		return err
	}
	for _, ref := range refs {
		id, _ := images.ID(cache, ref)
		if err := runner.RemoveImage(c.Context(), k, ref, sigs); err != nil {
			return imageError(err)
		}
		images.Forget(records, ref)
		images.OpenBytecode(filepath.Dir(records)).Forget(id)
		if !a.global.json {
			fmt.Fprintln(a.out, term.VisibleLine(ref))
		}
	}
	if a.global.json {
		return a.printJSON(refs)
	}
	return nil
}

// resolveTime bounds the questions about one reference.
const resolveTime = time.Minute

type resolvedDoc struct {
	Ref    string `json:"ref"`
	Digest string `json:"digest"`
	Pinned string `json:"pinned"`
}

func (a *app) imageResolve(c *cobra.Command, refs []string) error {
	for _, ref := range refs {
		if err := imageRef(ref); err != nil {
			return err
		}
	}
	docs := []resolvedDoc{}
	for _, ref := range refs {
		ctx, cancel := context.WithTimeout(c.Context(), resolveTime)
		done := a.progress("asking for " + ref)
		digest, err := images.Resolve(ctx, ref)
		done()
		cancel()
		if err != nil {
			return imageError(err)
		}
		d := resolvedDoc{ref, digest, images.Pinned(ref, digest)}
		if a.global.json {
			docs = append(docs, d)
		} else if _, err := fmt.Fprintln(a.out, term.VisibleLine(d.Pinned)); err != nil {
			return err
		}
	}
	if a.global.json {
		return a.printJSON(docs)
	}
	return nil
}
