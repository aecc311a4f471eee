package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent/wire"
)

// What is said between a host and the program in a box; see package wire.
type (
	Request = wire.Request
	Body    = wire.Body
	Event   = wire.Event
)

// Operations of a Request.
const (
	OpExec   = wire.OpExec
	OpWarm   = wire.OpWarm
	OpCell   = wire.OpCell
	OpSignal = wire.OpSignal
)

// Kinds of Event.
const (
	Ready    = wire.Ready
	Warm     = wire.Warm
	Started  = wire.Started
	Failed   = wire.Failed
	Exited   = wire.Exited
	CellDone = wire.CellDone
	Broken   = wire.Broken
)

// MaxBody is the most bytes of an encoded Body; 64 MiB of code fit.
const MaxBody = wire.MaxBody

// Conn is one end of a SEQPACKET socket. Send and Receive may be used by one
// goroutine each at a time.
type Conn struct {
	f  *os.File
	rc syscallConn
}

type syscallConn interface {
	Read(func(uintptr) bool) error
	Write(func(uintptr) bool) error
}

// NewConn takes over the descriptor of f.
func NewConn(f *os.File) (*Conn, error) {
	if err := unix.SetNonblock(int(f.Fd()), true); err != nil {
		return nil, err
	}
	// Only a file made from a descriptor that does not block is polled.
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	f.Close()
	if err != nil {
		return nil, err
	}
	own := os.NewFile(uintptr(fd), "socket")
	rc, err := own.SyscallConn()
	if err != nil {
		own.Close()
		return nil, err
	}
	return &Conn{own, rc}, nil
}

// Pair makes a connection and the file of its other end.
func Pair() (*Conn, *os.File, error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	c, err := NewConn(os.NewFile(uintptr(p[0]), "socket"))
	if err != nil {
		unix.Close(p[1])
		return nil, nil, err
	}
	return c, os.NewFile(uintptr(p[1]), "socket"), nil
}

// File is the socket, for deadlines and for questions about the peer.
func (c *Conn) File() *os.File { return c.f }

// Close ends the connection.
func (c *Conn) Close() error { return c.f.Close() }

// Send sends one document and descriptors: a Request or an Event as the agent
// reads them, anything else as JSON.
func (c *Conn) Send(doc any, files ...*os.File) error {
	b, err := encode(doc)
	if err != nil {
		return err
	}
	if len(b) > wire.MaxPacket {
		return fmt.Errorf("a message of %d bytes, and at most %d can be sent", len(b), wire.MaxPacket)
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	var serr error
	err = c.rc.Write(func(fd uintptr) bool {
		serr = unix.Sendmsg(int(fd), b, rights, nil, unix.MSG_NOSIGNAL)
		return serr != unix.EAGAIN
	})
	if err != nil { // then what the socket last said is why it waited
		return err
	}
	return serr
}

// Receive waits for one packet, decodes it into doc (as Send encodes) and gives
// the descriptors that came with it. io.EOF: the other side is gone. A packet
// that is not such a document is an error, and its descriptors are closed.
func (c *Conn) Receive(doc any) ([]*os.File, error) {
	b, files, err := c.receive()
	if err == nil {
		if err = decode(b, doc); err == nil {
			return files, nil
		}
	}
	for _, f := range files {
		f.Close()
	}
	return nil, err
}

func (c *Conn) receive() ([]byte, []*os.File, error) {
	buf := make([]byte, wire.MaxPacket)
	oob := make([]byte, unix.CmsgSpace(4*wire.MaxFiles))
	var n, oobn, flags int
	var rerr error
	err := c.rc.Read(func(fd uintptr) bool {
		n, oobn, flags, _, rerr = unix.Recvmsg(int(fd), buf, oob, unix.MSG_CMSG_CLOEXEC)
		return rerr != unix.EAGAIN
	})
	if err == nil { // else what the socket last said is why it waited
		err = rerr
	}
	if err != nil {
		return nil, nil, err
	}
	var files []*os.File
	if cmsgs, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil {
		for i := range cmsgs {
			fds, err := unix.ParseUnixRights(&cmsgs[i])
			if err != nil {
				continue
			}
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), "received"))
			}
		}
	}
	switch {
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = errors.New("a message that is too long, or with too many descriptors")
	case n == 0:
		err = io.EOF
	}
	return buf[:n], files, err
}

func encode(doc any) ([]byte, error) {
	switch d := doc.(type) {
	case Request:
		return d.Append(nil), nil
	case *Request:
		return d.Append(nil), nil
	case Event:
		return d.Append(nil), nil
	case *Event:
		return d.Append(nil), nil
	case Body:
		return d.Append(make([]byte, 0, d.Size())), nil
	case *Body:
		return d.Append(make([]byte, 0, d.Size())), nil
	}
	return json.Marshal(doc)
}

func decode(b []byte, doc any) (err error) {
	switch d := doc.(type) {
	case *Request:
		*d, err = wire.ParseRequest(b)
	case *Event:
		*d, err = wire.ParseEvent(b)
	case *Body:
		*d, err = wire.ParseBody(b)
	default:
		err = json.Unmarshal(b, doc)
	}
	return err
}

// Pack puts a Body, or another document as JSON, into a sealed memfd: nobody can
// change it under its reader.
func Pack(doc any) (*os.File, error) {
	b, err := encode(doc)
	if err != nil {
		return nil, err
	}
	if len(b) > MaxBody {
		return nil, fmt.Errorf("%d bytes of code and arguments, and at most %d can be sent", len(b), MaxBody)
	}
	return Seal(b)
}

// Seal puts bytes into a sealed memfd, to be read from its start.
func Seal(b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("kern-sbx", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "memfd")
	if _, err = f.Write(b); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Unpack reads what Pack made. Anything but a sealed memfd is refused: another
// file could change, or block, while it is read.
func Unpack(f *os.File, doc any) error {
	got, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || got&wire.Seals != wire.Seals {
		return errors.New("the body of a message is not in sealed memory")
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.Size() > MaxBody {
		return fmt.Errorf("a body of %d bytes, and at most %d are read", st.Size(), MaxBody)
	}
	b := make([]byte, st.Size())
	if _, err := f.ReadAt(b, 0); err != nil && !(err == io.EOF && len(b) == 0) {
		return err
	}
	return decode(b, doc)
}
