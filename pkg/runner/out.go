package runner

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// outName is the directory of the run that the box has at ResultsDir.
const outName = "out"

// resultsFile is what a driver of one piece of code writes there; a kernel's
// cell has a file named by its ID.
const resultsFile = "results"

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
