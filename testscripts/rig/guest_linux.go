//go:build linux && amd64

package rig

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

//go:embed init.sh
var initScript []byte

const (
	kernelBinary  = "linux.uml"
	managerBinary = "/usr/lib/systemd/systemd"
)

// wrapper is the first process of the guest's pid namespace, and on the host. Called as
// `sh DIR... -- LINUX ARG...`, it makes every mount but those of the DIRs read-only for
// itself and all it starts: a root in the guest can remount what it likes, and yet the
// host is safe from it. It also stays: user-mode Linux ends itself by signals which the
// first process of a namespace never feels, so that one would hang after a panic.
const wrapper = `set -eu
mount --make-rprivate /
own=
while [ "$1" != -- ]; do
	mount --bind "$1" "$1"
	own="$own $1 "
	shift
done
shift
while read -r _ _ _ _ at opts _; do
	case $own in *" $at "*) continue ;; esac
	case ,$opts, in *,ro,*) continue ;; esac
	mount -o "remount,bind,$opts,ro" "$(printf %b "$at")" || [ ! -e "$at" ]
done </proc/self/mountinfo
ulimit -c 0
set +e
"$@"
exit $?`

// needed are the programs that the host (and so the guest, which sees the host's
// root) must have.
var needed = []string{kernelBinary, "insmod", "setpriv", "unshare", "setsid", "stty", "mount", "find"}

// A Guest is a booted user-mode Linux. Its methods may be called from several
// goroutines; commands run one after the other.
type Guest struct {
	// BootTime is how long it took to be ready for its first command.
	BootTime time.Duration

	rw     []string
	dir    string
	lock   *os.File
	stop   func()
	ended  chan struct{} // closed when the guest's processes are gone
	answer chan string   // lines from the guest; closed when it ends

	mu    sync.Mutex // guards what follows
	input io.WriteCloser
	cases int
	dead  error
}

// Available tells whether a guest can be booted here, and if not, why: a reason
// that begins with "cannot: ". It looks, and does not boot one.
func Available() (reason string, ok bool) {
	if os.Getuid() != 0 {
		// In a user namespace, which an ordinary user would need for the others, the host's
		// setuid programs belong to nobody, and mount(8) then refuses to work in the guest.
		return "cannot: only root can keep the guest in pid and mount namespaces without a user namespace", false
	}
	for _, name := range needed {
		if _, err := look(name); err != nil {
			return "cannot: " + name + " not found; on Debian: apt-get install user-mode-linux kmod", false
		}
	}
	if _, err := os.Stat("/mnt"); err != nil {
		return "cannot: the guest mounts its own files over /mnt, and there is none", false
	}
	if _, err := pickBase(DefaultMem); err != nil {
		return err.Error(), false
	}
	probe := exec.Command("/bin/true")
	probe.SysProcAttr = confine()
	if err := probe.Run(); err != nil {
		return "cannot: no pid and mount namespaces to keep the guest in: " + err.Error(), false
	}
	return "", true
}

// look finds a program also where only root's PATH would have it.
func look(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if p, err := exec.LookPath(dir + "/" + name); err == nil {
			return p, nil
		}
	}
	return exec.LookPath(name)
}

// confine puts a process in a pid and a mount namespace of its own, as the first, and
// has the kernel kill it when the thread that started it ends. With the first
// process go all others, which user-mode Linux alone does not see to.
func confine() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
		Setsid:     true, // a ^C at the terminal is the runner's to handle
	}
}

