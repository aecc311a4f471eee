package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/config"
	"github.com/kern-sbx/kern-sbx/pkg/images"
	"github.com/kern-sbx/kern-sbx/pkg/kernbin"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

func hostChecks() []Check {
	check := func(id, title string, run func(context.Context, *Env) Result) Check {
		return Check{ID: id, Group: GroupHost, Title: title, Topic: id, Run: run}
	}
	return []Check{
		check("kern", "the kern that is used", checkKern),
		check("kern-doctor", "what kern says of this machine", checkKernDoctor),
		check("user-namespaces", "whether boxes can be isolated", checkUserNS),
		check("lsm", "SELinux and AppArmor", checkLSM),
		check("subuid", "uids for other users of a box", checkSubUID),
		check("overlay", "overlay file systems, which images are made of", checkOverlay),
		check("cgroups", "who can cap memory, processes and CPUs", checkCgroups),
		check("limits-above", "limits around this process", checkAbove),
		check("host-memory", "memory and swap of this machine", checkMemory),
		check("disk", "room for caches, data and workspaces", checkDisk),
		check("leftovers", "what processes that died left", checkLeftovers),
		check("image", "the root of the box", checkImage),
		check("config", "configuration files", checkConfig),
		check("directories", "our own directories", checkDirectories),
		check("environment", "containers, WSL and CI around us", checkEnvironment),
	}
}

func checkKern(_ context.Context, e *Env) Result {
	if e.Kern == nil {
		r := Result{Status: Fail, Why: "there is no kern"}
		if e.KernErr != nil {
			r.Why = e.KernErr.Error()
		}
		var missing *kernbin.MissingError
		var noexec *kernbin.NotExecutableError
		switch {
		case errors.As(e.KernErr, &missing):
			r.Remedy = "--kern PATH"
		case errors.As(e.KernErr, &noexec):
			r.Remedy = "XDG_DATA_HOME=/a/directory/that/allows/programs"
		}
		return r
	}
	return Result{
		Status: OK, Why: fmt.Sprintf("kern %s, from %s", e.Kern.Version, e.Kern.Source),
		Values: values("version", e.Kern.Version, "source", string(e.Kern.Source), "path", e.Kern.Path),
	}
}

// kernRow is a row of `kern doctor`.
type kernRow struct {
	mark         rune // ✔ ! ✘
	text, detail string
}

// parseKernDoctor reads its output, which is made for people: a row has a mark, and
// perhaps a detail that is indented more. What does not look like that is passed
// over.
func parseKernDoctor(text string) (rows []kernRow) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n ")
		if len(rows) >= 200 {
			break
		}
		if t, ok := strings.CutPrefix(line, "  "); ok && t != "" {
			for _, m := range []rune{'✔', '!', '✘'} {
				if rest, ok := strings.CutPrefix(t, string(m)+" "); ok {
					rows = append(rows, kernRow{mark: m, text: rest})
					t = ""
					break
				}
			}
			if d, ok := strings.CutPrefix(line, "      "); ok && t != "" && len(rows) > 0 && rows[len(rows)-1].detail == "" {
				rows[len(rows)-1].detail = strings.TrimSpace(d)
			}
		}
	}
	return rows
}

func checkKernDoctor(ctx context.Context, e *Env) Result {
	if e.Kern == nil || e.KernDoctor == nil {
		return Result{Status: Skipped, Why: "there is no kern to ask"}
	}
	out, err := e.KernDoctor(ctx, e.Kern)
	rows := parseKernDoctor(string(out))
	if len(rows) == 0 {
		r := Result{Status: Skipped, Why: "kern doctor gave no answer that can be read"}
		if err != nil {
			r.Why += " (" + err.Error() + ")"
		}
		return r
	}
	var good, bad int
	r := Result{Status: OK}
	for _, row := range rows {
		name := "warning"
		switch row.mark {
		case '✔':
			good++
			continue
		case '✘':
			name = "blocker"
			if bad++; bad == 1 {
				r.Status, r.Why = Fail, "kern cannot run here: "+row.text
			}
		}
		text := row.text
		if row.detail != "" {
			text += "; " + row.detail
		}
		r.Values = append(r.Values, Value{name, text})
	}
	if bad == 0 {
		r.Why = fmt.Sprintf("ready: %d rows are well, %d are warnings", good, len(rows)-good)
	} else if bad > 1 {
		r.Why += fmt.Sprintf(" (and %d more)", bad-1)
	}
	return r
}

