package hostroot

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// workshop is a host with a user "u" who has tools everywhere.
func workshop(t *testing.T) host {
	return debian(t,
		"/opt/ci/bin/ci 0755", "/usr/local/go/bin/go 0755",
		"/home/u/node/bin/node 0755", "/home/u/node/bin/npm -> ../lib/npm/cli.js", "/home/u/node/lib/npm/cli.js 0755", "/home/u/node/etc/npmrc 0600",
		"/home/u/.local/bin/tool -> ../share/tool/bin/tool", "/home/u/.local/share/tool/bin/tool 0755",
		"/home/u/.local/bin/flat 0755", "/home/u/bin/mine 0755", "/home/u/bin/sh -> /usr/bin/sh", "/home/u/top 0755",
		"/home/u/links/py -> /home/u/py/bin/python3.12", "/home/u/py/bin/python3.12 0755",
		"/home/u/links/via -> /home/u/current/bin/other", "/home/u/current -> py", "/home/u/py/bin/other -> python3.12",
		"/home/u/venv/bin/python -> python3.12", "/home/u/venv/bin/python3.12 -> /home/u/py/bin/python3.12", "/home/u/venv/pyvenv.cfg",
		"/home/u/.pyenv/shims/python3 0755", "/home/u/.pyenv/versions/3.11/bin/python3 0755", "/home/u/.pyenv/versions/3.12/bin/python3 0755",
		"/home/u/.pyenv/versions/3.9/bin/python3 0755", "/home/u/.pyenv/versions/2.7/bin/python3 0755", "/home/u/.pyenv/shims/lonely 0755",
		"/home/u/.asdf/shims/erl 0755", "/home/u/.asdf/installs/erlang/26/bin/erl 0755", "/home/u/a/erl -> /home/u/.asdf/shims/erl",
		"/home/u/.cargo/bin/rustup 0755", "/home/u/.cargo/bin/cargo -> rustup", "/home/u/.cargo/credentials.toml 0600", "/home/u/.rustup/toolchains/stable/bin/cargo 0755",
		"/home/u/.docker/bin/d 0755", "/home/u/.config/bin/c 0755", "/home/u/.config/gh/hosts.yml", "/home/u/.ssh/bin/k 0755", "/home/u/app/.aws/x", "/home/u/app/bin/app 0755",
		"/home/v/bin/theirs 0755", "/root/bin/r 0755", "/etc/tool/bin/e 0755", "/var/bin/w 0755", "/run/x/bin/q 0755", "/tmp/bin/p 0755", "/tmp/x/bin/p2 0755", "/data/p/z 0755",
		"/home/u/evil/bin/ssh0 -> /home/u/.ssh/bin/k", "/home/u/prefix -> /home/u", "/home/u/etc-link/bin/e -> /etc/tool/bin/e",
		"/home/u/.cache/kern-sbx/bin/s 0755", "/srv/in/.cache/x 0755", "/home/u/plain", "/home/u/loop/bin/l -> l", "/home/u/empty/",
		"/nix/store/aaa-x/bin/x 0755", "/home/u/.nix-profile -> /nix/profile", "/nix/profile -> store/aaa-x",
		"/shared/x/bin/sw 0755", "/shared/ 0777", "/sticky/x/bin/st 0755", "/sticky/ 01777", "/snap/bin/go -> /usr/bin/snap", "/usr/bin/snap 0755", "/snap/go/current/bin/go 0755",
	)
}

