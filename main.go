// kern-sbx runs code that you did not write in a fresh sandbox, from a shell
// line or a CI step, and says who stopped it.
//
//go:debug containermaxprocs=0
package main

import (
	"embed"
	"os"

	"github.com/kern-sbx/kern-sbx/cmd"
)

// Set by the linker (see the Makefile); empty in a plain `go build`.
var version, commit string

//go:embed man/*.1
var manPages embed.FS

func main() {
	os.Exit(cmd.Main(cmd.Build{Version: version, Commit: commit, Man: manPages}, os.Args[1:]))
}