func checkUserNS(ctx context.Context, e *Env) Result {
	limit := e.read("/proc/sys/user/max_user_namespaces")
	clone := e.read("/proc/sys/kernel/unprivileged_userns_clone")
	armor := e.read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
	r := Result{Values: values("max_user_namespaces", limit, "unprivileged_userns_clone", clone, "apparmor_restrict_unprivileged_userns", armor)}
	var err error
	tried := e.Kern != nil && e.TryUserNS != nil
	if tried {
		err = e.TryUserNS(ctx, e.Kern)
	}
	blocked := tried && err != nil
	if blocked {
		r.Values = append(r.Values, Value{"tried", err.Error()})
	}
	engine := engineOf(e)
	switch {
	case tried && err == nil && (e.UID == 0 || armor != "1"):
		r.Status, r.Why = OK, "a user namespace was made"
	case limit == "0":
		r.Status, r.Why, r.Remedy = Fail, "this machine allows no user namespaces", "sudo sysctl -w user.max_user_namespaces=65536"
	case clone == "0" && e.UID != 0:
		r.Status, r.Why, r.Remedy = Fail, "only root may make user namespaces here", "sudo sysctl -w kernel.unprivileged_userns_clone=1"
	case armor == "1" && e.UID != 0:
		// The namespace itself is allowed, and has no rights in it.
		r.Status, r.Why = Warn, "AppArmor takes the rights away that a box needs, unless kern has a profile"
		if blocked {
			r.Status = Fail
		}
		r.Remedy = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
	case blocked && engine != "":
		r.Status, r.Why, r.Remedy = Fail, "user namespaces are blocked by the seccomp or AppArmor profile of the container that this runs in", engineFlags(engine)
	case blocked:
		r.Status, r.Why = Fail, "no user namespace can be made here: "+err.Error()
	case !tried:
		r.Status, r.Why = Info, "nothing forbids user namespaces; none was tried"
	}
	return r
}

// engineOf names the container engine around us, "" for none.
func engineOf(e *Env) string {
	switch env := e.Getenv("container"); {
	case e.Getenv("KUBERNETES_SERVICE_HOST") != "":
		return "kubernetes"
	case e.exists("/.dockerenv"):
		return "docker"
	case e.exists("/run/.containerenv") || env == "podman":
		return "podman"
	case env != "":
		return env
	}
	return ""
}

// engineFlags are what lets boxes be made in a container of the engine (rule F2).
func engineFlags(engine string) string {
	switch engine {
	case "kubernetes":
		return `securityContext: {seccompProfile: {type: Unconfined}, appArmorProfile: {type: Unconfined}, procMount: Unmasked}`
	case "podman":
		return "podman run --security-opt seccomp=unconfined --security-opt unmask=ALL --security-opt label=disable"
	default:
		return "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
	}
}

func checkLSM(_ context.Context, e *Env) Result {
	var on []string
	selinux := e.read("/sys/fs/selinux/enforce")
	switch selinux {
	case "1":
		on = append(on, "SELinux enforces")
	case "0":
		on = append(on, "SELinux only logs")
	}
	armor := e.read("/sys/module/apparmor/parameters/enabled")
	if armor == "Y" {
		on = append(on, "AppArmor is on")
	}
	self := e.read("/proc/self/attr/current")
	r := Result{Status: OK, Values: values("selinux_enforce", selinux, "apparmor", armor, "own_label", self)}
	if len(on) == 0 {
		r.Why = "neither is in force for this process"
		return r
	}
	r.Status, r.Why = Info, strings.Join(on, ", ")
	if selinux == "1" {
		r.Why += "; a directory that is mounted with -v or -W needs a label that allows it"
	}
	return r
}

