package doctor

import (
	"bytes"
	"path"
	"slices"
	"strings"
)

// verdictOf is whose a failure is that no flag helps against.
type verdictOf struct {
	kind, why, advice, topic string
	// sure: nothing has to be tried first. weak: a box with everything changed has
	// to fail in the same way before it is said.
	sure, weak bool
}

// blameRow knows a failure by a text, lower case, any of says with all of also.
type blameRow struct {
	says, also []string
	v          verdictOf
}

const (
	imageAdvice = "packages belong into the image: choose or build another --image, or let --setup install what fits into the workspace"
	ownAdvice   = "look at the command itself, its arguments and its input"
)

func blameTable() []blameRow {
	own := func(why, advice string) verdictOf {
		return verdictOf{kind: NotSandbox, why: why, advice: advice}
	}
	sure := func(v verdictOf) verdictOf { v.sure = true; return v }
	weak := func(v verdictOf) verdictOf { v.weak = true; return v }
	never := func(why, advice string) verdictOf {
		return verdictOf{kind: Unfixable, why: why, advice: advice}
	}
	return []blameRow{
		{[]string{"io_uring"}, []string{"support"}, sure(never("the sandbox answers io_uring with ENOSYS, whatever the kernel can do", "use another I/O engine or API, such as psync, libaio or plain read and write"))},
		{[]string{"io_uring_setup", "io_uring_queue_init"}, nil, sure(never("the sandbox answers io_uring with ENOSYS, whatever the kernel can do", "use another I/O engine or API, such as psync, libaio or plain read and write"))},
		{[]string{"cannot set date", "settimeofday", "clock_settime", "cannot set the system clock", "hwclock:"}, nil, sure(never("no box may set the clock, which is the host's", "give the program a clock of its own, with libfaketime for instance"))},
		{[]string{"ptrace", "could not trace", "cannot attach to process"}, []string{"not permitted"}, sure(never("the sandbox forbids ptrace", "debug outside of a box, or log from inside the program"))},
		{[]string{"unshare:", "clone(clone_new", "creating new namespace", "no permissions to create", "user namespaces", "setting up uid map", "bwrap:", "newuidmap"}, []string{"not permitted", "fail"}, never("the sandbox forbids namespaces inside of a box", "run the command without its own sandbox (--no-sandbox, --no-userns): the box is one already")},
		{[]string{"mount:", "mount("}, []string{"permission denied", "not permitted", "must be superuser"}, never("no code in a box may mount", "give the directory with --volume, or memory with --tmpfs")},
		{[]string{"mknod", "modprobe:", "insmod:", "losetup:", "swapon:", "iptables", "nft:", "perf_event_open", "bpf("}, []string{"not permitted", "denied"}, never("that belongs to the host's kernel, which the sandbox keeps from all boxes", "do it on the host, or leave it out")},
		{[]string{"unable to lock database: read-only", "/var/lib/dpkg/lock", "unable to acquire the dpkg", "/var/lib/apt/lists", "/var/lib/rpm", "cannot open packages database", "/var/cache/apt/archives/partial"}, nil, sure(never("a package manager cannot install into a box: its root is read-only, and users of the image are missing", imageAdvice))},
		{[]string{"/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/loop", "fuse: device not found", "/dev/mem", "/dev/dri"}, []string{"no such", "not found", "denied", "not permitted", "could not", "cannot", "failed"}, never("no device of this machine is in a box", "a device set of kern.toml gives one: --profile vgpio:NAME")},
		{[]string{"perf_event_paranoid", "no permission to enable"}, nil, sure(never("the sandbox forbids performance counters, which belong to the host's kernel", "measure outside of a box, or from inside the program"))},
		{[]string{"not been booted with systemd", "failed to connect to bus", "cannot connect to the docker daemon"}, nil, never("a box has no service manager and no daemon of this machine", "start the program itself")},
		{[]string{"--no-sandbox is not supported", "without --no-sandbox"}, nil, own("the browser refuses to run as root with a sandbox of its own, outside of a box as well", "add --no-sandbox: the box is one already")},
		{[]string{"chown", "setgroups", "initgroups", "setgid(", "setuid("}, []string{"invalid argument", "(22:", "einval"}, verdictOf{kind: NotFound, why: "the box has no other users: this machine lends you no numbers for them", advice: "a line for you in /etc/subuid and /etc/subgid, and newuidmap (package uidmap), give it some"}},
		{[]string{"not a tty", "not a terminal", "inappropriate ioctl for device", "must be run from a terminal", "no tty present"}, nil, verdictOf{kind: NotFound, why: "it wants a terminal, and trials have none", advice: "run it with -t"}},
		{[]string{"eoferror", "eof when reading a line", "unexpected eof on standard input"}, nil, verdictOf{kind: NotFound, why: "it reads standard input, which a box does not get by itself", advice: "run it with -i"}},
		{[]string{"no time zone found", "zoneinfonotfound", "unknown time zone"}, nil, own("the image has no such time zone", "use an image with tzdata, or set TZ to one that is there")},
		{[]string{"externally-managed-environment", "externally managed"}, nil, own("the image's Python is marked as managed by its distribution (PEP 668), in a box as outside", "make a virtual environment (python3 -m venv), or use kern-sbx run --setup 'pip install ...'")},
		{[]string{"missing script:", "unknown command", "unknown option", "unrecognized option", "unrecognized argument", "invalid option", "illegal option", "no such option", "unknown flag", "is not a git command", "no rule to make target", "unknown subcommand", "no such subcommand", "no such command", "unrecognized subcommand"}, nil, own("it was asked for something that it does not know", "check the spelling: names, options and scripts")},
		{[]string{"address already in use", "eaddrinuse"}, nil, own("the port is taken by the command itself: a fresh box has none in use", "let each part listen on a port of its own")},
		{[]string{"unsupported locale setting"}, nil, own("that locale is not in the image", "use C.UTF-8, or an image that has the locale")},
		{[]string{"unable to read font", "no such font", "fontconfig error: cannot load default config", "cannot find font"}, nil, own("the image has no such font", "use an image with the font package, or bring the font in the workspace")},
		{[]string{"blockingioerror"}, []string{"flock", "lockf", "lock_ex", "lock_nb"}, own("a lock that it wants is held already, by itself or a process that it started", "look who holds the lock")},
		{[]string{"modulenotfounderror", "no module named", "cannot find module", "cannot find package", "no required module provides", "there is no package called", "could not find a version that satisfies", "unresolved import", "can't locate", "cannot load such file", "classnotfoundexception", "could not find or load main class", "err_module_not_found", "package not found"}, nil, own("it needs a module that is neither in the image nor in the workspace", "install it: --setup 'pip install NAME', or bring it in the workspace")},
		{[]string{"syntaxerror", "syntax error", "parse error", "unexpected token", "unterminated", "indentationerror", "invalid syntax"}, nil, own("the code does not parse", ownAdvice)},
		{[]string{"zerodivisionerror", "nameerror:", "typeerror:", "keyerror:", "indexerror:", "attributeerror:", "valueerror:", "referenceerror:", "nullpointerexception", "index out of range", "nil pointer dereference", "division by zero", "rangeerror:", "undefined variable", "undefined reference", "undefined: ", "cannot find symbol"}, nil, own("the program itself raised an error, which says nothing about the box", ownAdvice)},
		{[]string{"command not found", ": not found", "executable file not found", "enoent: spawn", "spawn enoent"}, nil, own("it starts a program that the image does not have", "use an image that has it, or check the name")},
		{[]string{"404 not found", "http error 404", "status code 404", "403 forbidden", "401 unauthorized", "authentication failed", "invalid credentials"}, nil, own("the server answered, and refused or does not have it", "check the address and the credentials")},
		{[]string{"assertionerror", "assertion failed", "test failed", "tests failed", "failures=", "failed (errors", "--- fail:", " failed in ", "failing"}, nil, weak(own("its own checks failed", "look at what they compare"))},
		{[]string{"timed out"}, []string{"own"}, weak(own("it gave up waiting by itself", ownAdvice))},
	}
}

