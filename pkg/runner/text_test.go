package runner

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// spilled keeps b in pieces of n, so that it may lie in memory and in a file.
func spilled(t testing.TB, b []byte, n int) *capture {
	t.Helper()
	c := &capture{dir: t.TempDir()}
	t.Cleanup(c.close)
	for len(b) > 0 {
		k := min(n, len(b))
		if w, err := c.Write(b[:k]); w != k || err != nil {
			t.Fatal(w, err)
		}
		b = b[k:]
	}
	return c
}

func TestCaptureSpills(t *testing.T) {
	for _, size := range []int{0, 1, memoryPart - 1, memoryPart, memoryPart + 1, 2*memoryPart + 7} {
		for _, piece := range []int{1000, memoryPart - 1, memoryPart, 3 * memoryPart} {
			b := pattern(size)
			c := spilled(t, b, piece)
			if c.size != int64(size) || len(c.mem) > memoryPart || (c.file != nil) != (size > memoryPart) {
				t.Fatalf("%d in pieces of %d: size %d, %d in memory, file %v", size, piece, c.size, len(c.mem), c.file != nil)
			}
			for _, off := range []int{0, 1, memoryPart - 1, memoryPart, memoryPart + 1, size} {
				for _, end := range []int{off, off + 1, memoryPart - 1, memoryPart, memoryPart + 1, size - 1, size} {
					if off > end || end > size || off > size {
						continue
					}
					x := &Text{[]span{{c, int64(off), int64(end)}}}
					if got := text(t, x); got != string(b[off:end]) || x.Len() != int64(end-off) {
						t.Fatalf("%d in pieces of %d: span %d to %d has %d bytes", size, piece, off, end, len(got))
					}
				}
			}
			whole := &Text{[]span{{c, 0, c.size}, {c, 0, c.size}}}
			if got := text(t, whole); got != string(b)+string(b) {
				t.Fatal("two spans are not one after the other")
			}
			if got := whole.Head(5); !bytes.Equal(got, b[:min(5, size)]) && size >= 5 {
				t.Fatalf("head is %q", got)
			}
		}
	}
}

// TestCaptureWithoutDisk: what cannot be kept is known, and ends nothing.
func TestCaptureWithoutDisk(t *testing.T) {
	c := &capture{dir: filepath.Join(t.TempDir(), "missing")}
	b := pattern(memoryPart + 100)
	for range 2 {
		if n, err := c.Write(b); n != len(b) || err != nil {
			t.Error(n, err)
		}
	}
	if c.err == nil || c.size != memoryPart {
		t.Errorf("size %d, %v", c.size, c.err)
	}
	if got := text(t, &Text{[]span{{c, 0, c.size}}}); got != string(b[:memoryPart]) {
		t.Error("what was kept is lost")
	}
}

func TestCaptureLeavesNoName(t *testing.T) {
	c := spilled(t, pattern(2*memoryPart), 1<<20)
	if names, err := os.ReadDir(c.dir); err != nil || len(names) > 0 {
		t.Error(names, err)
	}
}

// checkJSON holds what a document promises of a text, whatever the bytes.
func checkJSON(t *testing.T, doc, want []byte) {
	t.Helper()
	for i, r := range string(doc) {
		if (r < 0x20 && r != '\n') || r == utf8.RuneError && !bytes.ContainsRune(want, utf8.RuneError) || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			t.Fatalf("%U at %d of %q", r, i, doc)
		}
	}
	var s string
	if err := json.Unmarshal(doc, &s); err == nil {
		if s != string(want) || !utf8.Valid(want) {
			t.Fatalf("%q came back as %q", want, s)
		}
		return
	}
	var o struct {
		Encoding string
		Data     string
	}
	if err := json.Unmarshal(doc, &o); err != nil || o.Encoding != "base64" {
		t.Fatalf("%q was written as %q: %v", want, doc, err)
	}
	b, err := base64.StdEncoding.DecodeString(o.Data)
	if err != nil || !bytes.Equal(b, want) || utf8.Valid(want) {
		t.Fatalf("%q came back as %q (%v)", want, b, err)
	}
}

