package kernbin

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Source says who chose a kern.
type Source string

// The sources, in the order they are asked.
const (
	SourceFlag    Source = "--kern"
	SourceEnv     Source = "KERN_BIN"
	SourceConfig  Source = "config"
	SourceBundled Source = "bundled"
	SourcePath    Source = "PATH"
)

// field names the source in a refusal, as the user spells it.
func (s Source) field() string {
	switch s {
	case SourceConfig:
		return "config key kern"
	case SourcePath:
		return "kern on PATH"
	}
	return string(s)
}

// Kern is an executable that answered as kern does.
type Kern struct {
	Path                string // absolute; links on it are as the user gave them
	Version             string // what it said: X.Y.Z, perhaps with a suffix; printable
	Source              Source
	Major, Minor, Patch int // the numbers in Version
}

// Options says where to look. The zero value looks nowhere.
type Options struct {
	// Flag is the value of --kern and Config that of the config key kern; ""
	// when absent. A relative Flag or KERN_BIN is taken from the working
	// directory; a relative Config is refused, since it would name another file
	// in each directory.
	Flag, Config string
	// Env is os.Getenv; KERN_BIN and PATH are asked. nil: both are unset.
	Env func(string) string
	// DataDirs are the directories the bundled kern may be kept below (in
	// kern/VERSION/), best first: $XDG_DATA_HOME/kern-sbx, then
	// /tmp/kern-sbx-UID. The first that is ours alone, or can be made so, is
	// used; one that somebody else owns, can write or could swap is passed over.
	DataDirs []string
	// CacheDir is where it is remembered which foreign executables proved to be
	// kern, one small file each; "" asks them every time. A directory that
	// cannot be used is no error.
	CacheDir string
}

// MissingError says that there is no kern anywhere: none was named, this build
// carries none, and there is none on PATH.
type MissingError struct{}

// Error names the three ways to get one.
func (*MissingError) Error() string {
	return "no kern found: use a build of kern-sbx with kern inside (make build), " +
		"name one with --kern PATH or KERN_BIN, " +
		"or put kern on PATH (pip install kern-sandbox does)"
}

// Find gives the kern to use: --kern, KERN_BIN, config, bundled, PATH, the
// first there is. One that is named but missing, not a regular executable file,
// not kern or older than MinMajor.MinMinor is refused as a *validate.Error; so
// is the one found on PATH. Other errors: *MissingError, *NotExecutableError,
// and plain ones about the bundled kern or about ctx. All of them mean that no
// box can start.
//
// A foreign kern is asked for its version (within 10 s) when it has changed
// since the last time or CacheDir cannot tell; the bundled one when it is
// written. Find returns when ctx ends, also while a file system that does not
// answer keeps it waiting.
func Find(ctx context.Context, o Options) (*Kern, error) {
	f := &finder{Options: o, probe: probeTimeout, settle: settleTime}
	f.bundle, f.carries = builtin()
	if ctx.Done() == nil {
		return f.find(ctx)
	}
	type answer struct {
		k   *Kern
		err error
	}
	c := make(chan answer, 1) // so that an abandoned search can end
	go func() {
		k, err := f.find(ctx)
		c <- answer{k, err}
	}()
	select {
	case a := <-c:
		return a.k, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("looking for kern: %w", ctx.Err())
	}
}

// finder is Options with what tests replace.
type finder struct {
	Options
	bundle  bundle
	carries bool
	probe   time.Duration
	settle  time.Duration
}

func (f *finder) env(key string) string {
	if f.Env == nil {
		return ""
	}
	return f.Env(key)
}

func (f *finder) find(ctx context.Context) (*Kern, error) {
	switch {
	case f.Flag != "":
		return f.foreign(ctx, SourceFlag, f.Flag)
	case f.env("KERN_BIN") != "":
		return f.foreign(ctx, SourceEnv, f.env("KERN_BIN"))
	case f.Config != "":
		if !filepath.IsAbs(f.Config) {
			return nil, refuse(SourceConfig, f.Config, "not an absolute path", "write the whole path, from / on")
		}
		return f.foreign(ctx, SourceConfig, f.Config)
	case f.carries:
		path, err := f.bundled(ctx, f.bundle)
		if err != nil {
			return nil, err
		}
		return known(SourceBundled, path, f.bundle.version)
	}
	if path := onPath(f.env("PATH")); path != "" {
		return f.foreign(ctx, SourcePath, path)
	}
	return nil, &MissingError{}
}

