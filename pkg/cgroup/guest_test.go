package cgroup_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kern-sbx/kern-sbx/testscripts/rig"
)

// TestUnified runs the tests of this package on a Linux with a unified cgroup
// tree, in each place a caller can be in there.
func TestUnified(t *testing.T) {
	if os.Getenv("KERN_SBX_CGROUP_TEST_EXPECT") != "" {
		t.Skip("this is the guest")
	}
	if testing.Short() {
		t.Skip("boots a guest")
	}
	if reason, ok := rig.Available(); !ok {
		t.Skip(reason)
	}
	// Not the running one: the race detector needs more addresses than the guest has.
	self := filepath.Join(t.TempDir(), "cgroup.test")
	build := exec.Command("go", "test", "-c", "-o", self, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ro := []string{self}
	env := []string{}
	if kern, err := filepath.EvalSymlinks(os.Getenv("KERN_BIN")); err == nil && os.Getenv("KERN_BIN") != "" {
		if kern, err = filepath.Abs(kern); err != nil {
			t.Fatal(err)
		}
		ro, env = append(ro, kern), append(env, "KERN_BIN="+kern)
	}
	g := rig.Boot(t, rig.Options{})
	const service = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service"
	for _, tt := range []struct {
		name, expect, before string
		o                    rig.Options
	}{
		{"root", "bound", "", rig.Options{User: rig.Root, Delegate: true}},
		{"root read-only", "the cgroup tree is mounted read-only", "", rig.Options{User: rig.Root}},
		{"delegated", "bound", "", rig.Options{User: rig.Tester, Delegate: true}},
		{
			"delegated and not handed down", "bound", "echo '-memory -pids -cpu' >" + service + "/cgroup.subtree_control; ",
			rig.Options{User: rig.Tester, Delegate: true},
		},
		{"undelegated", "belongs to another user", "", rig.Options{User: rig.Tester}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := tt.o
			o.RO, o.Env = ro, append(env, "KERN_SBX_CGROUP_TEST_EXPECT="+tt.expect)
			res := g.Run(t, o, "/bin/sh", "-c", tt.before+`exec "$0" "$@"`, self, "-test.v",
				"-test.run", "OutOfMemory|NoOOM|Forks|CPU|Kill|Busy|Sweep|Exempt|AddChild|KernBox")
			if res.Status != 0 || !strings.Contains(res.Stdout, "PASS") {
				t.Errorf("status %d\n%s\n%s", res.Status, res.Stdout, res.Stderr)
			} else {
				t.Log(res.Stdout)
			}
		})
	}
}
