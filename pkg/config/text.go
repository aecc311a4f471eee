package config

import (
	"strconv"
	"strings"
	"unicode"
)

// visible makes text of files and file names safe for a terminal: everything
// that is not a visible character is escaped.
func visible(s string) string {
	clean := true
	for _, r := range s {
		if !unicode.IsGraphic(r) || r == unicode.ReplacementChar {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	q := strconv.QuoteToGraphic(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

// clip bounds a message that quotes a file.
func clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// bare spells one key as TOML would: plain when it can be, else quoted.
func bare(s string) string {
	plain := s != ""
	for _, b := range []byte(s) {
		if b != '-' && b != '_' && (b < '0' || b > '9') && (b < 'a' || b > 'z') && (b < 'A' || b > 'Z') {
			plain = false
		}
	}
	if plain {
		return clip(s)
	}
	return strconv.QuoteToGraphic(clip(s))
}

func dotted(path []string) string {
	parts := make([]string, len(path))
	for i, p := range path {
		parts[i] = bare(p)
	}
	return strings.Join(parts, ".")
}
