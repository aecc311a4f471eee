package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// snapshotBench measures `snapshot save` and `restore` beside GNU tar on size
// bytes of files: text of this machine's own, a third of what cannot be
// compressed, many small files and some large ones.
func snapshotBench(sbx string, rounds int, size int64) error {
	sbx, err := filepath.Abs(sbx)
	if err != nil {
		return err
	}
	root, err := os.MkdirTemp("", "kern-sbx-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	in := func(name string) string { return filepath.Join(root, name) }
	files, err := mixedTree(in("tree"), size)
	if err != nil {
		return err
	}
	type step struct {
		name    string
		argv    []string
		before  func() error
		times   []time.Duration
		peak    int64 // bytes
		product string
	}
	fresh := func(dir string) func() error {
		return func() error { return errors.Join(os.RemoveAll(in(dir)), os.Mkdir(in(dir), 0o755)) }
	}
	steps := []*step{
		{name: "tar czf", argv: []string{"tar", "czf", in("tar.gz"), "-C", in("tree"), "."}, product: in("tar.gz")},
		{name: "snapshot save", argv: []string{sbx, "snapshot", "save", "-q", in("tree"), in("ours.gz")}, product: in("ours.gz")},
		{name: "tar xzf (tar's archive)", argv: []string{"tar", "xzf", in("tar.gz"), "-C", in("a")}, before: fresh("a")},
		{name: "tar xzf (our archive)", argv: []string{"tar", "xzf", in("ours.gz"), "-C", in("b")}, before: fresh("b")},
		{name: "snapshot restore (our archive)", argv: []string{sbx, "snapshot", "restore", "-q", in("ours.gz"), in("c")}, before: fresh("c")},
		{name: "snapshot restore (tar's archive)", argv: []string{sbx, "snapshot", "restore", "-q", in("tar.gz"), in("d")}, before: fresh("d")},
		{name: "snapshot verify", argv: []string{sbx, "snapshot", "verify", "-q", in("ours.gz")}},
	}
	for range rounds {
		for _, s := range steps {
			if s.before != nil {
				if err := s.before(); err != nil {
					return err
				}
			}
			syscall.Sync() // what the step before wrote is not this one's to wait for
			took, peak, err := timed(s.argv)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			s.times = append(s.times, took)
			s.peak = max(s.peak, peak)
		}
	}
	fmt.Printf("%d MiB in %d files, best of %d rounds\n\n| | s | MiB/s | peak MiB | archive MiB |\n|---|---:|---:|---:|---:|\n", size>>20, files, rounds)
	best := map[string]float64{}
	for _, s := range steps {
		t := slices.Min(s.times).Seconds()
		best[s.name] = t
		archive := "–"
		if st, err := os.Stat(s.product); err == nil {
			archive = fmt.Sprint(st.Size() >> 20)
		}
		fmt.Printf("| %s | %.2f | %.0f | %d | %s |\n", s.name, t, float64(size>>20)/t, s.peak>>20, archive)
	}
	save := best["tar czf"] / best["snapshot save"]
	restore := best["tar xzf (tar's archive)"] / best["snapshot restore (our archive)"]
	fmt.Printf("\nsave is %.1f× as fast as `tar czf`, the bound is 2: %s\n", save, verdict(save >= 2))
	fmt.Printf("restore is %.2f× as fast as `tar xzf`, the bound is 0.9: %s\n", restore, verdict(restore >= 0.9))
	most := max(steps[1].peak, steps[4].peak, steps[5].peak)
	fmt.Printf("most memory %d MiB, the bound is 128: %s\n", most>>20, verdict(most <= 128<<20))
	return nil
}

// timed runs a command, and says how long that took and how much memory the
// command itself had at most: its own mark, since the one of wait4 begins with
// the memory of who started it.
func timed(argv []string) (took time.Duration, peak int64, err error) {
	c := exec.Command(argv[0], argv[1:]...)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	start := time.Now()
	if err := c.Start(); err != nil {
		return 0, 0, err
	}
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	for {
		select {
		case err := <-done:
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out.Bytes())
			}
			return time.Since(start), peak, err
		case <-time.After(5 * time.Millisecond):
		}
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid))
		_, rest, ok := bytes.Cut(status, []byte("VmHWM:"))
		var kib int64
		if _, err := fmt.Sscan(string(rest[:min(len(rest), 40)]), &kib); ok && err == nil && bytes.Contains(status, []byte("Name:\t"+filepath.Base(argv[0]))) {
			peak = max(peak, kib<<10)
		}
	}
}

// mixedTree fills a directory with size bytes and says in how many files.
func mixedTree(dir string, size int64) (int, error) {
	text, err := machineText(64 << 20)
	if err != nil {
		return 0, err
	}
	r := rand.New(rand.NewPCG(1, 2))
	src := rand.NewChaCha8([32]byte{1})
	n := 0
	for left := size; left > 0; n++ {
		want := int64(1<<10 + r.IntN(64<<10))
		if n%100 == 0 {
			want = 16 << 20
		}
		want = min(want, left)
		b := make([]byte, want)
		if n%300 < 100 {
			_, _ = src.Read(b)
		} else {
			at := r.IntN(len(text) - int(want))
			copy(b, text[at:])
		}
		sub := filepath.Join(dir, fmt.Sprintf("d%02d", n%50), fmt.Sprintf("e%02d", n/50%20))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			return n, err
		}
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("f%05d", n)), b, 0o644); err != nil {
			return n, err
		}
		left -= want
	}
	return n, nil
}

// machineText takes programs and sources that are on any machine with Go.
func machineText(most int) ([]byte, error) {
	var b []byte
	for _, root := range []string{"/usr/share", "/usr/lib", "/usr/bin"} {
		err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil
			}
			if len(b) >= most {
				return filepath.SkipAll
			}
			if part, err := os.ReadFile(path); err == nil {
				b = append(b, part[:min(len(part), 4<<20)]...)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if len(b) < 32<<20 {
		return nil, fmt.Errorf("there are only %d bytes of text on this machine", len(b))
	}
	return b[:min(len(b), most)], nil
}
