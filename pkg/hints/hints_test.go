package hints_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/hints"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
)

func word(w string) func(string) bool { return func(s string) bool { return s == w } }

// TestTable has, for each rule, what triggers it and what nearly does.
func TestTable(t *testing.T) {
	none := ""
	for _, r := range []struct {
		id   string
		f    hints.Facts
		flag string
	}{
		{"image-as-command", hints.Facts{Fault: "exec_failed", Argv: []string{"alpine", "echo", "hi there"}}, "--image alpine -- echo 'hi there'"},
		{"image-as-command", hints.Facts{Fault: "exec_failed", Argv: []string{"alpine:3.20", "sh"}}, "--image alpine:3.20 -- sh"},
		{"image-as-command", hints.Facts{Fault: "startup_failed", Argv: []string{"my/own"}, IsImage: word("my/own")}, "--image my/own --"},
		{none, hints.Facts{Fault: "exec_failed", Argv: []string{"alpine"}, ImageGiven: true}, ""},
		{none, hints.Facts{Fault: "exec_failed", Argv: []string{"python"}}, ""},
		{none, hints.Facts{Fault: "exec_failed", Argv: []string{"my/own"}, IsImage: word("other")}, ""},
		{none, hints.Facts{Fault: "exec_failed", Argv: []string{"alp;ine:x"}}, ""},
		{none, hints.Facts{Fault: "timeout", Argv: []string{"alpine"}}, ""},
		{none, hints.Facts{Fault: "exec_failed"}, ""},

		{"host-file", hints.Facts{Fault: "exec_failed", Argv: []string{"./x.py"}, IsHostFile: word("./x.py")}, "-f ./x.py"},
		{"host-file", hints.Facts{Fault: "exec_failed", Argv: []string{"./a b.sh"}, IsHostFile: word("./a b.sh")}, "-f './a b.sh'"},
		{"host-file", hints.Facts{Fault: "exec_failed", Argv: []string{"./prog"}, IsHostFile: word("./prog")}, "-W ."},
		{none, hints.Facts{Fault: "exec_failed", Argv: []string{"./x.py"}, IsHostFile: word("./y.py")}, ""},
		{none, hints.Facts{Fault: "startup_failed", Argv: []string{"./x.py"}, IsHostFile: word("./x.py")}, ""},
		{none, hints.Facts{ExitCode: 127, Argv: []string{"./x.py"}, IsHostFile: word("./x.py")}, ""},

		{"host-tool", hints.Facts{Fault: "exec_failed", Argv: []string{"cargo"}, HostTool: "/home/u/.cargo/bin/cargo"}, "--host-tool cargo"},
		{none, hints.Facts{Fault: "exec_failed", Argv: []string{"cargo"}}, ""},
		{none, hints.Facts{ExitCode: 127, Argv: []string{"cargo"}, HostTool: "/x"}, ""},

		{"no-interpreter", hints.Facts{Fault: "exec_failed", Lang: "node", Argv: []string{"node", "x"}}, ""},
		{none, hints.Facts{Lang: "node", ExitCode: 127}, ""},

		{"no-image", hints.Facts{Fault: "startup_failed", PullFailed: true}, "--image host"},
		{none, hints.Facts{Fault: "startup_failed"}, ""},
		{none, hints.Facts{Fault: "exec_failed", PullFailed: true}, ""},

		{"cold-image", hints.Facts{Fault: "startup_failed", ColdImage: true}, "--start-timeout 2m"},
		{none, hints.Facts{Fault: "timeout", ColdImage: true}, ""},

		{"default-timeout", hints.Facts{Fault: "timeout", TimeoutIsDefault: true, Timeout: 30 * time.Second}, "--timeout 10m"},
		{none, hints.Facts{Fault: "timeout", Timeout: 30 * time.Second}, ""},
		{none, hints.Facts{TimeoutIsDefault: true, ExitCode: 124}, ""},

		{"home-read-only", hints.Facts{ExitCode: 1, Stderr: []byte("x\nmkdir /root/.npm: Read-only file system\n")}, "--env HOME=/workspace"},
		{"home-read-only", hints.Facts{ExitCode: 1, Home: "/home/u", Stderr: []byte("open /home/u/.cache: read-only file system")}, ""},
		{none, hints.Facts{ExitCode: 0, Stderr: []byte("/root: Read-only file system")}, ""},
		{none, hints.Facts{ExitCode: 1, Stderr: []byte("/etc/x: Read-only file system\n/root is here")}, ""},
		{none, hints.Facts{ExitCode: 1, Fault: "oom", Stderr: []byte("/root: Read-only file system")}, ""},

		{"egress-not-http", hints.Facts{Egress: true, ExitCode: 1, Stderr: []byte("OSError: [Errno 101] Network is unreachable\n")}, ""},
		{"egress-not-http", hints.Facts{Egress: true, ExitCode: 2, Stderr: []byte("psql: error: could not translate host name \"db\"")}, ""},
		{"no-network", hints.Facts{ExitCode: 1, Stderr: []byte("Network is unreachable")}, ""},
		{none, hints.Facts{Egress: true, Stderr: []byte("Network is unreachable")}, ""},
		{none, hints.Facts{Egress: true, ExitCode: 1, Stderr: []byte("assertion failed")}, ""},

		{"tmp-missing", hints.Facts{NoTmp: true}, "--tmpfs /tmp:64m"},

		{"ci-orders", hints.Facts{CIOrders: true}, "--ci-fence"},
		{"secret-in-argv", hints.Facts{SecretFlag: "API_TOKEN"}, "-e API_TOKEN with the value in your environment, or --env-file <(...)"},

		{"stdin-not-attached", hints.Facts{StdinWaiting: true}, "-i"},
		{none, hints.Facts{}, ""},
	} {
		h, ok := hints.Find(&r.f)
		if ok != (r.id != none) || h.ID != r.id {
			t.Errorf("%+v gives %q, want %q", r.f, h.ID, r.id)
			continue
		}
		if r.flag != "" && h.Flag != r.flag {
			t.Errorf("%s: %q, want %q", r.id, h.Flag, r.flag)
		}
		if ok && (h.Why == "" || strings.HasSuffix(h.Why, ".") || strings.ContainsAny(h.Why+h.Flag, "\n\x1b")) {
			t.Errorf("%s: %q is not one clear sentence", r.id, h.Why)
		}
	}
}

