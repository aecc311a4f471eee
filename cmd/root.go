package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kern-sbx/kern-sbx/pkg/pool"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Build is what the linker and the main package know about this program.
type Build struct {
	Version, Commit string
	Man             fs.FS // man/*.1
}

// The groups of the command list.
const (
	groupBox  = "box"
	groupHost = "host"
)

// app is what all subcommands share. Fields that cost something to make are
// functions.
type app struct {
	build  Build
	in     *os.File
	out    *os.File
	err    *os.File
	env    func(string) string
	args   []string // the command line, without the program
	held   bool     // this is the process in the background that the command line asks for
	global globalFlags
}

// globalFlags belong to every command.
type globalFlags struct {
	config, preset, kern string
	result               string
	json, quiet, verbose bool
	raw, ciFence         bool
	color                string
}

// exitError ends the program with a code. Err is printed unless it is nil, and
// Hint after it.
type exitError struct {
	code int
	err  error
	hint string
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// refused is the code of every refusal.
const refused = 125

// Main runs the program and gives its exit code.
func Main(b Build, args []string) int {
	a := &app{build: b, in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Getenv, args: args}
	root := a.rootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	return a.finish(err)
}

// finish is the only place that turns an error into text and a number.
func (a *app) finish(err error) int {
	if err == nil {
		return 0
	}
	var x *exitError
	if !errors.As(err, &x) {
		x = &exitError{code: refused, err: err}
	}
	if x.err != nil {
		a.say("error", x.err.Error())
	}
	if x.hint != "" {
		a.say("hint", x.hint)
	}
	return x.code
}

// say prints one line of ours on stderr, made safe to show: texts in it may
// come from a box, a file name or an environment.
func (a *app) say(kind, text string) {
	style := a.style()
	label := "kern-sbx: " + kind + ":"
	switch kind {
	case "error":
		label = style.Red(label)
	case "hint":
		label = style.Yellow(label)
	default:
		label = style.Dim(label)
	}
	if term.IsTerminal(a.err) {
		// The box may have ended in a colour, or in text that cannot be seen.
		io.WriteString(a.err, term.ResetColour)
	}
	fmt.Fprintln(a.err, label, term.VisibleLine(text))
}

// note prints a line that -q leaves out.
func (a *app) note(text string) {
	if !a.global.quiet {
		a.say("note", text)
	}
}

func (a *app) style() term.Style {
	mode := a.global.color
	if mode == "" {
		mode = "auto"
	}
	return term.NewStyle(term.Enabled(a.err, mode, a.env))
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "kern-sbx",
		Short: "run code that you did not write, in a fresh sandbox",
		Long: `kern-sbx runs code that you did not write in a fresh sandbox: no network, a
read-only root, capped memory, processes and time. It says who stopped the
run: the code itself, or the sandbox.`,
		Example: `  kern-sbx run --image host -c 'print(sum(range(100)))'
  kern-sbx run -f untrusted.py
  kern-sbx run --image node:22 -W ./project --timeout 5m -- npm test`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return a.unknownCommand(c, args[0])
		},
	}
	root.AddGroup(&cobra.Group{ID: groupBox, Title: "Boxes:"}, &cobra.Group{ID: groupHost, Title: "This program and this machine:"})
	root.SetHelpCommandGroupID(groupHost)
	root.SetCompletionCommandGroupID(groupHost)
	a.addGlobalFlags(root)
	if one := a.oneCommand(); one != nil {
		root.AddCommand(one)
		root.CompletionOptions.DisableDefaultCmd = true // it is another command
	} else {
		for _, c := range a.commands() {
			root.AddCommand(c.make())
		}
		root.AddCommand(a.helpTopics()...)
	}
	root.SetHelpFunc(a.help)
	root.SetUsageFunc(func(c *cobra.Command) error { a.help(c, nil); return nil })
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return a.flagError(c, err) })
	if len(root.Commands()) == 1 {
		return root
	}
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Short = "print the completion script for bash, zsh or fish"
			// Without this, a shell that there is no script for is answered with
			// the help, and with success.
			c.Args = cobra.ArbitraryArgs
			c.RunE = func(c *cobra.Command, args []string) error {
				if len(args) == 0 {
					return c.Help()
				}
				return a.unknownCommand(c, args[0])
			}
			for _, sub := range c.Commands() {
				if sub.Name() == "powershell" { // kern is for Linux
					c.RemoveCommand(sub)
				}
			}
		}
	}
	return root
}

// subcommand is a command that is made when it is needed.
type subcommand struct {
	name string
	make func() *cobra.Command
}

