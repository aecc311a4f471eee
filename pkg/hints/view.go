package hints

import (
	"path"
	"slices"
	"strings"
)

// MaxText is how many bytes of each piece of output are looked at.
const MaxText = 32 << 10

// Bounds of the lines, and of one line, in bytes.
const maxLines, maxLine = 400, 2000

// view is Facts with the text cut into lines, once.
type view struct {
	*Facts
	lines []string // lower case, none empty
	orig  []string
	argv  string // lower case, joined
	said  string // the fault's message, lower case
	last  string // the last line of stderr with anything in it, lower case
	hit   int    // the line that was found last
}

// newView cuts the text. All of it is for a diagnosis; else what a program ended
// with, when it tells, is what counts.
func newView(f *Facts, all bool) *view {
	v := &view{Facts: f, said: strings.ToLower(f.Message), argv: strings.ToLower(strings.Join(f.Argv, " "))}
	tail := Lines(f.StderrTail[max(0, len(f.StderrTail)-MaxText):])
	v.orig = append(Lines(f.Stderr[:min(len(f.Stderr), MaxText)]), tail...)
	if n := len(v.orig); n > 0 {
		v.last = strings.ToLower(v.orig[n-1])
	}
	if all {
		v.orig = append(v.orig, Lines(f.Stdout[:min(len(f.Stdout), MaxText)])...)
	} else {
		v.orig = lastWords(v.orig)
	}
	for _, line := range v.orig {
		v.lines = append(v.lines, strings.ToLower(line))
	}
	return v
}

// lastWords leaves out what a program printed before the exception that it ended by,
// for those that print one in a form that is known: that was no reason to end.
func lastWords(lines []string) []string {
	n := len(lines)
	if n == 0 {
		return lines
	}
	last := lines[n-1]
	from := func(is func(string) bool, before int) []string {
		for i := n - 1; i >= 0; i-- {
			if is(lines[i]) {
				return lines[max(0, i-before):]
			}
		}
		return lines
	}
	begins := func(words ...string) func(string) bool {
		return func(l string) bool { return hasPrefix(l, words) }
	}
	const traceback = "Traceback (most recent call last)"
	switch {
	case hasAny(last, []string{"CalledProcessError", "non-zero exit", "exit status", "exit code"}):
		return lines // another program's end, whose words come before
	case slices.ContainsFunc(lines, begins(traceback)) && isException(last):
		i := n - 1
		for i >= 0 && !strings.HasPrefix(lines[i], traceback) {
			i--
		}
		// The exceptions that it came from are a part of it.
		for j := i - 1; j > 0; j-- {
			if hasPrefix(lines[j], []string{"During handling of the above", "The above exception was the direct cause"}) {
				for i = j; i > 0 && !strings.HasPrefix(lines[i], traceback); i-- {
				}
				j = i
			}
		}
		return lines[max(i, 0):]
	case strings.HasPrefix(last, "Node.js v"):
		return from(func(l string) bool { return isException(l) || strings.HasPrefix(l, "throw ") }, 8)
	case strings.HasPrefix(last, "at ") || strings.HasPrefix(last, "... "):
		return from(begins("Exception in thread"), 0)
	}
	if end := lines[max(0, n-4):]; slices.ContainsFunc(end, func(l string) bool { return strings.HasPrefix(l, "thread '") && strings.Contains(l, "panicked at") }) {
		return from(begins("thread '"), 0)
	}
	return lines
}

// isException knows the line of an exception: a dotted name that ends like one, and
// a colon or nothing.
func isException(l string) bool {
	name, _, _ := strings.Cut(l, ":")
	return name != "" && !strings.ContainsAny(name, " '\"(^~[") && (strings.HasSuffix(name, "Error") || strings.HasSuffix(name, "Exception") || strings.HasSuffix(name, "error") || strings.Contains(name, "."))
}

