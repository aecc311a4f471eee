package agent

import "github.com/kern-sbx/kern-sbx/pkg/agent/wire"

// Name is the file name of the program in the box's directory of code.
const Name = ".kern-sbx-agent"

// Binary gives the program, and false in a build that does not carry it.
func Binary() ([]byte, bool) { return binary, len(binary) > 0 }

// Reports of "agent tty"; see package wire.
const (
	NotFound      = wire.NotFound
	NotExecutable = wire.NotExecutable
)

// Threads is the most tasks of "agent serve" itself that count against the pids
// cap of its box. Commonly there are four: which of the Go runtime's first
// goroutines find a thread of their own depends on the machine and the moment.
// All exist before the first command, so a box that is full does not harm the
// agent.
const Threads = 6
