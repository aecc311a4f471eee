package validate

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// SourceRules says which directories and files of the host may be mounted into a
// box, the workspace included. The zero value knows the rules that hold for
// everybody.
type SourceRules struct {
	// Home is the caller's home directory. Not absolute: there is none.
	Home string
	// UID is the caller's.
	UID int
	// Env looks up the caller's environment (os.Getenv); nil: it is empty. Read
	// are XDG_*, SSH_AUTH_SOCK, DOCKER_HOST and CONTAINER_HOST.
	Env func(string) string
	// OwnDirs are kern-sbx's own runtime, temp, cache, data and config
	// directories.
	OwnDirs []string
}

// credentialNames are refused wherever they stand in a path, as they live below
// a home directory that need not be the caller's.
var credentialNames = []string{
	".ssh", ".aws", ".gnupg", ".kube", ".docker", ".azure", ".oci", ".terraform.d",
	".password-store", ".netrc", ".git-credentials", ".pypirc", ".npmrc",
	".databrickscfg", ".boto", ".s3cfg", ".rclone.conf",
}

// credentialConfigs are refused directly below .config alone: "gh" by itself is
// an ordinary name.
var credentialConfigs = []string{"gcloud", "gh", "doctl", "rclone"}

// caCertificates are what may be mounted of /etc: public by nature, and what a
// box without the host's root needs to reach a company's own servers.
var caCertificates = []string{"/etc/ssl/certs", "/etc/pki/ca-trust/extracted", "/etc/ca-certificates"}

// halfPrivate names what is mounted for its cache and holds a credential too.
var halfPrivate = map[string][2]string{
	".cargo": {"credentials.toml", "registry"},
	".m2":    {"settings.xml", "repository"},
	".gem":   {"credentials", "ruby"},
}

// rule keeps a path, and every directory that contains it, out of a box. With
// deep set all below it is kept out as well.
type rule struct {
	path string
	deep bool
	why  string
}

// Check says whether a box may have path, resolves it, and gives notes that the
// user should see. path is absolute.
//
// Refused are: / and system directories (/boot /dev /etc /proc /sys /run, with
// all below; CA certificates excepted), $HOME and /root themselves, places of
// credentials, kern's and kern-sbx's own state, what holds the sockets of agents
// and container engines, and every directory that contains one of these. What
// else lies below $HOME stays mountable. So are sockets, FIFOs and devices
// refused, and what does not exist: a source is never created.
//
// The check is on what path resolves to at this instant, and the result is the
// path to hand on: the given one could lead elsewhere a moment later. A
// directory on the resolved path can still be exchanged before kern walks it
// (kern takes no descriptor), so callers also need Exchangeable, and compare the
// inode that was mounted with the one meant (rule F3). It touches the file
// system, and so may hang on a dead mount: run it within the start budget.
func (r SourceRules) Check(path string) (resolved string, notes []string, err error) {
	switch {
	case path == "":
		return "", nil, refuse(path, "no source", "name a directory or file of the host")
	case strings.ContainsAny(path, "\x00\n\r"):
		return "", nil, refuse(path, "the source holds a line break or NUL", "rename it")
	case path[0] != '/':
		return "", nil, refuse(path, "the source is not an absolute path", "write an absolute path")
	}
	var refusal error
	resolved, err = resolve(path, func(dir, name string) error {
		if credential(dir, name) {
			refusal = refuse(path, quote(join(dir, name))+" is a place of credentials", "mount something that holds only what the code needs")
		}
		return refusal
	})
	if refusal != nil {
		return "", nil, refusal
	}
	if err != nil {
		return "", nil, notFound(path, err)
	}
	links := follower{}
	for _, rule := range r.rules() {
		if err := rule.check(path, resolved); err != nil {
			return "", nil, err
		}
		// The rule's own path may hold links: /home is one on some systems.
		target := links.follow(rule.path)
		if target == rule.path {
			continue
		}
		rule.path = target
		if err := rule.check(path, resolved); err != nil {
			return "", nil, err
		}
	}
	fi, err := os.Lstat(resolved)
	if err != nil {
		return "", nil, notFound(path, err)
	}
	switch mode := fi.Mode(); {
	case mode&fs.ModeSocket != 0:
		return "", nil, refuse(path, "a socket: what listens there would take a box for you", "mount the files that are needed instead")
	case !mode.IsDir() && !mode.IsRegular():
		return "", nil, refuse(path, "neither a directory nor a regular file", "mount a directory or a file")
	case mode.IsDir():
		if name := socketIn(resolved); name != "" {
			notes = append(notes, quote(join(resolved, name))+" is a socket: code in the box can talk to what listens there, read-only or not")
		}
	}
	if h, ok := halfPrivate[filepath.Base(resolved)]; ok {
		notes = append(notes, quote(resolved)+" also holds credentials ("+h[0]+"), which code in the box can read; mount its "+h[1]+" alone if that is enough")
	}
	return resolved, notes, nil
}