// Lines cuts output into lines without control characters, spaces around them, and
// empty ones: the first and the last few hundred of them.
func Lines(text []byte) []string {
	var all []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(strings.Map(func(r rune) rune {
			switch {
			case r == '\t':
				return ' '
			case r < ' ' || r >= 0x7f && r < 0xa0:
				return -1
			}
			return r
		}, line))
		if line != "" {
			all = append(all, strings.ToValidUTF8(line[:min(len(line), maxLine)], ""))
		}
	}
	if len(all) > maxLines {
		all = slices.Delete(all, maxLines/2, len(all)-maxLines/2)
	}
	return all
}

// failed says whether a text may be blamed: the code itself gave up, and no signal
// ended it whose reason nobody wrote down.
func (v *view) failed() bool {
	const abort, bus, fileSize = 134, 135, 153
	signal := v.ExitCode > 128 && v.ExitCode < 128+65 && !slices.Contains([]int{abort, bus, fileSize}, v.ExitCode)
	return v.ExitCode != 0 && v.Fault == "" && !signal
}

// endedWell says that there is nothing to explain.
func (v *view) endedWell() bool { return v.ExitCode == 0 && v.Fault == "" }

func hasAny(s string, words []string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(s, w) })
}

// says reports whether a line holds one of the words.
func (v *view) says(words ...string) bool {
	return v.any(func(l string) bool { return hasAny(l, words) })
}

// both reports whether one line holds a word of each.
func (v *view) both(a, b []string) bool {
	return v.any(func(l string) bool { return hasAny(l, a) && hasAny(l, b) })
}

// complains is says for lines that are no asides.
func (v *view) complains(words ...string) bool {
	return v.any(func(l string) bool { return hasAny(l, words) && !hasAny(l, asides) })
}

// any reports whether a line is such.
func (v *view) any(is func(string) bool) bool {
	i := slices.IndexFunc(v.lines, is)
	if i >= 0 {
		v.hit = i
	}
	return i >= 0
}

// near reports whether a line at most n away from line i holds one of the words.
func (v *view) near(i, n int, words []string) bool {
	for j := max(0, i-n); j <= min(len(v.lines)-1, i+n); j++ {
		if hasAny(v.lines[j], words) {
			return true
		}
	}
	return false
}

// asides are complaints that a program goes on after.
var asides = []string{
	"warn", "falling back", "disabling", "continuing", "ignored", "ignoring", "skipping", "retrying", "telemetry", "analytics", "will be disabled", "has been disabled", "using a temp", "matplotlib", "mplconfigdir",
	"fontconfig", "dconf", "log files were not written", "mesg:", "history",
}

// home is where the box has HOME.
func (v *view) home() string {
	if v.Home != "" {
		return path.Clean(v.Home)
	}
	return "/root"
}

func (v *view) env(names ...string) bool {
	return v.EnvGiven != nil && slices.ContainsFunc(names, v.EnvGiven)
}

// program is the name of the first word of the command.
func (v *view) program() string {
	if len(v.Argv) == 0 {
		return ""
	}
	return path.Base(v.Argv[0])
}

