package runner

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

type unixStat = syscall.Stat_t

// proc is one process, told from a later one with the same number by its start
// time (clock ticks after boot).
type proc struct {
	pid   int
	start uint64
}

// readProc reads a file of the kernel's, without the questions that os.ReadFile
// asks of any file: what it answers is made at each read.
func readProc(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	b := make([]byte, 0, 2<<10)
	for {
		n, err := unix.Read(fd, b[len(b):cap(b)])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			return b, err
		}
		if b = b[:len(b)+n]; len(b) == cap(b) {
			b = slices.Grow(b, len(b))
		}
	}
}

// stat reads the fields of /proc/PID/stat that come after the name. The name
// is in parentheses and may hold anything, so the last parenthesis ends it.
func procStat(pid int) ([][]byte, bool) {
	b, err := readProc("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, false
	}
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return nil, false
	}
	f := bytes.Fields(b[i+1:])
	return f, len(f) >= 20
}

func procStart(pid int) uint64 {
	f, ok := procStat(pid)
	if !ok {
		return 0
	}
	n, _ := strconv.ParseUint(string(f[19]), 10, 64)
	return n
}

// procSession is the session of a process, 0 when it is gone.
func procSession(pid int) int {
	f, ok := procStat(pid)
	if !ok {
		return 0
	}
	n, _ := strconv.Atoi(string(f[3]))
	return n
}

// kill ends the process if it is still the one that was recorded.
func (p proc) kill() {
	if p.pid <= 1 || p.start == 0 {
		return
	}
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	// Looked at after the descriptor was taken: what has this start time now is
	// what the descriptor means.
	if procStart(p.pid) == p.start {
		unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}

// children lists the children of the first thread of a process. For kern, which
// has one, these are all; orphans that we adopt become ours through it too.
func children(pid int) []int {
	base := "/proc/" + strconv.Itoa(pid) + "/task/"
	b, err := readProc(base + strconv.Itoa(pid) + "/children")
	if err != nil {
		return childrenByScan(pid)
	}
	var out []int
	for _, f := range bytes.Fields(b) {
		if n, err := strconv.Atoi(string(f)); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// childrenByScan serves kernels built without CONFIG_PROC_CHILDREN.
func childrenByScan(pid int) []int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	var out []int
	for _, n := range names {
		c, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		if f, ok := procStat(c); ok && string(f[1]) == strconv.Itoa(pid) {
			out = append(out, c)
		}
	}
	return out
}

// status reads one field of /proc/PID/status.
func procStatus(pid int, field string) string {
	b, err := readProc("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte(field+":")); ok {
			return string(bytes.TrimSpace(v))
		}
	}
	return ""
}

// isBoxInit says whether a process is PID 1 of a namespace below ours.
func isBoxInit(pid int) bool {
	f := bytes.Fields([]byte(procStatus(pid, "NSpid")))
	return len(f) > 1 && string(f[len(f)-1]) == "1"
}

// catches says whether a process has a handler for a signal. PID 1 of a
// namespace ignores every signal for which it has none, so waiting for it to
// react would be waiting for nothing.
func catches(pid int, sig unix.Signal) bool {
	mask, err := strconv.ParseUint(procStatus(pid, "SigCgt"), 16, 64)
	return err == nil && mask&(1<<(uint(sig)-1)) != 0
}