func FuzzTextJSON(f *testing.F) {
	for _, s := range []string{"", "plain\n", "\x1b[31m\x7f\u0080\u009f\u00a0\u00ff\"\\\x00\t\r", "\xc2", "\xc2\x9b", "a\xff", "\xed\xa0\x80", "\ufffd", "\u2028", "😀", "\xf0\x9f\x98"} {
		f.Add([]byte(s), 1, uint16(0))
		f.Add([]byte(s), 3, uint16(32))
	}
	f.Fuzz(func(t *testing.T, b []byte, piece int, pad uint16) {
		if piece < 1 || piece > 1<<20 || len(b) > 1<<12 {
			return
		}
		// In one piece, in many spans, and across the border between memory and
		// file.
		var many []span
		for i := 0; i < len(b); i += piece {
			c := &capture{mem: b, size: int64(len(b))}
			many = append(many, span{c, int64(i), int64(min(i+piece, len(b)))})
		}
		for _, x := range []*Text{TextOf(b), {many}} {
			doc, err := x.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			checkJSON(t, doc, b)
			if again, err := json.Marshal(x); err != nil {
				t.Fatal(err, string(again))
			}
		}
		if pad%16 != 0 || len(b) > 64 {
			return
		}
		border := append(bytes.Repeat([]byte("."), memoryPart-int(pad/16%8)), b...)
		c := &capture{dir: t.TempDir()}
		c.Write(border)
		defer c.close()
		doc, err := (&Text{[]span{{c, 0, c.size}}}).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		checkJSON(t, doc, border)
	})
}

// TestWriteJSON: the whole document reads back, with hostile text in every
// place that can hold some.
func TestWriteJSON(t *testing.T) {
	evil := "a\x1b]0;x\x07\x7f\u009b31m\u00a0\u2028<&>\"\\"
	r := Refused(fmt.Errorf("%s", evil))
	r.Image.Ref, r.Kern.Path, r.Fault.Message = evil, evil, evil
	r.Stdout, r.Stderr, r.CodeStderr = TextOf([]byte(evil)), TextOf([]byte("\xff")), nil
	r.Hints = append(r.Hints, Hint{evil, evil, evil})
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	for _, c := range b.String() {
		if (c < 0x20 && c != '\n') || c == 0x7f || (c >= 0x80 && c < 0xa0) {
			t.Fatalf("%U is in the document", c)
		}
	}
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err, b.String())
	}
	plain, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	if err := json.Unmarshal(plain, &want); err != nil {
		t.Fatal(err)
	}
	if a, b := fmt.Sprint(got), fmt.Sprint(want); a != b {
		t.Errorf("%s\nis not\n%s", a, b)
	}
	if got["stdout"] != evil || got["code_stderr"] != nil || got["kern"].(map[string]any)["path"] != evil {
		t.Errorf("%v", got)
	}
	if err := r.WriteJSON(failing{}); err == nil {
		t.Error("a write that failed is no error")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, os.ErrClosed }

func FuzzWriteVisible(f *testing.F) {
	f.Add("\x7f\u0085\u00a0é\xc2")
	f.Fuzz(func(t *testing.T, s string) {
		doc, err := json.Marshal(map[string]string{"k": s})
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		w := bufio.NewWriter(&b)
		writeVisible(w, doc)
		w.Flush()
		var got, want map[string]string
		if err := json.Unmarshal(b.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		json.Unmarshal(doc, &want)
		if got["k"] != want["k"] || strings.ContainsFunc(b.String(), func(r rune) bool { return r == 0x7f || r >= 0x80 && r < 0xa0 }) {
			t.Errorf("%q became %q", s, b.String())
		}
	})
}

func FuzzKernSentence(f *testing.F) {
	f.Add([]byte("kern: note: x\n  more\nerror: y\x1b[2J\n"))
	f.Add([]byte("kern: warning: w\nkern: cannot start 'x'\r\nhint: z"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := kernSentence(b)
		if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }) {
			t.Errorf("%q is not safe to print, from %q", s, b)
		}
	})
}

func TestKernSentence(t *testing.T) {
	for in, want := range map[string]string{
		"":                                  "",
		"error: no image\nhint: pull it\n":  "no image",
		"kern: note: n\nerror: e\n":         "e",
		"kern: warning: w\n  more of it\n":  "",
		"kern: sandbox setup failed: x\n":   "x",
		"something\nelse\n":                 "else",
		"  indented error: no\nerror: yes":  "yes",
		"kern: note: a\nkern: b\nerror: c":  "c",
		"kern: note: a\nkern: b\nhint: c":   "b",
		"error: \x1b[31mred\x1b[0m\u009b\n": `\x1b[31mred\x1b[0m\u009b`,
	} {
		if got := kernSentence([]byte(in)); got != want {
			t.Errorf("%q gives %q, want %q", in, got, want)
		}
	}
}

// TestCaptureFullDisk: a stream that cannot be kept is cut, and the run goes on.
func TestCaptureFullDisk(t *testing.T) {
	c := &capture{dir: filepath.Join(t.TempDir(), "absent")} // as good as full
	defer c.close()
	for range 3 {
		if n, err := c.Write(make([]byte, memoryPart)); n != memoryPart || err != nil {
			t.Fatalf("%d, %v: the writer must not notice", n, err)
		}
	}
	if c.err == nil || c.size != memoryPart {
		t.Errorf("kept %d, error %v", c.size, c.err)
	}
}
