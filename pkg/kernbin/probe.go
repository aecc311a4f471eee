package kernbin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// probeTimeout is how long --version may take; kern needs 2 ms, so only a
	// program that is not kern, or a file system that does not answer, gets there.
	probeTimeout = 10 * time.Second
	// maxProbeOutput is far more than kern prints.
	maxProbeOutput = 4 << 10
)

// askVersion runs `path --version` and gives what it answers. The program may
// be anything: it gets no terminal, no input, no KERN_* variable, a session of
// its own, limit to finish and maxProbeOutput to say it in, and everything it
// left in its process group is killed.
func askVersion(ctx context.Context, path string, limit time.Duration) (string, error) {
	parent := ctx
	ctx, cancel := context.WithTimeout(parent, limit)
	defer cancel()
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	cmd := &exec.Cmd{
		Path: path, Args: []string{path, "--version"},
		Env: envWithoutKern(), Stdout: w, // stdin and stderr: /dev/null
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return "", fmt.Errorf("cannot be started: %w", withoutPath(err))
	}
	pid := cmd.Process.Pid
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = unix.Kill(-pid, unix.SIGKILL)
		// A process that left the group can still hold the pipe open.
		_ = r.SetReadDeadline(time.Unix(1, 0))
		close(killed)
	})
	out, rerr := io.ReadAll(io.LimitReader(r, maxProbeOutput+1))
	flood := len(out) > maxProbeOutput
	if flood {
		_ = unix.Kill(-pid, unix.SIGKILL)
	}
	// Waiting without reaping keeps the number of the group ours, so that what
	// the program started and left behind can be killed by it.
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	_ = unix.Kill(-pid, unix.SIGKILL)
	if !stop() {
		<-killed
	}
	werr := cmd.Wait()
	switch {
	case flood:
		return "", fmt.Errorf("not kern: its answer to --version is longer than %d bytes", maxProbeOutput)
	case parent.Err() != nil:
		return "", parent.Err()
	case ctx.Err() != nil:
		return "", fmt.Errorf("not kern: it did not answer --version within %v", limit)
	case rerr != nil:
		return "", rerr
	case werr != nil:
		return "", fmt.Errorf("not kern: --version ended with %w", werr)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	version, ok := parseVersionLine(line)
	if !ok {
		return "", fmt.Errorf("not kern: it answers --version with %s, not with a line like kern 0.33.0",
			strconv.QuoteToGraphic(line[:min(len(line), 60)]))
	}
	return version, nil
}

func envWithoutKern() []string {
	env := []string{} // not nil: nil would mean everything
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "KERN_") {
			env = append(env, kv)
		}
	}
	return env
}
