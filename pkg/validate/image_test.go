package validate

import (
	"strings"
	"testing"
)

func TestImageRef(t *testing.T) {
	hex := strings.Repeat("0123456789abcdef", 4)
	for _, ok := range []string{
		"alpine", "python:3.12-slim", "localhost:5000/a/b:c", "ghcr.io/o/i:1@sha256:" + hex, "a@sha256:" + hex, "host",
	} {
		if err := ImageRef(ok); err != nil {
			t.Error(err)
		}
	}
	for in, reason := range map[string]string{
		"": "no image", "--help": "dash", "-a": "dash", "a b": "blanks", " a": "blanks", "a\n": "blanks", "a\x00": "blanks",
		"a\u00e4": "ASCII", "a\xff": "ASCII", "a\x7f": "ASCII", strings.Repeat("a", 513): "longer",
		"a@": "digest", "a@sha256:": "digest", "a@sha256:" + hex[1:]: "digest", "a@sha256:" + hex + "0": "digest",
		"a@sha256:" + strings.ToUpper(hex): "digest", "a@sha512:" + hex: "digest", "@sha256:" + hex: "digest",
		"a@sha256:" + hex + "@sha256:" + hex: "digest", "a@b@sha256:" + hex: "digest", "a@SHA256:" + hex: "digest",
	} {
		wantRefused(t, in, ImageRef(in), reason)
	}
	if d, ok := HasDigest("a:1@sha256:" + hex); !ok || d != "sha256:"+hex {
		t.Errorf("HasDigest: %q %v", d, ok)
	}
	for _, in := range []string{"a", "a@sha256:x", "", "-a@sha256:" + hex} {
		if d, ok := HasDigest(in); ok || d != "" {
			t.Errorf("HasDigest(%q) = %q", in, d)
		}
	}
}

func TestCacheKey(t *testing.T) {
	for in, want := range map[string]string{
		"python:3.12-slim": "python_3_12-slim-7d2794a436662d45",
		"alpine:3.19":      "alpine_3_19-441817d3f5f11093",
	} {
		if got := CacheKey(in); got != want {
			t.Errorf("CacheKey(%q) = %s, want %s", in, got, want)
		}
	}
	if CacheKey("alpine") != CacheKey("alpine:latest") || CacheKey("h:5000/a") != CacheKey("h:5000/a:latest") {
		t.Error("the implied tag is not part of the key")
	}
	if d := "a@sha256:" + strings.Repeat("0", 64); strings.Contains(CacheKey(d), "latest") {
		t.Error("a digest got a tag")
	}
	for _, in := range []string{"../../x", "a/b", "", ":", "ü"} {
		if k := CacheKey(in); strings.ContainsAny(k, "/.:") || len(k) < 17 {
			t.Errorf("CacheKey(%q) = %q is no safe name", in, k)
		}
	}
}
