package hints

import (
	"slices"
	"strconv"
	"strings"
)

// textRows go by what the code printed before it failed. That is no proof of
// anything: hostile code prints what it likes. So a row says little of its own,
// quotes nothing but plain paths of fixed places, and what makes the box less of a
// wall is marked as such.
//
// They are asked only when the code itself gave up. Each has to know its failure
// from others that read alike: a hint that cannot help is worse than none. Rows that
// print nothing are there to say whose failure it is, so that no other row speaks.
func textRows() []rule {
	return byText([]rule{
		// What a program says of itself, in its last words: anything above is not why.
		{id: "own-error", diag: true, match: func(v *view) (Hint, bool) {
			line := v.last
			if strings.HasPrefix(line, "node.js v") {
				for _, l := range v.lines {
					if hasPrefix(l, jsErrors) {
						line = l
					}
				}
			}
			if !hasPrefix(line, jsErrors) && !hasPrefix(line, pyErrors) || strings.Contains(line, "ascii") {
				return none()
			}
			return own("the program itself raised an error, which says nothing about the box", ownAdvice)
		}},
		{id: "missing-module", diag: true, match: func(v *view) (Hint, bool) {
			if hasPrefix(v.last, []string{"modulenotfounderror:"}) || strings.Contains(v.last, ": no module named ") {
				return own("no module of that name is in the image or the workspace", "install it, --setup 'pip install NAME', or bring it in the workspace")
			}
			return none()
		}},
		{id: "own-error", diag: true, match: func(v *view) (Hint, bool) { return mistake(v, []string{v.last}) }},
		{id: "own-error", diag: true, match: func(v *view) (Hint, bool) {
			for _, l := range v.lines[max(0, len(v.lines)-15):] {
				if hasAny(l, testSummary) {
					h, ok := own("its own checks failed", "look at what they compare")
					h.Weak = true
					return h, ok
				}
			}
			return none()
		}},
		{id: "heap-option", match: func(v *view) (Hint, bool) {
			if v.ownHeap() {
				h, ok := own("the heap is full that the command or the environment gave it, whatever the box may have", "raise -Xmx, or --max-old-space-size")
				h.Sure = true
				return h, ok
			}
			return none()
		}},
		{id: "heap-follows-cap", match: func(v *view) (Hint, bool) {
			if v.ownHeap() || !v.MemoryCapped || v.Memory <= 0 || !v.says("javascript heap out of memory", "outofmemoryerror: java heap space", "outofmemoryerror: gc overhead") {
				return none()
			}
			// A quarter of the cap is a JVM's heap, half of it V8's.
			h, ok := fix("the runtime takes a part of --memory for its heap, and that part is full", v.memoryRemedies()...)
			if ok {
				h.Flag = h.Remedies[len(h.Remedies)-1].String()
			}
			return h, ok
		}},
		{id: "pids", match: func(v *view) (Hint, bool) {
			if v.PIDs <= 0 || !v.PIDsCapped {
				return none()
			}
			again := []string{"resource temporarily unavailable", "eagain", "errno 11]", "errno=11)", "os error 11)", "code: 11,"}
			if !v.complains("can't start new thread", "cannot fork", "can't fork", "fork failed", "unable to create native thread", "unable to create new native thread",
				"failed to create new os thread", "pthread_create failed", "thread creation failed") &&
				!v.both(again, []string{"fork", "pthread_create", "clone", "spawn", "thread", "create process"}) &&
				!(v.says("code: 'eagain'") && v.says("syscall: 'spawn")) {
				return none()
			}
			var all []Remedy
			for _, n := range []int{4 * v.PIDs, 16 * v.PIDs} {
				all = append(all, set("pids-limit="+strconv.Itoa(n)))
			}
			return fix("it starts more processes and threads than the box may have, "+strconv.Itoa(v.PIDs)+" together", all...)
		}},

		// Places that cannot be written to.
		{id: "protected-dir", match: func(v *view) (Hint, bool) {
			if !v.Kept {
				return none()
			}
			for i, l := range v.lines {
				if !hasAny(l, readOnly) {
					continue
				}
				for _, d := range []string{".git", ".kern-sbx.toml", ".envrc", ".vscode", ".idea", ".husky"} {
					if slices.ContainsFunc(strings.FieldsFunc(v.orig[i], func(r rune) bool { return !strings.ContainsRune(pathLetters, r) }), func(w string) bool {
						w = strings.TrimPrefix(strings.TrimPrefix(w, "/workspace/"), "./")
						return below(strings.TrimRight(w, "."), d)
					}) {
						return fix("what your own tools would run or obey is mounted read-only in a workspace that is kept", set("writable="+d))
					}
				}
			}
			return none()
		}},
		{id: "read-only-deps", match: func(v *view) (Hint, bool) {
			if !v.ReadOnlyDeps || !slices.ContainsFunc(v.readOnlyPaths(), func(p place) bool { return below(p.path, "/workspace/.deps") }) {
				return none()
			}
			return fix("what --setup installed is read-only, so that no run changes what the next one imports", set("deps-readonly=false"))
		}},
		{id: "mounted-read-only", match: func(v *view) (Hint, bool) {
			for _, p := range v.readOnlyPaths() {
				for _, m := range v.ReadOnlyMounts {
					if below(p.path, m) {
						h, ok := advice("you mounted "+quote(m)+" read-only", "-v without :ro")
						h.Relaxes = true
						return h, ok
					}
				}
			}
			return none()
		}},
		{id: "package-manager", match: func(v *view) (Hint, bool) {
			itself := slices.Contains([]string{"apk", "apt", "apt-get", "aptitude", "dpkg", "yum", "dnf", "microdnf", "rpm", "pacman", "zypper"}, v.program())
			switch {
			case itself && v.says("read-only", "unable to lock", "permission denied", "not permitted", "erofs", "superuser"):
			case !itself && !slices.Contains([]string{"sh", "bash", "ash", "dash"}, v.program()):
				return none()
			case v.says("unable to lock database", "unable to open database: read-only", "unable to acquire the dpkg", "cannot open packages database", "failed to init transaction", "setgroups 65534 failed", "requires superuser privilege"):
			case v.both([]string{"/var/lib/dpkg/lock", "/var/lib/apt/lists", "/var/cache/apt/archives", "/var/lib/rpm", "/var/cache/dnf", "/var/cache/yum", "/var/lib/pacman"}, slices.Concat(readOnly, denied)):
			default:
				return none()
			}
			h, ok := never("a package manager cannot install into a box, whose root is read-only", imageAdvice)
			h.Flag = "--image REF with the package in it"
			return h, ok
		}},
		{id: "pip-root", match: func(v *view) (Hint, bool) {
			if !v.both(readOnly, []string{"site-packages", "dist-packages"}) || !v.says("pip", "could not install packages", "error: could not create") {
				return none()
			}
			h, ok := fix("Python's own packages lie in the read-only root", set("env=PIP_TARGET=/workspace/.deps", "env=PYTHONPATH=/workspace/.deps"))
			h.Flag = "--setup 'pip install NAME'"
			return h, ok
		}},
		{id: "npm-global", match: func(v *view) (Hint, bool) {
			if !v.says("erofs", "read-only file system") || !v.both([]string{"node_modules"}, []string{"/usr/", "/opt/"}) || !v.says("npm") {
				return none()
			}
			return fix("npm -g installs into the read-only root", set("env=npm_config_prefix=/workspace/.npm-global"))
		}},
		{id: "gem-root", match: func(v *view) (Hint, bool) {
			if !v.says("gem::filepermissionerror", "don't have write permissions for the") {
				return none()
			}
			return fix("gems would be installed into the read-only root", set("env=GEM_HOME=/workspace/.gem"))
		}},
		{id: "r-library", match: func(v *view) (Hint, bool) {
			if !v.both([]string{"no permission to install to directory", "is not writable"}, []string{"library", "lib = "}) {
				return none()
			}
			var all []Remedy
			if v.EmptyDirs != nil {
				for _, d := range v.EmptyDirs() {
					all = append(all, set("env=R_LIBS=/workspace/"+d))
				}
			}
			return fix("R's library lies in the read-only root; another has to exist before", append(all[:min(len(all), 3)], set("env=R_LIBS=/workspace"))...)
		}},
		{id: "ssh-home", match: func(v *view) (Hint, bool) {
			for i, l := range v.lines {
				if strings.Contains(l, "/.ssh") && hasAny(l, append(slices.Clone(readOnly), "could not create directory")) && !hasAny(l, asides) &&
					slices.ContainsFunc(pathsIn(v.orig[i]), func(p string) bool { return below(p, "/root") }) {
					return fix("ssh takes the home directory from the list of users and not from HOME, and that one is read-only", set("tmpfs=/root:16m"))
				}
			}
			return none()
		}},
		{id: "npm-cache", match: func(v *view) (Hint, bool) {
			home := v.home()
			for i, l := range v.lines {
				if strings.Contains(l, "invalid response body") && v.near(i, 4, []string{"mkdir", "erofs", "read-only", "eacces"}) && slices.ContainsFunc(pathsIn(v.orig[i]), func(p string) bool { return belowHome(p, home) }) {
					return fix("npm cannot make its cache below HOME, which it takes for a bad answer of the registry: the network is not the cause", v.homeRemedies()...)
				}
			}
			return none()
		}},
		{id: "go-cache", match: func(v *view) (Hint, bool) {
			if v.env("GOCACHE") || !v.says("failed to initialize build cache", "build cache is required, but could not be located", "build cache is disabled by gocache=off", "module cache not found: neither gomodcache nor gopath", "gocache is not defined and neither") {
				return none()
			}
			if v.both([]string{"failed to initialize build cache"}, noSpace) {
				return none() // a full one: tmp-full
			}
			return fix("HOME lies in the box's read-only root, and Go keeps its build cache there", v.homeRemedies()...)
		}},
		{id: "home-read-only", match: homeReadOnly},
		{id: "tmp-full", match: tmpFull},
		{id: "sqlite-full", match: func(v *view) (Hint, bool) {
			if !v.says("database or disk is full") || v.Tmp == 0 {
				return none()
			}
			const why = "/tmp of the box is small: it is memory, and SQLite sorts there and rolls back"
			if v.env("TMPDIR", "SQLITE_TMPDIR") || strings.Contains(v.argv, "/tmp/") {
				return fix(why, v.tmpRemedies("")...) // the database itself lies there
			}
			h, ok := fix(why, v.tmpRemedies("TMPDIR")...)
			if len(h.Remedies) > 1 {
				h.Flag += " for temporary files, or " + h.Remedies[1].String()
			}
			return h, ok
		}},
		{id: "across-file-systems", match: func(v *view) (Hint, bool) {
			if v.env("TMPDIR") || !v.both([]string{"cross-device link", "exdev", "crossesdevices"}, scratchNames) {
				return none()
			}
			return fix("/tmp is a file system of its own, and nothing can be renamed or linked from there into the workspace", set("env=TMPDIR=/workspace"))
		}},
		{id: "read-only-root", match: readOnlyRoot},

		// Networks.
		{id: "own-name", match: func(v *view) (Hint, bool) {
			if v.HostNetwork || !v.complains(noName...) || !v.says("gethostname", "getlocalhost", "sudo: unable to resolve host") && !strings.Contains(v.argv, "gethostname") {
				return none()
			}
			return fix("the box's own name is in no list of hosts, and there is no name server", set("hostname=localhost"))
		}},
		{id: "egress-domain", match: func(v *view) (Hint, bool) {
			if !v.Egress {
				return none()
			}
			if v.says("tunnel connection failed: 403", "tunnel failed, response 403", "received http code 403 from proxy", "proxy response: 403", "status code 403 from proxy") {
				h, ok := advice("the proxy of the box lets nothing through but the domains of --egress-allow, on ports 80 and 443", "--egress-allow with that domain as well")
				h.Relaxes = true
				return h, ok
			}
			if v.says("tunnel connection failed: 502", "received http code 502 from proxy") {
				return never("the name leads to a private or local address, which the proxy of the box never connects to", "")
			}
			return none()
		}},
		{id: "egress-not-http", match: func(v *view) (Hint, bool) {
			if !v.Egress || !v.complains(noName...) && !v.complains(noRoute...) {
				return none()
			}
			return fix("with --egress-allow a box has no route and no name server, only an HTTP proxy (HTTP_PROXY, HTTPS_PROXY); a client that cannot use one has no way out", set("network=host"))
		}},
		{id: "pip-offline", match: func(v *view) (Hint, bool) {
			if v.HostNetwork || v.Egress || !v.says("(from versions: none)", "no matching distribution found") || strings.Contains(v.argv, "--no-index") {
				return none()
			}
			h, ok := fix("the box has no network, which pip reports as a package without versions", set("network=host"))
			h.Flag, h.Relaxes = "--setup 'pip install NAME'", false
			return h, ok
		}},
		{id: "no-network", match: func(v *view) (Hint, bool) {
			if v.HostNetwork || v.Egress || !v.complains(noName...) && !v.complains(noRoute...) {
				return none()
			}
			h, ok := fix("the box has no network", set("network=host"))
			h.Flag = "--egress-allow DOMAIN for HTTP alone, or --network host"
			h.Remedies = append([]Remedy{set("hostname=localhost")}, h.Remedies...) // when it was its own name
			return h, ok
		}},
		{id: "certificates", match: func(v *view) (Hint, bool) {
			if !v.HostNetwork && !v.Egress || v.says("self-signed", "self signed", "hostname mismatch", "certificate has expired") {
				return none()
			}
			if !v.says("error setting certificate", "unable to get local issuer certificate", "problem with the ssl ca cert", "certificate signed by unknown authority", "unable to find trusted certificate", "trustanchors parameter must be non-empty", "no ca certificates") {
				return none()
			}
			h, ok := fix("the image has no certificates of authorities to check a server by", set("volume=/etc/ssl/certs:/etc/ssl/certs:ro"))
			h.Flag += ", or --image REF with ca-certificates"
			return h, ok
		}},

		// Rights.
		{id: "git-owner", match: func(v *view) (Hint, bool) {
			if !v.says("detected dubious ownership") {
				return none()
			}
			return fix("the repository belongs to another user than the box's, which git refuses", set("env=GIT_CONFIG_COUNT=1", "env=GIT_CONFIG_KEY_0=safe.directory", "env=GIT_CONFIG_VALUE_0=*"))
		}},
		{id: "git-identity", match: func(v *view) (Hint, bool) {
			if !v.says("please tell me who you are", "unable to auto-detect email", "empty ident name") {
				return none()
			}
			h, ok := fix("git finds none of your settings in the box, and so no name and address", set("env=EMAIL=box@localhost"),
				set("env=GIT_AUTHOR_NAME=box", "env=GIT_AUTHOR_EMAIL=box@localhost", "env=GIT_COMMITTER_NAME=box", "env=GIT_COMMITTER_EMAIL=box@localhost"))
			h.Flag = "-e EMAIL=YOU@EXAMPLE"
			if v.says("empty ident name") {
				h.Flag = "-e GIT_AUTHOR_NAME=YOU -e GIT_AUTHOR_EMAIL=ADDRESS -e GIT_COMMITTER_NAME=YOU -e GIT_COMMITTER_EMAIL=ADDRESS"
				h.Remedies = h.Remedies[1:]
			}
			return h, ok
		}},
		{id: "tar-owner", match: func(v *view) (Hint, bool) {
			if v.env("TAR_OPTIONS") || !v.both([]string{"tar:"}, []string{"cannot change ownership"}) {
				return none()
			}
			return fix("tar gives files the owners of the archive when it runs as root, and the box does not know those", set("env=TAR_OPTIONS=--no-same-owner"))
		}},
		{id: "sudo", match: func(v *view) (Hint, bool) {
			if p := v.program(); p != "sudo" && p != "su" && p != "doas" && !v.says("sudo: ", "sudo:perm") {
				return none()
			}
			if !v.says("setresuid", "setuid", "set gid", "setgroups", "no new privileges", "effective uid is not 0", "cannot set groups", "cannot set user id", "unable to initialize policy plugin", "must be run from a terminal", "authentication failure") {
				return none()
			}
			h, ok := fix("nothing in a box can change to another user; leave sudo and su out, because the code is root of the box already, or whom --user says", set("cap-drop=none"))
			h.Flag, h.Relaxes = "", false
			return h, ok
		}},
		{id: "unmapped-owner", match: func(v *view) (Hint, bool) {
			if !v.unmapped() {
				return none()
			}
			why := "a box has no users but its own: others come with --cap-drop none, where a line for you in /etc/subuid and /etc/subgid lends numbers for them"
			tool, _, _ := strings.Cut(v.lines[v.hit], ":")
			keepsOwners := slices.Contains(ownerTools, v.program()) || slices.Contains(ownerTools, tool)
			if keepsOwners {
				why = "a box knows no owner but its own user, and those whose numbers this machine lends you; leave owners out by an option of the tool (rsync --no-o --no-g, cp without -p)"
			}
			h, ok := fix(why, set("cap-drop=none"))
			if keepsOwners || v.Caps {
				h.Flag, h.Relaxes = "", false
			}
			return h, ok
		}},
		{id: "unmapped-owner", match: func(v *view) (Hint, bool) {
			if !v.Caps || v.User != "" {
				return none()
			}
			return v.memoryAt(v.deniedPaths("/var/log", "/var/cache", "/var/spool"), "what is there belongs to a user that the box does not know, so that its capabilities do not count")
		}},
		{id: "chown", match: func(v *view) (Hint, bool) {
			if v.Caps || !v.both([]string{"chown", "changing ownership", "change owner"}, notOurs) {
				return none()
			}
			return fix("a box has no capability to give files to another owner", set("cap-add=CHOWN"), set("cap-add=CHOWN", "cap-add=SETUID", "cap-add=SETGID"), set("cap-drop=none"))
		}},
		{id: "root-refused", match: func(v *view) (Hint, bool) {
			if v.User != "" || !v.complains("cannot be run as root", "can't be run as root", "must not be run as root", "should not be run as root", "refusing to run as root", "cannot run as root", "not permitted to run as root",
				"execution of the postgresql server is not permitted", "not allowed to be run as root", "can not run elasticsearch as root", "to run mysqld as root") {
				return none()
			}
			var all []Remedy
			for _, k := range [][2]string{{"postgres", "postgres"}, {"initdb", "postgres"}, {"pg_ctl", "postgres"}, {"mysqld", "mysql"}, {"mariadb", "mysql"}, {"elasticsearch", "elasticsearch"}} {
				if strings.Contains(v.argv, k[0]) || v.says(k[0]) {
					all = append(all, set("user="+k[1]))
					break
				}
			}
			return fix("the program refuses to run as root, which the code is in its box", append(all, set("user=nobody"), set("user=1000:1000"))...)
		}},
		{id: "low-port", match: func(v *view) (Hint, bool) {
			if v.Caps || !slices.ContainsFunc(v.lines, func(l string) bool {
				return hasAny(l, []string{"bind", "listen"}) && hasAny(l, denied) && lowPort(l)
			}) {
				return none()
			}
			return fix("ports below 1024 want a capability; a port above wants none", set("cap-add=NET_BIND_SERVICE"))
		}},
		{id: "raw-socket", match: func(v *view) (Hint, bool) {
			if v.Caps || !v.both([]string{"raw socket", "sock_raw", "icmp", "ping: socket", "rawsocket", "permission to capture"}, notOurs) {
				return none()
			}
			return fix("a raw socket wants a capability, and reaches nothing without a network", set("cap-add=NET_RAW"))
		}},
		{id: "network-setup", match: func(v *view) (Hint, bool) {
			if v.Caps || v.HostNetwork || !v.both([]string{"rtnetlink answers"}, notOurs) {
				return none()
			}
			return fix("to set up the box's own network wants a capability", set("cap-add=NET_ADMIN"))
		}},
		{id: "file-caps", match: func(v *view) (Hint, bool) {
			// The same as the command itself, started by a shell.
			if v.Caps || v.ExitCode != 126 || !slices.ContainsFunc(v.lines, func(l string) bool {
				return strings.HasSuffix(l, "ping: operation not permitted")
			}) {
				return none()
			}
			return fix("the program's file asks for a capability that the box does not have, and the kernel does not execute it without", set("cap-add=NET_RAW"))
		}},
		{id: "forbidden", match: func(v *view) (Hint, bool) { return wall(v, v.both) }},

		// What a box does not have around it.
		{id: "ascii", match: func(v *view) (Hint, bool) {
			if v.env("LANG", "LC_ALL", "LC_CTYPE") || !v.says("invalid byte sequence in us-ascii", "unmappable character", "\\xc3\" on us-ascii", "to us-ascii", "from ascii-8bit to utf-8", "invalid multibyte", "malformed input or input contains unmappable") {
				return none()
			}
			if v.says("for encoding utf-8", "for encoding utf8") {
				return none()
			}
			all := []Remedy{set("env=LANG=C.UTF-8"), set("env=LC_ALL=C.UTF-8")}
			if v.says("unmappable character") {
				slices.Reverse(all) // as Java says it
			}
			return fix("no locale is set in a box, so the program takes all text for ASCII", all...)
		}},
		{id: "time-zone", match: func(v *view) (Hint, bool) {
			if !v.says("zoneinfonotfounderror", "no time zone found with key", "unknown time zone") {
				return none()
			}
			return own("the image has no time zone of that name", "use an image with tzdata; for Python, --setup 'pip install tzdata' does")
		}},
		{id: "no-terminal", match: func(v *view) (Hint, bool) {
			if v.TTY {
				return none()
			}
			for _, l := range v.lines[max(0, len(v.lines)-5):] {
				if hasAny(l, noTerminal) && !hasAny(l, asides) {
					return advice("the command wants a terminal, which a box does not get by itself", "-it")
				}
			}
			return none()
		}},
		{id: "stdin-not-attached", match: func(v *view) (Hint, bool) {
			if !v.NoStdin || v.TTY || v.program() == "sh" && !v.says("eof") || !strings.HasPrefix(v.last, "eoferror: eof when reading a line") {
				return none()
			}
			return advice("standard input was not given to the box", "-i")
		}},
		{id: "host-path", match: hostPath},
	})
}

