package doctor

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kern-sbx/kern-sbx/pkg/kernbin"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

func TestParseFacts(t *testing.T) {
	for _, c := range []struct {
		text  string
		n     int
		whole bool
		bad   bool
	}{
		{"", 0, false, true},
		{"end\x00\x00", 0, true, false},
		{"e:A\x001\x00e:B\x00\x00end\x00\x00", 2, true, false},
		{"e:A\x001\x00e:B\x00", 1, false, true},                 // cut
		{"e:A\x001\x00e:B", 1, false, true},                     // cut
		{"e:A\x001\x00", 1, false, true},                        // no end
		{"e:A\x001\x00e:A\x002\x00end\x00\x00", 1, false, true}, // twice
		{"e:A\x001\x00end\x00\x00more", 1, false, true},         // after the end
		{"end\x00x\x00", 0, false, true},
		{strings.Repeat("x", maxProbe+1), 0, false, true},
	} {
		f, whole, err := parseFacts([]byte(c.text))
		if len(f) != c.n || whole != c.whole || (err != nil) != c.bad {
			t.Errorf("%.40q: %d facts, whole %v, %v", c.text, len(f), whole, err)
		}
	}
}

func FuzzFacts(f *testing.F) {
	f.Add([]byte("u:\x000 0 4\x00m:\x00tmpfs 1 2 /tmp\n\x00end\x00\x00"))
	f.Add([]byte("P:40\x0040 ok\x00f:/proc/self/uid_map\x000 0 1 9\x00w:~\x00EROFS /\x00p:\x00/x 1 2\x00"))
	// Nothing that a box answers may hurt a check.
	e := machine(f, nil)
	e.listener = &Listener{Port: 1, Abstract: "x"}
	fake := fakeBox{enforced: "kern"}
	s := *e.Spec
	s.Argv = []string{"", ""}
	res, err := fake.start(f.Context(), &s)
	if err != nil {
		f.Fatal(err)
	}
	checks := Checks()
	f.Fuzz(func(t *testing.T, b []byte) {
		facts, whole, err := parseFacts(b)
		if whole && err != nil || len(facts) > maxAnswers {
			t.Error(whole, err, len(facts))
		}
		e.boxes = map[boxKind]*box{}
		for _, k := range []boxKind{probeBox, smallBox, memoryBox, lateBox} {
			e.boxes[k] = &box{spec: &s, res: res, facts: facts, whole: whole}
		}
		var found []Finding
		for _, c := range checks {
			if c.Group != GroupHost && !c.deep {
				found = append(found, Finding{Check: c, Result: c.Run(t.Context(), e)})
			}
		}
		var out strings.Builder
		if err := NewReport(found, e, false).WriteTable(&out, term.Style{}, true); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsFunc(out.String(), func(r rune) bool { return r < 0x20 && r != '\n' || r >= 0x7f && r < 0xa0 }) {
			t.Errorf("%q", out.String())
		}
	})
}

func TestParseKernDoctor(t *testing.T) {
	rows := parseKernDoctor(kernReady)
	if len(rows) != 3 || rows[1].detail != "and so on" || rows[2].mark != '!' || rows[2].detail != "install openssh-server in your images" {
		t.Errorf("%+v", rows)
	}
	for _, text := range []string{"", "kern doctor\n", "error: unknown command\n", "\x00\xff\n  ? what\n", "      detail of nothing\n"} {
		if rows := parseKernDoctor(text); len(rows) != 0 {
			t.Errorf("%q: %+v", text, rows)
		}
	}
}

func FuzzKernDoctor(f *testing.F) {
	f.Add(kernReady)
	f.Add(kernBlocked)
	f.Fuzz(func(t *testing.T, text string) {
		if len(parseKernDoctor(text)) > 200 {
			t.Error("too many rows")
		}
	})
}

