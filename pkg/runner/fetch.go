package runner

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/images"
	"github.com/kern-sbx/kern-sbx/pkg/kernbin"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Fetch is an image that kern is to bring from its registry.
type Fetch struct {
	Kern  *kernbin.Kern
	Image string
	// Anew fetches it even when it is cached. The cached one stays when that
	// fails. kern takes an image that was built on this machine as it is.
	Anew bool
	// Timeout bounds all of it; zero is no limit.
	Timeout time.Duration
	// Signals end it: a *StoppedError.
	Signals <-chan os.Signal

	spent time.Duration // of the timeout
}

// askTime is how long a pull waits for the registry's word about a digest, which
// is worth having and not worth failing for.
const askTime = 10 * time.Second

// PullRecorded pulls an image as docker does: the registry is always asked, and
// the image fetched unless it is known to be what the registry has. The digest
// is recorded when the registry gave the same before and after kern's pull (rule
// F6); note says why it is not known when it is not. fresh is false when what was
// here is what the registry has.
func PullRecorded(ctx context.Context, f Fetch, records string) (fresh bool, note string, err error) {
	cache := images.Cache(os.Getenv)
	_, cached := images.StampOf(cache, f.Image)
	begin := time.Now()
	ask := func() (string, error) {
		limit := askTime
		if f.Timeout > 0 {
			limit = min(limit, f.Timeout/3)
		}
		c, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		type answer struct {
			digest string
			err    error
		}
		got := make(chan answer, 1)
		go func() {
			d, err := images.Resolve(c, f.Image)
			got <- answer{d, err}
		}()
		select {
		case a := <-got:
			return a.digest, a.err
		case sig := <-f.Signals:
			n, _ := sig.(unix.Signal)
			return "", &StoppedError{n}
		}
	}
	if _, pinned := validate.HasDigest(f.Image); pinned {
		if cached {
			return false, "", nil
		}
		return true, "", Pull(ctx, f)
	}
	before, why := ask()
	if stopped, ok := why.(*StoppedError); ok { //nolint:errorlint // ask's own
		return false, "", stopped
	}
	if known, _ := images.Digest(records, cache, f.Image); why == nil && cached && known == before {
		return false, "", nil
	}
	f.Anew, f.spent = true, time.Since(begin)
	if err := Pull(ctx, f); err != nil {
		return true, "", err
	}
	if why != nil {
		return true, "its digest is not known: " + why.Error(), nil
	}
	stamp, ok := images.StampOf(cache, f.Image)
	if !ok {
		return true, "", &PullError{f.Image, "kern said that it has it, and it is not in its cache"}
	}
	after, err := ask()
	if stopped, ok := err.(*StoppedError); ok { //nolint:errorlint // ask's own
		return true, "", stopped
	}
	switch {
	case err != nil:
		return true, "its digest is not known: " + err.Error(), nil
	case after != before:
		return true, "its digest is not known: the tag was moved while it was pulled", nil
	}
	return true, "", images.Remember(records, f.Image, after, stamp)
}

// Pull makes kern fetch an image into its cache. A failure is a *PullError, an
// end by a signal or by the context a *StoppedError.
func Pull(ctx context.Context, f Fetch) error {
	if err := validate.ImageRef(f.Image); err != nil {
		return err
	}
	call := kernCall{argv: []string{"pull", f.Image}, timeout: f.Timeout, signals: f.Signals}
	if f.Timeout > 0 {
		call.timeout = max(f.Timeout-f.spent, time.Millisecond)
	}
	cache := images.Cache(os.Getenv)
	before, cached := images.StampOf(cache, f.Image)
	anew := f.Anew && cached
	name := ""
	if anew {
		// kern pull leaves a cached image alone; only a box makes kern fetch one
		// anew. So this is one, whose command cannot be there.
		name = namePrefix + newID()
		call.argv = []string{
			"box", name, "--image", f.Image, "--pull", "always", "--entrypoint", "", "--read-only", "--quiet",
			"--cap-drop", "ALL", "--no-uid-range", "--timeout", "10", "--stop-timeout", "0", "--", "/." + name,
		}
	}
	out, st, err := call.run(ctx, f.Kern.Path)
	if anew {
		if after, ok := images.StampOf(cache, f.Image); err == nil && ok && after != before {
			return nil
		}
	}
	switch {
	case err == errCallTimeout:
		err = &PullError{f.Image, fmt.Sprintf("not done within %s (--pull-timeout)", f.Timeout)}
	case err != nil:
	case !anew && st.Success(), anew && (st.ExitCode() == 126 || st.ExitCode() == 127):
		return nil // the box was built, so kern had what it wanted
	default:
		why := kernSentence(out)
		if why == "" {
			why = "kern ended with " + st.String()
		}
		return &PullError{f.Image, why}
	}
	if anew && st != nil {
		forgetBox(name, proc{pid: st.Pid()})
	}
	return err
}

