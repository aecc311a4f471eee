package runner

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
	"github.com/kern-sbx/kern-sbx/pkg/hostroot"
	"github.com/kern-sbx/kern-sbx/pkg/kernbin"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Defaults of a box, the SDK's.
const (
	DefaultImage        = "python:3.12-slim"
	DefaultMemory       = validate.Size(512 << 20)
	DefaultPIDs         = 256
	DefaultTimeout      = 30 * time.Second
	DefaultStartTimeout = 30 * time.Second
	DefaultPullTimeout  = 15 * time.Minute
	DefaultMaxOutput    = validate.Size(64 << 20)

	// WorkspaceDir is where the workspace is mounted in every box.
	WorkspaceDir = "/workspace"
	// CodeDir is where the code of -c and -f is mounted, read-only.
	CodeDir = "/run/kern-sbx"
	// ResultsDir is where the drivers of interpreters write rich results, with
	// Spec.Results. It lies in a directory of the run on disk, apart from the
	// workspace.
	ResultsDir = CodeDir + "/out"
)

// Spec is one box and the command in it, checked and resolved. The zero value
// of a limit means no limit. As JSON (for another program of ours) it is without
// what belongs to one process: streams, signals, functions.
type Spec struct {
	Kern *kernbin.Kern

	// Exactly one of Image, Rootfs and Host names the root.
	Image  string
	Rootfs string
	Host   *hostroot.Root
	// Pull is missing, never or always; PullTimeout bounds one pull.
	Pull        string
	PullTimeout time.Duration

	// Workspace is the host directory mounted at /workspace; "" means a private
	// directory that is removed afterwards.
	Workspace string
	// CopyOf is the host directory that the private workspace begins as a copy
	// of; "" begins it empty.
	CopyOf string
	// Setup readies the workspace before the run; nil for nothing to do.
	// DepsWritable lets the box change what a setup installed.
	Setup        *Setup
	DepsWritable bool
	// WorkspaceMax is the most that the workspace may hold, in allocated bytes; the
	// box is ended when it holds more. AutoSize is the default one.
	WorkspaceMax validate.Size
	// WorkspaceSize above 0 puts the workspace of the box into its memory, no larger
	// than that: what it holds is copied in, and back into a kept one when the code
	// has ended, except the names of Keep directly in it.
	WorkspaceSize validate.Size
	Keep          []string
	// Track puts the files that the run changed in the workspace into the Result,
	// save what TrackIgnore leaves out (see workspace.ScanOptions).
	Track       bool
	TrackIgnore []string
	// prepares marks a box that is such a setup itself.
	prepares bool
	// served marks a box whose PID 1 is the agent, which waits to be told what to
	// do.
	served bool
	// entrypoint is the image's, where our agent stands in its place.
	entrypoint []string
	Mounts     []validate.Mount
	// Watch are names directly below the workspace that were not there: it is
	// reported when the run made one (rule S2).
	Watch []string
	// Pins are the identities of sources, by path, for those that were checked.
	Pins map[string]Pin
	// Tmpfs are file systems in the box's memory. kern mounts them after every
	// bind, so a mount below one is reached by a link that is made before the
	// command starts.
	Tmpfs   []validate.Tmpfs
	Workdir string
	Env     []validate.KV

	Memory        validate.Size
	CPUs          float64
	PIDs          int
	CPUSet        string
	Ulimits       []string
	RequireLimits bool
	// Limits says who may enforce memory, pids and cpu: LimitsAuto and so on.
	Limits string

	// HostNetwork shares the host's network; Egress lets the box reach those
	// domains through kern's proxy. At most one of them.
	HostNetwork bool
	Egress      []string

	// CapDrop and CapAdd are capability names, ALL among them.
	CapDrop, CapAdd []string
	Security        string // kern's security profile, "" for none
	AppArmor        string
	User            string // "" is root of the box
	Hostname        string
	// Profiles are kern's resource profiles, KIND:NAME, of KernConfig or else of
	// kern's own file.
	Profiles   []string
	KernConfig string

	// Timeout is for the code, StartTimeout for everything before it.
	Timeout      time.Duration
	StartTimeout time.Duration
	MaxOutput    validate.Size

	// Argv is the command. With Code set it is the interpreter and its
	// arguments, and Code is what the box finds under CodeDir.
	Argv []string
	Code []CodeFile
	// Cell is the code of Argv as an interpreter that waits would take it; nil for
	// none.
	Cell *Cell
	// Results gives the box ResultsDir and reads afterwards what a driver wrote
	// there.
	Results bool
	// Kernel marks a box whose interpreter keeps its names from cell to cell.
	Kernel bool
	// Init puts the agent in front of the command: it is PID 1 then, reaps, and
	// passes signals on.
	Init bool

	// Stdin is relayed to the box through a pipe; nil gives it an empty stdin.
	// The caller's descriptor itself never reaches the box: a terminal would
	// let it type into the caller's shell.
	Stdin *os.File `json:"-"`
	// TTY is our side's gift to the box with -t: the slave of a pty of ours, which
	// becomes its terminal. Stdin, Stdout, Stderr and Capture are unused then.
	// TTYStarted is called once kern holds it.
	TTY        *os.File     `json:"-"`
	TTYStarted func() error `json:"-"`
	// Kill ends the box at once when it is closed.
	Kill <-chan struct{} `json:"-"`

	// Stdout and Stderr receive the program's bytes while it runs; nil shows
	// nothing. Capture keeps them in the Result as well.
	Stdout, Stderr io.Writer `json:"-"`
	Capture        bool
	// Log receives what a Served box prints that belongs to no call: an
	// interpreter's between two cells. Nil: it is lost.
	Log io.Writer `json:"-"`

	// Claimer knows of boxes that wait for a run like this; nil for a box of its
	// own. PoolRequired refuses to run without one.
	Claimer      Claimer `json:"-"`
	PoolRequired bool

	// Signals are those that ended us from outside; a second one kills at once.
	Signals <-chan os.Signal `json:"-"`
	// Sweeper is the command line, without the program, with which this program
	// started again calls SweepInherited. A directory that takes more than two
	// seconds to delete is left to it. Nil: the deletion is waited for.
	Sweeper []string
	// Compiler is the command line, without the program, with which this program
	// started again calls CompileInBackground; the image is added. With it the box
	// gets the bytecode of its image's Python library where there is some, and
	// where there is none it is made once the run has ended. Nil: neither.
	Compiler []string

	// Progress is told of a step that may take longer than a second, and
	// returns what ends it. Nil: nobody wants to know.
	Progress func(label string) (done func()) `json:"-"`
}

