package pool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Place is the directory in which the holders of one user are found. Below it
// every holder has a directory KIND/NAME, 0700, which it keeps locked for its
// life: the lock is freed by the kernel however it ends (rule S8), so a free
// lock is a dead holder.
type Place struct {
	// Path is for messages; everything is opened below the descriptor.
	Path string
	dir  *os.File
}

// The files of a holder's directory.
const (
	socketFile = "socket"
	metaFile   = "meta"  // what the holder says of itself
	graveFile  = "grave" // what ended it
	logFile    = "log"
)

// Open finds the place, and makes it: $XDG_RUNTIME_DIR/kern-sbx where that can
// be used (absolute, a directory of ours, open to nobody else), else the private
// directory of last resort.
func Open(env func(string) string, dirs runner.Dirs) (*Place, error) {
	if x := env("XDG_RUNTIME_DIR"); filepath.IsAbs(x) {
		if top, err := openOwn(unix.AT_FDCWD, x); err == nil {
			d, err := makeOwn(top, "kern-sbx")
			top.Close()
			if err == nil {
				return &Place{filepath.Join(x, "kern-sbx"), d}, nil
			}
		}
	}
	path, err := dirs.Usable("")
	if err != nil {
		return nil, fmt.Errorf("no directory for a background process: %w", err)
	}
	d, err := openOwn(unix.AT_FDCWD, path)
	if err != nil {
		return nil, err
	}
	return &Place{path, d}, nil
}

// Close lets go of the descriptor.
func (p *Place) Close() error { return p.dir.Close() }

// errNotOwn says that a directory cannot be trusted with a socket.
var errNotOwn = errors.New("not a directory of ours that is closed to all others")

