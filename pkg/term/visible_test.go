package term

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestVisible(t *testing.T) {
	for _, c := range []struct{ in, text, line string }{
		{"", "", ""},
		{"plain äöü 日本語 🎉 e\u0301 ❤️", "plain äöü 日本語 🎉 e\u0301 ❤️", "plain äöü 日本語 🎉 e\u0301 ❤️"},
		{"a\nb\tc", "a\nb\tc", `a\nb\tc`},
		{"a\rb", `a\x0db`, `a\x0db`},
		{"no\x1b]0;pwn\a\x1b[31mcmd", `no\x1b]0;pwn\x07\x1b[31mcmd`, `no\x1b]0;pwn\x07\x1b[31mcmd`},
		{"\x00\x08\x0b\x0c\x0e\x7f", `\x00\x08\x0b\x0c\x0e\x7f`, `\x00\x08\x0b\x0c\x0e\x7f`},
		{"\u0080\u009b31m\u009f\u00a0", "\\u0080\\u009b31m\\u009f\u00a0", "\\u0080\\u009b31m\\u009f\u00a0"},
		{"\x9b31m\xff\xc3", `\x9b31m\xff\xc3`, `\x9b31m\xff\xc3`},
		{"\xe2\x82", `\xe2\x82`, `\xe2\x82`},
		{"\xed\xa0\x80", `\xed\xa0\x80`, `\xed\xa0\x80`}, // a surrogate
		{"\xc0\x9b", `\xc0\x9b`, `\xc0\x9b`},             // overlong ESC
		{"x\u202etxt.exe\u2066\u2069", `x\u202etxt.exe\u2066\u2069`, `x\u202etxt.exe\u2066\u2069`},
		{"a\u200bb\u200db\ufeff\u2028\u2029", `a\u200bb\u200db\ufeff\u2028\u2029`, `a\u200bb\u200db\ufeff\u2028\u2029`},
		{"a\U000e0041b", `a\U000e0041b`, `a\U000e0041b`},
		{"\u00ad\u061c\u180e\u3164", `\u00ad\u061c\u180e\u3164`, `\u00ad\u061c\u180e\u3164`},
		{"real \ufffd stays", "real \ufffd stays", "real \ufffd stays"},
		{`back\slash`, `back\slash`, `back\slash`},
	} {
		if got := Visible(c.in); got != c.text {
			t.Errorf("Visible(%q) = %q, want %q", c.in, got, c.text)
		}
		if got := VisibleLine(c.in); got != c.line {
			t.Errorf("VisibleLine(%q) = %q, want %q", c.in, got, c.line)
		}
	}
}

func TestVisibleEveryControl(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if !utf8.ValidRune(r) {
			continue
		}
		got := VisibleLine("a" + string(r) + "b")
		if strings.ContainsRune(got, r) && (unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)) {
			t.Fatalf("U+%04X passes", r)
		}
		if unicode.In(r, unicode.L, unicode.N, unicode.P, unicode.S, unicode.Zs) && !strings.ContainsRune(got, r) &&
			!unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) {
			t.Fatalf("U+%04X has a shape and is written out", r)
		}
	}
}

func TestVisibleDoesNotAllocate(t *testing.T) {
	s := strings.Repeat("clean text, ä, 日本\n", 50)
	if n := testing.AllocsPerRun(20, func() { Visible(s) }); n != 0 {
		t.Errorf("%v allocations for clean text", n)
	}
}

func FuzzVisible(f *testing.F) {
	for _, s := range []string{"a\x1b[31m", "\u202e", "\xff\xfe", "a\nb", "\u009b", "é"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v := VisibleLine(s)
		if !utf8.ValidString(v) {
			t.Fatalf("%q: not UTF-8", v)
		}
		for _, r := range v {
			if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
				t.Fatalf("%q: U+%04X is left", v, r)
			}
		}
		if VisibleLine(v) != v || Visible(v) != v {
			t.Fatalf("%q: changes again", v)
		}
		if w := Visible(s); strings.Count(w, "\n") != strings.Count(s, "\n") {
			t.Fatalf("%q: newlines differ", w)
		}
	})
}

func BenchmarkVisibleClean(b *testing.B) {
	s := strings.Repeat("clean text of some length\n", 40)
	b.SetBytes(int64(len(s)))
	for b.Loop() {
		Visible(s)
	}
}
