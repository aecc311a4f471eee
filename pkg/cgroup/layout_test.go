package cgroup

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	testName = "kern-sbx-0123456789abcdef"
	v1mounts = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 ROOT /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 ROOT /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
39 31 0:36 ROOT /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
40 31 0:37 ROOT /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
`
	v1self  = "9:name=systemd:PATH\n8:pids:PATH\n4:memory:PATH\n2:cpu,cpuacct:PATH\n"
	v2mount = "30 23 0:26 ROOT /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
)

// machine is a host's cgroup files below a temporary directory. What the
// kernel makes by itself, mkdir does here.
type machine struct {
	*system
	t *testing.T
}

func newMachine(t *testing.T, self, mounts string, dirs map[string]string) *machine {
	m := &machine{t: t, system: &system{root: t.TempDir()}}
	m.mkdir = func(dir string) error {
		if err := unix.Mkdir(dir, 0o755); err != nil {
			return err
		}
		for _, f := range strings.Fields("cgroup.procs cgroup.kill memory.limit_in_bytes memory.memsw.limit_in_bytes pids.max " +
			"cpu.cfs_quota_us cpu.cfs_period_us memory.max memory.swap.max memory.oom.group cpu.max") {
			m.write(dir+"/"+f, "")
		}
		return nil
	}
	m.rmdir = os.RemoveAll
	m.write(m.root+"/proc/self/cgroup", self)
	m.write(m.root+"/proc/self/mountinfo", mounts)
	for _, line := range strings.Split(mounts, "\n") {
		if ml, ok := parseMount(line); ok {
			m.write(m.root+ml.point+"/cgroup.procs", "")
		}
	}
	for dir, handed := range dirs {
		m.write(m.root+dir+"/cgroup.procs", "")
		if handed != "-" {
			handed, withheld, _ := strings.Cut(handed, "|")
			m.write(m.root+dir+"/cgroup.subtree_control", handed)
			m.write(m.root+dir+"/cgroup.controllers", handed+withheld)
		}
	}
	return m
}

func (m *machine) write(path, text string) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

func at(s, path string) string {
	return strings.NewReplacer("PATH", path, "ROOT", path).Replace(s)
}

func TestLayouts(t *testing.T) {
	const all = "cpu memory pids"
	top := "/sys/fs/cgroup"
	for _, tt := range []struct {
		name         string
		self, mounts string
		dirs         map[string]string // and the controllers they hand down | keep; "-": v1
		euid         int
		deny         string // mkdir and access are refused below these, with
		errno        error
		where        []string // directories that are made, below /sys/fs/cgroup
		bound        Bound
	}{
		{
			name: "v1", self: at(v1self, "/a/b"), mounts: at(v1mounts, "/"),
			dirs:  map[string]string{top + "/memory/a/b": "-", top + "/pids/a/b": "-", top + "/cpu,cpuacct/a/b": "-"},
			where: []string{"/memory/a/b", "/pids/a/b", "/cpu,cpuacct/a/b"}, bound: Bound{true, true, true, ""},
		},
		{
			name: "v1 container that sees the host's paths", self: at(v1self, "/docker/x"), mounts: at(v1mounts, "/docker/x"),
			where: []string{"/memory", "/pids", "/cpu,cpuacct"}, bound: Bound{true, true, true, ""},
		},
		{
			name: "v1 outside of the namespace", self: at(v1self, "/../other"), mounts: at(v1mounts, "/"),
			bound: Bound{Reason: "memory, pids, cpu: our own cgroup is not visible in the cgroup tree mounted here"},
		},
		{
			name: "v1 of another part", self: at(v1self, "/docker/xy"), mounts: at(v1mounts, "/docker/x"),
			bound: Bound{Reason: "memory, pids, cpu: our own cgroup is not visible in the cgroup tree mounted here"},
		},
		{
			name: "v1 read-only", self: at(v1self, "/"), mounts: at(v1mounts, "/"), deny: "/", errno: unix.EROFS,
			bound: Bound{Reason: "memory, pids, cpu: the cgroup tree is mounted read-only"},
		},
		{
			name: "v1 user", self: at(v1self, "/"), mounts: at(v1mounts, "/"), deny: "/pids", errno: unix.EACCES,
			where: []string{"/memory", "/cpu,cpuacct"}, bound: Bound{true, false, true, "pids: cgroup / belongs to another user"},
		},
		{
			name: "hybrid", self: at(v1self, "/") + "0::/x\n", mounts: at(v1mounts, "/") + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			where: []string{"/memory", "/pids", "/cpu,cpuacct"}, bound: Bound{true, true, true, ""},
		},
		{
			name: "hybrid with pids in the unified tree", self: "4:memory:/\n2:cpu,cpuacct:/\n0::/x/y\n",
			mounts: strings.ReplaceAll(at(v1mounts, "/"), "rw,pids", "rw,none") + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			dirs:   map[string]string{top + "/unified": "pids", top + "/unified/x": "pids", top + "/unified/x/y": ""},
			where:  []string{"/memory", "/cpu,cpuacct", "/unified/x"}, bound: Bound{true, true, true, ""},
		},
		{
			name: "v2 root beside its own", self: "0::/system.slice/a.service\n", mounts: at(v2mount, "/"),
			dirs:  map[string]string{top: all, top + "/system.slice": all, top + "/system.slice/a.service": ""},
			where: []string{"/system.slice"}, bound: Bound{true, true, true, ""},
		},
		{
			name: "v2 root where only the top hands down", self: "0::/user.slice/u/s.scope\n", mounts: at(v2mount, "/"),
			dirs:  map[string]string{top: all, top + "/user.slice": "pids", top + "/user.slice/u": "pids", top + "/user.slice/u/s.scope": ""},
			where: []string{""}, bound: Bound{true, true, true, ""},
		},
		{
			name: "v2 in the top", self: "0::/\n", mounts: at(v2mount, "/"), dirs: map[string]string{top: all},
			where: []string{""}, bound: Bound{true, true, true, ""},
		},
		{
			name: "v2 cgroup namespace with processes in its top", self: "0::/\n", mounts: at(v2mount, "/"), dirs: map[string]string{top: "|" + all},
			bound: Bound{Reason: "memory, pids, cpu: our own cgroup is the top of all that is visible here, and has processes: nothing can be capped below it"},
		},
		{
			name: "v2 delegated", self: "0::/user/session\n", mounts: at(v2mount, "/"), euid: os.Geteuid(), deny: "//", errno: unix.EACCES,
			dirs:  map[string]string{top: all, top + "/user": all, top + "/user/session": ""},
			where: []string{"/user"}, bound: Bound{true, true, true, ""},
		},
		{
			name: "v2 without cpu", self: "0::/user/session\n", mounts: at(v2mount, "/"),
			dirs:  map[string]string{top: "memory pids cpu", top + "/user": "memory pids", top + "/user/session": ""},
			deny:  "//",
			errno: unix.EACCES,
			where: []string{"/user"}, bound: Bound{true, true, false, "cpu: cgroup /user does not hand this controller down"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t, tt.self, tt.mounts, tt.dirs)
			m.euid = tt.euid
			refused := func(dir string) bool {
				rel := strings.TrimPrefix(dir, m.root+top)
				return tt.errno != nil && (tt.deny == "//" && strings.Count(rel, "/") < 2 && !strings.HasPrefix(rel, "/user/") || tt.deny != "//" && strings.HasPrefix(rel, tt.deny))
			}
			mkdir := m.mkdir
			m.mkdir = func(dir string) error {
				if refused(dir) {
					return tt.errno
				}
				return mkdir(dir)
			}
			m.access = func(dir string) error {
				if refused(strings.TrimSuffix(dir, "/cgroup.procs") + "/") {
					return tt.errno
				}
				return nil
			}
			g, b, err := m.create(testName, Limits{Memory: 64 << 20, PIDs: 10, CPUs: 0.5})
			if b != tt.bound || (err != nil) != (b == Bound{Reason: b.Reason}) {
				t.Errorf("got %+v, %v, want %+v", b, err, tt.bound)
			}
			var want, made []string
			for _, w := range tt.where {
				want = append(want, m.root+top+w+"/"+testName)
			}
			if g != nil {
				for _, n := range g.nodes {
					made = append(made, n.dir)
				}
			}
			if !reflect.DeepEqual(made, want) {
				t.Errorf("made %q, want %q", made, want)
			}
			if g != nil {
				// As if we had been killed, and somebody in another place cleaned up.
				g.cool()
				m.euid = os.Geteuid()
				m.write(m.root+"/proc/self/cgroup", strings.NewReplacer("/a/b", "/elsewhere").Replace(tt.self))
				m.sweep(testName)
			}
			below(m.root+top, func(dir string) {
				if filepath.Base(dir) == testName {
					t.Errorf("%s is left", dir)
				}
			})
		})
	}
}

// TestEnable: an ordinary user's own directory is made to hand down what it
// can; nobody else's is touched.
func TestEnable(t *testing.T) {
	for _, tt := range []struct {
		name string
		euid int
		want string
	}{
		{"root", 0, "memory"},
		{"another user", os.Geteuid() + 1, "memory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := "/sys/fs/cgroup/user"
			m := newMachine(t, "0::/user/session\n", at(v2mount, "/"), map[string]string{"/sys/fs/cgroup": "memory pids", dir: "memory"})
			m.euid = tt.euid
			m.access = func(string) error { return nil }
			trees, _ := m.trees()
			m.handedDown(trees[0], m.root+dir, []*request{{controller: "pids"}})
			if got, _ := readFile(m.root + dir + "/cgroup.subtree_control"); got != tt.want {
				t.Errorf("it hands down %q", got)
			}
		})
	}
}

func TestCreateRefusals(t *testing.T) {
	m := newMachine(t, "0::/\n", at(v2mount, "/"), map[string]string{"/sys/fs/cgroup": "memory"})
	for _, name := range []string{"", "..", "kern-sbx-", "kern-sbx-0123456789ABCDEF", "kern-sbx-0123456789abcde/", "../" + testName, testName + "0", "kern-box-0123456789abcdef"} {
		if _, _, err := m.create(name, Limits{Memory: 1 << 20}); err == nil {
			t.Errorf("%q was made", name)
		}
	}
	if _, _, err := m.create(testName, Limits{}); err == nil {
		t.Error("a group without caps was made")
	}
}

// TestNotReadBack: a kernel that takes a value and does not keep it does not
// bind.
func TestNotReadBack(t *testing.T) {
	m := newMachine(t, at(v1self, "/"), at(v1mounts, "/"), nil)
	mkdir := m.mkdir
	m.mkdir = func(dir string) error {
		err := mkdir(dir)
		return errors.Join(err, os.Remove(dir+"/pids.max"), os.Symlink("/dev/null", dir+"/pids.max"))
	}
	g, b, err := m.create(testName, Limits{Memory: 1 << 20, PIDs: 5})
	if err != nil || b.PIDs || !b.Memory || !strings.Contains(b.Reason, `reads ""`) {
		t.Errorf("%+v, %v", b, err)
	}
	g.cool()
}

func TestInheritedQuota(t *testing.T) {
	dir := t.TempDir()
	for f, v := range map[string]string{"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"} {
		os.WriteFile(dir+"/"+f, []byte(v), 0o644)
	}
	n := &node{dir: dir + "/" + testName}
	if !n.tighterAbove(1) || n.tighterAbove(0.25) {
		t.Error("a tighter quota above is not seen as it is")
	}
}

func TestQuota(t *testing.T) {
	for cpus, want := range map[float64][2]int64{0.5: {50000, 100000}, 2: {200000, 100000}, 0.01: {1000, 100000}, 0.005: {5000, 1000000}, 0.0001: {1000, 1000000}} {
		if q, p := quota(cpus); q != want[0] || p != want[1] {
			t.Errorf("%v: %d %d", cpus, q, p)
		}
	}
}

func TestKernEnforces(t *testing.T) {
	for _, tt := range []struct {
		theirs, ours string
		want         bool
	}{
		{"0::/kern.slice/kern-box-a\n", "0::/\n", true},
		{"0::/user.slice/u/app.slice/kern-box-a-1.scope\n", "0::/user.slice/u/s.scope\n", true},
		{"0::/user.slice/u/s.scope\n", "0::/user.slice/u/s.scope\n", false},
		{"0::/kern-box-o/x\n", "0::/kern-box-o\n", false}, // we are in a box ourselves
		{"0::/kern-box-o/x/kern-box-i\n", "0::/kern-box-o\n", true},
		{"0::/kern-box-b\n", "0::/kern-box-a\n", true},
		{"0::/not-kern-box-a\n", "0::/\n", false},
		{"4:memory:/kern-box-a\n0::/\n", "0::/\n", false},
		{"", "0::/\n", false},
	} {
		m := newMachine(t, tt.ours, "", nil)
		m.write(m.root+"/proc/7/cgroup", tt.theirs)
		if got := m.kernEnforces(7, 1<<20); got != tt.want {
			t.Errorf("%q from %q: %v", tt.theirs, tt.ours, got)
		}
	}
}

// TestKernEnforcesIsLookedAt: being in kern's cgroup is no proof of a cap.
func TestKernEnforcesIsLookedAt(t *testing.T) {
	for limit, want := range map[string]bool{"max": false, "1048576": true, "4096": true, "2097152": false, "rubbish": false, "": false} {
		m := newMachine(t, "0::/\n", "", nil)
		m.write(m.root+"/proc/7/cgroup", "0::/kern.slice/kern-box-a\n")
		m.write(m.root+"/sys/fs/cgroup/kern.slice/kern-box-a/cgroup.procs", "")
		if limit != "" {
			m.write(m.root+"/sys/fs/cgroup/kern.slice/kern-box-a/memory.max", limit+"\n")
		}
		if got := m.kernEnforces(7, 1<<20); got != want {
			t.Errorf("memory.max %q: %v", limit, got)
		}
		if !m.kernEnforces(7, 0) {
			t.Errorf("memory.max %q matters without a memory cap", limit)
		}
	}
}

func TestReasons(t *testing.T) {
	same, other := errors.New("same"), errors.New("other")
	got := reasons([]*request{{controller: "memory", err: same}, {controller: "pids", err: other}, {controller: "cpu", err: same}, {controller: "x"}})
	if got != "memory, cpu: same; pids: other" {
		t.Error(got)
	}
}

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{`/a\040b`: "/a b", `/a\134`: `/a\`, `\`: `\`, `\0`: `\0`, `\999`: `\999`, "/p": "/p"} {
		if got := unescape(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

// FuzzParse: mount points and cgroup names are what others chose.
func FuzzParse(f *testing.F) {
	f.Add(v1mounts, v1self)
	f.Add(v2mount, "0::/a:b\n")
	f.Fuzz(func(t *testing.T, mounts, self string) {
		for line := range strings.Lines(mounts) {
			if m, ok := parseMount(line); ok && !strings.HasPrefix(m.point, "/") {
				t.Errorf("mount point %q", m.point)
			}
		}
		for path := range maps.Values(parseMembership(self)) {
			if rel, ok := relative(path, "/"); ok && (rel != path || strings.HasPrefix(rel, "/..")) {
				t.Errorf("%q from %q", rel, path)
			}
		}
	})
}
