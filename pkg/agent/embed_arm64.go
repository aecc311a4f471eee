//go:build embedkern && linux && arm64

package agent

import _ "embed" // the program

//go:embed bundled/arm64/agent
var binary []byte
