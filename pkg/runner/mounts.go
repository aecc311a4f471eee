package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/images"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Pin is the identity of a source at the moment it was found fit to be mounted.
// What the box then has at the target must be the same inode (rule F3): a path
// can be exchanged for another between the check and kern's own walk of it.
type Pin struct{ dev, ino uint64 }

// MarshalJSON gives [DEV, INO].
func (p Pin) MarshalJSON() ([]byte, error) { return json.Marshal([2]uint64{p.dev, p.ino}) }

// UnmarshalJSON is its opposite.
func (p *Pin) UnmarshalJSON(b []byte) error {
	var n [2]uint64
	err := json.Unmarshal(b, &n)
	p.dev, p.ino = n[0], n[1]
	return err
}

// PinSource takes the identity of an absolute path without a symbolic link in
// it, as validate.SourceRules.Check returns them. A link that has come up since
// is refused. It looks at the path, so it belongs under the start budget.
func PinSource(resolved string) (Pin, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, resolved, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ELOOP) {
		return Pin{}, &validate.Error{Value: resolved, Reason: "it changed while it was checked", Fix: "name a path that no other program is changing"}
	}
	if err != nil {
		return Pin{}, &os.PathError{Op: "open", Path: resolved, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Pin{}, err
	}
	return Pin{st.Dev, st.Ino}, nil
}

// asideDir is where mounts are put whose own place a tmpfs covers.
const asideDir = "/.kern-sbx"

// placed is one mount as kern gets it.
type placed struct {
	validate.Mount
	// link is where the user wants it, when kern mounts it elsewhere.
	link string
}

// place lists all mounts of a box in order. kern mounts every tmpfs after every
// bind, so one that would be hidden by a tmpfs is mounted aside, and a link in
// the tmpfs leads there.
func (s *Spec) place(workspace, code, out string) []placed {
	var all []placed
	add := func(m validate.Mount) {
		p := placed{Mount: m}
		for _, t := range s.Tmpfs {
			if strings.HasPrefix(m.Target, t.Target+"/") {
				p.link, p.Target = m.Target, asideDir+"/"+strconv.Itoa(len(all))
				break
			}
		}
		all = append(all, p)
	}
	if s.Host != nil {
		for _, m := range s.Host.Mounts {
			add(validate.Mount{Source: m.Source, Target: m.Target, ReadOnly: true})
		}
	}
	if !s.inMemory() {
		add(validate.Mount{Source: workspace, Target: WorkspaceDir})
	}
	if code != "" {
		add(validate.Mount{Source: code, Target: CodeDir, ReadOnly: true})
	}
	if out != "" {
		// Below the code, wherever that was put.
		all = append(all, placed{Mount: validate.Mount{Source: out, Target: all[len(all)-1].Target + ResultsDir[len(CodeDir):]}})
	}
	for _, m := range s.Mounts {
		add(m)
	}
	return all
}

// dressBox does, while the box waits at the gate, what no flag of kern's does:
// it makes the links to mounts that a tmpfs hides, and then compares what the
// box sees at each pinned target with what was checked. No code of the box has
// run, so nothing in there is hostile yet; what the image itself holds may be.
func (r *run) dressBox() error {
	var links, pinned bool
	for _, p := range r.placed {
		links = links || p.link != ""
		_, ok := r.spec.Pins[p.Source]
		pinned = pinned || ok
	}
	if !links && !pinned {
		return nil
	}
	root, err := os.OpenFile("/proc/"+strconv.Itoa(r.box.w.pid)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the box cannot be looked into: %w", err)
	}
	defer root.Close()
	for _, p := range r.placed {
		if p.link != "" {
			if err := linkIn(root, p.link, p.Target); err != nil {
				return fmt.Errorf("%s cannot be made in the box: %w", p.link, err)
			}
		}
		want, ok := r.spec.Pins[p.Source]
		if !ok {
			continue
		}
		// Following the link, as the command would.
		at := p.Target
		if p.link != "" {
			at = p.link
		}
		fd, err := unix.Openat2(int(root.Fd()), at, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
		if err != nil {
			return fmt.Errorf("%s is not in the box: %w", at, err)
		}
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		unix.Close(fd)
		if err != nil {
			return err
		}
		if (Pin{st.Dev, st.Ino}) != want {
			return fmt.Errorf("%s in the box is not %s as it was when it was checked: it was exchanged meanwhile, or another mount hides it", at, p.Source)
		}
	}
	return nil
}

// linkIn makes a symbolic link in the box, and the directories above it.
func linkIn(root *os.File, link, target string) error {
	dir := int(root.Fd())
	opened := -1
	defer func() {
		if opened >= 0 {
			unix.Close(opened)
		}
	}()
	for name := range strings.SplitSeq(strings.Trim(path.Dir(link), "/"), "/") {
		if name == "" {
			continue
		}
		if err := unix.Mkdirat(dir, name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EROFS) {
			return err
		}
		fd, err := unix.Openat2(dir, name, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
		})
		if err != nil {
			return err
		}
		if opened >= 0 {
			unix.Close(opened)
		}
		dir, opened = fd, fd
	}
	return unix.Symlinkat(target, dir, path.Base(link))
}

// rootDir is the directory that becomes the root of the box, "" when it is not
// on this machine yet.
func (s *Spec) rootDir() string {
	switch {
	case s.Host != nil:
		return s.Host.Dir
	case s.Rootfs != "":
		return s.Rootfs
	}
	if c := images.Cache(os.Getenv); c != "" {
		return path.Join(c, validate.CacheKey(s.Image))
	}
	return ""
}

// maxLinks is how many links one path may go through, as in the kernel.
const maxLinks = 40

// inRoot gives the path that a target leads to in a root, whose links are taken
// as the box would take them: an absolute one starts at the root. What is not
// there leads nowhere else.
func inRoot(root, target string) string {
	dir, err := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return target
	}
	defer dir.Close()
	at, rest, links := "/", strings.Split(target, "/"), 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		next := path.Join(at, name) // ".." at the root stays there
		var st unix.Stat_t
		if unix.Fstatat(int(dir.Fd()), strings.TrimPrefix(next, "/"), &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
			at = next
			continue
		}
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(dir.Fd()), strings.TrimPrefix(next, "/"), buf)
		if links++; err != nil || links > maxLinks {
			return target
		}
		to := string(buf[:n])
		if path.IsAbs(to) {
			at = "/"
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
	return at
}

// checkAliases looks for targets that go through a link of the root, such as
// /var/run, which is /run in most images. kern refuses a mount there, and puts
// a tmpfs beside the path that programs open.
func (r *run) checkAliases() error {
	s := r.spec
	root := s.rootDir()
	if root == "" || len(s.Mounts) == 0 && len(s.Tmpfs) == 0 {
		return nil
	}
	for _, m := range s.Mounts {
		if real := inRoot(root, m.Target); real != m.Target {
			return &validate.Error{Field: "--volume", Value: m.Target, Reason: "it goes through a link in this root", Fix: "write " + real}
		}
	}
	for _, t := range s.Tmpfs {
		if real := inRoot(root, t.Target); real != t.Target {
			return &validate.Error{Field: "--tmpfs", Value: t.Target, Reason: "it goes through a link in this root, so programs would not see it", Fix: "write " + real}
		}
	}
	return nil
}
