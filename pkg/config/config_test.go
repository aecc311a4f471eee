package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

func smallerSize(a, b string) bool {
	x, err := validate.ParseLimit(a)
	y, err2 := validate.ParseLimit(b)
	return err == nil && err2 == nil && x > 0 && (y == 0 || x <= y)
}

func smallerTime(a, b string) bool {
	x, err := validate.ParseDuration(a)
	y, err2 := validate.ParseDuration(b)
	return err == nil && err2 == nil && x > 0 && (y == 0 || x <= y)
}

func smallerCount(a, b string) bool {
	x, err := validate.Count(a, 1)
	y, err2 := validate.Count(b, 1)
	return err == nil && err2 == nil && x > 0 && (y == 0 || x <= y)
}

func always(string) bool { return true }

func checkSize(s string) error { _, err := validate.ParseLimit(s); return err }

// keys is a table like the one of the program: a few settings with rules for
// an untrusted file, and all that relax a box.
func keys() []Key {
	ks := []Key{
		{Name: "memory", Default: "512m", Tighter: smallerSize, Check: checkSize},
		{Name: "pids-limit", Default: "256", Tighter: smallerCount, Check: func(s string) error { _, err := validate.Count(s, 1); return err }},
		{Name: "cpus", Default: "none"},
		{Name: "timeout", Default: "30s", Tighter: smallerTime, Check: func(s string) error { _, err := validate.ParseDuration(s); return err }},
		{Name: "workspace-max", Default: "none", Tighter: smallerSize, Check: checkSize},
		{Name: "tmpfs", Kind: List, Default: "/tmp:64m", Tighter: func(c, cur string) bool { return c == "/tmp:1m" && cur != "" }},
		{Name: "lang", AlwaysSafe: always},
		{Name: "track-ignore", Kind: List, AlwaysSafe: always},
		{Name: "network", Default: "none", AlwaysSafe: func(s string) bool { return s == "none" }},
		{Name: "env", Kind: Map},
		{Name: "deps-readonly", Kind: Bool, Default: "true", Tighter: func(c, _ string) bool { return c == "true" }},
		{Name: "preset", Global: true},
		{Name: "config", Global: true},
		{Name: "color", Global: true, Default: "auto"},
		{Name: "kern", Global: true},
		{Name: "quiet", Kind: Bool, Global: true},
	}
	for _, n := range strings.Fields("image rootfs result workspace user security-profile limits kern-config hostname workdir spill pull apparmor pool") {
		ks = append(ks, Key{Name: n})
	}
	for _, n := range strings.Fields("setup env-file volume mount profile cap-drop cap-add egress-allow ulimit host-tool writable") {
		ks = append(ks, Key{Name: n, Kind: List})
	}
	for _, n := range strings.Fields("setup-force setup-env require-limits allow-root-workspace ci-fence fit-cpus") {
		ks = append(ks, Key{Name: n, Kind: Bool})
	}
	return ks
}

// rig is a home, a repository with a sub-directory, and a system file.
type rig struct {
	t *testing.T
	o Options
}

func newRig(t *testing.T) *rig {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, o: Options{
		Keys: keys(), Dir: filepath.Join(base, "repo", "sub"), Home: filepath.Join(base, "home"),
		UID: os.Getuid(), SystemFile: filepath.Join(base, "etc", "config.toml"),
	}}
	for _, d := range []string{r.o.Dir, filepath.Join(base, "repo", ".git"), r.o.Home} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func (r *rig) write(path, text string) string {
	r.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil { // whatever the umask is
		r.t.Fatal(err)
	}
	return path
}

func (r *rig) user(text string) string   { return r.write(UserFile(nil, r.o.Home), text) }
func (r *rig) system(text string) string { return r.write(r.o.SystemFile, text) }
func (r *rig) project(text string) string {
	return r.write(filepath.Join(filepath.Dir(r.o.Dir), projectName), text)
}

func (r *rig) load() *Config {
	r.t.Helper()
	c, err := Load(r.o)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *rig) trust() {
	r.t.Helper()
	if _, err := Trust(r.o, ""); err != nil {
		r.t.Fatal(err)
	}
}

func value1(c *Config, name string) string {
	s, _ := c.Get(name)
	return strings.Join(s.Values, "|")
}

