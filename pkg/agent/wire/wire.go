package wire

import (
	"errors"
	"strconv"
)

// The program as PID 1 of a box that waits for its work ("agent serve") talks
// with its host over a SEQPACKET socket on descriptor 0: one Request or Event a
// packet, with descriptors beside it. What may be long, or is not text, lies in
// a sealed memfd that goes along (Body).
//
// Everything is a sequence of fields: the length in decimal, a newline, that
// many bytes. A driver in any language reads that with a few lines and without
// an import, so the agent hands a Body on as it came.
//
// The agent is the only process of the box that holds the socket. It is not
// dumpable, so code in the box can neither read its memory nor take its
// descriptors; what it says of the end of a command is what wait4 told it.

// Reports of "agent tty", on the pipe it was given as standard error, when it
// could not execute the command: one of these words, a blank, and the reason.
// Nothing else can write there: no code of the box has run yet.
const (
	NotFound      = "kern-sbx-agent: not-found"
	NotExecutable = "kern-sbx-agent: not-executable"
)

// Operations of a Request.
const (
	// OpExec starts a command as a child of the agent. Descriptors: body, stdout,
	// stderr, and stdin when Request.Stdin says so (with TTY: body and the slave
	// of a pty alone, which becomes all three and the controlling terminal). The
	// command leads a session and a process group of its own, as in a container.
	// A driver that waits for a cell is killed first.
	OpExec = "exec"
	// OpWarm starts an interpreter's driver, which will wait for cells on
	// descriptor 3. Descriptors: body. Its standard input is /dev/null, its output
	// that of the box.
	OpWarm = "warm"
	// OpCell gives the driver a piece of code. Descriptors as of OpExec, without
	// TTY. The driver gets one packet, "cell ID\n", with the same descriptors in
	// the same order.
	OpCell = "cell"
	// OpSignal sends Request.Signal to the command, or to the driver while a cell
	// runs; with an ID, only while that is what runs. SIGINT and SIGQUIT reach the
	// process group, as a terminal would send them, the others the process alone.
	OpSignal = "signal"
)

// Request is what a host asks of the agent. One command or cell runs at a time.
type Request struct {
	Op string
	// ID is chosen by the host for each exec and cell (1 to 64 letters, digits,
	// and any of ._-), and comes back in the events about it.
	ID     string
	Stdin  bool
	TTY    bool
	Signal int
}

// Body is the long part of a Request.
type Body struct {
	// ID of the cell, as in its Request; the driver finds it here as well. Not
	// looked at for a command.
	ID string
	// Cell: the file that tracebacks name (an absolute path in the box).
	File string
	// Dir is the working directory; empty, that of the box.
	Dir string
	// Argv is the command; for a cell, what the program finds as its arguments.
	Argv [][]byte
	// Env are KEY=VALUE pairs over the environment of the box.
	Env [][]byte
	// Code of a cell.
	Code []byte
}

// Kinds of Event.
const (
	Ready   = "ready"   // the agent waits; once, first of all
	Warm    = "warm"    // the driver waits for a cell; once after OpWarm
	Started = "started" // the command was executed, the cell was given to the driver
	// Failed: nothing ran. What is "exec", "chdir" or "terminal" (Errno says why),
	// "driver" (it ended, by Code or Signal, before it was ready, or said something
	// else: Errno is EPROTO; there is none to give a cell to: ESRCH; it is about to
	// be reported as gone: EPIPE), "busy" (with another command, cell or driver) or
	// "request" (a descriptor is missing, the body cannot be read, or the ID is
	// none, or not the body's).
	Failed = "failed"
	// Exited: the command ended, by Code or by Signal. Of the driver: with the ID
	// of the cell that ran, without one when none did. A driver that the agent
	// killed itself (for OpExec, or because it is Broken) is not reported.
	Exited = "exited"
	// CellDone: the driver says that the cell ended with Code. Only its word.
	CellDone = "cell"
	// Broken: the driver said what it must not (What), with the ID of the cell that
	// ran, if one did; it has been killed.
	Broken = "broken"
)

// Event is what the agent tells its host.
type Event struct {
	Event  string
	ID     string
	Code   int // 0 to 255
	Signal int // 0 to 127
	Errno  int
	What   string
	// Exited: processor time of the command and of the descendants it waited for,
	// in microseconds, and the largest of their resident sets, in bytes; as wait4
	// says.
	CPU    int64
	MaxRSS int64
}

// Limits of what is accepted.
const (
	MaxPacket = 64 << 10
	MaxFiles  = 8
	// MaxBody is the most bytes of an encoded Body; 64 MiB of code fit.
	MaxBody = 96 << 20
	maxID   = 64
	// Seals that the memory of a Body must have: shrink, grow, write. (The numbers
	// are the kernel's; this package does without theirs.)
	Seals = 0x2 | 0x4 | 0x8
)

var (
	errRequest = errors.New("not a request to the agent")
	errEvent   = errors.New("not an event of the agent")
	errBody    = errors.New("not the body of a request to the agent")
)

