package cmd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kern-sbx/kern-sbx/pkg/images"
	"github.com/kern-sbx/kern-sbx/pkg/pool"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

func (a *app) snapshotCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "snapshot",
		Short:   "save and restore the files of a workspace",
		GroupID: groupBox,
		Long: `Save the files of a workspace to one .tar.gz, and bring them back. Processes,
memory and what is in /tmp of a box are not in it. Any tar reads a snapshot, and
those of kern's Python SDK are restored as well.`,
		Example: `  kern-sbx snapshot save ./work work.tar.gz
  kern-sbx snapshot restore work.tar.gz ./copy
  kern-sbx snapshot verify work.tar.gz`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.snapshotSaveCommand(), a.snapshotRestoreCommand(), a.snapshotListCommand(), a.snapshotVerifyCommand())
	return c
}

// archiveFlags are the limits of an archive, as they were written.
type archiveFlags struct {
	bytes, entries, name, ratio string
	strip                       bool
}

func (l *archiveFlags) add(c *cobra.Command, reads bool) {
	f := c.Flags()
	f.StringVar(&l.bytes, "max-bytes", "10g", "refuse files of more than `SIZE` together, or none")
	f.StringVar(&l.entries, "max-entries", strconv.Itoa(workspace.DefaultArchiveEntries), "refuse more than `N` files and directories, or none")
	names := []string{"max-bytes", "max-entries"}
	if reads {
		f.StringVar(&l.name, "max-name", strconv.Itoa(workspace.DefaultArchiveName), "refuse names of more than `N` bytes")
		f.StringVar(&l.ratio, "max-ratio", strconv.Itoa(workspace.DefaultArchiveRatio), "refuse more than `N` bytes out of one compressed byte, or none")
		f.BoolVar(&l.strip, "strip-setuid", false, "take setuid and setgid files, without that bit")
		names = append(names, "max-name", "max-ratio")
	}
	for _, n := range names {
		c.RegisterFlagCompletionFunc(n, cobra.NoFileCompletions)
	}
}

func (l *archiveFlags) limits() (workspace.ArchiveLimits, error) {
	lim := workspace.DefaultArchiveLimits()
	size, err := validate.ParseLimit(l.bytes)
	if err != nil {
		return lim, validate.In("--max-bytes", err)
	}
	lim.Bytes = int64(size)
	if lim.Entries, err = validate.Count(l.entries, 1); err != nil {
		return lim, validate.In("--max-entries", err)
	}
	if l.name != "" {
		if lim.Name, err = validate.Count(l.name, 1); err != nil {
			return lim, validate.In("--max-name", err)
		}
		if lim.Name > workspace.DefaultArchiveName || lim.Name == 0 {
			return lim, &validate.Error{
				Field: "--max-name", Value: l.name, Reason: "the kernel takes no longer names than " + strconv.Itoa(workspace.DefaultArchiveName) + " bytes",
				Fix: "write a smaller number",
			}
		}
	}
	if l.ratio != "" {
		if lim.Ratio, err = validate.Count(l.ratio, 1); err != nil {
			return lim, validate.In("--max-ratio", err)
		}
	}
	return lim, nil
}

func (a *app) snapshotSaveCommand() *cobra.Command {
	var l archiveFlags
	var b boxFlags
	c := &cobra.Command{
		Use: "save DIR|@NAME|kernel:NAME FILE", Short: "write a workspace to FILE.tar.gz", Args: cobra.ExactArgs(2),
		Long: `Write what is in a workspace (a directory, one that is kept by name, or that of a
kernel, which is kept still meanwhile) to a .tar.gz, - for standard output. Files and directories go in, with their permissions
and times in whole seconds; links, FIFOs, sockets and devices are left out and
named. Owners are not recorded: the same tree gives the same bytes. FILE appears
when it is whole (mode 0600), or keeps what it held.`,
		Example: `  kern-sbx snapshot save ./work work.tar.gz
  kern-sbx snapshot save @job job.tar.gz
  kern-sbx snapshot save kernel:notes notes.tar.gz
  kern-sbx snapshot save ./work - | ssh host kern-sbx snapshot restore - work`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.configure(c, &b); err != nil {
				return err
			}
			return a.snapshotSave(c, args[0], args[1], b.image, &l)
		},
	}
	l.add(c, false)
	c.ValidArgsFunction = func(c *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return completeWorkspaces(c, args, word)
		}
		return []cobra.Completion{"gz"}, cobra.ShellCompDirectiveFilterFileExt
	}
	c.Flags().StringVar(&b.image, "image", runner.DefaultImage, "record that the workspace was used with the image `REF`")
	c.RegisterFlagCompletionFunc("image", completeCached)
	return c
}

