package cmd

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagGroup is the annotation that says under which heading a flag is shown.
const flagGroup = "kern-sbx/group"

// The headings of the flags of a box, in the order of the help.
const (
	inCode     = "Code"
	inRoot     = "Root"
	inFiles    = "Files and environment"
	inLimits   = "Limits"
	inNetwork  = "Network"
	inAdvanced = "Advanced"
	inGlobal   = "Everywhere"
)

var flagGroups = []string{inCode, inRoot, inFiles, inLimits, inNetwork, inAdvanced, inGlobal}

type flagInfo struct{ *pflag.Flag }

func (f flagInfo) group() string {
	if g := f.Annotations[flagGroup]; len(g) > 0 {
		return g[0]
	}
	return inGlobal
}

func visitFlags(c *cobra.Command, f func(flagInfo)) {
	c.InheritedFlags()
	c.Flags().VisitAll(func(x *pflag.Flag) {
		if !x.Hidden {
			f(flagInfo{x})
		}
	})
}

// help prints the help of a command. It is our own, because cobra's template
// engine would be linked into every shell line, and because a box has more
// flags than fit on one screen.
func (a *app) help(c *cobra.Command, _ []string) {
	w := bufio.NewWriter(c.OutOrStdout())
	defer w.Flush()
	text := c.Long
	if text == "" {
		text = c.Short
	}
	if topic, ok := a.topics()[c.Name()]; ok && c.IsAdditionalHelpTopicCommand() {
		text = topic()
	}
	fmt.Fprintln(w, text)
	if c.IsAdditionalHelpTopicCommand() {
		return
	}
	fmt.Fprintf(w, "\nUsage:\n  %s\n", usageLine(c))
	if c.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", c.Example)
	}
	if c.HasAvailableSubCommands() {
		a.helpCommands(w, c)
	}
	all := false
	if h := c.Flags().Lookup("help"); h != nil {
		v, ok := h.Value.(*helpValue)
		all = ok && v.text == "all"
	}
	groups := map[string][]flagInfo{}
	visitFlags(c, func(f flagInfo) { groups[f.group()] = append(groups[f.group()], f) })
	left := false
	for _, g := range flagGroups {
		if len(groups[g]) == 0 {
			continue
		}
		if g == inAdvanced && !all {
			left = true
			continue
		}
		fmt.Fprintf(w, "\n%s:\n", g)
		for _, f := range groups[g] {
			helpFlag(w, f)
		}
	}
	if left {
		fmt.Fprintf(w, "\n%s --help=all shows the rest.\n", c.CommandPath())
	}
}

func usageLine(c *cobra.Command) string {
	u := c.UseLine()
	if c.HasAvailableSubCommands() && c.HasParent() || !c.HasParent() {
		u = c.CommandPath() + " COMMAND [flags]"
	}
	return u
}

func (a *app) helpCommands(w io.Writer, c *cobra.Command) {
	wide := 0
	for _, s := range c.Commands() {
		wide = max(wide, len(s.Name()))
	}
	show := func(title, group string) {
		head := false
		for _, s := range c.Commands() {
			if !s.IsAvailableCommand() || s.GroupID != group {
				continue
			}
			if !head {
				fmt.Fprintf(w, "\n%s\n", title)
				head = true
			}
			fmt.Fprintf(w, "  %-*s  %s\n", wide, s.Name(), s.Short)
		}
	}
	for _, g := range c.Groups() {
		show(g.Title, g.ID)
	}
	show("Commands:", "")
	head := false
	for _, s := range c.Commands() {
		if s.IsAdditionalHelpTopicCommand() && !s.Hidden {
			if !head {
				fmt.Fprintf(w, "\nTopics, for %s help TOPIC:\n", c.CommandPath())
				head = true
			}
			fmt.Fprintf(w, "  %-*s  %s\n", wide, s.Name(), s.Short)
		}
	}
}

// flagColumn is where the text about a flag starts.
const flagColumn = 32

func helpFlag(w io.Writer, f flagInfo) {
	arg, usage := pflag.UnquoteUsage(f.Flag)
	left := "      --" + f.Name
	if f.Shorthand != "" {
		left = "  -" + f.Shorthand + ", --" + f.Name
	}
	if arg != "" && f.Name != "help" {
		left += " " + arg
	}
	if len(left) > flagColumn-2 {
		left += "  "
	} else {
		left += strings.Repeat(" ", flagColumn-len(left))
	}
	if d := f.DefValue; d != "" && d != "false" && d != "[]" {
		usage += " (default " + d + ")"
	}
	fmt.Fprintln(w, left+usage)
}
