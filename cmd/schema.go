package cmd

import (
	_ "embed" // the schemas
	"strings"

	"github.com/spf13/cobra"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

//go:embed schema/result-v1.json
var resultSchema []byte

//go:embed schema/doctor-v1.json
var doctorSchema []byte

// schemaNames are the documents that have a schema.
var schemaNames = []string{"result", "doctor", "diagnosis"}

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "schema [result | doctor | diagnosis]",
		Short:   "print the JSON Schema of a document",
		GroupID: groupHost,
		Long: `Print the JSON Schema of the document that run --json and --result write,
kern-sbx/result/v1, or of that of doctor --json, kern-sbx/doctor/v1, and with a
command, kern-sbx/diagnosis/v1.`,
		Example: `  kern-sbx schema > result.schema.json
  kern-sbx schema doctor`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.FixedCompletions(schemaNames, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(_ *cobra.Command, args []string) error {
			text := resultSchema
			switch name := first(args); name {
			case "", "result":
			case "doctor":
				text = doctorSchema
			case "diagnosis":
				text = diagnosisSchema
			default:
				e := &validate.Error{Field: "schema", Value: name, Reason: "there is none of that name", Fix: "there are " + strings.Join(schemaNames, ", ")}
				if near := validate.Nearest(name, schemaNames); near != "" {
					e.Fix = "did you mean " + near + "?"
				}
				return e
			}
			_, err := a.out.Write(text)
			return err
		},
	}
}
