package workspace

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
)

// gzipBlock is how many bytes are compressed on their own. Smaller ones would
// cost size, larger ones memory and, at the end of a small archive, time.
const gzipBlock = 1 << 20

// gzipBlocks writes gzip on all processors: each block becomes a member of its
// own, which every reader of gzip takes for one stream. What comes out depends
// on nothing but what went in.
type gzipBlocks struct {
	cur    *packedBlock
	free   chan *packedBlock
	work   chan *packedBlock
	order  chan *packedBlock
	done   sync.WaitGroup
	out    io.Writer
	size   atomic.Int64 // bytes that came out
	failed atomic.Pointer[error]
	closed bool
}

type packedBlock struct {
	in    []byte
	out   bytes.Buffer
	err   error
	ready chan struct{}
}

func newGzipBlocks(out io.Writer) *gzipBlocks {
	workers := min(runtime.GOMAXPROCS(0), 16)
	blocks := 2*workers + 2
	g := &gzipBlocks{
		out: out, free: make(chan *packedBlock, blocks), work: make(chan *packedBlock, blocks), order: make(chan *packedBlock, blocks),
	}
	for range blocks {
		g.free <- &packedBlock{in: make([]byte, 0, gzipBlock), ready: make(chan struct{}, 1)}
	}
	for range workers {
		g.done.Go(g.pack)
	}
	g.done.Go(g.write)
	g.cur = <-g.free
	return g
}

func (g *gzipBlocks) pack() {
	w, err := flate.NewWriter(io.Discard, flate.BestSpeed)
	for b := range g.work {
		if b.err = err; b.err == nil {
			b.err = packBlock(w, b)
		}
		b.ready <- struct{}{}
	}
}

func packBlock(w *flate.Writer, b *packedBlock) error {
	b.out.Reset()
	// No time, no name, "fastest", no system: the same everywhere.
	b.out.Write([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255})
	w.Reset(&b.out)
	if _, err := w.Write(b.in); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	var tail [8]byte
	binary.LittleEndian.PutUint32(tail[:], crc32.ChecksumIEEE(b.in))
	binary.LittleEndian.PutUint32(tail[4:], uint32(len(b.in)))
	b.out.Write(tail[:])
	return nil
}

func (g *gzipBlocks) write() {
	for b := range g.order {
		<-b.ready
		if g.err() == nil {
			err := b.err
			if err == nil {
				var n int
				if n, err = g.out.Write(b.out.Bytes()); err == nil && n < b.out.Len() {
					err = io.ErrShortWrite
				}
				g.size.Add(int64(n))
			}
			if err != nil {
				g.failed.Store(&err)
			}
		}
		b.in = b.in[:0]
		g.free <- b
	}
}

func (g *gzipBlocks) err() error {
	if p := g.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// space gives room to write into, at least one byte; took says how much of it
// was used.
func (g *gzipBlocks) space() []byte { return g.cur.in[len(g.cur.in):cap(g.cur.in)] }

func (g *gzipBlocks) took(n int) error {
	g.cur.in = g.cur.in[:len(g.cur.in)+n]
	if len(g.cur.in) == cap(g.cur.in) {
		g.flush()
	}
	return g.err()
}

func (g *gzipBlocks) flush() {
	g.order <- g.cur
	g.work <- g.cur
	g.cur = <-g.free
}

func (g *gzipBlocks) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		n := copy(g.space(), p[done:])
		if err := g.took(n); err != nil {
			return done, err
		}
		done += n
	}
	return len(p), nil
}

// zeros writes n zero bytes.
func (g *gzipBlocks) zeros(n int64) error {
	for n > 0 {
		s := g.space()
		s = s[:min(n, int64(len(s)))]
		clear(s)
		if err := g.took(len(s)); err != nil {
			return err
		}
		n -= int64(len(s))
	}
	return nil
}

var errArchiveClosed = errors.New("the archive is closed")

// close writes what is left and waits for it. It must be called once, also
// after an error.
func (g *gzipBlocks) close() error {
	if g.closed {
		return errArchiveClosed
	}
	g.closed = true
	if len(g.cur.in) > 0 {
		g.order <- g.cur
		g.work <- g.cur
	}
	close(g.work)
	close(g.order)
	g.done.Wait()
	return g.err()
}
