package workspace

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func openDir(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t testing.TB, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func absent(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: still there (%v)", path, err)
	}
}

func content(t testing.TB, path, want string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil || string(b) != want {
		t.Errorf("%s holds %q (%v), want %q", path, b, err, want)
	}
}

// deepTree makes n directories inside each other below dir and calls leaf in
// the innermost.
func deepTree(t testing.TB, dir string, n int, leaf func(dirfd int)) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range n {
		must(t, unix.Mkdirat(fd, "d", 0o755))
		next, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	if leaf != nil {
		leaf(fd)
	}
	unix.Close(fd)
}

func touchAt(t testing.TB, dirfd int, name string, mode uint32) {
	t.Helper()
	fd, err := unix.Openat(dirfd, name, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	must(t, err)
	must(t, unix.Fchmod(fd, mode))
	unix.Close(fd)
}

// atMost runs f while the process may open only n descriptors more than it
// has, so that an f which needs more fails with EMFILE.
func atMost(t *testing.T, n int, f func()) {
	t.Helper()
	var old unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	open := map[string]bool{}
	for _, e := range entries {
		open[e.Name()] = true
	}
	limit := 0
	for free := 0; free < n; limit++ {
		if !open[strconv.Itoa(limit)] {
			free++
		}
	}
	low := old
	low.Cur = uint64(limit + 1) // one was the listing's own
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	defer func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }()
	f()
}

// inNamespace runs the test body again in a process of its own with a private
// mount namespace, where it may mount; as an ordinary user in a user namespace.
func inNamespace(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	const env = "WORKSPACE_TEST_NAMESPACE"
	if os.Getenv(env) == t.Name() {
		must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		body(t)
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v")
	cmd.Env = append(os.Environ(), env+"="+t.Name())
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EACCES) {
		t.Skipf("no mount namespace of our own here: %v", err)
	}
	if err == nil && strings.Contains(string(out), "--- SKIP") {
		t.Skipf("%s", out)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Fatalf("in its own mount namespace: %v\n%s", err, out)
	}
}

// bothWays runs a test with openat2 and, as on an old kernel, without.
func bothWays(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	t.Run("openat2", body)
	t.Run("without openat2", func(t *testing.T) {
		noOpenat2.Store(true)
		defer noOpenat2.Store(false)
		body(t)
	})
}

func asRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// scratch is a temporary directory that is emptied by means of its own, since
// what t.TempDir uses cannot remove some of these trees.
func scratch(t testing.TB) string {
	t.Helper()
	return scratchIn(t, "")
}

// bigScratch is scratch for trees of 100 000 entries: in memory if possible,
// except under KERN_SBX_BIG=1, which tries the file system of TMPDIR.
func bigScratch(t testing.TB) string {
	t.Helper()
	if os.Getenv("KERN_SBX_BIG") != "1" && unix.Access("/dev/shm", unix.W_OK|unix.X_OK) == nil {
		return scratchIn(t, "/dev/shm")
	}
	return scratchIn(t, "")
}

func scratchIn(t testing.TB, in string) string {
	t.Helper()
	dir, err := os.MkdirTemp(in, "workspace-test-")
	must(t, err)
	dir, err = filepath.EvalSymlinks(dir)
	must(t, err)
	t.Cleanup(func() {
		if err := Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
