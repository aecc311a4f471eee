package runner

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/images"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
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
	var k keyText
	k.number(2) // the version of what follows
	k.text(s.Kern.Path, s.Kern.Version)
	k.mounts(s.Mounts)
	k.list(s.Watch)
	k.flag(s.DepsWritable, s.RequireLimits, s.HostNetwork)
	k.number(int64(s.WorkspaceMax), int64(s.Memory), int64(s.PIDs), int64(math.Float64bits(s.CPUs)), int64(len(s.Tmpfs)))
	for _, t := range s.Tmpfs {
		k.text(t.Target)
		k.number(int64(t.Size))
	}
	k.text(s.CPUSet, s.Limits, s.Security, s.AppArmor, s.User, s.Hostname, s.KernConfig)
	for _, l := range [][]string{s.Ulimits, s.Egress, s.CapDrop, s.CapAdd, s.Profiles} {
		k.list(l)
	}
	var st unix.Stat_t
	if err := unix.Stat(s.Kern.Path, &st); err != nil {
		return no("kern cannot be looked at")
	}
	file := func() { k.number(int64(st.Dev), int64(st.Ino), st.Size, st.Mtim.Nano()) }
	file()
	if s.KernConfig != "" {
		if err := unix.Stat(s.KernConfig, &st); err != nil {
			return no("the file of --kern-config cannot be looked at")
		}
		file()
	}
	k.number(int64(len(s.Pins)))
	for _, path := range slices.Sorted(maps.Keys(s.Pins)) {
		k.text(path)
		k.number(int64(s.Pins[path].dev), int64(s.Pins[path].ino))
	}
	k.text(s.Workspace)
	if s.Workspace != "" {
		if err := unix.Stat(s.Workspace, &st); err != nil {
			return no("the workspace cannot be looked at")
		}
		k.number(int64(st.Dev), int64(st.Ino))
	}
	switch {
	case s.Host != nil:
		k.text("host", s.Host.Dir, s.Host.ID)
		k.number(int64(len(s.Host.Mounts)))
		for _, m := range s.Host.Mounts {
			k.text(m.Source, m.Target)
		}
	case s.Rootfs != "":
		if err := unix.Stat(s.Rootfs, &st); err != nil {
			return no("the root cannot be looked at")
		}
		k.text("rootfs", s.Rootfs)
		k.number(int64(st.Dev), int64(st.Ino))
	default:
		id, ok := images.ID(images.Cache(os.Getenv), s.Image)
		if !ok {
			return no("the image is not on this machine")
		}
		digest, _ := images.Digest(filepath.Join(base, imageRecords), images.Cache(os.Getenv), s.Image)
		k.text("image", s.Image, id, digest)
	}
	sum := sha256.Sum256(k)
	return hex.EncodeToString(sum[:16]), nil
}

// keyText is what a key is made of: each part with its length before it, so that no
// two boxes have the same text. (encoding/json would take longer for it than all
// the rest of a claim does.)
type keyText []byte

func (k *keyText) text(all ...string) {
	for _, s := range all {
		*k = binary.AppendUvarint(*k, uint64(len(s)))
		*k = append(*k, s...)
	}
}

func (k *keyText) number(all ...int64) {
	for _, n := range all {
		*k = binary.LittleEndian.AppendUint64(*k, uint64(n))
	}
}

func (k *keyText) flag(all ...bool) {
	for _, b := range all {
		n := int64(0)
		if b {
			n = 1
		}
		k.number(n)
	}
}

func (k *keyText) list(all []string) {
	k.number(int64(len(all)))
	k.text(all...)
}

func (k *keyText) mounts(all []validate.Mount) {
	k.number(int64(len(all)))
	for _, m := range all {
		k.text(m.Source, m.Target)
		k.flag(m.ReadOnly)
	}
}
