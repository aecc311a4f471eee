package images

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Cache is where kern keeps unpacked images; "" when neither $XDG_CACHE_HOME nor
// $HOME says where.
func Cache(env func(string) string) string {
	if x := env("XDG_CACHE_HOME"); filepath.IsAbs(x) {
		return filepath.Join(x, "kern", "images")
	}
	if h := env("HOME"); filepath.IsAbs(h) {
		return filepath.Join(h, ".cache", "kern", "images")
	}
	return ""
}

// Cached lists the references of the images in kern's cache. It starts nothing
// and waits for nothing.
func Cached(cache string) []string {
	if cache == "" {
		return nil
	}
	files, _ := filepath.Glob(filepath.Join(cache, "*.ok"))
	var refs []string
	for _, f := range files {
		// The file holds the reference, and little else could be in it.
		if b, err := os.ReadFile(f); err == nil && len(b) < 1024 && validate.ImageRef(string(b)) == nil {
			refs = append(refs, string(b))
		}
	}
	return refs
}

// IsCached says whether an image is in kern's cache.
func IsCached(cache, ref string) bool {
	if cache == "" || validate.ImageRef(ref) != nil {
		return false
	}
	_, ok := StampOf(cache, ref)
	return ok
}

// Stamp tells one unpacking of an image from the next: kern writes its mark
// anew whenever it unpacks one. The zero value is no unpacking.
type Stamp struct {
	Time int64 `json:"time"` // of the mark's last change, in ns since 1970
	Size int64 `json:"size"` // of the mark, in bytes
}

// StampOf gives the stamp of a cached image.
func StampOf(cache, ref string) (Stamp, bool) {
	st, err := os.Stat(filepath.Join(cache, validate.CacheKey(ref)+".ok"))
	if err != nil {
		return Stamp{}, false
	}
	return Stamp{st.ModTime().UnixNano(), st.Size()}, true
}

// Entrypoint is the ENTRYPOINT that an image declares, which kern puts before
// every command; nil for none.
func Entrypoint(cache, ref string) []string {
	meta, err := os.ReadFile(filepath.Join(cache, validate.CacheKey(ref)+".image"))
	if err != nil {
		return nil
	}
	var words []string
	for line := range strings.Lines(string(meta)) {
		if word, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "entrypoint\t"); ok {
			words = append(words, word)
		}
	}
	return words
}

// ID identifies an image as it is cached here, as "cache:" and 32 hex digits:
// kern records no digest of a tag, but it rewrites two files whenever it unpacks
// one (rule F6).
func ID(cache, ref string) (string, bool) {
	s, ok := StampOf(cache, ref)
	if !ok {
		return "", false
	}
	meta, _ := os.ReadFile(filepath.Join(cache, validate.CacheKey(ref)+".image"))
	h := sha256.New()
	fmt.Fprintf(h, "%d %d\n", s.Time, s.Size)
	h.Write(meta)
	// An image that was built here changes with those it stands on.
	for _, base := range bases(cache, ref) {
		b, _ := StampOf(cache, base)
		fmt.Fprintf(h, "%s %d %d\n", base, b.Time, b.Size)
	}
	return "cache:" + hex.EncodeToString(h.Sum(nil)[:16]), true
}

// baseOf gives the image that one built on this machine stands on, by the name
// under which kern looks for it at every start; "" for one that was unpacked
// whole.
func baseOf(cache, ref string) string {
	b, err := os.ReadFile(filepath.Join(cache, validate.CacheKey(ref)+".layers"))
	if err != nil {
		return ""
	}
	base, _, _ := strings.Cut(string(b), "\n")
	if validate.ImageRef(base) != nil {
		return ""
	}
	return base
}

// bases gives all that an image stands on, the nearest first.
func bases(cache, ref string) []string {
	var all []string
	for base := baseOf(cache, ref); base != "" && len(all) < 64; base = baseOf(cache, base) {
		all = append(all, base)
	}
	return all
}

