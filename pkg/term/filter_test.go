package term

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// through filters the pieces as one stream.
func through(t testing.TB, pieces ...[]byte) string {
	t.Helper()
	var b bytes.Buffer
	f := NewFilter(&b)
	for _, p := range pieces {
		if n, err := f.Write(p); n != len(p) || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	if err := f.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var filterSamples = []struct{ name, in, want string }{
	{"text", "hello\tworld\r\nnext\n", "hello\tworld\r\nnext\n"},
	{"utf8", "äöü 日本語 🎉 \u202e \ufffd", "äöü 日本語 🎉 \u202e \ufffd"},
	{"colour", "\x1b[32mok\x1b[0m", "\x1b[32mok\x1b[0m"},
	{"empty colour", "\x1b[mx", "\x1b[mx"},
	{"rgb", "\x1b[38;2;1;2;3m\x1b[4:3mx\x1b[0m", "\x1b[38;2;1;2;3m\x1b[4:3mx\x1b[0m"},
	{"colour left on", "\x1b[8mhidden", "\x1b[8mhidden\x1b[0m"},
	{"title", "\x1b]0;pwn\a", "^[]0;pwn^G"},
	{"title, ST", "\x1b]0;pwn\x1b\\", "^[]0;pwn^[\\"},
	{"link", "\x1b]8;;http://x\x1b\\t\x1b]8;;\x1b\\", "^[]8;;http://x^[\\t^[]8;;^[\\"},
	{"clipboard", "\x1b]52;c;cm0=\a", "^[]52;c;cm0=^G"},
	{"clear", "\x1b[2J\x1b[H", "^[[2J^[[H"},
	{"query", "\x1b[6n\x1b[c\x1b[>c\x05", "^[[6n^[[c^[[>c^E"},
	{"private m", "\x1b[?1m\x1b[>4;2m\x1b[1 m\x1b[1$m", "^[[?1m^[[>4;2m^[[1 m^[[1$m"},
	{"colour with letters", "\x1b[3x1m", "^[[3x1m"},
	{"DCS APC PM SOS", "\x1bPq\x1b\\\x1b_G\x1b\\\x1b^p\x1b\\\x1bXs\x1b\\", "^[Pq^[\\^[_G^[\\^[^p^[\\^[Xs^[\\"},
	{"single", "\x1bc\x1b7\x1b8\x1b=\x1bM\x1b(0\x1b#8\x1b%@", "^[c^[7^[8^[=^[M^[(0^[#8^[%@"},
	{"nested", "\x1b\x1b[31mx", "^[\x1b[31mx\x1b[0m"},
	{"restart in CSI", "\x1b[3\x1b[31mx\x1b[m", "^[[3\x1b[31mx\x1b[m"},
	{"newline in CSI", "\x1b[3\n1m", "^[[3\n1m"},
	{"control in CSI", "\x1b[3\x081m", "^[[3^H1m"},
	{"C1 UTF-8", "\u009b31m\u009d0;x\u009c\u0085\u0080", `\u009b31m\u009d0;x\u009c\u0085\u0080`},
	{"C1 raw", "\x9b31m\x9d0;x\x9c\x90\x85", `\x9b31m\x9d0;x\x9c\x90\x85`},
	{"C1 in CSI", "\x1b[3\u009b1m", "^[[3\\u009b1m"},
	{"controls", "\x00\a\b\v\f\x0e\x0f\x11\x13\x18\x1a\x7f", "^@^G^H^K^L^N^O^Q^S^X^Z^?"},
	{"bad bytes", "a\xff\xfeb\xc0\x9b\xf5\xc1", `a\xff\xfeb\xc0\x9b\xf5\xc1`},
	{"broken character", "\xe2\x82\x1b[1mx\x1b[0m\xf0\x9f\x8ea", "\\xe2\\x82\x1b[1mx\x1b[0m\\xf0\\x9f\\x8ea"},
	{"broken then whole", "\xe2\xe2\x82\xac\xc3\u009b", "\\xe2€\\xc3\\u009b"},
	{"surrogate, too large", "\xed\xa0\x80\xf4\x90\x80\x80", `\xed\xa0\x80\xf4\x90\x80\x80`},
	{"ends in ESC", "x\x1b", "x^["},
	{"ends in CSI", "x\x1b[31", "x^[[31"},
	{"ends in character", "x\xe2\x82", `x\xe2\x82`},
	{"too long", "\x1b[" + strings.Repeat("1;", 40) + "mx", "^[[" + strings.Repeat("1;", 40) + "mx"},
	{"longest", "\x1b[" + strings.Repeat("1", maxSequence-3) + "m\x1b[m", "\x1b[" + strings.Repeat("1", maxSequence-3) + "m\x1b[m"},
	{"one too many", "\x1b[" + strings.Repeat("1", maxSequence-2) + "m", "^[[" + strings.Repeat("1", maxSequence-2) + "m"},
}

func TestFilter(t *testing.T) {
	for _, c := range filterSamples {
		t.Run(c.name, func(t *testing.T) {
			in := []byte(c.in)
			if got := through(t, in); got != c.want {
				t.Fatalf("whole: %q, want %q", got, c.want)
			}
			for i := 0; i <= len(in); i++ {
				for j := i; j <= len(in); j++ {
					if got := through(t, in[:i], in[i:j], in[j:]); got != c.want {
						t.Fatalf("split at %d and %d: %q, want %q", i, j, got, c.want)
					}
				}
			}
			single := make([][]byte, len(in))
			for i := range in {
				single[i] = in[i : i+1]
			}
			if got := through(t, single...); got != c.want {
				t.Fatalf("byte by byte: %q, want %q", got, c.want)
			}
		})
	}
}

func TestFilterOverChunks(t *testing.T) {
	unit := []byte("12345678\x1b[1mä\x1b[0m\x1b[2J\n")
	in := bytes.Repeat(unit, 3*chunkSize/len(unit))
	want := strings.Repeat("12345678\x1b[1mä\x1b[0m^[[2J\n", len(in)/len(unit))
	if got := through(t, in); got != want {
		t.Error("differs when longer than a chunk")
	}
}

func TestFilterReset(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"done\n", "done\n"},
		{"half", "half\n"},
		{"50%\r", "50%\r\n"},
		{"\x1b[8m", "\x1b[8m\x1b[0m\n"},
		{"x\n\x1b", "x\n^[\n"},
	} {
		var b bytes.Buffer
		f := NewFilter(&b)
		_, _ = f.Write([]byte(c.in))
		for range 2 { // the second finds nothing to do
			if err := f.Reset(); err != nil {
				t.Fatal(err)
			}
		}
		if b.String() != c.want {
			t.Errorf("%q: %q, want %q", c.in, b.String(), c.want)
		}
	}
}

