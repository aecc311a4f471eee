package runner

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"
)

const png = "\x89PNG\r\n\x1a\nrest"

func pair(mime, data string) string { return fmt.Sprintf("%s %d\n%s\n", mime, len(data), data) }

func TestReadRich(t *testing.T) {
	one := "bundle 1 0\n" + pair("text/plain", "1")
	for name, c := range map[string]struct {
		in        string
		want      []map[string]string
		truncated bool
	}{
		"nothing":            {"", nil, false},
		"one":                {one, []map[string]string{{"text/plain": "1"}}, false},
		"two":                {one + "bundle 2 0\n" + pair("text/html", "<b>\n2</b>") + pair("text/plain", "2"), []map[string]string{{"text/plain": "1"}, {"text/html": "<b>\n2</b>", "text/plain": "2"}}, false},
		"empty bundle":       {"bundle 0 0\n" + one, []map[string]string{{"text/plain": "1"}}, false},
		"left out":           {"bundle 1 1\n" + pair("text/plain", "1"), []map[string]string{{"text/plain": "1"}}, true},
		"all left out":       {"bundle 0 1\n" + one, []map[string]string{{"text/plain": "1"}}, true},
		"picture":            {"bundle 1 0\n" + pair("image/png", png), []map[string]string{{"image/png": base64.StdEncoding.EncodeToString([]byte(png))}}, false},
		"picture in base64":  {"bundle 1 0\n" + pair("image/png", base64.StdEncoding.EncodeToString([]byte(png))[:8]+"\n"+base64.StdEncoding.EncodeToString([]byte(png))[8:]), []map[string]string{{"image/png": base64.StdEncoding.EncodeToString([]byte(png))}}, false},
		"no picture":         {"bundle 2 0\n" + pair("image/png", "GIF89a") + pair("text/plain", "1"), []map[string]string{{"text/plain": "1"}}, false},
		"another picture":    {"bundle 2 0\n" + pair("image/jpeg", png) + pair("text/plain", "1"), []map[string]string{{"text/plain": "1"}}, false},
		"unknown kind":       {"bundle 2 0\n" + pair("application/x-sh", "rm") + pair("text/plain", "1"), []map[string]string{{"text/plain": "1"}}, false},
		"json":               {"bundle 1 0\n" + pair("application/json", `{"a":[1]}`), []map[string]string{{"application/json": `{"a":[1]}`}}, false},
		"not json":           {"bundle 1 0\n" + pair("application/json", `{"a":[1]`), nil, false},
		"not UTF-8":          {"bundle 1 0\n" + pair("text/plain", "a\xffb"), []map[string]string{{"text/plain": "a\ufffdb"}}, false},
		"zero bytes":         {"bundle 1 0\n" + pair("text/plain", "a\x00b"), []map[string]string{{"text/plain": "a\x00b"}}, false},
		"looks like another": {"bundle 1 0\n" + pair("text/plain", "x\nbundle 1 0\n"+pair("text/plain", "y")), []map[string]string{{"text/plain": "x\nbundle 1 0\n" + pair("text/plain", "y")}}, false},

		"garbage after":      {one + "x", []map[string]string{{"text/plain": "1"}}, true},
		"cut in the line":    {one + "bundle 1", []map[string]string{{"text/plain": "1"}}, true},
		"cut in the pair":    {one + "bundle 1 0\ntext/pl", []map[string]string{{"text/plain": "1"}}, true},
		"cut in the bytes":   {one + "bundle 1 0\ntext/plain 10\nabc", []map[string]string{{"text/plain": "1"}}, true},
		"no newline":         {one + "bundle 1 0\ntext/plain 3\nabcd", []map[string]string{{"text/plain": "1"}}, true},
		"1 GiB promised":     {one + "bundle 1 0\ntext/plain 1073741824\nabc", []map[string]string{{"text/plain": "1"}}, true},
		"too much promised":  {one + "bundle 1 0\ntext/plain 99999999999999999999\nabc", []map[string]string{{"text/plain": "1"}}, true},
		"negative":           {"bundle 1 0\ntext/plain -1\n\n", nil, true},
		"plus":               {"bundle 1 0\ntext/plain +1\na\n", nil, true},
		"leading zero":       {"bundle 1 0\ntext/plain 01\na\n", nil, true},
		"many pairs":         {"bundle 17 0\n" + strings.Repeat(pair("text/plain", "1"), 17), nil, true},
		"the same kind":      {"bundle 2 0\n" + pair("text/plain", "1") + pair("text/plain", "2"), []map[string]string{{"text/plain": "1"}}, false},
		"an endless line":    {"bundle " + strings.Repeat("1", 100000), nil, true},
		"a huge value":       {"bundle 2 0\n" + pair("text/html", strings.Repeat("x", MaxResultValue+1)) + pair("text/plain", "1"), []map[string]string{{"text/plain": "1"}}, true},
		"a huge unknown one": {"bundle 2 0\n" + pair("text/x", strings.Repeat("x", MaxResultValue+1)) + pair("text/plain", "1"), []map[string]string{{"text/plain": "1"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, truncated := readRich(strings.NewReader(c.in))
			if got == nil {
				t.Error("no list")
			}
			var data []map[string]string
			for _, r := range got {
				data = append(data, r.Data)
			}
			if fmt.Sprint(data) != fmt.Sprint(c.want) || truncated != c.truncated {
				t.Errorf("%q truncated=%v, want %q %v", data, truncated, c.want, c.truncated)
			}
		})
	}
}

func TestReadRichLimits(t *testing.T) {
	small := "bundle 1 0\n" + pair("text/plain", "1")
	got, truncated := readRich(strings.NewReader(strings.Repeat(small, MaxResults)))
	if len(got) != MaxResults || truncated {
		t.Errorf("%d results, truncated=%v", len(got), truncated)
	}
	got, truncated = readRich(strings.NewReader(strings.Repeat(small, MaxResults+1)))
	if len(got) != MaxResults || !truncated {
		t.Errorf("%d results, truncated=%v", len(got), truncated)
	}
	// All together: 64 MiB are kept, one byte more is not.
	big := pair("text/plain", strings.Repeat("x", MaxResultValue))
	got, truncated = readRich(strings.NewReader(strings.Repeat("bundle 1 0\n"+big, 5)))
	if len(got) != 4 || !truncated {
		t.Errorf("%d results, truncated=%v", len(got), truncated)
	}
	// Bytes of what is left out count for the file.
	other := pair("text/other", strings.Repeat("x", MaxResultValue))
	got, truncated = readRich(strings.NewReader(strings.Repeat("bundle 1 0\n"+other, 5) + small))
	if len(got) != 0 || !truncated {
		t.Errorf("%d results, truncated=%v", len(got), truncated)
	}
	// A source without an end.
	if got, truncated = readRich(endless{}); len(got) != 0 || !truncated {
		t.Errorf("%d results, truncated=%v", len(got), truncated)
	}
	if got, truncated = readRich(io.MultiReader(strings.NewReader(small), brokenReader{})); len(got) != 1 || !truncated {
		t.Errorf("%d results, truncated=%v", len(got), truncated)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return copy(p, "bundle 0 0\n"), nil }

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("broken") }

func FuzzReadRich(f *testing.F) {
	for _, s := range []string{
		"", "bundle 1 0\n" + pair("text/plain", "1"), "bundle 2 1\n" + pair("image/png", png) + pair("application/json", "[]"),
		"bundle 1 0\ntext/plain 1073741824\nabc", "bundle 16 0\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		got, truncated := readRich(bytes.NewReader(in))
		for _, r := range got {
			if len(r.Data) == 0 || r.Files == nil {
				t.Errorf("an empty result: %v", r)
			}
			for mime, text := range r.Data {
				k := richType(mime)
				if k == nil {
					t.Fatalf("kind %q", mime)
				}
				b, err := k.Bytes(text)
				if err != nil || !utf8.ValidString(text) || k.Magic != "" && !bytes.HasPrefix(b, []byte(k.Magic)) {
					t.Errorf("%s: %q, %v", mime, text, err)
				}
			}
		}
		// What is written again in the drivers' form reads the same.
		var again strings.Builder
		for _, r := range got {
			fmt.Fprintf(&again, "bundle %d 0\n", len(r.Data))
			for mime, text := range r.Data {
				b, _ := richType(mime).Bytes(text)
				again.WriteString(pair(mime, string(b)))
			}
		}
		twice, _ := readRich(strings.NewReader(again.String()))
		if fmt.Sprint(twice) != fmt.Sprint(got) {
			t.Errorf("%v read again is %v (truncated %v)", got, twice, truncated)
		}
	})
}
