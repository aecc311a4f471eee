package runner

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

const (
	// AutoSize stands for the default limit of a workspace: that of
	// workspace.DefaultMax for a private one, none for one that is kept.
	AutoSize = validate.Size(-1)
	// mostFiles bounds Result.Files.
	mostFiles = 100_000
	// scanTime bounds the search for changes after the code has ended: hostile code
	// makes in a minute what takes an hour to look through.
	scanTime = 15 * time.Second
	// overFile is how much more than the whole workspace (or the memory, if that is
	// more) one file may hold: the kernel ends the write, and what stands then is seen
	// to be too much.
	overFile = 1 << 20
	// mostHidden bounds a look for deleted files: processes, and files of each.
	mostHidden = 4096
)

// Name is a name out of a box. In JSON it is a string when it is UTF-8, with
// control characters escaped, and {"encoding":"base64","data":…} when it is not.
type Name string

// MarshalJSON implements json.Marshaler.
func (n Name) MarshalJSON() ([]byte, error) {
	if !utf8.ValidString(string(n)) {
		return fmt.Appendf(nil, `{"encoding":"base64","data":%q}`, base64.StdEncoding.EncodeToString([]byte(n))), nil
	}
	doc, err := json.Marshal(string(n))
	for i := 0; i < len(doc); i++ {
		// encoding/json leaves DEL and the C1 controls as they are.
		switch {
		case doc[i] == 0x7f:
			doc = bytes.Replace(doc, doc[i:i+1], []byte(`\u007f`), 1)
		case doc[i] == 0xc2 && doc[i+1] < 0xa0:
			doc = bytes.Replace(doc, doc[i:i+2], fmt.Appendf(nil, `\u%04x`, doc[i+1]), 1)
		}
	}
	return doc, err
}

// watching is what a run does about its workspace while a box has it: the limit
// on what it may hold, and the changes in it.
type watching struct {
	dir    *os.File // the workspace; nil when nothing is asked for
	max    int64
	used   workspace.Used
	watch  *workspace.Watch
	ended  chan struct{} // closed when watch is over and what follows is done
	space  atomic.Int64  // what the workspace held when it was too much
	before *workspace.Scan
	after  *workspace.Scan
	looked bool

	// stopOut ends the watch over ResultsDir, nil without one; outFull is what was
	// there when it was too much.
	stopOut func()
	outFull atomic.Int64

	// With the workspace in memory: that one, the one on disk, what of it stays as
	// it is, and whether it has been copied back or what kept it from that.
	memory, kept *os.File
	keep         []string
	copied       bool
	lost         error
}

// private says that the workspace is in the run's own directory.
func (r *run) private() bool { return strings.HasPrefix(r.ws, r.dir.path+"/") }

// watchWorkspace measures and scans the workspace before the box has it, as far as
// that is needed: not at all for one that is private and empty.
func (r *run) watchWorkspace(ctx context.Context) error {
	s := r.spec
	w := &r.watching
	track := s.Track && !s.prepares
	if w.max = int64(s.WorkspaceMax); w.max < 0 {
		w.max = 0
	}
	if w.max == 0 && !track {
		return nil
	}
	if s.inMemory() {
		return nil // it is bounded by itself, and scanned when it is filled
	}
	var err error
	if w.dir, err = r.openWorkspace(); err != nil {
		return err
	}
	r.atEnd(func() { w.watch.Stop() })
	if r.private() && s.CopyOf == "" && s.Setup == nil {
		return nil
	}
	// What is given up goes on: with a descriptor and results of its own.
	fd, err := unix.FcntlInt(w.dir.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), r.ws)
	used, before := w.used, w.before
	err = r.budget.Touch(r.ws, func() (err error) {
		defer dir.Close()
		if w.max > 0 {
			if used, err = workspace.Usage(ctx, dir, w.max); err != nil {
				return err
			}
			if used.Bytes > w.max {
				return workspace.TooFull("--workspace-max", used.Bytes, w.max)
			}
		}
		if track {
			if before, err = workspace.ScanDir(ctx, dir, workspace.ScanOptions{Ignore: s.TrackIgnore}); err != nil {
				return &validate.Error{Field: "--track-files", Value: r.ws, Reason: err.Error(), Fix: "leave it out, or leave directories out with --track-ignore"}
			}
			// Not in the tick of the clock that the last change was made in.
			time.Sleep(min(time.Until(before.Settles()), workspace.FingerprintSettle))
		}
		return nil
	})
	if err != nil {
		return err
	}
	w.used, w.before = used, before
	return nil
}

