package kernbin

import (
	"math"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseVersionLine(t *testing.T) {
	for line, want := range map[string]string{
		"kern 0.33.0":               "0.33.0",
		"kern 10.2.300":             "10.2.300",
		"kern 0.34.0-rc.1+g1a2B3c4": "0.34.0-rc.1+g1a2B3c4",
	} {
		if got, ok := parseVersionLine(line); !ok || got != want {
			t.Errorf("%q: %q %v", line, got, ok)
		}
	}
	for _, line := range []string{
		"", "kern", "kern ", "Kern 0.33.0", " kern 0.33.0", "kern  0.33.0", "kern 0.33.0 ", "kern 0.33.0\r", "kern 0.33",
		"kern 0.33.0.1", "kern 0..0", "kern -1.0.0", "kern +1.0.0", "kern 0.33.0-", "kern 0.33.0-a b", "kern 0.33.0\x1b[m",
		"kern 0.33.x", "kern 1234567.0.0", "kern 0.33.0-" + strings.Repeat("a", 60), "kern 0.33.0\x00", "kern ०.33.0", "kern 0.33.0-é",
	} {
		if got, ok := parseVersionLine(line); ok {
			t.Errorf("%q: accepted as %q", line, got)
		}
	}
}

func FuzzParseVersionLine(f *testing.F) {
	for _, s := range []string{"kern 0.33.0", "kern 1.2.3-rc1", "kern 1.2.3+x-.y", "kern -1.0.0", "true"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		v, ok := parseVersionLine(line)
		if !ok {
			return
		}
		if "kern "+v != line || len(v) > maxVersion {
			t.Errorf("%q gave %q", line, v)
		}
		for _, c := range []byte(v) {
			if c <= ' ' || c >= 0x7f {
				t.Errorf("%q holds %#x", v, c)
			}
		}
		n, ok := parseVersion(v)
		if !ok || n[0] < 0 || n[1] < 0 || n[2] < 0 {
			t.Errorf("%q: %v %v", v, n, ok)
		}
	})
}

var someRecord = record{
	Subject: "/a b/\"kern\"\n\x1b\xff", Version: "0.33.0-rc1", Ran: true,
	ID: fileID{Dev: math.MaxUint64, Ino: 1, Size: 2, Mtime: math.MinInt64, Ctime: math.MaxInt64, UID: math.MaxUint32, Mode: 0o100555},
}

func TestRecordRoundTrip(t *testing.T) {
	b := someRecord.encode()
	if r, ok := parseRecord(b); !ok || r != someRecord {
		t.Errorf("%q came back as %+v %v", b, r, ok)
	}
	name := filepath.Join(t.TempDir(), "r")
	if err := writeRecord(name, someRecord); err != nil {
		t.Fatal(err)
	}
	if r, ok := readRecord(name); !ok || r != someRecord {
		t.Errorf("the file came back as %+v %v", r, ok)
	}
	long := someRecord
	long.Subject = "/" + strings.Repeat("\xff", 4095)
	if r, ok := parseRecord(long.encode()); !ok || r != long {
		t.Error("the longest path does not fit into a record")
	}
}

func TestParseRecordRefuses(t *testing.T) {
	good := string(someRecord.encode())
	for name, text := range map[string]string{
		"empty":            "",
		"no newline":       strings.TrimSuffix(good, "\n"),
		"more":             good + "\n",
		"other head":       strings.Replace(good, "identity 1", "identity 2", 1),
		"order":            strings.Replace(good, "ran true\n", "", 1) + "ran true\n",
		"raw quote":        strings.Replace(good, `"/a b`, "`/a b", 1),
		"unquoted":         strings.Replace(good, `subject "`, `subject `, 1),
		"ran maybe":        strings.Replace(good, "ran true", "ran yes", 1),
		"number with sign": strings.Replace(good, " 1 2 ", " +1 2 ", 1),
		"leading zero":     strings.Replace(good, " 1 2 ", " 01 2 ", 1),
		"two blanks":       strings.Replace(good, " 1 2 ", " 1  2 ", 1),
		"one number less":  strings.Replace(good, " 1 2 ", " 2 ", 1),
		"overflow":         strings.Replace(good, "18446744073709551615", "18446744073709551616", 1),
		"version":          strings.Replace(good, "0.33.0-rc1", "0.33", 1),
		"carriage return":  strings.ReplaceAll(good, "\n", "\r\n"),
		"NUL":              good[:len(good)-1] + "\x00\n",
	} {
		if r, ok := parseRecord([]byte(text)); ok {
			t.Errorf("%s: accepted as %+v", name, r)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add(someRecord.encode())
	f.Add([]byte(recordHead + "\nsubject \"\"\nversion 0.0.0\nran false\nid 0 0 0 0 0 0 0\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, ok := parseRecord(b); ok && string(r.encode()) != string(b) {
			t.Errorf("%q reads as %+v, which is written differently", b, r)
		}
	})
}