func TestPrecedence(t *testing.T) {
	// Each step adds the next nearer layer; it has to win with the kind's way
	// of merging, and say where it came from.
	r := newRig(t)
	steps := []struct {
		layer          string
		add            func()
		memory, volume string
		env            string
		source         string
	}{
		{"default", func() {}, "512m", "", "", "default"},
		{
			"system", func() { r.system("[box]\nmemory='1g'\nvolume=['s:/s','t:/t']\n[box.env]\nA='s'\nS='s'\n") },
			"1g", "s:/s|t:/t", "A=s|S=s", r.o.SystemFile,
		},
		{
			"system preset", func() {
				r.o.Preset = "p"
				r.system("[box]\nmemory='1g'\nvolume=['s:/s','t:/t']\n[box.env]\nA='s'\nS='s'\n[preset.p]\nmemory='2g'\n[preset.p.env]\nA='sp'\n")
			},
			"2g", "s:/s|t:/t", "A=sp|S=s", r.o.SystemFile + " [preset.p]",
		},
		{
			"user", func() { r.user("[box]\nmemory='3g'\nvolume='u:/u'\n[box.env]\nA='u'\nU='u'\n") },
			"3g", "u:/u", "A=u|S=s|U=u", "~/.config/kern-sbx/config.toml",
		},
		{
			"user preset", func() {
				r.user("[box]\nmemory='3g'\nvolume='u:/u'\n[box.env]\nA='u'\nU='u'\n[preset.p]\nmemory='4g'\nvolume=[]\n")
			},
			"4g", "", "A=u|S=s|U=u", "~/.config/kern-sbx/config.toml [preset.p]",
		},
		{
			"project", func() { r.project("[box]\nmemory='5g'\nvolume=['p:/p']\n[box.env]\nA='p'\n"); r.trust() },
			"5g", "p:/p", "A=p|S=s|U=u", filepath.Join(filepath.Dir(r.o.Dir), projectName),
		},
		{
			"project preset", func() {
				r.project("[box]\nmemory='5g'\nvolume=['p:/p']\n[preset.p]\nmemory='6g'\n[preset.p.env]\nA='pp'\n")
				r.trust()
			},
			"6g", "p:/p", "A=pp|S=s|U=u", filepath.Join(filepath.Dir(r.o.Dir), projectName) + " [preset.p]",
		},
		{
			"env", func() { r.o.Environ = []string{"KERN_SBX_MEMORY=7g", "KERN_SBX_VOLUME=a,b:/x\nc:/y"} },
			"7g", "a,b:/x|c:/y", "A=pp|S=s|U=u", "KERN_SBX_MEMORY",
		},
	}
	for _, s := range steps {
		s.add()
		c := r.load()
		all := map[string]Setting{}
		for _, x := range c.All() {
			all[x.Key.Name] = x
		}
		if got := strings.Join(all["memory"].Values, "|"); got != s.memory {
			t.Errorf("%s: memory %q, want %q", s.layer, got, s.memory)
		}
		if got := all["memory"].Source.String(); got != s.source {
			t.Errorf("%s: source %q, want %q", s.layer, got, s.source)
		}
		if got := strings.Join(all["volume"].Values, "|"); got != s.volume {
			t.Errorf("%s: volume %q, want %q", s.layer, got, s.volume)
		}
		if got := strings.Join(all["env"].Values, "|"); got != s.env {
			t.Errorf("%s: env %q, want %q", s.layer, got, s.env)
		}
		if _, ok := c.Get("memory"); ok != (s.layer != "default") {
			t.Errorf("%s: Get says set: %v", s.layer, ok)
		}
		if len(c.Ignored()) > 0 || len(c.Warnings()) > 0 {
			t.Errorf("%s: %v %v", s.layer, c.Ignored(), c.Warnings())
		}
	}
	c := r.load()
	s, _ := c.Get("env")
	var from []string
	for _, x := range s.Sources {
		from = append(from, x.Layer+x.Preset)
	}
	if got := strings.Join(from, " "); got != "projectp system user" {
		t.Errorf("sources of env: %s", got)
	}
	if s, ok := c.Get("volume"); !ok || s.Source.Name != "KERN_SBX_VOLUME" {
		t.Errorf("volume: %+v", s)
	}
}

