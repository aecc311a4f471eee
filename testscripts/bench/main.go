// Bench measures what a run costs beside raw kern, interleaved in one go, and
// prints the table of the README. Start it with `make bench`.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

type contender struct {
	name string
	argv func(round int) []string
	env  []string
	// skip says why it cannot run here.
	skip  string
	times []time.Duration
}

func main() {
	sbx := flag.String("kern-sbx", "bin/kern-sbx", "the program")
	kern := flag.String("kern", "", "the kern inside it")
	bare := flag.String("bare", "", "the bare Go program")
	wheel := flag.String("wheel", "", "the wheel with the Python SDK")
	rounds := flag.Int("rounds", 100, "rounds")
	size := flag.Int64("stream", 1<<30, "bytes to stream")
	snapshots := flag.Int64("snapshot", 0, "measure only snapshots, of this many bytes")
	flag.Parse()
	if *snapshots > 0 {
		if err := snapshotBench(*sbx, *rounds, *snapshots); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if err := bench(*sbx, *kern, *bare, *wheel, *rounds, *size); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(sbx, kern, bare, wheel string, rounds int, size int64) error {
	root, err := os.MkdirTemp("", "kern-sbx-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	abs := func(p string) string { a, _ := filepath.Abs(p); return a }
	sbx = abs(sbx)
	raw, err := rawKern(sbx, root)
	if err != nil {
		return err
	}
	fixed := func(argv ...string) func(int) []string { return func(int) []string { return argv } }
	all := []*contender{
		{name: "bare Go: fork, exec, wait for `true`", argv: fixed(abs(bare))},
		{name: "raw `kern box … -- true`", argv: raw("true")},
		{name: "`kern-sbx run -- true`", argv: fixed(sbx, "run", "-q", "--pool", "off", "--image", "host", "--", "true")},
		{name: "`kern-sbx run --limits kern -- true`", argv: fixed(sbx, "run", "-q", "--pool", "off", "--limits", "kern", "--image", "host", "--", "true")},
		{name: "raw `kern box … -- python3 -c 'print(1)'`", argv: raw("python3", "-c", "print(1)")},
		{name: "`kern-sbx run -c 'print(1)'`", argv: fixed(sbx, "run", "-q", "--pool", "off", "--image", "host", "-c", "print(1)")},
		bwrap(),
		sdk(kern, wheel, root),
		docker(),
	}
	for _, c := range all {
		if c.skip != "" {
			continue
		}
		for range 3 {
			if out, err := command(c, 0).CombinedOutput(); err != nil {
				c.skip = strings.TrimSpace(fmt.Sprintf("%v %s", err, firstLine(out)))
				break
			}
		}
	}
	for i := range rounds {
		for _, c := range all {
			if c.skip != "" {
				continue
			}
			cmd := command(c, i)
			start := time.Now()
			if err := cmd.Run(); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			c.times = append(c.times, time.Since(start))
		}
	}
	fmt.Printf("%d rounds, interleaved; %s/%s, %d CPUs\n\n", rounds, runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	fmt.Printf("| | p10 ms | p50 ms | to raw kern (p50) |\n|---|---:|---:|---:|\n")
	base := all[1]
	for _, c := range all {
		if c.skip != "" {
			fmt.Printf("| %s | – | – | not here: %s |\n", c.name, c.skip)
			continue
		}
		fmt.Printf("| %s | %.1f | %.1f | %.2f× |\n", c.name, at(c, 10), at(c, 50), at(c, 50)/at(base, 50))
	}
	over := at(all[2], 50) - at(base, 50)
	bound := at(all[0], 50) + 3
	fmt.Printf("\n`run -- true` costs %.1f ms over raw kern (p50); the bound is bare Go + 3 ms = %.1f ms: %s\n", over, bound, verdict(over <= bound))
	own := at(all[2], 50) - at(all[3], 50)
	fmt.Printf("A cgroup of our own costs %.1f ms of it; the bound is 1 ms or 5 %%: %s\n", own, verdict(own <= max(1, at(all[3], 50)/20)))
	if err := stream(sbx, raw, size); err != nil {
		return err
	}
	if err := warm(sbx, raw, rounds); err != nil {
		return err
	}
	if err := scans(root); err != nil {
		return err
	}
	return snapshotBench(sbx, 1, 1<<30)
}

func verdict(ok bool) string {
	if ok {
		return "kept"
	}
	return "NOT KEPT"
}

func firstLine(b []byte) string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(b), []byte("\n"))
	return string(line)
}

func command(c *contender, round int) *exec.Cmd {
	argv := c.argv(round)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), c.env...)
	return cmd
}

func at(c *contender, percent int) float64 {
	t := slices.Sorted(slices.Values(c.times))
	return float64(t[len(t)*percent/100]) / float64(time.Millisecond)
}

