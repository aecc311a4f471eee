package hostroot

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// box runs a command in a real box on the root r.
func box(t *testing.T, r *Root, argv ...string) (string, error) {
	t.Helper()
	kern := os.Getenv("KERN_BIN")
	if kern == "" {
		t.Skip("KERN_BIN is not set")
	}
	args := []string{"box", fmt.Sprintf("hostroot-%d-%d", os.Getpid(), time.Now().UnixNano()), "--rootfs", r.Dir, "--read-only"}
	for _, m := range r.Mounts {
		args = append(args, "-v", m.Source+":"+m.Target+":ro")
	}
	args = append(args, "--workdir", "/workspace", "--cap-drop", "ALL", "--no-uid-range", "--timeout", "60", "--stop-timeout", "0", "--tmpfs", "/tmp:64m", "--env", "PATH="+r.Path, "--")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, kern, append(args, argv...)...)
	if os.Getenv("HOME") == "" && os.Getenv("XDG_DATA_HOME") == "" {
		// kern then keeps its data in /tmp and refuses every source there.
		c.Env = append(os.Environ(), "HOME=/nonexistent")
	}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, stderr.String())
	}
	return strings.TrimSpace(string(out)), err
}

func real(t *testing.T, tools ...string) *Root {
	t.Helper()
	home, _ := os.UserHomeDir()
	r, err := Prepare(Options{Cache: filepath.Join(t.TempDir(), "c"), Tools: tools, Path: os.Getenv("PATH"), Home: home, UID: os.Getuid()})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRealHost(t *testing.T) {
	r := real(t)
	if !strings.HasPrefix(r.ID, "host:") {
		t.Errorf("id %q", r.ID)
	}
	err := filepath.WalkDir(r.Dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.Type() == fs.ModeSymlink {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		if st.IsDir() && st.Mode().Perm() != 0o755 || !st.IsDir() && st.Mode()&^0o111 != 0o644 {
			t.Errorf("%s has mode %v", p, st.Mode())
		}
		rel := strings.TrimPrefix(p, r.Dir)
		if host, err := os.Stat(rel); err == nil && host.Mode().IsRegular() && host.Mode().Perm()&0o004 == 0 {
			t.Errorf("%s is not for everybody on the host", rel)
		}
		return nil
	})
	must(t, err)
	for _, c := range []struct {
		program, want string
		argv          []string
	}{
		{"sh", "in", []string{"sh", "-c", "echo in"}},
		{"python3", "4950", []string{"python3", "-c", "print(sum(range(100)))"}},
		{"node", "42", []string{"node", "-e", "console.log(6*7)"}},
		{"go", "go version ", []string{"go", "version"}},
		{"java", "java.home", []string{"sh", "-c", "java -XshowSettings:properties -version 2>&1 | grep java.home"}},
		{"openssl", "OK", []string{"sh", "-c", "openssl verify -CApath /etc/ssl/certs /etc/ssl/certs/ISRG_Root_X1.pem | sed 's/.*: //'"}},
	} {
		t.Run(c.program, func(t *testing.T) {
			p, err := exec.LookPath(c.program)
			if err != nil || Outside(c.program, os.Getenv("PATH")) != "" {
				t.Skipf("%s is not below /usr or /opt on this host (%s)", c.program, p)
			}
			if c.program == "openssl" && !has("/", "etc/ssl/certs/ISRG_Root_X1.pem") {
				t.Skip("no such certificate on this host")
			}
			out, err := box(t, r, c.argv...)
			if err != nil || !strings.HasPrefix(out, c.want) && !strings.Contains(out, c.want) {
				t.Errorf("%q, %v; want %q", out, err, c.want)
			}
		})
	}
	t.Run("hidden", func(t *testing.T) {
		out, err := box(t, r, "sh", "-c", "ls -A /home /root /var /mnt /srv; cat /etc/shadow /etc/ssh/* 2>/dev/null; touch /etc/x /usr/x /x 2>/dev/null && echo WROTE; exit 0")
		if err != nil || out != "/home:\n\n/mnt:\n\n/root:\n\n/srv:\n\n/var:" {
			t.Errorf("%q, %v", out, err)
		}
		if os.Getuid() == 0 && has("/", "usr/local/etc") {
			if out, err := box(t, r, "ls", "-A", "/usr/local/etc"); err != nil || out != "" {
				t.Errorf("/usr/local/etc: %q, %v", out, err)
			}
		}
	})
	t.Run("unchanged", func(t *testing.T) {
		if _, ok := whole(filepath.Dir(r.Dir)); !ok {
			t.Error("the skeleton is no longer whole after boxes ran on it")
		}
		if has(r.Dir, "/etc/resolv.conf") {
			t.Error("kern wrote into the skeleton")
		}
	})
}

func TestRealTool(t *testing.T) {
	dir, err := os.MkdirTemp("/var/tmp", "hostroot") // a box has its own /tmp
	must(t, err)
	defer os.RemoveAll(dir)
	must(t, os.Chmod(dir, 0o755))
	for _, d := range []string{"/tool/bin", "/links"} {
		must(t, os.MkdirAll(dir+d, 0o755))
	}
	must(t, os.WriteFile(dir+"/tool/bin/hello", []byte("#!/bin/sh\necho hello from $0; cat "+dir+"/tool/credentials\n"), 0o755))
	must(t, os.WriteFile(dir+"/tool/credentials", []byte("token"), 0o644))
	must(t, os.Symlink("../tool/bin/hello", dir+"/links/hello"))
	t.Setenv("PATH", dir+"/links:"+os.Getenv("PATH"))
	if got := Outside("hello", os.Getenv("PATH")); got != dir+"/links/hello" {
		t.Errorf("outside: %q", got)
	}
	out, err := box(t, real(t, "hello"), "hello")
	if err != nil || out != "hello from "+dir+"/tool/bin/hello" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestUsedSkeletonStays(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "used-skeleton") // a name of its own: other boxes run beside it
	h := host{"/"}
	r, err := h.prepare(Options{Cache: cache, UID: os.Getuid()})
	must(t, err)
	marker := filepath.Dir(r.Dir) + "/complete"
	aged := time.Now().Add(-30 * 24 * time.Hour)
	must(t, os.Chtimes(marker, aged, aged))
	done := make(chan error, 1)
	if os.Getenv("KERN_BIN") == "" {
		t.Skip("KERN_BIN is not set")
	}
	go func() {
		_, err := box(t, r, "sleep", "3")
		done <- err
	}()
	dir := filepath.Dir(r.Dir)
	for end := time.Now().Add(20 * time.Second); !mounted(dir); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the box was not seen")
		}
	}
	sweep(filepath.Dir(dir), "")
	if _, ok := whole(dir); !ok {
		t.Error("a skeleton was removed below a running box")
	}
	must(t, <-done)
	must(t, os.Chtimes(marker, aged, aged))
	// The last process of the box's namespaces may go a moment after kern.
	for end := time.Now().Add(time.Minute); has(dir, ""); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it stayed after the box had ended")
		}
		sweep(filepath.Dir(dir), "")
	}
}