func checkSubUID(_ context.Context, e *Env) Result {
	name := userName(e)
	has := func(path string) bool {
		for line := range strings.SplitSeq(e.read(path), "\n") {
			who, _, ok := strings.Cut(line, ":")
			if ok && (who == name && name != "" || who == strconv.Itoa(e.UID)) {
				return true
			}
		}
		return false
	}
	uids, gids := has("/etc/subuid"), has("/etc/subgid")
	helpers := e.onPath("newuidmap") != "" && e.onPath("newgidmap") != ""
	yes := func(b bool) string { return map[bool]string{true: "yes", false: "no"}[b] }
	r := Result{Values: values("subuid", yes(uids), "subgid", yes(gids), "newuidmap", yes(helpers))}
	if uids && gids && helpers {
		r.Status, r.Why = OK, "a box can have users besides its root"
		return r
	}
	if name == "" {
		name = strconv.Itoa(e.UID)
	}
	r.Status, r.Why = Info, "a box has one uid here; programs that change to a service user need more"
	r.Remedy = "echo " + name + ":100000:65536 | sudo tee -a /etc/subuid /etc/subgid"
	if !helpers {
		r.Remedy = "install newuidmap and newgidmap (package uidmap)"
	}
	if s := e.Spec; s != nil && s.User != "" {
		u, _, _ := strings.Cut(s.User, ":")
		if u != "0" && u != "root" {
			r.Status, r.Why = Warn, "--user "+s.User+" needs a uid of its own, and a box has only that of its root here"
		}
	}
	return r
}

// userName reads the password file itself: a name service may take its time.
func userName(e *Env) string {
	id := strconv.Itoa(e.UID)
	for line := range strings.SplitSeq(e.read("/etc/passwd"), "\n") {
		if f := strings.Split(line, ":"); len(f) > 3 && f[2] == id {
			return f[0]
		}
	}
	return ""
}

func (e *Env) onPath(name string) string {
	for dir := range strings.SplitSeq(e.Getenv("PATH")+":/usr/sbin:/usr/bin", ":") {
		if !filepath.IsAbs(dir) {
			continue
		}
		if st, err := os.Stat(e.Root + dir + "/" + name); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return dir + "/" + name
		}
	}
	return ""
}

func checkOverlay(_ context.Context, e *Env) Result {
	for line := range strings.SplitSeq(e.read("/proc/filesystems"), "\n") {
		if f := strings.Fields(line); len(f) > 0 && f[len(f)-1] == "overlay" {
			return Result{Status: OK, Why: "the kernel has overlayfs"}
		}
	}
	return Result{Status: Info, Why: "overlayfs is not loaded; an image with several layers needs it", Remedy: "sudo modprobe overlay"}
}

func checkMemory(_ context.Context, e *Env) Result {
	total, free, swap := e.memInfo("MemTotal"), e.memInfo("MemAvailable"), e.memInfo("SwapTotal")
	if total == 0 {
		return Result{Status: Skipped, Why: "the kernel does not say how much memory there is"}
	}
	h := func(n int64) string { return validate.Size(n).Human() }
	r := Result{
		Status: OK, Why: h(free) + " of " + h(total) + " is available",
		Values: values("total", h(total), "available", h(free), "swap", h(swap)),
	}
	if swap > 0 {
		r.Why += "; the cap of a box leaves no swap beside it"
	}
	if s := e.Spec; s != nil && s.Memory > 0 && free > 0 && int64(s.Memory) > free {
		r.Status, r.Remedy = Warn, "--memory "+validate.Size(free/2>>20<<20).String()
		r.Why = fmt.Sprintf("a box may take %s, and only %s is available", s.Memory.Human(), h(free))
	}
	return r
}

// Room is what is known of the file system that a directory lies on, or would.
type Room struct {
	Free             uint64 // bytes, for this user
	NoExec, InMemory bool
}

// lowDisk is when a directory is called nearly full.
const lowDisk = 512 << 20

// magicTmpfs is the number of tmpfs in statfs(2).
const magicTmpfs = 0x01021994

