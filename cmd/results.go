package cmd

import (
	"fmt"
	"io"
	"strings"

	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/term"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
	"github.com/kern-sbx/kern-sbx/pkg/workspace"
)

// maxShown is how much text of one result a terminal is given, in bytes.
const maxShown = 64 << 10

// maxNamed is how many files are named, one in a line.
const maxNamed = 20

// wantsResults says whether somebody will see the results of code. Where nobody
// does, the code runs as under plain python, and nothing of it is represented.
func (a *app) wantsResults(out string) bool {
	return out != "" || a.global.json || a.global.result != "" || term.IsTerminal(a.out)
}

// openOut opens the directory of --out, before the box starts (rule S4); nil
// without the flag.
func openOut(budget *runner.Budget, path string) (d *workspace.OutputDir, err error) {
	if path == "" {
		return nil, nil
	}
	type answer struct {
		d   *workspace.OutputDir
		err error
	}
	// A channel and not d: a look that hangs may come back when nobody waits.
	c := make(chan answer, 1)
	err = budget.Touch(path, func() error {
		d, err := workspace.OpenOutputDir(path)
		err = validate.In("--out", err)
		c <- answer{d, err}
		return err
	})
	if err != nil {
		return nil, err
	}
	return (<-c).d, nil
}

// saveResults writes each representation into a file CELL-N.ENDING and names the
// files in the results. What was written stays when one fails.
func saveResults(d *workspace.OutputDir, cell int, results []runner.Rich) error {
	for i := range results {
		r := &results[i]
		for _, k := range runner.RichTypes {
			text, ok := r.Data[k.MIME]
			if !ok {
				continue
			}
			name := fmt.Sprintf("%d-%d%s", cell, i+1, k.Ending)
			b, err := k.Bytes(text)
			if err == nil {
				err = d.WriteFile(name, func(w io.Writer) error {
					_, err := w.Write(b)
					return err
				})
			}
			if err != nil {
				return err
			}
			r.Files = append(r.Files, d.Path(name))
		}
	}
	return nil
}

// showResults shows them on a terminal, as an interpreter at a prompt does: the
// picture where the terminal can, else the text. A pipe gets what the program
// wrote, and nothing of this.
func (a *app) showResults(results []runner.Rich, truncated bool) {
	if !a.global.json && term.IsTerminal(a.out) {
		a.printResults(results)
	}
	var files []string
	for _, r := range results {
		files = append(files, r.Files...)
	}
	for i, f := range files {
		if i == maxNamed && len(files) > maxNamed+1 {
			a.note(fmt.Sprintf("wrote %d more files", len(files)-i))
			break
		}
		a.note("wrote " + f)
	}
	if truncated {
		a.note(fmt.Sprintf("not all results are kept: at most %d, of at most %s each and %s together", runner.MaxResults,
			validate.Size(runner.MaxResultValue).Human(), validate.Size(runner.MaxResultBytes).Human()))
	}
}

func (a *app) printResults(results []runner.Rich) {
	can := term.PicturesOf(a.env)
	unseen := 0
	for _, r := range results {
		png, picture := r.Data["image/png"]
		if _, jpeg := r.Data["image/jpeg"]; jpeg {
			picture = true
		}
		if png != "" {
			shown, err := can.Show(a.out, png)
			if err != nil {
				return
			}
			if shown {
				continue
			}
		}
		if picture && len(r.Files) == 0 {
			unseen++
		}
		text, ok := r.Data["text/plain"]
		if !ok {
			continue
		}
		cut := ""
		if len(text) > maxShown {
			cut = fmt.Sprintf("... (%d more bytes; --out DIR saves all)\n", len(text)-maxShown)
			text = text[:maxShown]
		}
		text = term.Visible(text)
		if !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		if _, err := io.WriteString(a.out, text+cut); err != nil {
			return
		}
	}
	switch {
	case unseen == 1:
		a.note("1 picture was made; --out DIR saves it")
	case unseen > 1:
		a.note(fmt.Sprintf("%d pictures were made; --out DIR saves them", unseen))
	}
}
