package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// replacePrefix begins the name of the directory in which Replace works. It is
// not one that a restore would clear away: it may hold the only copy of something.
const replacePrefix = ".kern-sbx-replace-"

// Replace makes the directory to hold what from holds, which may be hostile, but
// for the names of keep directly in either: those stay as they are in to. to itself
// stays the same directory. What is copied, and what Copied counts instead, is said
// at Copy; directories that are closed to the caller are opened in from first.
//
// The copy is made in a directory inside to, and put in place when it is whole: an
// error or a full disk before that leaves to as it was. A kill in the moment of the
// exchange (renames of what lies directly in to) leaves the rest in that directory,
// whose name begins with .kern-sbx-replace-.
func Replace(ctx context.Context, from, to *os.File, keep []string) (Copied, error) {
	defer runtime.KeepAlive(from)
	defer runtime.KeepAlive(to)
	if _, err := scanTree(ctx, from, scanOptions{restore: true}); err != nil {
		return Copied{}, err
	}
	at, err := openDirAt(int(to.Fd()), ".")
	if err != nil {
		return Copied{}, fmt.Errorf("cannot open %s: %w", strconv.QuoteToGraphic(to.Name()), err)
	}
	dir := os.NewFile(uintptr(at), to.Name())
	defer dir.Close()
	work := replacePrefix + randomHex()
	if err := unix.Mkdirat(at, work, 0o700); err != nil {
		return Copied{}, fmt.Errorf("cannot write to %s: %w", strconv.QuoteToGraphic(to.Name()), err)
	}
	done, err := replaceIn(ctx, from, dir, work, append(slices.Clip(keep), work))
	if err != nil && !errors.Is(err, errExchange) {
		_ = RemoveAt(dir, work)
		return done, err
	}
	if err != nil {
		return done, fmt.Errorf("%w; what is not in place is in %s", err, strconv.QuoteToGraphic(filepath.Join(to.Name(), work)))
	}
	return done, RemoveAt(dir, work)
}

// errExchange marks an error after which neither tree is whole.
var errExchange = errors.New("the old files could not all be exchanged for the new ones")

func replaceIn(ctx context.Context, from, dir *os.File, work string, keep []string) (Copied, error) {
	at := int(dir.Fd())
	sub := map[string]*os.File{}
	wd, err := openDirAt(at, work)
	if err != nil {
		return Copied{}, err
	}
	defer unix.Close(wd)
	for _, name := range []string{"new", "old"} {
		if err := unix.Mkdirat(wd, name, 0o700); err != nil {
			return Copied{}, err
		}
		fd, err := openDirAt(wd, name)
		if err != nil {
			return Copied{}, err
		}
		sub[name] = os.NewFile(uintptr(fd), name)
		defer sub[name].Close()
	}
	done, err := Copy(ctx, from, sub["new"], nil)
	if err != nil {
		return done, err
	}
	if err := moveAll(at, int(sub["old"].Fd()), keep); err != nil {
		// Back again, as far as that goes.
		return done, errors.Join(errIf(moveAll(int(sub["old"].Fd()), at, nil)), err)
	}
	if err := moveAll(int(sub["new"].Fd()), at, keep); err != nil {
		return done, fmt.Errorf("%w: %w", errExchange, err)
	}
	return done, nil
}

func errIf(err error) error {
	if err == nil {
		return nil
	}
	return errExchange
}

// moveAll renames what lies directly in one directory into another, but for the
// names of keep.
func moveAll(from, to int, keep []string) error {
	var names []string
	var r dirReader
	if err := r.open2(from); err != nil {
		return err
	}
	for {
		e, ok, err := r.next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if !slices.Contains(keep, e.name) {
			names = append(names, e.name)
		}
	}
	for _, n := range names {
		err := unix.Renameat2(from, n, to, n, unix.RENAME_NOREPLACE)
		if err == unix.EINVAL || err == unix.ENOSYS {
			err = unix.Renameat(from, n, to, n)
		}
		if err == unix.EACCES { // moving a directory takes the right to write to it
			if mode, changed, _ := grantAt(from, n, 0o700); changed {
				if err = unix.Renameat(from, n, to, n); err == nil {
					if fd, e := openEntry(to, n, unix.O_PATH|unix.O_DIRECTORY); e == nil {
						_ = chmodFd(fd, mode)
						_ = unix.Close(fd)
					}
				}
			}
		}
		if err != nil && err != unix.ENOENT {
			return fmt.Errorf("cannot move %s: %w", where(from, n), err)
		}
	}
	return nil
}

// open2 is open for a directory that may have been read before.
func (r *dirReader) open2(fd int) error {
	r.open(fd)
	return r.seek(0)
}
