package images

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// What a digest comes from.
const (
	FromReference = "reference" // the reference is pinned to it
	FromPull      = "pulled"    // the registry gave it before and after the pull
	Unknown       = "unknown"
)

// record is what a pull of ours found out about the image that it brought.
type record struct {
	Ref    string `json:"ref"`
	Digest string `json:"digest"`
	// Mark is that of the unpacking which the digest is about.
	Mark Stamp `json:"mark"`
}

// mostOfRecord is far more than a record takes.
const mostOfRecord = 4 << 10

// Digest gives the registry digest that a cached image is known to have, and
// where that is known from. A record of ours counts only for the unpacking it
// was made about; when the image has been unpacked anew, by whomever, nothing is
// known.
func Digest(records, cache, ref string) (digest, source string) {
	if d, ok := validate.HasDigest(ref); ok {
		return d, FromReference
	}
	if records == "" {
		return "", Unknown
	}
	r, ok := readRecord(recordFile(records, ref))
	if !ok || validate.CacheKey(r.Ref) != validate.CacheKey(ref) {
		return "", Unknown
	}
	if s, ok := StampOf(cache, ref); !ok || s != r.Mark {
		return "", Unknown
	}
	return r.Digest, FromPull
}

// Remember records the digest of what is unpacked now as s. records is a
// directory that only this user can write; it must be there.
func Remember(records, ref, digest string, s Stamp) error {
	if !isDigest(digest) {
		return fmt.Errorf("not a digest: %q", digest)
	}
	b, err := json.Marshal(record{ref, digest, s})
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(records, ".tmp-")
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), recordFile(records, ref))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// Forget removes the record of an image, if there is one.
func Forget(records, ref string) {
	_ = os.Remove(recordFile(records, ref))
}

func recordFile(records, ref string) string {
	return filepath.Join(records, validate.CacheKey(ref)+".json")
}

func readRecord(path string) (record, bool) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return record{}, false
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostOfRecord))
	if err != nil {
		return record{}, false
	}
	return parseRecord(b)
}

func parseRecord(b []byte) (r record, ok bool) {
	return r, json.Unmarshal(b, &r) == nil && isDigest(r.Digest)
}

// isDigest says whether s is a digest as registries here give them.
func isDigest(s string) bool {
	_, ok := validate.HasDigest("x@" + s)
	return ok
}
