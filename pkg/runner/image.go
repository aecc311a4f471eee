package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/images"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// imageRecords is where, below our cache, the digests of pulled images lie.
const imageRecords = "images"

// ImageRecords gives the directory of our own records about images, made when it
// is missing.
func ImageRecords(d Dirs) (string, error) {
	base, err := d.Usable(d.Cache)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(base, imageRecords)
	return dir, ownDir(dir)
}

// prepareRoot makes sure that the root is there, pulling an image when it has
// to and may, and says what it is. base is our cache directory. pulled tells
// whether time was spent on that.
func (r *run) prepareRoot(ctx context.Context, base string) (img Image, pulled bool, err error) {
	s := r.spec
	switch {
	case s.Host != nil:
		return Image{Ref: "host", ID: &s.Host.ID, DigestSource: "none"}, false, nil
	case s.Rootfs != "":
		img = Image{Ref: s.Rootfs, DigestSource: "none"}
		if st, err := os.Stat(s.Rootfs); err == nil {
			if sys, ok := st.Sys().(*unixStat); ok {
				img.ID = ptr(fmt.Sprintf("dir:%d:%d", sys.Dev, sys.Ino))
			}
		}
		return img, false, nil
	}
	img = Image{Ref: s.Image, DigestSource: images.Unknown}
	defer func() {
		digest, source := images.Digest(filepath.Join(base, imageRecords), images.Cache(os.Getenv), s.Image)
		if img.DigestSource = source; digest != "" {
			img.Digest = &digest
		}
	}()
	cache := images.Cache(os.Getenv)
	stamp, have := images.StampOf(cache, s.Image)
	if s.Pull == "always" || !have {
		if s.Pull == "never" {
			return img, false, fmt.Errorf("image %s is not on this machine and --pull never forbids fetching it", s.Image)
		}
		if err := r.pull(ctx); err != nil {
			return img, true, err
		}
		pulled = true
		stamp, have = images.StampOf(cache, s.Image)
	}
	if base := images.MissingBase(cache, s.Image); base != "" {
		return img, pulled, fmt.Errorf("image %s was built on %s, which is not on this machine; kern-sbx image pull %s, or build it again", s.Image, base, base)
	}
	if id, ok := images.ID(cache, s.Image); ok && have {
		img.ID = &id
		r.unpacked = time.Unix(0, stamp.Time)
	}
	return img, pulled, nil
}

// pull fetches the image by itself, so that a slow registry is not taken for a
// box that does not start.
func (r *run) pull(ctx context.Context) error {
	s := r.spec
	if s.Progress != nil {
		defer s.Progress("pulling " + s.Image)()
	}
	err := Pull(ctx, Fetch{Kern: s.Kern, Image: s.Image, Anew: s.Pull == "always", Timeout: s.PullTimeout, Signals: s.Signals})
	if stopped, ok := err.(*StoppedError); ok { //nolint:errorlint // Pull's own
		r.stopFor(stopSignal, stopped.Signal)
		return errInterrupted
	}
	return err
}

// errInterrupted stands for a stop that the evidence already holds.
var errInterrupted = fmt.Errorf("interrupted")

// IsCachedImage says whether a name that was taken for a command is the name of
// an image on this machine.
func IsCachedImage(env func(string) string, ref string) bool {
	return validate.ImageRef(ref) == nil && images.IsCached(images.Cache(env), ref)
}
