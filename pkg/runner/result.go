package runner

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/term"
)

// Schema is the name of the document a Result is written as.
const Schema = "kern-sbx/result/v1"

// Result is what one run answers: the document of --json and --result, schema
// kern-sbx/result/v1. Every field is always present; null means that it does
// not apply or is not known, an empty list that there was nothing.
type Result struct {
	Schema string `json:"schema"`
	// OK is true when the command ended by itself with exit code 0.
	OK bool `json:"ok"`
	// Status is the number that kern-sbx exits with.
	Status int `json:"status"`
	// ExitCode is the command's own code (128+n when its own signal n ended
	// it), null unless it ended by itself.
	ExitCode *int `json:"exit_code"`
	// Signal is the signal that ended the command, such as "SIGSEGV", or null.
	Signal *string `json:"signal"`
	// Fault says that the sandbox, not the code, ended the run; null otherwise.
	Fault *Fault `json:"fault"`
	// Started is when the code started, RFC 3339 in UTC; null when it never did.
	Started *time.Time `json:"started"`
	// DurationMS is the time from our start of kern to the end of the box, in
	// milliseconds.
	DurationMS int64 `json:"duration_ms"`
	// Stdout and Stderr are what came out of the box; Stderr holds kern's own
	// lines too, CodeStderr does not, RuntimeNotes holds only those.
	Stdout       *Text `json:"stdout"`
	Stderr       *Text `json:"stderr"`
	CodeStderr   *Text `json:"code_stderr"`
	RuntimeNotes *Text `json:"runtime_notes"`
	// Truncated tells what was cut: a stream at --max-output, and the results at
	// MaxResults, MaxResultValue and MaxResultBytes.
	Truncated Truncated `json:"truncated"`
	// Files are the regular files that the run changed in the workspace, at most
	// 100 000, by path; empty as well when they were not tracked.
	Files []File `json:"files"`
	// Results are what the code displayed, in order, then the value of its last
	// expression and the figures that were open at its end. Only code in python has
	// any.
	Results []Rich `json:"results"`
	Limits  Limits `json:"limits"`
	Usage   Usage  `json:"usage"`
	Image   Image  `json:"image"`
	Kern    Kern   `json:"kern"`
	// Hints are at most one explanation with the flag that helps.
	Hints []Hint `json:"hints"`
	// CutByDisk says that a stream is cut because it could not be kept, and not
	// because of --max-output.
	CutByDisk bool `json:"-"`
	// LimitsReason is why a cap is not in force, for a person.
	LimitsReason string `json:"-"`
	// Notes are for a person: what we did to the host's files after the run.
	Notes []string `json:"-"`

	// ColdImage says that the start budget ran out with an image that was
	// unpacked within the last minutes, so that no read of it was fast yet.
	ColdImage bool `json:"-"`

	head, tail []byte
}

// StderrHead is the beginning of what the code wrote to stderr.
func (r *Result) StderrHead() []byte { return r.head }

// StderrTail is the end of it.
func (r *Result) StderrTail() []byte { return r.tail[max(0, len(r.tail)-sniffed):] }

// Refused is the Result of a run that was not tried: the box never started.
func Refused(err error) *Result {
	none := TextOf(nil)
	return &Result{
		Schema: Schema, Status: 125, Fault: &Fault{StartupFailed, term.VisibleLine(err.Error())},
		Stdout: none, Stderr: none, CodeStderr: none, RuntimeNotes: none,
		Files: []File{}, Results: []Rich{}, Hints: []Hint{}, Image: Image{DigestSource: "unknown"},
	}
}

// Lost is the Result of a call whose holder was ended while it ran.
func Lost(why string) *Result {
	res := Refused(errors.New(why))
	res.Status, res.Fault.Type = 137, Killed
	return res
}

// Stopped is the Result of a call that a signal to us ended, or that had not been
// begun when it came.
func Stopped(sig unix.Signal) *Result {
	res := Lost("ended by kern-sbx, which was sent " + unix.SignalName(sig))
	res.Status = 128 + int(sig)
	return res
}

// FaultType names what the sandbox did.
type FaultType string

// The faults, in the words of kern's own SDK.
const (
	Timeout       FaultType = "timeout"
	OOM           FaultType = "oom"
	Killed        FaultType = "killed"
	EscapeBlocked FaultType = "escape_blocked"
	WorkspaceFull FaultType = "workspace_full"
	ExecFailed    FaultType = "exec_failed"
	StartupFailed FaultType = "startup_failed"
)