func TestHostTool(t *testing.T) {
	h := workshop(t)
	must(t, os.Chmod(h.at("/sticky"), 0o777|os.ModeSticky))
	const usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for _, c := range []struct {
		name, path string
		mounts     []string
		bins       string
	}{
		{"node", "/home/u/node/bin", []string{"/home/u/node", "/home/u/node/etc/npmrc"}, "/home/u/node/bin"},
		{"npm", "relative::/home/u/node/bin/", []string{"/home/u/node", "/home/u/node/etc/npmrc"}, "/home/u/node/bin"},
		{"/home/u/node/bin/node", "", []string{"/home/u/node", "/home/u/node/etc/npmrc"}, "/home/u/node/bin"},
		{"tool", "/home/u/.local/bin", []string{"/home/u/.local/share/tool"}, "/home/u/.local/share/tool/bin"},
		{"go", "/usr/local/go/bin", nil, "/usr/local/go/bin"},
		{"ci", "/opt/ci/bin", nil, "/opt/ci/bin"},
		{"sh", "/home/u/bin:/usr/bin", nil, "/usr/bin"},
		{"py", "/home/u/links", []string{"/home/u/links", "/home/u/py"}, "/home/u/links:/home/u/py/bin"},
		{"python", "/home/u/venv/bin", []string{"/home/u/venv", "/home/u/py"}, "/home/u/venv/bin:/home/u/py/bin"},
		{"python3.12", "/home/u/venv/bin", []string{"/home/u/venv", "/home/u/py"}, "/home/u/venv/bin:/home/u/py/bin"},
		{"/home/u/.pyenv/versions/3.12/bin/python3", "", []string{"/home/u/.pyenv/versions/3.12"}, "/home/u/.pyenv/versions/3.12/bin"},
		{"rustup", "/home/u/.cargo/bin", []string{"/home/u/.cargo", "/home/u/.cargo/credentials.toml"}, "/home/u/.cargo/bin"},
		{"x", "/home/u/.nix-profile/bin", []string{"/nix/store"}, "/nix/store/aaa-x/bin"},
		{"z", "/data/p", []string{"/data/p"}, "/data/p"},
		{"st", "/sticky/x/bin", []string{"/sticky/x"}, "/sticky/x/bin"},
	} {
		r, err := h.prepare(Options{Cache: filepath.Join(t.TempDir(), "c"), Tools: []string{c.name}, Path: c.path, Home: "/home/u", UID: 1000})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got, want := targets(r), append([]string{"/usr", "/opt"}, c.mounts...); !slices.Equal(got, want) {
			t.Errorf("%s: mounts %q, want %q", c.name, got, want)
		}
		for _, m := range r.Mounts {
			st, err := os.Stat(m.Source)
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if slices.Contains([]string{"npmrc", "credentials.toml"}, filepath.Base(m.Target)) && (st.Size() != 0 || m.Source == h.at(m.Target)) {
				t.Errorf("%s: %s is not covered", c.name, m.Target)
			}
		}
		bins, _ := strings.CutSuffix(r.Path, usual)
		if c.bins == "/usr/bin" { // moves to the front
			bins = "/usr/bin:"
		}
		if bins != c.bins+":" || !strings.HasPrefix(r.Path, c.bins+":") {
			t.Errorf("%s: PATH %q, want %q first", c.name, r.Path, c.bins)
		}
	}
	// The order of two tools, one prefix in the other, does not uncover tokens.
	r := prepare(t, h, Options{Tools: []string{"/home/u/node/lib/npm/cli.js", "/home/u/node/bin/node", "/home/u/node/bin/node"}, Home: "/home/u", UID: 1000})
	if got, want := targets(r), []string{"/usr", "/opt", "/home/u/node", "/home/u/node/etc/npmrc"}; !slices.Equal(got, want) {
		t.Errorf("mounts %q, want %q", got, want)
	}
}

