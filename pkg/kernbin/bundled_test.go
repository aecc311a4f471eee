package kernbin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/kernbin/pin"
)

// countingBundle notes each time it was asked.
func countingBundle(t testing.TB) (b bundle, asked func() int) {
	log := filepath.Join(t.TempDir(), "asked")
	return fakeBundle("echo x >>'" + log + "'; echo kern 0.33.0"), func() int {
		b, _ := os.ReadFile(log)
		return strings.Count(string(b), "x")
	}
}

func TestBundledIsWrittenOnce(t *testing.T) {
	b, asked := countingBundle(t)
	data := filepath.Join(t.TempDir(), "share", "kern-sbx")
	f := withBundle(Options{DataDirs: []string{data}}, b)
	k := mustFind(t, f)
	if k.Source != SourceBundled || k.Version != "0.33.0" || k.Path != data+"/kern/0.33.0/kern" {
		t.Errorf("got %+v", k)
	}
	first, err := lstat(k.Path)
	if err != nil {
		t.Fatal(err)
	}
	mustFind(t, f)
	again, err := lstat(k.Path)
	if err != nil {
		t.Fatal(err)
	}
	if identityOf(&first) != identityOf(&again) || asked() != 1 {
		t.Errorf("written again, or asked %d times", asked())
	}
	if first.Mode != kernMode {
		t.Errorf("mode %o", first.Mode)
	}
	for d := filepath.Dir(k.Path); len(d) >= len(filepath.Dir(data)); d = filepath.Dir(d) {
		if st, err := os.Stat(d); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v %v", d, st.Mode(), err)
		}
	}
	e, _ := os.ReadDir(filepath.Dir(k.Path))
	if len(e) != 2 {
		t.Errorf("left behind: %v", e)
	}
}

