package testscripts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// screen is a real terminal: a tmux server of its own, with a shell in it.
type screen struct {
	t      *testing.T
	socket string
}

// screenWait is how long the screen may take to show what is expected.
const screenWait = 30 * time.Second

func newScreen(t *testing.T, sh *shared) *screen {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux is not installed")
	}
	home := t.TempDir()
	for _, d := range []string{"run", "work"} {
		if err := os.Mkdir(filepath.Join(home, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s := &screen{t, filepath.Join(home, "run", "tmux")}
	for name, prompt := range map[string]string{"outer": "outer$ ", "inner": "inner> "} {
		if err := os.WriteFile(filepath.Join(home, "work", name), []byte("HISTFILE=\nPS1='"+prompt+"'\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	start := exec.Command("tmux", "-S", s.socket, "-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", "bash --noprofile --rcfile outer")
	start.Dir = filepath.Join(home, "work")
	start.Env = []string{
		"HOME=" + home, "XDG_RUNTIME_DIR=" + filepath.Join(home, "run"), "PATH=" + scriptPath(sh.dir), "LANG=C.UTF-8", "TERM=screen",
		"KERN_SBX_IMAGE=host",
	}
	if !sh.embed {
		start.Env = append(start.Env, "KERN_BIN="+filepath.Join(sh.dir, "kern", "kern"))
	}
	if out, err := start.CombinedOutput(); err != nil {
		t.Fatalf("tmux: %v\n%s", err, out)
	}
	t.Cleanup(func() { s.tmux("kill-server") })
	s.wait("outer$")
	return s
}

func (s *screen) tmux(args ...string) string {
	s.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-S", s.socket}, args...)...).CombinedOutput()
	if err != nil && args[0] != "kill-server" {
		s.t.Fatalf("tmux %s: %v\n%s", args[0], err, out)
	}
	return string(out)
}

// keys sends tmux key names; line types a text and Enter.
func (s *screen) keys(names ...string) { s.tmux(append([]string{"send-keys"}, names...)...) }

func (s *screen) line(text string) {
	s.tmux("send-keys", "-l", text)
	s.keys("Enter")
}

func (s *screen) text(flags ...string) string {
	return s.tmux(append([]string{"capture-pane", "-p"}, flags...)...)
}

// wait returns when the screen shows the text.
func (s *screen) wait(text string) string {
	s.t.Helper()
	return s.until(func(now string) bool { return strings.Contains(now, text) }, "%q", text)
}

func (s *screen) until(ok func(string) bool, what string, args ...any) string {
	s.t.Helper()
	for end := time.Now().Add(screenWait); ; time.Sleep(50 * time.Millisecond) {
		now := s.text()
		if ok(now) {
			return now
		}
		if time.Now().After(end) {
			s.t.Fatalf("the screen never showed %s:\n%s", fmt.Sprintf(what, args...), now)
		}
	}
}

// prompt waits for the outer shell to be back on the last line.
func (s *screen) prompt() string {
	s.t.Helper()
	return s.until(func(now string) bool {
		lines := strings.Split(strings.TrimRight(now, "\n"), "\n")
		return strings.TrimRight(lines[len(lines)-1], " ") == "outer$"
	}, "the prompt by itself")
}

func TestTerminal(t *testing.T) {
	sh := build(t)
	const inner = `kern-sbx run -it -v ./inner:/inner:ro -- bash --noprofile --rcfile /inner`

	t.Run("shell", func(t *testing.T) {
		s := newScreen(t, sh)
		s.line("stty -a > before; " + inner)
		s.wait("inner>")
		s.line("test -t 0 && test -t 1 && test -t 2 && echo all $$ $(stty size)")
		s.wait("all 1 30 100")
		s.line("sleep 1000")
		s.wait("sleep 1000")
		time.Sleep(300 * time.Millisecond) // the job has to be in the foreground
		s.keys("C-c")
		s.until(func(now string) bool { return strings.HasSuffix(strings.TrimRight(now, "\n "), "inner>") }, "a prompt after Ctrl-C")
		s.line("sleep 1001")
		s.wait("sleep 1001")
		time.Sleep(300 * time.Millisecond)
		s.keys("C-z")
		s.wait("Stopped")
		s.line("kill %1; wait; clear; exit 5")
		s.prompt()
		s.line("echo rc=$?; stty -a > after; cmp before after && echo same")
		s.wait("rc=5")
		s.wait("same")
	})

	t.Run("resize", func(t *testing.T) {
		s := newScreen(t, sh)
		s.line(inner)
		s.wait("inner>")
		s.line("trap 'echo winch $(stty size)' WINCH; echo set")
		s.wait("set")
		s.tmux("resize-window", "-x", "120", "-y", "40")
		s.line("") // bash runs a trap when it reads the next line
		s.wait("winch 40 120")
		s.keys("C-d")
		s.prompt()
	})

	t.Run("full screen", func(t *testing.T) {
		if _, err := os.Stat("/usr/bin/less"); err != nil {
			t.Skip("less is not installed")
		}
		s := newScreen(t, sh)
		s.line("stty -a > before; kern-sbx run -it -- sh -c 'seq 1 500 | less'")
		s.until(func(now string) bool { return strings.HasPrefix(now, "1\n2\n3\n") }, "the first page")
		s.keys("G")
		s.wait("500")
		s.keys("q")
		s.prompt()
		s.line("stty -a > after; cmp before after && echo same")
		s.wait("same")
	})

	t.Run("a program that dies and leaves a mess", func(t *testing.T) {
		s := newScreen(t, sh)
		s.line("echo marker; stty -a > before")
		s.wait("marker")
		// Alternate screen, mouse reports, bracketed paste, hidden cursor, hidden
		// text, and a question to the terminal whose answer nobody will read.
		s.line(`kern-sbx run -it -- sh -c 'stty raw -echo; printf "\033[?1049h\033[?1000h\033[?2004h\033[?25l\033[8m\033[6n\033[6n"; kill -KILL 0; exec python3 -c "import os; os.abort()"'`)
		s.wait("marker") // the main screen is back
		now := s.prompt()
		if strings.Contains(now, ";1R") {
			t.Errorf("an answer of the terminal was typed into the shell:\n%s", now)
		}
		s.line("stty -a > after; cmp before after && echo same")
		s.wait("same")
		if mouse := strings.TrimSpace(s.tmux("display-message", "-p", "#{mouse_any_flag} #{cursor_flag} #{alternate_on}")); mouse != "0 1 0" {
			t.Errorf("mouse, cursor, alternate screen: %s, want 0 1 0", mouse)
		}
	})

	t.Run("three times the escape key", func(t *testing.T) {
		s := newScreen(t, sh)
		s.line(`kern-sbx run -it -- python3 -c 'import signal,time; [signal.signal(n, signal.SIG_IGN) for n in (1,2,3,15)]; print("deaf", flush=True); time.sleep(1000)'`)
		s.wait("deaf")
		s.keys("C-]", "C-]", "C-]")
		s.wait("killed: ended at the terminal")
		s.prompt()
		s.line("echo rc=$?")
		s.wait("rc=137")
	})

	t.Run("a command that is not there", func(t *testing.T) {
		s := newScreen(t, sh)
		s.line("kern-sbx run -it -- no-such-command; echo rc=$?")
		s.wait(`exec_failed: "no-such-command" was not found in the host image`)
		s.wait("rc=127")
		s.prompt()
	})

	t.Run("without -t only colours pass", func(t *testing.T) {
		s := newScreen(t, sh)
		s.line(`kern-sbx run -- printf 'a\033]0;pwn\007b\033[31mred\033[0m\302\233c\n'`)
		s.wait("a^[]0;pwn^Gbred")
		if raw := s.text("-e"); !strings.Contains(raw, "\x1b[31mred") {
			t.Errorf("the colour did not pass:\n%q", raw)
		}
		s.line(`clear; kern-sbx run --raw -- printf 'x\033[5Cy\n'`)
		s.wait("x     y")
		s.prompt()
	})

	t.Run("no terminal", func(t *testing.T) {
		c := exec.Command(filepath.Join(sh.dir, "bin", "kern-sbx"), "run", "-it", "--image", "host", "--", "true")
		home := t.TempDir()
		c.Env = []string{"HOME=" + home, "PATH=" + scriptPath(sh.dir), "KERN_BIN=" + filepath.Join(sh.dir, "kern", "kern")}
		out, _ := c.CombinedOutput()
		if c.ProcessState.ExitCode() != 125 || !strings.Contains(string(out), "-t needs a terminal") {
			t.Errorf("exit %d: %s", c.ProcessState.ExitCode(), out)
		}
	})
}
