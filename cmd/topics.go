package cmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kern-sbx/kern-sbx/pkg/mcp"
)

// exitTable is what the program exits with: the help topic, the manual and the
// README (held to it by a test) say nothing else.
var exitTable = []struct{ Code, When string }{
	{"the command's own", "it ran to its end, or was ended by its own signal (128+n)"},
	{"122", "the workspace held more than `--workspace-max` (workspace_full)"},
	{"124", "timeout"},
	{"137", "out of memory, or killed"},
	{"159", "a forbidden system call (escape_blocked)"},
	{"126, 127", "the command is not executable, not found in the box (exec_failed)"},
	{"125", "the box never started: a refusal, a bad flag, a missing image or kern (startup_failed)"},
	{"129, 130, 143", "HUP, INT, TERM came to kern-sbx and the command did not end by itself within 2 s"},
	{"141", "nobody reads our output any more"},
}

// topics are the texts of `kern-sbx help TOPIC`. They are made when they are
// asked for: every shell line pays for what the command tree holds.
func (a *app) topics() map[string]func() string {
	return map[string]func() string{"exit-codes": exitHelp, "environment": a.environmentHelp, "agents": func() string { return strings.TrimSpace(mcp.Page) }}
}

// helpTopics are commands with nothing to run, which cobra takes for topics.
func (a *app) helpTopics() []*cobra.Command {
	return []*cobra.Command{
		{Use: "exit-codes", Short: "what the program exits with"},
		{Use: "environment", Short: "variables that are read"},
		{Use: "agents", Short: "boxes as tools for agents, and what they protect from"},
	}
}

func exitHelp() string {
	var b strings.Builder
	b.WriteString("What kern-sbx run exits with:\n\n")
	for _, e := range exitTable {
		fmt.Fprintf(&b, "  %-19s %s\n", e.Code, e.When)
	}
	b.WriteString(`
A command may exit with any of these numbers itself. The field fault of --json and
--result tells them apart: it comes from kern's descriptors, which code in a box
cannot write. Other commands exit with 125 for a refusal and 1 for work that was
accepted and failed.`)
	return b.String()
}

func (a *app) environmentHelp() string {
	var b strings.Builder
	b.WriteString("Variables that kern-sbx reads:\n\n")
	for _, v := range [][2]string{
		{"KERN_SBX_CONFIG", "a configuration file, as --config"},
		{"KERN_SBX_PRESET", "a preset, as --preset"},
		{"KERN_BIN", "the kern to use, unless --kern says otherwise"},
		{"NO_COLOR", "no colour, whatever its value"},
		{"XDG_CONFIG_HOME", "where kern-sbx/config.toml lies (else ~/.config)"},
		{"XDG_CACHE_HOME", "where runs, host roots and kern's images lie (else ~/.cache)"},
		{"XDG_DATA_HOME", "where the bundled kern is written (else ~/.local/share)"},
	} {
		fmt.Fprintf(&b, "  %-24s %s\n", v[0], v[1])
	}
	b.WriteString("\nAnd one for each setting; a list takes one value a line:\n\n")
	for _, k := range a.keys(nil) {
		if k.Name == "env" {
			continue // a box gets its variables from flags and files alone
		}
		fmt.Fprintf(&b, "  KERN_SBX_%s\n", strings.ToUpper(strings.ReplaceAll(k.Name, "-", "_")))
	}
	b.WriteString(`
None of the caller's variables reaches a box unless -e or --env-file names it, and
variables named KERN_* do not reach kern.`)
	return b.String()
}

// configHelp is the text of `kern-sbx help config`.
const configHelp = `A setting is taken from the first of these that has it:

  1. the flag
  2. the variable KERN_SBX_NAME
  3. the project file .kern-sbx.toml, in this directory or above it up to the
     root of the repository
  4. the user file, $XDG_CONFIG_HOME/kern-sbx/config.toml
  5. the system file, /etc/kern-sbx/config.toml
  6. the default

--config FILE (or KERN_SBX_CONFIG) takes the place of 3 and 4, and is trusted: the
way for CI. A file looks like this; every flag of a box is a key of [box]:

  use-preset = "ci"       # optional; --preset chooses another

  [box]
  image = "host"
  memory = "1g"
  volume = ["./data:/data:ro"]
  [box.env]
  HOME = "/workspace"

  [preset.ci]             # over [box] of the same file
  timeout = "10m"
  [preset.ci.env]
  CI = "1"

A project file is somebody else's text. Until kern-sbx config trust has recorded
its bytes, only what makes a box tighter applies: lang, and memory, cpus,
pids-limit, timeout and max-output below yours. What was left out is said.`
