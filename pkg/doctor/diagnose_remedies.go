package doctor

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/hints"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Box is what is known of the box that a command fails in.
type Box struct {
	Argv []string
	// Home is HOME in the box, HostHome the caller's, HostPath the caller's PATH.
	Home, HostHome, HostPath string
	// HostImage says that the root is made of this machine's own /usr.
	HostImage bool
	// Memory, PIDs and Timeout are the caps, 0 for none. HostMemory is this
	// machine's.
	Memory, HostMemory validate.Size
	PIDs               int
	Timeout            time.Duration
	// Tmp is the size of a /tmp in memory, and NoTmp says that the user took it away.
	Tmp   validate.Size
	NoTmp bool
	// Egress and HostNetwork say what network there is.
	Egress, HostNetwork bool
	// Kept says that the user keeps the workspace (-W); Workspace is the directory
	// on this machine that the box's one is a copy of, "" for an empty one.
	Kept      bool
	Workspace string
	// Env says whether a variable was given to the box, and ReadOnly lists what the
	// user mounts read-only.
	Env      func(string) bool
	ReadOnly []string
	// Workdir is where the command starts, in the box.
	Workdir string
	// User is --user, "" for root of the box.
	User string
	// Host looks at this machine; nil: nothing is known of it.
	Host Host
}

// Host is what a diagnosis asks about this machine. Its paths may come from the
// output of a box, so each look is bounded in time and gives no content away.
type Host interface {
	// Exists says whether path is there, and whether it is a directory.
	Exists(path string) (is, dir bool)
	// Resolve follows links, "" when that leads nowhere.
	Resolve(path string) string
	// Find looks a program up along the caller's PATH, "" when it is not there.
	Find(name string) string
	// Public says whether everybody on this machine may read all of what is at path.
	Public(path string) bool
	// Links lists where links below the directory lead that lie outside it.
	Links(dir string) []string
	// Head gives the beginning of a file of the workspace, named as in the box, and
	// where it leads when it is a link; ok is false when there is none.
	Head(path string) (head []byte, link string, ok bool)
	// EmptyDirs lists empty directories directly in the workspace.
	EmptyDirs() []string
	// Foreign names the files among words that lie in the workspace and belong to a
	// user that the box does not know.
	Foreign(words []string) string
}

// look is one outcome as the search for remedies sees it.
type look struct {
	*Box
	o     *Outcome
	have  []Change
	lines []string // lower case
	orig  []string
	text  string
	out   []Remedy
}

func newLook(b *Box, o *Outcome, have []Change) *look {
	l := &look{Box: b, o: o, have: have, orig: linesOf(o)}
	for _, x := range l.orig {
		l.lines = append(l.lines, strings.ToLower(x))
	}
	l.text = strings.Join(l.lines, "\n") + "\n" + strings.ToLower(o.Message)
	return l
}

func (l *look) any(alternatives ...string) (string, bool) {
	for i, x := range l.lines {
		for _, w := range alternatives {
			if strings.Contains(x, w) {
				return l.orig[i], true
			}
		}
	}
	return "", false
}

func (l *look) says(alternatives ...string) bool {
	return slices.ContainsFunc(alternatives, func(w string) bool { return strings.Contains(l.text, w) })
}

// add appends a remedy, unless the box has that already.
func (l *look) add(hint, why, line string, changes ...Change) {
	set := l.have
	same := true
	for _, c := range changes {
		set = merge(set, c)
		same = same && slices.Contains(l.have, c)
	}
	if same || len(changes) == 0 {
		return
	}
	r := Remedy{Changes: changes, Why: why, Hint: hint, Relaxes: relaxes(changes)}
	if line != "" {
		r.trigger = normal(line)
	}
	k := keyOf(changes)
	if !slices.ContainsFunc(l.out, func(x Remedy) bool { return keyOf(x.Changes) == k }) {
		l.out = append(l.out, r)
	}
}

func env(k, v string) Change { return Change{"env", k + "=" + v} }

// value gives what a flag would be with the changes so far.
func (l *look) value(flag string) string {
	for _, c := range l.have {
		if c.Flag == flag {
			return c.Value
		}
	}
	return ""
}

