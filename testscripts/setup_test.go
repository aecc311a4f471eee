package testscripts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// setup is one kind of caller and of surroundings. Every script runs in each.
type setup struct {
	name string
	// root wants uid 0; otherwise an ordinary user without an entry in passwd.
	root bool
	// bare has no XDG_RUNTIME_DIR, no TMPDIR and a HOME that cannot be written
	// to: what a system service or a container often has.
	bare bool
}

var setups = []setup{
	{name: "root", root: true},
	{name: "user"},
	{name: "bare", bare: true},
}

// why gives the reason that this set-up cannot be had here; "" when it can.
func (s setup) why() string {
	if s.root && os.Getuid() != 0 {
		return "not run by root"
	}
	// The same namespaces that kern needs, with no kern and none of our code in
	// between, so that a failure of ours is never taken for the machine's.
	c := exec.Command("/bin/true")
	uid := os.Getuid()
	if !s.root && uid == 0 {
		uid = firstUID
	}
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
	}
	if uid != os.Getuid() {
		// A process of that user has to make the namespace.
		c = exec.Command(os.Args[0])
		c.Env = []string{probeEnv + "=1"}
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		if shared := os.Getenv("KERN_SBX_TEST_BINARY"); shared != "" {
			c.Path = shared
		}
	}
	if out, err := c.CombinedOutput(); err != nil {
		return strings.TrimSpace(fmt.Sprintf("user namespaces do not work here for uid %d: %v %s", uid, err, out))
	}
	return ""
}

// probeEnv makes the test binary try the namespaces as whoever it runs as.
const probeEnv = "KERN_SBX_TEST_NAMESPACES"

