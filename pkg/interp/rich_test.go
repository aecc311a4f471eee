package interp

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// written reads what the driver wrote, in one line for each bundle; nothing here
// is hostile. (The host's reader is package runner's.)
func written(t *testing.T, dir, id string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, out, id))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	s := string(b)
	line := func() []string {
		l, rest, ok := strings.Cut(s, "\n")
		if !ok {
			t.Fatalf("not a line: %.100q", s)
		}
		s = rest
		return strings.Fields(l)
	}
	var all []string
	for s != "" {
		head := line()
		if len(head) != 3 || head[0] != "bundle" {
			t.Fatalf("not a bundle: %q", head)
		}
		var parts []string
		pairs, _ := strconv.Atoi(head[1])
		for range pairs {
			kind := line()
			n, err := strconv.Atoi(kind[1])
			if err != nil || len(s) < n+1 || s[n] != '\n' {
				t.Fatalf("not a pair: %q", kind)
			}
			text := s[:n]
			if n > 60 {
				text = fmt.Sprintf("%.8s...%d", text, n)
			}
			parts = append(parts, strings.TrimPrefix(kind[0], "text/")+"="+text)
			s = s[n+1:]
		}
		if head[2] != "0" {
			parts = append(parts, head[2]+" left out")
		}
		all = append(all, strings.Join(parts, " | "))
	}
	return all
}

// matplotlib is a module with what the driver uses of the real one.
const matplotlib = `
import sys, types
pkg, fig, plt = (types.ModuleType(n) for n in ("matplotlib", "matplotlib.figure", "matplotlib.pyplot"))
class Figure:
    def __init__(self, n): self.n = n
    def savefig(self, f, format, bbox_inches): f.write(b"\x89PNG\r\n\x1a\n%d" % self.n)
    def __repr__(self): return "<Figure %d>" % self.n
Figure.__module__ = "matplotlib.figure"
fig.Figure, opened = Figure, {}
plt.get_fignums = lambda: list(opened)
plt.close = lambda which: opened.clear()
def figure(n=None):
    n = n or len(opened) + 1
    return opened.setdefault(n, Figure(n))
plt.figure = figure
sys.modules.update({"matplotlib": pkg, "matplotlib.figure": fig, "matplotlib.pyplot": plt})
`