func below(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// belowHome knows the places that toolchains keep things in. With HOME=/ those
// are hidden directories of the root.
func belowHome(p, home string) bool {
	if home == "/" {
		return strings.HasPrefix(p, "/.")
	}
	return below(p, home)
}

const pathLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=.,/-"

// pathsIn lists the absolute paths in a line, of plain letters only, cleaned.
func pathsIn(line string) []string {
	var found []string
	for _, w := range strings.FieldsFunc(line, func(r rune) bool { return !strings.ContainsRune(pathLetters, r) }) {
		if i := strings.IndexByte(w, '='); i >= 0 {
			w = w[i+1:]
		}
		if strings.HasPrefix(w, "/") && len(w) > 1 && !strings.HasPrefix(w, "//") {
			found = append(found, path.Clean(strings.TrimRight(w, ".,")))
		}
		if len(found) == 8 {
			break
		}
	}
	return found
}

var (
	readOnly = []string{"read-only file system", "erofs", "os error 30)", "errno 30]"}
	noSpace  = []string{"no space left on device", "enospc", "os error 28)", "errno 28]"}
	denied   = []string{"permission denied", "eacces", "os error 13)", "errno 13]"}
	notOurs  = []string{"operation not permitted", "eperm:", "'eperm'", "os error 1)", "errno 1]", "not permitted"}
	absent   = []string{"no such file or directory", "enoent", "os error 2)", "errno 2]"}
)

// place is a path with the line that names it.
type place struct {
	path string
	line int
}

// readOnlyPaths lists the paths of lines that say that one cannot be written to.
func (v *view) readOnlyPaths() []place {
	var all []place
	for i, l := range v.lines {
		if hasAny(l, readOnly) && !hasAny(l, asides) {
			here := pathsIn(v.orig[i])
			if len(here) == 0 && i >= 2 && v.lines[i-1] == "caused by:" {
				here = pathsIn(v.orig[i-2]) // as Rust programs say it
			}
			for _, p := range here {
				all = append(all, place{p, i})
			}
		}
	}
	return all
}

// deniedPaths lists the paths below some directories of lines that say that one may
// not be opened or made.
func (v *view) deniedPaths(dirs ...string) []place {
	var all []place
	for i, l := range v.lines {
		if hasAny(l, denied) && hasAny(l, []string{"open", "create", "write"}) && !hasAny(l, asides) {
			for _, p := range pathsIn(v.orig[i]) {
				if slices.ContainsFunc(dirs, func(d string) bool { return below(p, d) }) {
					all = append(all, place{p, i})
				}
			}
		}
	}
	return all
}

// memoryAt gives a program memory where it wants to write, in four directories at
// most.
func (v *view) memoryAt(places []place, why string) (Hint, bool) {
	var changes []string
	for _, p := range places {
		dir := dirFor(p.path)
		if c := memory(dir); dir != "" && !slices.Contains(changes, c) && len(changes) < 4 {
			changes = append(changes, c)
			v.hit = p.line
		}
	}
	if len(changes) == 0 {
		return none()
	}
	return fix(why, set(changes...))
}

// homeRemedies are the ways to give a toolchain a HOME, in the order that keeps
// most of what people expect: caches outlive the run, and large ones fit.
func (v *view) homeRemedies() []Remedy {
	all := []Remedy{set("env=HOME=/workspace")}
	if v.Kept {
		n := int64(512 * mib)
		if v.Memory > 0 {
			n = min(n, v.Memory/2)
		}
		all = append(all, set("tmpfs=/home:"+size(n), "env=HOME=/home"))
	}
	return all
}

// tmpRemedies are the ways to more room for temporary files.
func (v *view) tmpRemedies(variable string) []Remedy {
	var all []Remedy
	if variable != "" && !v.env(variable) {
		all = append(all, set("env="+variable+"=/workspace"))
	}
	// A /tmp as large as the memory would end the box where it should be full.
	n := int64(512 * mib)
	if v.Memory > 0 {
		n = min(n, v.Memory/2/mib*mib)
	}
	if n > v.Tmp {
		all = append(all, set("tmpfs=/tmp:"+size(n)))
	}
	for _, m := range v.more() {
		all = append(all, set("tmpfs=/tmp:"+size(m/2), "memory="+size(m)))
	}
	return all
}

// memoryRemedies are larger caps.
func (v *view) memoryRemedies() []Remedy {
	var all []Remedy
	for _, n := range v.more() {
		all = append(all, set("memory="+size(n)))
	}
	return all
}

// more is twice and four times the memory, as far as half of this machine's allows.
func (v *view) more() []int64 {
	var all []int64
	for _, n := range []int64{2 * v.Memory, 4 * v.Memory} {
		if n > 0 && (v.HostMemory == 0 || n <= v.HostMemory/2) {
			all = append(all, n)
		}
	}
	return all
}
