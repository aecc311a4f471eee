package cmd

import (
	"io"
	"os"

	"github.com/kern-sbx/kern-sbx/pkg/term"
)

// show is where the program's live output goes: past a filter on a terminal,
// inside a fence where one was asked for, untouched elsewhere.
type show struct {
	out, err io.Writer // nil: nothing is shown live
	filters  []*term.Filter
	fence    *term.Fence
	watches  []*term.CommandWatch
}

func newShow(a *app) (*show, error) {
	s := &show{}
	if a.global.json {
		return s, nil
	}
	s.out, s.err = s.stream(a, a.out), s.stream(a, a.err)
	if a.global.ciFence {
		f, err := term.NewFence(s.out, s.err)
		if err != nil {
			return nil, err
		}
		s.fence, s.out, s.err = f, f.Stdout(), f.Stderr()
	} else if a.env("GITHUB_ACTIONS") == "true" {
		watch := func(w io.Writer) io.Writer {
			c := term.NewCommandWatch(w)
			s.watches = append(s.watches, c)
			return c
		}
		s.out, s.err = watch(s.out), watch(s.err)
	}
	return s, nil
}

func (s *show) stream(a *app, f *os.File) io.Writer {
	if a.global.raw || !term.IsTerminal(f) {
		return f
	}
	filter := term.NewFilter(f)
	s.filters = append(s.filters, filter)
	return filter
}

// end shows what a filter still holds, ends an unfinished line or colour, and
// closes the fence, before lines of ours follow.
func (s *show) end() {
	if s.fence != nil {
		s.fence.Close()
	}
	for _, f := range s.filters {
		f.Reset()
	}
}

// gaveOrders says whether the box printed what GitHub Actions would obey.
func (s *show) gaveOrders() bool {
	for _, w := range s.watches {
		if w.Seen() {
			return true
		}
	}
	return false
}
