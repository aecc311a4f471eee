package testscripts

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kern-sbx/kern-sbx/testscripts/roots"
)

// Real programs in a root of Debian's packages, as users meet them: what each prints
// when a box is in its way, the hint of run, and what doctor makes of it.

const (
	// debianRoot is built once, and kept in .cache.
	debianRoot = "nginx-python"
	// debianTime bounds one command; the slowest takes some seconds.
	debianTime = 2 * time.Minute
)

// debianCaller is one user with directories of its own, and the root.
type debianCaller struct {
	place
	t    *testing.T
	sh   *shared
	root string
}

func TestDebian(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a root file system")
	}
	sh := build(t)
	dir, err := filepath.Abs("../.cache/roots")
	if err != nil {
		t.Fatal(err)
	}
	root, err := roots.Debian(t.Context(), dir, debianRoot, "nginx-light", "python3")
	if errors.Is(err, roots.ErrUnavailable) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	noMatplotlib := roots.Python(t.Context(), root, "matplotlib")
	for _, s := range setups[:2] {
		t.Run(s.name, func(t *testing.T) {
			if why := s.why(); why != "" {
				t.Skip(why)
			}
			c := newDebianCaller(t, s, sh, root)
			for _, sub := range []struct {
				name    string
				f       func(*debianCaller)
				missing error
			}{
				{"nginx", debianNginx, nil},
				{"nginx without other users", debianNginxAlone, nil},
				{"matplotlib", debianMatplotlib, noMatplotlib},
				{"figures", debianFigures, noMatplotlib},
				{"figures of a warm interpreter", debianWarmFigures, noMatplotlib},
			} {
				t.Run(sub.name, func(t *testing.T) {
					if errors.Is(sub.missing, roots.ErrUnavailable) {
						t.Skip(sub.missing)
					} else if sub.missing != nil {
						t.Fatal(sub.missing)
					}
					c := *c
					c.t = t
					sub.f(&c)
					if left := settled(c.leftovers, nil); len(left) > 0 {
						t.Errorf("left behind:\n\t%s", strings.Join(left, "\n\t"))
					}
				})
			}
		})
	}
}

func newDebianCaller(t *testing.T, s setup, sh *shared, root string) *debianCaller {
	uid := os.Getuid()
	if uid == 0 && !s.root {
		uid = freeUID(map[int]bool{})
	}
	p, err := makePlace(s, uid)
	t.Cleanup(func() {
		if err := p.remove(); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &debianCaller{p, t, sh, root}
	if r := c.run("test", "-x", filepath.Join(root, "usr/bin/env")); r.status != 0 {
		t.Skipf("uid %d cannot use %s", uid, root)
	}
	return c
}

// ended is what is seen of a command.
type ended struct {
	status         int
	stdout, stderr string
}

// run runs a command as the caller.
func (c *debianCaller) run(argv ...string) ended {
	c.t.Helper()
	var who *syscall.Credential
	if c.UID != os.Getuid() {
		who = &syscall.Credential{Uid: uint32(c.UID), Gid: uint32(c.UID)}
	}
	return c.exec(who, argv)
}

// lend runs a command as the caller where /etc/subuid and /etc/subgid have nothing but
// the caller's line: numbers for the other users of a box, or none of them.
func (c *debianCaller) lend(numbers bool, argv ...string) ended {
	c.t.Helper()
	if os.Getuid() != 0 {
		c.t.Skip("only root can say who is lent numbers")
	}
	for _, p := range []string{"newuidmap", "setpriv", "unshare"} {
		if _, err := exec.LookPath(p); err != nil {
			c.t.Skip(err)
		}
	}
	if _, err := os.Stat("/etc/subuid"); err != nil {
		c.t.Skip(err)
	}
	// newuidmap serves nobody without a name.
	names, line := "root:x:0:0::/root:/bin/sh\n", ""
	if c.UID != 0 {
		names += fmt.Sprintf("tester:x:%d:%d::/:/bin/sh\n", c.UID, c.UID)
	}
	if numbers {
		line = map[bool]string{true: "root", false: "tester"}[c.UID == 0] + ":100000:65536\n"
	}
	for name, text := range map[string]string{"names": names, "numbers": line} {
		if err := os.WriteFile(c.path(name), []byte(text), 0o644); err != nil {
			c.t.Fatal(err)
		}
	}
	const script = `
mount --bind "$0/names" /etc/passwd
mount --bind "$0/numbers" /etc/subuid
mount --bind "$0/numbers" /etc/subgid
id=$1; shift
exec setpriv --reuid "$id" --regid "$id" --clear-groups "$@"`
	return c.exec(nil, append([]string{"unshare", "-m", "sh", "-ec", script, c.Dir, strconv.Itoa(c.UID)}, argv...))
}

func (c *debianCaller) exec(who *syscall.Credential, argv []string) ended {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), debianTime)
	defer cancel()
	env := append(c.env("host"), "PATH="+scriptPath(c.sh.dir), "LANG=C.UTF-8", marker+"="+c.Dir)
	if !c.sh.embed {
		env = append(env, "KERN_BIN="+filepath.Join(c.sh.dir, "kern", "kern"))
	}
	// A path, as this process has another PATH.
	if p := filepath.Join(c.sh.dir, "bin", argv[0]); argv[0] == "kern-sbx" {
		argv = append([]string{p}, argv[1:]...)
	}
	x := exec.CommandContext(ctx, argv[0], argv[1:]...)
	x.Dir, x.Env = c.path("work"), env
	x.SysProcAttr = &syscall.SysProcAttr{Credential: who}
	x.Cancel = func() error { return x.Process.Signal(syscall.SIGTERM) }
	x.WaitDelay = 20 * time.Second
	var out, errs bytes.Buffer
	x.Stdout, x.Stderr = &out, &errs
	if err := x.Run(); err != nil && x.ProcessState == nil {
		c.t.Fatalf("%v: %v", argv, err)
	}
	return ended{x.ProcessState.ExitCode(), out.String(), errs.String()}
}

