package testscripts

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kern-sbx/kern-sbx/testscripts/rig"
)

// TestDoctorOnV2: what doctor says of cgroups, and what the small boxes then show,
// is the same story on each kind of host.
func TestDoctorOnV2(t *testing.T) {
	if testing.Short() {
		t.Skip("boots guests")
	}
	if why, ok := rig.Available(); !ok {
		t.Skip("no guest with cgroup v2: " + why)
	}
	sh := build(t)
	for _, host := range []struct {
		name    string
		opts    rig.Options
		cgroups string // status
		memory  string // who enforces it
		promise string // status of promise-memory
	}{
		{"root", rig.Options{User: rig.Root, Delegate: true}, "ok", "kern", "ok"},
		{"user with a delegated subtree", rig.Options{User: rig.Tester, Delegate: true}, "ok", "kern-sbx", "ok"},
		{"user without delegation", rig.Options{User: rig.Tester}, "warn", "none", "warn"},
		{"root with a tree that is read-only", rig.Options{User: rig.Root}, "warn", "none", "warn"},
	} {
		t.Run(host.name, func(t *testing.T) {
			o := host.opts
			o.RO, o.Timeout, o.Mem = []string{sh.dir}, 3*time.Minute, 1024
			guest := rig.Boot(t, o)
			o.Mem = 0
			if !sh.embed {
				o.Env = append(o.Env, "KERN_BIN="+filepath.Join(sh.dir, "kern", "kern"))
			}
			// The guest is emulated: a start takes a second.
			r := guest.Run(t, o, filepath.Join(sh.dir, "bin", "kern-sbx"), "doctor", "--image", "host", "--json", "--start-timeout", "1m")
			var d struct {
				ExitCode int `json:"exit_code"`
				Checks   []struct {
					ID, Status, Why, Remedy string
					Values                  []struct{ Name, Value string }
				}
			}
			if err := json.Unmarshal([]byte(r.Stdout), &d); err != nil {
				t.Fatalf("%v\nstatus %d\n%s\n%s", err, r.Status, r.Stdout, r.Stderr)
			}
			if r.Status != 0 || d.ExitCode != 0 {
				t.Errorf("status %d, exit code %d\n%s", r.Status, d.ExitCode, r.Stderr)
			}
			for _, c := range d.Checks {
				want, value := "", ""
				switch c.ID {
				case "cgroups":
					want = host.cgroups
				case "limits":
					want, value = host.promise, "enforced by "+host.memory
				case "promise-memory":
					want, value = host.promise, host.memory
				case "promise-tmp", "promise-output", "promise-deadline", "promise-network", "box", "root", "privileges", "network":
					want = "ok"
				default:
					if c.Status == "fail" {
						t.Errorf("%s: %s", c.ID, c.Why)
					}
					continue
				}
				found := value == ""
				for _, v := range c.Values {
					found = found || strings.HasSuffix(v.Value, value)
				}
				if c.Status != want || !found {
					t.Errorf("%s is %s (%s) %+v; want %s and %q", c.ID, c.Status, c.Why, c.Values, want, value)
				}
			}
		})
	}
}
