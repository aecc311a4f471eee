package workspace

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// removeDepth is how many nested directories are held open while a tree
	// is removed; with the caller's parent and one for a moment, six descriptors.
	removeDepth = 4
	// removePasses is how often one directory is read again because it was
	// not empty after all it showed was removed. A tree at rest needs two at
	// most, or more where moving up met EMLINK or ENOSPC; the bound is for
	// trees that somebody goes on filling.
	removePasses = 100
)

// RemoveAt removes name, and everything below it, from the open directory
// parent. A name that is not there is no error.
//
// The tree may be hostile: any depth, any width, directories without
// permissions (the owner's rwx is given back, by descriptor), any bytes in
// names. At most six descriptors are open at a time, parent included, and the
// memory used does not grow with the tree: a directory that lies too deep is
// renamed into the top of the tree under a numbered name, and the numbers are
// the whole list of what is left to do. No symbolic link is followed and ".."
// is never opened, so that renames and swaps by another process meet only what
// was in the tree when we looked. Mount points are not crossed.
//
// What can be removed is removed also when something cannot; the error then
// names the first obstacle, by its present path, and wraps its errno. Where
// directories cannot be moved (lower layers of an overlay file system, foreign
// ones), the tree is walked down again for every few levels instead, which
// reaches some 300 (rule S9, case 47).
//
// While another process fills the tree, RemoveAt may take as long as that
// process goes on; a caller with a deadline runs it on a goroutine.
func RemoveAt(parent *os.File, name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("cannot remove %s: not the name of a directory entry", strconv.QuoteToGraphic(name))
	}
	defer runtime.KeepAlive(parent)
	dirfd := int(parent.Fd())

	err := unlink(dirfd, name, unix.AT_REMOVEDIR)
	if err == unix.ENOTDIR {
		err = unlink(dirfd, name, 0)
	}
	switch err {
	case nil, unix.ENOENT:
		return nil
	case unix.EROFS, unix.ENAMETOOLONG:
		return obstacle(dirfd, name, err)
	}
	// Anything else, EACCES included, still lets the inside go.
	r := remover{depth: -1}
	switch err := r.descend(dirfd, name); err {
	case nil:
		return r.run(dirfd)
	case unix.ENOENT:
		return nil
	default:
		return obstacle(dirfd, name, err)
	}
}

