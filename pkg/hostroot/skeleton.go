package hostroot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of a skeleton. A file over maxFile is not something a toolchain
// reads and is left out; a skeleton over the others is refused, so that it is
// never a silent half.
const (
	maxFile    = 8 << 20
	maxBytes   = 64 << 20
	maxEntries = 20_000
	maxDepth   = 16
)

// etcFiles are generated: the box has its own users and no directory service.
var etcFiles = [][2]string{
	{"passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"},
	{"group", "root:x:0:\nnogroup:x:65534:\n"},
	{"hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"},
	{"nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n"},
}

// fill writes the skeleton into root, a fresh directory of ours that nobody
// else can enter.
func (h host) fill(root string, v *view) error {
	for _, d := range topDirs {
		if err := mkdir(filepath.Join(root, d)); err != nil {
			return err
		}
	}
	for _, d := range v.dirs { // parents come before children
		if err := mkdir(root + d); err != nil {
			return err
		}
	}
	for _, l := range v.links {
		if err := os.Symlink(l[1], root+l[0]); err != nil {
			return err
		}
	}
	for _, f := range etcFiles {
		if err := writeFile(filepath.Join(root, "etc", f[0]), []byte(f[1]), 0o644, time.Time{}); err != nil {
			return err
		}
	}
	expanded, err := h.expand()
	if err != nil {
		return err
	}
	etc, err := unix.Open(h.at("/etc"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open /etc: %w", err)
	}
	defer unix.Close(etc)
	c := &copier{}
	for _, s := range append(expanded, etcSources...) {
		if strings.HasSuffix(s, "*") {
			continue
		}
		if err := c.source(etc, s, filepath.Join(root, "etc")); err != nil {
			return fmt.Errorf("copying /etc/%s: %w", s, err)
		}
	}
	return nil
}

// mkdir makes a directory that everybody in the box can enter, whatever the
// umask. One that is there already is fine; a link is not.
func mkdir(p string) error {
	if err := os.Mkdir(p, 0o755); err != nil {
		var st unix.Stat_t
		if !errors.Is(err, os.ErrExist) || lstat(p, &st) != nil || kind(&st) != unix.S_IFDIR {
			return err
		}
		return nil
	}
	return os.Chmod(p, 0o755)
}

func writeFile(p string, data []byte, mode os.FileMode, mtime time.Time) error {
	f, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil && !mtime.IsZero() {
		// Python compares the time of a source with the one in its bytecode.
		err = os.Chtimes(p, mtime, mtime)
	}
	return err
}

// copier copies parts of /etc. It opens every component relative to its
// parent and never follows a link, so that what it copies is what it checked.
type copier struct {
	bytes   int64
	entries int
}

// source copies the path rel below the directory etc to dst/rel.
func (c *copier) source(etc int, rel, dst string) error {
	fd, depth := etc, 0
	defer func() {
		if fd != etc {
			unix.Close(fd)
		}
	}()
	for {
		name, rest, more := strings.Cut(rel, "/")
		if !more {
			return c.entry(fd, name, dst, depth)
		}
		// A parent: only this one path below it is wanted.
		dst = filepath.Join(dst, name)
		sub, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == unix.ELOOP || err == unix.ENOTDIR {
			// Links as a parent (/etc/ssl on some hosts) are copied as links.
			var st unix.Stat_t
			if lstat(dst, &st) == nil {
				return nil // it already was
			}
			return c.entry(fd, name, filepath.Dir(dst), depth)
		}
		if err != nil {
			return missing(err)
		}
		if fd != etc {
			unix.Close(fd)
		}
		fd, rel, depth = sub, rest, depth+1
		if open, err := openDir(sub); err != nil || !open {
			return err
		}
		if err := mkdir(dst); err != nil {
			return err
		}
	}
}

// missing drops the errors of what is not there or is not for everybody.
func missing(err error) error {
	switch err {
	case unix.ENOENT, unix.EACCES, unix.EPERM, unix.ELOOP, unix.ENOTDIR, unix.ENXIO:
		return nil
	}
	return err
}

// openDir reports whether every user of the host can list and enter fd.
func openDir(fd int) (bool, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return err == nil && st.Mode&0o5 == 0o5, err
}

func (c *copier) entry(dir int, name, dst string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return missing(err)
	}
	if c.entries++; c.entries > maxEntries || depth > maxDepth {
		return fmt.Errorf("more than %d files, or deeper than %d directories", maxEntries, maxDepth)
	}
	to := filepath.Join(dst, name)
	switch kind(&st) {
	case unix.S_IFLNK:
		if strings.HasSuffix(name, ".gz") {
			return nil // a manual page: four of five alternatives, and the time to copy them
		}
		b := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, name, b)
		if err != nil {
			return missing(err)
		}
		return os.Symlink(string(b[:n]), to)
	case unix.S_IFDIR:
		if secretName(name) {
			return nil
		}
		return c.dir(dir, name, to, depth)
	case unix.S_IFREG:
		if secretName(name) {
			return nil
		}
		return c.file(dir, name, to)
	}
	return nil // a socket, FIFO or device
}

func (c *copier) dir(parent int, name, to string, depth int) error {
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return missing(err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if open, err := openDir(fd); err != nil || !open {
		return err
	}
	if err := mkdir(to); err != nil {
		return err
	}
	names, err := f.Readdirnames(maxEntries + 1)
	if err != nil && err != io.EOF {
		return err
	}
	for _, n := range names {
		if err := c.entry(fd, n, to, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) file(dir int, name, to string) error {
	// Non-blocking: a FIFO may have taken the place of what was looked at.
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return missing(err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if kind(&st) != unix.S_IFREG || st.Mode&0o4 == 0 || st.Size > maxFile {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return err
	}
	if len(data) > maxFile || secretText(name, data) {
		return nil
	}
	if c.bytes += int64(len(data)); c.bytes > maxBytes {
		return fmt.Errorf("more than %d MiB", maxBytes>>20)
	}
	return writeFile(to, data, 0o644|os.FileMode(st.Mode&0o111), time.Unix(st.Mtim.Unix()))
}

// secretName reports names that hold keys and passwords. Mostly their modes
// say so as well; here it is not left to the person who set them.
func secretName(name string) bool {
	switch name {
	case "private":
		return true
	}
	switch strings.ToLower(filepath.Ext(name)) {
	case ".key", ".p12", ".pfx", ".keytab", ".password":
		return true
	}
	return false
}

// secretText reports file contents that are secret whatever their mode: a
// private key in PEM, and a password in the settings of Maven.
func secretText(name string, data []byte) bool {
	if bytes.Contains(data, []byte("PRIVATE KEY-----")) {
		return true
	}
	if name != "settings.xml" && name != "settings-security.xml" {
		return false
	}
	for len(data) > 0 { // outside of comments, where the examples are
		text, rest, found := bytes.Cut(data, []byte("<!--"))
		for _, tag := range []string{"<password", "<passphrase", "<privateKey", "<master"} {
			if bytes.Contains(text, []byte(tag)) {
				return true
			}
		}
		if !found {
			break
		}
		_, data, found = bytes.Cut(rest, []byte("-->"))
		if !found {
			break
		}
	}
	return false
}