// ownHeap reports a heap that was full at a size which the command gave.
func (v *view) ownHeap() bool {
	if v.says("outofmemoryerror: java heap space", "outofmemoryerror: gc overhead") {
		return strings.Contains(v.argv, "-xmx") || v.env("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "MAVEN_OPTS", "GRADLE_OPTS")
	}
	return v.says("javascript heap out of memory") &&
		(hasAny(v.argv, []string{"--max-old-space-size", "--max_old_space_size"}) || v.env("NODE_OPTIONS"))
}

// unmapped reports that a file was to be given to a user whom the box does not know.
func (v *view) unmapped() bool {
	return v.both([]string{"chown", "changing ownership", "change owner"}, []string{"invalid argument", "einval"})
}

func hasPrefix(s string, all []string) bool {
	return slices.ContainsFunc(all, func(p string) bool { return strings.HasPrefix(s, p) })
}

var (
	pyErrors = []string{
		"nameerror:", "typeerror:", "valueerror:", "keyerror:", "indexerror:", "attributeerror:", "zerodivisionerror:", "assertionerror", "syntaxerror:", "indentationerror:",
		"taberror:", "unboundlocalerror:", "recursionerror:", "stopiteration", "overflowerror:", "unicodedecodeerror:", "unicodeencodeerror:", "notimplementederror", "keyboardinterrupt",
	}
	jsErrors = []string{"referenceerror:", "typeerror:", "syntaxerror:", "rangeerror:"}

	noName = []string{
		"name or service not known", "temporary failure in name resolution", "could not resolve host", "couldn't resolve host", "could not resolve proxy", "could not translate host name",
		"no such host", "eai_again", "getaddrinfo enotfound", "code enotfound", "code: 'enotfound'", "unknownhostexception", "failed to lookup address", "unable to resolve host", "bad address '",
		"nodename nor servname",
	}
	noTerminal = []string{
		"inappropriate ioctl for device", "not a tty", "not a terminal", "must be run from a terminal", "no tty present", "error opening terminal", "cannot open /dev/tty",
		"/dev/tty: no such device",
	}
	// testSummary is how runners of tests end what they write to stderr.
	testSummary = []string{
		"ran all test suites", "failed (errors=", "failed (failures=", "test failed", "tests failed", "failing tests", "errors while running ctest", "test result: failed",
		"lifecycle script `test` failed", "--- fail:", "test suites:",
	}
	// scratchNames are how tools name files in $TMPDIR. A path that is written in a
	// program stays where it is, whatever TMPDIR says.
	scratchNames = []string{"/tmp/sort", "/tmp/tmp", "/tmp/pip-", "/tmp/cc", "/tmp/npm-", "/tmp/rustc", "/tmp/git", "/tmp/etilqs", "/tmp/sqlite", "/tmp/node-", "/tmp/go-"}
	// ownerTools give files the owners that others had.
	ownerTools = []string{"rsync", "cp", "tar", "install", "chown"}
	noRoute    = []string{"network is unreachable", "enetunreach", "no route to host", "ehostunreach", "network unreachable", "noroutetohost"}
)

// homeReadOnly knows what cannot be written below HOME.
func homeReadOnly(v *view) (Hint, bool) {
	home := v.home()
	moved := below(home, "/workspace") || below(home, "/tmp")
	for _, p := range v.readOnlyPaths() {
		v.hit = p.line
		switch {
		case strings.Contains(p.path, "/.ssh"): // HOME is not asked: ssh-home
		case !moved && belowHome(p.path, home):
			return fix("HOME lies in the box's read-only root", v.homeRemedies()...)
		case home != "/root" && below(p.path, "/root"):
			return fix("the program takes the home directory from the list of users and not from HOME, and that one is read-only", set("tmpfs=/root:64m"))
		}
	}
	for i, l := range v.lines {
		if moved || hasAny(l, asides) || !hasAny(l, []string{"mkdir ", "mkdir'", "mkdir(", "cannot create", "can't create", "could not create", "unable to create", "failed to create"}) {
			continue
		}
		// With another user, or as npm says it, the same reads otherwise.
		if (hasAny(l, denied) && v.User != "" || hasAny(l, []string{"enoent", "user data directory"})) &&
			slices.ContainsFunc(pathsIn(v.orig[i]), func(p string) bool { return belowHome(p, home) }) {
			v.hit = i
			return fix("HOME lies in the box's read-only root", v.homeRemedies()...)
		}
	}
	if v.Home == "" && v.says("$home is not defined", "home is not set", "homedir could not be", "could not determine home directory", "cannot find home directory") {
		return fix("the program asks for a HOME that it can use", v.homeRemedies()...)
	}
	return none()
}

// tmpFull knows a full /tmp, where the text says that it was that.
func tmpFull(v *view) (Hint, bool) {
	if v.Tmp == 0 {
		return none()
	}
	in := func(dirs ...string) bool {
		for i, l := range v.lines {
			if !hasAny(l, noSpace) {
				continue
			}
			if slices.ContainsFunc(pathsIn(v.orig[i]), func(p string) bool { return slices.ContainsFunc(dirs, func(d string) bool { return below(p, d) }) }) {
				return true
			}
		}
		return false
	}
	const why = "/tmp of the box is small: it is memory"
	switch {
	case !v.says(noSpace...) || v.says("inotify", "file watchers"): // that is a limit of its own
		return none()
	case v.both(noSpace, []string{"/tmp/go-build", "$work"}):
		return fix(why+"; Go builds there", v.tmpRemedies("GOTMPDIR")...)
	case below(v.home(), "/tmp") && in(v.home()):
		return fix("HOME lies in /tmp, which is memory of the box and too small for a cache", v.homeRemedies()...)
	case in("/tmp"):
		if v.both(noSpace, scratchNames) {
			return fix(why, v.tmpRemedies("TMPDIR")...)
		}
		rs := v.tmpRemedies("")
		return fix(why, append(rs, set("env=TMPDIR=/workspace"))...)
	case in("/workspace", "/dev/shm"):
		return none()
	}
	if strings.Contains(v.argv, "/tmp/") {
		return fix(why, v.tmpRemedies("")...)
	}
	return none()
}

// readOnlyRoot knows directories that servers want to write to. Below /var/lib may
// be data that memory hides, so only a diagnosis goes there when nothing says that
// the program makes what it has there.
func readOnlyRoot(v *view) (Hint, bool) {
	places := v.readOnlyPaths()
	if slices.ContainsFunc(places, func(p place) bool { return below(p.path, "/var/lib") && !makes(v.lines[p.line], p.path) }) {
		return none()
	}
	return v.memoryAt(places, "the program writes to a place in the box's read-only root")
}

// makes says whether a line is about making a directory, or a file at the top of
// what one program has below /var/lib.
func makes(l, p string) bool {
	return hasAny(l, []string{"mkdir", "create directory", "create the directory"}) ||
		strings.Count(p, "/") == strings.Count("/var/lib/NAME/FILE", "/") && strings.Contains(l, "create")
}

// here spells a relative path so that it is one.
func here(w string) string {
	if strings.Contains(w, "/") {
		return w
	}
	return "./" + w
}

// lowPort reports whether a line names a port below 1024 as ADDRESS:PORT, and not
// what reads alike, such as the time of day.
func lowPort(l string) bool {
	return slices.ContainsFunc(strings.FieldsFunc(l, func(r rune) bool { return strings.ContainsRune(" ()'\",;=/", r) }), func(w string) bool {
		w = strings.TrimRight(w, ":.")
		i := strings.LastIndexByte(w, ':')
		if i < 0 {
			return false
		}
		host := w[:i]
		n, err := strconv.ParseUint(w[i+1:], 10, 16)
		return err == nil && n > 0 && n < 1024 && (host == "" || host == "*" || host == "localhost" || strings.HasSuffix(host, "]") || strings.HasSuffix(host, "::") || strings.Count(host, ".") == 3)
	})
}

// hostPath knows a file that the user named and that is here, not in the box.
func hostPath(v *view) (Hint, bool) {
	if v.Lang != "" || len(v.Argv) < 2 || v.IsHostFile == nil {
		return none()
	}
	for _, w := range v.Argv[1:] {
		if w == "" || strings.HasPrefix(w, "-") || len(w) > 512 || !slices.ContainsFunc(v.lines, func(l string) bool {
			return strings.Contains(l, strings.ToLower(strings.TrimPrefix(w, "./"))) && hasAny(l, append([]string{"cannot open", "can't open"}, absent...))
		}) {
			continue
		}
		abs := strings.HasPrefix(w, "/")
		if v.Kept && !abs || abs && below(w, "/workspace") || !v.IsHostFile(here(w)) {
			continue
		}
		why := quote(w) + " is a file on this machine, which the box does not see"
		if !abs {
			return advice(why, "-W ., or --workspace-copy . for a copy of this directory")
		}
		if strings.ContainsAny(w, ":,") || strings.Contains(w, "/.") {
			return none() // no mount, or one that is refused: keys lie there
		}
		return fix(why, set("volume="+w+":"+w+":ro"))
	}
	return none()
}
