package validate

import "strings"

// Tmpfs is a file system in the memory of a box, charged to its memory cap.
type Tmpfs struct {
	Target string
	Size   Size
}

// Arg gives the value of kern's --tmpfs.
func (t Tmpfs) Arg() string { return t.Target + ":" + t.Size.Kern() }

// ParseTmpfs reads one argument of --tmpfs: PATH:SIZE, or docker's
// PATH:size=SIZE. The unit is required: kern would read 64 as 64 bytes, 0 as no
// limit, and no size as half of the host's memory. "none" is for
// ParseTmpfsList.
func ParseTmpfs(s string) (Tmpfs, error) {
	target, size, ok := strings.Cut(s, ":")
	if !ok || size == "" {
		return Tmpfs{}, refuse(s, "no size, and kern would give it half of the host's memory", "write PATH:SIZE, like /tmp:64m")
	}
	if strings.Contains(size, ":") {
		return Tmpfs{}, refuse(s, "the path of a tmpfs cannot hold a colon: kern ends it there", "write PATH:SIZE with another path")
	}
	p, err := boxPath(target)
	if err != nil {
		return Tmpfs{}, err
	}
	switch {
	case p == workspaceDir:
		return Tmpfs{}, refuse(s, "the workspace is there, and a tmpfs would hide it", "write a path below it, or --workspace-size")
	case p == shmDir:
		return Tmpfs{}, refuse(s, "/dev/shm cannot be resized: kern sizes it to the memory cap", "set --memory, or mount a directory there with --mount")
	}
	if err := reserved(target, p); err != nil {
		return Tmpfs{}, err
	}
	if strings.ContainsAny(size, "=,") {
		if size, err = dockerSize(s, size); err != nil {
			return Tmpfs{}, err
		}
	}
	n, err := ParseLimit(size)
	if err != nil {
		return Tmpfs{}, err
	}
	if n == 0 {
		return Tmpfs{}, refuse(s, "a tmpfs without a limit could take all memory", "write PATH:SIZE, like /tmp:64m")
	}
	return Tmpfs{p, n}, nil
}

// dockerSize takes the size out of docker's options and refuses the others:
// kern has none of them.
func dockerSize(s, options string) (string, error) {
	size := ""
	for o := range strings.SplitSeq(options, ",") {
		v, ok := strings.CutPrefix(o, "size=")
		if !ok || size != "" || v == "" {
			return "", refuse(s, "the option "+quote(o)+" is not known here: a tmpfs has one size and nothing else", "write PATH:SIZE, like /tmp:64m")
		}
		size = v
	}
	return size, nil
}

// ParseTmpfsList reads all that was given as --tmpfs. "none" among them takes
// the default /tmp away (noDefault) and may stand beside others. Two for one
// path are refused.
func ParseTmpfsList(specs []string) (list []Tmpfs, noDefault bool, err error) {
	for _, s := range specs {
		if s == "none" {
			noDefault = true
			continue
		}
		t, err := ParseTmpfs(s)
		if err != nil {
			return nil, false, err
		}
		for _, o := range list {
			if o.Target == t.Target {
				return nil, false, refuse(s, "there are two for "+t.Target, "write one")
			}
		}
		list = append(list, t)
	}
	return list, noDefault, nil
}

// CheckTmpfs checks what was asked for against the memory cap (0: none) and the
// targets of all mounts of the box, our own included. kern mounts every tmpfs
// after the mounts, so one at or above a mount would hide it (a tmpfs at /run
// hides the code of a run, /run/kern-sbx); one below a mount is fine. Among
// themselves they are mounted as given, so the outer of two has to come first.
// The default /tmp is no part of list: it steps aside for a mount (rule 1).
func CheckTmpfs(list []Tmpfs, mountTargets []string, memory Size) error {
	for i, t := range list {
		if memory > 0 && t.Size > memory {
			return refuse(t.Target+":"+t.Size.String(), "larger than the memory cap of "+memory.Human()+", which it is charged to", "write at most "+memory.String()+", or raise --memory")
		}
		for _, m := range mountTargets {
			if within(m, t.Target) {
				return refuse(t.Target, "the tmpfs would hide the mount at "+quote(m), "leave one of the two out, or put the tmpfs below the mount")
			}
		}
		for _, o := range list[i+1:] {
			if within(t.Target, o.Target) {
				return refuse(o.Target, "the tmpfs would hide the one at "+quote(t.Target), "write the outer one first")
			}
		}
	}
	return nil
}

// DefaultTmp gives the size of the /tmp that a box has when nothing is asked
// for: 64 MiB, at most half of the memory cap (0: none), at least 1 MiB.
func DefaultTmp(memory Size) Size {
	const most, least = Size(64 << 20), Size(1 << 20)
	if memory <= 0 || memory/2 >= most {
		return most
	}
	// Whole pages: kern would round up, past half.
	return max(memory/2&^4095, least)
}
