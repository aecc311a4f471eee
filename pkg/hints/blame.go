package hints

import "slices"

const (
	imageAdvice = "packages belong into the image: choose or build another --image, or let --setup install what fits into the workspace"
	ownAdvice   = "look at the command itself, its arguments and its input"
	portTaken   = "the port is taken by the command itself, because a fresh box has none in use"
)

// blameRows are failures that no flag of a box helps against, as a diagnosis sees
// them after it has tried what fits: whatever else was printed.
func blameRows() []rule {
	rows := []rule{
		{id: "forbidden", match: func(v *view) (Hint, bool) {
			h, ok := wall(v, func(says, with []string) bool {
				return v.says(says...) && (v.says(with...) || hasAny(v.argv, with))
			})
			h.Sure = false
			return h, ok
		}},
		{id: "package-manager", match: func(v *view) (Hint, bool) {
			if !v.says("unable to lock database: read-only", "unable to acquire the dpkg", "cannot open packages database") &&
				!v.both([]string{"/var/lib/dpkg/lock", "/var/lib/apt/lists", "/var/lib/rpm", "/var/cache/apt/archives/partial"}, slices.Concat(readOnly, denied, notOurs)) {
				return none()
			}
			return never("a package manager cannot install into a box: its root is read-only, and users of the image are missing", imageAdvice)
		}},
		{id: "no-device", match: func(v *view) (Hint, bool) {
			if !v.says("/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/loop", "fuse: device not found", "/dev/mem", "/dev/dri") || !v.says("no such", "not found", "denied", "not permitted", "could not", "cannot", "failed") {
				return none()
			}
			h, ok := never("no device of this machine is in a box", "a device set of kern.toml gives one: --profile vgpio:NAME")
			h.Sure = false
			return h, ok
		}},
		{id: "no-daemon", match: func(v *view) (Hint, bool) {
			if !v.says("not been booted with systemd", "failed to connect to bus", "cannot connect to the docker daemon") {
				return none()
			}
			h, ok := never("a box has no service manager and no daemon of this machine", "start the program itself")
			h.Sure = false
			return h, ok
		}},
		{id: "unmapped-owner", match: func(v *view) (Hint, bool) {
			if !v.says("chown", "setgroups", "initgroups", "setgid(", "setuid(") || !v.says("invalid argument", "(22:", "einval") {
				return none()
			}
			return Hint{
				Why:    "the box has no other users: this machine lends you no numbers for them",
				Advice: "a line for you in /etc/subuid and /etc/subgid, and newuidmap (package uidmap), give it some",
			}, true
		}},
		{id: "no-terminal", match: func(v *view) (Hint, bool) {
			if v.TTY || !v.says(noTerminal...) {
				return none()
			}
			return advice("it wants a terminal, which a box does not get by itself", "-it")
		}},
		{id: "stdin-not-attached", match: func(v *view) (Hint, bool) {
			if !v.NoStdin || v.TTY || !v.says("eoferror", "eof when reading a line", "unexpected eof on standard input") {
				return none()
			}
			return advice("it reads standard input, which a box does not get by itself", "-i")
		}},
		{id: "own-error", match: func(v *view) (Hint, bool) {
			if !v.says("blockingioerror") || !v.says("flock", "lockf", "lock_") && !hasAny(v.argv, []string{"flock", "lockf", "lock_ex", "lock_nb"}) {
				return none()
			}
			return own("a lock that it wants is held already, by itself or by a process that it started", "look who holds the lock")
		}},
		{id: "missing-module", match: func(v *view) (Hint, bool) {
			if !v.says("modulenotfounderror", "no module named", "cannot find module", "cannot find package", "no required module provides", "there is no package called",
				"could not find a version that satisfies", "unresolved import", "can't locate", "cannot load such file", "classnotfoundexception", "could not find or load main class",
				"err_module_not_found", "package not found", "is not in std", "can't find crate") {
				return none()
			}
			return own("it needs a module that is neither in the image nor in the workspace", "install it: --setup 'pip install NAME', or bring it in the workspace")
		}},
		{id: "own-error", match: func(v *view) (Hint, bool) { return mistake(v, v.lines) }},
	}
	for i := range rows {
		rows[i].diag = true
	}
	return byText(rows)
}

