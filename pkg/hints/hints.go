package hints

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/term"
)

// Facts is what a hint may look at. Texts in it come from the user or from the
// box; a hint that quotes one makes it safe to print first, and what a box wrote
// never chooses what of this machine it is given.
type Facts struct {
	Fault string // fault type, "" for none
	// Message is what the sandbox itself says of the fault. It is not the box's.
	Message  string
	ExitCode int
	Argv     []string
	// ImageGiven is true when the user chose a root; Image is its name.
	ImageGiven bool
	Image      string
	// IsImage says whether a word is the name of an image on this machine.
	IsImage func(string) bool
	// IsHostFile says whether a word is the path of a regular file here. It may be
	// asked about words of Argv alone.
	IsHostFile func(string) bool
	// ProgramHead gives the beginning of the file in the workspace that a word of
	// Argv names, nil when there is none or it is a link.
	ProgramHead func(string) []byte
	// ColdImage is true when the start took too long with an image that was
	// unpacked only just now.
	ColdImage bool
	// PullFailed is true when the image could not be fetched.
	PullFailed bool
	// HostTool is where the command was found on the host outside what the
	// host root brings, "" when it was not looked for or not found.
	HostTool string
	// Lang is the language of -c or -f, "" with a command.
	Lang string
	// StdinWaiting is true when bytes wait on a standard input that the box
	// was not given.
	StdinWaiting bool
	// NoStdin is true when the box was given no standard input, TTY when it had a
	// terminal.
	NoStdin, TTY bool
	// TimeoutIsDefault is true when the user set no --timeout.
	TimeoutIsDefault bool
	Timeout          time.Duration
	// Stderr is the beginning of what the code wrote there, and StderrTail the end
	// of it. They may overlap, and either may be missing: then less is found.
	Stderr, StderrTail []byte
	// Stdout is what it wrote there. Match alone looks at it: most programs write
	// data there, which tells of other things than of themselves.
	Stdout []byte
	// Egress is true when the box had kern's proxy and nothing else; HostNetwork
	// when it had this machine's network.
	Egress, HostNetwork bool
	// NoTmp is true when the user took the default /tmp away.
	NoTmp bool
	// Tmp is the size of /tmp in bytes, 0 when it is none of a known size.
	Tmp int64
	// Memory and PIDs are the caps, 0 for none; MemoryCapped and PIDsCapped say
	// whether they are in force here. HostMemory is this machine's, 0 when it is not
	// known. Both are in bytes.
	Memory, HostMemory       int64
	PIDs                     int
	MemoryCapped, PIDsCapped bool
	// Home is HOME in the box when it was set, "" for the default, /root.
	Home string
	// EnvGiven says whether a variable was given to the box.
	EnvGiven func(string) bool
	// Kept is true when the workspace is the user's own (-W).
	Kept bool
	// User is --user, "" for root of the box.
	User string
	// Caps is true when the box kept or was given capabilities.
	Caps bool
	// ReadOnlyMounts are the paths in the box that the user mounted read-only.
	ReadOnlyMounts []string
	// EmptyDirs lists the names of empty directories in the workspace; nil when
	// nobody looked.
	EmptyDirs func() []string
	// ReadOnlyDeps is true when what --setup installed is mounted read-only.
	ReadOnlyDeps bool
	// CIOrders is true when the box printed what the CI runner would obey.
	CIOrders bool
	// SecretFlag is a variable that looks like a secret and whose value was
	// written on the command line.
	SecretFlag string
}

// Change is one flag of `kern-sbx run` with the value to give it, without the
// dashes; the value of a switch is "true".
type Change struct {
	Flag  string `json:"flag"`
	Value string `json:"value"`
}

// String is the flag as it is typed in a shell.
func (c Change) String() string {
	switch c.Value {
	case "true":
		return "--" + c.Flag
	case "false":
		return "--" + c.Flag + "=false"
	}
	return "--" + c.Flag + " " + quote(c.Value)
}

// Remedy is a set of changes that may help together.
type Remedy struct {
	Changes []Change
	// Relaxes says that the box becomes less of a wall by it (Relaxing).
	Relaxes bool
}

// String is the remedy as it is typed in a shell.
func (r Remedy) String() string {
	var s []string
	for _, c := range r.Changes {
		s = append(s, c.String())
	}
	return strings.Join(s, " ")
}

// Hint is one entry of the table.
type Hint struct {
	// ID names it in JSON and for `kern-sbx explain`.
	ID string
	// Why is one sentence about what happened, and Advice what to do when no flag
	// of the box is the answer, "" for nothing. Find puts both into Why.
	Why, Advice string
	// Flag is what to add or change, as typed; "" when no flag helps.
	Flag string
	// Remedies are what may be tried, from the smallest change; none when no flag
	// helps or what to give cannot be known.
	Remedies []Remedy
	// Relaxes says that Flag gives the code a right that it has not now, and not
	// only something to read.
	Relaxes bool
	// NotSandbox says that the failure is the command's own, and would be the same
	// outside of a box.
	NotSandbox bool
	// Unfixable says that the sandbox forbids it by design, and no flag changes that.
	Unfixable bool
	// Sure says that trials would find nothing else; Weak that the words are so
	// common that all else has to be ruled out first. Both are about NotSandbox and
	// Unfixable.
	Sure, Weak bool
	// Line is the line of output that it goes by, without control characters, or "".
	// It is the box's own.
	Line string
}

