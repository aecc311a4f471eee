package cmd

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/kern-sbx/kern-sbx/pkg/doctor"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
)

var update = flag.Bool("update", false, "write the generated files instead of comparing them")

// testTree is the command tree as a user has it.
func testTree(t *testing.T) *cobra.Command {
	t.Helper()
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Getenv}
	root := a.rootCommand()
	for _, c := range root.Commands() {
		if text, ok := a.topics()[c.Name()]; ok {
			c.Long = text()
		}
	}
	return root
}

// TestGenerated keeps completions/, man/ and the schema in step with the code.
// What it compares with is written by go test ./cmd -run Generated -update.
func TestGenerated(t *testing.T) {
	want := map[string][]byte{}
	for shell, gen := range map[string]func(*cobra.Command, *bytes.Buffer) error{
		"bash": func(c *cobra.Command, b *bytes.Buffer) error { return c.GenBashCompletionV2(b, true) },
		"zsh":  func(c *cobra.Command, b *bytes.Buffer) error { return c.GenZshCompletion(b) },
		"fish": func(c *cobra.Command, b *bytes.Buffer) error { return c.GenFishCompletion(b, true) },
	} {
		var b bytes.Buffer
		if err := gen(testTree(t), &b); err != nil {
			t.Fatal(err)
		}
		want["../completions/kern-sbx."+shell] = b.Bytes()
	}
	dir := t.TempDir()
	date := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	root := testTree(t)
	root.DisableAutoGenTag = true
	if err := doc.GenManTree(root, &doc.GenManHeader{Title: "KERN-SBX", Section: "1", Source: "kern-sbx", Manual: "kern-sbx manual", Date: &date}, dir); err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("no manual pages were generated: %v", err)
	}
	for _, p := range pages {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		want["../man/"+filepath.Base(p)] = b
	}
	want["schema/result-v1.json"] = resultSchemaOf(t)
	want["schema/doctor-v1.json"] = doctorSchemaOf(t)
	want["schema/diagnosis-v1.json"] = diagnosisSchemaOf(t)

	for name, got := range want {
		if *update {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if have, _ := os.ReadFile(name); !bytes.Equal(have, got) {
			t.Errorf("%s is stale: run go test ./cmd -run Generated -update", name)
		}
	}
	for _, dir := range []string{"../completions", "../man"} {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if _, ok := want[dir+"/"+f.Name()]; !ok {
				t.Errorf("%s/%s belongs to no command", dir, f.Name())
			}
		}
	}
}

func resultSchemaOf(t *testing.T) []byte {
	t.Helper()
	text := &jsonschema.Schema{
		Description: "Bytes out of a box: a string when they are UTF-8, else an object with base64. Null: not captured.",
		AnyOf: []*jsonschema.Schema{
			{Type: "string"},
			{
				Type: "object", Required: []string{"encoding", "data"},
				Properties: map[string]*jsonschema.Schema{
					"encoding": {Const: jsonschema.Ptr[any]("base64")},
					"data":     {Type: "string", ContentEncoding: "base64"},
				},
				AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
			},
			{Type: "null"},
		},
	}
	schemas := map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[runner.FaultType](): {Type: "string", Enum: []any{
			runner.Timeout, runner.OOM, runner.Killed, runner.EscapeBlocked, runner.WorkspaceFull, runner.ExecFailed, runner.StartupFailed,
		}},
		reflect.TypeFor[time.Time]():   {Type: "string", Format: "date-time"},
		reflect.TypeFor[runner.Name](): {Description: "A name out of a box: a string when it is UTF-8, else an object with base64.", AnyOf: text.AnyOf[:2]},
	}
	s, err := jsonschema.For[runner.Result](&jsonschema.ForOptions{TypeSchemas: schemas})
	if err != nil {
		t.Fatal(err)
	}
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.ID = "urn:" + strings.ReplaceAll(runner.Schema, "/", ":") // has to be absolute
	// Not through schemas: for a pointer, those give only the schema without null
	// or, without a type of its own, null alone.
	for _, name := range []string{"stdout", "stderr", "code_stderr", "runtime_notes"} {
		s.Properties[name] = text
	}
	var kinds []any
	for _, k := range runner.RichTypes {
		kinds = append(kinds, k.MIME)
	}
	data := s.Properties["results"].Items.Properties["data"]
	data.Description = "Representations by MIME type: text as it is, pictures in base64. All of it comes out of the box."
	data.PropertyNames = &jsonschema.Schema{Enum: kinds}
	data.MinProperties = jsonschema.Ptr(1)
	s.Title = "The result of one kern-sbx run"
	s.Properties["schema"].Const = jsonschema.Ptr[any](runner.Schema)
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

func doctorSchemaOf(t *testing.T) []byte {
	t.Helper()
	s, err := jsonschema.For[doctor.Report](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[doctor.Status](): {Type: "string", Enum: []any{doctor.OK, doctor.Info, doctor.Warn, doctor.Fail, doctor.Skipped}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.ID = "urn:" + strings.ReplaceAll(doctor.Schema, "/", ":")
	s.Title = "What kern-sbx doctor found"
	s.Properties["schema"].Const = jsonschema.Ptr[any](doctor.Schema)
	s.Properties["exit_code"].Enum = []any{0, 1, 125}
	// A slice could be null for the package; ours never is.
	s.Properties["checks"].Type, s.Properties["checks"].Types = "array", nil
	check := s.Properties["checks"].Items
	check.Properties["values"].Type, check.Properties["values"].Types = "array", nil
	check.Properties["group"].Enum = []any{doctor.GroupHost, doctor.GroupBox, doctor.GroupPromises}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

// TestCommandsAreComplete: every command has what the help shows of it.
func TestCommandsAreComplete(t *testing.T) {
	for _, c := range testTree(t).Commands() {
		if c.Name() == "help" || c.Name() == "completion" || c.IsAdditionalHelpTopicCommand() {
			continue
		}
		if c.Short == "" || c.GroupID == "" || c.Example == "" || c.Args == nil {
			t.Errorf("%s: a command needs Short, GroupID, Example and Args", c.CommandPath())
		}
	}
}

// TestFlagsAreComplete: every flag of a box is in a group of the help, and has
// an argument that is named when it takes one.
func TestFlagsAreComplete(t *testing.T) {
	c, _, err := testTree(t).Find([]string{"run"})
	if err != nil {
		t.Fatal(err)
	}
	visitFlags(c, func(f flagInfo) {
		if f.Usage == "" {
			t.Errorf("--%s has no text", f.Name)
		}
		if f.Value.Type() != "bool" && !strings.Contains(f.Usage, "`") {
			t.Errorf("--%s does not name its argument", f.Name)
		}
	})
	var b bytes.Buffer
	c.SetOut(&b)
	if err := c.Help(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), "\n"); n > 60 {
		t.Errorf("run --help has %d lines, more than fit on a screen of 60", n)
	}
	for _, line := range strings.Split(b.String(), "\n") {
		if len(line) > 120 {
			t.Errorf("a line of the help is %d columns wide: %s", len(line), line)
		}
	}
}
