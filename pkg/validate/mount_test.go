package validate

import (
	"strings"
	"testing"
)

func TestParseVolume(t *testing.T) {
	for in, want := range map[string]Mount{
		"/a:/b":          {"/a", "/b", false},
		"/a:/b:ro":       {"/a", "/b", true},
		"/a:/b:rw":       {"/a", "/b", false},
		"/a:b:/c":        {"/a:b", "/c", false},
		"/a:/b:/c:ro":    {"/a:/b", "/c", true},
		"/x:ro:/data":    {"/x:ro", "/data", false},
		"/x:ro:/data:ro": {"/x:ro", "/data", true},
		".:/b":           {"/cwd/.", "/b", false},
		"..:/b":          {"/cwd/..", "/b", false},
		"./x:/b/":        {"/cwd/./x", "/b", false},
		"../x/y:/b":      {"/cwd/../x/y", "/b", false},
		"d/x:/b":         {"/cwd/d/x", "/b", false},
		"/a b,\"ü:/c d":  {"/a b,\"ü", "/c d", false},
		"/a/../b:/c//d":  {"/a/../b", "/c/d", false},
	} {
		if got, err := ParseVolume(in, "/cwd"); err != nil || got != want {
			t.Errorf("ParseVolume(%q) = %+v, %v, want %+v", in, got, err, want)
		}
	}
	for in, reason := range map[string]string{
		"": "one path", "/a": "one path", "/a:": "not an absolute", ":/b": "no source", "/a:ro": "no target", "::": "not an absolute",
		"/a:b": "not an absolute", "/a:/b:z": "unknown mode", "/a:/b:ro,z": "unknown mode", "/a:/b:RO": "not an absolute",
		"data:/b": "named volume", "~:/b": "~", "~/x:/b": "~", "/a:/proc": "isolation", "/a:/b/../c": "..", "/a:/": "root of the box",
		"/a\n:/b": "line break", "/a:/b\n": "control", "/a\x00:/b": "line break", "/a:/b:ro:ro": "not an absolute", "/a:/b:rw:x": "unknown mode",
	} {
		_, err := ParseVolume(in, "/cwd")
		wantRefused(t, in, err, reason)
	}
	for _, cwd := range []string{"", "rel"} {
		_, err := ParseVolume("./x:/b", cwd)
		wantRefused(t, "cwd "+cwd, err, "current directory")
	}
	if m, err := ParseVolume(".:/b", "/"); err != nil || m.Source != "/." {
		t.Errorf("at the root: %+v, %v", m, err)
	}
}

func TestParseMountSpec(t *testing.T) {
	for in, want := range map[string]Mount{
		"type=bind,src=/a,dst=/b":                          {"/a", "/b", false},
		"type=bind,source=/a,target=/b,ro":                 {"/a", "/b", true},
		"TYPE=BIND,Source=/a,destination=/b,readonly":      {"/a", "/b", true},
		"dst=/b,ro=false,src=./a,type=bind":                {"/cwd/./a", "/b", false},
		"type=bind,src=/a,dst=/b,readonly=1":               {"/a", "/b", true},
		`type=bind,"src=/a,""b",dst=/c`:                    {`/a,"b`, "/c", false},
		`"type=bind","src=/a","dst=/b","ro"`:               {"/a", "/b", true},
		"type=bind,src=/a:b,dst=/c:d":                      {"/a:b", "/c:d", false},
		"type=bind,src=/a=b,dst=/c":                        {"/a=b", "/c", false},
		`type=bind,src=/a,"dst=/b,ro"`:                     {"/a", "/b,ro", false},
		`type=bind,"src=/a,dst=/etc,ro",dst=/b,ro=0`:       {"/a,dst=/etc,ro", "/b", false},
		"type=bind,src=/\u00e4\u2028\u00df,dst=/b,ro=TRUE": {"/\u00e4\u2028\u00df", "/b", true},
	} {
		if got, err := ParseMountSpec(in, "/cwd"); err != nil || got != want {
			t.Errorf("ParseMountSpec(%q) = %+v, %v, want %+v", in, got, err, want)
		}
	}
	for in, reason := range map[string]string{
		"": "unknown field", "src=/a,dst=/b": "no type", "type=tmpfs,dst=/b": "flag of its own", "type=volume,src=x,dst=/b": "named volumes",
		"type=nfs,src=/a,dst=/b": "unknown type", "type=bind,dst=/b": "no source", "type=bind,src=/a": "not absolute",
		"type=bind,src=/a,dst=/b,src=/c": "twice", "type=bind,src=/a,source=/c,dst=/b": "twice", "type=bind,src=/a,dst=/b,ro,readonly=false": "twice",
		"type=bind,src=/a,dst=/b,ro=maybe": "neither", "type=bind,src=/a,dst=/b,ro=": "without a value", "type=bind,src=/a,dst=/b,": "unknown field",
		"type=bind,src=/a,dst=/b,bind-propagation=shared": "unknown field", "type=bind, src=/a,dst=/b": "unknown field",
		`type=bind,src="/a",dst=/b`: "quote", `type=bind,"src=/a"x,dst=/b`: "quote", `type=bind,"src=/a,dst=/b`: "quote", `"`: "quote",
		"type=bind,src=a,dst=/b": "named volume", "type=bind,src=/a,dst=b": "not absolute", "type=bind,src=/a,dst=/b\nx": "control",
	} {
		_, err := ParseMountSpec(in, "/cwd")
		wantRefused(t, in, err, reason)
	}
	_, err := ParseMountSpec("type=bind,scr=/a,dst=/b", "/")
	if e := err.(*Error); e.Fix != "did you mean src?" {
		t.Errorf("typo: %v", err)
	}
}