// MissingBase gives an image that a cached one was built on and that is not on
// this machine any more; "" when nothing is missing. kern would fetch it in the
// middle of a start, also when it was told never to.
func MissingBase(cache, ref string) string {
	for _, base := range bases(cache, ref) {
		if !IsCached(cache, base) {
			return base
		}
	}
	return ""
}

// Entry is one image on this machine.
type Entry struct {
	Ref string `json:"ref"`
	ID  string `json:"id"`
	// Digest is the registry's, nil when it is not known; see Digest.
	Digest       *string `json:"digest"`
	DigestSource string  `json:"digest_source"`
	// Size is in bytes, nil when kern has not counted it.
	Size *int64 `json:"size"`
	// Pulled is when the image was unpacked here.
	Pulled time.Time `json:"pulled"`
}

// List describes the images in kern's cache, in the order of their names.
// records is the directory of our own records, "" for none.
func List(cache, records string) []Entry {
	all := []Entry{}
	for _, ref := range Cached(cache) {
		if e, ok := Look(cache, records, ref); ok {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b Entry) int { return strings.Compare(a.Ref, b.Ref) })
	return all
}

// Look describes one image in kern's cache.
func Look(cache, records, ref string) (Entry, bool) {
	s, ok := StampOf(cache, ref)
	id, known := ID(cache, ref)
	if !ok || !known {
		return Entry{}, false
	}
	e := Entry{Ref: ref, ID: id, Pulled: time.Unix(0, s.Time).UTC(), Size: sizeOf(cache, ref, s)}
	var digest string
	if digest, e.DigestSource = Digest(records, cache, ref); digest != "" {
		e.Digest = &digest
	}
	return e, true
}

// sizeOf reads what `kern images` has counted: the time in seconds and the size
// of the mark that it belongs to, and the bytes.
func sizeOf(cache, ref string, s Stamp) *int64 {
	b, err := os.ReadFile(filepath.Join(cache, validate.CacheKey(ref)+".size"))
	f := strings.Fields(string(b))
	if err != nil || len(f) != 3 || f[0] != strconv.FormatInt(s.Time/1e9, 10) || f[1] != strconv.FormatInt(s.Size, 10) {
		return nil
	}
	n, err := strconv.ParseInt(f[2], 10, 64)
	if err != nil || n < 0 {
		return nil
	}
	return &n
}

// Dependents lists the cached images that were built on ref: kern finds their
// lower layers by its name, and they are broken without it.
func Dependents(cache, ref string) []string {
	key := validate.CacheKey(ref)
	var out []string
	for _, other := range Cached(cache) {
		if validate.CacheKey(other) == key {
			continue
		}
		if base := baseOf(cache, other); base != "" && validate.CacheKey(base) == key {
			out = append(out, other)
		}
	}
	return out
}

// Users lists the processes whose root is made of a cached image, as far as this
// user can see them. kern removes an image from below a running box.
func Users(cache, ref string) []int {
	// kern names the layers of a box's overlay by their paths.
	dir := filepath.Join(filepath.Base(filepath.Dir(cache)), filepath.Base(cache), validate.CacheKey(ref))
	mine, _ := os.Readlink("/proc/self/ns/mnt")
	names, _ := filepath.Glob("/proc/[0-9]*")
	var pids []int
	for _, p := range names {
		ns, err := os.Readlink(p + "/ns/mnt")
		if err != nil || ns == mine {
			continue
		}
		b, err := os.ReadFile(p + "/mounts")
		if err != nil || !holdsPath(string(b), dir) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(p)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// holdsPath says whether a table of mounts names a directory, and not only one
// whose name begins like it.
func holdsPath(mounts, dir string) bool {
	for rest := mounts; ; {
		i := strings.Index(rest, "/"+dir)
		if i < 0 {
			return false
		}
		rest = rest[i+1+len(dir):]
		if rest == "" || strings.ContainsAny(rest[:1], ",:/ ") {
			return true
		}
	}
}