// TestOneHint: with several causes the first of the table is given, always.
func TestOneHint(t *testing.T) {
	h, _ := hints.Find(&hints.Facts{Fault: "exec_failed", Argv: []string{"alpine:3"}, IsHostFile: word("alpine:3"), HostTool: "/x", StdinWaiting: true})
	if h.ID != "image-as-command" {
		t.Error(h.ID)
	}
}

// TestHostileWords: a hint that quotes cannot be made to write to the terminal,
// and what it says to type is one word for a shell.
func TestHostileWords(t *testing.T) {
	for _, w := range []string{"./\x1b[2J.py", "./a;reboot.py", "./'$(x)'.py", "./\u009b31m.py", "./\n.py"} {
		h, ok := hints.Find(&hints.Facts{Fault: "exec_failed", Argv: []string{w}, IsHostFile: word(w)})
		if !ok || strings.ContainsFunc(h.Why+h.Flag, func(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }) {
			t.Errorf("%q gives %q", w, h.Why+h.Flag)
		}
		if !strings.HasPrefix(h.Flag, "-f '") {
			t.Errorf("%q: %s is not quoted", w, h.Flag)
		}
	}
}

// TestTopics: all that can be said to a user can be explained.
func TestTopics(t *testing.T) {
	var ids []string
	for _, x := range hints.Topics() {
		if slices.Contains(ids, x.ID) || x.Title == "" || strings.TrimSpace(x.Text) == "" {
			t.Errorf("%s: twice, or without a text", x.ID)
		}
		ids = append(ids, x.ID)
		for _, line := range strings.Split(x.Text, "\n") {
			if len(line) > 90 {
				t.Errorf("%s: a line of %d columns: %s", x.ID, len(line), line)
			}
		}
	}
	faults := []runner.FaultType{runner.Timeout, runner.OOM, runner.Killed, runner.EscapeBlocked, runner.WorkspaceFull, runner.ExecFailed, runner.StartupFailed}
	for _, f := range faults {
		if !slices.Contains(ids, string(f)) {
			t.Errorf("no topic explains the fault %s", f)
		}
	}
	for _, id := range hints.IDs() {
		if !slices.Contains(ids, id) {
			t.Errorf("no topic explains the hint %s", id)
		}
	}
}

func FuzzFind(f *testing.F) {
	f.Add("exec_failed", "alpine:3\x1b", "/root: read-only file system\xff", true)
	f.Fuzz(func(t *testing.T, fault, w, stderr string, yes bool) {
		facts := &hints.Facts{
			Fault: fault, Argv: []string{w, w}, Stderr: []byte(stderr), StderrTail: []byte(stderr), ExitCode: 1, StdinWaiting: yes, HostTool: w,
			Home: w, Kept: yes, Tmp: 64 << 20, Memory: 512 << 20, PIDs: 9, PIDsCapped: yes, MemoryCapped: yes, ReadOnlyMounts: []string{w}, ReadOnlyDeps: yes,
			ProgramHead: func(string) []byte { return []byte(stderr) }, Message: stderr,
			IsHostFile: func(string) bool { return yes }, IsImage: func(string) bool { return yes },
		}
		for _, h := range hints.Match(facts) {
			if h.Why == "" || (h.NotSandbox || h.Unfixable) && len(h.Remedies) > 0 || strings.ContainsFunc(h.Why+h.Line, func(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }) {
				t.Errorf("%+v", h)
			}
		}
		h, ok := hints.Find(facts)
		if ok && strings.ContainsFunc(h.Why+h.Flag, func(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }) {
			t.Errorf("%q", h.Why+h.Flag)
		}
	})
}
