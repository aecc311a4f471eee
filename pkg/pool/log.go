package pool

import (
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// logHalf is the most that one of the two files of a log holds: the log is at
// least the last half MiB of what was written, and at most twice that.
const logHalf = 512 << 10

const olderLog = logFile + ".1"

// Log keeps the end of what is written to it, on disk and not in memory. It never
// fails: what cannot be kept is lost.
type Log struct {
	mu   sync.Mutex
	dir  *os.File
	f    *os.File
	size int
}

// Log opens the log of the holder.
func (h *Holder) Log() *Log {
	if h.log == nil {
		h.log = &Log{dir: h.dir}
	}
	return h.log
}

// Write adds to the log.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(p)
	for len(p) > 0 && l.dir != nil {
		if l.f == nil || l.size >= logHalf {
			if l.next() != nil {
				break
			}
		}
		part := p[:min(len(p), logHalf-l.size)]
		if _, err := l.f.Write(part); err != nil {
			break
		}
		l.size += len(part)
		p = p[len(part):]
	}
	return n, nil
}

// next begins a new file.
func (l *Log) next() error {
	d := int(l.dir.Fd())
	if l.f != nil {
		l.f.Close()
		l.f = nil
		unix.Renameat(d, logFile, d, olderLog)
	}
	unix.Unlinkat(d, logFile, 0)
	fd, err := unix.Openat(d, logFile, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	l.f, l.size = os.NewFile(uintptr(fd), logFile), 0
	return nil
}

// Close ends it; later writes are lost.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dir = nil
	if l.f != nil {
		l.f.Close()
		l.f = nil
	}
	return nil
}

// CopyLog writes the log of a holder, alive or dead, to w.
func (p *Place) CopyLog(kind, name string, w io.Writer) error {
	d, err := p.entry(kind, name)
	if err != nil {
		return err
	}
	defer d.Close()
	for _, n := range []string{olderLog, logFile} {
		fd, err := unix.Openat(int(d.Fd()), n, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), n)
		_, err = io.Copy(w, f)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