func (a *app) snapshotRestoreCommand() *cobra.Command {
	var l archiveFlags
	var b boxFlags
	var replace bool
	var most string
	c := &cobra.Command{
		Use: "restore FILE DIR|@NAME", Short: "make DIR what a snapshot holds", Args: cobra.ExactArgs(2),
		Long: `Make a directory what a snapshot holds (- for standard input). All of the snapshot
is checked before the directory changes, in one step: it holds what it held, or
what the snapshot holds, also after a kill. It becomes another directory of the
same name, so a shell in it has to enter it again. Refused are absolute names, ..,
links, devices, FIFOs, setuid files, members that are there twice, and what is
beyond the limits.`,
		Example: `  kern-sbx snapshot restore work.tar.gz ./copy
  kern-sbx snapshot restore --replace work.tar.gz ./work`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.configure(c, &b); err != nil {
				return err
			}
			return a.snapshotRestore(c, args[0], args[1], b.image, most, replace, &l)
		},
	}
	l.add(c, true)
	c.ValidArgsFunction = func(c *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 1 {
			return completeWorkspaces(c, args, word)
		}
		return nil, cobra.ShellCompDirectiveDefault
	}
	f := c.Flags()
	f.BoolVar(&replace, "replace", false, "delete what is in DIR, if it is not empty")
	f.StringVar(&most, "workspace-max", "none", "refuse what would occupy more than `SIZE`, or none")
	f.StringVar(&b.image, "image", runner.DefaultImage, "warn if it was saved with another image than `REF`")
	c.RegisterFlagCompletionFunc("image", completeCached)
	c.RegisterFlagCompletionFunc("workspace-max", cobra.NoFileCompletions)
	return c
}

func (a *app) snapshotListCommand() *cobra.Command {
	var l archiveFlags
	c := &cobra.Command{
		Use: "ls FILE", Short: "list what is in a snapshot", Args: cobra.ExactArgs(1),
		Example: "  kern-sbx snapshot ls work.tar.gz\n  kern-sbx snapshot ls --json work.tar.gz",
		RunE:    func(c *cobra.Command, args []string) error { return a.snapshotList(c, args[0], &l) },
	}
	l.add(c, true)
	return c
}

func (a *app) snapshotVerifyCommand() *cobra.Command {
	var l archiveFlags
	c := &cobra.Command{
		Use: "verify FILE", Short: "check that a snapshot is whole and can be restored", Args: cobra.ExactArgs(1),
		Long:    "Read a snapshot to its end and check all that a restore checks. Nothing is written.\nThe exit code is 1 if it would be refused.",
		Example: "  kern-sbx snapshot verify work.tar.gz",
		RunE:    func(c *cobra.Command, args []string) error { return a.snapshotVerify(c, args[0], &l) },
	}
	l.add(c, true)
	return c
}

// untilSignal gives a context that ends with the first signal; the second one
// ends the program.
func untilSignal(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	sigs := imageSignals()
	go func() {
		select {
		case s := <-sigs:
			signal.Stop(sigs)
			cancel(&runner.StoppedError{Signal: s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(sigs); cancel(nil) }
}

// snapshotError gives an error of the work its code. The cause of a context that
// was ended is the signal.
func snapshotError(err error) error {
	if err == nil {
		return nil
	}
	var stopped *runner.StoppedError
	switch {
	case errors.As(err, &stopped):
		err = stopped
	case errors.Is(err, syscall.EPIPE): // who reads our output has gone
		return &exitError{code: 141}
	}
	return imageError(err)
}

// counting shows how far a number of bytes has come, of size if that is known.
func (a *app) counting(label string, done *atomic.Int64, size int64) (stop func()) {
	if a.global.quiet {
		return func() {}
	}
	p := term.NewProgress(a.err, label)
	end := make(chan struct{})
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
				n := done.Load()
				text := validate.Size(n).Human()
				if size > 0 {
					text = progressBar(n, size) + " " + text
				}
				p.Update(text)
			}
		}
	}()
	return func() { close(end); p.Stop() }
}

func progressBar(n, size int64) string {
	const width = 20
	part := min(1, float64(n)/float64(size))
	full := int(math.Round(part * width))
	return fmt.Sprintf("[%s%s] %3d%%", strings.Repeat("#", full), strings.Repeat(".", width-full), int(part*100))
}

