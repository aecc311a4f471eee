package validate

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exchangeable refuses a mount source when somebody other than uid and root
// could put another file in its place between our check and kern's mount (rule
// F3). path is what SourceRules.Check resolved. Every directory on it, the
// source itself not counted, must belong to uid or root and be writable by
// nobody else. A sticky directory such as /tmp passes when the entry below it is
// uid's or root's, as nobody else can rename that. A group may write where it
// is root's, or uid's private group (the same number), without an ACL that names
// others: that is how umask 002 leaves the directories of most distributions.
func Exchangeable(path string, uid int) error {
	if !strings.HasPrefix(path, "/") {
		return refuse(path, "the source is not an absolute path", "write an absolute path")
	}
	const fix = "use a directory below your home, or make that one writable by you alone"
	dir, sticky := "/", false
	for rest := strings.Trim(path, "/"); ; {
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err != nil {
			return notFound(path, &os.PathError{Op: "lstat", Path: dir, Err: err})
		}
		ours := st.Uid == 0 || st.Uid == uint32(uid)
		switch {
		case st.Mode&unix.S_IFMT == unix.S_IFLNK:
			return refuse(path, quote(dir)+" is a symbolic link", "write the path it leads to")
		case sticky && !ours:
			return refuse(path, quote(dir)+" belongs to another user, who can put something else in its place", fix)
		}
		if rest == "" {
			return nil
		}
		switch {
		case st.Mode&unix.S_IFMT != unix.S_IFDIR:
			return notFound(path, syscall.ENOTDIR)
		case !ours:
			return refuse(path, quote(dir)+" belongs to another user, who can put something else in its place", fix)
		}
		sticky = false
		if open := st.Mode & 0o022; open&0o002 != 0 || (open != 0 && !privateGroup(dir, st.Gid, uid)) {
			if st.Mode&unix.S_ISVTX == 0 {
				return refuse(path, "others can write to "+quote(dir)+" and put something else in its place", fix)
			}
			sticky = true
		}
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		rest = strings.TrimLeft(rest, "/")
		dir = join(dir, name)
	}
}

// privateGroup reports whether write access of dir's group reaches nobody but
// uid and root.
func privateGroup(dir string, gid uint32, uid int) bool {
	if gid != 0 && gid != uint32(uid) {
		return false
	}
	// With an ACL the group bits are its mask, and say nothing about the group.
	_, err := unix.Lgetxattr(dir, "system.posix_acl_access", nil)
	return errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP)
}
