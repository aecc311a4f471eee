package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/kern-sbx/kern-sbx/pkg/interp"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

type codeIn struct {
	Code     string  `json:"code" jsonschema:"the code to run"`
	Language string  `json:"language,omitempty" jsonschema:"the language of the code; python when not given"`
	Stdin    string  `json:"stdin,omitempty" jsonschema:"what the code reads from standard input"`
	TimeoutS float64 `json:"timeout_s,omitempty" jsonschema:"end the code after so many seconds; what is not above 0 counts as not given"`
	MemoryMB int     `json:"memory_mb,omitempty" jsonschema:"cap the memory of the box at so many MiB; 0 counts as not given"`
}

type commandIn struct {
	Command  string   `json:"command,omitempty" jsonschema:"a command line for sh"`
	Argv     []string `json:"argv,omitempty" jsonschema:"instead of command: a program and its arguments, without a shell"`
	Stdin    string   `json:"stdin,omitempty" jsonschema:"what the command reads from standard input"`
	TimeoutS float64  `json:"timeout_s,omitempty" jsonschema:"end the command after so many seconds; what is not above 0 counts as not given"`
	MemoryMB int      `json:"memory_mb,omitempty" jsonschema:"cap the memory of the box at so many MiB; 0 counts as not given"`
}

type writeIn struct {
	Path     string `json:"path" jsonschema:"where, relative to the workspace; directories are made"`
	Content  string `json:"content" jsonschema:"the whole content; an existing file is replaced"`
	Encoding string `json:"encoding,omitempty" jsonschema:"base64 for content that is not text"`
}

type readIn struct {
	Path     string `json:"path" jsonschema:"which, relative to the workspace"`
	Encoding string `json:"encoding,omitempty" jsonschema:"base64 gives the bytes as they are"`
	Offset   int64  `json:"offset,omitempty" jsonschema:"begin at this byte"`
	Limit    int64  `json:"limit,omitempty" jsonschema:"give at most so many bytes; 0 counts as not given"`
}

type listIn struct {
	Path string `json:"path,omitempty" jsonschema:"a directory of the workspace; all of it when not given"`
}

type noneIn struct{}

type nameIn struct {
	Name string `json:"name,omitempty" jsonschema:"the name of the snapshot; default when not given"`
}

// runOut is the structured answer of run_code and run_command.
type runOut struct {
	OK       bool   `json:"ok" jsonschema:"it ended by itself with exit code 0"`
	Status   int    `json:"status" jsonschema:"the exit code, or what stands for it when the sandbox ended the code: 124 timeout, 137 oom or killed, 159 forbidden system call, 126 and 127 not executable and not found, 122 workspace full, 125 the box never started"`
	ExitCode *int   `json:"exit_code" jsonschema:"the code's own exit code; null when it did not end by itself"`
	Signal   string `json:"signal,omitempty" jsonschema:"the signal that ended it, if it ended by one of its own"`
	Fault    *fault `json:"fault" jsonschema:"what the sandbox did; null when it did nothing"`

	Stdout          string `json:"stdout"`
	Stderr          string `json:"stderr"`
	StdoutTruncated bool   `json:"stdout_truncated"`
	StderrTruncated bool   `json:"stderr_truncated"`
	// Outputs are the resources that have the whole of a stream.
	Outputs []outputRef `json:"outputs" jsonschema:"resources that hold the whole of what was truncated"`

	Results    []string  `json:"results" jsonschema:"what the code displayed, and the value of its last expression, as text; pictures are content of the answer"`
	Images     int       `json:"images"`
	Files      []change  `json:"files" jsonschema:"files that the call changed, when the server tracks them"`
	DurationMS int64     `json:"duration_ms"`
	Memory     *int64    `json:"peak_memory" jsonschema:"bytes"`
	Limits     limitsOut `json:"limits"`
	Kernel     string    `json:"kernel,omitempty" jsonschema:"what became of the interpreter that keeps the variables: lives, ended (by this call) or fresh (there was another one before this call)"`
	Notes      []string  `json:"notes"`
	Hints      []string  `json:"hints"`
}

type fault struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

