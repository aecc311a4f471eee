package images

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// unpack writes what kern would for an image.
func unpack(t *testing.T, cache, ref string, at time.Time) Stamp {
	t.Helper()
	base := filepath.Join(cache, validate.CacheKey(ref))
	for name, text := range map[string]string{".ok": ref, ".image": "fmt\t2\n"} {
		if err := os.WriteFile(base+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(base+".ok", at, at); err != nil {
		t.Fatal(err)
	}
	s, ok := StampOf(cache, ref)
	if !ok {
		t.Fatal("not cached")
	}
	return s
}

func TestDigest(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	cache, records := t.TempDir(), t.TempDir()
	now := time.Now()
	s := unpack(t, cache, "x:1", now)
	see := func(ref, wantDigest, wantSource string) {
		t.Helper()
		if d, source := Digest(records, cache, ref); d != wantDigest || source != wantSource {
			t.Errorf("Digest(%s) = %q %q, want %q %q", ref, d, source, wantDigest, wantSource)
		}
	}
	see("x:1", "", Unknown)
	see("x@"+digest, digest, FromReference)
	if err := Remember(records, "x:1", digest, s); err != nil {
		t.Fatal(err)
	}
	see("x:1", digest, FromPull)
	if d, source := Digest("", cache, "x:1"); d != "" || source != Unknown {
		t.Errorf("without records: %q %q", d, source)
	}
	// Another reference, another record.
	unpack(t, cache, "x:2", now)
	see("x:2", "", Unknown)
	// One name for the same image.
	s = unpack(t, cache, "y:latest", now)
	if err := Remember(records, "y", digest, s); err != nil {
		t.Fatal(err)
	}
	see("y:latest", digest, FromPull)

	// Unpacked anew, by whomever: nothing is known, also when the time alone or
	// the size alone changed.
	unpack(t, cache, "x:1", now.Add(time.Nanosecond))
	see("x:1", "", Unknown)
	unpack(t, cache, "x:1", now)
	see("x:1", digest, FromPull)
	ok := filepath.Join(cache, validate.CacheKey("x:1")+".ok")
	if err := os.WriteFile(ok, []byte("x:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(ok, now, now); err != nil {
		t.Fatal(err)
	}
	see("x:1", "", Unknown)
	// Gone from the cache.
	unpack(t, cache, "x:1", now)
	see("x:1", digest, FromPull)
	if err := os.Remove(ok); err != nil {
		t.Fatal(err)
	}
	see("x:1", "", Unknown)

	if err := Remember(records, "x:1", "sha256:short", s); err == nil {
		t.Error("not a digest, and recorded")
	}
	Forget(records, "y")
	see("y", "", Unknown)
	left, err := os.ReadDir(records)
	if err != nil || len(left) != 1 {
		t.Errorf("in the records: %v %v", left, err)
	}
}

// TestRecordsAreDistrusted: a record that is a link, a FIFO, huge, or somebody
// else's text says nothing.
func TestRecordsAreDistrusted(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	cache, records := t.TempDir(), t.TempDir()
	s := unpack(t, cache, "x:1", time.Now())
	file := recordFile(records, "x:1")
	good := fmt.Sprintf(`{"ref":"x:1","digest":"%s","mark":{"time":%d,"size":%d}}`, digest, s.Time, s.Size)
	for name, text := range map[string]string{
		"another image": strings.Replace(good, "x:1", "x:2", 1),
		"no digest":     strings.Replace(good, digest, "sha256:xyz", 1),
		"escape":        strings.Replace(good, digest, digest+"\\u001b", 1),
		"huge":          strings.Repeat(" ", mostOfRecord) + good,
		"two":           good + good,
		"empty":         "",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if d, source := Digest(records, cache, "x:1"); d != "" || source != Unknown {
			t.Errorf("%s: %q %q", name, d, source)
		}
	}
	if err := os.WriteFile(file, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, source := Digest(records, cache, "x:1"); source != FromPull {
		t.Error("the good one says nothing either")
	}
	if err := os.Rename(file, file+"x"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file+"x", file); err != nil {
		t.Fatal(err)
	}
	if _, source := Digest(records, cache, "x:1"); source != Unknown {
		t.Error("a link was followed")
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"ref":"x:1","digest":"sha256:` + zero + `","mark":{"time":1,"size":3}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, ok := parseRecord(b); ok && !isDigest(r.Digest) {
			t.Fatalf("%q is taken for a digest", r.Digest)
		}
	})
}

func TestList(t *testing.T) {
	cache := t.TempDir()
	at := time.Unix(1700000000, 5)
	s := unpack(t, cache, "b:1", at)
	unpack(t, cache, "a:1", at)
	unpack(t, cache, "built:1", at)
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(cache, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(validate.CacheKey("b:1")+".size", fmt.Sprintf("1700000000 %d 4096", s.Size))
	write(validate.CacheKey("a:1")+".size", fmt.Sprintf("1600000000 %d 4096", s.Size)) // of an older one
	write(validate.CacheKey("built:1")+".layers", "a:1\n8bea6faecdc8ce0817421dca69e32459\n")
	unpack(t, cache, "twice:1", at)
	write(validate.CacheKey("twice:1")+".layers", "built:1\n0")
	// A ring, which kern would not make.
	write(validate.CacheKey("b:1")+".layers", "b:1\n0")
	// What does not belong there, or cannot be a reference.
	write("evil.ok", "x\x1b[2J\n")
	write("dash.ok", "--help")
	write("long.ok", strings.Repeat("x", 5000))
	var got []string
	for _, e := range List(cache, "") {
		size := int64(-1)
		if e.Size != nil {
			size = *e.Size
		}
		got = append(got, fmt.Sprint(e.Ref, " ", size, " ", e.DigestSource, " ", e.Pulled.Equal(at)))
	}
	want := "a:1 -1 unknown true, b:1 4096 unknown true, built:1 -1 unknown true, twice:1 -1 unknown true"
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("List: %s\nwant: %s", s, want)
	}
	if d := Dependents(cache, "a:1"); len(d) != 1 || d[0] != "built:1" {
		t.Errorf("Dependents(a:1) = %v", d)
	}
	if d := Dependents(cache, "twice:1"); len(d) > 0 {
		t.Errorf("Dependents(twice:1) = %v", d)
	}
	// An image that was built here is another when what it stands on is.
	before, _ := ID(cache, "twice:1")
	plain, _ := ID(cache, "b:1")
	unpack(t, cache, "a:1", at.Add(time.Second))
	if after, ok := ID(cache, "twice:1"); !ok || after == before {
		t.Errorf("the id of a built image stays %s", after)
	}
	if after, _ := ID(cache, "b:1"); after != plain {
		t.Error("the id of another image changed")
	}
	if base := MissingBase(cache, "twice:1") + MissingBase(cache, "b:1"); base != "" {
		t.Errorf("%s is missing", base)
	}
	if err := os.Remove(filepath.Join(cache, validate.CacheKey("a:1")+".ok")); err != nil {
		t.Fatal(err)
	}
	if base := MissingBase(cache, "twice:1"); base != "a:1" {
		t.Errorf("missing: %q", base)
	}
	unpack(t, cache, "a:1", at)
	if len(List("", "")) > 0 || IsCached("", "a:1") || !IsCached(cache, "a:1") || IsCached(cache, "--help") {
		t.Error("what is cached")
	}
}

func TestHoldsPath(t *testing.T) {
	for _, c := range []struct {
		mounts string
		want   bool
	}{
		{"overlay / overlay ro,lowerdir=/c/kern/images/a_1-x,upperdir=/u 0 0\n", true},
		{"overlay / overlay ro,lowerdir=/l:/c/kern/images/a_1-x 0 0\n", true},
		{"overlay / overlay ro,lowerdir=/c/kern/images/a_1-x.old-5,upperdir=/u 0 0\n", false},
		{"overlay / overlay ro,lowerdir=/c/kern/images/a_1-xy,upperdir=/u 0 0\n", false},
		{"overlay / overlay ro,lowerdir=/c/kern/images/b_a_1-x,upperdir=/u 0 0\n", false},
		{"overlay / overlay ro,lowerdir=/c/kern/images/a_1-xy:/c/kern/images/a_1-x,upperdir=/u 0 0\n", true},
		{"", false},
	} {
		if got := holdsPath(c.mounts, "kern/images/a_1-x"); got != c.want {
			t.Errorf("holdsPath(%q) = %v", c.mounts, got)
		}
	}
}
