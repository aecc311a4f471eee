package pool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
)

// Client speaks to a kernel. It is for one goroutine, save for Signal.
type Client struct {
	// Meta is what the kernel says of itself.
	Meta KernelMeta

	place *Place
	name  string
	conn  *agent.Conn
}

// Cell is a piece of code for a kernel.
type Cell struct {
	Code []byte
	// File is the name that tracebacks show; "" gives cell-N.
	File string
	Args []string
	// Timeout is nil for that of the kernel, 0 for none.
	Timeout *time.Duration
	// Stdin is nil for an empty one. The descriptors stay the caller's.
	Stdin, Stdout, Stderr *os.File
	// Wait for those who were first; else a busy kernel refuses.
	Wait bool
	// Sent is called once the kernel has the streams, Queued when it is busy with
	// so many others.
	Sent   func()
	Queued func(ahead int)
}

// Outcome is what became of a cell.
type Outcome struct {
	Result *runner.Result
	// Number counts the cells of the kernel, from 1.
	Number int
	// Over says that the kernel ended with this cell, so that nothing of it writes
	// any more.
	Over bool
}

// DeadKernelError says that a kernel is dead: it runs nothing any more.
type DeadKernelError struct {
	Name  string
	Meta  KernelMeta
	Grave KernelGrave
}

func (e *DeadKernelError) Error() string {
	return e.Grave.Sentence(e.Name) + "; add --restart, or write kern-sbx kernel start, for a fresh one"
}

// BusyError says that a kernel is busy, and the caller did not want to wait.
type BusyError struct{ Text string }

func (e *BusyError) Error() string { return e.Text + "; leave out --wait=false to wait for it" }

// ErrInterrupted says that a cell was interrupted before it ran.
var ErrInterrupted = errors.New("interrupted while it waited for other cells; it was not run")

// Kernel connects to a kernel. Without one of that name the error is a
// *NoneError, and a *DeadKernelError when it is dead.
func (p *Place) Kernel(name string) (*Client, error) {
	if err := checkKernel(name); err != nil {
		return nil, err
	}
	c := &Client{place: p, name: name}
	d, err := p.entry(Kernels, name)
	if err != nil {
		return nil, err
	}
	json.Unmarshal(readDoc(d, metaFile), &c.Meta)
	d.Close()
	if c.conn, err = p.Dial(Kernels, name); err != nil {
		return nil, c.dead(err)
	}
	return c, nil
}

// dead turns the death of a holder into that of a kernel.
func (c *Client) dead(err error) error {
	var d *DeadError
	if !errors.As(err, &d) {
		return err
	}
	k := &DeadKernelError{Name: c.name}
	json.Unmarshal(d.Meta, &k.Meta)
	if d.Grave == nil || json.Unmarshal(d.Grave, &k.Grave) != nil {
		k.Grave = KernelGrave{Reason: "its background process was killed", Workspace: k.Meta.Workspace}
	}
	return k
}

// Close ends the connection. A cell that runs is interrupted by that.
func (c *Client) Close() error { return c.conn.Close() }

// Signal sends SIGINT or SIGTERM to the cell that runs.
func (c *Client) Signal(n unix.Signal) error {
	return c.conn.Send(signalRequest{Hello{Version, kernelSignal}, int(n)})
}

// Exec runs one cell and waits for its end. An error is a cell that was not run,
// or whose end nobody can tell: *DeadKernelError, *BusyError, or else.
func (c *Client) Exec(cell *Cell) (*Outcome, error) {
	body := agent.Body{File: cell.File, Code: cell.Code}
	for _, a := range cell.Args {
		body.Argv = append(body.Argv, []byte(a))
	}
	f, err := agent.Pack(body)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	req := execRequest{Hello: Hello{Version, kernelExec}, Wait: cell.Wait}
	if cell.Timeout != nil {
		ms := (*cell.Timeout).Milliseconds()
		if ms == 0 && *cell.Timeout > 0 {
			ms = 1
		}
		req.TimeoutMS = &ms
	}
	files := []*os.File{f, cell.Stdout, cell.Stderr}
	if cell.Stdin != nil {
		files = append(files, cell.Stdin)
	}
	if err := c.conn.Send(req, files...); err != nil {
		return nil, c.lost(false)
	}
	if cell.Sent != nil {
		cell.Sent()
	}
	for {
		var e cellEvent
		got, err := c.conn.Receive(&e)
		if err != nil {
			return nil, c.lost(true)
		}
		switch {
		case e.Grave != nil:
			closeAll(got)
			return nil, &DeadKernelError{c.name, c.Meta, *e.Grave}
		case e.Interrupted:
			closeAll(got)
			return nil, ErrInterrupted
		case e.Busy:
			closeAll(got)
			return nil, &BusyError{e.Refused}
		case e.Refused != "":
			closeAll(got)
			return nil, fmt.Errorf("kernel %s: %s", c.name, e.Refused)
		case e.Ahead != nil:
			if cell.Queued != nil {
				cell.Queued(*e.Ahead)
			}
		case e.Done:
			res, err := takeResult(&e, got)
			closeAll(got)
			if err != nil {
				return nil, err
			}
			return &Outcome{res, e.Number, e.Over}, nil
		}
		closeAll(got)
	}
}