func TestParseMounts(t *testing.T) {
	got := parseMounts("tmpfs 10 5 /a\\040b\ntmpfs 1 1 relative\nx y z /w\next4 20 5 /c\noverlay 30 1 /c\n\n")
	if len(got) != 2 || got[0].path != `/a\040b` || got[1].kind != "overlay" {
		t.Errorf("%+v", got)
	}
}

// v1 is a machine whose controllers are in trees of their own, with limits above.
var v1 = map[string]string{
	"proc/self/cgroup": "4:memory:/job/inner\n3:pids:/job\n2:cpu,cpuacct:/job\n1:name=systemd:/\n0::/\n",
	"proc/self/mountinfo": "32 31 0:1 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"33 31 0:2 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n34 31 0:3 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n" +
		"35 31 0:4 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n36 31 0:5 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n",
	"sys/fs/cgroup/memory/memory.limit_in_bytes":           "9223372036854771712\n",
	"sys/fs/cgroup/memory/job/memory.limit_in_bytes":       "1073741824\n",
	"sys/fs/cgroup/memory/job/inner/memory.limit_in_bytes": "9223372036854771712\n",
	"sys/fs/cgroup/cpu/job/cpu.cfs_quota_us":               "50000\n",
	"sys/fs/cgroup/cpu/job/cpu.cfs_period_us":              "100000\n",
	"sys/fs/cgroup/cpu/cpu.cfs_quota_us":                   "-1\n",
	"sys/fs/cgroup/cpu/cpu.cfs_period_us":                  "100000\n",
	"sys/fs/cgroup/pids/job/pids.max":                      "max\n",
}

