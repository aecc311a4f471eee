package validate

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestEnvRefusals(t *testing.T) {
	for _, ok := range []string{"A", "_", "a1", "HOME", "_9"} {
		if err := EnvKey(ok); err != nil {
			t.Error(err)
		}
	}
	for _, in := range []string{"", "1A", "A-B", "A.B", "A B", "A=B", "#A", "Ä", "A\n", "A\x00", "export A", "\xff"} {
		wantRefused(t, in, EnvKey(in), "not the name")
	}
	for in, reason := range map[string]string{
		"secret\x00": "NUL", "secret\xff": "UTF-8", "secret\xed\xa0\x80": "UTF-8", "secret" + strings.Repeat("x", 128<<10): "128 KiB",
	} {
		err := EnvValue(in)
		wantRefused(t, "value", err, reason)
		_, _, _, err2 := ParseEnv("TOKEN=" + in)
		wantRefused(t, "value", err2, reason)
		_, err3 := ParseEnvFile(strings.NewReader("A=1\nTOKEN="+in+"\n"), nil)
		wantRefused(t, "value", err3, reason)
		for _, err := range []error{err, err2, err3} {
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the refusal shows the value: %v", err)
			}
		}
	}
	for _, ok := range []string{"", "a\nb", "\r", "ü\u2028", "\x01\x1b", "\ufffd"} {
		if err := EnvValue(ok); err != nil {
			t.Error(err)
		}
	}
	// The limit counts the name, the sign and the final NUL.
	if err := (KV{"ABC", strings.Repeat("x", 128<<10-5)}).Check(); err != nil {
		t.Error(err)
	}
	wantRefused(t, "long", KV{"ABC", strings.Repeat("x", 128<<10-4)}.Check(), "128 KiB")
	var many []KV
	for range 9 {
		many = append(many, KV{"A", strings.Repeat("x", 120<<10)})
	}
	wantRefused(t, "many", CheckEnv(many), "larger than 1 MiB")
	if err := CheckEnv(many[:8]); err != nil {
		t.Error(err)
	}
	wantRefused(t, "bad", CheckEnv([]KV{{"A", ""}, {"B-", ""}}), "name")
}

func TestParseEnv(t *testing.T) {
	for in, want := range map[string]struct {
		k, v string
		has  bool
	}{
		"K=V": {"K", "V", true}, "K=": {"K", "", true}, "K": {"K", "", false}, "K= a=b ": {"K", " a=b ", true}, "K=$X\n": {"K", "$X\n", true},
	} {
		k, v, has, err := ParseEnv(in)
		if err != nil || k != want.k || v != want.v || has != want.has {
			t.Errorf("ParseEnv(%q) = %q %q %v %v", in, k, v, has, err)
		}
	}
	for _, in := range []string{"", "=", "=secret", " K=V", "K =V", "--K=V", "1=2"} {
		_, _, _, err := ParseEnv(in)
		wantRefused(t, in, err, "")
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("the refusal shows the value: %v", err)
		}
	}
}

func TestParseEnvFile(t *testing.T) {
	lookup := func(k string) (string, bool) {
		v, ok := map[string]string{"HOME": "/h", "EMPTY": ""}[k]
		return v, ok
	}
	in := "\ufeff# c\n\n   # c too\nA=1\r\nB= x \"y\" # z $HOME '\n\t C=\n HOME\nABSENT\nEMPTY\nA=2=3\nD=\ufeff\nCR=a\r\r\nLAST=\\n"
	want := []KV{
		{"A", "1"},
		{"B", ` x "y" # z $HOME '`},
		{"C", ""},
		{"HOME", "/h"},
		{"EMPTY", ""},
		{"A", "2=3"},
		{"D", "\ufeff"},
		{"CR", "a\r"},
		{"LAST", `\n`},
	}
	for _, r := range []io.Reader{strings.NewReader(in), iotest.OneByteReader(strings.NewReader(in))} {
		if got, err := ParseEnvFile(r, lookup); err != nil || !slices.Equal(got, want) {
			t.Errorf("got %q, %v", got, err)
		}
	}
	for in, where := range map[string]string{
		"A=1\n=hunter2\n": "line 2", "hunter2 x\n": "line 1", "A=1\n\nexport A=hunter2": "line 3", "A=1\nB\x00=hunter2": "line 2",
		"A =hunter2": "line 1", "-----BEGIN hunter2": "line 1", "A=1\n\ufeffB=hunter2": "line 2",
		strings.Repeat("#\n", 1<<19) + "A=1": "line 524289",
	} {
		_, err := ParseEnvFile(strings.NewReader(in), lookup)
		wantRefused(t, where, err, "")
		var e *Error
		if errors.As(err, &e); e == nil || e.Value != where || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v, want it to name %s and not the text", err, where)
		}
	}
	// A caller's value is checked as one of the file.
	_, err := ParseEnvFile(strings.NewReader("K"), func(string) (string, bool) { return "\xff", true })
	wantRefused(t, "looked up", err, "UTF-8")
	// Without an end it ends all the same.
	_, err = ParseEnvFile(zeros{}, lookup)
	wantRefused(t, "endless", err, "larger than")
	if _, err = ParseEnvFile(iotest.ErrReader(io.ErrUnexpectedEOF), lookup); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("read error became %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestEncodeEnvFile(t *testing.T) {
	got := string(EncodeEnvFile([]KV{{"A", `$HOME "x" \ # c `}, {"B", "it's $X \"q\" \\\n\r"}, {"C", ""}}))
	want := `A='$HOME "x" \ # c '` + "\n" + `B="it's $$X \"q\" \\\n\r"` + "\nC=''\n"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func FuzzParseEnvFile(f *testing.F) {
	f.Add("A=1\nB\n# c\n\texport X=1\r\n", "v")
	f.Add("\ufeffA='x\n", "\x00")
	f.Fuzz(func(t *testing.T, s, v string) {
		list, err := ParseEnvFile(strings.NewReader(s), func(string) (string, bool) { return v, true })
		if err != nil {
			wantRefused(t, s, err, "")
			return
		}
		for _, kv := range list {
			if err := kv.Check(); err != nil {
				t.Fatal(err)
			}
		}
		// One line for each, whatever is in it, and what the encoder of single
		// quotes cannot hold is never in one.
		lines := strings.Split(strings.TrimSuffix(string(EncodeEnvFile(list)), "\n"), "\n")
		if len(list) > 0 && len(lines) != len(list) {
			t.Fatalf("%d variables in %d lines", len(list), len(lines))
		}
	})
}
