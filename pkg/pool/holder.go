package pool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Version of the protocol. A holder and those who speak to it may be of
// different versions of this program: an update while a kernel lives.
const Version = 1

// Hello is the beginning of every first message, whatever else it holds.
type Hello struct {
	Version int    `json:"v"`
	Op      string `json:"op"`
}

// Refusal is the answer to a message that is not followed.
type Refusal struct {
	Refused string `json:"refused"`
}

const (
	// firstTime is how long a peer may take to say what it wants.
	firstTime = 5 * time.Second
	// mostPeers may be connected at one time.
	mostPeers = 256
	// endTime is how long Serve waits for its handlers at the end.
	endTime = 5 * time.Second
)

// Holder is the side of the process that holds something. It has its name for as
// long as it lives.
type Holder struct {
	Kind, Name string

	place  *Place
	dir    *os.File // locked
	listen *os.File
	log    *Log
}

// Claim takes a name. What a dead holder left under it is removed. A *HeldError
// says that a living one has it.
func (p *Place) Claim(kind, name string) (*Holder, error) {
	if err := validate.Name(name); err != nil {
		return nil, err
	}
	k, err := makeOwn(p.dir, kind)
	if err != nil {
		return nil, err
	}
	defer k.Close()
	// Between opening and locking it another may have removed it.
	for range 100 {
		d, err := makeOwn(k, name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		ok, err := lock(d)
		if err == nil && !ok {
			err = &HeldError{kind, name}
		}
		if err != nil {
			d.Close()
			return nil, err
		}
		if sameEntry(k, name, d) {
			clear(d)
			return &Holder{Kind: kind, Name: name, place: p, dir: d}, nil
		}
		d.Close()
	}
	return nil, fmt.Errorf("%s/%s is taken away as soon as it is made", p.Path, kind)
}

// Describe writes what others may know of the holder without speaking to it. A
// holder without it is removed by Sweep.
func (h *Holder) Describe(meta any) error { return writeDoc(h.dir, metaFile, meta) }

// Bury writes what ended the holder, for those who come later, and gives up the
// name. What Describe and the log hold stays.
func (h *Holder) Bury(grave any) error {
	err := writeDoc(h.dir, graveFile, grave)
	unix.Unlinkat(int(h.dir.Fd()), socketFile, 0)
	h.free()
	return err
}

// Leave removes all of it, and gives up the name.
func (h *Holder) Leave() error {
	err := h.place.unlink(h.Kind, h.Name, h.dir)
	h.free()
	return err
}

func (h *Holder) free() {
	if h.listen != nil {
		h.listen.Close()
		h.listen = nil
	}
	if h.log != nil {
		h.log.Close()
	}
	h.dir.Close()
}

// below names a file of an open directory in a way that fits into the address of
// a socket, however long the path is, and that no rename can redirect.
func below(d *os.File, name string) string {
	return "/proc/self/fd/" + strconv.Itoa(int(d.Fd())) + "/" + name
}

// Listen makes the socket. From now on others can connect, and wait for Serve.
func (h *Holder) Listen() error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("no socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), socketFile)
	if err = unix.Fchmod(fd, 0o600); err == nil { // the mode of the file to be
		unix.Unlinkat(int(h.dir.Fd()), socketFile, 0)
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: below(h.dir, socketFile)})
	}
	if err == nil {
		// Whatever the umask is; the directory is closed to others in any case.
		err = unix.Fchmodat(int(h.dir.Fd()), socketFile, 0o600, 0)
	}
	if err == nil {
		err = unix.Listen(fd, mostPeers)
	}
	if err != nil {
		f.Close()
		return fmt.Errorf("no socket in %s: %w", h.place.Path, err)
	}
	h.listen = f
	return nil
}

// Peer is one who speaks to a holder: a process of the same user, in our own pid
// namespace. Its first message has been read.
type Peer struct {
	*agent.Conn
	Hello Hello
	// Message is the whole first message, and Files its descriptors, which the
	// handler closes (CloseFiles).
	Message json.RawMessage
	Files   []*os.File
}

// CloseFiles closes the descriptors of the first message.
func (p *Peer) CloseFiles() {
	for _, f := range p.Files {
		f.Close()
	}
	p.Files = nil
}

// Serve takes connections until the context is done, each in a goroutine of its
// own, so that nobody waits for a slow peer. The handler's context ends with
// that of Serve; when it returns, its connection and the descriptors of the
// first message are closed. Peers that may not speak to us, say nothing within
// 5 s, or say what is no message are dropped. Serve returns when all handlers
// have, or 5 s after the end of the context.
func (h *Holder) Serve(ctx context.Context, handle func(context.Context, *Peer)) {
	var all sync.WaitGroup
	room := make(chan struct{}, mostPeers)
	stop := context.AfterFunc(ctx, func() { h.listen.SetReadDeadline(time.Now()) })
	defer stop()
	for ctx.Err() == nil {
		fd, err := h.accept()
		if err != nil {
			if ctx.Err() == nil {
				time.Sleep(10 * time.Millisecond) // no descriptor is free, or the like
			}
			continue
		}
		if mayNotSpeak(fd) != nil {
			unix.Close(fd)
			continue
		}
		select {
		case room <- struct{}{}:
		default:
			unix.Close(fd)
			continue
		}
		all.Go(func() {
			defer func() { <-room }()
			serveOne(ctx, fd, handle)
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(endTime):
	}
}

func (h *Holder) accept() (int, error) {
	rc, err := h.listen.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var aerr error
	err = rc.Read(func(l uintptr) bool {
		fd, _, aerr = unix.Accept4(int(l), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		return !errors.Is(aerr, unix.EAGAIN)
	})
	if err == nil {
		err = aerr
	}
	return fd, err
}

func serveOne(ctx context.Context, fd int, handle func(context.Context, *Peer)) {
	c, err := agent.NewConn(os.NewFile(uintptr(fd), "peer"))
	if err != nil {
		return
	}
	defer c.Close()
	end := context.AfterFunc(ctx, func() { c.File().SetReadDeadline(time.Now()) })
	defer end()
	c.File().SetReadDeadline(time.Now().Add(firstTime))
	p := &Peer{Conn: c}
	if p.Files, err = c.Receive(&p.Message); err != nil {
		return
	}
	defer p.CloseFiles()
	if json.Unmarshal(p.Message, &p.Hello) != nil {
		return
	}
	if p.Hello.Version != Version {
		p.Refuse(fmt.Sprintf("it was started by another version of kern-sbx (protocol %d, ours is %d); stop it and start it again", Version, p.Hello.Version))
		return
	}
	c.File().SetReadDeadline(time.Time{})
	if ctx.Err() == nil {
		handle(ctx, p)
	}
}

// sendTime is how long a peer may leave an answer of ours unread.
const sendTime = 10 * time.Second

// Answer sends one document. A peer that does not read is given up after 10 s.
func (p *Peer) Answer(doc any, files ...*os.File) error {
	p.File().SetWriteDeadline(time.Now().Add(sendTime))
	return p.Send(doc, files...)
}

// Refuse answers that the message is not followed, and why.
func (p *Peer) Refuse(why string) { p.Answer(Refusal{why}) }
