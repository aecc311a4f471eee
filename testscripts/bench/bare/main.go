// Bare is the floor that `make bench` measures kern-sbx against: the smallest Go
// program that starts a process and waits for it.
package main

import (
	"os"
	"os/exec"
)

func main() {
	if exec.Command("/bin/true").Run() != nil {
		os.Exit(1)
	}
}
