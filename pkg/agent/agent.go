package agent

// Name is the file name of the program in the box's directory of code.
const Name = ".kern-sbx-agent"

// Binary gives the program, and false in a build that does not carry it.
func Binary() ([]byte, bool) { return binary, len(binary) > 0 }

// Reports of the program, on the pipe it was given as standard error, when it
// could not execute the command: one of these words, a blank, and the reason.
// Nothing else can write there: no code of the box has run yet.
const (
	NotFound      = "kern-sbx-agent: not-found"
	NotExecutable = "kern-sbx-agent: not-executable"
)
