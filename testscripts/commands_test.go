package testscripts

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// script is one running script.
type script struct {
	job
	place
	procs map[string]*process
}

type command = func(ts *testscript.TestScript, neg bool, args []string)

func (s *script) setup(e *testscript.Env) error {
	var env []string
	for _, kv := range e.Vars {
		// Ours, or set by the place.
		if !strings.HasPrefix(kv, "HOME=") && !strings.HasPrefix(kv, "TMPDIR=") && !strings.HasPrefix(kv, "PATH=") {
			env = append(env, kv)
		}
	}
	image := "host"
	if s.Root == "image" {
		image = testImage
	}
	env = append(env, s.place.env(s.Root)...)
	env = append(
		env,
		"PATH="+scriptPath(s.Shared), "LANG=C.UTF-8", marker+"="+s.Dir,
		"IMAGE="+image, "UNIQUE="+filepath.Base(s.Dir), "KEXEC="+strconv.Itoa(unix.SYS_KEXEC_LOAD), "TESTIMAGE="+testImage, "UID="+strconv.Itoa(s.UID),
		"KERN="+filepath.Join(s.Shared, "kern", "kern"),
		"PROBE="+filepath.Join(s.Shared, "probe"),
		"PLAIN="+filepath.Join(s.Shared, "bin", "kern-sbx-plain"),
	)
	if !s.Embed {
		env = append(env, "KERN_BIN="+filepath.Join(s.Shared, "kern", "kern"))
	}
	e.Vars = env
	if s.Root == "image" {
		return s.load(env)
	}
	return nil
}

// load puts the test image into the caller's own image cache.
func (s *script) load(env []string) error {
	c := exec.Command(filepath.Join(s.Shared, "kern", "kern"), "load", "-i", filepath.Join(s.Shared, "image.tar"))
	c.Env, c.Dir = env, s.path("work")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("kern load: %w\n%s", err, out)
	}
	return nil
}

// condition knows [root] [user] (an ordinary one) [bare] [image] [embed],
// [nocap] (no cgroup v2), [busybox],
// and [box:PROG]: PROG is in the box's root.
func (s *script) condition(cond string) (bool, error) {
	switch cond {
	case "root":
		return s.UID == 0, nil
	case "user":
		return s.UID != 0, nil
	case "bare":
		return s.bare, nil
	case "image":
		return s.Root == "image", nil
	case "embed":
		return s.Embed, nil
	case "nocap":
		// Without a unified hierarchy kern has nothing to cap with.
		_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
		return err != nil, nil
	case "busybox":
		return busybox() != "", nil
	}
	if prog, ok := strings.CutPrefix(cond, "box:"); ok {
		if s.Root == "image" {
			if prog == "probe" {
				return true, nil
			}
			for _, a := range applets {
				if a == prog {
					return busybox() != "", nil
				}
			}
			return false, nil
		}
		for _, dir := range []string{"/usr/local/bin/", "/usr/bin/", "/bin/"} {
			if st, err := os.Stat(dir + prog); err == nil && st.Mode()&0o111 != 0 {
				return true, nil
			}
		}
		return false, nil
	}
	return false, fmt.Errorf("there is no condition %q", cond)
}

func (s *script) commands() map[string]command {
	return map[string]command{
		"exitcode":  s.exitcode,
		"within":    s.within,
		"json":      cmdJSON,
		"hex":       cmdHex,
		"nobox":     s.nobox,
		"noproc":    s.noproc,
		"start":     s.start,
		"waitout":   s.waitout,
		"waitrun":   s.waitrun,
		"endbox":    s.endbox,
		"sendsig":   s.sendsig,
		"await":     s.await,
		"maxrss":    s.maxrss,
		"took":      s.took,
		"closeout":  s.closeout,
		"argvholds": s.argvholds,
		"loadimage": s.loadimage,
		"schemaok":  s.schemaok,
		"sleep":     cmdSleep,
	}
}

