package cmd

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/term"
)

type versionDoc struct {
	Version string       `json:"version"`
	Commit  string       `json:"commit"`
	Go      string       `json:"go"`
	Kern    *versionKern `json:"kern"`
	Error   string       `json:"error,omitempty"`
}

type versionKern struct {
	Version  string   `json:"version"`
	Path     string   `json:"path"`
	Source   string   `json:"source"`
	Features []string `json:"features"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "show the version of kern-sbx and of the kern it would use",
		GroupID: groupHost,
		Args:    cobra.NoArgs,
		Example: `  kern-sbx version
  kern-sbx version --json`,
		RunE: func(c *cobra.Command, _ []string) error { return a.version(c) },
	}
}

func (b Build) version() (version, commit string) {
	version, commit = b.Version, b.Commit
	if version == "" {
		version = "devel"
		if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
			version = info.Main.Version
		}
	}
	return version, commit
}

func (a *app) version(c *cobra.Command) error {
	v, commit := a.build.version()
	doc := versionDoc{Version: v, Commit: commit, Go: runtime.Version()}
	k, err := a.findKern(c.Context(), runner.FindDirs(a.env))
	if err == nil {
		doc.Kern = &versionKern{Version: k.Version, Path: k.Path, Source: string(k.Source)}
		for _, f := range k.Features() {
			doc.Kern.Features = append(doc.Kern.Features, string(f))
		}
	} else {
		doc.Error = err.Error()
	}
	if a.global.json {
		enc := json.NewEncoder(a.out)
		enc.SetIndent("", "  ")
		if e := enc.Encode(doc); e != nil {
			return e
		}
	} else {
		fmt.Fprintf(a.out, "kern-sbx %s", v)
		if commit != "" {
			fmt.Fprintf(a.out, " (%s)", commit)
		}
		fmt.Fprintln(a.out)
		if k != nil {
			fmt.Fprintf(a.out, "kern %s (%s: %s)\n", term.VisibleLine(k.Version), k.Source, term.VisibleLine(k.Path))
		}
	}
	if err != nil {
		return &exitError{code: refused, err: err}
	}
	return nil
}
