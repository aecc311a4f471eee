package validate

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// box runs a command in a real box over the host's /usr, and gives its stdout.
// It skips the test where there is no kern, or no box can be built.
type box struct{ kern, root string }

func newBox(t *testing.T) box {
	t.Helper()
	b := box{os.Getenv("KERN_BIN"), t.TempDir()}
	if b.kern == "" {
		t.Skip("KERN_BIN is not set: there is no kern to try this on")
	}
	for _, d := range []string{"usr", "proc", "dev", "sys", "tmp", "etc", "run"} {
		mkdir(t, b.root, d)
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		switch to, err := os.Readlink("/" + d); {
		case err == nil:
			link(t, to, filepath.Join(b.root, d))
		case !os.IsNotExist(err):
			t.Skipf("/%s is no link into /usr: this host cannot lend a box its /usr", d)
		}
	}
	if out, err := b.run(t, nil, "true"); err != nil {
		t.Skipf("kern cannot build a box here: %v: %s", err, out)
	}
	return b
}

func (b box) run(t *testing.T, flags []string, cmd ...string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	argv := []string{
		"box", "validate-test-" + strconv.FormatUint(rand.Uint64(), 36), "--rootfs", b.root, "--read-only",
		"-v", "/usr:/usr:ro", "--cap-drop", "ALL", "--no-uid-range", "--timeout", "50", "--stop-timeout", "0",
	}
	argv = append(append(append(argv, flags...), "--"), cmd...)
	c := exec.CommandContext(ctx, b.kern, argv...)
	c.Env = append(os.Environ(), "HOSTSECRET=leaked", "X=leaked")
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		out = append(out, stderr.Bytes()...)
	}
	return out, err
}