func (a *app) openArchive(name string) (f *os.File, size int64, err error) {
	if name == "-" {
		if term.IsTerminal(a.in) {
			return nil, 0, &validate.Error{Field: "FILE", Value: name, Reason: "standard input is a terminal", Fix: "name a file, or pipe a snapshot in"}
		}
		name = "/dev/stdin"
	}
	if f, err = workspace.OpenArchive(name); err != nil {
		return nil, 0, validate.In("FILE", err)
	}
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
		size = st.Size()
	}
	return f, size, nil
}

// snapshotSource is what a save reads.
type snapshotSource struct {
	dir     string
	release func()
	image   string // that the kernel runs, "" for what the flag says
	// tmp says that it is a kernel's workspace and that its /tmp, which is not
	// saved, held data.
	tmp bool
}

func (a *app) snapshotSource(operand string) (snapshotSource, error) {
	if kernel, ok := strings.CutPrefix(operand, kernelPrefix); ok {
		return a.kernelSource(kernel)
	}
	dir, release, err := a.workspacePath(operand, toRead)
	return snapshotSource{dir: dir, release: release}, validate.In("DIR", err)
}

// kernelSource keeps a kernel still while it is read.
func (a *app) kernelSource(name string) (src snapshotSource, err error) {
	place, err := pool.Open(a.env, runner.FindDirs(a.env))
	if err != nil {
		return src, err
	}
	defer place.Close()
	k, err := place.Kernel(name)
	if err != nil {
		return src, err
	}
	s, err := k.Hold()
	if err != nil {
		k.Close()
		return src, err
	}
	return snapshotSource{dir: s.Dir, release: func() { k.Close() }, image: k.Meta.Root, tmp: s.Scratch > 0}, nil
}

func (a *app) snapshotSave(c *cobra.Command, from, name, image string, l *archiveFlags) error {
	limits, err := l.limits()
	if err != nil {
		return err
	}
	if image != hostImage {
		if err := validate.ImageRef(image); err != nil {
			return validate.In("--image", err)
		}
	}
	toOut := name == "-"
	if toOut {
		switch {
		case term.IsTerminal(a.out):
			return &validate.Error{Field: "FILE", Value: name, Reason: "standard output is a terminal", Fix: "name a file, or pipe it on"}
		case a.global.json:
			return &validate.Error{Field: "--json", Value: "true", Reason: "standard output is taken by the snapshot", Fix: "name a file"}
		}
		name = "/dev/stdout"
	}
	src, err := a.snapshotSource(from)
	if err != nil {
		return err
	}
	defer src.release()
	if src.image != "" {
		image = src.image
	}
	tree, err := workspace.OpenTree(src.dir)
	if err != nil {
		return validate.In("DIR", err)
	}
	defer tree.Close()
	to, err := workspace.CreateArchive(name)
	if err != nil {
		return validate.In("FILE", err)
	}
	defer to.Close()
	o := workspace.SaveOptions{Limits: limits, Done: new(atomic.Int64)}
	o.Record.Version, _ = a.build.version()
	o.Record.Image, o.Record.Machine = image, workspace.Machine()
	o.Record.Digest = a.digestOf(image)
	ctx, stop := untilSignal(c.Context())
	defer stop()
	done := a.counting("saving "+from, o.Done, 0)
	saved, err := workspace.SaveSnapshot(ctx, tree.Dir(), to, o)
	done()
	if cerr := to.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return snapshotError(err)
	}
	a.noteSkipped(&saved)
	if src.tmp {
		a.note("what is in /tmp of the box is not in the snapshot")
	}
	if saved.Changed > 0 {
		a.note(fmt.Sprintf("%d files were written to while they were saved, like %s: they may hold something of before and of after", saved.Changed, saved.FirstChanged))
	}
	if a.global.json {
		return a.printJSON(saved)
	}
	if toOut {
		return nil
	}
	_, err = fmt.Fprintf(a.out, "%s: %d files, %d directories, %s in %s\n", term.VisibleLine(name), saved.Files, saved.Dirs,
		validate.Size(saved.Bytes).Human(), validate.Size(saved.Size).Human())
	return err
}

func (a *app) noteSkipped(s *workspace.Saved) {
	total := len(s.Skipped) + s.SkippedMore
	if total == 0 {
		return
	}
	const most = 5
	var names []string
	for _, e := range s.Skipped[:min(most, len(s.Skipped))] {
		names = append(names, string(e.Path)+" ("+e.Why+")")
	}
	text := fmt.Sprintf("%d not in the snapshot: %s", total, strings.Join(names, ", "))
	if total > most {
		text += ", … (--json lists them all)"
	}
	a.note(text)
}