// facts says what the table of hints is asked about: an outcome of the box with
// some changes.
func (b *Box) facts(o *Outcome, have []Change) *hints.Facts {
	l := &look{Box: b, have: have}
	size := func(flag string, n validate.Size) int64 {
		if v := l.value(flag); v != "" {
			if m, err := validate.ParseLimit(v); err == nil {
				n = m
			}
		}
		return int64(n)
	}
	f := &hints.Facts{
		Fault: o.Fault, Message: o.Message, ExitCode: o.Exit, Argv: b.Argv, ImageGiven: true, Stdout: o.Stdout,
		Timeout: b.Timeout, Egress: b.Egress, HostNetwork: b.HostNetwork || l.value("network") == "host", NoStdin: true,
		Memory: size("memory", b.Memory), HostMemory: int64(b.HostMemory), MemoryCapped: true, PIDs: b.PIDs, PIDsCapped: true,
		Tmp: int64(b.Tmp), Home: b.Home, Kept: b.Kept, User: b.User, ReadOnlyMounts: b.ReadOnly,
	}
	// The middle of a long text says least.
	half := min(len(o.Stderr), hints.MaxText)
	f.Stderr, f.StderrTail = o.Stderr[:half], o.Stderr[half:]
	if v := l.value("pids-limit"); v != "" {
		f.PIDs, _ = strconv.Atoi(v)
	}
	if l.value("timeout") != "" {
		f.Timeout = 0 // it was given more once
	}
	if v := l.value("user"); v != "" {
		f.User = v
	}
	for _, c := range have {
		if c.Flag == "cap-add" || c.Flag == "cap-drop" {
			f.Caps = true
		}
		if k, v, ok := strings.Cut(c.Value, "="); c.Flag == "env" && ok && k == "HOME" {
			f.Home = v
		}
		if at, v, ok := strings.Cut(c.Value, ":"); c.Flag == "tmpfs" && ok && at == "/tmp" {
			if n, err := validate.ParseLimit(v); err == nil {
				f.Tmp = int64(n)
			}
		}
	}
	f.NoTmp = b.NoTmp && f.Tmp == 0
	f.EnvGiven = func(k string) bool { return l.hasEnv(k) || b.Env != nil && b.Env(k) }
	if b.Host != nil {
		f.EmptyDirs = b.Host.EmptyDirs
	}
	return f
}

// propose lists remedies for an outcome, best first: what this machine has and the
// box has not, what the table of hints knows, and more of what a remedy gave.
func propose(b *Box, o *Outcome, have []Change) []Remedy {
	l := newLook(b, o, have)
	l.program()
	l.toolchain()
	f := b.facts(o, have)
	if f.ExitCode == 0 {
		f.ExitCode = -1 // it is not what the user wants
	}
	all := hints.Match(f)
	l.known(all, func(id string) bool { return id != lastResort })
	l.files()
	l.grow()
	l.known(all, func(id string) bool { return id == lastResort })
	return l.out
}

// notInTheBox is the topic of what is on this machine.
const notInTheBox = "not-in-the-box"

// lastResort is the hint about rights: a file that is not there is the better guess.
const lastResort = "no-privilege"

// known takes over remedies of the table. The words that led to them were the
// box's, so what they bring of this machine has to be everybody's.
func (l *look) known(all []hints.Hint, which func(id string) bool) {
	for _, h := range all {
		if !which(h.ID) {
			continue
		}
		for _, r := range h.Remedies {
			changes := make([]Change, len(r.Changes))
			for i, c := range r.Changes {
				changes[i] = Change(c)
			}
			if !slices.ContainsFunc(changes, l.excessive) {
				l.add(h.ID, h.Why, h.Line, changes...)
			}
		}
	}
}

// excessive says whether a change goes further than trials shall: no more than four
// times the memory, and nothing of this machine that is not for everybody.
func (l *look) excessive(c Change) bool {
	switch c.Flag {
	case "memory":
		n, err := validate.ParseLimit(c.Value)
		return err != nil || n > 4*l.Memory
	case "volume":
		at, _, _ := strings.Cut(c.Value, ":")
		if l.Host == nil {
			return true
		}
		is, dir := l.Host.Exists(at)
		return !is || !dir || !l.Host.Public(at)
	case "workspace-max", "ulimit", "env", "tmpfs", "pids-limit", "timeout", "network", "user", "hostname", "init", "cap-add", "cap-drop":
		return false
	}
	return true // no trial is made with it
}

// complaint gives the line that a command complains with although it succeeded.
func complaint(b *Box, o *Outcome) string {
	for _, h := range hints.Match(b.facts(&Outcome{Stderr: o.Stderr}, nil)) {
		if h.Line != "" && slices.ContainsFunc(h.Remedies, func(r hints.Remedy) bool { return !r.Relaxes }) {
			return normal(h.Line)
		}
	}
	return ""
}

