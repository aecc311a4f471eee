package hostroot

import (
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// usualPath ends every PATH of a box.
var usualPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// boxPath makes the PATH of the box: the directories of the tools, those of
// the caller's that exist in the box, then the usual ones.
func (h host) boxPath(caller string, bins []string, v *view) string {
	out := make([]string, 0, len(bins)+len(usualPath)+8)
	add := func(p string) {
		for _, have := range out {
			if have == p {
				return
			}
		}
		out = append(out, p)
	}
	for _, p := range bins {
		add(p)
	}
	for p := range strings.SplitSeq(caller, ":") {
		if !strings.HasPrefix(p, "/") {
			continue
		}
		if p = filepath.Clean(p); h.inBox(p, v) {
			add(p)
		}
	}
	for _, p := range usualPath {
		add(p)
	}
	return strings.Join(out, ":")
}

// inBox reports whether p, spelled as it is, is a directory in the box.
func (h host) inBox(p string, v *view) bool {
	if !v.reaches(p) {
		return false
	}
	real, ok := h.directory(p)
	return ok && v.visible(real)
}

// directory resolves a clean path to a directory. Mostly there is no link in
// it, and one system call says so.
func (h host) directory(p string) (string, bool) {
	fd, err := unix.Openat2(unix.AT_FDCWD, h.at(p), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	switch err {
	case nil:
		unix.Close(fd)
		return p, true
	case unix.ENOENT, unix.ENOTDIR:
		return "", false
	}
	var st unix.Stat_t
	real, err := h.resolve(p, &st, nil)
	return real, err == nil && kind(&st) == unix.S_IFDIR
}

// reaches reports whether p is spelled by a name that the box has: links
// anywhere else on the host do not exist there. It touches no file.
func (v *view) reaches(p string) bool {
	for _, l := range v.links {
		if strings.Count(l[0], "/") == 1 && below(p, l[0]) {
			return true
		}
	}
	return v.visible(p)
}

// Outside tells where the caller finds the program name, when that is a place
// that the host root does not bring: the text for "it is on the host, but not
// in the box". It is "" when name is not found, or is also found in what the
// box has. name may be an absolute path; a relative one is never found.
func Outside(name, path string) string { return host{"/"}.outside(name, path) }

func (h host) outside(name, path string) string {
	if name == "" || strings.ContainsRune(name, 0) {
		return ""
	}
	v, err := h.look(Options{})
	if err != nil {
		return ""
	}
	if strings.Contains(name, "/") {
		if real, ok := h.program(name); ok && !(v.visible(real) && v.reaches(filepath.Clean(name))) {
			return name
		}
		return ""
	}
	found := ""
	for dir := range strings.SplitSeq(path, ":") {
		if !strings.HasPrefix(dir, "/") {
			continue
		}
		p := filepath.Join(dir, name)
		real, ok := h.program(p)
		if !ok {
			continue
		}
		if v.reaches(p) && v.visible(real) {
			return ""
		}
		if found == "" {
			found = p
		}
	}
	return found
}

// program resolves p when it is an absolute path to a regular file that we may
// execute.
func (h host) program(p string) (string, bool) {
	if !strings.HasPrefix(p, "/") {
		return "", false
	}
	var st unix.Stat_t
	real, err := h.resolve(p, &st, nil)
	if err != nil || kind(&st) != unix.S_IFREG || st.Mode&0o111 == 0 {
		return "", false
	}
	return real, unix.Faccessat(unix.AT_FDCWD, h.at(real), unix.X_OK, unix.AT_EACCESS) == nil
}
