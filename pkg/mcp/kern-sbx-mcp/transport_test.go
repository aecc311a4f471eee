package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// line is what a test reads of an answer.
type line struct {
	ID    any `json:"id"`
	Error *struct {
		Code int64 `json:"code"`
	} `json:"error"`
}

// wire is a connection over real pipes.
type wire struct {
	*stdio
	in    *os.File // the client's end
	lines chan line
	stops chan struct{}
	out   *os.File
}

func newWire(t *testing.T) *wire {
	t.Helper()
	theirs, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{in: in, out: out, lines: make(chan line, 10000), stops: make(chan struct{}, 100)}
	w.stdio = newStdio(theirs, ours, func() {
		select {
		case w.stops <- struct{}{}:
		default:
		}
	}, func(string) {})
	t.Cleanup(func() {
		w.Close()
		in.Close()
		out.Close()
		<-w.over
		theirs.Close()
		ours.Close()
	})
	if _, err := w.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// listen reads what is answered.
func (w *wire) listen(t *testing.T) {
	go func() {
		defer close(w.lines)
		s := bufio.NewScanner(w.out)
		s.Buffer(nil, 16<<20)
		for s.Scan() {
			var l line
			if err := json.Unmarshal(s.Bytes(), &l); err != nil {
				t.Errorf("not JSON: %q", s.Bytes())
			}
			w.lines <- l
		}
	}()
}

func (w *wire) say(t *testing.T, s string) {
	t.Helper()
	if _, err := io.WriteString(w.in, s); err != nil {
		t.Fatal(err)
	}
}

func (w *wire) next(t *testing.T) line {
	t.Helper()
	select {
	case l := <-w.lines:
		return l
	case <-time.After(5 * time.Second):
		t.Fatal("no answer")
		return line{}
	}
}

func (w *wire) message(t *testing.T) jsonrpc.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	m, err := w.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestLinesThatAreNoMessage(t *testing.T) {
	w := newWire(t)
	w.listen(t)
	for _, c := range []struct {
		in   string
		code int64
		ids  []any
	}{
		{`{bad "id": 1}`, jsonrpc.CodeParseError, []any{1.0}},
		{`{"id":1,"id":"a"} {"id":-3}`, jsonrpc.CodeParseError, []any{1.0, "a", -3.0}},
		{`{"id":1}{"id":1}`, jsonrpc.CodeParseError, []any{1.0}},
		{`{"jsonrpc":"2.0","id":7,"method":"x","params":NaN}`, jsonrpc.CodeParseError, []any{7.0}},
		{"{\"jsonrpc\":\"2.0\",\"id\":8,\"method\":\"x\",\"params\":{\"a\":\"\xff\"}}", jsonrpc.CodeParseError, []any{8.0}},
		{`{"id":"` + "\x01" + `"`, 0, nil},
		{`{"jsonrpc":"2.0","id":9,`, jsonrpc.CodeParseError, []any{9.0}},
		{`[{"jsonrpc":"2.0","id":10,"method":"ping"}]`, jsonrpc.CodeInvalidRequest, []any{10.0}},
		{`{"id":11}`, jsonrpc.CodeInvalidRequest, []any{11.0}},
		{`{"id":12,"method":5}`, jsonrpc.CodeInvalidRequest, []any{12.0}},
		{`{"jsonrpc":"1.0","id":"b","method":"ping"}`, jsonrpc.CodeInvalidRequest, []any{"b"}},
		{`5`, 0, nil},
		{`"x"`, 0, nil},
		{`{}`, 0, nil},
		{`{"id":1.5}`, 0, nil},
		{`{"id":{}}`, 0, nil},
		{`not json at all`, 0, nil},
		{"\x00\xff\x1b", 0, nil},
		{"", 0, nil},
		{" \t\r", 0, nil},
		{strings.Repeat("[", 20000) + `"id":13`, 0, nil},
	} {
		w.say(t, c.in+"\n")
		for _, id := range c.ids {
			if l := w.next(t); l.ID != id || l.Error == nil || l.Error.Code != c.code {
				t.Errorf("%.60q: %+v %+v", c.in, l, l.Error)
			}
		}
		// It ends nothing, and nothing else is said.
		w.say(t, `{"jsonrpc":"2.0","id":"still","method":"ping"}`+"\r\n")
		m, ok := w.message(t).(*jsonrpc.Request)
		if !ok || m.Method != "ping" {
			t.Fatalf("%q: %v", c.in, m)
		}
		if err := w.Write(t.Context(), &jsonrpc.Response{ID: m.ID, Result: json.RawMessage(`{}`)}); err != nil {
			t.Fatal(err)
		}
		if l := w.next(t); l.ID != "still" || l.Error != nil {
			t.Errorf("%.60q: %+v %+v", c.in, l, l.Error)
		}
	}
}

func TestLongLine(t *testing.T) {
	w := newWire(t)
	w.listen(t)
	w.say(t, `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"`)
	for range 10 {
		w.say(t, strings.Repeat("x", 1<<20))
	}
	w.say(t, "\"}}\n"+`{"jsonrpc":"2.0","id":2,"method":"ping"}`+"\n")
	if l := w.next(t); l.ID != 1.0 || l.Error == nil || l.Error.Code != jsonrpc.CodeInvalidRequest {
		t.Errorf("%+v", l)
	}
	if m, ok := w.message(t).(*jsonrpc.Request); !ok || m.ID.Raw() != int64(2) {
		t.Errorf("%v", m)
	}
}

// The id of a call that runs is not answered for by a broken line.
func TestBrokenLineWithAnIDThatRuns(t *testing.T) {
	w := newWire(t)
	w.listen(t)
	w.say(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`+"\n")
	w.message(t)
	w.say(t, `{"id":1, "id":"1"`+"\n")
	if l := w.next(t); l.ID != "1" {
		t.Errorf("%+v", l)
	}
}

func TestEndWaitsForCalls(t *testing.T) {
	w := newWire(t)
	w.listen(t)
	w.say(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`+"\n")
	w.message(t)
	w.in.Close()
	select {
	case <-w.stops:
		t.Fatal("ended at once")
	case <-time.After(lastCalls / 2):
	}
	begun := time.Now()
	id, _ := jsonrpc.MakeID(1.0)
	w.Write(t.Context(), &jsonrpc.Response{ID: id, Result: json.RawMessage(`{}`)})
	if l := w.next(t); l.ID != 1.0 {
		t.Errorf("%+v", l)
	}
	<-w.over
	if took := time.Since(begun); took > lastCalls/4 {
		t.Errorf("%v after the last answer", took)
	}
}

func TestEndStopsCallsThatDoNotEnd(t *testing.T) {
	w := newWire(t)
	begun := time.Now()
	w.say(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`+"\n")
	w.message(t)
	w.in.Close()
	<-w.stops
	if took := time.Since(begun); took < lastCalls/2 || took > lastCalls+500*time.Millisecond {
		t.Errorf("stopped after %v", took)
	}
	<-w.over
	if took := time.Since(begun); took > lastCalls+lastWords+500*time.Millisecond {
		t.Errorf("over after %v", took)
	}
}

// Cancelled calls need no answer.
func TestEndAfterCancelling(t *testing.T) {
	w := newWire(t)
	w.say(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`+"\n"+`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`+"\n")
	w.message(t)
	w.message(t)
	begun := time.Now()
	w.in.Close()
	<-w.over
	if took := time.Since(begun); took > lastCalls/2 {
		t.Errorf("over after %v", took)
	}
}

// Requests that nobody has answered yet are bounded, and all of them are taken in
// the end.
func TestPendingIsBounded(t *testing.T) {
	w := newWire(t)
	w.listen(t)
	const all = mostPending + 500
	go func() {
		for i := range all {
			fmt.Fprintf(w.in, `{"jsonrpc":"2.0","id":%d,"method":"ping"}`+"\n", i)
		}
	}()
	var first []jsonrpc.ID
	for range mostPending {
		first = append(first, w.message(t).(*jsonrpc.Request).ID)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if m, err := w.Read(ctx); err == nil {
		t.Fatalf("one more: %v", m)
	}
	for _, id := range first {
		w.Write(t.Context(), &jsonrpc.Response{ID: id, Result: json.RawMessage(`{}`)})
	}
	for range all - mostPending {
		w.message(t)
	}
	for range first {
		w.next(t)
	}
}

// A client that reads nothing and goes away does not keep us.
func TestEndOfAClientThatDoesNotRead(t *testing.T) {
	for name, flood := range map[string]string{
		"broken lines": `{bad "id": 1}` + "\n",
		"requests":     `{"jsonrpc":"2.0","id":%d,"method":"ping"}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWire(t)
			go func() {
				for {
					m, err := w.Read(context.Background())
					if err != nil {
						return
					}
					if req, ok := m.(*jsonrpc.Request); ok {
						go w.Write(context.Background(), &jsonrpc.Response{ID: req.ID, Result: json.RawMessage(`{"x":"` + strings.Repeat("y", 1000) + `"}`)})
					}
				}
			}()
			w.in.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
			for i := 0; ; i++ {
				s := flood
				if strings.Contains(s, "%d") {
					s = fmt.Sprintf(s, i)
				}
				if _, err := io.WriteString(w.in, s); err != nil {
					break
				}
			}
			begun := time.Now()
			w.in.Close()
			select {
			case <-w.over:
			case <-time.After(10 * time.Second):
				t.Fatal("it waits for ever")
			}
			if took := time.Since(begun); took > 2*lastCalls+lastWords+500*time.Millisecond {
				t.Errorf("over after %v", took)
			}
		})
	}
}

// A client that takes no answers any more ends what runs.
func TestClosedOutput(t *testing.T) {
	w := newWire(t)
	w.say(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`+"\n")
	m := w.message(t).(*jsonrpc.Request)
	w.out.Close()
	if err := w.Write(t.Context(), &jsonrpc.Response{ID: m.ID, Result: json.RawMessage(`{}`)}); err == nil {
		t.Error("no error")
	}
	<-w.stops
}

// Messages of many goroutines are lines of their own.
func TestWritesAreWhole(t *testing.T) {
	w := newWire(t)
	w.listen(t)
	var all sync.WaitGroup
	const n = 50
	for i := range n {
		all.Go(func() {
			id, _ := jsonrpc.MakeID(float64(i))
			w.Write(t.Context(), &jsonrpc.Response{ID: id, Result: json.RawMessage(`"` + strings.Repeat("a\\n", 20000) + `"`)})
		})
	}
	seen := map[any]bool{}
	for range n {
		seen[w.next(t).ID] = true
	}
	all.Wait()
	if len(seen) != n {
		t.Errorf("%d answers", len(seen))
	}
}

// bare is a connection that only reads, from memory.
func bare(in []byte) (*stdio, *bytes.Buffer) {
	out := &bytes.Buffer{}
	return newStdio(bytes.NewReader(in), out, func() {}, func(string) {}), out
}

func FuzzReadLine(f *testing.F) {
	f.Add([]byte("a\nb\n"), 16)
	f.Add([]byte("\n\n\r\nabc"), 16)
	f.Add(bytes.Repeat([]byte("x"), 100), 17)
	f.Fuzz(func(t *testing.T, in []byte, size int) {
		r := bufio.NewReaderSize(bytes.NewReader(in), min(max(size, 16), 4096))
		var all []byte
		for {
			line, long, err := readLine(r)
			if long || bytes.Contains(bytes.TrimSuffix(line, []byte("\n")), []byte("\n")) {
				t.Fatalf("%q: %v", line, long)
			}
			all = append(all, line...)
			if err != nil {
				break
			}
		}
		if !bytes.Equal(all, in) {
			t.Fatalf("%q was read of %q", all, in)
		}
	})
}

// Whatever comes, what goes out is one JSON message a line, and no more than there
// are ids.
func FuzzTake(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{bad "id": 1}`, `[{"id":1}]`, `{"id":"a\n"}`, `{"id":1e400}`, `5`, `{"id":"\ud800","id":2`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, `{"jsonrpc":"2.0","id":1,"result":{}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		c, out := bare(append(in, '\n'))
		go c.read()
		messages := 0
		for done := false; !done; {
			select {
			case m := <-c.messages:
				messages++
				if req, ok := m.(*jsonrpc.Request); ok {
					c.answered(req.ID)
				}
			case <-c.over:
				done = true
			}
		}
		answers := 0
		for l := range bytes.Lines(out.Bytes()) {
			answers++
			var v struct {
				JSONRPC string `json:"jsonrpc"`
				ID      any    `json:"id"`
				Error   *struct {
					Code int64 `json:"code"`
				} `json:"error"`
			}
			if err := json.Unmarshal(l, &v); err != nil || v.JSONRPC != "2.0" || v.Error == nil || v.ID == nil {
				t.Fatalf("%q: %v", l, err)
			}
		}
		if answers > mostIDs*(1+bytes.Count(in, []byte("\n"))) || messages > 1+bytes.Count(in, []byte("\n")) {
			t.Fatalf("%d answers, %d messages", answers, messages)
		}
	})
}
