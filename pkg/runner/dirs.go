package runner

import (
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
	d := Dirs{Private: "/tmp/kern-sbx-" + strconv.Itoa(os.Getuid())}
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
	if err != nil {
		return true
	}
	file, id := filepath.Join(dir, "said-"+what), bootID()
	if old, err := os.ReadFile(file); err == nil && string(old) == id {
		return false
	}
	tmp, err := os.CreateTemp(dir, "said-")
	if err != nil {
		return true
	}
	_, err = tmp.WriteString(id)
	tmp.Close()
	if err != nil || os.Rename(tmp.Name(), file) != nil {
		os.Remove(tmp.Name())
	}
	return true
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
// user could have prepared: not a directory, not ours, or open to others.
func ownDir(dir string) error {
	st, err := os.Lstat(dir)
	if errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		st, err = os.Lstat(dir)
	}
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

// runDir is the directory of one run: everything that must be gone afterwards
// lies in it. It is locked for as long as this process lives; a free lock is
// what tells the next start that its owner died (rule S8).
type runDir struct {
	path string
	base *os.File // the directory that holds all runs
	name string
	dir  *os.File // locked
}

// makeRunDir makes and locks a new one below base/run.
func makeRunDir(base string) (*runDir, error) {
	all := filepath.Join(base, "run")
	if err := ownDir(all); err != nil {
		return nil, err
	}
	b, err := os.OpenFile(all, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	r := &runDir{base: b}
	var id [8]byte
	rand.Read(id[:])
	r.name = hex.EncodeToString(id[:])
	r.path = filepath.Join(all, r.name)
	// Between the mkdir and the lock a sweep by another process would take the
	// directory for a dead one: the lock on the base keeps it out.
	if err := flock(b, unix.LOCK_SH); err != nil {
		b.Close()
		return nil, err
	}
	defer flock(b, unix.LOCK_UN)
	if err := unix.Mkdirat(int(b.Fd()), r.name, 0o700); err != nil {
		b.Close()
		return nil, err
	}
	if r.dir, err = openDirAt(b, r.name); err == nil {
		err = flock(r.dir, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		unix.Unlinkat(int(b.Fd()), r.name, unix.AT_REMOVEDIR)
		b.Close()
		return nil, err
	}
	return r, nil
}

func (r *runDir) mkdir(name string, mode uint32) (string, error) {
	if err := unix.Mkdirat(int(r.dir.Fd()), name, mode); err != nil {
		return "", &os.PathError{Op: "mkdir", Path: filepath.Join(r.path, name), Err: err}
	}
	return filepath.Join(r.path, name), nil
}

func (r *runDir) write(name string, mode uint32, content []byte) error {
	fd, err := unix.Openat(int(r.dir.Fd()), name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode)
	if err != nil {
		return &os.PathError{Op: "create", Path: filepath.Join(r.path, name), Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(content)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// remove deletes the directory with all that the box left in it. The lock is
// held until the end, so no sweep gets in the way.
func (r *runDir) remove() error {
	err := workspace.RemoveAt(r.base, r.name)
	r.dir.Close()
	r.base.Close()
	return err
}

// record says which box belongs to the run, so that a later start can end it
// when we were killed and it was not. The code in the box starts only after
// this has been written.
const recordFile = "box"

func (r *runDir) record(name string, s, w proc) error {
	return r.write(recordFile, 0o600, []byte(fmt.Sprintf("kern-sbx box 1\nname %s\nboot %s\nsupervisor %d %d\ninit %d %d\n",
		name, bootID(), s.pid, s.start, w.pid, w.start)))
}

type boxRecord struct {
	name, boot string
	s, w       proc
}

func parseRecord(b []byte) (boxRecord, bool) {
	var r boxRecord
	var version int
	n, err := fmt.Sscanf(string(b), "kern-sbx box %d\nname %s\nboot %s\nsupervisor %d %d\ninit %d %d\n",
		&version, &r.name, &r.boot, &r.s.pid, &r.s.start, &r.w.pid, &r.w.start)
	ok := err == nil && n == 7 && version == 1 && r.s.pid > 1 && r.w.pid > 1 && strings.HasPrefix(r.name, namePrefix) && !strings.ContainsAny(r.name, "/\x00")
	return r, ok
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

// sweepTime is how long a sweep may look for what dead runs left behind.
// Removing what it found is not bounded: that happens while our own box runs.
const sweepTime = 50 * time.Millisecond

// sweep ends the boxes of runs whose kern-sbx died, and removes their
// directories and what kern kept for them. Errors are silent: the next start
// tries again.
func sweep(base string) {
	all := filepath.Join(base, "run")
	b, err := os.OpenFile(all, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer b.Close()
	deadline := time.Now().Add(sweepTime)
	for flock(b, unix.LOCK_EX|unix.LOCK_NB) != nil {
		if time.Now().After(deadline) {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
	var dead []*runDir
	names, _ := b.Readdirnames(1000)
	for _, name := range names {
		if time.Now().After(deadline) {
			break
		}
		d, err := openDirAt(b, name)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(int(d.Fd()), &st) != nil || int(st.Uid) != os.Geteuid() || flock(d, unix.LOCK_EX|unix.LOCK_NB) != nil {
			d.Close()
			continue
		}
		dead = append(dead, &runDir{name: name, dir: d})
	}
	flock(b, unix.LOCK_UN)
	for _, r := range dead {
		if rec, ok := r.readRecord(); ok {
			if rec.boot == bootID() {
				rec.w.kill()
				rec.s.kill()
			}
			forgetBox(rec.name, rec.s.pid)
		}
		workspace.RemoveAt(b, r.name)
		r.dir.Close()
	}
}

func (r *runDir) readRecord() (boxRecord, bool) {
	fd, err := unix.Openat(int(r.dir.Fd()), recordFile, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return boxRecord{}, false
	}
	f := os.NewFile(uintptr(fd), recordFile)
	defer f.Close()
	buf := make([]byte, 1024)
	n, _ := f.Read(buf)
	return parseRecord(buf[:n])
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
func forgetBox(name string, supervisor int) {
	entry := name + "-" + strconv.Itoa(supervisor)
	for _, dir := range kernRuntime() {
		if ownDir(dir) != nil {
			continue
		}
		for _, sub := range []string{"env", "instances", "scratch", "health", "waitexit"} {
			d, err := os.OpenFile(filepath.Join(dir, sub), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
			if err != nil {
				continue
			}
			workspace.RemoveAt(d, entry)
			d.Close()
		}
	}
	for _, slice := range kernSlices() {
		unix.Rmdir(filepath.Join(slice, "kern-box-"+entry))
	}
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
