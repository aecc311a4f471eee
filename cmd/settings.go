package cmd

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kern-sbx/kern-sbx/pkg/config"
	"github.com/kern-sbx/kern-sbx/pkg/interp"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

// notKeys are flags of a box that are part of one command line and make no
// sense in a file.
var notKeys = map[string]bool{"code": true, "file": true, "rm": true, "help": true, "interactive": true, "tty": true, "result": true, "json": true, "config": true, "preset": true}

// keyRules say more about some keys than their flag does: how a value is
// checked, and what an untrusted project file may set (rule S3: only what
// makes a box tighter, or what has no say in its walls).
var keyRules = map[string]struct {
	check   func(string) error
	tighter func(candidate, current string) bool
	safe    func(string) bool
}{
	"memory":         {check: check(validate.ParseLimit), tighter: atMost(validate.ParseLimit)},
	"tmpfs":          {tighter: smallerTmpfs},
	"workspace-max":  {check: check(workspaceMax), tighter: atMost(workspaceMax)},
	"workspace-size": {check: check(validate.ParseLimit)},
	"track-ignore":   {check: workspace.CheckIgnore, safe: func(string) bool { return true }},
	"max-output":     {check: check(validate.ParseLimit), tighter: atMost(validate.ParseLimit)},
	"pids-limit":     {check: check(count2), tighter: atMost(count2)},
	"cpus":           {check: check(validate.CPUs), tighter: atMost(validate.CPUs)},
	"timeout":        {check: check(validate.ParseDuration), tighter: atMost(validate.ParseDuration)},
	"start-timeout":  {check: check(validate.ParseDuration)},
	"pull-timeout":   {check: check(validate.ParseDuration)},
	"image":          {check: validate.ImageRef},
	"pull":           {check: oneOf("missing", "never", "always")},
	"pyc-cache":      {check: oneOf("auto", "off")},
	"limits":         {check: oneOf("auto", "kern", "own", "off")},
	"network":        {check: oneOf("none", "host"), safe: func(v string) bool { return v == "none" }},
	"color":          {check: oneOf("auto", "always", "never")},
	"lang":           {check: interp.Check, safe: func(string) bool { return true }},
}

// workspaceMax reads --workspace-max. The default counts as the most that it
// can be, so that a project may go below.
func workspaceMax(s string) (validate.Size, error) {
	if s == "auto" {
		return validate.Size(workspace.MostDefault), nil
	}
	return validate.ParseLimit(s)
}

// smallerTmpfs says that each memory file system of a list is one of the other
// list, and no larger there. Without a list there is the default /tmp.
func smallerTmpfs(candidate, current string) bool {
	list, none, err := validate.ParseTmpfsList(strings.Split(candidate, "\n"))
	if err != nil || none {
		return false
	}
	var have []validate.Tmpfs
	if current != "" {
		if have, none, err = validate.ParseTmpfsList(strings.Split(current, "\n")); err != nil {
			return false
		}
	}
	at := map[string]validate.Size{}
	if !none {
		at["/tmp"] = validate.DefaultTmp(0)
	}
	for _, t := range have {
		at[t.Target] = t.Size
	}
	for _, t := range list {
		if most, ok := at[t.Target]; !ok || t.Size > most {
			return false
		}
	}
	return true
}

func count2(s string) (int, error) { return validate.Count(s, 2) }

func check[T any](parse func(string) (T, error)) func(string) error {
	return func(s string) error { _, err := parse(s); return err }
}

// atMost compares two values of which zero means no limit.
func atMost[T int | float64 | validate.Size | time.Duration](parse func(string) (T, error)) func(candidate, current string) bool {
	return func(candidate, current string) bool {
		c, err := parse(candidate)
		if err != nil {
			return false
		}
		n, err := parse(current)
		if err != nil {
			return false
		}
		return n == 0 || (c != 0 && c <= n)
	}
}