// file writes a file of the caller's, and gives its path.
func (c *debianCaller) file(name, text string) string {
	c.t.Helper()
	path := c.path("work", name)
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600))
	for _, p := range []string{filepath.Dir(path), path} {
		err = errors.Join(err, os.Chown(p, c.UID, c.UID))
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return path
}

// hint checks what is hinted: nothing for "".
func (c *debianCaller) hint(r ended, want string) {
	c.t.Helper()
	var hints []string
	for line := range strings.Lines(r.stderr) {
		if strings.Contains(line, "hint: ") {
			hints = append(hints, line)
		}
	}
	got := strings.Join(hints, "")
	if want == "" && got != "" || len(hints) > 1 || !regexp.MustCompile(want).MatchString(got) {
		c.t.Errorf("hinted %q, want one hint like %q after\n%s", got, want, r.stderr)
	}
}

// found is what the tests read of a diagnosis.
type found struct {
	Verdict, Why, Advice string
	Noise                bool
	Fix                  *struct {
		Changes []foundChange
		Relaxes bool
		Command string
	}
	NotTried []struct{ Changes []foundChange } `json:"not_tried"`
	Duration int64                             `json:"duration_ms"`
}

type foundChange struct{ Flag, Value string }

// diagnosis reads the document of doctor.
func (c *debianCaller) diagnosis(r ended) found {
	c.t.Helper()
	var d found
	if err := json.Unmarshal([]byte(r.stdout), &d); err != nil {
		c.t.Fatalf("%v\nstatus %d\n%s\n%s", err, r.status, r.stdout, r.stderr)
	}
	c.t.Logf("%s after %d ms: %s %s", d.Verdict, d.Duration, d.Why, d.Advice)
	return d
}

// flags names changes by what they change, and not by how much.
func flags(changes []foundChange) []string {
	var all []string
	for _, x := range changes {
		value, _, _ := strings.Cut(x.Value, ":")
		value, _, _ = strings.Cut(value, "=")
		all = append(all, x.Flag+" "+value)
	}
	slices.Sort(all)
	return all
}

// nginxServes is a command that succeeds when nginx does: it returns when it listens.
const nginxServes = `nginx
exec 3<>/dev/tcp/127.0.0.1/80
printf 'GET / HTTP/1.0\r\n\r\n' >&3
grep 'Welcome to nginx' <&3`

// nginxNeeds are the changes that a server of Debian's needs, as the operational notes
// have them for the one of Alpine: places to write to, and a user besides root.
var nginxNeeds = []string{"cap-drop none", "tmpfs /run", "tmpfs /var/lib/nginx", "tmpfs /var/log/nginx"}

