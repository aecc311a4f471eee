package hostroot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxMounts bounds what one box mounts. Each costs kern about a millisecond.
const maxMounts = 400

// mountPoints gives the mount points strictly below one of trees.
//
// kern binds without what is mounted below, and for a tree that holds mounts
// the kernel refuses such a bind altogether (EINVAL, tried): /usr of WSL 2 and
// of containers with a GPU are like that, and so is /usr/local on a disk of its
// own.
func (h host) mountPoints(trees []string) ([]string, error) {
	data, err := slurp(h.at("/proc/self/mounts"))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) && h.root != "/" {
			return nil, nil
		}
		return nil, fmt.Errorf("cannot read the mount table: %w", err)
	}
	return mountsBelow(data, trees), nil
}

// slurp is os.ReadFile with one read where that is enough: the kernel writes
// the table anew for each.
func slurp(p string) (string, error) {
	fd, err := unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", os.NewSyscallError("open "+p, err)
	}
	defer unix.Close(fd)
	b := make([]byte, 0, 16<<10)
	for {
		b = slices.Grow(b, 4<<10)
		n, err := unix.Read(fd, b[len(b):cap(b)])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return "", os.NewSyscallError("read "+p, err)
		}
		if n <= 0 {
			return string(b), nil
		}
		b = b[:len(b)+n]
	}
}

// mountsBelow reads a mount table in the form of fstab(5).
func mountsBelow(table string, trees []string) []string {
	var out []string
	for line := range strings.Lines(table) {
		_, rest, ok := strings.Cut(line, " ")
		if !ok {
			continue
		}
		p, _, ok := strings.Cut(rest, " ")
		if !ok || !strings.HasPrefix(p, "/") {
			continue
		}
		p = filepath.Clean(unescape(p))
		for _, t := range trees {
			if p != t && below(p, t) {
				out = append(out, p)
				break
			}
		}
	}
	return out
}

// unescape undoes the kernel's octal escapes (\040 for a blank).
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && octal(s[i+1], '3') && octal(s[i+2], '7') && octal(s[i+3], '7') {
			b = append(b, (s[i+1]-'0')<<6|(s[i+2]-'0')<<3|(s[i+3]-'0'))
			i += 3
			continue
		}
		b = append(b, s[i])
	}
	return string(b)
}

func octal(c, most byte) bool { return c >= '0' && c <= most }

// bind adds what brings dir to the box: one mount, or, where one of inner lies
// below it, its entries one by one. What v leaves out is not among them.
func (h host) bind(dir string, inner []string, v *view) error {
	whole := true
	for _, p := range inner {
		if p != dir && below(p, dir) {
			whole = false
			break
		}
	}
	if whole {
		return v.mount(h, dir)
	}
	entries, err := os.ReadDir(h.at(dir))
	if err != nil {
		return fmt.Errorf("cannot read %s, which holds mount points and so has to be mounted piece by piece: %w", dir, err)
	}
	v.dirs = append(v.dirs, dir)
	v.seen = append(v.seen, dir)
next:
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		for _, w := range v.without {
			if p == w {
				continue next
			}
		}
		switch e.Type() {
		case os.ModeSymlink:
			if t, err := os.Readlink(h.at(p)); err == nil {
				v.links = append(v.links, [2]string{p, t})
			}
		case os.ModeDir:
			if err := h.bind(p, inner, v); err != nil {
				return err
			}
		case 0:
			if err := v.mount(h, p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *view) mount(h host, p string) error {
	if len(v.mounts) == maxMounts {
		return fmt.Errorf("--image host cannot bring %s: file systems are mounted so deep inside that it takes more than %d mounts; use --image REF or --rootfs DIR", p, maxMounts)
	}
	v.mounts = append(v.mounts, Mount{h.at(p), p})
	return nil
}

// resolve follows all links of p inside the host root, fills st for what it
// ends at, and calls visit (if any) with the path of each link on the way.
func (h host) resolve(p string, st *unix.Stat_t, visit func(link string)) (string, error) {
	cur, rest, links := "", p, 0
	if err := h.lstat("/", st); err != nil {
		return "", err
	}
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(strings.TrimLeft(rest, "/"), "/")
		switch name {
		case "", ".":
			continue
		case "..":
			cur = filepath.Dir("/" + cur)
			if cur == "/" {
				cur = ""
			}
			if err := h.lstat("/"+cur, st); err != nil {
				return "", err
			}
			continue
		}
		next := cur + "/" + name
		if err := h.lstat(next, st); err != nil {
			return "", err
		}
		switch kind(st) {
		case unix.S_IFLNK:
			if links++; links > 40 {
				return "", unix.ELOOP
			}
			if visit != nil {
				visit(next)
			}
			t, err := os.Readlink(h.at(next))
			if err != nil {
				return "", err
			}
			if strings.HasPrefix(t, "/") {
				cur = ""
			}
			rest = t + "/" + rest
		case unix.S_IFDIR:
			cur = next
		default:
			if strings.Trim(rest, "/") != "" {
				return "", unix.ENOTDIR
			}
			cur = next
		}
	}
	if cur == "" {
		cur = "/"
	}
	return cur, h.lstat(cur, st)
}
