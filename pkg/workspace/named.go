package workspace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// NamePrefix is what the name of a kept workspace begins with where a directory
// could stand as well.
const NamePrefix = "@"

// maxName is the longest name of a workspace.
const maxName = 64

// CheckName checks the name of a kept workspace, without NamePrefix:
// [a-z0-9][a-z0-9._-]*, at most 64 bytes, so that it is never an option, a hidden
// entry, or a path.
func CheckName(name string) error {
	const chars = "abcdefghijklmnopqrstuvwxyz0123456789"
	if name == "" || len(name) > maxName || !strings.Contains(chars, name[:1]) || strings.Trim(name, chars+"._-") != "" {
		return &validate.Error{
			Value: NamePrefix + name, Reason: "not the name of a workspace",
			Fix: "use at most 64 lower-case letters, digits, dots, _ and -, and begin with a letter or digit; ./" + NamePrefix + "… is a directory of that name",
		}
	}
	return nil
}

// Store holds the workspaces that are kept by name: one directory each, and
// beside it a file that the one who writes to it has locked. It lies in a
// directory that is the caller's alone.
type Store struct {
	dir string
}

// NewStore names the store below our data directory. It makes nothing.
func NewStore(data string) Store { return Store{filepath.Join(data, "workspaces")} }

func lockName(name string) string { return "." + name + ".lock" }

// open opens the store, with create after making it (0700).
func (s Store) open(create bool) (*os.File, error) {
	if create {
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return nil, err
		}
	}
	fd, err := unix.Open(s.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: s.dir, Err: err}
	}
	return os.NewFile(uintptr(fd), s.dir), nil
}

// Path gives the directory of a workspace that is there. Reading it needs no lock.
func (s Store) Path(name string) (string, error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	path := filepath.Join(s.dir, name)
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", missing(name)
	case err != nil:
		return "", err
	case !st.IsDir():
		return "", fmt.Errorf("%s is not a directory", strconv.QuoteToGraphic(path))
	}
	return path, nil
}

func missing(name string) error {
	return &validate.Error{Value: NamePrefix + name, Reason: "there is no workspace of that name", Fix: "see what there is with workspace ls; run -W " + NamePrefix + name + " makes one"}
}

// Held is a workspace that only its holder may write to.
type Held struct {
	// Path is its directory, without a symbolic link in it.
	Path string
	// Made says that it was not there before.
	Made bool
	// A number, as a file that nobody refers to any more is closed.
	lock int
}

// Release lets others write to it. So does the end of this process.
func (h *Held) Release() { _ = unix.Close(h.lock) }

// Hold gives a workspace to this process alone, as long as others ask too; with
// create it is made (empty, 0755 in a directory of mode 0700) where it is missing.
// While another process holds it, it is refused, with that one's number.
func (s Store) Hold(name string, create bool) (*Held, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if !create {
		if _, err := s.Path(name); err != nil {
			return nil, err
		}
	}
	dir, err := s.open(create)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	lock, err := s.lock(dir, name)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	h := &Held{}
	if h.lock, err = unix.FcntlInt(lock.Fd(), unix.F_DUPFD_CLOEXEC, 3); err != nil {
		return nil, err
	}
	err = unix.Mkdirat(int(dir.Fd()), name, 0o755)
	if h.Made = err == nil; err == unix.EEXIST {
		err = nil
	}
	if err == nil {
		// Its true path: kern, and those who check a mount, take no links.
		h.Path, err = filepath.EvalSymlinks(filepath.Join(s.dir, name))
	}
	if err != nil {
		h.Release()
		return nil, fmt.Errorf("the workspace %s%s: %w", NamePrefix, name, err)
	}
	return h, nil
}

// lock locks the file beside a workspace, and writes our number into it.
func (s Store) lock(dir *os.File, name string) (*os.File, error) {
	for range 10 {
		f, err := openLock(dir, name, unix.O_CREAT)
		if err != nil {
			return nil, err
		}
		own := unix.Flock_t{Type: unix.F_WRLCK}
		err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &own)
		if err == unix.EAGAIN || err == unix.EACCES {
			pid := holder(f)
			f.Close()
			who := "another process"
			if pid > 0 {
				who = "process " + strconv.Itoa(pid)
			}
			return nil, &validate.Error{Value: NamePrefix + name, Reason: who + " is using this workspace", Fix: "wait until that has ended, or take another name"}
		}
		var a, b unix.Stat_t
		if err == nil {
			err = unix.Fstat(int(f.Fd()), &a)
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		if unix.Fstatat(int(dir.Fd()), lockName(name), &b, unix.AT_SYMLINK_NOFOLLOW) != nil || a.Ino != b.Ino {
			f.Close() // removed with its workspace while we opened it
			continue
		}
		if err = f.Truncate(0); err == nil {
			_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		return f, nil
	}
	return nil, fmt.Errorf("the workspace %s%s is being removed again and again", NamePrefix, name)
}

func openLock(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), lockName(name), flags|unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: filepath.Join(dir.Name(), lockName(name)), Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func holder(f *os.File) int {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 32))
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
}

// Remove removes a workspace that nobody holds, however hostile what is in it.
func (s Store) Remove(name string) error {
	if _, err := s.Path(name); err != nil {
		return err
	}
	dir, err := s.open(false)
	if err != nil {
		return err
	}
	defer dir.Close()
	lock, err := s.lock(dir, name)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := RemoveAt(dir, name); err != nil {
		return err
	}
	// Last, and still locked: who comes next makes a new one.
	return unlink(int(dir.Fd()), lockName(name), 0)
}

// NamedInfo is one kept workspace.
type NamedInfo struct {
	Name, Path string
	// Used is when somebody last wrote to it by its name; of one that is held,
	// when that began.
	Used time.Time
	// Holder is the number of the process that holds it, 0 for nobody.
	Holder int
}

// List gives all workspaces, by name. None are no error.
func (s Store) List() ([]NamedInfo, error) {
	dir, err := s.open(false)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var list []NamedInfo
	for _, n := range names {
		st, err := os.Lstat(filepath.Join(s.dir, n))
		if CheckName(n) != nil || err != nil || !st.IsDir() {
			continue
		}
		i := NamedInfo{Name: n, Path: filepath.Join(s.dir, n), Used: st.ModTime()}
		if f, err := openLock(dir, n, 0); err == nil {
			if st, err := f.Stat(); err == nil {
				i.Used = st.ModTime()
			}
			// Asked only: who takes the lock would be in somebody's way.
			ask := unix.Flock_t{Type: unix.F_WRLCK}
			if unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &ask) == nil && ask.Type != unix.F_UNLCK {
				i.Holder = holder(f)
			}
			f.Close()
		}
		list = append(list, i)
	}
	return list, nil
}
