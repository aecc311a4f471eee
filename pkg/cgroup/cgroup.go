package cgroup

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Limits are the caps to put on a group. Zero means no such cap.
type Limits struct {
	Memory int64   // bytes, with no swap beside it
	PIDs   int     // processes and threads
	CPUs   float64 // CPU seconds per second
}

// Bound says which of the caps asked for are in force for whatever is added to
// the group.
type Bound struct {
	Memory, PIDs, CPU bool
	// Reason says in one line why those asked for and not bound are not; empty
	// when all are.
	Reason string
}

// Group is a cgroup of ours: one directory in a unified tree, one per
// controller in the trees of cgroup v1.
type Group struct {
	sys   *system
	name  string
	nodes []*node

	memory, cpu *node // where memory is capped and CPU time is counted, or nil
	oom         atomic.Bool
	cool        func() // ends what warm began
}

// node is one directory of a group.
type node struct {
	dir string
	v2  bool
	// key is the controller list by which /proc/PID/cgroup calls the tree.
	key string
}

const prefix = "kern-sbx-"

// validName says whether a name is one of ours: the prefix and 16 hex digits.
// Nothing else is ever made, killed or removed.
func validName(name string) bool {
	id, ok := strings.CutPrefix(name, prefix)
	return ok && len(id) == 16 && strings.Trim(id, "0123456789abcdef") == ""
}

// Create makes a group with the caps of l and reads them back. The name is
// "kern-sbx-" and 16 hex digits.
//
// On cgroup v1 the group is made below our own cgroup, so that the limits
// around us hold for it too. On v2 a cgroup that has processes cannot hand
// controllers to its children, so the group is made beside our own, below the
// nearest directory above that hands the controllers down. Where such a
// directory belongs to an ordinary user, as a delegated one does, missing
// controllers are switched on there, and stay on; root's are never touched, nor
// is a tree remounted that is read-only.
//
// The error is for when no cap at all could be made; nothing is left then, and
// Bound.Reason says the same. The caller must Remove the group.
func Create(name string, l Limits) (*Group, Bound, error) { return host.create(name, l) }

func (s *system) create(name string, l Limits) (*Group, Bound, error) {
	var b Bound
	if !validName(name) {
		return nil, b, fmt.Errorf("cgroup name %q refused: it has to be %s and 16 hex digits", name, prefix)
	}
	if l.Memory <= 0 && l.PIDs <= 0 && l.CPUs <= 0 {
		return nil, b, errors.New("a cgroup without a cap refused: there is nothing for it to do")
	}
	caps := []*request{
		{controller: "memory", wanted: l.Memory > 0, bound: &b.Memory, set: func(n *node) error { return n.capMemory(l.Memory) }},
		{controller: "pids", wanted: l.PIDs > 0, bound: &b.PIDs, set: func(n *node) error { return n.capPIDs(l.PIDs) }},
		{controller: "cpu", wanted: l.CPUs > 0, bound: &b.CPU, set: func(n *node) error { return n.capCPU(l.CPUs) }},
	}
	caps = slices.DeleteFunc(caps, func(c *request) bool { return !c.wanted })
	g := &Group{sys: s, name: name, cool: func() {}}
	trees, err := s.trees()
	if err != nil {
		b.Reason = err.Error()
		return nil, b, err
	}
	g.place(trees, caps)
	for _, c := range caps {
		if c.err != nil {
			continue
		}
		if c.err = c.set(c.node); c.err == nil {
			*c.bound = true
		}
	}
	b.Reason = reasons(caps)
	if !b.Memory && !b.PIDs && !b.CPU {
		g.Remove()
		return nil, b, errors.New(b.Reason)
	}
	for _, c := range caps {
		if c.controller == "memory" && *c.bound {
			g.memory = c.node
		}
	}
	g.countCPU(trees)
	g.warm(trees)
	return g, b, nil
}

// request is one cap that was asked for, and what became of it.
type request struct {
	controller string
	wanted     bool
	bound      *bool
	set        func(*node) error
	node       *node
	err        error
}

