package runner

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// stopReason is why we ended a box ourselves; stopNone when we did not.
type stopReason int

const (
	stopNone     stopReason = iota
	stopStart               // the start budget ran out
	stopDeadline            // the code's budget ran out
	stopSignal              // a signal came to us
	stopOutput              // our stdout was closed
	stopUser                // the user at the terminal asked for it
)

// evidence is all that a verdict may rest on. Nothing in it can be written by
// code in a box, save by really dying (bytes and signals).
type evidence struct {
	stop   stopReason
	signal unix.Signal // with stopSignal: which

	ack      bool // kern took the job (byte A)
	execFail bool // kern says the setup or the exec of the command failed (byte x)
	ran      bool // the command was started: ALIVE reached its end after an ack, without x
	payload  []byte
	oom      bool // the kernel counted an OOM kill in our own cgroup of the box
	// space is what the workspace held when that was too much, whether we ended the
	// box for it or found it afterwards; 0 otherwise. spaceMax is the limit.
	space, spaceMax int64
	// out is what ResultsDir held when that was too much and we ended the box.
	out int64

	word *agentWord // what the agent says of the end of the command, nil for nothing

	wait      unix.WaitStatus
	startErr  error // kern itself could not be started
	elapsed   time.Duration
	kernLimit time.Duration // kern's own --timeout, 0 for none

	// For messages alone.
	timeout, startTimeout time.Duration
	argv0, root           string
	notes                 string // kern's own sentence, already made safe to print
}

// agentWord is what the agent, as PID 1 of a box, says of a command. The code
// can neither speak for it nor end it; but it outlives the command, so its word
// counts only after that of the kernel and of kern.
type agentWord struct {
	event agent.Event
	// interpreter: of the end of an interpreter's process, or of a cell in it.
	interpreter bool
}

// bytes of KERN_STARTED_FD, by position.
const (
	byteStarted = iota
	byteCap
	byteOOM
	byteSignal
	payloadLen
)

const (
	capEnforced    = 1
	capNotEnforced = 2
)

// verdict is what classify decides.
type verdict struct {
	fault  *Fault
	status int
	exit   *int
	signal string
}

