package images

import (
	"bufio"
	"bytes"
	"crypto/rand"
	_ "embed" // the compiler
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Compiler is the program that compiles an image's Python library, for a box of
// that image. Its argument is "auto" (nothing when the image has its bytecode) or
// "all"; what it writes is for Unpack.
//
//go:embed compile.py
var Compiler []byte

// MaxBytecode is the most that the bytecode of one image may take, in bytes.
const MaxBytecode = 512 << 20

const (
	keepBytecode = 8              // images
	freshUse     = time.Hour      // one used since may be on its way into a box
	retryAfter   = 24 * time.Hour // of a build that failed
	mostOfFiles  = 200_000
	mostOfPath   = 1024

	tempBytecode = ".tmp-"
	failedSuffix = ".failed"
	wholeFile    = "complete"
	treeDir      = "tree"
)

// Bytecode is the directory that holds compiled libraries, one directory for
// each image id. All of it is this user's alone; a box only ever reads it.
type Bytecode struct{ dir string }

// OpenBytecode gives the one below our cache directory base, which only this
// user can write. It makes nothing.
func OpenBytecode(base string) Bytecode { return Bytecode{filepath.Join(base, "pyc")} }

// entry is the directory of an image id, "" for what is none.
func (b Bytecode) entry(id string) string {
	h, ok := strings.CutPrefix(id, "cache:")
	if !ok || len(h) != 32 || strings.Trim(h, "0123456789abcdef") != "" {
		return ""
	}
	return filepath.Join(b.dir, h)
}

// Adopt gives the directory to mount for an image, "" when there is none. wanted
// says that a build is worth trying: there is no complete entry, not even an
// empty one for an image that needs none, and none failed lately.
func (b Bytecode) Adopt(id string) (tree string, wanted bool) {
	e := b.entry(id)
	if e == "" {
		return "", false
	}
	if !ours(b.dir, true) || !ours(e, true) || !ours(filepath.Join(e, wholeFile), false) {
		st, err := os.Lstat(e + failedSuffix)
		return "", err != nil || time.Since(st.ModTime()) > retryAfter
	}
	tree = filepath.Join(e, treeDir)
	if !ours(tree, true) {
		return "", false
	}
	now := time.Now()
	_ = os.Chtimes(filepath.Join(e, wholeFile), now, now) // for the choice of what is kept
	return tree, false
}

// ours says whether a path is a directory (or regular file) of this user's that
// no other can write, and not a link to one.
func ours(path string, dir bool) bool {
	st, err := os.Lstat(path)
	if err != nil || st.IsDir() != dir || !dir && !st.Mode().IsRegular() || st.Mode().Perm()&0o022 != 0 {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(sys.Uid) == os.Geteuid()
}

// Build is one entry in the making. One is made at a time on a machine.
type Build struct {
	b    Bytecode
	id   string
	lock *os.File
	tmp  string
}

// ErrBusy says that another build is going on.
var ErrBusy = errors.New("another build of bytecode is going on")

// Begin starts to make the entry of an image id, and clears away what killed
// builds left. Nobody is waited for: ErrBusy. The caller ends it with Finish or
// Fail.
func (b Bytecode) Begin(id string) (*Build, error) {
	if b.entry(id) == "" {
		return nil, fmt.Errorf("not the id of a cached image: %q", id)
	}
	if err := os.Mkdir(b.dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	if !ours(b.dir, true) {
		return nil, fmt.Errorf("%s is not a directory that only this user can write", b.dir)
	}
	lock, err := os.OpenFile(filepath.Join(b.dir, "lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrBusy
		}
		return nil, err
	}
	n := &Build{b: b, id: id, lock: lock}
	b.sweep()
	var r [8]byte
	_, _ = rand.Read(r[:])
	n.tmp = filepath.Join(b.dir, tempBytecode+hex.EncodeToString(r[:]))
	if err := os.Mkdir(n.tmp, 0o700); err != nil {
		lock.Close()
		return nil, err
	}
	return n, nil
}

// Fail ends a build that came to nothing: it is not tried again for a day.
func (n *Build) Fail() {
	defer n.lock.Close()
	_ = os.RemoveAll(n.tmp)
	name := n.b.entry(n.id) + failedSuffix
	if f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600); err == nil {
		f.Close()
		now := time.Now()
		_ = os.Chtimes(name, now, now)
	}
}

// Finish unpacks what the compiler wrote and publishes it whole; from then on
// boxes of this image get it.
func (n *Build) Finish(compiled io.Reader) (files int, err error) {
	tree := filepath.Join(n.tmp, treeDir)
	if err = makeDirs(n.tmp, tree); err == nil {
		files, err = Unpack(compiled, tree, false)
	}
	if err == nil && files == 0 {
		err = os.RemoveAll(tree) // the image has its own
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(n.tmp, wholeFile), nil, 0o600)
	}
	if err == nil {
		e := n.b.entry(n.id)
		if err = os.Rename(n.tmp, e); errors.Is(err, os.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
			// Something incomplete has the name, or it was made meanwhile.
			if _, wanted := n.b.Adopt(n.id); !wanted {
				_ = os.RemoveAll(n.tmp)
				n.lock.Close()
				return files, nil
			}
			if err = os.RemoveAll(e); err == nil {
				err = os.Rename(n.tmp, e)
			}
		}
	}
	if err != nil {
		n.Fail()
		return 0, err
	}
	_ = os.Remove(n.b.entry(n.id) + failedSuffix)
	n.lock.Close()
	return files, nil
}

// Forget removes what there is for an image.
func (b Bytecode) Forget(id string) {
	if e := b.entry(id); e != "" && ours(b.dir, true) {
		_ = os.RemoveAll(e)
		_ = os.Remove(e + failedSuffix)
	}
}

// sweep removes what killed builds left, and the entries that were used longest
// ago. The lock is held, so nobody else builds.
func (b Bytecode) sweep() {
	list, err := os.ReadDir(b.dir)
	if err != nil {
		return
	}
	type used struct {
		path string
		at   time.Time
	}
	var all []used
	for _, d := range list {
		p := filepath.Join(b.dir, d.Name())
		if strings.HasPrefix(d.Name(), tempBytecode) {
			_ = os.RemoveAll(p)
			continue
		}
		if strings.HasSuffix(d.Name(), failedSuffix) {
			if i, err := d.Info(); err == nil && time.Since(i.ModTime()) > retryAfter {
				_ = os.Remove(p)
			}
			continue
		}
		if !d.IsDir() {
			continue
		}
		var at time.Time // an incomplete one goes first
		if st, err := os.Lstat(filepath.Join(p, wholeFile)); err == nil {
			at = st.ModTime()
		}
		all = append(all, used{p, at})
	}
	slices.SortFunc(all, func(x, y used) int { return y.at.Compare(x.at) })
	for i, u := range all {
		if i >= keepBytecode-1 && time.Since(u.at) > freshUse { // one more is coming
			_ = os.RemoveAll(u.path)
		}
	}
}

// Unpack writes what the compiler wrote below dir, as regular files that only
// this user can write, and counts them. beside puts each file where Python looks
// without a prefix, in the __pycache__ beside its source. The stream comes from
// the image's own Python and is distrusted: names stay below dir, contents have
// to be bytecode that is checked against its source whenever it is used, and it
// is nothing until it is whole.
func Unpack(compiled io.Reader, dir string, beside bool) (files int, err error) {
	r := bufio.NewReaderSize(compiled, 64<<10)
	var total int64
	for {
		line, err := r.ReadSlice('\n')
		switch {
		case err == io.EOF:
			return 0, errors.New("the bytecode ends too early")
		case err != nil:
			return 0, err
		case string(line) == "end\n":
			if _, err := r.ReadByte(); err != io.EOF {
				return 0, errors.New("something follows the end of the bytecode")
			}
			return files, nil
		}
		var nameLen, size int64
		if n, err := fmt.Sscanf(string(line), "%d %d\n", &nameLen, &size); err != nil || n != 2 || fmt.Sprintf("%d %d\n", nameLen, size) != string(line) ||
			nameLen <= 0 || nameLen > mostOfPath || size < pycHeader || size > MaxBytecode {
			return 0, errors.New("a line of the bytecode cannot be read")
		}
		if total += nameLen + size; total > MaxBytecode {
			return 0, errors.New("more than 512 MiB of bytecode")
		}
		if files++; files > mostOfFiles {
			return 0, errors.New("too many files of bytecode")
		}
		name := make([]byte, nameLen)
		if _, err := io.ReadFull(r, name); err != nil {
			return 0, errors.New("the bytecode ends too early")
		}
		if err := checkPycPath(string(name)); err != nil {
			return 0, err
		}
		var content bytes.Buffer
		if _, err := io.CopyN(&content, r, size); err != nil {
			return 0, errors.New("the bytecode ends too early")
		}
		if err := checkPyc(content.Bytes()); err != nil {
			return 0, err
		}
		at := filepath.Join(dir, filepath.FromSlash(string(name)))
		if beside {
			at = filepath.Join(filepath.Dir(at), "__pycache__", filepath.Base(at))
		}
		if err := makeDirs(dir, filepath.Dir(at)); err != nil {
			return 0, err
		}
		f, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
		if err != nil {
			return 0, err
		}
		_, err = f.Write(content.Bytes())
		if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
			return 0, err
		}
	}
}

