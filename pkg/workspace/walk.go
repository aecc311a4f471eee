package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// walkOpen is how many nested directories a walk keeps open; with the
	// caller's and two for a moment, seven descriptors.
	walkOpen = 4
	// walkDepth bounds the memory of a walk, 48 bytes a level. Half a million
	// directories inside each other are no accident.
	walkDepth = 500_000
	// walkPath is how much of a path is kept: the kernel takes no longer one.
	walkPath = unix.PathMax
	// walkTries is how often a walk begins anew because a directory was moved
	// while the walk was in it.
	walkTries = 3
)

var errMoved = errors.New("directories were moved while they were searched")

// walker visits every entry below a directory that is not itself a directory.
// It changes nothing but the permissions of directories of ours that we may not
// read, and gives those back (unless it ends early below them). Only the newest
// few directories are open; the way back up is "..", which counts only if it
// leads to the directory (device and inode) that the walk came through.
type walker struct {
	// visit gets each entry that is no directory, by an open directory and its
	// name there; typ is a hint. The entry may have been swapped since.
	visit func(dirfd int, name string, typ byte)
	// failed hears of each directory that could not be read.
	failed func(dirfd int, name string, err error)
	// What some walks need, nil otherwise: enter hears of each directory below
	// the root before what is in it, leave after all of it, with its descriptor;
	// mount hears of each mount point, which is passed over.
	enter func(name string)
	leave func(fd int)
	mount func()
	// asIs leaves directories that we may not read as they are.
	asIs bool

	levels []walkLevel
	open   [walkOpen]dirReader // level i is at i%walkOpen, if it is open
	path   []byte              // of the deepest level, with a slash at its end
}

type walkLevel struct {
	dev, ino uint64
	next     int64 // where to go on after the directory in the next level
	pathLen  int   // of walker.path up to this level; beyond walkPath it is only counted
	mode     uint16
	granted  bool // mode is to be given back
	isOpen   bool
}

// walk visits everything below root. An error of the context ends it.
func (w *walker) walk(ctx context.Context, root *os.File) error {
	defer runtime.KeepAlive(root)
	var err error
	for range walkTries {
		if err = w.once(ctx, int(root.Fd())); err != errMoved {
			break
		}
	}
	return err
}

func (w *walker) once(ctx context.Context, root int) error {
	w.levels, w.path = w.levels[:0], w.path[:0]
	defer w.close()
	if err := w.down(root, "."); err != nil {
		return err
	}
	for n := 0; ; n++ {
		if n%256 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		last := len(w.levels) - 1
		r := &w.open[last%walkOpen]
		e, ok, err := r.next()
		if err != nil {
			w.failed(r.fd, "", err)
		}
		if !ok {
			if err := w.up(); err != nil || len(w.levels) == 0 {
				return err
			}
			continue
		}
		if e.typ == unix.DT_UNKNOWN {
			var st unix.Stat_t
			if unix.Fstatat(r.fd, e.name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
				e.typ = unix.DT_DIR
			}
		}
		if e.typ == unix.DT_DIR {
			w.levels[last].next = e.next
			switch err := w.down(r.fd, e.name); err {
			case nil, unix.ENOENT: // gone
				continue
			case unix.EXDEV:
				if w.mount != nil {
					w.mount()
				}
				continue
			case unix.ENOTDIR, unix.ELOOP: // no longer a directory
			default:
				w.failed(r.fd, e.name, err)
				continue
			}
		}
		w.visit(r.fd, e.name, e.typ)
	}
}

// down opens a directory and makes it the deepest level.
func (w *walker) down(dirfd int, name string) error {
	if len(w.levels) == walkDepth {
		return fmt.Errorf("more than %d directories inside each other", walkDepth)
	}
	l := walkLevel{isOpen: true}
	fd, err := openDirAt(dirfd, name)
	if err == unix.EACCES && !w.asIs {
		var mode uint32
		if len(w.levels) == 0 { // "." cannot be looked up in a directory without x
			mode, l.granted, _ = grant(dirfd, 0o500)
		} else {
			mode, l.granted, _ = grantAt(dirfd, name, 0o500)
		}
		if l.granted {
			l.mode = uint16(mode)
			fd, err = openDirAt(dirfd, name)
		}
	}
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return err
	}
	l.dev, l.ino = st.Dev, st.Ino
	if st.Mode&0o500 != 0o500 && int(st.Uid) == os.Geteuid() && !w.asIs {
		// Readable without x: names can be read, but not looked up.
		if mode, changed, _ := grant(fd, 0o500); changed {
			l.mode, l.granted = uint16(mode), true
		}
	}

	n := len(w.levels)
	if n > 0 {
		l.pathLen = w.levels[n-1].pathLen + len(name) + 1
		if l.pathLen <= walkPath {
			w.path = append(append(w.path, name...), '/')
		}
	}
	if n >= walkOpen && w.levels[n-walkOpen].isOpen {
		_ = unix.Close(w.open[n%walkOpen].fd)
		w.levels[n-walkOpen].isOpen = false
	}
	w.levels = append(w.levels, l)
	w.open[n%walkOpen].open(fd)
	if n > 0 && w.enter != nil {
		w.enter(name)
	}
	return nil
}

// up leaves the deepest level and makes the one above it readable again.
func (w *walker) up() error {
	n := len(w.levels) - 1
	l, fd := w.levels[n], w.open[n%walkOpen].fd
	var err error
	if n > 0 && !w.levels[n-1].isOpen {
		err = w.reopen(n-1, fd)
	}
	if n > 0 && w.leave != nil {
		w.leave(fd)
	}
	if l.granted {
		_ = chmodFd(fd, uint32(l.mode))
	}
	_ = unix.Close(fd)
	w.levels = w.levels[:n]
	if n > 0 {
		if p := w.levels[n-1].pathLen; p < len(w.path) {
			w.path = w.path[:p]
		}
	}
	return err
}

// reopen opens level n again, as ".." of a directory that was in it.
func (w *walker) reopen(n, below int) error {
	fd, err := openDirAt(below, "..")
	if err != nil {
		return errMoved
	}
	l := &w.levels[n]
	r := &w.open[n%walkOpen]
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Dev != l.dev || st.Ino != l.ino {
		_ = unix.Close(fd)
		return errMoved
	}
	r.open(fd)
	l.isOpen = true
	return r.seek(l.next)
}

func (w *walker) close() {
	for i, l := range w.levels {
		if l.isOpen {
			if l.granted {
				_ = chmodFd(w.open[i%walkOpen].fd, uint32(l.mode))
			}
			_ = unix.Close(w.open[i%walkOpen].fd)
		}
	}
	w.levels = w.levels[:0]
}

// rel is the path of an entry of the deepest level, relative to the root of
// the walk. Of a path that is longer than any that the kernel takes, the
// middle is left out.
func (w *walker) rel(name string) string {
	if n := len(w.levels); n > 0 && w.levels[n-1].pathLen > len(w.path) {
		return string(w.path) + "[" + strconv.Itoa(w.levels[n-1].pathLen-len(w.path)) + " bytes]/" + name
	}
	return string(w.path) + name
}