// digestOf is the digest of an image, if a pull has recorded it.
func (a *app) digestOf(image string) string {
	records, err := runner.ImageRecords(runner.FindDirs(a.env))
	if err != nil {
		return ""
	}
	if e, ok := images.Look(images.Cache(a.env), records, image); ok && e.Digest != nil {
		return *e.Digest
	}
	return ""
}

func (a *app) snapshotRestore(c *cobra.Command, name, to, image, most string, replace bool, l *archiveFlags) error {
	limits, err := l.limits()
	if err != nil {
		return err
	}
	if strings.HasPrefix(to, kernelPrefix) {
		return &validate.Error{Field: "DIR", Value: to, Reason: "the kernel has its workspace mounted, so another cannot take its place", Fix: "restore into a directory or @NAME, and start a kernel with -W"}
	}
	quota, err := validate.ParseLimit(most)
	if err != nil {
		return validate.In("--workspace-max", err)
	}
	f, size, err := a.openArchive(name)
	if err != nil {
		return err
	}
	defer f.Close()
	o := workspace.RestoreOptions{Replace: replace, Quota: int64(quota)}
	o.Name, o.Limits, o.StripSetuid, o.Read = name, limits, l.strip, new(atomic.Int64)
	ctx, stop := untilSignal(c.Context())
	defer stop()
	got, err := a.restoreTo(ctx, f, to, o, size)
	if err != nil {
		return snapshotError(err)
	}
	if got.Left != "" {
		a.note(fmt.Sprintf("what the directory held before still lies in %s: %v", got.Left, got.Why))
	}
	note := a.originNote(&got.ArchiveContents, image)
	if note != "" {
		a.note(note)
	}
	if a.global.json {
		doc := contentsDoc{contents: got.ArchiveContents, Left: got.Left}
		if note != "" {
			doc.Warnings = append(doc.Warnings, note)
		}
		return a.printJSON(doc.filled())
	}
	_, err = fmt.Fprintf(a.out, "%s: %s\n", term.VisibleLine(to), summary(&got.ArchiveContents))
	return err
}

// restoreTo restores into a directory, or into a workspace of a name, which is
// gone again if it was not there before and nothing came of it.
func (a *app) restoreTo(ctx context.Context, f *os.File, to string, o workspace.RestoreOptions, size int64) (workspace.Restored, error) {
	name, named := strings.CutPrefix(to, workspace.NamePrefix)
	made := false
	if named {
		store, err := a.store()
		if err != nil {
			return workspace.Restored{}, err
		}
		_, err = store.Path(name)
		made = err != nil
	}
	dir, release, err := a.workspacePath(to, toMake)
	if err != nil {
		return workspace.Restored{}, validate.In("DIR", err)
	}
	done := a.counting("restoring "+o.Name, o.Read, size)
	got, err := workspace.RestoreSnapshot(ctx, f, dir, o)
	done()
	release()
	if err != nil && made {
		if store, serr := a.store(); serr == nil {
			_ = store.Remove(name) // empty, as it was made
		}
	}
	return got, err
}

// contentsDoc is what --json says of an archive.
type contentsDoc struct {
	contents workspace.ArchiveContents

	OK       bool                     `json:"ok"`
	Record   *workspace.ArchiveRecord `json:"record"`
	Files    int                      `json:"files"`
	Dirs     int                      `json:"dirs"`
	Bytes    int64                    `json:"bytes"`
	Deps     bool                     `json:"deps"`
	Left     string                   `json:"left,omitempty"`
	Warnings []string                 `json:"warnings"`
	Error    string                   `json:"error,omitempty"`
}

func (d contentsDoc) filled() contentsDoc {
	c := &d.contents
	d.OK = d.Error == ""
	d.Record, d.Files, d.Dirs, d.Bytes, d.Deps = c.Record, c.Files, c.Dirs, c.Bytes, c.Deps
	if d.Warnings == nil {
		d.Warnings = []string{}
	}
	return d
}

func summary(c *workspace.ArchiveContents) string {
	return fmt.Sprintf("%d files, %d directories, %s", c.Files, c.Dirs, validate.Size(c.Bytes).Human())
}