// PullError says that an image could not be fetched.
type PullError struct{ Image, Reason string }

func (e *PullError) Error() string {
	return "image " + e.Image + " could not be pulled: " + e.Reason
}

// StoppedError says that a signal (or the end of the context, as SIGINT) came
// while kern was at work, which has been ended.
type StoppedError struct{ Signal unix.Signal }

func (e *StoppedError) Error() string { return "ended by " + unix.SignalName(e.Signal) }

// Load makes kern unpack an archive as `docker save` writes it, and gives the
// references that it has now. What they are is up to the archive.
func Load(ctx context.Context, k *kernbin.Kern, archive *os.File, signals <-chan os.Signal) ([]string, error) {
	out, st, err := kernCall{argv: []string{"load"}, stdin: archive, signals: signals}.run(ctx, k.Path)
	if err != nil {
		return nil, err
	}
	var refs []string
	for line := range strings.Lines(string(out)) {
		ref, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "loaded '")
		if ref, ok2 := strings.CutSuffix(ref, "'"); ok && ok2 && validate.ImageRef(ref) == nil {
			refs = append(refs, ref)
		}
	}
	if !st.Success() {
		return refs, fmt.Errorf("the archive could not be loaded: %s", sentenceOr(out, st))
	}
	return refs, nil
}

// RemoveImage makes kern remove an image from its cache. Whether something uses
// it is the caller's to ask: kern does not.
func RemoveImage(ctx context.Context, k *kernbin.Kern, ref string, signals <-chan os.Signal) error {
	if err := validate.ImageRef(ref); err != nil {
		return err
	}
	out, st, err := kernCall{argv: []string{"rmi", ref}, signals: signals}.run(ctx, k.Path)
	if err == nil && !st.Success() {
		err = fmt.Errorf("image %s could not be removed: %s", ref, sentenceOr(out, st))
	}
	return err
}

func sentenceOr(out []byte, st *os.ProcessState) string {
	if why := kernSentence(out); why != "" {
		return why
	}
	return "kern ended with " + st.String()
}

// kernCall is one call of kern that does its work and ends, where a box would be
// watched.
type kernCall struct {
	argv    []string
	stdin   *os.File // nil: empty
	timeout time.Duration
	signals <-chan os.Signal
}

// errCallTimeout is what run returns at the end of its timeout.
var errCallTimeout = fmt.Errorf("not done in time")

// run starts kern with nothing of the terminal in its hands, and waits. out is
// the end of what it printed. With an error, kern and what it started have been
// killed, and the state is theirs.
func (k kernCall) run(ctx context.Context, kern string) (out []byte, st *os.ProcessState, err error) {
	print, err := anonymousFile(os.TempDir())
	if err != nil {
		return nil, nil, err
	}
	defer print.Close()
	stdin := k.stdin
	if stdin == nil {
		if stdin, err = os.Open(os.DevNull); err != nil {
			return nil, nil, err
		}
		defer stdin.Close()
	}
	p, err := os.StartProcess(kern, append([]string{"kern"}, k.argv...), &os.ProcAttr{
		Dir: "/", Env: kernEnv(), Files: []*os.File{stdin, print, print}, Sys: &unix.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("kern could not be started: %w", err)
	}
	done := make(chan *os.ProcessState, 1)
	go func() { st, _ := p.Wait(); done <- st }()
	var limit <-chan time.Time
	if k.timeout > 0 {
		t := time.NewTimer(k.timeout)
		defer t.Stop()
		limit = t.C
	}
	select {
	case st = <-done:
		if st == nil {
			return nil, nil, fmt.Errorf("the end of kern was not seen")
		}
		return tail(print, 16<<10), st, nil
	case <-limit:
		err = errCallTimeout
	case sig := <-k.signals:
		n, _ := sig.(unix.Signal)
		err = &StoppedError{n}
	case <-ctx.Done():
		err = &StoppedError{unix.SIGINT}
	}
	unix.Kill(-p.Pid, unix.SIGKILL)
	return nil, <-done, err
}

func tail(f *os.File, n int64) []byte {
	st, err := f.Stat()
	if err != nil {
		return nil
	}
	buf := make([]byte, min(n, st.Size()))
	k, _ := f.ReadAt(buf, st.Size()-int64(len(buf)))
	return buf[:k]
}
