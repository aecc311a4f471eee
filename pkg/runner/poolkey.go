package runner

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/images"
)

// ErrNotPooled says that a box is not one that could have been made ready before.
var ErrNotPooled = errors.New("not from a pool")

// PoolKey names what a box is, down to the last cap: a run may be given a box
// that waits only if both have the same key. The command, its environment, its
// working directory and its deadline are not in it, because the agent sets them.
//
// The error is ErrNotPooled, with the reason, for a run that needs a box of its
// own. base is our cache directory. It looks at the workspace, so it belongs under
// the start budget.
func (s *Spec) PoolKey(base string) (string, error) {
	no := func(why string) (string, error) { return "", fmt.Errorf("%w: %s", ErrNotPooled, why) }
	switch {
	case s.TTY != nil:
		return no("-t has a terminal of its own")
	case s.Setup != nil:
		return no("--setup changes the workspace first")
	case s.WorkspaceSize > 0:
		return no("--workspace-size copies back at the end")
	case s.CopyOf != "":
		return no("--workspace-copy copies first")
	case s.Pull == "always":
		return no("--pull always fetches first")
	case len(s.Profiles) > 0 && s.KernConfig == "":
		return no("--profile without --kern-config reads a file of kern's, which may have changed")
	}
	k := struct {
		Version                                        int
		Kern, KernVersion                              string
		KernFile, ConfigFile                           [4]int64
		Root, RootID                                   string
		Mounts, Workspace                              any
		Pins                                           map[string][2]uint64
		Watch                                          []string
		DepsWritable                                   bool
		WorkspaceMax                                   any
		Tmpfs                                          any
		Memory, CPUs, PIDs, CPUSet, Ulimits, Limits    any
		RequireLimits, HostNetwork                     bool
		Egress, CapDrop, CapAdd, Profiles              []string
		Security, AppArmor, User, Hostname, KernConfig string
	}{
		Version: 1,
		Kern:    s.Kern.Path, KernVersion: s.Kern.Version,
		Mounts: s.Mounts, Workspace: s.Workspace, Pins: map[string][2]uint64{}, Watch: s.Watch,
		DepsWritable: s.DepsWritable, WorkspaceMax: s.WorkspaceMax,
		Tmpfs: s.Tmpfs, Memory: s.Memory, CPUs: s.CPUs, PIDs: s.PIDs, CPUSet: s.CPUSet, Ulimits: s.Ulimits, Limits: s.Limits,
		RequireLimits: s.RequireLimits, HostNetwork: s.HostNetwork,
		Egress: s.Egress, CapDrop: s.CapDrop, CapAdd: s.CapAdd, Profiles: s.Profiles,
		Security: s.Security, AppArmor: s.AppArmor, User: s.User, Hostname: s.Hostname, KernConfig: s.KernConfig,
	}
	var st unix.Stat_t
	if err := unix.Stat(s.Kern.Path, &st); err != nil {
		return no("kern cannot be looked at")
	}
	file := func() [4]int64 { return [4]int64{int64(st.Dev), int64(st.Ino), st.Size, st.Mtim.Nano()} }
	k.KernFile = file()
	if s.KernConfig != "" {
		if err := unix.Stat(s.KernConfig, &st); err != nil {
			return no("the file of --kern-config cannot be looked at")
		}
		k.ConfigFile = file()
	}
	for path, p := range s.Pins {
		k.Pins[path] = [2]uint64{p.dev, p.ino}
	}
	if s.Workspace != "" {
		if err := unix.Stat(s.Workspace, &st); err != nil {
			return no("the workspace cannot be looked at")
		}
		k.Workspace = [3]any{s.Workspace, st.Dev, st.Ino}
	}
	switch {
	case s.Host != nil:
		k.Root, k.RootID = s.Host.Dir, s.Host.ID
		k.Mounts = [2]any{s.Host.Mounts, s.Mounts}
	case s.Rootfs != "":
		if err := unix.Stat(s.Rootfs, &st); err != nil {
			return no("the root cannot be looked at")
		}
		k.Root, k.RootID = s.Rootfs, fmt.Sprint(st.Dev, st.Ino)
	default:
		id, ok := images.ID(images.Cache(os.Getenv), s.Image)
		if !ok {
			return no("the image is not on this machine")
		}
		digest, _ := images.Digest(filepath.Join(base, imageRecords), images.Cache(os.Getenv), s.Image)
		k.Root, k.RootID = s.Image, id+" "+digest
	}
	b, err := json.Marshal(k)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16]), nil
}
