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
	maxListed  = 10_000    // files of a listing
	maxFile    = 16 << 20  // bytes of a file that is read
	maxMessage = 2_000     // characters of an error
)

// markers begin the lines that are ours. Code that prints such a line shall not
// be taken for the sandbox.
var markers = []string{
	"[stderr]", "[rich result]", "[exit ", "[the session's interpreter", "[this ran in a fresh interpreter", "[output truncated", "[note:", "[hint:",
	"[stopped:", "[printed by the code", "...[truncated", "[image result", "[files changed",
}

// markersOf says whether a line could be taken for one of ours, whatever
// invisible characters it begins with.
func looksLikeOurs(line string) bool {
	line = strings.TrimLeftFunc(line, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsGraphic(r) || unicode.Is(unicode.Mn, r)
	})
	// term.Visible has written out what cannot be seen.
	for strings.HasPrefix(line, `\x`) || strings.HasPrefix(line, `\u`) || strings.HasPrefix(line, `\U`) {
		n := map[byte]int{'x': 4, 'u': 6, 'U': 10}[line[1]]
		line = strings.TrimLeft(line[min(n, len(line)):], " \t")
	}
	low := strings.ToLower(line)
	for _, m := range markers {
		if strings.HasPrefix(low, m) || strings.HasPrefix(low, strings.Replace(m, "[", "[ ", 1)) {
			return true
		}
	}
	return strings.HasPrefix(line, "［") // the wide form of [
}

// clean makes text out of a box fit to be read: ends of lines are \n, colours are
// gone, whatever else is not shown is written out, and no line looks like ours.
func clean(s string) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = strings.ReplaceAll(s, "\r", "\n")
	s = term.Visible(plain(s))
	if !strings.ContainsAny(s, "[［") {
		return s
	}
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if looksLikeOurs(l) {
			lines[i] = "[printed by the code, not the sandbox: " + l + "]"
		}
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
	head, tail := runes(s, n*2/3), lastRunes(s, n-n*2/3)
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

// around is how many bytes of each end of a stream an answer can show.
const around = 4 * maxStream

// stream is one stream of a call as an answer has it.
func stream(t *runner.Text, cut bool, rest string) (text string, truncated bool) {
	size := t.Len()
	if size <= 2*around {
		text, truncated = clip(strings.TrimRight(clean(string(t.Slice(0, size))), "\n "), maxStream, rest)
	} else {
		// Whole characters only, where the middle is left out.
		head := strings.ToValidUTF8(string(t.Slice(0, around)), "")
		tail := strings.ToValidUTF8(string(t.Slice(size-around, around)), "")
		note := fmt.Sprintf("\n...[truncated at least %d chars", (size-2*around)/4)
		if rest != "" {
			note += "; all of it: resource " + rest
		}
		text = runes(clean(head), maxStream*2/3) + note + "]...\n" + lastRunes(clean(tail), maxStream-maxStream*2/3)
		truncated = true
	}
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
			raw, err := decode64(data)
			if err != nil || len(data) > maxImage || total+len(data) > maxImages {
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
	return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: runes(term.Visible(text), maxMessage)}}}
}
