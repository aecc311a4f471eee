package doctor

import (
	"context"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// The controllers that cap a box.
var capping = []string{"memory", "pids", "cpu"}

// hierarchy is a mounted cgroup tree with our own place in it.
type hierarchy struct {
	v2          bool
	controllers []string
	mount       string // where it is mounted
	own         string // directory of our own cgroup, "" when it cannot be seen
	readOnly    bool
}

// hierarchies reads which cgroup trees are mounted, the first mount of each.
func (e *Env) hierarchies() []hierarchy {
	self := map[string]string{}
	for line := range strings.SplitSeq(e.read("/proc/self/cgroup"), "\n") {
		if f := strings.SplitN(line, ":", 3); len(f) == 3 {
			self[f[1]] = f[2]
		}
	}
	var out []hierarchy
	seen := map[string]bool{}
	for line := range strings.SplitSeq(e.read("/proc/self/mountinfo"), "\n") {
		front, back, ok := strings.Cut(line, " - ")
		f, b := strings.Fields(front), strings.Fields(back)
		if !ok || len(f) < 6 || len(b) < 3 || b[0] != "cgroup" && b[0] != "cgroup2" {
			continue
		}
		h := hierarchy{v2: b[0] == "cgroup2", mount: f[4], readOnly: slices.Contains(strings.Split(f[5], ","), "ro")}
		key, known := "", false
		if h.v2 {
			_, known = self[""]
			h.controllers = strings.Fields(e.read(h.mount + "/cgroup.controllers"))
		} else {
			options := strings.Split(b[2], ",")
			for k := range self {
				all := k != "" && !strings.Contains(k, "=")
				for c := range strings.SplitSeq(k, ",") {
					all = all && slices.Contains(options, c)
				}
				if all {
					key, known = k, true
				}
			}
			h.controllers = strings.Split(key, ",")
		}
		if !known || seen[key] {
			continue
		}
		seen[key] = true
		p := self[key]
		if rest, ok := strings.CutPrefix(p, strings.TrimSuffix(f[3], "/")); ok && !strings.HasPrefix(p, "/..") {
			h.own = strings.TrimSuffix(h.mount+rest, "/")
		}
		out = append(out, h)
	}
	return out
}

// with gives the tree that has a controller, the old kind first: a controller is in
// one tree only.
func with(all []hierarchy, controller string) *hierarchy {
	var found *hierarchy
	for i := range all {
		if slices.Contains(all[i].controllers, controller) && (found == nil || found.v2) {
			found = &all[i]
		}
	}
	return found
}

func cgroupVersion(all []hierarchy) string {
	v1, v2 := false, false
	for _, h := range all {
		for _, c := range capping {
			if slices.Contains(h.controllers, c) {
				v1, v2 = v1 || !h.v2, v2 || h.v2
			}
		}
	}
	switch {
	case v1 && v2:
		return "hybrid"
	case v1:
		return "v1"
	case v2:
		return "v2"
	}
	return ""
}

func checkCgroups(_ context.Context, e *Env) Result {
	all := e.hierarchies()
	version := cgroupVersion(all)
	r := Result{Values: values("version", version)}
	if version == "" {
		r.Status, r.Why = Warn, "no cgroup tree here has memory, pids or cpu, so nothing can be capped"
		r.Remedy = "--require-limits"
		return r
	}
	var reach, closed []string
	readOnly, unified := false, false
	for _, c := range capping {
		h := with(all, c)
		switch {
		case h == nil:
			closed = append(closed, c)
			r.Values = append(r.Values, Value{c, "in no tree that is mounted here"})
			continue
		case h.readOnly:
			readOnly = true
			closed = append(closed, c)
			r.Values = append(r.Values, Value{c, "the tree is mounted read-only"})
			continue
		case h.own == "":
			closed = append(closed, c)
			r.Values = append(r.Values, Value{c, "our own cgroup is not visible in the tree"})
			continue
		}
		unified = unified || h.v2
		dir, ok := e.delegated(h, c)
		if !ok {
			closed = append(closed, c)
			r.Values = append(r.Values, Value{c, "not handed down to us"})
			continue
		}
		reach = append(reach, c)
		r.Values = append(r.Values, Value{c, "can be capped below " + dir})
	}
	r.Values = append(r.Values, Value{"kern", kernCaps(version)})
	switch {
	case len(closed) == 0:
		r.Status, r.Why = OK, "cgroup "+version+": memory, processes and CPUs can be capped"
		if !unified {
			r.Why += ", by kern-sbx (kern itself needs v2)"
		}
	case readOnly:
		r.Status, r.Why, r.Remedy = Warn, "the cgroup tree is mounted read-only, so kern-sbx cannot cap "+strings.Join(closed, ", "), "--require-limits"
		if engine := engineOf(e); engine == "docker" || engine == "podman" {
			r.Remedy = engine + " run --cgroupns=private -v /sys/fs/cgroup:/sys/fs/cgroup:rw"
		}
	default:
		r.Status, r.Why = Warn, "cgroup "+version+": nobody handed us "+strings.Join(closed, ", ")
		if len(reach) > 0 {
			r.Why += " (" + strings.Join(reach, ", ") + " can be capped)"
		}
		r.Remedy = "--require-limits"
		if unified && e.exists("/run/systemd/system") {
			r.Remedy = "systemd-run --user --scope -p Delegate=yes kern-sbx run"
			if e.UID == 0 {
				r.Remedy = "systemd-run --scope -p Delegate=yes kern-sbx run"
			}
		}
	}
	return r
}

func kernCaps(version string) string {
	if version == "v2" {
		return "caps through v2 where it may"
	}
	return "has no v2 controllers here, so it caps nothing"
}

// delegated says below which directory a child with a controller could be made. On
// v2, a cgroup that has processes cannot hand anything down, so the nearest
// directory above that does counts.
func (e *Env) delegated(h *hierarchy, controller string) (dir string, ok bool) {
	may := func(d string) bool { return unix.Access(e.Root+d, unix.W_OK) == nil }
	if !h.v2 {
		return h.own, may(h.own)
	}
	for d := h.own; strings.HasPrefix(d, h.mount); d = path.Dir(d) {
		down := strings.Fields(e.read(d + "/cgroup.subtree_control"))
		have := strings.Fields(e.read(d + "/cgroup.controllers"))
		if may(d) && (slices.Contains(down, controller) || e.UID != 0 && d != h.own && slices.Contains(have, controller) && may(d+"/cgroup.subtree_control")) {
			return d, true
		}
		if d == h.mount || d == "/" {
			break
		}
	}
	return "", false
}

// around is what the cgroups around this process allow all of it, boxes included.
type around struct {
	memory int64 // bytes, 0 for no limit
	pids   int64
	cpus   float64
	where  map[string]string
}

// unlimitedV1 is from where on a v1 limit stands for none: the kernel rounds the
// largest number down to a page.
const unlimitedV1 = math.MaxInt64 &^ 0xffff

func (e *Env) limitsAround() around {
	a := around{where: map[string]string{}}
	all := e.hierarchies()
	lower := func(to *int64, kind, dir, file string) {
		n, err := strconv.ParseInt(e.read(dir+"/"+file), 10, 64)
		if err == nil && n > 0 && n < unlimitedV1 && (*to == 0 || n < *to) {
			*to = n
			a.where[kind] = dir
		}
	}
	for _, kind := range capping {
		h := with(all, kind)
		if h == nil || h.own == "" {
			continue
		}
		for d := h.own; strings.HasPrefix(d, h.mount); d = path.Dir(d) {
			switch {
			case kind == "memory" && h.v2:
				lower(&a.memory, kind, d, "memory.max")
				lower(&a.memory, kind, d, "memory.high")
			case kind == "memory":
				lower(&a.memory, kind, d, "memory.limit_in_bytes")
			case kind == "pids":
				lower(&a.pids, kind, d, "pids.max")
			default:
				quota, period := e.quota(h, d)
				if quota > 0 && period > 0 && (a.cpus == 0 || quota/period < a.cpus) {
					a.cpus = quota / period
					a.where[kind] = d
				}
			}
			if d == h.mount || d == "/" {
				break
			}
		}
	}
	return a
}

// quota is the CPU quota of a directory in microseconds, and its period.
func (e *Env) quota(h *hierarchy, dir string) (quota, period float64) {
	if h.v2 {
		if f := strings.Fields(e.read(dir + "/cpu.max")); len(f) == 2 {
			quota, _ = strconv.ParseFloat(f[0], 64) // "max" is 0
			period, _ = strconv.ParseFloat(f[1], 64)
		}
		return quota, period
	}
	quota, _ = strconv.ParseFloat(e.read(dir+"/cpu.cfs_quota_us"), 64)
	period, _ = strconv.ParseFloat(e.read(dir+"/cpu.cfs_period_us"), 64)
	return quota, period
}

func checkAbove(_ context.Context, e *Env) Result {
	a := e.limitsAround()
	r := Result{Status: OK, Why: "nothing around this process is limited"}
	var all []string
	add := func(name, kind, text string) {
		r.Values = append(r.Values, Value{name, text + " (" + a.where[kind] + ")"})
		all = append(all, text)
	}
	if a.memory > 0 {
		add("memory", "memory", validate.Size(a.memory).Human())
	}
	if a.pids > 0 {
		add("pids", "pids", fmt.Sprintf("%d processes", a.pids))
	}
	if a.cpus > 0 {
		add("cpus", "cpu", number(a.cpus)+" CPUs")
	}
	if len(all) == 0 {
		return r
	}
	r.Why = "this process and all its boxes have together " + strings.Join(all, ", ")
	s := e.Spec
	switch {
	case s == nil:
	case a.memory > 0 && (s.Memory == 0 || int64(s.Memory) > a.memory):
		r.Status, r.Remedy = Warn, "--memory "+validate.Size(a.memory*3/4>>20<<20).String()
		r.Why = fmt.Sprintf("all of this job has %s, less than a box may take, so the kernel may end the job and not the box", validate.Size(a.memory).Human())
	case a.cpus > 0 && s.CPUs > a.cpus:
		r.Status, r.Remedy = Warn, "--cpus "+number(a.cpus)
		r.Why = fmt.Sprintf("all of this job has %s CPUs, so a box cannot have %s", number(a.cpus), number(s.CPUs))
	case a.pids > 0 && int64(s.PIDs) > a.pids:
		r.Status, r.Remedy = Warn, "--pids-limit "+strconv.FormatInt(a.pids/2, 10)
		r.Why = fmt.Sprintf("all of this job may have %d processes, less than a box may", a.pids)
	}
	return r
}

// number is a number of CPUs for a person.
func number(f float64) string { return strconv.FormatFloat(math.Round(f*100)/100, 'f', -1, 64) }
