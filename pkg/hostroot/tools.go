package hostroot

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// credentials are names below a home directory that hold secrets
// (reference: the SDK's mount rules), also as the parts of a pair.
var credentials = []string{
	".ssh", ".aws", ".gnupg", ".kube", ".docker", ".azure", ".password-store", ".netrc", ".git-credentials",
	".pypirc", ".npmrc", ".oci", ".terraform.d", ".databrickscfg", ".boto", ".s3cfg", ".rclone.conf",
	".config/gcloud", ".config/gh", ".config/doctl", ".config/rclone",
}

// tokenFiles are files that package managers keep in their own prefix. They are
// covered by an empty file: without that nobody who publishes crates could
// bring cargo.
var tokenFiles = []string{"credentials", "credentials.toml", "etc/npmrc", "pip.conf"}

// never are places that are not the prefix of a tool, nor is anything in them.
var never = []string{"/etc", "/proc", "/sys", "/dev", "/boot", "/run", "/var/run"}

// neverWhole are places that hold more than one tool, or other people.
var neverWhole = []string{
	"/", "/home", "/root", "/var", "/var/lib", "/var/cache", "/var/log", "/var/spool", "/var/tmp", "/var/mail",
	"/tmp", "/mnt", "/media", "/srv", "/lost+found",
}

// stores are package stores whose programs need their neighbours.
var stores = []string{"/nix/store", "/gnu/store"}

// tools adds what the tools need to v and r, and returns their directories for
// PATH.
func (h host) tools(o Options, v *view, dir string, r *Root) (bins []string, err error) {
	for _, name := range o.Tools {
		t := &tool{host: h, o: o, v: v, name: name}
		if err := t.find(); err != nil {
			return nil, err
		}
		for _, p := range t.prefixes {
			if v.visible(p) {
				continue
			}
			v.prefixes = append(v.prefixes, p)
		}
		bins = append(bins, t.bins...)
	}
	for _, p := range outermost(v.prefixes) {
		r.Mounts = append(r.Mounts, Mount{h.at(p), p})
	}
	var masked []string
	for _, p := range v.prefixes {
		for _, f := range tokenFiles {
			var st unix.Stat_t
			real, err := h.resolve(p+"/"+f, &st, nil)
			if err != nil || kind(&st) != unix.S_IFREG || !below(real, p) || slices.Contains(masked, real) {
				continue
			}
			masked = append(masked, real)
			r.Mounts = append(r.Mounts, Mount{filepath.Join(dir, "nothing"), real})
		}
	}
	return bins, nil
}

// outermost drops what lies in another one of the list.
func outermost(list []string) []string {
	var out []string
	for i, p := range list {
		inner := false
		for j, q := range list {
			inner = inner || i != j && below(p, q) && (p != q || j < i)
		}
		if !inner {
			out = append(out, p)
		}
	}
	return out
}

// tool is one --host-tool on its way to what it needs.
type tool struct {
	host
	o        Options
	v        *view
	name     string
	prefixes []string
	bins     []string
}

func (t *tool) refuse(reason, fix string) error {
	return &validate.Error{Field: "--host-tool", Value: t.name, Reason: reason, Fix: fix}
}

func (t *tool) find() error {
	found, err := t.lookup()
	if err != nil {
		return err
	}
	real, ok := t.program(found)
	if !ok {
		return t.refuse("cannot be followed to a program", "name another file")
	}
	base := filepath.Base(found)
	if err := t.shim(found, real, base); err != nil {
		return err
	}
	var st unix.Stat_t
	at, err := t.resolve(filepath.Dir(found), &st, nil)
	if err != nil {
		return t.refuse("cannot be followed: "+err.Error(), "name another file")
	}
	first, own := t.prefix(at), filepath.Dir(real)
	there, same := t.program(filepath.Join(own, base))
	same = same && there == real
	if below(real, first) && (!same || t.v.visible(at) || t.unfit(first) == "") {
		return t.add(at, first)
	}
	// The file is a link into another prefix. When the program can be started
	// from there by the same name, only that one is needed: this is what
	// keeps ~/bin and ~/.local/bin out of the box. A virtual environment is
	// the exception, its interpreter is always a link.
	env := t.lstat(filepath.Join(first, "pyvenv.cfg"), &st) == nil
	if same && !env {
		return t.add(own, t.prefix(own))
	}
	if !t.v.visible(at) {
		if reason := t.unfit(first); reason != "" {
			return t.refuse("is a link in "+strconv.QuoteToGraphic(first)+", "+reason, "name the program itself: --host-tool "+strconv.QuoteToGraphic(real))
		}
	}
	if err := t.add(at, first); err != nil {
		return err
	}
	if err := t.add(own, t.prefix(own)); err != nil {
		return err
	}
	// In the box every link on the way must exist as well.
	broken := ""
	_, err = t.resolve(filepath.Join(at, base), &st, func(link string) {
		if broken == "" && !t.sees(link) && !t.v.reaches(link) {
			broken = link
		}
	})
	if err != nil || broken != "" {
		return t.refuse("leads through the link "+strconv.QuoteToGraphic(broken)+", which the box would not have", "name the program itself: --host-tool "+strconv.QuoteToGraphic(real))
	}
	return nil
}

