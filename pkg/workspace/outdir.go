package workspace

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"golang.org/x/sys/unix"
)

// OutputDir is a host directory that files will be written into after a box has
// run. It is opened before the box starts, so that what the box puts in its place
// leads nowhere (rule S4).
type OutputDir struct {
	path    string
	fd      int
	parent  int // of a directory that OpenOutputDir created, else -1
	written bool
	closed  bool
}

// OpenOutputDir opens the directory path, and creates it (mode 0755) in one that
// exists. No component of the path may be a symbolic link. A refusal is a
// *validate.Error.
func OpenOutputDir(path string) (*OutputDir, error) {
	refuse := func(reason, fix string) (*OutputDir, error) {
		return nil, &validate.Error{Value: path, Reason: reason, Fix: fix}
	}
	switch {
	case path == "":
		return refuse("an empty path", "name a directory")
	case strings.IndexByte(path, 0) >= 0:
		return refuse("a path with a zero byte", "name a directory")
	}
	d := &OutputDir{path: path, parent: -1}
	var err error
	if d.fd, err = openPlainDir(path); err == nil {
		return d, nil
	}
	trimmed := strings.TrimRight(path, "/")
	up, base := filepath.Split(trimmed)
	if err != unix.ENOENT || base == "" || base == "." || base == ".." {
		return nil, refuseDir(path, path, err)
	}
	if up == "" {
		up = "."
	}
	parent, err := openPlainDir(up)
	if err != nil {
		return nil, refuseDir(path, up, err)
	}
	err = unix.Mkdirat(parent, base, 0o755)
	created := err == nil
	if err == nil || err == unix.EEXIST { // somebody else made it just now
		d.fd, err = retry(func() (int, error) {
			return unix.Openat(parent, base, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		})
	}
	if err != nil {
		_ = unix.Close(parent)
		return refuse(reasonOf(err), "name a directory that can be written")
	}
	if created {
		d.parent = parent
	} else {
		_ = unix.Close(parent)
	}
	return d, nil
}

// WriteFile writes the file name of the directory (mode 0644), complete or not at
// all. Whatever has that name is replaced and not written through: a symbolic
// link, or a second name of another file, is taken away.
func (d *OutputDir) WriteFile(name string, write func(io.Writer) error) (err error) {
	defer func() {
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		if err != nil {
			err = &os.PathError{Op: "write", Path: d.Path(name), Err: err}
		}
	}()
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return unix.EINVAL
	}
	d.written = true
	temp := "." + name + ".kern-sbx-" + strconv.Itoa(os.Getpid())
	fd, err := retry(func() (int, error) {
		_ = unix.Unlinkat(d.fd, temp, 0)
		return unix.Openat(d.fd, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	})
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), temp)
	w := &keepError{w: f}
	err = write(w)
	if w.err != nil {
		err = w.err
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = unix.Renameat(d.fd, temp, d.fd, name)
	}
	if err != nil {
		_ = unix.Unlinkat(d.fd, temp, 0)
	}
	return err
}

// Path is how a file of the directory is named to a person.
func (d *OutputDir) Path(name string) string { return filepath.Join(d.path, name) }

// Close closes the directory. One that OpenOutputDir created and that nothing was
// written into is removed again, if it is empty.
func (d *OutputDir) Close() {
	if d.closed {
		return
	}
	d.closed = true
	if d.parent >= 0 {
		if !d.written {
			_ = unix.Unlinkat(d.parent, filepath.Base(d.path), unix.AT_REMOVEDIR)
		}
		_ = unix.Close(d.parent)
	}
	_ = unix.Close(d.fd)
}