// nginxMisses are those of its needs that a box of the caller's does not have already:
// in a root of another user's, /run is memory.
func (c *debianCaller) nginxMisses() []string {
	if c.UID == 0 {
		return nginxNeeds
	}
	return slices.DeleteFunc(slices.Clone(nginxNeeds), func(n string) bool { return n == "tmpfs /run" })
}

// debianNginx: each thing that it lacks announces itself separately, until it serves.
func debianNginx(c *debianCaller) {
	var flagsOfRun []string
	run := func() ended {
		return c.lend(true, append(append([]string{"kern-sbx", "run", "--timeout", "20s", "--rootfs", c.root}, flagsOfRun...), "--", "bash", "-ec", nginxServes)...)
	}
	for _, step := range []struct {
		says, hint string
		flags      []string // what helps
	}{
		{`mkdir\(\) "/var/lib/nginx/body" failed \(30: Read-only file system\)`, `--tmpfs /var/lib/nginx:`, []string{"--tmpfs", "/var/lib/nginx:16m"}},
		{`chown\("/var/lib/nginx/body", 33\) failed`, `--cap-drop none`, []string{"--cap-drop", "none"}},
		{`open\(\) "/var/log/nginx/error.log" failed`, `--tmpfs /var/log/nginx:`, []string{"--tmpfs", "/var/log/nginx:4m"}},
		{`open\(\) "/run/nginx.pid" failed \(30: Read-only file system\)`, `--tmpfs /run:`, []string{"--tmpfs", "/run:1m"}},
	} {
		if step.hint == `--tmpfs /run:` && !slices.Contains(c.nginxMisses(), "tmpfs /run") {
			continue
		}
		r := run()
		if r.status != 1 || !regexp.MustCompile(step.says).MatchString(r.stderr) {
			c.t.Errorf("with %v: status %d, want 1 and %s\n%s", flagsOfRun, r.status, step.says, r.stderr)
		}
		c.hint(r, step.hint)
		flagsOfRun = append(flagsOfRun, step.flags...)
	}
	if r := run(); r.status != 0 || !strings.Contains(r.stdout, "Welcome to nginx") || r.stderr != "" {
		c.t.Errorf("with %v: %+v", flagsOfRun, r)
	}

	// What relaxes the box is not tried without leave, and named.
	doctor := []string{"kern-sbx", "doctor", "--json", "--rootfs", c.root}
	command := []string{"--", "bash", "-ec", nginxServes}
	r := c.lend(true, append(slices.Clone(doctor), command...)...)
	d := c.diagnosis(r)
	if r.status != 1 || d.Fix != nil || !slices.ContainsFunc(d.NotTried, func(n struct{ Changes []foundChange }) bool {
		return slices.Contains(flags(n.Changes), "cap-drop none")
	}) {
		c.t.Errorf("without leave: status %d, %+v", r.status, d)
	}
	r = c.lend(true, append(append(doctor, "--allow-relax"), command...)...)
	d = c.diagnosis(r)
	if r.status != 0 || d.Verdict != "fixed" || d.Fix == nil || !d.Fix.Relaxes || !slices.Equal(flags(d.Fix.Changes), c.nginxMisses()) {
		c.t.Fatalf("status %d, %s", r.status, r.stdout)
	}
	// The line that it prints is one to use.
	if r := c.lend(true, "sh", "-c", d.Fix.Command); r.status != 0 || !strings.Contains(r.stdout, "Welcome to nginx") || r.stderr != "" {
		c.t.Errorf("%s: %+v", d.Fix.Command, r)
	}

	// A server that was told to use what a box has needs no more than that.
	const conf = `user root; pid /tmp/pid; error_log stderr;
events {}
http {
	access_log off;
	client_body_temp_path /tmp/b; proxy_temp_path /tmp/p; fastcgi_temp_path /tmp/f; uwsgi_temp_path /tmp/u; scgi_temp_path /tmp/s;
	server { listen 127.0.0.1:80; root /usr/share/nginx/html; location / { return 200 "Welcome to nginx"; } }
}
`
	c.file("site/nginx.conf", conf)
	ports := strings.Replace(nginxServes, "nginx\n", "nginx -e stderr -c /workspace/nginx.conf\n", 1)
	own := []string{"--rootfs", c.root, "-W", "site"}
	r = c.run(append(append([]string{"kern-sbx", "run"}, own...), "--", "bash", "-ec", ports)...)
	if r.status != 1 || !strings.Contains(r.stderr, "bind() to 127.0.0.1:80 failed (13: Permission denied)") {
		c.t.Errorf("a low port: %+v", r)
	}
	c.hint(r, `--cap-add NET_BIND_SERVICE`)
	d = c.diagnosis(c.run(append(append([]string{"kern-sbx", "doctor", "--json", "--allow-relax"}, own...), "--", "bash", "-ec", ports)...))
	if d.Fix == nil || !slices.Equal(flags(d.Fix.Changes), []string{"cap-add NET_BIND_SERVICE"}) {
		c.t.Errorf("a low port: %+v", d)
	} else if r := c.run("sh", "-c", d.Fix.Command); r.status != 0 || !strings.Contains(r.stdout, "Welcome to nginx") {
		c.t.Errorf("%s: %+v", d.Fix.Command, r)
	}
	c.file("site/nginx.conf", strings.Replace(conf, ":80;", ":8080;", 1))
	ports = strings.Replace(ports, "/80\n", "/8080\n", 1)
	if r := c.run(append(append([]string{"kern-sbx", "run"}, own...), "--", "bash", "-ec", ports)...); r.status != 0 || !strings.Contains(r.stdout, "Welcome to nginx") {
		c.t.Errorf("a high port: %+v", r)
	}
}

