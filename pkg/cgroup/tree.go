package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// system is the machine as this package sees it; tests have others.
type system struct {
	root         string // put before every path; empty on a real machine
	euid         int
	mkdir, rmdir func(path string) error
	access       func(path string) error // nil where we may write
}

var host = &system{
	euid:   os.Geteuid(),
	mkdir:  func(p string) error { return unix.Mkdir(p, 0o755) },
	rmdir:  unix.Rmdir,
	access: func(p string) error { return unix.Faccessat(unix.AT_FDCWD, p, unix.W_OK, unix.AT_EACCESS) },
}

// tree is one mounted cgroup hierarchy.
type tree struct {
	v2          bool
	key         string   // the controller list in /proc/PID/cgroup; empty for v2
	controllers []string // what it can cap
	mount       string   // where it is mounted
	own         string   // directory of our own cgroup, empty when not visible
}

// find prefers a v1 tree: a controller is in one tree only, and where both
// kinds are mounted the unified one has what is left over.
func find(trees []*tree, controller string) *tree {
	var found *tree
	for _, t := range trees {
		if slices.Contains(t.controllers, controller) && (found == nil || found.v2) {
			found = t
		}
	}
	return found
}

// trees lists what is mounted, each hierarchy once.
func (s *system) trees() ([]*tree, error) {
	self, err := s.membership("self")
	if err != nil {
		return nil, errors.New("this kernel has no cgroups, or /proc does not show them")
	}
	b, err := os.ReadFile(s.root + "/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cannot see what is mounted: %w", err)
	}
	var out []*tree
	for line := range bytes.Lines(b) {
		m, ok := parseMount(string(line))
		if !ok {
			continue
		}
		t := &tree{v2: m.fstype == "cgroup2", mount: s.root + m.point}
		path, known := self[""]
		if !t.v2 {
			t.key, path, known = keyOf(self, m.options)
		}
		if !known {
			continue
		}
		if rel, ok := relative(path, m.root); ok {
			t.own = strings.TrimSuffix(t.mount+rel, "/")
		}
		out = keep(out, t)
	}
	for _, t := range out {
		t.controllers = strings.Split(t.key, ",")
		if t.v2 {
			list, _ := readFile(t.mount + "/cgroup.controllers")
			t.controllers = strings.Fields(list)
		}
	}
	return out, nil
}

// keep adds a tree to the list. A later mount at the same place hides the
// earlier one; of several places the first that shows our own cgroup counts.
func keep(list []*tree, t *tree) []*tree {
	for i, o := range list {
		if o.v2 == t.v2 && o.key == t.key {
			if o.mount == t.mount || o.own == "" {
				list[i] = t
			}
			return list
		}
	}
	return append(list, t)
}

// keyOf finds the hierarchy of /proc/self/cgroup that a v1 mount with these
// options shows.
func keyOf(self map[string]string, options string) (key, path string, ok bool) {
	opts := strings.Split(options, ",")
	for key, path := range self {
		if key != "" && !strings.Contains(key, "=") && !slices.ContainsFunc(strings.Split(key, ","), func(c string) bool { return !slices.Contains(opts, c) }) {
			return key, path, true
		}
	}
	return "", "", false
}

// relative makes a cgroup's path relative to the root of a mount. A path outside
// our cgroup namespace starts with "/..", and cannot be reached through it.
func relative(path, root string) (string, bool) {
	switch {
	case strings.HasPrefix(path, "/..") || strings.HasPrefix(root, "/.."):
		return "", false
	case root == "/":
		return path, true
	case path == root || strings.HasPrefix(path, root+"/"):
		return path[len(root):], true
	default:
		return "", false
	}
}

// mountLine is what is needed of a line of mountinfo(5).
type mountLine struct {
	root, point, fstype, options string
}