func probeNamespaces() int {
	c := exec.Command("/bin/true")
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := c.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// firstUID begins the uids that scripts run as. Each has its own, so that what
// a script leaves behind in the process table or below /tmp is its own too.
const firstUID = 54321

// freeUID gives a uid that nobody uses: no name, no process, no files of kern's
// or ours below /tmp.
func freeUID(taken map[int]bool) int {
	users := map[string]bool{}
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, n := range names {
		if st, err := os.Stat(n); err == nil {
			users[strconv.Itoa(int(st.Sys().(*syscall.Stat_t).Uid))] = true
		}
	}
	passwd, _ := os.ReadFile("/etc/passwd")
	for line := range strings.Lines(string(passwd)) {
		if f := strings.Split(line, ":"); len(f) > 2 {
			users[f[2]] = true
		}
	}
	// Spread by pid: two test runs at a time do not meet.
	for uid := firstUID + os.Getpid()%500*20; ; uid++ {
		id := strconv.Itoa(uid)
		if taken[uid] || users[id] {
			continue
		}
		free := true
		for _, d := range privateDirs(uid) {
			if _, err := os.Lstat(d); err == nil {
				free = false
			}
		}
		if free {
			taken[uid] = true
			return uid
		}
	}
}

// privateDirs are where kern-sbx and kern keep their state for a caller who has
// no other place.
func privateDirs(uid int) []string {
	id := strconv.Itoa(uid)
	return []string{"/tmp/kern-sbx-" + id, "/tmp/kern-" + id, "/tmp/kern-uncapped-notice-" + id}
}

// place is what one script has of its own.
type place struct {
	setup
	Dir string // private to the caller: home, run, tmp, work
	UID int
}

// makePlace makes it; the parent gives it away to the user when it is root.
func makePlace(s setup, uid int) (place, error) {
	dir, err := os.MkdirTemp("", "kern-sbx-script-")
	p := place{s, dir, uid}
	if err != nil {
		return p, err
	}
	for _, d := range []string{"home", "run", "tmp", "work", "cache"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			return p, err
		}
	}
	if s.bare {
		if err := os.Chmod(p.path("home"), 0o555); err != nil {
			return p, err
		}
	}
	if uid == os.Getuid() {
		return p, nil
	}
	for _, d := range []string{".", "home", "run", "tmp", "work", "cache"} {
		if s.bare && d == "home" {
			continue // stays root's
		}
		if err := os.Chown(filepath.Join(dir, d), uid, uid); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p place) path(elem ...string) string {
	return filepath.Join(append([]string{p.Dir}, elem...)...)
}

// env is what the caller's environment says of its surroundings.
func (p place) env(root string) []string {
	if p.bare && root == "image" {
		// kern keeps images nowhere else, and says so.
		return []string{"HOME=" + p.path("home"), "XDG_CACHE_HOME=" + p.path("cache")}
	}
	if p.bare {
		return []string{"HOME=" + p.path("home")}
	}
	return []string{"HOME=" + p.path("home"), "XDG_RUNTIME_DIR=" + p.path("run"), "TMPDIR=" + p.path("tmp")}
}

// kernRuntime is where kern keeps its state of running boxes.
func (p place) kernRuntime() []string {
	if p.bare {
		return []string{"/tmp/kern-" + strconv.Itoa(p.UID), "/run/user/" + strconv.Itoa(p.UID) + "/kern"}
	}
	return []string{p.path("run", "kern")}
}

// runDirs is where kern-sbx keeps the directories of runs that are going on.
func (p place) runDirs() []string {
	dirs := []string{p.path("home", ".cache", "kern-sbx", "run"), p.path("cache", "kern-sbx", "run")}
	if p.UID != 0 {
		dirs = append(dirs, "/tmp/kern-sbx-"+strconv.Itoa(p.UID)+"/run")
	}
	return dirs
}

// remove deletes all of it, also what a box made undeletable.
func (p place) remove() error {
	dirs := []string{p.Dir}
	if p.UID != 0 && (p.UID != os.Getuid()) {
		dirs = append(dirs, privateDirs(p.UID)...)
	}
	for _, d := range dirs {
		if err := removeAll(d); err != nil {
			return err
		}
	}
	return nil
}

func removeAll(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700) //nolint:gosec // it is about to go
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// marker is the variable that tells processes of a script from all others: it
// is in the environment of what the script starts, kern among it.
const marker = "SCRIPT_UNDER_TEST"

// processes lists what lives of this script, in a box or outside. The workspace
// and the code of a box are mounted from below Dir, or from the user's own
// directory, which gives away processes whose environment is the box's.
func (p place) processes() []string {
	var found []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(d))
		if pid == os.Getpid() {
			continue
		}
		st, err := os.Stat(d)
		if err != nil {
			continue
		}
		stat, _ := os.ReadFile(d + "/stat")
		if i := strings.LastIndexByte(string(stat), ')'); i < 0 || strings.HasPrefix(string(stat[i:]), ") Z") {
			continue // a zombie is only a number that nobody has asked for
		}
		environ, _ := os.ReadFile(d + "/environ")
		mounts, _ := os.ReadFile(d + "/mountinfo")
		ours := strings.Contains("\x00"+string(environ), "\x00"+marker+"="+p.Dir+"\x00") ||
			strings.Contains(string(mounts), filepath.Base(p.Dir)+"/")
		if ownUID() && st.Sys().(*syscall.Stat_t).Uid == uint32(p.UID) {
			ours = true
		}
		if ours {
			cmd, _ := os.ReadFile(d + "/cmdline")
			found = append(found, fmt.Sprintf("%d %.200q", pid, strings.ReplaceAll(string(cmd), "\x00", " ")))
		}
	}
	return found
}

// ownUID says whether this process's uid was picked for its script alone.
func ownUID() bool { return os.Getenv("KERN_SBX_TEST_OWN_UID") == "1" }

// leftovers names what a run should have taken with it.
func (p place) leftovers() []string {
	left := p.processes()
	for i := range left {
		left[i] = "process " + left[i]
	}
	for _, d := range p.runDirs() {
		names, _ := filepath.Glob(d + "/*")
		for _, n := range names {
			left = append(left, "run directory "+n)
		}
	}
	for _, d := range p.kernRuntime() {
		for _, sub := range []string{"instances", "env", "scratch", "claims", "waitexit", "health", "logs"} {
			names, _ := filepath.Glob(filepath.Join(d, sub, "*"))
			for _, n := range names {
				if strings.HasPrefix(filepath.Base(n), ".") {
					continue // kern's lock for all boxes
				}
				left = append(left, "kern's "+n)
			}
		}
	}
	if !p.bare {
		names, _ := filepath.Glob(p.path("tmp", "*"))
		for _, n := range names {
			left = append(left, "in TMPDIR "+n)
		}
	}
	return left
}
