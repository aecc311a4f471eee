package doctor

import (
	"context"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// unroutable is an address that no network has (RFC 5737): a box without a network
// cannot even try it, one with the host's sends a packet nowhere.
const unroutable = "c:192.0.2.1:9"

// tool is a toolchain that keeps a cache below HOME.
type tool struct {
	programs []string
	variable string // where its cache is, when that is set
	place    string // else
}

var tools = []tool{
	{[]string{"go"}, "GOCACHE", "~/.cache/go-build"},
	{[]string{"npm"}, "npm_config_cache", "~/.npm"},
	{[]string{"cargo"}, "CARGO_HOME", "~/.cargo"},
	{[]string{"pip3", "pip"}, "PIP_CACHE_DIR", "~/.cache/pip"},
	{[]string{"dotnet"}, "NUGET_PACKAGES", "~/.nuget/packages"},
	{[]string{"gradle"}, "GRADLE_USER_HOME", "~/.gradle"},
}

// interpreters whose presence is told.
var interpreters = []string{"python3", "python", "node", "bash", "sh", "ruby", "perl", "php", "java", "lua", "Rscript", "sqlite3"}

// bundles are where programs look for certificates.
var bundles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem", "/etc/ssl/ca-bundle.pem"}

// linkedPaths are paths that are links in many images, and look like places to mount at.
var linkedPaths = []string{"/var/run", "/var/lock", "/bin", "/lib", "/tmp", "/home"}

// told are the variables of a box that are asked for. None of them holds a secret.
var told = []string{"HOME", "PATH", "TMPDIR", "SQLITE_TMPDIR", "LANG", "LC_ALL", "TZ", "GOMAXPROCS", "MAKEFLAGS", "SSL_CERT_FILE", "SSL_CERT_DIR"}

// questions are all that the probe is asked in the box of the user.
func (e *Env) questions() []string {
	seen := map[string]bool{}
	var q []string
	ask := func(list ...string) {
		for _, s := range list {
			if !seen[s] {
				seen[s] = true
				q = append(q, s)
			}
		}
	}
	ask("t:", "u:", "m:", "p:", "f:/proc/self/status", "f:/proc/self/uid_map", "f:/proc/self/gid_map", "f:/sys/devices/system/cpu/online",
		"f:/sys/fs/cgroup/cpu.max", "w:/", "w:~", "w:~/.cache", "w:~/.config", "w:~/.local/share", "w:/tmp", "w:/dev/shm", "w:"+runner.WorkspaceDir,
		"v:TMPDIR", "v:SQLITE_TMPDIR", "v:XDG_CACHE_HOME", "v:XDG_CONFIG_HOME", "v:XDG_DATA_HOME", "v:MPLCONFIGDIR")
	for _, t := range tools {
		ask("v:"+t.variable, "w:"+t.place)
		for _, p := range t.programs {
			ask("x:" + p)
		}
	}
	for _, p := range interpreters {
		ask("x:"+p, "l:/usr/bin/"+p, "l:/usr/local/bin/"+p)
	}
	for _, v := range told {
		ask("e:" + v)
	}
	for _, p := range bundles {
		ask("l:" + p)
	}
	for _, p := range linkedPaths {
		ask("l:" + p)
	}
	for _, p := range e.targets() {
		for d := p; d != "/" && d != "."; d = path.Dir(d) {
			ask("l:" + d)
		}
	}
	ask("l:/usr/share/zoneinfo", "l:/etc/localtime", "l:/usr/lib/locale", "x:javac", unroutable)
	if e.listener != nil {
		ask(e.listener.questions()...)
	}
	return q
}

func (l *Listener) questions() []string {
	return []string{"c:127.0.0.1:" + strconv.Itoa(l.Port), "a:" + l.Abstract}
}

// targets are the places in the box that the user chose for mounts.
func (e *Env) targets() []string {
	var all []string
	for _, m := range e.Spec.Mounts {
		all = append(all, m.Target)
	}
	for _, t := range e.Spec.Tmpfs {
		all = append(all, t.Target)
	}
	return all
}

// boxID is the check that tells whether there is a box.
const boxID = "box"

func boxChecks() []Check {
	check := func(id, title string, run func(*Env, *box) Result) Check {
		return Check{ID: id, Group: GroupBox, Title: title, Topic: id, needs: probeBox, Run: func(_ context.Context, e *Env) Result {
			b := e.boxes[probeBox]
			if id == boxID {
				return run(e, b)
			}
			if why := b.noStart(); why != "" {
				return Result{Status: Skipped, Why: "there is no box"}
			}
			if len(b.facts) == 0 {
				return Result{Status: Skipped, Why: "the probe in the box did not answer"}
			}
			return run(e, b)
		}}
	}
	return []Check{
		check(boxID, "a box with these settings", checkBox),
		check("limits", "caps of that box, and who enforces them", checkLimits),
		check("home", "HOME and the XDG directories", checkHome),
		check("tool-caches", "caches of the toolchains in the image", checkToolCaches),
		check("cpus", "the CPUs that programs see, and those they get", checkCPUs),
		check("memory-files", "what the writable paths are charged to", checkMemoryFiles),
		check("workspace-size", "a limit for the workspace", checkWorkspaceSize),
		check("jvm", "a JVM's heap beside /tmp", checkJVM),
		check("tmpdir", "where temporary files go", checkTmpdir),
		check("network", "what the box reaches", checkNetwork),
		check("privileges", "capabilities, seccomp and no_new_privs", checkPrivileges),
		check("root", "whether the root can be written to", checkRoot),
		check("user", "who the box is on this machine", checkUser),
		check("bytecode", "whether Python's library is compiled", checkBytecode),
		check("mount-points", "mounts at a path that is a link", checkMountPoints),
		check("locale", "locale and time zone", checkLocale),
		check("certificates", "certificates of authorities", checkCertificates),
		check("interpreters", "interpreters in the image", checkInterpreters),
		check("clock", "the clock of the box", checkClock),
		{ID: "import-cost", Group: GroupBox, Title: "what importing costs in Python", Topic: "import-cost", needs: probeBox, deep: true, Run: checkImportCost},
		{ID: "versions", Group: GroupBox, Title: "versions of the interpreters", Topic: "versions", needs: probeBox, deep: true, Run: checkVersions},
	}
}

// namesUserNS says whether kern's sentence is about a user namespace. It only
// decides what else is said.
func namesUserNS(why string) bool {
	for _, w := range []string{"uid_map", "gid_map", "unshare", "user namespace", "userns", "CLONE_NEW"} {
		if strings.Contains(why, w) {
			// "isn't mapped" is about uids of a namespace that there is.
			return !strings.Contains(why, "isn't mapped")
		}
	}
	return false
}

// slowStart is from where on a start is called slow.
const slowStart = 3 * time.Second

func checkBox(e *Env, b *box) Result {
	if why := b.noStart(); why != "" {
		r := Result{Status: Fail, Why: "no box can be started: " + why, Remedy: "kern-sbx explain startup_failed"}
		if namesUserNS(why) {
			r.Why += "; user namespaces are refused here, by a sysctl, by AppArmor, or by the container around us"
			r.Remedy = "kern-sbx explain user-namespaces"
			if u := checkUserNS(context.Background(), &Env{Root: e.Root, Getenv: e.Getenv, UID: e.UID}); u.Remedy != "" {
				r.Remedy = u.Remedy
			} else if engine := engineOf(e); engine != "" {
				r.Remedy = engineFlags(engine)
			}
		}
		return r
	}
	if b.spec == nil {
		return Result{Status: Fail, Why: "this build carries no program that runs inside a box", Remedy: "make build"}
	}
	took := b.took.Round(time.Millisecond).String()
	r := Result{Status: OK, Why: "it started, and was gone again within " + took, Values: values("took", took)}
	if id := b.res.Image.ID; id != nil {
		r.Values = append(r.Values, Value{"image", b.res.Image.Ref}, Value{"image_id", *id})
	}
	if f := b.res.Fault; f != nil {
		r.Status, r.Why = Fail, "it was ended before a small program in it could answer: "+f.Message
		switch f.Type {
		case runner.OOM:
			r.Remedy = "--memory " + canaryMemory.String()
		case runner.Timeout:
			r.Remedy = "--cpus 1"
		}
	} else if !b.whole {
		r.Status, r.Why = Fail, "the program that looks around in it did not get to its end"
		if e.Spec.PIDs > 0 && e.Spec.PIDs < canaryPIDs {
			r.Remedy = "--pids-limit " + strconv.Itoa(canaryPIDs)
		}
	}
	if r.Status == OK && e.Spec.Image != "" && b.took > slowStart {
		r.Status, r.Why = Info, r.Why+"; the first read of an image is slow, and the next start may not be"
		r.Remedy = "--start-timeout 2m"
	}
	if r.Status != Fail && (e.Spec.Setup != nil || e.Spec.CopyOf != "") {
		r.Why += "; --setup and the content of --workspace-copy were left out"
	}
	return r
}

// enforcer is who enforces a cap, for a person.
func enforcer(c runner.Cap) string {
	if c.EnforcedBy == nil {
		return ""
	}
	return *c.EnforcedBy
}

func checkLimits(e *Env, b *box) Result {
	l := b.res.Limits
	r := Result{Status: OK}
	for _, c := range []struct {
		name string
		cap  runner.Cap
		text func(float64) string
	}{
		{"memory", l.Memory, func(f float64) string { return validate.Size(f).Human() }},
		{"pids-limit", l.PIDs, number},
		{"cpus", l.CPU, number},
	} {
		if c.cap.Requested == nil {
			r.Values = append(r.Values, Value{c.name, "no cap"})
			continue
		}
		r.Values = append(r.Values, Value{c.name, c.text(*c.cap.Requested) + ", enforced by " + enforcer(c.cap)})
	}
	open := l.Uncapped()
	if len(open) == 0 {
		r.Why = "every cap that was asked for is in force"
		if e.Spec.Memory == 0 || e.Spec.PIDs == 0 {
			r.Status, r.Why = Info, "memory or processes have no cap"
			r.Remedy = "--memory " + runner.DefaultMemory.String()
			if e.Spec.Memory > 0 {
				r.Remedy = "--pids-limit " + strconv.Itoa(runner.DefaultPIDs)
			}
		}
		return r
	}
	r.Status, r.Why = Warn, strings.Join(open, " and ")+" cannot be capped here"
	if b.res.LimitsReason != "" {
		r.Why += ": " + b.res.LimitsReason
	}
	r.Remedy = "--require-limits"
	if e.Spec.Limits == runner.LimitsOff {
		r.Status, r.Why, r.Remedy = Warn, "--limits off: nothing is capped", "--limits auto"
	}
	return r
}

// roomyHome is the size of a HOME in memory that any ordinary cache fits into.
const roomyHome = validate.Size(512 << 20)

// homeRemedy is what makes HOME writable, by the order that was measured: an
// ordinary cache of npm needs 81 MiB, which the default /tmp does not hold.
func (e *Env) homeRemedy() string {
	size := roomyHome
	if m := e.Spec.Memory; m > 0 {
		size = min(size, m/2>>20<<20) // full before the box is
	}
	if e.Spec.Workspace != "" && size >= leastHome {
		return "--tmpfs /home:" + size.String() + " --env HOME=/home"
	}
	return "--env HOME=" + runner.WorkspaceDir
}

// leastHome is how large a HOME in memory has to be to be of use.
const leastHome = 128 << 20

func checkHome(e *Env, b *box) Result {
	home := b.facts["e:HOME"]
	why, at := writable(b.facts["w:~"])
	r := Result{Values: values("HOME", home, "writable", map[bool]string{true: "yes", false: "no (" + why + ")"}[why == "ok"])}
	for _, x := range []struct{ name, variable, place string }{
		{"cache", "XDG_CACHE_HOME", "~/.cache"}, {"config", "XDG_CONFIG_HOME", "~/.config"}, {"data", "XDG_DATA_HOME", "~/.local/share"},
	} {
		answer := b.facts["v:"+x.variable]
		if answer == "" {
			answer = b.facts["w:"+x.place]
		}
		w, _ := writable(answer)
		r.Values = append(r.Values, Value{x.name, map[bool]string{true: "writable", false: w}[w == "ok"]})
	}
	found := toolsIn(b.facts)
	switch {
	case home == "":
		r.Status, r.Why, r.Remedy = Warn, "HOME is not set", e.homeRemedy()
	case why == "ok" && at != home:
		r.Status, r.Why = OK, "HOME ("+home+") can be made"
	case why == "ok":
		r.Status, r.Why = OK, "HOME ("+home+") can be written to"
		for _, m := range parseMounts(b.facts["m:"]) {
			if m.inMemory() && below(home, m.path) && m.size < leastHome {
				r.Status, r.Remedy = Warn, e.homeRemedy()
				r.Why = fmt.Sprintf("HOME lies in memory and holds %s, less than the cache of an ordinary npm install", validate.Size(m.size).Human())
			}
		}
	default:
		r.Status, r.Remedy = Info, e.homeRemedy()
		r.Why = "HOME (" + home + ") cannot be written to"
		if len(found) > 0 {
			r.Status = Warn
			r.Why += ", and " + strings.Join(found, ", ") + " keep caches there"
			if len(found) == 1 {
				r.Why = "HOME (" + home + ") cannot be written to, and " + found[0] + " keeps a cache there"
			}
		}
	}
	return r
}

func toolsIn(f Facts) []string {
	var found []string
	for _, t := range tools {
		for _, p := range t.programs {
			if f["x:"+p] != "" {
				found = append(found, p)
				break
			}
		}
	}
	return found
}

// below says whether path is dir or in it.
func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

func checkToolCaches(e *Env, b *box) Result {
	var r Result
	var bad []string
	n, charts := 0, false
	for _, t := range tools {
		for _, p := range t.programs {
			if b.facts["x:"+p] == "" {
				continue
			}
			n++
			answer, where := b.facts["v:"+t.variable], "$"+t.variable
			if answer == "" {
				answer, where = b.facts["w:"+t.place], t.place
			}
			why, _ := writable(answer)
			text := where + " can be written to"
			if why != "ok" {
				text = where + ": " + why
				bad = append(bad, p)
			}
			r.Values = append(r.Values, Value{p, text})
			break
		}
	}
	if b.facts["x:python3"] != "" {
		answer, where := b.facts["v:MPLCONFIGDIR"], "$MPLCONFIGDIR"
		if answer == "" {
			answer, where = b.facts["w:~/.config"], "~/.config"
		}
		if why, _ := writable(answer); why == "ok" {
			r.Values = append(r.Values, Value{"matplotlib", where + " can be written to"})
		} else {
			charts = true
			r.Values = append(r.Values, Value{"matplotlib", where + ": " + why})
		}
	}
	switch {
	case len(bad) == 0 && charts:
		// It is no fault: for code in Python, run sets the variable.
		r.Status, r.Why, r.Remedy = Info, "matplotlib would complain that it cannot write ~/.config; for -c and -f that is seen to", "--env MPLCONFIGDIR=/tmp"
	case n == 0:
		return Result{Status: Skipped, Why: "the image has none of the toolchains that keep caches"}
	case len(bad) == 0:
		r.Status, r.Why = OK, "each can be written to"
	default:
		r.Status, r.Why, r.Remedy = Warn, strings.Join(bad, ", ")+" cannot write a cache, and may say something else about it", e.homeRemedy()
	}
	return r
}

// seenCPUs is what nproc says in the box.
func seenCPUs(f Facts) int {
	w := strings.Fields(f["u:"])
	if len(w) != 3 {
		return 0
	}
	n, err := strconv.Atoi(w[2])
	if err != nil || n < 0 || n > 1<<16 {
		return 0
	}
	return n
}

func checkCPUs(e *Env, b *box) Result {
	seen := seenCPUs(b.facts)
	if seen == 0 {
		return Result{Status: Skipped, Why: "the box did not say how many CPUs it sees"}
	}
	s := e.Spec
	a := e.limitsAround()
	get, from := float64(seen), ""
	if s.CPUs > 0 && enforcer(b.res.Limits.CPU) != "none" {
		get, from = s.CPUs, "--cpus"
	}
	if a.cpus > 0 && a.cpus < get {
		get, from = a.cpus, "a limit around this process"
	}
	jobs := strconv.Itoa(seen)
	r := Result{Status: OK, Values: values(
		"nproc", jobs, "online", strings.TrimSpace(b.facts["f:/sys/devices/system/cpu/online"]),
		"gets", number(get), "cpu.max", orElse(strings.TrimSpace(b.facts["f:/sys/fs/cgroup/cpu.max"]), "not there in the box"),
		"enforced_by", orElse(enforcer(b.res.Limits.CPU), "no cap"),
		"pids", strconv.Itoa(s.PIDs), "make", "-j$(nproc) starts "+jobs+" jobs",
		"GOMAXPROCS", b.facts["e:GOMAXPROCS"],
	)}
	runtimes := "take " + jobs + " CPUs for granted: the box shows no quota"
	if b.facts["f:/sys/fs/cgroup/cpu.max"] != "" {
		runtimes = "a JVM, and Go from 1.25 on, read the quota; others take " + jobs + " CPUs for granted"
	}
	r.Values = append(r.Values, Value{"runtimes", runtimes})
	if s.CPUs > 0 && s.CPUs < float64(seen) && enforcer(b.res.Limits.CPU) == "none" {
		r.Status, r.Remedy = Warn, "--fit-cpus"
		r.Why = fmt.Sprintf("--cpus %s is not enforced on this host: programs see and get %s", number(s.CPUs), plural(seen, "CPU"))
		return r
	}
	if get >= float64(seen) {
		r.Why = fmt.Sprintf("programs see %d CPUs, and may use them", seen)
		if s.PIDs > 0 && seen*4 > s.PIDs && enforcer(b.res.Limits.PIDs) != "none" {
			r.Status, r.Remedy = Warn, "--pids-limit "+strconv.Itoa(max(runner.DefaultPIDs, seen*16))
			r.Why = fmt.Sprintf("programs see %d CPUs, and the box may have %d processes and threads: one build can need more", seen, s.PIDs)
		}
		return r
	}
	n := int(math.Ceil(get))
	if n >= seen {
		r.Why = fmt.Sprintf("programs see %s and get %s of that by %s", plural(seen, "CPU"), number(get), from)
		return r
	}
	r.Status = Warn
	r.Why = fmt.Sprintf("nproc says %d and %s gives %s: make -j$(nproc), Go and some JVMs start %d of each", seen, from, number(get), seen)
	r.Remedy = "--fit-cpus"
	if s.CPUs == 0 || s.CPUs > get {
		r.Remedy = "--cpus " + number(get) + " --fit-cpus"
	}
	return r
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

func checkMemoryFiles(e *Env, b *box) Result {
	s := e.Spec
	r := Result{Status: OK}
	var over []string
	remedy := ""
	capped := s.Memory > 0 && enforcer(b.res.Limits.Memory) != "none"
	for _, m := range parseMounts(b.facts["m:"]) {
		if m.path == "/dev" || below(m.path, "/proc") || below(m.path, "/sys") {
			continue
		}
		size := validate.Size(m.size).Human()
		switch {
		case m.inMemory() && capped && m.size >= uint64(s.Memory):
			r.Values = append(r.Values, Value{m.path, size + " shown; charged to the memory of the box, which is ended (oom) before that is full"})
			if m.path != "/dev/shm" && slices.Contains(e.targets(), m.path) {
				over = append(over, m.path)
				remedy = "--tmpfs " + m.path + ":" + (s.Memory / 2).String()
			}
		case m.inMemory():
			r.Values = append(r.Values, Value{m.path, size + "; charged to the memory of the box, then ENOSPC"})
		default:
			text := validate.Size(m.free).Human() + " free; disk of this machine, not counted as memory"
			if m.path == runner.WorkspaceDir && s.WorkspaceMax > 0 {
				text += ", at most " + s.WorkspaceMax.Human()
			}
			r.Values = append(r.Values, Value{m.path, text})
		}
	}
	if len(over) > 0 {
		r.Status, r.Remedy = Warn, remedy
		r.Why = strings.Join(over, ", ") + " shows more than the box has memory, so filling it ends the box"
		return r
	}
	r.Why = "/tmp and /dev/shm count as memory of the box, " + runner.WorkspaceDir + " is disk"
	if s.WorkspaceSize > 0 {
		r.Why = "/tmp, /dev/shm and " + runner.WorkspaceDir + " count as memory of the box"
	}
	if len(r.Values) == 0 {
		r.Why = "nothing but /dev can be written to"
	}
	return r
}

func checkWorkspaceSize(e *Env, b *box) Result {
	s := e.Spec
	shown := ""
	for _, m := range parseMounts(b.facts["m:"]) {
		if m.path == runner.WorkspaceDir {
			shown = validate.Size(m.free).Human()
		}
	}
	r := Result{Status: OK, Values: values("df_shows_free", shown)}
	switch {
	case s.WorkspaceSize > 0:
		r.Why = "it lies in the memory of the box, at most " + s.WorkspaceSize.Human()
	case s.WorkspaceMax > 0:
		r.Why = "the box is ended when it holds more than " + s.WorkspaceMax.Human()
		if s.Workspace == "" {
			break
		}
	case s.WorkspaceMax == runner.AutoSize && s.Workspace == "":
		r.Why = "it is private, removed afterwards, and the box is ended when it holds too much"
	case s.Workspace == "":
		r.Status, r.Why, r.Remedy = Warn, "nothing keeps the box from filling this machine's disk while it runs", "--workspace-max 10g"
	default:
		r.Status, r.Why, r.Remedy = Info, "nothing bounds what a run writes to "+s.Workspace+", and it stays there; --memory does not count it", "--workspace-max 10g"
	}
	return r
}

func checkJVM(e *Env, b *box) Result {
	if b.facts["x:java"] == "" {
		return Result{Status: Skipped, Why: "the image has no java"}
	}
	s := e.Spec
	if s.Memory == 0 {
		return Result{Status: Info, Why: "the box has no cap on memory, so a JVM takes a quarter of this machine's", Remedy: "--memory 1g"}
	}
	heap, from := s.Memory/4, "a quarter of the cap"
	for _, kv := range s.Env {
		if kv.Key != "JAVA_TOOL_OPTIONS" && kv.Key != "JAVA_OPTS" && kv.Key != "_JAVA_OPTIONS" {
			continue
		}
		for w := range strings.FieldsSeq(kv.Value) {
			if v, ok := strings.CutPrefix(w, "-Xmx"); ok {
				if n, err := validate.ParseLimit(v); err == nil && n > 0 {
					heap, from = n, kv.Key
				}
			}
		}
	}
	var scratch validate.Size
	for _, t := range s.Tmpfs {
		scratch += t.Size
	}
	r := Result{Status: OK, Values: values("heap", heap.Human()+" ("+from+")", "tmpfs", scratch.Human(), "memory", s.Memory.Human())}
	if heap+scratch > s.Memory {
		r.Status, r.Remedy = Warn, "--memory "+((heap+scratch)*5/4>>20<<20).String()
		r.Why = fmt.Sprintf("a heap of %s (%s) and %s of files in memory are more than the cap of %s", heap.Human(), from, scratch.Human(), s.Memory.Human())
		return r
	}
	r.Why = fmt.Sprintf("a heap of %s and %s of files in memory fit into %s", heap.Human(), scratch.Human(), s.Memory.Human())
	return r
}

// smallTmp is a /tmp in which an index of a database of some size does not fit.
const smallTmp = 256 << 20

func checkTmpdir(e *Env, b *box) Result {
	f := b.facts
	dir, answer := f["e:TMPDIR"], f["v:TMPDIR"]
	if f["e:SQLITE_TMPDIR"] != "" {
		dir, answer = f["e:SQLITE_TMPDIR"], f["v:SQLITE_TMPDIR"]
	}
	if dir == "" {
		dir, answer = "/tmp", f["w:/tmp"]
	}
	r := Result{Values: values("TMPDIR", f["e:TMPDIR"], "SQLITE_TMPDIR", f["e:SQLITE_TMPDIR"], "used", dir)}
	if why, _ := writable(answer); why != "ok" {
		r.Status, r.Why = Warn, dir+" cannot be written to ("+why+"); Python's tempfile then leaves its files in the workspace"
		r.Remedy = "--env TMPDIR=" + runner.WorkspaceDir
		return r
	}
	r.Status, r.Why = OK, "temporary files go to "+dir
	for _, m := range parseMounts(f["m:"]) {
		if below(dir, m.path) && m.path != "/" && m.inMemory() {
			r.Values = append(r.Values, Value{"size", validate.Size(m.size).Human()})
			r.Why = fmt.Sprintf("temporary files go to %s, which holds %s of memory", dir, validate.Size(m.size).Human())
			if m.size < smallTmp && (f["x:sqlite3"] != "" || f["x:python3"] != "") {
				r.Status, r.Remedy = Info, "--env TMPDIR="+runner.WorkspaceDir
				r.Why += `; SQLite calls a full one "database or disk is full"`
			}
		}
	}
	return r
}

func checkNetwork(e *Env, b *box) Result {
	s, f := e.Spec, b.facts
	out := f[unroutable]
	r := Result{Values: values("route_out", out)}
	loop, abstract := "", ""
	if e.listener != nil {
		q := e.listener.questions()
		loop, abstract = f[q[0]], f[q[1]]
		r.Values = append(r.Values, values("host_loopback", reached(loop), "host_abstract_socket", reached(abstract))...)
	}
	route := out != "" && out != "ENETUNREACH" && out != "ENETDOWN" && out != "EPERM" && out != "EACCES" && out != "EAFNOSUPPORT"
	inReach := loop == "ok" || abstract == "ok"
	switch {
	case s.HostNetwork:
		r.Status, r.Remedy = Warn, "--egress-allow DOMAIN"
		r.Why = "the box has THIS MACHINE'S NETWORK"
		if inReach {
			r.Why += ": it reached a service on the loopback here, and so reaches every other one (databases, notebooks, agents)"
		}
	case inReach:
		r.Status, r.Why = Fail, "a service on this machine's loopback was reached from a box that shall have no network"
	case route:
		r.Status, r.Why = Fail, "the box has a route out ("+out+"), and shall have none"
	case len(s.Egress) > 0:
		r.Status, r.Why = OK, "only through the proxy: HTTP to "+strings.Join(s.Egress, ", ")+"; no route, no name server, nothing of this machine"
	default:
		r.Status, r.Why = OK, "none: no route out, and nothing of this machine in reach"
	}
	return r
}

func reached(answer string) string {
	if answer == "ok" {
		return "reached"
	}
	return answer
}

func checkPrivileges(e *Env, b *box) Result {
	text := b.facts["f:/proc/self/status"]
	eff, nnp, sec := status(text, "CapEff"), status(text, "NoNewPrivs"), status(text, "Seccomp")
	r := Result{Status: OK, Values: values("CapEff", eff, "CapBnd", status(text, "CapBnd"), "NoNewPrivs", nnp, "Seccomp", sec)}
	if eff == "" {
		return Result{Status: Skipped, Why: "the box has no /proc that says so"}
	}
	none := strings.Trim(eff, "0") == ""
	all := len(e.Spec.CapDrop) == 1 && e.Spec.CapDrop[0] == "ALL" && len(e.Spec.CapAdd) == 0
	switch {
	case sec != "2":
		r.Status, r.Why = Fail, "no seccomp filter is in force in the box"
	case nnp != "1":
		r.Status, r.Why = Fail, "no_new_privs is not set in the box"
	case !none && all:
		r.Status, r.Why = Fail, "the box has capabilities ("+eff+"), and shall have none"
	case !none:
		r.Status, r.Why, r.Remedy = Warn, "the box keeps capabilities ("+eff+"), as it was asked for", "--cap-drop ALL"
	default:
		r.Why = "no capabilities, a seccomp filter, no_new_privs"
	}
	return r
}

func checkRoot(_ *Env, b *box) Result {
	why, at := writable(b.facts["w:/"])
	r := Result{Values: values("write_to_root", why)}
	switch {
	case at != "/":
		return Result{Status: Skipped, Why: "the box did not say"}
	case why == "ok":
		r.Status, r.Why = Fail, "the root of the box can be written to"
	default:
		r.Status, r.Why = OK, "it is read-only ("+why+")"
	}
	return r
}

func checkUser(e *Env, b *box) Result {
	ids := strings.Fields(b.facts["u:"])
	uidMap := strings.Fields(b.facts["f:/proc/self/uid_map"])
	if len(ids) != 3 || len(uidMap) < 3 {
		return Result{Status: Skipped, Why: "the box did not say"}
	}
	r := Result{Status: OK, Values: values("uid", ids[0], "gid", ids[1], "uid_map", strings.Join(uidMap, " "), "gid_map", strings.Join(strings.Fields(b.facts["f:/proc/self/gid_map"]), " "))}
	host := ""
	for i := 0; i+2 < len(uidMap); i += 3 {
		in, err1 := strconv.ParseInt(uidMap[i], 10, 64)
		out, err2 := strconv.ParseInt(uidMap[i+1], 10, 64)
		n, err3 := strconv.ParseInt(uidMap[i+2], 10, 64)
		id, err4 := strconv.ParseInt(ids[0], 10, 64)
		if err1 == nil && err2 == nil && err3 == nil && err4 == nil && id >= in && id-in < n {
			host = strconv.FormatInt(out+id-in, 10)
		}
	}
	r.Why = fmt.Sprintf("uid %s in the box is uid %s of this machine", ids[0], host)
	if host == "0" {
		r.Status = Info
		r.Why = "uid " + ids[0] + " in the box is root of this machine to the file system: what it makes in a mount belongs to root"
		r.Remedy = "--user 1000:1000"
		if e.Spec.Workspace == "" && len(e.Spec.Mounts) == 0 {
			r.Status, r.Remedy = OK, ""
		}
	}
	return r
}

func checkBytecode(e *Env, b *box) Result {
	f := strings.Fields(b.facts["p:"])
	if len(f) != 3 {
		return Result{Status: Skipped, Why: "there is no Python library in the usual places"}
	}
	sources, err1 := strconv.Atoi(f[1])
	compiled, err2 := strconv.Atoi(f[2])
	if err1 != nil || err2 != nil || sources <= 0 {
		return Result{Status: Skipped, Why: "the box did not say"}
	}
	r := Result{Status: OK, Values: values("library", f[0], "sources", f[1], "compiled", f[2])}
	r.Why = fmt.Sprintf("%d of %d modules are compiled", compiled, sources)
	if compiled*2 < sources {
		r.Status = Info
		r.Why += "; each start of Python compiles what it imports, until kern-sbx has compiled the library after a first run"
		r.Remedy = "kern-sbx image precompile " + e.Spec.Image + " NEWREF"
		if e.Spec.Image == "" {
			r.Remedy = "--env PYTHONPYCACHEPREFIX=" + runner.WorkspaceDir + "/.pycache"
		}
	}
	return r
}

func checkMountPoints(e *Env, b *box) Result {
	r := Result{Status: OK}
	for _, p := range linkedPaths {
		if to, ok := strings.CutPrefix(b.facts["l:"+p], "-> "); ok {
			r.Values = append(r.Values, Value{p, "a link to " + to})
		}
	}
	for _, t := range e.targets() {
		for d := t; d != "/" && d != "."; d = path.Dir(d) {
			if to, ok := strings.CutPrefix(b.facts["l:"+d], "-> "); ok {
				if !strings.HasPrefix(to, "/") {
					to = path.Join(path.Dir(d), to)
				}
				real := path.Clean(to + t[len(d):])
				r.Status, r.Why = Warn, t+" leads through a link, and programs open "+real
				r.Remedy = "mount at " + real
				return r
			}
		}
	}
	r.Why = "no mount lies at a link"
	if len(r.Values) > 0 {
		r.Why += "; these paths are links in the image, so mount at what they lead to"
	}
	return r
}

func checkLocale(_ *Env, b *box) Result {
	f := b.facts
	locale := f["e:LC_ALL"]
	if locale == "" {
		locale = f["e:LANG"]
	}
	zone := f["e:TZ"]
	r := Result{Status: OK, Values: values("locale", locale, "TZ", zone, "zoneinfo", f["l:/usr/share/zoneinfo"], "localtime", f["l:/etc/localtime"])}
	switch {
	case zone != "" && f["l:/usr/share/zoneinfo"] == "":
		r.Status, r.Why, r.Remedy = Warn, "TZ is "+zone+", and the image has no time zones: programs take it for UTC", "--image REF with tzdata in it"
	case locale == "":
		r.Status, r.Why, r.Remedy = Info, "no locale is set, so some programs take text for ASCII", "--env LANG=C.UTF-8"
	default:
		r.Why = "locale " + locale + ", time zone " + map[bool]string{true: "UTC", false: zone}[zone == ""]
	}
	return r
}

func checkCertificates(e *Env, b *box) Result {
	online := e.Spec.HostNetwork || len(e.Spec.Egress) > 0
	for _, p := range bundles {
		if b.facts["l:"+p] != "" {
			return Result{Status: OK, Why: p, Values: values("bundle", p)}
		}
	}
	if p := b.facts["e:SSL_CERT_FILE"]; p != "" {
		return Result{Status: OK, Why: "SSL_CERT_FILE is " + p, Values: values("bundle", p)}
	}
	r := Result{Status: Info, Why: "the image has no certificates of authorities; without a network nothing needs them"}
	if online {
		r.Status, r.Why, r.Remedy = Warn, "the image has no certificates of authorities, so no HTTPS server can be checked", "-v /etc/ssl/certs:/etc/ssl/certs:ro"
	}
	return r
}

func checkInterpreters(_ *Env, b *box) Result {
	var r Result
	var names []string
	for _, p := range interpreters {
		at := b.facts["x:"+p]
		if at == "" {
			continue
		}
		if to, ok := strings.CutPrefix(b.facts["l:"+at], "-> "); ok {
			at += " -> " + to
		}
		r.Values = append(r.Values, Value{p, at})
		names = append(names, p)
	}
	r.Status, r.Why = OK, strings.Join(names, ", ")
	if len(names) == 0 {
		r.Status, r.Why = Info, "none: only programs of the image itself can be run"
	}
	return r
}

// clockSkew is from where on a difference is no matter of when one looked.
const clockSkew = 2 * time.Second

func checkClock(_ *Env, b *box) Result {
	ms, err := strconv.ParseInt(b.facts["t:"], 10, 64)
	if err != nil || b.res.Started == nil {
		return Result{Status: Skipped, Why: "the box did not say"}
	}
	off := time.UnixMilli(ms).Sub(*b.res.Started)
	r := Result{Status: OK, Why: "it agrees with this machine's", Values: values("difference", off.Round(time.Millisecond).String())}
	if off.Abs() > clockSkew+b.took {
		r.Status, r.Why = Warn, "it differs from this machine's by "+off.Round(time.Second).String()+"; certificates and builds go by the clock"
		r.Remedy = "timedatectl"
	}
	return r
}
