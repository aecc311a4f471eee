package hints

import (
	"slices"
	"strings"
)

// imageNames are the images that people name most. A first word that is one of
// them was meant as docker means it.
var imageNames = map[string]bool{
	"alpine": true, "ubuntu": true, "debian": true, "busybox": true, "fedora": true, "archlinux": true,
	"node": false, "python": false, // commands as well
}

// table lists all rows, best first: what the sandbox itself knows, what the code
// printed, first what is known well, then what only a diagnosis makes something of,
// and what has nothing to do with a failure.
func table() []rule {
	return slices.Concat(factRows(), textRows(), noises(), tryRows(), blameRows(), lastRows())
}

// byText marks rows that go by what the code printed.
func byText(rows []rule) []rule {
	for i := range rows {
		rows[i].text = true
	}
	return rows
}

// factRows go by verdicts and by the command line, which no code can forge.
func factRows() []rule {
	return []rule{
		{id: "image-as-command", match: func(v *view) (Hint, bool) {
			if v.Fault != "exec_failed" && v.Fault != "startup_failed" || v.ImageGiven || v.Lang != "" || len(v.Argv) == 0 {
				return none()
			}
			word := v.Argv[0]
			name, _, tagged := strings.Cut(word, ":")
			if !imageNames[name] && !(tagged && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789./_-") == "") &&
				(v.IsImage == nil || !v.IsImage(word)) {
				return none()
			}
			return advice(quote(word)+" looks like an image", "--image "+quote(word)+" --"+join(v.Argv[1:]))
		}},
		{id: "bad-interpreter", match: badInterpreter},
		{id: "host-file", match: func(v *view) (Hint, bool) {
			if v.Fault != "exec_failed" || v.Lang != "" || v.Kept || len(v.Argv) == 0 || v.IsHostFile == nil || !v.IsHostFile(v.Argv[0]) {
				return none()
			}
			why := quote(v.Argv[0]) + " is a file on this machine, which the box does not see"
			if hasSuffix(v.Argv[0], ".py", ".js", ".sh") {
				return advice(why, "-f "+quote(v.Argv[0]))
			}
			return advice(why, "-W .")
		}},
		{id: "host-tool", match: func(v *view) (Hint, bool) {
			if v.Fault != "exec_failed" || v.HostTool == "" || len(v.Argv) == 0 {
				return none()
			}
			return fix(quote(v.Argv[0])+" is on this machine at "+quote(v.HostTool)+", outside what the host image brings", set("host-tool="+v.Argv[0]))
		}},
		{id: "no-interpreter", match: func(v *view) (Hint, bool) {
			if v.Fault != "exec_failed" || v.Lang == "" {
				return none()
			}
			return advice("the image has no interpreter for "+v.Lang, "--image REF with one in it, or another --lang")
		}},
		{id: "file-caps", match: func(v *view) (Hint, bool) {
			if v.Fault != "exec_failed" || !strings.Contains(v.said, "operation not permitted") {
				return none()
			}
			const why = "the program's file asks for a capability that the box does not have, and the kernel does not execute it without"
			switch v.program() {
			case "ping", "ping6", "ping4", "arping", "clockdiff", "mtr", "mtr-packet", "traceroute", "traceroute6":
				return fix(why, set("cap-add=NET_RAW"), set("cap-drop=none"))
			case "dumpcap", "tcpdump":
				return fix(why, set("cap-add=NET_RAW", "cap-add=NET_ADMIN"), set("cap-drop=none"))
			}
			h, ok := fix(why, set("cap-add=NET_RAW"), set("cap-drop=none"))
			h.Flag = "--cap-drop none"
			return h, ok
		}},
		{id: "exec-format", match: func(v *view) (Hint, bool) {
			if v.Fault != "exec_failed" || !strings.Contains(v.said, "exec format error") {
				return none()
			}
			return own("the file is no program of this machine's architecture, or a script without a line like #!/bin/sh at its top", "")
		}},
		{id: "no-image", match: func(v *view) (Hint, bool) {
			if v.Fault != "startup_failed" || !v.PullFailed {
				return none()
			}
			return advice("no registry answered, and the image is not on this machine; this machine's own programs need neither", "--image host")
		}},
		{id: "cold-image", match: func(v *view) (Hint, bool) {
			if v.Fault != "startup_failed" || !v.ColdImage {
				return none()
			}
			return fix("the image was unpacked only just now, and its first read can be slow; a second run may do", set("start-timeout=2m"))
		}},
		{id: "workdir", match: func(v *view) (Hint, bool) {
			if v.Fault != "startup_failed" || !strings.Contains(v.said, "chdir(workdir)") || !hasAny(v.said, absent) {
				return none()
			}
			return advice("the box has no such directory to start in", "-w /workspace, or -v to mount the directory at that path")
		}},
		{id: "no-such-user", match: func(v *view) (Hint, bool) {
			if v.Fault != "startup_failed" || !strings.Contains(v.said, "isn't mapped into the box") {
				return none()
			}
			return Hint{Why: "the box can be another user than its root only where this machine has uids for it: a line for you in /etc/subuid and /etc/subgid, and newuidmap (package uidmap)"}, true
		}},
		{id: "install-offline", match: func(v *view) (Hint, bool) {
			if v.Fault != "timeout" || v.HostNetwork || v.Egress || len(v.Argv) < 2 || !slices.Contains([]string{"npm", "yarn", "pnpm", "npx", "pip", "pip3"}, v.program()) ||
				!slices.ContainsFunc(v.Argv[1:], func(w string) bool { return slices.Contains([]string{"install", "i", "ci", "add"}, w) }) {
				return none()
			}
			return fix("the box has no network, and "+v.program()+" goes on asking until the time is over", set("network=host"))
		}},
		{id: "default-timeout", match: func(v *view) (Hint, bool) {
			if v.Fault != "timeout" || !v.TimeoutIsDefault {
				return none()
			}
			h, ok := fix("a run may take "+v.Timeout.String()+" unless told otherwise", set("timeout=10m"))
			h.Remedies = append([]Remedy{set("init=true")}, h.Remedies...) // a program that is PID 1 does not get every signal
			return h, ok
		}},
		{id: "short-timeout", diag: true, match: func(v *view) (Hint, bool) {
			if v.Fault != "timeout" || v.TimeoutIsDefault {
				return none()
			}
			// Which of them is the smaller change matters when both help.
			all := []Remedy{set("init=true")}
			if v.Timeout > 0 {
				all = append(all, set("timeout="+(v.Timeout*4).String()))
			}
			return fix("it was still running, because it needs longer or waits for a signal that a PID 1 does not get", all...)
		}},
		{id: "compiler-memory", match: func(v *view) (Hint, bool) {
			if v.Fault != "oom" || v.Memory <= 0 {
				return none()
			}
			if !hasAny(v.argv, []string{"gcc", "g++", "clang", "cc1", "rustc", "cargo", "go build", "go test", "go run", "go install", "make", "ninja", "cmake", "javac", "ghc", "tsc"}) &&
				!v.says("cc1plus", "fatal error: killed signal", "internal compiler error", "collect2: fatal error", "sigkill: kill", "signal: killed") {
				return none()
			}
			return fix("compilers take much memory, and as many at once as they see CPUs; --fit-cpus with --cpus makes them fewer", v.memoryRemedies()...)
		}},
		{id: "memory-cap", diag: true, match: func(v *view) (Hint, bool) {
			if v.Fault != "oom" {
				return none()
			}
			return fix("it needs more memory than the box may have; /tmp, /dev/shm and every tmpfs count", v.memoryRemedies()...)
		}},
		{id: "workspace-limit", diag: true, match: func(v *view) (Hint, bool) {
			if v.Fault != "workspace_full" {
				return none()
			}
			return fix("it writes more than the workspace may hold", set("workspace-max=none"))
		}},
		{id: "tracer", match: func(v *view) (Hint, bool) {
			switch v.program() {
			case "strace", "ltrace", "gdb", "gdbserver", "lldb", "rr", "perf", "bpftrace":
			default:
				return none()
			}
			if v.Fault != "escape_blocked" && !(v.failed() && v.both([]string{"ptrace", "perf_event", "attach", "trace"}, append(slices.Clone(notOurs), denied...))) {
				return none()
			}
			return never("no code in a box may trace or measure a process", "")
		}},
		{id: "killed-inside", diag: true, match: func(v *view) (Hint, bool) {
			if v.Fault != "" || v.ExitCode != 137 && v.ExitCode != 124 || v.program() != "timeout" {
				return none()
			}
			return own("the command itself limits the time, and ended the program when it was over", "")
		}},
	}
}

// badInterpreter reads the first line of a script of the user's that could not be
// started: the kernel says only that something is missing.
func badInterpreter(v *view) (Hint, bool) {
	if v.Fault != "exec_failed" || !hasAny(v.said, absent) || v.Lang != "" || len(v.Argv) == 0 || v.ProgramHead == nil || !strings.Contains(v.Argv[0], "/") {
		return none()
	}
	line, _, whole := strings.Cut(string(v.ProgramHead(v.Argv[0])), "\n")
	rest, script := strings.CutPrefix(line, "#!")
	if !script || !whole {
		return none()
	}
	words := strings.Fields(rest)
	switch {
	case len(words) == 0:
		return own("the first line of "+quote(v.Argv[0])+" names no interpreter", "write one, such as #!/bin/sh")
	case strings.HasSuffix(line, "\r"):
		return own("the lines of "+quote(v.Argv[0])+" end as Windows writes them (CR LF), so its interpreter is not found", "sed -i 's/\\r$//' mends it")
	}
	return own("the box has no "+quote(words[0])+", which the first line of "+quote(v.Argv[0])+" names", "")
}

func hasSuffix(s string, all ...string) bool {
	return slices.ContainsFunc(all, func(e string) bool { return strings.HasSuffix(s, e) })
}

// lastRows say something that is no failure, when there is nothing better to say.
func lastRows() []rule {
	return []rule{
		{id: "tmp-missing", match: func(v *view) (Hint, bool) {
			if !v.NoTmp {
				return none()
			}
			return fix("without a /tmp, writes there fail with EROFS, and what picks a place by itself (tempfile, mktemp -p) leaves its scratch in the workspace", set("tmpfs=/tmp:64m"))
		}},
		{id: "ci-orders", match: func(v *view) (Hint, bool) {
			if !v.CIOrders {
				return none()
			}
			return advice("the box printed lines that GitHub Actions obeys as workflow commands", "--ci-fence")
		}},
		{id: "secret-in-argv", match: func(v *view) (Hint, bool) {
			if v.SecretFlag == "" {
				return none()
			}
			name := quote(v.SecretFlag)
			return advice("a value on the command line can be read by every user of this machine; "+name+" looks like a secret",
				"-e "+name+" with the value in your environment, or --env-file <(...)")
		}},
		{id: "stdin-not-attached", match: func(v *view) (Hint, bool) {
			if !v.StdinWaiting {
				return none()
			}
			return advice("standard input was not given to the box", "-i")
		}},
	}
}

// noises are complaints of programs that go on, and may well succeed. A diagnosis
// asks for them, and run for the one that looks like a failure of the box.
func noises() []rule {
	rows := []rule{
		{id: "matplotlib-cache", match: func(v *view) (Hint, bool) {
			if v.env("MPLCONFIGDIR") || !v.both([]string{"mkdir -p failed for path"}, []string{"/matplotlib"}) && !v.says("matplotlib created a temporary") {
				return none()
			}
			return fix("matplotlib finds no place for its settings and its cache below HOME, makes one for this run, and says so",
				set("env=MPLCONFIGDIR=/tmp/matplotlib"), set("env=HOME=/workspace"))
		}},
		{id: "cache-noise", match: func(v *view) (Hint, bool) {
			for i, l := range v.lines {
				if !hasAny(l, asides) || !hasAny(l, []string{"not writable", "not owned", "no writable", "unable to create", "failed to create", "cannot create", "not a writable", "not write"}) {
					continue
				}
				if strings.Contains(l, "fontconfig") || slices.ContainsFunc(pathsIn(v.orig[i]), func(p string) bool { return belowHome(p, v.home()) }) {
					v.hit = i
					return fix("a program finds no place for its cache below HOME, and goes on without", v.homeRemedies()...)
				}
			}
			return none()
		}},
		{id: "locale-noise", match: func(v *view) (Hint, bool) {
			if !v.says("setting locale failed", "cannot change locale", "locale not supported by c library", "cannot set lc_", "falling back to the standard locale") {
				return none()
			}
			return fix("a locale was asked for that the image does not have", set("env=LC_ALL=C.UTF-8"))
		}},
	}
	for i := range rows {
		rows[i].diag, rows[i].noise = rows[i].id != "matplotlib-cache", true
	}
	return byText(rows)
}

// dirFor is the directory that a program could be given as memory so that it can
// write p, "" for places that hold what a box needs.
func dirFor(p string) string {
	p = realPath(p)
	for _, d := range []string{"/run", "/var/tmp"} {
		if below(p, d) {
			return d
		}
	}
	for _, d := range []string{"/var/log", "/var/cache", "/var/spool", "/var/lib"} {
		rest, ok := strings.CutPrefix(p, d+"/")
		if !ok {
			continue
		}
		if first, _, deeper := strings.Cut(rest, "/"); deeper || d == "/var/lib" {
			d += "/" + first
		}
		return d
	}
	return ""
}

// memory is the change that makes a directory one of memory, with as much as what is
// kept in such a place takes.
func memory(dir string) string {
	amount := "16m"
	switch {
	case below(dir, "/var/log"):
		amount = "4m"
	case below(dir, "/var/tmp"):
		amount = "64m"
	}
	return "tmpfs=" + dir + ":" + amount
}

// realPath follows the links that most images have; a mount has to be at what they
// lead to.
func realPath(p string) string {
	for _, a := range [][2]string{{"/var/run", "/run"}, {"/var/lock", "/run/lock"}} {
		if below(p, a[0]) {
			return a[1] + p[len(a[0]):]
		}
	}
	return p
}
