package rig

import (
	"errors"
	"testing"
	"time"
)

// The users a command can run as in a guest.
const (
	Root   = "root"
	Tester = "tester" // uid and gid 1000, with 65536 subordinate ids
)

const (
	// DefaultMem is the guest's memory in MiB. It is address space: what the guest
	// never touches costs the host nothing.
	DefaultMem = 1024
	// DefaultTimeout bounds one command.
	DefaultTimeout = 2 * time.Minute
	// BootTimeout bounds a boot, which takes about 2 s on an idle machine.
	BootTimeout = 60 * time.Second
)

// Options says how one command runs. The zero value is root in a cgroup tree it
// cannot write, with nothing of the host shared.
type Options struct {
	// User is Root or Tester. Default Root.
	User string

	// Delegate gives the user the cgroups a systemd login would. For Tester: its
	// user@1000.service is its own, with cpu, io, memory and pids handed down, and
	// the command sits in a leaf of it, run.scope. For Root: the whole tree.
	// Without it Tester's cgroup belongs to root, and Root's tree is mounted
	// read-only, as in a container.
	Delegate bool

	// Manager starts a `systemd --user` in Tester's user@1000.service and the
	// command beside it, in session-1.scope: a login on a systemd machine, as far as
	// one without logind, a session bus and a systemd as pid 1 can be. It stands in
	// for Delegate, is Tester's only, and needs systemd on the host.
	Manager bool

	// Mem is the guest's memory in MiB. Default [DefaultMem]. It and RW are for
	// [Boot] and [Run]; [Guest.Run] refuses them, because the guest is already there.
	Mem int

	// RO are files and directories of the host, absolute and
	// free of links, visible read-only at their own path. Only what the fresh /home, /root, /run, /tmp and /var/tmp
	// would hide needs naming; the rest of the host can be read anyway.
	RO []string

	// RW are directories of the host, likewise, writable at their own path by every
	// command of the guest.
	// Whatever the guest's user, the host sees its own user write there, and a
	// tester needs the directory's mode to let it in.
	RW []string

	// Env is K=V for the command. It inherits nothing: PATH (the system's own
	// directories), HOME, USER, LOGNAME, SHELL, LANG and XDG_RUNTIME_DIR are set.
	Env []string

	// Timeout ends the command and all it started. Default [DefaultTimeout].
	Timeout time.Duration
}

// Result is what a command that ran to its end answered.
type Result struct {
	// Status is its exit status, or 128+N when signal N ended it.
	Status int
	// Stdout and Stderr are all it wrote, apart and unchanged.
	Stdout, Stderr string
}

// Unavailable is the error of a host that lacks what a guest needs: a reason to skip a
// test, not to fail it. Its text begins with "cannot: ".
type Unavailable string

func (u Unavailable) Error() string { return string(u) }

// check ends the test on an error: skipped where this host cannot, else failed.
func check(t testing.TB, err error, res Result) {
	t.Helper()
	var cannot Unavailable
	switch {
	case errors.As(err, &cannot):
		t.Skip(cannot)
	case err != nil:
		t.Fatalf("%v\nstdout: %s\nstderr: %s", err, res.Stdout, res.Stderr)
	}
}

// Boot starts a guest with o.Mem and o.RW that lives until the test ends. It skips the test where [Available] says no, and fails it when the guest does
// not come up.
func Boot(t testing.TB, o Options) *Guest {
	t.Helper()
	g, err := Start(o)
	check(t, err, Result{})
	t.Cleanup(g.Close)
	return g
}

// Run runs one command in the guest and waits for it. It fails the test when the
// command could not be run or passed its time. Every command gets fresh /home,
// /root, /run, /tmp and /var/tmp and a fresh cgroup; what it leaves running is killed.
func (g *Guest) Run(t testing.TB, o Options, argv ...string) Result {
	t.Helper()
	res, err := g.Exec(o, argv...)
	check(t, err, res)
	return res
}

// Run boots a guest for this one command; [Boot] and [Guest.Run] serve several.
func Run(t testing.TB, o Options, argv ...string) Result {
	t.Helper()
	g := Boot(t, o)
	o.Mem, o.RW = 0, nil
	return g.Run(t, o, argv...)
}
