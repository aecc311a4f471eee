package cmd

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestMemoryStaysFlat: a gigabyte passes, and the program does not grow.
func TestMemoryStaysFlat(t *testing.T) {
	kern := os.Getenv("KERN_BIN")
	if kern == "" {
		t.Skip("KERN_BIN names no kern")
	}
	if testing.Short() {
		t.Skip("moves a gigabyte")
	}
	bin := buildProgram(t)
	const size = 1 << 30
	for name, script := range map[string]string{
		"stdout": fmt.Sprintf("head -c %d /dev/zero", size),
		"stderr": fmt.Sprintf("head -c %d /dev/zero >&2", size),
	} {
		t.Run(name, func(t *testing.T) {
			c := exec.Command(bin, "run", "--image", "host", "--timeout", "5m", "--max-output", "none", "--", "sh", "-c", script)
			c.Env = append(os.Environ(), "KERN_BIN="+kern)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if name == "stdout" {
				c.Stdout = w
			} else {
				c.Stderr = w
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			w.Close()
			// Not by the accounting of wait4: it counts what this test needed
			// before the exec as well.
			n, _ := io.CopyN(io.Discard, r, size-4096)
			peak := peakKiB(t, c.Process.Pid)
			rest, _ := io.Copy(io.Discard, r)
			if err := c.Wait(); err != nil {
				t.Fatal(err)
			}
			// On stderr a note about this host may follow.
			if n += rest; n < size || name == "stdout" && n != size {
				t.Errorf("%d bytes came", n)
			}
			t.Logf("peak %d KiB", peak)
			if peak > 25<<10 {
				t.Errorf("needed %d KiB for passing a gigabyte on", peak)
			}
		})
	}
}

func peakKiB(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	line, _, _ := strings.Cut(rest, "kB")
	n, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