func (t *tool) sees(p string) bool {
	for _, x := range t.prefixes {
		if below(p, x) {
			return true
		}
	}
	return t.v.visible(p)
}

// lookup finds the file that the caller's shell would start.
func (t *tool) lookup() (string, error) {
	n := t.name
	if n == "" || n == "." || n == ".." || strings.HasPrefix(n, "-") || strings.ContainsFunc(n, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", t.refuse("not the name of a tool", "write a name like node, or an absolute path")
	}
	if strings.Contains(n, "/") {
		if !strings.HasPrefix(n, "/") || filepath.Clean(n) != n {
			return "", t.refuse("neither a name nor a clean absolute path", "write a name like node, or the absolute path without . and ..")
		}
		if _, ok := t.program(n); !ok {
			return "", t.refuse("there is no program that you may run at this path", "name an executable file")
		}
		return n, nil
	}
	var looked []string
	for dir := range strings.SplitSeq(t.o.Path, ":") {
		if !strings.HasPrefix(dir, "/") {
			continue
		}
		p := filepath.Join(dir, n)
		if _, ok := t.program(p); ok {
			return p, nil
		}
		looked = append(looked, filepath.Dir(p))
	}
	where := "PATH has no absolute directory to look in"
	if len(looked) > 0 {
		more := ""
		if len(looked) > 12 {
			more = fmt.Sprintf(" and %d more", len(looked)-12)
			looked = looked[:12]
		}
		where = "looked in " + strings.Join(looked, ", ") + more
	}
	return "", t.refuse("not found: "+where, "write the absolute path of the program")
}

// prefix gives what has to be brought for a program in the directory dir.
func (t *tool) prefix(dir string) string {
	for _, s := range stores {
		if below(dir, s) {
			return s
		}
	}
	switch filepath.Base(dir) {
	case "bin", "sbin":
		return filepath.Dir(dir)
	}
	return dir
}

// add brings prefix, and bin on PATH.
func (t *tool) add(bin, prefix string) error {
	if !t.v.visible(bin) {
		if reason := t.unfit(prefix); reason != "" {
			return t.refuse("would bring "+strconv.QuoteToGraphic(prefix)+", "+reason, "install the tool in a directory of its own, or mount what it needs with --volume SRC:DST:ro")
		}
		t.prefixes = append(t.prefixes, prefix)
	}
	t.bins = append(t.bins, bin)
	return nil
}

// unfit says why a prefix, a path without links, is not brought.
func (t *tool) unfit(p string) string {
	for _, n := range never {
		if below(p, n) {
			return "which lies in " + n
		}
	}
	for _, n := range neverWhole {
		if p == n {
			return "which is more than one tool"
		}
	}
	if filepath.Dir(p) == "/home" {
		return "which is a home directory"
	}
	for _, tree := range append([]string{"/usr", "/opt"}, t.v.roots...) {
		if below(tree, p) {
			return "which is more than one tool"
		}
	}
	var st unix.Stat_t
	if t.o.Home != "" {
		home := filepath.Clean(t.o.Home)
		for _, hm := range []string{home, t.follow(home)} {
			if below(hm, p) {
				return "which holds your home directory"
			}
		}
	}
	for _, s := range t.state() {
		if below(s, p) || below(p, s) {
			return "which overlaps " + strconv.QuoteToGraphic(s)
		}
	}
	for _, c := range credentials {
		// The end of p may be the beginning of a pair (~/.config).
		if strings.Contains(p+"/", "/"+c+"/") {
			return "which lies in a directory for credentials"
		}
		if t.lstat(p+"/"+c, &st) == nil {
			return "which holds " + c
		}
		if head, tail, pair := strings.Cut(c, "/"); pair && filepath.Base(p) == head && t.lstat(p+"/"+tail, &st) == nil {
			return "which holds " + c
		}
	}
	for _, d := range []string{"/tmp", "/workspace"} {
		if below(p, d) {
			return "which the box has a " + d + " of its own in front of"
		}
	}
	return t.exchangeable(p)
}

func (t *tool) follow(p string) string {
	var st unix.Stat_t
	if real, err := t.resolve(p, &st, nil); err == nil {
		return real
	}
	return p
}