// line expands the two words that begin most command lines: `box …` is
// `kern-sbx run --image $IMAGE --pull never …`, and `attack …` is a box whose
// command is the probe with the steps `…`, after flags that end with --.
func (s *script) line(ts *testscript.TestScript, args []string) []string {
	if len(args) == 0 {
		ts.Fatalf("a command is missing")
	}
	run := []string{"kern-sbx", "run", "--image", ts.Getenv("IMAGE"), "--pull", "never"}
	switch args[0] {
	case "box":
		return append(run, args[1:]...)
	case "attack":
		for i, a := range args {
			if a == "--" {
				run = append(run, "-v", ts.Getenv("PROBE")+":/run/probe:ro")
				run = append(run, args[1:i]...)
				return append(append(run, "--", "/run/probe"), args[i+1:]...)
			}
		}
		ts.Fatalf("attack [flags] -- steps")
	}
	return args
}

// exitcode N CMD…: the command ends with exactly this code.
func (s *script) exitcode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exitcode N CMD [ARG...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	line := s.line(ts, args[1:])
	if got := code(ts, ts.Exec(line[0], line[1:]...)); got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func code(ts *testscript.TestScript, err error) int {
	var x *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &x):
		ts.Fatalf("%v", err)
	}
	if ws, ok := x.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		ts.Fatalf("ended by a signal: %v", ws.Signal())
	}
	return x.ExitCode()
}

// within DURATION CMD…: it takes no longer; for a promise to be back in time.
func (s *script) within(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: within DURATION COMMAND [ARG...]")
	}
	limit, err := time.ParseDuration(args[0])
	ts.Check(err)
	begin := time.Now()
	if f, ok := s.commands()[args[1]]; ok {
		f(ts, false, args[2:])
	} else {
		line := s.line(ts, args[1:])
		ts.Check(ts.Exec(line[0], line[1:]...))
	}
	took := time.Since(begin)
	ts.Logf("[took %v]", took.Round(time.Millisecond))
	if took > limit {
		ts.Fatalf("took %v, more than %v", took, limit)
	}
}

// cmdJSON: `json FIELD VALUE`, about the last stdout. FIELD is a dotted path
// with numbers for list entries. VALUE is null, a number, true, false, or a
// string with Go's escapes; `~REGEXP` matches the string, and `len N` counts
// bytes or entries. With ! the field has another value.
func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: json FIELD VALUE|~REGEXP|len N")
	}
	var doc any
	if err := json.Unmarshal([]byte(ts.ReadFile("stdout")), &doc); err != nil {
		ts.Fatalf("stdout is not one JSON document: %v", err)
	}
	v := doc
	for part := range strings.SplitSeq(args[0], ".") {
		switch x := v.(type) {
		case map[string]any:
			var ok bool
			if v, ok = x[part]; !ok {
				ts.Fatalf("no field %q of %s", part, args[0])
			}
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i >= len(x) {
				ts.Fatalf("no entry %q of %s", part, args[0])
			}
			v = x[i]
		default:
			ts.Fatalf("%s: nothing below %v at %q", args[0], v, part)
		}
	}
	got := ""
	switch x := v.(type) {
	case string:
		got = x
	default:
		b, err := json.Marshal(x)
		ts.Check(err)
		got = string(b)
	}
	want := args[1]
	same := false
	switch {
	case want == "len" && len(args) == 3:
		n := len(got)
		if l, ok := v.([]any); ok {
			n = len(l)
		}
		same, got, want = strconv.Itoa(n) == args[2], "len "+strconv.Itoa(n), "len "+args[2]
	case strings.HasPrefix(want, "~"):
		re, err := regexp.Compile("(?s)" + want[1:])
		ts.Check(err)
		same = re.MatchString(got)
	default:
		if s, err := strconv.Unquote(`"` + strings.ReplaceAll(want, `"`, `\"`) + `"`); err == nil {
			want = s
		}
		same = got == want
		if _, isText := v.(string); isText && want == "null" {
			same = false // the word is not the value
		}
	}
	if same == neg {
		ts.Fatalf("%s is %.500q, want%s %q", args[0], got, map[bool]string{true: " not"}[neg], want)
	}
}

