package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
)

func (b *box) warm(kind string) {
	b.t.Helper()
	body, err := agent.Pack(agent.Body{Argv: words(b.probe, "driver", kind), Env: words("Y=driver")})
	if err != nil {
		b.t.Fatal(err)
	}
	defer body.Close()
	if err := b.conn.Send(agent.Request{Op: agent.OpWarm}, body); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) cell(code string) *job {
	b.t.Helper()
	return b.request(agent.OpCell, agent.Body{File: "/f.py", Dir: "/d", Argv: words("a", "b\n"), Env: words("K=V"), Code: []byte(code)}, "-")
}

func TestCells(t *testing.T) {
	both(t, func(t *testing.T, b *box) {
		j := b.cell("x")
		b.want(agent.Event{Event: agent.Failed, ID: j.id, What: "driver", Errno: int(unix.ESRCH)})
		b.warm("good")
		b.want(agent.Event{Event: agent.Warm})
		for _, code := range []string{"", "abc", strings.Repeat("x", 200), "a\x00\xff\n"} {
			j := b.cell(code)
			b.want(agent.Event{Event: agent.Started, ID: j.id})
			b.want(agent.Event{Event: agent.CellDone, ID: j.id, Code: len(code)})
			want := fmt.Sprintf("<nil> %q\n", []string{j.id, "/f.py", "/d", "2", "a", "b\n", "1", "K=V", code})
			if got := j.output(); got != want || j.err.String() != "err" {
				t.Errorf("got %q and %q, want %q", got, j.err, want)
			}
		}
		j = b.request(agent.OpCell, agent.Body{Code: []byte("in")}, "input")
		b.want(agent.Event{Event: agent.Started, ID: j.id})
		b.want(agent.Event{Event: agent.CellDone, ID: j.id, Code: 2})
		if got := j.output(); !strings.HasSuffix(got, "stdin \"input\" <nil>\n") {
			t.Errorf("got %q", got)
		}
		// The body's ID is the request's, or it is none.
		j = &job{id: "other"}
		f := append(seal(t, agent.Body{ID: "another"}), many(t, 2)...)
		if err := b.conn.Send(agent.Request{Op: agent.OpCell, ID: j.id}, f...); err != nil {
			t.Fatal(err)
		}
		b.want(agent.Event{Event: agent.Failed, ID: j.id, What: "request", Errno: int(unix.EINVAL)})

		j = b.cell("hang")
		b.want(agent.Event{Event: agent.Started, ID: j.id})
		k := b.cell("x")
		b.want(agent.Event{Event: agent.Failed, ID: k.id, What: "busy", Errno: int(unix.EBUSY)})
		k = b.exec(b.probe, "exit", "0")
		b.want(agent.Event{Event: agent.Failed, ID: k.id, What: "busy", Errno: int(unix.EBUSY)})
		b.signal(unix.SIGKILL, "id-0")
		time.Sleep(100 * time.Millisecond)
		b.signal(unix.SIGINT, j.id)
		b.want(agent.Event{Event: agent.CellDone, ID: j.id, Code: 130})
		b.signal(unix.SIGKILL, "") // no cell runs
		j = b.cell("fds")
		b.want(agent.Event{Event: agent.Started, ID: j.id})
		b.want(agent.Event{Event: agent.CellDone, ID: j.id, Code: 3})

		j = b.cell("exit 19")
		b.want(agent.Event{Event: agent.Started, ID: j.id})
		b.want(agent.Event{Event: agent.Exited, ID: j.id, Code: 19})
		// Another driver may follow, and a command takes its place.
		b.warm("good")
		b.want(agent.Event{Event: agent.Warm})
		j = b.cell("SIGKILL")
		b.want(agent.Event{Event: agent.Started, ID: j.id})
		b.want(agent.Event{Event: agent.Exited, ID: j.id, Signal: 9})
		b.warm("good")
		b.want(agent.Event{Event: agent.Warm})
		if out, e := b.run("exit", "2"); e.Code != 2 {
			t.Errorf("%+v %s", e, out)
		}
		j = b.cell("x")
		b.want(agent.Event{Event: agent.Failed, ID: j.id, What: "driver", Errno: int(unix.ESRCH)})
		b.silent()
	})
}

// TestDriverFails: drivers that do not come up.
func TestDriverFails(t *testing.T) {
	for kind, want := range map[string]agent.Event{
		"dies-at-start":    {Event: agent.Failed, What: "driver", Code: 21},
		"closes-at-start":  {Event: agent.Failed, What: "driver", Code: 22},
		"babbles-at-start": {Event: agent.Failed, What: "driver", Errno: int(unix.EPROTO)},
	} {
		t.Run(kind, func(t *testing.T) {
			b := start(t, false)
			b.warm(kind)
			b.want(want)
			b.warm("good")
			b.want(agent.Event{Event: agent.Warm})
			b.silent()
		})
	}
	b := start(t, false)
	body := seal(t, agent.Body{Argv: words("/no/such")})
	if err := b.conn.Send(agent.Request{Op: agent.OpWarm}, body...); err != nil {
		t.Fatal(err)
	}
	b.want(agent.Event{Event: agent.Failed, What: "exec", Errno: int(unix.ENOENT)})
	b.warm("deaf-at-start")
	b.silent()
	j := b.cell("x")
	b.want(agent.Event{Event: agent.Failed, ID: j.id, What: "busy", Errno: int(unix.EBUSY)})
}

