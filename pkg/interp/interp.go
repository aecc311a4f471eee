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
