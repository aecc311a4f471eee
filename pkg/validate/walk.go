package validate

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxLinks is the kernel's own bound on the links in one path.
const maxLinks = 40

var (
	errLoop  = errors.New("too many symbolic links")
	errMagic = errors.New("a link of /proc")
)

// resolve follows path as the kernel would, ".." and links included, and calls
// visit for every name on the way, those of link targets too, with the resolved
// directory it is looked up in. A link inside /proc is not followed: what it
// says is true of one process at one moment, and the reader would be kern.
func resolve(path string, visit func(dir, name string) error) (string, error) {
	cur, links := "/", 0
	todo := strings.Split(path, "/")
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			cur = filepath.Dir(cur)
			continue
		}
		if err := visit(cur, name); err != nil {
			return "", err
		}
		next := join(cur, name)
		to, err := readlink(next)
		switch {
		case err != nil:
			return "", err
		case to == "":
			cur = next
			continue
		case within(cur, "/proc"):
			return "", errMagic
		}
		if links++; links > maxLinks {
			return "", errLoop
		}
		if strings.HasPrefix(to, "/") {
			cur = "/"
		}
		todo = append(strings.Split(to, "/"), todo...)
	}
	return cur, nil
}

// readlink gives what a link says, and "" for what exists and is none. It is one
// system call where lstat and readlink would be two: a run pays for each.
func readlink(path string) (string, error) {
	buf := make([]byte, 256)
	for {
		n, err := unix.Readlink(path, buf)
		switch {
		case err == unix.EINTR:
		case err == unix.EINVAL:
			return "", nil
		case err != nil:
			return "", &fs.PathError{Op: "readlink", Path: path, Err: err}
		case n < len(buf):
			return string(buf[:n]), nil
		default:
			buf = make([]byte, 2*len(buf))
		}
	}
}

// follower resolves many paths that share directories, looking each directory up
// once. What does not exist is taken to be no link.
type follower map[string]followed

type followed struct {
	path    string
	missing bool
}

// follow resolves a clean absolute path.
func (f follower) follow(path string) string { return f.at(path, 0).path }

func (f follower) at(path string, links int) followed {
	if path == "/" || links > maxLinks {
		return followed{path: path}
	}
	if r, ok := f[path]; ok {
		return r
	}
	dir := f.at(filepath.Dir(path), links)
	r := followed{join(dir.path, filepath.Base(path)), dir.missing}
	if !r.missing {
		switch to, err := readlink(r.path); {
		case err != nil:
			r.missing = true
		case to != "" && !within(dir.path, "/proc"):
			r = dir
			if filepath.IsAbs(to) {
				r = followed{path: "/"}
			}
			for name := range strings.SplitSeq(to, "/") {
				switch name {
				case "", ".":
				case "..":
					r = followed{path: filepath.Dir(r.path)}
				default:
					r = f.at(join(r.path, name), links+1)
				}
			}
		}
	}
	f[path] = r
	return r
}

func join(dir, name string) string {
	if dir == "/" {
		return "/" + name
	}
	return dir + "/" + name
}

// notFound says of a failed look-up what the user can do about it.
func notFound(value string, err error) error {
	switch {
	case errors.Is(err, errMagic):
		return refuse(value, "the way there leads through a link of /proc, which means something else to every process", "write the path it stands for")
	case errors.Is(err, errLoop), errors.Is(err, syscall.ELOOP):
		return refuse(value, "too many symbolic links", "write the path they lead to")
	case errors.Is(err, fs.ErrNotExist):
		return refuse(value, "no such file or directory", "create it first: a source is never created")
	case errors.Is(err, fs.ErrPermission):
		return refuse(value, "permission denied on the way there", "choose a path that you can reach")
	case errors.Is(err, syscall.ENOTDIR):
		return refuse(value, "something on the way there is not a directory", "check the path")
	case errors.Is(err, syscall.ENAMETOOLONG):
		return refuse(value, "a name or the whole is too long", "shorten it")
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return refuse(value, err.Error(), "check the path")
}
