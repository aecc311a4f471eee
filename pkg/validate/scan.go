package validate

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// The predicates below are ASCII on purpose: what they guard ends up in an argv
// or in a file name, where a look-alike letter is never what was meant.

func isLower(c byte) bool { return 'a' <= c && c <= 'z' }
func isUpper(c byte) bool { return 'A' <= c && c <= 'Z' }
func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isAlpha(c byte) bool { return isLower(c) || isUpper(c) }
func isAlnum(c byte) bool { return isAlpha(c) || isDigit(c) }

// word reports whether s is 1 to most bytes long, begins with a letter, a digit
// or a byte of first, and goes on with those or bytes of rest.
func word(s, first, rest string, most int) bool {
	if s == "" || len(s) > most {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if isAlnum(c) || strings.IndexByte(first, c) >= 0 || (i > 0 && strings.IndexByte(rest, c) >= 0) {
			continue
		}
		return false
	}
	return true
}

// lower folds ASCII alone. strings.ToLower would turn the Kelvin sign into k.
func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if isUpper(c) {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

func upper(s string) string {
	b := []byte(s)
	for i, c := range b {
		if isLower(c) {
			b[i] = c - ('a' - 'A')
		}
	}
	return string(b)
}

// digits reads a decimal number without sign of at most most digits.
func digits(s string, most int) (int, bool) {
	if s == "" || len(s) > most {
		return 0, false
	}
	n := 0
	for i := range len(s) {
		if !isDigit(s[i]) {
			return 0, false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n, true
}

// hasControl reports a control character (C0, DEL, C1) or bytes that are not
// UTF-8.
func hasControl(s string) bool {
	return !utf8.ValidString(s) || strings.IndexFunc(s, unicode.IsControl) >= 0
}
