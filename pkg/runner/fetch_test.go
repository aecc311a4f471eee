package runner

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/kernbin"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// cacheImage makes kern's cache hold an image, unpacked then.
func cacheImage(t *testing.T, ref string, then time.Time) {
	t.Helper()
	x := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", x)
	base := filepath.Join(x, "kern", "images", validate.CacheKey(ref))
	if err := os.MkdirAll(base, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(base+".ok", []byte(ref), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(base+".ok", then, then); err != nil {
		t.Fatal(err)
	}
}

// TestColdImage: a start that takes too long is laid to an image's first read
// only while that can be.
func TestColdImage(t *testing.T) {
	for _, c := range []struct {
		name string
		age  time.Duration
		mode string
		want bool
	}{
		{"just unpacked", time.Minute, "deaf-gate", true},
		{"an old one", time.Hour, "deaf-gate", false},
		{"another failure", time.Minute, "refuse", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cacheImage(t, "x:1", time.Now().Add(-c.age))
			res := runFake(t, c.mode, func(s *Spec) {
				s.Rootfs, s.Image, s.Pull, s.StartTimeout = "", "x:1", "never", 2*time.Second
			})
			if res.Fault == nil || res.Fault.Type != StartupFailed || res.ColdImage != c.want {
				t.Errorf("%s: cold %v", describe(res), res.ColdImage)
			}
		})
	}
}

// script is a kern that is a shell script.
func script(t *testing.T, text string) *kernbin.Kern {
	t.Helper()
	p := filepath.Join(t.TempDir(), "kern")
	if err := os.WriteFile(p, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return &kernbin.Kern{Path: p, Version: "test"}
}

func TestPull(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	sigs := make(chan os.Signal, 1)
	for _, c := range []struct {
		name, kern string
		timeout    time.Duration
		signal     bool
		want       string // in the error
	}{
		{"done", "exit 0", 0, false, ""},
		{"failed", "echo 'error: no such thing' >&2; exit 1", 0, false, "no such thing"},
		{"failed without a word", "exit 3", 0, false, "exit status 3"},
		{"killed", "kill -9 $$", 0, false, "killed"},
		{"a terminal's orders", `printf 'error: \033[2Jx\n'; exit 1`, 0, false, `\x1b[2Jx`},
		{"too slow, with a child that holds on", "trap '' TERM INT; sleep 300 & sleep 300", 300 * time.Millisecond, false, "--pull-timeout"},
		{"a flood", "yes 'error: x' | head -c 20000000; exit 1", 0, false, "could not be pulled: x"},
		{"a signal", "sleep 300", 0, true, "SIGTERM"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := script(t, c.kern)
			begin := time.Now()
			if c.signal {
				sigs <- unix.SIGTERM
			}
			err := Pull(context.Background(), Fetch{Kern: k, Image: "x:1", Timeout: c.timeout, Signals: sigs})
			if took := time.Since(begin); took > 20*time.Second {
				t.Errorf("it took %s", took)
			}
			switch {
			case c.want == "" && err == nil:
				return
			case err == nil || c.want == "" || !strings.Contains(err.Error(), c.want):
				t.Fatalf("error %v, want one about %q", err, c.want)
			}
			var pull *PullError
			var stopped *StoppedError
			if errors.As(err, &pull) == c.signal || errors.As(err, &stopped) != c.signal {
				t.Errorf("%T", err)
			}
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var stopped *StoppedError
	if err := Pull(ctx, Fetch{Kern: script(t, "sleep 300"), Image: "x:1"}); !errors.As(err, &stopped) {
		t.Errorf("with an ended context: %v", err)
	}
	for _, ref := range []string{"", "-q", "--help", "a b"} {
		var bad *validate.Error
		if err := Pull(context.Background(), Fetch{Kern: script(t, "exit 0"), Image: ref}); !errors.As(err, &bad) {
			t.Errorf("%q: %v", ref, err)
		}
	}
}

// TestPullAnew: success is what the cache shows, not what kern's box makes of it.
func TestPullAnew(t *testing.T) {
	for _, c := range []struct {
		name, kern string
		want       string
	}{
		{"fetched, and the box cannot be built", "touch \"$XDG_CACHE_HOME\"/kern/images/*.ok; exit 125", ""},
		{"as it is, and the box was built", "exit 127", ""},
		{"not fetched", "echo 'error: no route'; exit 1", "no route"},
		{"kern's help", "exit 0", "exit status 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cacheImage(t, "x:1", time.Now().Add(-time.Hour))
			err := Pull(context.Background(), Fetch{Kern: script(t, c.kern), Image: "x:1", Anew: true})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	in, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	refs, err := Load(context.Background(), script(t, `echo "loaded 'a:1'"; echo "loaded '--help'"; echo "loaded 'x"; printf "loaded '\033[2J'\n"; echo "loaded 'b:2'"`), in, nil)
	if err != nil || strings.Join(refs, " ") != "a:1 b:2" {
		t.Errorf("%q %v", refs, err)
	}
	if _, err := Load(context.Background(), script(t, "echo 'error: extract: bad'; exit 1"), in, nil); err == nil || !strings.Contains(err.Error(), "extract: bad") {
		t.Error(err)
	}
}