// onPath gives the first executable file named kern. Entries that are not
// absolute are passed over: they would run what lies in the working directory.
func onPath(list string) string {
	for _, dir := range filepath.SplitList(list) {
		if !filepath.IsAbs(dir) {
			continue
		}
		path := filepath.Join(dir, kernName)
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && executable(path) == nil {
			return path
		}
	}
	return ""
}

func refuse(src Source, path, reason, fix string) error {
	return &validate.Error{Field: src.field(), Value: path, Reason: reason, Fix: fix}
}

const fixName = "name a kern executable with --kern PATH"

// foreign identifies an executable that is not ours.
func (f *finder) foreign(ctx context.Context, src Source, path string) (*Kern, error) {
	abs := path
	if !filepath.IsAbs(path) {
		wd, err := os.Getwd()
		if err != nil {
			return nil, err
		}
		// Not cleaned: a/../b is another file than b where a is a link.
		abs = wd + "/" + path
	}
	real, st, err := resolve(abs)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, refuse(src, path, "no such file", fixName)
	case err != nil:
		return nil, refuse(src, path, withoutPath(err).Error(), fixName)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, refuse(src, path, "not a regular file", fixName)
	case executable(real) != nil:
		return nil, refuse(src, path, "not executable", "make it executable (chmod +x, and no noexec mount), or "+fixName)
	}
	cache := f.cacheFile(real)
	if cache != "" {
		r, ok := readRecord(cache)
		if ok && r.Subject == real && r.Ran && r.ID == identityOf(&st) {
			return known(src, abs, r.Version)
		}
	}
	version, err := askVersion(ctx, abs, f.probe)
	if err != nil {
		return nil, refuse(src, path, withoutPath(err).Error(), fixName)
	}
	k, err := known(src, abs, version)
	if err != nil || cache == "" {
		return k, err
	}
	// Remembered only if the file that answered is surely the one that was
	// described: the same before and after, and not changed so lately that a
	// further change could carry the same time stamp.
	again, now, err := resolve(abs)
	age := time.Since(time.Unix(0, now.Ctim.Nano()))
	if err == nil && again == real && identityOf(&now) == identityOf(&st) && age > f.settle {
		_ = writeRecord(cache, record{Subject: real, Version: version, Ran: true, ID: identityOf(&st)})
	}
	return k, nil
}

// settleTime is longer than the coarsest time stamp of a file system in use.
const settleTime = 2 * time.Second

// resolve gives the real path of a file and describes it.
func resolve(path string) (string, unix.Stat_t, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", unix.Stat_t{}, err
	}
	st, err := lstat(real)
	return real, st, err
}

// cacheFile gives where the identity of the executable at real is remembered,
// or "" when it is not.
func (f *finder) cacheFile(real string) string {
	if f.CacheDir == "" {
		return ""
	}
	dir, err := privateDir(f.CacheDir, true)
	if err != nil {
		return ""
	}
	h := fnv.New64a() // only a name: the record has the whole path
	_, _ = h.Write([]byte(real))
	return filepath.Join(dir, "kern-"+strconv.FormatUint(h.Sum64(), 16)+".id")
}

// known makes a Kern of a version that parsed, unless it is too old.
func known(src Source, path, version string) (*Kern, error) {
	n, ok := parseVersion(version)
	if !ok {
		return nil, fmt.Errorf("kern at %s has a version that cannot be read: %s", path, strconv.QuoteToGraphic(version))
	}
	k := &Kern{Path: path, Version: version, Source: src, Major: n[0], Minor: n[1], Patch: n[2]}
	if !k.AtLeast(MinMajor, MinMinor) {
		return nil, refuse(src, path,
			fmt.Sprintf("kern %s is older than %d.%d, the oldest whose reports can be relied on", version, MinMajor, MinMinor),
			"update it (pip install -U kern-sandbox), or use a build of kern-sbx with kern inside (make build)")
	}
	return k, nil
}

// withoutPath drops the path from an error that is shown beside the path.
func withoutPath(err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
