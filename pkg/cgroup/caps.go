package cgroup

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The kernel keeps memory in pages of up to 64 KiB, and rounds down.
const pageSlack = 64 << 10

// capMemory caps memory, and swap with it.
func (n *node) capMemory(limit int64) error {
	value := strconv.FormatInt(limit, 10)
	if n.v2 {
		if err := n.set("memory.max", value); err != nil {
			return err
		}
		// Absent where swap is not counted.
		if err := writeFile(n.dir+"/memory.swap.max", "0"); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("memory.swap.max could not be set: %w", err)
		}
		// Without it the kernel kills one process, and the box lives on.
		if err := n.exact("memory.oom.group", "1"); err != nil {
			return err
		}
		return n.atMost("memory.max", limit)
	}
	if above, err := readFile(filepath.Dir(n.dir) + "/memory.use_hierarchy"); err == nil && above == "0" {
		// Old kernels: what is below a cgroup may not count towards its limit, and
		// a box must not escape the limit around us.
		if _, err := os.Stat(filepath.Dir(filepath.Dir(n.dir)) + "/memory.use_hierarchy"); err == nil {
			return errors.New("the cgroup around us does not count what is below it (memory.use_hierarchy is 0)")
		}
	}
	if err := n.set("memory.limit_in_bytes", value); err != nil {
		return err
	}
	// Memory and swap together. Absent where swap is not counted, and then the
	// kernel is asked not to use it.
	switch err := writeFile(n.dir+"/memory.memsw.limit_in_bytes", value); {
	case errors.Is(err, unix.ENOENT):
		_ = writeFile(n.dir+"/memory.swappiness", "0")
	case err != nil:
		return fmt.Errorf("memory.memsw.limit_in_bytes could not be set: %w", err)
	default:
		if err := n.atMost("memory.memsw.limit_in_bytes", limit); err != nil {
			return err
		}
	}
	// The kernel's killer stays on, see Watch. The cgroup around us may have
	// switched it off, and that is inherited.
	if field(n.dir+"/memory.oom_control", "oom_kill_disable") != 0 {
		if err := n.set("memory.oom_control", "0"); err != nil {
			return err
		}
	}
	return n.atMost("memory.limit_in_bytes", limit)
}

func (n *node) capPIDs(limit int) error {
	return n.exact("pids.max", strconv.Itoa(limit))
}

// quota turns CPUs into microseconds per period. The kernel takes no quota
// below 1 ms and no period above 1 s.
func quota(cpus float64) (quota, period int64) {
	period = 100_000
	if cpus < 0.01 {
		period = 1_000_000
	}
	return max(1000, int64(math.Round(cpus*float64(period)))), period
}

func (n *node) capCPU(cpus float64) error {
	q, p := quota(cpus)
	if n.v2 {
		return n.exact("cpu.max", fmt.Sprintf("%d %d", q, p))
	}
	if err := n.exact("cpu.cfs_period_us", strconv.FormatInt(p, 10)); err != nil {
		return err
	}
	err := n.exact("cpu.cfs_quota_us", strconv.FormatInt(q, 10))
	if errors.Is(err, unix.EINVAL) && n.tighterAbove(cpus) {
		return nil
	}
	return err
}

// tighterAbove says whether a cgroup around this one allows less than cpus
// already. The v1 kernel refuses a larger quota below such a one, and the
// caller's cap then holds anyway.
func (n *node) tighterAbove(cpus float64) bool {
	for dir := filepath.Dir(n.dir); ; dir = filepath.Dir(dir) {
		q, err := number(dir + "/cpu.cfs_quota_us")
		if err != nil {
			return false
		}
		p, err := number(dir + "/cpu.cfs_period_us")
		if err == nil && q > 0 && p > 0 && float64(q)/float64(p) <= cpus {
			return true
		}
	}
}

// set writes a value.
func (n *node) set(file, value string) error {
	if err := writeFile(n.dir+"/"+file, value); err != nil {
		return fmt.Errorf("%s could not be set: %w", file, err)
	}
	return nil
}

// exact writes a value, and reads the same back.
func (n *node) exact(file, value string) error {
	if err := n.set(file, value); err != nil {
		return err
	}
	if got, err := readFile(n.dir + "/" + file); err != nil || strings.TrimSpace(got) != value {
		return fmt.Errorf("%s was set to %s and reads %q", file, value, got)
	}
	return nil
}

// atMost reads a number of bytes back.
func (n *node) atMost(file string, limit int64) error {
	got, err := number(n.dir + "/" + file)
	if err != nil || got > limit || got < limit-pageSlack {
		return fmt.Errorf("%s was set to %d and reads %d", file, limit, got)
	}
	return nil
}