// wall knows what the sandbox keeps from all boxes. found says whether the output
// has a word of each list.
func wall(v *view, found func(says, with []string) bool) (Hint, bool) {
	no := slices.Concat(notOurs, denied)
	const kernel = "that belongs to this machine's kernel, which no box may change"
	for _, k := range []struct {
		says, with   []string
		why, instead string
		sure         bool
	}{
		{[]string{"io_uring"}, append([]string{"not support", "n't support", "unsupported", "not available", "not implemented", "enosys", "failed"}, no...), "the sandbox answers io_uring as a kernel that has none", "use another engine of the program, such as plain reads and writes or libaio", true},
		{[]string{"cannot set date", "settimeofday", "clock_settime", "cannot set the system clock", "hwclock:"}, no, "no box may set the clock, which is this machine's", "libfaketime gives the program a clock of its own", true},
		{[]string{"ptrace", "could not trace", "cannot attach to process"}, no, "no code in a box may trace a process", "debug outside of a box, or log from inside the program", true},
		{[]string{"unshare:", "unshare(", "creating new namespace", "clone_new", "bwrap:", "newuidmap", "user namespaces", "uid map"}, append([]string{"fail"}, no...), "no code in a box may make namespaces", "run the program without a sandbox of its own (--no-sandbox, --no-userns): the box is one", false},
		{[]string{"mount: /", "mount: only root", "mount: permission denied", "mount: mounting", "mount.nfs", "mount(2)", "mount failed"}, append([]string{"superuser"}, no...), "no code in a box may mount", "give -v or --tmpfs, which mount before it starts", false},
		{[]string{"mknod", "modprobe:", "insmod:", "losetup:", "swapon:", "perf_event_open"}, no, kernel, "do it outside, or leave it out", false},
		{[]string{"perf_event_paranoid", "no permission to enable"}, append([]string{"perf"}, no...), "no box may read performance counters, which belong to this machine's kernel", "measure outside of a box, or from inside the program", true},
	} {
		if found(k.says, k.with) {
			h, ok := never(k.why, k.instead)
			h.Sure = k.sure
			return h, ok
		}
	}
	return none()
}

// mistake knows failures of the command itself by what some lines say.
func mistake(v *view, lines []string) (Hint, bool) {
	for _, k := range []struct {
		says         []string
		why, instead string
		weak         bool
	}{
		{[]string{"--no-sandbox is not supported", "without --no-sandbox"}, "the browser refuses to run as root with a sandbox of its own, outside of a box as well", "add --no-sandbox: the box is one already", false},
		{[]string{"externally-managed-environment", "externally managed"}, "the image's Python is marked as managed by its distribution (PEP 668), in a box as outside", "make a virtual environment (python3 -m venv), or use --setup 'pip install NAME'", false},
		{[]string{
			"missing script:", "unknown command", "unknown option", "unrecognized option", "unrecognized argument", "invalid option", "illegal option", "no such option",
			"unknown flag", "is not a git command", "no rule to make target", "unknown subcommand", "no such subcommand", "no such command", "unrecognized subcommand",
		}, "it was asked for something that it does not know", "check the spelling: names, options and scripts", false},
		{[]string{"address already in use", "eaddrinuse"}, portTaken, "let each part listen on a port of its own", false},
		{[]string{"unsupported locale setting"}, "that locale is not in the image", "use C.UTF-8, or an image that has the locale", false},
		{[]string{"unable to read font", "no such font", "fontconfig error: cannot load default config", "cannot find font"}, "the image has no such font", "use an image with the font package, or bring the font in the workspace", false},
		{[]string{"syntaxerror", "syntax error", "parse error", "unexpected token", "unterminated", "indentationerror", "invalid syntax", "unexpected eof while looking"}, "the code does not parse", ownAdvice, false},
		{[]string{
			"zerodivisionerror", "nameerror:", "typeerror:", "keyerror:", "indexerror:", "attributeerror:", "valueerror:", "referenceerror:", "nullpointerexception", "index out of range",
			"nil pointer dereference", "division by zero", "rangeerror:", "undefined variable", "undefined reference", "undefined: ", "cannot find symbol", "panic: runtime error",
		}, "the program itself raised an error, which says nothing about the box", ownAdvice, false},
		{[]string{"command not found", ": not found", "executable file not found", "enoent: spawn", "spawn enoent"}, "it starts a program that the image does not have", "use an image that has it, or check the name", false},
		{[]string{"404 not found", "http error 404", "status code 404", "403 forbidden", "401 unauthorized", "authentication failed", "invalid credentials"}, "the server answered, and refused or does not have it", "check the address and the credentials", false},
		{[]string{"assertionerror", "assertion failed", "test failed", "tests failed", "failures=", "failures!", "failed (errors", "--- fail:", " failed in ", "failing"}, "its own checks failed", "look at what they compare", true},
	} {
		// The network of this machine has ports of others.
		if i := slices.IndexFunc(lines, func(l string) bool { return hasAny(l, k.says) }); i >= 0 && (!v.HostNetwork || k.why != portTaken) {
			h, ok := own(k.why, k.instead)
			h.Weak = k.weak
			return h, ok
		}
	}
	return none()
}
