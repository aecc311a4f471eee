package testscripts

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// netEnv makes the test binary the host of TestNetwork: in a network and a mount
// namespace of its own, with names and addresses that exist nowhere else.
const netEnv = "KERN_SBX_TEST_NETWORK"

// The addresses: one that counts as public (kern's proxy connects to no other),
// and one that does not.
const (
	publicIP  = "198.41.0.4"
	privateIP = "10.98.76.54"
)

func TestNetwork(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("making a network namespace with a server in it needs root")
	}
	for _, tool := range []string{"ip", "curl", "getent", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(tool + " is not installed")
		}
	}
	sh := build(t)
	home := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("unshare", "-mn", "--propagation", "private", "--", self)
	c.Env = []string{
		netEnv + "=" + home, "HOME=" + home, "XDG_RUNTIME_DIR=" + home, "PATH=" + scriptPath(sh.dir),
		"KERN_SBX_IMAGE=host", "KERN_BIN=" + filepath.Join(sh.dir, "kern", "kern"),
	}
	out, err := c.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if bad, ok := strings.CutPrefix(line, "FAIL "); ok {
			t.Error(strings.TrimSpace(bad))
		}
	}
	if err != nil || !strings.Contains(string(out), "DONE") {
		t.Errorf("%v\n%s", err, out)
	}
}

// networkHost runs in the namespaces.
func networkHost(home string) int {
	hosts := filepath.Join(home, "hosts")
	text := "127.0.0.1 localhost\n" + publicIP + " allowed.example.com sub.allowed.example.com other.example.org\n" +
		privateIP + " private.example.net\n127.0.0.1 loop.example.net\n"
	if err := os.WriteFile(hosts, []byte(text), 0o644); err != nil {
		fmt.Println(err)
		return 1
	}
	for _, cmd := range []string{
		"ip link set lo up", "ip addr add " + publicIP + "/32 dev lo", "ip addr add " + privateIP + "/32 dev lo",
		"mount --bind " + hosts + " /etc/hosts",
	} {
		f := strings.Fields(cmd)
		if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
			fmt.Printf("%s: %v %s\n", cmd, err, out)
			return 1
		}
	}
	l, err := net.Listen("tcp", ":80")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "reached") }))

	const get = "curl -s -m 10 -w ' %{http_code} %{exitcode}' "
	proxied := get + "-x \"$HTTP_PROXY\" http://"
	for _, c := range []struct{ why, flags, script, want string }{
		{"no network is the default", "", get + "http://127.0.0.1/", " 000 7"},
		{"no route", "", get + "http://" + publicIP + "/", " 000 7"},
		{"no names", "", get + "http://allowed.example.com/", " 000 6"},
		{"the host's network has its loopback", "--network host", get + "http://127.0.0.1/", "reached 200 0"},
		{"none can be said", "--network none", get + "http://127.0.0.1/", " 000 7"},
		{"an allowed name", "--egress-allow allowed.example.com", proxied + "allowed.example.com/", "reached 200 0"},
		{"a name below it", "--egress-allow allowed.example.com", proxied + "sub.allowed.example.com/", "reached 200 0"},
		{"another name", "--egress-allow allowed.example.com", proxied + "other.example.org/", "403 0"},
		{"an address", "--egress-allow allowed.example.com", proxied + publicIP + "/", "403 0"},
		{"localhost", "--egress-allow allowed.example.com", proxied + "localhost/", "403 0"},
		{"an allowed name that is private", "--egress-allow private.example.net", proxied + "private.example.net/", "502 0"},
		{"an allowed name that is loopback", "--egress-allow loop.example.net", proxied + "loop.example.net/", "502 0"},
		{"past the proxy", "--egress-allow allowed.example.com", get + "--noproxy '*' http://" + publicIP + "/", " 000 7"},
		{"past the proxy by name", "--egress-allow allowed.example.com", get + "--noproxy '*' http://allowed.example.com/", " 000 6"},
		{"names under an allow-list", "--egress-allow allowed.example.com", "getent hosts allowed.example.com || echo no name", "no name"},
	} {
		args := append(append([]string{"run", "-q"}, strings.Fields(c.flags)...), "--", "sh", "-c", c.script)
		out, _ := exec.Command("kern-sbx", args...).Output()
		if got := strings.TrimSpace(string(out)); !strings.HasSuffix(got, strings.TrimSpace(c.want)) {
			fmt.Printf("FAIL %s: %q, want %q\n", c.why, got, c.want)
		}
	}
	// A client that knows no proxy gets the hint.
	c := exec.Command("kern-sbx", "run", "--egress-allow", "allowed.example.com", "-c", "import socket; socket.create_connection(('"+publicIP+"', 5432), 5)")
	if out, _ := c.CombinedOutput(); !strings.Contains(string(out), "kern-sbx: hint:") || !strings.Contains(string(out), "HTTP proxy") {
		fmt.Printf("FAIL no hint about the proxy: %q\n", out)
	}
	// What kern's proxy prints while the code runs is no output of the code (F1).
	c = exec.Command("kern-sbx", "run", "--json", "--egress-allow", "allowed.example.com", "-c",
		"import sys, urllib.request as u\ntry: u.urlopen('http://allowed.example.com:443/')\nexcept Exception: print('own', file=sys.stderr)")
	out, _ := c.Output()
	var doc struct {
		CodeStderr   string `json:"code_stderr"`
		RuntimeNotes string `json:"runtime_notes"`
	}
	if err := json.Unmarshal(out, &doc); err != nil || doc.CodeStderr != "own\n" || !strings.Contains(doc.RuntimeNotes, "(unverified) kern: egress proxy:") {
		fmt.Printf("FAIL late lines of the proxy: %v %q %q\n", err, doc.CodeStderr, doc.RuntimeNotes)
	}
	fmt.Println("DONE")
	return 0
}