// cmdHex: `hex BYTES`: the last stdout is exactly this.
func cmdHex(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: hex BYTES")
	}
	if got := hex.EncodeToString([]byte(ts.ReadFile("stdout"))); (got == args[0]) == neg {
		ts.Fatalf("stdout is %.500s", got)
	}
}

func cmdSleep(ts *testscript.TestScript, _ bool, args []string) {
	d, err := time.ParseDuration(args[0])
	ts.Check(err)
	time.Sleep(d)
}

// nobox: no run of this script left anything: no box listed, no process, no run
// directory, nothing of kern's own records, nothing in TMPDIR.
func (s *script) nobox(ts *testscript.TestScript, neg bool, _ []string) {
	left := settled(func() []string { return append(s.leftovers(), s.listed(ts)...) }, nil)
	switch {
	case neg && len(left) == 0:
		ts.Fatalf("nothing is left, where something was to be")
	case !neg && len(left) > 0:
		ts.Fatalf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// noproc [DURATION]: no process of this script lives (any more, after at most
// so long). With ! at least one does.
func (s *script) noproc(ts *testscript.TestScript, neg bool, args []string) {
	limit := time.Second
	if len(args) == 1 {
		var err error
		limit, err = time.ParseDuration(args[0])
		ts.Check(err)
	}
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		left := s.processes()
		switch {
		case neg && len(left) == 0:
			ts.Fatalf("no process lives")
		case neg, len(left) == 0:
			return
		case time.Since(begin) > limit:
			ts.Fatalf("still there:\n%s", strings.Join(left, "\n"))
		}
	}
}

// listed are the boxes that kern knows of.
func (s *script) listed(ts *testscript.TestScript) []string {
	c := exec.Command(filepath.Join(s.Shared, "kern", "kern"), "ps", "-q")
	c.Env = append([]string{"PATH=" + scriptPath(s.Shared)}, s.place.env(s.Root)...)
	out, err := c.Output()
	ts.Check(err)
	var all []string
	for line := range strings.Lines(string(out)) {
		all = append(all, "listed by kern ps: "+strings.TrimSpace(line))
	}
	return all
}

// process is a command that runs beside the script.
type process struct {
	cmd      *exec.Cmd
	out, err *os.File
	begin    time.Time
	took     time.Duration // set when done is closed
	done     chan struct{}
}

// start NAME CMD…: run it in the background, its output in NAME.out and
// NAME.err. It is started as a shell starts a job: not in our process group.
func (s *script) start(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: start NAME CMD [ARG...]")
	}
	line := s.line(ts, args[1:])
	p := &process{done: make(chan struct{})}
	var err error
	p.out, err = os.Create(ts.MkAbs(args[0] + ".out"))
	ts.Check(err)
	p.err, err = os.Create(ts.MkAbs(args[0] + ".err"))
	ts.Check(err)
	path := line[0]
	if !strings.Contains(path, "/") {
		path = filepath.Join(s.Shared, "bin", path)
		if _, err := os.Stat(path); err != nil {
			path, err = exec.LookPath(line[0])
			ts.Check(err)
		}
	}
	p.cmd = exec.Command(path, line[1:]...)
	p.cmd.Dir = ts.MkAbs(".")
	p.cmd.Env = envOf(ts, s.place)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.err
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.begin = time.Now()
	ts.Check(p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // the state says all
		p.took = time.Since(p.begin)
		close(p.done)
	}()
	s.procs[args[0]] = p
}

