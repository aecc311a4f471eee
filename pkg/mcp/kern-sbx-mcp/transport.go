package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// maxLine is the longest message that is read, in bytes.
	maxLine = 8 << 20
	// idsWithin is where the id of a longer one is looked for.
	idsWithin = 4 << 10
	// mostIDs is how many requests a broken line is answered for.
	mostIDs = 16
	// mostPending and mostBytes bound the requests that wait for their answers: each
	// is in memory, as is its answer when nobody reads it. More are not read.
	mostPending = 1024
	mostBytes   = 64 << 20
)

// Times of the end, which is within two seconds of the end of standard input.
const (
	// lastCalls is how long calls that run then may go on.
	lastCalls = 700 * time.Millisecond
	// lastWords is how long their ends may take to be told.
	lastWords = 900 * time.Millisecond
)

// stdio is the connection: one message a line on standard input and output. It
// answers for lines that are no message, so that one of them ends nothing (case 37).
// When the input ends, it lets calls that run end first, or ends them.
type stdio struct {
	in       io.Reader
	out      io.Writer
	stopping func() // ends the calls that run
	log      func(string)

	messages chan jsonrpc.Message
	over     chan struct{} // closed when nothing is read any more
	closed   chan struct{}
	close1   sync.Once

	mu      sync.Mutex
	pending map[string]int // how many bytes each has
	held    int            // bytes of all
	freed   chan struct{}  // told when there is one less
	idle    chan struct{}  // told whenever nothing is pending

	writing sync.Mutex

	// Of the reader: since when it has seen that nothing more will come while it
	// waited for something else, and that it waits no more.
	hung time.Time
	gone bool
}

func newStdio(in io.Reader, out io.Writer, stopping func(), log func(string)) *stdio {
	return &stdio{
		in: in, out: out, stopping: stopping, log: log,
		messages: make(chan jsonrpc.Message), over: make(chan struct{}), closed: make(chan struct{}),
		pending: map[string]int{}, freed: make(chan struct{}, 1), idle: make(chan struct{}, 1),
	}
}

// Connect implements sdk.Transport.
func (c *stdio) Connect(context.Context) (sdk.Connection, error) {
	go c.read()
	return c, nil
}

// SessionID implements sdk.Connection.
func (c *stdio) SessionID() string { return "" }

// Read implements sdk.Connection.
func (c *stdio) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-c.messages:
		return m, nil
	case <-c.over:
	case <-c.closed:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return nil, io.EOF
}

// Write implements sdk.Connection.
func (c *stdio) Write(_ context.Context, m jsonrpc.Message) error {
	b, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	err = c.line(b)
	if r, ok := m.(*jsonrpc.Response); ok {
		c.answered(r.ID)
	}
	return err
}

func (c *stdio) line(b []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	_, err := c.out.Write(append(b, '\n'))
	if err != nil {
		c.stopping() // nobody hears of what they do
	}
	return err
}

// Close implements sdk.Connection.
func (c *stdio) Close() error {
	c.close1.Do(func() { close(c.closed) })
	return nil
}

func (c *stdio) answered(id jsonrpc.ID) {
	c.mu.Lock()
	c.drop(key(id))
	none := len(c.pending) == 0
	c.mu.Unlock()
	if none {
		select {
		case c.idle <- struct{}{}:
		default:
		}
	}
}

func (c *stdio) drop(key string) {
	c.held -= c.pending[key]
	delete(c.pending, key)
	select {
	case c.freed <- struct{}{}:
	default:
	}
}

// full says whether another request would be too much.
func (c *stdio) full(size int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending) >= mostPending || c.held+size > mostBytes && len(c.pending) > 0
}

// hangUpEvery is how often a reader that waits for something else looks whether
// standard input has ended meanwhile.
const hangUpEvery = 50 * time.Millisecond

// await waits for something that a client which does not read can keep up, until
// that client has gone; false then.
func (c *stdio) await(done <-chan struct{}) bool {
	tick := time.NewTicker(hangUpEvery)
	defer tick.Stop()
	for !c.gone {
		select {
		case <-done:
			return true
		case <-c.closed:
			return false
		case <-tick.C:
			switch {
			case !hungUp(c.in):
			case c.hung.IsZero():
				c.hung = time.Now()
			case time.Since(c.hung) > lastCalls:
				c.gone = true
			}
		}
	}
	return false
}

func (c *stdio) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending) > 0
}

func key(id jsonrpc.ID) string { return fmt.Sprintf("%T %[1]v", id.Raw()) }

// read reads until the end, and then sees to it that what runs ends.
func (c *stdio) read() {
	defer close(c.over)
	r := bufio.NewReaderSize(c.in, 64<<10)
	for {
		line, long, err := readLine(r)
		switch {
		case long:
			c.refuse(line, jsonrpc.CodeInvalidRequest, fmt.Sprintf("a message of more than %d bytes", maxLine))
		case len(bytes.TrimSpace(line)) > 0:
			c.take(bytes.TrimSpace(line))
		}
		if err != nil || c.gone {
			break
		}
	}
	for _, wait := range []time.Duration{lastCalls, lastWords} {
		limit := time.After(wait)
		for waiting := true; waiting && c.busy(); {
			select {
			case <-c.idle:
			case <-limit:
				waiting = false
			case <-c.closed:
				return
			}
		}
		c.stopping()
	}
}