// TestDriverBetweenCells: whatever comes while no cell runs ends the driver.
func TestDriverBetweenCells(t *testing.T) {
	for kind, want := range map[string]agent.Event{
		"early":       {Event: agent.Broken, What: "*"},
		"empty-idle":  {Event: agent.Broken, What: "*"},
		"closes-idle": {Event: agent.Broken, What: "*"},
		"shuts-idle":  {Event: agent.Broken, What: "*"},
		"last-words":  {Event: agent.Broken, What: "*"},
		"dies-idle":   {Event: agent.Exited, Code: 23},
	} {
		t.Run(kind, func(t *testing.T) {
			b := start(t, false)
			b.warm(kind)
			b.want(agent.Event{Event: agent.Warm})
			e := b.event()
			// The end of the channel may be seen before that of the process.
			if kind == "dies-idle" && e.Event == agent.Broken {
				want = agent.Event{Event: agent.Broken, What: e.What}
			}
			if e.CPU, e.MaxRSS = 0, 0; want.What == "*" {
				want.What = e.What
			}
			if e != want {
				t.Errorf("%+v, want %+v", e, want)
			}
			b.silent()
			if _, e := b.run("exit", "3"); e.Code != 3 {
				t.Errorf("afterwards %+v", e)
			}
		})
	}
}

// TestHostileCells: whatever the code of a cell makes its driver say is either
// an honest answer, or the end of the driver, in little time.
func TestHostileCells(t *testing.T) {
	for kind, want := range map[string][]agent.Event{
		"wrong-id":  {{Event: agent.Broken, What: "*"}},
		"garbage":   {{Event: agent.Broken, What: "*"}},
		"empty":     {{Event: agent.Broken, What: "*"}},
		"huge":      {{Event: agent.Broken, What: "*"}},
		"long":      {{Event: agent.Broken, What: "*"}},
		"negative":  {{Event: agent.Broken, What: "*"}},
		"too-much":  {{Event: agent.Broken, What: "*"}},
		"zeros":     {{Event: agent.Broken, What: "*"}},
		"half":      {{Event: agent.Broken, What: "*"}},
		"half-dies": {{Event: agent.Broken, What: "*"}},
		"twice":     {{Event: agent.CellDone, Code: 1}, {Event: agent.Broken, What: "*", ID: "-"}},
		"flood":     {{Event: agent.CellDone, Code: 1}, {Event: agent.Broken, What: "*", ID: "-"}},
		"forks":     {{Event: agent.CellDone, Code: 4}, {Event: agent.Broken, What: "*", ID: "-"}},
		"rights":    {{Event: agent.CellDone, Code: 7}},
		"closes":    {{Event: agent.Exited, Code: 27}},
	} {
		t.Run(kind, func(t *testing.T) {
			b := start(t, false)
			b.warm(kind)
			b.want(agent.Event{Event: agent.Warm})
			began := time.Now()
			j := b.cell("x")
			b.want(agent.Event{Event: agent.Started, ID: j.id})
			for _, e := range want {
				if e.ID == "-" {
					e.ID = ""
				} else {
					e.ID = j.id
				}
				b.want(e)
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("answered after %v", took)
			}
			b.silent()
			out, e := b.run("fds")
			if e.Code != 0 || out != "0 char\n1 pipe\n2 pipe\n" {
				t.Errorf("afterwards %+v %s", e, out)
			}
		})
	}
	// An answer and the end at once: both are told, in this order.
	b := start(t, false)
	b.warm("done-dies")
	b.want(agent.Event{Event: agent.Warm})
	j := b.cell("x")
	b.want(agent.Event{Event: agent.Started, ID: j.id})
	b.want(agent.Event{Event: agent.CellDone, ID: j.id, Code: 1})
	if e := b.event(); (e.Event != agent.Exited || e.Code != 26) && e.Event != agent.Broken || e.ID != "" {
		t.Errorf("%+v", e)
	}
}

// TestDriverNeverReads: nothing that a host sends can be made to wait.
func TestDriverNeverReads(t *testing.T) {
	b := start(t, false)
	b.warm("deaf")
	b.want(agent.Event{Event: agent.Warm})
	j := b.cell("x")
	b.want(agent.Event{Event: agent.Started, ID: j.id})
	b.signal(unix.SIGKILL, j.id)
	b.want(agent.Event{Event: agent.Exited, ID: j.id, Signal: 9})
}
