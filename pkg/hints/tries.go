package hints

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

// tryRows are for a diagnosis alone, which runs the command again with what they
// say: they go by less, and a good part of what they name does not help.
func tryRows() []rule {
	rows := []rule{
		{id: "home-read-only", noise: true, match: anyHome},
		{id: "read-only-root", match: anyRoot},
		{id: "sqlite-open", match: func(v *view) (Hint, bool) {
			if !v.says("unable to open database file", "attempt to write a readonly database", "unable to open database \"") {
				return none()
			}
			all := v.homeRemedies()
			if v.NoTmp {
				all = append(all, set("env=TMPDIR=/workspace"))
			}
			return fix("SQLite makes files beside the database, and that directory cannot be written to or is not there", all...)
		}},
		{id: "across-file-systems", match: func(v *view) (Hint, bool) {
			if !v.says("cross-device", "exdev") {
				return none()
			}
			return fix("/tmp is a file system of its own in the box, and a rename cannot leave it", set("env=TMPDIR=/workspace"))
		}},
		{id: "tmp-missing", match: func(v *view) (Hint, bool) {
			if !v.says("no usable temporary directory") && !v.both([]string{"/tmp"}, readOnly) {
				return none()
			}
			return fix("the box has no /tmp", set("tmpfs=/tmp:64m"))
		}},
		{id: "shared-memory", match: func(v *view) (Hint, bool) {
			if !v.says("out of shared memory", "dev/shm") && !(v.says("bus error") && v.says("shm", "dataloader", "shared")) {
				return none()
			}
			return fix("/dev/shm is memory of the box, whatever size it shows", v.memoryRemedies()...)
		}},
		{id: "tmp-full", match: anySpace},
		{id: "file-too-large", match: func(v *view) (Hint, bool) {
			if v.ExitCode != 153 && !v.says("file size limit exceeded", "efbig", "errno 27", "file too large") {
				return none()
			}
			return fix("one file grew to the most that a file may have here", set("workspace-max=none"))
		}},
		{id: "ascii", noise: true, match: func(v *view) (Hint, bool) {
			if !v.says("us-ascii", "'ascii' codec", "unmappable character", "encoding ascii", "ansi_x3.4-1968", "wide character in", "malformed input or input contains",
				"invalid multibyte", "invalid or incomplete multibyte", "non-ascii", "ascii was chosen as the fileystem encoding", "unicodeencodeerror") {
				return none()
			}
			all := []Remedy{set("env=LANG=C.UTF-8"), set("env=LC_ALL=C.UTF-8")}
			if v.says("java", "unmappable") {
				slices.Reverse(all)
			}
			return fix("the box has no locale, so text is taken for ASCII", all...)
		}},
		{id: "pids", match: func(v *view) (Hint, bool) {
			// Threads of all kinds, and no other EAGAIN.
			if v.PIDs <= 0 || !v.says("can't start new thread", "native thread", "create thread", "pthread_create failed", "cannot fork", "fork failed", "uv_thread_create", "retry: resource temporarily unavailable") &&
				!(v.says("resource temporarily unavailable", "eagain") && v.says("fork", "clone", "thread", "spawn", "subprocess") && !v.says("flock", "fcntl", "lockf")) {
				return none()
			}
			return fix("it starts more processes and threads than the box may have", set("pids-limit="+strconv.Itoa(4*v.PIDs)), set("pids-limit="+strconv.Itoa(16*v.PIDs)))
		}},
		{id: "files-open", match: func(v *view) (Hint, bool) {
			if !v.says("too many open files", "emfile") || v.says("too many open files, watch", "inotify") {
				return none()
			}
			return fix("a process has more files open than its limit allows", set("ulimit=nofile=65536"))
		}},
		{id: "memory-refused", match: func(v *view) (Hint, bool) {
			bus := v.ExitCode == 135 || v.says("bus error")
			if v.Memory <= 0 || v.Fault == "oom" || v.ownHeap() || strings.Contains(v.argv, "ulimit -v") ||
				!v.says("heap out of memory", "memoryerror", "cannot allocate memory", "std::bad_alloc", "killed signal terminated program", "internal compiler error: killed",
					"out of memory", "outofmemoryerror", "memory exhausted", "could not allocate", "insufficient memory", "enomem", "unable to allocate", "could not reserve enough space", "memory allocation of") && !bus {
				return none()
			}
			return fix("it needs more memory than the box may have, or sizes itself by it", v.memoryRemedies()...)
		}},
		{id: "own-name", match: func(v *view) (Hint, bool) {
			if !v.says(noName...) && !v.says(maybeName...) {
				return none()
			}
			return fix("the box's own name is not in its list of hosts", set("hostname=localhost"))
		}},
		{id: "no-network", match: anyNetwork},
		{id: "unreachable", match: func(v *view) (Hint, bool) {
			if !v.HostNetwork || !v.says(noName...) && !v.says(noRoute...) {
				return none()
			}
			return own("the box has this machine's network, and there is no such name or no way there", "check the name and the address, and whether this machine has a network")
		}},
		{id: "certificates", match: func(v *view) (Hint, bool) {
			// A retry that pip and others announce has the reason in it.
			if !v.HostNetwork || !v.says("ca certificate", "certificate_verify_failed", "local issuer", "ca-certificates.crt", "certificate verify", "certificate signed by unknown", "cert.pem", "(from versions: none)") {
				return none()
			}
			return fix("the box does not have the certificate authorities that this machine trusts", set(certificates))
		}},
		{id: "root-refused", match: func(v *view) (Hint, bool) {
			if v.User != "" || !v.says("running as root is not", "running as root without", "run as root without", "please run as a non-root") {
				return none()
			}
			return fix("the program refuses to run as root", set("user=nobody"), set("user=1000:1000"))
		}},
		{id: "no-privilege", match: anyRight},
	}
	for i := range rows {
		rows[i].diag = true
	}
	return byText(rows)
}

