package doctor

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kern-sbx/kern-sbx/pkg/term"
)

// Schema is the name of the document a Report is.
const Schema = "kern-sbx/doctor/v1"

// Report is the document of `doctor --json`. Texts in it may come out of a box or a
// file, and are made safe to show.
type Report struct {
	Schema string `json:"schema"`
	OK     bool   `json:"ok"`
	// ExitCode is that of doctor: 0; 1, something failed (or, with --strict, there
	// is a warning); 125, no box could be started.
	ExitCode int `json:"exit_code"`
	// NoBox is why no box could be started, null when one was, or none was wanted.
	NoBox   *string `json:"no_box"`
	Version string  `json:"version"`
	// DurationMS is for all checks together.
	DurationMS int64 `json:"duration_ms"`
	// Counts are how many checks have each status.
	Counts Counts        `json:"counts"`
	Checks []ReportCheck `json:"checks"`
}

// Counts are how many checks have each status.
type Counts struct {
	OK      int `json:"ok"`
	Info    int `json:"info"`
	Warn    int `json:"warn"`
	Fail    int `json:"fail"`
	Skipped int `json:"skipped"`
}

// ReportCheck is one check in a Report.
type ReportCheck struct {
	ID     string `json:"id"`
	Group  string `json:"group"`
	Title  string `json:"title"`
	Status Status `json:"status"`
	// Values are what was measured, in the order of importance.
	Values []Value `json:"values"`
	Why    string  `json:"why"`
	// Remedy is one flag, configuration key or command; "" when there is nothing to
	// do.
	Remedy string `json:"remedy"`
	// Topic is for `kern-sbx explain`.
	Topic      string `json:"topic"`
	DurationMS int64  `json:"duration_ms"`
}

// NewReport sums up what Run found.
func NewReport(found []Finding, env *Env, strict bool) *Report {
	r := &Report{Schema: Schema, ExitCode: Worst(found, env, strict), Checks: []ReportCheck{}}
	r.OK = r.ExitCode == 0
	if why := env.NoBox(); why != "" {
		r.NoBox = &why
	}
	for _, f := range found {
		switch f.Status {
		case OK:
			r.Counts.OK++
		case Info:
			r.Counts.Info++
		case Warn:
			r.Counts.Warn++
		case Fail:
			r.Counts.Fail++
		default:
			r.Counts.Skipped++
		}
		c := ReportCheck{
			ID: f.ID, Group: f.Group, Title: f.Title, Status: f.Status, Values: f.Values,
			Why: term.VisibleLine(f.Why), Remedy: term.VisibleLine(f.Remedy), Topic: f.Topic, DurationMS: f.Took.Milliseconds(),
		}
		c.Values = []Value{}
		for _, v := range f.Values {
			c.Values = append(c.Values, Value{term.VisibleLine(v.Name), term.VisibleLine(v.Value)})
		}
		r.Checks = append(r.Checks, c)
	}
	return r
}

// groupTitles head the groups of the table.
var groupTitles = map[string]string{
	GroupHost:     "this machine",
	GroupBox:      "a box with these settings",
	GroupPromises: "promises, put to the test",
}

// WriteTable writes the report for a person: a line for each check, with its
// remedy below it. details adds what was measured.
func (r *Report) WriteTable(w io.Writer, style term.Style, details bool) error {
	b := bufio.NewWriter(w)
	wide := 0
	for _, c := range r.Checks {
		wide = max(wide, len(c.ID))
	}
	for i, group := range []string{GroupHost, GroupBox, GroupPromises} {
		rows := slices.DeleteFunc(slices.Clone(r.Checks), func(c ReportCheck) bool { return c.Group != group })
		if len(rows) == 0 {
			continue
		}
		if i > 0 && len(rows) < len(r.Checks) {
			fmt.Fprintln(b)
		}
		fmt.Fprintln(b, style.Bold(groupTitles[group]))
		for _, c := range together(rows) {
			c.write(b, style, wide, details)
		}
	}
	n := r.Counts
	fmt.Fprintf(b, "\n%s, %s, %d info, %d ok, %d skipped; %.1f s\n", count(n.Fail, "failure", style.Red), count(n.Warn, "warning", style.Yellow), n.Info, n.OK, n.Skipped, float64(r.DurationMS)/1000)
	return b.Flush()
}

// together makes one row of those that were skipped for the same reason.
func together(rows []ReportCheck) []ReportCheck {
	times := map[string]int{}
	for _, c := range rows {
		if c.Status == Skipped {
			times[c.Why]++
		}
	}
	var out []ReportCheck
	for _, c := range rows {
		if n := times[c.Why]; c.Status == Skipped && n != 1 {
			if n == 0 {
				continue // said already
			}
			times[c.Why] = 0
			c.ID, c.Values = fmt.Sprintf("(%d checks)", n), nil
		}
		out = append(out, c)
	}
	return out
}

func (c *ReportCheck) write(b *bufio.Writer, style term.Style, wide int, details bool) {
	var word string
	switch c.Status {
	case OK:
		word = style.Green("ok  ")
	case Info:
		word = "info"
	case Warn:
		word = style.Yellow("warn")
	case Fail:
		word = style.Red("FAIL")
	default:
		word = style.Dim("skip")
	}
	fmt.Fprintf(b, "  %s  %-*s  %s\n", word, wide, c.ID, c.Why)
	indent := strings.Repeat(" ", wide+10)
	if c.Remedy != "" {
		fmt.Fprintf(b, "%s%s %s\n", indent, style.Dim("→"), style.Bold(c.Remedy))
	}
	if details {
		for _, v := range c.Values {
			fmt.Fprintf(b, "%s%s\n", indent, style.Dim(v.Name+": "+v.Value))
		}
	}
}

func count(n int, what string, colour func(string) string) string {
	text := plural(n, what)
	if n > 0 {
		return colour(text)
	}
	return text
}
