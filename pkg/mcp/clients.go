package mcp

import (
	_ "embed" // the page
	"encoding/json"
	"strings"

	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Page is what there is to know about the server: `kern-sbx help agents`.
//
//go:embed agents.md
var Page string

// client is a program that speaks MCP and how it is told of a server.
type client struct {
	name string
	// where its configuration is, for a person.
	where string
	text  func(program string, args []string) string
}

// serverName is what clients call us.
const serverName = "kern-sbx"

var clients = []client{
	{"claude-code", "a command to run, once", func(program string, args []string) string {
		return "claude mcp add " + serverName + " -- " + shellLine(program, args)
	}},
	{"claude-desktop", "claude_desktop_config.json", under("mcpServers", false)},
	{"cursor", ".cursor/mcp.json in the project, or ~/.cursor/mcp.json", under("mcpServers", false)},
	{"vscode", ".vscode/mcp.json in the project", under("servers", true)},
	{"zed", "settings.json", under("context_servers", false)},
	{"windsurf", "~/.codeium/windsurf/mcp_config.json", under("mcpServers", false)},
	{"gemini", "~/.gemini/settings.json, or .gemini/settings.json in the project", under("mcpServers", false)},
	{"codex", "~/.codex/config.toml", func(program string, args []string) string {
		var list []string
		for _, a := range args {
			list = append(list, term.TOMLString(a))
		}
		return "[mcp_servers." + serverName + "]\ncommand = " + term.TOMLString(program) + "\nargs = [" + strings.Join(list, ", ") + "]"
	}},
}

// Clients are the names that Config knows.
func Clients() []string {
	var names []string
	for _, c := range clients {
		names = append(names, c.name)
	}
	return names
}

// Config is what a client's configuration needs so that it starts the server with
// this command, and where that is; a *validate.Error for a client that is not known.
func Config(name, program string, args []string) (text, where string, err error) {
	for _, c := range clients {
		if c.name == name {
			return c.text(program, args), c.where, nil
		}
	}
	e := &validate.Error{Field: "--print-config", Value: name, Reason: "not a client that is known here", Fix: "use one of " + strings.Join(Clients(), ", ") + "; most others take what cursor does"}
	if near := validate.Nearest(name, Clients()); near != "" {
		e.Fix = "did you mean " + near + "?"
	}
	return "", "", e
}

func under(key string, typed bool) func(string, []string) string {
	return func(program string, args []string) string {
		type server struct {
			Type    string   `json:"type,omitempty"`
			Command string   `json:"command"`
			Args    []string `json:"args"`
		}
		s := server{Command: program, Args: args}
		if typed {
			s.Type = "stdio"
		}
		b := &strings.Builder{}
		e := json.NewEncoder(b)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		_ = e.Encode(map[string]map[string]server{key: {serverName: s}})
		return strings.TrimSuffix(b.String(), "\n")
	}
}

func shellLine(program string, args []string) string {
	words := []string{term.ShellWord(program)}
	for _, a := range args {
		words = append(words, term.ShellWord(a))
	}
	return strings.Join(words, " ")
}
