package pin

import (
	"os"
	"strings"
	"testing"
)

const good = "package p\nversion 1.2\nkern 0.33.0\nwheel amd64 plat_x 6e9bede9738b9f6dabac619f6ac688a585e644d14dfc6b0426a4dbf8c5bde477\n"

func TestTheRealPin(t *testing.T) {
	b, err := os.ReadFile("../kern.pin")
	if err != nil {
		t.Fatal(err)
	}
	p, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		if _, ok := p.For(arch); !ok {
			t.Errorf("no wheel for %s", arch)
		}
	}
	if p.Package != "kern-sandbox" || p.Kern == "" {
		t.Errorf("unexpected pin %+v", p)
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"empty":              "",
		"missing kern":       strings.Replace(good, "kern 0.33.0\n", "", 1),
		"missing wheel":      good[:strings.Index(good, "wheel")],
		"unknown key":        good + "url x\n",
		"twice":              good + "kern 0.34.0\n",
		"same arch twice":    good + good[strings.Index(good, "wheel"):],
		"two values":         strings.Replace(good, "version 1.2", "version 1.2 1.3", 1),
		"no value":           strings.Replace(good, "version 1.2", "version", 1),
		"value like a flag":  strings.Replace(good, "package p", "package -r", 1),
		"shell in a value":   strings.Replace(good, "version 1.2", "version $(id)", 1),
		"short hash":         strings.Replace(good, "6e9b", "", 1),
		"upper-case hash":    strings.Replace(good, "6e9b", "6E9B", 1),
		"path as arch":       strings.Replace(good, "amd64", "../x", 1),
		"escape in a value":  strings.Replace(good, "package p", "package p\x1b[2J", 1),
		"larger than bounds": good + strings.Repeat("# x\n", maxSize/4),
	} {
		if p, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s: accepted as %+v", name, p)
		}
	}
}

func TestParseAccepts(t *testing.T) {
	p, err := Parse([]byte("# c\n\n  " + strings.ReplaceAll(good, " ", "\t ")))
	if err != nil {
		t.Fatal(err)
	}
	if w, ok := p.For("amd64"); !ok || w.Platform != "plat_x" || p.Version != "1.2" {
		t.Errorf("got %+v", p)
	}
	if _, ok := p.For("riscv64"); ok {
		t.Error("a wheel for an architecture that is not pinned")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("# only\n"))
	f.Add([]byte("wheel a b c\nwheel"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			return
		}
		for _, s := range []string{p.Package, p.Version, p.Kern} {
			if s == "" || s[0] == '-' || strings.ContainsAny(s, " /$`'\"\\\x1b") {
				t.Errorf("unsafe value %q", s)
			}
		}
		for _, w := range p.Wheels {
			if len(w.SHA256) != 64 || strings.ContainsAny(w.Arch+w.Platform, "/.- ") {
				t.Errorf("unsafe wheel %+v", w)
			}
		}
	})
}
