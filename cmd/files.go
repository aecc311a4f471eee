package cmd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/pool"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

// What a command does with a workspace.
type use int

const (
	toRead  use = iota
	toWrite     // it has to be there
	toMake      // a named one is made where it is missing
)

// kernelPrefix begins an operand that means the workspace of a kernel.
const kernelPrefix = "kernel:"

// kernelWorkspace is the directory that a living kernel has at /workspace.
func (a *app) kernelWorkspace(name string) (string, error) {
	place, err := pool.Open(a.env, runner.FindDirs(a.env))
	if err != nil {
		return "", err
	}
	defer place.Close()
	k, err := place.Kernel(name)
	if err != nil {
		return "", err
	}
	defer k.Close()
	s, err := k.Status()
	if err != nil {
		return "", err
	}
	return s.Dir, nil
}

// workspacePath resolves the operand of a command that means a workspace: a
// directory, @NAME, or kernel:NAME. A named one that is written to is this process's alone
// until release.
func (a *app) workspacePath(operand string, u use) (dir string, release func(), err error) {
	if kernel, ok := strings.CutPrefix(operand, kernelPrefix); ok {
		dir, err := a.kernelWorkspace(kernel)
		return dir, func() {}, err
	}
	name, named := strings.CutPrefix(operand, workspace.NamePrefix)
	if !named {
		return operand, func() {}, nil
	}
	store, err := a.store()
	if err != nil {
		return "", nil, err
	}
	if u == toRead {
		dir, err = store.Path(name)
		return dir, func() {}, err
	}
	held, err := store.Hold(name, u == toMake)
	if err != nil {
		return "", nil, err
	}
	return held.Path, held.Release, nil
}

// store is where workspaces are kept by name.
func (a *app) store() (workspace.Store, error) {
	dirs := runner.FindDirs(a.env)
	data, err := dirs.Usable(dirs.Data)
	return workspace.NewStore(data), err
}

// withTree opens the workspace that an operand means.
func (a *app) withTree(operand string, u use, f func(t *workspace.Tree) error) error {
	dir, release, err := a.workspacePath(operand, u)
	if err != nil {
		return validate.In("WORKSPACE", err)
	}
	defer release()
	t, err := workspace.OpenTree(dir)
	if err != nil {
		return validate.In("WORKSPACE", err)
	}
	defer t.Close()
	err = f(t)
	if list := t.Restored(); len(list) > 0 {
		// Changed on the host, so it is said with -q too.
		a.say("note", fmt.Sprintf("%d directories had been closed to you, and are readable again; the first is %s", len(list), list[0]))
	}
	return fileError(err)
}

// fileError gives an error of the work its code.
func fileError(err error) error {
	var bad *validate.Error
	var x *exitError
	switch {
	case err == nil, errors.As(err, &x):
		return err
	case errors.As(err, &bad):
		return validate.In("PATH", err)
	case errors.Is(err, unix.EPIPE):
		return &exitError{code: 141}
	}
	return &exitError{code: failed, err: err}
}

func (a *app) filesCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "files",
		Short:   "list, read, write and remove files of a workspace",
		GroupID: groupBox,
		Long: `List, read, write and remove files of a workspace from this side: a directory,
@NAME for one that is kept by name, or kernel:NAME for that of a kernel. Code in
a box may have made what is in it. So no symbolic link is followed anywhere,
".." and absolute paths are refused, and only regular files are read or
replaced: a FIFO, a socket or a device is refused at once.`,
		Example: `  kern-sbx files ls ./work
  kern-sbx files cat @job results/out.txt
  kern-sbx files put @job data.csv
  kern-sbx files get kernel:notes plot.png`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.filesList(), a.filesCat(), a.filesGet(), a.filesPut(), a.filesRemove())
	return c
}

func (a *app) filesList() *cobra.Command {
	var recursive bool
	c := &cobra.Command{
		Use: "ls WORKSPACE [PATH]", Short: "list what is in a workspace", Args: cobra.RangeArgs(1, 2),
		Long: `List what is in a workspace, or in a directory of it, sorted by the bytes of the
names. Control characters in names are made visible. With --json each entry has
path, kind (file, dir, symlink, fifo, socket, char, block), size in bytes, mtime
and mode; a path that is not UTF-8 is an object with its base64.`,
		Example:           "  kern-sbx files ls ./work\n  kern-sbx files ls -R --json @job src",
		ValidArgsFunction: a.completeWorkspaceArg,
		RunE: func(_ *cobra.Command, args []string) error {
			return a.withTree(args[0], toRead, func(t *workspace.Tree) error {
				return a.listFiles(t, second(args), recursive)
			})
		},
	}
	c.Flags().BoolVarP(&recursive, "recursive", "R", false, "list what is in the directories as well")
	return c
}

func second(args []string) string {
	if len(args) > 1 {
		return args[1]
	}
	return ""
}

type entryDoc struct {
	Path  runner.Name `json:"path"`
	Kind  string      `json:"kind"`
	Size  int64       `json:"size"`
	MTime time.Time   `json:"mtime"`
	Mode  string      `json:"mode"`
}