// debianNginxAlone: a machine that lends no numbers has no other users for a box, and
// no flag changes that.
func debianNginxAlone(c *debianCaller) {
	r := c.lend(false, "kern-sbx", "run", "--rootfs", c.root, "--tmpfs", "/var/lib/nginx:16m", "--cap-drop", "none", "--", "nginx")
	if r.status != 1 || !strings.Contains(r.stderr, `chown("/var/lib/nginx/body", 33) failed (22: Invalid argument)`) {
		c.t.Errorf("%+v", r)
	}
	c.hint(r, `/etc/subuid`)
	r = c.lend(false, "kern-sbx", "doctor", "--json", "--allow-relax", "--rootfs", c.root, "--", "bash", "-ec", nginxServes)
	if d := c.diagnosis(r); r.status != 1 || d.Fix != nil || !strings.Contains(d.Advice, "/etc/subuid") {
		c.t.Errorf("status %d, %+v", r.status, d)
	}
}

// matplotlibSaves is a command, for which kern-sbx sets nothing.
const matplotlibSaves = `import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.savefig("/workspace/x.png")
print(plt.get_backend())`

// debianMatplotlib: it works, and complains.
func debianMatplotlib(c *debianCaller) {
	r := c.run("kern-sbx", "run", "--rootfs", c.root, "--", "python3", "-c", matplotlibSaves)
	if r.status != 0 || !strings.Contains(r.stderr, "mkdir -p failed for path /root/.config/matplotlib") || !strings.EqualFold(strings.TrimSpace(r.stdout), "agg") {
		c.t.Errorf("%+v", r)
	}
	c.hint(r, `--env MPLCONFIGDIR=/tmp`)
	r = c.run("kern-sbx", "run", "--rootfs", c.root, "-e", "MPLCONFIGDIR=/tmp", "--", "python3", "-c", matplotlibSaves)
	if r.status != 0 || r.stderr != "" {
		c.t.Errorf("with the notes' fix: %+v", r)
	}
	r = c.run("kern-sbx", "doctor", "--json", "--rootfs", c.root, "--", "python3", "-c", matplotlibSaves)
	d := c.diagnosis(r)
	if r.status != 0 || d.Verdict != "fixed" || !d.Noise || d.Fix == nil || d.Fix.Relaxes || !slices.Equal(flags(d.Fix.Changes), []string{"env MPLCONFIGDIR"}) {
		c.t.Fatalf("status %d, %s", r.status, r.stdout)
	}
	if r := c.run("sh", "-c", d.Fix.Command); r.status != 0 || r.stderr != "" {
		c.t.Errorf("%s: %+v", d.Fix.Command, r)
	}
}