type refusing struct {
	n   int
	err error
}

func (r refusing) Write([]byte) (int, error) { return r.n, r.err }

func TestFilterErrors(t *testing.T) {
	boom := errors.New("boom")
	for _, in := range []string{"plain", "\x1b[2J"} {
		if n, err := NewFilter(refusing{0, boom}).Write([]byte(in)); n != 0 || !errors.Is(err, boom) {
			t.Errorf("%q: %d, %v", in, n, err)
		}
		if _, err := NewFilter(refusing{1, nil}).Write([]byte(in)); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("%q: short write gives %v", in, err)
		}
	}
}

func TestFilterDoesNotAllocate(t *testing.T) {
	f := NewFilter(io.Discard)
	plainText := bytes.Repeat([]byte("plain text ä\n"), 300)
	mixed := bytes.Repeat([]byte("\x1b[31mred\x1b[0m \x1b[2J\xff\n"), 300)
	_, _ = f.Write(mixed)
	for _, p := range [][]byte{plainText, mixed} {
		if n := testing.AllocsPerRun(20, func() { _, _ = f.Write(p) }); n != 0 {
			t.Errorf("%v allocations for %.12q", n, p)
		}
	}
}

var sgr = regexp.MustCompile("\x1b\\[[0-9;:]*m")

func FuzzFilter(f *testing.F) {
	for _, c := range filterSamples {
		f.Add([]byte(c.in), uint16(3), uint16(7))
	}
	f.Fuzz(func(t *testing.T, in []byte, i, j uint16) {
		out := through(t, in)
		a := int(i) % (len(in) + 1)
		b := a + int(j)%(len(in)-a+1)
		if got := through(t, in[:a], in[a:b], in[b:]); got != out {
			t.Fatalf("split at %d, %d: %q, whole %q", a, b, got, out)
		}
		if !utf8.ValidString(out) {
			t.Fatalf("not UTF-8: %q", out)
		}
		for _, r := range sgr.ReplaceAllString(out, "") {
			if r != '\t' && r != '\n' && r != '\r' && (r < 0x20 || (r >= 0x7f && r < 0xa0)) {
				t.Fatalf("U+%04X is left in %q", r, out)
			}
		}
		if again := through(t, []byte(out)); again != out {
			t.Fatalf("filtered twice: %q, once %q", again, out)
		}
		if VisibleLine(string(in)) == string(in) && out != string(in) {
			t.Fatalf("plain text %q became %q", in, out)
		}
	})
}

func benchFilter(b *testing.B, unit string) {
	p := bytes.Repeat([]byte(unit), 32<<10/len(unit))
	f := NewFilter(io.Discard)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = f.Write(p)
	}
}

func BenchmarkFilterPlain(b *testing.B) {
	benchFilter(b, "a line of a build log, seventy or so characters long, without colours\n")
}

func BenchmarkFilterUTF8(b *testing.B) {
	benchFilter(b, "größere Zeilen mit Umläuten und 日本語\n")
}

func BenchmarkFilterColour(b *testing.B) { benchFilter(b, "\x1b[32mPASS\x1b[0m some/test name 0.1s\n") }

func BenchmarkFilterHostile(b *testing.B) {
	benchFilter(b, "\x1b]0;x\a\x1b[2J\x9b\xff")
}