// Cell is a piece of code for an interpreter that is already there.
type Cell struct {
	// File is what tracebacks name, an absolute path in the box.
	File string
	Code []byte
	Args []string
}

// CodeFile is one file that the box finds, read-only, under CodeDir.
type CodeFile struct {
	Name       string
	Content    []byte
	Executable bool
}

// Guard keeps the box from writing entries of those names directly below a kept
// workspace, which programs of the host would run or obey (rule S2): each is mounted
// read-only over itself, and one that is not there yet is watched. A link is left
// alone: what it leads to is either in the workspace or not in the box. With the
// workspace in memory they are not copied back.
func (s *Spec) Guard(names []string) error {
	for _, name := range names {
		if s.WorkspaceSize > 0 {
			s.Keep = append(s.Keep, name)
			continue
		}
		st, err := os.Lstat(filepath.Join(s.Workspace, name))
		switch {
		case errors.Is(err, os.ErrNotExist):
			s.Watch = append(s.Watch, name)
		case err != nil:
			return err
		case st.IsDir() || st.Mode().IsRegular():
			s.Mounts = append(s.Mounts, validate.Mount{Source: filepath.Join(s.Workspace, name), Target: WorkspaceDir + "/" + name, ReadOnly: true})
		}
	}
	return nil
}

// rootUser says whether the command runs as root of the box, whose files are
// the caller's own on the host.
func (s *Spec) rootUser() bool {
	u, _, _ := strings.Cut(s.User, ":")
	return u == "" || u == "0" || u == "root"
}

// pidsInBox is the number of processes that the kernel is told: the threads of
// our own agent are not the code's.
func (s *Spec) pidsInBox() int {
	if s.served && s.PIDs > 0 {
		return s.PIDs + agent.Threads
	}
	return s.PIDs
}

// agentIn says whether our agent is in the box.
func (s *Spec) agentIn() bool { return s.served || s.TTY != nil }

// command is what kern executes.
func (s *Spec) command() []string {
	program := CodeDir + "/" + agent.Name
	switch {
	case s.served:
		return []string{program, "serve"}
	case s.TTY != nil:
		// It takes the terminal from inside, so that Ctrl-C and job control belong
		// to the command and kern is out of their reach.
		return slices.Concat([]string{program, "tty"}, s.entrypoint, s.Argv)
	}
	return s.Argv
}

func (f CodeFile) mode() uint32 {
	if f.Executable {
		return 0o755
	}
	return 0o644
}

// root gives the name of the root for messages.
func (s *Spec) root() string {
	switch {
	case s.Host != nil:
		return "the host image"
	case s.Rootfs != "":
		return "root " + s.Rootfs
	}
	return "image " + s.Image
}
