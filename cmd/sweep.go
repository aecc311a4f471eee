package cmd

import (
	"github.com/spf13/cobra"

	"github.com/kern-sbx/kern-sbx/pkg/runner"
)

// sweepName is how this program is started again to delete what took too long
// to delete while somebody waited.
const sweepName = "sweep-inherited"

func (a *app) sweepCommand() *cobra.Command {
	return &cobra.Command{
		Use:     sweepName + " NAME",
		Short:   "go on with a deletion (kern-sbx starts this itself)",
		Example: `  kern-sbx ` + sweepName + ` 0123456789abcdef`,
		GroupID: groupHost,
		Hidden:  true,
		Args:    cobra.ExactArgs(1),
		RunE:    func(_ *cobra.Command, args []string) error { return runner.SweepInherited(args[0], a.global.kern) },
	}
}