// ValidID says whether an ID may be used: it becomes part of a driver's line.
func ValidID(id string) bool {
	for i := 0; i < len(id); i++ {
		c := id[i]
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return id != "" && len(id) <= maxID
}

// Append adds the packet of a Request to b.
func (r *Request) Append(b []byte) []byte {
	b = field(b, r.Op)
	b = field(b, r.ID)
	flags := ""
	if r.Stdin {
		flags += "i"
	}
	if r.TTY {
		flags += "t"
	}
	b = field(b, flags)
	return number(b, int64(r.Signal))
}

// ParseRequest reads the packet of a Request.
func ParseRequest(b []byte) (Request, error) {
	p := Parser{rest: b}
	r := Request{Op: string(p.Field()), ID: string(p.Field())}
	switch string(p.Field()) {
	case "":
	case "i":
		r.Stdin = true
	case "t":
		r.TTY = true
	case "it":
		r.Stdin, r.TTY = true, true
	default:
		p.bad = true
	}
	r.Signal = int(p.Number(64))
	if !p.End() || r.ID != "" && !ValidID(r.ID) {
		return Request{}, errRequest
	}
	return r, nil
}

// Append adds the packet of an Event to b.
func (e *Event) Append(b []byte) []byte {
	b = field(b, e.Event)
	b = field(b, e.ID)
	b = number(b, int64(e.Code))
	b = number(b, int64(e.Signal))
	b = number(b, int64(e.Errno))
	b = field(b, e.What)
	b = number(b, e.CPU)
	return number(b, e.MaxRSS)
}

// ParseEvent reads the packet of an Event.
func ParseEvent(b []byte) (Event, error) {
	p := Parser{rest: b}
	e := Event{Event: string(p.Field()), ID: string(p.Field())}
	e.Code = int(p.Number(255))
	e.Signal = int(p.Number(127))
	e.Errno = int(p.Number(4095))
	e.What = string(p.Field())
	e.CPU = p.Number(1<<62 - 1)
	e.MaxRSS = p.Number(1<<62 - 1)
	if !p.End() || e.ID != "" && !ValidID(e.ID) {
		return Event{}, errEvent
	}
	switch e.Event {
	case Ready, Warm, Started, Failed, Exited, CellDone, Broken:
		return e, nil
	}
	return Event{}, errEvent
}

// Append adds the bytes of a Body to b: ID, file, directory, the number of
// arguments and they, the number of variables and they, and the code.
func (y *Body) Append(b []byte) []byte {
	b = field(b, y.ID)
	b = field(b, y.File)
	b = field(b, y.Dir)
	b = list(b, y.Argv)
	b = list(b, y.Env)
	return field(b, y.Code)
}

// Size is an upper bound of what Append adds.
func (y *Body) Size() int {
	const length = 12
	n := 8*length + len(y.ID) + len(y.File) + len(y.Dir) + len(y.Code)
	for _, l := range [][][]byte{y.Argv, y.Env} {
		for _, v := range l {
			n += length + len(v)
		}
	}
	return n
}

// ParseBody reads the bytes of a Body, which then lies in b.
func ParseBody(b []byte) (Body, error) {
	p := Parser{rest: b}
	y := Body{ID: string(p.Field()), File: string(p.Field()), Dir: string(p.Field())}
	y.Argv = p.list()
	y.Env = p.list()
	y.Code = p.Field()
	if !p.End() {
		return Body{}, errBody
	}
	return y, nil
}

func field[T string | []byte](b []byte, v T) []byte {
	b = strconv.AppendInt(b, int64(len(v)), 10)
	b = append(b, '\n')
	return append(b, v...)
}

func number(b []byte, n int64) []byte {
	return field(b, strconv.AppendInt(make([]byte, 0, 20), n, 10))
}

func list(b []byte, l [][]byte) []byte {
	b = number(b, int64(len(l)))
	for _, v := range l {
		b = field(b, v)
	}
	return b
}

// Parser takes fields off the front of bytes. After the first that is none, all
// are empty and End says no.
type Parser struct {
	rest []byte
	bad  bool
}

// NewParser starts at the front of b.
func NewParser(b []byte) Parser { return Parser{rest: b} }

// Field is the next one; it lies in the bytes that are parsed.
func (p *Parser) Field() []byte {
	n := p.decimal('\n', MaxBody)
	if p.bad || n > int64(len(p.rest)) {
		p.bad, p.rest = true, nil
		return nil
	}
	v := p.rest[:n:n]
	p.rest = p.rest[n:]
	return v
}

// Number is the next field as a number from 0 to most.
func (p *Parser) Number(most int64) int64 {
	f := append(p.Field(), 0) // no room behind a field: this is a copy
	q := Parser{rest: f, bad: p.bad}
	n := q.decimal(0, most)
	p.bad = p.bad || q.bad || len(q.rest) > 0
	return n
}

// End says whether all was well and nothing is left.
func (p *Parser) End() bool { return !p.bad && len(p.rest) == 0 }

// decimal reads one number in its only spelling, and the byte behind it.
func (p *Parser) decimal(end byte, most int64) int64 {
	var n int64
	for i, c := range p.rest {
		switch {
		case c == end && i > 0:
			p.rest = p.rest[i+1:]
			return n
		case c < '0' || c > '9' || i > 0 && n == 0 || n > (most-int64(c-'0'))/10:
			p.bad = true
			return 0
		}
		n = n*10 + int64(c-'0')
	}
	p.bad = true
	return 0
}

// list reads as many values as there are, whatever number was promised.
func (p *Parser) list() [][]byte {
	n := p.Number(MaxBody)
	var l [][]byte
	for ; n > 0 && !p.bad; n-- {
		l = append(l, p.Field())
	}
	return l
}