func TestConfigFileTakesThePlaceOfProjectAndUser(t *testing.T) {
	r := newRig(t)
	r.user("[box]\nmemory='3g'\n[preset.u]\n")
	r.project("[box]\nmemory='1m'\n")
	r.system("[box]\nhostname='s'\n")
	r.write(filepath.Join(r.o.Dir, "ci.toml"), "color='never'\nuse-preset='x'\n[box]\nsetup=['pip install x']\n[preset.x]\nimage='alpine'\n")
	for _, o := range []func(*Options){
		func(o *Options) { o.File = "ci.toml" },
		func(o *Options) { o.Environ = []string{"KERN_SBX_CONFIG=" + filepath.Join(o.Dir, "ci.toml")} },
		func(o *Options) { o.File = "ci.toml"; o.Environ = []string{"KERN_SBX_CONFIG=/nonexistent"} },
	} {
		saved := r.o
		o(&r.o)
		c := r.load()
		if value1(c, "memory") != "" || value1(c, "hostname") != "s" || value1(c, "setup") != "pip install x" || value1(c, "image") != "alpine" || value1(c, "color") != "never" {
			t.Errorf("%+v", c.All()[:4])
		}
		if c.Preset() != "x" || value1(c, "preset") != "x" {
			t.Errorf("preset %q", c.Preset())
		}
		var layers []string
		for _, f := range c.Files() {
			layers = append(layers, f.Layer+":"+string(f.State))
		}
		if got := strings.Join(layers, " "); got != "system:read config:read" {
			t.Errorf("files %s", got)
		}
		r.o = saved
	}
	r.o.File = "/dev/null"
	if c := r.load(); value1(c, "memory") != "" {
		t.Error("/dev/null is not an empty file")
	}
	for _, bad := range []string{"none.toml", ".", "/dev/zero"} {
		r.o.File = bad
		if _, err := Load(r.o); err == nil {
			t.Errorf("--config %s accepted", bad)
		}
	}
}

// Field case 33.
func TestMapKeepsCaseAndDots(t *testing.T) {
	r := newRig(t)
	r.user("[box.env]\nHOME = \"/workspace\"\nmyVar = \"x\"\n\"a.b\" = 'dot'\nN = 3\nF = 1.50\nCI = true\n")
	s, ok := r.load().Get("env")
	want := []string{"CI=true", "F=1.5", "HOME=/workspace", "N=3", "a.b=dot", "myVar=x"}
	if !ok || !slices.Equal(s.Values, want) {
		t.Errorf("%q, want %q", s.Values, want)
	}
}

