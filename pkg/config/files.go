package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

const (
	// maxFile bounds a file of the user's own, in bytes.
	maxFile = 1 << 20
	// maxProject bounds a project file, which anyone may have written, and
	// maxUntrusted what of it is parsed before somebody vouched for it.
	maxProject   = 64 << 10
	maxUntrusted = 16 << 10

	needsTrust = "not applied from a file nobody vouched for; run kern-sbx config trust"
)

// UserFile gives the path of the user's config file, from XDG_CONFIG_HOME in
// environ when that is absolute (the XDG rule), else below home; empty when
// neither is.
func UserFile(environ []string, home string) string {
	return inConfigDir(environ, home, "config.toml")
}

// TrustFile gives the path of our record of trusted project files, which is
// beside the user file; empty when there is no place for it. No box may be able
// to write it.
func TrustFile(environ []string, home string) string {
	return inConfigDir(environ, home, "trusted.toml")
}

func inConfigDir(list []string, home, name string) string {
	dir := environ(list)["XDG_CONFIG_HOME"]
	if !filepath.IsAbs(dir) {
		if !filepath.IsAbs(home) {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "kern-sbx", name)
}

// ProjectFile gives the path of the project file that applies in dir, with the
// symbolic links of dir resolved: the nearest .kern-sbx.toml in dir and up to the
// root of the repository around it, and only in dir when there is none. Empty
// when there is no such file. It says nothing about whether that file may be
// used.
func ProjectFile(dir string) string {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil || !filepath.IsAbs(dir) {
		return ""
	}
	found := ""
	for at := dir; ; at = filepath.Dir(at) {
		if found == "" {
			if p := filepath.Join(at, projectName); exists(p) {
				if at == dir {
					return p
				}
				found = p
			}
		}
		if exists(filepath.Join(at, ".git")) {
			return found
		}
		if at == "/" {
			return "" // no repository: what lies above dir is not its project
		}
	}
}

func exists(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil
}

// readFiles reads every file once and decides which layers there are.
func (l *loader) readFiles() {
	sys := l.o.SystemFile
	if sys == "" {
		sys = systemFile
	}
	l.readOwn(LayerSystem, sys, false)

	file, key := l.o.File, "--config"
	if file == "" {
		file, key = l.env[envConfig], envConfig
	}
	if file != "" {
		if !filepath.IsAbs(file) {
			file = filepath.Join(l.o.Dir, file)
		}
		if l.readOwn(LayerConfig, file, false) == Absent {
			l.problem(file, key, fs.ErrNotExist)
		}
		if key == envConfig {
			l.set("config", file, Source{Layer: LayerEnv, Name: envConfig})
		}
		return
	}
	user := inConfigDir(l.o.Environ, l.o.Home, "config.toml")
	l.readOwn(LayerUser, user, true)
	l.readProject()
}

// readOwn reads a file that is trusted wholly; a mistake in it is an error.
func (l *loader) readOwn(layerName, path string, owned bool) State {
	f := File{Path: path, Layer: layerName, State: Absent}
	defer func() { l.c.files = append(l.c.files, f) }()
	if path == "" {
		return f.State
	}
	fd, err := open(unix.AT_FDCWD, path, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return f.State
	case errors.Is(err, unix.EACCES) && layerName != LayerConfig:
		// As after sudo -u other, with HOME left as it was.
		f.State, f.Reason = Skipped, "permission denied"
		l.warn(visible(path) + ": not read: permission denied")
		return f.State
	case err != nil:
		f.State, f.Reason = Skipped, err.Error()
		l.problem(path, "", err)
		return f.State
	}
	defer unix.Close(fd) //nolint:errcheck // only read from
	data, st, err := slurp(fd, maxFile, layerName == LayerConfig)
	if err == nil && owned {
		switch {
		case st.Uid != 0 && int(st.Uid) != l.o.UID:
			// As after sudo with HOME left as it was: a user's file must not
			// decide what root does.
			err = errors.New("belongs to uid " + strconv.Itoa(int(st.Uid)) + "; to use it all the same, name it with --config")
		case st.Mode&0o002 != 0:
			err = errors.New("anyone may write it; run chmod o-w on it")
		}
	}
	if err != nil {
		f.State, f.Reason = Skipped, err.Error()
		l.problem(path, "", err)
		return f.State
	}
	f.State = Read
	l.parse(layerName, path, data, true)
	return f.State
}

// readProject reads the project file, if there is one that may be read. What
// is wrong with it stops nothing as long as it is not trusted.
func (l *loader) readProject() {
	path := ProjectFile(l.o.Dir)
	f := File{Path: path, Layer: LayerProject, State: Absent}
	defer func() { l.c.files = append(l.c.files, f) }()
	if path == "" {
		if filepath.IsAbs(l.o.Dir) {
			f.Path = filepath.Join(l.o.Dir, projectName)
		}
		return
	}
	skip := func(reason string) {
		f.State, f.Reason = Skipped, reason
		l.ignore(path, "", reason)
		l.missed = visible(path) + " was not used: " + reason
		l.foreign = append(l.foreign, &Problem{Path: path, Err: errors.New("not used: " + reason)})
	}
	data, err := readProject(path, l.o.UID)
	if err != nil {
		skip(err.Error())
		return
	}
	// The hash decides about these bytes, and these bytes are parsed.
	f.SHA256 = sum(data)
	if l.trusts(path, f.SHA256) {
		f.State = Read
		l.parse(LayerProject, path, data, true)
		return
	}
	if why := hostile(data); why != "" {
		skip(why + "; run kern-sbx config trust to have it read")
		return
	}
	problems, ok := l.parse(LayerProject, path, data, false)
	if !ok {
		l.foreign = l.foreign[:len(l.foreign)-1] // skip reports it
		reason := problems[0].Err.Error()
		if n := problems[0].Line; n > 0 {
			reason = "line " + strconv.Itoa(n) + ": " + reason
		}
		skip(reason)
		return
	}
	f.State, f.Reason = Untrusted, "only values that tighten are applied; run kern-sbx config trust"
	for _, p := range problems {
		l.ignore(path, p.Key, (&Problem{Err: p.Err}).Error())
	}
}

func (l *loader) ignore(path, key, reason string) {
	l.c.ignored = append(l.c.ignored, Ignored{Path: path, Key: key, Reason: reason})
}

// applyUntrusted puts those values of a project file over the layers below it
// that can only tighten. It is called before the variables are applied, so that
// "what applies without the file" is not made tighter or looser by one of them;
// they win over the file anyway.
func (l *loader) applyUntrusted(y *layer) {
	src := Source{Layer: y.name, Path: y.path, home: l.o.Home}
	// Filtered before either is applied: the preset is not measured against
	// what [box] of the same file has just set.
	global := l.tightening(y, "", y.doc.global)
	box := l.tightening(y, "box.", y.doc.box)
	var preset table
	if l.c.preset != "" {
		preset = l.tightening(y, "preset."+l.c.preset+".", y.doc.presets[l.c.preset])
	}
	l.c.apply(global, src)
	l.c.apply(box, src)
	src.Preset = l.c.preset
	l.c.apply(preset, src)
}

func (l *loader) tightening(y *layer, prefix string, t table) table {
	out := make(table, len(t))
	for _, name := range sortedKeys(t) {
		i := l.c.index[name]
		if why := l.c.loosens(i, t[name]); why != "" {
			l.ignore(y.path, prefix+name, why)
			continue
		}
		out[name] = t[name]
	}
	return out
}

// loosens says why an untrusted file may not set this value; "" when it may.
func (c *Config) loosens(i int, v value) string {
	k := c.keys[i]
	texts := v.texts
	for _, name := range sortedKeys(v.entries) {
		texts = append(texts, name+"="+v.entries[name])
	}
	for _, s := range texts {
		for _, r := range s {
			if !unicode.IsGraphic(r) {
				// A newline would also let one value pass for two below.
				return "holds a control character; run kern-sbx config trust to have it applied"
			}
		}
	}
	if k.AlwaysSafe != nil && len(texts) > 0 {
		safe := true
		for _, s := range texts {
			safe = safe && k.AlwaysSafe(s)
		}
		if safe {
			return ""
		}
	}
	if k.Tighter == nil || k.Kind == Map {
		return needsTrust
	}
	current := strings.Join(c.setting(i).Values, "\n")
	if len(texts) > 0 && k.Tighter(strings.Join(texts, "\n"), current) {
		return ""
	}
	if current == "" {
		return needsTrust
	}
	return "not tighter than " + clip(visible(current)) + ", which applies without this file; run kern-sbx config trust"
}

// readProject reads a project file that is safe to read: a regular file in a
// directory, both ours or root's, the file writable by nobody else and the
// directory not by everybody.
func readProject(path string, uid int) ([]byte, error) {
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.New("its directory cannot be opened: " + err.Error())
	}
	defer unix.Close(dir) //nolint:errcheck // a path only
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return nil, errors.New("its directory: " + err.Error())
	}
	switch {
	case st.Mode&0o002 != 0:
		return nil, errors.New("anyone may write its directory")
	case st.Uid != 0 && int(st.Uid) != uid:
		return nil, errors.New("its directory belongs to uid " + strconv.Itoa(int(st.Uid)))
	}
	// Looked at first, because opening a device can already do something.
	if err := unix.Fstatat(dir, projectName, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFLNK:
		return nil, errors.New("it is a symbolic link")
	default:
		return nil, errNotRegular
	}
	fd, err := open(dir, projectName, unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) //nolint:errcheck // only read from
	data, fst, err := slurp(fd, maxProject, false)
	if err != nil {
		return nil, err
	}
	switch {
	case fst.Uid != 0 && int(fst.Uid) != uid:
		return nil, errors.New("it belongs to uid " + strconv.Itoa(int(fst.Uid)))
	case fst.Mode&0o022 != 0:
		return nil, errors.New("others may write it; run chmod go-w on it")
	}
	return data, nil
}

var errNotRegular = errors.New("it is not a regular file")

// open never waits: a FIFO opened without O_NONBLOCK would.
func open(dir int, path string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC|flags, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// slurp reads a regular file of at most limit bytes, whatever it does meanwhile.
func slurp(fd, limit int, null bool) ([]byte, unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, st, err
	}
	if null && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3) {
		return nil, st, nil
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, st, errNotRegular
	}
	tooLarge := errors.New("it is larger than " + strconv.Itoa(limit>>10) + " KiB")
	if st.Size > int64(limit) {
		return nil, st, tooLarge
	}
	buf := make([]byte, st.Size+1)
	n := 0
	for {
		if n == len(buf) {
			if n > limit {
				return nil, st, tooLarge
			}
			buf = append(buf, make([]byte, min(len(buf), limit+1-n))...)
		}
		m, err := unix.Read(fd, buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, st, err
		}
		if m == 0 {
			return buf[:n], st, nil
		}
		n += m
	}
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

func hexSum(s string) bool {
	return len(s) == 2*sha256.Size && strings.Trim(s, "0123456789abcdef") == ""
}
