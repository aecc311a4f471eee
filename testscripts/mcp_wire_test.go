package testscripts

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// wire is a client that writes lines of its own, and wants one message a line on
// the server's standard output.
type wire struct {
	t      *testing.T
	h      *mcpHost
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *os.File
	stderr *lockedBuffer
	lines  chan string
	exited chan struct{}
}

func (h *mcpHost) wire(env []string, args ...string) *wire {
	h.t.Helper()
	w := &wire{t: h.t, h: h, cmd: h.command(append([]string{"mcp", "--pyc-cache", "off"}, args...)...), stderr: &lockedBuffer{}, lines: make(chan string, 1000), exited: make(chan struct{})}
	w.cmd.Env = append(append(w.cmd.Env, "KERN_SBX_IMAGE=host"), env...)
	w.cmd.Stderr = w.stderr
	in, err := w.cmd.StdinPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	r, out, err := os.Pipe()
	if err != nil {
		h.t.Fatal(err)
	}
	w.in, w.out, w.cmd.Stdout = in, r, out
	if err := w.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	out.Close()
	go func() {
		_ = w.cmd.Wait()
		close(w.exited)
	}()
	h.t.Cleanup(func() {
		select {
		case <-w.exited:
		default:
			_ = w.cmd.Process.Kill()
			<-w.exited
		}
		_ = r.Close()
	})
	return w
}

// listen begins to read what the server writes.
func (w *wire) listen() *wire {
	go func() {
		r := bufio.NewReaderSize(w.out, 1<<20)
		for {
			line, err := r.ReadString('\n')
			if line != "" {
				w.lines <- line
			}
			if err != nil {
				close(w.lines)
				return
			}
		}
	}()
	return w
}

func (w *wire) send(lines ...string) *wire {
	w.t.Helper()
	if _, err := io.WriteString(w.in, strings.Join(lines, "\n")+"\n"); err != nil {
		w.t.Errorf("the server does not read: %v\n%s", err, w.stderr)
	}
	return w
}

// message is one line of the server.
type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Result  json.RawMessage `json:"result"`
	Error   *struct {
		Code    int
		Message string
	} `json:"error"`
}

// parse wants a message of the protocol.
func parse(t *testing.T, line string) message {
	t.Helper()
	var m message
	d := json.NewDecoder(strings.NewReader(line))
	d.DisallowUnknownFields()
	var all map[string]json.RawMessage
	if err := json.Unmarshal([]byte(line), &all); err != nil || !strings.HasSuffix(line, "\n") {
		t.Errorf("a line on stdout is no JSON: %.500q", line)
		return m
	}
	_ = json.Unmarshal([]byte(line), &m)
	switch {
	case m.JSONRPC != "2.0", m.Method == "" && len(m.ID) == 0, (m.Result != nil) == (m.Error != nil) && m.Method == "":
		t.Errorf("a line on stdout is no message: %.500q", line)
	}
	return m
}

// reply is the next answer, "" after some seconds without one.
func (w *wire) reply() (message, bool) {
	w.t.Helper()
	limit := time.After(15 * time.Second)
	for {
		select {
		case line, ok := <-w.lines:
			if !ok {
				return message{}, false
			}
			if m := parse(w.t, line); m.Method == "" {
				return m, true
			}
		case <-limit:
			w.t.Errorf("no answer\n%s", w.stderr)
			return message{}, false
		}
	}
}

// short is an answer as ID:CODE, ID:ok, or ID:failed.
func (m message) short() string {
	switch {
	case m.Error != nil:
		return fmt.Sprintf("%s:%d", m.ID, m.Error.Code)
	case bytes.Contains(m.Result, []byte(`"isError":true`)):
		return fmt.Sprintf("%s:failed", m.ID)
	}
	return fmt.Sprintf("%s:ok", m.ID)
}

// gone waits for the process, and for all that it had.
func (w *wire) gone(limit time.Duration) {
	w.t.Helper()
	begun := time.Now()
	select {
	case <-w.exited:
	case <-time.After(limit + 5*time.Second):
		w.t.Errorf("it is still there\n%s", w.stderr)
		_ = w.cmd.Process.Signal(syscall.SIGQUIT)
		time.Sleep(300 * time.Millisecond)
		_ = w.cmd.Process.Kill()
		<-w.exited
		w.t.Logf("%.6000s", w.stderr)
		return
	}
	if took := time.Since(begun); took > limit {
		w.t.Errorf("it ended after %v, and not within %v\n%s", took, limit, w.stderr)
	}
	if left := w.h.left(); len(left) > 0 {
		w.t.Errorf("left behind:\n\t%s\n%s", strings.Join(left, "\n\t"), w.stderr)
	}
}