// cannotWrite are the ways to say that a path cannot be written to.
var cannotWrite = []string{
	"read-only file system", "erofs", "os error 30", "permission denied", "eacces", "not writable", "cannot create", "can't create", "could not create",
	"failed to create", "unable to create", "mkdir", "cannot write", "error writing", "not permitted",
}

// anyHome answers what wants to write below HOME.
func anyHome(v *view) (Hint, bool) {
	ofHome := func(p string) bool {
		for _, h := range []string{v.home(), "/root", "/nonexistent", "/home"} {
			if h != "/" && h != "/workspace" && below(p, h) {
				return true
			}
		}
		return strings.HasPrefix(p, "/.") && len(p) > 3
	}
	for i, l := range v.lines {
		if !hasAny(l, cannotWrite) && !(hasAny(l, []string{"open", "create", "writ"}) && v.after(i, "read-only file system", "os error 30", "permission denied")) {
			continue
		}
		paths := pathsIn(v.orig[i])
		if !hasAny(l, []string{"home directory", "user data directory", "crashpad"}) && !slices.ContainsFunc(paths, ofHome) {
			continue
		}
		v.hit = i
		all := append(v.homeRemedies(), set("tmpfs=/root:64m"))
		if v.home() != "/root" && slices.ContainsFunc(paths, func(p string) bool { return below(p, "/root") }) {
			slices.Reverse(all) // it asks the list of users and not HOME
		}
		return fix("HOME lies in the box's read-only root, and the tool wants to write there or where the list of users says that it is", all...)
	}
	return none()
}

// after reports whether one of the next three lines says so, where some tools put
// the reason.
func (v *view) after(i int, words ...string) bool {
	return slices.ContainsFunc(v.lines[i:min(i+4, len(v.lines))], func(l string) bool { return hasAny(l, words) })
}

// covered are directories that a program needs what is in: memory over them would
// hide it.
var covered = []string{
	"/", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/var", "/dev", "/proc", "/sys", "/boot", "/workspace", "/usr/bin", "/usr/lib",
	"/usr/local", "/usr/local/bin", "/usr/local/lib", "/usr/share", "/var/lib", "/home", "/root", "/tmp", "/run/kern-sbx",
}

// anyRoot answers a write to the root that is not below HOME.
func anyRoot(v *view) (Hint, bool) {
	var all []Remedy
	add := func(i int, dir string) {
		r := set(memory(dir))
		if !slices.ContainsFunc(all, func(x Remedy) bool { return x.Changes[0] == r.Changes[0] }) {
			if all = append(all, r); len(all) == 1 {
				v.hit = i
			}
		}
	}
	for i, l := range v.lines {
		// What another user owns, whom the box does not know, is refused before that
		// it is read-only is. A directory for what runs now is often made at boot, and
		// in no image.
		noRight, gone := hasAny(l, denied), hasAny(l, []string{"nonexistent", "no such file"})
		if !noRight && !gone && !hasAny(l, readOnly) {
			continue
		}
		paths := pathsIn(v.orig[i])
		if len(paths) == 0 && i > 0 {
			paths = pathsIn(v.orig[i-1]) // the reason has a line of its own
		}
		for _, named := range paths {
			if belowHome(named, v.home()) || below(named, "/root") || below(named, "/home") || noRight && !below(named, "/var") && !below(named, "/run") {
				continue
			}
			p := realPath(named)
			if gone && !below(p, "/run") {
				continue
			}
			if gone && named != p { // nor need there be that link
				add(i, path.Dir(named))
			}
			dir := path.Dir(p)
			if slices.Contains(covered, dir) || hasAny(l, []string{"chdir", "change directory", "open directory"}) {
				dir = p
			}
			for range 2 {
				if !slices.Contains(covered, dir) && !slices.ContainsFunc([]string{"/usr", "/etc", "/workspace", "/proc", "/sys", "/dev"}, func(d string) bool { return below(dir, d) }) {
					add(i, dir)
				}
				dir = path.Dir(dir)
			}
		}
	}
	return fix("it writes to a place in the box's read-only root", all...)
}

