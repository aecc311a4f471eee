package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// deepBox runs a command in a box like the user's and gives what it prints.
func (e *Env) deepBox(ctx context.Context, argv ...string) (string, Result) {
	s := *e.Spec
	s.Argv, s.Code, s.Setup, s.Compiler, s.Claimer = argv, nil, nil, nil, nil
	s.Capture, s.Stdout, s.Stderr, s.Stdin, s.TTY = true, nil, nil, nil, nil
	s.Workspace, s.CopyOf, s.Keep, s.Mounts, s.Watch, s.Pins = "", "", nil, nil, nil, nil
	s.Timeout, s.MaxOutput, s.Workdir = deepLimit, 64<<10, ""
	s.Tmpfs = []validate.Tmpfs{{Target: "/tmp", Size: validate.DefaultTmp(s.Memory)}}
	if s.Security != "" {
		s.Tmpfs = nil
	}
	if s.Image != "" {
		// A file of code keeps an ENTRYPOINT from being put before our command.
		s.Code = []runner.CodeFile{{Name: probeName}}
	}
	res, err := e.Start(ctx, &s)
	switch {
	case err != nil:
		return "", Result{Status: Skipped, Why: err.Error()}
	case res.Status != 0 || res.Stdout == nil:
		return "", Result{Status: Skipped, Why: "the box ended with " + verdict(res)}
	}
	return string(res.Stdout.Head(64 << 10)), Result{}
}

// importing imports some modules of the standard library in a new interpreter three
// times: as the image has it, to compile, and compiled. It prints the milliseconds
// of the first and the last.
const importing = `import os,subprocess,sys,time
def t(**e):
    a=time.perf_counter()
    subprocess.run([sys.executable,"-c","import argparse,json,logging,email.message,unittest,urllib.request"],env={**os.environ,**e},check=True)
    return round((time.perf_counter()-a)*1000,1)
a=t(PYTHONDONTWRITEBYTECODE="1")
t(PYTHONPYCACHEPREFIX="/tmp/pyc")
print(a,t(PYTHONPYCACHEPREFIX="/tmp/pyc"))`

func checkImportCost(ctx context.Context, e *Env) Result {
	b := e.boxes[probeBox]
	if b.noStart() != "" || b.facts["x:python3"] == "" {
		return Result{Status: Skipped, Why: "there is no python3 in the box"}
	}
	out, r := e.deepBox(ctx, b.facts["x:python3"], "-c", importing)
	if r.Status != "" {
		return r
	}
	f := strings.Fields(out)
	if len(f) != 2 {
		return Result{Status: Skipped, Why: "python3 gave no answer that can be read"}
	}
	plain, err1 := strconv.ParseFloat(f[0], 64)
	warm, err2 := strconv.ParseFloat(f[1], 64)
	if err1 != nil || err2 != nil {
		return Result{Status: Skipped, Why: "python3 gave no answer that can be read"}
	}
	r = Result{Status: OK, Values: values("as_it_is_ms", f[0], "compiled_ms", f[1])}
	r.Why = fmt.Sprintf("six modules take %.0f ms, and %.0f ms when they are compiled", plain, warm)
	if plain > warm*1.5 {
		r.Status = Info
		if e.Spec.Image != "" {
			r.Remedy = "kern-sbx image precompile " + e.Spec.Image + " NEWREF"
		}
	}
	return r
}

// versionScript prints the first line that is not empty for each program named.
const versionScript = `for p in "$@"; do printf '%s\t' "${p##*/}"; "$p" --version </dev/null 2>&1 | {
	while read -r l; do if [ -n "$l" ]; then printf '%s\n' "$l"; break; fi; done; }; done`

func checkVersions(ctx context.Context, e *Env) Result {
	b := e.boxes[probeBox]
	if b.noStart() != "" || b.facts["x:sh"] == "" {
		return Result{Status: Skipped, Why: "there is no shell in the box to ask with"}
	}
	argv := []string{b.facts["x:sh"], "-c", versionScript, "sh"}
	for _, p := range interpreters {
		if at := b.facts["x:"+p]; at != "" && p != "sh" && p != "lua" {
			argv = append(argv, at)
		}
	}
	if len(argv) == 4 {
		return Result{Status: Skipped, Why: "there is no interpreter but the shell"}
	}
	out, r := e.deepBox(ctx, argv...)
	if r.Status != "" {
		return r
	}
	r.Status = OK
	var all []string
	for line := range strings.Lines(out) {
		name, text, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if ok && len(r.Values) < len(interpreters) {
			r.Values = append(r.Values, Value{name, text})
			if !strings.Contains(strings.ToLower(text), strings.TrimRight(name, "3")) {
				text = name + " " + text
			}
			all = append(all, text)
		}
	}
	r.Why = strings.Join(all, "; ")
	return r
}