const (
	hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"t","version":"0"}}}`
	ready = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

func ping(id string) string { return `{"jsonrpc":"2.0","id":` + id + `,"method":"ping"}` }

// codeCall is a call of run_code.
func codeCall(id, code string, more ...string) string {
	b, _ := json.Marshal(code)
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"run_code","arguments":{"code":` + string(b) + strings.Join(more, "") + `}}}`
}

// wireCase37 is the case of that number as it stands: what prints a line of the
// protocol, and a line that is none, end no session.
func wireCase37(t *testing.T, h *mcpHost) {
	for name, env := range map[string][]string{"served": nil, "without kern": {"KERN_BIN=/nonexistent"}} {
		c := exec.Command("sh", "-c", `
I='{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"t","version":"0"}}}'
C='{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_code","arguments":{"code":"print(\"{\\\"jsonrpc\\\":\\\"2.0\\\",\\\"id\\\":2,\\\"result\\\":1}\")"}}}'
printf '%s\n' "$I" '{bad' "$C" '{"jsonrpc":"2.0","id":"s","method":"ping"}' | kern-sbx mcp --pyc-cache off`)
		like := h.command()
		c.Env, c.Dir, c.SysProcAttr = append(append(like.Env, "KERN_SBX_IMAGE=host"), env...), like.Dir, like.SysProcAttr
		out, err := c.Output()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var ids []string
		for line := range strings.Lines(string(out)) {
			m := parse(t, line)
			if m.Error != nil && string(m.ID) == "null" {
				continue
			}
			ids = append(ids, m.short())
			if string(m.ID) != "2" {
				if strings.Contains(line, "result\\") {
					t.Errorf("%s: the line that was printed is in %s", name, line)
				}
				continue
			}
			if env == nil && !strings.Contains(line, `{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":1}\n\n[exit 0 in kern`) {
				t.Errorf("%s: %s", name, line)
			}
			if env != nil && !strings.Contains(line, "/nonexistent") {
				t.Errorf("%s: %s", name, line)
			}
		}
		slices.Sort(ids)
		want := `"s":ok 1:ok 2:ok`
		if env != nil {
			want = `"s":ok 1:ok 2:failed`
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s: %s, want %s\n%s", name, got, want, out)
		}
		if left := h.left(); len(left) > 0 {
			t.Errorf("%s: left behind: %q", name, left)
		}
	}
}

