package doctor

import (
	"slices"
	"strings"

	"github.com/kern-sbx/kern-sbx/pkg/hints"
)

// Bounds of what is read of hostile output.
const (
	mostPaths   = 12
	mostPathLen = 512
)

// linesOf gives the lines of what an outcome printed, stderr first.
func linesOf(o *Outcome) []string { return append(hints.Lines(o.Stderr), hints.Lines(o.Stdout)...) }

// normal takes out of a line what differs from run to run: numbers, addresses,
// names that were drawn at random.
func normal(line string) string {
	fields := strings.FieldsFunc(line, func(r rune) bool {
		return r == ' ' || r == '/' || r == '\'' || r == '"' || r == '(' || r == ')' || r == '[' || r == ']' || r == ':' || r == ',' || r == '`' ||
			r >= 0x2018 && r <= 0x201f // what a locale makes of quotes
	})
	for i, f := range fields {
		if random(f) || i > 0 && fields[i-1] == "tmp" {
			fields[i] = "*"
		}
	}
	line = strings.Join(fields, " ")
	b := make([]byte, 0, len(line))
	for i := range len(line) {
		if c := line[i]; c < '0' || c > '9' {
			b = append(b, c)
		} else if len(b) == 0 || b[len(b)-1] != '0' {
			b = append(b, '0')
		}
	}
	return string(b)
}

// random says whether a word is of a kind that is drawn anew each time.
func random(w string) bool {
	return len(w) >= 6 && (strings.HasPrefix(w, "tmp") || strings.HasPrefix(w, "0x"))
}

// words that a line of complaint has.
var bad = []string{
	"error", "fail", "fatal", "cannot", "can't", "could not", "couldn't", "unable", "denied", "not permitted", "read-only", "no space",
	"no such", "not found", "exception", "invalid", "unavailable", "unreachable", "refused", "missing", "killed", "abort", "panic",
	"must not", "not allowed", "unsupported", "doesn't support", "not support", "emerg", "too ", "exceeded", "traceback", "denied", "not writable",
}

func complains(line string) bool {
	l := strings.ToLower(line)
	return slices.ContainsFunc(bad, func(w string) bool { return strings.Contains(l, w) })
}

// headline is the line that a failure is known by: the last of a traceback, the
// first complaint of anything else.
func headline(o *Outcome) string {
	lines := linesOf(o)
	pick := ""
	traceback := false
	for _, l := range lines {
		switch {
		case strings.HasPrefix(l, "Traceback (most recent call last)"):
			traceback = true
		case traceback && !strings.HasPrefix(l, "File ") && isException(l):
			return l
		case pick == "" && complains(l) && !traceback:
			pick = l
		}
	}
	if pick == "" && o.Message != "" {
		first, _, _ := strings.Cut(o.Message, "\n")
		return first
	}
	if pick == "" && len(lines) > 0 {
		pick = lines[len(lines)-1]
	}
	return pick
}

// isException knows the last line of a traceback: a dotted name and a colon.
func isException(l string) bool {
	name, _, ok := strings.Cut(l, ":")
	if !ok {
		name = l
	}
	return name != "" && !strings.ContainsAny(name, " '\"(^~") && (strings.HasSuffix(name, "Error") || strings.HasSuffix(name, "Exception") || strings.HasSuffix(name, "error") || ok && strings.Contains(name, "."))
}

// complaints are the lines of a failure that tell it from another one.
func complaints(o *Outcome) []string {
	var parts []string
	for _, l := range linesOf(o) {
		if !complains(l) {
			continue
		}
		if n := normal(l); !slices.Contains(parts, n) {
			parts = append(parts, n)
		}
		if len(parts) == 20 {
			break
		}
	}
	return parts
}

// alike says whether two outcomes are the same failure.
func alike(a, b *Outcome) bool {
	return a.Fault == b.Fault && a.Exit == b.Exit && slices.EqualFunc(complaints(a), complaints(b), sameLine)
}

// sameLine compares normalised lines. Words that differ in a short end alone, in
// which letters of both sizes or digits are mixed, are names that were drawn.
func sameLine(a, b string) bool {
	return a == b || slices.EqualFunc(strings.Fields(a), strings.Fields(b), func(x, y string) bool {
		if x == y {
			return true
		}
		n := 0
		for n < min(len(x), len(y)) && x[n] == y[n] {
			n++
		}
		const drawn = 6
		return n > 0 && len(x)-n <= drawn && len(y)-n <= drawn && (mixed(x[n:]) || mixed(y[n:]))
	})
}

func sameHeadline(a, b *Outcome) bool { return sameLine(normal(headline(a)), normal(headline(b))) }

func mixed(w string) bool {
	return strings.ToUpper(w) != w && (strings.ToLower(w) != w || strings.Contains(w, "0"))
}

// hasLine says whether an outcome still has a line, whatever is random in it.
func hasLine(o *Outcome, trigger string) bool {
	return slices.ContainsFunc(linesOf(o), func(l string) bool { return sameLine(trigger, normal(l)) })
}

// pathsIn finds absolute paths in a line.
func pathsIn(line string) []string {
	var out []string
	for i := 0; i < len(line) && len(out) < mostPaths; i++ {
		if line[i] != '/' || i > 0 && !strings.ContainsRune(" '\"`(=[<:,\u2018", rune(line[i-1])) && line[i-1] < 0x80 {
			continue
		}
		j := i
		for j < len(line) && !strings.ContainsRune(" '\"`()=[]<>:,;|", rune(line[j])) && line[j] < 0x80 {
			j++
		}
		p := strings.TrimRight(line[i:j], ".")
		if len(p) > 1 && len(p) <= mostPathLen && !strings.Contains(p, "//") && !slices.Contains(out, p) {
			out = append(out, p)
		}
		i = j
	}
	return out
}
