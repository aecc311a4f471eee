package main

import (
	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent/wire"
)

// driver is an interpreter that waits for cells. It runs the code of the box in
// its own process, so everything that it says may have been said by that code.
type driver struct {
	process // id: of the cell that runs
	state   state
	sock    int // our end of its channel; -1 once it was closed from there
}

type state int

const (
	starting state = iota
	idle
	running
)

// Nothing that a driver has to say is longer.
const maxWords = 128

func (d *driver) close() {
	if d.sock >= 0 {
		unix.Close(d.sock)
	}
	d.process.close()
	*d = driver{}
}

func (d *driver) end() {
	d.process.end()
	d.close()
}

func (s *server) warm(r wire.Request, fds []int) wire.Event {
	if s.command.pid > 0 || s.driver.pid > 0 {
		return failed("busy", unix.EBUSY)
	}
	y, err := readBody(fds)
	if err != nil || len(fds) != 1 || r.Stdin || r.TTY {
		return failed("request", unix.EINVAL)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return failed("exec", number(err))
	}
	p, what, errno := s.start(&y, []uintptr{uintptr(s.null), 1, 2, uintptr(pair[1])}, false)
	unix.Close(pair[1])
	if errno != 0 {
		unix.Close(pair[0])
		return failed(what, errno)
	}
	s.driver = driver{process: p, sock: pair[0]}
	return wire.Event{}
}

func (s *server) cell(r wire.Request, fds []int) wire.Event {
	if s.command.pid > 0 || s.driver.pid > 0 && s.driver.state != idle {
		return failed("busy", unix.EBUSY)
	}
	if s.driver.pid == 0 {
		return failed("driver", unix.ESRCH)
	}
	want := 3
	if r.Stdin {
		want = 4
	}
	// The driver reads the body; of the rest nothing is looked at here.
	head, err := body(fds, 256)
	p := wire.NewParser(head)
	if err != nil || len(fds) != want || r.TTY || !wire.ValidID(r.ID) || string(p.Field()) != r.ID {
		return failed("request", unix.EINVAL)
	}
	err = unix.Sendmsg(s.driver.sock, append(append([]byte("cell "), r.ID...), '\n'), unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	if err == unix.EAGAIN {
		s.broken("it does not listen")
	}
	if err != nil {
		return failed("driver", number(err)) // its end is still to be heard of
	}
	s.driver.state, s.driver.id = running, r.ID
	return wire.Event{Event: wire.Started}
}

// listen hears what the driver has said so far.
func (s *server) listen() {
	for s.driver.pid > 0 && s.driver.sock >= 0 {
		var words [maxWords]byte
		n, _, err := unix.Recvfrom(s.driver.sock, words[:], unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case err == unix.EAGAIN:
			return
		case err == unix.EINTR:
		case err != nil || n == 0 && s.hungUp():
			s.closed()
		case n > len(words):
			s.broken("a packet that is too long")
		default:
			s.heard(words[:n])
		}
	}
}

// hungUp tells the end of the channel from an empty packet.
func (s *server) hungUp() bool {
	p := []unix.PollFd{{Fd: int32(s.driver.sock), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n == 1 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP) != 0
}

// closed: a cell may close what it likes, and then only the driver's exit can
// tell how it ended. A driver that waits must be able to hear.
func (s *server) closed() {
	if s.driver.state == idle {
		// The end of the process closes it as well, and may be seen later.
		d := &s.driver
		if !d.reaped {
			d.kill()
			var st unix.WaitStatus
			var use unix.Rusage
			for {
				if _, err := unix.Wait4(d.pid, &st, 0, &use); err != unix.EINTR {
					break
				}
			}
			d.reaped = true
			if st.Exited() || st.Signaled() && st.Signal() != unix.SIGKILL {
				d.close()
				s.event(exited(st, &use))
				return
			}
		}
		s.broken("it closed its channel")
		return
	}
	unix.Close(s.driver.sock)
	s.driver.sock = -1
}

func (s *server) heard(words []byte) {
	switch s.driver.state {
	case starting:
		if string(words) == "ready" || string(words) == "ready\n" {
			s.driver.state = idle
			s.event(wire.Event{Event: wire.Warm})
			return
		}
		s.broken("it spoke before it was ready")
	case idle:
		s.broken("it spoke while no cell ran")
	case running:
		code, ok := done(words, s.driver.id)
		if !ok {
			s.broken("it did not answer for its cell")
			return
		}
		e := wire.Event{Event: wire.CellDone, ID: s.driver.id, Code: code}
		s.driver.state, s.driver.id = idle, ""
		s.event(e)
	}
}

// done reads "done ID CODE".
func done(words []byte, id string) (code int, ok bool) {
	line := string(words)
	if n := len(line); n > 0 && line[n-1] == '\n' {
		line = line[:n-1]
	}
	word, line, _ := cut(line, ' ')
	name, digits, _ := cut(line, ' ')
	if word != "done" || name != id || digits == "" || len(digits) > 3 || len(digits) > 1 && digits[0] == '0' {
		return 0, false
	}
	for i := 0; i < len(digits); i++ {
		if digits[i] < '0' || digits[i] > '9' {
			return 0, false
		}
		code = code*10 + int(digits[i]-'0')
	}
	return code, code <= 255
}

// broken ends a driver that does not keep to the protocol.
func (s *server) broken(what string) {
	e := wire.Event{Event: wire.Broken, ID: s.driver.id, What: what}
	if s.driver.state == starting {
		e = failed("driver", unix.EPROTO)
	}
	s.driver.end()
	s.event(e)
}

// driverEnded reports the end of a driver that has been reaped.
func (s *server) driverEnded(e wire.Event) {
	s.driver.reaped = true
	s.listen() // it may have answered before it went
	d := s.driver
	if d.pid == 0 {
		return // and was found broken
	}
	s.driver.close()
	switch d.state {
	case starting:
		e.Event, e.What = wire.Failed, "driver"
	case running:
		e.ID = d.id
	}
	s.event(e)
}