// limitFiles bounds what hostile code may write (rule S12): the whole workspace
// by a watch, and one file of it by the kernel, which ends the write with SIGXFSZ.
func (r *run) limitFiles(ws string) {
	s := r.spec
	if s.WorkspaceMax == AutoSize {
		if s.WorkspaceMax = 0; s.Workspace == "" && !s.inMemory() {
			s.WorkspaceMax = validate.Size(workspace.DefaultMax(ws))
		}
	}
	// Other places of the box may hold larger ones: its memory file systems, of which
	// /dev/shm is as large as its memory.
	most := max(s.WorkspaceMax, s.Memory)
	for _, t := range s.Tmpfs {
		most = max(most, t.Size)
	}
	elsewhere := s.Memory == 0 || slices.ContainsFunc(s.Mounts, func(m validate.Mount) bool { return !m.ReadOnly })
	given := slices.ContainsFunc(s.Ulimits, func(u string) bool { return strings.HasPrefix(u, "fsize=") })
	if s.WorkspaceMax > 0 && !given && !elsewhere {
		s.Ulimits = append(slices.Clip(s.Ulimits), "fsize="+strconv.FormatInt(int64(most)+overFile, 10))
	}
}

// startWatch begins to watch, in the moment before the code starts. A workspace
// that is full ends the box, whoever waits for it and for what.
func (r *run) startWatch() {
	r.watchOut()
	w := &r.watching
	if w.max == 0 || w.dir == nil {
		return
	}
	b := r.box
	w.watch = workspace.NewWatch(w.dir, workspace.Quota{Max: w.max, Used: w.used, Hidden: func(dev uint64) int64 { return hiddenFiles(b.w.pid, dev) }})
	w.ended = make(chan struct{})
	go func() {
		defer close(w.ended)
		if n, full := w.watch.Wait(); full && !b.hasEnded() {
			w.space.Store(n)
			b.killInit()
		}
	}()
}

// lookAtWorkspace takes down, once everything in the box is dead and before
// anything is removed, what the box made of its workspace.
func (r *run) lookAtWorkspace(ctx context.Context) {
	w := &r.watching
	if w.stopOut != nil {
		w.stopOut()
	}
	dir := w.dir
	if w.memory != nil {
		dir = w.memory
	}
	if w.looked || dir == nil {
		return
	}
	w.looked = true
	if w.watch != nil {
		w.watch.Stop()
		<-w.ended
		if n, over := w.watch.Over(ctx); over && w.space.Load() == 0 {
			w.space.Store(n)
		}
	}
	if r.spec.Track && !r.spec.prepares && r.ev.ran {
		r.scanAfter(ctx)
	}
}

// scanBefore looks at the workspace before a call of a box that waits, unless the
// last call left a look.
func (r *run) scanBefore(ctx context.Context) {
	w := &r.watching
	if w.before, w.after = w.after, nil; w.before != nil || r.fresh() {
		return
	}
	var err error
	if w.dir == nil {
		w.dir, err = r.openWorkspace()
	}
	if err == nil {
		w.before, err = workspace.ScanDir(ctx, w.dir, workspace.ScanOptions{Ignore: r.spec.TrackIgnore})
	}
	if err != nil {
		r.reported = append(r.reported, "the changed files are not known: "+err.Error())
		r.spec.Track = false
		return
	}
	time.Sleep(min(time.Until(w.before.Settles()), workspace.FingerprintSettle))
}

// fresh says that the box has a private workspace in which nothing has run.
func (r *run) fresh() bool { return r.private() && r.calls == 1 }