// figure leaves one open, and says where its settings are.
const figure = `import os, matplotlib.pyplot as plt
plt.figure(figsize=(2, 1))
plt.plot([1, 2, 3])
print(os.environ["MPLCONFIGDIR"])
`

// ran is what the tests read of a result.
type ran struct {
	Stdout, Stderr string
	Results        []struct{ Data map[string]string }
}

// pictures checks that a result has one figure, of the size of ours, and that nothing
// complained.
func (c *debianCaller) pictures(what string, r ended, config string) {
	c.t.Helper()
	var d ran
	if err := json.Unmarshal([]byte(r.stdout), &d); err != nil {
		c.t.Fatalf("%s: %v\nstatus %d\n%s\n%s", what, err, r.status, r.stdout, r.stderr)
	}
	if r.status != 0 || d.Stderr != "" || strings.TrimSpace(d.Stdout) != config {
		c.t.Errorf("%s: status %d, stdout %q (want %q), stderr %q; %s", what, r.status, d.Stdout, config, d.Stderr, r.stderr)
	}
	var figures int
	for _, x := range d.Results {
		text, ok := x.Data["image/png"]
		if !ok {
			continue
		}
		figures++
		if !strings.HasPrefix(x.Data["text/plain"], "<Figure size 200x100") {
			c.t.Errorf("%s: as text it is %q", what, x.Data["text/plain"])
		}
		c.isFigure(what, base64.NewDecoder(base64.StdEncoding, strings.NewReader(text)))
	}
	if figures != 1 {
		c.t.Errorf("%s: %d figures in %d results", what, figures, len(d.Results))
	}
}

func (c *debianCaller) isFigure(what string, r io.Reader) {
	c.t.Helper()
	// Drawn with its margins cut.
	if p, err := png.Decode(r); err != nil || p.Bounds().Dx() < 100 || p.Bounds().Dx() > 250 {
		c.t.Errorf("%s: the figure is %v, %v", what, p, err)
	}
}

// debianFigures: code may leave a figure open, and need not know where to write.
func debianFigures(c *debianCaller) {
	code := c.file("figure.py", figure)
	run := append([]string{"kern-sbx", "run"}, "--rootfs", c.root)
	with := func(more ...string) []string { return append(append(slices.Clone(run), more...), "-f", code) }
	c.pictures("a fresh box", c.run(with("--json")...), "/tmp/.matplotlib")
	c.pictures("its own directory", c.run(with("--json", "-e", "MPLCONFIGDIR=/tmp/own")...), "/tmp/own")
	c.pictures("no /tmp", c.run(with("--json", "--tmpfs", "none")...), "/workspace/.matplotlib")

	r := c.run(with("-q", "--out", "saved")...)
	saved, _ := filepath.Glob(c.path("work", "saved", "*.png"))
	if r.status != 0 || strings.TrimSpace(r.stdout) != "/tmp/.matplotlib" || r.stderr != "" || len(saved) != 1 {
		c.t.Fatalf("--out: %+v, files %v", r, saved)
	}
	f, err := os.Open(saved[0])
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	c.isFigure("--out", f)
}

// debianWarmFigures: the same of an interpreter that waited, or that is kept.
func debianWarmFigures(c *debianCaller) {
	code := c.file("figure.py", figure)
	must := func(argv ...string) {
		c.t.Helper()
		if r := c.run(append([]string{"kern-sbx"}, argv...)...); r.status != 0 {
			c.t.Fatalf("%v: %+v", argv, r)
		}
	}
	defer c.run("kern-sbx", "prewarm", "stop", "--all")
	must(append([]string{"prewarm", "start", "-n", "1", "--wait"}, "--rootfs", c.root)...)
	c.pictures("a box that waited", c.run(append(append([]string{"kern-sbx", "run", "--json", "--pool", "require"}, "--rootfs", c.root), "-f", code)...), "/tmp/.matplotlib")
	must("prewarm", "stop", "--all")

	defer c.run("kern-sbx", "kernel", "stop", "--all")
	must(append([]string{"kernel", "start"}, "--rootfs", c.root)...)
	for _, cell := range []string{"the first cell", "the second cell"} {
		c.pictures(cell, c.run("kern-sbx", "kernel", "exec", "--json", "-f", code), "/tmp/.matplotlib")
	}
	must("kernel", "stop", "--all")
}
