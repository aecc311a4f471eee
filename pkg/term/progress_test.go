package term

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

func TestProgress(t *testing.T) {
	t.Setenv("TERM", "xterm")
	c := newConsole(t)
	_ = pty.Setsize(c.tty, &pty.Winsize{Rows: 24, Cols: 30})
	p := NewProgress(c.tty, "\x1b[2J")
	time.Sleep(progressDelay / 2)
	if s := c.text(); s != "" {
		t.Errorf("drawn too early: %q", s)
	}
	end := time.Now().Add(progressDelay/2 + time.Second)
	for i := 0; time.Now().Before(end); i++ {
		p.Update("\a\n" + strings.Repeat("日本", 20))
		time.Sleep(time.Millisecond)
	}
	p.Stop()
	p.Stop()
	_, _ = c.tty.WriteString("end")
	s, _ := strings.CutSuffix(c.waitFor(t, "end"), "end")
	if !strings.HasSuffix(s, "\r\x1b[K") {
		t.Errorf("not cleared: %q", s)
	}
	if !strings.Contains(s, "日本") {
		t.Errorf("the text is missing: %q", s)
	}
	frames := strings.Split(s, "\r\x1b[K")
	if n := len(frames); n < 4 || n > 15 {
		t.Errorf("%d redraws in a second", n)
	}
	for _, f := range frames {
		cols := 0
		for _, r := range f {
			cols++
			if r >= 0x1100 {
				cols++
			}
		}
		if cols > 29 || f != VisibleLine(f) {
			t.Errorf("%d columns: %q", cols, f)
		}
	}
}

func TestProgressFastWorkIsSilent(t *testing.T) {
	t.Setenv("TERM", "xterm")
	c := newConsole(t)
	p := NewProgress(c.tty, "x")
	time.Sleep(20 * time.Millisecond)
	p.Stop()
	time.Sleep(20 * time.Millisecond)
	if s := c.text(); s != "" {
		t.Errorf("%q", s)
	}
}

func TestProgressWithoutTerminal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, w := range []*os.File{f, nil} {
		p := NewProgress(w, "x")
		p.Update("y")
		time.Sleep(progressDelay + progressTick)
		p.Stop()
	}
	if st, _ := f.Stat(); st.Size() != 0 {
		t.Error("something was written to a file")
	}
	t.Setenv("TERM", "dumb")
	c := newConsole(t)
	p := NewProgress(c.tty, "x")
	time.Sleep(progressDelay + progressTick)
	p.Stop()
	if s := c.text(); s != "" {
		t.Errorf("TERM=dumb: %q", s)
	}
}
