package runner

import (
	"bufio"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// memoryPart is how much of a captured stream stays in memory. What comes
// after goes to a file without a name, so that a flood costs disk and not RAM.
const memoryPart = 256 << 10

// capture keeps a stream. One goroutine writes; reading starts when it is done.
type capture struct {
	dir  string // where the overflow file is made
	mem  []byte
	file *os.File
	size int64
	err  error
}

func (c *capture) Write(p []byte) (int, error) {
	n := len(p)
	if room := memoryPart - len(c.mem); room > 0 {
		k := min(room, len(p))
		c.mem = append(c.mem, p[:k]...)
		c.size += int64(k)
		p = p[k:]
	}
	if len(p) == 0 {
		return n, nil
	}
	if c.file == nil && c.err == nil {
		c.file, c.err = anonymousFile(c.dir)
	}
	if c.err == nil {
		var k int
		k, c.err = c.file.Write(p)
		c.size += int64(k)
	}
	// A full disk under the capture must not end the run: what was kept stays,
	// and the result says that the stream was cut.
	return n, nil
}

func (c *capture) close() {
	if c.file != nil {
		c.file.Close()
	}
}

// anonymousFile makes a file that has no name, so that nothing is left behind
// whatever becomes of this process.
func anonymousFile(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), "capture"), nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EINVAL) {
		return nil, err
	}
	f, err := os.CreateTemp(dir, "capture")
	if err == nil {
		err = os.Remove(f.Name())
	}
	return f, err
}

func (c *capture) reader(off, end int64) io.Reader {
	if c.file == nil || end <= int64(len(c.mem)) {
		return &memReader{c.mem[min(off, int64(len(c.mem))):min(end, int64(len(c.mem)))]}
	}
	m := int64(len(c.mem))
	if off >= m {
		return io.NewSectionReader(c.file, off-m, end-off)
	}
	return io.MultiReader(&memReader{c.mem[off:]}, io.NewSectionReader(c.file, 0, end-m))
}

type memReader struct{ b []byte }

func (r *memReader) Read(p []byte) (int, error) {
	if len(r.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.b)
	r.b = r.b[n:]
	return n, nil
}

// span is a part of one capture.
type span struct {
	c        *capture
	off, end int64
}

// Text is bytes that came out of a box: spans of what was captured. A nil
// *Text was not captured. In JSON it is a string when the bytes are UTF-8, and
// {"encoding":"base64","data":…} when they are not, so that no byte is lost.
type Text struct{ spans []span }

// TextOf wraps bytes already at hand.
func TextOf(b []byte) *Text {
	return &Text{[]span{{&capture{mem: b, size: int64(len(b))}, 0, int64(len(b))}}}
}

// Reader reads the text from its start.
func (t *Text) Reader() io.Reader {
	if t == nil {
		return &memReader{}
	}
	rs := make([]io.Reader, 0, len(t.spans))
	for _, s := range t.spans {
		rs = append(rs, s.c.reader(s.off, s.end))
	}
	return io.MultiReader(rs...)
}

// Len is the number of bytes.
func (t *Text) Len() int64 {
	if t == nil {
		return 0
	}
	n := int64(0)
	for _, s := range t.spans {
		n += s.end - s.off
	}
	return n
}

// Slice gives at most n bytes from off on.
func (t *Text) Slice(off, n int64) []byte {
	if t == nil || off < 0 || n <= 0 {
		return nil
	}
	var b []byte
	for _, s := range t.spans {
		size := s.end - s.off
		if off >= size {
			off -= size
			continue
		}
		part, _ := io.ReadAll(s.c.reader(s.off+off, min(s.end, s.off+off+n)))
		b, n, off = append(b, part...), n-int64(len(part)), 0
		if n <= 0 {
			break
		}
	}
	return b
}

// Head gives at most n bytes from the start.
func (t *Text) Head(n int) []byte {
	b, _ := io.ReadAll(io.LimitReader(t.Reader(), int64(n)))
	return b
}

// MarshalJSON is for small documents; WriteJSON of a Result streams.
func (t *Text) MarshalJSON() ([]byte, error) {
	var s sliceWriter
	b := bufio.NewWriter(&s)
	err := t.writeJSON(b)
	if err == nil {
		err = b.Flush()
	}
	return s, err
}

type sliceWriter []byte

func (s *sliceWriter) Write(p []byte) (int, error) { *s = append(*s, p...); return len(p), nil }

func (t *Text) writeJSON(w *bufio.Writer) error {
	if t == nil {
		_, err := w.WriteString("null")
		return err
	}
	valid, err := validUTF8(t.Reader())
	if err != nil {
		return err
	}
	if !valid {
		w.WriteString(`{"encoding": "base64", "data": "`)
		enc := base64.NewEncoder(base64.StdEncoding, w)
		if _, err := io.Copy(enc, t.Reader()); err != nil {
			return err
		}
		enc.Close()
		_, err := w.WriteString(`"}`)
		return err
	}
	w.WriteByte('"')
	if _, err := io.Copy(&jsonEscaper{w: w}, t.Reader()); err != nil {
		return err
	}
	return w.WriteByte('"')
}

func validUTF8(r io.Reader) (bool, error) {
	buf := make([]byte, 32<<10)
	have := 0
	for {
		n, err := r.Read(buf[have:])
		have += n
		i := 0
		for i < have {
			if buf[i] < utf8.RuneSelf {
				i++
				continue
			}
			if !utf8.FullRune(buf[i:have]) {
				break
			}
			c, size := utf8.DecodeRune(buf[i:have])
			if c == utf8.RuneError && size == 1 {
				return false, nil
			}
			i += size
		}
		have = copy(buf, buf[i:have])
		if err == io.EOF {
			return have == 0, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// jsonEscaper writes the inside of a JSON string. It works on bytes: what it
// is given has been found to be UTF-8. Controls are escaped whether JSON asks
// for it (C0) or not (DEL and C1), because the document may be shown on a
// terminal.
type jsonEscaper struct {
	w  *bufio.Writer
	c2 bool // the last byte was 0xc2, the first of U+0080 to U+00BF
}

const hexDigits = "0123456789abcdef"

func (e *jsonEscaper) Write(p []byte) (int, error) {
	from := 0
	if e.c2 && len(p) > 0 {
		e.c2 = false
		if p[0] < 0xa0 {
			e.unicode(p[0])
			from = 1
		} else {
			e.w.WriteByte(0xc2)
		}
	}
	for i := from; i < len(p); i++ {
		c := p[i]
		if c >= 0x20 && c != '"' && c != '\\' && c != 0x7f && c != 0xc2 {
			continue
		}
		e.w.Write(p[from:i])
		from = i + 1
		switch c {
		case '"', '\\':
			e.w.WriteByte('\\')
			e.w.WriteByte(c)
		case '\n':
			e.w.WriteString(`\n`)
		case '\r':
			e.w.WriteString(`\r`)
		case '\t':
			e.w.WriteString(`\t`)
		case 0xc2:
			switch {
			case i+1 == len(p):
				e.c2 = true
			case p[i+1] < 0xa0:
				e.unicode(p[i+1])
				i++
				from = i + 1
			default:
				from = i
			}
		default:
			e.unicode(c)
		}
	}
	_, err := e.w.Write(p[from:])
	return len(p), err
}

func (e *jsonEscaper) unicode(c byte) {
	e.w.WriteString(`\u00`)
	e.w.WriteByte(hexDigits[c>>4])
	e.w.WriteByte(hexDigits[c&15])
}
