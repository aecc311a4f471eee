package runner

import (
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// namePrefix begins the name of every box of ours in `kern ps`.
const namePrefix = "kern-sbx-"

// backstop is how much later than ours kern's own timer ends a box (SIGTERM
// then, SIGKILL two seconds later). It only matters when we cannot: suspended,
// or killed. kern's clock starts when the box is built, as ours does.
const backstop = 2 * time.Second

// unlimited is kern's timer for a run without a deadline: a box whose
// supervisor and launcher are both gone must end some day.
const unlimited = 30 * 24 * time.Hour

// kernTimeout is the number of seconds for kern's --timeout.
func (s *Spec) kernTimeout() time.Duration {
	if s.Timeout <= 0 {
		return unlimited
	}
	d := s.Timeout + backstop
	return time.Duration(math.Ceil(d.Seconds())) * time.Second
}

// argv builds kern's command line. Values of the environment are not in it:
// envFD is the descriptor that kern reads them from. No value can be taken for
// a flag: names are ours, paths are absolute, and the command comes after --.
func (s *Spec) argv(name string, mounts []placed, envFD int) ([]string, error) {
	a := []string{"kern", "box", name}
	switch {
	case s.Host != nil:
		a = append(a, "--rootfs", s.Host.Dir)
	case s.Rootfs != "":
		a = append(a, "--rootfs", s.Rootfs)
	default:
		// Pulling is ours (it has its own budget), so kern never does.
		a = append(a, "--image", s.Image, "--pull", "never")
		if len(s.Code) > 0 || s.prepares || s.agentIn() {
			// An image's ENTRYPOINT would be put before our own program.
			a = append(a, "--entrypoint", "")
		}
	}
	a = append(a, "--read-only", "--quiet")
	for _, m := range mounts {
		flag, value, err := validate.MountArg(m.Mount)
		if err != nil {
			return nil, err
		}
		a = append(a, flag, value)
	}
	wd := s.Workdir
	if wd == "" {
		wd = WorkspaceDir
	}
	a = append(a, "--workdir", wd)
	pair := func(flag string, values ...string) {
		for _, v := range values {
			if v != "" {
				a = append(a, flag, v)
			}
		}
	}
	pair("--cap-drop", s.CapDrop...)
	pair("--cap-add", s.CapAdd...)
	if slices.Contains(s.CapDrop, "ALL") && s.rootUser() {
		// Without capabilities a box cannot use other uids, and without the
		// helpers that map them kern would say so on each run.
		a = append(a, "--no-uid-range")
	} else if s.Image == "" {
		// kern does that by itself for an image only. Where no range is lent to the
		// caller it says so, and goes on.
		a = append(a, "--uid-range")
	}
	pair("--user", s.User)
	for _, t := range s.Tmpfs {
		a = append(a, "--tmpfs", t.Arg())
	}
	pair("--security-profile", s.Security)
	pair("--apparmor", s.AppArmor)
	pair("--hostname", s.Hostname)
	pair("--cpuset-cpus", s.CPUSet)
	pair("--ulimit", s.Ulimits...)
	if s.HostNetwork {
		a = append(a, "--network", "host")
	}
	pair("--egress-allow", strings.Join(s.Egress, ","))
	pair("--config", s.KernConfig)
	a = append(a, s.Profiles...)
	if s.Limits == LimitsOff {
		a = append(a, "--shm-size", DefaultMemory.Kern())
	} else if s.Memory > 0 {
		a = append(a, "--memory", s.Memory.Kern())
	}
	if s.CPUs > 0 && s.Limits != LimitsOff {
		a = append(a, "--cpus", strconv.FormatFloat(s.CPUs, 'f', -1, 64))
	}
	if s.PIDs > 0 && s.Limits != LimitsOff {
		a = append(a, "--pids-limit", strconv.Itoa(s.pidsInBox()))
	}
	switch {
	case s.RequireLimits && s.Limits == LimitsKern:
		a = append(a, "--require-limits")
	case s.Limits != LimitsKern:
		// Whether a cap is in force is seen at the gate, and said by us.
		a = append(a, "--allow-uncapped")
	}
	a = append(
		a,
		"--timeout", strconv.Itoa(int(s.kernTimeout()/time.Second)),
		// Without it `kern stop` waits ten seconds for a program that ignores TERM.
		"--stop-timeout", "0",
		"--env-file", "/proc/self/fd/"+strconv.Itoa(envFD),
		"--",
	)
	return append(a, s.command()...), nil
}

// kernEnv is the environment that kern itself runs in: the caller's, without
// the variables that change what kern does (one of them weakens the seccomp
// filter). None of it reaches the box.
func kernEnv(extra ...string) []string {
	all := os.Environ()
	env := make([]string, 0, len(all)+len(extra))
	for _, e := range all {
		if !strings.HasPrefix(e, "KERN_") || strings.HasPrefix(e, "KERN_SBX_") {
			env = append(env, e)
		}
	}
	if os.Getenv("HOME") == "" && os.Getenv("XDG_DATA_HOME") == "" {
		// kern would keep its data in /tmp itself then, and refuse every mount
		// from there as its own.
		env = append(env, "XDG_DATA_HOME="+privateDir()+"/data")
	}
	return append(env, extra...)
}
