package hostroot

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// TestMain lets this binary be a second process that prepares a root.
func TestMain(m *testing.M) {
	if c := os.Getenv("HOSTROOT_PREPARE"); c != "" {
		r, err := host{os.Getenv("HOSTROOT_ROOT")}.prepare(Options{Cache: c, Path: "/usr/bin", UID: os.Getuid()})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Print(r.Dir)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fake makes a host of its own. "p/" is a directory, "p -> t" a link, anything
// else a file; " 0600" at the end sets the mode.
func fake(t testing.TB, entries ...string) host {
	t.Helper()
	root := t.TempDir()
	for _, e := range entries {
		mode := os.FileMode(0)
		if i := strings.LastIndex(e, " 0"); i > 0 {
			if _, err := fmt.Sscanf(e[i+1:], "%o", &mode); err != nil {
				t.Fatal(err)
			}
			e = e[:i]
		}
		name, target, link := strings.Cut(e, " -> ")
		p := root + name
		must(t, os.MkdirAll(filepath.Dir(strings.TrimSuffix(p, "/")), 0o755))
		switch {
		case link:
			must(t, os.Symlink(target, p))
			continue
		case strings.HasSuffix(p, "/"):
			must(t, os.MkdirAll(p, 0o755))
			if mode == 0 {
				mode = 0o755
			}
		default:
			if mode == 0 {
				mode = 0o644
			}
			must(t, os.WriteFile(p, []byte("text of "+name), 0o600))
		}
		must(t, os.Chmod(p, mode))
	}
	return host{root}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func debian(t testing.TB, more ...string) host {
	return fake(t, append([]string{
		"/usr/bin/sh 0755", "/usr/lib/", "/usr/sbin/", "/bin -> usr/bin", "/sbin -> usr/sbin", "/lib -> usr/lib", "/home/", "/root/", "/tmp/",
		"/etc/os-release -> ../usr/lib/os-release", "/etc/alternatives/x -> /usr/bin/sh", "/etc/shadow 0640",
		"/etc/ssl/openssl.cnf", "/etc/ssl/certs/a.pem -> /usr/share/ca-certificates/a.crt", "/etc/ssl/certs/ca-certificates.crt",
		"/etc/localtime -> /usr/share/zoneinfo/UTC", "/etc/ld.so.conf.d/libc.conf",
	}, more...)...)
}

func prepare(t testing.TB, h host, o Options) *Root {
	t.Helper()
	if o.Cache == "" {
		o.Cache = filepath.Join(t.TempDir(), "cache")
	}
	r, err := h.prepare(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func has(root, p string) bool {
	_, err := os.Lstat(root + p)
	return err == nil
}

func targets(r *Root) (out []string) {
	for _, m := range r.Mounts {
		out = append(out, m.Target)
	}
	return out
}

func TestSkeleton(t *testing.T) {
	h := debian(t, "/opt/x/", "/etc/java-17-openjdk/security/java.security", "/etc/python3.11/sitecustomize.py", "/etc/python3/debian_config", "/etc/maven/settings.xml", "/etc/timezone")
	must(t, os.WriteFile(h.at("/usr/lib/os-release"), []byte("ID=debian\nVERSION_ID=\"12\"\n"), 0o644))
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	r := prepare(t, h, Options{UID: 1000})
	for _, p := range append(topDirs, "etc/ssl/certs", "") {
		st, err := os.Lstat(filepath.Join(r.Dir, p))
		if err != nil || st.Mode().Perm() != 0o755 || !st.IsDir() {
			t.Errorf("/%s: %v, %v; it must be a directory that everybody in the box can enter", p, st, err)
		}
	}
	for p, want := range map[string]string{
		"/bin": "usr/bin", "/lib": "usr/lib", "/etc/localtime": "/usr/share/zoneinfo/UTC", "/etc/alternatives/x": "/usr/bin/sh",
		"/etc/ssl/certs/a.pem": "/usr/share/ca-certificates/a.crt", "/etc/os-release": "../usr/lib/os-release",
	} {
		if got, _ := os.Readlink(r.Dir + p); got != want {
			t.Errorf("%s -> %q, want %q", p, got, want)
		}
	}
	for _, p := range []string{"/etc/java-17-openjdk/security/java.security", "/etc/python3.11/sitecustomize.py", "/etc/maven/settings.xml", "/etc/ld.so.conf.d/libc.conf", "/etc/timezone"} {
		want, _ := os.ReadFile(h.at(p))
		if got, err := os.ReadFile(r.Dir + p); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %q, %v", p, got, err)
		}
		a, _ := os.Stat(h.at(p))
		b, _ := os.Stat(r.Dir + p)
		if !a.ModTime().Equal(b.ModTime()) || b.Mode().Perm() != 0o644 {
			t.Errorf("%s: time %v, want %v; mode %v", p, b.ModTime(), a.ModTime(), b.Mode())
		}
	}
	if data, _ := os.ReadFile(r.Dir + "/etc/passwd"); !strings.HasPrefix(string(data), "root:x:0:0:") {
		t.Errorf("passwd is %q", data)
	}
	if got := targets(r); !slices.Equal(got, []string{"/usr", "/opt"}) {
		t.Errorf("mounts %q", got)
	}
	if !strings.HasPrefix(r.ID, "host:debian-12:") || len(r.ID) != len("host:debian-12:")+16 {
		t.Errorf("id %q", r.ID)
	}
	if !has(filepath.Dir(r.Dir), "/complete") || has(filepath.Dir(r.Dir), "/lock") {
		t.Error("a marker is missing, or a lock was left")
	}
	if got := r.Path; got != "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" {
		t.Errorf("path %q", got)
	}
}

func TestNothingSecret(t *testing.T) {
	h := debian(t, "/etc/ssl/certs/host.pem 0600", "/etc/ssl/certs/group.pem 0640", "/etc/ssl/private/", "/etc/ssl/private/open.pem",
		"/etc/ssl/certs/private/deep.pem", "/etc/ssl/certs/locked/ 0750", "/etc/ssl/certs/site.KEY", "/etc/ssl/certs/site.p12",
		"/etc/ssl/certs/out.pem -> /root/.ssh/id_rsa", "/etc/ssl/certs/dir -> /root", "/root/.ssh/id_rsa", "/etc/npmrc", "/etc/pip.conf",
		"/etc/pki/tls/private/k.pem", "/etc/pki/entitlement/1.pem", "/etc/pki/tls/certs/ok.pem", "/etc/java-17/management/jmxremote.password",
		"/etc/maven/settings.xml", "/etc/maven/m2.conf", "/etc/ssl/certs/combined.pem", "/etc/crypto-policies/x 0600", "/etc/python3-secret/ 0700", "/etc/gshadow 0640")
	must(t, os.WriteFile(h.at("/etc/ssl/certs/locked/in.pem"), []byte("x"), 0o644))
	must(t, os.WriteFile(h.at("/etc/python3-secret/in.py"), []byte("x"), 0o644))
	must(t, os.WriteFile(h.at("/etc/ssl/certs/combined.pem"), []byte("cert\n-----BEGIN RSA PRIVATE KEY-----\nx"), 0o644))
	must(t, os.WriteFile(h.at("/etc/maven/settings.xml"), []byte("<!-- <password>example</password> --><server><password>hunter2</password></server>"), 0o644))
	must(t, syscall.Mkfifo(h.at("/etc/ssl/certs/fifo"), 0o644))
	big, err := os.Create(h.at("/etc/ssl/certs/big.pem"))
	must(t, err)
	must(t, big.Truncate(maxFile+1))
	must(t, errors.Join(big.Chmod(0o644), big.Close()))
	r := prepare(t, h, Options{UID: 0})
	allowed := []string{"ca-certificates.crt", "a.pem", "out.pem", "dir"}
	entries, err := os.ReadDir(r.Dir + "/etc/ssl/certs")
	must(t, err)
	for _, e := range entries {
		if !slices.Contains(allowed, e.Name()) {
			t.Errorf("/etc/ssl/certs/%s is in the skeleton", e.Name())
		}
	}
	for _, p := range []string{"/etc/ssl/private", "/etc/pki/tls/private", "/etc/pki/entitlement", "/etc/npmrc", "/etc/pip.conf", "/etc/maven/settings.xml", "/etc/crypto-policies/x", "/etc/python3-secret", "/etc/shadow", "/etc/gshadow", "/etc/java-17/management/jmxremote.password", "/root/.ssh", "/home/x"} {
		if has(r.Dir, p) {
			t.Errorf("%s is in the skeleton", p)
		}
	}
	for _, p := range []string{"/etc/pki/tls/certs/ok.pem", "/etc/maven/m2.conf", "/etc/java-17/management"} {
		if !has(r.Dir, p) {
			t.Errorf("%s is missing", p)
		}
	}
	for _, p := range []string{"/etc/ssl/certs/out.pem", "/etc/ssl/certs/dir"} {
		if st, err := os.Lstat(r.Dir + p); err != nil || st.Mode().Type() != fs.ModeSymlink {
			t.Errorf("%s: a link that leaves the tree must stay a link: %v %v", p, st, err)
		}
	}
}

func TestLinkedParent(t *testing.T) {
	// Where /etc/ssl itself is a link, what it names must not be walked into.
	h := fake(t, "/usr/bin/sh 0755", "/usr/lib/", "/etc/ssl -> /root/ssl", "/root/ssl/certs/x.pem", "/root/ssl/openssl.cnf", "/etc/pki -> pki-real", "/etc/pki-real/tls/certs/x.pem")
	r := prepare(t, h, Options{})
	if got, _ := os.Readlink(r.Dir + "/etc/ssl"); got != "/root/ssl" {
		t.Errorf("/etc/ssl -> %q", got)
	}
	if has(r.Dir, "/root/ssl") {
		t.Error("a linked parent was followed")
	}
}

func TestOtherHosts(t *testing.T) {
	t.Run("not merged", func(t *testing.T) {
		h := fake(t, "/usr/bin/env 0755", "/usr/lib/", "/bin/sh 0755", "/sbin/", "/lib/x", "/lib64 -> lib", "/etc/passwd")
		r := prepare(t, h, Options{Path: "/bin:/usr/bin"})
		if got := targets(r); !slices.Equal(got, []string{"/usr", "/bin", "/sbin", "/lib"}) {
			t.Errorf("mounts %q", got)
		}
		if r.Mounts[1].Source != h.at("/bin") {
			t.Errorf("source %q", r.Mounts[1].Source)
		}
		if st, err := os.Lstat(r.Dir + "/bin"); err != nil || !st.IsDir() {
			t.Errorf("/bin: %v %v", st, err)
		}
		if got, _ := os.Readlink(r.Dir + "/lib64"); got != "lib" {
			t.Errorf("/lib64 -> %q", got)
		}
		if !strings.HasPrefix(r.Path, "/bin:/usr/bin:") {
			t.Errorf("path %q", r.Path)
		}
	})
	t.Run("fedora", func(t *testing.T) {
		h := fake(t, "/usr/bin/sh 0755", "/usr/lib/", "/bin -> usr/bin", "/opt -> /home/opt", "/home/opt/x", "/etc/ssl/certs -> ../pki/tls/certs", "/etc/pki/tls/certs/ca-bundle.crt -> /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
			"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/crypto-policies/back-ends/opensslcnf.config -> /usr/share/crypto-policies/DEFAULT/opensslcnf.txt", "/etc/java/java-17/x")
		r := prepare(t, h, Options{})
		for _, p := range []string{"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/crypto-policies/back-ends/opensslcnf.config", "/etc/java/java-17/x", "/etc/ssl/certs"} {
			if !has(r.Dir, p) {
				t.Errorf("%s is missing", p)
			}
		}
		if got := targets(r); !slices.Equal(got, []string{"/usr"}) {
			t.Errorf("a linked /opt was followed: %q", got)
		}
	})
	for name, h := range map[string]host{
		"NixOS":             fake(t, "/etc/NIXOS", "/usr/bin/env 0755", "/usr/lib/"),
		"Guix":              fake(t, "/gnu/store/", "/usr/bin/env", "/etc/x"),
		"no directory /usr": fake(t, "/etc/x", "/usr -> /home/usr", "/home/usr/lib/"),
	} {
		_, err := h.prepare(Options{Cache: t.TempDir()})
		var v *validate.Error
		if !errors.As(err, &v) || v.Field != "--image" || !strings.Contains(v.Reason, name) || v.Fix != "use --image REF or --rootfs DIR" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLeftOut(t *testing.T) {
	h := debian(t, "/usr/local/etc/npmrc 0600", "/opt/jenkins/.ssh/id", "/opt/go/bin/go 0755", "/opt/README")
	r := prepare(t, h, Options{UID: 0, Home: "/opt/jenkins", Path: "/opt/jenkins/bin:/opt/go/bin"})
	if got, want := targets(r), []string{"/usr", "/opt/README", "/opt/go", "/usr/local/etc"}; !slices.Equal(got, want) {
		t.Errorf("mounts %q, want %q", got, want)
	}
	last := r.Mounts[len(r.Mounts)-1]
	if entries, err := os.ReadDir(last.Source); err != nil || len(entries) != 0 {
		t.Errorf("the cover of /usr/local/etc: %v %v", entries, err)
	}
	if !strings.HasPrefix(r.Path, "/opt/go/bin:/usr/local/sbin") {
		t.Errorf("path %q", r.Path)
	}
	if got := targets(prepare(t, h, Options{UID: 5, Home: "/usr/bin"})); !slices.Equal(got, []string{"/usr", "/opt"}) {
		t.Errorf("a system user lost its directory: %q", got)
	}
	// A link as the home must not hide it.
	h = debian(t, "/opt/real/.ssh/id", "/opt/x", "/home/me -> /opt/real")
	if got := targets(prepare(t, h, Options{UID: 5, Home: "/home/me"})); !slices.Equal(got, []string{"/usr", "/opt/x"}) {
		t.Errorf("mounts %q", got)
	}
	// /usr/local/etc through a link is covered where it is.
	h = debian(t, "/usr/local -> /usr/share/local", "/usr/share/local/etc/x")
	if got := targets(prepare(t, h, Options{UID: 0})); !slices.Equal(got, []string{"/usr", "/usr/share/local/etc"}) {
		t.Errorf("mounts %q", got)
	}
}

func TestMountsInside(t *testing.T) {
	h := debian(t, "/usr/lib/wsl/drivers/d.so", "/usr/lib/wsl/x -> drivers", "/usr/lib/a.so", "/usr/lib/b -> a.so", "/proc/self/", "/opt/y")
	must(t, os.WriteFile(h.at("/proc/self/mounts"), []byte("/dev/a / ext4 rw 0 0\nd /usr/lib/wsl/drivers 9p ro 0 0\nd /usr ext4 rw 0 0\nd /home/x ext4 rw 0 0\n"), 0o644))
	r := prepare(t, h, Options{})
	want := []string{"/usr/bin", "/usr/lib/a.so", "/usr/lib/wsl/drivers", "/usr/sbin", "/opt"}
	if got := targets(r); !slices.Equal(got, want) {
		t.Errorf("mounts %q, want %q", got, want)
	}
	for p, want := range map[string]string{"/usr/lib/b": "a.so", "/usr/lib/wsl/x": "drivers"} {
		if got, _ := os.Readlink(r.Dir + p); got != want {
			t.Errorf("%s -> %q", p, got)
		}
	}
	// A new link there is a new skeleton.
	must(t, os.Symlink("a.so", h.at("/usr/lib/c")))
	if r2 := prepare(t, h, Options{}); !has(r2.Dir, "/usr/lib/c") {
		t.Error("a new link is missing")
	}
	for i := range maxMounts + 1 {
		must(t, os.WriteFile(h.at(fmt.Sprintf("/usr/lib/f%d", i)), nil, 0o644))
	}
	if _, err := h.prepare(Options{Cache: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "--rootfs DIR") {
		t.Errorf("no bound: %v", err)
	}
}

func TestMountTable(t *testing.T) {
	got := mountsBelow("a /usr/a\\040b\\134c ext4 rw 0 0\n\nx\nb /usr2 x\nc /opt t\nd /opt/../usr/q t r\n", []string{"/usr", "/opt"})
	if want := []string{`/usr/a b\c`, "/usr/q"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func FuzzMountTable(f *testing.F) {
	f.Add("a /usr/a\\040b ext4 rw 0 0\n")
	f.Add("a /usr/\\77 x\\")
	f.Fuzz(func(t *testing.T, s string) {
		for _, p := range mountsBelow(s, []string{"/usr"}) {
			if !strings.HasPrefix(p, "/usr/") || filepath.Clean(p) != p {
				t.Errorf("%q", p)
			}
		}
	})
}

func FuzzOSRelease(f *testing.F) {
	f.Add("ID=debian\nVERSION_ID=\"12\"\n")
	f.Add("ID='a:b'\nVERSION_ID=\x1b[31m")
	f.Fuzz(func(t *testing.T, s string) {
		got := osRelease(s)
		if got == "" || len(got) > 65 || strings.ContainsFunc(got, func(r rune) bool { return !strings.ContainsRune("-._", r) && (r < '0' || r > 'z') }) || strings.ContainsAny(got, ":;/\\<>=?@[]^`") {
			t.Errorf("%q", got)
		}
	})
}

func FuzzSecretText(f *testing.F) {
	f.Add([]byte("a<!--"), []byte("b-->"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		// Whatever is around it in one file, an open password is found.
		if bytes.Contains(a, []byte("<!--")) || bytes.Contains(a, []byte("-->")) {
			return
		}
		if !secretText("settings.xml", append(append(slices.Clone(a), "<password>x"...), b...)) {
			t.Errorf("missed")
		}
	})
}

func TestKey(t *testing.T) {
	h := debian(t, "/etc/maven/settings.xml", "/etc/ssl/certs/java/cacerts", "/etc/java-17/security/java.security")
	cache := t.TempDir()
	must(t, os.Chmod(cache, 0o700))
	prev := prepare(t, h, Options{Cache: cache, UID: 7})
	if again := prepare(t, h, Options{Cache: cache, UID: 7}); again.Dir != prev.Dir || again.ID != prev.ID {
		t.Fatal("the key is not stable")
	}
	replace := func(p string) func() error {
		return func() error {
			if err := os.WriteFile(h.at(p+".new"), []byte("n"), 0o644); err != nil {
				return err
			}
			return os.Rename(h.at(p+".new"), h.at(p))
		}
	}
	for name, change := range map[string]func() error{
		"update-ca-certificates": replace("/etc/ssl/certs/ca-certificates.crt"),
		"java certificates":      replace("/etc/ssl/certs/java/cacerts"),
		"java security":          replace("/etc/java-17/security/java.security"),
		"maven":                  replace("/etc/maven/settings.xml"),
		"ldconfig":               replace("/etc/ld.so.cache"),
		"new python":             func() error { return os.Mkdir(h.at("/etc/python3.13"), 0o755) },
		"update-alternatives": func() error {
			return errors.Join(os.Remove(h.at("/etc/alternatives/x")), os.Symlink("/usr/bin/y", h.at("/etc/alternatives/x")))
		},
		"time zone": func() error {
			return errors.Join(os.Symlink("/usr/share/zoneinfo/EST", h.at("/etc/l")), os.Rename(h.at("/etc/l"), h.at("/etc/localtime")))
		},
		"became private": func() error { return os.Chmod(h.at("/etc/ssl/openssl.cnf"), 0o600) },
	} {
		time.Sleep(2 * time.Millisecond) // file times have the kernel's tick
		must(t, change())
		next := prepare(t, h, Options{Cache: cache, UID: 7})
		if next.Dir == prev.Dir {
			t.Errorf("%s was not noticed", name)
		}
		prev = next
	}
	if has(prev.Dir, "/etc/ssl/openssl.cnf") {
		t.Error("a file that became private is still there")
	}
	if got, _ := os.Readlink(prev.Dir + "/etc/localtime"); got != "/usr/share/zoneinfo/EST" {
		t.Errorf("localtime %q", got)
	}
	must(t, os.MkdirAll(h.at("/var/lib/dpkg"), 0o755))
	must(t, os.WriteFile(h.at("/var/lib/dpkg/status"), []byte("x"), 0o644))
	if next := prepare(t, h, Options{Cache: cache, UID: 7}); next.Dir != prev.Dir || next.ID == prev.ID {
		t.Error("an installed package must change the id, not the skeleton")
	}
}

func TestCacheRefused(t *testing.T) {
	h := debian(t)
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/real", 0o700))
	must(t, os.Symlink(dir+"/real", dir+"/link"))
	must(t, os.Mkdir(dir+"/open", 0o700))
	must(t, os.Chmod(dir+"/open", 0o777))
	must(t, os.Mkdir(dir+"/inner", 0o700))
	must(t, os.Symlink(dir+"/real", dir+"/inner/hostroot"))
	must(t, os.WriteFile(dir+"/file", nil, 0o600))
	cases := map[string]string{"link": "symbolic link", "open": "written by others", "inner": "symbolic link", "file": "directory", "file/below": "XDG_CACHE_HOME"}
	if os.Getuid() == 0 {
		must(t, os.Mkdir(dir+"/foreign", 0o700))
		must(t, os.Chown(dir+"/foreign", 4242, 4242))
		cases["foreign"] = "uid 4242"
	}
	for name, want := range cases {
		_, err := h.prepare(Options{Cache: filepath.Join(dir, name)})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "XDG_CACHE_HOME") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if entries, _ := os.ReadDir(dir + "/real"); len(entries) != 0 {
		t.Error("something was written through a link")
	}
	if _, err := h.prepare(Options{Cache: "cache"}); err == nil {
		t.Error("a relative cache was accepted")
	}
	r := prepare(t, h, Options{Cache: dir + "/a/b/c"})
	for _, p := range []string{"/a", "/a/b", "/a/b/c", "/a/b/c/hostroot"} {
		if st, err := os.Stat(dir + p); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v %v", p, st, err)
		}
	}
	_ = r
}

func TestBadSkeletonReplaced(t *testing.T) {
	h := debian(t)
	for name, spoil := range map[string]func(dir string) error{
		"no marker":     func(d string) error { return os.Remove(d + "/complete") },
		"writable":      func(d string) error { return os.Chmod(d+"/root", 0o777) },
		"a link":        func(d string) error { return errors.Join(os.RemoveAll(d+"/root"), os.Symlink("/tmp", d+"/root")) },
		"open to group": func(d string) error { return os.Chmod(d, 0o770) },
		"marker a link": func(d string) error {
			return errors.Join(os.Remove(d+"/complete"), os.Symlink("/dev/null", d+"/complete"))
		},
	} {
		cache := filepath.Join(t.TempDir(), "c")
		r := prepare(t, h, Options{Cache: cache})
		must(t, spoil(filepath.Dir(r.Dir)))
		r = prepare(t, h, Options{Cache: cache})
		if _, ok := whole(filepath.Dir(r.Dir)); !ok || !has(r.Dir, "/etc/passwd") {
			t.Errorf("%s: used as it was", name)
		}
		if left := names(t, cache+"/hostroot"); len(left) != 2 {
			t.Errorf("%s: left %q", name, left)
		}
	}
}

func names(t testing.TB, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestManyAtOnce(t *testing.T) {
	h := debian(t)
	for i := range 200 {
		must(t, os.WriteFile(h.at(fmt.Sprintf("/etc/ssl/certs/%d.pem", i)), []byte("x"), 0o644))
	}
	cache := filepath.Join(t.TempDir(), "c")
	var wg sync.WaitGroup
	check := func(dir string, err error) {
		if err != nil {
			t.Error(dir, err)
			return
		}
		if n := len(names(t, dir+"/etc/ssl/certs")); n != 202 {
			t.Errorf("%d certificates at the moment Prepare returned", n)
		}
	}
	for range 8 {
		wg.Go(func() {
			r, err := h.prepare(Options{Cache: cache, Path: "/usr/bin", UID: os.Getuid()})
			if err != nil {
				check("", err)
				return
			}
			check(r.Dir, nil)
		})
		wg.Go(func() {
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), "HOSTROOT_PREPARE="+cache, "HOSTROOT_ROOT="+h.root)
			out, err := c.Output()
			check(string(out), err)
		})
	}
	wg.Wait()
	for _, n := range names(t, cache+"/hostroot") {
		if strings.HasPrefix(n, ".") {
			t.Errorf("%s was left", n)
		}
	}
}

func TestKilledBuilder(t *testing.T) {
	h := debian(t)
	for i := range 1000 {
		must(t, os.WriteFile(h.at(fmt.Sprintf("/etc/ssl/certs/%d.pem", i)), []byte("x"), 0o644))
	}
	cache := filepath.Join(t.TempDir(), "c")
	base := cache + "/hostroot"
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "HOSTROOT_PREPARE="+cache, "HOSTROOT_ROOT="+h.root)
	must(t, c.Start())
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if m, _ := filepath.Glob(base + "/.tmp-*/root/etc/ssl/certs/*1.pem"); len(m) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the builder never began")
		}
	}
	must(t, c.Process.Signal(syscall.SIGSTOP))
	if got := names(t, base); len(got) != 1 || !strings.HasPrefix(got[0], tempPrefix) {
		t.Fatalf("in the middle of a build there is %q", got)
	}
	temp := names(t, base)[0]
	// While its builder lives, even stopped, it stays; nobody waits for it.
	start := time.Now()
	r := prepare(t, h, Options{Cache: cache, UID: 9})
	if !has(base, "/"+temp) || time.Since(start) > 10*time.Second {
		t.Error("a live build was removed")
	}
	if n := len(names(t, r.Dir+"/etc/ssl/certs")); n != 1002 {
		t.Errorf("%d certificates", n)
	}
	must(t, c.Process.Kill())
	_ = c.Wait()
	must(t, os.WriteFile(h.at("/etc/timezone"), nil, 0o644))
	prepare(t, h, Options{Cache: cache, UID: 9})
	if has(base, "/"+temp) {
		t.Error("what a killed build left was not swept")
	}
}

func TestSweep(t *testing.T) {
	h := debian(t)
	cache := filepath.Join(t.TempDir(), "c")
	base := cache + "/hostroot"
	old := func(p string, d time.Duration) {
		must(t, os.Chtimes(p, time.Now().Add(-d), time.Now().Add(-d)))
	}
	first := prepare(t, h, Options{Cache: cache, UID: 9})
	marker := filepath.Dir(first.Dir) + "/complete"
	old(marker, 30*time.Hour)
	prepare(t, h, Options{Cache: cache, UID: 9})
	if st, err := os.Stat(marker); err != nil || time.Since(st.ModTime()) > time.Minute {
		t.Error("use was not noted")
	}
	must(t, os.MkdirAll(base+"/.tmp-aged/root", 0o700))
	old(base+"/.tmp-aged", 2*time.Hour)
	must(t, os.MkdirAll(base+"/.tmp-young", 0o700))
	must(t, os.MkdirAll(base+"/.old-1/root", 0o700))
	old(marker, 6*24*time.Hour)
	must(t, os.WriteFile(h.at("/etc/timezone"), nil, 0o644))
	second := prepare(t, h, Options{Cache: cache, UID: 9})
	if !has(first.Dir, "") || has(base, "/.tmp-aged") || !has(base, "/.tmp-young") || has(base, "/.old-1") {
		t.Errorf("after a build there is %q", names(t, base))
	}
	old(marker, 8*24*time.Hour)
	must(t, os.WriteFile(h.at("/etc/mime.types"), nil, 0o644))
	prepare(t, h, Options{Cache: cache, UID: 9})
	if has(first.Dir, "") || !has(second.Dir, "") {
		t.Error("a week without use: it stays, or the wrong one went")
	}
}

// The bound is 300 µs for a warm Prepare. The fastest tenth is reported as
// well, because a mean on a busy machine says nothing.
func BenchmarkPrepareWarm(b *testing.B) {
	o := Options{Cache: filepath.Join(b.TempDir(), "c"), Path: os.Getenv("PATH"), Home: "/root", UID: os.Getuid()}
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		if _, err := Prepare(o); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/10].Nanoseconds()), "p10-ns/op")
}

func BenchmarkPrepareCold(b *testing.B) {
	dir := b.TempDir()
	for i := 0; b.Loop(); i++ {
		o := Options{Cache: fmt.Sprintf("%s/%d", dir, i), Path: os.Getenv("PATH"), Home: "/root", UID: os.Getuid()}
		if _, err := Prepare(o); err != nil {
			b.Fatal(err)
		}
	}
}
