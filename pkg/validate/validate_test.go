package validate

import (
	"errors"
	"strings"
	"testing"
)

// wantRefused checks that err is a complete refusal: one line, plain, with a
// reason and a fix.
func wantRefused(t *testing.T, what string, err error, reason string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Errorf("%s: got %v, want a refusal", what, err)
		return
	}
	if e.Reason == "" || e.Fix == "" || strings.HasSuffix(e.Fix, ".") || strings.HasSuffix(e.Reason, ".") {
		t.Errorf("%s: incomplete refusal %+v", what, e)
	}
	if m := e.Error(); strings.IndexFunc(m, func(r rune) bool { return r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) }) >= 0 {
		t.Errorf("%s: control characters in message %q", what, m)
	}
	if !strings.Contains(e.Reason, reason) {
		t.Errorf("%s: reason %q, want it to hold %q", what, e.Reason, reason)
	}
}

func TestErrorIsOneShortLine(t *testing.T) {
	e := &Error{Field: "--env", Value: "\x1b[2J\n" + strings.Repeat("ü", 4000), Reason: "why", Fix: "fix"}
	got := e.Error()
	if len(got) > 400 || strings.ContainsAny(got, "\x1b\n") || !strings.HasSuffix(got, ": why; fix") {
		t.Errorf("got %q", got)
	}
	if strings.Contains(got, `\x`) && strings.Contains(got, `\xc3`) {
		t.Errorf("a character was cut in two: %q", got)
	}
	if got := In("--env", refuse("v", "r", "f")).Error(); got != `--env "v": r; f` {
		t.Errorf("In: %s", got)
	}
	if In("--env", nil) != nil {
		t.Error("In made an error of nil")
	}
	if e := In("b", In("a", refuse("v", "r", "f"))).(*Error); e.Field != "a" {
		t.Errorf("In replaced the field: %s", e.Field)
	}
}

func TestNearest(t *testing.T) {
	names := []string{"env", "memory", "network", "tmpfs", "workspace", "egress-allow", "cpus"}
	for in, want := range map[string]string{
		"evn": "env", "ENV": "env", "memroy": "memory", "netwrok": "network", "tmfs": "tmpfs",
		"wokspace": "workspace", "egres-alow": "egress-allow", "cpu": "cpus",
		"": "", "x": "", "zz": "", "completely-else": "", strings.Repeat("a", 1000): "", "\xff\xff": "",
	} {
		if got := Nearest(in, names); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", in, got, want)
		}
	}
	if got := Nearest("env", nil); got != "" {
		t.Errorf("no candidates: %q", got)
	}
}