func (a *app) commands() []subcommand {
	return []subcommand{
		{"run", a.runCommand},
		{"kernel", a.kernelCommand},
		{"prewarm", a.prewarmCommand},
		{"snapshot", a.snapshotCommand},
		{"files", a.filesCommand},
		{"workspace", a.workspaceCommand},
		{"image", a.imageCommand},
		{compileName, a.compileCommand},
		{sweepName, a.sweepCommand},
		{pool.HoldName, a.holdCommand},
		{"config", a.configCommand},
		{"doctor", a.doctorCommand},
		{"explain", a.explainCommand},
		{"mcp", a.mcpCommand},
		{"schema", a.schemaCommand},
		{"version", a.versionCommand},
		{"man", a.manCommand},
	}
}

// oneCommand makes the only command that the line can be about, because it begins
// with its name: a shell line pays for each flag that is made. Nil: all are
// needed.
func (a *app) oneCommand() *cobra.Command {
	if len(a.args) == 0 {
		return nil
	}
	for _, c := range a.commands() {
		if c.name == a.args[0] {
			return c.make()
		}
	}
	return nil
}

// addSubcommands adds to a command those that the line can be about: only the
// named one, when it is named.
func (a *app) addSubcommands(c *cobra.Command, all ...subcommand) {
	if len(a.args) > 1 && a.args[0] == c.Name() {
		for _, s := range all {
			if s.name == a.args[1] {
				c.AddCommand(s.make())
				return
			}
		}
	}
	for _, s := range all {
		c.AddCommand(s.make())
	}
}

func (a *app) addGlobalFlags(root *cobra.Command) {
	f := root.PersistentFlags()
	g := &a.global
	f.StringVar(&g.config, "config", "", "read the configuration in `FILE`, and trust it")
	f.StringVar(&g.preset, "preset", "", "use the settings of [preset.`NAME`] in the configuration")
	f.StringVar(&g.kern, "kern", "", "use the kern at `PATH`")
	f.StringVar(&g.result, "result", "", "write the result as JSON to `FILE` as well")
	f.BoolVar(&g.json, "json", false, "print one JSON document instead of live output")
	f.BoolVarP(&g.quiet, "quiet", "q", false, "leave out notes and hints")
	f.BoolVar(&g.verbose, "verbose", false, "show kern's own notes and what the run cost")
	f.BoolVar(&g.raw, "raw", false, "pass control sequences of the box to the terminal")
	f.BoolVar(&g.ciFence, "ci-fence", false, "keep the box from giving orders to GitHub Actions by what it prints")
	f.StringVar(&g.color, "color", "auto", "colour our own lines `WHEN`: auto, always or never")
	f.Var(&helpValue{}, "help", "show this help; --help=all shows every flag")
	f.Lookup("help").NoOptDefVal = "true"
	f.Lookup("help").Shorthand = "h"
	for _, n := range []string{"kern", "raw", "color", "preset"} {
		f.SetAnnotation(n, flagGroup, []string{inAdvanced})
	}
	root.RegisterFlagCompletionFunc("color", cobra.FixedCompletions([]cobra.Completion{"auto", "always", "never"}, cobra.ShellCompDirectiveNoFileComp))
	root.RegisterFlagCompletionFunc("preset", a.completePresets)
	root.RegisterFlagCompletionFunc("config", cobra.FixedCompletions([]cobra.Completion{"toml"}, cobra.ShellCompDirectiveFilterFileExt))
}

func (a *app) unknownCommand(parent *cobra.Command, word string) error {
	var names []string
	for _, c := range parent.Commands() {
		names = append(names, c.Name())
	}
	e := &validate.Error{Field: "command", Value: word, Reason: "there is none of that name", Fix: "see " + parent.CommandPath() + " --help"}
	if near := validate.Nearest(word, names); near != "" {
		e.Fix = "did you mean " + parent.CommandPath() + " " + near + "?"
	}
	return e
}

// flagError makes cobra's sentence about a flag ours, with the nearest flag.
func (a *app) flagError(c *cobra.Command, err error) error {
	msg := err.Error()
	if name, ok := strings.CutPrefix(msg, "unknown flag: --"); ok {
		var names []string
		visitFlags(c, func(f flagInfo) { names = append(names, f.Name) })
		e := &validate.Error{Field: "flag", Value: "--" + name, Reason: "there is none of that name", Fix: "see " + c.CommandPath() + " --help=all"}
		if near := validate.Nearest(name, names); near != "" {
			e.Fix = "did you mean --" + near + "?"
		}
		if name == "version" {
			e.Fix = "did you mean kern-sbx version?"
		}
		return e
	}
	return &exitError{code: refused, err: err, hint: "see " + c.CommandPath() + " --help"}
}

// helpValue is a boolean flag that also takes "all".
type helpValue struct{ text string }

func (h *helpValue) String() string {
	if h.text == "" || h.text == "false" {
		return "false"
	}
	return "true"
}

func (h *helpValue) Set(s string) error {
	switch s {
	case "true", "false", "all":
		h.text = s
		return nil
	}
	return fmt.Errorf("--help takes nothing, or all")
}
func (h *helpValue) Type() string { return "bool" }