// listFiles prints entry by entry: there may be a million.
func (a *app) listFiles(t *workspace.Tree, path string, recursive bool) error {
	w := bufio.NewWriterSize(a.out, 64<<10)
	separator := "[\n  "
	err := t.List(context.Background(), path, recursive, func(e *workspace.Entry) error {
		if a.global.json {
			doc, err := json.Marshal(entryDoc{
				runner.Name(e.Path), e.Kind(), e.Size, e.MTime.UTC(), fmt.Sprintf("%04o", e.Mode&0o7777),
			})
			if err != nil {
				return err
			}
			w.WriteString(separator)
			separator = ",\n  "
			_, err = w.Write(doc)
			return err
		}
		mark := ""
		if e.Kind() == workspace.KindDir {
			mark = "/"
		}
		_, err := fmt.Fprintf(w, "%-7s %04o %12d  %s  %s%s\n", e.Kind(), e.Mode&0o7777, e.Size,
			e.MTime.Local().Format("2006-01-02 15:04"), term.VisibleLine(e.Path), mark)
		return err
	})
	if err != nil {
		return err
	}
	if a.global.json {
		if separator == "[\n  " {
			w.WriteString("[]\n")
		} else {
			w.WriteString("\n]\n")
		}
	}
	return w.Flush()
}

// sizeFlag adds --max-bytes.
func sizeFlag(c *cobra.Command, to *string) {
	c.Flags().StringVar(to, "max-bytes", "none", "refuse a file of more than `SIZE`, or none")
	c.RegisterFlagCompletionFunc("max-bytes", cobra.NoFileCompletions)
}

// openFile opens a file of a workspace that is no larger than it may be.
func openFile(t *workspace.Tree, name, most string) (*os.File, int64, error) {
	limit, err := validate.ParseLimit(most)
	if err != nil {
		return nil, 0, validate.In("--max-bytes", err)
	}
	f, size, err := t.Open(name)
	if err == nil && limit > 0 && size > int64(limit) {
		f.Close()
		err = &validate.Error{Value: name, Reason: "it holds " + strconv.FormatInt(size, 10) + " bytes, more than --max-bytes " + most, Fix: "allow more with --max-bytes"}
	}
	return f, size, err
}

// mostInMemory is the largest file that is shown in a document.
const mostInMemory = "64m"

func (a *app) filesCat() *cobra.Command {
	var most string
	c := &cobra.Command{
		Use: "cat WORKSPACE PATH", Short: "print a file of a workspace", Args: cobra.ExactArgs(2),
		Long: `Print a file of a workspace. On a terminal, control sequences in it are made
visible; --raw passes them. Nothing is printed of a file beyond --max-bytes. With
--json: path, size and content, of at most 64 MiB unless --max-bytes says so.`,
		Example:           "  kern-sbx files cat @job out.txt\n  kern-sbx files cat --max-bytes 1m ./work result.json",
		ValidArgsFunction: a.completeWorkspaceArg,
		RunE: func(c *cobra.Command, args []string) error {
			if a.global.json && !c.Flags().Changed("max-bytes") {
				most = mostInMemory
			}
			return a.withTree(args[0], toRead, func(t *workspace.Tree) error {
				f, size, err := openFile(t, args[1], most)
				if err != nil {
					return err
				}
				defer f.Close()
				return a.printFile(f, args[1], size)
			})
		},
	}
	sizeFlag(c, &most)
	return c
}

func (a *app) printFile(f io.Reader, name string, size int64) error {
	// No more than there was: it may be growing for ever.
	from := io.LimitReader(f, size)
	if a.global.json {
		b, err := io.ReadAll(from)
		if err != nil {
			return err
		}
		return a.printJSON(struct {
			Path    runner.Name  `json:"path"`
			Size    int          `json:"size"`
			Content *runner.Text `json:"content"`
		}{runner.Name(name), len(b), runner.TextOf(b)})
	}
	show, err := newShow(a)
	if err != nil {
		return err
	}
	_, err = io.Copy(show.out, from)
	show.end()
	return err
}

func (a *app) filesGet() *cobra.Command {
	var most string
	c := &cobra.Command{
		Use: "get WORKSPACE PATH [DEST]", Short: "copy a file of a workspace to this machine", Args: cobra.RangeArgs(2, 3),
		Long: `Copy a file of a workspace to DEST: a file, a directory, or - for standard output;
without it, to a file of the same name here. A symbolic link is not followed there
either: a box may have planted it.`,
		Example: "  kern-sbx files get @job out/model.bin\n  kern-sbx files get ./work report.pdf ~/Documents",
		ValidArgsFunction: func(c *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) == 2 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return a.completeWorkspaceArg(c, args, word)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			return a.withTree(args[0], toRead, func(t *workspace.Tree) error {
				f, size, err := openFile(t, args[1], most)
				if err != nil {
					return err
				}
				defer f.Close()
				base, dest := path.Base(args[1]), ""
				if len(args) == 3 {
					dest = args[2]
				}
				switch {
				case dest == "-":
					return a.printFile(f, args[1], size)
				case dest == "":
					dest = "./" + base
				default:
					if st, err := os.Stat(dest); err == nil && st.IsDir() {
						dest = filepath.Join(dest, base)
					}
				}
				out, err := workspace.OpenOutput(dest)
				if err != nil {
					return validate.In("DEST", err)
				}
				err = out.Write(func(w io.Writer) error {
					_, err := io.Copy(w, io.LimitReader(f, size))
					return err
				})
				return errors.Join(err, out.Close())
			})
		},
	}
	sizeFlag(c, &most)
	return c
}