// rawKern gives the command lines of the boxes that kern-sbx would start, as its
// own plan says, for kern without kern-sbx.
func rawKern(sbx, dir string) (func(...string) func(int) []string, error) {
	ws, env := filepath.Join(dir, "ws"), filepath.Join(dir, "env")
	if err := os.Mkdir(ws, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(env, []byte("PATH='/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'\n"), 0o600); err != nil {
		return nil, err
	}
	n := 0
	return func(cmd ...string) func(int) []string {
		out, err := exec.Command(sbx, append([]string{"run", "--plan", "--json", "--image", "host", "--"}, cmd...)...).Output()
		var plan struct {
			Boxes []struct{ Argv []string }
		}
		if err == nil {
			err = json.Unmarshal(out, &plan)
		}
		if err != nil || len(plan.Boxes) == 0 || len(plan.Boxes[0].Argv) == 0 {
			fmt.Fprintln(os.Stderr, "bench: no plan:", err)
			os.Exit(1)
		}
		argv := plan.Boxes[0].Argv
		for i, a := range argv {
			if src, ok := strings.CutPrefix(a, "type=bind,src="); ok && strings.HasSuffix(src, "/workspace,dst=/workspace") {
				argv[i] = "type=bind,src=" + ws + ",dst=/workspace"
			}
			if a == "--env-file" {
				argv[i+1] = env
			}
		}
		return func(int) []string {
			n++
			argv := slices.Clone(argv)
			argv[2] = fmt.Sprintf("kern-sbx-bench-%d-%d", os.Getpid(), n)
			return argv
		}
	}, nil
}

func bwrap() *contender {
	c := &contender{name: "bubblewrap: `bwrap … true`"}
	if _, err := exec.LookPath("bwrap"); err != nil {
		c.skip = "bwrap is not installed"
		return c
	}
	argv := []string{
		"bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
		"--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--new-session", "true",
	}
	c.argv = func(int) []string { return argv }
	return c
}

// sdk runs the Python SDK as a shell line would: one process a call. It has no
// image of the host, so it gets the smallest root that it takes: an image made
// of a static busybox.
func sdk(kern, wheel, dir string) *contender {
	c := &contender{name: "Python SDK as a process: `Sandbox.run([\"true\"])`"}
	files, _ := filepath.Glob(wheel)
	busybox, err := os.ReadFile("/bin/busybox")
	if len(files) == 0 || err != nil {
		c.skip = "needs the wheel and a static busybox"
		return c
	}
	ref, err := loadBusybox(kern, dir, busybox)
	if err != nil {
		c.skip = err.Error()
		return c
	}
	code := fmt.Sprintf("import kern_sandbox as k\nwith k.Sandbox(image=%q) as s: r = s.run(['true'])\nassert r.exit_code == 0, r.stderr", ref)
	c.argv = func(int) []string { return []string{"python3", "-c", code} }
	c.env = []string{"PYTHONPATH=" + files[0], "KERN_BIN=" + kern}
	return c
}

func docker() *contender {
	c := &contender{name: "`docker run --rm alpine true`"}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if exec.CommandContext(ctx, "docker", "image", "inspect", "alpine").Run() != nil {
		c.skip = "no docker engine with that image"
		return c
	}
	c.argv = func(int) []string { return []string{"docker", "run", "--rm", "alpine", "true"} }
	return c
}

// stream sends bytes through a box into `wc -c`, the least that a pipeline does,
// and measures the rate and the resident memory of kern-sbx.
func stream(sbx string, raw func(...string) func(int) []string, size int64) error {
	producer := []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}
	through := func(argv []string) (rate float64, rss int64, err error) {
		cmd, count := exec.Command(argv[0], argv[1:]...), exec.Command("wc", "-c")
		r, w, err := os.Pipe()
		if err != nil {
			return 0, 0, err
		}
		var n bytes.Buffer
		cmd.Stdout, count.Stdin, count.Stdout = w, r, &n
		start := time.Now()
		err = errors.Join(cmd.Start(), count.Start(), w.Close(), r.Close())
		if err != nil {
			return 0, 0, err
		}
		peak := make(chan int64)
		go func() { peak <- watchRSS(cmd.Process.Pid) }()
		err = errors.Join(count.Wait(), cmd.Wait())
		took := time.Since(start)
		if got := strings.TrimSpace(n.String()); err == nil && got != fmt.Sprint(size) {
			err = fmt.Errorf("%s bytes arrived, want %d", got, size)
		}
		return float64(size) / took.Seconds() / (1 << 20), <-peak, err
	}
	var rates [2][]float64
	var most int64
	const times = 9
	for range times {
		r, _, err := through(raw(producer...)(0))
		if err != nil {
			return err
		}
		rates[0] = append(rates[0], r)
		r, rss, err := through(append([]string{sbx, "run", "-q", "--image", "host", "--max-output", "none", "--"}, producer...))
		if err != nil {
			return err
		}
		rates[1] = append(rates[1], r)
		most = max(most, rss)
	}
	for i := range rates {
		slices.Sort(rates[i])
	}
	a, b := rates[0][times/2], rates[1][times/2]
	fmt.Printf("\n%d MiB into `wc -c`: raw kern %.0f MiB/s, kern-sbx %.0f MiB/s: %.2f×, bound 0.9×: %s\n", size>>20, a, b, b/a, verdict(b >= 0.9*a))
	fmt.Printf("peak resident memory of kern-sbx meanwhile: %.1f MiB, bound 25 MiB: %s\n", float64(most)/(1<<20), verdict(most <= 25<<20))
	return nil
}

// watchRSS reads the high-water mark of a process until it ends.
func watchRSS(pid int) (peak int64) {
	for {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return peak
		}
		for line := range strings.Lines(string(b)) {
			var kib int64
			if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
				peak = max(peak, kib<<10)
			}
		}
		if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
			return peak
		}
		time.Sleep(5 * time.Millisecond)
	}
}
