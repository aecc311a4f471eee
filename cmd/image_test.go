package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/images"
	"github.com/kern-sbx/kern-sbx/pkg/images/imagetest"
)

// imageBench is kern-sbx with a cache of its own and a registry on loopback.
type imageBench struct {
	t        *testing.T
	bin      string
	dir      string
	registry *imagetest.Registry
	host     string
	image    *imagetest.Image
	stdin    []byte
	out, err string
}

// TestImage holds the tests that share one program.
func TestImage(t *testing.T) {
	if os.Getenv("KERN_BIN") == "" {
		t.Skip("KERN_BIN is not set")
	}
	bin := buildProgram(t)
	for _, c := range []struct {
		name string
		run  func(*testing.T, string)
	}{
		{"Digest", testImageDigest},
		{"TagMoved", testImageTagMoved},
		{"RegistryFails", testImageRegistryFails},
		{"SlowPull", testImageSlowPull},
		{"Interrupted", testImageInterrupted},
		{"LoadListRemove", testImageLoadListRemove},
		{"NeedsNoKern", testImageNeedsNoKern},
		{"Bytecode", testBytecode},
		{"Precompile", testPrecompile},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, bin) })
	}
}

func newImageBench(t *testing.T, bin string) *imageBench {
	t.Helper()
	files := imagetest.Busybox("sh", "cat", "echo", "sleep", "true")
	if files == nil {
		t.Skip("this machine has no static busybox")
	}
	i, err := imagetest.New(files, imagetest.Config{Env: []string{"PATH=/bin"}})
	if err != nil {
		t.Fatal(err)
	}
	// Short, for sockets and because kern makes names of it; ours alone.
	dir, err := os.MkdirTemp("", "kern-sbx-image-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, _ error) error {
			if d != nil && d.IsDir() {
				_ = os.Chmod(p, 0o700)
			}
			return nil
		})
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for _, d := range []string{"home", "run", "cache", "tmp"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	b := &imageBench{t: t, bin: bin, dir: dir, image: i}
	b.serve(&imagetest.Registry{})
	return b
}

func (b *imageBench) serve(r *imagetest.Registry) {
	s := httptest.NewServer(r)
	b.t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	b.registry = r
	b.host = "localhost:" + s.URL[strings.LastIndexByte(s.URL, ':')+1:]
}

func (b *imageBench) command(args ...string) *exec.Cmd {
	c := exec.Command(b.bin, args...)
	c.Dir = b.dir
	c.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "KERN_BIN=" + os.Getenv("KERN_BIN"),
		"HOME=" + b.dir + "/home", "XDG_RUNTIME_DIR=" + b.dir + "/run", "XDG_CACHE_HOME=" + b.dir + "/cache", "TMPDIR=" + b.dir + "/tmp",
	}
	c.Stdin = bytes.NewReader(b.stdin)
	return c
}

