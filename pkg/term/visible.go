package term

import (
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// Visible makes text from elsewhere (a box's name, an error that quotes a
// file, a cell of a table) safe to print among lines of ours: what a terminal
// would obey or not show is written out. Control characters, DEL and bytes
// that are not UTF-8 become \x1b, \x7f, \xff; C1 controls, bidirectional
// overrides, line separators and characters without a shape become \u009b,
// \u202e, \U000e0041. Newline and tab stay; everything else is unchanged.
//
// The result is for eyes, not for parsing: a backslash of the text itself is
// not doubled. Clean text comes back as it is, without an allocation.
func Visible(s string) string { return visible(s, false) }

// VisibleLine is Visible for text that has to stay on one line: newline and
// tab become \n and \t as well.
func VisibleLine(s string) string { return visible(s, true) }

func visible(s string, line bool) string {
	i := nextHidden(s, 0, line)
	if i == len(s) {
		return s
	}
	b := make([]byte, 0, len(s)+len(s)/4+8)
	start := 0
	for i < len(s) {
		b = append(b, s[start:i]...)
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case line && r == '\n':
			b = append(b, `\n`...)
		case line && r == '\t':
			b = append(b, `\t`...)
		default:
			b = appendEscaped(b, r, n, s[i])
		}
		i += n
		start = i
		i = nextHidden(s, i, line)
	}
	return string(append(b, s[start:]...))
}

// nextHidden is the index of the first character from i on that has to be
// written out, or len(s).
func nextHidden(s string, i int, line bool) int {
	for i < len(s) {
		c := s[i]
		switch {
		case c >= 0x20 && c < 0x7f:
			i++
		case c < utf8.RuneSelf:
			if (c == '\n' || c == '\t') && !line {
				i++
				continue
			}
			return i
		default:
			r, n := utf8.DecodeRuneInString(s[i:])
			if (r == utf8.RuneError && n == 1) || hidden(r) {
				return i
			}
			i += n
		}
	}
	return i
}

// appendEscaped writes out one character that is not shown as itself. first is
// its first byte and n its length, which together tell a bad byte (n == 1,
// RuneError) from a real U+FFFD.
func appendEscaped(b []byte, r rune, n int, first byte) []byte {
	switch {
	case n == 1: // ASCII, or a byte that is not UTF-8
		return append(b, '\\', 'x', hexDigits[first>>4], hexDigits[first&15])
	case r < 0x10000:
		b = append(b, '\\', 'u')
		return appendHex(b, r, 4)
	default:
		b = append(b, '\\', 'U')
		return appendHex(b, r, 8)
	}
}

func appendHex(b []byte, r rune, digits int) []byte {
	for d := digits - 1; d >= 0; d-- {
		b = append(b, hexDigits[(r>>(4*d))&15])
	}
	return b
}

// hidden says whether a character at or above U+0080 is a control, reorders
// the text around it, or takes no room on the screen, so that two different
// strings would look alike. Joining marks inside visible scripts (combining
// accents, emoji variation selectors) are not among them.
func hidden(r rune) bool {
	if r < 0xAD {
		return r < 0xA0 // C1
	}
	switch {
	case r == 0xAD, // soft hyphen
		r == 0x034F,                                        // combining grapheme joiner
		r == 0x061C,                                        // Arabic letter mark
		r == 0x115F, r == 0x1160, r == 0x17B4, r == 0x17B5, // fillers, inherent vowels
		r >= 0x180B && r <= 0x180F, // Mongolian selectors and vowel separator
		r >= 0x200B && r <= 0x200F, // zero width, LRM, RLM
		r >= 0x2028 && r <= 0x202E, // line and paragraph separator, embeddings, overrides
		r >= 0x2060 && r <= 0x206F, // word joiner, invisible operators, isolates
		r == 0x3164, r == 0xFFA0,   // Hangul fillers
		r == 0xFEFF,                  // byte order mark
		r >= 0xFFF9 && r <= 0xFFFB,   // interlinear annotation
		r >= 0x1BCA0 && r <= 0x1BCA3, // shorthand format controls
		r >= 0x1D173 && r <= 0x1D17A, // musical format controls
		r >= 0xE0000 && r <= 0xE0FFF: // tags and supplementary selectors
		return true
	}
	return false
}
