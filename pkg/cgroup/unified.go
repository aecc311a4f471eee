package cgroup

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// above lists the directories of a unified tree below which a group can be
// made, the best first. A cgroup with processes cannot hand controllers down,
// so they are those above our own; the root of the machine's tree is the
// exception, and is told from the root of a container's by having no type.
func (t *tree) above() []string {
	if !t.v2 || t.own == "" {
		return nil
	}
	if t.own == t.mount {
		return []string{t.mount}
	}
	var out []string
	for d := filepath.Dir(t.own); len(d) >= len(t.mount); d = filepath.Dir(d) {
		out = append(out, d)
	}
	return out
}

// placeUnified picks the directory that hands most of the controllers down, and
// gives the others their reason.
func (s *system) placeUnified(t *tree, caps []*request) (parent string) {
	var best map[string]bool
	var why error
	for _, dir := range t.above() {
		if err := s.usable(dir); err != nil {
			// The nearest one says best what is missing.
			if why == nil {
				why = t.explain(err, dir)
			}
			continue
		}
		on := s.handedDown(t, dir, caps)
		if parent == "" || len(on) > len(best) {
			parent, best = dir, on
		}
		if len(best) == len(caps) {
			break
		}
	}
	for _, c := range caps {
		switch {
		case best[c.controller]:
		case parent != "" && t.own == t.mount:
			c.err = errors.New("our own cgroup is the top of all that is visible here, and has processes: nothing can be capped below it")
		case parent != "":
			c.err = fmt.Errorf("cgroup %s does not hand this controller down", t.rel(parent))
		case why != nil:
			c.err = why
		default:
			c.err = errors.New("there is no cgroup above ours")
		}
	}
	return parent
}

// usable says whether a group can be made below a directory and processes be
// moved into it from our own cgroup: the kernel wants the common ancestor's
// process list to be writable.
func (s *system) usable(dir string) error {
	if err := s.access(dir); err != nil {
		return err
	}
	return s.access(dir + "/cgroup.procs")
}

// handedDown says which of the controllers a directory's children get.
func (s *system) handedDown(t *tree, dir string, caps []*request) map[string]bool {
	on := map[string]bool{}
	read := func() []string {
		list, _ := readFile(dir + "/cgroup.subtree_control")
		return strings.Fields(list)
	}
	have := read()
	if s.mayEnable(t, dir) {
		for _, c := range caps {
			if !slices.Contains(have, c.controller) {
				_ = writeFile(dir+"/cgroup.subtree_control", "+"+c.controller)
			}
		}
		have = read()
	}
	for _, c := range caps {
		if slices.Contains(have, c.controller) {
			on[c.controller] = true
		}
	}
	return on
}

// mayEnable says whether we may switch controllers on in a directory: only an
// ordinary user in one that was given to them. Elsewhere it is the host's
// layout.
func (s *system) mayEnable(t *tree, dir string) bool {
	var st syscall.Stat_t
	return s.euid != 0 && dir != t.own && syscall.Stat(dir, &st) == nil && int(st.Uid) == s.euid
}