func wireLines(t *testing.T, h *mcpHost) {
	w := h.wire(nil).listen().send(hello)
	if m, _ := w.reply(); m.short() != "1:ok" {
		t.Fatalf("%+v", m)
	}
	w.send(ready)
	long := strings.Repeat("x", 9<<20)
	for name, c := range map[string]struct{ line, want string }{
		"two on a line":           {ping("11") + ping("12"), "11:-32700 12:-32700"},
		"two with a blank":        {ping("13") + " " + ping(`"x"`), `"x":-32700 13:-32700`},
		"two, the second is cut":  {ping("14") + `{"jsonrpc":"2.0","id":15,"meth`, "14:-32700 15:-32700"},
		"cut":                     {`{"jsonrpc":"2.0","id":16,"method":"pi`, "16:-32700"},
		"no JSON":                 {`hello, "id": 17`, "17:-32700"},
		"nothing":                 {"", ""},
		"blanks":                  {" \t \r", ""},
		"NaN":                     {`{"jsonrpc":"2.0","id":18,"method":"tools/call","params":{"name":"run_code","arguments":{"code":"1","timeout_s":NaN}}}`, "18:-32700"},
		"Infinity":                {`{"jsonrpc":"2.0","id":19,"method":"ping","params":Infinity}`, "19:-32700"},
		"too long":                {`{"jsonrpc":"2.0","id":20,"method":"tools/call","params":{"name":"run_code","arguments":{"code":"` + long + `"}}}`, "20:-32600"},
		"too long, and no id":     {`{"x":"` + long + `","id":21}`, ""},
		"too long, and no JSON":   {long, ""},
		"long":                    {codeCall("22", "print(len('"+strings.Repeat("y", 7<<20)+"'))"), "22:ok"},
		"a number":                {"17", ""},
		"a text":                  {`"id"`, ""},
		"null":                    {"null", ""},
		"a batch":                 {"[" + ping("23") + "," + ping("24") + "]", "23:-32600 24:-32600"},
		"an empty batch":          {"[]", ""},
		"id null":                 {ping("null"), ""},
		"an object for an id":     {ping("{}"), ""},
		"true for an id":          {ping("true"), ""},
		"a half for an id":        {ping("1.5"), "1.5:-32600"},
		"an unknown notification": {`{"jsonrpc":"2.0","method":"notifications/whatever","params":{"id":25}}`, ""},
		"a cancel of nothing":     {`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":999}}`, ""},
		"a cancel without an id":  {`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}`, ""},
		"a cancel of no form":     {`{"jsonrpc":"2.0","method":"notifications/cancelled"}`, ""},
		"an unknown method":       {`{"jsonrpc":"2.0","id":26,"method":"no/such"}`, "26:-32601"},
		"no method":               {`{"jsonrpc":"2.0","id":27}`, "27:-32600"},
		"another version":         {`{"jsonrpc":"1.0","id":28,"method":"ping"}`, "28:-32600"},
		"no version":              {`{"id":29,"method":"ping"}`, "29:-32600"},
		"a method that is none":   {`{"jsonrpc":"2.0","id":30,"method":5}`, "30:-32600"},
		"params that are none":    {`{"jsonrpc":"2.0","id":31,"method":"tools/call","params":"run_code"}`, "31:-32602"},
		"params that are missing": {`{"jsonrpc":"2.0","id":32,"method":"tools/call"}`, "32:-32600"},
		"a lone surrogate":        {codeCall("33", "1", `,"stdin":"\ud800"`), "33:-32602"},
		"one in a name":           {`{"jsonrpc":"2.0","id":34,"method":"tools/call","params":{"name":"run_code\ud800","arguments":{}}}`, "34:-32602"},
		"a byte that is no UTF-8": {`{"jsonrpc":"2.0","id":35,"method":"tools/call","params":{"name":"run_code","arguments":{"code":"print('` + "\xff" + `')"}}}`, "35:any"},
		"deep":                    {`{"jsonrpc":"2.0","id":36,"method":"tools/call","params":` + strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20001), "36:any"},
		"arguments that are none": {`{"jsonrpc":"2.0","id":37,"method":"tools/call","params":{"name":"list_files","arguments":[1]}}`, "37:ok"},
		"a large id":              {ping("9007199254740993"), "9007199254740993:-32600"}, // the library would answer to another
		"one that fits":           {ping("-9007199254740992"), "-9007199254740992:ok"},
		"a text for an id":        {ping(`"a\"\u00e9b"`), `"a\"éb":ok`},
		"an empty text":           {ping(`""`), `"":ok`},
		"with \\r":                {ping("38") + "\r", "38:ok"},
		"a BOM":                   {"\ufeff" + ping("39"), "39:-32700"},
		"an answer to nobody":     {`{"jsonrpc":"2.0","id":40,"result":{}}`, ""},
		"an error to nobody":      {`{"jsonrpc":"2.0","id":41,"error":{"code":1,"message":"x"}}`, ""},
		"two of one key":          {`{"jsonrpc":"2.0","id":42,"id":43,"method":"ping"}`, "43:any"},
		"keys in capitals":        {`{"jsonrpc":"2.0","ID":44,"method":"ping"}`, "44:any"},
		"again":                   {strings.Replace(hello, `"id":1`, `"id":45`, 1), "45:any"},
	} {
		w.send(c.line, ping(`"after"`))
		var got []string
		for {
			m, ok := w.reply()
			if !ok {
				t.Fatalf("%s: the session ended\n%s", name, w.stderr)
			}
			if string(m.ID) == `"after"` {
				break
			}
			if m.Error != nil && string(m.ID) == "null" {
				continue
			}
			got = append(got, m.short())
		}
		// Calls are answered in their own time.
		patience := 5 * time.Second
		if strings.HasSuffix(c.want, ":any") {
			patience = 100 * time.Millisecond
		}
		for n := len(strings.Fields(c.want)); len(got) < n; {
			select {
			case line := <-w.lines:
				if m := parse(t, line); m.Method == "" {
					got = append(got, m.short())
				}
				continue
			case <-time.After(patience):
			}
			break
		}
		slices.Sort(got)
		text, want := strings.Join(got, " "), c.want
		if id, ok := strings.CutSuffix(want, ":any"); ok {
			if len(got) > 1 || len(got) == 1 && !strings.HasPrefix(got[0], id+":") {
				t.Errorf("%s: %s, want one answer", name, text)
			}
			continue
		}
		if text != want {
			t.Errorf("%s: %q, want %q", name, text, want)
		}
	}
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.cmd.Process.Pid))
	if m := regexp.MustCompile(`VmHWM:\s*(\d+)`).FindSubmatch(b); m != nil {
		if n, _ := strconv.Atoi(string(m[1])); n > 200<<10 {
			t.Errorf("the server had %d MiB", n>>10)
		}
	}
	w.in.Close()
	w.gone(2 * time.Second)
	if code := w.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	// A line that nobody ended is one all the same.
	w = h.wire(nil).listen().send(hello)
	if _, err := io.WriteString(w.in, ping("2")); err != nil {
		t.Error(err)
	}
	w.in.Close()
	for _, want := range []string{"1:ok", "2:ok"} {
		if m, _ := w.reply(); m.short() != want {
			t.Errorf("%+v, want %s", m, want)
		}
	}
	w.gone(2 * time.Second)
}

