package pool

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
)

// connectTime is how long a holder may leave a connection waiting.
const connectTime = 5 * time.Second

// Dial connects to a holder. A *NoneError: there is none; a *DeadError: it is
// dead; a *StartingError: it does not listen yet.
func (p *Place) Dial(kind, name string) (*agent.Conn, error) {
	d, err := p.entry(kind, name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	// Bounds the wait for room in the queue of the listener.
	limit := unix.NsecToTimeval(int64(connectTime))
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit)
	for {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: below(d, socketFile)})
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil {
		return agent.NewConn(os.NewFile(uintptr(fd), "holder"))
	}
	unix.Close(fd)
	switch e := look(d, kind, name); {
	case errors.Is(err, unix.EAGAIN):
		return nil, errors.New("the " + kind + " " + name + " does not answer")
	case e.Alive:
		return nil, &StartingError{kind, name}
	case e.Meta == nil && e.Grave == nil:
		return nil, &NoneError{kind, name} // killed before it was ready
	default:
		return nil, &DeadError{Kind: kind, Name: name, Meta: e.Meta, Grave: e.Grave}
	}
}
