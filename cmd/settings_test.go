package cmd

import "testing"

func TestSmallerTmpfs(t *testing.T) {
	for _, c := range []struct {
		candidate, current string
		want               bool
	}{
		{"/tmp:1m", "", true},
		{"/tmp:64m", "", true},
		{"/tmp:65m", "", false},
		{"/x:1m", "", false},
		{"none", "", false},
		{"", "", false},
		{"/tmp:1m\n/x:9g", "", false},
		{"/tmp:1m\n/x:9g", "/x:9g", true},
		{"/x:1g", "/x:9g\n/y:1m", true},
		{"/x:10g", "/x:9g", false},
		{"/tmp:1m", "none", false},
		{"/tmp:1m", "/tmp:2m", true},
		{"/tmp:3m", "/tmp:2m", false},
		{"/tmp:0", "", false},
		{"/tmp", "", false},
	} {
		if got := smallerTmpfs(c.candidate, c.current); got != c.want {
			t.Errorf("%q under %q: %v", c.candidate, c.current, got)
		}
	}
}
