package cmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	xterm "golang.org/x/term"

	"github.com/kern-sbx/kern-sbx/pkg/pool"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

func (a *app) kernelRepl() *cobra.Command {
	o := &kernelExec{runOpts: runOpts{app: a}}
	c := &cobra.Command{
		Use:   "repl [NAME]",
		Short: "type at a kernel",
		Long: `Type at a kernel, as at python's own prompt. A block ends with an empty line. Ctrl-C
clears the line, or interrupts the cell that runs and keeps the names; Ctrl-D
leaves, and the kernel lives on. A cell has no time limit here, unless --timeout
here or at kernel start sets one. input() finds nothing to read.`,
		Example:           "  kern-sbx kernel start --image host && kern-sbx kernel repl\n  kern-sbx kernel repl data --restart",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeKernels,
		RunE: func(c *cobra.Command, args []string) error {
			o.name = kernelName(args)
			return o.repl(c)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.outDir, "out", "", "write what the code displays, and its last value, as files into `DIR`")
	f.StringVar(&o.timeout, "timeout", "", "end a cell, and the kernel, after `TIME`, or none")
	f.StringVar(&o.maxOutput, "max-output", "", "pass on `SIZE` of each stream of a cell (default: that of kernel start)")
	f.BoolVar(&o.restart, "restart", false, "when the kernel is dead: start it again with the same flags")
	for _, n := range []string{"out", "timeout", "max-output", "restart"} {
		f.SetAnnotation(n, flagGroup, []string{inCode})
	}
	c.SetFlagErrorFunc(a.kernelFlagError)
	c.RegisterFlagCompletionFunc("timeout", cobra.NoFileCompletions)
	c.RegisterFlagCompletionFunc("max-output", cobra.NoFileCompletions)
	c.RegisterFlagCompletionFunc("out", completeDirs)
	return c
}

// repl is one conversation.
func (o *kernelExec) repl(c *cobra.Command) error {
	a := o.app
	o.wait = true
	if err := validate.Name(o.name); err != nil {
		return validate.In("NAME", err)
	}
	switch {
	case a.global.json:
		return &validate.Error{Field: "--json", Value: "kernel repl", Reason: "it is for a person at a terminal", Fix: "kern-sbx kernel exec --json --cells - holds a conversation with a program"}
	case a.global.result != "":
		return &validate.Error{Field: "--result", Value: "kernel repl", Reason: "there is more than one result", Fix: "leave it out, or use kernel exec"}
	case !term.IsTerminal(a.in) || !term.IsTerminal(a.out):
		return &validate.Error{Field: "NAME", Value: o.name, Reason: "standard input and output are not a terminal", Fix: "kern-sbx kernel exec -f - reads code from a pipe"}
	}
	if err := o.settings(c); err != nil {
		return err
	}
	o.sigs = make(chan os.Signal, 8)
	signal.Notify(o.sigs, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGHUP)
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	o.dirs = runner.FindDirs(o.env)
	var err error
	if o.place, err = pool.Open(o.env, o.dirs); err != nil {
		return err
	}
	defer o.place.Close()
	budget, cancel := runner.NewBudget(c.Context(), runner.DefaultStartTimeout)
	defer cancel()
	saved, err := openOut(budget, o.outDir)
	if err != nil {
		return err
	}
	if saved != nil {
		defer saved.Close()
	}
	if err := o.connect(); err != nil {
		return err
	}
	defer func() { o.client.Close() }()
	// A dead kernel is found by the first connection, or by asking.
	if _, err := o.client.Status(); err != nil {
		return err
	}
	if o.cellTime == nil && o.client.Meta.TimeoutFrom == "" {
		o.cellTime = new(time.Duration)
	}
	p := newPrompt(a.in, a.out)
	defer p.close()
	p.history.load(o.historyFile())
	o.note(fmt.Sprintf("kernel %s (%s); Ctrl-D leaves it running", o.name, o.client.Meta.Root))
	for {
		code, err := p.block(o.sigs)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case strings.TrimSpace(code) == "":
			continue
		}
		done, err := o.runCell(&pool.Cell{Code: []byte(code)}, false)
		if errors.Is(err, pool.ErrInterrupted) {
			o.note(err.Error())
			continue
		}
		if err != nil {
			return err
		}
		done.streams.Close()
		if err := o.save(saved, done); err != nil {
			o.say("error", "the results could not be written: "+err.Error())
		}
		done.report()
		if a.global.raw {
			// What the box made the terminal answer is nobody's input (rule S10).
			unix.IoctlSetInt(int(a.in.Fd()), unix.TCFLSH, unix.TCIFLUSH)
		}
		if done.over {
			return &exitError{code: done.res.Status}
		}
	}
}

