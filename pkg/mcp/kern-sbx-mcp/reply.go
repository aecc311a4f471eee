package main

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/term"
)

// What one answer may hold: those of kern's own server.
const (
	maxStream  = 16_000    // characters of each stream
	maxRich    = 4_000     // characters of one rich result
	maxRiches  = 8         // of them
	maxReason  = 300       // characters of why the sandbox acted
	maxText    = 64_000    // characters of all text
	maxImage   = 6_000_000 // base64 characters of one picture
	maxImages  = 8 << 20   // of all
	maxCount   = 16        // pictures
	maxListed  = 10_000    // files of a listing
	maxFile    = 16 << 20  // bytes of a file that is read
	maxMessage = 2_000     // characters of an error
)

// markers begin the lines that are ours, as skeleton gives them. Code that prints
// such a line shall not be taken for the sandbox.
var markers = []string{
	"[stderr]", "[richresult]", "[exit", "[thesession'sinterpreter", "[thisraninafreshinterpreter", "[outputtruncated", "[note:", "[hint:",
	"[stopped:", "[printedbythecode", "[truncated", "[imageresult", "[fileschanged",
}

// longestMarker is how much of a line is looked at, in characters that count.
const longestMarker = 32

// lookalikes are letters that are drawn like those of our markers.
var lookalikes = strings.NewReplacer(
	"а", "a", "е", "e", "о", "o", "р", "p", "с", "c", "х", "x", "у", "y", "і", "i", "ѕ", "s", "ԁ", "d", "һ", "h", "т", "t",
	"ο", "o", "ρ", "p", "ν", "v", "ι", "i", "τ", "t", "κ", "k", "ı", "i", "’", "'", "∶", ":", "ː", ":", "꞉", ":",
)

// blank says that a character leaves nothing on the screen, or only changes the
// one before it.
func blank(r rune) bool {
	return unicode.IsSpace(r) || !unicode.IsGraphic(r) || unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) ||
		r == 0x2800 || r == 0x1d159 // an empty pattern of Braille, a note without a head
}

// skeleton is what the beginning of a line looks like to somebody who is in a
// hurry: without blanks and what term.Visible writes for what cannot be seen, in
// small letters, every opening bracket as [. It is "" for a line that begins with
// a letter or digit.
func skeleton(line string) string {
	var b strings.Builder
	for n := 0; n < longestMarker && line != ""; {
		if m := writtenOut(line); m > 0 {
			line = line[m:]
			continue
		}
		r, size := utf8.DecodeRuneInString(line)
		line = line[size:]
		switch {
		case r >= 0xff01 && r <= 0xff5e: // the wide forms of ASCII
			r -= 0xfee0
		case r >= 0x1d400 && r < 0x1d6a4: // those of mathematics
			r = (r - 0x1d400) % 52
			if r += 'A'; r > 'Z' {
				r += 'a' - 'Z' - 1
			}
		}
		switch {
		case blank(r):
			continue
		case unicode.Is(unicode.Ps, r) && r != '(' && r != '{':
			r = '['
		case unicode.Is(unicode.Pe, r) && r != ')' && r != '}':
			r = ']'
		}
		if n == 0 && r != '[' {
			if unicode.IsLetter(r) || unicode.IsDigit(r) {
				return "" // none of ours begins so
			}
			continue
		}
		b.WriteRune(unicode.ToLower(r))
		n++
	}
	return lookalikes.Replace(b.String())
}

// writtenOut is the length of an escape of term.Visible that s begins with.
func writtenOut(s string) int {
	if len(s) < 2 || s[0] != '\\' {
		return 0
	}
	n := map[byte]int{'x': 4, 'u': 6, 'U': 10}[s[1]]
	if n == 0 || len(s) < n || strings.Trim(s[2:n], "0123456789abcdef") != "" {
		return 0
	}
	return n
}

// looksLikeOurs says whether a line could be taken for one of ours.
func looksLikeOurs(line string) bool {
	s := skeleton(line)
	for _, m := range markers {
		if strings.HasPrefix(s, m) {
			return true
		}
	}
	return false
}

// disown marks a line that looks like ours.
func disown(line string) string {
	if !looksLikeOurs(line) {
		return line
	}
	return "[printed by the code, not the sandbox: " + line + "]"
}

// clean makes text out of a box fit to be read: ends of lines are \n, colours are
// gone, whatever else is not shown is written out, and no line looks like ours.
func clean(s string) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = strings.ReplaceAll(s, "\r", "\n")
	s = term.Visible(plain(s))
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = disown(l)
	}
	return strings.Join(lines, "\n")
}

// plain leaves out escape sequences of a terminal: CSI, and the strings of OSC,
// DCS, APC, PM and SOS. What is not whole stays, and is written out by others.
func plain(s string) string {
	i := strings.IndexByte(s, 0x1b)
	if i < 0 {
		return s
	}
	var b strings.Builder
	for i >= 0 {
		b.WriteString(s[:i])
		n := escapeLength(s[i:])
		if n == 0 {
			b.WriteByte(0x1b)
			n = 1
		}
		s = s[i+n:]
		i = strings.IndexByte(s, 0x1b)
	}
	b.WriteString(s)
	return b.String()
}

// longestEscape is how far the end of one is looked for.
const longestEscape = 4096

