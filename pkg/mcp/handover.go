package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Program is the server, which lies beside kern-sbx.
const Program = "kern-sbx-mcp"

// Word is what the server is started with, so that nobody starts it by hand in
// the belief that it takes flags.
const Word = "serve-inherited"

// version of the Handover. Both programs come from one build, so another number
// means that they do not.
const version = 1

// Handover is everything the server knows: the command line, the configuration
// and the environment were read by kern-sbx.
type Handover struct {
	Version int
	// Build is that of kern-sbx.
	Build string
	// Spec is the box of every call, without a command.
	Spec *runner.Spec
	Dirs runner.Dirs
	// Refusal is why no box can be had (there is no kern), "" when one can. The
	// server answers with it then.
	Refusal string
	// Named is the workspace that is kept by name, with its @, for Spec.Workspace
	// to be; "" for none.
	Named string

	// Kernel runs python in one interpreter that keeps its names. Prewarm is how
	// many boxes wait for calls.
	Kernel  bool
	Prewarm int
	// Pool is --pool, for boxes that others keep ready.
	Pool string
	// PycCache is --pyc-cache.
	PycCache bool
	// MaxMemory and MaxTimeout bound what a call may ask for; 0 for no bound.
	MaxMemory  validate.Size
	MaxTimeout time.Duration
	// Track lists the files that a call changed in its answer.
	Track bool
	// Log says that there is a file for what happens. Quiet leaves out notes.
	Log, Quiet bool
	// Notes are for the log, and for the client when it comes.
	Notes []string
}

// Seal puts it where the server finds it, wholly: what JSON cannot carry, such as
// a value that is not UTF-8, is refused.
func (h *Handover) Seal() (*os.File, error) {
	h.Version = version
	b, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	var back Handover
	if err := json.Unmarshal(b, &back); err != nil {
		return nil, err
	}
	// encoding/json makes another string of one that is not UTF-8.
	for i, kv := range h.Spec.Env {
		if kv != back.Spec.Env[i] {
			return nil, &validate.Error{Field: "--env", Value: kv.Key, Reason: "its value is not UTF-8, and the server cannot be given it", Fix: "leave it out, or encode it (base64)"}
		}
	}
	if !reflect.DeepEqual(h.Spec, back.Spec) || h.Dirs != back.Dirs {
		return nil, errors.New("a path or another value is not UTF-8, and the server cannot be given it")
	}
	return agent.Seal(b)
}

// Exec goes on as the server at path. It only returns when it could not.
func (h *Handover) Exec(path string, log *os.File) error {
	h.Log = log != nil
	f, err := h.Seal()
	if err != nil {
		return err
	}
	// Numbers that are free: this program still runs, and one of its own at 3, say,
	// may be what its runtime polls. F_DUPFD leaves them open across the exec.
	doc, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD, leastFD)
	if err != nil {
		return err
	}
	file := -1
	if log != nil {
		if file, err = unix.FcntlInt(log.Fd(), unix.F_DUPFD, leastFD); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s cannot be started: %w", path, unix.Exec(path, []string{Program, Word, strconv.Itoa(doc), strconv.Itoa(file)}, os.Environ()))
}

// leastFD is the least number of a descriptor of the server's.
const leastFD = 10

// Inherited reads it in the server, whose words after Word are args, and gives the
// log beside it; nil for none.
func Inherited(args []string) (*Handover, *os.File, error) {
	by := errors.New("this program is for kern-sbx, which starts it: run kern-sbx mcp")
	if len(args) != 2 {
		return nil, nil, by
	}
	fd, err := strconv.ParseUint(args[0], 10, 16)
	if err != nil || fd < leastFD {
		return nil, nil, by
	}
	file, err := strconv.ParseInt(args[1], 10, 16)
	if err != nil || file >= 0 && file < leastFD {
		return nil, nil, by
	}
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || got&(unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK) == 0 {
		return nil, nil, by
	}
	unix.CloseOnExec(int(fd))
	f := os.NewFile(uintptr(fd), "handover")
	defer f.Close()
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, nil, by
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, nil, err
	}
	var h Handover
	if err := json.Unmarshal(b, &h); err != nil || h.Version != version || h.Spec == nil {
		return nil, nil, errors.New("kern-sbx and kern-sbx-mcp are of two builds: install both together")
	}
	var log *os.File
	if h.Log && file >= 0 {
		unix.CloseOnExec(int(file))
		log = os.NewFile(uintptr(file), "log")
	}
	return &h, log, nil
}