// classify is the one place that says who stopped a run. The order is that of
// rising doubt: first what we did ourselves, then what only kern can know,
// last what the code can bring about by really dying.
func classify(e *evidence) verdict {
	fault := func(t FaultType, status int, format string, args ...any) verdict {
		return verdict{fault: &Fault{t, fmt.Sprintf(format, args...)}, status: status}
	}

	// 1. We ended it. Our own act outranks whatever the box made of it.
	switch e.stop {
	case stopNone:
	case stopStart:
		return fault(StartupFailed, 125, "the box was still being built after %s (--start-timeout); a longer timeout does not help when a mount, the workspace or the image lies on a file system that does not answer", e.startTimeout)
	case stopDeadline:
		return fault(Timeout, 124, "still running after %s", e.timeout)
	case stopSignal:
		return fault(Killed, 128+int(e.signal), "ended by kern-sbx, which was sent %s", unix.SignalName(e.signal))
	case stopUser:
		return fault(Killed, 137, "ended at the terminal, by ^] ^] ^]")
	case stopOutput:
		return fault(Killed, 141, "ended by kern-sbx, because its standard output was closed")
	}
	if e.startErr != nil {
		return fault(StartupFailed, 125, "%v", e.startErr)
	}

	p := e.payload
	have := len(p) == payloadLen
	rc := e.wait.ExitStatus()

	if e.space > 0 {
		return fault(WorkspaceFull, 122, "the workspace held %s, more than %s (--workspace-max)", validate.Size(e.space).Human(), validate.Size(e.spaceMax).Human())
	}

	if e.out > 0 {
		return fault(WorkspaceFull, 122, "the code put %s into the directory of its results, more than %s", validate.Size(e.out).Human(), validate.Size(maxOut).Human())
	}

	// 2. The kernel's own OOM counter of the cgroup that we put the box into. It
	// comes before a look at kern, because the end of the box follows from it.
	if e.oom {
		v := fault(OOM, 137, "the box needed more than its memory cap")
		v.signal = "SIGKILL"
		return v
	}

	// 3. kern itself died of a signal. The box shares kern's process group and
	// can do that to it; whatever number it chose, no verdict follows from it.
	if e.wait.Signaled() {
		v := fault(Killed, 137, "kern, which supervises the box, was ended by %s, perhaps from inside the box", unix.SignalName(e.wait.Signal()))
		v.signal = unix.SignalName(e.wait.Signal())
		if !e.ran {
			return fault(StartupFailed, 125, "kern was ended by %s while it built the box", unix.SignalName(e.wait.Signal()))
		}
		return v
	}

	// 4. The same counter of this box's cgroup, as kern read it.
	if have && p[byteOOM] == 1 {
		v := fault(OOM, 137, "the box needed more than its memory cap")
		v.signal = "SIGKILL"
		return v
	}

	// 5. The agent saw the command end, or not begin.
	if w := e.word; w != nil && e.ran {
		return w.verdict(e, fault)
	}

	// 6. A box was built and its command could not be executed. The byte x
	// cannot come from the box, because nothing was run in it.
	if e.execFail && have {
		what := "cannot be executed"
		if rc == 127 {
			what = "was not found"
		} else {
			rc = 126
		}
		return fault(ExecFailed, rc, "%q %s in %s", e.argv0, what, e.root)
	}

	// 7. PID 1 of the box was killed. For SIGSYS that is kern's filter (or a
	// filter the code set for itself: the two cannot be told apart).
	if have && p[byteSignal] != 0 {
		sig := unix.Signal(p[byteSignal])
		v := verdict{status: 128 + int(sig), signal: signalName(sig)}
		switch {
		case sig == unix.SIGSYS:
			v.fault = &Fault{EscapeBlocked, "the code made a system call that the sandbox forbids"}
		case sig == unix.SIGKILL && e.kernLimit > 0 && e.elapsed >= e.kernLimit:
			v = fault(Timeout, 124, "still running after %s (ended by kern's own timer)", e.kernLimit)
		case sig == unix.SIGKILL && p[byteCap] == capNotEnforced:
			v.fault = &Fault{Killed, "ended by SIGKILL from outside the box; its memory cap was asked for and is not in force on this host, so the host running out of memory is one possible cause"}
		case sig == unix.SIGKILL:
			v.fault = &Fault{Killed, "ended by SIGKILL, from outside the box or by a limit that the code set for itself"}
		default:
			v.exit = ptr(v.status)
		}
		return v
	}

	// 8. A box was built and its command ended by itself.
	if have {
		return verdict{status: rc, exit: ptr(rc)}
	}

	// 9. No payload, and the command did run: kern leaves it out when the
	// command itself exits 125, the number it keeps for its own refusals.
	if rc == 125 && e.ran {
		return verdict{status: rc, exit: ptr(rc)}
	}

	// 10. No payload: there never was a box. That holds for exit 0 too, which
	// kern also gives for its own help.
	msg := e.notes
	if msg == "" {
		msg = fmt.Sprintf("kern ended with status %d and said nothing", rc)
	}
	return fault(StartupFailed, 125, "%s", msg)
}

// verdict is step 5 of classify.
func (w *agentWord) verdict(e *evidence, fault func(FaultType, int, string, ...any) verdict) verdict {
	ev := &w.event
	switch {
	case ev.Event == agent.Failed && ev.What == "exec":
		if unix.Errno(ev.Errno) == unix.ENOENT || unix.Errno(ev.Errno) == unix.ENOTDIR {
			return fault(ExecFailed, 127, "%q was not found in %s", e.argv0, e.root)
		}
		return fault(ExecFailed, 126, "%q cannot be executed in %s", e.argv0, e.root)
	case ev.Event == agent.Failed && ev.What == "chdir":
		return fault(StartupFailed, 125, "--workdir: %v", unix.Errno(ev.Errno))
	case ev.Event == agent.Failed && ev.What == "driver" && unix.Errno(ev.Errno) != unix.ESRCH:
		return fault(ExecFailed, 127, "%q cannot be started in %s", e.argv0, e.root)
	case ev.Event == agent.Failed:
		return fault(StartupFailed, 125, "the command could not be given to the box (%s)", term.VisibleLine(ev.What))
	case ev.Event == agent.Broken:
		return fault(Killed, 137, "ended by kern-sbx, because its interpreter broke the protocol: %s", term.VisibleLine(ev.What))
	case ev.Event == agent.Exited && ev.Signal != 0:
		sig := unix.Signal(ev.Signal)
		v := verdict{status: 128 + ev.Signal, signal: signalName(sig)}
		switch sig {
		case unix.SIGSYS:
			v.fault = &Fault{EscapeBlocked, "the code made a system call that the sandbox forbids"}
		case unix.SIGKILL:
			v.fault = &Fault{Killed, "ended by SIGKILL, from inside the box, by a limit that the code set for itself, or from outside"}
		default:
			v.exit = ptr(v.status)
		}
		return v
	}
	return verdict{status: ev.Code, exit: ptr(ev.Code)}
}

func signalName(s unix.Signal) string {
	if n := unix.SignalName(s); n != "" {
		return n
	}
	return fmt.Sprintf("signal %d", int(s))
}
