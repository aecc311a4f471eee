package runner

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/cgroup"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

// Dirs are our own directories. None of them may be the source of a mount.
type Dirs struct {
	// Cache holds what can be made again: host roots, remembered identities,
	// and, under run/, one directory for each run that is going on.
	Cache string
	// Data holds the kern that came with us.
	Data string
	// Private is the one of last resort, for a caller whose home cannot be
	// written to: /tmp/kern-sbx-UID.
	Private string
	// Config holds the user's configuration.
	Config string
}

// FindDirs names our directories. A relative value of an XDG variable counts
// as unset, as the XDG specification says. It makes nothing.
func FindDirs(env func(string) string) Dirs {
	d := Dirs{Private: privateDir()}
	home := env("HOME")
	pick := func(name, below string) string {
		if v := env(name); filepath.IsAbs(v) {
			return filepath.Join(v, "kern-sbx")
		}
		if filepath.IsAbs(home) {
			return filepath.Join(home, below, "kern-sbx")
		}
		return ""
	}
	d.Cache = pick("XDG_CACHE_HOME", ".cache")
	d.Data = pick("XDG_DATA_HOME", ".local/share")
	d.Config = pick("XDG_CONFIG_HOME", ".config")
	return d
}

// privateDir is the directory of last resort. Dirs.Usable makes it, or refuses
// it where another user was first.
func privateDir() string { return "/tmp/kern-sbx-" + strconv.Itoa(os.Getuid()) }

// List names them all, for the rules about mounts.
func (d Dirs) List() []string {
	var all []string
	for _, dir := range []string{d.Cache, d.Data, d.Config, d.Private} {
		if dir != "" {
			all = append(all, dir)
		}
	}
	return all
}

// OncePerBoot says true the first time it is asked about something since this
// machine was started, so that a note about the host is not in every line of a
// log. When it cannot be remembered, it is said.
func OncePerBoot(d Dirs, what string) bool {
	dir, err := d.Usable(d.Cache)
	if err != nil || remembered(dir, what) != "" {
		return err != nil
	}
	remember(dir, what, "said")
	return true
}

// remembered gives what was remembered of something since this machine was
// started, "" for nothing.
func remembered(dir, what string) string {
	b, err := os.ReadFile(filepath.Join(dir, "boot-"+what))
	if err != nil || len(b) > 1024 {
		return ""
	}
	value, ok := strings.CutPrefix(string(b), bootID()+" ")
	if !ok {
		return ""
	}
	return value
}

// remember writes it down, for this start of the machine. Not being able to is
// no error: it is asked again then.
func remember(dir, what, value string) {
	if remembered(dir, what) == value {
		return
	}
	tmp, err := os.CreateTemp(dir, "boot-")
	if err != nil {
		return
	}
	_, err = tmp.WriteString(bootID() + " " + value)
	tmp.Close()
	if err != nil || os.Rename(tmp.Name(), filepath.Join(dir, "boot-"+what)) != nil {
		os.Remove(tmp.Name())
	}
}

// Usable gives dir when it can be written to by us alone, after making it;
// else the private directory of last resort; else the reason why not.
func (d Dirs) Usable(dir string) (string, error) {
	if dir != "" && ownDir(dir) == nil {
		return dir, nil
	}
	if err := ownDir(d.Private); err != nil {
		return "", fmt.Errorf("no directory to work in: neither %s nor %s can be used (%w)", orNone(dir), d.Private, err)
	}
	return d.Private, nil
}

func orNone(s string) string {
	if s == "" {
		return "$XDG_CACHE_HOME or $HOME/.cache (neither is set)"
	}
	return s
}

// ownDir makes dir, 0700, where it is missing, and refuses one that another
// user could have prepared.
func ownDir(dir string) error {
	err := checkDir(dir)
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return checkDir(dir)
}

// checkDir refuses a directory that another user could have prepared: not a
// directory, not ours, or open to others.
func checkDir(dir string) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*unixStat)
	switch {
	case !st.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case !ok || int(sys.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to another user", dir)
	case st.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be written to by other users", dir)
	}
	return unix.Access(dir, unix.W_OK|unix.X_OK)
}

// The directories that the box sees, below that of the run.
const (
	workspaceName = "workspace"
	codeName      = "code"
)

// runDir is the directory of one run: everything that must be gone afterwards
// lies in it. It is locked for as long as this process lives; a free lock is
// what tells the next start that its owner died (rule S8).
type runDir struct {
	path string
	base *os.File // the directory that holds all runs
	name string
	dir  *os.File // locked

	early chan struct{} // closed when emptying is done that began before remove
	kern  string        // the program, for a box that deletes; "" for none
}

