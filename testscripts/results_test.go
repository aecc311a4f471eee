package testscripts

import (
	"strings"
	"testing"
)

// TestResultsOnTerminal: at a terminal the last value is shown, as at a prompt of
// the interpreter.
func TestResultsOnTerminal(t *testing.T) {
	s := newScreen(t, build(t))
	s.line("clear; kern-sbx run -c '6*7'")
	s.until(func(now string) bool { return strings.Contains("\n"+now, "\n42\n") }, "42")
	// What a terminal would obey is written out, and there is no picture here.
	s.line(`clear; kern-sbx run -c 'class P: _repr_png_ = lambda s: b"\x89PNG\r\n\x1a\n"; __repr__ = lambda s: "<\x1b[31mP>"
P()'`)
	s.wait(`<\x1b[31mP>`)
	s.wait("1 picture was made; --out DIR saves it")
	s.line("clear; kern-sbx run --json -c '6*7' | grep -c '\"text/plain\": \"42\"'")
	s.until(func(now string) bool { return strings.Contains("\n"+now, "\n1\n") }, "1")
	s.line("clear; kern-sbx run -c '6*7' | wc -c")
	s.until(func(now string) bool { return strings.Contains("\n"+now, "\n0\n") }, "0")
}