// Start boots a guest with o.Mem and o.RW; the rest of o is [Guest.Exec]'s. The caller
// must Close it. A guest that is not up within [BootTimeout] is an error that carries
// the end of its console.
func Start(o Options) (*Guest, error) {
	mem := o.Mem
	if mem == 0 {
		mem = DefaultMem
	}
	if mem < 64 {
		return nil, fmt.Errorf("guest memory of %d MiB refused: it does not boot below 64", mem)
	}
	if reason, ok := Available(); !ok {
		return nil, Unavailable(reason)
	}
	if err := sharable(o.RW, true); err != nil {
		return nil, err
	}
	sweepAll()
	base, err := pickBase(mem)
	if err != nil {
		return nil, err
	}
	g := &Guest{rw: o.RW, ended: make(chan struct{}), answer: make(chan string)}
	if g.dir, g.lock, err = newDir(base); err != nil {
		return nil, fmt.Errorf("cannot make a directory for the guest: %w", err)
	}
	if err := g.boot(mem); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

func (g *Guest) boot(mem int) error {
	began := time.Now()
	if err := os.WriteFile(g.path("init"), initScript, 0o600); err != nil {
		return err
	}
	console, err := os.Create(g.path("console"))
	if err != nil {
		return err
	}
	defer console.Close()
	linux, err := look(kernelBinary)
	if err != nil {
		return err
	}
	args := append([]string{"-c", wrapper, "sh", g.dir}, g.rw...)
	cmd := exec.Command("/bin/sh", append(args, "--", linux,
		fmt.Sprintf("mem=%dM", mem), "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro",
		"con=null", "con0=null,fd:2", "ssl=null", "ssl0=fd:0,fd:1", "loglevel=4", "panic=-1",
		"umid=u", "uml_dir="+g.dir+"/", "init=/bin/sh", "--", "-c",
		`"mount -t tmpfs -o mode=755 tmpfs /mnt && mkdir /mnt/rig && `+
			`mount -t hostfs -o `+g.dir+` none /mnt/rig && exec /bin/sh /mnt/rig/init"`)...)
	cmd.Dir = g.dir
	cmd.Env = []string{"TMPDIR=" + g.dir, "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = confine()
	cmd.Stderr = console
	if g.input, err = cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}

	started := make(chan error)
	go func() {
		// The death signal is tied to the starting thread, so that must live on.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			g.answer <- lines.Text()
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		close(g.answer)
		close(g.ended)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("cannot start %s: %w", linux, err)
	}
	g.stop = func() { _ = cmd.Process.Kill() }
	line, err := g.listen(BootTimeout)
	if err == nil && line != "ready" {
		err = errors.New(line)
	}
	if err != nil {
		g.kill()
		return fmt.Errorf("the guest did not come up: %w\n%s", err, g.consoleTail())
	}
	g.BootTime = time.Since(began)
	return nil
}

// listen waits for the guest's next line.
func (g *Guest) listen(limit time.Duration) (string, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case line, ok := <-g.answer:
		if !ok {
			return "", errors.New("it ended")
		}
		return line, nil
	case <-timer.C:
		return "", fmt.Errorf("no answer in %v", limit)
	}
}

func (g *Guest) path(elem ...string) string {
	return filepath.Join(append([]string{g.dir}, elem...)...)
}

// consoleTail is the end of the kernel's console, for an error message.
func (g *Guest) consoleTail() string {
	b, _ := os.ReadFile(g.path("console"))
	return strings.ToValidUTF8(string(b[max(0, len(b)-4000):]), "?")
}