// state lists where kern and kern-sbx keep what a box must not read: caches,
// registries, the environment of other runs (rules.md S5).
func (t *tool) state() []string {
	var out []string
	add := func(p string) {
		if filepath.IsAbs(p) {
			p = filepath.Clean(p)
			out = append(out, p)
			if real := t.follow(p); real != p {
				out = append(out, real)
			}
		}
	}
	add(t.o.Cache)
	dirs := []string{
		os.Getenv("XDG_CACHE_HOME"), os.Getenv("XDG_CONFIG_HOME"), os.Getenv("XDG_DATA_HOME"), os.Getenv("XDG_STATE_HOME"),
		os.Getenv("XDG_RUNTIME_DIR"),
	}
	if t.o.Home != "" {
		for _, d := range []string{".cache", ".config", ".local/share", ".local/state"} {
			dirs = append(dirs, filepath.Join(t.o.Home, d))
		}
	}
	for _, d := range dirs {
		if d == "" {
			continue
		}
		for _, n := range []string{"kern", "kern-sbx"} {
			// The directory need not exist yet; its parent may be a link.
			add(filepath.Join(t.follow(d), n))
			add(filepath.Join(d, n))
		}
	}
	return out
}

// exchangeable says who, other than us and root, could put something else in
// the place of p while it is being mounted (rules.md F3).
func (t *tool) exchangeable(p string) string {
	var st, child unix.Stat_t
	if err := t.lstat(p, &child); err != nil {
		return "which cannot be looked at: " + err.Error()
	}
	uid, gid := os.Geteuid(), os.Getegid()
	for dir := filepath.Dir(p); ; dir = filepath.Dir(dir) {
		if err := t.lstat(dir, &st); err != nil {
			return "which cannot be looked at: " + err.Error()
		}
		if st.Uid != 0 && int(st.Uid) != uid {
			return fmt.Sprintf("which uid %d, the owner of %q, could exchange for something else", st.Uid, dir)
		}
		// A group of the user's own, as most distributions make them, is
		// nobody else.
		private := int(st.Gid) == gid && gid == uid
		if st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && !private && st.Gid != 0 {
			sticky := st.Mode&unix.S_ISVTX != 0 && (child.Uid == 0 || int(child.Uid) == uid)
			if !sticky {
				return fmt.Sprintf("which others could exchange for something else, as they can write to %q", dir)
			}
		}
		if dir == "/" {
			return ""
		}
		child = st
	}
}

// shim refuses files that only look up, at run time, which program to start:
// they do not work away from the version manager's own files.
func (t *tool) shim(found, real, name string) error {
	var what string
	var where []string
	switch manager := filepath.Base(real); {
	case filepath.Base(filepath.Dir(found)) == "shims":
		root := filepath.Dir(filepath.Dir(found))
		what = "a shim of the version manager in " + root
		where = []string{root + "/versions/*/bin/", root + "/installs/*/*/bin/"}
	case filepath.Base(filepath.Dir(real)) == "shims":
		root := filepath.Dir(filepath.Dir(real))
		what = "a shim of the version manager in " + root
		where = []string{root + "/versions/*/bin/", root + "/installs/*/*/bin/"}
	case manager == "rustup" && name != "rustup":
		what = "a launcher of rustup"
		where = []string{filepath.Dir(t.prefix(filepath.Dir(real))) + "/.rustup/toolchains/*/bin/"}
		if t.o.Home != "" {
			where = append(where, t.o.Home+"/.rustup/toolchains/*/bin/")
		}
	case manager == "volta-shim":
		what = "a shim of Volta"
		where = []string{t.o.Home + "/.volta/tools/image/*/*/bin/"}
	case manager == "snap" && name != "snap":
		what = "a launcher of snap"
		where = []string{"/snap/" + name + "/current/bin/", "/snap/" + name + "/current/usr/bin/"}
	default:
		return nil
	}
	fix := "write the absolute path of the program itself"
	var paths []string
	for _, pattern := range where {
		// The root is a path, not a pattern, so its own characters are quoted.
		head, tail, _ := strings.Cut(pattern, "/*")
		if tail != "" || strings.HasSuffix(pattern, "/*") {
			pattern = quoteGlob(t.at(head)) + "/*" + tail
		} else {
			pattern = quoteGlob(t.at(pattern))
		}
		hits, _ := filepath.Glob(pattern + quoteGlob(name))
		slices.SortFunc(hits, func(a, b string) int { return strings.Compare(versions(b), versions(a)) })
		for _, p := range hits { // the newest first
			if len(paths) == 3 {
				break
			}
			p = strings.TrimPrefix(p, strings.TrimSuffix(t.root, "/"))
			if _, ok := t.program(p); ok && !slices.Contains(paths, p) {
				paths = append(paths, p)
			}
		}
	}
	if len(paths) > 0 {
		fix = "write the path of one of its programs, like " + strings.Join(paths, " or ")
	}
	return t.refuse(what+", which picks a program only when it runs", fix)
}

// versions pads the numbers in s, so that 3.9 sorts before 3.12.
func versions(s string) string {
	var b strings.Builder
	for s != "" {
		rest := strings.TrimLeft(s, "0123456789")
		if digits := s[:len(s)-len(rest)]; digits != "" {
			b.WriteString(strings.Repeat("0", max(0, 10-len(digits))) + digits)
			s = rest
			continue
		}
		b.WriteByte(s[0])
		s = s[1:]
	}
	return b.String()
}

func quoteGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(s)
}
