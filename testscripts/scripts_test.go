package testscripts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// A script runs in a process of its own (this binary again), which has the
// set-up's uid from its first instruction: files of the script, everything that
// it starts, and what the commands look at are that user's. kern-sbx itself is
// a binary built as a release is, and not this one under another name: its
// signals, pipes, process group and memory are those that a user gets.

const (
	jobEnv = "KERN_SBX_TEST_JOB"
	// scriptTime bounds one script; it is for a machine with much else to do.
	scriptTime = 4 * time.Minute

	codeFailed  = 1
	codeSkipped = 77
)

// job tells the process of one script what to do.
type job struct {
	Script  string // path
	Setup   string
	Root    string // host or image: what $IMAGE is
	Place   string
	Shared  string
	Embed   bool // kern is inside kern-sbx
	Verbose bool
}

func TestMain(m *testing.M) {
	if os.Getenv(probeEnv) != "" {
		os.Exit(probeNamespaces())
	}
	if home := os.Getenv(netEnv); home != "" {
		os.Exit(networkHost(home))
	}
	if text := os.Getenv(jobEnv); text != "" {
		var j job
		if err := json.Unmarshal([]byte(text), &j); err != nil {
			panic(err) // written by the parent
		}
		os.Exit(runJob(j))
	}
	os.Exit(m.Run())
}

func TestScripts(t *testing.T) {
	sh := build(t)
	scripts, err := filepath.Glob("*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatal("there are no scripts here", err)
	}
	taken := map[int]bool{}
	for _, s := range setups {
		t.Run(s.name, func(t *testing.T) {
			if why := s.why(); why != "" {
				t.Skipf("%d scripts not run: %s", len(scripts), why)
			}
			for _, script := range scripts {
				text, err := os.ReadFile(script)
				if err != nil {
					t.Fatal(err)
				}
				head := header(text)
				for _, root := range head.rootsIn(s.name) {
					name := strings.TrimSuffix(script, ".txtar")
					if head.roots != "host" {
						name += "/" + root
					}
					uid := os.Getuid()
					if uid == 0 && !s.root {
						uid = freeUID(taken)
					}
					t.Run(name, func(t *testing.T) {
						if !head.alone {
							t.Parallel()
						}
						sh.run(t, s, script, root, uid)
					})
				}
			}
		})
	}
}

// head is what the first lines of a script say about it.
type head struct {
	roots string
	alone bool
}

// header reads lines of the form `# roots: host image` (run it once with each
// as $IMAGE; default host; `image/user` is in that set-up only) and
// `# alone: WHY` (nothing else beside it).
func header(text []byte) head {
	h := head{roots: "host"}
	for line := range strings.Lines(string(text)) {
		line, ok := strings.CutPrefix(strings.TrimSpace(line), "# ")
		if !ok {
			break
		}
		if r, ok := strings.CutPrefix(line, "roots: "); ok {
			h.roots = r
		}
		h.alone = h.alone || strings.HasPrefix(line, "alone: ")
	}
	return h
}

func (h head) rootsIn(setup string) []string {
	var roots []string
	for word := range strings.FieldsSeq(h.roots) {
		root, only, restricted := strings.Cut(word, "/")
		if !restricted || only == setup {
			roots = append(roots, root)
		}
	}
	return roots
}

// shared is what all scripts use: built once, readable by everybody.
type shared struct {
	dir   string
	embed bool
}

// build makes the programs. Without a kern there is nothing to test.
func build(t *testing.T) *shared {
	t.Helper()
	kern, embed := findKern(t)
	dir, err := os.MkdirTemp("", "kern-sbx-shared-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	sh := &shared{dir: dir, embed: embed}
	for _, d := range []string{"", "bin", "kern", "scripts"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, d), 0o755); err != nil { // whatever the umask
			t.Fatal(err)
		}
	}
	const server = "../pkg/mcp/kern-sbx-mcp" // it has to lie beside kern-sbx
	goBuild := func(out, pkg string, tags ...string) {
		args := append([]string{"build", "-buildvcs=false", "-trimpath", "-o", filepath.Join(dir, out)}, tags...)
		c := exec.Command("go", append(args, pkg)...)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := c.CombinedOutput(); err != nil {
			t.Fatalf("go build %s: %v\n%s", pkg, err, text)
		}
	}
	if embed {
		goBuild("bin/kern-sbx", "..", "-tags", "embedkern")
		goBuild("bin/kern-sbx-mcp", server, "-tags", "embedkern")
	} else {
		goBuild("bin/kern-sbx", "..")
		goBuild("bin/kern-sbx-mcp", server)
	}
	goBuild("bin/kern-sbx-plain", "..")
	goBuild("probe", "./probe")
	copyFile(t, kern, filepath.Join(dir, "kern", "kern"))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	copyFile(t, self, filepath.Join(dir, "scripts.test"))
	scripts, _ := filepath.Glob("*.txtar")
	for _, s := range scripts {
		copyFile(t, s, filepath.Join(dir, "scripts", s))
	}
	if err := writeImage(filepath.Join(dir, "image.tar"), filepath.Join(dir, "probe")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KERN_SBX_TEST_BINARY", filepath.Join(dir, "scripts.test"))
	return sh
}