// blame says whose failure an outcome is, when something in it tells.
func blame(b *Box, o *Outcome) (verdictOf, bool) {
	l := newLook(b, o, nil)
	switch o.Fault {
	case "escape_blocked":
		return verdictOf{
			kind: Unfixable, sure: true, topic: "escape_blocked",
			why:    "it makes a system call that the sandbox forbids to every box, such as ptrace, mount or unshare",
			advice: "no flag allows it; do without it (no debugger or tracer, no sandbox inside of the box), or run that part outside",
		}, true
	case "exec_failed":
		if v, ok := l.notExecuted(); ok {
			return v, true
		}
	case "oom":
		return verdictOf{}, false
	case "":
		if o.Exit == 159 || l.says("bad system call") {
			return verdictOf{
				kind: Unfixable, sure: true, topic: "escape_blocked",
				why:    "a part of it makes a system call that the sandbox forbids to every box, such as ptrace, mount or unshare",
				advice: "no flag allows it; do without it (no debugger or tracer, no sandbox inside of the box), or run that part outside",
			}, true
		}
		if o.Exit == 126 && l.says("permission denied") {
			return verdictOf{kind: NotSandbox, why: "a file that it starts is not executable", advice: "chmod +x it, or start it by its interpreter"}, true
		}
		if b.Egress && l.says(noName...) {
			return verdictOf{
				kind: Unfixable, topic: "egress-not-http",
				why:    "with --egress-allow a box has no route and no name server, only an HTTP proxy",
				advice: "use a client that obeys HTTP_PROXY and HTTPS_PROXY, or --network host instead, if the code may have all of the network",
			}, true
		}
	}
	if len(b.Argv) > 0 && o.Fault == "" {
		switch name := path.Base(b.Argv[0]); name {
		case "apt", "apt-get", "dpkg", "apk", "yum", "dnf", "microdnf", "zypper", "pacman":
			if l.says("read-only", "unable to lock", "permission denied", "not permitted", "erofs", "superuser") {
				return verdictOf{kind: Unfixable, sure: true, why: name + " cannot install into a box: its root is read-only", advice: imageAdvice}, true
			}
		}
	}
	if f := l.foreign(); f != "" {
		return verdictOf{
			kind: Unfixable, why: f + " belongs to a user that the box does not know, and only that user may read it; no capability reaches it",
			advice: "give it to yourself (chown) or let others read it (chmod o+r)",
		}, true
	}
	if l.says("outofmemoryerror", "heap out of memory") && l.ownHeap() {
		return verdictOf{kind: NotSandbox, sure: true, why: "the heap that the command line sets is too small; the box has more memory than that", advice: "raise -Xmx, or --max-old-space-size"}, true
	}
	if o.Fault == "" && !b.HostNetwork && l.says(append(slices.Clip(noName), "(from versions: none)")...) {
		return verdictOf{}, false // what it says beside that follows from it
	}
	for _, r := range blameTable() {
		if l.says(r.says...) && (len(r.also) == 0 || l.says(r.also...) || slices.ContainsFunc(r.also, func(w string) bool { return strings.Contains(strings.ToLower(strings.Join(b.Argv, " ")), w) })) {
			return r.v, true
		}
	}
	if o.Fault == "" && (o.Exit == 137 || o.Exit == 143) {
		return verdictOf{
			kind: NotSandbox, why: "a signal of its own ended it, not the sandbox: there was no OOM kill and no deadline",
			advice: "look for timeout(1), kill or a watchdog in the command",
		}, true
	}
	return verdictOf{}, false
}

