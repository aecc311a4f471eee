package runner

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

func TestNameJSON(t *testing.T) {
	for in, want := range map[Name]string{
		"a/b": `"a/b"`, "a\"\\\n": `"a\"\\\n"`, "\x7f": `"\u007f"`, "\u009b2J\u0085x": `"\u009b2J\u0085x"`, "ü\u00a0": "\"ü\u00a0\"",
		"x\xff": `{"encoding":"base64","data":"eP8="}`, "": `""`,
	} {
		got, err := json.Marshal(in)
		if err != nil || string(got) != want {
			t.Errorf("%q: %s, %v", in, got, err)
		}
	}
}

func FuzzNameJSON(f *testing.F) {
	for _, s := range []string{"", "a", "\x7f\x7f", "\u009b", "\xc2", "\xc2\x80", "\\\x7f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		doc, err := json.Marshal(Name(s))
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range doc {
			if c < 0x20 || c == 0x7f || c == 0xc2 && doc[i+1] < 0xa0 {
				t.Fatalf("%q has a control character", doc)
			}
		}
		var back string
		if json.Unmarshal(doc, &back) == nil && back != s {
			t.Fatalf("%q came back as %q", s, back)
		}
	})
}

// TestHiddenFiles: a file that is deleted and open is found in a process and its
// children, once.
func TestHiddenFiles(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, 3<<20)); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	before := hiddenFiles(os.Getpid(), st.Dev)
	os.Remove(f.Name())
	second, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(second)
	if got := hiddenFiles(os.Getpid(), st.Dev) - before; got < 3<<20 || got > 3<<20+64<<10 {
		t.Errorf("got %d", got)
	}
	if got := hiddenFiles(os.Getpid(), st.Dev+1000); got != 0 {
		t.Errorf("of another device: %d", got)
	}
	if got := hiddenFiles(1<<30, st.Dev); got != 0 {
		t.Errorf("of no process: %d", got)
	}
}

// TestFullIsAFault: a workspace that held too much outranks how the command ended,
// but not what we did for another reason.
func TestFullIsAFault(t *testing.T) {
	e := evidence{ack: true, ran: true, payload: []byte{1, 1, 0, 0}, space: 30 << 20, spaceMax: 20 << 20}
	v := classify(&e)
	if v.fault == nil || v.fault.Type != WorkspaceFull || v.status != 122 || v.exit != nil ||
		!strings.Contains(v.fault.Message, "30 MiB, more than 20 MiB") {
		t.Errorf("got %+v", v)
	}
	e.stop = stopDeadline
	if v := classify(&e); v.fault.Type != Timeout {
		t.Errorf("got %+v", v)
	}
}

func TestLimitFiles(t *testing.T) {
	dir := t.TempDir()
	rw := []validate.Mount{{Source: "/x", Target: "/x"}}
	for _, tt := range []struct {
		name  string
		s     Spec
		max   bool
		fsize string
	}{
		{"private", Spec{WorkspaceMax: AutoSize, Memory: 64 << 20}, true, "fsize="},
		{"kept", Spec{WorkspaceMax: AutoSize, Workspace: dir, Memory: 64 << 20}, false, ""},
		{"in memory", Spec{WorkspaceMax: AutoSize, WorkspaceSize: 1 << 20, Memory: 64 << 20}, false, ""},
		{"asked for", Spec{WorkspaceMax: 1 << 20, Workspace: dir, Memory: 64 << 20}, true, "fsize=68157440"},
		{"another mount", Spec{WorkspaceMax: 1 << 20, Memory: 64 << 20, Mounts: rw}, true, ""},
		{"none", Spec{Memory: 64 << 20}, false, ""},
		{"the user's own", Spec{WorkspaceMax: 1 << 20, Memory: 1, Ulimits: []string{"fsize=1"}}, true, "fsize=1"},
	} {
		r := run{spec: &tt.s}
		r.limitFiles(dir)
		got := strings.Join(tt.s.Ulimits, " ")
		if (tt.s.WorkspaceMax > 0) != tt.max || !strings.HasPrefix(got, tt.fsize) || tt.fsize == "" && got != "" {
			t.Errorf("%s: %d, %q", tt.name, tt.s.WorkspaceMax, got)
		}
	}
}
