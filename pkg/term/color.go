package term

import (
	"os"

	"github.com/fatih/color"
	xterm "golang.org/x/term"
)

// ResetColour ends every colour and attribute (SGR 0). It goes before a line
// of ours on a terminal that a box has written to, because a box may end in
// "conceal" (rules S10); Filter.Reset writes it where a Filter is in use.
const ResetColour = "\x1b[0m"

// IsTerminal says whether f is a terminal. A nil f is not.
func IsTerminal(f *os.File) bool {
	return f != nil && xterm.IsTerminal(int(f.Fd()))
}

// Enabled decides whether lines written to f are coloured. mode is "always",
// "never", or "auto", which any other text means too: a terminal, with TERM
// other than "dumb" and NO_COLOR unset or empty (https://no-color.org). env
// looks up a variable, as os.Getenv does. Each stream decides for itself, so
// that 2>log holds no colours while stdout has them.
func Enabled(f *os.File, mode string, env func(string) string) bool {
	switch mode {
	case "always":
		return true
	case "never":
		return false
	}
	return env("NO_COLOR") == "" && env("TERM") != "dumb" && IsTerminal(f)
}

// Style colours lines of ours on one stream; its zero value does not. Text
// from elsewhere goes through Visible first.
type Style struct{ on bool }

// NewStyle makes the style of a stream, with the answer of Enabled for it.
func NewStyle(on bool) Style { return Style{on: on} }

// Dim is for what matters least: notes of the runtime.
func (s Style) Dim(t string) string { return s.paint(t, color.Faint) }

// Bold is for headings.
func (s Style) Bold(t string) string { return s.paint(t, color.Bold) }

// Red is for errors and failed checks.
func (s Style) Red(t string) string { return s.paint(t, color.FgRed) }

// Yellow is for warnings.
func (s Style) Yellow(t string) string { return s.paint(t, color.FgYellow) }

// Green is for what is well.
func (s Style) Green(t string) string { return s.paint(t, color.FgGreen) }

func (s Style) paint(t string, a color.Attribute) string {
	if !s.on || t == "" {
		return t
	}
	c := color.New(a)
	c.EnableColor() // without this the library asks stdout, whatever the stream
	return c.Sprint(t)
}
