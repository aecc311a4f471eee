package kernbin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// tempPrefix marks files that are not finished yet.
const tempPrefix = ".tmp-"

// privateDir makes sure that only we and root can put files into the directory
// at path, or swap it for another one, and gives its real path. The directory
// is made 0700 when create is set and it does not exist. Links on the way to it
// are followed, the last name may not be one: in /tmp somebody else may have
// made it.
func privateDir(path string, create bool) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%s is not an absolute path", strconv.QuoteToGraphic(path))
	}
	path = filepath.Clean(path)
	if path == "/" {
		return "", errors.New("/ cannot be private")
	}
	parent, err := trustedDir(filepath.Dir(path), create)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(parent, filepath.Base(path))
	return dir, ownDir(dir, create)
}

// trustedDir gives the real path of a directory that nobody but us and root can
// swap. With create, what is missing of it is made, inside what is trusted.
func trustedDir(path string, create bool) (string, error) {
	real := path
	err := trustedPath(path)
	if errors.Is(err, errLink) { // rare: so the way without links is walked once
		if real, err = filepath.EvalSymlinks(path); err == nil {
			err = trustedPath(real)
		}
	}
	if create && errors.Is(err, fs.ErrNotExist) && path != "/" {
		parent, err := trustedDir(filepath.Dir(path), true)
		if err != nil {
			return "", err
		}
		err = os.Mkdir(filepath.Join(parent, filepath.Base(path)), 0o700)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		return trustedDir(path, false)
	}
	return real, err
}

var errLink = errors.New("is a symbolic link")

// trustedPath checks a clean path from the root down: whoever may rename a
// directory on it could put another kern where ours was, between our look at
// it and its start. A link on it is errLink: its owner is not what counts.
func trustedPath(path string) error {
	var root uint32
	for i := 0; i <= len(path); i++ {
		if i < len(path) && path[i] != '/' {
			continue
		}
		name := path[:max(i, 1)]
		st, err := lstat(name)
		if err != nil {
			return err
		}
		if i == 0 {
			root = st.Uid
		}
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return errLink
		}
		// The owner of / stands for root where root itself has no number, as
		// in a user namespace that maps only the caller.
		if st.Uid != 0 && st.Uid != root && int(st.Uid) != os.Geteuid() {
			return fmt.Errorf("%s belongs to uid %d", name, st.Uid)
		}
		// A group of one's own is the usual umask 002 setup.
		open := st.Mode & 0o002
		if st.Gid != 0 && int(st.Gid) != os.Getegid() {
			open |= st.Mode & 0o020
		}
		if open != 0 && st.Mode&unix.S_ISVTX == 0 {
			return fmt.Errorf("%s can be written by others (mode %04o)", name, st.Mode&0o7777)
		}
	}
	return nil
}

// ownDir checks, and with create makes, one directory whose parent is trusted.
func ownDir(dir string, create bool) error {
	st, err := lstat(dir)
	if create && errors.Is(err, fs.ErrNotExist) {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		st, err = lstat(dir)
	}
	switch {
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return fmt.Errorf("%s is a symbolic link", dir)
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is not a directory", dir)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to uid %d", dir, st.Uid)
	case st.Mode&0o022 != 0:
		// Not repaired: what lies in it may be somebody else's already.
		return fmt.Errorf("%s can be written by others (mode %04o)", dir, st.Mode&0o7777)
	case st.Mode&0o777 != 0o700 && create:
		return os.Chmod(dir, 0o700)
	}
	return nil
}
