package runner

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFindDirs(t *testing.T) {
	private := fmt.Sprintf("/tmp/kern-sbx-%d", os.Getuid())
	for _, r := range []struct {
		env  map[string]string
		want Dirs
	}{
		{nil, Dirs{Private: private}},
		{map[string]string{"HOME": "relative", "XDG_CACHE_HOME": "also"}, Dirs{Private: private}},
		{map[string]string{"HOME": "/h"}, Dirs{"/h/.cache/kern-sbx", "/h/.local/share/kern-sbx", private, "/h/.config/kern-sbx"}},
		{map[string]string{"HOME": "/h", "XDG_CACHE_HOME": "c", "XDG_DATA_HOME": "/d"}, Dirs{"/h/.cache/kern-sbx", "/d/kern-sbx", private, "/h/.config/kern-sbx"}},
		{map[string]string{"XDG_CACHE_HOME": "/c"}, Dirs{Cache: "/c/kern-sbx", Private: private}},
	} {
		if got := FindDirs(func(k string) string { return r.env[k] }); got != r.want {
			t.Errorf("%v: %+v, want %+v", r.env, got, r.want)
		}
	}
}

// TestUsable: whatever another user could have prepared is not used.
func TestUsable(t *testing.T) {
	root := os.Geteuid() == 0
	tmp := t.TempDir()
	mk := func(name string, mode os.FileMode) string {
		p := filepath.Join(tmp, name)
		if err := os.Mkdir(p, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	good := mk("good", 0o700)
	link := filepath.Join(tmp, "link")
	if err := os.Symlink(good, link); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(tmp, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := mk("foreign", 0o700)
	if root {
		if err := os.Chown(foreign, 12345, 12345); err != nil {
			t.Fatal(err)
		}
	}
	private := filepath.Join(tmp, "private")
	for _, r := range []struct {
		name, dir string
		ok, skip  bool
	}{
		{"ours", good, true, false},
		{"missing", filepath.Join(tmp, "a", "b"), true, false},
		{"readable by others", mk("readable", 0o755), true, false},
		{"unset", "", false, false},
		{"world-writable", mk("world", 0o777), false, false},
		{"sticky like /tmp", mk("sticky", 0o1777|os.ModeSticky), false, false},
		{"group-writable", mk("group", 0o770), false, false},
		{"symbolic link", link, false, false},
		{"file", file, false, false},
		{"below a file", filepath.Join(file, "x"), false, false},
		{"foreign", foreign, false, !root},
		{"unwritable", mk("unwritable", 0o500), false, root},
	} {
		t.Run(r.name, func(t *testing.T) {
			if r.skip {
				t.Skip("this row needs root, or a user who is not")
			}
			want := private
			if r.ok {
				want = r.dir
			}
			if got, err := (Dirs{Private: private}).Usable(r.dir); err != nil || got != want {
				t.Errorf("%s, %v; want %s", got, err, want)
			}
		})
	}
	for _, bad := range []string{link, file, filepath.Join(tmp, "world")} {
		if got, err := (Dirs{Private: bad}).Usable(""); err == nil {
			t.Errorf("%s was used", got)
		} else if !strings.Contains(err.Error(), bad) {
			t.Errorf("%v does not name %s", err, bad)
		}
	}
}

// TestForgetMakesNothing: looking for what kern left must not make it.
func TestForgetMakesNothing(t *testing.T) {
	x := filepath.Join(t.TempDir(), "runtime")
	t.Setenv("XDG_RUNTIME_DIR", x)
	forgetBox(namePrefix+"0123456789abcdef", proc{12345, 678})
	if _, err := os.Lstat(x); err == nil {
		t.Errorf("%s was made", x)
	}
	// And what is there goes, without a look at anything else.
	for _, f := range []string{"kern/env/" + namePrefix + "0123456789abcdef-12345", "kern/env/other-12345", "kern/waitexit/12345-678"} {
		p := filepath.Join(x, f)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("SECRET=1"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	forgetBox(namePrefix+"0123456789abcdef", proc{12345, 678})
	left, _ := filepath.Glob(x + "/kern/*/*")
	if len(left) != 1 || filepath.Base(left[0]) != "other-12345" {
		t.Errorf("left: %v", left)
	}
}

// deadRun makes a run's directory whose owner has died.
func deadRun(t testing.TB, base string) *runDir {
	t.Helper()
	r, err := makeRunDir(base)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *runDir) die() { r.dir.Close(); r.base.Close() }

func TestSweep(t *testing.T) {
	base := t.TempDir()
	alive := deadRun(t, base)
	defer alive.die()
	if _, err := alive.mkdir("workspace", 0o755); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		d := deadRun(t, base)
		if err := d.write("file", 0o600, []byte("x")); err != nil {
			t.Fatal(err)
		}
		d.die()
	}
	// What somebody planted: links to what must stay, and names that are not ours.
	outside := t.TempDir()
	keep := filepath.Join(outside, "keep")
	if err := os.WriteFile(keep, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(base, "run")
	for _, name := range []string{"0000000000000001", "not-a-run"} {
		if err := os.Symlink(outside, filepath.Join(run, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(run, "notes"), 0o700); err != nil {
		t.Fatal(err)
	}
	in := deadRun(t, base)
	if err := os.Symlink(outside, filepath.Join(in.path, "out")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(keep, filepath.Join(in.path, recordFile)); err != nil {
		t.Fatal(err)
	}
	in.die()

	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { sweep(base, "") })
	}
	all.Wait()
	var left []string
	entries, err := os.ReadDir(run)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := fmt.Sprintf("[0000000000000001 %s not-a-run notes]", alive.name); len(left) != 4 {
		t.Errorf("left %v, want %s", left, want)
	}
	for _, p := range []string{keep, filepath.Join(alive.path, "workspace"), filepath.Join(run, alive.name)} {
		if _, err := os.Lstat(p); err != nil {
			t.Error(err)
		}
	}
}

// TestMakeRunDirBesideSweeps: a directory that was handed out is there and
// locked, however many sweeps run at the same time.
func TestMakeRunDirBesideSweeps(t *testing.T) {
	base := t.TempDir()
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					sweep(base, "")
				}
			}
		})
	}
	for range 500 {
		r, err := makeRunDir(base)
		if err != nil {
			t.Error(err)
			break
		}
		if err := r.write("f", 0o600, nil); err != nil {
			t.Error(err)
		}
		if err := r.remove(time.Minute, nil); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	all.Wait()
}

// TestMakeRunDirDoesNotWait: another kern-sbx that was stopped with every lock
// below the base in its hand keeps nobody from starting.
func TestMakeRunDirDoesNotWait(t *testing.T) {
	base := t.TempDir()
	other := deadRun(t, base)
	defer other.die()
	if err := flock(other.base, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		r, err := makeRunDir(base)
		if err == nil {
			err = r.remove(time.Minute, nil)
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("it waits for a lock of another process")
	}
}

// TestSweepKills: a recorded process is ended only when it is the one that was
// recorded.
func TestSweepKills(t *testing.T) {
	for _, r := range []struct {
		name   string
		change func(rec string, w proc) string
		dies   bool
	}{
		{"as recorded", nil, true},
		{"another boot", func(rec string, _ proc) string { return strings.ReplaceAll(rec, bootID(), "another") }, false},
		{"another start time", func(rec string, w proc) string {
			return strings.ReplaceAll(rec, fmt.Sprint(w.start), fmt.Sprint(w.start+1))
		}, false},
		{"no start time", func(rec string, w proc) string { return strings.ReplaceAll(rec, fmt.Sprint(w.start), "0") }, false},
		{"another version", func(rec string, _ proc) string { return strings.Replace(rec, "1 ", "2 ", 1) }, false},
		{"a number missing", func(rec string, _ proc) string { return rec[:strings.LastIndexByte(rec, ' ')] }, false},
	} {
		t.Run(r.name, func(t *testing.T) {
			c := exec.Command("sleep", "300")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { c.Wait(); close(ended) }()
			defer c.Process.Kill()
			w := proc{c.Process.Pid, procStart(c.Process.Pid)}
			base := t.TempDir()
			d := deadRun(t, base)
			if err := d.record(w, w); err != nil {
				t.Fatal(err)
			}
			if r.change != nil {
				p := filepath.Join(d.path, recordFile)
				text, _ := os.Readlink(p)
				os.Remove(p)
				if err := os.Symlink(r.change(text, w), p); err != nil {
					t.Fatal(err)
				}
			}
			d.die()
			sweep(base, "")
			if _, err := os.Lstat(d.path); err == nil {
				t.Error("the directory is still there")
			}
			died := false
			wait := 300 * time.Millisecond
			if r.dies {
				wait = 10 * time.Second
			}
			select {
			case <-ended:
				died = true
			case <-time.After(wait):
			}
			if died != r.dies {
				t.Errorf("died: %v", died)
			}
		})
	}
}

// TestRemoveInBackground: what takes long goes on in a process of its own,
// which waits for this one to end and holds the lock.
func TestRemoveInBackground(t *testing.T) {
	base := t.TempDir()
	r := deadRun(t, base)
	if _, err := r.mkdir("workspace", 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 20000 {
		if err := os.Mkdir(filepath.Join(r.path, "workspace", fmt.Sprint(i)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// Stands for a deletion that is not done in time.
	if err := r.leave([]string{sweepAs}); err != nil {
		t.Fatal(err)
	}
	path := r.path
	r.die() // the lock is the other process's now
	if again, err := os.Open(path); err != nil {
		t.Error(err)
	} else {
		if flock(again, unix.LOCK_EX|unix.LOCK_NB) == nil {
			t.Error("the lock is free while the deletion waits")
		}
		again.Close()
	}
	sweep(base, "")
	if _, err := os.Lstat(path); err != nil {
		t.Error("a sweep took what another process deletes")
	}
	// The pipe's write end is what this process ends with; here it is closed by
	// hand, as the collector would do for a process that lives on.
	closeSweepPipes(t)
	for wait := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Lstat(path); err != nil {
			break
		}
		if time.Now().After(wait) {
			t.Fatal("not deleted")
		}
	}
}

// closeSweepPipes closes the write ends that leave keeps open. They are the
// only pipes of this process that nothing else refers to: found by having the
// sweeper's read end on the other side.
func closeSweepPipes(t *testing.T) {
	t.Helper()
	for _, pid := range children(os.Getpid()) {
		t.Log("child", pid)
	}
	link := ""
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, n := range names {
		b, _ := os.ReadFile(n)
		if strings.HasPrefix(string(b), "kern-sbx\x00"+sweepAs+"\x00") {
			link, _ = os.Readlink(filepath.Join(filepath.Dir(n), "fd/3"))
		}
	}
	if link == "" {
		t.Fatal("no process goes on with the deletion")
	}
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, n := range fds {
		if l, _ := os.Readlink(n); l == link {
			var fd int
			fmt.Sscanf(filepath.Base(n), "%d", &fd)
			unix.Close(fd)
			return
		}
	}
	t.Fatal("the pipe to it is closed already")
}

func TestRemovePatience(t *testing.T) {
	base := t.TempDir()
	r := deadRun(t, base)
	if err := r.remove(0, nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(r.path); err == nil {
		t.Error("without a sweeper the deletion is waited for")
	}
	// A sweeper that cannot be started changes nothing.
	r = deadRun(t, base)
	r.dir.Close() // a descriptor that cannot be handed on
	if err := r.remove(0, []string{sweepAs}); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(r.path); err == nil {
		t.Error("not deleted")
	}
}

// TestSweepInheritedRefuses: by hand it does nothing.
func TestSweepInheritedRefuses(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d := t.TempDir()
	victim := filepath.Join(d, "0123456789abcdef")
	if err := os.Mkdir(victim, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(d)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, files := range [][]*os.File{nil, {null, dir, dir}, {null, null, null}} {
		c := exec.Command(self, sweepAs, "0123456789abcdef")
		c.ExtraFiles = files
		if c.Run() == nil {
			t.Error("not refused")
		}
	}
	for _, name := range []string{"..", "", "0123456789abcde/", "0123456789ABCDEF"} {
		if isRunName(name) {
			t.Errorf("%q is the name of a run", name)
		}
	}
	if _, err := os.Lstat(victim); err != nil {
		t.Error(err)
	}
}

func TestOncePerBoot(t *testing.T) {
	d := Dirs{Cache: t.TempDir(), Private: "/dev/null/x"}
	if !OncePerBoot(d, "a") || OncePerBoot(d, "a") || !OncePerBoot(d, "b") {
		t.Error("not once")
	}
	if err := os.WriteFile(filepath.Join(d.Cache, "boot-a"), []byte("another boot"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !OncePerBoot(d, "a") || OncePerBoot(d, "a") {
		t.Error("not once after a boot")
	}
	bad := Dirs{Private: "/dev/null/x"}
	for range 2 {
		if !OncePerBoot(bad, "a") {
			t.Error("what cannot be remembered is said")
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add("1 0a1b2c3d 12 34 56 78")
	f.Add("1 b 1 34 -1 78")
	f.Fuzz(func(t *testing.T, b string) {
		r, ok := parseRecord(b)
		if ok && (r.s.pid <= 1 || r.w.pid <= 1 || r.String() != b) {
			t.Errorf("%+v was taken from %q", r, b)
		}
	})
}

func TestRecordRoundTrip(t *testing.T) {
	r := deadRun(t, t.TempDir())
	defer r.die()
	s, w := proc{12, 34}, proc{56, 1 << 63}
	if err := r.record(s, w); err != nil {
		t.Fatal(err)
	}
	rec, ok := r.readRecord()
	if !ok || rec != (boxRecord{bootID(), s, w}) {
		t.Errorf("%+v %v", rec, ok)
	}
	if r.record(s, w) == nil {
		t.Error("a record was overwritten")
	}
}
