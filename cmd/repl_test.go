package cmd

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"
)

func TestWholeCode(t *testing.T) {
	for src, want := range map[string]bool{
		"":                                  true,
		"x = 1\n":                           true,
		"print('a:')\n":                     true,
		"x = {1: 2}\n":                      true,
		"d[1:]\n":                           true,
		"# a comment:\n":                    true,
		"x = 1  # then:\n":                  true,
		"if x:\n":                           false,
		"if x:\n    1\n":                    false,
		"if x:\n    1\n\n":                  true,
		"if x: print(1)\n":                  true,
		"for i in x:  # all\n":              false,
		"def f():\n    return 1\n    \n":    true,
		"try: x\n":                          false,
		"try: x\nexcept: y\n\n":             true,
		"try_ = 1\n":                        true,
		"@cache\n":                          false,
		"@cache\ndef f(): 1\n":              false,
		"@cache\ndef f(): 1\n\n":            true,
		"f(1,\n":                            false,
		"f(1,\n2)\n":                        true,
		"f(1,\n\n2)\n":                      true,
		"x = [\n":                           false,
		"x = '['\n":                         true,
		"x = '\\'['\n":                      true,
		"x = \"'\"\n":                       true,
		"x = '''\n":                         false,
		"x = '''a\n\n":                      false,
		"x = '''a\n'''\n":                   true,
		"x = '''a\\'''\n":                   false,
		"x = r'\\'\n":                       true,
		"x = \"\"\"'''\n":                   false,
		"x = 'open\n":                       true, // python says what is wrong
		"x = 'open\\\n":                     false,
		"x = 1 + \\\n":                      false,
		"x = 1 + \\\n2\n":                   true,
		")\n":                               true,
		"class A:\n  def f(self):\n    1\n": false,
		"lambda: 0\n":                       true,
		"'''doc'''\n":                       true,
		"f'{x:>3}'\n":                       true,
		"async def f():\n":                  false,
		"match x:\n  case 1: y\n\n":         true,
		"if x:\n    '''\n\n":                false,
	} {
		if got := wholeCode(src); got != want {
			t.Errorf("%q: %v", src, got)
		}
	}
}

func FuzzWholeCode(f *testing.F) {
	f.Add("if x:\n  '''a\\'''")
	f.Fuzz(func(t *testing.T, s string) {
		wholeCode(s)
		// Two empty lines end whatever is not open.
		if wholeCode(s+"\n") && !wholeCode(s+"\n\n\n") && !strings.HasSuffix(s, "\\") {
			t.Errorf("%q", s)
		}
	})
}

func TestKeyReader(t *testing.T) {
	r := &keyReader{in: strings.NewReader("ab\x03c\x03\x03")}
	var got []string
	b := make([]byte, 8)
	for {
		n, err := r.Read(b)
		if err == io.EOF {
			break
		}
		mark := ""
		if r.interrupted {
			mark, r.interrupted = "!", false
		}
		got = append(got, string(b[:n])+mark)
	}
	if s := strings.Join(got, "|"); s != "ab|\x05\x15\r!|c|\x05\x15\r!|\x05\x15\r!" {
		t.Errorf("%q", s)
	}
}

func TestHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "h")
	h := &history{}
	h.load(path)
	for _, l := range []string{"a", "a", " ", "b\x1b]0;x\x07", "c\u202ed"} {
		h.Add(l)
	}
	h.close()
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
	f, _ := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	f.WriteString("evil\x1b[2J\r\x9b\nlast")
	f.Close()
	h = &history{}
	h.load(path)
	for i := range h.Len() {
		if strings.ContainsAny(h.At(i), "\x1b\x07\r\u202e") || !utf8.ValidString(h.At(i)) {
			t.Errorf("%q", h.At(i))
		}
	}
	if h.Len() != 5 || h.At(0) != "last" || h.At(4) != "a" {
		t.Errorf("%q", h.lines)
	}
	for range 3000 {
		h.Add("x")
		h.Add("y")
	}
	h.close()
	h = &history{}
	h.load(path)
	h.close()
	if st, _ := os.Stat(path); h.Len() > mostHistory || st.Size() > 2*mostHistory {
		t.Errorf("%d lines, %d bytes", h.Len(), st.Size())
	}
	link := path + "l"
	os.Symlink(path, link)
	h = &history{}
	h.load(link)
	if h.file != nil {
		t.Error("a link is followed")
	}
}

