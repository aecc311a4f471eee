package term

import (
	"bytes"
	"testing"
)

func TestCommandWatch(t *testing.T) {
	for text, want := range map[string]bool{
		"::add-mask::x\n":           true,
		"plain\n::error::x":         true,
		"plain\r::error::x":         true,
		"  \t::warning::x":          true,
		"##[group]x":                true,
		"a::b\nc: :d\n: :\n#[x\n##": false,
		"":                          false,
		"x ##[group]":               false,
	} {
		for cut := range len(text) + 1 {
			var b bytes.Buffer
			w := NewCommandWatch(&b)
			for _, part := range []string{text[:cut], text[cut:]} {
				if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
					t.Fatalf("Write: %d, %v", n, err)
				}
			}
			if w.Seen() != want || b.String() != text {
				t.Errorf("%q cut at %d: seen %v, want %v", text, cut, w.Seen(), want)
			}
		}
	}
}
