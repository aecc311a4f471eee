package runner

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/kern-sbx/kern-sbx/pkg/hostroot"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// The file that profiles are read from is a part of what a box is.
func TestPoolKeyOfProfiles(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s, dirs := testSpec(t, self)
	key := func() string {
		t.Helper()
		k, err := s.PoolKey(dirs.Cache)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	plain := key()
	s.Profiles = []string{"vcpu:a"}
	if _, err := s.PoolKey(dirs.Cache); !errors.Is(err, ErrNotPooled) {
		t.Errorf("a profile of a file that is not named: %v", err)
	}
	s.KernConfig = filepath.Join(dirs.Cache, "kern.toml")
	if _, err := s.PoolKey(dirs.Cache); !errors.Is(err, ErrNotPooled) {
		t.Errorf("a file that is not there: %v", err)
	}
	var seen []string
	for _, text := range []string{"a", "longer"} {
		if err := os.WriteFile(s.KernConfig, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		seen = append(seen, key())
	}
	if seen[0] == plain || seen[0] == seen[1] {
		t.Errorf("%s without a profile, %v with two versions of its file", plain, seen)
	}
}

// Whatever of a Spec is not of one call alone changes the key: a field that is new
// has to be put into one of the two lists.
func TestPoolKeyOfEveryField(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	own := t.TempDir()
	changes := map[string]func(*Spec){
		"Kern":          func(s *Spec) { k := *s.Kern; k.Version += "x"; s.Kern = &k },
		"Rootfs":        func(s *Spec) { s.Image, s.Host, s.Rootfs = "", nil, own },
		"Host":          func(s *Spec) { s.Image, s.Rootfs, s.Host = "", "", &hostroot.Root{Dir: "/x", ID: "y"} },
		"Workspace":     func(s *Spec) { s.Workspace = own },
		"WorkspaceMax":  func(s *Spec) { s.WorkspaceMax = 77 },
		"Mounts":        func(s *Spec) { s.Mounts = []validate.Mount{{Source: "/a", Target: "/b"}} },
		"Watch":         func(s *Spec) { s.Watch = []string{"a"} },
		"Pins":          func(s *Spec) { s.Pins = map[string]Pin{"/a": {1, 2}} },
		"Tmpfs":         func(s *Spec) { s.Tmpfs = []validate.Tmpfs{{Target: "/q", Size: 9}} },
		"Memory":        func(s *Spec) { s.Memory = 1234567 },
		"CPUs":          func(s *Spec) { s.CPUs = 0.25 },
		"PIDs":          func(s *Spec) { s.PIDs = 17 },
		"CPUSet":        func(s *Spec) { s.CPUSet = "0" },
		"Ulimits":       func(s *Spec) { s.Ulimits = []string{"core=0"} },
		"RequireLimits": func(s *Spec) { s.RequireLimits = !s.RequireLimits },
		"Limits":        func(s *Spec) { s.Limits = "own" },
		"HostNetwork":   func(s *Spec) { s.HostNetwork = true },
		"Egress":        func(s *Spec) { s.Egress = []string{"a.example"} },
		"CapDrop":       func(s *Spec) { s.CapDrop = []string{"CHOWN"} },
		"CapAdd":        func(s *Spec) { s.CapAdd = []string{"CHOWN"} },
		"Security":      func(s *Spec) { s.Security = "untrusted" },
		"AppArmor":      func(s *Spec) { s.AppArmor = "a" },
		"User":          func(s *Spec) { s.User = "7" },
		"Hostname":      func(s *Spec) { s.Hostname = "h" },
		"DepsWritable":  func(s *Spec) { s.DepsWritable = !s.DepsWritable },
		"KernConfig":    func(s *Spec) { s.KernConfig = self },
		"Profiles":      func(s *Spec) { s.KernConfig, s.Profiles = self, []string{"vcpu:a"} },
	}
	// Of one call, of this process, refused with a pool, or what names the root.
	other := map[string]bool{
		"Image": true, "Pull": true, "PullTimeout": true, "CopyOf": true, "Setup": true, "WorkspaceSize": true, "Keep": true, "Track": true, "TrackIgnore": true,
		"Workdir": true, "Env": true, "Timeout": true, "StartTimeout": true, "MaxOutput": true, "Argv": true, "Code": true, "Cell": true, "Results": true,
		"Kernel": true, "Init": true, "Stdin": true, "TTY": true, "TTYStarted": true, "Kill": true, "Stdout": true, "Stderr": true, "Capture": true, "Log": true,
		"Claimer": true, "PoolRequired": true, "Signals": true, "Sweeper": true, "Compiler": true, "Progress": true,
	}
	plain, dirs := testSpec(t, self)
	key, err := plain.PoolKey(dirs.Cache)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{key: "a plain box"}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Spec]()) {
		change := changes[f.Name]
		switch {
		case !f.IsExported():
			continue
		case other[f.Name]:
			continue
		case change == nil:
			t.Errorf("does %s change the key?", f.Name)
			continue
		}
		s := *plain
		change(&s)
		key, err := s.PoolKey(dirs.Cache)
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
			continue
		}
		if was, ok := seen[key]; ok {
			t.Errorf("%s gives the key of %s", f.Name, was)
		}
		seen[key] = f.Name
	}
}