func TestMistakesInOwnFiles(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"[box]\nmemroy='1g'\n", ":2: box.memroy: unknown key; the nearest is memory"},
		{"[box.evn]\nHOME='/workspace'\n", ":1: box.evn: unknown table; the nearest is env"},
		{"\n[bx]\nmemory='1g'\n", ":2: bx: unknown table; the nearest is box"},
		{"[box]\nMemory='1g'\n", ":2: box.Memory: unknown key; the nearest is memory"},
		{"[preset.ci]\n\n\nmemroy='1g'\n", ":4: preset.ci.memroy: unknown key; the nearest is memory"},
		{"[preset.ci.evn]\nA='1'\n", "preset.ci.evn: unknown table; the nearest is env"},
		{"memory='1g'\n", ":1: memory: belongs in [box]"},
		{"[box]\ncolor='never'\n", ":2: box.color: belongs at the top of the file, above [box]"},
		{"[preset.a]\ncolor='never'\n", ":2: preset.a.color: cannot be in a preset"},
		{"preset='ci'\n", "preset: has to be the table of presets; write use-preset = 'NAME'"},
		{"config='x'\n", "config: a config file cannot name another"},
		{"[box]\npreset='x'\n", "box.preset: unknown key"},
		{"[box]\nconfig='x'\n", "box.config: unknown key"},
		{"[box]\nmemory=512\n", `:2: box.memory "512": a size without a unit`},
		{"[box]\nmemory=true\n", "box.memory: has to be a text or a number"},
		{"[box]\nmemory=1979-05-27\n", "box.memory: has to be a text or a number"},
		{"[box]\nmemory=inf\n", "box.memory: has to be a text or a number"},
		{"[box]\nmemory=['1g']\n", "box.memory: has to be a text or a number"},
		{"[box.memory]\nx=1\n", "box.memory: has to be a text or a number"},
		{"[box]\nsetup-force='true'\n", "box.setup-force: has to be true or false, without quotes"},
		{"[box]\nvolume=[true]\n", "box.volume: has to be a text or a number"},
		{"[box]\nvolume=['a',['b']]\n", "box.volume: has to be a text or a number"},
		{"[box]\nhostname=\"a\\u0000b\"\n", "NUL byte"},
		{"[box]\nenv=['A=1']\n", "box.env: has to be a table; write [box.env]"},
		{"[box.env]\n\"A=B\"='1'\n", `box.env "A=B": not a name`},
		{"[box.env]\n\"\"='1'\n", `box.env "": not a name`},
		{"[box.env]\nA=[1]\n", "box.env: A has to be a text or a number"},
		{"[[box]]\nmemory='1g'\n", "box: has to be one table"},
		{"box=1\n", "box: has to be one table"},
		{"[preset]\nci='x'\n", "preset.ci: has to be one table"},
		{"[preset.\"a b\"]\n", `preset."a b": a preset's name is up to 64 lower-case`},
		{"use-preset=3\n", "use-preset: has to be the name of a preset"},
		{"use-preset='c1'\n[preset.ci]\n", `use-preset "c1": no config file has a preset of this name; the nearest is ci`},
		{"[trust]\nx='y'\n", "trust.x: has to be '/absolute/path/.kern-sbx.toml' ="},
		{"trust=1\n", "trust: has to be one table"},
		{"[box]\nmemory='1g'\nmemory='2g'\n", ":3:"},
		{"[box]\nmemory = \n", ":2:10: "},
		{"not toml [\n", ":1:"},
		{"[box]\nhostname='\xff'\n", "not UTF-8"},
	} {
		r := newRig(t)
		path := r.user(tc.text)
		_, err := Load(r.o)
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), path) {
			t.Errorf("%q:\n got %v\nwant %s", tc.text, err, tc.want)
			continue
		}
		var p *Problem
		if !errors.As(err, &p) || strings.ContainsAny(err.Error(), "\n\x00\x1b") {
			t.Errorf("%q: not one clean line: %q", tc.text, err)
		}
		if errs := Check(r.o); len(errs) != 1 || errs[0].Error() != err.Error() {
			t.Errorf("%q: Check gives %q", tc.text, errs)
		}
	}
}

func TestBadValueIsARefusal(t *testing.T) {
	r := newRig(t)
	r.user("[box]\nmemory='12'\n")
	_, err := Load(r.o)
	var v *validate.Error
	if !errors.As(err, &v) || v.Value != "12" {
		t.Errorf("%v", err)
	}
}

func TestCheckReportsEverything(t *testing.T) {
	r := newRig(t)
	r.system("[box]\nmemory='1'\nfoo=1\n")
	r.user("colour='x'\n[box]\nmemroy='1g'\n[preset.a]\ntimeout='5'\n")
	r.project("[box]\nmemory='7'\nsetpu='x'\n")
	r.o.Environ = []string{"KERN_SBX_TIMEOUT=1", "KERN_SBX_ENV=A=1"}
	var got []string
	for _, err := range Check(r.o) {
		got = append(got, strings.TrimPrefix(err.Error(), filepath.Dir(filepath.Dir(r.o.Dir))))
	}
	want := []string{
		"/etc/config.toml:2: box.memory", "/etc/config.toml:3: box.foo",
		"/home/.config/kern-sbx/config.toml:1: colour", "/home/.config/kern-sbx/config.toml:3: box.memroy",
		"/home/.config/kern-sbx/config.toml:5: preset.a.timeout",
		"KERN_SBX_ENV: a table cannot be set by a variable; use --env K=V or --env-file FILE",
		"KERN_SBX_TIMEOUT \"1\"",
		"/repo/.kern-sbx.toml:2: box.memory", "/repo/.kern-sbx.toml:3: box.setpu",
	}
	if len(got) != len(want) {
		t.Fatalf("%d problems:\n%s", len(got), strings.Join(got, "\n"))
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("problem %d: %s\nwant %s", i, got[i], want[i])
		}
	}
}

func TestProblemsAreBounded(t *testing.T) {
	r := newRig(t)
	var b strings.Builder
	b.WriteString("[box]\n")
	for i := range 2000 {
		fmt.Fprintf(&b, "x%d=1\n", i)
	}
	r.project(b.String())
	if n := len(r.load().Ignored()); n != maxProblems {
		t.Errorf("%d", n)
	}
}

