package cmd

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/spf13/cobra"

	"github.com/kern-sbx/kern-sbx/pkg/doctor"
)

func diagnosisSchemaOf(t *testing.T) []byte {
	t.Helper()
	s, err := jsonschema.For[doctor.Diagnosis](nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.ID = "urn:" + strings.ReplaceAll(doctor.DiagnosisSchema, "/", ":")
	s.Title = "What kern-sbx doctor -- CMD found"
	s.Properties["schema"].Const = jsonschema.Ptr[any](doctor.DiagnosisSchema)
	s.Properties["verdict"].Enum = []any{doctor.Works, doctor.Fixed, doctor.Flaky, doctor.NotSandbox, doctor.Unfixable, doctor.NotFound}
	// A slice could be null for the package; ours never is.
	list := func(s *jsonschema.Schema, names ...string) {
		for _, n := range names {
			s.Properties[n].Type, s.Properties[n].Types = "array", nil
		}
	}
	list(s, "command", "tried", "not_tried")
	list(s.Properties["tried"].Items, "changes")
	s.Properties["tried"].Items.Properties["verdict"].Enum = []any{"works", "same", "other", "refused", "cut"}
	list(s.Properties["not_tried"].Items, "changes")
	list(s.Properties["fix"], "changes", "config")
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

// TestDiagnosisSchema: what is written is what is published.
func TestDiagnosisSchema(t *testing.T) {
	var schema jsonschema.Schema
	if err := json.Unmarshal(diagnosisSchema, &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	exit := 1
	for name, d := range map[string]*doctor.Diagnosis{
		"works": {Schema: doctor.DiagnosisSchema, Verdict: doctor.Works, Command: []string{"x"}, Tried: []doctor.Trial{}, NotTried: []doctor.Likely{}},
		"fixed": {
			Schema: doctor.DiagnosisSchema, Verdict: doctor.Fixed, Command: []string{"x"},
			Tried:    []doctor.Trial{{Changes: []doctor.Change{}, Verdict: "same", Exit: &exit}, {Changes: []doctor.Change{{Flag: "init", Value: "true"}}, Verdict: "works"}},
			NotTried: []doctor.Likely{{Changes: []doctor.Change{{Flag: "network", Value: "host"}}}},
			Fix:      &doctor.Fix{Changes: []doctor.Change{{Flag: "init", Value: "true"}}, Config: []string{"[box]"}},
		},
	} {
		b, err := json.Marshal(d)
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
	}
}

// TestUseFrom: the line to use is the one that was typed, with the changes, and reads
// back in a shell as it is meant.
func TestUseFrom(t *testing.T) {
	for _, r := range []struct {
		flags   []string
		argv    []string
		changes []doctor.Change
		line    string
		config  string
	}{
		{nil, []string{"go", "build"}, []doctor.Change{{Flag: "env", Value: "HOME=/workspace"}}, "kern-sbx run --env HOME=/workspace -- go build", "[box.env]|HOME = \"/workspace\""},
		{
			[]string{"--image", "host", "-m", "64m", "--budget", "1m", "--allow-relax", "--tmpfs", "/tmp:8m", "--tmpfs", "/x:1m"},
			[]string{"sh", "-c", "it's $x"},
			[]doctor.Change{{Flag: "memory", Value: "128m"}, {Flag: "tmpfs", Value: "/tmp:64m"}, {Flag: "init", Value: "true"}},
			`kern-sbx run --image host --tmpfs /x:1m --memory 128m --tmpfs /tmp:64m --init -- sh -c 'it'\''s $x'`,
			`[box]|memory = "128m"|init = true|tmpfs = ["/x:1m", "/tmp:64m"]`,
		},
		{[]string{"-e", "API_TOKEN=x", "-e", "HOME=/root"}, []string{"x"}, []doctor.Change{{Flag: "env", Value: "HOME=/workspace"}}, "kern-sbx run --env API_TOKEN --env HOME=/workspace -- x", "[box.env]|HOME = \"/workspace\""},
		{[]string{"--cap-drop", "NET_RAW"}, []string{"x"}, []doctor.Change{{Flag: "cap-drop", Value: "none"}}, "kern-sbx run --cap-drop none -- x", `[box]|cap-drop = ["none"]`},
	} {
		var b boxFlags
		var d diagnoseFlags
		c := &cobra.Command{Use: "doctor"}
		c.Flags().SortFlags = false
		d.add(c)
		b.add(c)
		if err := c.ParseFlags(r.flags); err != nil {
			t.Fatal(err)
		}
		b.typedEnv = b.env
		l := &lab{app: &app{}, flags: &b, argv: r.argv}
		line, config := l.useFrom(c, r.changes)
		if line != r.line || strings.Join(config, "|") != r.config {
			t.Errorf("%v:\n %s\n %s\n %v", r.flags, line, r.line, config)
		}
	}
}

// TestChange: a trial leaves the flags it was made from as they are.
func TestChange(t *testing.T) {
	var b boxFlags
	b.add(&cobra.Command{})
	b.tmpfs = []string{"none"}
	for _, ch := range []doctor.Change{
		{Flag: "env", Value: "A=1"},
		{Flag: "tmpfs", Value: "/tmp:64m"},
		{Flag: "volume", Value: "/a:/a:ro"},
		{Flag: "host-tool", Value: "go"},
		{Flag: "cap-add", Value: "CHOWN"},
		{Flag: "cap-drop", Value: "none"},
		{Flag: "memory", Value: "1g"},
		{Flag: "pids-limit", Value: "9"},
		{Flag: "timeout", Value: "1s"},
		{Flag: "workspace-max", Value: "none"},
		{Flag: "network", Value: "host"},
		{Flag: "user", Value: "nobody"},
		{Flag: "hostname", Value: "x"},
		{Flag: "ulimit", Value: "nofile=9"},
		{Flag: "init", Value: "true"},
	} {
		x := b
		if err := x.change(ch); err != nil {
			t.Errorf("%v: %v", ch, err)
		}
		if len(b.env)+len(b.volumes)+len(b.hostTools)+len(b.capAdd)+len(b.ulimits) != 0 || !slices.Equal(b.tmpfs, []string{"none"}) || !slices.Equal(b.capDrop, []string{"ALL"}) {
			t.Errorf("%v changed the flags themselves: %+v", ch, b)
		}
	}
	x := b
	if err := x.change(doctor.Change{Flag: "image", Value: "evil"}); err == nil {
		t.Error("a change that nobody knows was made")
	}
}

// TestHostView: what is looked up of the workspace stays in it, and what is private
// on this machine is not public.
func TestHostView(t *testing.T) {
	dir := t.TempDir()
	ws := filepath.Join(dir, "ws")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(ws, "empty"), 0o755))
	must(os.MkdirAll(filepath.Join(ws, "full"), 0o755))
	must(os.WriteFile(filepath.Join(ws, "full/x"), []byte("#!/bin/sh\r\n"), 0o755))
	must(os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o600))
	must(os.Symlink("../secret", filepath.Join(ws, "up")))
	must(os.Symlink(filepath.Join(dir, "secret"), filepath.Join(ws, "abs")))
	must(os.Symlink("abs", filepath.Join(ws, "two")))
	must(os.Symlink("loop", filepath.Join(ws, "loop")))
	must(os.Symlink(dir, filepath.Join(ws, "dir")))
	h := newHostView(ws, "/workspace", "/usr/bin:/bin")
	if head, _, ok := h.Head("/workspace/full/x"); !ok || string(head) != "#!/bin/sh\r\n" {
		t.Errorf("%q %v", head, ok)
	}
	for _, p := range []string{"/workspace/up", "/workspace/abs", "/workspace/two", "/workspace/dir/secret", "/workspace/../secret", filepath.Join(dir, "secret"), "/workspace/loop"} {
		if head, _, _ := h.Head(p); len(head) != 0 {
			t.Errorf("%s: %q was read", p, head)
		}
	}
	if _, link, ok := h.Head("/workspace/two"); !ok || link != filepath.Join(dir, "secret") {
		t.Errorf("%q %v", link, ok)
	}
	if got := h.EmptyDirs(); !slices.Equal(got, []string{"empty"}) {
		t.Error(got)
	}
	if h.Public(filepath.Join(dir, "secret")) || h.Public(ws) && os.Getuid() == 0 || h.Public("/root/.ssh") || h.Public("/etc") {
		t.Error("something private counts as public")
	}
	if h.Find("sh") == "" || h.Find("../sh") != "" || h.Find("no-such-program") != "" {
		t.Error("programs are looked up along PATH alone")
	}
}