type outputRef struct {
	Stream string `json:"stream"`
	URI    string `json:"uri"`
	Bytes  int64  `json:"bytes"`
}

type change struct {
	Path   string `json:"path"`
	Change string `json:"change"`
	Size   int64  `json:"size"`
}

type limitsOut struct {
	MemoryMB  int     `json:"memory_mb" jsonschema:"0 for none"`
	TimeoutS  float64 `json:"timeout_s" jsonschema:"0 for none"`
	InForce   bool    `json:"in_force" jsonschema:"false: this host cannot cap memory or processes"`
	Network   string  `json:"network"`
	Workspace string  `json:"workspace" jsonschema:"kept: it outlives the session; private: it does not"`
}

func schemaOf[T any]() *jsonschema.Schema {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		panic(err)
	}
	return s
}

func (s *server) addTools() {
	no, yes := new(bool), new(bool)
	*yes = true
	world := no
	if s.h.Spec.HostNetwork || len(s.h.Spec.Egress) > 0 {
		world = yes
	}
	asks := func(in *jsonschema.Schema) {
		if t := s.h.MaxTimeout; t > 0 {
			in.Properties["timeout_s"].Description += fmt.Sprintf("; at most %g, without it %g", t.Seconds(), s.h.Spec.Timeout.Seconds())
		}
		if m := s.h.MaxMemory; m > 0 {
			in.Properties["memory_mb"].Description += fmt.Sprintf("; at most %d, without it %d", m>>20, s.h.Spec.Memory>>20)
		}
	}
	state := "Variables do not stay from call to call, files in /workspace do."
	if s.h.Kernel {
		state = "Python runs in one interpreter, so variables stay from call to call, as do files in /workspace; memory_mb does not count for it."
	}
	add(s, &tool[codeIn]{
		Tool: sdk.Tool{
			Name: "run_code", Title: "Run code",
			Description:  "Run code in the sandbox, in /workspace. " + state + " In python the value of the last expression, what display() is given, and open matplotlib figures are part of the answer.",
			Annotations:  &sdk.ToolAnnotations{Title: "Run code", OpenWorldHint: world, DestructiveHint: yes},
			OutputSchema: schemaOf[runOut](),
		},
		edit: func(in *jsonschema.Schema) {
			for _, l := range interp.Languages() {
				in.Properties["language"].Enum = append(in.Properties["language"].Enum, l)
			}
			asks(in)
		},
		do: s.runCode,
	})
	add(s, &tool[commandIn]{
		Tool: sdk.Tool{
			Name: "run_command", Title: "Run a command",
			Description:  "Run a command line in the sandbox, in /workspace: command, for sh, or argv. It is a process of its own in a fresh box; files in /workspace stay.",
			Annotations:  &sdk.ToolAnnotations{Title: "Run a command", OpenWorldHint: world, DestructiveHint: yes},
			OutputSchema: schemaOf[runOut](),
		},
		edit: func(in *jsonschema.Schema) {
			in.Properties["argv"].Type, in.Properties["argv"].Types = "array", nil // some hosts take one type only
			asks(in)
		},
		do: s.runCommand,
	})
	encoding := func(in *jsonschema.Schema) { in.Properties["encoding"].Enum = []any{"utf-8", "base64"} }
	add(s, &tool[writeIn]{
		Tool: sdk.Tool{
			Name: "write_file", Title: "Write a file", Description: "Make or replace a file of the workspace.",
			Annotations: &sdk.ToolAnnotations{Title: "Write a file", IdempotentHint: true, OpenWorldHint: no, DestructiveHint: yes},
		},
		edit: encoding, do: s.writeFile,
	})
	add(s, &tool[readIn]{
		Tool: sdk.Tool{
			Name: "read_file", Title: "Read a file", Description: "Read a file of the workspace. A PNG or JPEG comes as a picture.",
			Annotations: &sdk.ToolAnnotations{Title: "Read a file", ReadOnlyHint: true, OpenWorldHint: no, DestructiveHint: no},
		},
		edit: encoding, do: s.readFile,
	})
	add(s, &tool[listIn]{
		Tool: sdk.Tool{
			Name: "list_files", Title: "List files", Description: "List the files of the workspace with their sizes.",
			Annotations: &sdk.ToolAnnotations{Title: "List files", ReadOnlyHint: true, OpenWorldHint: no, DestructiveHint: no},
		},
		do: s.listFiles,
	})
	add(s, &tool[noneIn]{
		Tool: sdk.Tool{
			Name: "reset", Title: "Start afresh", Description: s.resetText(),
			Annotations: &sdk.ToolAnnotations{Title: "Start afresh", IdempotentHint: true, OpenWorldHint: no, DestructiveHint: yes},
		},
		do: s.reset,
	})
	if s.session.owned() {
		// A snapshot has no links and nothing of what the box may only read: what a
		// restore would make of a directory of the user's is not what it was.
		return
	}
	add(s, &tool[nameIn]{
		Tool: sdk.Tool{
			Name: "snapshot", Title: "Save the workspace", Description: "Save the files of the workspace, to be restored later in this session. A snapshot of the same name is replaced. Links, sockets and FIFOs are left out.",
			Annotations: &sdk.ToolAnnotations{Title: "Save the workspace", IdempotentHint: true, OpenWorldHint: no, DestructiveHint: no},
		},
		do: s.snapshot,
	})
	add(s, &tool[nameIn]{
		Tool: sdk.Tool{
			Name: "restore", Title: "Restore the workspace", Description: "Put the workspace back to a snapshot of this session: what it holds now is gone, and calls that run are ended.",
			Annotations: &sdk.ToolAnnotations{Title: "Restore the workspace", IdempotentHint: true, OpenWorldHint: no, DestructiveHint: yes},
		},
		do: s.restore,
	})
}