// makeRunDir makes and locks a new one below base/run. Nothing is waited for:
// another kern-sbx may be stopped (Ctrl-Z) with any lock in its hand.
func makeRunDir(base string) (*runDir, error) {
	all := filepath.Join(base, "run")
	if err := ownDir(all); err != nil {
		return nil, err
	}
	b, err := os.OpenFile(all, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	// Between the mkdir and the lock a sweep by another process may take the
	// directory for a dead one and remove it. Then the next one is tried.
	for range 100 {
		r := &runDir{base: b, name: newID()}
		r.path = filepath.Join(all, r.name)
		if err = unix.Mkdirat(int(b.Fd()), r.name, 0o700); err != nil {
			err = &os.PathError{Op: "mkdir", Path: r.path, Err: err}
			break
		}
		if r.dir, err = openDirAt(b, r.name); err != nil {
			unix.Unlinkat(int(b.Fd()), r.name, unix.AT_REMOVEDIR)
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			err = &os.PathError{Op: "open", Path: r.path, Err: err}
			break
		}
		if err = flock(r.dir, unix.LOCK_EX|unix.LOCK_NB); err == nil && sameEntry(b, r.name, r.dir) {
			return r, nil
		}
		r.dir.Close()
		unix.Unlinkat(int(b.Fd()), r.name, unix.AT_REMOVEDIR)
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			err = &os.PathError{Op: "lock", Path: r.path, Err: err}
			break
		}
		err = fmt.Errorf("%s: every new directory is taken away at once", all)
	}
	b.Close()
	return nil, err
}

