package validate

import (
	"path"
	"strings"
)

// Where a box has things of ours.
const (
	workspaceDir = "/workspace"
	depsDir      = "/workspace/.deps"
	codeDir      = "/run/kern-sbx"
	pycDir       = "/kern-pyc"
	shmDir       = "/dev/shm"
)

// Target checks the path at which a mount appears in a box, and cleans it.
// Refused are the paths that the box's isolation or its workspace rests on: /,
// /proc and /sys with all below, /dev with all below but /dev/shm, /workspace
// itself and what is ours below and beside it, and /run, because a mount there
// would cover the code of a run. A mount over /usr or /etc is the user's choice.
// Links in the image are not followed: the real path has to be named.
func Target(s string) (string, error) {
	p, err := boxPath(s)
	if err != nil {
		return "", err
	}
	switch {
	case p == "/run":
		return "", refuse(s, "a mount at /run would cover "+codeDir+", where a box finds the code of a run", "mount below it, or write --tmpfs /run:16m")
	case p == shmDir || below(p, shmDir):
		return p, nil
	case p == workspaceDir:
		return "", refuse(s, "the workspace is there", "write --workspace DIR to choose what it is, or mount below it")
	}
	return p, reserved(s, p)
}

// boxPath checks that s is the plain absolute path of something in a box, and
// cleans it.
func boxPath(s string) (string, error) {
	switch {
	case !strings.HasPrefix(s, "/"):
		return "", refuse(s, "the path in the box is not absolute", "begin it with /")
	case len(s) > 4095:
		return "", refuse(s, "longer than the 4095 bytes that the kernel allows a path", "shorten it")
	case hasControl(s):
		return "", refuse(s, "the path in the box holds a control character or is not UTF-8", "write a plain path")
	}
	for c := range strings.SplitSeq(s, "/") {
		if c == ".." {
			return "", refuse(s, `the path in the box holds ".."`, "write the path it stands for")
		}
	}
	return path.Clean(s), nil
}

// reserved refuses what neither a mount nor a tmpfs may cover.
func reserved(s, p string) error {
	switch {
	case p == "/":
		return refuse(s, "that is the root of the box", "mount below it, or choose a root with --image or --rootfs")
	case within(p, "/proc"), within(p, "/sys"), within(p, "/dev"):
		return refuse(s, "the box's own "+p[:strings.IndexByte(p[1:]+"/", '/')+1]+" is part of its isolation", "choose another path")
	case within(p, depsDir):
		return refuse(s, "what --setup installed is there", "choose another path")
	case within(p, codeDir), within(p, pycDir):
		return refuse(s, "a box has something of kern-sbx there", "choose another path")
	}
	return nil
}

// below reports whether p lies under dir, which it is not itself. Both are clean
// and absolute.
func below(p, dir string) bool {
	if dir == "/" {
		return p != "/"
	}
	return len(p) > len(dir) && p[len(dir)] == '/' && p[:len(dir)] == dir
}

// within is below, or equal.
func within(p, dir string) bool { return p == dir || below(p, dir) }

// Workdir checks the directory in which a command starts. It may be one that
// the image alone knows, so it is not looked for.
func Workdir(s string) (string, error) {
	if s != "" && s[0] != '/' && !hasControl(s) {
		return "", refuse(s, "the working directory is not an absolute path", "write "+workspaceDir+"/NAME for one in the workspace")
	}
	return boxPath(s)
}
