package cmd

import (
	"github.com/spf13/cobra"

	"github.com/kern-sbx/kern-sbx/pkg/pool"
)

// holdCommand is what a process in the background is started as. It goes on as
// the command that it was given, out of sight of other users.
func (a *app) holdCommand() *cobra.Command {
	return &cobra.Command{
		Use:     pool.HoldName,
		Short:   "hold something in the background (kern-sbx starts this itself)",
		Example: "  kern-sbx " + pool.HoldName,
		GroupID: groupHost,
		Hidden:  true,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			args, err := pool.Args()
			if err != nil {
				return err
			}
			a.args, a.held = args, true
			root := a.rootCommand()
			root.SetArgs(args)
			return root.ExecuteContext(c.Context())
		},
	}
}