func TestRich(t *testing.T) {
	python := python(t)
	const png1, png2 = "image/png=\x89PNG\r\n\x1a\n1", "image/png=\x89PNG\r\n\x1a\n2"
	for name, c := range map[string]struct {
		src  string
		want []string
		end  string // of what a run says; "" for a good end without output
	}{
		"value":          {"1+1", []string{"plain=2"}, ""},
		"none":           {"None", nil, ""},
		"semicolon":      {"x = 1; x;", []string{"plain=1"}, ""},
		"no expression":  {"x = 1", nil, ""},
		"in a block":     {"if True:\n    5", nil, ""},
		"docstring":      {"'text'", []string{"plain='text'"}, ""},
		"doc and value":  {"'text'\n__doc__", []string{"plain='text'"}, ""},
		"constant":       {"x = 1\n...", []string{"plain=Ellipsis"}, ""},
		"lines":          {"[1,\n 2\n]\n\n# done\n", []string{"plain=[1, 2]"}, ""},
		"future":         {"from __future__ import annotations\ndef f(x: Nope): pass\nf.__annotations__", []string{"plain={'x': 'Nope'}"}, ""},
		"yield":          {"yield 1", nil, "exit status 1"},
		"raises":         {"display(1)\n1/0", []string{"plain=1"}, "exit status 1"},
		"exits":          {"display(1)\nraise SystemExit(3)", []string{"plain=1"}, "exit status 3"},
		"exit as value":  {"display(1)\nexit(3)", []string{"plain=1"}, "exit status 3"},
		"displayed":      {"display(1, 'a')\ndisplay([2], metadata=3)", []string{"plain=1", "plain='a'", "plain=[2]"}, ""},
		"names":          {"globals().clear()\ndisplay(5)\n6", []string{"plain=5", "plain=6"}, ""},
		"patched":        {"import builtins, os\nbuiltins.open = builtins.compile = builtins.exec = os.open = None\n7", []string{"plain=7"}, ""},
		"closed all":     {"import os\nos.closerange(0, 4096)\n8", []string{"plain=8"}, ""},
		"cwd gone":       {"import os\nos.mkdir('d'); os.chdir('d'); os.rmdir('../d')\n9", []string{"plain=9"}, ""},
		"thread":         {"import threading\nt = threading.Thread(target=display, args=(1,))\nt.start()\nt.join()", []string{"plain=1"}, ""},
		"fork":           {"import os\nif os.fork() == 0:\n    os._exit(display(1) or 0)\nos.wait()[1]", []string{"plain=1", "plain=0"}, ""},
		"fork both":      {"import os\nif os.fork():\n    os.wait()\n5", []string{"plain=5"}, ""},
		"repr raises":    {"class C:\n    def __repr__(self): 1/0\nC()", []string{"plain=<unrepresentable>"}, ""},
		"repr exits":     {"class C:\n    def __repr__(self): raise SystemExit(9)\nC()", nil, ""},
		"repr none":      {"class C:\n    def __repr__(self): return None\nC()", []string{"plain=<unrepresentable>"}, ""},
		"repr prints":    {"class C:\n    def __repr__(self):\n        print('hi')\n        return 'C'\nC()", []string{"plain=C"}, "stdout: hi\n\nstderr: \nexit status 0"},
		"repr recurses":  {"class C:\n    def __repr__(self): return repr(self)\nC()", []string{"plain=<unrepresentable>"}, ""},
		"interrupted":    {"class C:\n    def __repr__(self): raise KeyboardInterrupt\nC()", nil, "exit status 130"},
		"str subclass":   {"class S(str):\n    def encode(self, *a): 1/0\n    def __repr__(self): return S('x')\nS()", []string{"plain=x"}, ""},
		"surrogates":     {"class C:\n    def __repr__(self): return '\\udc80'\nC()", []string{`plain=\udc80`}, ""},
		"huge repr":      {"class C:\n    def __repr__(self): return 'x' * (20 << 20)\nC()", []string{"plain=xxxxxxxx...16777216 | 1 left out"}, ""},
		"huge html":      {"class C:\n    def _repr_html_(self): return 'x' * (20 << 20)\n    def __repr__(self): return 'C'\nC()", []string{"plain=C | 1 left out"}, ""},
		"huge all":       {"class C:\n    def _repr_html_(self): return 'x' * (16 << 20)\n    def __repr__(self): return 'C'\nfor i in range(6): display(C())", []string{"html=xxxxxxxx...16777216 | plain=C", "html=xxxxxxxx...16777216 | plain=C", "html=xxxxxxxx...16777216 | plain=C", "2 left out", "2 left out", "2 left out"}, ""},
		"methods":        {"class C:\n    def __repr__(self): return 'C'\n" + strings.Join([]string{"", "def _repr_html_(self): return '<b>'", "def _repr_markdown_(self): return '**b**'", "def _repr_svg_(self): return '<svg/>'", "def _repr_latex_(self): return '$b$'", "def _repr_json_(self): return {'b': 1}", "def _repr_png_(self): return b'png'", "def _repr_jpeg_(self): return b'jpeg', {'width': 3}"}, "\n    ")[1:] + "\nC()", []string{`html=<b> | markdown=**b** | image/svg+xml=<svg/> | latex=$b$ | application/json={"b": 1} | image/png=png | image/jpeg=jpeg | plain=C`}, ""},
		"wrong kinds":    {"class C:\n    def __repr__(self): return 'C'\n    def _repr_html_(self): return 5\n    def _repr_png_(self): return None\n    def _repr_svg_(self): return b'x'\n    def _repr_latex_(self): raise ValueError\n    def _repr_markdown_(self): return ''\nC()", []string{"plain=C"}, ""},
		"bundle":         {"class C:\n    def __repr__(self): return 'C'\n    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/html': '<i>', 'x/y': '1', 'text/plain': 'mine'}, {}\nC()", []string{"html=<i> | plain=mine"}, ""},
		"bad bundle":     {"class C:\n    def __repr__(self): return 'C'\n    def _repr_mimebundle_(self): return 5\n    def _repr_html_(self): return '<b>'\nC()", []string{"html=<b> | plain=C"}, ""},
		"class":          {"class C:\n    def _repr_html_(self): return '<b>'\nC", []string{"plain=<class '__main__.C'>"}, ""},
		"anything":       {"class C:\n    def __getattr__(self, n): return lambda *a, **k: 'oops'\n    def __repr__(self): return 'C'\nC()", []string{"plain=C"}, ""},
		"lying class":    {"class C:\n    __class__ = property(lambda self: 1/0)\n    def __repr__(self): return 'C'\nC()", []string{"plain=C"}, ""},
		"deep":           {"x = " + strings.Repeat("(", 80) + "1" + strings.Repeat(")", 80) + "\nx", []string{"plain=1"}, ""},
		"left behind":    {"import atexit\natexit.register(lambda: print([n for n in globals() if 'value' in n]))\n1", []string{"plain=1"}, "stdout: []\n\nstderr: \nexit status 0"},
		"let go":         {"import weakref, atexit\nclass C:\n    def __repr__(self): return 'C'\n    def __del__(self): print('del')\natexit.register(print, 'exit')\nC()", []string{"plain=C"}, "stdout: del\nexit\n\nstderr: \nexit status 0"},
		"a link":         {"import os\nos.symlink('victim', 'out/results')\n1", nil, ""},
		"a FIFO":         {"import os\nos.mkfifo('out/results')\n1", nil, ""},
		"a directory":    {"import os\nos.mkdir('out/results')\n1", nil, ""},
		"stdout intact":  {"print('a')\n1", []string{"plain=1"}, "stdout: a\n\nstderr: \nexit status 0"},
		"loaded modules": {"import sys\nbefore = set(sys.modules)\ndisplay(1)\nprint(sorted(set(sys.modules) - before))", []string{"plain=1"}, "stdout: []\n\nstderr: \nexit status 0"},

		"figure open":       {matplotlib + "f = plt.figure()", []string{png1 + " | plain=<Figure 1>"}, ""},
		"figure value":      {matplotlib + "f = plt.figure()\ng = plt.figure()\nf", []string{png1 + " | plain=<Figure 1>", png2 + " | plain=<Figure 2>"}, ""},
		"figure displayed":  {matplotlib + "f = plt.figure()\ndisplay(f)", []string{png1 + " | plain=<Figure 1>"}, ""},
		"figure changed":    {matplotlib + "f = plt.figure()\ndisplay(f)\nf.n = 2", []string{png1 + " | plain=<Figure 1>", png2 + " | plain=<Figure 2>"}, ""},
		"figure and error":  {matplotlib + "f = plt.figure()\n1/0", []string{png1 + " | plain=<Figure 1>"}, "exit status 1"},
		"figure and exit":   {matplotlib + "f = plt.figure()\nsys.exit(4)", []string{png1 + " | plain=<Figure 1>"}, "exit status 4"},
		"figure fails":      {matplotlib + "Figure.savefig = None\nf = plt.figure()\n5", []string{"plain=5"}, ""},
		"pyplot is nothing": {"import sys\nsys.modules['matplotlib.pyplot'] = None\n5", []string{"plain=5"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := c.end
			if want == "" {
				want = "stdout: \nstderr: \nexit status 0"
			}
			check := func(how, id, dir, said string) {
				t.Helper()
				if !strings.HasSuffix(said, want) {
					t.Errorf("%s: %.2000q, want %q", how, said, want)
				}
				if name == "a directory" || name == "a FIFO" || name == "a link" {
					if entries, _ := os.ReadDir(filepath.Join(dir, out)); len(entries) != 1 {
						t.Errorf("%s: %v", how, entries)
					}
					return
				}
				got := written(t, dir, id)
				if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", c.want) {
					t.Errorf("%s:\ngot  %q\nwant %q", how, got, c.want)
				}
			}
			dir := install(t, true)
			script := filepath.Join(dir, "script.py")
			if err := os.WriteFile(script, []byte(c.src), 0o600); err != nil {
				t.Fatal(err)
			}
			check("cold", "results", dir, runPython(t, dir, []string{python, "-u", filepath.Join(dir, driver), script}))
			if _, err := os.Lstat(filepath.Join(dir, "victim")); err == nil {
				t.Error("written through a link")
			}
			src := strings.ReplaceAll(c.src, "out/results", "out/x1")
			dir = install(t, true)
			check("warm", "x1", dir, runOnce(t, python, dir, filepath.Join(dir, "script.py"), src, nil))
		})
	}
}

// TestNoResults: where nothing is collected, nothing is represented.
func TestNoResults(t *testing.T) {
	t.Parallel()
	dir := install(t, false)
	script := filepath.Join(dir, "script.py")
	if err := os.WriteFile(script, []byte("class C:\n    def __repr__(self): print('repr')\ndisplay(C())\nC()"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := runPython(t, dir, []string{python(t), "-u", filepath.Join(dir, driver), script}); got != "stdout: \nstderr: \nexit status 0" {
		t.Error(got)
	}
}
