// Agent is what runs as PID 1 of a box until the command takes its place.
//
//	agent tty CMD ARG...
//
// makes the terminal on standard input the controlling one of a new session, so
// that Ctrl-C and job control reach the command and nothing outside the box,
// gives the command that terminal as standard error, and executes it. Standard
// error is a pipe until then; a failure to execute is reported there.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
)

func main() {
	if len(os.Args) < 3 || os.Args[1] != "tty" {
		os.Exit(2)
	}
	report, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 3)
	if err == nil {
		_, err = unix.Setsid()
	}
	if err == nil {
		err = unix.IoctlSetInt(0, unix.TIOCSCTTY, 0)
	}
	if err == nil {
		err = unix.Dup3(0, 2, 0)
	}
	if err != nil {
		fmt.Fprintf(os.NewFile(uintptr(max(report, 2)), "report"), "%s the terminal cannot be set up: %v\n", agent.NotExecutable, err)
		os.Exit(126)
	}
	err = execute(os.Args[2:], os.Getenv("PATH"))
	word, code := agent.NotExecutable, 126
	if errors.Is(err, unix.ENOENT) {
		word, code = agent.NotFound, 127
	}
	fmt.Fprintf(os.NewFile(uintptr(report), "report"), "%s %v\n", word, err)
	os.Exit(code)
}

// execute replaces this program by the command, looked up as execvp does: a
// name without a slash along PATH, and a file that may not be executed does not
// end the search but decides its error.
func execute(argv []string, path string) error {
	if strings.Contains(argv[0], "/") {
		return unix.Exec(argv[0], argv, os.Environ())
	}
	var last error = unix.ENOENT
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		err := unix.Exec(filepath.Join(dir, argv[0]), argv, os.Environ())
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
			last = err
			if !errors.Is(err, unix.EACCES) {
				break
			}
		}
	}
	return last
}
