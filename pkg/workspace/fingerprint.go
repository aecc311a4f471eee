package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// FingerprintSettle is how long after the last change of a tree its first
// Fingerprint may be taken: longer than a tick of the clock that file times are
// taken from, with room for a virtual CPU that skips some.
const FingerprintSettle = 50 * time.Millisecond

// fingerprintMax bounds the memory of a Fingerprint, 32 bytes an entry.
const fingerprintMax = 1 << 20

// Fingerprint gives a value that stays the same for as long as nothing below
// dir is changed, and that a box cannot bring back once it has changed
// something. The names of all entries but directories go into it and, from the
// inode, what no program can set: its number and its ctime. Every way to change
// a file moves its ctime on, and a box can neither choose a ctime nor turn the
// clock back, so contents need not be read: 20 000 files take less than 0.1 s.
//
// Where a ctime may stand still although a file was written (tmpfs, through
// mmap) or is another machine's word (network, FUSE), the contents go in too.
//
// Times move in ticks. A change in the very tick of the one before is not seen,
// so the first Fingerprint is to be taken FingerprintSettle after the last
// change. Mount points are not crossed. A tree of more than a million entries,
// or one that cannot be read wholly, is an error.
func Fingerprint(ctx context.Context, dir *os.File) ([sha256.Size]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var fs unix.Statfs_t
	read := unix.Fstatfs(int(dir.Fd()), &fs) != nil || !localClock(int64(fs.Type)) || int64(fs.Type) == unix.TMPFS_MAGIC
	var all [][sha256.Size]byte
	var w walker
	w.failed = func(dirfd int, name string, err error) {
		cancel(fmt.Errorf("%s: %w", where(dirfd, name), err))
	}
	w.visit = func(dirfd int, name string, _ byte) {
		if ctx.Err() != nil {
			return
		}
		if len(all) == fingerprintMax {
			cancel(fmt.Errorf("more than %d entries", fingerprintMax))
			return
		}
		sum, err := fingerprintEntry(ctx, dirfd, name, w.rel(name), read)
		if err != nil {
			w.failed(dirfd, name, err)
			return
		}
		all = append(all, sum)
	}
	err := w.once(ctx, int(dir.Fd()))
	if cause := context.Cause(ctx); err == nil || cause != nil {
		err = cause
	}
	if err != nil {
		return [sha256.Size]byte{}, err
	}
	// The order of a directory is not promised.
	slices.SortFunc(all, func(a, b [sha256.Size]byte) int { return bytes.Compare(a[:], b[:]) })
	h := sha256.New()
	for i := range all {
		h.Write(all[i][:])
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

func fingerprintEntry(ctx context.Context, dirfd int, name, rel string, read bool) (sum [sha256.Size]byte, err error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return sum, err
	}
	b := make([]byte, 0, 64+len(rel))
	for _, n := range []uint64{
		st.Ino, uint64(st.Mode), uint64(st.Size), uint64(st.Mtim.Nano()), uint64(st.Ctim.Nano()), uint64(len(rel)),
	} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	b = append(b, rel...)
	if !read || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return sha256.Sum256(b), nil
	}
	fd, opened, err := openRegular(dirfd, name)
	if err != nil {
		return sum, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if opened.Ino != st.Ino || opened.Dev != st.Dev {
		return sum, errMoved
	}
	h := sha256.New()
	h.Write(b)
	if _, err := io.Copy(h, &untilDone{ctx, f}); err != nil {
		return sum, err
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// untilDone is a reader that ends with its context.
type untilDone struct {
	ctx context.Context
	r   io.Reader
}

func (u *untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, errors.Join(err, context.Cause(u.ctx))
	}
	return u.r.Read(p)
}
