package term

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

var opening = regexp.MustCompile(`^\n::stop-commands::([0-9a-f]{32})\n`)

// inside takes the fence off one stream.
func inside(t *testing.T, s string) (token, body string) {
	t.Helper()
	m := opening.FindStringSubmatch(s)
	if m == nil {
		t.Fatalf("no opening line: %q", s)
	}
	body, ok := strings.CutSuffix(s[len(m[0]):], "::"+m[1]+"::\n")
	if !ok {
		t.Fatalf("no closing line: %q", s)
	}
	return m[1], body
}

func TestFence(t *testing.T) {
	forged := "::0123456789abcdef0123456789abcdef::\n::add-mask::x\n##[add-path]/x\n::stop-commands::mine\n::mine::\n"
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"a\n", "a\n"},
		{"a", "a\n"},
		{"\n", "\n"},
		{"a\r", "a\r\n"},
		{"\x00\xff\x1b[31m\n", "\x00\xff\x1b[31m\n"},
		{forged, forged},
	} {
		var out, errb bytes.Buffer
		f, err := NewFence(&out, &errb)
		if err != nil {
			t.Fatal(err)
		}
		for i := range len(c.in) { // byte by byte
			_, _ = f.Stdout().Write([]byte{c.in[i]})
		}
		_, _ = io.WriteString(f.Stderr(), c.in)
		for range 2 {
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
		t1, b1 := inside(t, out.String())
		t2, b2 := inside(t, errb.String())
		if t1 != t2 || b1 != c.want || b2 != c.want {
			t.Errorf("%q: tokens %s %s, bodies %q %q", c.in, t1, t2, b1, b2)
		}
		if strings.Contains(b1, t1) {
			t.Errorf("the token is inside the fence: %q", b1)
		}
		if _, err := f.Stdout().Write([]byte("::debug::late\n")); !errors.Is(err, os.ErrClosed) {
			t.Errorf("a write after the end: %v", err)
		}
	}
}

// What the runner obeys, in the order of one stream: a line that starts with
// ::NAME:: for a name it knows; a stop token is known until it was seen.
func TestFenceAgainstRunner(t *testing.T) {
	var log bytes.Buffer
	log.WriteString("Testing... ") // the step's earlier output, unfinished
	f, err := NewFence(&log, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(f.Stdout(), "::add-mask::a\n::stop-commands::x\n::x::\n  ::add-mask::b\n::add-mask::c")
	_ = f.Close()
	log.WriteString("::add-mask::ours\n")
	var obeyed []string
	stop := ""
	for line := range strings.Lines(log.String()) {
		name, data, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "::"), "::")
		if !ok || !strings.HasPrefix(strings.TrimSpace(line), "::") {
			continue
		}
		switch {
		case stop != "":
			if name == stop {
				stop = ""
			}
		case name == "stop-commands":
			stop = data
		default:
			obeyed = append(obeyed, line)
		}
	}
	if len(obeyed) != 1 || obeyed[0] != "::add-mask::ours\n" {
		t.Errorf("the runner obeys %q", obeyed)
	}
}

func TestFenceTokensDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 200 {
		var b bytes.Buffer
		f, _ := NewFence(&b, io.Discard)
		_ = f.Close()
		token, _ := inside(t, b.String())
		seen[token] = true
	}
	if len(seen) != 200 {
		t.Errorf("%d tokens for 200 fences", len(seen))
	}
}

func TestFenceConcurrent(t *testing.T) {
	var out, errb bytes.Buffer
	f, _ := NewFence(&out, &errb)
	var wg sync.WaitGroup
	var wantOut, wantErr strings.Builder
	for _, s := range []struct {
		w    io.Writer
		want *strings.Builder
	}{{f.Stdout(), &wantOut}, {f.Stderr(), &wantErr}} {
		wg.Go(func() {
			for i := range 2000 {
				line := fmt.Sprintf("line %d\n", i)
				s.want.WriteString(line)
				_, _ = io.WriteString(s.w, line)
			}
		})
	}
	wg.Wait()
	_ = f.Close()
	_, b1 := inside(t, out.String())
	_, b2 := inside(t, errb.String())
	if b1 != wantOut.String() || b2 != wantErr.String() {
		t.Error("bytes between the lines were altered")
	}
}

// The closing line of one stream must not overtake the last bytes of the other.
func TestFenceWaitsForReader(t *testing.T) {
	or, ow, _ := os.Pipe()
	er, ew, _ := os.Pipe()
	defer or.Close()
	defer er.Close()
	f, err := NewFence(ow, ew)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(f.Stderr(), "::add-mask::late\n")
	taken := make(chan time.Time, 1)
	go func() {
		_, _ = io.ReadFull(or, make([]byte, len("\n::stop-commands::\n")+32))
		time.Sleep(150 * time.Millisecond) // a slow reader of stderr
		b := make([]byte, 4096)
		_, _ = er.Read(b)
		taken <- time.Now()
	}()
	ended := make(chan time.Time, 1)
	go func() {
		b := make([]byte, 4096)
		time.Sleep(50 * time.Millisecond)
		_, _ = or.Read(b)
		ended <- time.Now()
	}()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	ow.Close()
	ew.Close()
	if (<-ended).Before(<-taken) {
		t.Error("stdout was opened again before stderr had been read")
	}
}

func TestFenceReaderThatNeverReads(t *testing.T) {
	r, w, _ := os.Pipe()
	defer r.Close()
	defer w.Close()
	f, _ := NewFence(w, io.Discard)
	_, _ = io.WriteString(f.Stdout(), "x")
	start := time.Now()
	_ = f.Close()
	if d := time.Since(start); d > fenceDrain+time.Second {
		t.Errorf("Close took %v", d)
	}
}

func TestFenceErrors(t *testing.T) {
	boom := errors.New("boom")
	if _, err := NewFence(refusing{0, boom}, io.Discard); !errors.Is(err, boom) {
		t.Errorf("stdout: %v", err)
	}
	if _, err := NewFence(io.Discard, refusing{0, boom}); !errors.Is(err, boom) {
		t.Errorf("stderr: %v", err)
	}
}