func (u rule) check(value, p string) error {
	switch {
	case p == u.path:
		return refuse(value, "that is "+u.why, fixFor(u.deep))
	case below(u.path, p):
		return refuse(value, "it contains "+quote(u.path)+", "+u.why, fixFor(false))
	case !u.deep || !below(p, u.path):
		return nil
	}
	if u.path == "/etc" {
		for _, c := range caCertificates {
			if within(p, c) {
				return nil
			}
		}
	}
	return refuse(value, "it lies in "+quote(u.path)+", "+u.why, fixFor(true))
}

func fixFor(deep bool) string {
	if deep {
		return "copy what the code needs to a directory of its own and mount that"
	}
	return "mount a directory below it that holds only what the code needs"
}

func credential(dir, name string) bool {
	for _, c := range credentialNames {
		if name == c {
			return true
		}
	}
	if filepath.Base(dir) == ".config" {
		for _, c := range credentialConfigs {
			if name == c {
				return true
			}
		}
	}
	return false
}

// rules gives the rules in the order in which a refusal is most helpful.
func (r SourceRules) rules() []rule {
	const (
		system  = "part of the host's system"
		creds   = "a place of credentials"
		kern    = "kern's own state"
		own     = "kern-sbx's own state"
		sockets = "where services of the host listen"
	)
	var list []rule
	add := func(deep bool, why, dir string, more ...string) {
		if dir = filepath.Join(append([]string{dir}, more...)...); strings.HasPrefix(dir, "/") {
			list = append(list, rule{dir, deep, why})
		}
	}
	env := func(name string) string {
		if r.Env == nil {
			return ""
		}
		return r.Env(name)
	}

	add(false, "the root of the host", "/")
	for _, d := range []string{"/boot", "/dev", "/etc", "/proc", "/sys"} {
		add(true, system, d)
	}
	add(true, sockets, "/run")
	add(true, sockets, "/var/run")
	add(true, sockets, env("XDG_RUNTIME_DIR"))
	add(false, "the home directory of root", "/root")
	add(false, "where home directories are", "/home")
	home := r.Home
	if !strings.HasPrefix(home, "/") {
		home = ""
	}
	add(false, "your home directory", home)

	uid := strconv.Itoa(r.UID)
	add(true, kern, "/run/user", uid, "kern")
	add(true, kern, "/tmp/kern-"+uid)
	for _, x := range [][2]string{
		{"XDG_RUNTIME_DIR", ""},
		{"XDG_CACHE_HOME", ".cache"},
		{"XDG_CONFIG_HOME", ".config"},
		{"XDG_DATA_HOME", ".local/share"},
	} {
		// kern falls back to the default for a value it does not like: both.
		if d := env(x[0]); d != "" {
			add(true, kern, d, "kern")
		}
		if home != "" && x[1] != "" {
			add(true, kern, home, x[1], "kern")
		}
	}
	for _, d := range r.OwnDirs {
		add(true, own, d)
	}

	if home != "" {
		// By name they are refused anyhow. These rules are for what a link in
		// $HOME leads to, and for the directories above it.
		for _, c := range credentialNames {
			add(true, creds, home, c)
		}
	}
	for _, c := range credentialConfigs {
		if home != "" {
			add(true, creds, home, ".config", c)
		}
		if d := env("XDG_CONFIG_HOME"); d != "" {
			add(true, creds, d, c)
		}
	}
	if s := env("SSH_AUTH_SOCK"); s != "" {
		add(false, "the socket of your ssh agent", s)
		add(false, "where your ssh agent listens", filepath.Dir(s))
	}
	for _, name := range []string{"DOCKER_HOST", "CONTAINER_HOST"} {
		if s, ok := strings.CutPrefix(env(name), "unix://"); ok && s != "" {
			add(false, "the socket of a container engine", s)
			add(false, "where a container engine listens", filepath.Dir(s))
		}
	}
	return list
}

// socketIn gives the name of a socket that lies directly in dir. It reads a
// bounded part of a large directory: this is for a note, not for a rule.
func socketIn(dir string) string {
	f, err := os.Open(dir)
	if err != nil {
		return ""
	}
	defer f.Close()
	list, _ := f.ReadDir(1024)
	for _, e := range list {
		if e.Type()&fs.ModeSocket != 0 {
			return e.Name()
		}
	}
	return ""
}