// makeDirs makes what is missing from base down to dir, readable by every user of
// a box whatever the umask is here.
func makeDirs(base, dir string) error {
	if dir == base {
		return nil
	}
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, os.ErrNotExist) {
		if err = makeDirs(base, filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o755)
	}
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	return err
}

// checkPycPath takes relative paths of plain names alone.
func checkPycPath(p string) error {
	bad := !strings.HasSuffix(p, ".pyc") || strings.Count(p, "/") > 40
	for part := range strings.SplitSeq(p, "/") {
		bad = bad || part == "" || part == "." || part == ".." || part == "__pycache__" || len(part) > 255
	}
	for i := range len(p) {
		bad = bad || p[i] < ' ' || p[i] == 0x7f || p[i] == '\\'
	}
	if bad {
		return fmt.Errorf("not a name for bytecode: %q", p)
	}
	return nil
}

const (
	pycHeader = 16
	// pycChecked is the flag word of bytecode that goes by the hash of its
	// source (1) and looks at it whenever it is used (2).
	pycChecked = 3
)

// checkPyc looks at the header of PEP 552.
func checkPyc(b []byte) error {
	if len(b) < pycHeader || b[2] != '\r' || b[3] != '\n' || binary.LittleEndian.Uint32(b[4:]) != pycChecked {
		return errors.New("not bytecode that is checked against its source")
	}
	return nil
}
