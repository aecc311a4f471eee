package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

type unixIDMap = syscall.SysProcIDMap

// TestFakeKern is about a kern that does what the real one does not.
func TestFakeKern(t *testing.T) {
	short := func(s *Spec) { s.StartTimeout = 1500 * time.Millisecond }
	rows := []struct {
		mode   string
		change func(*Spec)
		want   string // start of describe
		says   string
	}{
		{"payload:1,1,0,0", nil, "status 7 exit 7", ""},
		{"payload:1,0,0,11", nil, "status 139 exit 139", ""},
		// It says nothing, or not what kern says: nobody may read success in it.
		{"payload:", nil, "status 125 startup_failed", "status 7 and said nothing"},
		{"payload:1,1,0", nil, "status 125 startup_failed", ""},
		{"payload:1,1,0,0,0", nil, "status 125 startup_failed", ""},
		{"payload:0,1,0,0", nil, "status 125 startup_failed", ""},
		{"payload:2,1,1,9", nil, "status 125 startup_failed", ""},
		{"help", nil, "status 125 startup_failed", "said nothing"},
		{"usage", nil, "status 125 startup_failed", `unknown flag \x1b[31m--x`},
		{"refuse", nil, "status 125 startup_failed", "no such image"},
		{"rubbish", nil, "status 125 startup_failed", "status 7"},
		{"rubbish-x", nil, "status 125 startup_failed", "rubbish"},
		{"abort", nil, "status 125 startup_failed", "SIGABRT while it built"},
		{"die-at-gate", nil, "status 125 startup_failed", "SIGSEGV while it built"},
		{"no-ack", short, "status 125 startup_failed", "--start-timeout"},
		{"deaf", short, "status 125 startup_failed", "--start-timeout"},
		{"deaf-gate", short, "status 125 startup_failed", "--start-timeout"},
		{"chatter", short, "status 125 startup_failed", "--start-timeout"},
		{"sleep", func(s *Spec) { s.Timeout = 500 * time.Millisecond }, "status 124 timeout", ""},
	}
	for _, r := range rows {
		t.Run(r.mode, func(t *testing.T) {
			begin := time.Now()
			res := runFake(t, r.mode, r.change)
			if d := describe(res); !strings.HasPrefix(d, r.want) || !strings.Contains(d, r.says) {
				t.Errorf("%s\nwant %s … %q", d, r.want, r.says)
			}
			if took := time.Since(begin); took > 40*time.Second {
				t.Errorf("took %s", took)
			}
			if n := res.RuntimeNotes.Len(); n > notesLimit+8<<10 {
				t.Errorf("%d bytes of notes are kept", n)
			}
			started := strings.Contains(r.want, "exit") || strings.HasPrefix(r.mode, "payload") || r.mode == "sleep" || r.mode == "rubbish"
			if started != (res.Started != nil) {
				t.Errorf("started is %v", res.Started)
			}
			if started {
				// What the code prints is the code's, however it looks.
				if out, errs, notes := text(t, res.Stdout), text(t, res.CodeStderr), text(t, res.RuntimeNotes); out != "out" || errs != "error: the code says so\n" || notes != "" {
					t.Errorf("stdout %q, stderr %q, notes %q", out, errs, notes)
				}
			} else if n := res.CodeStderr.Len(); n > 0 {
				t.Errorf("code that never ran wrote %q", text(t, res.CodeStderr))
			}
		})
	}
}

// TestFakeKernRaced: what a race in kern kept from starting is started again, a few
// times, and not when there is input that may have been read.
func TestFakeKernRaced(t *testing.T) {
	for _, r := range []struct {
		refuses, starts int
		input           bool
		want            string
	}{
		{1, 2, false, "status 7 exit 7"},
		{2, 3, false, "status 7 exit 7"},
		{9, 3, false, "status 125 startup_failed"},
		{1, 1, true, "status 125 startup_failed"},
	} {
		file := filepath.Join(t.TempDir(), "starts")
		res := runFake(t, fmt.Sprintf("raced:%d:%s", r.refuses, file), func(s *Spec) {
			if r.input {
				in, err := os.Open(os.DevNull)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { in.Close() })
				s.Stdin = in
			}
		})
		n, _ := os.ReadFile(file)
		if d := describe(res); !strings.HasPrefix(d, r.want) || len(n) != r.starts {
			t.Errorf("%+v: %s after %d starts", r, d, len(n))
		}
	}
}

// TestFakeKernWithoutGate: a kern that does not wait at the gate is refused:
// its box could not be found again if we were killed.
func TestFakeKernWithoutGate(t *testing.T) {
	res := runFake(t, "no-gate", nil)
	if res.Status != 125 || res.Fault == nil || res.Fault.Type != StartupFailed {
		t.Error(describe(res))
	}
}

// TestFakeKernDeafAtTheEnd: the box is gone and kern does not go. It is killed,
// and takes its verdict with it.
func TestFakeKernDeafAtTheEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	res := runFake(t, "hang-at-end", nil)
	if d := describe(res); !strings.HasPrefix(d, "status 137 killed") {
		t.Error(d)
	}
}

// TestRefusedAlwaysReadsTheSame: kern's reason is kern's, however quickly it
// ends after it. (Once a relay that ran too early took it for the program's.)
func TestRefusedAlwaysReadsTheSame(t *testing.T) {
	for range 15 {
		res := runFake(t, "refuse", nil)
		if res.Fault == nil || res.Fault.Message != "no such image" || res.CodeStderr.Len() > 0 {
			t.Fatal(describe(res), text(t, res.CodeStderr))
		}
	}
}

// TestKernThatIsNone: what cannot be started is a result, not an error.
func TestKernThatIsNone(t *testing.T) {
	s, dirs := testSpec(t, filepath.Join(t.TempDir(), "kern"))
	budget, stop := NewBudget(t.Context(), s.StartTimeout)
	defer stop()
	res, err := Run(t.Context(), budget, dirs, s)
	if err != nil || res.Status != 125 || res.Fault.Type != StartupFailed || !strings.Contains(res.Fault.Message, "no such file") {
		t.Errorf("%+v %v", res, err)
	}
}

// TestKernEnv: nothing of the caller's changes what kern does.
func TestKernEnv(t *testing.T) {
	for _, k := range []string{"KERN_SECCOMP", "KERN_ALIVE_FD", "KERN_GATE_FD", "KERN_X", "KERN_", "KERN_SBX_MEMORY"} {
		t.Setenv(k, "bad")
	}
	t.Setenv("AKERN_X", "kept")
	env := strings.Join(kernEnv("KERN_ALIVE_FD=4"), "\n")
	if strings.Count(env, "KERN_ALIVE_FD") != 1 || strings.Contains(env, "KERN_SECCOMP") || strings.Contains(env, "\nKERN_=") || !strings.Contains(env, "AKERN_X=kept") {
		t.Error(env)
	}
}