// Fault is one verdict: what the sandbox did, and one sentence about it.
type Fault struct {
	Type    FaultType `json:"type"`
	Message string    `json:"message"`
}

// Truncated tells which stream lost bytes past --max-output, and whether there
// were more, or larger, results than are kept.
type Truncated struct {
	Stdout  bool `json:"stdout"`
	Stderr  bool `json:"stderr"`
	Results bool `json:"results"`
}

// File is one change in the workspace.
type File struct {
	// Path is relative to the workspace.
	Path Name `json:"path"`
	// Change is created, modified or deleted. A renamed file is deleted and created.
	Change string `json:"change"`
	// Size in bytes; of a deleted file, what it had.
	Size int64 `json:"size"`
}

// Limits are the caps asked for and who enforces each.
type Limits struct {
	Memory Cap `json:"memory"`
	PIDs   Cap `json:"pids"`
	CPU    Cap `json:"cpu"`
	// TimeoutMS is the budget of the code, null without one.
	TimeoutMS *int64 `json:"timeout_ms"`
}

// Cap is one limit.
type Cap struct {
	// Requested is the number asked for (bytes, processes, CPUs), null for none.
	Requested *float64 `json:"requested"`
	// EnforcedBy is "kern", "kern-sbx" (a cgroup of ours), "rlimit" (a limit on
	// the user's processes), "none" (asked for, and not in force on this host), or
	// null (not asked for, or the box never got that far).
	EnforcedBy *string `json:"enforced_by"`
}

// Usage is what the run cost, and where each number comes from.
type Usage struct {
	// CPUTimeMS is user and system time of kern and all it waited for.
	CPUTimeMS *int64 `json:"cpu_time_ms"`
	// PeakMemory is in bytes; see PeakMemorySource.
	PeakMemory *int64 `json:"peak_memory"`
	// PeakMemorySource is "cgroup" (all of the box, the kernel's high-water mark;
	// sampled when the cgroup is kern's) or "largest-process" (the largest resident set of any one
	// process of the box).
	PeakMemorySource *string `json:"peak_memory_source"`
}

// Image says which root ran.
type Image struct {
	Ref string `json:"ref"`
	// ID identifies the content as this machine has it; it changes whenever the
	// cached image does. Null when there is no image.
	ID *string `json:"id"`
	// Digest is the registry's, known only when the reference carries one.
	Digest       *string `json:"digest"`
	DigestSource string  `json:"digest_source"`
}

// Kern says which kern ran.
type Kern struct {
	Version string `json:"version"`
	Path    string `json:"path"`
}

// Hint is one entry of the hints table that applied.
type Hint struct {
	ID   string `json:"id"`
	Text string `json:"text"`
	// Flag is what to add to the command line, "" when no flag helps.
	Flag string `json:"flag"`
}

// WriteJSON writes the document, indented, with a final newline. Captured
// streams are copied from where they are kept, so memory stays flat however
// large they are.
func (r *Result) WriteJSON(w io.Writer) error {
	b := bufio.NewWriterSize(w, 64<<10)
	v := reflect.ValueOf(r).Elem()
	t := v.Type()
	b.WriteString("{")
	for i := range t.NumField() {
		name := t.Field(i).Tag.Get("json")
		if name == "" || name == "-" {
			continue
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n  \"" + name + "\": ")
		if text, ok := v.Field(i).Interface().(*Text); ok {
			if err := text.writeJSON(b); err != nil {
				return err
			}
			continue
		}
		doc, err := json.MarshalIndent(v.Field(i).Interface(), "  ", "  ")
		if err != nil {
			return err
		}
		writeVisible(b, doc)
	}
	b.WriteString("\n}\n")
	return b.Flush()
}

// writeVisible writes a JSON document with DEL and the C1 controls escaped,
// which encoding/json leaves as they are.
func writeVisible(w *bufio.Writer, doc []byte) {
	e := jsonEscaper{w: w}
	from := 0
	for i, c := range doc {
		c1 := c == 0xc2 && i+1 < len(doc) && doc[i+1] < 0xa0
		if c != 0x7f && !c1 {
			continue
		}
		w.Write(doc[from:i])
		from = i + 1
		if c1 {
			c = doc[i+1]
			from++
		}
		e.unicode(c)
	}
	w.Write(doc[from:])
}

func ptr[T any](v T) *T { return &v }