func (s *server) resetText() string {
	text := "End what runs, and remove all files of the workspace."
	if s.session.kept() {
		text = "End what runs. The files stay: the workspace is a directory of the user's."
	}
	if s.h.Kernel {
		text += " Variables are gone."
	}
	return text
}

// asked settles what a call may have of what it asks for.
func (s *server) asked(timeout float64, memory int, notes *[]string) (time.Duration, validate.Size) {
	h := s.h
	t := h.Spec.Timeout
	if timeout > 0 {
		// Not nothing, which would be no limit.
		t = max(time.Duration(min(timeout, 1e9)*float64(time.Second)), time.Millisecond)
		if h.MaxTimeout > 0 && t > h.MaxTimeout {
			t = h.MaxTimeout
			*notes = append(*notes, fmt.Sprintf("timeout_s is %g at most on this server (--max-timeout)", t.Seconds()))
		}
	}
	m := validate.Size(0)
	if memory > 0 {
		m = validate.Size(min(memory, 1<<30)) << 20
		if h.MaxMemory > 0 && m > h.MaxMemory {
			m = h.MaxMemory
			*notes = append(*notes, fmt.Sprintf("memory_mb is %d at most on this server (--max-memory)", m>>20))
		}
	}
	return t, m
}

func (s *server) runCode(ctx context.Context, req *sdk.CallToolRequest, in *codeIn) (*sdk.CallToolResult, error) {
	var notes []string
	j := &job{lang: in.Language, code: in.Code, stdin: in.Stdin, progress: s.progress(ctx, req)}
	if j.lang == "" {
		j.lang = "python"
	}
	j.timeout, j.memory = s.asked(in.TimeoutS, in.MemoryMB, &notes)
	if s.h.Kernel && j.lang == "python" && j.memory > 0 {
		j.memory = 0
		notes = append(notes, "memory_mb does not count here: the interpreter of the session has its memory already")
	}
	return s.answer(ctx, j, notes)
}

