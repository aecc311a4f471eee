package pin

import (
	"fmt"
	"strings"
)

// Pin is the content of kern.pin.
type Pin struct {
	Package string  // the pip package that carries kern
	Version string  // that package's version
	Kern    string  // what the kern in it answers to --version: X.Y.Z
	Wheels  []Wheel // one for each architecture, in file order
}

// Wheel is one architecture's download.
type Wheel struct {
	Arch     string // as GOARCH spells it
	Platform string // as pip's --platform spells it
	SHA256   string // of the wheel file: 64 lower-case hex digits
}

const (
	lower  = "abcdefghijklmnopqrstuvwxyz"
	digits = "0123456789"
)

// maxSize bounds the file; the real one is below 1 KiB.
const maxSize = 8 << 10

// Parse reads a pin file: one key and its values a line, separated by blanks;
// empty lines and lines that begin with # mean nothing. Every key is required,
// none but wheel may come twice, and an unknown one is refused.
func Parse(b []byte) (Pin, error) {
	if len(b) > maxSize {
		return Pin{}, fmt.Errorf("kern.pin: larger than %d bytes", maxSize)
	}
	var p Pin
	for i, line := range strings.Split(string(b), "\n") {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if err := p.set(f); err != nil {
			return Pin{}, fmt.Errorf("kern.pin line %d: %w", i+1, err)
		}
	}
	if p.Package == "" || p.Version == "" || p.Kern == "" || len(p.Wheels) == 0 {
		return Pin{}, fmt.Errorf("kern.pin: package, version, kern and at least one wheel are required")
	}
	return p, nil
}

func (p *Pin) set(f []string) error {
	switch key, val := f[0], f[1:]; key {
	case "package":
		return set(&p.Package, val, lower+digits+"-")
	case "version":
		return set(&p.Version, val, digits+".")
	case "kern":
		return set(&p.Kern, val, digits+".")
	case "wheel":
		if len(val) != 3 || !only(val[0], lower+digits) || !only(val[1], lower+digits+"_") ||
			!only(val[2], "abcdef"+digits) || len(val[2]) != 64 {
			return fmt.Errorf("want: wheel ARCH PLATFORM SHA256")
		}
		if _, dup := p.For(val[0]); dup {
			return fmt.Errorf("a second wheel for %s", val[0])
		}
		p.Wheels = append(p.Wheels, Wheel{Arch: val[0], Platform: val[1], SHA256: val[2]})
		return nil
	default:
		return fmt.Errorf("unknown key %q", key)
	}
}

func set(to *string, val []string, allowed string) error {
	if len(val) != 1 || !only(val[0], allowed) {
		return fmt.Errorf("want one value made of %q", allowed)
	}
	if *to != "" {
		return fmt.Errorf("given twice")
	}
	*to = val[0]
	return nil
}

// only also bars a leading dash, so that no value can be read as a flag by the
// commands the Makefile builds from this file.
func only(s, allowed string) bool {
	return s != "" && s[0] != '-' && strings.Trim(s, allowed) == ""
}

// For gives the wheel for an architecture, as GOARCH spells it.
func (p Pin) For(arch string) (Wheel, bool) {
	for _, w := range p.Wheels {
		if w.Arch == arch {
			return w, true
		}
	}
	return Wheel{}, false
}