// Every value reaches the box as it is, and nothing of ours comes with it.
func TestEnvFileThroughKern(t *testing.T) {
	b := newBox(t)
	values := []string{
		"", "plain", "$HOSTSECRET", "${HOSTSECRET}", "${X:-d}", "$$", "$$X", "$", "$'x'", "a$", `\$X`, `\\$X`, `\${X}`, `'$X'`, `"$X"`, `'"$X"'`,
		`"q"`, `'q'`, `it's`, `it's $X`, `"`, `'`, `''`, `""`, `\`, `\\`, `\\\`, `\n`, `\'`, `'\`, `"\`, `'\n`, "a # b", "# b", "#", "'# b", " lead", "trail ", "\ttab\t",
		"'  both '", "\n", "\r", "\r\n", "a\nB=injected", "a\n#c", "'\nB=injected\n'", "\"\nB=injected\n\"", "x\r", "\u2028", " \u2028\u2029\u0085\u00a0\u3000 ", "'\u2028'", "\ufeff", "ü", "🚀",
		"export A=1", "A=B=C", "=", "==", "`id`", "$(id)", "%s", "!x", "~", "*", "\x01\x1b[31m\x7f", "\ufffd", "-----BEGIN X-----\nabc\n-----END X-----\n",
		strings.Repeat("x", 100<<10), strings.Repeat("'\n$\\\"", 20<<10),
	}
	r := rand.New(rand.NewPCG(1, uint64(time.Now().Unix())))
	pieces := []string{"$", "{", "}", "X", "HOSTSECRET", "'", `"`, `\`, "\n", "\r", " ", "#", "=", "n", "\t", "\u2028", "é", ":-", "(", "`"}
	for range 500 {
		var s strings.Builder
		for range r.IntN(14) {
			s.WriteString(pieces[r.IntN(len(pieces))])
		}
		values = append(values, s.String())
	}
	var list []KV
	for i, v := range values {
		list = append(list, KV{"V_" + strconv.Itoa(i), v})
	}
	if err := CheckEnv(list); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(file, EncodeEnvFile(list), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := b.run(t, []string{"--env-file", file}, "env", "-0")
	if err != nil {
		t.Fatalf("%v: %.2000s", err, out)
	}
	got := map[string]string{}
	for l := range strings.SplitSeq(string(out), "\x00") {
		k, v, _ := strings.Cut(l, "=")
		got[k] = v
	}
	for _, kv := range list {
		if v, ok := got[kv.Key]; !ok || v != kv.Value {
			t.Errorf("%s: sent %.200q, the box has %.200q (%v)", kv.Key, kv.Value, v, ok)
		}
		delete(got, kv.Key)
	}
	for k, v := range got {
		if strings.Contains(v, "leaked") || v == "injected" || k == "B" {
			t.Errorf("the box also has %s=%q", k, v)
		}
	}
}

// The limit is the kernel's own: one byte less runs, one more does not start.
func TestEnvLimitThroughKern(t *testing.T) {
	b := newBox(t)
	for n, fits := range map[int]bool{maxEnvString - 3: true, maxEnvString - 2: false} {
		kv := KV{"A", strings.Repeat("x", n)}
		if (kv.Check() == nil) != fits {
			t.Errorf("%d bytes: %v", n, kv.Check())
		}
		file := filepath.Join(t.TempDir(), "env")
		if err := os.WriteFile(file, EncodeEnvFile([]KV{kv}), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := b.run(t, []string{"--env-file", file}, "true"); (err == nil) != fits {
			t.Errorf("%d bytes: kern says %v: %s", n, err, out)
		}
	}
}

// A mount shows the directory that was meant, whatever its name, and read-only
// when asked.
func TestMountArgThroughKern(t *testing.T) {
	b := newBox(t)
	root := t.TempDir()
	names := []string{
		"plain", "a:b", "a,b", `a"b`, "a b", " a", "\ta", "ü", `a\b`, "a'b", "a=b", `"q"`, `a,"b`, "$HOME", "ro", ",ro", "a,dst=x", `"`, `""`, "#c", "*?[", "a\u2028b", "a\u202eb", "a\tb",
		`kx a:b,ü"c`, "-x", "a,ro", `",ro,"`,
	}
	for i, n := range names {
		d := filepath.Join(root, n)
		mkdir(t, root, n)
		if err := os.WriteFile(d+"/mark", []byte(strconv.Itoa(i)), 0o600); err != nil {
			t.Fatal(err)
		}
		ro := i%2 == 0
		_, arg, err := MountArg(Mount{Source: d, Target: "/tmp/" + n, ReadOnly: ro})
		if err != nil {
			t.Fatal(err)
		}
		// A file as well, in the same box.
		_, argFile, err := MountArg(Mount{Source: d + "/mark", Target: "/tmp/f", ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		out, err := b.run(t, []string{"--tmpfs", "/x:1m", "--mount", arg, "--mount", argFile}, "sh", "-c",
			`cat "$1/mark" /tmp/f; if (: > "$1/new") 2>/dev/null; then printf rw; else printf ro; fi; (: >> /tmp/f) 2>/dev/null || printf ro`, "sh", "/tmp/"+n)
		want := strconv.Itoa(i) + strconv.Itoa(i) + map[bool]string{true: "ro", false: "rw"}[ro] + "ro"
		if err != nil && len(out) < len(want) || !strings.HasPrefix(string(out), want) {
			t.Errorf("%q: %v: got %.300q, want %q", n, err, out, want)
		}
		if _, err := os.Stat(d + "/new"); (err == nil) == ro {
			t.Errorf("%q: read-only %v, but the host says %v", n, ro, err)
		}
	}
	// What MountArg refuses is what kern would get wrong: the directory without
	// the blank exists, and is mounted instead.
	mkdir(t, root, "twin ")
	mkdir(t, root, "twin")
	if err := os.WriteFile(root+"/twin/wrong", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := b.run(t, []string{"--mount", "type=bind,src=" + root + "/twin ,dst=/tmp/x"}, "ls", "/tmp/x"); err == nil && string(out) != "wrong\n" {
		t.Errorf("kern keeps a final blank now (%q): the refusal can go", out)
	}
	// --mount never creates a source.
	if out, err := b.run(t, []string{"--mount", "type=bind,src=" + root + "/nope,dst=/tmp/x"}, "true"); err == nil {
		t.Errorf("kern mounted what does not exist: %s", out)
	}
	if _, err := os.Lstat(root + "/nope"); err == nil {
		t.Error("kern created a missing source")
	}
}

// kern mounts what we write for a tmpfs, after the mounts and in our order.
func TestTmpfsThroughKern(t *testing.T) {
	b := newBox(t)
	for in, kib := range map[string]string{"/tmp:64m": "65536", "/tmp:1.5m": "1536", "/tmp:size=2MiB": "2048", "/tmp:8192b": "8"} {
		v, err := ParseTmpfs(in)
		if err != nil {
			t.Fatal(err)
		}
		out, err := b.run(t, []string{"--tmpfs", v.Arg()}, "sh", "-c", "df -k /tmp | tail -1")
		if f := strings.Fields(string(out)); err != nil || len(f) < 2 || f[1] != kib {
			t.Errorf("%s (%s): %v: %s", in, v.Arg(), err, out)
		}
	}
	dir := t.TempDir()
	mkdir(t, dir, "mark")
	_, arg, err := MountArg(Mount{Source: dir, Target: "/run/x"})
	if err != nil {
		t.Fatal(err)
	}
	for _, flags := range [][]string{{"--tmpfs", "/run:1m", "--mount", arg}, {"--mount", arg, "--tmpfs", "/run:1m"}} {
		if out, err := b.run(t, flags, "ls", "/run/x/mark"); err == nil {
			t.Errorf("a tmpfs no longer hides the mounts below it (%q): CheckTmpfs can go", out)
		}
	}
}

// The names that pass are names that kern takes.
func TestNamesThroughKern(t *testing.T) {
	b := newBox(t)
	for _, h := range []string{"a", "a.b-c", "9", strings.Repeat("a", 64)} {
		if out, err := b.run(t, []string{"--hostname", h}, "true"); err != nil || Hostname(h) != nil {
			t.Errorf("hostname %q: %v: %s", h, err, out)
		}
	}
	for _, c := range capabilities {
		if out, err := b.run(t, []string{"--cap-drop", c}, "true"); err != nil {
			t.Errorf("capability %s: %v: %s", c, err, out)
		}
	}
	var flags []string
	for _, u := range ulimits {
		flags = append(flags, "--ulimit", u+"=unlimited")
	}
	// The kernel may refuse a limit above ours; kern refuses a name by itself.
	if out, err := b.run(t, flags, "true"); err != nil && strings.Contains(string(out), "usage") {
		t.Errorf("ulimits: %v: %s", err, out)
	}
	// A name that kern's proxy cannot use costs a box its whole network, with a
	// note: that is why Domains is strict.
	names, err := Domains("pypi.org,xn--bcher-kva.example,x.xn--p1ai")
	if err != nil {
		t.Fatal(err)
	}
	for list, works := range map[string]bool{strings.Join(names, ","): true, "*.example.com": false} {
		out, err := b.run(t, []string{"--egress-allow", list}, "sh", "-c", "echo; exit 9")
		if err == nil {
			t.Fatal("exit 9 was lost")
		}
		if failed := strings.Contains(string(out), "failed to start"); failed == works {
			t.Errorf("%s: %s", list, out)
		}
	}
}
