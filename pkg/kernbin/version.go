package kernbin

import (
	"strconv"
	"strings"
)

// maxVersion bounds a version's text; kern's has six bytes.
const maxVersion = 48

// parseVersionLine reads the first line of `kern --version`, without its
// newline: "kern X.Y.Z", where a suffix like -rc1 or +g1234 may follow Z. The
// text comes from a program that has not proved anything yet, and is shown to
// people later, so nothing else is let through.
func parseVersionLine(line string) (version string, ok bool) {
	version, ok = strings.CutPrefix(line, "kern ")
	if !ok {
		return "", false
	}
	_, ok = parseVersion(version)
	return version, ok
}

// parseVersion gives the three numbers of X.Y.Z, X.Y.Z-SUFFIX or X.Y.Z+SUFFIX.
func parseVersion(s string) (n [3]int, ok bool) {
	if len(s) > maxVersion {
		return n, false
	}
	core := s
	if i := strings.IndexAny(s, "-+"); i >= 0 {
		core = s[:i]
		suffix := s[i+1:]
		if suffix == "" {
			return n, false
		}
		for i := range len(suffix) {
			c := suffix[i]
			if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && strings.IndexByte(".-+", c) < 0 {
				return n, false
			}
		}
	}
	parts := strings.Split(core, ".")
	if len(parts) != len(n) {
		return n, false
	}
	for i, p := range parts {
		// Six digits fit an int on any machine; Atoi alone would take a sign.
		if p == "" || len(p) > 6 || strings.Trim(p, "0123456789") != "" {
			return n, false
		}
		n[i], _ = strconv.Atoi(p)
	}
	return n, true
}