func TestMountArg(t *testing.T) {
	for want, m := range map[string]Mount{
		"type=bind,src=/a,dst=/b":                {"/a", "/b", false},
		"type=bind,src=/a b,dst=/b,ro":           {"/a b", "/b", true},
		`type=bind,"src=/a:b,""c",dst=/b`:        {`/a:b,"c`, "/b", false},
		`type=bind,src=/a,"dst=/b,ro"`:           {"/a", "/b,ro", false},
		`type=bind,src=/-x=$HOME'\,dst=/b/-x,ro`: {`/-x=$HOME'\`, "/b/-x", true},
	} {
		if flag, got, err := MountArg(m); err != nil || flag != "--mount" || got != want {
			t.Errorf("MountArg(%+v) = %s %s, %v", m, flag, got, err)
		}
	}
	for in, reason := range map[string]string{
		"": "absolute", "a": "absolute", "/a\n": "line break", "/a\r/b": "line break", "/a\x00": "line break", "/\xff": "UTF-8",
		"/a ": "white space", "/a\t": "white space", "/a\u3000": "white space", "/a\u0085": "white space", "/a\u00a0": "white space",
	} {
		_, _, err := MountArg(Mount{Source: in, Target: "/b"})
		wantRefused(t, in, err, reason)
		_, _, err = MountArg(Mount{Source: "/b", Target: in})
		wantRefused(t, in, err, reason)
	}
}

func FuzzMount(f *testing.F) {
	for _, s := range []string{"/a:/b:ro", "/a:b:/c", "type=bind,src=/a,dst=/b,ro", `type=bind,"src=/a,""b",dst=/c`, ".:/w", `"`, "~:/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, parse := range []func(string, string) (Mount, error){ParseVolume, ParseMountSpec} {
			m, err := parse(s, "/cwd")
			if err != nil {
				wantRefused(t, s, err, "")
				continue
			}
			if m.Source[0] != '/' || m.Target[0] != '/' || strings.ContainsAny(m.Source+m.Target, "\x00\r\n") {
				t.Fatalf("%q gave %+v", s, m)
			}
			_, arg, err := MountArg(m)
			if err != nil {
				wantRefused(t, s, err, "")
				continue
			}
			// What we write is read back as the same mount, so no field leaks
			// into another.
			if again, err := ParseMountSpec(arg, "/"); err != nil || again != m {
				t.Fatalf("%q: %+v became %+v, %v by way of %q", s, m, again, err, arg)
			}
		}
	})
}

func TestTarget(t *testing.T) {
	for in, want := range map[string]string{
		"/data": "/data", "/data/": "/data", "//data//x": "/data/x", "/data/./x": "/data/x", "/usr": "/usr", "/etc": "/etc", "/tmp": "/tmp",
		"/dev/shm": "/dev/shm", "/dev//shm/x/": "/dev/shm/x", "/workspace/data": "/workspace/data", "/workspace/.depsx": "/workspace/.depsx",
		"/workspaces": "/workspaces", "/process": "/process", "/run/x": "/run/x", "/a:b,c\"": "/a:b,c\"", "/...": "/...", "/devel": "/devel",
	} {
		if got, err := Target(in); err != nil || got != want {
			t.Errorf("Target(%q) = %q, %v", in, got, err)
		}
	}
	for in, reason := range map[string]string{
		"": "not absolute", "a": "not absolute", "./a": "not absolute", "~/a": "not absolute", "/": "root", "//": "root", "/.": "root", "/./": "root",
		"/a/..": "..", "/workspace/..": "..", "/a/../proc": "..", "/..": "..",
		"/proc": "/proc", "//proc/": "/proc", "/proc/1": "/proc", "/./sys/fs": "/sys", "/sys": "/sys", "/dev": "/dev", "/dev/": "/dev",
		"/dev/shmx": "/dev", "/dev/pts": "/dev", "/dev/./null": "/dev", "/workspace": "workspace", "/workspace//": "workspace", "/workspace/.": "workspace",
		"/workspace/.deps": "--setup", "/workspace/.deps/x": "--setup", "/run": "/run/kern-sbx", "/run/": "/run/kern-sbx", "/run/kern-sbx": "kern-sbx",
		"/run/kern-sbx/x": "kern-sbx", "/kern-pyc": "kern-sbx", "/kern-pyc/a": "kern-sbx", "/a\n": "control", "/a\x00": "control", "/a\u0085b": "control",
		"/\xff": "UTF-8", "/" + strings.Repeat("a", 4096): "4095",
	} {
		_, err := Target(in)
		wantRefused(t, in, err, reason)
	}
}

func TestWorkdir(t *testing.T) {
	for in, want := range map[string]string{"/": "/", "/a b/": "/a b", "/workspace": "/workspace", "/proc": "/proc"} {
		if got, err := Workdir(in); err != nil || got != want {
			t.Errorf("Workdir(%q) = %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "a", "-", "--help", ".", "/a\n", "/a/../b", "/\x00", "a\n"} {
		_, err := Workdir(in)
		wantRefused(t, in, err, "")
	}
}
