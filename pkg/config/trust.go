package config

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// lockWait is how long Trust and Untrust wait for another one to finish.
const lockWait = 5 * time.Second

// trusts says whether the record or the user file vouches for these bytes at
// this place.
func (l *loader) trusts(path, sum string) bool {
	for _, y := range l.layers {
		if y.name == LayerUser && y.doc.trust[path] == sum {
			return true
		}
	}
	record := TrustFile(l.o.Environ, l.o.Home)
	if record == "" {
		return false
	}
	known, err := readRecord(record, l.o.UID)
	if err != nil {
		l.warn(visible(record) + ": no project file is trusted: " + err.Error())
		return false
	}
	return known[path] == sum
}

// Trust records the bytes that the project file at path has now, so that all of
// its keys apply as long as it has these bytes. An empty path stands for the
// file that applies in o.Dir. The file is read once, has to be one that Load
// would use, and has to be without mistakes. The record names the absolute path
// without symbolic links: a copy elsewhere is not trusted.
func Trust(o Options, path string) (File, error) {
	path, err := projectPath(o, path)
	if err != nil {
		return File{}, err
	}
	data, err := readProject(path, o.UID)
	if err != nil {
		return File{}, &Problem{Path: path, Err: errors.New("cannot be trusted: " + err.Error())}
	}
	l := newLoader(o)
	l.parse(LayerProject, path, data, true)
	if len(l.problems) > 0 {
		return File{}, l.problems[0]
	}
	f := File{Path: path, Layer: LayerProject, State: Read, SHA256: sum(data)}
	return f, change(o, func(known map[string]string) error {
		known[path] = f.SHA256
		return nil
	})
}

// Untrust forgets what Trust recorded for path, which need not exist any more.
// It is an error when nothing was recorded.
func Untrust(o Options, path string) error {
	path, err := projectPath(o, path)
	if err != nil {
		return err
	}
	return change(o, func(known map[string]string) error {
		if _, ok := known[path]; !ok {
			return &Problem{Path: path, Err: errors.New("is not in the record of trusted files; an entry of [trust] in the user file has to be removed there")}
		}
		delete(known, path)
		return nil
	})
}

// Trusted gives what Trust recorded, by path. State is Read where the file still
// has the recorded bytes, Untrusted where it has others, and Absent or Skipped
// where it cannot be read.
func Trusted(o Options) ([]File, error) {
	record := TrustFile(o.Environ, o.Home)
	if record == "" {
		return nil, nil
	}
	known, err := readRecord(record, o.UID)
	if err != nil {
		return nil, &Problem{Path: record, Err: err}
	}
	var files []File
	for _, path := range sortedKeys(known) {
		f := File{Path: path, Layer: LayerProject, State: Read, SHA256: known[path]}
		switch data, err := readProject(path, o.UID); {
		case !exists(path):
			f.State = Absent
		case err != nil:
			f.State, f.Reason = Skipped, err.Error()
		case sum(data) != f.SHA256:
			f.State, f.Reason = Untrusted, "changed since it was trusted"
		}
		files = append(files, f)
	}
	return files, nil
}

// projectPath turns what the user wrote into the name that Load would use.
func projectPath(o Options, path string) (string, error) {
	if path == "" {
		if path = ProjectFile(o.Dir); path == "" {
			return "", &Problem{Path: filepath.Join(o.Dir, projectName), Err: errors.New("there is no project file here")}
		}
		return path, nil
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(o.Dir, path)
	}
	if filepath.Base(path) != projectName {
		path = filepath.Join(path, projectName)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return filepath.Clean(path), nil //nolint:nilerr // may be gone; reading it will say so
	}
	return filepath.Join(dir, projectName), nil
}

// readRecord reads our record. No file is an empty record; one that another
// user could have written is an error.
func readRecord(path string, uid int) (map[string]string, error) {
	fd, err := open(unix.AT_FDCWD, path, unix.O_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return map[string]string{}, nil
	}
	if errors.Is(err, unix.ELOOP) {
		return nil, errors.New("it is a symbolic link")
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) //nolint:errcheck // only read from
	data, st, err := slurp(fd, maxFile, false)
	switch {
	case err != nil:
		return nil, err
	case st.Uid != 0 && int(st.Uid) != uid:
		return nil, errors.New("it belongs to uid " + strconv.Itoa(int(st.Uid)))
	case st.Mode&0o022 != 0:
		return nil, errors.New("others may write it; run chmod 600 on it")
	}
	var rec struct {
		Trust map[string]string `toml:"trust"`
	}
	if _, err := decode(string(data), &rec); err != nil {
		p := syntaxProblem("", err)
		return nil, errors.New("line " + strconv.Itoa(p.Line) + ": " + p.Err.Error())
	}
	if rec.Trust == nil {
		rec.Trust = map[string]string{}
	}
	return rec.Trust, nil
}

// change edits the record under a lock and replaces it as a whole.
func change(o Options, edit func(map[string]string) error) error {
	path := TrustFile(o.Environ, o.Home)
	if path == "" {
		return errors.New("nowhere to keep the record of trusted files: set HOME or XDG_CONFIG_HOME")
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	unlock, err := lock(filepath.Join(dir, "trusted.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	known, err := readRecord(path, o.UID)
	if err != nil {
		return &Problem{Path: path, Err: err}
	}
	if err := edit(known); err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("# Project files that kern-sbx config trust has recorded, with their SHA-256.\n[trust]\n")
	for _, p := range sortedKeys(known) {
		if !utf8.ValidString(p) {
			return &Problem{Path: p, Err: errors.New("the path is not UTF-8 and cannot be recorded; rename the directory")}
		}
		b.WriteString(quote(p) + " = " + quote(known[p]) + "\n")
	}
	if b.Len() > maxFile {
		return &Problem{Path: path, Err: errors.New("the record is full; remove what is not needed with kern-sbx config untrust")}
	}
	return replace(path, b.String())
}

// quote spells a TOML basic string.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			const hexDigits = "0123456789abcdef"
			b.WriteString(`\u00` + string(hexDigits[r>>4]) + string(hexDigits[r&15]))
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func lock(path string) (func(), error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = unix.Close(fd) }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			_ = unix.Close(fd)
			return nil, &os.PathError{Op: "lock", Path: path, Err: err}
		}
	}
}

// replace writes a file of ours so that a reader, or a crash, sees the old text
// or the new one and nothing between.
func replace(path, text string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".trusted-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if _, err = f.WriteString(text); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	err = d.Sync()
	_ = d.Close()
	return err
}
