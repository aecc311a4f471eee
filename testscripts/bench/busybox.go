package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// loadBusybox writes a docker archive around one static program and lets kern
// load it. It returns the reference.
func loadBusybox(kern, dir string, busybox []byte) (string, error) {
	const ref = "kern-sbx-bench:latest"
	var layer bytes.Buffer
	l := tar.NewWriter(&layer)
	for _, d := range []string{"bin/", "tmp/", "workspace/", "proc/", "sys/", "dev/", "etc/"} {
		if err := l.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d, Mode: 0o755}); err != nil {
			return "", err
		}
	}
	if err := l.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755, Size: int64(len(busybox))}); err != nil {
		return "", err
	}
	l.Write(busybox)
	for _, n := range []string{"true", "sh", "cat", "env"} {
		l.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + n, Linkname: "busybox", Mode: 0o777})
	}
	if err := l.Close(); err != nil {
		return "", err
	}
	sum := sha256.Sum256(layer.Bytes())
	id := hex.EncodeToString(sum[:])
	config, _ := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux",
		"config": map[string]any{"Cmd": []string{"sh"}, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + id}},
	})
	manifest, _ := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{ref}, "Layers": []string{"layer.tar"}}})
	archive := filepath.Join(dir, "image.tar")
	f, err := os.Create(archive)
	if err != nil {
		return "", err
	}
	w := tar.NewWriter(f)
	for _, part := range []struct {
		name string
		body []byte
	}{{"config.json", config}, {"layer.tar", layer.Bytes()}, {"manifest.json", manifest}} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: part.name, Mode: 0o644, Size: int64(len(part.body))}); err != nil {
			return "", err
		}
		w.Write(part.body)
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	if err := f.Close(); err != nil {
		return "", err
	}
	if out, err := exec.Command(kern, "load", "-i", archive).CombinedOutput(); err != nil {
		return "", fmt.Errorf("kern load: %w: %s", err, firstLine(out))
	}
	return ref, nil
}