// reasons says why caps do not bind, those with one reason together.
func reasons(caps []*request) string {
	var out []string
	for i, c := range caps {
		if c.err == nil {
			continue
		}
		names := c.controller
		said := false
		for j, o := range caps {
			if o.err == nil || o.err.Error() != c.err.Error() {
				continue
			}
			if j < i {
				said = true
			} else if j > i {
				names += ", " + o.controller
			}
		}
		if !said {
			out = append(out, names+": "+c.err.Error())
		}
	}
	return strings.Join(out, "; ")
}

// place makes the directories that the caps need.
func (g *Group) place(trees []*tree, caps []*request) {
	var unified []*request
	for _, c := range caps {
		t := find(trees, c.controller)
		switch {
		case t == nil:
			c.err = fmt.Errorf("no cgroup tree mounted here has the %s controller", c.controller)
		case t.own == "":
			c.err = errors.New("our own cgroup is not visible in the cgroup tree mounted here")
		case t.v2:
			unified = append(unified, c)
		default:
			c.node, c.err = g.make(t, t.own)
		}
	}
	if len(unified) == 0 {
		return
	}
	t := find(trees, unified[0].controller)
	parent := g.sys.placeUnified(t, unified)
	for _, c := range unified {
		if c.err == nil {
			c.node, c.err = g.make(t, parent)
		}
	}
}

// make makes the group's directory in a tree, once.
func (g *Group) make(t *tree, parent string) (*node, error) {
	dir := parent + "/" + g.name
	for _, n := range g.nodes {
		if n.dir == dir {
			return n, nil
		}
	}
	if err := g.sys.mkdir(dir); err != nil {
		return nil, t.explain(err, parent)
	}
	n := &node{dir: dir, v2: t.v2, key: t.key}
	g.nodes = append(g.nodes, n)
	return n, nil
}

// Add moves a process, and what it may have forked already, into the group, and
// looks at where the kernel then says they are. What they fork from then on is
// born there. An error means that the caps do not hold for all of it. A process
// that was in a cgroup of kern's leaves it, and kern's caps with it.
func (g *Group) Add(pid int) error {
	g.cool()
	if g.memory != nil {
		// A process with the least score is one that the kernel never kills, and
		// the box inherits ours.
		file := g.sys.root + "/proc/" + strconv.Itoa(pid) + "/oom_score_adj"
		if v, err := readFile(file); err == nil && v == "-1000" {
			if err := writeFile(file, "0"); err != nil {
				return fmt.Errorf("process %d is exempt from the kernel's OOM killer, and stays so: %w", pid, err)
			}
		}
	}
	return g.add(pid, 0)
}

// warmEvery is shorter than an RCU grace period, warmTime longer than kern
// takes to build a box.
const (
	warmEvery = 3 * time.Millisecond
	warmTime  = 500 * time.Millisecond
)

