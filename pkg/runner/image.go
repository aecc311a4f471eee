package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// ImageCache is where kern keeps unpacked images; "" when neither
// $XDG_CACHE_HOME nor $HOME says where.
func ImageCache(env func(string) string) string {
	if x := env("XDG_CACHE_HOME"); filepath.IsAbs(x) {
		return filepath.Join(x, "kern", "images")
	}
	if h := env("HOME"); filepath.IsAbs(h) {
		return filepath.Join(h, ".cache", "kern", "images")
	}
	return ""
}

// CachedImages lists the references of the images that are there. It starts
// nothing and waits for nothing.
func CachedImages(env func(string) string) []string {
	files, _ := filepath.Glob(filepath.Join(ImageCache(env), "*.ok"))
	var refs []string
	for _, f := range files {
		// The file holds the reference, and little else could be in it.
		if b, err := os.ReadFile(f); err == nil && len(b) < 1024 && validate.ImageRef(string(b)) == nil {
			refs = append(refs, string(b))
		}
	}
	return refs
}

// imageID identifies an image as it is cached here: kern records no digest of
// a tag, but it rewrites these two files whenever it unpacks one.
func imageID(cache, key string) (string, bool) {
	ok, err := os.Stat(filepath.Join(cache, key+".ok"))
	if err != nil {
		return "", false
	}
	meta, _ := os.ReadFile(filepath.Join(cache, key+".image"))
	h := sha256.New()
	fmt.Fprintf(h, "%d %d\n", ok.ModTime().UnixNano(), ok.Size())
	h.Write(meta)
	return "cache:" + hex.EncodeToString(h.Sum(nil)[:16]), true
}

// prepareRoot makes sure that the root is there, pulling an image when it has
// to and may, and says what it is. pulled tells whether time was spent on that.
func (r *run) prepareRoot(ctx context.Context) (img Image, pulled bool, err error) {
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
	img = Image{Ref: s.Image, DigestSource: "unknown"}
	if d, ok := validate.HasDigest(s.Image); ok {
		img.Digest, img.DigestSource = &d, "reference"
	}
	cache, key := ImageCache(os.Getenv), validate.CacheKey(s.Image)
	id, have := imageID(cache, key)
	if s.Pull == "always" || !have {
		if s.Pull == "never" {
			return img, false, fmt.Errorf("image %s is not on this machine and --pull never forbids fetching it", s.Image)
		}
		if err := r.pull(ctx); err != nil {
			return img, true, err
		}
		pulled = true
		id, have = imageID(cache, key)
	}
	if have {
		img.ID = &id
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
	out, err := anonymousFile(os.TempDir())
	if err != nil {
		return err
	}
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	p, err := os.StartProcess(s.Kern.Path, []string{"kern", "pull", s.Image}, &os.ProcAttr{
		Env: kernEnv(), Files: []*os.File{null, out, out}, Sys: &unix.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("kern could not be started: %w", err)
	}
	done := make(chan *os.ProcessState, 1)
	go func() { st, _ := p.Wait(); done <- st }()
	var limit <-chan time.Time
	if s.PullTimeout > 0 {
		t := time.NewTimer(s.PullTimeout)
		defer t.Stop()
		limit = t.C
	}
	end := func() {
		unix.Kill(-p.Pid, unix.SIGKILL)
		<-done
	}
	select {
	case st := <-done:
		if st != nil && st.Success() {
			return nil
		}
		why := kernSentence(tail(out, 8<<10))
		if why == "" && st != nil {
			why = st.String()
		}
		return &PullError{s.Image, why}
	case <-limit:
		end()
		return &PullError{s.Image, fmt.Sprintf("not done within %s (--pull-timeout)", s.PullTimeout)}
	case sig := <-s.Signals:
		end()
		r.stopFor(stopSignal, sig)
		return errInterrupted
	case <-ctx.Done():
		end()
		r.stopFor(stopSignal, unix.SIGINT)
		return errInterrupted
	}
}

// PullError says that an image could not be fetched.
type PullError struct{ Image, Reason string }

func (e *PullError) Error() string {
	return "image " + e.Image + " could not be pulled: " + e.Reason
}

func tail(f *os.File, n int64) []byte {
	st, err := f.Stat()
	if err != nil {
		return nil
	}
	buf := make([]byte, min(n, st.Size()))
	k, _ := f.ReadAt(buf, st.Size()-int64(len(buf)))
	return buf[:k]
}

// errInterrupted stands for a stop that the evidence already holds.
var errInterrupted = fmt.Errorf("interrupted")

// IsCachedImage says whether a name that was taken for a command is the name of
// an image on this machine.
func IsCachedImage(env func(string) string, ref string) bool {
	if validate.ImageRef(ref) != nil {
		return false
	}
	_, err := os.Stat(filepath.Join(ImageCache(env), validate.CacheKey(ref)+".ok"))
	return err == nil
}