// findKern gives the kern that the build carries, else $KERN_BIN.
func findKern(t *testing.T) (path string, embed bool) {
	t.Helper()
	bundled, err := filepath.Abs(filepath.Join("..", "pkg", "kernbin", "bundled", runtime.GOARCH, "kern"))
	if err == nil {
		if _, err = os.Stat(bundled); err == nil {
			return bundled, true
		}
	}
	if path = os.Getenv("KERN_BIN"); path == "" {
		t.Skip("no kern to test with: `make kern` brings the bundled one, or set KERN_BIN")
	}
	if path, err = filepath.Abs(path); err != nil {
		t.Fatal(err)
	}
	return path, false
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	err = errors.Join(err, out.Chmod(st.Mode().Perm()|0o444), out.Close())
	if err != nil {
		t.Fatal(err)
	}
}

// run gives one script to a process of the set-up's user, and takes its verdict.
func (sh *shared) run(t *testing.T, s setup, script, root string, uid int) {
	t.Helper()
	p, err := makePlace(s, uid)
	defer func() {
		if err := p.remove(); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(job{
		Script: filepath.Join(sh.dir, "scripts", script), Setup: s.name, Root: root,
		Place: p.Dir, Shared: sh.dir, Embed: sh.embed, Verbose: testing.Verbose(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), scriptTime+20*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(sh.dir, "scripts.test"))
	c.Dir = p.path("work")
	c.Env = []string{jobEnv + "=" + string(text), "PATH=" + scriptPath(sh.dir), "LANG=C.UTF-8"}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if uid != os.Getuid() {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
		c.Env = append(c.Env, "KERN_SBX_TEST_OWN_UID=1")
	}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	c.WaitDelay = 5 * time.Second
	err = c.Run()
	switch code := c.ProcessState.ExitCode(); {
	case err == nil:
		if testing.Verbose() {
			t.Log(out.String())
		}
	case code == codeSkipped:
		t.Skip(strings.TrimSpace(out.String()))
	default:
		t.Errorf("%v\n%s", err, out.String())
	}
}

// scriptPath is the same everywhere, so that what a script finds does not
// depend on who runs the tests.
func scriptPath(shared string) string {
	return filepath.Join(shared, "bin") + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

// runJob is the process of one script.
func runJob(j job) int {
	// Whoever runs the tests may ignore it (nohup), and what is ignored stays so
	// in what is started; what is caught does not.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	p := place{Dir: j.Place, UID: os.Getuid()}
	for _, s := range setups {
		if s.name == j.Setup {
			p.setup = s
		}
	}
	r := &reporter{verbose: j.Verbose}
	s := &script{job: j, place: p, procs: map[string]*process{}}
	testscript.RunT(r, testscript.Params{
		Files:       []string{j.Script},
		WorkdirRoot: p.path("work"),
		Setup:       s.setup,
		Cmds:        s.commands(),
		Condition:   s.condition,
		Deadline:    time.Now().Add(scriptTime),
		// One run shows all that is wrong; what a failed line left is said too.
		ContinueOnError: true,
	})
	s.endAll()
	if left := settled(p.leftovers, nil); len(left) > 0 && !r.skipped {
		fmt.Printf("left behind when the script had ended:\n\t%s\n", strings.Join(left, "\n\t"))
		r.failed = true
	}
	switch {
	case r.failed:
		return codeFailed
	case r.skipped:
		return codeSkipped
	}
	return 0
}

// settled asks again for a moment: a killed process takes a few milliseconds to
// go, and kern removes its records after it has said how a box ended.
func settled(ask func() []string, enough func([]string) bool) []string {
	var got []string
	for range 40 {
		if got = ask(); len(got) == 0 || enough != nil && enough(got) {
			return got
		}
		time.Sleep(25 * time.Millisecond)
	}
	return got
}

// reporter is the testscript.T of a process that runs one script.
type reporter struct{ verbose, failed, skipped bool }

func (r *reporter) Skip(args ...any) {
	fmt.Println(args...)
	r.skipped = true
	runtime.Goexit()
}

func (r *reporter) Fatal(args ...any) {
	fmt.Println(args...)
	r.FailNow()
}

func (r *reporter) FailNow() {
	r.failed = true
	runtime.Goexit()
}

func (r *reporter) Parallel() {}

func (r *reporter) Log(args ...any) {
	if !r.skipped {
		fmt.Println(args...)
	}
}

func (r *reporter) Verbose() bool { return r.verbose }

func (r *reporter) Run(_ string, f func(testscript.T)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
}
