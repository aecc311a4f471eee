package validate

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// aclOther is a POSIX ACL with a named user (12345) who may write:
// user::rwx user:12345:rwx group::r-x mask::rwx other::r-x.
var aclOther = []byte{
	2, 0, 0, 0,
	1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff,
	2, 0, 7, 0, 0x39, 0x30, 0, 0,
	4, 0, 5, 0, 0xff, 0xff, 0xff, 0xff,
	0x10, 0, 7, 0, 0xff, 0xff, 0xff, 0xff,
	0x20, 0, 5, 0, 0xff, 0xff, 0xff, 0xff,
}

func TestExchangeable(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	uid := os.Getuid()
	if err := Exchangeable(root, uid); err != nil {
		t.Skipf("the test's own directory is no safe place: %v", err)
	}
	dir := func(name string, mode uint32) string {
		p := filepath.Join(root, name)
		mkdir(t, p, "x")
		if err := unix.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	if err := Exchangeable(dir("mine", 0o755)+"/x", uid); err != nil {
		t.Error(err)
	}
	// What others may write to the source itself is not its place.
	if err := Exchangeable(dir("open0", 0o777), uid); err != nil {
		t.Error(err)
	}
	wantRefused(t, "0777", Exchangeable(dir("open", 0o777)+"/x", uid), "others can write")
	wantRefused(t, "0777 above", Exchangeable(root+"/open/x/", uid), "others can write")
	wantRefused(t, "0702", Exchangeable(dir("open2", 0o702)+"/x", uid), "others can write")
	if err := Exchangeable(dir("sticky", 0o1777)+"/x", uid); err != nil {
		t.Error(err)
	}
	// The private group of umask 002, and a group that is none.
	shared := dir("group", 0o775)
	if err := os.Chown(shared, -1, uid); err == nil {
		if err := Exchangeable(shared+"/x", uid); err != nil {
			t.Error(err)
		}
		if err := unix.Lsetxattr(shared, "system.posix_acl_access", aclOther, 0); err == nil {
			wantRefused(t, "ACL", Exchangeable(shared+"/x", uid), "others can write")
		} else {
			t.Logf("no ACLs here: %v", err)
		}
	}
	wantRefused(t, "relative", Exchangeable("x", uid), "absolute")
	wantRefused(t, "missing", Exchangeable(root+"/nope", uid), "no such")
	link(t, root+"/mine", root+"/l")
	wantRefused(t, "link", Exchangeable(root+"/l/x", uid), "symbolic link")
	if err := os.WriteFile(root+"/f", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, "file", Exchangeable(root+"/f/x", uid), "not a directory")
	if err := Exchangeable(root+"/f", uid); err != nil {
		t.Error(err)
	}
	// Seen by another user, all of it is somebody else's; root's is nobody's.
	if uid != 0 {
		wantRefused(t, "other user", Exchangeable(root+"/mine/x", uid+1), "another user")
	}
	if err := Exchangeable("/usr", 12345); err != nil {
		t.Error(err)
	}

	if uid != 0 {
		t.Skip("the rest needs root, to give files away")
	}
	give := func(p string, uid, gid int) {
		if err := os.Chown(p, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	give(dir("theirs", 0o700), 12345, 12345)
	wantRefused(t, "theirs", Exchangeable(root+"/theirs/x", 0), "another user")
	if err := Exchangeable(root+"/theirs/x", 12345); err != nil {
		t.Error(err)
	}
	wantRefused(t, "theirs, third", Exchangeable(root+"/theirs/x", 12346), "another user")
	give(root+"/sticky/x", 12345, 12345)
	wantRefused(t, "sticky entry of another", Exchangeable(root+"/sticky/x", 0), "another user")
	wantRefused(t, "below it", Exchangeable(root+"/sticky/x/y", 0), "another user")
	if err := Exchangeable(root+"/sticky/x", 12345); err != nil {
		t.Error(err)
	}
	give(dir("staff", 0o2775), 0, 50)
	wantRefused(t, "group", Exchangeable(root+"/staff/x", 0), "others can write")
	wantRefused(t, "group, other", Exchangeable(root+"/staff/x", 50000), "others can write")
}
