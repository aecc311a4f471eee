package runner

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// PlanSchema is the name of the document a Plan is written as.
const PlanSchema = "kern-sbx/plan/v1"

// Plan is what Run would start for a Spec: the document of `run --plan --json`.
type Plan struct {
	Schema string       `json:"schema"`
	Kern   Kern         `json:"kern"`
	Image  PlanImage    `json:"image"`
	Space  PlanSpace    `json:"workspace"`
	Limits PlanLimits   `json:"limits"`
	Times  PlanTimes    `json:"times"`
	Boxes  []PlannedBox `json:"boxes"`
}

// PlanImage is the root.
type PlanImage struct {
	Ref string `json:"ref"`
	// ID is null when the image is not on this machine: a run would pull it, or
	// be refused with --pull never.
	ID *string `json:"id"`
}

// PlanSpace is the workspace.
type PlanSpace struct {
	// Kind is private (removed afterwards), copy (the same, begun as a copy of
	// Source), or kept (Source itself).
	Kind   string  `json:"kind"`
	Source *string `json:"source"`
}

// PlanLimits are the caps asked for: bytes, processes, CPUs; null for none.
// EnforcedBy tells who may enforce them; who does is only seen with a live box.
type PlanLimits struct {
	Memory     *int64   `json:"memory"`
	PIDs       *int     `json:"pids"`
	CPU        *float64 `json:"cpu"`
	EnforcedBy string   `json:"enforced_by"`
	Required   bool     `json:"required"`
}

// PlanTimes are the budgets in milliseconds, null for none.
type PlanTimes struct {
	Start *int64 `json:"start_ms"`
	Pull  *int64 `json:"pull_ms"`
}

// PlannedBox is one box. A run with a setup has up to three.
type PlannedBox struct {
	// Step is setup, compile (of what the setup installed) or run. The first two
	// are left out by a run that finds them done.
	Step string `json:"step"`
	// Network is none, host, or egress (the domains in Egress).
	Network   string      `json:"network"`
	Egress    []string    `json:"egress"`
	TimeoutMS *int64      `json:"timeout_ms"`
	Mounts    []PlanMount `json:"mounts"`
	Tmpfs     []PlanTmpfs `json:"tmpfs"`
	// Env are the names of the variables. kern reads the values from a
	// descriptor; they are in no argument list, and not in a plan.
	Env []string `json:"env"`
	// Argv is kern's command line. ID in it stands for what is drawn at random
	// for each run.
	Argv []string `json:"argv"`
}

// PlanMount is one mount; the workspace and what brings the code are among them.
type PlanMount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only"`
	// Link is where the box finds it when a tmpfs covers that place and the
	// mount lies at Target instead; "" otherwise.
	Link string `json:"link"`
}

// PlanTmpfs is a file system in the box's memory.
type PlanTmpfs struct {
	Target string `json:"target"`
	Size   int64  `json:"size"`
}

// NewPlan says what Run would do for a Spec, which it leaves as it is. It starts
// nothing, pulls nothing, and makes nothing but our own cache directory.
func NewPlan(ctx context.Context, budget *Budget, dirs Dirs, spec *Spec) (*Plan, error) {
	c := *spec
	s := &c
	s.Pins = maps.Clone(s.Pins)
	base, err := dirs.Usable(dirs.Cache)
	if err != nil {
		return nil, err
	}
	pull := s.Pull
	s.Pull = "never"
	r := &run{spec: s, budget: budget, dirs: dirs}
	img, _, err := r.prepareRoot(ctx, base)
	if err != nil && pull == "never" {
		return nil, err
	}
	if err == nil {
		if err := budget.Touch(s.root(), r.checkAliases); err != nil {
			return nil, err
		}
	}
	s.Pull = pull

	p := &Plan{Schema: PlanSchema, Kern: Kern{s.Kern.Version, s.Kern.Path}, Image: PlanImage{img.Ref, img.ID}}
	dir := filepath.Join(base, "run", "ID")
	ws, code := s.Workspace, ""
	switch {
	case ws != "":
		p.Space = PlanSpace{"kept", &ws}
	case s.CopyOf != "":
		p.Space = PlanSpace{"copy", &s.CopyOf}
	default:
		p.Space = PlanSpace{Kind: "private"}
	}
	if ws == "" {
		r.limitFiles(base)
		ws = filepath.Join(dir, workspaceName)
	} else {
		r.limitFiles(ws)
	}
	s.served = s.Init
	if len(s.Code) > 0 || s.agentIn() {
		code = filepath.Join(dir, codeName)
	}
	if s.Setup == nil && s.Workspace != "" {
		if err := r.useDeps(ws); err != nil {
			return nil, err
		}
		r.deps.close()
	}
	if s.Setup != nil {
		boxes := []struct {
			step string
			spec *Spec
		}{{"setup", s.setupSpec(ws, filepath.Join(dir, "tmp"))}, {"compile", s.compileSpec(ws)}}
		if s.DepsWritable {
			boxes = boxes[:1]
		}
		for _, b := range boxes {
			if err := p.add(b.step, b.spec, ws, ""); err != nil {
				return nil, err
			}
		}
		// As it will be when the setup makes a .deps.
		r.mountDeps(ws, Pin{})
	}
	p.limits(s)
	s.useMemory()
	p.Times = PlanTimes{Start: millis(s.StartTimeout), Pull: millis(s.PullTimeout)}
	return p, p.add("run", s, ws, code)
}