// originNote warns when a snapshot was taken with another image, or on another
// kind of machine, than it will be used with.
func (a *app) originNote(c *workspace.ArchiveContents, image string) string {
	r := c.Record
	if r == nil {
		return ""
	}
	here := workspace.Machine()
	text := ""
	switch {
	case validate.CacheKey(r.Image) != validate.CacheKey(image) || r.Machine != here:
		text = fmt.Sprintf("it was saved with the image %s on %s, and here it is %s on %s", r.Image, r.Machine, image, here)
	case r.Digest != "":
		if now := a.digestOf(image); now != "" && now != r.Digest {
			text = fmt.Sprintf("it was saved with the image %s, which meant %s then and %s now", r.Image, short(r.Digest), short(now))
		}
	}
	if text != "" && c.Deps {
		text += "; compiled packages in its .deps may not load here: install them again with --setup-force"
	}
	return text
}

func (a *app) snapshotList(c *cobra.Command, name string, l *archiveFlags) error {
	limits, err := l.limits()
	if err != nil {
		return err
	}
	f, _, err := a.openArchive(name)
	if err != nil {
		return err
	}
	defer f.Close()
	ctx, stop := untilSignal(c.Context())
	defer stop()
	w := bufio.NewWriter(a.out)
	o := workspace.ReadOptions{Name: name, Limits: limits, StripSetuid: l.strip}
	// Written as it comes: a million long names need not fit into memory.
	n := 0
	if a.global.json {
		fmt.Fprint(w, "{\n  \"members\": [")
	}
	o.Member = func(m *workspace.ArchiveMember, _ io.Reader) error {
		if !a.global.json {
			mode, size := fs.FileMode(m.Mode), strconv.FormatInt(m.Size, 10)
			if m.Dir {
				mode, size = mode|fs.ModeDir, "-"
			}
			_, err := fmt.Fprintf(w, "%s %12s %s %s\n", mode, size, time.Unix(m.MTime, 0).UTC().Format("2006-01-02T15:04:05Z"), term.VisibleLine(m.Name))
			return err
		}
		doc := memberDoc{Path: workspace.RawName(m.Name), Kind: "file", Size: m.Size, Mode: fmt.Sprintf("%04o", m.Mode), MTime: m.MTime}
		if m.Dir {
			doc.Kind = "dir"
		}
		text, err := json.Marshal(doc)
		if err != nil {
			return err
		}
		sep := ",\n    "
		if n++; n == 1 {
			sep = sep[1:]
		}
		_, err = fmt.Fprintf(w, "%s%s", sep, text)
		return err
	}
	sum, err := workspace.ReadArchive(ctx, f, o)
	if a.global.json {
		doc := contentsDoc{contents: sum}
		if err != nil {
			doc.Error = err.Error()
		}
		text, jerr := json.MarshalIndent(doc.filled(), "", "  ")
		if jerr != nil {
			return jerr
		}
		fmt.Fprintf(w, "\n  ],\n%s\n", text[2:]) // without its own brace
	}
	if werr := w.Flush(); err == nil && werr != nil {
		return werr
	}
	return notGood(err)
}

type memberDoc struct {
	Path  workspace.RawName `json:"path"`
	Kind  string            `json:"kind"`
	Size  int64             `json:"size"`
	Mode  string            `json:"mode"`
	MTime int64             `json:"mtime"`
}

// notGood is the code of an archive that was looked at and would be refused.
func notGood(err error) error {
	var bad *validate.Error
	if errors.As(err, &bad) {
		return &exitError{code: failed, err: err}
	}
	return snapshotError(err)
}

func (a *app) snapshotVerify(c *cobra.Command, name string, l *archiveFlags) error {
	limits, err := l.limits()
	if err != nil {
		return err
	}
	f, size, err := a.openArchive(name)
	if err != nil {
		return err
	}
	defer f.Close()
	o := workspace.ReadOptions{Name: name, Limits: limits, StripSetuid: l.strip, Read: new(atomic.Int64)}
	ctx, stop := untilSignal(c.Context())
	defer stop()
	done := a.counting("verifying "+name, o.Read, size)
	sum, err := workspace.ReadArchive(ctx, f, o)
	done()
	if a.global.json {
		doc := contentsDoc{contents: sum}
		if err != nil {
			doc.Error = err.Error()
		}
		if jerr := a.printJSON(doc.filled()); jerr != nil {
			return jerr
		}
		return notGood(err)
	}
	if err != nil {
		return notGood(err)
	}
	_, err = fmt.Fprintf(a.out, "%s: whole: %s\n", term.VisibleLine(name), summary(&sum))
	return err
}
