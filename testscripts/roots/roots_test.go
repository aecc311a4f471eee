package roots

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMirror(t *testing.T) {
	const uris = `'https://else.test/debian/dists/bookworm-updates/InRelease' x 0 
'mirror+file:/etc/list/dists/bookworm/InRelease' x 0 
'http://deb.test/debian/dists/bookworm/InRelease' deb.test_debian_dists_bookworm_InRelease 0 
'http://deb.test/debian/dists/bookworm/main/binary-amd64/Packages.xz' x 0 
`
	for suite, want := range map[string]string{"bookworm": "http://deb.test/debian", "trixie": "", "": ""} {
		if got := mirrorIn(uris, suite); got != want {
			t.Errorf("%q: %q, want %q", suite, got, want)
		}
	}
}

// A mirror that takes the connection and says nothing, and one that is not there, are
// not waited for.
func TestMirrorThatIsAway(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := answers(ctx, nil, "http://"+l.Addr().String()+"/x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	l.Close()
	if err := answers(t.Context(), nil, "http://"+l.Addr().String()+"/x"); err == nil {
		t.Error("it answers")
	}
}

// What is there is given to anybody, and nothing is asked.
func TestKept(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "x")
	for _, d := range []string{"usr/bin", "usr/local/lib/python3.9/dist-packages/some"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("python3.9", filepath.Join(root, "usr/bin/python3")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", "")
	if got, err := Debian(t.Context(), dir, "x", "more"); err != nil || got != root {
		t.Error(got, err)
	}
	if err := Python(t.Context(), root, "some"); err != nil {
		t.Error(err)
	}
	if _, err := Debian(t.Context(), dir, "y"); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
	if err := os.RemoveAll(filepath.Join(root, "usr/local")); err != nil {
		t.Fatal(err)
	}
	if err := Python(t.Context(), root, "some"); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}

// What was started is gone when the time is over.
func TestRunEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begun := time.Now()
	out, err := run(ctx, nil, "sh", "-c", "echo began; sleep 60 & sleep 60")
	if err == nil || !strings.Contains(out, "began") || time.Since(begun) > 5*time.Second {
		t.Errorf("%q, %v after %v", out, err, time.Since(begun))
	}
}
