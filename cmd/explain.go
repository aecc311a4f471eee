package cmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kern-sbx/kern-sbx/pkg/hints"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

func (a *app) explainCommand() *cobra.Command {
	list := false
	cmd := &cobra.Command{
		Use:     "explain [TOPIC]",
		Short:   "explain a fault or a hint, offline",
		GroupID: groupHost,
		Long: `Explain what a fault means, or a hint, and what helps. Without a topic, list
them.`,
		Example: `  kern-sbx explain --list
  kern-sbx explain escape_blocked`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			var names []cobra.Completion
			for _, t := range hints.Topics() {
				names = append(names, cobra.CompletionWithDesc(t.ID, t.Title))
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			topics := hints.Topics()
			if list && len(args) > 0 {
				return &validate.Error{Field: "--list", Value: args[0], Reason: "it lists all topics", Fix: "leave out one of --list and the topic"}
			}
			if len(args) == 0 {
				wide := 0
				for _, t := range topics {
					wide = max(wide, len(t.ID))
				}
				for _, t := range topics {
					fmt.Fprintf(a.out, "%-*s  %s\n", wide, t.ID, t.Title)
				}
				return nil
			}
			var names []string
			for _, t := range topics {
				if t.ID == args[0] {
					fmt.Fprintf(a.out, "%s: %s\n\n%s\n", t.ID, t.Title, strings.TrimSpace(t.Text))
					return nil
				}
				names = append(names, t.ID)
			}
			e := &validate.Error{Field: "topic", Value: args[0], Reason: "there is none of that name", Fix: "kern-sbx explain lists them"}
			if near := validate.Nearest(args[0], names); near != "" {
				e.Fix = "did you mean " + near + "?"
			}
			return e
		},
	}
	cmd.Flags().BoolVar(&list, "list", false, "list the topics")
	return cmd
}
