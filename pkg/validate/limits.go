package validate

import (
	"slices"
	"strconv"
	"strings"
)

// CPUSet checks a list of CPUs: numbers and ascending ranges, separated by
// commas ("0-3", "0,2,4"). Whether the host has them is kern's to say.
func CPUSet(s string) error {
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		a, ok := digits(from, 4)
		b := a
		if isRange && ok {
			b, ok = digits(to, 4)
		}
		if !ok {
			return refuse(s, "not a list of CPUs", "write numbers and ranges, like 0-3 or 0,2,4")
		}
		if a > b {
			return refuse(s, "a range that goes down", "write "+strconv.Itoa(b)+"-"+strconv.Itoa(a))
		}
	}
	return nil
}

var ulimits = []string{
	"core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile",
	"nproc", "rss", "rtprio", "rttime", "sigpending", "stack",
}

// Ulimit checks a resource limit: NAME=SOFT[:HARD] in the kernel's own unit for
// that resource (bytes, seconds, a count), "unlimited" for none. The hard limit
// is the soft one when it is not given.
func Ulimit(s string) error {
	const form = "write NAME=SOFT or NAME=SOFT:HARD, like nofile=1024:4096"
	name, value, ok := strings.Cut(s, "=")
	if !slices.Contains(ulimits, name) {
		if near := Nearest(name, ulimits); near != "" {
			return refuse(s, "unknown limit "+quote(name), "did you mean "+near+"?")
		}
		return refuse(s, "unknown limit "+quote(name), "there are "+strings.Join(ulimits, " "))
	}
	if !ok {
		return refuse(s, "no value", form)
	}
	soft, hard, two := strings.Cut(value, ":")
	a, okA := rlimit(soft)
	b, okB := a, okA
	if two {
		b, okB = rlimit(hard)
	}
	switch {
	case !okA || !okB:
		return refuse(s, "a limit is a whole number without unit, or unlimited", form)
	case a > b:
		return refuse(s, "the soft limit is above the hard one", form)
	}
	return nil
}

// rlimit reads one bound; the largest number is the kernel's "unlimited".
func rlimit(s string) (uint64, bool) {
	if s == "unlimited" || s == "-1" {
		return 1<<64 - 1, true
	}
	if strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil
}
