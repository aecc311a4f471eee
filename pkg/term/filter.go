package term

import (
	"io"
	"unicode/utf8"
)

// maxSequence bounds what Filter holds back while it waits for the end of a
// colour sequence: ESC [ with every parameter that any terminal knows is
// shorter, and what is longer is shown instead of obeyed.
const maxSequence = 64

// chunkSize bounds the buffer of a Filter: longer writes are taken in pieces.
const chunkSize = 16 << 10

// Filter writes the output of a box to a terminal. Text, tab, newline and
// carriage return pass, and so do colours: ESC [ digits ; : m. Every other
// control character is shown instead of obeyed, in the notation of cat -v
// (^[ for ESC, ^G, ^H, ^?), C1 controls as \u009b, and bytes that are not
// UTF-8 (8-bit C1 controls among them) as \x9b. What follows a refused ESC is
// plain text. Sequences and characters may be split over writes in any way.
//
// A colour can hide text ("conceal", black on black); that ends with the box,
// because Reset comes before any line of ours. A Filter is for one stream and
// not for concurrent use; two of them may share a terminal, since what either
// writes is whole.
type Filter struct {
	w       io.Writer
	pending [maxSequence]byte // an unfinished colour sequence or character
	n       int
	buf     []byte
	colour  bool // a colour other than "reset" has passed
	midline bool // the last byte written was not a newline
}

// NewFilter makes a Filter that writes to w.
func NewFilter(w io.Writer) *Filter { return &Filter{w: w} }

// plain says whether a byte passes by itself.
func plain(c byte) bool {
	return (c >= 0x20 && c < 0x7f) || c == '\n' || c == '\r' || c == '\t'
}

// cleanPrefix is the length of the longest beginning of p that passes as it is.
func cleanPrefix(p []byte) int {
	i := 0
	for i < len(p) {
		for i < len(p) && plain(p[i]) {
			i++
		}
		if i == len(p) || p[i] < 0xC2 { // control, or a byte that starts nothing
			return i
		}
		r, n := utf8.DecodeRune(p[i:])
		if r < 0xA0 || (r == utf8.RuneError && n == 1) {
			return i
		}
		i += n
	}
	return i
}

// Write filters p. It reports all of p as written unless the terminal refused.
func (f *Filter) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		c := p[done:min(done+chunkSize, len(p))]
		if err := f.chunk(c); err != nil {
			return done, err
		}
		done += len(c)
	}
	return done, nil
}

func (f *Filter) chunk(p []byte) error {
	if f.n == 0 {
		if i := cleanPrefix(p); i == len(p) {
			return f.emit(p)
		}
	}
	f.buf = f.buf[:0]
	for len(p) > 0 {
		if f.n == 0 {
			i := cleanPrefix(p)
			f.buf = append(f.buf, p[:i]...)
			if p = p[i:]; len(p) == 0 {
				break
			}
		}
		f.step(p[0])
		p = p[1:]
	}
	return f.emit(f.buf)
}

// step takes one byte that follows what is pending, or that does not pass by
// itself.
func (f *Filter) step(c byte) {
	switch {
	case f.n == 0:
		f.begin(c)
	case f.pending[0] != 0x1b:
		f.continueRune(c)
	case f.n == 1 && c == '[', f.n > 1 && (c >= '0' && c <= ';'): // digits : ;
		f.pending[f.n] = c
		f.n++
		if f.n == maxSequence {
			f.show()
		}
	case f.n > 1 && c == 'm':
		f.pending[f.n] = c
		seq := f.pending[:f.n+1]
		f.colour = !isReset(seq)
		f.buf = append(f.buf, seq...)
		f.n = 0
	default: // not a colour: shown, and c starts afresh
		f.show()
		f.begin(c)
	}
}

// isReset says whether a colour sequence is exactly ESC[m or ESC[0m.
func isReset(seq []byte) bool { s := string(seq); return s == "\x1b[m" || s == ResetColour }

// begin takes a byte with nothing pending.
func (f *Filter) begin(c byte) {
	switch {
	case plain(c):
		f.buf = append(f.buf, c)
	case c == 0x1b || (c >= 0xC2 && c <= 0xF4):
		f.pending[0] = c
		f.n = 1
	default:
		f.buf = appendShown(f.buf, c)
	}
}

// continueRune takes a byte after the beginning of a character.
func (f *Filter) continueRune(c byte) {
	f.pending[f.n] = c
	f.n++
	p := f.pending[:f.n]
	if !utf8.FullRune(p) {
		return
	}
	r, n := utf8.DecodeRune(p)
	switch {
	case r == utf8.RuneError && n == 1: // broken off: c may begin something itself
		f.n--
		f.show()
		f.begin(c)
		return
	case r < 0xA0:
		f.buf = appendEscaped(f.buf, r, n, p[0])
	default:
		f.buf = append(f.buf, p...)
	}
	f.n = 0
}

// show writes out what is pending, since it will not become anything.
func (f *Filter) show() {
	for _, c := range f.pending[:f.n] {
		if plain(c) {
			f.buf = append(f.buf, c)
		} else {
			f.buf = appendShown(f.buf, c)
		}
	}
	f.n = 0
}

func appendShown(b []byte, c byte) []byte {
	switch {
	case c < 0x20:
		return append(b, '^', c+'@')
	case c == 0x7f:
		return append(b, '^', '?')
	default:
		return append(b, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
	}
}

func (f *Filter) emit(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	f.midline = p[len(p)-1] != '\n'
	n, err := f.w.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return err
}

// Flush writes out what is held back and ends a colour that the box left on.
// It belongs at the end of the stream.
func (f *Filter) Flush() error {
	f.buf = f.buf[:0]
	f.show()
	midline := f.midline
	if len(f.buf) > 0 {
		midline = true // what was pending is never a newline
	}
	if f.colour {
		f.buf = append(f.buf, ResetColour...)
		f.colour = false
	}
	err := f.emit(f.buf)
	f.midline = midline
	return err
}

// Reset makes the terminal ready for a line of ours (rules S10): Flush, and a
// newline when the box left its line unfinished.
func (f *Filter) Reset() error {
	if err := f.Flush(); err != nil || !f.midline {
		return err
	}
	return f.emit([]byte{'\n'})
}