// Exec runs argv in the guest and waits for it; see [Options] and [Guest.Run].
// An error means that it did not run to its end; the Result then has what it wrote.
func (g *Guest) Exec(o Options, argv ...string) (Result, error) {
	conf, cmd, err := g.caseFiles(o, argv)
	if err != nil {
		return Result{}, err
	}
	limit := o.Timeout
	if limit == 0 {
		limit = DefaultTimeout
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dead != nil {
		return Result{}, g.dead
	}
	g.cases++
	n := strconv.Itoa(g.cases)
	if err := errors.Join(
		os.Mkdir(g.path(n), 0o700),
		os.WriteFile(g.path(n, "conf"), conf, 0o600),
		os.WriteFile(g.path(n, "cmd"), cmd, 0o600),
	); err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(g.path(n))

	line := ""
	// The guest itself ends a command that is late, and so saves its output; the
	// limit here is for a guest that is not able to.
	if _, err = fmt.Fprintf(g.input, "%s %.3f\n", n, limit.Seconds()); err == nil {
		line, err = g.listen(limit + 15*time.Second)
	}
	res := Result{Stdout: read(g.path(n, "out")), Stderr: read(g.path(n, "err"))}
	if err == nil {
		status, ok := strings.CutPrefix(line, n+" ")
		if res.Status, err = strconv.Atoi(status); err != nil || !ok {
			err = errors.New(line)
		}
	}
	if err != nil {
		g.kill()
		g.dead = fmt.Errorf("the guest was lost: %w\n%s", err, g.consoleTail())
		return res, g.dead
	}
	if _, err := os.Stat(g.path(n, "late")); err == nil {
		return res, fmt.Errorf("%s ended after the timeout of %v", argv[0], limit)
	}
	if _, err := os.Stat(g.path(n, "started")); err != nil {
		return res, fmt.Errorf("the guest could not set up the command: %s", strings.TrimSpace(res.Stderr))
	}
	return res, nil
}

// sharable checks paths of the host that are to be seen in the guest. What passes is
// also a plain word of the shell.
func sharable(paths []string, writable bool) error {
	for _, p := range paths {
		if !plainPath(p) || p != filepath.Clean(p) || p == "/" {
			return fmt.Errorf("cannot share %q: need a clean absolute path of letters, digits and ._-/+@: below /", p)
		}
		if real, err := filepath.EvalSymlinks(p); err != nil {
			return fmt.Errorf("cannot share: %w", err)
		} else if real != p {
			return fmt.Errorf("cannot share %s: it goes through a link, write %s", p, real)
		}
		if fi, err := os.Stat(p); err != nil || writable && !fi.IsDir() {
			return fmt.Errorf("cannot share %s writable: not a directory", p)
		}
	}
	return nil
}

func read(path string) string {
	b, _ := os.ReadFile(path)
	return string(b)
}

// caseFiles checks o and writes it down as the shell text that init.sh reads.
func (g *Guest) caseFiles(o Options, argv []string) (conf, cmd []byte, err error) {
	if len(argv) == 0 {
		return nil, nil, errors.New("no command")
	}
	if o.Mem != 0 || o.RW != nil {
		return nil, nil, errors.New("Options.Mem and RW refused: a booted guest has its own; give them to Boot or Run")
	}
	if o.Timeout < 0 {
		return nil, nil, fmt.Errorf("Options.Timeout %v refused: it must be above 0", o.Timeout)
	}
	user, delegate, manager := o.User, 0, 0
	switch user {
	case "":
		user = Root
	case Root, Tester:
	default:
		return nil, nil, fmt.Errorf("Options.User %q refused: there are %q and %q", user, Root, Tester)
	}
	if o.Delegate {
		delegate = 1
	}
	if o.Manager {
		manager = 1
		if user != Tester {
			return nil, nil, errors.New("Options.Manager refused: it is Tester's")
		}
		if _, err := os.Stat(managerBinary); err != nil {
			return nil, nil, Unavailable("cannot: " + managerBinary + " not found; on Debian: apt-get install systemd")
		}
	}
	c := fmt.Sprintf("user=%s delegate=%d manager=%d\nshares() {\n:\n", user, delegate, manager)
	if err := sharable(o.RO, false); err != nil {
		return nil, nil, err
	}
	for _, p := range g.rw {
		c += "share_rw " + p + "\n"
	}
	for _, p := range o.RO {
		c += "share_ro " + p + "\n"
	}
	c += "}\n"

	x := "exec env"
	for _, kv := range o.Env {
		if k, _, ok := strings.Cut(kv, "="); !ok || k == "" || k[0] == '-' {
			return nil, nil, fmt.Errorf("Options.Env %q refused: not K=V", kv)
		}
		x += " " + quote(kv)
	}
	if strings.Contains(argv[0], "=") {
		return nil, nil, fmt.Errorf("command %q refused: it has a = in its name", argv[0])
	}
	if strings.HasPrefix(argv[0], "-") {
		return nil, nil, fmt.Errorf("command %q refused: it begins with a dash", argv[0])
	}
	for _, a := range argv {
		x += " " + quote(a)
	}
	if strings.ContainsRune(x, 0) {
		return nil, nil, errors.New("a NUL byte refused: no command line can carry one")
	}
	return []byte(c), []byte(x + "\n"), nil
}

// quote makes s one word of the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// kill ends the guest's processes and waits until they are gone.
func (g *Guest) kill() {
	if g.stop == nil {
		return
	}
	g.stop()
	for range g.answer { // a line it was about to say must not hold it
	}
	<-g.ended
}

// Close ends the guest at once and removes what it left on the host.
// A command still running in it becomes an error.
func (g *Guest) Close() {
	g.kill()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dead = errors.New("the guest is closed")
	if g.lock != nil {
		os.RemoveAll(g.dir)
		g.lock.Close()
		g.lock = nil
		sweepAll()
	}
}
