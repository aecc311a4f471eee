package hints

import (
	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Of says what kind of box a Spec is. What only the caller knows (where a value
// came from, what lies on this machine) is left open.
func Of(s *runner.Spec) *Facts {
	f := &Facts{
		Argv: s.Argv, Image: s.Image, Timeout: s.Timeout, Egress: len(s.Egress) > 0, HostNetwork: s.HostNetwork, TTY: s.TTY != nil, User: s.User,
		Memory: int64(s.Memory), PIDs: s.PIDs, Caps: len(s.CapAdd) > 0 || len(s.CapDrop) == 0, Kept: s.Workspace != "", ReadOnlyDeps: !s.DepsWritable,
		EnvGiven: func(k string) bool { return validate.HasKey(s.Env, k) },
	}
	for _, t := range s.Tmpfs {
		if t.Target == "/tmp" {
			f.Tmp = int64(t.Size)
		}
	}
	for _, m := range s.Mounts {
		if m.ReadOnly {
			f.ReadOnlyMounts = append(f.ReadOnlyMounts, m.Target)
		}
	}
	for _, kv := range s.Env {
		if kv.Key == "HOME" {
			f.Home = kv.Value
		}
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		f.HostMemory = int64(uint64(info.Totalram) * uint64(info.Unit))
	}
	return f
}

// Ended adds how the run ended, and what the code wrote to stderr.
func (f *Facts) Ended(res *runner.Result) {
	if res.Fault != nil {
		f.Fault = string(res.Fault.Type)
	}
	if res.ExitCode != nil {
		f.ExitCode = *res.ExitCode
	}
	f.ColdImage = res.ColdImage
	f.Stderr, f.StderrTail = res.StderrHead(), res.StderrTail()
	if f.Fault == string(runner.ExecFailed) || f.Fault == string(runner.StartupFailed) {
		f.Message = res.Fault.Message + "\n" + string(res.RuntimeNotes.Head(2<<10))
	}
	in := func(c runner.Cap) bool { return c.EnforcedBy != nil && *c.EnforcedBy != "none" }
	f.MemoryCapped, f.PIDsCapped = in(res.Limits.Memory), in(res.Limits.PIDs)
}
