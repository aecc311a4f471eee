package term

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/creack/pty"
)

func TestEnabled(t *testing.T) {
	master, tty, err := pty.Open()
	if err != nil {
		t.Skip("no pseudo-terminal:", err)
	}
	defer master.Close()
	defer tty.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, c := range []struct {
		f    *os.File
		mode string
		env  map[string]string
		want bool
	}{
		{tty, "auto", nil, true},
		{tty, "", nil, true},
		{tty, "auto", map[string]string{"TERM": "xterm", "NO_COLOR": ""}, true},
		{tty, "auto", map[string]string{"NO_COLOR": "0"}, false},
		{tty, "auto", map[string]string{"TERM": "dumb"}, false},
		{tty, "never", nil, false},
		{file, "auto", nil, false},
		{file, "auto", map[string]string{"CLICOLOR_FORCE": "1"}, false},
		{file, "always", nil, true},
		{file, "always", map[string]string{"NO_COLOR": "1"}, true},
		{nil, "auto", nil, false},
	} {
		if got := Enabled(c.f, c.mode, func(k string) string { return c.env[k] }); got != c.want {
			t.Errorf("Enabled(%v, %q, %v) = %v", c.f, c.mode, c.env, got)
		}
	}
}

// The answer for one stream holds whatever stdout and the environment are.
func TestStyle(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	on, off := NewStyle(true), NewStyle(false)
	for _, c := range []struct{ got, want string }{
		{on.Dim("x"), "\x1b[2mx\x1b[22m"},
		{on.Bold("x"), "\x1b[1mx\x1b[22m"},
		{on.Red("x"), "\x1b[31mx\x1b[0m"},
		{on.Yellow("x"), "\x1b[33mx\x1b[0m"},
		{on.Green("50%d"), "\x1b[32m50%d\x1b[0m"},
		{on.Red(""), ""},
		{off.Dim("x") + off.Bold("x") + off.Red("x") + off.Yellow("x") + off.Green("x"), "xxxxx"},
		{Style{}.Red("x"), "x"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
