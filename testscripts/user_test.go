package testscripts

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kern-sbx/kern-sbx/testscripts/rig"
)

// Another user of the box is another user of the host, by a number lent to the
// caller: its files are deleted all the same, also by the next start.
func TestUserOfTheBox(t *testing.T) {
	if _, err := exec.LookPath("newuidmap"); err != nil {
		t.Skip("needs newuidmap (package uidmap)")
	}
	sh := build(t)
	o := rig.Options{User: rig.Tester, Delegate: true, RO: []string{sh.dir}, Timeout: 5 * time.Minute, Mem: 1024}
	guest := rig.Boot(t, o)
	o.Mem = 0
	o.Env = []string{"KERN_SBX_IMAGE=host"}
	if !sh.embed {
		o.Env = append(o.Env, "KERN_BIN="+filepath.Join(sh.dir, "kern", "kern"))
	}
	sbx := filepath.Join(sh.dir, "bin", "kern-sbx")
	hide := `id -u; mkdir -p /workspace/a/b/c && echo x >/workspace/a/b/c/f && ln -s / /workspace/a/l && chmod 0 /workspace/a/b && chmod 700 /workspace/a && echo made`
	left := "; find $HOME/.cache/kern-sbx/run -mindepth 1"
	for name, c := range map[string]struct{ script, want string }{
		"by number":       {sbx + ` run -q --timeout 2m --user 1000 -- sh -c '` + hide + `'` + left, "1000\nmade\n"},
		"by name":         {sbx + ` run -q --timeout 2m --user nobody -- sh -c '` + hide + `'` + left, "65534\nmade\n"},
		"with its group":  {sbx + ` run -q --timeout 2m --user 1000:1000 -- sh -c 'id -g; ` + hide + `'` + left, "1000\n1000\nmade\n"},
		"after a SIGKILL": {sbx + ` run -q --timeout 2m --user 1000 -- sh -c '` + hide + `; sleep 60' & sleep 4; kill -9 $!; sleep 1; ` + sbx + ` run -q -- sleep 4` + left, "1000\nmade\n"},
		"a kept workspace is refused": {
			`mkdir -m 755 $HOME/kept; ` + sbx + ` run -q --user 1000 -W $HOME/kept -- true 2>&1 | grep -c -e 'cannot write this workspace.*chmod'` + left, "1\n",
		},
		"unless it is let in": {
			`mkdir -p $HOME/open; chmod 777 $HOME/open; ` + sbx + ` run -q --user 1000 -W $HOME/open -- sh -c 'echo x >/workspace/f' && cat $HOME/open/f` + left, "x\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := guest.Run(t, o, "sh", "-c", c.script)
			if r.Stdout != c.want || strings.Contains(r.Stderr, "could not be removed") {
				t.Errorf("stdout %q, want %q\n%s", r.Stdout, c.want, r.Stderr)
			}
		})
	}
}