func TestVariables(t *testing.T) {
	for _, tc := range []struct{ env, key, want, err, warn string }{
		{env: "KERN_SBX_MEMORY=64m", key: "memory", want: "64m"},
		{env: "KERN_SBX_MEMORY=", key: "memory"},
		{env: "KERN_SBX_MEMORY=64", err: `KERN_SBX_MEMORY "64": a size without a unit`},
		{env: "KERN_SBX_CI_FENCE=1", key: "ci-fence", want: "true"},
		{env: "KERN_SBX_CI_FENCE=false", key: "ci-fence", want: "false"},
		{env: "KERN_SBX_CI_FENCE=yes", err: `KERN_SBX_CI_FENCE "yes": not a truth value; write true or false`},
		{env: "KERN_SBX_VOLUME=a:/b,c\n", key: "volume", want: "a:/b,c"},
		{env: "KERN_SBX_PIDS_LIMIT=10", key: "pids-limit", want: "10"},
		{env: "KERN_SBX_ENV=A=1", err: "KERN_SBX_ENV: a table cannot be set"},
		{env: "KERN_SBX_ENV_FILE=/x", key: "env-file", want: "/x"},
		{env: "KERN_SBX_MEMROY=1g", key: "memory", warn: "KERN_SBX_MEMROY: no setting has this variable; the nearest is KERN_SBX_MEMORY"},
		{env: "KERN_SBX_memory=1g", key: "memory", warn: "the nearest is KERN_SBX_MEMORY"},
		{env: "KERN_SBX_PIDS-LIMIT=1", key: "pids-limit", warn: "the nearest is KERN_SBX_PIDS_LIMIT"},
		{env: "KERN_SBX_=1", key: "memory", warn: "KERN_SBX_: no setting"},
		{env: "KERN_SBX_\x1b[31m=1", key: "memory", warn: `KERN_SBX_\x1b[31m: no setting`},
		{env: "KERN_SBX_PRESET=x", err: `KERN_SBX_PRESET "x": no config file has a preset of this name; write [preset.NAME]`},
		{env: "KERN_SBX_CONFIG=/nonexistent/x", err: "/nonexistent/x: KERN_SBX_CONFIG: file does not exist"},
		{env: "kern_sbx_memory=1g", key: "memory"},
	} {
		r := newRig(t)
		r.o.Environ = []string{tc.env, "PATH=/bin"}
		c, err := Load(r.o)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%q: %v", tc.env, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tc.env, err)
			continue
		}
		if got := value1(c, tc.key); got != tc.want {
			t.Errorf("%q: %s is %q, want %q", tc.env, tc.key, got, tc.want)
		}
		w := strings.Join(c.Warnings(), "\n")
		if tc.warn == "" && w != "" || !strings.Contains(w, tc.warn) {
			t.Errorf("%q: warnings %q", tc.env, w)
		}
	}
	r := newRig(t)
	r.o.Environ = []string{"KERN_SBX_MEMORY=1m", "KERN_SBX_MEMORY=2m"}
	if got := value1(r.load(), "memory"); got != "1m" {
		t.Errorf("two variables of a name: %s", got)
	}
}

func TestPresets(t *testing.T) {
	r := newRig(t)
	r.system("[preset.big]\nmemory='8g'\n[preset.ci]\nmemory='1g'\ntimeout='9s'\n")
	r.user("use-preset='ci'\n[preset.ci]\nmemory='2g'\n")
	c := r.load()
	if value1(c, "memory") != "2g" || value1(c, "timeout") != "9s" {
		t.Errorf("memory %s timeout %s", value1(c, "memory"), value1(c, "timeout"))
	}
	if got := strings.Join(c.Presets(), " "); got != "big ci" {
		t.Error(got)
	}
	r.o.Environ = []string{"KERN_SBX_PRESET=big"}
	if c := r.load(); value1(c, "memory") != "8g" {
		t.Error("KERN_SBX_PRESET is not nearer than use-preset")
	}
	r.o.Preset = "ci"
	if c := r.load(); value1(c, "memory") != "2g" {
		t.Error("--preset is not nearer than KERN_SBX_PRESET")
	}
	for name, want := range map[string]string{
		"cj": `--preset "cj": no config file has a preset of this name; the nearest is ci`, "zzz": "there is: big, ci",
	} {
		r.o.Preset = name
		if _, err := Load(r.o); err == nil || !strings.Contains(err.Error(), want) {
			t.Error(err)
		}
	}
	r.project("[preset.own\n")
	r.o.Preset = "own"
	if _, err := Load(r.o); err == nil || !strings.Contains(err.Error(), projectName+" was not used: line 2: ") {
		t.Errorf("the file that could hold the preset is not named: %v", err)
	}
}

