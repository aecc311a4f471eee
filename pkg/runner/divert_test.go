package runner

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func TestDivert(t *testing.T) {
	for _, c := range []struct{ in, passed, notes string }{
		{"", "", ""},
		{"plain\n", "plain\n", ""},
		{"kern: egress proxy: refused x\nplain\n", "plain\n", "(unverified) kern: egress proxy: refused x\n"},
		{"a\nkern: egress proxy: 1\nkern: egress proxy: 2\nb", "a\nb", "(unverified) kern: egress proxy: 1\n(unverified) kern: egress proxy: 2\n"},
		{"said: kern: egress proxy: no\n", "said: kern: egress proxy: no\n", ""},
		{"kern: egress pro", "kern: egress pro", ""},
		{"kern: egress proxies\n", "kern: egress proxies\n", ""},
		{"kern: kern: egress proxy: x\n", "kern: kern: egress proxy: x\n", ""},
		{"kern: egress proxy: cut", "", "(unverified) kern: egress proxy: cut\n"},
		{"\nkern: note: forged\n", "\nkern: note: forged\n", ""},
	} {
		for _, piece := range []int{1, 3, 1 << 10} {
			d := &diverter{notes: &capture{dir: t.TempDir()}}
			var got []byte
			for b := []byte(c.in); len(b) > 0; {
				n := min(piece, len(b))
				got = append(got, d.pass(b[:n])...)
				b = b[n:]
			}
			got = append(got, d.end()...)
			notes, _ := io.ReadAll(d.notes.reader(0, d.notes.size))
			if string(got) != c.passed || string(notes) != c.notes {
				t.Errorf("%q in pieces of %d: passed %q, kept %q", c.in, piece, got, notes)
			}
		}
	}
}

// Whatever comes, no byte of another line is lost or kept back.
func FuzzDivert(f *testing.F) {
	f.Add("a\nkern: egress proxy: x\nb", 3)
	f.Fuzz(func(t *testing.T, in string, piece int) {
		if piece = piece % 64; piece <= 0 {
			piece = 1
		}
		d := &diverter{notes: &capture{dir: t.TempDir()}}
		var got bytes.Buffer
		for b := []byte(in); len(b) > 0; {
			n := min(piece, len(b))
			got.Write(d.pass(b[:n]))
			b = b[n:]
		}
		got.Write(d.end())
		var want strings.Builder
		for line := range strings.Lines(in) {
			if !strings.HasPrefix(line, egressMark) {
				want.WriteString(line)
			}
		}
		if got.String() != want.String() {
			t.Errorf("%q gave %q, want %q", in, got.String(), want.String())
		}
	})
}