// newID is 16 hexadecimal digits: what names a run, its box and its cgroup.
func newID() string {
	var id [8]byte
	rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

// sameEntry says whether name in dir is still the directory that was opened.
func sameEntry(dir *os.File, name string, opened *os.File) bool {
	var a, b unix.Stat_t
	return unix.Fstatat(int(dir.Fd()), name, &a, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		unix.Fstat(int(opened.Fd()), &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

func (r *runDir) mkdir(name string, mode uint32) (string, error) {
	if err := unix.Mkdirat(int(r.dir.Fd()), name, mode); err != nil {
		return "", &os.PathError{Op: "mkdir", Path: filepath.Join(r.path, name), Err: err}
	}
	return filepath.Join(r.path, name), nil
}

func (r *runDir) create(name string, mode uint32) (*os.File, error) {
	fd, err := unix.Openat(int(r.dir.Fd()), name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode)
	if err != nil {
		return nil, &os.PathError{Op: "create", Path: filepath.Join(r.path, name), Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (r *runDir) write(name string, mode uint32, content []byte) error {
	f, err := r.create(name, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// empty begins to delete what the box could see, when everything in it is dead
// and kern is still tearing down. The record stays until the end.
func (r *runDir) empty() {
	r.early = make(chan struct{})
	go func() {
		defer close(r.early)
		for _, name := range []string{workspaceName, codeName} {
			workspace.RemoveAt(r.dir, name) // remove reports what is left
		}
	}()
}

// remove deletes the directory with all that the box left in it. The lock is
// held until the end, so no sweep gets in the way. After patience the rest is
// left to a process of its own, if the caller named one (rule S9): hostile code
// makes in a second what takes a minute to delete.
func (r *runDir) remove(patience time.Duration, sweeper []string) error {
	done := make(chan error, 1)
	if r.early != nil && r.emptied() {
		done <- nil
	} else {
		go func() {
			if r.early != nil {
				<-r.early
			}
			done <- removeAll(r.base, r.name, r.path, r.kern)
		}()
	}
	var late <-chan time.Time
	if len(sweeper) > 0 {
		t := time.NewTimer(patience)
		defer t.Stop()
		late = t.C
	}
	var err error
	select {
	case err = <-done:
	case <-late:
		if r.leave(sweeper) == nil {
			return nil // the lock goes on in that process
		}
		err = <-done
	}
	r.dir.Close()
	r.base.Close()
	return err
}

// emptied removes a directory that nothing but the record is left in.
func (r *runDir) emptied() bool {
	select {
	case <-r.early:
	default:
		return false
	}
	unix.Unlinkat(int(r.dir.Fd()), recordFile, 0)
	return unix.Unlinkat(int(r.base.Fd()), r.name, unix.AT_REMOVEDIR) == nil
}

// The descriptors of a process that goes on deleting.
const (
	fdParent = 3 + iota // a pipe that ends when the process that began is gone
	fdBase
	fdRun
)

// leave starts the process that goes on when this one has ended. It inherits
// the lock, which belongs to the open directory and not to a process.
func (r *runDir) leave(sweeper []string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	parent := os.NewFile(uintptr(p[0]), "pipe")
	defer parent.Close()
	child, err := os.StartProcess("/proc/self/exe", append([]string{"kern-sbx"}, append(sweeper, r.name)...), &os.ProcAttr{
		Dir: "/", Env: os.Environ(), Sys: &unix.SysProcAttr{Setsid: true},
		Files: []*os.File{null, null, null, fdParent: parent, fdBase: r.base, fdRun: r.dir},
	})
	if err != nil {
		unix.Close(p[1])
		return err
	}
	// The write end stays open for as long as this process lives.
	return child.Release()
}

// SweepInherited goes on with a deletion that another kern-sbx began: what
// Spec.Sweeper calls, with the name of the run's directory added. It refuses
// when it was not started in that way.
func SweepInherited(name, kern string) error {
	for fd := fdParent; fd <= fdRun; fd++ {
		unix.CloseOnExec(fd)
	}
	parent, base, dir := os.NewFile(fdParent, "parent"), os.NewFile(fdBase, "base"), os.NewFile(fdRun, name)
	var st unix.Stat_t
	if unix.Fstat(fdParent, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO ||
		unix.Fstat(fdBase, &st) != nil || int(st.Uid) != os.Geteuid() || !isRunName(name) || !sameEntry(base, name, dir) {
		return errors.New("this command is for kern-sbx itself, which starts it to delete a large directory")
	}
	parent.Read(make([]byte, 1))
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fdRun))
	if err != nil || !filepath.IsAbs(path) {
		kern = ""
	}
	return removeAll(base, name, path, kern)
}

func isRunName(s string) bool {
	return len(s) == 16 && strings.Trim(s, "0123456789abcdef") == ""
}

// record says which box belongs to the run, so that a later start can end it
// when we were killed and it was not. The code in the box starts only after
// this has been written.
//
// It is the text of a symbolic link: made whole or not at all, and a file system
// keeps one this short without a block of its own, so that it costs nothing to
// make and to remove.
const recordFile = "box"

func (r *runDir) record(s, w proc) error {
	text := boxRecord{bootID(), s, w}.String()
	if err := unix.Symlinkat(text, int(r.dir.Fd()), recordFile); err != nil {
		return &os.PathError{Op: "symlink", Path: filepath.Join(r.path, recordFile), Err: err}
	}
	return nil
}

// keptPrefix begins the names of links that say which directories a box of root's
// may write that are kept, with their identity: DEV-INO.
const keptPrefix = "kept-"

// recordKept notes a directory for the sweep (rule S1), in case we are killed: what
// the box makes setuid there would be setuid root.
func (r *runDir) recordKept(path string, st *unix.Stat_t) error {
	name := keptPrefix + strconv.FormatUint(uint64(st.Dev), 10) + "-" + strconv.FormatUint(st.Ino, 10)
	if err := unix.Symlinkat(path, int(r.dir.Fd()), name); err != nil && !errors.Is(err, unix.EEXIST) {
		return &os.PathError{Op: "symlink", Path: filepath.Join(r.path, name), Err: err}
	}
	return nil
}

// clearKept takes setuid bits away that a box of a killed run left behind, in
// directories that still are what they were.
func (r *runDir) clearKept() {
	if os.Geteuid() != 0 {
		return
	}
	var since unix.Stat_t
	if unix.Fstatat(int(r.dir.Fd()), recordFile, &since, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return // no code ran in it
	}
	d, err := openDirAt(r.dir, ".")
	if err != nil {
		return
	}
	names, _ := d.Readdirnames(100)
	d.Close()
	for _, name := range names {
		id, ok := strings.CutPrefix(name, keptPrefix)
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(r.dir.Fd()), name, buf)
		if !ok || err != nil {
			continue
		}
		kept, err := os.OpenFile(string(buf[:n]), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(int(kept.Fd()), &st) == nil && id == strconv.FormatUint(uint64(st.Dev), 10)+"-"+strconv.FormatUint(st.Ino, 10) {
			workspace.ClearPrivilege(context.Background(), kept, time.Unix(since.Mtim.Unix()))
		}
		kept.Close()
	}
}

// boxRecord says which processes a box has, and in which boot.
type boxRecord struct {
	boot string
	s, w proc
}

func (r boxRecord) String() string {
	return fmt.Sprintf("1 %s %d %d %d %d", r.boot, r.s.pid, r.s.start, r.w.pid, r.w.start)
}

func parseRecord(text string) (boxRecord, bool) {
	var r boxRecord
	n, err := fmt.Sscanf(text, "1 %s %d %d %d %d", &r.boot, &r.s.pid, &r.s.start, &r.w.pid, &r.w.start)
	return r, err == nil && n == 5 && r.String() == text && r.s.pid > 1 && r.w.pid > 1
}

// bootID tells this boot from others: the beginning of a random number.
func bootID() string {
	b, err := readProc("/proc/sys/kernel/random/boot_id")
	if err != nil || len(b) < 8 {
		return "unknown"
	}
	return string(b[:8])
}

// sweep ends the boxes of runs whose kern-sbx died, and removes their
// directories and what kern kept for them. Errors are silent: the next start
// tries again. It runs beside our own box, so nobody waits for it, and it ends
// with this process; a lock it held is free then.
func sweep(base, kern string) {
	b, err := os.OpenFile(filepath.Join(base, "run"), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer b.Close()
	names, _ := b.Readdirnames(1000)
	for _, name := range names {
		if d, err := openDirAt(b, name); err == nil {
			sweepOne(b, &runDir{name: name, dir: d, path: filepath.Join(base, "run", name), kern: kern})
			d.Close()
		}
	}
}

// sweepOne removes one run's directory if its lock is free. It may just have
// been removed by another sweep; the lock of what is no longer there is nothing.
func sweepOne(base *os.File, r *runDir) {
	var st unix.Stat_t
	if !isRunName(r.name) || unix.Fstat(int(r.dir.Fd()), &st) != nil || int(st.Uid) != os.Geteuid() ||
		flock(r.dir, unix.LOCK_EX|unix.LOCK_NB) != nil || !sameEntry(base, r.name, r.dir) {
		return
	}
	if rec, ok := r.readRecord(); ok {
		if rec.boot == bootID() {
			rec.w.kill()
			rec.s.kill()
		}
		forgetBox(namePrefix+r.name, rec.s)
	} else {
		// Killed before the box could be recorded; kern may have noted it by then.
		for _, pid := range supervisors(namePrefix + r.name) {
			forgetBox(namePrefix+r.name, proc{pid: pid})
		}
	}
	cgroup.Remove(namePrefix + r.name)
	r.clearKept()
	removeAll(base, r.name, r.path, r.kern)
}

func (r *runDir) readRecord() (boxRecord, bool) {
	buf := make([]byte, 256)
	n, err := unix.Readlinkat(int(r.dir.Fd()), recordFile, buf)
	if err != nil {
		return boxRecord{}, false
	}
	return parseRecord(string(buf[:n]))
}

// kernRuntime lists where kern keeps its state of running boxes.
func kernRuntime() []string {
	uid := strconv.Itoa(os.Getuid())
	dirs := []string{"/run/user/" + uid + "/kern", "/tmp/kern-" + uid}
	if x := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(x) {
		dirs = append(dirs, filepath.Join(x, "kern"))
	}
	return dirs
}

// forgetBox removes what kern keeps for a box while it runs and could not
// remove because it was killed: the box's environment (which may hold
// secrets), its record, its scratch layer and its empty cgroup.
func forgetBox(name string, supervisor proc) {
	entry := name + "-" + strconv.Itoa(supervisor.pid)
	// What `kern stop` notes for `kern wait`.
	exit := strconv.Itoa(supervisor.pid) + "-" + strconv.FormatUint(supervisor.start, 10)
	for _, dir := range kernRuntime() {
		if checkDir(dir) != nil {
			continue
		}
		for _, sub := range [][2]string{{"env", entry}, {"instances", entry}, {"instances", "." + entry + "-" + strconv.Itoa(supervisor.pid) + ".tmp"}, {"scratch", entry}, {"health", entry}, {"waitexit", exit}, {"claims", name}} {
			d, err := os.OpenFile(filepath.Join(dir, sub[0]), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
			if err != nil {
				continue
			}
			workspace.RemoveAt(d, sub[1])
			d.Close()
		}
	}
	for _, slice := range kernSlices() {
		unix.Rmdir(filepath.Join(slice, "kern-box-"+entry))
	}
}

// supervisors lists the processes under which kern has something of a box. Its
// name is a random number of ours, and the box is dead: it waited at the gate for
// a process that is gone.
func supervisors(name string) []int {
	var pids []int
	for _, dir := range kernRuntime() {
		if checkDir(dir) != nil {
			continue
		}
		for _, sub := range []string{"env", "instances"} {
			entries, _ := os.ReadDir(filepath.Join(dir, sub))
			for _, e := range entries {
				if n, ok := strings.CutPrefix(e.Name(), name+"-"); ok {
					if pid, err := strconv.Atoi(n); err == nil && pid > 1 {
						pids = append(pids, pid)
					}
				}
			}
		}
	}
	return pids
}

// kernSlices lists the cgroups below which kern makes one for each box.
func kernSlices() []string {
	const root = "/sys/fs/cgroup"
	dirs := []string{root + "/kern.slice"}
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return dirs
	}
	for line := range strings.Lines(string(b)) {
		own, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::/")
		for ; ok && own != "." && own != ""; own = filepath.Dir(own) {
			dirs = append(dirs, filepath.Join(root, own), filepath.Join(root, own, "kern.slice"))
		}
	}
	return dirs
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func openDirAt(d *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