// envOf is the environment that the script's commands have.
func envOf(ts *testscript.TestScript, p place) []string {
	var env []string
	for _, k := range []string{
		"WORK", "PATH", "HOME", "TMPDIR", "LANG", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME",
		"KERN_BIN", "KERN_SECCOMP", "TOKEN", marker,
	} {
		if v := ts.Getenv(k); v != "" {
			env = append(env, k+"="+v)
		}
	}
	return env
}

func (s *script) proc(ts *testscript.TestScript, name string) *process {
	p, ok := s.procs[name]
	if !ok {
		ts.Fatalf("nothing was started as %s", name)
	}
	return p
}

// waitout NAME TEXT: wait until a line of its output ends in TEXT. (The line's
// end too: an unbuffered program writes it by itself.)
func (s *script) waitout(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: waitout NAME TEXT")
	}
	p := s.proc(ts, args[0])
	for range 1500 {
		b, err := os.ReadFile(p.out.Name())
		ts.Check(err)
		if bytes.Contains(b, []byte(args[1]+"\n")) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	b, _ := os.ReadFile(p.err.Name())
	ts.Fatalf("%q never came; stderr: %s", args[1], b)
}

// inits lists PID 1 of each box of this script, and the supervisor above it.
func (s *script) inits() (inits, supervisors []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		field := func(name string) []string {
			for line := range strings.Lines(string(b)) {
				if v, ok := strings.CutPrefix(line, name+":"); ok {
					return strings.Fields(v)
				}
			}
			return nil
		}
		ns, parent, uid := field("NSpid"), field("PPid"), field("Uid")
		if len(ns) < 2 || ns[len(ns)-1] != "1" || len(parent) != 1 || len(uid) == 0 || uid[0] != strconv.Itoa(s.UID) {
			continue
		}
		// kern's environment is ours; that of what it started is not.
		environ, _ := os.ReadFile("/proc/" + parent[0] + "/environ")
		if !bytes.Contains(append([]byte{0}, environ...), []byte("\x00"+marker+"="+s.Dir+"\x00")) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		above, _ := strconv.Atoi(parent[0])
		inits, supervisors = append(inits, pid), append(supervisors, above)
	}
	return inits, supervisors
}

// waitrun NAME: wait until its box has passed kern's setup, for runs that show
// nothing until they end (--json): the command of the box is not kern any more.
func (s *script) waitrun(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitrun NAME")
	}
	p := s.proc(ts, args[0])
	for range 1500 {
		pids, _ := s.inits()
		for _, pid := range pids {
			comm, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
			if len(comm) > 0 && string(comm) != "kern\n" {
				return
			}
		}
		select {
		case <-p.done:
			ts.Fatalf("%s ended before its box ran", args[0])
		case <-time.After(20 * time.Millisecond):
		}
	}
	ts.Fatalf("no box came")
}

// endbox init|supervisor: SIGKILL from outside to PID 1 of the script's only
// box, or to the kern above it.
func (s *script) endbox(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: endbox init|supervisor")
	}
	inits, supervisors := s.inits()
	if len(inits) != 1 {
		ts.Fatalf("%d boxes, want one", len(inits))
	}
	pid := inits[0]
	if args[0] == "supervisor" {
		pid = supervisors[0]
	}
	ts.Check(unix.Kill(pid, unix.SIGKILL))
}

// sendsig SIGNAL NAME: to that process alone.
func (s *script) sendsig(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: sendsig SIGNAL NAME")
	}
	sig := unix.SignalNum("SIG" + args[0])
	if sig == 0 {
		ts.Fatalf("no signal %s", args[0])
	}
	ts.Check(s.proc(ts, args[1]).cmd.Process.Signal(sig))
}

// await NAME N|killed: wait for its end; its output is then the last stdout and
// stderr.
func (s *script) await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: await NAME N|killed")
	}
	p := s.proc(ts, args[0])
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		ts.Fatalf("%s has not ended within a minute", args[0])
	}
	ts.Check(ts.Exec("sh", "-c", `cat "$1"; cat "$2" >&2`, "sh", p.out.Name(), p.err.Name()))
	got := strconv.Itoa(p.cmd.ProcessState.ExitCode())
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		got = "killed"
	}
	if got != args[1] {
		ts.Fatalf("%s ended with %s, want %s", args[0], got, args[1])
	}
}