func takeResult(e *cellEvent, files []*os.File) (*runner.Result, error) {
	doc := []byte(e.Result)
	if len(files) == 1 {
		st, err := files[0].Stat()
		if err != nil {
			return nil, err
		}
		doc = make([]byte, st.Size())
		if _, err := io.ReadFull(io.NewSectionReader(files[0], 0, st.Size()), doc); err != nil {
			return nil, err
		}
	}
	return decodeResult(doc)
}

// lost says why a kernel does not answer any more.
func (c *Client) lost(running bool) error {
	// Its last word is written before its lock is free.
	for range 40 {
		conn, err := c.place.Dial(Kernels, c.name)
		switch {
		case err == nil:
			conn.Close()
		case !errors.As(err, new(*StartingError)):
			err = c.dead(err)
			if errors.As(err, new(*NoneError)) {
				return fmt.Errorf("kernel %s was stopped", c.name)
			}
			if running && !errors.As(err, new(*DeadKernelError)) {
				return fmt.Errorf("kernel %s was lost while the cell ran: %w", c.name, err)
			}
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("kernel %s does not answer", c.name)
}

// Status asks how the kernel is doing.
func (c *Client) Status() (*KernelStatus, error) {
	if err := c.conn.Send(Hello{Version, kernelStatus}); err != nil {
		return nil, err
	}
	c.conn.File().SetReadDeadline(time.Now().Add(connectTime))
	defer c.conn.File().SetReadDeadline(time.Time{})
	var s struct {
		KernelStatus
		Refusal
	}
	files, err := c.conn.Receive(&s)
	closeAll(files)
	if err == nil && s.Refused != "" {
		err = fmt.Errorf("kernel %s: %s", c.name, s.Refused)
	}
	return &s.KernelStatus, err
}

// Hold keeps the kernel still, once the cells that were first have ended, until
// the Client is closed. Its Status then is that of the moment.
func (c *Client) Hold() (*KernelStatus, error) {
	if err := c.conn.Send(Hello{Version, kernelHold}); err != nil {
		return nil, err
	}
	var s struct {
		KernelStatus
		Refusal
	}
	files, err := c.conn.Receive(&s)
	closeAll(files)
	if err == nil && s.Refused != "" {
		err = errors.New(s.Refused)
	}
	return &s.KernelStatus, err
}

// endingTime is how long a kernel may take to end: its cell has a grace of 2 s, and
// its files may take a moment to remove.
const endingTime = 10 * time.Second

// StopKernel ends a kernel with all that it holds, or forgets a dead one. One that
// does not answer is killed. Nothing of it is left when it returns, save what
// runner.Sweep removes after one that was killed.
func (p *Place) StopKernel(name string) error {
	if err := checkKernel(name); err != nil {
		return err
	}
	for end := time.Now().Add(endingTime); ; time.Sleep(20 * time.Millisecond) {
		c, err := p.Dial(Kernels, name)
		switch {
		case errors.As(err, new(*NoneError)):
			return p.removeKernel(name, err)
		case errors.As(err, new(*DeadError)):
			return p.removeKernel(name, nil)
		case err == nil:
			c.Send(Hello{Version, kernelStop})
			ended := p.awaitEnd(name, end)
			if !ended {
				killPeer(c)
				ended = p.awaitEnd(name, time.Now().Add(time.Second))
			}
			c.Close()
			if ended {
				return p.removeKernel(name, nil)
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("kernel %s does not end", name)
		}
	}
}

// killPeer kills the process that listens at the other end. That it has not taken
// the connection yet says that it is still the same.
func killPeer(c *agent.Conn) {
	cred, err := unix.GetsockoptUcred(int(c.File().Fd()), unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err == nil && int(cred.Uid) == os.Geteuid() && cred.Pid > 1 {
		unix.Kill(int(cred.Pid), unix.SIGKILL)
	}
}

// removeKernel forgets a dead kernel; none is what it says when there is nothing.
func (p *Place) removeKernel(name string, none error) error {
	err := p.Remove(Kernels, name)
	if errors.As(err, new(*NoneError)) {
		return none
	}
	return err
}

// AwaitFree waits until nobody alive has the name.
func (p *Place) AwaitFree(name string) bool { return p.awaitEnd(name, time.Now().Add(endingTime)) }

func (p *Place) awaitEnd(name string, end time.Time) bool {
	for nap := time.Millisecond; ; nap = min(2*nap, 20*time.Millisecond) {
		e, err := p.Look(Kernels, name)
		if err != nil || !e.Alive {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		time.Sleep(nap)
	}
}
