package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/kern-sbx/kern-sbx/pkg/mcp"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

func textOf(t *testing.T, res *sdk.CallToolResult) string {
	t.Helper()
	for _, c := range res.Content {
		if text, ok := c.(*sdk.TextContent); ok {
			return text.Text
		}
	}
	t.Fatal("no text")
	return ""
}

func TestArguments(t *testing.T) {
	schema, err := jsonschema.For[codeIn](nil)
	if err != nil {
		t.Fatal(err)
	}
	checked, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range []string{
		`{"code":"1"}`,
		`{"code":"1","timeout_s":1e300,"memory_mb":-5}`,
		`{"code":"\ud83d\ude00","stdin":"\u0000"}`,
		` {"code":"a","code":"b"} `,
	} {
		if _, err := arguments[codeIn](checked, json.RawMessage(in)); err != nil {
			t.Errorf("%s: %v", in, err)
		}
	}
	for _, in := range []string{
		``, `{}`, `[]`, `null`, `"x"`, `{"code":1}`, `{"code":null}`, `{"code":["1"]}`, `{"Code":"1"}`, `{"code":"1","CODE":"2"}`,
		`{"code":"1","x":1}`, `{"code":"1","memory_mb":1.5}`, `{"code":"1","memory_mb":1e300}`, `{"code":"1","memory_mb":"1"}`,
		`{"code":"1","timeout_s":"1"}`, `{"code":"1","timeout_s":1e999}`, `{"code":"1","timeout_s":NaN}`, `{"code":"1"}{"code":"2"}`,
		`{"code":"\ud800"}`, `{"code":"\udc00\ud800"}`, `{"code":"\ud83dx"}`, `{"\ud800":"1","code":"1"}`,
	} {
		if got, err := arguments[codeIn](checked, json.RawMessage(in)); err == nil {
			t.Errorf("%s: %+v", in, got)
		}
	}
}

func TestLoneSurrogate(t *testing.T) {
	for in, want := range map[string]bool{
		``: false, `"\u00e9"`: false, `"\\ud800"`: false, `"\\\ud800"`: true, `"\ud800"`: true, `"\uD800"`: true, `"\uDFFF"`: true,
		`"\ud83d\ude00"`: false, `"\uD83D\uDE00"`: false, `"\ud83d\ud83d\ude00"`: true, `"\ud83d\ude00\ude00"`: true, `"\ud83d\\ude00"`: true,
		`"\ud83d`: true, `"\u`: false, `"\`: false, `"\ud8`: false, `"\n\ud800"`: true, `"\"\ud800"`: true,
	} {
		if got := loneSurrogate([]byte(in)); got != want {
			t.Errorf("%s: %v", in, got)
		}
	}
}

// What it lets through is read as it was written: encoding/json put no other
// character anywhere.
func FuzzLoneSurrogate(f *testing.F) {
	for _, s := range []string{`"\ud83d\ude00"`, `"\ud800"`, `"\\ud800"`, `"\ud83d\u0041"`, `"a\ufffdb"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		lone := loneSurrogate(raw)
		var s string
		if json.Unmarshal(raw, &s) != nil {
			return
		}
		low := strings.ToLower(string(raw))
		replaced := strings.Count(s, "\ufffd") > strings.Count(low, `\ufffd`)+strings.Count(strings.ToValidUTF8(string(raw), ""), "\ufffd")
		if valid := strings.ToValidUTF8(string(raw), "") == string(raw); valid && replaced != lone && !strings.Contains(low, `\\ufffd`) {
			t.Fatalf("%q: %v, and read as %q", raw, lone, s)
		}
	})
}

func TestAsked(t *testing.T) {
	for _, c := range []struct {
		timeout      float64
		memory       int
		want         time.Duration
		wantMemory   validate.Size
		notes        int
		spec, most   time.Duration
		mostMemory   validate.Size
		specMemoryMB int
	}{
		{0, 0, time.Minute, 0, 0, time.Minute, 10 * time.Minute, 1 << 30, 1024},
		{-1, -1, time.Minute, 0, 0, time.Minute, 10 * time.Minute, 1 << 30, 1024},
		{2.5, 64, 2500 * time.Millisecond, 64 << 20, 0, time.Minute, 10 * time.Minute, 1 << 30, 1024},
		// Nothing is no limit: a very short time must not become that.
		{1e-10, 0, time.Millisecond, 0, 0, time.Minute, 10 * time.Minute, 1 << 30, 1024},
		{5e-324, 0, time.Millisecond, 0, 0, time.Minute, 10 * time.Minute, 1 << 30, 1024},
		{1e300, 1 << 62, 10 * time.Minute, 1 << 30, 2, time.Minute, 10 * time.Minute, 1 << 30, 1024},
		{1e300, 1 << 62, 1e9 * time.Second, 1 << 50, 0, 0, 0, 0, 0},
		{601, 1025, 10 * time.Minute, 1 << 30, 2, time.Minute, 10 * time.Minute, 1 << 30, 1024},
	} {
		s := &server{h: &mcp.Handover{MaxTimeout: c.most, MaxMemory: c.mostMemory, Spec: &runner.Spec{Timeout: c.spec, Memory: validate.Size(c.specMemoryMB) << 20}}}
		var notes []string
		got, memory := s.asked(c.timeout, c.memory, &notes)
		if got != c.want || memory != c.wantMemory || len(notes) != c.notes {
			t.Errorf("asked(%g, %d) = %v, %d, %q", c.timeout, c.memory, got, memory, notes)
		}
	}
}

// What the box cannot write, the tools do not write for it (rule S2).
func TestGuarded(t *testing.T) {
	s := &runner.Spec{
		Mounts: []validate.Mount{
			{Source: "/w/.git", Target: "/workspace/.git", ReadOnly: true},
			{Source: "/w/.envrc", Target: "/workspace/.envrc", ReadOnly: true},
			{Source: "/d", Target: "/workspace/a/b", ReadOnly: true},
			{Source: "/e", Target: "/workspace/rw"},
		},
		Keep: []string{".husky"}, Watch: []string{".vscode"},
	}
	for _, path := range []string{".git", ".git/hooks/pre-commit", "./.git//config", ".//./.git/x", ".envrc", "a/b", "a/b/c", ".husky/x", "../x", "/etc/x", "a\x00"} {
		if note, err := guarded(s, path); err == nil {
			t.Errorf("%q: %q", path, note)
		}
	}
	for path, noted := range map[string]bool{"x": false, ".gitignore": false, "sub/.git/config": false, "a/bc": false, "a": false, "rw/x": false, ".vscode/tasks.json": true, "": false, ".": false} {
		note, err := guarded(s, path)
		if err != nil || (note != "") != noted {
			t.Errorf("%q: %q, %v", path, note, err)
		}
	}
}

func TestSnapshotNames(t *testing.T) {
	s := &session{saved: map[string]bool{}}
	if s.name("a", false) == nil {
		t.Error("a snapshot that is not there")
	}
	for i := range mostSnapshots {
		if err := s.name(string(rune('a'+i)), true); err != nil {
			t.Fatal(err)
		}
	}
	if s.name("z", true) == nil {
		t.Error("one too many, while the others are being written")
	}
	if s.name("a", false) == nil {
		t.Error("one that is not whole")
	}
	s.remember("a", true)
	s.remember("b", false)
	s.remember("a", false) // a second try fails
	if err := s.name("a", false); err != nil {
		t.Error(err)
	}
	if err := s.name("z", true); err != nil {
		t.Error(err)
	}
}