// run runs kern-sbx and wants a code.
func (b *imageBench) run(want int, args ...string) time.Duration {
	b.t.Helper()
	c := b.command(args...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	begin := time.Now()
	err := c.Run()
	took := time.Since(begin)
	var x *exec.ExitError
	if err != nil && !errors.As(err, &x) {
		b.t.Fatal(err)
	}
	b.out, b.err = out.String(), errs.String()
	if got := c.ProcessState.ExitCode(); got != want {
		b.t.Errorf("kern-sbx %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, want, b.out, b.err)
	}
	return took
}

func (b *imageBench) says(stream, want string) {
	b.t.Helper()
	if !strings.Contains(stream, want) {
		b.t.Errorf("not in it: %q\n%s", want, stream)
	}
}

// digest gives the digest that a run reports, and where it is from.
func (b *imageBench) digest(ref string, flags ...string) (digest, source string) {
	b.t.Helper()
	b.run(0, append(append([]string{"run", "--json", "--image", ref}, flags...), "--", "true")...)
	var doc struct {
		Image struct {
			Digest *string
			Source string `json:"digest_source"`
		}
	}
	if err := json.Unmarshal([]byte(b.out), &doc); err != nil {
		b.t.Fatalf("%v\n%s", err, b.out)
	}
	if doc.Image.Digest != nil {
		digest = *doc.Image.Digest
	}
	return digest, doc.Image.Source
}

func (b *imageBench) wantDigest(ref, digest, source string, flags ...string) {
	b.t.Helper()
	if d, s := b.digest(ref, flags...); d != digest || s != source {
		b.t.Errorf("a run of %s reports %q %q, want %q %q", ref, d, s, digest, source)
	}
}

func other(t *testing.T, i *imagetest.Image, text string) *imagetest.Image {
	t.Helper()
	o, err := imagetest.New(append(imagetest.Busybox("sh", "cat", "true"), imagetest.File{Name: "etc/text", Mode: 0o644, Content: []byte(text)}), imagetest.Config{Env: []string{"PATH=/bin"}})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// testImageDigest: a run reports a digest when it is known, and never another.
func testImageDigest(t *testing.T, bin string) {
	b := newImageBench(t, bin)
	first := b.registry.Put("x", "1", b.image)
	ref := b.host + "/x:1"

	b.run(0, "image", "resolve", ref)
	if b.out != ref+"@"+first+"\n" {
		t.Errorf("resolve: %q", b.out)
	}
	// A run that pulls by itself records nothing.
	b.wantDigest(ref, "", images.Unknown)
	b.run(0, "image", "pull", ref)
	if b.out != ref+"@"+first+"\n" {
		t.Errorf("pull: %q", b.out)
	}
	b.wantDigest(ref, first, images.FromPull, "--pull", "never")

	// What is up to date is not fetched again.
	before := len(b.registry.Requests())
	b.run(0, "image", "pull", ref)
	b.says(b.err, "up to date")
	for _, q := range b.registry.Requests()[before:] {
		if strings.Contains(q, "/blobs/") {
			t.Errorf("fetched again: %s", q)
		}
	}

	// The tag is moved: a run goes on with what is here, a pull brings the new one.
	second := b.registry.Put("x", "1", other(t, b.image, "second"))
	b.wantDigest(ref, first, images.FromPull)
	b.run(0, "image", "pull", ref)
	b.wantDigest(ref, second, images.FromPull)
	b.run(0, "run", "--image", ref, "--", "cat", "/etc/text")
	if b.out != "second" {
		t.Errorf("the box has the old image: %q", b.out)
	}

	// kern unpacks it anew by itself: what we knew is void.
	b.registry.Put("x", "1", other(t, b.image, "third"))
	b.wantDigest(ref, "", images.Unknown, "--pull", "always")
	b.run(0, "run", "--image", ref, "--", "cat", "/etc/text")
	if b.out != "third" {
		t.Errorf("--pull always left the old image: %q", b.out)
	}

	// Pinned: by the reference alone, and nothing else is accepted for it.
	pinned := images.Pinned(ref, second)
	b.run(0, "image", "pull", pinned)
	b.wantDigest(pinned, second, images.FromReference)
	wrong := images.Pinned(ref, "sha256:"+strings.Repeat("0", 64))
	b.run(1, "image", "pull", wrong)
	b.run(1, "image", "resolve", wrong)
	b.run(125, "run", "--image", wrong, "--", "true")
	b.says(b.err, "could not be pulled")
}

// testImageTagMoved: the tag is moved while kern pulls, so nobody knows which of
// the two it got.
func testImageTagMoved(t *testing.T, bin string) {
	b := newImageBench(t, bin)
	var heads atomic.Int32
	r := &imagetest.Registry{}
	r.Before = func(_ http.ResponseWriter, q *http.Request) bool {
		if q.Method == http.MethodHead && heads.Add(1) == 2 {
			r.Put("x", "1", other(t, b.image, "moved"))
		}
		return false
	}
	b.serve(r)
	r.Put("x", "1", b.image)
	ref := b.host + "/x:1"
	b.run(0, "image", "pull", ref)
	b.says(b.err, "moved while it was pulled")
	if b.out != ref+"\n" {
		t.Errorf("pull: %q", b.out)
	}
	b.wantDigest(ref, "", images.Unknown)
	b.run(0, "image", "ls", "--json")
	b.says(b.out, `"digest": null`)
}

// testImageRegistryFails: each way in which a registry does not give an image is
// a refusal of a run and a failure of a pull, in time and in one line.
func testImageRegistryFails(t *testing.T, bin string) {
	b := newImageBench(t, bin)
	for _, c := range []struct {
		name   string
		ref    string
		before func(http.ResponseWriter, *http.Request) bool
		want   string
		slow   bool
	}{
		{"missing tag", "x:2", nil, "no such manifest", false},
		{"no answer", "x:1", func(_ http.ResponseWriter, q *http.Request) bool {
			<-q.Context().Done()
			return true
		}, "not done within 2s (--pull-timeout)", true},
		{"slow layers", "x:1", func(_ http.ResponseWriter, q *http.Request) bool {
			if strings.Contains(q.URL.Path, "/blobs/") {
				<-q.Context().Done()
				return true
			}
			return false
		}, "not done within 2s (--pull-timeout)", true},
		{"rubbish", "x:1", func(w http.ResponseWriter, _ *http.Request) bool {
			_, _ = w.Write([]byte("<html>\x1b[2J\x1b]0;x\a"))
			return true
		}, "could not be pulled", false},
		{"huge manifest", "x:1", func(w http.ResponseWriter, q *http.Request) bool {
			if !strings.Contains(q.URL.Path, "/manifests/") || q.Method == http.MethodHead {
				return false
			}
			for block := bytes.Repeat([]byte(" "), 1<<16); q.Context().Err() == nil; {
				if _, err := w.Write(block); err != nil {
					break
				}
			}
			return true
		}, "could not be pulled", false},
		{"redirect loop", "x:1", func(w http.ResponseWriter, q *http.Request) bool {
			http.Redirect(w, q, q.URL.Path, http.StatusTemporaryRedirect)
			return true
		}, "could not be pulled", false},
		{"other bytes under a digest", "x:1", func(w http.ResponseWriter, q *http.Request) bool {
			if strings.Contains(q.URL.Path, "/blobs/") {
				_, _ = w.Write([]byte("other bytes"))
				return true
			}
			return false
		}, "could not be pulled", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.t = t
			b.serve(&imagetest.Registry{Before: c.before})
			b.registry.Put("x", "1", b.image)
			ref := b.host + "/" + c.ref
			for _, args := range [][]string{{"image", "pull", "--pull-timeout", "2s", ref}, {"run", "--pull-timeout", "2s", "--start-timeout", "1s", "--image", ref, "--", "true"}} {
				want := 1
				if args[0] == "run" {
					want = 125
				}
				took := b.run(want, args...)
				b.says(b.err, c.want)
				if strings.ContainsAny(b.err, "\x1b\a") {
					t.Errorf("the registry's text reached the terminal: %q", b.err)
				}
				if took > 10*time.Second || !c.slow && took > 8*time.Second {
					t.Errorf("it took %s", took)
				}
			}
			if images.IsCached(filepath.Join(b.dir, "cache/kern/images"), ref) {
				t.Error("it is cached all the same")
			}
		})
	}
}

// testImageSlowPull: the time of a pull is not that of the start.
func testImageSlowPull(t *testing.T, bin string) {
	b := newImageBench(t, bin)
	b.serve(&imagetest.Registry{Before: func(_ http.ResponseWriter, q *http.Request) bool {
		if strings.Contains(q.URL.Path, "/blobs/") {
			time.Sleep(1500 * time.Millisecond)
		}
		return false
	}})
	b.registry.Put("x", "1", b.image)
	b.run(0, "run", "--start-timeout", "2s", "--image", b.host+"/x:1", "--", "echo", "here")
	if b.out != "here\n" {
		t.Errorf("%q", b.out)
	}
}

// testImageInterrupted: Ctrl-C ends a pull, and kern with it.
func testImageInterrupted(t *testing.T, bin string) {
	b := newImageBench(t, bin)
	var once sync.Once
	asked := make(chan struct{})
	b.serve(&imagetest.Registry{Before: func(_ http.ResponseWriter, q *http.Request) bool {
		if strings.Contains(q.URL.Path, "/blobs/") {
			once.Do(func() { close(asked) })
			<-q.Context().Done()
			return true
		}
		return false
	}})
	b.registry.Put("x", "1", b.image)
	c := b.command("image", "pull", b.host+"/x:1")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-asked:
	case <-time.After(20 * time.Second):
		t.Error("kern did not ask for a layer")
	}
	_ = c.Process.Signal(syscall.SIGINT)
	_ = c.Wait()
	if got := c.ProcessState.ExitCode(); got != 130 {
		t.Errorf("exit code %d", got)
	}
	for wait := time.Now().Add(3 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left := withEnv("XDG_CACHE_HOME=" + b.dir + "/cache")
		if len(left) == 0 {
			break
		}
		if time.Now().After(wait) {
			t.Fatalf("left: %v", left)
		}
	}
}

// withEnv lists the processes that have a variable in their environment.
func withEnv(kv string) []string {
	var found []string
	names, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, n := range names {
		if b, err := os.ReadFile(n); err == nil && bytes.Contains(b, []byte(kv)) {
			found = append(found, n)
		}
	}
	return found
}

func testImageLoadListRemove(t *testing.T, bin string) {
	b := newImageBench(t, bin)
	b.run(0, "image", "ls")
	b.says(b.err, "no images")
	b.run(0, "image", "ls", "--json")
	if b.out != "[]\n" {
		t.Errorf("%q", b.out)
	}
	archive, err := b.image.Archive("small:1")
	if err != nil {
		t.Fatal(err)
	}
	// A name that could be taken for an option of kern's.
	if err := os.WriteFile(filepath.Join(b.dir, "--help"), archive, 0o600); err != nil {
		t.Fatal(err)
	}
	b.run(0, "image", "load", "--", "--help")
	if b.out != "small:1\n" {
		t.Errorf("load: %q", b.out)
	}
	b.stdin = archive
	b.run(0, "image", "load", "-")
	b.stdin = nil
	b.says(b.err, "takes the place")
	b.wantDigest("small:1", "", images.Unknown)
	b.run(0, "image", "ls")
	b.says(b.out, "small:1")
	b.says(b.out, "unknown")

	b.run(1, "image", "load", "/bin/sh")
	b.says(b.err, "could not be loaded")
	b.run(125, "image", "load", b.dir)
	b.run(125, "image", "load", b.dir+"/none")
	// What an archive calls its images is its own affair, and stays text.
	for _, name := range []string{"--help", "x\x1b[2J:1", "../../../x:1", "a b:1"} {
		evil, err := b.image.Archive(name)
		if err != nil {
			t.Fatal(err)
		}
		b.stdin = evil
		c := b.command("image", "load", "-")
		out, _ := c.CombinedOutput()
		b.stdin = nil
		if bytes.ContainsAny(out, "\x1b") {
			t.Errorf("an archive's text reached the terminal: %q", out)
		}
		b.run(0, "image", "ls")
		if strings.ContainsAny(b.out, "\x1b") || strings.Contains(b.out, "--help") {
			t.Errorf("listed: %q", b.out)
		}
		if _, err := os.Lstat(filepath.Join(b.dir, "x:1")); err == nil {
			t.Errorf("%q was unpacked outside the cache", name)
		}
	}

	// An image below a running box stays.
	box := b.command("run", "--image", "small:1", "--timeout", "1m", "--", "sh", "-c", "echo up; sleep 60")
	out, err := box.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 3)); err != nil {
		t.Error(err)
	}
	b.run(125, "image", "rm", "small:1")
	b.says(b.err, "running uses it")
	_ = box.Process.Signal(syscall.SIGTERM)
	_ = box.Wait()

	b.run(1, "image", "rm", "small:1", "none:1")
	b.run(0, "image", "ls")
	b.says(b.out, "small:1") // all were looked at before the first was removed
	b.run(0, "image", "rm", "small:1")
	b.run(1, "image", "rm", "small:1")
	b.run(125, "run", "--pull", "never", "--image", "small:1", "--", "true")
	for _, ref := range []string{"host", "-x", "a b", "x@sha256:1", ""} {
		for _, verb := range []string{"pull", "rm", "resolve"} {
			b.run(125, "image", verb, "--", ref)
		}
	}
}

