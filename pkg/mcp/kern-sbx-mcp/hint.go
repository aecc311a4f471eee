package main

import (
	"slices"

	"github.com/kern-sbx/kern-sbx/pkg/hints"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// hint asks the table that run asks. A flag is one of the server, which only its
// owner can set; one that would open the box is not for a model to ask for.
func (s *server) hint(out *outcome) string {
	f := hints.Of(out.spec)
	f.Ended(out.res)
	f.ImageGiven, f.Lang = true, out.lang
	f.NoStdin = out.spec.Stdin == nil
	f.NoTmp = !slices.ContainsFunc(out.spec.Tmpfs, func(t validate.Tmpfs) bool { return t.Target == "/tmp" })
	h, ok := hints.Find(f)
	if !ok {
		return ""
	}
	text := h.Why
	if h.Flag != "" && !h.Relaxes {
		text += "; who runs this server can add " + h.Flag
	}
	return oneLine(text, 2*maxReason)
}
