package wire

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

var requests = []Request{
	{},
	{Op: OpExec, ID: "a.B_c-9", Stdin: true},
	{Op: OpExec, ID: strings.Repeat("i", 64), TTY: true},
	{Op: OpSignal, Signal: 64},
	{Op: OpCell, ID: "1", Stdin: true, TTY: true},
}

var events = []Event{
	{Event: Ready},
	{Event: Failed, ID: "x", Errno: 4095, What: "exec"},
	{Event: Exited, ID: "x", Code: 255, CPU: 1<<62 - 1, MaxRSS: 7},
	{Event: Exited, Signal: 127},
	{Event: Broken, What: "it\nspoke\x00"},
}

var bodies = []Body{
	{},
	{ID: "x", File: "/a\nb", Dir: "/d", Argv: [][]byte{[]byte("a"), {}, []byte("0\n")}, Env: [][]byte{[]byte("K=\xff")}, Code: []byte("5\nready")},
}

func TestRoundTrip(t *testing.T) {
	for _, r := range requests {
		if got, err := ParseRequest(r.Append(nil)); err != nil || got != r {
			t.Errorf("%+v became %+v, %v", r, got, err)
		}
	}
	for _, e := range events {
		if got, err := ParseEvent(e.Append(nil)); err != nil || got != e {
			t.Errorf("%+v became %+v, %v", e, got, err)
		}
	}
	for _, y := range bodies {
		b := y.Append([]byte{})
		if len(b) > y.Size() {
			t.Errorf("%d bytes, and %d were foreseen", len(b), y.Size())
		}
		got, err := ParseBody(b)
		if err != nil || got.ID != y.ID || got.File != y.File || got.Dir != y.Dir || !same(got.Argv, y.Argv) || !same(got.Env, y.Env) || !bytes.Equal(got.Code, y.Code) {
			t.Errorf("%+v became %+v, %v", y, got, err)
		}
	}
}

func same(a, b [][]byte) bool {
	return len(a) == len(b) && reflect.DeepEqual(bytes.Join(a, []byte{0}), bytes.Join(b, []byte{0}))
}

// TestRefused: there is one spelling of everything.
func TestRefused(t *testing.T) {
	good := string((&Event{Event: Exited, ID: "x", Code: 12}).Append(nil))
	if _, err := ParseEvent([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"nothing":          "",
		"short":            good[:len(good)-1],
		"long":             good + "0\n",
		"trailing":         good + "x",
		"length zero":      "06\nexited" + good[8:],
		"length sign":      "+6\nexited" + good[8:],
		"length blank":     " 6\nexited" + good[8:],
		"length huge":      "99999999999999999999\nexited" + good[8:],
		"length over":      "100663297\n" + good[8:],
		"no length":        "\nexited" + good[8:],
		"code over":        strings.Replace(good, "2\n12", "3\n256", 1),
		"code sign":        strings.Replace(good, "2\n12", "3\n-12", 1),
		"code zero":        strings.Replace(good, "2\n12", "3\n012", 1),
		"code empty":       strings.Replace(good, "2\n12", "0\n", 1),
		"code blank":       strings.Replace(good, "2\n12", "3\n12\n", 1),
		"code nul":         strings.Replace(good, "2\n12", "3\n12\x00", 1),
		"code letters":     strings.Replace(good, "2\n12", "2\n1a", 1),
		"identity":         strings.Replace(good, "1\nx", "1\n ", 1),
		"identity newline": strings.Replace(good, "1\nx", "2\nx\n", 1),
		"kind":             strings.Replace(good, "exited", "exitee", 1),
		"json":             `{"event":"exited","code":0}`,
	} {
		if e, err := ParseEvent([]byte(bad)); err == nil {
			t.Errorf("%s: %q is %+v", name, bad, e)
		}
	}
	for _, bad := range []string{"", "4\nexec0\n1\nx1\n0", "4\nexec0\n2\nti1\n0", "4\nexec0\n0\n2\n65", "4\nexec65\n" + strings.Repeat("i", 65) + "0\n1\n0"} {
		if r, err := ParseRequest([]byte(bad)); err == nil {
			t.Errorf("%q is %+v", bad, r)
		}
	}
	for _, bad := range []string{"", "0\n0\n0\n1\n51\n00\n", "0\n0\n0\n9\n1006632960\n", "0\n0\n0\n1\n01\n00\n0\n"} {
		if y, err := ParseBody([]byte(bad)); err == nil {
			t.Errorf("%q is %+v", bad, y)
		}
	}
	for _, bad := range []string{"", " ", "a b", "a\n", "ä", "a/b", strings.Repeat("i", 65)} {
		if ValidID(bad) {
			t.Errorf("%q may be an ID", bad)
		}
	}
}

// FuzzParse: what is accepted has one spelling, so it is written as it was read.
func FuzzParse(f *testing.F) {
	for _, r := range requests {
		f.Add(r.Append(nil))
	}
	for _, e := range events {
		f.Add(e.Append(nil))
	}
	for _, y := range bodies {
		f.Add(y.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		kept := bytes.Clone(b)
		if r, err := ParseRequest(b); err == nil && !bytes.Equal(r.Append(nil), b) {
			t.Errorf("request %+v", r)
		}
		if e, err := ParseEvent(b); err == nil && !bytes.Equal(e.Append(nil), b) {
			t.Errorf("event %+v", e)
		}
		if y, err := ParseBody(b); err == nil && !bytes.Equal(y.Append(nil), b) {
			t.Errorf("body %+v", y)
		}
		if !bytes.Equal(kept, b) {
			t.Error("the parser wrote")
		}
	})
}
