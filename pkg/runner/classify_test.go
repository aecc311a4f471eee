package runner

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Wait statuses as the kernel codes them.
func exited(code int) unix.WaitStatus            { return unix.WaitStatus(code << 8) }
func signaled(s unix.Signal) unix.WaitStatus     { return unix.WaitStatus(s) }
func pay(memCap, oom byte, s unix.Signal) []byte { return []byte{1, memCap, oom, byte(s)} }

// ran is the evidence of a command that was started, with more of it.
func ran(e evidence) evidence {
	e.ack, e.ran = true, true
	return e
}

// TestClassify holds the order of classify: each row is one thing that can
// happen, and those marked "over" show which of two steps wins.
func TestClassify(t *testing.T) {
	const none = FaultType("")
	rows := []struct {
		name   string
		e      evidence
		fault  FaultType
		status int
		exit   int // -1: null
		signal string
		says   string // part of the message
	}{
		// 8 of the contract: what kern's own exit codes mean.
		{"exit 0", ran(evidence{payload: pay(1, 0, 0), wait: exited(0)}), none, 0, 0, "", ""},
		{"exit 3", ran(evidence{payload: pay(1, 0, 0), wait: exited(3)}), none, 3, 3, "", ""},
		{"exit 125 leaves the payload out", ran(evidence{wait: exited(125)}), none, 125, 125, "", ""},
		{"SIGSEGV", ran(evidence{payload: pay(1, 0, unix.SIGSEGV), wait: exited(139)}), none, 139, 139, "SIGSEGV", ""},
		{"SIGABRT", ran(evidence{payload: pay(1, 0, unix.SIGABRT), wait: exited(134)}), none, 134, 134, "SIGABRT", ""},
		{"SIGTERM", ran(evidence{payload: pay(1, 0, unix.SIGTERM), wait: exited(143)}), none, 143, 143, "SIGTERM", ""},
		{"a real-time signal", ran(evidence{payload: pay(1, 0, 35), wait: exited(163)}), none, 163, 163, "signal 35", ""},
		{"not found", evidence{ack: true, execFail: true, payload: pay(1, 0, 0), wait: exited(127), argv0: "x", root: "image y"}, ExecFailed, 127, -1, "", `"x" was not found in image y`},
		{"not executable", evidence{ack: true, execFail: true, payload: pay(1, 0, 0), wait: exited(126), argv0: "x", root: "image y"}, ExecFailed, 126, -1, "", "cannot be executed"},
		{"setup failed", evidence{ack: true, execFail: true, wait: exited(125), notes: "sandbox setup failed: x"}, StartupFailed, 125, -1, "", "sandbox setup failed: x"},
		{"--require-limits refused", evidence{ack: true, execFail: true, wait: exited(1), notes: "--require-limits: x"}, StartupFailed, 125, -1, "", "--require-limits: x"},
		{"image missing", evidence{ack: true, wait: exited(1), notes: "no such image"}, StartupFailed, 125, -1, "", "no such image"},
		{"usage error", evidence{wait: exited(1), notes: "bad flag"}, StartupFailed, 125, -1, "", "bad flag"},
		{"kern's help", evidence{wait: exited(0)}, StartupFailed, 125, -1, "", "status 0 and said nothing"},
		{"kern's help with an ack", evidence{ack: true, wait: exited(0)}, StartupFailed, 125, -1, "", "said nothing"},
		{"ran, exit 0, no payload", ran(evidence{wait: exited(0)}), StartupFailed, 125, -1, "", "said nothing"},
		{"kern killed while running", ran(evidence{wait: signaled(unix.SIGKILL)}), Killed, 137, -1, "SIGKILL", "perhaps from inside"},
		{"kern killed while building", evidence{ack: true, wait: signaled(unix.SIGABRT)}, StartupFailed, 125, -1, "", "SIGABRT while it built"},
		{"kern killed before the ack", evidence{wait: signaled(unix.SIGSEGV)}, StartupFailed, 125, -1, "", "SIGSEGV while it built"},
		{"kern not started", evidence{startErr: errors.New("permission denied")}, StartupFailed, 125, -1, "", "permission denied"},
		{"OOM on v2", ran(evidence{payload: pay(1, 1, unix.SIGKILL), wait: exited(137)}), OOM, 137, -1, "SIGKILL", "memory cap"},
		{"OOM of a child on v2", ran(evidence{payload: pay(1, 1, 0), wait: exited(1)}), OOM, 137, -1, "SIGKILL", ""},
		{"killed where no cap binds", ran(evidence{payload: pay(2, 0, unix.SIGKILL), wait: exited(137)}), Killed, 137, -1, "SIGKILL", "not in force"},
		{"killed where the cap binds", ran(evidence{payload: pay(1, 0, unix.SIGKILL), wait: exited(137)}), Killed, 137, -1, "SIGKILL", "from outside the box or by a limit"},
		{"killed without a cap", ran(evidence{payload: pay(0, 0, unix.SIGKILL), wait: exited(137)}), Killed, 137, -1, "SIGKILL", "from outside"},
		{"a forbidden system call", ran(evidence{payload: pay(1, 0, unix.SIGSYS), wait: exited(159)}), EscapeBlocked, 159, -1, "SIGSYS", "forbids"},
		{"the same in a child", ran(evidence{payload: pay(1, 0, 0), wait: exited(159)}), none, 159, 159, "", ""},
		{"kern's own timer", ran(evidence{payload: pay(1, 0, unix.SIGKILL), wait: exited(137), kernLimit: 4 * time.Second, elapsed: 4 * time.Second}), Timeout, 124, -1, "", "kern's own timer"},
		{"killed before kern's timer", ran(evidence{payload: pay(1, 0, unix.SIGKILL), wait: exited(137), kernLimit: 4 * time.Second, elapsed: 3 * time.Second}), Killed, 137, -1, "SIGKILL", ""},

		// Codes that stand for something elsewhere are the code's own.
		{"exit 124", ran(evidence{payload: pay(1, 0, 0), wait: exited(124)}), none, 124, 124, "", ""},
		{"exit 126", ran(evidence{payload: pay(1, 0, 0), wait: exited(126)}), none, 126, 126, "", ""},
		{"exit 127", ran(evidence{payload: pay(1, 0, 0), wait: exited(127)}), none, 127, 127, "", ""},
		{"exit 137", ran(evidence{payload: pay(1, 0, 0), wait: exited(137)}), none, 137, 137, "", ""},
		{"exit 143", ran(evidence{payload: pay(1, 0, 0), wait: exited(143)}), none, 143, 143, "", ""},

		// 9.2 of the contract: what code did to change its verdict, closed.
		{"9.2 kill(0, SIGSYS)", ran(evidence{wait: signaled(unix.SIGSYS)}), Killed, 137, -1, "SIGSYS", "perhaps from inside"},
		{"9.2 kill(0, SIGUSR1)", ran(evidence{wait: signaled(unix.SIGUSR1)}), Killed, 137, -1, "SIGUSR1", ""},
		{"9.2 kill(0, SIGPIPE)", ran(evidence{wait: signaled(unix.SIGPIPE)}), Killed, 137, -1, "SIGPIPE", ""},
		{"9.2 prints error: x, exits 125", ran(evidence{wait: exited(125), notes: ""}), none, 125, 125, "", ""},
		{"9.2 prints kern: cannot start", ran(evidence{payload: pay(1, 0, 0), wait: exited(1), notes: "cannot start 'x' in box: y"}), none, 1, 1, "", ""},
		{"9.2 the same, then a blocked call", ran(evidence{payload: pay(1, 0, unix.SIGSYS), wait: exited(159), notes: "cannot start 'x' in box: y"}), EscapeBlocked, 159, -1, "SIGSYS", ""},
		{"9.2 prints the OOM sentence", ran(evidence{payload: pay(1, 0, 0), wait: exited(137), notes: "out of memory"}), none, 137, 137, "", ""},

		// Our own act is over all the rest.
		{"start over payload", evidence{stop: stopStart, ack: true, payload: pay(1, 1, unix.SIGKILL), wait: exited(137)}, StartupFailed, 125, -1, "", "a longer timeout does not help"},
		{"start over a dead kern", evidence{stop: stopStart, wait: signaled(unix.SIGKILL)}, StartupFailed, 125, -1, "", "--start-timeout"},
		{"deadline over oom", ran(evidence{stop: stopDeadline, payload: pay(1, 1, unix.SIGKILL), wait: exited(137)}), Timeout, 124, -1, "", "still running"},
		{"deadline over exit 0", ran(evidence{stop: stopDeadline, payload: pay(1, 0, 0), wait: exited(0)}), Timeout, 124, -1, "", ""},
		{"deadline over a dead kern", ran(evidence{stop: stopDeadline, wait: signaled(unix.SIGKILL)}), Timeout, 124, -1, "", ""},
		{"deadline over escape", ran(evidence{stop: stopDeadline, payload: pay(1, 0, unix.SIGSYS), wait: exited(159)}), Timeout, 124, -1, "", ""},
		{"INT", ran(evidence{stop: stopSignal, signal: unix.SIGINT, wait: signaled(unix.SIGKILL)}), Killed, 130, -1, "", "SIGINT"},
		{"TERM", ran(evidence{stop: stopSignal, signal: unix.SIGTERM, payload: pay(1, 0, unix.SIGKILL), wait: exited(137)}), Killed, 143, -1, "", "SIGTERM"},
		{"HUP before the start", evidence{stop: stopSignal, signal: unix.SIGHUP}, Killed, 129, -1, "", "SIGHUP"},
		{"stdout closed", ran(evidence{stop: stopOutput, payload: pay(1, 0, unix.SIGKILL), wait: exited(137)}), Killed, 141, -1, "", "standard output was closed"},
		{"signal over a kern that cannot be ended", ran(evidence{stop: stopSignal, signal: unix.SIGINT, startErr: errors.New("x")}), Killed, 130, -1, "", ""},

		// The rest of the order, pair by pair.
		{"not started over signaled", evidence{startErr: errors.New("x"), wait: signaled(unix.SIGKILL)}, StartupFailed, 125, -1, "", "x"},
		{"a dead kern over oom", ran(evidence{payload: pay(1, 1, unix.SIGKILL), wait: signaled(unix.SIGKILL)}), Killed, 137, -1, "SIGKILL", "supervises"},
		{"a dead kern over exec_failed", evidence{ack: true, execFail: true, payload: pay(1, 0, 0), wait: signaled(unix.SIGKILL)}, StartupFailed, 125, -1, "", "while it built"},
		{"oom over exec_failed", evidence{ack: true, execFail: true, payload: pay(1, 1, unix.SIGKILL), wait: exited(137)}, OOM, 137, -1, "SIGKILL", ""},
		{"oom over SIGSYS", ran(evidence{payload: pay(1, 1, unix.SIGSYS), wait: exited(159)}), OOM, 137, -1, "SIGKILL", ""},
		{"oom over kern's timer", ran(evidence{payload: pay(1, 1, unix.SIGKILL), wait: exited(137), kernLimit: time.Second, elapsed: time.Minute}), OOM, 137, -1, "SIGKILL", ""},
		{"exec_failed over byte 3", evidence{ack: true, execFail: true, payload: pay(1, 0, unix.SIGKILL), wait: exited(127)}, ExecFailed, 127, -1, "", ""},
		{"SIGSYS over kern's timer", ran(evidence{payload: pay(1, 0, unix.SIGSYS), wait: exited(159), kernLimit: time.Second, elapsed: time.Minute}), EscapeBlocked, 159, -1, "SIGSYS", ""},
		{"kern's timer over an uncapped kill", ran(evidence{payload: pay(2, 0, unix.SIGKILL), wait: exited(137), kernLimit: time.Second, elapsed: time.Minute}), Timeout, 124, -1, "", ""},
		{"byte 3 over the exit code", ran(evidence{payload: pay(1, 0, unix.SIGSEGV), wait: exited(0)}), none, 139, 139, "SIGSEGV", ""},
		{"125 without a start", evidence{ack: true, wait: exited(125)}, StartupFailed, 125, -1, "", ""},
		{"125 with x", evidence{ack: true, execFail: true, wait: exited(125), notes: "why"}, StartupFailed, 125, -1, "", "why"},

		// A payload that is not one. (payload() gives none or all; this is the
		// second wall.)
		{"three bytes", ran(evidence{payload: []byte{1, 1, 1}, wait: exited(0)}), StartupFailed, 125, -1, "", ""},
		{"five bytes", ran(evidence{payload: []byte{1, 1, 1, 9, 9}, wait: exited(137)}), StartupFailed, 125, -1, "", ""},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			v := classify(&r.e)
			var fault FaultType
			msg := ""
			if v.fault != nil {
				fault, msg = v.fault.Type, v.fault.Message
			}
			exit := -1
			if v.exit != nil {
				exit = *v.exit
			}
			if fault != r.fault || v.status != r.status || exit != r.exit || v.signal != r.signal {
				t.Errorf("fault %q status %d exit %d signal %q (%s), want %q %d %d %q", fault, v.status, exit, v.signal, msg, r.fault, r.status, r.exit, r.signal)
			}
			if !strings.Contains(msg, r.says) {
				t.Errorf("message %q does not say %q", msg, r.says)
			}
			if strings.HasSuffix(msg, ".") || strings.ContainsAny(msg, "\n\x1b") {
				t.Errorf("message %q is not one clear line", msg)
			}
		})
	}
}