// foreign names a file of the command line that nobody in the box may read.
func (l *look) foreign() string {
	if l.Host == nil || !l.says("permission denied", "eacces", "os error 13") {
		return ""
	}
	return l.Host.Foreign(l.Argv)
}

// notExecuted tells why the first program was not started, when that is no matter
// of flags.
func (l *look) notExecuted() (verdictOf, bool) {
	if len(l.Argv) == 0 || l.Host == nil || l.says("operation not permitted") {
		return verdictOf{}, false
	}
	name := l.Argv[0]
	own := func(why, advice string) (verdictOf, bool) {
		return verdictOf{kind: NotSandbox, sure: true, why: why, advice: advice, topic: "exec_failed"}, true
	}
	if p, ok := l.inWorkspace(name); ok {
		head, link, there := l.Host.Head(p)
		switch {
		case !there && l.Workspace == "":
			return own(name+" is a path in the workspace, and the box has an empty one", "give the directory with -W DIR or --workspace-copy DIR")
		case !there:
			return own("there is no "+name+" in the workspace", "check the path and the spelling")
		case link != "":
			return verdictOf{}, false
		}
		if line, ok := bytes.CutPrefix(head, []byte("#!")); ok {
			line, _, _ = bytes.Cut(line, []byte("\n"))
			if bytes.HasSuffix(line, []byte("\r")) {
				return own(name+" has the line ends of Windows (CRLF), so the kernel looks for an interpreter whose name ends in a carriage return", "convert it: sed -i 's/\\r$//' "+name)
			}
			words := strings.Fields(string(line))
			if len(words) == 0 {
				return own(name+" begins with #! and names no interpreter", "write one, such as #!/bin/sh")
			}
			if is, _ := l.Host.Exists(words[0]); !is || !l.HostImage {
				return own(name+" names the interpreter "+words[0]+", which is not in the box", "use an image that has it, or correct the first line")
			}
			return verdictOf{}, false
		}
		if l.says("permission denied", "exec format", "os error 13", "os error 8") {
			return own(name+" is not a program that this machine can execute", "chmod +x it, give it a first line with #!, or build it for this machine")
		}
		return verdictOf{}, false
	}
	if !strings.Contains(name, "/") {
		if l.Host.Find(name) == "" {
			return own("there is no program "+name+", neither in the box nor on this machine", "check the spelling, or choose an image that has it")
		}
		if !l.HostImage {
			return own("the image has no program "+name, "choose an image that has it, or --image host: this machine has it")
		}
		return verdictOf{}, false
	}
	if is, _ := l.Host.Exists(name); !is {
		return own("there is no "+name+", neither in the box nor on this machine", "check the path")
	}
	if !l.HostImage {
		return own("the image has no "+name, "choose an image that has it, or --image host: this machine has it")
	}
	return verdictOf{}, false
}