// openOwn opens a directory, which must be ours and closed to everybody else.
func openOwn(at int, path string) (*os.File, error) {
	fd, err := unix.Openat(at, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	d := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0) {
		err = errNotOwn
	}
	if err != nil {
		d.Close()
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return d, nil
}

// makeOwn makes a directory that only we can enter, where there is none.
func makeOwn(in *os.File, name string) (*os.File, error) {
	if err := unix.Mkdirat(int(in.Fd()), name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &os.PathError{Op: "mkdir", Path: filepath.Join(in.Name(), name), Err: err}
	}
	return openOwn(int(in.Fd()), name)
}

// NoneError says that there is no such holder.
type NoneError struct{ Kind, Name string }

func (e *NoneError) Error() string {
	return fmt.Sprintf("there is no %s named %s", e.Kind, e.Name)
}

// HeldError says that a living holder has that name.
type HeldError struct{ Kind, Name string }

func (e *HeldError) Error() string {
	return fmt.Sprintf("there is a %s named %s already", e.Kind, e.Name)
}

// StartingError says that a holder does not listen yet, or no more.
type StartingError struct{ Kind, Name string }

func (e *StartingError) Error() string {
	return fmt.Sprintf("the %s %s is just being started or ended; try again", e.Kind, e.Name)
}

// DeadError says that a holder is dead, and what it left. Grave is nil when it
// was killed before it could say anything; so may Meta be.
type DeadError struct {
	Kind, Name  string
	Meta, Grave json.RawMessage
}

func (e *DeadError) Error() string {
	return fmt.Sprintf("the %s %s is dead", e.Kind, e.Name)
}

// Entry is one holder, alive or dead.
type Entry struct {
	Kind, Name string
	Alive      bool
	// Meta is what the holder wrote about itself, Grave what ended it. Both are
	// our own files; nil where there is none.
	Meta, Grave json.RawMessage
	// Since is when Grave was written.
	Since time.Time
}

// entry opens the directory of a holder.
func (p *Place) entry(kind, name string) (*os.File, error) {
	if err := validate.Name(name); err != nil {
		return nil, err
	}
	k, err := openOwn(int(p.dir.Fd()), kind)
	if err == nil {
		defer k.Close()
		var d *os.File
		if d, err = openOwn(int(k.Fd()), name); err == nil {
			return d, nil
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, &NoneError{kind, name}
	}
	return nil, err
}

// Names lists the holders of a kind, in order.
func (p *Place) Names(kind string) []string {
	k, err := openOwn(int(p.dir.Fd()), kind)
	if err != nil {
		return nil
	}
	defer k.Close()
	all, _ := k.Readdirnames(10000)
	names := all[:0]
	for _, n := range all {
		if validate.Name(n) == nil {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return names
}

// Look says what is known of one holder without speaking to it.
func (p *Place) Look(kind, name string) (*Entry, error) {
	d, err := p.entry(kind, name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return look(d, kind, name), nil
}

func look(d *os.File, kind, name string) *Entry {
	e := &Entry{Kind: kind, Name: name, Alive: held(d), Meta: readDoc(d, metaFile), Grave: readDoc(d, graveFile)}
	var st unix.Stat_t
	if unix.Fstatat(int(d.Fd()), graveFile, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		e.Since = time.Unix(st.Mtim.Unix())
	}
	return e
}

// held says whether a living process has the lock.
func held(d *os.File) bool {
	if flock(d, unix.LOCK_SH|unix.LOCK_NB) != nil {
		return true
	}
	flock(d, unix.LOCK_UN)
	return false
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// mostDoc bounds a file of a holder's directory.
const mostDoc = 4 << 20

// readDoc reads a JSON document; nil when there is none that can be read.
func readDoc(d *os.File, name string) json.RawMessage {
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostDoc))
	if err != nil || !json.Valid(b) {
		return nil
	}
	return b
}

// writeDoc replaces a document, as a whole or not at all.
func writeDoc(d *os.File, name string, doc any) error {
	b, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	tmp := "." + name
	unix.Unlinkat(int(d.Fd()), tmp, 0)
	fd, err := unix.Openat(int(d.Fd()), tmp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "create", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(b)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = unix.Renameat(int(d.Fd()), tmp, int(d.Fd()), name)
	}
	return err
}

// lockPatience is how long a lock may be somebody's who only looks.
const lockPatience = 300 * time.Millisecond

// lock takes the lock of an entry for good; false when a living holder has it.
func lock(d *os.File) (bool, error) {
	for end := time.Now().Add(lockPatience); ; time.Sleep(5 * time.Millisecond) {
		err := flock(d, unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return false, err
		case time.Now().After(end):
			return false, nil
		}
	}
}

// Remove takes away what a dead holder left; a *HeldError when it lives.
func (p *Place) Remove(kind, name string) error {
	d, err := p.entry(kind, name)
	if err != nil {
		return err
	}
	defer d.Close()
	ok, err := lock(d)
	if err != nil {
		return err
	}
	if !ok {
		return &HeldError{kind, name}
	}
	return p.unlink(kind, name, d)
}

// unlink removes a directory whose lock we have.
func (p *Place) unlink(kind, name string, d *os.File) error {
	k, err := openOwn(int(p.dir.Fd()), kind)
	if err != nil {
		return err
	}
	defer k.Close()
	if !sameEntry(k, name, d) {
		return nil // another took it away first
	}
	clear(d)
	if err := unix.Unlinkat(int(k.Fd()), name, unix.AT_REMOVEDIR); err != nil {
		return &os.PathError{Op: "rmdir", Path: filepath.Join(p.Path, kind, name), Err: err}
	}
	return nil
}

// clear removes the files of a holder's directory. There are no directories.
func clear(d *os.File) {
	if _, err := d.Seek(0, io.SeekStart); err != nil {
		return
	}
	names, _ := d.Readdirnames(-1)
	for _, n := range names {
		unix.Unlinkat(int(d.Fd()), n, 0)
	}
}

// sameEntry says whether name in dir is still the directory that was opened.
func sameEntry(dir *os.File, name string, opened *os.File) bool {
	var a, b unix.Stat_t
	return unix.Fstatat(int(dir.Fd()), name, &a, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		unix.Fstat(int(opened.Fd()), &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

// Sweep clears up after holders of a kind that were killed: those whose lock is
// free and that left no word. bury gives that word, from what the holder wrote
// about itself; where it gives nil, and for holders that were killed before they
// were ready, nothing is kept. A word is kept for keep.
//
// Boxes of dead holders are ended by the sweep of runner, which every start of
// a box does, and runner.Sweep.
func (p *Place) Sweep(kind string, keep time.Duration, bury func(meta json.RawMessage) any) {
	for _, name := range p.Names(kind) {
		d, err := p.entry(kind, name)
		if err != nil {
			continue
		}
		p.sweepOne(kind, name, d, keep, bury)
		d.Close()
	}
}

func (p *Place) sweepOne(kind, name string, d *os.File, keep time.Duration, bury func(json.RawMessage) any) {
	if flock(d, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return
	}
	e := &Entry{Meta: readDoc(d, metaFile)}
	var st unix.Stat_t
	if unix.Fstatat(int(d.Fd()), graveFile, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		if time.Since(time.Unix(st.Mtim.Unix())) > keep {
			p.unlink(kind, name, d)
		}
		return
	}
	var word any
	if bury != nil && e.Meta != nil {
		word = bury(e.Meta)
	}
	if word == nil || writeDoc(d, graveFile, word) != nil {
		p.unlink(kind, name, d)
		return
	}
	unix.Unlinkat(int(d.Fd()), socketFile, 0)
}