// anySpace answers what is full, wherever that is.
func anySpace(v *view) (Hint, bool) {
	if v.NoTmp || !v.says(noSpace...) && !v.says("disk is full", "disk full", "not enough space", "disk quota exceeded") || v.says("inotify", "file watchers") || v.both([]string{"/dev/shm"}, noSpace) {
		return none()
	}
	var all []Remedy
	if v.says("go-build", "go build", "/pkg/tool/", "asm: ", "/link", "$work/") {
		all = append(all, set("env=GOTMPDIR=/workspace"))
	}
	all = append(all, v.tmpRemedies("TMPDIR")...)
	return fix("/tmp of the box is small: it is a part of the memory", all...)
}

// maybeName are words about names that other failures have as well.
var maybeName = []string{
	"could not resolve", "getaddrinfo", " enotfound", "gaierror", "name resolution", "unknown host", "can't resolve", "could not find host", "no servers could be reached",
	"temporary failure resolving", "failed to establish a new connection", "bad address",
}

// certificates is where most distributions keep the authorities they trust.
const certificates = "volume=/etc/ssl/certs:/etc/ssl/certs:ro"

// anyNetwork answers a network that is not there.
func anyNetwork(v *view) (Hint, bool) {
	if v.HostNetwork || v.Egress {
		return none()
	}
	if v.says(noName...) || v.says(maybeName...) || v.says(noRoute...) || v.says("connection timed out", "connection refused", "econnrefused") {
		return fix("the box has no network", set("network=host"))
	}
	if v.says("(from versions: none)") { // pip -q keeps the reason for itself
		return fix("the box has no network, which pip reports as a package without versions", set("network=host"), set("network=host", certificates))
	}
	return none()
}

// anyRight answers what the box may not do.
func anyRight(v *view) (Hint, bool) {
	refused := append(slices.Concat(notOurs, denied), "eperm", "setresuid", "setgid", "setuid", "lacks privilege", "must be root", "are you root", "permission to capture", "permission to perform")
	if !v.says(refused...) || v.unmapped() { // no right of its own brings a user: unmapped-owner
		return none()
	}
	var all []Remedy
	for _, k := range []struct {
		says, caps []string
	}{
		{[]string{"chown", "changing ownership", "change owner", "cannot change ownership", "preserve ownership"}, []string{"CHOWN", "CHOWN DAC_OVERRIDE FOWNER"}},
		{[]string{"setuid", "setgid", "setgroups", "setresuid", "setreuid", "setegid", "seteuid", "initgroups"}, []string{"SETUID SETGID"}},
		{[]string{"rtnetlink", "iptables", "nft:"}, []string{"NET_ADMIN"}},
		{[]string{"socket", "raw", "icmp", "ping", "capture"}, []string{"NET_RAW"}},
		{[]string{"bind"}, []string{"NET_BIND_SERVICE"}},
		{[]string{"chroot"}, []string{"SYS_CHROOT"}},
		{[]string{"setpriority", "nice"}, []string{"SYS_NICE"}},
		{[]string{"chmod", "changing permissions", "utime", "preserving times"}, []string{"FOWNER"}},
		{denied, []string{"DAC_OVERRIDE"}},
		{[]string{"kill"}, []string{"KILL"}},
	} {
		line := v.hit
		if !v.says(k.says...) {
			continue
		}
		v.hit = line
		for _, names := range k.caps {
			var changes []string
			for name := range strings.FieldsSeq(names) {
				changes = append(changes, "cap-add="+name)
			}
			all = append(all, set(changes...))
		}
		break
	}
	return fix("root of the box has no capabilities", append(all, set("cap-drop=none"))...)
}
