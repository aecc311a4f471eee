package validate

import (
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	long := strings.Repeat("a", 201)
	for name, c := range map[string]struct {
		check   func(string) error
		ok, bad []string
	}{
		"Profile": {
			Profile,
			[]string{"vcpu:agent", "vgpio:a.b-c_d", "vdisk:0"},
			[]string{"", "vcpu", "vcpu:", "cpu:x", "VCPU:x", "vcpu:-x", "vcpu:.x", "vcpu:_x", "vcpu:a/b", "vcpu:a b", "vcpu:a\n", "vcpu:a:b", "--help", "vcpu:ä", "vcpu:" + long, " vcpu:a", "vcpu :a"},
		},
		"AppArmor": {
			AppArmor,
			[]string{"kern", ".x", "_a-b.c", long[:128]},
			[]string{"", "-x", "a b", "a/b", "a\n", "a=b", long[:129], "ä"},
		},
		"User": {
			User,
			[]string{"0", "root", "1000:1000", "_a:b-c.d", "4294967294", "www-data", "0000000000000001"},
			[]string{"", ":", "a:", ":a", "a:b:c", "-1", "-a", ".a", "a b", "a\n", long[:33], "a:" + long[:33], "4294967295", "1:99999999999", "ä", "a/b"},
		},
		"Hostname": {
			Hostname,
			[]string{"a", "a.b-c", "9", long[:64]},
			[]string{"", "-a", "a-", ".a", "a.", "a_b", "a b", "a\n", long[:65], "ä", "a/b"},
		},
		"BoxName": {
			BoxName,
			[]string{"a", "_a", "a..b", "A-1.x", long[:200]},
			[]string{"", "-a", ".a", "..", "a/b", "a b", "a@b", "a\n", long, "ä"},
		},
		"Name": {
			Name,
			[]string{"a", "a-b-1", "9", long[:32]},
			[]string{"", "-", "-a", "A", "a_b", "a.b", "a/b", "a b", "a\n", long[:33], "ä"},
		},
		"CPUSet": {
			CPUSet,
			[]string{"0", "0-3", "0,2,4", "0-1,3-3", "8191"},
			[]string{"", ",", "0,", "0,,1", "1-0", "0-", "-1", "0-1-2", "a", " 0", "0 ", "+1", "99999", "0x1", "0\n", "٣"},
		},
		"Ulimit": {
			Ulimit,
			[]string{"nofile=1024", "nofile=10:20", "core=0", "nproc=unlimited", "stack=-1", "cpu=5:unlimited", "fsize=18446744073709551615"},
			[]string{"", "nofile", "nofile=", "nofile=:", "nofile=1:", "=1", "foo=1", "NOFILE=1", "nofile=20:10", "nofile=unlimited:5", "nofile=1k", "nofile=-2", "nofile=1:2:3", "nofile= 1", "nofile=18446744073709551616", "nofile=+1", "nofile=1_0"},
		},
	} {
		for _, in := range c.ok {
			if err := c.check(in); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, in := range c.bad {
			wantRefused(t, name+" "+in, c.check(in), "")
		}
	}
	if e := Profile("vpcu:x").(*Error); e.Fix != "did you mean vcpu?" {
		t.Error(e)
	}
	if e := Ulimit("nofiles=1").(*Error); e.Fix != "did you mean nofile?" {
		t.Error(e)
	}
	if e := CPUSet("0,7-3").(*Error); e.Fix != "write 3-7" {
		t.Error(e)
	}
}

func TestCapability(t *testing.T) {
	for in, want := range map[string]string{"ALL": "ALL", "all": "ALL", "net_raw": "NET_RAW", "CAP_NET_RAW": "NET_RAW", "cap_chown": "CHOWN", "SOME_NEW_THING": "SOME_NEW_THING"} {
		if got, err := Capability(in); err != nil || got != want {
			t.Errorf("Capability(%q) = %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "CAP_", "cap_", "_A", "A_", "A__B", "1A", "NET-RAW", "NET RAW", "NET_RAW\n", "--help", "ſYS_ADMIN", strings.Repeat("A", 33), "NET_RAV", "ALLL", "CAP_CAP_CHOWN,"} {
		_, err := Capability(in)
		wantRefused(t, in, err, "")
	}
	if _, err := Capability("NET_RWA"); err.(*Error).Fix != "did you mean NET_RAW?" {
		t.Error(err)
	}
}

func FuzzProfile(f *testing.F) {
	for _, s := range []string{"vcpu:agent", "vdisk:a/b", "vgpio:", "vcpu:-x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if err := Profile(s); err != nil {
			wantRefused(t, s, err, "")
			return
		}
		if s[0] != 'v' || strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:._-") != "" || strings.Count(s, ":") != 1 {
			t.Fatalf("%q passed", s)
		}
	})
}