// RoomOf is Env.Room of a real machine.
func RoomOf(path string) (Room, error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(path, &st)
		if errors.Is(err, unix.ENOENT) && path != "/" {
			path = filepath.Dir(path)
			continue
		}
		if err != nil {
			return Room{}, err
		}
		return Room{Free: st.Bavail * uint64(st.Frsize), NoExec: st.Flags&unix.ST_NOEXEC != 0, InMemory: int64(st.Type) == magicTmpfs}, nil
	}
}

func checkDisk(_ context.Context, e *Env) Result {
	if e.Room == nil {
		return Result{Status: Skipped, Why: "nobody looks at file systems here"}
	}
	r := Result{Status: OK}
	type place struct{ name, path string }
	places := []place{{"cache", e.Dirs.Cache}, {"data", e.Dirs.Data}, {"images", images.Cache(e.Getenv)}, {"temporary", e.Dirs.Private}}
	if s := e.Spec; s != nil && s.Workspace != "" {
		places = append(places, place{"workspace", s.Workspace})
	}
	least := uint64(1 << 62)
	for _, p := range places {
		if p.path == "" {
			continue
		}
		have, err := e.Room(p.path)
		if err != nil {
			r.Values = append(r.Values, Value{p.name, p.path + ": " + err.Error()})
			continue
		}
		text := validate.Size(have.Free).Human() + " free at " + p.path
		if have.NoExec {
			text += ", noexec"
		}
		if have.InMemory {
			text += ", in memory"
		}
		r.Values = append(r.Values, Value{p.name, text})
		least = min(least, have.Free)
		switch {
		case have.Free < lowDisk && r.Status == OK:
			r.Status, r.Why = Warn, "only "+validate.Size(have.Free).Human()+" is free for "+p.name+" ("+p.path+")"
			r.Remedy = "XDG_CACHE_HOME=/a/directory/with/room"
			if p.name == "workspace" {
				r.Remedy = "df -h " + p.path
			}
		case p.name == "workspace" && have.InMemory && r.Status == OK:
			r.Status, r.Why, r.Remedy = Warn, "the workspace lies on a tmpfs: what is written there counts against the memory of the box", "-W a directory on disk"
		}
	}
	if r.Why == "" {
		r.Why = validate.Size(least).Human() + " is free, at the least"
	}
	return r
}

func checkLeftovers(_ context.Context, e *Env) Result {
	dead := 0
	for _, base := range []string{e.Dirs.Cache, e.Dirs.Private} {
		if base != "" {
			dead += deadRuns(filepath.Join(e.Root+base, "run"))
		}
	}
	var gone []string
	alive := 0
	if e.Holders != nil {
		for _, h := range e.Holders() {
			if h.Alive {
				alive++
			} else if h.Grave == nil {
				gone = append(gone, h.Kind+" "+h.Name)
			}
		}
	}
	r := Result{Status: OK, Why: "nothing is left of processes that died", Values: values("dead_runs", strconv.Itoa(dead), "dead_holders", strings.Join(gone, ", "), "living_holders", strconv.Itoa(alive))}
	switch {
	case dead > 0:
		r.Status, r.Why, r.Remedy = Info, fmt.Sprintf("%d runs were killed before they could clear up; the next run does it for them", dead), "kern-sbx run --image host -- true"
	case len(gone) > 0:
		r.Status, r.Why, r.Remedy = Info, "background processes were killed: "+strings.Join(gone, ", "), "kern-sbx prewarm stop --all"
	}
	return r
}

// deadRuns counts the directories of runs whose lock is free: their owner is dead
// (rule S8).
func deadRuns(dir string) (n int) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if !e.IsDir() || len(e.Name()) != 16 || strings.Trim(e.Name(), "0123456789abcdef") != "" {
			continue
		}
		fd, err := unix.Open(filepath.Join(dir, e.Name()), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		// Shared, so that a run that begins just now may have to try again, as it
		// does for a sweep.
		if unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) == nil {
			n++
		}
		unix.Close(fd)
	}
	return n
}