// all is every change at once that could matter to any command.
func all(b *Box, relax bool) []Change {
	set := []Change{env("HOME", "/workspace"), env("TMPDIR", "/workspace"), env("LANG", "C.UTF-8"), {"hostname", "localhost"}}
	for _, n := range []validate.Size{4 * b.Memory, 2 * b.Memory} {
		if n > 0 && n <= b.HostMemory/2 {
			set = append(set, Change{"memory", strconv.FormatInt(int64(n>>20), 10) + "m"})
			break
		}
	}
	if b.PIDs > 0 {
		set = append(set, Change{"pids-limit", strconv.Itoa(b.PIDs * 4)})
	}
	if relax {
		set = append(set, Change{"cap-drop", "none"})
		if !b.HostNetwork && !b.Egress {
			set = append(set, Change{"network", "host"})
		}
	}
	return set
}

// program answers a command that could not be executed.
func (l *look) program() {
	if l.Host == nil {
		return
	}
	if l.o.Fault == "" {
		l.missing()
	}
	if l.o.Fault != "exec_failed" || len(l.Argv) == 0 || l.says("operation not permitted") {
		return // the last is about file capabilities: the table knows
	}
	name := l.Argv[0]
	if inBox, ok := l.inWorkspace(name); ok {
		_, link, there := l.Host.Head(inBox)
		if there && link != "" {
			if p := prefixOf(link); p != "" {
				l.add(notInTheBox, "it is a link to "+link+", which the box does not have", "", Change{"volume", p + ":" + p + ":ro"})
			}
		}
		return
	}
	found := name
	if !strings.Contains(name, "/") {
		if found = l.Host.Find(name); found == "" {
			return
		}
	} else if is, _ := l.Host.Exists(name); !is {
		return
	}
	l.bring(name, found, "")
}