// parseMount reads a line of mountinfo; ok only for a cgroup tree.
func parseMount(line string) (m mountLine, ok bool) {
	front, back, ok := strings.Cut(line, " - ")
	if !ok {
		return m, false
	}
	f, b := strings.Fields(front), strings.Fields(back)
	if len(f) < 6 || len(b) < 3 || (b[0] != "cgroup" && b[0] != "cgroup2") {
		return m, false
	}
	m = mountLine{unescape(f[3]), unescape(f[4]), b[0], b[2]}
	return m, strings.HasPrefix(m.point, "/")
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// membership reads /proc/PID/cgroup: a path for each tree, by its controller
// list.
func (s *system) membership(pid string) (map[string]string, error) {
	text, err := readFile(s.root + "/proc/" + pid + "/cgroup")
	if err != nil {
		return nil, err
	}
	return parseMembership(text), nil
}

func parseMembership(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.SplitSeq(text, "\n") {
		f := strings.SplitN(line, ":", 3)
		if len(f) == 3 && strings.HasPrefix(f[2], "/") {
			out[f[1]] = f[2]
		}
	}
	return out
}

// explain turns what the kernel said into a reason for people.
func (t *tree) explain(err error, dir string) error {
	where := t.rel(dir)
	switch {
	case errors.Is(err, unix.EROFS):
		return errors.New("the cgroup tree is mounted read-only")
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("cgroup %s belongs to another user", where)
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("cgroup %s has as many below it as it may", where)
	default:
		return fmt.Errorf("no cgroup can be made in %s: %w", where, err)
	}
}

// rel is a directory as the kernel calls it, for people.
func (t *tree) rel(dir string) string {
	if r := strings.TrimPrefix(dir, t.mount); r != "" {
		return r
	}
	return "/"
}

// searchLimit bounds how many directories are looked at.
const searchLimit = 20000

// search finds the directories of a group in a tree. The one that made it may
// have been in another cgroup than we are, so where it is not beside us, the
// whole tree is looked through.
func (s *system) search(t *tree, name string) []string {
	var out []string
	look := func(parent string) {
		var st syscall.Stat_t
		dir := parent + "/" + name
		if syscall.Lstat(dir, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFDIR && int(st.Uid) == s.euid && !slices.Contains(out, dir) {
			out = append(out, dir)
		}
	}
	if len(t.controllers) == 0 {
		return nil
	}
	if t.own != "" {
		for _, p := range append(t.above(), t.own) {
			look(p)
		}
	}
	if len(out) == 0 {
		below(t.mount, look)
	}
	return out
}

// below calls f for a directory and all below it, the deepest first.
func below(dir string, f func(string)) {
	n := 0
	var walk func(string)
	walk = func(d string) {
		entries, _ := os.ReadDir(d)
		for _, e := range entries {
			if e.IsDir() && n < searchLimit {
				n++
				walk(d + "/" + e.Name())
			}
		}
		f(d)
	}
	walk(dir)
}

// children lists the processes that a process has forked, by any of its
// threads.
func (s *system) children(pid int) []int {
	var out []int
	id := strconv.Itoa(pid)
	threads, _ := os.ReadDir(s.root + "/proc/" + id + "/task")
	known := false
	for _, t := range threads {
		text, err := readFile(s.root + "/proc/" + id + "/task/" + t.Name() + "/children")
		known = known || err == nil
		for _, f := range strings.Fields(text) {
			if n, err := strconv.Atoi(f); err == nil {
				out = append(out, n)
			}
		}
	}
	if known || len(threads) == 0 {
		return out
	}
	// A kernel built without CONFIG_PROC_CHILDREN.
	entries, _ := os.ReadDir(s.root + "/proc")
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, _ := readFile(s.root + "/proc/" + e.Name() + "/stat")
		// The name is in parentheses and may hold anything.
		if _, rest, ok := cutLast(stat, ")"); ok {
			if f := strings.Fields(rest); len(f) > 1 && f[1] == id {
				out = append(out, n)
			}
		}
	}
	return out
}

// alive says whether a process is there and not a zombie.
func (s *system) alive(pid int) bool {
	stat, err := readFile(s.root + "/proc/" + strconv.Itoa(pid) + "/stat")
	_, rest, ok := cutLast(stat, ") ")
	return err == nil && ok && !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