// readLine gives one line; of one that is too long only its beginning.
func readLine(r *bufio.Reader) (line []byte, long bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if room := maxLine - len(line); len(part) > room {
			long = true
			part = part[:room]
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, long, err
		}
	}
}

// take passes on a line that is one message, and answers for any other.
func (c *stdio) take(line []byte) {
	var fields map[string]json.RawMessage
	switch err := json.Unmarshal(line, &fields); {
	case !json.Valid(line) || !utf8.Valid(line): // encoding/json would put other characters
		c.refuse(line, jsonrpc.CodeParseError, "the line is not one JSON value")
		return
	case line[0] == '[':
		c.refuse(line, jsonrpc.CodeInvalidRequest, "batches are not part of this protocol any more")
		return
	case err != nil:
		c.log("a line on standard input that is no object was left out")
		return
	}
	m, err := jsonrpc.DecodeMessage(line)
	if err != nil {
		if id := idOf(fields["id"]); id != nil {
			c.answer(id, jsonrpc.CodeInvalidRequest, "not a message of JSON-RPC 2.0")
			return
		}
		c.log("a line on standard input that is no message was left out")
		return
	}
	if id := fields["id"]; !exact(id) {
		// The library would answer to another one.
		c.answer(id, jsonrpc.CodeInvalidRequest, "an id is a text or a whole number of 53 bits")
		return
	}
	if _, ok := m.(*jsonrpc.Response); ok && fields["result"] == nil && fields["error"] == nil {
		c.answer(fields["id"], jsonrpc.CodeInvalidRequest, "not a message of JSON-RPC 2.0: it has no method")
		return
	}
	if req, ok := m.(*jsonrpc.Request); ok {
		for req.IsCall() && c.full(len(line)) {
			if !c.await(c.freed) {
				return
			}
		}
		c.note(req, len(line))
	}
	select {
	case c.messages <- m:
	case <-c.closed:
	}
}

// note remembers a call that has to be answered.
func (c *stdio) note(req *jsonrpc.Request, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if req.IsCall() {
		k := key(req.ID)
		if _, again := c.pending[k]; !again { // which the library refuses
			c.pending[k] = size
			c.held += size
		}
		return
	}
	var p struct {
		RequestID any `json:"requestId"`
	}
	if req.Method == "notifications/cancelled" && json.Unmarshal(req.Params, &p) == nil {
		if id, err := jsonrpc.MakeID(p.RequestID); err == nil {
			c.drop(key(id)) // it need not be answered any more
		}
	}
}

// anyID finds what looks like the id of a request.
var anyID = regexp.MustCompile(`"id"\s*:\s*("(?:[^"\\\x00-\x1f]|\\.)*"|-?[0-9]{1,18})`)

// refuse answers a line that cannot be read, for each id that can be found on it.
// None runs.
func (c *stdio) refuse(line []byte, code int64, why string) {
	seen := map[string]bool{}
	for _, m := range anyID.FindAllSubmatch(line[:min(len(line), idsWithin)], mostIDs) {
		id := idOf(m[1])
		c.mu.Lock()
		_, runs := c.pending[fmt.Sprintf("%T %[1]v", id)]
		c.mu.Unlock()
		if id == nil || runs || seen[string(m[1])] {
			continue // its answer is still to come
		}
		seen[string(m[1])] = true
		c.answer(id, code, why)
	}
	c.log("a line on standard input was refused: " + why)
}

// idOf reads an id: a string or a whole number; nil for any other.
func idOf(raw json.RawMessage) any {
	var v any
	if len(raw) == 0 || json.Unmarshal(raw, &v) != nil {
		return nil
	}
	switch n := v.(type) {
	case string:
		return n
	case float64:
		if n == float64(int64(n)) {
			return int64(n)
		}
	}
	return nil
}

// exact says whether an id is the same after encoding/json has read it.
func exact(id json.RawMessage) bool {
	if len(id) == 0 || id[0] != '-' && (id[0] < '0' || id[0] > '9') {
		return true
	}
	n, err := strconv.ParseInt(string(id), 10, 64)
	return err == nil && n >= -1<<53 && n <= 1<<53
}

func (c *stdio) answer(id any, code int64, why string) {
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": code, "message": why}})
	if err != nil {
		return
	}
	done := make(chan struct{})
	go func() {
		_ = c.line(b)
		close(done)
	}()
	c.await(done)
}

// takeStdout gives the descriptor that messages are written to, and makes standard
// output another name of standard error: whatever prints there does not end up
// between two messages.
func takeStdout() (*os.File, error) {
	fd, err := dupCloexec(1)
	if err != nil {
		return nil, err
	}
	if err := dup2(2, 1); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "messages"), nil
}
