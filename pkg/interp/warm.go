package interp

import (
	"strings"

	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Kinds of a warm interpreter.
const (
	// Once runs one piece of code exactly as a cold run would, and ends with it:
	// the end of the process is the answer.
	Once = "once"
	// Kernel runs cells one after the other in one set of names, and says with
	// which code each ended.
	Kernel = "kernel"
)

// Driver is the command that keeps an interpreter of a language warm, and the
// files it needs under runner.CodeDir; nil when there is none for the language.
// The process expects a SEQPACKET socket of the agent on descriptor 3.
//
// A cell's file may be put into the directory of code before the cell is sent.
// Then everything that reads it (multiprocessing, pdb, runpy) finds it; without
// it tracebacks and inspect still do.
func Driver(lang, mode string) (argv []string, files []runner.CodeFile) {
	if lang != "python" || mode != Once && mode != Kernel {
		return nil, nil
	}
	return []string{"python3", "-u", runner.CodeDir + "/" + driver, "serve", mode},
		append(coldFiles(), runner.CodeFile{Name: serve, Content: pythonServe})
}

func coldFiles() []runner.CodeFile {
	return []runner.CodeFile{{Name: driver, Content: pythonDriver}, {Name: rich, Content: pythonRich}}
}

// WarmEnv says whether an interpreter that is already running can take these
// variables over its own. Some count only while it starts: those of python and
// of the loader, the locale, the time zone, the paths it is found by and where a
// user's packages lie. Pairs that the box has anyway need not be asked about.
func WarmEnv(env []validate.KV) bool {
	for _, kv := range env {
		switch k := kv.Key; {
		case k == "PATH", k == "HOME", k == "LANG", k == "TZ", k == "GLIBC_TUNABLES":
			return false
		case strings.HasPrefix(k, "PYTHON"), strings.HasPrefix(k, "LD_"), strings.HasPrefix(k, "LC_"), strings.HasPrefix(k, "MALLOC_"):
			return false
		}
	}
	return true
}
