package doctor

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

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
	// Egress and HostNetwork say what network there is.
	Egress, HostNetwork bool
	// Kept says that the user keeps the workspace (-W); Workspace is the directory
	// on this machine that the box's one is a copy of, "" for an empty one.
	Kept      bool
	Workspace string
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

const (
	homeWhy = "HOME lies in the box's read-only root, and the tool wants to write there"
	tmpWhy  = "/tmp of the box is small: it is a part of the memory"
)

// look is one outcome as the rules see it.
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

// line gives the first line with all of the words, in one of the alternatives.
func (l *look) line(words ...string) (string, bool) {
	for i, x := range l.lines {
		all := true
		for _, w := range words {
			all = all && strings.Contains(x, w)
		}
		if all {
			return l.orig[i], true
		}
	}
	return "", false
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

func (l *look) add(why, line string, changes ...Change) {
	set := l.have
	same := true
	for _, c := range changes {
		set = merge(set, c)
		same = same && slices.Contains(l.have, c)
	}
	if same || len(changes) == 0 {
		return
	}
	r := Remedy{Changes: changes, Why: why, Relaxes: relaxes(changes)}
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

// memory is the cap with the changes so far.
func (l *look) memory() validate.Size {
	if v := l.value("memory"); v != "" {
		if n, err := validate.ParseLimit(v); err == nil {
			return n
		}
	}
	return l.Memory
}

func size(n validate.Size) string {
	switch {
	case n%(1<<30) == 0:
		return strconv.FormatInt(int64(n>>30), 10) + "g"
	case n%(1<<20) == 0:
		return strconv.FormatInt(int64(n>>20), 10) + "m"
	}
	return strconv.FormatInt(int64(n>>10), 10) + "k"
}

// bigger lists twice and four times a memory cap, as far as half of this
// machine's allows.
func (l *look) bigger() []Change {
	var out []Change
	for _, f := range []validate.Size{2, 4} {
		if n := l.Memory * f; n > l.memory() && n <= l.HostMemory/2 {
			out = append(out, Change{"memory", size(n)})
		}
	}
	return out
}

// roomyTmp is a /tmp of half a GiB, or what the memory has room for.
func (l *look) roomyTmp() (Change, bool) {
	n := validate.Size(512 << 20)
	if m := l.memory(); m > 0 && m < n {
		n = m
	}
	return Change{"tmpfs", "/tmp:" + size(n)}, n > validate.DefaultTmp(l.memory())
}

// propose lists remedies for an outcome, best first: the table of hints, then
// what fits the kind of the failure.
func propose(b *Box, o *Outcome, have []Change) []Remedy {
	l := newLook(b, o, have)
	for _, rule := range rules {
		from := len(l.out)
		rule.find(l)
		for i := from; i < len(l.out); i++ {
			l.out[i].Hint = rule.topic
		}
	}
	return l.out
}

// rules are the one table of what programs print when a box is in their way, best
// first, with the topic of each that kern-sbx explain knows.
var rules = []struct {
	topic string
	find  func(*look)
}{
	{"", (*look).faults},
	{"not-in-the-box", (*look).program},
	{"tool-configuration", (*look).tools},
	{"home-not-writable", (*look).home},
	{"read-only-root", (*look).readOnly},
	{"scratch-full", (*look).space},
	{"locale", (*look).locale},
	{"too-many-processes", (*look).processes},
	{"memory-short", (*look).memoryShort},
	{"no-network", (*look).names},
	{"not-in-the-box", (*look).files},
	{"no-privilege", (*look).rights},
}

// Suggest gives the remedy that a failed run prints as its hint: the first that
// answers a line of the output, untried. False: nothing in the output is known, or
// what is known is the user's own mistake.
func Suggest(b *Box, o *Outcome) (Remedy, bool) {
	var first *Remedy
	for _, r := range propose(b, o, nil) {
		switch {
		case r.trigger == "" || r.Hint == "":
		case r.Hint == "no-network" && r.Changes[0].Flag == "hostname":
			// Cheap to try, and seldom the reason.
			if first == nil {
				first = &r
			}
		default:
			return r, true
		}
	}
	if first != nil {
		return *first, true
	}
	return Remedy{}, false
}

// SuggestionTopics lists the topics of what Suggest can give.
func SuggestionTopics() []string {
	var all []string
	for _, r := range rules {
		if r.topic != "" && !slices.Contains(all, r.topic) {
			all = append(all, r.topic)
		}
	}
	return all
}

// complaint gives the line that a command complains with although it succeeded.
func complaint(b *Box, o *Outcome) string {
	l := newLook(b, &Outcome{Exit: o.Exit, Stderr: o.Stderr}, nil)
	for _, rule := range []func(*look){(*look).tools, (*look).home, (*look).locale} {
		rule(l)
	}
	for _, r := range l.out {
		if r.trigger != "" && !r.Relaxes {
			return r.trigger
		}
	}
	return ""
}

// all is every change at once that could matter to any command.
func all(b *Box, relax bool) []Change {
	l := newLook(b, &Outcome{}, nil)
	set := []Change{env("HOME", "/workspace"), env("TMPDIR", "/workspace"), env("LANG", "C.UTF-8"), {"hostname", "localhost"}}
	if m := l.bigger(); len(m) > 0 {
		set = append(set, m[len(m)-1])
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

// faults answers what the sandbox itself said.
func (l *look) faults() {
	switch l.o.Fault {
	case "oom":
		for _, m := range l.bigger() {
			l.add("it needs more memory than the box may have", "", m)
		}
	case "timeout":
		// Both are tried side by side; which of them is the smaller change matters
		// when both help.
		l.add("it waits for a signal that a program which is PID 1 does not get", "", Change{"init", "true"})
		if l.Timeout > 0 && !slices.ContainsFunc(l.have, func(c Change) bool { return c.Flag == "timeout" }) {
			l.add("it needs longer than the box gives it", "", Change{"timeout", (l.Timeout * 4).String()})
		}
	case "workspace_full":
		l.add("it writes more than the workspace may hold", "", Change{"workspace-max", "none"})
	}
}

// program answers a command that could not be executed.
func (l *look) program() {
	if l.Host == nil {
		return
	}
	if l.o.Fault == "" {
		l.missing()
	}
	if l.o.Fault != "exec_failed" || len(l.Argv) == 0 {
		return
	}
	name := l.Argv[0]
	if l.says("operation not permitted") {
		const why = "the program carries a file capability that the box has dropped, and the kernel refuses to execute it without"
		l.add(why, "", Change{"cap-add", "NET_RAW"})
		l.add(why, "", Change{"cap-drop", "none"})
		return
	}
	if inBox, ok := l.inWorkspace(name); ok {
		_, link, there := l.Host.Head(inBox)
		if there && link != "" {
			if p := prefixOf(link); p != "" {
				l.add("it is a link to "+link+", which the box does not have", "", Change{"volume", p + ":" + p + ":ro"})
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
			l.add(why+" on its PATH", line, env("PATH", dir+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"))
		} else {
			l.add(why, line, Change{"host-tool", name})
			if strings.HasPrefix(name, "/") {
				l.add(why, line, Change{"volume", dir + ":" + dir + ":ro"})
			} else {
				l.add(why, line, Change{"volume", dir + ":" + dir + ":ro"}, env("PATH", dir+":/usr/local/bin:/usr/bin:/bin"))
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

// tools knows programs that have a setting of their own for the place they write to.
func (l *look) tools() {
	if line, ok := l.any("mplconfigdir", "config/matplotlib", "matplotlib created a temporary"); ok {
		l.add("matplotlib has no writable place for its cache", line, env("MPLCONFIGDIR", "/tmp/matplotlib"))
	}
	if line, ok := l.any("no permission to install to directory", "' is not writable"); ok && l.says("library", "site-library", "lib = ") {
		const why = "R's library lies in the read-only root; one in the workspace has to be named, and to exist"
		for _, d := range l.emptyDirs() {
			l.add(why, line, env("R_LIBS", d))
		}
		l.add(why, line, env("R_LIBS", "/workspace"))
	}
	if line, ok := l.any("dubious ownership"); ok {
		l.add("git refuses a repository of another user", line, env("GIT_CONFIG_COUNT", "1"), env("GIT_CONFIG_KEY_0", "safe.directory"), env("GIT_CONFIG_VALUE_0", "*"))
	}
	if line, ok := l.any("don't have write permissions for the", "gem::filepermissionerror"); ok {
		l.add("gems would be installed into the read-only root", line, env("GEM_HOME", "/workspace/.gem"))
	}
	if line, ok := l.line("read-only file system", "-packages"); ok {
		l.add("pip would install into the read-only root", line, env("PIP_TARGET", "/workspace/.deps"), env("PYTHONPATH", "/workspace/.deps"))
	}
	if line, ok := l.line("node_modules", "/usr/"); ok && l.says("erofs", "eacces", "read-only") {
		l.add("npm would install into the read-only root", line, env("npm_config_prefix", "/workspace/.npm-global"))
	}
	if line, ok := l.any("could not choose a version of", "no default is configured", "no override and no default toolchain", "/.rustup'"); ok && l.Host != nil && l.HostHome != "" {
		d := l.HostHome + "/.rustup"
		if is, dir := l.Host.Exists(d); is && dir {
			const why = "rustup starts a toolchain that the box does not have"
			if l.HostHome == l.Home && !l.hasEnv("HOME") {
				l.add(why, line, Change{"volume", d + ":" + d + ":ro"})
			} else {
				l.add(why, line, Change{"volume", d + ":" + d + ":ro"}, env("RUSTUP_HOME", d))
			}
		}
	}
	if line, ok := l.any("cannot change ownership", "cannot change owner"); ok && l.says("tar:") {
		l.add("tar as root gives files the owners of the archive, whom the box does not know", line, env("TAR_OPTIONS", "--no-same-owner"))
	}
	if line, ok := l.any("please tell me who you are", "unable to auto-detect email", "empty ident name"); ok {
		const why = "git finds no settings of yours in the box, and so no name and address"
		l.add(why, line, env("EMAIL", "box@localhost"))
		l.add(why, line, env("GIT_AUTHOR_NAME", "box"), env("GIT_AUTHOR_EMAIL", "box@localhost"), env("GIT_COMMITTER_NAME", "box"), env("GIT_COMMITTER_EMAIL", "box@localhost"))
	}
	if line, ok := l.any("crashpad"); ok {
		l.add(homeWhy, line, env("HOME", "/workspace"))
	}
	if line, ok := l.any("too many open files", "emfile"); ok {
		l.add("it opens more files than the box may have", line, Change{"ulimit", "nofile=65536"})
	}
}

func (l *look) emptyDirs() []string {
	if l.Host == nil {
		return nil
	}
	var out []string
	for _, d := range l.Host.EmptyDirs() {
		out = append(out, "/workspace/"+d)
	}
	return out[:min(len(out), 3)]
}

// cannotWrite are the ways to say that a path cannot be written to.
var cannotWrite = []string{
	"read-only file system", "erofs", "os error 30", "permission denied", "eacces", "not writable", "cannot create", "can't create", "could not create",
	"failed to create", "unable to create", "mkdir", "cannot write", "error writing", "not permitted",
}

// home answers what wants to write below HOME.
func (l *look) home() {
	for i, line := range l.lines {
		if !slices.ContainsFunc(cannotWrite, func(w string) bool { return strings.Contains(line, w) }) && !l.near(i, "read-only file system", "os error 30", "permission denied") {
			continue
		}
		if !strings.Contains(line, "home directory") && !strings.Contains(line, "user data directory") && !slices.ContainsFunc(pathsIn(l.orig[i]), l.belowHome) {
			continue
		}
		o := l.orig[i]
		l.add(homeWhy, o, env("HOME", "/workspace"))
		if l.Kept {
			l.add(homeWhy, o, Change{"tmpfs", "/home:" + size(min(512<<20, max(l.memory()/2, 64<<20)))}, env("HOME", "/home"))
		}
		if at := l.homePath(o); at != "" && l.hasEnv("HOME") {
			// It asks the list of users and not HOME.
			l.add("the tool takes the home directory from the list of users, not from HOME", o, Change{"tmpfs", at + ":64m"})
		}
		l.add("the tool takes the home directory from the list of users, not from HOME", o, Change{"tmpfs", "/root:64m"})
		return
	}
}

// near says whether one of the words is in one of the next three lines, where some
// tools put the reason.
func (l *look) near(i int, words ...string) bool {
	for _, x := range l.lines[i:min(i+4, len(l.lines))] {
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(x, w) }) {
			return strings.Contains(l.lines[i], "open") || strings.Contains(l.lines[i], "create") || strings.Contains(l.lines[i], "writ")
		}
	}
	return false
}

func (l *look) hasEnv(k string) bool {
	return slices.ContainsFunc(l.have, func(c Change) bool { return c.Flag == "env" && strings.HasPrefix(c.Value, k+"=") })
}

func (l *look) belowHome(p string) bool {
	for _, h := range []string{l.Home, "/root", "/nonexistent"} {
		if h != "" && h != "/" && h != "/workspace" && (p == h || strings.HasPrefix(p, h+"/")) {
			return true
		}
	}
	return strings.HasPrefix(p, "/home/") || strings.HasPrefix(p, "/.") && len(p) > 3
}

func (l *look) homePath(line string) string {
	for _, p := range pathsIn(line) {
		if p == "/root" || strings.HasPrefix(p, "/root/") {
			return "/root"
		}
	}
	return ""
}

// covered are directories that a program needs what is in: memory over them would
// hide it.
var covered = []string{
	"/", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/var", "/dev", "/proc", "/sys", "/boot", "/workspace", "/usr/bin", "/usr/lib",
	"/usr/local", "/usr/local/bin", "/usr/local/lib", "/usr/share", "/var/lib", "/home", "/root", "/tmp", "/run/kern-sbx",
}

// aliases are links in most images; memory has to be put where they lead.
var aliases = [][2]string{{"/var/run", "/run"}, {"/var/lock", "/run/lock"}}

// readOnly answers a write to the root that is not below HOME.
func (l *look) readOnly() {
	for i, line := range l.lines {
		// What another user owns, whom the box does not know, is refused before that
		// it is read-only is.
		denied := strings.Contains(line, "permission denied") || strings.Contains(line, "eacces")
		// A directory for what runs now is often made at boot, and in no image.
		absent := strings.Contains(line, "nonexistent") || strings.Contains(line, "no such file")
		if !denied && !absent && !strings.Contains(line, "read-only file system") && !strings.Contains(line, "erofs") {
			continue
		}
		paths := pathsIn(l.orig[i])
		if len(paths) == 0 && i > 0 {
			paths = pathsIn(l.orig[i-1]) // the reason has a line of its own
		}
		for _, p := range paths {
			if l.belowHome(p) || denied && !strings.HasPrefix(p, "/var/") && !strings.HasPrefix(p, "/run/") {
				continue
			}
			named := path.Clean(p)
			for _, a := range aliases {
				if p == a[0] || strings.HasPrefix(p, a[0]+"/") {
					p = a[1] + p[len(a[0]):]
				}
			}
			if absent && !strings.HasPrefix(p, "/run/") {
				continue
			}
			if absent && named != p { // nor need there be that link
				d := path.Dir(named)
				l.add(d+" is not in the box, and is written to", l.orig[i], Change{"tmpfs", d + ":16m"})
			}
			dir := path.Dir(path.Clean(p))
			if slices.Contains(covered, dir) || strings.Contains(line, "chdir") || strings.Contains(line, "change directory") || strings.Contains(line, "open directory") {
				dir = path.Clean(p)
			}
			for range 2 {
				if !slices.Contains(covered, dir) && !strings.HasPrefix(dir, "/usr/") && !strings.HasPrefix(dir, "/etc/") && !strings.HasPrefix(dir, "/workspace") &&
					!strings.HasPrefix(dir, "/proc/") && !strings.HasPrefix(dir, "/sys/") && !strings.HasPrefix(dir, "/dev/") {
					l.add(dir+" lies in the read-only root, and is written to", l.orig[i], Change{"tmpfs", dir + ":16m"})
				}
				dir = path.Dir(dir)
			}
		}
	}
}

// space answers a full or a separate /tmp.
func (l *look) space() {
	if line, ok := l.any("invalid cross-device link", "exdev", "cross-device"); ok {
		l.add("/tmp is a file system of its own in the box, and a rename cannot leave it", line, env("TMPDIR", "/workspace"))
	}
	if line, ok := l.any("no usable temporary directory"); ok {
		l.add("the box has no /tmp", line, Change{"tmpfs", "/tmp:64m"})
	} else if line, ok := l.line("/tmp", "read-only file system"); ok {
		l.add("the box has no /tmp", line, Change{"tmpfs", "/tmp:64m"})
	}
	line, ok := l.any("no space left on device", "enospc", "database or disk is full", "disk full", "not enough space", "disk quota exceeded", "write error: no space")
	if !ok {
		return
	}
	if strings.Contains(line, "/dev/shm") {
		for _, m := range l.bigger() {
			l.add("/dev/shm is a part of the box's memory", line, m)
		}
		return
	}
	if l.says("go-build", "go build", "/pkg/tool/", "asm: ", "/link") {
		l.add(tmpWhy, line, env("GOTMPDIR", "/workspace"))
	}
	l.add(tmpWhy, line, env("TMPDIR", "/workspace"))
	if t, ok := l.roomyTmp(); ok {
		l.add(tmpWhy, line, t)
	}
	for _, m := range l.bigger() {
		n, _ := validate.ParseLimit(m.Value)
		l.add(tmpWhy, line, Change{"tmpfs", "/tmp:" + size(n/2)}, m)
	}
	for _, c := range l.have { // a file system in memory that a remedy made
		if c.Flag == "tmpfs" {
			if at, _, _ := strings.Cut(c.Value, ":"); at != "/tmp" && strings.Contains(line, at+"/") {
				l.add("what is put into memory there does not fit", line, Change{"tmpfs", at + ":" + size(min(256<<20, max(l.memory()/2, 32<<20)))})
			}
		}
	}
}

func (l *look) locale() {
	line, ok := l.any(
		"invalid byte sequence in us-ascii", "us-ascii", "'ascii' codec", "unmappable character", "encoding ascii", "(encoding us-ascii)", "ansi_x3.4-1968",
		"falling back to the standard locale", "setting locale failed", "cannot set lc_", "wide character in", "malformed input or input contains", "invalid multibyte", "non-ascii",
		"ascii was chosen as the fileystem encoding", "unicodeencodeerror", "unicodedecodeerror: 'ascii'", "invalid or incomplete multibyte",
	)
	if !ok {
		return
	}
	const why = "the box has no locale, so text is taken for ASCII"
	if l.says("javac", "unmappable", "java") {
		l.add(why, line, env("LC_ALL", "C.UTF-8"))
	}
	l.add(why, line, env("LANG", "C.UTF-8"))
	l.add(why, line, env("LC_ALL", "C.UTF-8"))
}

// processes answers a fork that was refused, and not any other EAGAIN.
func (l *look) processes() {
	if l.PIDs == 0 {
		return
	}
	line, ok := l.any("can't start new thread", "unable to create native thread", "unable to create thread", "pthread_create failed", "cannot fork", "fork failed", "failed to create thread", "uv_thread_create", "retry: resource temporarily unavailable")
	if !ok {
		for i, x := range l.lines {
			if (strings.Contains(x, "resource temporarily unavailable") || strings.Contains(x, "eagain")) &&
				l.says("fork", "clone", "thread", "spawn", "vfork", "subprocess", "posix_spawn") && !l.says("flock", "fcntl", "lockf") {
				line, ok = l.orig[i], true
				break
			}
		}
	}
	if ok {
		for _, f := range []int{4, 16} {
			l.add("it starts more processes and threads than the box may have", line, Change{"pids-limit", strconv.Itoa(l.PIDs * f)})
		}
	}
}

func (l *look) memoryShort() {
	if l.Memory == 0 || l.o.Fault == "oom" {
		return
	}
	line, ok := l.any("heap out of memory", "memoryerror", "cannot allocate memory", "std::bad_alloc", "killed signal terminated program", "internal compiler error: killed",
		"out of memory", "outofmemoryerror", "memory exhausted", "could not allocate", "insufficient memory", "enomem", "unable to allocate")
	bus := l.o.Exit == 135 || l.o.Exit == 128+7 || l.says("bus error")
	if !ok && !bus || l.ownHeap() {
		return
	}
	for _, m := range l.bigger() {
		l.add("it needs more memory than the box may have, or sizes itself by it", line, m)
	}
}

// ownHeap says whether the command sets its own heap.
func (l *look) ownHeap() bool {
	return slices.ContainsFunc(l.Argv, func(w string) bool {
		return strings.Contains(w, "-Xmx") || strings.Contains(w, "-Xms") || strings.Contains(w, "max-old-space-size") || strings.Contains(w, "ulimit -v")
	})
}

var noName = []string{
	"name or service not known", "temporary failure in name resolution", "could not resolve", "could not translate host name", "getaddrinfo", "no such host", "eai_again",
	" enotfound", "nodename nor servname", "unknownhostexception", "failed to lookup address", "gaierror", "name resolution", "unknown host", "can't resolve", "could not find host", "no servers could be reached", "temporary failure resolving", "failed to establish a new connection", "bad address",
}

// certificates is where most distributions keep the authorities they trust.
const certificates = "/etc/ssl/certs"

// names answers a network that is not there.
func (l *look) names() {
	line, ok := l.any(noName...)
	route := false
	if !ok {
		line, route = l.any("network is unreachable", "enetunreach", "no route to host", "network unreachable", "noroutetohost", "connection timed out", "connection refused", "econnrefused")
	}
	if pip, none := l.any("(from versions: none)"); none && !ok && !route {
		line, route = pip, true // pip -q keeps the reason for itself
	}
	if ok || route {
		if ok && l.value("hostname") == "" {
			l.add("the box's own name is not in its list of hosts", line, Change{"hostname", "localhost"})
		}
		if !l.HostNetwork && l.value("network") == "" && !l.Egress {
			l.add("the box has no network", line, Change{"network", "host"})
			if route && !ok && l.says("(from versions: none)") && l.Host != nil && l.Host.Public(certificates) {
				l.add("the box has no network, and not the certificate authorities that this machine trusts", line, Change{"network", "host"}, Change{"volume", certificates + ":" + certificates + ":ro"})
			}
		}
	}
	// A retry that pip and others announce has the reason in it.
	if line, ok := l.any("ca certificate", "certificate_verify_failed", "local issuer", "ca-certificates.crt", "certificate verify", "certificate signed by unknown", "cert.pem", "(from versions: none)"); ok && l.Host != nil && (l.HostNetwork || l.value("network") == "host") {
		const d = certificates
		if is, dir := l.Host.Exists(d); is && dir && l.Host.Public(d) {
			l.add("the box does not have the certificate authorities that this machine trusts", line, Change{"volume", d + ":" + d + ":ro"})
		}
	}
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
	l.add(p+" is on this machine, and not in the box", line, Change{"volume", at + ":" + at + ":ro"})
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
	l.add(d+" is on this machine, and not in the box; the program's settings are there", line, Change{"volume", d + ":" + d + ":ro"})
}

// rights answers what the box may not do.
func (l *look) rights() {
	if line, ok := l.any("cannot be run as root", "must not be run as root", "should not be run as root", "refusing to run as root", "execution of the postgresql server is not permitted", "not permitted to run as root", "running as root is not", "running as root without", "can't run as root", "cannot run as root", "run as root without", "please run as a non-root"); ok && l.User == "" {
		const why = "the program refuses to run as root"
		for _, u := range []struct{ word, name string }{{"initdb", "postgres"}, {"postgres", "postgres"}, {"pg_", "postgres"}, {"mysqld", "mysql"}, {"mariadb", "mysql"}, {"elasticsearch", "elasticsearch"}} {
			if l.says(u.word) || strings.Contains(strings.Join(l.Argv, " "), u.word) {
				l.add(why, line, Change{"user", u.name})
				break
			}
		}
		l.add(why, line, Change{"user", "nobody"})
		l.add(why, line, Change{"user", "1000:1000"})
	}
	const why = "root of the box has no capabilities"
	caps := func(line string, names ...string) {
		var set []Change
		for _, n := range names {
			set = append(set, Change{"cap-add", n})
		}
		l.add(why, line, set...)
	}
	line, ok := l.any("operation not permitted", "permission denied", "eperm", "eacces", "not permitted", "os error 13", "os error 1)", "setresuid", "setgid", "setuid", "lacks privilege", "must be root", "are you root", "permission to capture", "permission to perform")
	if !ok {
		if line, ok = l.line("chown", "invalid argument"); !ok {
			return
		}
	}
	switch {
	case l.says("chown", "changing ownership", "lchown", "change owner", "cannot change ownership", "preserve ownership"):
		caps(line, "CHOWN")
		caps(line, "CHOWN", "DAC_OVERRIDE", "FOWNER")
	case l.says("setuid", "setgid", "setgroups", "setresuid", "setreuid", "setegid", "seteuid", "initgroups"):
		caps(line, "SETUID", "SETGID")
	case l.says("rtnetlink"):
		caps(line, "NET_ADMIN")
	case l.says("socket", "raw", "icmp", "ping", "capture"):
		caps(line, "NET_RAW")
	case l.says("bind"):
		caps(line, "NET_BIND_SERVICE")
	case l.says("chroot"):
		caps(line, "SYS_CHROOT")
	case l.says("setpriority", "nice"):
		caps(line, "SYS_NICE")
	case l.says("chmod", "changing permissions", "utime", "preserving times"):
		caps(line, "FOWNER")
	case l.says("permission denied", "eacces", "os error 13"):
		caps(line, "DAC_OVERRIDE")
	case l.says("kill"):
		caps(line, "KILL")
	}
	l.add(why, line, Change{"cap-drop", "none"})
}
