package testscripts

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kern-sbx/kern-sbx/testscripts/rig"
)

// capsDoc is what the test looks at of a result.
type capsDoc struct {
	Status   int
	ExitCode *int `json:"exit_code"`
	Fault    *struct{ Type, Message string }
	Stdout   string
	Started  *time.Time
	Duration int64 `json:"duration_ms"`
	Usage    struct {
		CPU    int64  `json:"cpu_time_ms"`
		Peak   int64  `json:"peak_memory"`
		Source string `json:"peak_memory_source"`
	}
	Limits struct {
		Memory, PIDs, CPU struct {
			By string `json:"enforced_by"`
		}
	}
	Notes string `json:"runtime_notes"`
}

func (d *capsDoc) fault() string {
	if d.Fault == nil {
		return ""
	}
	return d.Fault.Type
}

// TestCaps runs kern-sbx on hosts with cgroup v2: where kern caps, where only we
// can, and where nobody can. What each must do is the same but for who does it.
func TestCaps(t *testing.T) {
	if testing.Short() {
		t.Skip("boots guests")
	}
	if why, ok := rig.Available(); !ok {
		t.Skip("no guest with cgroup v2: " + why)
	}
	sh := build(t)
	for _, host := range []struct {
		name   string
		opts   rig.Options
		memory string // who enforces
		pids   string
	}{
		{"root", rig.Options{User: rig.Root, Delegate: true}, "kern", "kern"},
		{"user with a delegated subtree and no manager", rig.Options{User: rig.Tester, Delegate: true}, "kern-sbx", "kern-sbx"},
		// kern's first box may lose its cap to systemd right after a login; then it is ours.
		{"user with a systemd manager", rig.Options{User: rig.Tester, Manager: true}, "kern|kern-sbx", "kern|kern-sbx"},
		{"user without delegation", rig.Options{User: rig.Tester}, "none", "rlimit"},
		{"root without delegation", rig.Options{User: rig.Root}, "none", "none"},
	} {
		t.Run(host.name, func(t *testing.T) {
			o := host.opts
			o.RO = []string{sh.dir}
			o.Timeout = 5 * time.Minute
			o.Mem = 1024
			guest := rig.Boot(t, o)
			o.Mem = 0
			o.Env = []string{"KERN_SBX_IMAGE=host"}
			if !sh.embed {
				o.Env = append(o.Env, "KERN_BIN="+filepath.Join(sh.dir, "kern", "kern"))
			}
			sbx := filepath.Join(sh.dir, "bin", "kern-sbx")
			run := func(t *testing.T, args ...string) capsDoc {
				t.Helper()
				r := guest.Run(t, o, append([]string{sbx, "run", "--json", "--timeout", "2m", "--start-timeout", "2m"}, args...)...)
				var d capsDoc
				if err := json.Unmarshal([]byte(r.Stdout), &d); err != nil {
					t.Fatalf("%v: %v\nstatus %d\n%s\n%s", args, err, r.Status, r.Stdout, r.Stderr)
				}
				if r.Status != d.Status {
					t.Errorf("%v: exit %d, and the document says %d", args, r.Status, d.Status)
				}
				return d
			}
			capped := host.memory != "none"

			t.Run("memory", func(t *testing.T) {
				// tail keeps a line that never ends. (field case 7: a shell cannot
				// absorb the kill)
				hog := `head -c 100m /dev/zero | tail -c 100m | wc -c || echo handled`
				d := run(t, "--memory", "32m", "--", "sh", "-c", hog)
				if capped {
					if d.Status != 137 || d.fault() != "oom" || strings.Contains(d.Stdout, "handled") || d.ExitCode != nil {
						t.Errorf("status %d, fault %q, stdout %q, want an oom of the whole box", d.Status, d.fault(), d.Stdout)
					}
				} else if d.Status != 0 || d.fault() != "" || strings.TrimSpace(d.Stdout) != fmt.Sprint(100<<20) {
					t.Errorf("status %d, fault %q, stdout %q, want a run without a cap", d.Status, d.fault(), d.Stdout)
				}
				if !slices.Contains(strings.Split(host.memory, "|"), d.Limits.Memory.By) || !slices.Contains(strings.Split(host.pids, "|"), d.Limits.PIDs.By) {
					t.Errorf("enforced by %s and %s, want %s and %s", d.Limits.Memory.By, d.Limits.PIDs.By, host.memory, host.pids)
				}
				if host.memory == "kern-sbx" && strings.Contains(d.Notes, "UNCAPPED") {
					t.Errorf("kern's note that the box is uncapped is not true here, and was kept:\n%s", d.Notes)
				}
				if host.memory == "kern-sbx" && (d.Usage.Source != "cgroup" || d.Usage.Peak < 16<<20) {
					t.Errorf("peak %d from %s", d.Usage.Peak, d.Usage.Source)
				}
			})
			t.Run("a chosen 137 is no oom", func(t *testing.T) {
				if d := run(t, "--memory", "64m", "--", "sh", "-c", "exit 137"); d.Status != 137 || d.fault() != "" {
					t.Errorf("status %d, fault %q", d.Status, d.fault())
				}
			})
			t.Run("pids", func(t *testing.T) {
				d := run(t, "--pids-limit", "20", "--", "sh", "-c", "for i in $(seq 60); do sleep 20 & done; echo all")
				if all := strings.Contains(d.Stdout, "all"); all != (host.pids == "none") || d.fault() != "" {
					t.Errorf("status %d, fault %q, stdout %q: a refused fork is no fault, and there has to be one unless nothing is capped", d.Status, d.fault(), d.Stdout)
				}
			})
			t.Run("require-limits", func(t *testing.T) {
				d := run(t, "--memory", "64m", "--require-limits", "--", "echo", "ran") // field case 9
				if capped && (d.Status != 0 || d.Stdout != "ran\n") {
					t.Errorf("status %d, fault %+v, stdout %q", d.Status, d.Fault, d.Stdout)
				}
				if !capped && (d.Status != 125 || d.fault() != "startup_failed" || d.Stdout != "" || !strings.Contains(d.Fault.Message, "memory")) {
					t.Errorf("status %d, fault %+v, stdout %q: has to be refused, naming the cap", d.Status, d.Fault, d.Stdout)
				}
			})
			if capped {
				t.Run("cpu", func(t *testing.T) {
					d := run(t, "--cpus", "0.5", "--timeout", "6s", "--", "sh", "-c", "while :; do :; done")
					if share := float64(d.Usage.CPU) / 6000; d.fault() != "timeout" || share > 0.75 || !slices.Contains(strings.Split(host.memory, "|"), d.Limits.CPU.By) {
						t.Errorf("fault %q, %.2f of a CPU by %s, want half of one", d.fault(), share, d.Limits.CPU.By)
					}
				})
				t.Run("scratch below the cap is an error, not a kill", func(t *testing.T) {
					d := run(t, "--memory", "64m", "--", "sh", "-c", "head -c 50m /dev/zero >/tmp/x; echo code $?")
					if !strings.Contains(d.Stdout, "code 1") || d.fault() != "" {
						t.Errorf("status %d, fault %q, stdout %q", d.Status, d.fault(), d.Stdout)
					}
				})
				t.Run("shared memory is charged to the cap", func(t *testing.T) {
					d := run(t, "--memory", "64m", "--", "sh", "-c", "head -c 100m /dev/zero >/dev/shm/x && echo wrote") // field case 17
					if strings.Contains(d.Stdout, "wrote") {
						t.Errorf("status %d, fault %q, stdout %q", d.Status, d.fault(), d.Stdout)
					}
				})
			}
			t.Run("nothing is left", func(t *testing.T) {
				script := sbx + ` run --memory 64m -- true; ` + sbx + ` run --timeout 1s -- sleep 20; ` + sbx + ` run -- sleep 20 & sleep 3; kill -9 $!; sleep 1; ` +
					sbx + ` run -- true; sleep 2; find /sys/fs/cgroup -name 'kern-sbx-*' -o -name 'kern-box-*'; find $HOME/.cache/kern-sbx/run -mindepth 1`
				r := guest.Run(t, o, "sh", "-c", script)
				if strings.TrimSpace(r.Stdout) != "" {
					t.Errorf("left behind:\n%s\n%s", r.Stdout, r.Stderr)
				}
			})
		})
	}
}