func (o *kernelExec) save(saved *workspace.OutputDir, done *finished) error {
	if saved == nil {
		return nil
	}
	return saveResults(saved, done.number, done.res.Results)
}

// historyFile is where the lines typed at a kernel are kept, "" for nowhere.
func (o *kernelExec) historyFile() string {
	data, err := o.dirs.Usable(o.dirs.Data)
	if err != nil {
		return ""
	}
	dir := filepath.Join(data, "history")
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return ""
	}
	return filepath.Join(dir, "kernel-"+o.name)
}

// prompt reads blocks of code from a terminal.
type prompt struct {
	in, out *os.File
	term    *xterm.Terminal
	keys    *keyReader
	history *history
}

// screen is both sides of the terminal.
type screen struct {
	io.Reader
	io.Writer
}

func newPrompt(in, out *os.File) *prompt {
	p := &prompt{in: in, out: out, keys: &keyReader{in: in}, history: &history{}}
	p.term = xterm.NewTerminal(screen{p.keys, out}, "")
	p.term.History = p.history
	p.term.AutoCompleteCallback = func(line string, pos int, key rune) (string, int, bool) {
		if key != '\t' {
			return "", 0, false
		}
		const indent = "    "
		return line[:pos] + indent + line[pos:], pos + len(indent), true
	}
	return p
}

func (p *prompt) close() { p.history.close() }

// block reads one piece of code: to the end of a line when that is whole, else to
// an empty line. io.EOF is Ctrl-D.
func (p *prompt) block(sigs <-chan os.Signal) (string, error) {
	old, err := xterm.MakeRaw(int(p.in.Fd()))
	if err != nil {
		return "", fmt.Errorf("the terminal cannot be read: %w", err)
	}
	defer xterm.Restore(int(p.in.Fd()), old)
	if w, h, err := xterm.GetSize(int(p.out.Fd())); err == nil && w > 0 {
		p.term.SetSize(w, h)
	}
	p.term.SetBracketedPasteMode(true)
	defer p.term.SetBracketedPasteMode(false)
	type answer struct {
		code string
		err  error
	}
	c := make(chan answer, 1)
	go func() {
		code, err := p.lines()
		c <- answer{code, err}
	}()
	for {
		select {
		case got := <-c:
			return got.code, got.err
		case sig := <-sigs:
			// Ctrl-C is a key here. The reading goroutine ends with this process.
			if n := sig.(unix.Signal); n != unix.SIGINT {
				return "", &exitError{code: 128 + int(n)}
			}
		}
	}
}

func (p *prompt) lines() (string, error) {
	var b strings.Builder
	p.term.SetPrompt(">>> ")
	for {
		line, err := p.term.ReadLine()
		pasted := errors.Is(err, xterm.ErrPasteIndicator)
		if pasted {
			err = nil
		}
		if p.keys.interrupted {
			p.keys.interrupted = false
			b.Reset()
			p.term.SetPrompt(">>> ")
			continue
		}
		if err != nil {
			return "", err
		}
		if b.Len() == 0 && strings.TrimSpace(line) == "" {
			continue
		}
		b.WriteString(line + "\n")
		// Somebody who pastes a function with empty lines in it does not mean its
		// end.
		if !pasted && wholeCode(b.String()) {
			return b.String(), nil
		}
		p.term.SetPrompt("... ")
	}
}

// keyReader makes Ctrl-C clear the line: the editor itself takes it for the end
// of the input.
type keyReader struct {
	in          io.Reader
	ahead       []byte
	interrupted bool
}

const ctrlC = 3

func (r *keyReader) Read(p []byte) (int, error) {
	if len(r.ahead) == 0 {
		n, err := r.in.Read(p)
		if n == 0 || err != nil {
			return n, err
		}
		r.ahead = append(r.ahead, p[:n]...)
	}
	i := strings.IndexByte(string(r.ahead), ctrlC)
	switch {
	case i < 0:
		i = len(r.ahead)
	case i == 0 && len(p) >= 3:
		// To the end of the line, delete it, and hand it in. By then all before
		// it has been.
		r.ahead, r.interrupted = r.ahead[1:], true
		return copy(p, "\x05\x15\r"), nil
	case i == 0:
		return 0, nil
	}
	n := copy(p, r.ahead[:i])
	r.ahead = r.ahead[n:]
	return n, nil
}

