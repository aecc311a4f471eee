//go:build linux && amd64

package rig

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// box is the start of every script below: `box FLAGS -- CMD` runs CMD in a kern box
// over the guest's own /usr and prints its exit status and the teardown bytes, then
// whatever CMD itself printed.
const box = `
set -u
for d in dev etc proc sys tmp usr; do mkdir -p /tmp/skeleton/$d; done
for l in bin lib lib64 sbin; do [ ! -e /$l ] || ln -s usr/$l /tmp/skeleton/$l; done
box() {
	rc=0
	KERN_STARTED_FD=9 "$KERN" box case --rootfs /tmp/skeleton --read-only -v /usr:/usr:ro --no-uid-range --cap-drop ALL \
		--stop-timeout 0 --timeout 60 "$@" 9>/tmp/bytes >/tmp/out || rc=$?
	echo $rc: $(od -An -v -tu1 /tmp/bytes): $(cat /tmp/out)
}
`

// grab is a program that touches 200 MiB. Perl is on every Debian; python3 is not.
const grab = `box --memory 128m -- /usr/bin/perl -e '$x = "a" x (200 << 20); print "lived"'`

// TestKern pins what the product relies on: which set-ups kern can cap in, and what
// its four teardown bytes (started, cap, oom, signal) then say.
func TestKern(t *testing.T) {
	kern := os.Getenv("KERN_BIN")
	if kern == "" {
		t.Skip("KERN_BIN is not set: no kern to try")
	}
	kern, err := filepath.EvalSymlinks(kern)
	if err != nil {
		t.Fatal(err)
	}
	if kern, err = filepath.Abs(kern); err != nil {
		t.Fatal(err)
	}
	g := Boot(t, Options{})
	t.Logf("booted in %v", g.BootTime)

	capped := []Options{{User: Root, Delegate: true}, {User: Tester, Manager: true}}
	uncapped := []Options{{User: Root}, {User: Tester}, {User: Tester, Delegate: true}}
	for _, tt := range []struct {
		name   string
		in     []Options
		script string
		want   string // the whole line; "" when check looks at it
		check  func(line string) (ok bool)
	}{
		{name: "own exit", in: capped, script: `box --memory 128m -- /bin/sh -c 'echo hi; exit 3'`, want: "3: 1 1 0 0: hi"},
		{name: "own signal", in: capped, script: `box --memory 128m -- /bin/sh -c 'sh -c "kill -9 \$\$"; exit $?'`, want: "137: 1 1 0 0:"},
		{name: "oom", in: capped, script: grab, want: "137: 1 1 1 9:"},
		{
			name: "pids", in: capped,
			script: `box --pids-limit 32 -- /usr/bin/perl -e 'use Errno; while (defined($p = fork)) { $p or sleep 100; $n++ }
				print "$n ", $!{EAGAIN} ? "EAGAIN" : $!; kill 9, -1'`,
			check: func(line string) bool {
				// The box's own processes count too: one for perl, and one more in some set-ups.
				return line == "0: 1 0 0 0: 31 EAGAIN" || line == "0: 1 0 0 0: 30 EAGAIN"
			},
		},
		{
			name: "cpu", in: capped,
			// Counted by the kernel, from outside: what a busy loop in the box believes it
			// got is far off when the machine under the guest is busy.
			script: `box --cpus 0.5 --timeout 4 -- /usr/bin/perl -e '1 while 1' >/dev/null & n=0
				until f=$(grep -rls '^50000 100000' --include=cpu.max /sys/fs/cgroup) || [ $n = 30 ]; do n=$((n + 1)); sleep 0.2; done
				sleep 2; awk '{ v[$1] = $2 } END { print int(v["usage_usec"] / v["nr_periods"] / 1000) }' ${f%cpu.max}cpu.stat; wait`,
			check: func(line string) bool { // about 50 % of a CPU
				percent, err := strconv.Atoi(line)
				return err == nil && percent >= 40 && percent <= 60
			},
		},
		{name: "oom", in: uncapped, script: grab, want: "0: 1 2 0 0: lived"},
		{name: "refusal", in: uncapped, script: `box --memory 128m --require-limits -- /bin/true`, want: "1: :"},
		{
			// Where there is no manager the caller can still cap kern as a whole, in a
			// sibling of its own cgroup. kern then says that a cap holds, and not that it
			// was the cap that killed: only the sibling's own counter does.
			name: "caller's cgroup", in: []Options{{User: Tester, Delegate: true}},
			script: `me=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup); mine=${me%/*}/mine
				mkdir $mine && echo 128M >$mine/memory.max
				(echo 0 >$mine/cgroup.procs; ` + grab + `; grep 'oom_kill ' $mine/memory.events) | paste -s -d ' '`,
			want: "137: 1 1 0 9: oom_kill 1",
		},
	} {
		for _, o := range tt.in {
			name := o.User
			switch {
			case o.Manager:
				name += " with a manager"
			case o.Delegate:
				name += " delegated"
			}
			t.Run(tt.name+"/"+name, func(t *testing.T) {
				o.RO, o.Env = []string{kern}, []string{"KERN=" + kern}
				script := box + tt.script
				if o.Manager {
					// kern's first box under a fresh manager races with systemd 252, which may take
					// memory out of kern.slice again right after kern has put it in: the box then
					// runs uncapped though its bytes say 1 1, or is refused. Not with later boxes.
					script = box + "box --memory 128m -- /bin/true >/dev/null 2>&1\n" + tt.script
				}
				tries := 1
				if o.Manager || tt.name == "cpu" {
					tries = 3 // that race; and a share of a busy machine
				}
				for {
					res := g.Run(t, o, "/bin/sh", "-c", script)
					line := strings.TrimSpace(res.Stdout)
					if tt.check != nil && tt.check(line) || tt.check == nil && line == tt.want {
						return
					}
					t.Logf("got %q, want %q; stderr: %s", line, tt.want, res.Stderr)
					if tries--; tries == 0 {
						t.Fatal("not what the product relies on")
					}
				}
			})
		}
	}
}