// Remove is RemoveAt for a path. The directory that path lies in must itself
// be no symbolic link; links further up are the caller's own and are followed.
func Remove(path string) error {
	p := strings.TrimRight(path, "/")
	dir, name := "", p
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		dir, name = p[:i+1], p[i+1:]
		// Without its final slash, or a link in the last place would be followed.
		if d := strings.TrimRight(dir, "/"); d != "" {
			dir = d
		}
	} else {
		dir = "."
	}
	fd, err := retry(func() (int, error) {
		return unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err == unix.EACCES { // may be searched and written, but not read
		fd, err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	switch {
	case err == unix.ENOENT:
		return nil
	case err == unix.ENOTDIR || err == unix.ELOOP:
		return fmt.Errorf("cannot remove %s: %s is a symbolic link or no directory: %w",
			strconv.QuoteToGraphic(path), strconv.QuoteToGraphic(dir), err)
	case err != nil:
		return fmt.Errorf("cannot remove %s: %w", strconv.QuoteToGraphic(path), err)
	}
	parent := os.NewFile(uintptr(fd), dir)
	defer parent.Close()
	return RemoveAt(parent, name)
}

// remover empties one tree. stack[0] is the top of the tree, stack[depth] the
// directory that is being read.
type remover struct {
	stack [removeDepth + 1]removing // one more while sliding down
	depth int

	prefix  string // of the names that directories get when they are moved up
	pending uint64 // moved up and not yet done with: prefix+"0" to prefix+(pending-1)
	tried   bool   // the newest of them has been tried,
	mark    uint64 // with this much removed before
	left    uint64 // how many of them were tried in vain and put aside

	stuck bool // a directory could not be moved up
	slide bool // so these are gone down into, leaving the ones above

	removed uint64 // entries removed or moved so far: the measure of progress
	first   error
}

// removing is a directory on the stack.
type removing struct {
	dirReader
	name    string // in the directory it is removed from
	loose   bool   // which is no longer open: only the inside goes in this pass
	end     bool   // this pass has read the last entry
	granted bool   // the owner's rwx was asked for; once is enough
	passes  int
	mark    uint64 // remover.removed when this pass began
}

// run removes what is on the stack, the top as an entry of dirfd.
func (r *remover) run(dirfd int) error {
	for {
		d := &r.stack[r.depth]
		if !d.end {
			e, ok, err := d.next()
			if ok {
				r.remove(d, e)
				continue
			}
			if err != nil {
				r.note(d.fd, d.name, err)
			}
			d.end = true
		}
		if r.depth == 0 && r.pending > 0 {
			r.removePending(d)
			continue
		}

		if d.loose {
			_ = unix.Close(d.fd)
			r.depth--
			continue
		}
		up := dirfd
		var err error
		if r.depth == 0 {
			err = unlink(up, d.name, unix.AT_REMOVEDIR)
		} else {
			up = r.stack[r.depth-1].fd
			err = r.unlink(&r.stack[r.depth-1], d.name, unix.AT_REMOVEDIR)
		}
		again := r.removed > d.mark
		if r.depth == 0 && !again && r.stuck && !r.slide {
			// The last resort, since it passes over what lies beside.
			again, r.slide = true, true
		}
		if again && notEmpty(err) && d.passes < removePasses && d.seek(0) == nil {
			d.end, d.mark = false, r.removed
			d.passes++
			if r.depth == 0 {
				r.first = nil // what still stands will be met again
			}
			continue
		}
		switch err {
		case nil:
			r.removed++
		case unix.ENOENT:
			err = nil
		default:
			r.note(up, d.name, err) // where something inside is the reason, that came first
		}
		_ = unix.Close(d.fd)
		if r.depth == 0 {
			if err != nil {
				return r.first
			}
			return nil
		}
		r.depth--
	}
}

// removePending goes on with the newest directory that was moved up. It keeps
// its number while it is worked on, so that what is moved up out of it gets
// higher ones; a try that changed nothing (it is gone, or it cannot be removed)
// is the last one.
func (r *remover) removePending(top *removing) {
	name := r.numbered(r.pending - 1)
	if !r.tried || r.removed > r.mark {
		r.tried, r.mark = true, r.removed
		r.remove(top, dirent{name: name, typ: unix.DT_DIR})
		return
	}
	r.tried = false
	r.pending--
	// If it still stands, its number must become free.
	if unix.Renameat(top.fd, name, top.fd, r.prefix+"left-"+strconv.FormatUint(r.left, 10)) == nil {
		r.left++
	}
}

// remove takes the entry e out of d: at once if it is no directory or an empty
// one, else by going down into it or by moving it to the top of the tree.
func (r *remover) remove(d *removing, e dirent) {
	dir, err := true, error(unix.EISDIR)
	if e.typ != unix.DT_DIR {
		err = r.unlink(d, e.name, 0)
		dir = err == unix.EISDIR || err == unix.EPERM // EPERM is POSIX's word for a directory
	}
	if dir {
		switch e2 := r.unlink(d, e.name, unix.AT_REMOVEDIR); {
		case e2 != unix.ENOTDIR:
			err = e2
		case err == unix.EISDIR: // was a directory when it was read
			dir, err = false, r.unlink(d, e.name, 0)
		default:
			dir = false
		}
	}
	switch {
	case err == nil:
		r.removed++
		return
	case err == unix.ENOENT:
		return
	case dir && (notEmpty(err) || err == unix.EPERM || err == unix.EACCES):
		// Where the directory itself must stay, its inside need not.
		if r.depth < removeDepth-1 {
			err = r.descend(d.fd, e.name)
		} else {
			err = r.moveUp(d, e.name)
		}
	}
	if err != nil && err != unix.ENOENT {
		r.note(d.fd, e.name, err)
	}
}

// descend opens a directory and puts it on the stack.
func (r *remover) descend(dirfd int, name string) error {
	fd, err := openDirAt(dirfd, name)
	if err == unix.EACCES {
		if _, changed, _ := grantAt(dirfd, name, 0o700); changed {
			fd, err = openDirAt(dirfd, name)
		}
	}
	if err == unix.EXDEV {
		err = unix.EBUSY // what rmdir says of a mount point; EXDEV is also rename's
	}
	if err != nil {
		return err
	}
	r.depth++
	d := &r.stack[r.depth]
	*d = removing{dirReader: d.dirReader, name: name, mark: r.removed}
	d.open(fd)
	return nil
}

// moveUp renames a directory to the top of the tree. EMLINK and ENOSPC may be
// over once other entries are gone: the next pass tries again.
func (r *remover) moveUp(d *removing, name string) error {
	top := &r.stack[0]
	for granted := false; ; {
		err := unix.Renameat(d.fd, name, top.fd, r.numbered(r.pending))
		switch {
		case err == nil:
			r.pending++
			r.removed++
			return nil
		case err == unix.EINTR:
			continue
		case err == unix.EACCES && !granted:
			// Changing its ".." takes write permission on the directory itself.
			granted = true
			r.grant(d)
			r.grant(top)
			_, _, _ = grantAt(d.fd, name, 0o700)
			continue
		}
		r.stuck = true
		if !r.slide {
			return err
		}
		return r.slideDown(d.fd, name)
	}
}

// slideDown goes down into a directory that cannot be moved, and closes those
// between it and the top. It stays itself, emptied, for the next pass.
func (r *remover) slideDown(dirfd int, name string) error {
	if err := r.descend(dirfd, name); err != nil {
		return err
	}
	last := r.stack[r.depth]
	last.loose = true
	for i := 1; i < r.depth; i++ {
		_ = unix.Close(r.stack[i].fd)
	}
	// Its buffer changes places with the one that is there.
	r.stack[r.depth].dirReader = r.stack[1].dirReader
	r.stack[1], r.depth = last, 1
	return nil
}

// numbered names a directory that is moved up. The random prefix keeps a box
// from having such names ready.
func (r *remover) numbered(n uint64) string {
	if r.prefix == "" {
		r.prefix = ".kern-sbx-" + strconv.FormatUint(rand.Uint64(), 36) + "-"
	}
	return r.prefix + strconv.FormatUint(n, 10)
}

// unlink is unlinkat in a directory of the tree, whose permissions are given
// back if they are what is missing.
func (r *remover) unlink(d *removing, name string, flags int) error {
	err := unlink(d.fd, name, flags)
	if err == unix.EACCES && r.grant(d) {
		err = unlink(d.fd, name, flags)
	}
	return err
}

// grant gives the owner's permissions back, and says whether that changed any.
func (r *remover) grant(d *removing) bool {
	if d.granted {
		return false
	}
	d.granted = true
	_, changed, _ := grant(d.fd, 0o700)
	return changed
}

// note keeps the first obstacle.
func (r *remover) note(dirfd int, name string, err error) {
	if r.first == nil {
		r.first = obstacle(dirfd, name, err)
	}
}

func unlink(dirfd int, name string, flags int) error {
	_, err := retry(func() (struct{}, error) { return struct{}{}, unix.Unlinkat(dirfd, name, flags) })
	return err
}

func notEmpty(err error) bool { return err == unix.ENOTEMPTY || err == unix.EEXIST }

func obstacle(dirfd int, name string, err error) error {
	why := ""
	switch {
	case err == unix.EBUSY:
		why = "something is mounted there, unmount it first: "
	case notEmpty(err):
		why = "it is being written to: "
	}
	return fmt.Errorf("cannot remove %s: %s%w", where(dirfd, name), why, err)
}
