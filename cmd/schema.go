package cmd

import (
	_ "embed" // the schema

	"github.com/spf13/cobra"
)

//go:embed schema/result-v1.json
var resultSchema []byte

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		Short:   "print the JSON Schema of a result",
		GroupID: groupHost,
		Long: `Print the JSON Schema of the document that --json and --result write,
kern-sbx/result/v1.`,
		Example: `  kern-sbx schema > result.schema.json`,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := a.out.Write(resultSchema)
			return err
		},
	}
}