func TestHostToolRefused(t *testing.T) {
	h := workshop(t)
	for _, c := range []struct{ name, path, want string }{
		{"", "/usr/bin", "not the name"},
		{"..", "/usr/bin", "not the name"},
		{"-x", "/usr/bin", "not the name"},
		{"a\x1b[31m", "/usr/bin", "not the name"},
		{"bin/sh", "/usr", "absolute path"},
		{"./sh", "/usr/bin", "absolute path"},
		{"/home/u/node/../u/bin/mine", "", "clean"},
		{"nowhere", "/usr/bin:rel:/home/u/bin", "looked in /usr/bin, /home/u/bin"},
		{"plain", "/home/u", "not found"},
		{"l", "/home/u/loop/bin", "not found"},
		{"sh", "", "not found"},
		{"/home/u/empty", "", "no program"},
		{"mine", "/home/u/bin", "home directory"},
		{"top", "/home/u", "home directory"},
		{"mine", "/home/u/prefix/bin", "home directory"},
		{"flat", "/home/u/.local/bin", "overlaps"},
		{"theirs", "/home/v/bin", "home directory"},
		{"r", "/root/bin", "more than one tool"},
		{"e", "/etc/tool/bin", "lies in /etc"},
		{"e", "/home/u/etc-link/bin", "lies in /etc"},
		{"w", "/var/bin", "more than one tool"},
		{"q", "/run/x/bin", "lies in /run"},
		{"p", "/tmp/bin", "more than one tool"},
		{"p2", "/tmp/x/bin", "a /tmp of its own"},
		{"d", "/home/u/.docker/bin", "credentials"},
		{"c", "/home/u/.config/bin", "overlaps"},
		{"k", "/home/u/.ssh/bin", "credentials"},
		{"ssh0", "/home/u/evil/bin", "credentials"},
		{"app", "/home/u/app/bin", "holds .aws"},
		{"s", "/home/u/.cache/kern-sbx/bin", "overlaps"},
		{"via", "/home/u/links", `through the link "/home/u/current"`},
		{"python3", "/home/u/.pyenv/shims", "/home/u/.pyenv/versions/3.12/bin/python3 or /home/u/.pyenv/versions/3.11/bin/python3 or /home/u/.pyenv/versions/3.9/bin/python3"},
		{"/home/u/.pyenv/shims/python3", "", "shim"},
		{"lonely", "/home/u/.pyenv/shims", "absolute path of the program itself"},
		{"erl", "/home/u/.asdf/shims", "/home/u/.asdf/installs/erlang/26/bin/erl"},
		{"erl", "/home/u/a", "shim"},
		{"cargo", "/home/u/.cargo/bin", "/home/u/.rustup/toolchains/stable/bin/cargo"},
		{"go", "/snap/bin", "/snap/go/current/bin/go"},
		{"sw", "/shared/x/bin", "exchange"},
	} {
		cache := filepath.Join(t.TempDir(), "c")
		_, err := h.prepare(Options{Cache: cache, Tools: []string{c.name}, Path: c.path, Home: "/home/u", UID: 1000})
		var v *validate.Error
		if !errors.As(err, &v) || v.Field != "--host-tool" || v.Value != c.name || v.Fix == "" {
			t.Errorf("%s in %s: %v", c.name, c.path, err)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || strings.ContainsAny(err.Error(), "\n\x1b") {
			t.Errorf("%s in %s: %v, want %q", c.name, c.path, err, c.want)
		}
	}
	if os.Getuid() == 0 {
		must(t, os.Chown(h.at("/data"), 4242, 4242))
		_, err := h.prepare(Options{Cache: filepath.Join(t.TempDir(), "c"), Tools: []string{"/data/p/z"}, UID: 1000})
		if err == nil || !strings.Contains(err.Error(), "uid 4242") {
			t.Errorf("a directory of another user on the way: %v", err)
		}
	}
}

func TestHostToolAndOwnState(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	must(t, os.MkdirAll(dir+"/p/bin", 0o755))
	must(t, os.WriteFile(dir+"/p/bin/z", []byte("#!/bin/sh\n"), 0o755))
	for _, cache := range []string{dir + "/p/cache", dir + "/p"} {
		must(t, os.MkdirAll(cache, 0o700))
		_, err := Prepare(Options{Cache: cache, Tools: []string{dir + "/p/bin/z"}, UID: os.Getuid()})
		if err == nil || !strings.Contains(err.Error(), "overlaps") {
			t.Errorf("a prefix that holds the cache %s: %v", cache, err)
		}
	}
	t.Setenv("XDG_DATA_HOME", dir+"/p/data")
	_, err = Prepare(Options{Cache: dir + "/c", Tools: []string{dir + "/p/bin/z"}, UID: os.Getuid()})
	if err == nil || !strings.Contains(err.Error(), "overlaps") {
		t.Errorf("a prefix that holds kern's data: %v", err)
	}
}

func TestPath(t *testing.T) {
	h := debian(t, "/opt/x/bin/t", "/usr/local/go/bin/go 0755", "/usr/games/", "/home/u/bin/", "/usr/share/out -> /home/u/bin", "/home/alias -> /usr/games", "/usr/file", "/usr/share/in -> /opt/x/bin")
	r := prepare(t, h, Options{Path: ":.:bin:/home/u/bin:/usr/share/out:/usr/share/in:/home/alias:/usr/local/go/bin/:/usr/games//:/usr/games:/usr/nowhere:/usr/file:/opt/x/../x/bin:/bin:/usr/bin:/usr/../home/u/bin:/etc:/"})
	if want := "/usr/share/in:/usr/local/go/bin:/usr/games:/opt/x/bin:/bin:/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin"; r.Path != want {
		t.Errorf("PATH %q, want %q", r.Path, want)
	}
}

func TestOutside(t *testing.T) {
	h := workshop(t)
	must(t, os.Symlink("/home/u/py/bin/python3.12", h.at("/usr/bin/pyl")))
	for _, c := range []struct{ name, path, want string }{
		{"node", "/home/u/node/bin:/usr/bin", "/home/u/node/bin/node"},
		{"sh", "/home/u/bin:/usr/bin", ""},
		{"sh", "/bin", ""},
		{"pyl", "/usr/bin", "/usr/bin/pyl"},
		{"python3", "/home/u/.pyenv/shims", "/home/u/.pyenv/shims/python3"},
		{"go", "/usr/local/go/bin", ""},
		{"ci", "/opt/ci/bin", ""},
		{"nowhere", "/usr/bin", ""},
		{"plain", "/home/u", ""},
		{"", "/home/u", ""},
		{"a\x00b", "/home/u", ""},
		{"/home/u/node/bin/node", "", "/home/u/node/bin/node"},
		{"/usr/bin/sh", "", ""},
		{"node/bin/node", "/home/u", ""},
		{"node", "rel:", ""},
	} {
		if got := h.outside(c.name, c.path); got != c.want {
			t.Errorf("outside(%q, %q) = %q, want %q", c.name, c.path, got, c.want)
		}
	}
	if got := Outside("sh", "/usr/bin:/bin"); got != "" {
		t.Errorf("sh of this host: %q", got)
	}
}