func (s *server) runCommand(ctx context.Context, req *sdk.CallToolRequest, in *commandIn) (*sdk.CallToolResult, error) {
	var notes []string
	j := &job{argv: in.Argv, stdin: in.Stdin, progress: s.progress(ctx, req)}
	switch {
	case (in.Command == "") == (len(in.Argv) == 0):
		return nil, &validate.Error{Field: "command", Value: in.Command, Reason: "one of command and argv has to be given", Fix: `write {"command": "ls -l"}`}
	case in.Command != "":
		j.argv = []string{"sh", "-c", in.Command}
	case in.Argv[0] == "":
		return nil, &validate.Error{Field: "argv", Value: "", Reason: "the name of the program is empty"}
	}
	if slices.ContainsFunc(j.argv, func(w string) bool { return strings.ContainsRune(w, 0) }) {
		return nil, &validate.Error{Field: "command", Value: "\\0", Reason: "a zero byte in an argument"}
	}
	j.timeout, j.memory = s.asked(in.TimeoutS, in.MemoryMB, &notes)
	return s.answer(ctx, j, notes)
}

// answer runs a job and makes its answer.
func (s *server) answer(ctx context.Context, j *job, notes []string) (*sdk.CallToolResult, error) {
	out, err := s.session.do(ctx, j)
	if err != nil {
		return nil, err
	}
	res := out.res
	stopped := ""
	if out.stopped != nil {
		if stopped = "cancelled by the client"; !errors.Is(out.stopped, context.Canceled) {
			stopped = out.stopped.Error()
		}
		if res.Fault != nil && res.Fault.Type == runner.Killed {
			res.Fault.Message = stopped
		}
	}
	o := &runOut{
		OK: res.OK && out.stopped == nil, Status: res.Status, ExitCode: res.ExitCode, DurationMS: res.DurationMS, Memory: res.Usage.PeakMemory,
		Outputs: []outputRef{}, Results: []string{}, Files: []change{}, Notes: []string{}, Hints: []string{},
	}
	if res.Signal != nil {
		o.Signal = *res.Signal
	}
	if res.Fault != nil {
		o.Fault = &fault{string(res.Fault.Type), oneLine(res.Fault.Message, maxReason)}
	}
	show := func(name string, t *runner.Text, cut bool) (string, bool) {
		uri := outputName(out.number, name)
		text, truncated := stream(t, cut, uri)
		if truncated {
			s.outputs.keep(uri, t)
			o.Outputs = append(o.Outputs, outputRef{name, uri, t.Len()})
		}
		return text, truncated
	}
	o.Stdout, o.StdoutTruncated = show("stdout", res.Stdout, res.Truncated.Stdout)
	o.Stderr, o.StderrTruncated = show("stderr", res.CodeStderr, res.Truncated.Stderr)
	images, left := pictures(res.Results)
	texts, cut := riches(res.Results)
	o.Results, o.Images = append(o.Results, texts...), len(images)
	for _, n := range slices.Concat(notes, res.Notes) {
		o.Notes = append(o.Notes, oneLine(n, maxReason))
	}
	if h := s.hint(out); h != "" {
		o.Hints = append(o.Hints, h)
	}
	o.Limits = s.limitsOf(out)
	if !o.Limits.InForce && !s.saidUncapped.Swap(true) {
		o.Notes = append(o.Notes, "memory and processes are not capped on this host")
	}
	for i, f := range res.Files {
		if i == maxListed {
			break
		}
		o.Files = append(o.Files, change{term.VisibleLine(string(f.Path)), f.Change, f.Size})
	}
	if s.h.Kernel && out.lang == "python" {
		o.Kernel = "lives"
		switch {
		case out.ended != "":
			o.Kernel = "ended"
		case out.fresh != "":
			o.Kernel = "fresh"
		}
	}
	var text strings.Builder
	part := func(head, body string) {
		if body == "" {
			return
		}
		if text.Len() > 0 {
			text.WriteString("\n\n")
		}
		if head != "" {
			text.WriteString(head + "\n")
		}
		text.WriteString(body)
	}
	part("", o.Stdout)
	part("[stderr]", o.Stderr)
	for _, t := range texts {
		part("[rich result]", t)
	}
	if text.Len() == 0 {
		text.WriteString("(no output)")
	}
	if len(o.Files) > 0 {
		part("[files changed]", listChanges(o.Files))
	}
	body, clipped := clip(text.String(), maxText, "")
	lines := []string{verdict(res)}
	if stopped != "" {
		lines = append(lines, "[stopped: "+stopped+"]")
	}
	if out.fresh != "" {
		lines = append(lines, "[this ran in a fresh interpreter: the one before it had ended ("+oneLine(out.fresh, maxReason)+"), so its variables are gone; files in /workspace are still there]")
	}
	if out.ended != "" {
		lines = append(lines, "[the session's interpreter ended on that cell ("+oneLine(out.ended, maxReason)+"), so the next call runs in a FRESH one: variables and imports are gone, files in /workspace are still there]")
	}
	if left > 0 {
		lines = append(lines, fmt.Sprintf("[image result(s) omitted: %d, by the cap on the size of an answer]", left))
	}
	if clipped || cut || res.Truncated.Results {
		lines = append(lines, "[output truncated: reply-size cap]")
	}
	for _, n := range o.Notes {
		lines = append(lines, "[note: "+n+"]")
	}
	for _, h := range o.Hints {
		lines = append(lines, "[hint: "+h+"]")
	}
	content := append(images, &sdk.TextContent{Text: body + "\n\n" + strings.Join(lines, "\n")})
	for _, r := range o.Outputs {
		size := r.Bytes
		content = append(content, &sdk.ResourceLink{URI: r.URI, Name: r.Stream + " of this call", MIMEType: "text/plain", Size: &size})
	}
	return &sdk.CallToolResult{Content: content, StructuredContent: o, IsError: !o.OK}, nil
}

