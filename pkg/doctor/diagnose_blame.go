package doctor

import (
	"bytes"
	"slices"
	"strings"

	"github.com/kern-sbx/kern-sbx/pkg/hints"
)

// verdictOf is whose a failure is that no flag helps against.
type verdictOf struct {
	kind, why, advice, topic string
	// sure: nothing has to be tried first. weak: a box with everything changed has
	// to fail in the same way before it is said. open: what was not tried may be the
	// answer all the same.
	sure, weak, open bool
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
	}
	if f := l.foreign(); f != "" {
		return verdictOf{
			kind: Unfixable, why: f + " belongs to a user that the box does not know, and only that user may read it; no capability reaches it",
			advice: "give it to yourself (chown) or let others read it (chmod o+r)",
		}, true
	}
	known := hints.Match(b.facts(o, nil))
	if i := slices.IndexFunc(known, func(h hints.Hint) bool { return h.Sure }); i >= 0 {
		return verdictFrom(known[i]), true
	}
	if o.Fault == "" && !b.HostNetwork && slices.ContainsFunc(known, func(h hints.Hint) bool { return h.ID == "own-name" || h.ID == "pip-offline" }) {
		return egressOnly(b)
	}
	var weak verdictOf
	for _, h := range known {
		v := verdictFrom(h)
		switch {
		case v.kind == "":
		case !v.weak:
			return v, true
		case weak.kind == "":
			weak = v
		}
	}
	if weak.kind != "" {
		return weak, true
	}
	if o.Fault == "" && (o.Exit == 137 || o.Exit == 143) {
		return verdictOf{
			kind: NotSandbox, why: "a signal of its own ended it, not the sandbox: there was no OOM kill and no deadline",
			advice: "look for timeout(1), kill or a watchdog in the command",
		}, true
	}
	return verdictOf{}, false
}

// verdictFrom gives what the table says of a failure that no trial changes; no kind
// where it has something to try.
func verdictFrom(h hints.Hint) verdictOf {
	v := verdictOf{why: h.Why, advice: h.Advice, topic: h.ID, sure: h.Sure, weak: h.Weak}
	switch {
	case h.NotSandbox:
		v.kind = NotSandbox
	case h.Unfixable:
		v.kind = Unfixable
	case len(h.Remedies) == 0: // something that is no flag, or one that trials cannot have
		v.kind = NotFound
		if v.open = h.Flag == ""; !v.open {
			v.advice = "run it with " + h.Flag
		}
	}
	return v
}

// egressOnly is the answer to a name that does not resolve. What it says beside that
// follows from it.
func egressOnly(b *Box) (verdictOf, bool) {
	if !b.Egress {
		return verdictOf{}, false
	}
	return verdictOf{
		kind: Unfixable, topic: "egress-not-http",
		why:    "with --egress-allow a box has no route and no name server, only an HTTP proxy",
		advice: "use a client that obeys HTTP_PROXY and HTTPS_PROXY, or --network host instead, if the code may have all of the network",
	}, true
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