// warm spares Add a wait. The kernel's lock against forks while a process is
// moved is made for readers: the first to write it waits for a grace period,
// 10 to 30 ms, and those who come soon after it do not. So from Create until
// Add, while kern builds the box, we move ourselves to where we are, which
// takes the lock and changes nothing.
func (g *Group) warm(trees []*tree) {
	var own string
	for _, t := range trees {
		if t.key == g.nodes[0].key {
			own = t.own
		}
	}
	done := make(chan struct{})
	g.cool = sync.OnceFunc(func() { close(done) })
	go func() {
		self := strconv.Itoa(os.Getpid())
		end := time.Now().Add(warmTime)
		tick := time.NewTicker(warmEvery)
		defer tick.Stop()
		for time.Now().Before(end) {
			if writeFile(own+"/cgroup.procs", self) != nil {
				return
			}
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
}

// maxDepth bounds how deep a family is followed. What waits at kern's gate is
// one process, or an init and its child.
const maxDepth = 8

func (g *Group) add(pid, depth int) error {
	if depth == maxDepth {
		return fmt.Errorf("process %d forks faster than it can be capped", pid)
	}
	for _, n := range g.nodes {
		if err := writeFile(n.dir+"/cgroup.procs", strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("process %d could not be put into %s: %w", pid, n.dir, err)
		}
	}
	if err := g.verify(pid); err != nil {
		return err
	}
	// Children born before the move are elsewhere; those born after it are not.
	for _, child := range g.sys.children(pid) {
		if err := g.addChild(child, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// addChild is add for a process that may be ending: the kernel no longer moves
// such a one, and says of it that it is in "/".
func (g *Group) addChild(pid, depth int) (err error) {
	for range 20 {
		if g.verify(pid) == nil || !g.sys.alive(pid) {
			return nil
		}
		if err = g.add(pid, depth); err == nil {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return err
}

// verify checks that a process is in every directory of the group.
func (g *Group) verify(pid int) error {
	paths, err := g.sys.membership(strconv.Itoa(pid))
	if err != nil {
		return fmt.Errorf("cannot see which cgroup process %d is in: %w", pid, err)
	}
	for _, n := range g.nodes {
		p, ok := paths[n.key]
		if _, name, _ := cutLast(p, "/"); !ok || name != g.name {
			return fmt.Errorf("process %d is in cgroup %q and not in %s", pid, p, n.dir)
		}
	}
	return nil
}

// OOM says whether the kernel ran out of the group's memory and killed for it,
// or told Watch that it was about to. It is to be read before Remove. What the
// code in the box says or exits with has no part in it.
func (g *Group) OOM() bool {
	if g.oom.Load() {
		return true
	}
	if g.memory == nil {
		return false
	}
	return g.memory.kills() > 0
}

// kills is the kernel's count of processes of the group that its OOM killer
// ended.
func (n *node) kills() int64 {
	file := n.dir + "/memory.oom_control"
	if n.v2 {
		file = n.dir + "/memory.events"
	}
	return max(field(file, "oom_kill"), field(file, "oom_group_kill"))
}

// Peak is the most memory the group had at once, in bytes; 0 where the kernel
// does not keep it, or memory is not capped.
func (g *Group) Peak() int64 {
	if g.memory == nil {
		return 0
	}
	file := "/memory.max_usage_in_bytes"
	if g.memory.v2 {
		file = "/memory.peak"
	}
	n, _ := number(g.memory.dir + file)
	return n
}

// CPUTime is what all processes of the group have used of the CPUs so far; 0
// where the kernel does not count it.
func (g *Group) CPUTime() time.Duration {
	switch {
	case g.cpu == nil:
		return 0
	case g.cpu.v2:
		return time.Duration(field(g.cpu.dir+"/cpu.stat", "usage_usec")) * time.Microsecond
	default:
		n, _ := number(g.cpu.dir + "/cpuacct.usage")
		return time.Duration(n)
	}
}

// countCPU looks for a directory of the group where CPU time is counted. None
// is made for that alone: each costs as much as all the rest of Create.
func (g *Group) countCPU(trees []*tree) {
	acct := find(trees, "cpuacct")
	for _, n := range g.nodes {
		if n.v2 || (acct != nil && n.key == acct.key) {
			g.cpu = n
		}
	}
}

// killTime bounds how long Kill waits for processes to be gone, and removeTime
// how long Remove does.
const (
	killTime   = 200 * time.Millisecond
	removeTime = 200 * time.Millisecond
)

// Kill kills every process of the group and returns when all are gone, or with
// an error after 200 ms. Where PID 1 of a box is among them, the kernel ends
// the whole box with it and lets nothing more be forked.
func (g *Group) Kill() error {
	end := time.Now().Add(killTime)
	for {
		left := 0
		for _, n := range g.nodes {
			left += g.kill(n)
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d processes of cgroup %s do not end", left, g.name)
		}
		time.Sleep(time.Millisecond)
	}
}

// kill sends SIGKILL to all that is in a directory now, and says how many that
// were.
func (g *Group) kill(n *node) int {
	var procs []string
	below(n.dir, func(dir string) {
		b, _ := readFile(dir + "/cgroup.procs")
		procs = append(procs, strings.Fields(b)...)
	})
	if len(procs) == 0 {
		return 0
	}
	if n.v2 && writeFile(n.dir+"/cgroup.kill", "1") == nil {
		return len(procs)
	}
	for _, p := range procs {
		// Zero is a process of a pid namespace that we cannot see into.
		if pid, err := strconv.Atoi(p); err == nil && pid > 1 && pid != os.Getpid() {
			g.killOne(n, pid)
		}
	}
	return len(procs)
}

func (g *Group) killOne(n *node, pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	// The number was read before the descriptor was taken, and may be another's
	// by now: only a process of the group is killed.
	paths, err := g.sys.membership(strconv.Itoa(pid))
	if err == nil && strings.Contains(paths[n.key]+"/", "/"+g.name+"/") {
		unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}

// Remove removes the group's directories, and waits up to 200 ms for processes
// that are just ending. It does not kill. Safe to call twice.
func (g *Group) Remove() error {
	g.cool()
	end := time.Now().Add(removeTime)
	var left []*node
	var err error
	for _, n := range g.nodes {
		if e := g.sys.removeDir(n.dir, end); e != nil {
			left = append(left, n)
			err = errors.Join(err, e)
		}
	}
	g.nodes = left
	g.memory, g.cpu = nil, nil
	return err
}

// removeDir removes a directory of ours. What somebody made below it, which
// the kernel lets only the host's root do, goes first.
func (s *system) removeDir(dir string, end time.Time) error {
	wait := 100 * time.Microsecond
	for {
		err := s.rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return fmt.Errorf("cgroup %s could not be removed: %w", dir, err)
		}
		below(dir, func(d string) {
			if d != dir {
				s.rmdir(d)
			}
		})
		time.Sleep(wait)
		wait = min(2*wait, 5*time.Millisecond)
	}
}

// Remove removes what a kern-sbx that was killed left behind under a name,
// wherever Create would have made it, also when our own cgroup is not the one
// it was made from. What still runs in it is killed. A name that is not one of
// ours, and a directory that is not this user's, is left alone.
func Remove(name string) { host.sweep(name) }

func (s *system) sweep(name string) {
	if !validName(name) {
		return
	}
	trees, err := s.trees()
	if err != nil {
		return
	}
	g := &Group{sys: s, name: name, cool: func() {}}
	for _, t := range trees {
		for _, dir := range s.search(t, name) {
			g.nodes = append(g.nodes, &node{dir: dir, v2: t.v2, key: t.key})
		}
	}
	if len(g.nodes) == 0 {
		return
	}
	g.Kill()
	g.Remove()
}

// KernEnforces says whether a process is in a cgroup that kern made for a box,
// and that we are not in ourselves: kern caps it then. With a memory cap (bytes,
// 0 for none) it is also looked at there: right after a login, systemd may take
// the controller away again that kern had just been given, and kern would say
// that its cap is in force.
func KernEnforces(pid int, memory int64) bool { return host.kernEnforces(pid, memory) }

func (s *system) kernEnforces(pid int, memory int64) bool {
	path, ok := s.kernBox(pid)
	if !ok || memory <= 0 {
		return ok
	}
	dir := s.root + "/sys/fs/cgroup"
	if _, err := os.Stat(dir + path); err != nil {
		return true // mounted elsewhere, or seen from within a namespace
	}
	most, err := readFile(dir + path + "/memory.max")
	if err != nil {
		return false
	}
	n, err := strconv.ParseInt(most, 10, 64)
	return err == nil && n <= memory
}

// kernBox gives the path of the cgroup that kern made for a process.
func (s *system) kernBox(pid int) (string, bool) {
	theirs, err := s.membership(strconv.Itoa(pid))
	if err != nil {
		return "", false
	}
	ours, err := s.membership("self")
	if err != nil {
		return "", false
	}
	own := strings.Split(ours[""], "/")
	for i, c := range strings.Split(theirs[""], "/") {
		if i < len(own) && own[i] == c {
			continue
		}
		own = own[:min(i, len(own))]
		if strings.HasPrefix(c, "kern-box-") {
			return theirs[""], true
		}
	}
	return "", false
}