// add plans one box.
func (p *Plan) add(step string, s *Spec, ws, code string) error {
	out := ""
	if s.Results {
		out = filepath.Join(filepath.Dir(code), outName)
	}

	b := PlannedBox{
		Step: step, Network: "none", Egress: append([]string{}, s.Egress...), TimeoutMS: millis(s.Timeout),
		Mounts: []PlanMount{}, Tmpfs: []PlanTmpfs{}, Env: []string{},
	}
	switch {
	case s.HostNetwork:
		b.Network = "host"
	case len(s.Egress) > 0:
		b.Network = "egress"
	}
	mounts := s.place(ws, code, out)
	for _, m := range mounts {
		b.Mounts = append(b.Mounts, PlanMount{m.Source, m.Target, m.ReadOnly, m.link})
	}
	for _, t := range s.Tmpfs {
		b.Tmpfs = append(b.Tmpfs, PlanTmpfs{t.Target, int64(t.Size)})
	}
	for _, kv := range s.Env {
		b.Env = append(b.Env, kv.Key)
	}
	var err error
	if b.Argv, err = s.argv(namePrefix+"ID", mounts, fdEnv); err != nil {
		return err
	}
	b.Argv[0] = s.Kern.Path
	p.Boxes = append(p.Boxes, b)
	return nil
}

func (p *Plan) limits(s *Spec) {
	l := &p.Limits
	if s.Memory > 0 {
		l.Memory = ptr(int64(s.Memory))
	}
	if s.PIDs > 0 {
		l.PIDs = &s.PIDs
	}
	if s.CPUs > 0 {
		l.CPU = &s.CPUs
	}
	l.Required = s.RequireLimits
	switch s.Limits {
	case LimitsOff:
		l.EnforcedBy = "nobody"
	case LimitsKern:
		l.EnforcedBy = "kern, where it can"
	case LimitsOwn:
		l.EnforcedBy = "kern-sbx, where it can"
	default:
		l.EnforcedBy = "kern, where it can, else kern-sbx, where it can"
	}
}

func millis[D interface{ Milliseconds() int64 }](d D) *int64 {
	if n := d.Milliseconds(); n > 0 {
		return &n
	}
	return nil
}

// WriteJSON writes the document, indented, with a final newline.
func (p *Plan) WriteJSON(w io.Writer) error {
	doc, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	b := bufio.NewWriter(w)
	writeVisible(b, doc)
	b.WriteByte('\n')
	return b.Flush()
}

// WriteText writes the plan for a person. Each command line can be given to a
// shell as it stands, but for ID and the descriptor of the environment.
func (p *Plan) WriteText(w io.Writer) error {
	b := bufio.NewWriter(w)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(b, "%-10s %s\n", name, term.VisibleLine(fmt.Sprintf(format, args...)))
	}
	id := "not on this machine"
	if p.Image.ID != nil {
		id = *p.Image.ID
	}
	line("image", "%s (%s)", p.Image.Ref, id)
	line("kern", "%s %s", p.Kern.Version, p.Kern.Path)
	switch p.Space.Kind {
	case "kept":
		line("workspace", "%s, kept", *p.Space.Source)
	case "copy":
		line("workspace", "a copy of %s, removed afterwards", *p.Space.Source)
	default:
		line("workspace", "private, removed afterwards")
	}
	var caps []string
	if m := p.Limits.Memory; m != nil {
		caps = append(caps, "memory "+validate.Size(*m).Human())
	}
	if n := p.Limits.PIDs; n != nil {
		caps = append(caps, "processes "+strconv.Itoa(*n))
	}
	if n := p.Limits.CPU; n != nil {
		caps = append(caps, "CPUs "+strconv.FormatFloat(*n, 'f', -1, 64))
	}
	if len(caps) == 0 {
		line("caps", "none")
	} else {
		line("caps", "%s; enforced by %s", strings.Join(caps, ", "), p.Limits.EnforcedBy)
	}
	line("start", "within %s", budgetText(p.Times.Start))
	for i := range p.Boxes {
		p.Boxes[i].writeText(b, line)
	}
	return b.Flush()
}

func (x *PlannedBox) writeText(b *bufio.Writer, line func(name, format string, args ...any)) {
	fmt.Fprintf(b, "\n%s\n", x.Step)
	net := x.Network
	if net == "egress" {
		net = strings.Join(x.Egress, ", ") + " by HTTP"
	}
	line("  network", "%s", net)
	line("  timeout", "%s", budgetText(x.TimeoutMS))
	for _, m := range x.Mounts {
		mode, to := "rw", m.Target
		if m.ReadOnly {
			mode = "ro"
		}
		if m.Link != "" {
			to = m.Link + " (by a link to " + m.Target + ")"
		}
		line("  "+mode, "%s on %s", m.Source, to)
	}
	for _, t := range x.Tmpfs {
		line("  memory", "%s on %s", validate.Size(t.Size).Human(), t.Target)
	}
	if len(x.Env) > 0 {
		line("  env", "%s", strings.Join(x.Env, " "))
	}
	words := make([]string, len(x.Argv))
	for i, w := range x.Argv {
		words[i] = shellWord(w)
	}
	fmt.Fprintf(b, "  %s\n", strings.Join(words, " "))
}

// budgetText shows a budget in milliseconds.
func budgetText(ms *int64) string {
	if ms == nil {
		return "none"
	}
	return (time.Duration(*ms) * time.Millisecond).String()
}

// shellWord quotes one word so that a POSIX shell reads it back as it is, or,
// where it holds what a terminal would obey, so that bash, zsh and ksh do.
func shellWord(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-"
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	if utf8.ValidString(s) && strings.IndexFunc(s, func(c rune) bool { return !unicode.IsPrint(c) }) < 0 {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	var b strings.Builder
	b.WriteString("$'")
	for i := range len(s) {
		switch c := s[i]; {
		case c == '\'' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('\'')
	return b.String()
}