// Whatever is done to the written kern or its record, what is run afterwards is
// the bundled kern again.
func TestBundledTampering(t *testing.T) {
	evil := "#!/bin/sh\necho kern 0.33.0 evil\n"
	must := func(t *testing.T, errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	for name, tamper := range map[string]func(t *testing.T, kern, rec string){
		"content, in place, with the old mtime": func(t *testing.T, kern, rec string) {
			st, err := os.Stat(kern)
			must(t, err, os.Chmod(kern, 0o755), os.WriteFile(kern, []byte(evil), 0o755),
				os.Truncate(kern, st.Size()), os.Chtimes(kern, st.ModTime(), st.ModTime()), os.Chmod(kern, 0o555))
		},
		"renamed over": func(t *testing.T, kern, rec string) {
			must(t, os.WriteFile(kern+"2", []byte(evil), 0o555), os.Rename(kern+"2", kern))
		},
		"kern is a link": func(t *testing.T, kern, rec string) {
			must(t, os.WriteFile(kern+"2", []byte(evil), 0o555), os.Remove(kern), os.Symlink(kern+"2", kern))
		},
		"kern removed":     func(t *testing.T, kern, rec string) { must(t, os.Remove(kern)) },
		"kern is empty":    func(t *testing.T, kern, rec string) { must(t, os.Chmod(kern, 0o755), os.Truncate(kern, 0)) },
		"mode":             func(t *testing.T, kern, rec string) { must(t, os.Chmod(kern, 0o777)) },
		"not executable":   func(t *testing.T, kern, rec string) { must(t, os.Chmod(kern, 0o444)) },
		"record removed":   func(t *testing.T, kern, rec string) { must(t, os.Remove(rec)) },
		"record truncated": func(t *testing.T, kern, rec string) { must(t, os.Truncate(rec, 40)) },
		"record and kern from another file": func(t *testing.T, kern, rec string) {
			must(t, os.WriteFile(kern+"2", []byte(evil), 0o555), os.Rename(kern+"2", kern))
			st, err := lstat(kern)
			must(t, err, writeRecord(rec, record{Subject: strings.Repeat("0", 64), Version: "0.33.0", Ran: true, ID: identityOf(&st)}))
		},
		"record of another version": func(t *testing.T, kern, rec string) {
			st, err := lstat(kern)
			must(t, err, writeRecord(rec, record{Subject: "x", Version: "0.34.0", Ran: true, ID: identityOf(&st)}))
		},
		"record writable by others": func(t *testing.T, kern, rec string) { must(t, os.Chmod(rec, 0o666)) },
		"record is a link": func(t *testing.T, kern, rec string) {
			must(t, os.Rename(rec, rec+"2"), os.Symlink(rec+"2", rec))
		},
		"record is a fifo": func(t *testing.T, kern, rec string) { must(t, os.Remove(rec), unix.Mkfifo(rec, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			f := withBundle(Options{DataDirs: []string{t.TempDir() + "/d"}}, goodBundle)
			kern := mustFind(t, f).Path
			time.Sleep(10 * time.Millisecond) // ctime moves in ticks
			rec := filepath.Join(filepath.Dir(kern), recordName)
			tamper(t, kern, rec)
			k := mustFind(t, f)
			b, err := os.ReadFile(k.Path)
			st, lerr := lstat(k.Path)
			if err != nil || lerr != nil || string(b) != goodBundle.kern || st.Mode != kernMode {
				t.Errorf("after tampering: %q %o %v %v", b, st.Mode, err, lerr)
			}
			if r, ok := readRecord(rec); !ok || r.ID != identityOf(&st) || !r.Ran {
				t.Errorf("record %+v %v", r, ok)
			}
		})
	}
}

func TestOtherBytesOfTheSameVersion(t *testing.T) {
	o := Options{DataDirs: []string{t.TempDir() + "/d"}}
	mustFind(t, withBundle(o, goodBundle))
	other := fakeBundle("# another build\necho kern 0.33.0")
	k := mustFind(t, withBundle(o, other))
	if b, _ := os.ReadFile(k.Path); string(b) != other.kern {
		t.Errorf("runs %q", b)
	}
}

func TestDamagedBundles(t *testing.T) {
	bad := goodBundle
	bad.kern += "x"
	old := fakeBundle("echo kern 0.32.0")
	silent := fakeBundle("exit 3")
	for want, b := range map[string]bundle{"damaged": bad, "says it is 0.32.0": old, "does not run": silent} {
		// The second directory must not be tried: it would hide the damage.
		second := t.TempDir() + "/second"
		f := withBundle(Options{DataDirs: []string{t.TempDir() + "/d", second}}, b)
		for range 2 {
			if k, err := f.find(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v %v, want an error with %q", k, err, want)
			}
		}
		if _, err := os.Lstat(second); err == nil {
			t.Errorf("%s: went on to the second directory", want)
		}
	}
}

func TestDataDirOrderAndRefusals(t *testing.T) {
	d := t.TempDir()
	real := filepath.Join(d, "real")
	link := filepath.Join(d, "link")
	open := filepath.Join(d, "open")
	group := filepath.Join(d, "group")
	file := filepath.Join(d, "file")
	deep := filepath.Join(d, "deep")
	if err := errors.Join(os.Mkdir(real, 0o700), os.Symlink(real, link), os.Symlink(d+"/nowhere", d+"/dangling"),
		os.Mkdir(open, 0o700), os.Chmod(open, 0o777), os.Mkdir(group, 0o700), os.Chmod(group, 0o720),
		os.WriteFile(file, nil, 0o600), os.MkdirAll(deep+"/kern", 0o700), os.Chmod(deep+"/kern", 0o777),
		os.MkdirAll(d+"/swap/kern", 0o700), os.Symlink(real, d+"/swap/kern/0.33.0")); err != nil {
		t.Fatal(err)
	}
	good := d + "/good"
	for _, c := range []struct{ dir, why string }{
		{"", "not an absolute path"},
		{"rel/ative", "not an absolute path"},
		{"/", "cannot be private"},
		{link, "is a symbolic link"},
		{d + "/dangling", "is a symbolic link"},
		{d + "/dangling/x", "no such file"},
		{open, "can be written by others (mode 0777)"},
		{open + "/below", "can be written by others"},
		{open + "/below/deeper", "can be written by others"},
		{group, "can be written by others"},
		{file, "is not a directory"},
		{file + "/x", "not a directory"},
		{deep, "deep/kern can be written by others"},
		{d + "/swap", "0.33.0 is a symbolic link"},
		{"/proc/kern-sbx", ""},
	} {
		_, err := withBundle(Options{DataDirs: []string{c.dir}}, goodBundle).find(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.why) || !strings.Contains(err.Error(), "--kern") {
			t.Errorf("%q: got %v, want an error with %q", c.dir, err, c.why)
		}
		k := mustFind(t, withBundle(Options{DataDirs: []string{c.dir, good}}, goodBundle))
		if !strings.HasPrefix(k.Path, good+"/") {
			t.Errorf("%q: used %s", c.dir, k.Path)
		}
	}
	for _, made := range []string{open, real} {
		if e, _ := os.ReadDir(made); len(e) != 0 {
			t.Errorf("something was made in %s: %v", made, e)
		}
	}
	if _, err := withBundle(Options{}, goodBundle).find(t.Context()); err == nil || !strings.Contains(err.Error(), "no candidate") {
		t.Errorf("no directories: %v", err)
	}
	// Readable by others is only tidied up.
	if err := os.Mkdir(d+"/shown", 0o755); err != nil {
		t.Fatal(err)
	}
	mustFind(t, withBundle(Options{DataDirs: []string{d + "/shown"}}, goodBundle))
	if st, _ := os.Stat(d + "/shown"); st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", st.Mode())
	}
	// A link above the last name is followed, and the path found has none.
	k := mustFind(t, withBundle(Options{DataDirs: []string{link + "/data"}}, goodBundle))
	if k.Path != real+"/data/kern/0.33.0/kern" {
		t.Errorf("path %s", k.Path)
	}
}

// As in /tmp, where anybody may have made kern-sbx-UID first.
func TestDirectoryOfAnotherUser(t *testing.T) {
	asRoot(t)
	tmp := t.TempDir()
	if err := os.Chmod(tmp, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	theirs := filepath.Join(tmp, "kern-sbx-0")
	if err := os.Mkdir(theirs, 0o700); err != nil {
		t.Fatal(err)
	}
	otherUser(t, theirs)
	for _, dir := range []string{theirs, theirs + "/kern-sbx"} {
		_, err := withBundle(Options{DataDirs: []string{dir}}, goodBundle).find(t.Context())
		if err == nil || !strings.Contains(err.Error(), "belongs to uid 12345") {
			t.Errorf("%s: got %v", dir, err)
		}
	}
	// The directory is ours, one in it is not.
	ours := filepath.Join(tmp, "ours")
	if err := os.MkdirAll(ours+"/kern/0.33.0", 0o700); err != nil {
		t.Fatal(err)
	}
	otherUser(t, ours+"/kern/0.33.0")
	if _, err := withBundle(Options{DataDirs: []string{ours}}, goodBundle).find(t.Context()); err == nil {
		t.Error("a version directory of another user was used")
	}
	// Files planted in a directory that is ours: a kern and a record of their own.
	mine := filepath.Join(tmp, "mine")
	k := mustFind(t, withBundle(Options{DataDirs: []string{mine}}, goodBundle))
	rec := filepath.Join(filepath.Dir(k.Path), recordName)
	otherUser(t, k.Path)
	st, err := lstat(k.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeRecord(rec, record{Subject: goodBundle.sum, Version: "0.33.0", Ran: true, ID: identityOf(&st)}); err != nil {
		t.Fatal(err)
	}
	mustFind(t, withBundle(Options{DataDirs: []string{mine}}, goodBundle))
	if st, err := os.Stat(k.Path); err != nil || st.Sys() == nil {
		t.Fatal(err)
	} else if now, _ := lstat(k.Path); now.Uid != 0 {
		t.Errorf("kern belongs to uid %d", now.Uid)
	}
	// A directory of ours inside a sticky one is safe, in an open one it is not.
	if err := os.Chmod(tmp, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := withBundle(Options{DataDirs: []string{mine}}, goodBundle).find(t.Context()); err == nil {
		t.Error("used a directory that anybody can swap")
	}
}

func TestNoexecMount(t *testing.T) {
	asRoot(t)
	m := t.TempDir()
	if err := unix.Mount("tmpfs", m, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, "size=8m,mode=0700"); err != nil {
		t.Skipf("cannot mount here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	second := t.TempDir() + "/second"
	b, asked := countingBundle(t)
	f := withBundle(Options{DataDirs: []string{m + "/d", second}}, b)
	var first unix.Stat_t
	for i := range 3 {
		_, err := f.find(t.Context())
		var ne *NotExecutableError
		if !errors.As(err, &ne) || !errors.Is(err, unix.EACCES) || ne.Dir != m+"/d/kern/0.33.0" ||
			!strings.Contains(err.Error(), "--kern") || !strings.Contains(err.Error(), ne.Dir) {
			t.Fatalf("got %v", err)
		}
		st, err := lstat(m + "/d/kern/0.33.0/kern")
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && identityOf(&st) != identityOf(&first) {
			t.Error("written again though it was whole")
		}
		first = st
	}
	if _, err := os.Lstat(second); err == nil {
		t.Error("went on to the second directory without saying so")
	}
	remount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("", m, "", unix.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	remount(0)
	mustFind(t, f)
	mustFind(t, f)
	if asked() != 1 {
		t.Errorf("asked %d times, want once", asked())
	}
	// noexec after it was seen to run.
	remount(unix.MS_NOEXEC)
	if _, err := f.find(t.Context()); !errors.As(err, new(*NotExecutableError)) {
		t.Errorf("got %v", err)
	}
}

func TestReadOnlyAndFullDataDirs(t *testing.T) {
	asRoot(t)
	m := t.TempDir()
	if err := unix.Mount("tmpfs", m, "tmpfs", 0, "size=64k,mode=0700"); err != nil {
		t.Skipf("cannot mount here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	f := withBundle(Options{DataDirs: []string{m + "/d"}}, goodBundle)
	k := mustFind(t, f)
	if err := unix.Mount("", m, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	mustFind(t, f) // what is there and whole is used
	other := fakeBundle("#\necho kern 0.33.0")
	if _, err := withBundle(f.Options, other).find(t.Context()); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("got %v", err)
	}
	if err := unix.Mount("", m, "", unix.MS_REMOUNT, "size=64k"); err != nil {
		t.Fatal(err)
	}
	full := fakeBundle("echo kern 0.33.0\n#" + strings.Repeat("x", 256<<10))
	if _, err := withBundle(f.Options, full).find(t.Context()); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("got %v", err)
	}
	if b, _ := os.ReadFile(k.Path); string(b) != goodBundle.kern {
		t.Error("a write that failed changed the kern that was there")
	}
	if e, _ := os.ReadDir(filepath.Dir(k.Path)); len(e) != 2 {
		t.Errorf("left behind: %v", e)
	}
}

func TestConcurrentFirstWrite(t *testing.T) {
	b, asked := countingBundle(t)
	f := withBundle(Options{DataDirs: []string{t.TempDir() + "/d"}}, b)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			k, err := f.find(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			if out, err := exec.Command(k.Path, "--version").Output(); err != nil || string(out) != "kern 0.33.0\n" {
				t.Errorf("%q %v", out, err)
			}
		})
	}
	wg.Wait()
	if n := asked(); n != 16+1 { // each goroutine ran it once itself
		t.Errorf("proved %d times, want once", n-16)
	}
}

// childEnv makes the test binary a process that finds the bundle below a directory.
const childEnv = "KERNBIN_TEST_DATA"

func TestFindInAChild(t *testing.T) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		t.Skip("only a helper of TestConcurrentProcesses")
	}
	b := goodBundle
	if os.Getenv(childEnv+"_OTHER") != "" {
		b = fakeBundle("# other bytes\necho kern 0.33.0")
	}
	for range 20 {
		k := mustFind(t, withBundle(Options{DataDirs: []string{dir}}, b))
		// Another process may have put its own bytes there since: whole ones.
		if out, err := exec.Command(k.Path, "--version").Output(); err != nil || string(out) != "kern 0.33.0\n" {
			t.Fatalf("%q %v", out, err)
		}
	}
}

// Two builds with different bytes of one version, writing over each other.
func TestConcurrentProcesses(t *testing.T) {
	dir := t.TempDir() + "/d"
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFindInAChild$", "-test.count=1")
			cmd.Env = append(os.Environ(), childEnv+"="+dir)
			if i%2 == 1 {
				cmd.Env = append(cmd.Env, childEnv+"_OTHER=1")
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	k := mustFind(t, withBundle(Options{DataDirs: []string{dir}}, goodBundle))
	if b, _ := os.ReadFile(k.Path); string(b) != goodBundle.kern {
		t.Errorf("ends as %q", b)
	}
	if e, _ := os.ReadDir(filepath.Dir(k.Path)); len(e) != 2 {
		t.Errorf("left behind: %v", e)
	}
}

// A writer that was stopped while it held the lock holds up nobody for good.
func TestLockHeldByAStoppedProcess(t *testing.T) {
	data := t.TempDir() + "/d"
	dir := data + "/kern/0.33.0"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	unlock := lockDir(t.Context(), dir)
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	lockDir(ctx, dir)()
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestSweepTemp(t *testing.T) {
	d := t.TempDir()
	past := time.Now().Add(-2 * time.Hour)
	for _, n := range []string{tempPrefix + "old", tempPrefix + "new", "kern"} {
		write(t, d+"/"+n, "")
		if !strings.HasSuffix(n, "new") {
			if err := os.Chtimes(d+"/"+n, past, past); err != nil {
				t.Fatal(err)
			}
		}
	}
	sweepTemp(d)
	e, _ := os.ReadDir(d)
	if len(e) != 2 || e[0].Name() != tempPrefix+"new" || e[1].Name() != "kern" {
		t.Errorf("left: %v", e)
	}
}

// The bundle of a build with -tags embedkern is the one the pin and make say.
func TestTheBuildsOwnBundle(t *testing.T) {
	p, err := pin.Parse(pinFile)
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := parseVersion(p.Kern); !ok || n[0] == MinMajor && n[1] < MinMinor {
		t.Errorf("the pinned kern %q is not one that Find accepts", p.Kern)
	}
	version, sum, ok := Bundled()
	if !ok {
		if bundledKern != "" {
			t.Error("bytes without a bundle")
		}
		t.Skip("built without -tags embedkern: there is no kern inside")
	}
	got := sha256.Sum256([]byte(bundledKern))
	if hex.EncodeToString(got[:]) != sum || version != p.Kern || bundledSum != sum+"  kern\n" {
		t.Errorf("bundled %s %s, bytes hash to %x", version, sum, got)
	}
	if _, ok := p.For(runtime.GOARCH); !ok {
		t.Errorf("a bundle for %s, which is not pinned", runtime.GOARCH)
	}
	k, err := Find(t.Context(), Options{DataDirs: []string{t.TempDir() + "/d"}})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(k.Path, "--version").Output(); err != nil || string(out) != "kern "+version+"\n" {
		t.Errorf("%q %v", out, err)
	}
}

func BenchmarkFindBundledWarm(b *testing.B) {
	data := []string{b.TempDir() + "/d"}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	find := func() (*Kern, error) { return Find(ctx, Options{DataDirs: data}) }
	if _, _, ok := Bundled(); !ok {
		f := withBundle(Options{DataDirs: data}, goodBundle)
		find = func() (*Kern, error) { return f.find(ctx) }
	}
	for b.Loop() {
		if _, err := find(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFindBundledCold(b *testing.B) {
	d := b.TempDir()
	i := 0
	for b.Loop() {
		i++
		o := Options{DataDirs: []string{fmt.Sprint(d, "/", i)}}
		var err error
		if _, _, ok := Bundled(); ok {
			_, err = Find(b.Context(), o)
		} else {
			_, err = withBundle(o, goodBundle).find(b.Context())
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFindForeignWarm(b *testing.B) {
	f := testFinder(Options{Flag: script(b, b.TempDir(), "kern", "echo kern 0.33.0"), CacheDir: b.TempDir() + "/c"})
	for b.Loop() {
		if _, err := f.find(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