// FuzzClassify: whatever the evidence is, the verdict keeps its own rules.
func FuzzClassify(f *testing.F) {
	f.Add(uint8(0), uint8(2), true, false, true, []byte{1, 1, 0, 0}, uint32(0))
	f.Add(uint8(2), uint8(15), true, true, false, []byte{1, 2, 1, 9}, uint32(9))
	f.Fuzz(func(t *testing.T, stop, sig uint8, ack, fail, started bool, payload []byte, wait uint32) {
		e := &evidence{
			stop: stopReason(stop % 5), signal: unix.Signal(sig%31 + 1), ack: ack, execFail: fail, ran: started, payload: payload,
			// Only what wait4 can answer without WUNTRACED: exited or signaled.
			wait: unix.WaitStatus(wait & 0xff00),
		}
		if wait&1 != 0 {
			e.wait = unix.WaitStatus(wait%126 + 1)
		}
		v := classify(e)
		switch {
		case v.status < 0 || v.status > 255+128:
			t.Errorf("status %d cannot be exited with", v.status)
		case v.exit != nil && (v.fault != nil || *v.exit != v.status):
			t.Errorf("exit code %d beside status %d, fault %+v", *v.exit, v.status, v.fault)
		case v.exit == nil && v.fault == nil:
			t.Error("neither an exit code nor a fault")
		case v.fault != nil && v.status == 0:
			t.Errorf("fault %+v with status 0", v.fault)
		case e.stop != stopNone && v.exit != nil:
			t.Error("we ended it, and the verdict is the code's")
		}
	})
}
