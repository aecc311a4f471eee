package testscripts

import (
	"os"
	"os/exec"

	"github.com/kern-sbx/kern-sbx/pkg/images/imagetest"
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

// writeImage writes a docker-archive: one layer with the probe and, where the
// machine has it, a busybox.
func writeImage(path, probe string) error {
	b, err := os.ReadFile(probe)
	if err != nil {
		return err
	}
	files := append(
		imagetest.Busybox(applets...),
		imagetest.File{Name: "etc/passwd", Mode: 0o644, Content: []byte("root:x:0:0:root:/root:/bin/sh\n")},
		imagetest.File{Name: "etc/group", Mode: 0o644, Content: []byte("root:x:0:\n")},
		imagetest.File{Name: "etc/from-image", Mode: 0o644, Content: []byte("the image's own\n")},
		imagetest.File{Name: "bin/probe", Mode: 0o755, Content: b},
	)
	i, err := imagetest.New(files, imagetest.Config{
		Env: []string{"PATH=/bin", "FROM_IMAGE=yes"}, Cmd: []string{"probe", "out", "the image's command"},
	})
	if err != nil {
		return err
	}
	archive, err := i.Archive(testImage)
	if err != nil {
		return err
	}
	return os.WriteFile(path, archive, 0o644) //nolint:gosec // other users load it
}
