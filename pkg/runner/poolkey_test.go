package runner

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
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
