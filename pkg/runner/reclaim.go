package runner

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

// reclaimTime bounds a box that deletes.
const reclaimTime = 10 * time.Minute

// removeAll deletes what a run left in dir/name. Files of other users of the box
// belong to other users of the host, by numbers that are lent to us: we may not
// delete them ourselves, but root of a box that has the same numbers may.
func removeAll(dir *os.File, name, path, kern string) error {
	err := workspace.RemoveAt(dir, name)
	if err == nil || kern == "" || os.Geteuid() == 0 || !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
		return err
	}
	if reclaim(path, kern) != nil {
		return err
	}
	return workspace.RemoveAt(dir, name)
}

// reclaim empties what the box of a run could write, from within a box whose
// root is nothing but our agent.
func reclaim(path, kern string) error {
	program, ok := agent.Binary()
	if !ok {
		return ErrNoAgent
	}
	// In the run's directory, so that it goes with that whatever becomes of us.
	tmp, err := os.MkdirTemp(path, "reclaim-")
	if err != nil {
		return err
	}
	root, file := filepath.Join(tmp, "root"), filepath.Join(tmp, agent.Name)
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, program, 0o755); err != nil {
		return err
	}
	argv := []string{"kern", "box", namePrefix + newID(), "--rootfs", root, "--read-only", "--quiet", "--uid-range"}
	clear := []string{"/agent", "clear"}
	for _, sub := range []string{workspaceName, outName} {
		if _, err := os.Lstat(filepath.Join(path, sub)); err == nil {
			argv = append(argv, "--mount", "type=bind,src="+filepath.Join(path, sub)+",dst=/"+sub)
			clear = append(clear, "/"+sub)
		}
	}
	argv = append(
		argv, "--mount", "type=bind,src="+file+",dst=/agent,ro", "--allow-uncapped",
		"--timeout", "600", "--stop-timeout", "0", "--",
	)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	p, err := os.StartProcess(kern, append(argv, clear...), &os.ProcAttr{
		Env: kernEnv(), Files: []*os.File{null, null, null}, Sys: &unix.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return err
	}
	t := time.AfterFunc(reclaimTime, func() { p.Kill() })
	defer t.Stop()
	st, err := p.Wait()
	if err == nil && !st.Success() {
		err = errors.New(st.String())
	}
	return err
}