func (a *app) filesPut() *cobra.Command {
	var most string
	var b boxFlags
	c := &cobra.Command{
		Use: "put WORKSPACE FILE|- [PATH]", Short: "copy a file of this machine into a workspace", Args: cobra.RangeArgs(2, 3),
		Long: `Copy FILE, or - for standard input, into a workspace, under its own name or as
PATH (with a slash at its end: into that directory). Directories are made where
they are missing, and so is a workspace @NAME. The file appears whole or not at
all, with mode 0644; it replaces a regular file, and nothing else.`,
		Example: "  kern-sbx files put ./work data.csv\n  kern-sbx files put @job - in/config.json < config.json",
		ValidArgsFunction: func(c *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return a.completeWorkspaceArg(c, args, word)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.configure(c, &b); err != nil {
				return err
			}
			limit, err := validate.ParseLimit(most)
			if err != nil {
				return validate.In("--workspace-max", err)
			}
			to := ""
			if len(args) == 3 {
				to = args[2]
			}
			if to == "" && args[1] == "-" {
				return &validate.Error{Field: "PATH", Value: "", Reason: "standard input has no name", Fix: "say what the file shall be called"}
			}
			if to == "" || strings.HasSuffix(to, "/") {
				to += filepath.Base(args[1])
			}
			from := a.in
			if args[1] != "-" {
				if from, err = os.Open(args[1]); err != nil {
					return &validate.Error{Field: "FILE", Value: args[1], Reason: reason(err), Fix: "name a file, or - for standard input"}
				}
				defer from.Close()
				if st, err := from.Stat(); err == nil && st.IsDir() {
					return &validate.Error{Field: "FILE", Value: args[1], Reason: "a directory", Fix: "name a file; snapshot save and restore copy whole trees"}
				}
			}
			return a.withTree(args[0], toMake, func(t *workspace.Tree) error {
				_, err := t.Put(c.Context(), to, from, workspace.PutOptions{Max: int64(limit)})
				return err
			})
		},
	}
	c.Flags().StringVar(&most, "workspace-max", "none", "refuse what would make the workspace hold more than `SIZE`, or none")
	c.RegisterFlagCompletionFunc("workspace-max", cobra.NoFileCompletions)
	return c
}

func (a *app) filesRemove() *cobra.Command {
	var recursive bool
	c := &cobra.Command{
		Use: "rm WORKSPACE PATH...", Short: "remove files of a workspace", Args: cobra.MinimumNArgs(2),
		Long: `Remove files of a workspace, with -r directories and all that is in them, however
deep and whatever permissions they have. A symbolic link is removed itself.`,
		Example:           "  kern-sbx files rm @job out.txt\n  kern-sbx files rm -r ./work build",
		ValidArgsFunction: a.completeWorkspaceArg,
		RunE: func(_ *cobra.Command, args []string) error {
			return a.withTree(args[0], toWrite, func(t *workspace.Tree) error {
				for _, p := range args[1:] {
					if _, err := workspace.SplitPath(p); err != nil {
						return err // before the first is gone
					}
				}
				for _, p := range args[1:] {
					if err := t.Remove(p, recursive); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "remove directories with all that is in them")
	return c
}

// filesShown is how many changed files a person is shown.
const filesShown = 20

// reportFiles says which files a run changed.
func (o *runOpts) reportFiles(res *runner.Result) {
	for i := range res.Files {
		if i == filesShown {
			o.note(fmt.Sprintf("and %d more; --json lists them all", len(res.Files)-i))
			return
		}
		f := &res.Files[i]
		o.note(fmt.Sprintf("%s %s (%s)", f.Change, string(f.Path), validate.Size(f.Size).Human()))
	}
	if len(res.Files) == 0 && res.Started != nil {
		o.note("no file in the workspace was changed")
	}
}

// completeWorkspaceArg completes the first word of a files command.
func (a *app) completeWorkspaceArg(c *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return completeWorkspaces(c, args, word)
}

// completeWorkspaces offers the names of kept workspaces once a word begins with
// their mark, directories before.
func completeWorkspaces(_ *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if !strings.HasPrefix(word, workspace.NamePrefix) {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	a := &app{env: os.Getenv}
	store, err := a.store()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, _ := store.List()
	names := make([]cobra.Completion, len(list))
	for i := range list {
		names[i] = workspace.NamePrefix + list[i].Name
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