func TestCgroupVersions(t *testing.T) {
	replace := func(files map[string]string, with map[string]string) {
		for k := range files {
			if strings.Contains(k, "cgroup") || strings.Contains(k, "mountinfo") {
				delete(files, k)
			}
		}
		maps.Copy(files, with)
	}
	for _, c := range []struct {
		name, version string
		status        Status
		files         map[string]string
	}{
		{"v1", "v1", OK, v1},
		{"none", "", Warn, nil},
		{"hybrid", "hybrid", Warn, map[string]string{
			"proc/self/cgroup":                         "2:memory:/\n0::/a\n",
			"proc/self/mountinfo":                      "1 0 0:1 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n2 0 0:2 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/memory/tasks":               "",
			"sys/fs/cgroup/unified/cgroup.controllers": "cpu pids\n", "sys/fs/cgroup/unified/a/cgroup.procs": "1",
		}},
		{"outside the namespace", "v2", Warn, map[string]string{
			"proc/self/cgroup":                 "0::/../../x\n",
			"proc/self/mountinfo":              "2 0 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/cgroup.controllers": "cpu memory pids\n",
		}},
	} {
		e := machine(t, func(f map[string]string, _ *Env, _ *fakeBox) { replace(f, c.files) })
		r := checkCgroups(t.Context(), e)
		version := ""
		for _, v := range r.Values {
			if v.Name == "version" {
				version = v.Value
			}
		}
		if r.Status != c.status || version != c.version {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
	e := machine(t, func(f map[string]string, _ *Env, _ *fakeBox) { replace(f, v1) })
	if a := e.limitsAround(); a.memory != 1<<30 || a.cpus != 0.5 || a.pids != 0 {
		t.Errorf("around us: %+v", a)
	}
	e.Spec.Memory = 2 << 30
	if r := checkAbove(t.Context(), e); r.Status != Warn || r.Remedy != "--memory 768m" {
		t.Errorf("%+v", r)
	}
}

func TestDeadRuns(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{"0123456789abcdef", "1123456789abcdef", "not-a-run", "2123456789abcde/"} {
		if err := os.MkdirAll(filepath.Join(dir, n), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/", filepath.Join(dir, "3123456789abcdef")); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(dir, "1123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if n := deadRuns(dir); n != 1 {
		t.Errorf("%d dead runs, want 1", n)
	}
}

func TestUserNS(t *testing.T) {
	failing := func(context.Context, *kernbin.Kern) error { return errors.New("EPERM") }
	for _, c := range []struct {
		file, value, env string
		uid              int
		fails            bool
		status           Status
		remedy           string
	}{
		{"proc/sys/user/max_user_namespaces", "0", "", 1000, true, Fail, "sysctl -w user.max_user_namespaces"},
		{"proc/sys/kernel/unprivileged_userns_clone", "0", "", 1000, true, Fail, "unprivileged_userns_clone=1"},
		{"proc/sys/kernel/unprivileged_userns_clone", "0", "", 0, false, OK, ""},
		{"proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "", 1000, false, Warn, "apparmor_restrict"},
		{"proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "", 0, false, OK, ""},
		{"run/.containerenv", "", "", 1000, true, Fail, "podman run"},
		{".dockerenv", "", "", 1000, true, Fail, "docker run --security-opt seccomp"},
		{"x", "", "KUBERNETES_SERVICE_HOST", 1000, true, Fail, "seccompProfile"},
		{"x", "", "", 1000, true, Fail, ""},
	} {
		e := machine(t, func(f map[string]string, e *Env, _ *fakeBox) {
			f[c.file] = c.value
			e.UID = c.uid
			if c.env != "" {
				f[c.env] = "env 1"
			}
		})
		if c.fails {
			e.TryUserNS = failing
		}
		r := checkUserNS(t.Context(), e)
		if r.Status != c.status || !strings.Contains(r.Remedy, c.remedy) || (c.remedy == "") != (r.Remedy == "") {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}

// TestCPUs: a quota that is not in force is never called well (field case 13).
func TestCPUs(t *testing.T) {
	for _, c := range []struct {
		seen     string
		cpus     float64
		enforced string
		status   Status
		says     string
		remedy   string
	}{
		{"0 0 4", 0, "kern", OK, "may use them", ""},
		{"0 0 4", 0.5, "kern", Warn, "nproc says 4 and --cpus gives 0.5", "--fit-cpus"},
		{"0 0 4", 0.5, "none", Warn, "not enforced", "--fit-cpus"},
		{"0 0 1", 0.5, "kern-sbx", OK, "get 0.5", ""},
		{"0 0 100", 0, "kern", Warn, "one build can need more", "--pids-limit 1600"},
		{"0 0 -4", 0.5, "kern", Skipped, "did not say", ""},
		{"", 0.5, "kern", Skipped, "did not say", ""},
	} {
		e := machine(t, nil)
		e.Spec.CPUs = c.cpus
		e.Spec.Argv = []string{"", ""}
		fake := fakeBox{enforced: c.enforced}
		res, err := fake.start(t.Context(), e.Spec)
		if err != nil {
			t.Fatal(err)
		}
		r := checkCPUs(e, &box{res: res, spec: e.Spec, facts: Facts{"u:": c.seen}})
		if r.Status != c.status || !strings.Contains(r.Why, c.says) || r.Remedy != c.remedy {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}

// TestHomeRemedy keeps the order that was measured: the workspace first, memory for
// one that is kept, and never a place that an ordinary cache does not fit into.
func TestHomeRemedy(t *testing.T) {
	for _, c := range []struct {
		workspace string
		memory    validate.Size
		want      string
	}{
		{"", 512 << 20, "--env HOME=/workspace"},
		{"/p", 0, "--tmpfs /home:512m --env HOME=/home"},
		{"/p", 512 << 20, "--tmpfs /home:256m --env HOME=/home"},
		{"/p", 4 << 30, "--tmpfs /home:512m --env HOME=/home"},
		{"/p", 200 << 20, "--env HOME=/workspace"},
	} {
		e := machine(t, nil)
		e.Spec.Workspace, e.Spec.Memory = c.workspace, c.memory
		if got := e.homeRemedy(); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
