package validate

import (
	"strings"
	"testing"
	"time"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]Size{
		"64m": 64 << 20, "64M": 64 << 20, "64MiB": 64 << 20, "64mb": 64 << 20, "1.5g": 3 << 29, "4096b": 4096,
		"0.5k": 512, "1t": 1 << 40, "007k": 7 << 10, "0.1g": 107374182, "8388607t": 8388607 << 40,
	} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	for in, reason := range map[string]string{
		"": "not a size", "m": "not a size", "64": "bytes", "0": "unlimited", "0m": "unlimited", "0.0m": "unlimited",
		"-5m": "not a size", "+5m": "not a size", "1.m": "not a size", ".5m": "not a size", "1e3m": "unknown unit",
		"64 m": "unknown unit", "64m ": "unknown unit", "64mm": "unknown unit", "64bi": "unknown unit",
		"64\u212a": "unknown unit", "\u0661m": "not a size", "none": "not a size", "0x10m": "unknown unit", "1.5b": "fraction",
		"8388608t": "larger than any", "99999999999999999999b": "larger than any", "1_000m": "unknown unit",
		"1.0000000000000001g": "too many digits", "0.00001k": "unlimited", "64m\x1b[31m": "unknown unit",
	} {
		_, err := ParseSize(in)
		wantRefused(t, in, err, reason)
	}
	if n, err := ParseLimit("none"); n != 0 || err != nil {
		t.Errorf("none: %d, %v", n, err)
	}
}

func TestSizeSpellings(t *testing.T) {
	for n, want := range map[Size][3]string{
		0:         {"none", "none", "0 B"},
		64 << 20:  {"64m", "64m", "64 MiB"},
		3 << 29:   {"1536m", "1536m", "1.5 GiB"},
		107374183: {"107374183b", "107374183", "102 MiB"},
	} {
		if got := [3]string{n.String(), n.Kern(), n.Human()}; got != want {
			t.Errorf("%d: %q, want %q", int64(n), got, want)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"64m", "1.5g", "0", "4096b", "9223372036854775807b", "1.999999999999999t", "64\u212a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize(s)
		if err != nil {
			wantRefused(t, s, err, "")
			return
		}
		if n <= 0 {
			t.Fatalf("%q gave %d", s, n)
		}
		if again, err := ParseLimit(n.String()); err != nil || again != n {
			t.Fatalf("%q: %d became %d, %v by way of %q", s, n, again, err, n)
		}
		if strings.Trim(n.Kern(), "0123456789kmgt") != "" {
			t.Fatalf("kern would not read %q", n.Kern())
		}
	})
}

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"30s": 30 * time.Second, "1m30s": 90 * time.Second, "500ms": 500 * time.Millisecond,
		"none": 0, "0": 0, ".5s": 500 * time.Millisecond, "8760h": MaxDuration,
	} {
		if got, err := ParseDuration(in); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %v, %v", in, got, err)
		}
	}
	for in, reason := range map[string]string{
		"": "not a time", "30": "without a unit", "1.5": "without a unit", ".": "not a time", "1.2.3": "not a time",
		"-5s": "too short", "0s": "too short", "1us": "too short", "8761h": "longer than", "999999999999h": "not a time",
		"1d": "not a time", "30s\n": "not a time", "inf": "not a time",
	} {
		_, err := ParseDuration(in)
		wantRefused(t, in, err, reason)
	}
}

func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"30s", "1m30s", "0", "none", ".", "1.2.3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDuration(s)
		if err != nil {
			wantRefused(t, s, err, "")
			return
		}
		if d != 0 && (d < time.Millisecond || d > MaxDuration) || d == 0 && s != "0" && s != "none" {
			t.Fatalf("%q gave %v", s, d)
		}
	})
}

func TestCountAndCPUs(t *testing.T) {
	for in, want := range map[string]int{"none": 0, "2": 2, "256": 256} {
		if got, err := Count(in, 2); err != nil || got != want {
			t.Errorf("Count(%q) = %d, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "0", "1", "-3", "+3", "1.5", "0x10", "1_000", "99999999999999999999", " 3", "3 "} {
		_, err := Count(in, 2)
		wantRefused(t, in, err, "")
	}
	for in, want := range map[string]float64{"none": 0, "0.5": 0.5, "2": 2, ".25": 0.25, "2.": 2} {
		if got, err := CPUs(in); err != nil || got != want {
			t.Errorf("CPUs(%q) = %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", ".", "0", "0.001", "0.125", "-1", "1e3", "NaN", "inf", "1.2.3", "9999", strings.Repeat("9", 400)} {
		_, err := CPUs(in)
		wantRefused(t, in, err, "")
	}
}
