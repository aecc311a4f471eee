package workspace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"golang.org/x/sys/unix"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

func refused(t *testing.T, path string, words ...string) {
	t.Helper()
	o, err := OpenOutput(path)
	if err == nil {
		o.Close()
		t.Errorf("OpenOutput(%q) was accepted", path)
		return
	}
	var v *validate.Error
	if !errors.As(err, &v) || v.Value != path || v.Reason == "" {
		t.Errorf("OpenOutput(%q): %#v, want a *validate.Error for it", path, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("OpenOutput(%q): %v, want it to say %q", path, err, w)
		}
	}
	if strings.ContainsAny(err.Error(), "\n\x1b") {
		t.Errorf("%q holds raw control characters", err.Error())
	}
}

func TestOutput(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		dir := scratch(t)
		mkdir(t, dir+"/sub/in")
		t.Chdir(dir + "/sub")
		for _, path := range []string{dir + "/new", "rel", "../up", "./in//f", "in/../back", dir + "//sub/./in/../in/g"} {
			o, err := OpenOutput(path)
			must(t, err)
			content(t, path, "")
			must(t, o.Write(text("a longer first text")))
			must(t, o.Write(text("second")))
			must(t, o.Close())
			must(t, o.Close())
			content(t, path, "second")
		}
	})
}

func TestOutputKeepsUntilWritten(t *testing.T) {
	dir := scratch(t)
	write(t, dir+"/r", "yesterday's result")
	must(t, os.Chmod(dir+"/r", 0o600))
	o, err := OpenOutput(dir + "/r")
	must(t, err)
	content(t, dir+"/r", "yesterday's result")
	must(t, o.Close())
	content(t, dir+"/r", "yesterday's result")

	o, err = OpenOutput(dir + "/r")
	must(t, err)
	must(t, o.Write(text("new")))
	must(t, o.Close())
	content(t, dir+"/r", "new")
	if m := modeOf(t, dir+"/r"); m != 0o600 {
		t.Errorf("mode %o, want 600 as before", m)
	}
}

func TestOutputThatWasNotNeeded(t *testing.T) {
	dir := scratch(t)
	open := func(name string) *Output {
		t.Helper()
		o, err := OpenOutput(dir + "/" + name)
		must(t, err)
		return o
	}
	must(t, open("never").Close())
	absent(t, dir+"/never")

	write(t, dir+"/empty", "")
	must(t, open("empty").Close())
	content(t, dir+"/empty", "") // not ours

	o := open("nothing")
	must(t, o.Write(func(io.Writer) error { return nil }))
	must(t, o.Close())
	content(t, dir+"/nothing", "") // an empty result is a result

	o = open("filled")
	write(t, dir+"/filled", "by another")
	must(t, o.Close())
	content(t, dir+"/filled", "by another")

	o = open("replaced")
	must(t, os.Rename(dir+"/replaced", dir+"/away"))
	write(t, dir+"/replaced", "")
	must(t, o.Close())
	content(t, dir+"/replaced", "")

	o = open("cwd")
	t.Chdir("/")
	must(t, o.Close())
	absent(t, dir+"/cwd")
}