func listChanges(all []change) string {
	var b strings.Builder
	for i, c := range all {
		if i == 20 {
			fmt.Fprintf(&b, "... and %d more\n", len(all)-i)
			break
		}
		fmt.Fprintf(&b, "%s %s (%dB)\n", c.Change, c.Path, c.Size)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (s *server) limitsOf(out *outcome) limitsOut {
	l := limitsOut{MemoryMB: int(out.spec.Memory >> 20), TimeoutS: out.spec.Timeout.Seconds(), InForce: len(out.res.Limits.Uncapped()) == 0, Network: "none", Workspace: "private"}
	if s.session.kept() {
		l.Workspace = "kept"
	}
	switch {
	case out.spec.HostNetwork:
		l.Network = "host"
	case len(out.spec.Egress) > 0:
		l.Network = "egress"
	}
	return l
}

// tree opens the workspace for one call.
func (s *server) tree(ctx context.Context, req *sdk.CallToolRequest, f func(ctx context.Context, p *place, t *workspace.Tree) error) error {
	ctx, end := also(ctx, s.session.life)
	defer end()
	p, err := s.session.enter(ctx, s.progress(ctx, req))
	if err != nil {
		return err
	}
	defer p.leave()
	ctx, end = also(ctx, p.life)
	defer end()
	select {
	case s.session.trees <- struct{}{}:
		defer func() { <-s.session.trees }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	dir := p.box().Workspace
	t, err := workspace.OpenTree(dir)
	if err == nil {
		defer t.Close()
		err = f(ctx, p, t)
	}
	var refused *validate.Error
	if err != nil && ctx.Err() == nil && !errors.As(err, &refused) {
		// Where it is on this machine is none of the model's business.
		err = errors.New(strings.ReplaceAll(err.Error(), dir, runner.WorkspaceDir))
	}
	return err
}

func text(format string, args ...any) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

func (s *server) writeFile(ctx context.Context, req *sdk.CallToolRequest, in *writeIn) (res *sdk.CallToolResult, err error) {
	content := []byte(in.Content)
	if in.Encoding == "base64" {
		if content, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return nil, &validate.Error{Field: "content", Value: runes(in.Content, 20), Reason: "not base64: " + err.Error()}
		}
	}
	err = s.tree(ctx, req, func(ctx context.Context, p *place, t *workspace.Tree) error {
		spec := p.box()
		note, err := guarded(&spec, in.Path)
		if err != nil {
			return err
		}
		n, err := t.Put(ctx, in.Path, bytes.NewReader(content), workspace.PutOptions{Max: max(int64(spec.WorkspaceMax), 0)})
		res = text("wrote %s (%dB)%s", term.VisibleLine(in.Path), n, note)
		return err
	})
	return res, err
}

// guarded refuses to write what the box cannot write either: what is mounted there
// read-only, such as the hooks of a repository (rule S2). note is for a file that
// programs of the host may obey, and that was not there.
func guarded(spec *runner.Spec, path string) (note string, err error) {
	parts, err := workspace.SplitPath(path)
	if err != nil || len(parts) == 0 {
		return "", err
	}
	inBox := runner.WorkspaceDir + "/" + strings.Join(parts, "/")
	refused := slices.Contains(spec.Keep, parts[0])
	for _, m := range spec.Mounts {
		refused = refused || m.ReadOnly && (inBox == m.Target || strings.HasPrefix(inBox, m.Target+"/"))
	}
	switch {
	case refused:
		return "", &validate.Error{Field: "path", Value: path, Reason: "read-only in the sandbox, because programs outside it may obey what is there", Fix: "write another file"}
	case slices.Contains(spec.Watch, parts[0]):
		return "; programs outside the sandbox may obey " + parts[0], nil
	}
	return "", nil
}

func (s *server) readFile(ctx context.Context, req *sdk.CallToolRequest, in *readIn) (res *sdk.CallToolResult, err error) {
	if in.Offset < 0 || in.Limit < 0 {
		return nil, &validate.Error{Field: "offset", Value: fmt.Sprint(in.Offset), Reason: "offset and limit are no number of bytes below 0"}
	}
	err = s.tree(ctx, req, func(_ context.Context, _ *place, t *workspace.Tree) error {
		f, size, err := t.Open(in.Path)
		if err != nil {
			return err
		}
		defer f.Close()
		want := int64(maxFile)
		if in.Limit > 0 {
			want = min(want, in.Limit)
		}
		// No more than there was: it may be growing for ever.
		b, err := io.ReadAll(io.NewSectionReader(f, in.Offset, max(0, min(want, size-in.Offset))))
		if err != nil {
			return err
		}
		res = fileContent(b, in, size)
		return nil
	})
	return res, err
}

// fileContent is the answer for what was read of a file.
func fileContent(b []byte, in *readIn, size int64) *sdk.CallToolResult {
	more := ""
	if end := in.Offset + int64(len(b)); end < size {
		more = fmt.Sprintf("\n...[truncated: %d more bytes; offset %d goes on]", size-end, end)
	}
	mime := ""
	switch {
	case bytes.HasPrefix(b, []byte("\x89PNG\r\n\x1a\n")):
		mime = "image/png"
	case bytes.HasPrefix(b, []byte("\xff\xd8\xff")):
		mime = "image/jpeg"
	}
	if mime != "" && in.Encoding == "" && more == "" && in.Offset == 0 && base64.StdEncoding.EncodedLen(len(b)) <= maxImage {
		return &sdk.CallToolResult{Content: []sdk.Content{
			&sdk.ImageContent{Data: b, MIMEType: mime},
			&sdk.TextContent{Text: fmt.Sprintf("%s, %d bytes", mime, len(b))},
		}}
	}
	if in.Encoding == "base64" {
		if most := maxText / 4 * 3; len(b) > most {
			b = b[:most]
			more = fmt.Sprintf("\n...[truncated: %d more bytes; offset %d goes on]", size-in.Offset-int64(most), in.Offset+int64(most))
		}
		return text("%s%s", base64.StdEncoding.EncodeToString(b), more)
	}
	if !utf8.Valid(b) && more == "" && bytes.ContainsRune(b[:min(len(b), 8000)], 0) {
		return text("a file of %d bytes that is not text; encoding base64 gives its bytes", size)
	}
	part := func(off, n int64) []byte { return bytes.ToValidUTF8(b[off:off+n], []byte("\ufffd")) }
	if len(b) <= maxText {
		// With the blanks at its end: it may be written back.
		shown, _ := clip(clean(string(part(0, int64(len(b))))), maxText, "")
		return text("%s%s", shown, more)
	}
	shown, _ := excerpt(int64(len(b)), part, maxText, "")
	return text("%s%s", shown, more)
}

func (s *server) listFiles(ctx context.Context, req *sdk.CallToolRequest, in *listIn) (res *sdk.CallToolResult, err error) {
	var b strings.Builder
	count, left := 0, 0
	err = s.tree(ctx, req, func(ctx context.Context, _ *place, t *workspace.Tree) error {
		return t.List(ctx, in.Path, true, func(e *workspace.Entry) error {
			line := disown(term.VisibleLine(e.Path))
			switch e.Kind() {
			case "file":
				line += fmt.Sprintf(" (%dB)", e.Size)
			case "dir":
				line += "/"
			default:
				line += " (" + e.Kind() + ")"
			}
			if count == maxListed || b.Len()+len(line) > maxText-200 {
				left++
				return nil
			}
			count++
			b.WriteString(line + "\n")
			return nil
		})
	})
	if left > 0 {
		fmt.Fprintf(&b, "...[truncated: %d more]\n", left)
	}
	if b.Len() == 0 {
		b.WriteString("(empty)")
	}
	return text("%s", strings.TrimSuffix(b.String(), "\n")), err
}

func (s *server) reset(ctx context.Context, _ *sdk.CallToolRequest, _ *noneIn) (*sdk.CallToolResult, error) {
	if s.h.Refusal != "" {
		return nil, errors.New(s.h.Refusal)
	}
	if err := s.session.reset(ctx); err != nil {
		return nil, err
	}
	if s.session.kept() {
		return text("what ran was ended; the files of the workspace are still there, because it is a directory of the user's"), nil
	}
	return text("what ran was ended, and the workspace is empty"), nil
}

// mostSnapshots is how many a session keeps.
const mostSnapshots = 16

const defaultSnapshot = "default"

func (s *server) snapshot(ctx context.Context, req *sdk.CallToolRequest, in *nameIn) (res *sdk.CallToolResult, err error) {
	path, err := s.session.archive(ctx, in.name(), true)
	if err != nil {
		return nil, err
	}
	defer func() { s.session.remember(in.name(), err == nil) }()
	err = s.tree(ctx, req, func(ctx context.Context, p *place, t *workspace.Tree) error {
		to, err := workspace.CreateArchive(path)
		if err != nil {
			return err
		}
		defer to.Close()
		o := workspace.SaveOptions{Limits: workspace.DefaultArchiveLimits()}
		o.Record.Image, o.Record.Machine, o.Record.Version = "mcp", workspace.Machine(), s.h.Build
		saved, err := workspace.SaveSnapshot(ctx, t.Dir(), to, o)
		if err != nil {
			return err
		}
		left := ""
		if n := len(saved.Skipped) + saved.SkippedMore; n > 0 {
			left = fmt.Sprintf("; %d entries that are no files were left out, the first is %s", n, term.VisibleLine(string(saved.Skipped[0].Path)))
		}
		if saved.Changed > 0 {
			left += fmt.Sprintf("; %d files were being written to meanwhile", saved.Changed)
		}
		res = text("saved %d files (%dB) as snapshot %s%s", saved.Files, saved.Bytes, in.name(), left)
		return nil
	})
	return res, err
}

func (in *nameIn) name() string {
	if in.Name == "" {
		return defaultSnapshot
	}
	return in.Name
}

func (s *server) restore(ctx context.Context, req *sdk.CallToolRequest, in *nameIn) (*sdk.CallToolResult, error) {
	path, err := s.session.archive(ctx, in.name(), false)
	if err != nil {
		return nil, err
	}
	ctx, end := also(ctx, s.session.life)
	defer end()
	got, err := s.session.restore(ctx, path, s.progress(ctx, req))
	if err != nil {
		return nil, err
	}
	more := ""
	if s.h.Kernel {
		more = "; the interpreter is a fresh one, without variables"
	}
	return text("restored snapshot %s: %d files (%dB)%s", in.name(), got.Files, got.Bytes, more), nil
}

// archive is where a snapshot of that name lies. Who is to create it has to tell
// remember what became of that.
func (s *session) archive(ctx context.Context, name string, create bool) (path string, err error) {
	if err := workspace.CheckName(name); err != nil {
		return "", &validate.Error{Field: "name", Value: name, Reason: "not the name of a snapshot", Fix: "use at most 64 lower-case letters, digits, dots, _ and -, and begin with a letter or digit"}
	}
	if err := s.lock(ctx); err != nil {
		return "", err
	}
	defer s.unlock()
	if s.h.Refusal != "" {
		return "", errors.New(s.h.Refusal)
	}
	if err := s.name(name, create); err != nil {
		return "", err
	}
	defer func() {
		if create && err != nil {
			s.remember(name, false)
		}
	}()
	if s.store == nil {
		budget, cancel := runner.NewBudget(s.life, s.h.Spec.StartTimeout)
		defer cancel()
		spec := *s.h.Spec
		spec.CopyOf, spec.User = "", ""
		spec.Sweeper = []string{sweepWord, spec.Kern.Path}
		store, err := runner.OpenRoom(s.life, budget, s.h.Dirs, &spec)
		if err != nil {
			return "", err
		}
		s.store = store
	}
	return filepath.Join(s.store.Own, name+".tar.gz"), nil
}

// restore makes the workspace what a snapshot holds.
func (s *session) restore(ctx context.Context, path string, progress func(string) func()) (workspace.Restored, error) {
	var none workspace.Restored
	if err := s.lock(ctx); err != nil {
		return none, err
	}
	defer s.unlock()
	archive, err := workspace.OpenArchive(path)
	if err != nil {
		return none, err
	}
	defer archive.Close()
	o := workspace.RestoreOptions{Replace: true}
	o.Limits, o.Name = workspace.DefaultArchiveLimits(), filepath.Base(path)
	var got workspace.Restored
	if !s.kept() {
		// The old one stays until the new one is whole.
		p, err := s.open(ctx, progress, func(p *place) (err error) {
			o.Quota = int64(max(p.spec.WorkspaceMax, 0))
			if got, err = workspace.RestoreSnapshot(ctx, archive, p.room.Dir, o); err != nil {
				return err
			}
			return p.room.Use(&p.spec) // the directory is another one now
		})
		if err != nil {
			return none, err
		}
		if s.place != nil {
			s.place.close(errReset, leftTime)
		}
		s.place = p
		return got, nil
	}
	if err := s.hold(); err != nil {
		return none, err
	}
	if s.place != nil {
		s.place.close(errReset, leftTime)
		s.place = nil
	}
	dir := s.h.Spec.Workspace
	o.Quota = int64(max(s.h.Spec.WorkspaceMax, 0))
	if got, err = workspace.RestoreSnapshot(ctx, archive, dir, o); err != nil {
		return none, err
	}
	pin, err := runner.PinSource(dir)
	if err == nil {
		pins := maps.Clone(s.h.Spec.Pins)
		pins[dir] = pin
		s.h.Spec.Pins = pins
	}
	return got, err
}

// name checks that there is a snapshot of that name, or takes the name for one.
func (s *session) name(name string, create bool) error {
	s.names.Lock()
	defer s.names.Unlock()
	var whole []string
	for n, ok := range s.saved {
		if ok {
			whole = append(whole, n)
		}
	}
	slices.Sort(whole)
	_, known := s.saved[name]
	switch {
	case !create && !s.saved[name]:
		e := &validate.Error{Field: "name", Value: name, Reason: "there is no snapshot of that name", Fix: "make one with the tool snapshot"}
		if len(whole) > 0 {
			e.Fix = "there are " + strings.Join(whole, ", ")
		}
		return e
	case create && !known && len(s.saved) >= mostSnapshots:
		return &validate.Error{Field: "name", Value: name, Reason: fmt.Sprintf("there are %d snapshots, the most that are kept", mostSnapshots), Fix: "use the name of one that may be replaced: " + strings.Join(whole, ", ")}
	case create && !known:
		s.saved[name] = false
	}
	return nil
}

// remember notes whether a snapshot of that name was made. One that was there
// before stays.
func (s *session) remember(name string, made bool) {
	s.names.Lock()
	defer s.names.Unlock()
	if made {
		s.saved[name] = true
	} else if !s.saved[name] {
		delete(s.saved, name)
	}
}
