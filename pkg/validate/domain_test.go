package validate

import (
	"slices"
	"strings"
	"testing"
)

func TestDomains(t *testing.T) {
	for in, want := range map[string][]string{
		"pypi.org":                          {"pypi.org"},
		"PyPI.org, files.pythonhosted.org.": {"pypi.org", "files.pythonhosted.org"},
		"a.com,A.COM,a.com.":                {"a.com"},
		"a-b.c1.example":                    {"a-b.c1.example"},
		"xn--bcher-kva.example,x.xn--p1ai":  {"xn--bcher-kva.example", "x.xn--p1ai"},
		"1.2.3.4.example":                   {"1.2.3.4.example"},
		strings.Repeat("a", 63) + ".com":    {strings.Repeat("a", 63) + ".com"},
	} {
		if got, err := Domains(in); err != nil || !slices.Equal(got, want) {
			t.Errorf("Domains(%q) = %q, %v", in, got, err)
		}
	}
	for in, reason := range map[string]string{
		"": "empty", ",": "empty", "a.com,,b.com": "empty", "a.com,": "empty", ".": "empty", "..": "begin with a dot", "localhost": "no dot", "com": "no dot",
		"https://a.com": "scheme", "a.com/x": "path", "u@a.com": "path", "a.com:443": "port", "*": "wildcard", "*.com": "wildcard", "*.example.com": "wildcard",
		"a.*.com": "wildcard", ".example.com": "begin with a dot", "a..com": "two dots", "a.com..": "two dots", "-a.com": "dash", "a-.com": "dash",
		"a_b.com": "letters", "a b.com": "letters", "a.com b.com": "letters", "a.com\nb.com": "letters", "b\u00fccher.example": "letters", "a\u3002com": "letters",
		"1.2.3.4": "address", "127.1": "address", "2130706433": "address", "::1": "address", "[::1]": "address", "0x7f.1": "top-level", "a.c0m": "top-level",
		"a.b": "top-level", "a.1": "top-level", strings.Repeat("a", 64) + ".com": "63", strings.Repeat("a.", 130) + "com": "253", "a.com\x00": "letters",
		"example.\u212aom": "letters",
	} {
		_, err := Domains(in)
		wantRefused(t, in, err, reason)
	}
	_, err := Domains("*.Example.com")
	if e := err.(*Error); !strings.Contains(e.Fix, "write example.com,") {
		t.Errorf("wildcard: %v", err)
	}
}

func FuzzDomains(f *testing.F) {
	for _, s := range []string{"pypi.org", "a.com,*.b.com", "::1", "*.*.com", "a.com."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		names, err := Domains(s)
		if err != nil {
			wantRefused(t, s, err, "")
			return
		}
		again, err := Domains(strings.Join(names, ","))
		if err != nil || !slices.Equal(again, names) || len(names) == 0 {
			t.Fatalf("%q gave %q, then %q, %v", s, names, again, err)
		}
		for _, n := range names {
			if strings.Trim(n, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" {
				t.Fatalf("%q gave %q", s, n)
			}
		}
	})
}