func TestOutputRefusals(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		dir := scratch(t)
		mkdir(t, dir+"/ws/sub")
		mkdir(t, dir+"/real/sub")
		write(t, dir+"/victim", "precious")
		must(t, os.Symlink(dir+"/victim", dir+"/ws/result.json"))
		must(t, os.Symlink("../created-through-link", dir+"/ws/dangling"))
		must(t, os.Symlink("../real", dir+"/ws/link"))
		must(t, os.Symlink("loop", dir+"/ws/loop"))
		must(t, os.Link(dir+"/victim", dir+"/ws/hard"))
		must(t, unix.Mkfifo(dir+"/ws/fifo", 0o600))
		must(t, unix.Mknod(dir+"/ws/sock", unix.S_IFSOCK|0o600, 0))
		write(t, dir+"/ws/file", "x")
		must(t, os.Symlink("/proc/self/fd", dir+"/ws/fds"))

		refused(t, "", "empty")
		refused(t, "a\x00b", "zero byte")
		refused(t, dir+"/ws/", "directory")
		refused(t, dir+"/ws", "directory")
		refused(t, dir+"/ws/..", "directory")
		refused(t, dir+"/ws/result.json", "symbolic link", dir+"/ws/result.json", `write "`+dir+`/victim"`)
		refused(t, dir+"/ws/dangling", "symbolic link")
		refused(t, dir+"/ws/link/out", `"`+dir+`/ws/link" is a symbolic link`, `write "`+dir+`/real/out"`)
		refused(t, dir+"/ws/link/sub/out", `"`+dir+`/ws/link" is a symbolic link`, `write "`+dir+`/real/sub/out"`)
		refused(t, dir+"/ws/link/../out", `"`+dir+`/ws/link" is a symbolic link`)
		refused(t, dir+"/ws/loop/out", "symbolic link")
		refused(t, dir+"/ws/loop", "symbolic link")
		refused(t, dir+"/ws/hard", "2 hard links")
		refused(t, dir+"/ws/fifo", "not a regular file")
		refused(t, dir+"/ws/sock", "not a regular file")
		refused(t, "/dev/null", "not a regular file")
		refused(t, dir+"/ws/missing/out", `no directory "`+dir+`/ws/missing"`)
		refused(t, dir+"/ws/file/out", `"`+dir+`/ws/file" is not a directory`)
		refused(t, dir+"/ws/fds/1", "symbolic link")
		refused(t, "/proc/"+strconv.Itoa(os.Getpid())+"/fd/1", "symbolic link")
		refused(t, dir+"/ws/"+strings.Repeat("n", 256), "too long")
		refused(t, dir+"/ws/no\x1b[31m\n/out", "no directory")

		t.Chdir(dir + "/ws")
		refused(t, "link/out", `"link" is a symbolic link`, `write "../real/out"`)
		refused(t, "result.json", "symbolic link")
		content(t, dir+"/victim", "precious")
		absent(t, dir+"/created-through-link")
		absent(t, dir+"/real/out")
	})
}

func TestOutputPermissions(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write everywhere")
	}
	dir := scratch(t)
	write(t, dir+"/f", "x")
	must(t, os.Chmod(dir+"/f", 0o400))
	refused(t, dir+"/f", "permission denied")
	mkdir(t, dir+"/d")
	must(t, os.Chmod(dir+"/d", 0o500))
	refused(t, dir+"/d/f", "permission denied")
}

// The box plants whatever it likes after the file was opened: what is written
// goes to the file that was opened, or nowhere.
func TestOutputAfterPlanting(t *testing.T) {
	dir := scratch(t)
	write(t, dir+"/victim", "precious")
	mkdir(t, dir+"/ws/out")
	for name, plant := range map[string]func(p string){
		"link": func(p string) { must(t, os.Remove(p)); must(t, os.Symlink(dir+"/victim", p)) },
		"hard": func(p string) { must(t, os.Remove(p)); must(t, os.Link(dir+"/victim", p)) },
		"fifo": func(p string) { must(t, os.Remove(p)); must(t, unix.Mkfifo(p, 0o600)) },
		"dir":  func(p string) { must(t, os.Remove(p)); must(t, os.Mkdir(p, 0o700)) },
		"up": func(p string) {
			must(t, os.Rename(dir+"/ws/out", dir+"/ws/old"))
			must(t, os.Symlink(dir, dir+"/ws/out"))
			must(t, os.Symlink("victim", dir+"/up"))
		},
	} {
		for _, wrote := range []bool{true, false} {
			o, err := OpenOutput(dir + "/ws/out/" + name)
			must(t, err)
			plant(dir + "/ws/out/" + name)
			if wrote {
				must(t, o.Write(text("result")))
			}
			must(t, o.Close())
			content(t, dir+"/victim", "precious")
			must(t, Remove(dir+"/ws/out"))
			must(t, Remove(dir+"/ws/old"))
			must(t, Remove(dir+"/up"))
			mkdir(t, dir+"/ws/out")
		}
	}
}

