package kernbin

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/kernbin/pin"
)

//go:embed kern.pin
var pinFile []byte

// bundle is a kern carried inside a program: its bytes, their SHA-256 in hex
// and its version.
type bundle struct{ kern, sum, version string }

// builtin gives the bundle of this build; ok is false when it has none.
func builtin() (b bundle, ok bool) {
	if bundledKern == "" {
		return bundle{}, false
	}
	p, err := pin.Parse(pinFile)
	if err != nil {
		return bundle{}, false // a test reads the same file
	}
	sum, _, _ := strings.Cut(bundledSum, " ")
	return bundle{kern: bundledKern, sum: sum, version: p.Kern}, true
}

// Bundled gives the version and the SHA-256 (hex) of the kern inside this
// build. ok is false when it was built without one (no -tags embedkern, or an
// architecture that kern has no build for).
func Bundled() (version, sha256 string, ok bool) {
	b, ok := builtin()
	return b.version, b.sum, ok
}

// NotExecutableError says that the bundled kern was written to a directory
// where nothing can be executed (a noexec mount, or a policy). There is no
// fall-back: another kern has to be named.
type NotExecutableError struct {
	Dir string // where kern was written
	Err error  // what the kernel answered
}

// Error gives the one line that is shown.
func (e *NotExecutableError) Error() string {
	return fmt.Sprintf("the bundled kern cannot be executed in %s (%v): name a kern elsewhere with --kern PATH, "+
		"or set XDG_DATA_HOME to a directory on a file system mounted without noexec", e.Dir, e.Err)
}

// Unwrap gives the kernel's answer.
func (e *NotExecutableError) Unwrap() error { return e.Err }

const (
	kernName   = "kern"
	recordName = "kern.id"
	kernMode   = unix.S_IFREG | 0o555
	// lockWait bounds the wait for another process that is writing the same
	// kern. Writing is safe without the lock; it only saves doing it twice.
	lockWait = 5 * time.Second
)

// bundled gives the path of the bundle's kern below the first usable data
// directory, writing it there when it is not there as it was written.
func (f *finder) bundled(ctx context.Context, b bundle) (string, error) {
	var why []string
	for _, data := range f.DataDirs {
		path, err := f.bundledIn(ctx, b, data)
		if err == nil {
			return path, nil
		}
		if fatal := (*fatalError)(nil); errors.As(err, &fatal) {
			return "", fatal.err
		}
		why = append(why, err.Error())
	}
	if len(why) == 0 {
		why = append(why, "no candidate given")
	}
	return "", fmt.Errorf("no usable directory to keep the bundled kern in: %s; "+
		"set XDG_DATA_HOME to a directory of yours, or name a kern with --kern PATH", strings.Join(why, "; "))
}

// fatalError ends the search: the next data directory would not help, or using
// it would hide what is wrong with this one.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }

func (f *finder) bundledIn(ctx context.Context, b bundle, data string) (string, error) {
	dir, err := privateDir(data, true)
	if err != nil {
		return "", err
	}
	for _, sub := range [...]string{"kern", b.version} {
		dir = filepath.Join(dir, sub)
		if err := ownDir(dir, true); err != nil {
			return "", err
		}
	}
	path := filepath.Join(dir, kernName)
	if r, ok := written(dir, b); ok && r.Ran && executable(path) == nil {
		return path, nil
	}
	unlock := lockDir(ctx, dir)
	defer unlock()
	r, ok := written(dir, b)
	if ok && r.Ran && executable(path) == nil {
		return path, nil // written while we waited
	}
	if !ok {
		if err := checkSum(b); err != nil {
			return "", &fatalError{err}
		}
		sweepTemp(dir)
		id, err := writeKern(dir, b)
		if err != nil {
			return "", err
		}
		r = record{Subject: b.sum, Version: b.version, ID: id}
	}
	// Not proved to run yet, or no longer executable: ask it. What is mounted
	// how may have changed since it was written, so a bad answer is not final.
	version, err := askVersion(ctx, path, f.probe)
	if errors.Is(err, fs.ErrPermission) {
		err = &NotExecutableError{Dir: dir, Err: err}
	} else if err != nil {
		err = fmt.Errorf("the bundled kern does not run as %s: %w; name another one with --kern PATH", path, err)
	} else if version != b.version {
		err = fmt.Errorf("the bundled kern says it is %s, this program was built for %s: build it again with make clean build", version, b.version)
	}
	r.Ran = err == nil
	if werr := writeRecord(filepath.Join(dir, recordName), r); err == nil && werr != nil {
		return "", werr
	}
	if err != nil {
		return "", &fatalError{err}
	}
	return path, nil
}

// written reports whether the kern in dir is the one that was written there,
// without reading it: hashing 2 MB costs 4 ms, a fifth of a whole run.
func written(dir string, b bundle) (record, bool) {
	r, ok := readRecord(filepath.Join(dir, recordName))
	if !ok || r.Subject != b.sum || r.Version != b.version {
		return record{}, false
	}
	st, err := lstat(filepath.Join(dir, kernName))
	if err != nil || identityOf(&st) != r.ID || st.Mode != kernMode || int(st.Uid) != os.Geteuid() {
		return record{}, false
	}
	return r, true
}

// executable asks the kernel, which also knows about noexec mounts.
func executable(path string) error { return unix.Access(path, unix.X_OK) }

func checkSum(b bundle) error {
	sum := sha256.Sum256([]byte(b.kern))
	if got := hex.EncodeToString(sum[:]); got != b.sum {
		return fmt.Errorf("the bundled kern is damaged (SHA-256 %s, built with %s): install this program again", got, b.sum)
	}
	return nil
}

// writeKern puts kern into dir in one step and gives its identity there. What
// is hashed is what the file reads back as, not what was meant to be written.
func writeKern(dir string, b bundle) (fileID, error) {
	name, err := writeTemp(dir, b.kern)
	if err != nil {
		return fileID{}, err
	}
	defer os.Remove(name) // renamed away when all went well
	f, err := os.Open(name)
	if err != nil {
		return fileID{}, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return fileID{}, err
	}
	if hex.EncodeToString(h.Sum(nil)) != b.sum {
		return fileID{}, fmt.Errorf("%s does not keep what is written to it", dir)
	}
	if err := os.Rename(name, filepath.Join(dir, kernName)); err != nil {
		return fileID{}, err
	}
	// After the rename, which changes ctime; through the descriptor, because
	// the name may be another process's file by now. The record then does not
	// fit that file, and the next run settles it.
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fileID{}, err
	}
	return identityOf(&st), nil
}

// writeTemp gives the name of a finished file in dir. While a file is open for
// writing nothing can execute it, so it is closed before it gets its name, and
// no other goroutine may fork meanwhile: its child would hold it open too.
func writeTemp(dir, data string) (name string, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(data)
	if err == nil {
		err = f.Chmod(kernMode & 0o777)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return f.Name(), err
}

// lockDir takes the lock on a version's directory and gives what releases it.
// Where it cannot be had (some network file systems, a stopped holder) it goes
// on without: every file is replaced in one step.
func lockDir(ctx context.Context, dir string) (unlock func()) {
	fd, err := open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return func() {}
	}
	for end := time.Now().Add(lockWait); ; {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) ||
			ctx.Err() != nil || time.Now().After(end) {
			return func() { unix.Close(fd) }
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// sweepTemp removes what killed writers left; the age keeps a writer without
// the lock alive.
func sweepTemp(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasPrefix(e.Name(), tempPrefix) && time.Since(info.ModTime()) > time.Hour {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}
