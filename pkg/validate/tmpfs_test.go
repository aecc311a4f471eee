package validate

import (
	"slices"
	"strings"
	"testing"
)

func TestParseTmpfs(t *testing.T) {
	for in, want := range map[string]Tmpfs{
		"/tmp:64m": {"/tmp", 64 << 20}, "/run:size=64m": {"/run", 64 << 20}, "/a/:1.5g": {"/a", 3 << 29}, "//a/./b:4096b": {"/a/b", 4096},
		"/workspace/x:1m": {"/workspace/x", 1 << 20}, "/usr:1m": {"/usr", 1 << 20}, "/devel:1m": {"/devel", 1 << 20},
	} {
		if got, err := ParseTmpfs(in); err != nil || got != want {
			t.Errorf("ParseTmpfs(%q) = %+v, %v", in, got, err)
		}
	}
	for in, reason := range map[string]string{
		"": "no size", "/tmp": "no size", "/tmp:": "no size", "/tmp:64": "bytes", "/tmp:0": "unlimited", "/tmp:0m": "unlimited", "/tmp:none": "without a limit",
		"/tmp:-1m": "not a size", "/tmp:64m:x": "colon", "/a:b:64m": "colon", "tmp:64m": "not absolute", "none:64m": "not absolute", "none": "no size",
		"/:1m": "root", "/proc:1m": "/proc", "//proc/x:1m": "/proc", "/sys:1m": "/sys", "/dev:1m": "/dev", "/dev/x:1m": "/dev",
		"/dev/shm:1m": "memory cap", "/dev/./shm/:1m": "memory cap", "/dev/shm/x:1m": "/dev", "/workspace:1m": "workspace", "/workspace/.:1m": "workspace",
		"/workspace/.deps:1m": "--setup", "/run/kern-sbx:1m": "kern-sbx", "/kern-pyc:1m": "kern-sbx", "/a/../b:1m": "..", "/a\n:1m": "control",
		"/tmp:size=64": "bytes", "/tmp:size=": "option", "/tmp:size=64m,mode=1777": "option", "/tmp:ro": "not a size", "/tmp:size=1m,size=2m": "option",
		"/tmp:size=50%": "unknown unit", "/tmp:64m,": "option",
	} {
		_, err := ParseTmpfs(in)
		wantRefused(t, in, err, reason)
	}
	list, noDefault, err := ParseTmpfsList([]string{"/run:1m", "none", "/a:1m"})
	if err != nil || !noDefault || !slices.Equal(list, []Tmpfs{{"/run", 1 << 20}, {"/a", 1 << 20}}) {
		t.Errorf("list: %+v %v %v", list, noDefault, err)
	}
	_, _, err = ParseTmpfsList([]string{"/a:1m", "/a/:2m"})
	wantRefused(t, "twice", err, "two")
	if a := (Tmpfs{"/a", 3 << 29}).Arg(); a != "/a:1536m" {
		t.Error(a)
	}
	if a := (Tmpfs{"/a", 5000}).Arg(); a != "/a:5000" {
		t.Error(a)
	}
}

func TestCheckTmpfs(t *testing.T) {
	for _, c := range []struct {
		list    []Tmpfs
		mounts  []string
		memory  Size
		refused string
	}{
		{[]Tmpfs{{"/a", 1 << 20}}, []string{"/workspace"}, 1 << 20, ""},
		{[]Tmpfs{{"/a", 1<<20 + 1}}, nil, 1 << 20, "larger than the memory cap"},
		{[]Tmpfs{{"/a", 1 << 40}}, nil, 0, ""},
		{[]Tmpfs{{"/a", 1}}, []string{"/a"}, 0, "hide the mount"},
		{[]Tmpfs{{"/a", 1}}, []string{"/x", "/a/b/c"}, 0, "hide the mount"},
		{[]Tmpfs{{"/a/b", 1}}, []string{"/a"}, 0, ""},
		{[]Tmpfs{{"/a", 1}}, []string{"/ab"}, 0, ""},
		{[]Tmpfs{{"/run", 1}}, []string{"/run/kern-sbx"}, 0, "hide the mount"},
		{[]Tmpfs{{"/a", 1}, {"/a/b", 1}}, nil, 0, ""},
		{[]Tmpfs{{"/a/b", 1}, {"/a", 1}}, nil, 0, "hide the one"},
		{[]Tmpfs{{"/x", 1}, {"/a/b", 1}, {"/ab", 1}, {"/a", 1}}, nil, 0, "hide the one"},
	} {
		err := CheckTmpfs(c.list, c.mounts, c.memory)
		if c.refused != "" {
			wantRefused(t, c.list[0].Target, err, c.refused)
		} else if err != nil {
			t.Error(err)
		}
	}
	for memory, want := range map[Size]Size{
		0: 64 << 20, 512 << 20: 64 << 20, 128 << 20: 64 << 20, 32 << 20: 16 << 20, 1 << 20: 1 << 20, 1: 1 << 20, 5<<20 + 4098: 5<<19 + 0, 1 << 50: 64 << 20,
	} {
		if got := DefaultTmp(memory); got != want {
			t.Errorf("DefaultTmp(%d) = %d, want %d", memory, got, want)
		}
	}
}

func FuzzParseTmpfs(f *testing.F) {
	for _, s := range []string{"/tmp:64m", "/run:size=64m", "/a:b:64m", "/a:0", "//dev//shm:1m"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := ParseTmpfs(s)
		if err != nil {
			wantRefused(t, s, err, "")
			return
		}
		if v.Size <= 0 || strings.ContainsAny(v.Target, ":\n\x00") || within(v.Target, "/dev") || within(v.Target, "/proc") || v.Target == "/workspace" {
			t.Fatalf("%q gave %+v", s, v)
		}
		if again, err := ParseTmpfs(v.Target + ":" + v.Size.String()); err != nil || again != v {
			t.Fatalf("%+v became %+v, %v", v, again, err)
		}
	})
}
