package hostroot

import (
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Mount is one bind the box needs beside the skeleton. Every mount is
// read-only. Source is a path on the host, Target the path in the box; both are
// absolute, and no component of Target is a symbolic link in the box, because
// kern refuses those. A Source can be a directory or a regular file.
type Mount struct{ Source, Target string }

// Root is a root file system that is ready to be used.
type Root struct {
	// Dir is the skeleton directory, for kern's --rootfs. It is shared by all
	// boxes of this user and must only be used read-only.
	Dir string
	// Mounts are the binds to make, in this order: a later one may lie below,
	// or cover a part of, an earlier one.
	Mounts []Mount
	// Path is the value of PATH for the box.
	Path string
	// ID names what the root was made of: "host:debian-12:" and 16 hex digits
	// that change when a package is installed or the skeleton changes
	// (rules.md F6).
	ID string
}

// Options says for whom, and with what, a root is prepared.
type Options struct {
	// Cache is our own cache directory, absolute. Skeletons are kept in
	// Cache/hostroot. It is created (0700) when missing, and refused when it is
	// a link, is not ours, or can be written by others.
	Cache string
	// Tools are the values of --host-tool: names to look up on Path, or
	// absolute paths.
	Tools []string
	// Path is the caller's PATH.
	Path string
	// Home is the caller's home directory, "" when unknown. It is never
	// brought, even when it lies below /usr or /opt.
	Home string
	// UID is the caller's uid. For 0 /usr/local/etc is left out, because root
	// in the box also reads files there that only root may read (rules.md F10).
	UID int
}

// host is the machine that is looked at: root is "/" and only tests change it.
// Its methods take and return paths as seen with root as "/".
type host struct{ root string }

func (h host) at(p string) string {
	if h.root == "/" {
		return p
	}
	return h.root + p
}

func (h host) lstat(p string, st *unix.Stat_t) error {
	return lstat(h.at(p), st)
}

func lstat(p string, st *unix.Stat_t) error {
	for {
		if err := unix.Lstat(p, st); err != unix.EINTR {
			return err
		}
	}
}

func kind(st *unix.Stat_t) uint32 { return st.Mode & unix.S_IFMT }

// Prepare returns the root for `--image host`, and builds its skeleton when
// there is none for the present state of the host. A refusal is a
// *validate.Error (fields --image and --host-tool), anything else a plain error
// of one line.
//
// It touches the directories of o.Path below /usr and /opt, and with tools all
// of them: where one lies on a dead network mount it blocks, so call it under
// the start budget (rules.md, facts 5).
func Prepare(o Options) (*Root, error) { return host{"/"}.prepare(o) }

func (h host) prepare(o Options) (*Root, error) {
	if err := h.supported(); err != nil {
		return nil, err
	}
	base, err := cacheDir(o.Cache)
	if err != nil {
		return nil, err
	}
	v, err := h.look(o)
	if err != nil {
		return nil, err
	}
	key, err := h.key(v, o)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(base, key)
	if !reuse(dir) {
		if err := h.build(base, key, v); err != nil {
			return nil, fmt.Errorf("cannot build the root for --image host: %w", err)
		}
	}
	r := &Root{Dir: filepath.Join(dir, "root"), Mounts: v.mounts}
	if o.UID == 0 {
		var st unix.Stat_t
		// The target has to be free of links; a link that leaves what is
		// brought needs no cover.
		if real, err := h.resolve("/usr/local/etc", &st, nil); err == nil && kind(&st) == unix.S_IFDIR && v.visible(real) {
			r.Mounts = append(r.Mounts, Mount{filepath.Join(dir, "empty"), real})
		}
	}
	bins, err := h.tools(o, v, dir, r)
	if err != nil {
		return nil, err
	}
	r.Path = h.boxPath(o.Path, bins, v)
	r.ID = h.id(key)
	return r, nil
}

// supported refuses hosts whose programs do not live in /usr.
func (h host) supported() error {
	refuse := func(reason string) error {
		return &validate.Error{Field: "--image", Value: "host", Reason: reason, Fix: "use --image REF or --rootfs DIR"}
	}
	var st unix.Stat_t
	if h.lstat("/etc/NIXOS", &st) == nil {
		return refuse("this host is NixOS, whose programs are in /nix/store and not in /usr")
	}
	if h.lstat("/usr/lib", &st) != nil && h.lstat("/gnu/store", &st) == nil {
		return refuse("this host is Guix, whose programs are in /gnu/store and not in /usr")
	}
	if h.lstat("/usr", &st) != nil || kind(&st) != unix.S_IFDIR {
		return refuse("this host has no directory /usr")
	}
	return nil
}

// topDirs exist, empty, in every skeleton: they are mount points of the box or
// places that programs expect. kern makes those that are missing in a layer that it
// has to delete again after each run.
var topDirs = []string{
	"usr", "etc", "proc", "sys", "sys/devices", "sys/fs", "sys/fs/cgroup", "dev", "tmp", "workspace", "root", "var", "run", "home", "mnt", "opt", "srv",
}

// topLinks are links into /usr on most hosts, and directories of their own on
// the others.
var topLinks = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// view is what of the host a box will see.
type view struct {
	roots    []string // trees that are brought, whole but for without
	without  []string // trees below them that are left out
	prefixes []string // trees brought by --host-tool
	mounts   []Mount
	links    [][2]string // links to make in the skeleton: path, target
	dirs     []string    // directories to make in the skeleton
	seen     []string    // directories whose change makes another skeleton
}

// below reports whether p is dir or lies in it. Both are clean.
func below(p, dir string) bool {
	return p == dir || dir == "/" || len(p) > len(dir) && p[len(dir)] == '/' && p[:len(dir)] == dir
}

// visible reports whether the box sees p, a path without links.
func (v *view) visible(p string) bool {
	for _, t := range v.prefixes {
		if below(p, t) {
			return true
		}
	}
	for _, t := range v.without {
		if below(p, t) {
			return false
		}
	}
	for _, t := range v.roots {
		if below(p, t) {
			return true
		}
	}
	return false
}

// look decides what is mounted, without the tools.
func (h host) look(o Options) (*view, error) {
	v := &view{}
	var st unix.Stat_t
	trees := append(make([]string, 0, len(topLinks)+2), "/usr")
	for _, name := range topLinks {
		p := "/" + name
		if h.lstat(p, &st) != nil {
			continue
		}
		switch kind(&st) {
		case unix.S_IFDIR:
			v.dirs = append(v.dirs, p)
			trees = append(trees, p)
		case unix.S_IFLNK:
			if t, err := os.Readlink(h.at(p)); err == nil {
				v.links = append(v.links, [2]string{p, t})
			}
		}
	}
	// A link at /opt would have to be followed, perhaps into a home directory.
	if h.lstat("/opt", &st) == nil && kind(&st) == unix.S_IFDIR && (st.Nlink > 2 || !emptyDir(h.at("/opt"))) {
		trees = append(trees, "/opt")
	}
	for _, p := range []string{o.Home, o.Cache} {
		v.leaveOut(h, p, trees)
	}
	inner, err := h.mountPoints(trees)
	if err != nil {
		return nil, err
	}
	inner = append(inner, v.without...)
	for _, t := range trees {
		if err := h.bind(t, inner, v); err != nil {
			return nil, err
		}
	}
	v.roots = trees
	return v, nil
}

func emptyDir(p string) bool {
	f, err := os.Open(p)
	if err != nil {
		return true // what we may not read, the box may not either
	}
	defer f.Close()
	names, _ := f.Readdirnames(1)
	return len(names) == 0
}

// leaveOut keeps a home or our own state out of the box when it lies below a
// tree that is brought, as the home of a service user does (/opt/jenkins). Many
// system users "live" in a directory that everybody needs; those stay.
func (v *view) leaveOut(h host, p string, trees []string) {
	if !filepath.IsAbs(p) {
		return
	}
	p = filepath.Clean(p)
	real, ok := h.directory(p)
	if !ok {
		return
	}
	for _, t := range trees {
		if real != t && below(real, t) && !systemDir(real) {
			v.without = append(v.without, real)
			return
		}
	}
}

func systemDir(p string) bool {
	if p == "/usr/local" {
		return true
	}
	switch filepath.Dir(p) {
	case "/usr", "/usr/local":
	default:
		return false
	}
	switch filepath.Base(p) {
	case "bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "share", "include", "games", "src":
		return true
	}
	return false
}

// etcSources are the parts of /etc that are copied, as far as they exist. They
// are named one by one, because next to them lie secrets (pki/entitlement,
// ssl/private). Names that end in * are prefixes.
var etcSources = []string{
	"alternatives",
	"ca-certificates.conf", "ca-certificates/extracted",
	"crypto-policies",
	"java", "java-*",
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d",
	"localtime",
	"maven",
	"mime.types",
	"os-release",
	"pki/ca-trust/extracted", "pki/java", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf", "pki/tls/openssl.d",
	"protocols",
	"python3*",
	"services",
	"ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf",
	"timezone",
}

// etcFacts are what is looked at to notice a change: etcSources, and places
// inside of them that tools and people change without a change of the
// directory named there. Where one is missing, what follows below it is too.
var etcFacts = []string{
	"alternatives",
	"ca-certificates.conf",
	"ca-certificates", "ca-certificates/extracted", "ca-certificates/extracted/tls-ca-bundle.pem",
	"crypto-policies", "crypto-policies/back-ends",
	"java",
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d",
	"localtime",
	"maven", "maven/settings.xml",
	"mime.types",
	"os-release",
	"pki", "pki/ca-trust/extracted", "pki/ca-trust/extracted/pem", "pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"pki/ca-trust/extracted/java", "pki/ca-trust/extracted/java/cacerts",
	"pki/java", "pki/tls", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf", "pki/tls/openssl.d",
	"protocols",
	"services",
	"ssl", "ssl/cert.pem", "ssl/certs", "ssl/certs/ca-certificates.crt", "ssl/certs/java", "ssl/certs/java/cacerts", "ssl/openssl.cnf",
	"timezone",
}

// layout is part of every key: another number is another skeleton.
const layout = "1"

// expand gives the names in /etc that etcSources means by its prefixes.
func (h host) expand() ([]string, error) {
	fd, err := unix.Open(h.at("/etc"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot read /etc: %w", err)
	}
	defer unix.Close(fd)
	var out []string
	names := make([]string, 0, 256)
	for b := make([]byte, 16<<10); ; {
		n, err := unix.Getdents(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read /etc: %w", err)
		}
		if n <= 0 {
			break
		}
		_, _, names = unix.ParseDirent(b[:n], -1, names[:0])
		for _, name := range names {
			for _, s := range etcSources {
				if prefix, ok := strings.CutSuffix(s, "*"); ok && strings.HasPrefix(name, prefix) {
					out = append(out, name)
					break
				}
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// key names the skeleton for the present state of the host. It hashes file
// times of what is copied, so it is cheap; the mode is in it because a file
// that became private must not stay in a skeleton.
func (h host) key(v *view, o Options) (string, error) {
	expanded, err := h.expand()
	if err != nil {
		return "", err
	}
	sum := fnv.New128a()
	b := make([]byte, 0, 4096)
	b = append(b, layout...)
	b = strconv.AppendBool(b, o.UID == 0)
	var st unix.Stat_t
	fact := func(p string) bool {
		b = append(append(b, 0), p...)
		if h.lstat(p, &st) != nil {
			return false
		}
		for _, n := range [...]int64{int64(st.Mode), int64(st.Ino), st.Size, int64(st.Mtim.Sec), int64(st.Mtim.Nsec)} {
			b = strconv.AppendInt(append(b, ' '), n, 36)
		}
		return true
	}
	gone := ""
	for _, p := range etcFacts {
		if gone != "" && below(p, gone) {
			continue
		}
		if !fact("/etc/" + p) {
			gone = p
		}
	}
	for _, p := range expanded {
		if fact("/etc/"+p) && strings.HasPrefix(p, "java-") {
			fact("/etc/" + p + "/security")
			fact("/etc/" + p + "/security/java.security")
		}
	}
	for _, p := range v.seen {
		fact(p)
	}
	for _, l := range v.links {
		b = append(append(append(append(b, 0), l[0]...), 0), l[1]...)
	}
	for _, d := range v.dirs {
		b = append(append(b, 0), d...)
	}
	_, _ = sum.Write(b)
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}

// packageDBs are files that every installation of a package rewrites, for
// dpkg, rpm (three generations), apk (two) and pacman.
var packageDBs = []string{
	"/var/lib/dpkg/status",
	"/usr/lib/sysimage/rpm/rpmdb.sqlite", "/var/lib/rpm/rpmdb.sqlite", "/var/lib/rpm/Packages",
	"/lib/apk/db/installed", "/usr/lib/apk/db/installed",
	"/var/lib/pacman/local",
}

func (h host) id(key string) string {
	sum := fnv.New64a()
	var st unix.Stat_t
	for _, p := range packageDBs {
		if h.lstat(p, &st) == nil {
			fmt.Fprintf(sum, "%s %d.%d:%d ", p, st.Mtim.Sec, st.Mtim.Nsec, st.Size)
			break
		}
	}
	_, _ = sum.Write([]byte(key))
	name := "unknown"
	for _, p := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		if text, ok := h.readSmall(p); ok {
			name = osRelease(text)
			break
		}
	}
	return fmt.Sprintf("host:%s:%016x", name, sum.Sum64())
}

// readSmall reads the beginning of a regular file, in as few system calls as
// there can be.
func (h host) readSmall(p string) (string, bool) {
	fd, err := unix.Open(h.at(p), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || kind(&st) != unix.S_IFREG {
		return "", false
	}
	b := make([]byte, 4096)
	n, err := unix.Read(fd, b)
	return string(b[:max(n, 0)]), err == nil
}

// osRelease gives "ID-VERSION_ID" (or "ID" for a rolling distribution) from
// the text of an os-release file, with nothing in it but [A-Za-z0-9._-].
func osRelease(text string) string {
	var id, version string
	for line := range strings.Lines(text) {
		k, val, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			continue
		}
		switch k {
		case "ID":
			id = plain(val)
		case "VERSION_ID":
			version = plain(val)
		}
	}
	if id == "" {
		id = "linux"
	}
	if version == "" {
		return id
	}
	return id + "-" + version
}

func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return -1
	}, s)
	return s[:min(len(s), 32)]
}
