// Package roots builds root file systems of Debian's packages, for tests that want
// real programs, and keeps them.
package roots

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnavailable is what a root or a package is that this machine cannot make now: a
// program is missing, the user is not root, or no mirror answers.
var ErrUnavailable = errors.New("cannot be made here")

const (
	// probeTime is how long a mirror may take to say anything at all.
	probeTime = 10 * time.Second
	buildTime = 6 * time.Minute
)

// Debian gives the directory dir/name: the minimal system of this machine's release of
// Debian, with packages installed. If it is not there yet, debootstrap builds it from
// the mirror that apt uses here, which takes root and a minute.
func Debian(ctx context.Context, dir, name string, packages ...string) (string, error) {
	root := filepath.Join(dir, name)
	if complete(root) {
		return root, nil
	}
	unavailable := func(why error) (string, error) {
		return "", fmt.Errorf("a root of Debian's packages %w: %w", ErrUnavailable, why)
	}
	if os.Geteuid() != 0 {
		return unavailable(errors.New("debootstrap needs root"))
	}
	debootstrap, err := exec.LookPath("debootstrap")
	if err != nil {
		return unavailable(errors.New("there is no debootstrap (package debootstrap)"))
	}
	suite, mirror, proxy, err := source(ctx)
	if err != nil {
		return unavailable(err)
	}
	unlock, err := lock(dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	if complete(root) {
		return root, nil
	}
	made := root + ".part" // of a builder that was killed, else of nobody
	if err := os.RemoveAll(made); err != nil {
		return "", err
	}
	defer os.RemoveAll(made)
	ctx, cancel := context.WithTimeout(ctx, buildTime)
	defer cancel()
	argv := []string{debootstrap, "--variant=minbase"}
	if len(packages) > 0 {
		argv = append(argv, "--include="+strings.Join(packages, ","))
	}
	if out, err := run(ctx, proxy, append(argv, suite, made, mirror)...); err != nil {
		return unavailable(fmt.Errorf("debootstrap: %w: %s", err, lastLines(out)))
	}
	// 0755 whatever the umask: boxes of other users stand on it.
	return root, errors.Join(os.Chmod(made, 0o755), os.Rename(made, root))
}

// Python puts packages, as pip has them, where the python3 of a root of ours finds
// them, unless something is there already. pip is this machine's, so the root needs
// neither it nor a network.
func Python(ctx context.Context, root string, packages ...string) error {
	what := strings.Join(packages, ", ")
	version, err := os.Readlink(filepath.Join(root, "usr/bin/python3"))
	if err != nil {
		return fmt.Errorf("the root has no python3: %w", err)
	}
	version = strings.TrimPrefix(version, "python")
	target := filepath.Join(root, "usr/local/lib", "python"+version, "dist-packages")
	if filled(target) {
		return nil
	}
	unlock, err := lock(filepath.Dir(root))
	if err != nil {
		return fmt.Errorf("%s %w: %w", what, ErrUnavailable, err)
	}
	defer unlock()
	if filled(target) {
		return nil
	}
	made := root + ".part" // on the same file system
	if err := os.RemoveAll(made); err != nil {
		return err
	}
	defer os.RemoveAll(made)
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	args := []string{
		"install", "--quiet", "--disable-pip-version-check", "--no-warn-conflicts",
		"--timeout", "10", "--retries", "1",
		// Compiling would be done for another Python.
		"--no-compile", "--only-binary=:all:", "--python-version", version, "--implementation", "cp",
		"--platform", "manylinux2014_" + machine, "--platform", "manylinux_2_28_" + machine,
		"--target", made,
	}
	ctx, cancel := context.WithTimeout(ctx, buildTime)
	defer cancel()
	for _, pip := range [][]string{{"python3", "-m", "pip"}, {"pip3"}, {"pip"}} {
		if _, err := run(ctx, nil, append(pip, "--version")...); err != nil {
			continue
		}
		if out, err := run(ctx, nil, append(append(pip, args...), packages...)...); err != nil {
			return fmt.Errorf("%s %w: pip: %w: %s", what, ErrUnavailable, err, lastLines(out))
		}
		if err := os.RemoveAll(target); err != nil {
			return err
		}
		return errors.Join(os.Chmod(made, 0o755), os.Rename(made, target))
	}
	return fmt.Errorf("%s %w: there is no pip", what, ErrUnavailable)
}

func complete(root string) bool {
	_, err := os.Stat(filepath.Join(root, "usr"))
	return err == nil
}

func filled(dir string) bool {
	names, err := os.ReadDir(dir)
	return err == nil && len(names) > 0
}

// lock makes dir and keeps others from building there at the same time; the second
// one finds what the first one made.
func lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// source gives this machine's release, a mirror of it that answers, and the
// variables of the proxy that apt uses: debootstrap does not read apt's.
func source(ctx context.Context) (suite, mirror string, proxy []string, err error) {
	release, _ := os.ReadFile("/etc/os-release")
	values := map[string]string{}
	for line := range strings.Lines(string(release)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[k] = strings.Trim(v, `"`)
	}
	if suite = values["VERSION_CODENAME"]; values["ID"] != "debian" || suite == "" {
		return "", "", nil, errors.New("this machine is no Debian")
	}
	// What apt would fetch; nothing is fetched.
	uris, err := exec.CommandContext(ctx, "apt-get", "--print-uris", "update").Output()
	if err != nil {
		return "", "", nil, fmt.Errorf("apt-get: %w", err)
	}
	if mirror = mirrorIn(string(uris), suite); mirror == "" {
		return "", "", nil, fmt.Errorf("apt has no mirror of %s that is read by HTTP", suite)
	}
	u, err := url.Parse(mirror)
	if err != nil {
		return "", "", nil, err
	}
	through := http.ProxyFromEnvironment
	out, err := exec.CommandContext(ctx, "apt-config", "dump", "--format", "%v", "Acquire::"+u.Scheme+"::Proxy").Output()
	if err == nil && bytes.Contains(out, []byte("://")) {
		p, err := url.Parse(strings.TrimSpace(string(out)))
		if err != nil {
			return "", "", nil, fmt.Errorf("the proxy of apt: %w", err)
		}
		through, proxy = http.ProxyURL(p), []string{u.Scheme + "_proxy=" + p.String()}
	}
	return suite, mirror, proxy, answers(ctx, through, mirror+"/dists/"+suite+"/InRelease")
}

// mirrorIn finds the mirror of a release in what `apt-get --print-uris update` said.
func mirrorIn(uris, suite string) string {
	for line := range strings.Lines(uris) {
		uri, _, _ := strings.Cut(strings.TrimPrefix(line, "'"), "'")
		mirror, ok := strings.CutSuffix(uri, "/dists/"+suite+"/InRelease")
		if ok && (strings.HasPrefix(mirror, "http://") || strings.HasPrefix(mirror, "https://")) {
			return mirror
		}
	}
	return ""
}

// answers asks for the head of a file, so that nobody waits for a mirror that is away.
func answers(ctx context.Context, proxy func(*http.Request) (*url.URL, error), uri string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, uri, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{Proxy: proxy, DisableKeepAlives: true}}
	r, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("the mirror does not answer: %w", err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("the mirror answers %s", r.Status)
	}
	return nil
}

// run gives all output of a program. The program, what it started and, for root, what
// it mounted are gone when ctx is over.
func run(ctx context.Context, env []string, argv ...string) (string, error) {
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	c.Env = append(c.Env, env...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		c.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.String(), err
}

func lastLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}
