package main

import (
	"github.com/kern-sbx/kern-sbx/pkg/hints"
)

// hint asks the table that run asks. The flag is one of the server, which only its
// owner can set.
func (s *server) hint(out *outcome) string {
	res := out.res
	f := &hints.Facts{Argv: out.spec.Argv, Image: out.spec.Image, ImageGiven: true, Timeout: out.spec.Timeout, Lang: out.lang}
	if res.Fault != nil {
		f.Fault = string(res.Fault.Type)
	}
	if res.ExitCode != nil {
		f.ExitCode = *res.ExitCode
	}
	f.Stderr = res.CodeStderr.Head(4 << 10)
	f.Egress = len(out.spec.Egress) > 0
	h, ok := hints.Find(f)
	if !ok {
		return ""
	}
	text := h.Why
	if h.Flag != "" {
		text += "; who runs this server can add " + h.Flag
	}
	return oneLine(text, 2*maxReason)
}
