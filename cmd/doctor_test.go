package cmd

import (
	"encoding/json"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/kern-sbx/kern-sbx/pkg/doctor"
	"github.com/kern-sbx/kern-sbx/pkg/hints"
)

// TestDoctorSchema: what is written is what is published, also with nothing in it.
func TestDoctorSchema(t *testing.T) {
	var schema jsonschema.Schema
	if err := json.Unmarshal(doctorSchema, &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	env := &doctor.Env{Getenv: func(string) string { return "" }, Root: t.TempDir()}
	checks := doctor.Checks()
	for name, r := range map[string]*doctor.Report{
		"empty":  doctor.NewReport(nil, env, false),
		"no box": doctor.NewReport(doctor.Run(t.Context(), env, checks), env, true),
	} {
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var doc any
		if err := json.Unmarshal(b, &doc); err != nil {
			t.Fatal(err)
		}
		if err := resolved.Validate(doc); err != nil {
			t.Errorf("%s: %v\n%s", name, err, b)
		}
		if name == "no box" && (r.ExitCode != 125 || r.NoBox == nil || len(r.Checks) != len(checks)) {
			t.Errorf("without anything, the document is %s", b)
		}
	}
}

// TestDoctorTopics: every check can be explained by its own name.
func TestDoctorTopics(t *testing.T) {
	known := map[string]bool{}
	for _, topic := range hints.Topics() {
		known[topic.ID] = true
	}
	seen := map[string]bool{}
	for _, c := range doctor.Checks() {
		if !known[c.Topic] || c.Topic != c.ID || c.Title == "" || seen[c.ID] {
			t.Errorf("%s: twice, or without a title, or its topic %q is not one", c.ID, c.Topic)
		}
		seen[c.ID] = true
	}
}
