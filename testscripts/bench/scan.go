package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

// scans measures what --track-files costs on a workspace of 100 000 files: two
// scans, beside two runs of find that print as much.
func scans(root string) error {
	dir := filepath.Join(root, "scan")
	for i := range 1000 {
		sub := filepath.Join(dir, fmt.Sprintf("d%03d", i))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			return err
		}
		for j := range 100 {
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("f%02d", j)), nil, 0o644); err != nil {
				return err
			}
		}
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	var ours, finds []time.Duration
	for range 7 {
		begun := time.Now()
		before, err := workspace.ScanDir(context.Background(), d, workspace.ScanOptions{})
		if err == nil {
			_, err = workspace.ScanDir(context.Background(), d, workspace.ScanOptions{Before: before, After: true})
		}
		if err != nil {
			return err
		}
		ours = append(ours, time.Since(begun))
		begun = time.Now()
		for range 2 {
			if err := exec.Command("find", dir, "-type", "f", "-printf", "%p %s %T@ %C@ %i\n").Run(); err != nil {
				return err
			}
		}
		finds = append(finds, time.Since(begun))
	}
	slices.Sort(ours)
	slices.Sort(finds)
	ratio := p50(ours) / p50(finds)
	fmt.Printf("\nTwo scans of 100 000 files: %.0f ms, %.2f× of two `find -printf` (bound 1.0×): %s\n", p50(ours), ratio, verdict(ratio <= 1))
	return nil
}
