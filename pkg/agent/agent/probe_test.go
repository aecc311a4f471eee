package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ask runs the agent's probe here and gives its answers.
func ask(t *testing.T, env []string, questions ...string) map[string]string {
	t.Helper()
	self, _ := programs(t)
	c := exec.Command(self, append([]string{"probe"}, questions...)...)
	c.Env = env
	var out bytes.Buffer
	c.Stdout = &out
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	f := strings.Split(out.String(), "\x00")
	if n := len(f); n < 3 || n%2 != 1 || f[n-3] != "end" || f[n-2] != "" || f[n-1] != "" || n != 2*len(questions)+3 {
		t.Fatalf("not a whole answer: %q", out.String())
	}
	got := map[string]string{}
	for i := 0; i+1 < len(f)-2; i += 2 {
		got[f[i]] = f[i+1]
	}
	return got
}

func TestProbeAnswers(t *testing.T) {
	dir := t.TempDir()
	home, locked := filepath.Join(dir, "home"), filepath.Join(dir, "locked")
	for _, d := range []string{home, locked, filepath.Join(dir, "bin")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("bin/tool", "x", 0o755)
	write("bin/text", "x", 0o644)
	write("nul", "a\x00b\x00", 0o644)
	if err := os.Symlink("../x\x1b", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	abstract := fmt.Sprintf("agent-probe-%d", os.Getpid())
	u, err := net.Listen("unix", "@"+abstract)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()

	want := map[string]string{
		"e:HOME": home, "e:NO": "", "v:NO": "", "v:XDG_CACHE_HOME": "ok " + home,
		"w:~/.cache/a/b": "ok " + home, "w:" + dir + "/nul/x": "ok " + dir,
		"l:" + dir: "dir", "l:" + dir + "/nul": "file", "l:" + dir + "/link": "-> ../x\x1b", "l:" + dir + "/fifo": "other", "l:/no/such": "",
		"x:tool": dir + "/bin/tool", "x:text": "", "x:none": "",
		"f:" + dir + "/nul": "a\nb\n", "f:" + dir + "/fifo": "", "f:/no/such": "",
		"c:127.0.0.1:" + strconv.Itoa(port): "ok", "c:127.0.0.1:1": "ECONNREFUSED", "c:127.0.0:1": "EINVAL", "c:": "EINVAL", "c:999.0.0.1:1": "EINVAL",
		"a:" + abstract: "ok", "a:" + abstract + "-not": "ECONNREFUSED",
		"?": "?", "zz:": "?", "": "?", "T:" + dir + ":1000": "1000 ok", "P:3": "3 ok", "P:x": "0 ok", "M:8192": "8192 ok", "O:5000": "5000 ok",
	}
	var questions []string
	for q := range want {
		questions = append(questions, q)
	}
	env := []string{"HOME=" + home, "XDG_CACHE_HOME=" + home + "/not/there", "PATH=relative:" + dir + "/bin:/no"}
	got := ask(t, env, questions...)
	for q, a := range want {
		if got[q] != a {
			t.Errorf("%q: %q, want %q", q, got[q], a)
		}
	}
	if left, _ := os.ReadDir(home); len(left) > 0 {
		t.Errorf("it left files behind: %v", left)
	}
	got = ask(t, []string{"X=1"}, "u:", "t:", "m:", "e:HOME", "w:~")
	f := strings.Fields(got["u:"])
	ms, _ := strconv.ParseInt(got["t:"], 10, 64)
	if len(f) != 3 || f[0] != strconv.Itoa(os.Getuid()) || f[2] == "0" || time.Since(time.UnixMilli(ms)).Abs() > time.Minute {
		t.Errorf("%q", got)
	}
	if !strings.HasSuffix(got["w:~"], " /") {
		t.Errorf("without HOME: %q", got["w:~"])
	}
	for line := range strings.Lines(got["m:"]) {
		if f := strings.SplitN(line, " ", 4); len(f) != 4 || f[3][0] != '/' {
			t.Errorf("a mount: %q", line)
		}
	}
}

// TestProbeStops: the caps are not in force here, and what is asked for is all that
// is taken.
func TestProbeStops(t *testing.T) {
	got := ask(t, nil, "P:40", "P:-1", "P:99999999999999999999", "M:-5", "T:/no/such:10")
	if got["P:40"] != "40 ok" || got["P:-1"] != "0 ok" || got["P:99999999999999999999"] != "0 ok" || got["M:-5"] != "0 ok" || got["T:/no/such:10"] != "0 ENOENT" {
		t.Errorf("%q", got)
	}
}
