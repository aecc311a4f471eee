package validate

import (
	"strconv"
	"strings"
)

// maxImageRef bounds a reference. Registries stop at 255 for the name.
const maxImageRef = 512

// ImageRef checks a reference to an image before it becomes an argument of
// kern. kern parses it; what is refused here is what would be read as an option
// (kern answers --image --help with its help and exit 0), what could not be
// shown, and a digest that pins nothing. The reserved word host is for the
// caller.
func ImageRef(s string) error {
	const fix = "write a reference like python:3.12-slim or alpine@sha256:<64 hex digits>"
	switch {
	case s == "":
		return refuse(s, "no image is named", fix)
	case len(s) > maxImageRef:
		return refuse(s, "an image reference longer than "+strconv.Itoa(maxImageRef)+" bytes", fix)
	case s[0] == '-':
		return refuse(s, "an image reference cannot begin with a dash", fix)
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return refuse(s, "an image reference holds printable ASCII only, and no blanks", fix)
		}
	}
	name, digest, pinned := strings.Cut(s, "@")
	if !pinned {
		return nil
	}
	hex, ok := strings.CutPrefix(digest, "sha256:")
	if name == "" || !ok || len(hex) != 64 || strings.Trim(hex, "0123456789abcdef") != "" {
		return refuse(s, "what follows @ is not a digest", "write @sha256: and exactly 64 lower-case hex digits")
	}
	return nil
}

// HasDigest gives the digest ("sha256:…") that a reference is pinned to. ok is
// false for a reference that ImageRef refuses.
func HasDigest(s string) (digest string, ok bool) {
	if _, digest, ok = strings.Cut(s, "@"); !ok || ImageRef(s) != nil {
		return "", false
	}
	return digest, true
}

// CacheKey gives the name under which kern's image cache keeps a reference: the
// reference with :latest added when it has neither tag nor digest, every
// character outside [A-Za-z0-9_-] replaced by _, a dash, and the FNV-1a-64 of
// the reference in hex.
func CacheKey(ref string) string {
	i := strings.LastIndexByte(ref, ':')
	if ref != "" && (i <= 0 || strings.IndexByte(ref[i:], '/') >= 0) {
		ref += ":latest"
	}
	h := uint64(14695981039346656037)
	for i := range len(ref) {
		h = (h ^ uint64(ref[i])) * 1099511628211
	}
	key := strings.Map(func(r rune) rune {
		if r < 0x80 && (isAlnum(byte(r)) || r == '_' || r == '-') {
			return r
		}
		return '_'
	}, ref)
	sum := strconv.FormatUint(h, 16)
	return key + "-" + strings.Repeat("0", 16-len(sum)) + sum
}