// testImageNeedsNoKern: a look at the cache works without kern, and tells so.
func testImageNeedsNoKern(t *testing.T, bin string) {
	b := newImageBench(t, bin)
	b.registry.Put("x", "1", b.image)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, args := range [][]string{{"image", "ls"}, {"image", "resolve", b.host + "/x:1"}} {
		c := exec.CommandContext(ctx, b.bin, append([]string{"--kern", "/nonexistent"}, args...)...)
		c.Env = []string{"HOME=" + b.dir + "/home", "XDG_CACHE_HOME=" + b.dir + "/cache"}
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

// python loads an image with a Python that has no bytecode, and gives its name.
func (b *imageBench) python(config imagetest.Config) string {
	b.t.Helper()
	files := imagetest.Python()
	if files == nil {
		b.t.Skip("this machine has no Python in /usr to make an image of")
	}
	if config.Env == nil {
		config.Env = []string{"PATH=/usr/bin:/bin"}
	}
	i, err := imagetest.New(append(files, imagetest.Busybox("sh", "cat", "true")...), config)
	if err != nil {
		b.t.Fatal(err)
	}
	archive, err := i.Archive("py:1")
	if err != nil {
		b.t.Fatal(err)
	}
	b.stdin = archive
	b.run(0, "image", "load", "-")
	b.stdin = nil
	return "py:1"
}

// compiled waits for the entry that a background process makes, and gives its
// directory; "" when none comes.
func (b *imageBench) compiled(wait time.Duration) string {
	b.t.Helper()
	for end := time.Now().Add(wait); ; time.Sleep(50 * time.Millisecond) {
		found, _ := filepath.Glob(filepath.Join(b.dir, "cache/kern-sbx/pyc/*/complete"))
		if len(found) > 0 {
			return filepath.Dir(found[0])
		}
		if time.Now().After(end) {
			return ""
		}
	}
}

// gone waits until no process of ours is left.
func (b *imageBench) gone() {
	b.t.Helper()
	for end := time.Now().Add(30 * time.Second); len(withEnv("XDG_CACHE_HOME="+b.dir+"/cache")) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatal("a process is left")
		}
	}
}

