package interp

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// python finds the interpreter of this machine, past a wrapper that chooses a
// version and takes its time each time.
func python(t testing.TB) string {
	t.Helper()
	p, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3 on this machine")
	}
	out, err := exec.Command(p, "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Skipf("python3 does not work here: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// install puts the driver into a directory that stands for the workspace as well.
func install(t testing.TB, results bool) string {
	t.Helper()
	dir := t.TempDir()
	_, files := Driver("python", Once)
	for _, f := range files {
		text := bytes.ReplaceAll(f.Content, []byte(`"/workspace"`), []byte(strconv.Quote(dir)))
		if err := os.WriteFile(filepath.Join(dir, f.Name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if results {
		if err := os.Mkdir(filepath.Join(dir, out), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestPythonDriver runs each script as `python3 SCRIPT`, and then in every way
// that there is through the driver. Nothing that a program or its reader can see
// may differ.
func TestPythonDriver(t *testing.T) {
	python := python(t)
	for name, src := range scripts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := install(t, false)
			script := filepath.Join(dir, "script.py")
			write := func(name, text string) {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("script.py", src)
			write("helper.py", "")
			args := []string{"a", "-b", ""}
			plain := runPython(t, dir, append([]string{python, "-u", script}, args...))
			compare := func(how, ours string) {
				t.Helper()
				if why := knownDifference[name]; why != "" && plain != ours {
					if end(plain) != end(ours) && name != "zero byte" || name != "warn level" && strings.Contains(ours, reserved) {
						t.Errorf("beyond the known difference (%s)\npython3 SCRIPT:\n%s\n%s:\n%s", why, plain, how, ours)
					}
					return
				}
				// A Python that is PID 1 cannot end itself by SIGINT, as it does here.
				plain := strings.ReplaceAll(plain, "signal: interrupt", "exit status 130")
				if plain != ours {
					t.Errorf("python3 SCRIPT:\n%s\n%s:\n%s", plain, how, ours)
				}
			}
			cold := append([]string{python, "-u", filepath.Join(dir, driver), script}, args...)
			compare("cold", runPython(t, dir, cold))
			if err := os.Mkdir(filepath.Join(dir, out), 0o700); err != nil {
				t.Fatal(err)
			}
			compare("cold, with results", runPython(t, dir, cold))
			compare("warm", runOnce(t, python, dir, script, src, args))
			if needsFile[name] {
				return
			}
			if err := os.Remove(script); err != nil {
				t.Fatal(err)
			}
			compare("warm, without the file", runOnce(t, python, dir, script, src, args))
		})
	}
}

// needsFile are programs that read their own file by other means than traceback,
// inspect and linecache. (Where the interpreter shows an exception by itself, it
// does so in C before Python 3.13.)
var needsFile = map[string]bool{
	"spawn": true, "forkserver": true, "runpy": true,
	"atexit raises": true, "thread raises": true, "del raises": true, "syntax warn": true,
}

var scripts = map[string]string{
	"names":       "import sys\nprint(__name__, __file__, sys.argv, sys.path[0], __doc__, __package__, __spec__, __builtins__)\nprint(sorted(globals()))\n",
	"docstring":   "\"\"\"what it does\"\"\"\nprint(__doc__)\n",
	"cached":      "print(globals().get('__cached__', 'none'), type(__loader__).__name__)\n",
	"annotations": "print('__annotations__' in globals())\nx: int = 1\nprint(__annotations__)\n",
	"main module": "import sys, __main__\nprint(__main__ is sys.modules['__main__'], __main__.__dict__ is globals(), vars(__main__)['__name__'])\n",
	"last names":  "import sys\nprint(hasattr(sys, 'last_type'), hasattr(sys, 'last_value'))\n",

	"traceback":      "def f():\n    return 1/0\n\nf()\n",
	"chained":        "try:\n    {}['x']\nexcept KeyError as e:\n    raise ValueError('y') from e\n",
	"context":        "try:\n    {}['x']\nexcept KeyError:\n    1/0\n",
	"group":          "raise ExceptionGroup('g', [ValueError(1), ExceptionGroup('h', [TypeError(2)])])\n",
	"note":           "e = ValueError('x')\ne.add_note('a note')\nraise e\n",
	"syntax":         "print('before')\ndef f(:\n    pass\n",
	"syntax at end":  "x = (1,\n",
	"indent":         "if True:\nprint(1)\n",
	"tabs":           "if True:\n        x = 1\n\ty = 2\n",
	"zero byte":      "print(1)\x00\n",
	"bad utf-8":      "print('\xff')\n",
	"raises syntax":  "compile('a b', 'other.py', 'exec')\n",
	"import fails":   "import no_such_module_here\n",
	"recursion":      "def f(n):\n    return f(n + 1)\nf(0)\n",
	"traceback self": "import traceback\ntry:\n    1/0\nexcept ZeroDivisionError:\n    traceback.print_exc()\nprint(len(traceback.extract_stack()), traceback.extract_stack()[0].name)\n",
	"frames":         "import sys, inspect\nf = sys._getframe()\nprint(f.f_code.co_name, f.f_lineno, f.f_globals is globals(), f.f_locals is globals(), f.f_code.co_filename)\n",
	"str raises":     "class E(Exception):\n    def __str__(self): raise ValueError\nraise E()\n",
	"base exception": "class E(BaseException): pass\nraise E('x')\n",
	"generator exit": "raise GeneratorExit\n",

	"exit none":       "import sys\nsys.exit()\n",
	"exit 0":          "import sys\nsys.exit(0)\n",
	"exit 3":          "import sys\nsys.exit(3)\n",
	"exit 256":        "import sys\nsys.exit(256)\n",
	"exit -1":         "import sys\nsys.exit(-1)\n",
	"exit big":        "import sys\nsys.exit(2**70)\n",
	"exit text":       "import sys\nsys.exit('why not')\n",
	"exit float":      "import sys\nsys.exit(1.5)\n",
	"exit tuple":      "import sys\nsys.exit((1, 2))\n",
	"exit true":       "import sys\nsys.exit(True)\n",
	"exit bytes":      "import sys\nsys.exit(b'x')\n",
	"quit":            "quit(4)\n",
	"system exit":     "raise SystemExit\n",
	"exit from chain": "try:\n    1/0\nexcept ZeroDivisionError:\n    raise SystemExit(5)\n",
	"os._exit":        "import os\nprint('x')\nos._exit(6)\n",
	"abort":           "import resource, os\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nos.abort()\n",
	"killed":          "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
	"interrupt":       "raise KeyboardInterrupt\n",
	"interrupt deep":  "def f():\n    raise KeyboardInterrupt('x')\nf()\n",
	"real interrupt":  "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)\n",

	"hook":            "import sys\ndef h(t, v, tb):\n    print('hook', t.__name__, v, tb.tb_lineno, tb.tb_next, tb.tb_frame.f_code.co_name)\nsys.excepthook = h\n1/0\n",
	"hook raises":     "import sys\ndef h(t, v, tb):\n    raise ValueError('in hook')\nsys.excepthook = h\n1/0\n",
	"hook exits":      "import sys\ndef h(t, v, tb):\n    sys.exit(9)\nsys.excepthook = h\n1/0\n",
	"hook exits text": "import sys\ndef h(t, v, tb):\n    sys.exit('from hook')\nsys.excepthook = h\n1/0\n",
	"hook deleted":    "import sys\ndel sys.excepthook\n1/0\n",
	"hook none":       "import sys\nsys.excepthook = None\n1/0\n",
	"hook last":       "import sys, atexit\natexit.register(lambda: print(sys.last_type, sys.last_value, sys.last_traceback.tb_lineno))\n1/0\n",
	"stderr closed":   "import sys\nsys.stderr.close()\n1/0\n",
	"stderr none":     "import sys\nsys.stderr = None\n1/0\n",
	"stdout closed":   "import sys\nsys.stdout.close()\n",
	"atexit":          "import atexit\natexit.register(print, 'bye')\nprint('hello')\n",
	"atexit error":    "import atexit\natexit.register(print, 'bye')\nraise ValueError(1)\n",
	"atexit raises":   "import atexit\natexit.register(lambda: 1/0)\nprint('x')\n",
	"thread":          "import threading, time\ndef f():\n    time.sleep(.2)\n    print('thread done')\nthreading.Thread(target=f).start()\nprint('main done')\n",
	"thread error":    "import threading, time\ndef f():\n    time.sleep(.2)\n    print('thread done')\nthreading.Thread(target=f).start()\n1/0\n",
	"daemon thread":   "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
	"thread raises":   "import threading\ndef f():\n    1/0\nt = threading.Thread(target=f, name='T')\nt.start()\nt.join()\n",
	"del":             "class C:\n    def __del__(self): print('del', C)\nc = C()\n",
	"del cycle":       "class C:\n    def __del__(self): print('del')\nc = C()\nc.me = c\n",
	"del held":        "import sys, os\nclass C:\n    def __init__(self, n): self.n = n\n    def __del__(self): print('del', self.n)\nfor m in sys, os, os.path, sys.modules['__main__']:\n    m.kept = C(m.__name__)\n    m.cycle = C(m.__name__ + ' cycle')\n    m.cycle.me = m.cycle\n    m.cycle.m = m\n",
	"collected":       "import gc\nclass C:\n    def __del__(self): print('del')\nfor i in range(3):\n    c = C()\n    c.me = c\ndel c\ngc.collect()\nprint('end')\n",
	"del raises":      "class C:\n    def __del__(self): 1/0\nC()\n",

	"spawn":       "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n    m.set_start_method('spawn')\n    with m.Pool(2) as p:\n        print(p.map(f, range(5)))\n",
	"fork":        "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n    m.set_start_method('fork')\n    with m.Pool(2) as p:\n        print(p.map(f, range(5)))\n",
	"forkserver":  "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n    m.set_start_method('forkserver')\n    with m.Pool(1) as p:\n        print(p.map(f, range(5)))\n",
	"pickle":      "import pickle\nclass C:\n    def __eq__(self, o): return type(o) is C\nb = pickle.dumps(C())\nprint(pickle.loads(b) == C(), C.__module__, b'__main__' in b)\n",
	"dataclass":   "from dataclasses import dataclass, field\nfrom typing import get_type_hints\n@dataclass\nclass C:\n    a: int\n    b: 'list[int]' = field(default_factory=list)\nprint(C(1), get_type_hints(C))\n",
	"future":      "from __future__ import annotations\ndef f(x: Nope): pass\nprint(f.__annotations__)\n",
	"no future":   "def f(x: int): pass\nprint(f.__annotations__)\n",
	"star future": "from __future__ import braces\n",
	"latin-1":     "# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\n",
	"latin error": "# coding: latin-1\nx = '\xe9'; 1/0\n",
	"bad coding":  "# coding: no-such\nprint(1)\n",
	"bom":         "\xef\xbb\xbfprint('bom')\n",
	"crlf":        "x = '''a\r\nb'''\r\nprint(repr(x))\r\n1/0\r\n",
	"empty":       "",
	"comment":     "# nothing",
	"no newline":  "print(1)",
	"source":      "import inspect\ndef f():\n    return 1\nclass C:\n    x = 1\nprint(inspect.getsource(f), inspect.getsource(C), inspect.getsourcefile(f), inspect.getfile(C))\n",
	"linecache":   "import linecache\nprint(linecache.getline(__file__, 2))\n",
	"runpy":       "import runpy\nprint(runpy.run_path(__file__, run_name='x')['__name__']) if __name__ == '__main__' else None\n",
	"warning":     "import warnings\nwarnings.warn('careful')\n",
	"deprecated":  "import warnings\nwarnings.warn('old', DeprecationWarning)\n",
	"warn level":  "import warnings\ndef f(): warnings.warn('up', stacklevel=2)\nf()\nwarnings.warn('far', stacklevel=3)\n",
	"syntax warn": "x = 1\nprint(x is 1)\n",
	"input":       "try:\n    input('? ')\nexcept EOFError:\n    print('eof')\n",
	"asyncio":     "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    1/0\nasyncio.run(f())\n",
	"unawaited":   "async def f(): pass\nf()\n",
	"unittest":    "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(1, 1)\nunittest.main(argv=['x'], verbosity=0)\n",
	"import self": "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\nimport helper\nprint(helper.__name__)\n",
	"del global":  "del __file__\nprint('__file__' in globals())\n1/0\n",
	"gc":          "import gc\nprint(len([o for o in gc.get_objects() if isinstance(o, dict) and '_kern_sbx' in o]))\n",
	"locale":      "import sys, locale\nprint(sys.stdout.encoding, sys.stdout.errors, sys.flags.utf8_mode)\n",
	"dunder main": "if __name__ == '__main__':\n    print('main')\n",
	"exec frame":  "exec(compile('1/0', '<x>', 'exec'))\n",
	"many lines":  strings.Repeat("x = 1\n", 3000) + "1/0\n",
}

// knownDifference are what a driver written in Python cannot hide.
var knownDifference = map[string]string{
	"recursion":      "two frames fewer are free",
	"traceback self": "a program can count two more frames",
	"warn level":     "and can blame the outermost one",
	"stderr closed":  "CPython prints a reference count",
	"zero byte":      "CPython words it differently for a file and for bytes, or takes it for the end of a file (before 3.11.4)",
	"bad coding":     "CPython words it differently for a file and for bytes",
	"bad utf-8":      "CPython words it differently for a file and for bytes",
}

// end is how a run ended: its last line.
func end(s string) string { return s[strings.LastIndexByte(s, '\n')+1:] }

// address is what differs between any two runs of the same program.
var address = regexp.MustCompile(`0x[0-9a-f]{6,}|in [0-9.]+s`)

func runPython(t *testing.T, dir string, argv []string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr, c.Dir = &out, &errs, dir
	c.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	c.Run()
	return told(out.String(), errs.String(), c)
}

// told is all that a run says.
func told(out, errs string, c *exec.Cmd) string {
	state := "not started"
	if c.ProcessState != nil {
		state = c.ProcessState.String()
	}
	return address.ReplaceAllString("stdout: "+out+"\nstderr: "+errs+"\n"+state, "0x")
}
