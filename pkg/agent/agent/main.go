//go:debug containermaxprocs=0

// Agent is what runs as PID 1 of a box, in place of a command or before it.
//
//	agent tty CMD ARG...
//
// makes the terminal on standard input the controlling one of a new session, so
// that Ctrl-C and job control reach the command and nothing outside the box,
// gives the command that terminal as standard error, and executes it. Standard
// error is a pipe until then; a failure to execute is reported there.
//
//	agent serve
//
// stays: it takes commands and cells from its host over the socket on standard
// input, starts them as children, and says how they ended. Package wire has the
// protocol.
//
//	agent clear DIR...
//
// deletes what lies in the directories: the files of users of a box that nobody
// outside it may delete.
//
//	agent probe QUESTION...
//
// says what a box looks like from within, and tries its caps.
package main

import (
	"os"

	"golang.org/x/sys/unix"
)

func main() {
	switch {
	case len(os.Args) > 2 && os.Args[1] == "tty":
		tty(os.Args[2:])
	case len(os.Args) == 2 && os.Args[1] == "serve":
		serve()
	case len(os.Args) > 2 && os.Args[1] == "clear":
		unix.Exit(clearAll(os.Args[2:]))
	case len(os.Args) > 2 && os.Args[1] == "probe":
		probe(os.Args[2:])
		return
	}
	unix.Exit(2)
}