const whence = "import json, sys; print(sys.pycache_prefix, json.__cached__.startswith('/kern-pyc/'))"

// testBytecode: the library of an image is compiled once, out of everybody's
// way, and no box has a say in it.
func testBytecode(t *testing.T, bin string) {
	b := newImageBench(t, bin)
	ref := b.python(imagetest.Config{})
	defer b.gone()

	// Nothing is made for what would not use it.
	b.run(0, "run", "--pyc-cache", "off", "--image", ref, "--", "python3", "-c", "pass")
	b.run(0, "run", "--image", ref, "--", "true")
	b.run(127, "run", "--image", ref, "--lang", "node", "-c", "1")
	b.run(125, "run", "--pyc-cache", "on", "--image", ref, "--", "true")
	b.gone()
	if _, err := os.Lstat(filepath.Join(b.dir, "cache/kern-sbx/pyc")); err == nil {
		t.Error("bytecode was made")
	}

	// A workspace that would take the compiler's place is not there when it runs.
	ws := filepath.Join(b.dir, "ws")
	if err := os.Mkdir(ws, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"py_compile.py", "importlib.py", "sitecustomize.py", "usercustomize.py", "encodings.py"} {
		if err := os.WriteFile(filepath.Join(ws, name), []byte("open('/workspace/ran', 'a').write(__name__)\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.run(0, "run", "-W", ws, "--image", ref, "--", "python3", "-I", "-c", whence)
	if b.out != "None False\n" {
		t.Errorf("before there is any: %q", b.out)
	}
	entry := b.compiled(time.Minute)
	if entry == "" {
		t.Fatal("no bytecode was made")
	}
	b.gone()
	if _, err := os.Lstat(filepath.Join(ws, "ran")); err == nil {
		t.Error("a module of the workspace ran")
	}
	for _, p := range []string{"-c", "-f"} {
		code := whence
		if p == "-f" {
			code = filepath.Join(b.dir, "x.py")
			if err := os.WriteFile(code, []byte(whence), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		b.run(0, "run", "--image", ref, p, code)
		if b.out != "/kern-pyc True\n" {
			t.Errorf("%s: %q", p, b.out)
		}
	}

	// No box changes it.
	b.run(0, "run", "--image", ref, "-c", `
import os, pathlib
tried = 0
for at, dirs, files in os.walk('/kern-pyc'):
    for act in (lambda: open(at + '/x.pyc', 'w'), lambda: os.rename(at, at + 'x'), lambda: os.chmod(at, 0o777), lambda: os.utime(at, (0, 0)),
                lambda: files and os.remove(at + '/' + files[0]), lambda: files and open(at + '/' + files[0], 'r+b')):
        try:
            r = act()
        except OSError as e:
            tried += 1
        else:
            if r != []:
                raise SystemExit('changed: ' + at)
print(tried > 100)`)
	if b.out != "True\n" {
		t.Errorf("%q", b.out)
	}

	// Where it would do harm it is left out.
	if err := os.Mkdir(filepath.Join(ws, ".venv"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, flags := range [][]string{
		{"--pyc-cache", "off"},
		{"-e", "PYTHONPATH=/workspace"},
		{"-e", "PYTHONPYCACHEPREFIX=/tmp/x"},
		{"-W", ws},
	} {
		b.run(0, append(append([]string{"run", "--image", ref}, flags...), "--", "python3", "-I", "-c", "import sys; print(sys.pycache_prefix)")...)
		if b.out == "/kern-pyc\n" {
			t.Errorf("%v: it is used", flags)
		}
	}
	for _, flags := range [][]string{{"-v", ws + ":/kern-pyc:ro"}, {"-v", ws + ":/kern-pyc/usr"}, {"--tmpfs", "/kern-pyc:1m"}} {
		b.run(125, append(append([]string{"run", "--image", ref}, flags...), "--", "python3")...)
	}
	// Another user of the box can read it.
	if os.Geteuid() == 0 && hasProgram("newuidmap") && hasSubordinates("root") {
		b.run(0, "run", "--user", "1000", "--image", ref, "-c", whence)
		if b.out != "/kern-pyc True\n" {
			t.Errorf("--user 1000: %q", b.out)
		}
	}

	b.run(0, "image", "rm", ref)
	if _, err := os.Lstat(entry); err == nil {
		t.Error("the image is gone and its bytecode is not")
	}
}

func hasProgram(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
}

// testPrecompile: the new image holds the bytecode, and stays whole.
func testPrecompile(t *testing.T, bin string) {
	b := newImageBench(t, bin)
	ref := b.python(imagetest.Config{Entrypoint: []string{"/bin/false"}})
	b.run(0, "image", "precompile", ref, "py:fast")
	if b.out != "py:fast\n" {
		t.Errorf("%q", b.out)
	}
	const code = "import json, os; print(os.path.exists(json.__cached__), '__pycache__' in json.__cached__)"
	b.run(0, "run", "--image", "py:fast", "-c", code)
	if b.out != "True True\n" {
		t.Errorf("%q", b.out)
	}
	b.gone()
	// It needs no other bytecode, and that is remembered.
	if e := b.compiled(time.Minute); e == "" {
		t.Error("not looked at")
	} else if _, err := os.Lstat(e + "/tree"); err == nil {
		t.Error("compiled a second time")
	}
	b.run(125, "image", "rm", ref)
	b.says(b.err, "py:fast")
	// Removed behind our back: kern would ask a registry for it, now or never.
	c := b.command()
	c.Path, c.Args = os.Getenv("KERN_BIN"), []string{"kern", "rmi", ref}
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	b.run(125, "run", "--pull", "never", "--image", "py:fast", "--", "true")
	b.says(b.err, "was built on "+ref)
	b.python(imagetest.Config{})
	b.run(0, "image", "rm", "py:fast")
	b.run(0, "image", "rm", ref)

	small, err := b.image.Archive("small:1")
	if err != nil {
		t.Fatal(err)
	}
	b.stdin = small
	b.run(0, "image", "load", "-")
	b.stdin = nil
	b.run(1, "image", "precompile", "small:1", "small:2")
	b.says(b.err, "python3")
	for _, bad := range [][2]string{{"none:1", "x:1"}, {"small:1", "small:1"}, {"small", "small:latest"}, {"small:1", "x\nRUN rm:1"}, {"small:1", "$HOME"}, {"small:1", "-x"}, {"small:1", "host"}, {"small:1", "x@sha256:" + strings.Repeat("0", 64)}} {
		b.run(125, "image", "precompile", "--", bad[0], bad[1])
	}
	b.run(0, "image", "ls", "--json")
	if strings.Contains(b.out, "small:2") {
		t.Error("something was made")
	}
	if left, _ := filepath.Glob(filepath.Join(b.dir, "cache/kern-sbx/run/*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// hasSubordinates says whether a user was lent numbers for other users of a box.
func hasSubordinates(name string) bool {
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		b, err := os.ReadFile(file)
		if err != nil || !strings.Contains("\n"+string(b), "\n"+name+":") {
			return false
		}
	}
	return true
}
