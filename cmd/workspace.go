package cmd

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

func (a *app) workspaceCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "workspace",
		Short:   "list and remove the workspaces that are kept by name",
		GroupID: groupBox,
		Long: `List and remove the workspaces that are kept by name. run -W @NAME makes one, where
there is none of that name, and keeps it: what a box leaves there, the next one
finds. One run at a time can write to it.`,
		Example: `  kern-sbx run -W @job -- sh -c 'date >> log'
  kern-sbx workspace ls
  kern-sbx workspace rm @job`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		&cobra.Command{
			Use: "ls", Short: "list them with what they occupy", Args: cobra.NoArgs,
			Long: `List the kept workspaces: what each occupies on the disk, when it was last written
to, and the process that is using it now.`,
			Example: "  kern-sbx workspace ls\n  kern-sbx workspace ls --json",
			RunE:    func(c *cobra.Command, _ []string) error { return a.workspaceList(c) },
		},
		&cobra.Command{
			Use: "rm @NAME...", Short: "remove them with all that is in them", Args: cobra.MinimumNArgs(1),
			Example:           "  kern-sbx workspace rm @job",
			ValidArgsFunction: completeNamed,
			RunE:              func(_ *cobra.Command, args []string) error { return a.workspaceRemove(args) },
		},
	)
	return c
}

func completeNamed(c *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return completeWorkspaces(c, args, workspace.NamePrefix)
}

type workspaceDoc struct {
	Name string `json:"name"`
	Path string `json:"path"`
	// Size is in allocated bytes.
	Size int64     `json:"size"`
	Used time.Time `json:"used"`
	// Process is the number of the one that is using it, null for none.
	Process *int `json:"process"`
}

func (a *app) workspaceList(c *cobra.Command) error {
	store, err := a.store()
	if err != nil {
		return err
	}
	list, err := store.List()
	if err != nil {
		return fileError(err)
	}
	docs := []workspaceDoc{}
	for i := range list {
		d := workspaceDoc{Name: workspace.NamePrefix + list[i].Name, Path: list[i].Path, Used: list[i].Used.UTC()}
		if t, err := workspace.OpenTree(list[i].Path); err == nil {
			used, err := workspace.Usage(c.Context(), t.Dir(), 0)
			t.Close()
			if err != nil {
				return fileError(err)
			}
			d.Size = used.Bytes
		}
		if p := list[i].Holder; p != 0 {
			d.Process = &p
		}
		docs = append(docs, d)
	}
	if a.global.json {
		return a.printJSON(docs)
	}
	if len(docs) == 0 {
		a.note("no workspace is kept by name; run -W @NAME makes one")
		return nil
	}
	w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSIZE\tUSED\tPROCESS")
	for i := range docs {
		process := "-"
		if docs[i].Process != nil {
			process = fmt.Sprint(*docs[i].Process)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", docs[i].Name, validate.Size(docs[i].Size).Human(), age(docs[i].Used), process)
	}
	return w.Flush()
}

// age says how long ago something was, to one unit.
func age(t time.Time) string {
	d := time.Since(t)
	switch {
	case d < time.Minute:
		return "now"
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	}
	return fmt.Sprintf("%d days ago", int(d.Hours()/24))
}

func (a *app) workspaceRemove(args []string) error {
	store, err := a.store()
	if err != nil {
		return err
	}
	names := make([]string, len(args))
	for i, arg := range args {
		name, ok := strings.CutPrefix(arg, workspace.NamePrefix)
		if !ok {
			e := &validate.Error{Field: "NAME", Value: arg, Reason: "the name of a workspace begins with " + workspace.NamePrefix, Fix: "write " + workspace.NamePrefix + arg}
			if st, err := os.Stat(arg); err == nil && st.IsDir() {
				e.Reason, e.Fix = "a directory, which is yours to remove", "write "+workspace.NamePrefix+"NAME for one that is kept by name"
			}
			return e
		}
		if _, err := store.Path(name); err != nil {
			return validate.In("NAME", err)
		}
		names[i] = name
	}
	for _, n := range names {
		if err := store.Remove(n); err != nil {
			return fileError(validate.In("NAME", err))
		}
		if !a.global.json {
			fmt.Fprintln(a.out, term.VisibleLine(workspace.NamePrefix+n))
		}
	}
	if a.global.json {
		return a.printJSON(args)
	}
	return nil
}