// typist types at a program in a terminal.
type typist struct {
	t   *testing.T
	pty *os.File
	mu  sync.Mutex
	got bytes.Buffer
}

func (y *typist) text() string {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.got.String()
}

// await waits until text appears after what was there before.
func (y *typist) await(text string, from int) int {
	y.t.Helper()
	for range 500 {
		if s := y.text(); from <= len(s) {
			if i := strings.Index(s[from:], text); i >= 0 {
				return from + i + len(text)
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	y.t.Fatalf("%q does not come:\n%q", text, y.text()[min(from, len(y.text())):])
	return 0
}

func (y *typist) write(s string) {
	y.t.Helper()
	if _, err := y.pty.WriteString(s); err != nil {
		y.t.Fatal(err)
	}
}

func TestRepl(t *testing.T) {
	r := newRig(t)
	r.start()
	c := r.command("kernel", "repl")
	f, err := pty.StartWithSize(c, &pty.Winsize{Rows: 24, Cols: 100})
	if err != nil {
		t.Fatal(err)
	}
	y := &typist{t: t, pty: f}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := f.Read(b)
			y.mu.Lock()
			y.got.Write(b[:n])
			y.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	defer f.Close()
	at := y.await(">>> ", 0)
	y.write("x = 41\r")
	at = y.await(">>> ", y.await("x = 41", at))
	y.write("x + 1\r")
	at = y.await(">>> ", y.await("42", y.await("x + 1", at)))
	// A block.
	y.write("for i in range(2):\r")
	at = y.await("... ", at)
	y.write("\tprint('line', i)\r")
	at = y.await("... ", at)
	y.write("\r")
	at = y.await(">>> ", y.await("line 1", y.await("line 0", at)))
	// Ctrl-C clears the line, and a block.
	y.write("rubbish(\r")
	at = y.await("... ", at)
	y.write("more\x03")
	at = y.await(">>> ", at)
	y.write("x\r")
	at = y.await(">>> ", y.await("41", at))
	// In a cell it interrupts, and the names stay.
	y.write("import time; time.sleep(60)\r")
	at = y.await("sleep(60)", at)
	time.Sleep(500 * time.Millisecond)
	y.write("\x03")
	at = y.await(">>> ", y.await("KeyboardInterrupt", at))
	y.write("x\r")
	at = y.await(">>> ", y.await("41", at))
	// What the box prints is shown, not obeyed.
	y.write("print('\\x1b]0;title\\x07\\x1b[6n')\r")
	at = y.await(">>> ", y.await("^[]0;title^G^[[6n", at))
	// A pasted function with an empty line in it.
	y.write("\x1b[200~def f():\r    a = 1\r\r    return a + 1\r\x1b[201~")
	at = y.await("return a + 1", at)
	y.write("\rf() + 40\r")
	at = y.await(">>> ", y.await("42", y.await("f() + 40", at)))
	// The history.
	y.write("\x1b[A\r")
	at = y.await(">>> ", y.await("42", at))
	// Errors show the code.
	y.write("1/0\r")
	at = y.await(">>> ", y.await("ZeroDivisionError", at))
	y.write("input()\r")
	y.await(">>> ", y.await("EOFError", at))
	y.write("\x04")
	if got := code(c); got != 0 {
		t.Errorf("Ctrl-D: %d", got)
	}
	if b, err := os.ReadFile(filepath.Join(r.dir, "home/.local/share/kern-sbx/history/kernel-default")); err != nil || !bytes.Contains(b, []byte("x + 1\n")) {
		t.Errorf("the history: %v %q", err, b)
	}
	r.want(0, "41", "kernel", "exec", "-c", "print(x)")
}

// A cell that ends the kernel ends the conversation.
func TestReplEnds(t *testing.T) {
	r := newRig(t)
	r.start("--timeout", "500ms")
	c := r.command("kernel", "repl")
	f, err := pty.StartWithSize(c, &pty.Winsize{Rows: 24, Cols: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	done := make(chan []byte)
	go func() { b, _ := io.ReadAll(f); done <- b }()
	f.WriteString("while True: pass\r\r")
	text := <-done
	if got := code(c); got != 124 || !bytes.Contains(text, []byte("still running after 500ms")) {
		t.Errorf("%d\n%s", got, text)
	}
}
