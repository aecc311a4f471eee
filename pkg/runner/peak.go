package runner

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// samplePeak is how often the kernel's high-water mark of a box's cgroup is
// read. kern removes the cgroup as soon as the box is gone, so its last value
// cannot be read afterwards.
const samplePeak = 50 * time.Millisecond

// peakReader reads memory.peak of the cgroup that kern made for a box.
type peakReader struct {
	f    *os.File
	most int64
}

// openPeak finds that cgroup; nil where kern made none.
func openPeak(pid int) *peakReader {
	b, err := readProc("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if !ok || !strings.Contains(filepath.Base(path), "kern-box-") {
			continue
		}
		f, err := os.Open(filepath.Join("/sys/fs/cgroup", path, "memory.peak"))
		if err != nil {
			return nil
		}
		p := &peakReader{f: f}
		p.sample()
		return p
	}
	return nil
}

func (p *peakReader) sample() {
	if p == nil {
		return
	}
	buf := make([]byte, 32)
	n, _ := p.f.ReadAt(buf, 0)
	if v, err := strconv.ParseInt(string(bytes.TrimSpace(buf[:n])), 10, 64); err == nil {
		p.most = max(p.most, v)
	}
}

func (p *peakReader) peak() int64 {
	if p == nil {
		return 0
	}
	p.f.Close()
	return p.most
}
