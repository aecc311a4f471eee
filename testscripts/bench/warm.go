package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// poolSize is how many boxes the pool of the bench keeps.
const poolSize = 4

// warm measures what runs cost when boxes or an interpreter wait for them, beside
// cold raw kern, interleaved: one at a time with time to refill, in bursts, and
// from many callers at once.
func warm(sbx string, raw func(...string) func(int) []string, rounds int) error {
	key, err := exec.Command(sbx, "prewarm", "start", "-n", fmt.Sprint(poolSize), "--wait", "--image", "host").Output()
	if err != nil {
		return fmt.Errorf("prewarm start: %w", err)
	}
	defer exec.Command(sbx, "prewarm", "stop", strings.TrimSpace(string(key))).Run()
	const kernel = "bench"
	if out, err := exec.Command(sbx, "kernel", "start", "--name", kernel, "--image", "host").CombinedOutput(); err != nil {
		return fmt.Errorf("kernel start: %w %s", err, firstLine(out))
	}
	defer exec.Command(sbx, "kernel", "stop", kernel).Run()
	fixed := func(argv ...string) func(int) []string { return func(int) []string { return argv } }
	claim := func(more ...string) []string {
		return append([]string{sbx, "run", "-q", "--pool", "require", "--image", "host"}, more...)
	}
	all := []*contender{
		{name: "raw `kern box … -- true`, cold", argv: raw("true")},
		{name: "`run -- true`, from a pool", argv: fixed(claim("--", "true")...)},
		{name: "raw `kern box … -- python3 -c 'print(1)'`, cold", argv: raw("python3", "-c", "print(1)")},
		{name: "`run -c 'print(1)'`, from a pool", argv: fixed(claim("-c", "print(1)")...)},
		{name: "`kernel exec -c 1`", argv: fixed(sbx, "kernel", "exec", kernel, "-c", "1")},
	}
	for i := range rounds {
		for _, c := range all {
			d, err := lasts(c.argv(i))
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			c.times = append(c.times, d)
			time.Sleep(100 * time.Millisecond) // the pool refills
		}
	}
	fmt.Printf("\n| warm, pool of %d, %d rounds | p10 ms | p50 ms | to raw kern (p50) | bound |\n|---|---:|---:|---:|---:|\n", poolSize, rounds)
	for i, c := range all {
		base, bound := all[0], ""
		if i >= 2 {
			base = all[2]
		}
		ratio := at(c, 50) / at(base, 50)
		switch i {
		case 1:
			bound = fmt.Sprintf("0.45×: %s", verdict(ratio <= 0.45))
		case 3, 4:
			bound = fmt.Sprintf("0.20×: %s", verdict(ratio <= 0.20))
		}
		fmt.Printf("| %s | %.1f | %.1f | %.2f× | %s |\n", c.name, at(c, 10), at(c, 50), ratio, bound)
	}
	auto := []string{sbx, "run", "-q", "--image", "host", "--", "true"}
	// A burst: as many as the pool holds come at once, and as many again behind
	// them, which find it empty.
	var held, beyond []time.Duration
	for range max(3, rounds/10) {
		time.Sleep(time.Second)
		t, err := together(2*poolSize, auto)
		if err != nil {
			return err
		}
		slices.Sort(t)
		held, beyond = append(held, t[:poolSize]...), append(beyond, t[poolSize:]...)
	}
	fmt.Printf("\nBurst of %d: the first %d calls %.1f ms (p50), the others %.1f ms.\n", 2*poolSize, poolSize, p50(held), p50(beyond))
	var slow []time.Duration
	for range 5 {
		time.Sleep(2 * time.Second)
		d, err := lasts(claim("--", "true"))
		if err != nil {
			return err
		}
		slow = append(slow, d)
	}
	fmt.Printf("One call every 2 s: %.1f ms (p50).\n", p50(slow))
	begun := time.Now()
	many, err := together(32, auto)
	if err != nil {
		return err
	}
	fmt.Printf("32 callers at once: %.1f ms (p50), all done after %.0f ms.\n", p50(many), float64(time.Since(begun).Milliseconds()))
	return memory(sbx)
}

func lasts(argv []string) (time.Duration, error) {
	begun := time.Now()
	err := exec.Command(argv[0], argv[1:]...).Run()
	return time.Since(begun), err
}

func together(n int, argv []string) (times []time.Duration, err error) {
	var all sync.WaitGroup
	var mu sync.Mutex
	for range n {
		all.Go(func() {
			d, e := lasts(argv)
			mu.Lock()
			defer mu.Unlock()
			times = append(times, d)
			if e != nil {
				err = e
			}
		})
	}
	all.Wait()
	return times, err
}

func p50(t []time.Duration) float64 {
	s := slices.Sorted(slices.Values(t))
	return float64(s[len(s)/2].Microseconds()) / 1000
}

// memory says what the process that holds the pool needs itself.
func memory(sbx string) error {
	out, err := exec.Command(sbx, "prewarm", "status", "--json").Output()
	if err != nil {
		return err
	}
	var pools []struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(out, &pools); err != nil {
		return err
	}
	for _, p := range pools {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(status)) {
			if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
				var kib int
				fmt.Sscan(v, &kib)
				fmt.Printf("The holder's own memory: at most %d MiB (bound 25): %s.\n", kib>>10, verdict(kib>>10 <= 25))
			}
		}
	}
	return nil
}
