package cmd

import (
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

func (a *app) manCommand() *cobra.Command {
	pages := func() (names []string) {
		files, _ := fs.Glob(a.build.Man, "man/*.1")
		for _, f := range files {
			names = append(names, strings.TrimSuffix(strings.TrimPrefix(f, "man/"), ".1"))
		}
		return names
	}
	return &cobra.Command{
		Use:     "man [PAGE]",
		Short:   "print a manual page, for man -l -",
		GroupID: groupHost,
		Long: `Print a manual page in troff. The pages are named after the commands:
kern-sbx, kern-sbx-run and so on.`,
		Example: `  kern-sbx man kern-sbx-run | man -l -`,
		Args:    cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return pages(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			name := "kern-sbx"
			if len(args) > 0 {
				name = args[0]
			}
			for _, p := range pages() {
				if p == name || p == "kern-sbx-"+name {
					b, err := fs.ReadFile(a.build.Man, "man/"+p+".1")
					if err == nil {
						_, err = a.out.Write(b)
					}
					return err
				}
			}
			e := &validate.Error{Field: "page", Value: name, Reason: "there is no such page", Fix: "there are " + strings.Join(pages(), ", ")}
			return e
		},
	}
}