// bring adds what gives the box a program of this machine.
func (l *look) bring(name, found, line string) {
	why := name + " is on this machine at " + found + ", and not in the box"
	if l.HostImage {
		dir := path.Dir(found)
		if strings.HasPrefix(dir, "/usr/") || strings.HasPrefix(dir, "/opt/") {
			l.add(notInTheBox, why+" on its PATH", line, env("PATH", dir+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"))
		} else {
			l.add(notInTheBox, why, line, Change{"host-tool", name})
			if strings.HasPrefix(name, "/") {
				l.add(notInTheBox, why, line, Change{"volume", dir + ":" + dir + ":ro"})
			} else {
				l.add(notInTheBox, why, line, Change{"volume", dir + ":" + dir + ":ro"}, env("PATH", dir+":/usr/local/bin:/usr/bin:/bin"))
			}
		}
	}
}

// missing answers a program that the command itself did not find.
func (l *look) missing() {
	for i, x := range l.lines {
		at := strings.Index(x, "not found")
		if at < 0 {
			continue
		}
		fields := strings.Split(l.orig[i], ":")
		for j, f := range fields {
			if !strings.Contains(f, "not found") || j == 0 {
				continue
			}
			name := strings.Trim(strings.TrimSpace(fields[j-1]), "'\"`\u2018\u2019")
			if name == "" || strings.ContainsAny(name, "/ ") || len(name) > 64 {
				continue
			}
			if found := l.Host.Find(name); found != "" {
				l.bring(name, found, l.orig[i])
				return
			}
		}
	}
}

// inWorkspace gives the path in the box of a program that lies in the workspace.
func (l *look) inWorkspace(name string) (string, bool) {
	if !strings.Contains(name, "/") {
		return "", false
	}
	p := name
	if !strings.HasPrefix(p, "/") {
		p = path.Join(l.Workdir, p)
	}
	p = path.Clean(p)
	return p, p == "/workspace" || strings.HasPrefix(p, "/workspace/")
}

// prefixOf is the directory that a program is installed in.
func prefixOf(program string) string {
	dir := path.Dir(program)
	if b := path.Base(dir); b == "bin" || b == "sbin" {
		dir = path.Dir(dir)
	}
	if strings.Count(dir, "/") < 2 {
		return "" // more than one tool
	}
	return dir
}

// toolchain answers rustup's programs, which start a toolchain of the user's.
func (l *look) toolchain() {
	line, ok := l.any("could not choose a version of", "no default is configured", "no override and no default toolchain", "/.rustup'")
	if !ok || l.Host == nil || l.HostHome == "" {
		return
	}
	d := l.HostHome + "/.rustup"
	if is, dir := l.Host.Exists(d); !is || !dir {
		return
	}
	const why = "rustup starts a toolchain that the box does not have"
	changes := []Change{{"volume", d + ":" + d + ":ro"}}
	if l.HostHome != l.Home || l.hasEnv("HOME") {
		changes = append(changes, env("RUSTUP_HOME", d))
	}
	l.add(notInTheBox, why, line, changes...)
}

// grow answers a file system in memory that a remedy made, and that is full.
func (l *look) grow() {
	line, ok := l.any("no space left on device", "enospc")
	if !ok {
		return
	}
	for _, c := range l.have {
		at, _, _ := strings.Cut(c.Value, ":")
		if c.Flag == "tmpfs" && at != "/tmp" && strings.Contains(line, at+"/") {
			n := min(256<<20, max(l.Memory/2, 32<<20))
			l.add("tmp-full", "what is put into memory there does not fit", line, Change{"tmpfs", at + ":" + strconv.FormatInt(int64(n>>20), 10) + "m"})
		}
	}
}

func (l *look) hasEnv(k string) bool {
	return slices.ContainsFunc(l.have, func(c Change) bool { return c.Flag == "env" && strings.HasPrefix(c.Value, k+"=") })
}

var noFile = []string{"no such file", "filenotfound", "nosuchfile", "enoent", "cannot access", "cannot open", "can't open", "could not open", "not found", "does not exist", "no such directory", "unable to open", "error loading", "failed to load", "could not find"}

// files answers what is on this machine and not in the box.
func (l *look) files() {
	if l.Host == nil {
		return
	}
	argv := strings.Join(l.Argv, " ")
	for i, line := range l.lines {
		if !slices.ContainsFunc(noFile, func(w string) bool { return strings.Contains(line, w) }) {
			continue
		}
		for _, p := range pathsIn(l.orig[i]) {
			l.file(p, l.orig[i], argv)
		}
	}
	for _, p := range pathsIn(argv) {
		if l.o.Fault == "" && l.says(noFile...) {
			l.file(p, "", argv)
		}
	}
	if !l.HostImage || !l.says(noFile...) {
		return
	}
	// A program below /usr that Debian gives its settings in /etc, by links.
	for _, w := range append(slices.Clone(l.Argv[:min(len(l.Argv), 1)]), l.javaHome()) {
		real := l.Host.Resolve(w)
		if !strings.Contains(w, "/") {
			real = l.Host.Resolve(l.Host.Find(w))
		}
		p := prefixOf(real)
		if !strings.HasPrefix(p, "/usr/") && !strings.HasPrefix(p, "/opt/") || p == "/usr/bin" || p == "/usr/local" || p == "/usr" {
			continue
		}
		for _, target := range l.Host.Links(p) {
			l.settings(target, "")
		}
	}
}

func (l *look) javaHome() string {
	for _, c := range l.have {
		if v, ok := strings.CutPrefix(c.Value, "JAVA_HOME="); ok {
			return v + "/bin/java"
		}
	}
	if is, _ := l.Host.Exists("/usr/bin/java"); is && l.says("java") {
		return l.Host.Resolve("/usr/bin/java")
	}
	return "/usr/bin/none"
}

// file adds what brings one file of this machine. Its path was written by the
// box, unless it is in argv too: then only what everybody may read counts.
func (l *look) file(p, line, argv string) {
	p = path.Clean(p)
	for _, no := range []string{"/workspace", "/tmp", "/proc", "/dev", "/sys", "/run"} {
		if p == no || strings.HasPrefix(p, no+"/") {
			return
		}
	}
	is, dir := l.Host.Exists(p)
	if !is {
		return
	}
	real := l.Host.Resolve(p)
	if strings.HasPrefix(real, "/etc/") {
		l.settings(real, line)
		return
	}
	if l.HostImage && (strings.HasPrefix(real, "/usr/") || strings.HasPrefix(real, "/opt/")) {
		return // it is there
	}
	at := p
	if !dir {
		at = path.Dir(p)
	}
	if strings.Count(at, "/") < 2 {
		if dir {
			return
		}
		at = p // the file alone
	}
	if !strings.Contains(argv, p) && !l.Host.Public(at) {
		return
	}
	l.add(notInTheBox, p+" is on this machine, and not in the box", line, Change{"volume", at + ":" + at + ":ro"})
}

// settings adds a directory of /etc that belongs to one program.
func (l *look) settings(real, line string) {
	rest, ok := strings.CutPrefix(real, "/etc/")
	if !ok {
		return
	}
	first, _, deeper := strings.Cut(rest, "/")
	d := "/etc/" + first
	if is, dir := l.Host.Exists(d); !is || !dir || !deeper && !dir {
		return
	}
	if !l.Host.Public(d) {
		return
	}
	l.add(notInTheBox, d+" is on this machine, and not in the box; the program's settings are there", line, Change{"volume", d + ":" + d + ":ro"})
}
