//go:build embedkern && linux && amd64

package agent

import _ "embed" // the program

//go:embed bundled/amd64/agent
var binary []byte