// rule is one row of the table.
type rule struct {
	id string
	// diag rows are for a diagnosis, which tries what they say: they are too
	// unsure, too plain or too long-winded to be printed after a run.
	diag bool
	// text rows go by what the code printed, and noise rows among them by what it
	// may print and go on. A noise row that is no diag row is about a run that ended
	// well, and about no other.
	text, noise bool
	match       func(*view) (Hint, bool)
}

// none is the answer of a row that does not apply.
func none() (Hint, bool) { return Hint{}, false }

// advice is a hint with a flag that cannot be tried as it stands.
func advice(why, flag string) (Hint, bool) { return Hint{Why: why, Flag: flag}, true }

// fix is a hint with remedies; the first of them is what is printed.
func fix(why string, remedies ...Remedy) (Hint, bool) {
	h := Hint{Why: why, Remedies: remedies}
	if len(remedies) == 0 {
		return none()
	}
	h.Flag = remedies[0].String()
	for _, c := range remedies[0].Changes {
		h.Relaxes = h.Relaxes || c.Flag != "volume" && c.Flag != "host-tool" && Relaxing(c.Flag)
	}
	return h, true
}

// own is a failure of the command itself.
func own(why, instead string) (Hint, bool) {
	return Hint{Why: why, Advice: instead, NotSandbox: true}, true
}

// never is what the sandbox forbids by design.
func never(why, instead string) (Hint, bool) {
	return Hint{Why: why, Advice: instead, Unfixable: true, Sure: true}, true
}

// set makes a remedy of "flag=value" texts.
func set(changes ...string) Remedy {
	var r Remedy
	for _, c := range changes {
		flag, value, _ := strings.Cut(c, "=")
		r.Changes = append(r.Changes, Change{flag, value})
		r.Relaxes = r.Relaxes || Relaxing(flag)
	}
	return r
}

// Relaxing says whether a flag of a box makes it less of a wall: network,
// capabilities, another user, more of this machine to read or write.
func Relaxing(flag string) bool {
	switch flag {
	case "network", "egress-allow", "cap-add", "cap-drop", "user", "volume", "writable", "host-tool", "deps-readonly", "security-profile", "apparmor", "limits":
		return true
	}
	return false
}

// Find gives the one hint that is worth a line after a run, if any. Code in the
// box wrote some of what it goes by, so a run that ended well gets none of that, but
// for the complaint that all take for a failure.
func Find(f *Facts) (Hint, bool) {
	v := newView(f, false)
	blamed := false
	for _, r := range slices.Concat(factRows(), textRows(), lastRows(), noises()) {
		switch {
		case r.noise && !r.diag:
			if !v.endedWell() {
				continue
			}
		case r.text && (blamed || !v.failed()):
			continue
		}
		h, ok := r.match(v)
		switch {
		case !ok:
		case !r.diag:
			h.ID = r.id
			if h.Flag == "" && h.Advice != "" {
				h.Why += "; " + h.Advice
			}
			return h, true
		case h.NotSandbox:
			blamed = true // it says so itself, and what else it printed is not the cause
		}
	}
	return none()
}

// Match gives all that the table knows against a failure, best first, with several
// hints of one id where there are several ways. What a box printed is no proof, and
// a remedy may not help: it is for one who tries. Of a run that ended well, it
// knows the complaints.
func Match(f *Facts) []Hint {
	var all []Hint
	v := newView(f, true)
	for _, r := range table() {
		if r.text && !r.noise && v.endedWell() {
			continue
		}
		v.hit = -1
		if h, ok := r.match(v); ok {
			h.ID = r.id
			if v.hit >= 0 && r.text {
				h.Line = v.orig[v.hit]
			}
			all = append(all, h)
		}
	}
	return all
}

// IDs lists the table's entries in order.
func IDs() []string {
	var ids []string
	for _, r := range table() {
		if !slices.Contains(ids, r.id) {
			ids = append(ids, r.id)
		}
	}
	return ids
}

func quote(s string) string { return term.ShellWord(term.VisibleLine(s)) }

func join(words []string) string {
	s := ""
	for _, w := range words {
		s += " " + quote(w)
	}
	return s
}

const mib = 1 << 20

// size writes bytes as a flag takes them.
func size(n int64) string {
	if n >= 1<<30 && n%(1<<30) == 0 {
		return strconv.FormatInt(n>>30, 10) + "g"
	}
	return strconv.FormatInt(max(n/mib, 1), 10) + "m"
}