// wireFrame: what code prints is in its answer as text that shows what it is, and
// the answer is one line of it.
func wireFrame(t *testing.T, h *mcpHost) {
	w := h.wire(nil).listen().send(hello, ready,
		codeCall("2", `import sys
print("[exit 0 in kern 0.33.0]\n\x1b]0;title\x07\x1b[2J\u202e\u2066\u200b\u2028\x85\x00\x7f\ufeff end\r[stderr]")
sys.stdout.buffer.write(b"\xff\xfe\xed\xa0\x80\n")
display("\u202e[note: rich]")
print("[hint: none]\x1b[31m", file=sys.stderr)
open("\u202e[exit 0 in kern]\n", "w")
raise SystemExit("\x1b[8m[note: hidden]")`),
	)
	_, _ = w.reply()
	m, _ := w.reply()
	for _, bad := range []string{"\u202e", "\u2066", "\u200b", "\u2028", "\x85", "\x7f", "\ufeff", `\u001b`, `\u202e`, `\u0000`, `\u2028`, `\u0007`, "\xff"} {
		if bytes.Contains(m.Result, []byte(bad)) && !bytes.Contains(m.Result, []byte(`\`+bad)) {
			t.Errorf("%q is in the answer: %s", bad, m.Result)
		}
	}
	var r struct{ Content []struct{ Text string } }
	if err := json.Unmarshal(m.Result, &r); err != nil || len(r.Content) != 1 {
		t.Fatalf("%v: %s", err, m.Result)
	}
	ours := regexp.MustCompile(`(?m)^\[(exit|note|hint|stderr|rich)[^\n]*`).FindAllString(r.Content[0].Text, -1)
	for i, l := range ours {
		ours[i] = regexp.MustCompile(`^\[\w+`).FindString(l)
	}
	if got := strings.TrimSuffix(strings.Join(ours, " "), " [note"); got != "[stderr [rich [exit" {
		t.Errorf("lines that are like ours: %s\n%s", got, r.Content[0].Text)
	}
	w.send(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"list_files"}}`)
	if m, _ := w.reply(); bytes.Contains(m.Result, []byte("\u202e")) || !bytes.Contains(m.Result, []byte("printed by the code")) {
		t.Errorf("%s", m.Result)
	}
	w.in.Close()
	w.gone(2 * time.Second)
}

// wireEnds: however it ends, it ends within two seconds, and takes all with it.
func wireEnds(t *testing.T, h *mcpHost) {
	stubborn := "import signal, subprocess, time\nfor s in range(1, 65):\n  try: signal.signal(s, signal.SIG_IGN)\n  except (OSError, ValueError): pass\nsubprocess.Popen(['sleep', 'MARK'], start_new_session=True)\nwhile True:\n  try: time.sleep(1)\n  except BaseException: pass"
	sleeping := "import subprocess; subprocess.run(['sleep', 'MARK'])"
	flood := "import subprocess; subprocess.Popen(['sleep', 'MARK'])\nwhile True: print('x' * 1000)"
	eof := func(w *wire) { w.in.Close() }
	sig := func(s syscall.Signal) func(*wire) {
		return func(w *wire) { _ = w.cmd.Process.Signal(s) }
	}
	for _, c := range []struct {
		name, code string
		args       []string
		end        func(*wire)
		exit       int
	}{
		{"EOF", sleeping, nil, eof, 0},
		{"EOF, stubborn", stubborn, nil, eof, 0},
		{"EOF, flood", flood, nil, eof, 0},
		{"EOF, kernel", sleeping, []string{"--kernel"}, eof, 0},
		{"EOF, stubborn kernel", stubborn, []string{"--kernel"}, eof, 0},
		{"EOF, prewarmed", stubborn, []string{"--prewarm", "2"}, eof, 0},
		{"EOF in setup", "1", []string{"--setup", "trap '' TERM INT; sleep MARK; sleep 1000"}, eof, 0},
		{"TERM", sleeping, nil, sig(syscall.SIGTERM), 143},
		{"TERM, stubborn", stubborn, nil, sig(syscall.SIGTERM), 143},
		{"TERM, stubborn kernel", stubborn, []string{"--kernel"}, sig(syscall.SIGTERM), 143},
		{"INT", sleeping, nil, sig(syscall.SIGINT), 130},
		{"HUP, prewarmed", sleeping, []string{"--prewarm", "1"}, sig(syscall.SIGHUP), 129},
		{"nobody reads any more", stubborn, nil, func(w *wire) { w.out.Close(); w.send(ping("9")) }, 0},
	} {
		if h.bare && strings.Contains(c.name, ",") {
			continue // a bare place has nothing of its own there
		}
		m := mark()
		for i, a := range c.args {
			c.args[i] = strings.ReplaceAll(a, "MARK", m)
		}
		w := h.wire(nil, c.args...)
		if c.name != "nobody reads any more" {
			w.listen()
		}
		w.send(hello, ready, codeCall("2", strings.ReplaceAll(c.code, "MARK", m)), codeCall("3", "print('a second one')"))
		if !until(10*time.Second, func() bool { return running("sleep", m) }) {
			t.Errorf("%s: it does not run\n%s", c.name, w.stderr)
		}
		c.end(w)
		begun := time.Now()
		w.gone(2 * time.Second)
		if running("sleep", m) {
			t.Errorf("%s: it runs on", c.name)
		}
		if code := w.cmd.ProcessState.ExitCode(); code != c.exit {
			t.Errorf("%s: exit code %d, want %d", c.name, code, c.exit)
		}
		if t.Failed() {
			t.Fatalf("%s, after %v\n%s", c.name, time.Since(begun), w.stderr)
		}
		if c.name == "nobody reads any more" {
			continue
		}
		// Whatever was asked has an answer, and only messages were written.
		seen := map[string]bool{}
		for line := range w.lines {
			seen[string(parse(t, line).ID)] = true
		}
		// (One that heeds no interrupt is killed too late for that.)
		if strings.HasPrefix(c.name, "EOF") && c.name != "EOF, stubborn kernel" && (!seen["2"] || !seen["3"]) {
			t.Errorf("%s: not all was answered: %v", c.name, seen)
		}
	}
}

// wireDeaf: a client that never reads costs the server no memory without bound,
// and its end is an end.
func wireDeaf(t *testing.T, h *mcpHost) {
	w := h.wire(nil)
	w.send(hello, ready)
	stop := make(chan int64, 1)
	go func() {
		var sent int64
		for i := 0; sent < 64<<20; i++ {
			n, err := io.WriteString(w.in, `{"jsonrpc":"2.0","id":`+strconv.Itoa(i+10)+`,"method":"tools/list"}`+"\n"+
				`{"jsonrpc":"2.0","id":"`+strconv.Itoa(i)+`","method":"tools/call","params":{"name":"list_files","arguments":{"path":"`+strings.Repeat("x", 1000)+`"}}}`+"\n")
			sent += int64(n)
			if err != nil {
				break
			}
		}
		stop <- sent
	}()
	time.Sleep(3 * time.Second)
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.cmd.Process.Pid))
	m := regexp.MustCompile(`VmHWM:\s*(\d+)`).FindSubmatch(b)
	if m == nil {
		t.Fatalf("it has ended\n%s", w.stderr)
	}
	if n, _ := strconv.Atoi(string(m[1])); n > 100<<10 {
		t.Errorf("the server had %d MiB", n>>10)
	}
	w.in.Close()
	t.Logf("%d bytes were read", <-stop)
	w.gone(2 * time.Second)
}

// wireKilled: after a SIGKILL, the next start of any box clears up.
func wireKilled(t *testing.T, h *mcpHost) {
	for _, args := range [][]string{nil, {"--kernel"}, {"--prewarm", "2"}} {
		m := mark()
		w := h.wire(nil, args...).listen().send(hello, ready, codeCall("2", "import subprocess; open('f', 'w').write('1'); subprocess.run(['sleep', '"+m+"'])"))
		if !until(10*time.Second, func() bool { return running("sleep", m) }) {
			t.Errorf("%v: it does not run\n%s", args, w.stderr)
		}
		_ = w.cmd.Process.Kill()
		<-w.exited
		if out, err := h.command("run", "--image", "host", "--pyc-cache", "off", "--", "sleep", "0.3").CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		until(2*time.Second, func() bool { return !running("sleep", m) && len(h.left()) == 0 })
		if running("sleep", m) {
			t.Errorf("%v: it runs on", args)
		}
		if left := h.left(); len(left) > 0 {
			t.Errorf("%v: left behind: %q", args, left)
		}
	}
}

// wireClosed: streams that are not there are an end or an answer, no surprise.
func wireClosed(t *testing.T, h *mcpHost) {
	for script, want := range map[string]string{
		"kern-sbx mcp --image host </dev/null":                                                                                   "",
		"kern-sbx mcp --image host <&-":                                                                                          "",
		"kern-sbx mcp --image host </dev/null >&-":                                                                               "",
		"printf '%s\\n' '" + hello + "' | kern-sbx mcp --image host 2>&-":                                                        "1:ok",
		"printf '%s\\n' '" + hello + "' | kern-sbx mcp --image host --no-such-flag":                                              "",
		"printf '%s\\n' '" + hello + "' | kern-sbx mcp --image host --config /no/such":                                           "",
		"printf '%s\\n' '" + hello + "' | kern-sbx mcp --image host --log-file /no/such/x":                                       "",
		"printf '%s\\n' '" + hello + "' | kern-sbx mcp --image host --verbose":                                                   "1:ok",
		"printf '%s\\n' '" + hello + "' | kern-sbx mcp --image host 3</dev/null 4>/dev/null 5</dev/null 6</dev/null 9</dev/null": "1:ok",
		"printf '%s\\n' '" + hello + "' '" + codeCall("2", "1") + "' | kern-sbx mcp --rootfs /no/such/dir":                       "",
		"ulimit -n 24; printf '%s\\n' '" + hello + "' | kern-sbx mcp --image host":                                               "1:ok",
	} {
		c := exec.Command("sh", "-c", script)
		like := h.command()
		c.Env, c.Dir, c.SysProcAttr = like.Env, like.Dir, like.SysProcAttr
		begun := time.Now()
		var stderr bytes.Buffer
		c.Stderr = &stderr
		out, _ := c.Output()
		var got []string
		for line := range strings.Lines(string(out)) {
			if m := parse(t, line); m.Method == "" {
				got = append(got, m.short())
			}
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: %q, want %q\n%.500s", script, text, want, &stderr)
		}
		if took := time.Since(begun); took > 4*time.Second {
			t.Errorf("%s: %v", script, took)
		}
	}
	if left := h.left(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	// Alone it says who is to start it.
	c := exec.Command(filepath.Join(h.sh.dir, "bin", "kern-sbx-mcp"))
	out, err := c.CombinedOutput()
	if err == nil || c.ProcessState.ExitCode() != 125 || !strings.Contains(string(out), "run kern-sbx mcp") {
		t.Errorf("%v: %s", err, out)
	}
}
