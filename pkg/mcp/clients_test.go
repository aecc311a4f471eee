package mcp

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// commandOf reads the command back out of what a client is given.
func commandOf(t *testing.T, name, text string) []string {
	t.Helper()
	type server struct {
		Command string   `json:"command" toml:"command"`
		Args    []string `json:"args" toml:"args"`
	}
	var s server
	switch name {
	case "claude-code":
		_, line, ok := strings.Cut(text, " -- ")
		if !ok {
			t.Fatalf("%q", text)
		}
		if _, err := exec.LookPath("sh"); err != nil {
			t.Skip("no shell")
		}
		out, err := exec.Command("sh", "-c", "set -- "+line+"\n"+`for word in "$@"; do printf '%s\0' "$word"; done`).Output()
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	case "codex":
		var doc struct {
			Servers map[string]server `toml:"mcp_servers"`
		}
		if err := toml.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		s = doc.Servers[serverName]
	default:
		var doc map[string]map[string]server
		if err := json.Unmarshal([]byte(text), &doc); err != nil || len(doc) != 1 {
			t.Fatalf("%q: %v", text, err)
		}
		for _, servers := range doc {
			s = servers[serverName]
		}
	}
	return append([]string{s.Command}, s.Args...)
}

var oddWords = []string{
	"", " ", "a b", "'", `"`, `\`, `\n`, "$(id)", "`id`", "$HOME", "~", "*", "!x", "#x", "a;b|c&d", "--", "-x", "a\nb", "a\tb", "\x01", "\x7f", "\u0085", "\u2028", "é", "😀",
	"\ufeff", "<&>", "{}", "[]", "=", "--env=A='\"\\", "%s", "\\u0041",
}

func TestConfigQuotes(t *testing.T) {
	args := append([]string{"mcp"}, oddWords...)
	for _, name := range Clients() {
		text, where, err := Config(name, "/opt/a b/kern'sbx", args)
		if err != nil || where == "" {
			t.Fatalf("%s: %v", name, err)
		}
		if got, want := commandOf(t, name, text), append([]string{"/opt/a b/kern'sbx"}, args...); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"", "Cursor", "cursro", "../x", "\x00"} {
		if _, _, err := Config(name, "/x", nil); err == nil {
			t.Errorf("%q is a client", name)
		}
	}
}

func FuzzConfig(f *testing.F) {
	for _, w := range oddWords {
		f.Add(w)
	}
	f.Fuzz(func(t *testing.T, word string) {
		if strings.ContainsRune(word, 0) || !utf8.ValidString(word) {
			return
		}
		for _, name := range Clients() {
			if name == "claude-code" {
				continue // a shell for each word takes too long; TestConfigQuotes has one
			}
			text, _, err := Config(name, "/x/"+word, []string{word, "b"})
			if err != nil {
				t.Fatal(err)
			}
			if got := commandOf(t, name, text); !slices.Equal(got, []string{"/x/" + word, word, "b"}) {
				t.Fatalf("%s: %q: %q", name, word, got)
			}
		}
	})
}