// escapeLength is the length of the escape sequence that s begins with, 0 for one
// that has no end.
func escapeLength(s string) int {
	if len(s) < 2 {
		return 0
	}
	switch s[1] {
	case '[':
		for i := 2; i < len(s) && i < longestEscape; i++ {
			switch c := s[i]; {
			case c >= 0x40 && c <= 0x7e:
				return i + 1
			case c < 0x20 || c > 0x3f:
				return 0
			}
		}
	case ']', 'P', '_', '^', 'X':
		for i := 2; i < len(s) && i < longestEscape; i++ {
			switch {
			case s[i] == 0x07 && s[1] == ']':
				return i + 1
			case s[i] == 0x1b:
				if i+1 < len(s) && s[i+1] == '\\' {
					return i + 2
				}
				return 0
			case s[i] == '\n':
				return 0
			}
		}
	}
	return 0
}

// clip keeps the beginning and the end of a text of more than n characters. rest
// says where all of it is, "" for nowhere. before counts bytes that were cut
// before we saw them.
func clip(s string, n int, rest string) (string, bool) {
	total := utf8.RuneCountInString(s)
	if total <= n {
		return s, false
	}
	head, tail := runes(s, n*2/3), ending(s, n-n*2/3)
	note := fmt.Sprintf("\n...[truncated %d chars", total-n)
	if rest != "" {
		note += "; all of it: resource " + rest
	}
	return head + note + "]...\n" + tail, true
}

// runes is the first n characters.
func runes(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// lastRunes is the last n.
func lastRunes(s string, n int) string {
	i := len(s)
	for ; n > 0 && i > 0; n-- {
		_, size := utf8.DecodeLastRuneInString(s[:i])
		i -= size
	}
	return s[i:]
}

// ending is lastRunes for a text whose lines are none of ours: nor shall the rest
// of one be that is cut.
func ending(s string, n int) string {
	t := lastRunes(s, n)
	if cut := len(s) - len(t); cut == 0 || s[cut-1] == '\n' {
		return t
	}
	first, rest, more := strings.Cut(t, "\n")
	if first = disown(first); more {
		return first + "\n" + rest
	}
	return first
}

// excerpt is clean and clip for what may be much longer than what is shown of it,
// which is all that is read.
func excerpt(size int64, slice func(off, n int64) []byte, n int, rest string) (string, bool) {
	around := int64(4 * n) // bytes of each end that can be shown
	if size <= 2*around {
		return clip(strings.TrimRight(clean(string(slice(0, size))), "\n "), n, rest)
	}
	// Whole characters only, where the middle is left out.
	head := strings.ToValidUTF8(string(slice(0, around)), "")
	tail := strings.ToValidUTF8(string(slice(size-around, around)), "")
	note := fmt.Sprintf("\n...[truncated at least %d chars", (size-2*around)/4)
	if rest != "" {
		note += "; all of it: resource " + rest
	}
	return runes(clean(head), n*2/3) + note + "]...\n" + ending(clean(tail), n-n*2/3), true
}

// stream is one stream of a call as an answer has it.
func stream(t *runner.Text, cut bool, rest string) (text string, truncated bool) {
	text, truncated = excerpt(t.Len(), t.Slice, maxStream, rest)
	if cut {
		text += "\n...[truncated: the stream was longer than is kept]"
		truncated = true
	}
	return text, truncated
}

// pictures takes the images out of the results: each may be so large, and all
// together. left counts those that were too large.
func pictures(results []runner.Rich) (images []sdk.Content, left int) {
	total := 0
	for _, r := range results {
		for _, mime := range []string{"image/png", "image/jpeg"} {
			data, ok := r.Data[mime]
			if !ok {
				continue
			}
			var raw []byte
			if len(data) <= maxImage {
				raw, _ = decode64(data)
			}
			if len(raw) == 0 || len(images) == maxCount || total+len(data) > maxImages {
				left++
				break
			}
			total += len(data)
			images = append(images, &sdk.ImageContent{Data: raw, MIMEType: mime})
			break
		}
	}
	return images, left
}

// shownTypes are the representations that an answer shows as text, the best first.
var shownTypes = []string{"text/html", "image/svg+xml", "text/markdown", "application/json", "text/latex", "text/plain"}

// riches are the results as text: of each the first of shownTypes, and none of
// one that is shown as a picture.
func riches(results []runner.Rich) (texts []string, cut bool) {
	for _, r := range results {
		if r.Data["image/png"] != "" || r.Data["image/jpeg"] != "" {
			continue
		}
		for _, mime := range shownTypes {
			text, ok := r.Data[mime]
			if !ok || strings.TrimSpace(text) == "" {
				continue
			}
			if len(texts) == maxRiches {
				return texts, true
			}
			if len(text) > 8*maxRich {
				text = strings.ToValidUTF8(text[:8*maxRich], "")
			}
			text, c := clip(clean(text), maxRich, "")
			texts, cut = append(texts, text), cut || c
			break
		}
	}
	return texts, cut
}

// verdict is the line that says how a call ended.
func verdict(res *runner.Result) string {
	kern := "kern " + res.Kern.Version
	if res.Kern.Version == "" {
		kern = "kern"
	}
	line := fmt.Sprintf("[exit %d in %s", res.Status, kern)
	if res.Fault != nil {
		line += fmt.Sprintf(", sandbox fault: %s: %s", res.Fault.Type, oneLine(res.Fault.Message, maxReason))
	}
	return line + "]"
}

// oneLine makes a text of ours, which may quote others', one line of n characters.
func oneLine(s string, n int) string {
	s = term.VisibleLine(strings.TrimSpace(s))
	if utf8.RuneCountInString(s) > n {
		s = runes(s, n-3) + "..."
	}
	return s
}

// failure is an answer that says why something was not done.
func failure(text string) *sdk.CallToolResult {
	// The first line is of ours. What comes after it may be quoted.
	if first, rest, more := strings.Cut(text, "\n"); more {
		text = first + "\n" + clean(rest)
	}
	return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: runes(term.Visible(text), maxMessage)}}}
}