func TestKeyNamesThatViperWouldChange(t *testing.T) {
	for _, n := range []string{"Memory", "a.b", "a_b", ""} {
		if _, err := Load(Options{Keys: []Key{{Name: n}}, SystemFile: "/nonexistent/x"}); err == nil {
			t.Errorf("%q accepted", n)
		}
	}
}

func TestUserFilePlaces(t *testing.T) {
	for _, tc := range []struct{ xdg, home, want string }{
		{"", "/h", "/h/.config/kern-sbx/config.toml"},
		{"/x", "/h", "/x/kern-sbx/config.toml"},
		{"rel", "/h", "/h/.config/kern-sbx/config.toml"},
		{"/x", "", "/x/kern-sbx/config.toml"},
		{"", "", ""},
		{"rel", "rel", ""},
	} {
		if got := UserFile([]string{"XDG_CONFIG_HOME=" + tc.xdg}, tc.home); got != tc.want {
			t.Errorf("%+v: %s", tc, got)
		}
	}
	c, err := Load(Options{Keys: keys(), SystemFile: "/nonexistent/x", Dir: "/nonexistent/d"})
	if err != nil || len(c.Files()) != 3 {
		t.Errorf("no home and no directory: %v %v", c, err)
	}
}

func TestUserFileStates(t *testing.T) {
	r := newRig(t)
	real := r.write(filepath.Join(r.o.Home, "dotfiles", "k.toml"), "[box]\nmemory='3g'\n")
	path := UserFile(nil, r.o.Home)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, path); err != nil {
		t.Fatal(err)
	}
	if got := value1(r.load(), "memory"); got != "3g" {
		t.Errorf("a symbolic link of a dotfile manager is not followed: %q", got)
	}
	if err := os.Chmod(real, 0o646); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(r.o); err == nil || !strings.Contains(err.Error(), "anyone may write it") {
		t.Errorf("world-writable user file: %v", err)
	}
	if err := os.WriteFile(real, []byte(strings.Repeat("#", maxFile+1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(r.o); err == nil || !strings.Contains(err.Error(), "larger than 1024 KiB") {
		t.Errorf("too large: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(r.o); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("directory: %v", err)
	}
}

func TestForeignUserFile(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to give a file away")
	}
	r := newRig(t)
	path := r.user("[box]\nsetup='x'\n")
	if err := os.Chown(path, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(r.o); err == nil || !strings.Contains(err.Error(), "belongs to uid 12345") {
		t.Errorf("%v", err)
	}
	r.o.File = path
	if value1(r.load(), "setup") != "x" {
		t.Error("--config does not read it")
	}
	r.o.File, r.o.UID = "", 12345
	if value1(r.load(), "setup") != "x" {
		t.Error("its owner cannot use it")
	}
}

func BenchmarkLoadNoFiles(b *testing.B) {
	o := Options{
		Keys: keys(), Dir: b.TempDir(), Home: "/nonexistent", SystemFile: "/nonexistent/x",
		Environ: os.Environ(), UID: os.Getuid(),
	}
	for b.Loop() {
		if _, err := Load(o); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLoadAllFiles(b *testing.B) {
	dir := b.TempDir()
	o := Options{Keys: keys(), Dir: dir, Home: dir, SystemFile: filepath.Join(dir, "sys.toml"), UID: os.Getuid()}
	text := []byte("[box]\nmemory='256m'\ntimeout='5s'\ntrack-ignore=['a','b']\n[preset.ci]\nmemory='64m'\n")
	for _, p := range []string{o.SystemFile, filepath.Join(dir, projectName), UserFile(nil, dir)} {
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(p, text, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, err := Load(o); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkViperAlone is what the bound on BenchmarkLoadNoFiles is measured
// against.
func BenchmarkViperAlone(b *testing.B) {
	ks := keys()
	for b.Loop() {
		newLoader(Options{Keys: ks})
	}
}
