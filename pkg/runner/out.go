package runner

import (
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

// outName is the directory of the run that the box has at ResultsDir.
const outName = "out"

// resultsFile is what a driver of one piece of code writes there; a kernel's
// cell has a file named by its ID.
const resultsFile = "results"

// maxOut is the most that the code of a box may put there, in allocated bytes. It
// is no part of the workspace, and nothing but results belongs in it: a cell's are
// removed before the next one's come.
const maxOut = 2 * maxResultFile

// makeOut makes it, and the place in the code's directory that it is mounted on.
func (r *run) makeOut() error {
	if _, err := r.dir.mkdir(codeName+"/"+filepath.Base(ResultsDir), 0o755); err != nil {
		return err
	}
	if _, err := r.dir.mkdir(outName, 0o777); err != nil {
		return err
	}
	d, err := openDirAt(r.dir.dir, outName)
	if err != nil {
		return err
	}
	// Whatever the umask: another user of the box writes there too.
	if err := unix.Fchmod(int(d.Fd()), 0o777); err != nil {
		d.Close()
		return err
	}
	r.out = d
	r.atEnd(func() { d.Close() })
	return nil
}

func (r *run) outPath() string {
	if r.out == nil {
		return ""
	}
	return filepath.Join(r.dir.path, outName)
}

// watchOut ends the box when it puts more there than anybody can read (rule S12).
// Deleted files that it keeps open are counted where no other place of the box can
// have them: elsewhere they count against the workspace, if that has a limit.
func (r *run) watchOut() {
	if r.out == nil {
		return
	}
	b, s := r.box, r.spec
	q := workspace.Quota{Max: maxOut}
	var ws, out unix.Stat_t
	apart := s.inMemory() || unix.Stat(r.ws, &ws) == nil && unix.Fstat(int(r.out.Fd()), &out) == nil && ws.Dev != out.Dev
	if apart && !slices.ContainsFunc(s.Mounts, func(m validate.Mount) bool { return !m.ReadOnly }) {
		q.Hidden = func(dev uint64) int64 { return hiddenFiles(b.w.pid, dev) }
	}
	watch := workspace.NewWatch(r.out, q)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if n, full := watch.Wait(); full && !b.hasEnded() {
			r.outFull.Store(n)
			b.killInit()
		}
	}()
	r.stopOut = func() {
		watch.Stop()
		<-done
	}
	r.atEnd(r.stopOut)
}

// openResults opens what a driver wrote, nil when there is nothing. The box owns
// the directory: a link, a FIFO or a device in it is nothing.
func (r *run) openResults(name string) *os.File {
	if r.out == nil {
		return nil
	}
	fd, err := unix.Openat(int(r.out.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil
	}
	return os.NewFile(uintptr(fd), "results")
}

// results reads them into the Result.
func (r *run) results(res *Result, name string) {
	f := r.openResults(name)
	if f == nil {
		return
	}
	defer f.Close()
	res.Results, res.Truncated.Results = readRich(f)
}