func oneOf(words ...string) func(string) error {
	return func(s string) error {
		for _, w := range words {
			if s == w {
				return nil
			}
		}
		fix := "use one of " + strings.Join(words, ", ")
		if near := validate.Nearest(s, words); near != "" {
			fix = "did you mean " + near + "?"
		}
		return &validate.Error{Value: s, Reason: "not one of the values it can have", Fix: fix}
	}
}

// keys lists what a configuration may set: one key for each flag, taken from
// the flags themselves, so that the two cannot drift apart. c is the command that
// runs, nil for none: when it has the flags of a box, no others are made.
func (a *app) keys(c *cobra.Command) []config.Key {
	keys := make([]config.Key, 0, 80)
	add := func(k config.Key) {
		if r, ok := keyRules[k.Name]; ok {
			k.Check, k.Tighter, k.AlwaysSafe = r.check, r.tighter, r.safe
		}
		keys = append(keys, k)
	}
	of := func(f *pflag.Flag, global bool) {
		if notKeys[f.Name] {
			return
		}
		k := config.Key{Name: f.Name, Global: global, Default: f.DefValue}
		switch f.Value.Type() {
		case "bool":
			k.Kind = config.Bool
		case "stringArray":
			k.Kind, k.Default = config.List, ""
		}
		if f.Name == "env" {
			k.Kind = config.Map
			k.Check = func(s string) error { _, _, _, err := validate.ParseEnv(s); return err }
		}
		add(k)
	}
	if c == nil || c.Flags().Lookup("image") == nil {
		var b boxFlags
		c = &cobra.Command{}
		b.add(c)
		(&app{}).addGlobalFlags(c)
	}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if _, ok := f.Annotations[ofBox]; ok {
			of(f, false)
		}
	})
	add(config.Key{Name: "lang"}) // of code, and not of a box
	c.Root().PersistentFlags().VisitAll(func(f *pflag.Flag) { of(f, true) })
	return keys
}

func (a *app) configOptions(c *cobra.Command) config.Options {
	dir, _ := os.Getwd()
	return config.Options{
		Keys: a.keys(c), File: a.global.config, Preset: a.global.preset,
		Environ: os.Environ(), Dir: dir, Home: a.env("HOME"), UID: os.Getuid(),
	}
}

// configure fills in what the command line left open, from the environment and
// the configuration files, and notes where each value comes from.
func (a *app) configure(c *cobra.Command, b *boxFlags) error {
	b.given, b.typedEnv = map[string]string{}, b.env
	fs := c.Flags()
	fs.Visit(func(f *pflag.Flag) { b.given[f.Name] = fromFlag })
	conf, err := config.Load(a.configOptions(c))
	if err != nil {
		return err
	}
	for _, set := range conf.Given() {
		name := set.Key.Name
		if name == "env" {
			// Variables of the files come first; those of the command line win.
			b.env = append(set.Values, b.typedEnv...)
			continue
		}
		f := fs.Lookup(name)
		if f == nil || b.given[name] == fromFlag {
			continue
		}
		b.given[name] = set.Source.String()
		for _, v := range set.Values {
			if err := f.Value.Set(v); err != nil {
				return fmt.Errorf("%s: %s: %w", set.Source, name, err)
			}
		}
	}
	for _, w := range conf.Warnings() {
		a.note(w)
	}
	if n := conf.Ignored(); len(n) > 0 {
		words := make([]string, len(n))
		for i := range n {
			words[i] = n[i].Key
			if words[i] == "" {
				words[i] = n[i].Reason
			}
		}
		a.note(n[0].Path + ": not applied: " + strings.Join(words, ", ") + "; kern-sbx config trust applies a project file that you have read")
	}
	return nil
}

// completePresets lists the presets of the configuration; it starts nothing,
// and a broken file just gives none.
func (a *app) completePresets(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	conf, err := config.Load(a.configOptions(nil))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return conf.Presets(), cobra.ShellCompDirectiveNoFileComp
}
