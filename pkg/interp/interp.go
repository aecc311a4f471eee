package interp

import (
	_ "embed" // the drivers
	"path"
	"strings"

	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

var (
	//go:embed python.py
	pythonDriver []byte
	//go:embed rich.py
	pythonRich []byte
	//go:embed serve.py
	pythonServe []byte
)

// Languages are the names that --lang takes, the default first.
func Languages() []string { return []string{"python", "node", "bash", "sh"} }

var endings = map[string]string{
	".py": "python", ".js": "node", ".mjs": "node", ".cjs": "node", ".bash": "bash", ".sh": "sh",
}

// The names of our own files beside the code begin with reserved, and a code
// file whose name does is refused. out is the directory for results.
const (
	reserved = ".kern-sbx"
	driver   = reserved + ".py"
	rich     = reserved + "-rich.py"
	serve    = reserved + "-serve.py"
	out      = "out"
)

// Program is code and how to start it.
type Program struct {
	Argv  []string
	Files []runner.CodeFile
	// Interpreter is what has to be in the image.
	Interpreter string
	Lang        string
}

// Detect names the language of a file by its ending; "" when the ending says
// nothing.
func Detect(name string) string { return endings[strings.ToLower(path.Ext(name))] }

// Check refuses a language that there is no interpreter for here.
func Check(lang string) error {
	for _, l := range Languages() {
		if l == lang {
			return nil
		}
	}
	fix := "use one of " + strings.Join(Languages(), ", ")
	if near := validate.Nearest(lang, Languages()); near != "" {
		fix = "did you mean " + near + "?"
	}
	return &validate.Error{Field: "--lang", Value: lang, Reason: "not a language that -c and -f know", Fix: fix}
}

// Build turns code into a command. name is the file name that tracebacks show
// ("" gives one that fits the language); lang "" is taken from the name, else
// python. args become the program's own.
func Build(lang, name string, code []byte, args []string) (*Program, error) {
	if lang == "" {
		if lang = Detect(name); lang == "" {
			lang = Languages()[0]
		}
	}
	if err := Check(lang); err != nil {
		return nil, err
	}
	if name == "" {
		name = map[string]string{"python": "main.py", "node": "main.js", "bash": "main.bash", "sh": "main.sh"}[lang]
	}
	if strings.HasPrefix(name, reserved) || name == out || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return nil, &validate.Error{Field: "--file", Value: name, Reason: "not a name that can be used in the box", Fix: "rename the file"}
	}
	p := &Program{Lang: lang, Files: []runner.CodeFile{{Name: name, Content: code}}}
	file := runner.CodeDir + "/" + name
	switch lang {
	case "python":
		p.Interpreter = "python3"
		p.Files = append(p.Files, coldFiles()...)
		// -u: what was printed before a kill is not lost in a buffer.
		p.Argv = []string{"python3", "-u", runner.CodeDir + "/" + driver, file}
	default:
		p.Interpreter = lang
		p.Argv = []string{lang, file}
	}
	p.Argv = append(p.Argv, args...)
	return p, nil
}

// Into makes a program what a box runs: its command, its files, what its
// interpreter wants set, and the cell that an interpreter which waits could take
// instead. args are the program's own, as Build had them. Results stays the
// caller's choice.
func (p *Program) Into(s *runner.Spec, args []string) {
	s.Argv, s.Code = p.Argv, p.Files
	switch p.Lang {
	case "python":
		PythonEnv(s)
		f := p.Files[0]
		s.Cell = &runner.Cell{File: runner.CodeDir + "/" + f.Name, Code: f.Content, Args: args}
	case "node":
		if !validate.HasKey(s.Env, "NODE_PATH") {
			// The code lies outside the workspace; its modules lie inside.
			s.Env = append(s.Env, validate.KV{Key: "NODE_PATH", Value: runner.WorkspaceDir + "/node_modules"})
		}
	}
}

// PythonEnv sets what python needs in a box.
func PythonEnv(s *runner.Spec) {
	if !validate.HasKey(s.Env, "MPLCONFIGDIR") {
		// matplotlib writes there at its first import, and says so aloud when it
		// cannot.
		s.Env = append(s.Env, validate.KV{Key: "MPLCONFIGDIR", Value: scratch(s) + "/.matplotlib"})
	}
}

// scratch is a directory of the box that can be written and is not kept, or else
// the workspace.
func scratch(s *runner.Spec) string {
	for _, t := range s.Tmpfs {
		if t.Target == "/tmp" {
			return t.Target
		}
	}
	for _, m := range s.Mounts {
		if m.Target == "/tmp" && !m.ReadOnly {
			return m.Target
		}
	}
	return runner.WorkspaceDir
}
