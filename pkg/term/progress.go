package term

import (
	"os"
	"sync"
	"time"
	"unicode/utf8"

	xterm "golang.org/x/term"
)

const (
	progressDelay = 200 * time.Millisecond // fast work stays silent
	progressTick  = 100 * time.Millisecond // at most ten redraws a second
)

// Progress is one line with a spinner that tells a waiting person what goes
// on. It is drawn only on a terminal that can redraw a line, first after
// 200 ms, and is gone after Stop.
type Progress struct {
	w     *os.File
	label string
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once

	mu   sync.Mutex
	text string
}

// NewProgress starts the line on w, which is standard error. It does nothing
// when w is not a terminal or TERM is "dumb".
func NewProgress(w *os.File, label string) *Progress {
	p := &Progress{w: w, label: VisibleLine(label), stop: make(chan struct{}), done: make(chan struct{})}
	if !IsTerminal(w) || os.Getenv("TERM") == "dumb" {
		close(p.done)
		return p
	}
	go p.run()
	return p
}

// Update replaces the text after the label. It may be foreign text and may
// come as often as it likes.
func (p *Progress) Update(text string) {
	text = VisibleLine(text)
	p.mu.Lock()
	p.text = text
	p.mu.Unlock()
}

// Stop clears the line and returns once nothing more will be drawn. It may be
// called again.
func (p *Progress) Stop() {
	p.once.Do(func() { close(p.stop) })
	<-p.done
}

func (p *Progress) run() {
	defer close(p.done)
	select {
	case <-p.stop:
		return
	case <-time.After(progressDelay):
	}
	tick := time.NewTicker(progressTick)
	defer tick.Stop()
	for i := 0; ; i++ {
		p.draw(i)
		select {
		case <-p.stop:
			_, _ = p.w.WriteString("\r\x1b[K")
			return
		case <-tick.C:
		}
	}
}

func (p *Progress) draw(i int) {
	p.mu.Lock()
	line := p.label
	if p.text != "" {
		line += " " + p.text
	}
	p.mu.Unlock()
	width, _, err := xterm.GetSize(int(p.w.Fd()))
	if err != nil || width <= 0 {
		width = 80
	}
	// The last column stays free: a cursor beyond it would be on the next line.
	_, _ = p.w.WriteString("\r\x1b[K" + cutWidth(string(`|/-\`[i%4])+" "+line, width-1))
}

// cutWidth shortens s to at most width columns. From U+1100 on, where wide
// characters begin, each counts as two: too short a line is harmless, while
// one that wraps cannot be cleared.
func cutWidth(s string, width int) string {
	used := 0
	for i, r := range s {
		used++
		if r >= 0x1100 && r != utf8.RuneError {
			used++
		}
		if used > width {
			return s[:i]
		}
	}
	return s
}
