package testscripts

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
)

// testImage is the reference of the image that loadimage loads.
const testImage = "kern-sbx-test:1"

// applets are the names under which busybox is in the image.
var applets = []string{
	"sh", "cat", "chmod", "cp", "dd", "df", "echo", "env", "false", "grep", "id", "kill", "ln", "ls",
	"mkdir", "mv", "printf", "ps", "pwd", "rm", "sleep", "test", "true", "wc", "yes",
}

// busybox finds a static one; "" without.
func busybox() string {
	for _, p := range []string{"/bin/busybox", "/usr/bin/busybox", "/bin/busybox.static"} {
		// ldd refuses what is not dynamic.
		if _, err := os.Stat(p); err == nil && exec.Command("ldd", p).Run() != nil {
			return p
		}
	}
	return ""
}

// writeImage writes a docker-archive: manifest, configuration, one layer with
// the probe and, where the machine has it, a busybox.
func writeImage(path, probe string) error {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	var err error
	add := func(h tar.Header, content []byte) {
		if err == nil {
			h.Size = int64(len(content))
			err = w.WriteHeader(&h)
		}
		if err == nil {
			_, err = w.Write(content)
		}
	}
	dir := func(name string, mode fs.FileMode) {
		add(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: int64(mode)}, nil)
	}
	file := func(name string, mode fs.FileMode, content []byte) {
		add(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(mode)}, content)
	}
	for _, d := range []string{"bin", "etc", "root", "run", "var", "proc", "sys", "dev", "workspace"} {
		dir(d, 0o755)
	}
	dir("tmp", 0o1777)
	file("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\n"))
	file("etc/group", 0o644, []byte("root:x:0:\n"))
	file("etc/from-image", 0o644, []byte("the image's own\n"))
	b, e := os.ReadFile(probe)
	if e != nil {
		return e
	}
	file("bin/probe", 0o755, b)
	if bb := busybox(); bb != "" {
		if b, e = os.ReadFile(bb); e != nil {
			return e
		}
		file("bin/busybox", 0o755, b)
		for _, a := range applets {
			add(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + a, Linkname: "busybox", Mode: 0o777}, nil)
		}
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return err
	}
	sum := sha256.Sum256(layer.Bytes())
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{
			"Env": []string{"PATH=/bin", "FROM_IMAGE=yes"}, "Cmd": []string{"probe", "out", "the image's command"},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{
		"Config": "config.json", "RepoTags": []string{testImage}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return err
	}
	var all bytes.Buffer
	w = tar.NewWriter(&all)
	file("config.json", 0o644, config)
	file("layer.tar", 0o644, layer.Bytes())
	file("manifest.json", 0o644, manifest)
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return err
	}
	return os.WriteFile(path, all.Bytes(), 0o644) //nolint:gosec // other users load it
}
