package cmd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/kern-sbx/kern-sbx/pkg/runner"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// readCode reads what -f names. "-" is standard input. At most codeLimit, so
// that a device or an endless pipe is refused and does not fill memory.
func readCode(ctx context.Context, a *app, budget *runner.Budget, name string) (code []byte, base string, err error) {
	if name == "-" {
		// Somebody may be typing: only a signal ends the wait.
		type answer struct {
			code []byte
			err  error
		}
		c := make(chan answer, 1)
		go func() {
			code, err := readLimited(a.in, "standard input")
			c <- answer{code, err}
		}()
		select {
		case got := <-c:
			return got.code, "", got.err
		case <-ctx.Done():
			return nil, "", ctx.Err()
		}
	}
	err = budget.Touch(name, func() error {
		f, err := os.Open(name)
		if err != nil {
			return &validate.Error{Field: "--file", Value: name, Reason: reason(err), Fix: "name a file with the code, or - for standard input"}
		}
		defer f.Close()
		if st, err := f.Stat(); err == nil && st.IsDir() {
			return &validate.Error{Field: "--file", Value: name, Reason: "a directory", Fix: "name a file with the code"}
		}
		code, err = readLimited(f, name)
		return err
	})
	base = filepath.Base(name)
	if strings.HasPrefix(name, "/dev/fd/") || strings.HasPrefix(name, "/proc/") {
		base = "" // <(…): the name says nothing
	}
	return code, base, err
}

const codeLimit = 64 << 20

func readLimited(r io.Reader, name string) ([]byte, error) {
	var b bytes.Buffer
	n, err := io.Copy(&b, io.LimitReader(r, codeLimit+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %s", name, reason(err))
	}
	if n > codeLimit {
		return nil, &validate.Error{Field: "--file", Value: name, Reason: "more than 64 MiB of code", Fix: "mount the file with -v and name it after --"}
	}
	return b.Bytes(), nil
}