func checkImage(_ context.Context, e *Env) Result {
	s := e.Spec
	switch {
	case s == nil:
		return Result{Status: Skipped, Why: "the flags were refused"}
	case s.Host != nil:
		return Result{Status: OK, Why: "this machine's own /usr, read-only", Values: values("root", "host", "id", s.Host.ID)}
	case s.Rootfs != "":
		return Result{Status: OK, Why: "the directory " + s.Rootfs, Values: values("root", s.Rootfs)}
	}
	cache := images.Cache(e.Getenv)
	if !images.IsCached(e.Root+cache, s.Image) {
		r := Result{Status: Warn, Why: s.Image + " is not on this machine; the first run fetches it", Remedy: "kern-sbx image pull " + s.Image}
		if s.Pull == "never" {
			r.Status, r.Why = Fail, s.Image+" is not on this machine, and --pull never keeps it from being fetched"
		}
		return r
	}
	r := Result{Status: OK, Why: s.Image + " is on this machine"}
	id, _ := images.ID(e.Root+cache, s.Image)
	digest, source := images.Digest(filepath.Join(e.Root+e.Dirs.Cache, "images"), e.Root+cache, s.Image)
	r.Values = values("ref", s.Image, "id", id, "digest", digest, "digest_source", source)
	if base := images.MissingBase(e.Root+cache, s.Image); base != "" {
		return Result{Status: Fail, Values: r.Values, Why: "its base " + base + " is not on this machine any more", Remedy: "kern-sbx image pull " + base}
	}
	if digest == "" {
		r.Status, r.Why = Info, r.Why+"; which digest its tag had when it was fetched is not known"
	}
	return r
}

func checkConfig(_ context.Context, e *Env) Result {
	if e.Config == nil {
		return Result{Status: Skipped, Why: "no configuration is read here"}
	}
	c, err := e.Config()
	if err != nil {
		return Result{Status: Fail, Why: err.Error(), Remedy: "kern-sbx config check"}
	}
	var r Result
	n := 0
	for _, f := range c.Files() {
		if f.Path == "" || f.State == config.Absent {
			continue
		}
		text := f.Path + ": " + string(f.State)
		if f.Reason != "" {
			text += ", " + f.Reason
		}
		r.Values = append(r.Values, Value{f.Layer, text})
		if f.State == config.Read {
			n++
		}
	}
	for _, w := range c.Warnings() {
		r.Values = append(r.Values, Value{"warning", w})
	}
	r.Status, r.Why = OK, "no file is read"
	if n > 0 {
		r.Why = fmt.Sprintf("%d read", n)
	}
	if ig := c.Ignored(); len(ig) > 0 {
		var keys []string
		for _, i := range ig {
			if i.Key != "" {
				keys = append(keys, i.Key)
			} else {
				keys = append(keys, i.Reason)
			}
		}
		r.Values = append(r.Values, Value{"not_applied", strings.Join(keys, ", ")})
		r.Status, r.Why, r.Remedy = Warn, "nobody trusted "+ig[0].Path+", so this is not applied: "+strings.Join(keys, ", "), "kern-sbx config trust"
	} else if w := c.Warnings(); len(w) > 0 {
		r.Status, r.Why, r.Remedy = Warn, w[0], "kern-sbx config show"
	}
	return r
}