// scratchUsed is what a memory file system at /tmp of a living box holds, in
// bytes; 0 when there is none.
func (r *run) scratchUsed() int64 {
	if r.box == nil || r.box.hasEnded() || !slices.ContainsFunc(r.spec.Tmpfs, func(t validate.Tmpfs) bool { return t.Target == "/tmp" }) {
		return 0
	}
	var fs unix.Statfs_t
	if unix.Statfs("/proc/"+strconv.Itoa(r.box.w.pid)+"/root/tmp", &fs) != nil || fs.Type != unix.TMPFS_MAGIC {
		return 0
	}
	return int64(fs.Blocks-fs.Bfree) * fs.Bsize
}

// scanAfter looks at it once the code has ended.
func (r *run) scanAfter(ctx context.Context) {
	w := &r.watching
	dir := w.dir
	if w.memory != nil {
		dir = w.memory
	}
	if dir == nil {
		var err error
		if dir, err = r.openWorkspace(); err != nil {
			r.reported = append(r.reported, "the changed files are not known: "+err.Error())
			return
		}
		w.dir = dir
	}
	ctx, cancel := context.WithTimeout(ctx, scanTime)
	defer cancel()
	after, err := workspace.ScanDir(ctx, dir, workspace.ScanOptions{Ignore: r.spec.TrackIgnore, Except: r.notBack(), Before: w.before, After: true})
	if err != nil {
		r.reported = append(r.reported, "the changed files are not known: "+err.Error())
		return
	}
	w.after = after
}

// trackedFiles puts the changes into the Result.
func (r *run) trackedFiles(res *Result) {
	w := &r.watching
	if w.after == nil {
		return
	}
	list, more := workspace.Changes(w.before, w.after, mostFiles)
	for _, c := range list {
		res.Files = append(res.Files, File{Name(c.Path), c.Change, c.Size})
	}
	if more > 0 {
		r.reported = append(r.reported, fmt.Sprintf("%d more files were changed than are listed", more))
	}
	say := func(n int, what, first string) {
		if n > 0 {
			r.reported = append(r.reported, fmt.Sprintf("%d directories %s, the first is %s", n, what, term.VisibleLine(first)))
		}
	}
	if n := len(w.after.Restored); n > 0 && !r.private() {
		say(n, "that the run had closed to you are readable again", w.after.Restored[0])
	}
	say(w.after.Unreadable, "cannot be read, so the changes in them are not known", w.after.FirstUnreadable)
	if n := w.after.TooDeep; n > 0 {
		r.reported = append(r.reported, fmt.Sprintf("%d directories have paths too long for the kernel, so the changes in them are not listed", n))
	}
}

// hiddenFiles is what the processes of a box keep on a device without a name:
// files that are deleted and still open, in bytes. Those that are only mapped, or
// under way in a socket, it does not see.
func hiddenFiles(init int, dev uint64) (total int64) {
	seen := map[uint64]bool{}
	todo := []int{init}
	for n := 0; len(todo) > 0 && n < mostHidden; n++ {
		pid := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		base := "/proc/" + strconv.Itoa(pid)
		if tasks, err := os.ReadDir(base + "/task"); err == nil {
			for _, t := range tasks[:min(len(tasks), mostHidden)] {
				if id, err := strconv.Atoi(t.Name()); err == nil {
					b, _ := readProc(base + "/task/" + strconv.Itoa(id) + "/children")
					for _, f := range bytes.Fields(b) {
						if c, err := strconv.Atoi(string(f)); err == nil {
							todo = append(todo, c)
						}
					}
				}
			}
		}
		d, err := os.Open(base + "/fd")
		if err != nil {
			continue
		}
		names, _ := d.Readdirnames(mostHidden)
		for _, name := range names {
			var st unix.Stat_t
			// Of the open file itself: its path is not looked at.
			if unix.Fstatat(int(d.Fd()), name, &st, 0) == nil && st.Nlink == 0 && st.Dev == dev && !seen[st.Ino] &&
				st.Mode&unix.S_IFMT == unix.S_IFREG {
				seen[st.Ino] = true
				total += st.Blocks * 512
			}
		}
		d.Close()
	}
	return total
}
