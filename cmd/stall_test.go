package cmd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stallVar makes the test binary mount a file system that never answers in a
// mount namespace of its own, and become the program that looks at it.
const stallVar = "CMD_TEST_STALL"

func TestMain(m *testing.M) {
	if dir := os.Getenv(stallVar); dir != "" {
		if err := becomeStalled(dir, os.Args[1:]); err != nil {
			fmt.Println("cannot mount:", err)
			os.Exit(77)
		}
	}
	code := m.Run()
	removeProgram()
	os.Exit(code)
}

// becomeStalled mounts a FUSE file system whose daemon reads nothing.
func becomeStalled(dir string, argv []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR, 0) // stays open in the program
	if err != nil {
		return err
	}
	if err := unix.Mount("stalled", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		return err
	}
	os.Unsetenv(stallVar)
	return unix.Exec(argv[0], argv, os.Environ())
}

// TestPathThatNeverAnswers: on a network file system whose server is gone even
// an lstat never returns. The start budget ends the wait, and the message says
// which path it was (rule 1.5).
func TestPathThatNeverAnswers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skip("needs FUSE: ", err)
	} else {
		f.Close()
	}
	kern := os.Getenv("KERN_BIN")
	if kern == "" {
		t.Skip("KERN_BIN names no kern")
	}
	bin := buildProgram(t)
	for name, args := range map[string][]string{
		"workspace":     {"-W", "DIR", "--", "true"},
		"below it":      {"-W", "DIR/sub", "--", "true"},
		"volume":        {"-v", "DIR:/data:ro", "--", "true"},
		"file":          {"-f", "DIR/x.py"},
		"env-file":      {"--env-file", "DIR/env", "--", "true"},
		"rootfs":        {"--rootfs", "DIR", "--", "true"},
		"result":        {"--result", "DIR/r.json", "--", "true"},
		"host file":     {"--", "DIR/prog"},
		"host file arg": {"--", "true", "DIR/x"},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			dir := filepath.Join(home, "stalled")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			argv := []string{bin, "run", "--start-timeout", "2s"}
			if name != "rootfs" {
				argv = append(argv, "--image", "host")
			}
			for _, a := range args {
				argv = append(argv, strings.ReplaceAll(a, "DIR", dir))
			}
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
			defer cancel()
			c := exec.CommandContext(ctx, self, argv...)
			c.Env = append(os.Environ(), stallVar+"="+dir, "HOME="+home, "XDG_CACHE_HOME=", "XDG_DATA_HOME=", "KERN_BIN="+kern)
			c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
			var out bytes.Buffer
			c.Stdout, c.Stderr = &out, &out
			err = c.Run()
			if c.ProcessState.ExitCode() == 77 {
				t.Skip(out.String())
			}
			if ctx.Err() != nil {
				t.Fatalf("it waits for ever\n%s", out.String())
			}
			switch name {
			case "host file":
				// The box has no such program, and that a hint looked for it on
				// the host costs nobody the answer.
				if c.ProcessState.ExitCode() != 127 {
					t.Errorf("%v\n%s", err, out.String())
				}
			case "host file arg":
				if err != nil {
					t.Errorf("%v\n%s", err, out.String())
				}
			default:
				if c.ProcessState.ExitCode() != 125 || !strings.Contains(out.String(), dir) || !strings.Contains(out.String(), "a longer timeout does not help") {
					t.Errorf("%v\n%s", err, out.String())
				}
			}
		})
	}
}