// took NAME DURATION: from its start to its end it took no longer.
func (s *script) took(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: took NAME DURATION")
	}
	p := s.proc(ts, args[0])
	<-p.done
	limit, err := time.ParseDuration(args[1])
	ts.Check(err)
	ts.Logf("[took %v]", p.took.Round(time.Millisecond))
	if p.took > limit {
		ts.Fatalf("%s took %v, more than %v", args[0], p.took, limit)
	}
}

// maxrss NAME MIB: it never held more memory than that.
func (s *script) maxrss(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: maxrss NAME MIB")
	}
	p := s.proc(ts, args[0])
	<-p.done
	limit, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	ru, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		ts.Fatalf("no usage of %s", args[0])
	}
	ts.Logf("[peak %d KiB]", ru.Maxrss)
	if ru.Maxrss>>10 > limit {
		ts.Fatalf("peak memory %d MiB, more than %d", ru.Maxrss>>10, limit)
	}
}

// closeout N CMD…: read a little of its stdout, close it, and expect code N, as
// `CMD | head -c1` does.
func (s *script) closeout(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: closeout N CMD [ARG...]")
	}
	line := s.line(ts, args[1:])
	c := exec.Command(filepath.Join(s.Shared, "bin", line[0]), line[1:]...)
	c.Env, c.Dir = envOf(ts, s.place), ts.MkAbs(".")
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.StdoutPipe()
	ts.Check(err)
	ts.Check(c.Start())
	_, err = out.Read(make([]byte, 1))
	ts.Check(err)
	ts.Check(out.Close())
	err = c.Wait()
	ts.Logf("[stderr]\n%s", stderr.String())
	if got := code(ts, err); strconv.Itoa(got) != args[0] {
		ts.Fatalf("exit code %d, want %s", got, args[0])
	}
}

// argvholds N TEXT: N processes of this machine have TEXT in their command line.
func (s *script) argvholds(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: argvholds N TEXT")
	}
	n := 0
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(args[1])) {
			ts.Logf("[%s: %.300q]", f, b)
			n++
		}
	}
	if strconv.Itoa(n) != args[0] {
		ts.Fatalf("%d processes have %q in their command line, want %s", n, args[1], args[0])
	}
}

// loadimage puts $TESTIMAGE into kern's image cache.
func (s *script) loadimage(ts *testscript.TestScript, neg bool, _ []string) {
	if neg {
		ts.Fatalf("usage: loadimage")
	}
	ts.Check(s.load(envOf(ts, s.place)))
}

// schemaok [FILE]: FILE (or the last stdout) is a document of the published
// schema.
func (s *script) schemaok(ts *testscript.TestScript, neg bool, args []string) {
	name := "stdout"
	if len(args) == 1 {
		name = args[0]
	}
	c := exec.Command(filepath.Join(s.Shared, "bin", "kern-sbx"), "schema")
	c.Env = envOf(ts, s.place)
	text, err := c.Output()
	ts.Check(err)
	var schema jsonschema.Schema
	ts.Check(json.Unmarshal(text, &schema))
	resolved, err := schema.Resolve(nil)
	ts.Check(err)
	var doc any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(name)), &doc))
	if err := resolved.Validate(doc); (err != nil) != neg {
		ts.Fatalf("schema: %v", err)
	}
}

// endAll ends what the script started and did not wait for.
func (s *script) endAll() {
	for _, p := range s.procs {
		select {
		case <-p.done:
		default:
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
			select {
			case <-p.done:
			case <-time.After(5 * time.Second):
				_ = p.cmd.Process.Kill()
				<-p.done
			}
		}
		p.out.Close()
		p.err.Close()
	}
}