func checkDirectories(_ context.Context, e *Env) Result {
	r := Result{Status: OK, Why: "they are ours alone"}
	bad := func(status Status, why, remedy string) {
		if r.Status == OK || r.Status == Info && status != Info {
			r.Status, r.Why, r.Remedy = status, why, remedy
		}
	}
	look := func(name, path string) {
		if path == "" {
			return
		}
		st, err := os.Lstat(e.Root + path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			r.Values = append(r.Values, Value{name, path + " (not there yet)"})
			return
		case err != nil:
			bad(Warn, name+": "+err.Error(), "")
			return
		}
		sys, _ := st.Sys().(*sysStat)
		text := fmt.Sprintf("%s %04o", path, st.Mode().Perm())
		r.Values = append(r.Values, Value{name, text})
		switch {
		case !st.IsDir():
			bad(Warn, path+" is not a directory, so another place is used", "")
		case sys != nil && int(sys.Uid) != e.UID:
			bad(Warn, path+" belongs to another user, so another place is used", "ls -ld "+path)
		case st.Mode().Perm()&0o022 != 0:
			bad(Warn, path+" can be written to by others, so another place is used", "chmod go-w "+path)
		}
	}
	look("cache", e.Dirs.Cache)
	look("data", e.Dirs.Data)
	x := e.Getenv("XDG_RUNTIME_DIR")
	switch {
	case x == "":
		r.Values = append(r.Values, Value{"runtime", "XDG_RUNTIME_DIR is not set"})
	case !filepath.IsAbs(x):
		bad(Warn, "XDG_RUNTIME_DIR is not an absolute path, and counts as unset", "unset XDG_RUNTIME_DIR")
	default:
		look("runtime", x)
		if !e.exists(x) {
			bad(Warn, "XDG_RUNTIME_DIR names "+x+", which is not there", "unset XDG_RUNTIME_DIR")
		}
	}
	if e.Dirs.Cache == "" {
		bad(Info, "neither HOME nor XDG_CACHE_HOME is set, so everything lies in "+e.Dirs.Private, "HOME=/a/directory/of/yours")
	}
	return r
}

// ciSystems are known by a variable that they set for every job.
var ciSystems = []struct{ env, name string }{
	{"GITHUB_ACTIONS", "GitHub Actions"},
	{"GITLAB_CI", "GitLab CI"},
	{"JENKINS_URL", "Jenkins"},
	{"CIRCLECI", "CircleCI"},
	{"BUILDKITE", "Buildkite"},
	{"TF_BUILD", "Azure Pipelines"},
	{"TRAVIS", "Travis CI"},
	{"TEAMCITY_VERSION", "TeamCity"},
	{"BITBUCKET_BUILD_NUMBER", "Bitbucket Pipelines"},
	{"DRONE", "Drone"},
	{"WOODPECKER", "Woodpecker"},
	{"CIRRUS_CI", "Cirrus CI"},
	{"APPVEYOR", "AppVeyor"},
	{"CODEBUILD_BUILD_ID", "AWS CodeBuild"},
	{"FORGEJO_ACTIONS", "Forgejo Actions"},
	{"GITEA_ACTIONS", "Gitea Actions"},
}

func ciOf(e *Env) string {
	// GitHub's variable is set by its imitators too, so those are asked first.
	for _, s := range slices.Backward(ciSystems) {
		if v := e.Getenv(s.env); v != "" && v != "false" {
			return s.name
		}
	}
	if v := e.Getenv("CI"); v != "" && v != "false" {
		return "CI of an unknown kind"
	}
	return ""
}

func checkEnvironment(_ context.Context, e *Env) Result {
	engine, ci := engineOf(e), ciOf(e)
	version := e.read("/proc/version")
	wsl := ""
	if v := strings.ToLower(version); strings.Contains(v, "microsoft") {
		wsl = "WSL1"
		if strings.Contains(v, "wsl2") || strings.Contains(v, "microsoft-standard") {
			wsl = "WSL2"
		}
	}
	kernel := e.read("/proc/sys/kernel/osrelease")
	r := Result{Status: OK, Values: values("container", engine, "wsl", wsl, "ci", ci, "kernel", kernel)}
	var in []string
	if engine != "" {
		in = append(in, "a container ("+engine+")")
	}
	if wsl != "" {
		in = append(in, wsl)
	}
	if ci != "" {
		in = append(in, ci)
	}
	if len(in) == 0 {
		r.Why = "neither a container, nor WSL, nor CI"
		return r
	}
	r.Status, r.Why = Info, "in "+strings.Join(in, ", ")
	switch {
	case wsl == "WSL1":
		r.Status, r.Why, r.Remedy = Fail, "WSL1 has no namespaces", "wsl --set-version DISTRIBUTION 2"
	case ci == "GitHub Actions":
		r.Why += "; the runner obeys lines that a box prints, unless the box is fenced"
		r.Remedy = "--ci-fence"
	}
	return r
}