// history is what was typed at a kernel, the newest last.
type history struct {
	lines []string
	file  *os.File
}

const (
	mostHistory   = 1000    // lines
	historyBytes  = 1 << 20 // that are read
	longestInHist = 4096
)

// load reads the file, and goes on writing to it. What cannot be kept is not.
func (h *history) load(path string) {
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return
	}
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || f.Chmod(0o600) != nil {
		f.Close()
		return
	}
	from := max(0, st.Size()-historyBytes)
	b, _ := io.ReadAll(io.NewSectionReader(f, from, historyBytes))
	n := 0
	for line := range strings.Lines(string(b)) {
		h.keep(strings.TrimSuffix(line, "\n"))
		n++
	}
	h.file = f
	if n > mostHistory || from > 0 {
		h.rewrite()
	}
}

// rewrite leaves in the file what is remembered.
func (h *history) rewrite() {
	if h.file.Truncate(0) == nil {
		io.WriteString(h.file, strings.Join(h.lines, "\n")+"\n")
	}
}

// keep remembers a line. What it shows again is made safe to show: the file may
// hold what nobody typed.
func (h *history) keep(line string) bool {
	line = term.VisibleLine(line)
	if strings.TrimSpace(line) == "" || len(line) > longestInHist || len(h.lines) > 0 && h.lines[len(h.lines)-1] == line {
		return false
	}
	if h.lines = append(h.lines, line); len(h.lines) > mostHistory {
		h.lines = h.lines[len(h.lines)-mostHistory*3/4:]
	}
	return true
}

// Add is called by the line editor.
func (h *history) Add(line string) {
	if h.keep(line) && h.file != nil {
		io.WriteString(h.file, h.lines[len(h.lines)-1]+"\n")
	}
}

// Len is the number of lines.
func (h *history) Len() int { return len(h.lines) }

// At gives a line; 0 is the newest.
func (h *history) At(i int) string { return h.lines[len(h.lines)-1-i] }

func (h *history) close() {
	if h.file != nil {
		h.file.Close()
	}
}

// wholeCode says whether lines of Python, as typed so far, are to be run: as
// python's own prompt decides, but by their looks. What is open (a bracket, a
// string of three quotes, a backslash at the end) goes on; a block ends with an
// empty line; everything else is whole, right or wrong.
func wholeCode(src string) bool {
	var depth int
	var block bool // a line has opened a block
	lastBlank, start := false, true
	word, last := "", byte(0) // the first word of a logical line, its last character
	endLine := func() {
		if last == ':' || word == "@" || word == "try" {
			block = true
		}
		start, word, last = true, "", 0
	}
	for i := 0; i < len(src); {
		c := src[i]
		switch {
		case c == '#':
			for i < len(src) && src[i] != '\n' {
				i++
			}
			continue
		case c == '"' || c == '\'':
			n, open := stringEnd(src[i:])
			if open {
				return false
			}
			i += n
			start, last = false, c
			continue
		case c == '\\' && i+1 < len(src) && src[i+1] == '\n':
			if i+2 >= len(src) {
				return false
			}
			i += 2
			continue
		case c == '(' || c == '[' || c == '{':
			depth++
		case c == ')' || c == ']' || c == '}':
			depth = max(0, depth-1)
		case c == '\n':
			if depth == 0 {
				lastBlank = start
				endLine()
			}
			i++
			continue
		}
		if c != ' ' && c != '\t' {
			if start {
				word = firstWord(src[i:])
			}
			start, last = false, c
		}
		i++
	}
	return depth == 0 && (!block || lastBlank)
}

func firstWord(s string) string {
	if s[0] == '@' {
		return "@"
	}
	for i := range len(s) {
		if c := s[i]; !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c >= 0x80) {
			return s[:i]
		}
	}
	return s
}

// stringEnd gives the length of a string literal at the start of s, and whether it
// goes on past the end. One of a single quote ends with its line at the latest.
func stringEnd(s string) (n int, open bool) {
	quote := s[:1]
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(s, triple) {
		quote = triple
	}
	for n = len(quote); n < len(s); n++ {
		switch {
		case s[n] == '\\' && n+1 < len(s):
			n++
			if s[n] == '\n' && n+1 == len(s) {
				return len(s), true
			}
		case s[n] == '\n' && len(quote) == 1:
			return n, false
		case strings.HasPrefix(s[n:], quote):
			return n + len(quote), false
		}
	}
	return len(s), len(quote) == 3
}