// While the file is opened, the box swaps it with a link and a hard link.
func TestOutputRaces(t *testing.T) {
	dir := scratch(t)
	write(t, dir+"/victim", "precious")
	mkdir(t, dir+"/ws")
	must(t, os.Symlink(dir+"/victim", dir+"/ws/link"))
	must(t, os.Link(dir+"/victim", dir+"/ws/hard"))
	write(t, dir+"/ws/r", "")
	ws := openDir(t, dir+"/ws")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				exchange(int(ws.Fd()), "r", []string{"link", "hard"}[i%2])
			}
		}
	}()
	opened := 0
	for range 3000 {
		if o, err := OpenOutput(dir + "/ws/r"); err == nil {
			opened++
			must(t, o.Write(text("result")))
			must(t, o.Close())
		}
	}
	close(stop)
	<-done
	t.Logf("opened %d of 3000", opened)
	content(t, dir+"/victim", "precious")
}

func TestOutputDescriptors(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	fd, err := unix.Dup(int(w.Fd())) // as a shell hands it over: without close-on-exec
	must(t, err)
	for _, path := range []string{"/dev/fd/%d", "/proc/self/fd/%d"} {
		o, err := OpenOutput(fmt.Sprintf(path, fd))
		must(t, err)
		must(t, o.Write(text("through ")))
		must(t, o.Close())
	}
	refused(t, fmt.Sprintf("/dev/fd/0%d", fd))
	refused(t, fmt.Sprintf("/dev/fd/+%d", fd))
	refused(t, "/dev/fd/")
	refused(t, "/dev/fd/-1")
	refused(t, "/dev/fd/99999", "not passed")
	refused(t, fmt.Sprintf("/dev/fd/%d", w.Fd()), "not passed") // our own, it has close-on-exec
	rd, err := unix.Dup(int(r.Fd()))
	must(t, err)
	refused(t, fmt.Sprintf("/dev/fd/%d", rd), "not open for writing")
	unix.Close(rd)
	unix.Close(fd)
	w.Close()
	b, err := io.ReadAll(r)
	if err != nil || string(b) != "through through " {
		t.Errorf("%q %v", b, err)
	}

	// 3>>file: what is there stays.
	dir := scratch(t)
	write(t, dir+"/log", "before ")
	fd, err = unix.Open(dir+"/log", unix.O_WRONLY|unix.O_APPEND, 0)
	must(t, err)
	o, err := OpenOutput("/dev/fd/" + strconv.Itoa(fd))
	must(t, err)
	must(t, o.Write(text("after")))
	must(t, o.Close())
	unix.Close(fd)
	content(t, dir+"/log", "before after")
}

func TestOutputClosedPipe(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	fd, err := unix.Dup(int(w.Fd()))
	must(t, err)
	defer unix.Close(fd)
	r.Close()
	w.Close()
	o, err := OpenOutput("/dev/fd/" + strconv.Itoa(fd))
	must(t, err)
	defer o.Close()
	if err := o.Write(text("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("error %v, want EPIPE", err)
	}
}

func TestOutputErrors(t *testing.T) {
	dir := scratch(t)
	o, err := OpenOutput(dir + "/f")
	must(t, err)
	mine := errors.New("mine")
	if err := o.Write(func(io.Writer) error { return mine }); !errors.Is(err, mine) {
		t.Errorf("error %v, want the writer's own", err)
	}
	must(t, o.Close())
}

func TestOutputFullDisk(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		dir := scratch(t)
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
		defer unix.Unmount(dir, unix.MNT_DETACH)
		o, err := OpenOutput(dir + "/f")
		must(t, err)
		// A writer that does not look at errors must not hide one.
		err = o.Write(func(w io.Writer) error {
			for range 64 {
				fmt.Fprintf(w, "%4096d", 0)
			}
			return nil
		})
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), dir+"/f") {
			t.Errorf("error %v, want ENOSPC that names the file", err)
		}
		must(t, o.Write(text("fits")))
		must(t, o.Close())
		content(t, dir+"/f", "fits")
	})
}

func BenchmarkOutput(b *testing.B) {
	dir := scratch(b)
	for b.Loop() {
		o, err := OpenOutput(dir + "/f")
		must(b, err)
		must(b, o.Close())
	}
}