// suspect says what a failure is that no change of the box made a difference to,
// when it looks like a wall of the sandbox.
func suspect(o *Outcome) (verdictOf, bool) {
	l := newLook(&Box{}, o, nil)
	if l.says("invalid argument") && l.says("chown", "setresuid", "setuid", "setgid", "setgroups", "initgroups", "seteuid", "change owner") ||
		l.says("not permitted") && l.says("setgroups", "set groups", "initgroups", "change to '", "set gid", "set uid", "set user id", "set group id") {
		return verdictOf{
			kind: NotFound, why: "it wants to be, or to give a file to, a user that this box does not map",
			advice: "an --image maps more users than root when --cap-drop is none and this machine has a range for yours in /etc/subuid; or have the command leave owners as they are",
		}, true
	}
	if l.says("operation not permitted", "function not implemented", "enosys", "eperm", "read-only file system") {
		return verdictOf{
			kind: Unfixable, why: "the sandbox refuses it by design: with all that the flags can give, it fails in the same way",
			advice: "do without it, or run that part outside of a box",
		}, true
	}
	if l.says("permission denied", "eacces") {
		return verdictOf{kind: NotFound, why: "it may not do something, with all that the flags can give neither", advice: "look at the owner and the mode of what it names"}, true
	}
	return verdictOf{}, false
}
