package doctor

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
)

// Facts are the answers of the agent's probe by question. The probe is ours and
// read-only in the box, but what it reads there is the image's.
type Facts map[string]string

// Bounds of what is taken from a box.
const (
	maxProbe   = 1 << 20
	maxAnswers = 1000
)

var (
	errCut    = errors.New("the probe's answer is incomplete")
	errFormat = errors.New("the probe's answer is not one")
)

// parseFacts reads what "agent probe" wrote: questions and answers, each ended by
// a zero byte, and "end" with an empty answer as the last. whole says whether that
// was reached; a box that was ended has answered what it could.
func parseFacts(b []byte) (facts Facts, whole bool, err error) {
	if len(b) > maxProbe {
		return nil, false, errFormat
	}
	facts = Facts{}
	for len(b) > 0 {
		q, rest, ok := bytes.Cut(b, []byte{0})
		if !ok {
			return facts, false, errCut
		}
		a, rest, ok := bytes.Cut(rest, []byte{0})
		if !ok {
			return facts, false, errCut
		}
		b = rest
		if string(q) == "end" {
			if len(a) > 0 || len(b) > 0 {
				return facts, false, errFormat
			}
			return facts, true, nil
		}
		if _, twice := facts[string(q)]; twice || len(facts) >= maxAnswers {
			return facts, false, errFormat
		}
		facts[string(q)] = string(a)
	}
	return facts, false, errCut
}

// broke reads "N WHY", the answer of a question that breaks something.
func broke(answer string) (n int64, why string, ok bool) {
	num, why, ok := strings.Cut(answer, " ")
	if !ok {
		return 0, "", false
	}
	n, err := strconv.ParseInt(num, 10, 64)
	return n, why, err == nil && n >= 0
}

// writable reads "WHY PATH".
func writable(answer string) (why, at string) {
	why, at, _ = strings.Cut(answer, " ")
	return why, at
}

// status gives a field of /proc/PID/status.
func status(text, field string) string {
	for line := range strings.SplitSeq(text, "\n") {
		if k, v, ok := strings.Cut(line, ":"); ok && k == field {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// mount is one that a box can write to.
type mount struct {
	kind       string
	size, free uint64
	path       string
}

func (m *mount) inMemory() bool { return m.kind == "tmpfs" || m.kind == "ramfs" || m.kind == "shm" }

func parseMounts(answer string) []mount {
	var out []mount
	for line := range strings.SplitSeq(answer, "\n") {
		f := strings.SplitN(line, " ", 4)
		if len(f) != 4 || !strings.HasPrefix(f[3], "/") {
			continue
		}
		size, err1 := strconv.ParseUint(f[1], 10, 64)
		free, err2 := strconv.ParseUint(f[2], 10, 64)
		if err1 != nil || err2 != nil {
			continue
		}
		m := mount{f[0], size, free, f[3]}
		for i := range out {
			if out[i].path == m.path { // the later one covers it
				out[i] = m
				m.path = ""
			}
		}
		if m.path != "" {
			out = append(out, m)
		}
	}
	return out
}
