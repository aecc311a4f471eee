package testscripts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Versions of other people's clients, which are fetched once and kept in .cache.
const (
	pythonClient = "mcp==2.3.0"
	// The last whose CLI runs with node 20; it asks for 22, and says so.
	inspector = "@modelcontextprotocol/inspector@0.17.2"

	npmCache = ".npm" // not kept
)

// fetched gives a directory below .cache that get has filled, now or before. Where
// that cannot be done (no registry, no program), the test is skipped.
func fetched(t *testing.T, name string, get func(ctx context.Context, dir string) *exec.Cmd) string {
	t.Helper()
	if testing.Short() {
		t.Skip("fetches a client of other people")
	}
	dir, err := filepath.Abs(filepath.Join("..", ".cache", "clients", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Skipf("nowhere to keep it: %v", err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".fetching-")
	if err != nil {
		t.Skipf("nowhere to keep it: %v", err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := get(ctx, tmp)
	c.WaitDelay = time.Second
	if out, err := c.CombinedOutput(); err != nil {
		if len(out) > 1000 {
			out = out[len(out)-1000:]
		}
		t.Skipf("it cannot be fetched here: %v\n%s", err, out)
	}
	_ = os.RemoveAll(filepath.Join(tmp, npmCache))
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, os.ErrExist) {
		if _, there := os.Stat(dir); there != nil {
			t.Skipf("nowhere to keep it: %v", err)
		}
	}
	return dir
}

// ownTools: what another user has installed need not be for everybody.
func ownTools(t *testing.T, h *mcpHost) {
	if h.UID != os.Getuid() {
		t.Skip("not as a user whose tools these are not")
	}
}

// clientPython: the client of the Python package, which most agents are made with.
func clientPython(t *testing.T, h *mcpHost) {
	ownTools(t, h)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	v, err := exec.Command(python, "-c", "import sys, pip; print('%d.%d' % sys.version_info[:2])").Output()
	if err != nil {
		t.Skip("python3 has no pip")
	}
	version := strings.TrimSpace(string(v))
	dir := fetched(t, "python-"+version+"-"+strings.ReplaceAll(pythonClient, "==", "-"), func(ctx context.Context, dir string) *exec.Cmd {
		return exec.CommandContext(ctx, python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir", "--timeout", "10", "--retries", "1", "--target", dir, pythonClient)
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	like := h.command()
	c := exec.CommandContext(ctx, python, "testdata/mcp_client.py", filepath.Join(h.sh.dir, "bin", "kern-sbx"), "mcp", "--image", "host", "--pyc-cache", "off")
	c.Env, c.SysProcAttr = append(like.Env, "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1", "MARK="+mark()), like.SysProcAttr
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	if err != nil || string(out) != "done\n" {
		t.Errorf("%v\n%s", err, out)
	}
	if left := h.left(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// clientInspector: the command line of the inspector, which authors of servers use.
func clientInspector(t *testing.T, h *mcpHost) {
	ownTools(t, h)
	for _, p := range []string{"node", "npm", "npx"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip("no " + p)
		}
	}
	name := strings.NewReplacer("/", "-", "@", "-").Replace(strings.TrimPrefix(inspector, "@"))
	dir := fetched(t, name, func(ctx context.Context, dir string) *exec.Cmd {
		return exec.CommandContext(ctx, "npm", "install", "--prefix", dir, "--cache", filepath.Join(dir, npmCache), "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error", "--fetch-retries", "1", inspector)
	})
	like := h.command()
	call := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		c := exec.CommandContext(ctx, "npx", append([]string{"--no", "--prefix", dir, "mcp-inspector", "--cli", filepath.Join(h.sh.dir, "bin", "kern-sbx"), "mcp", "--image=host", "--pyc-cache=off"}, args...)...)
		c.Env, c.Dir, c.SysProcAttr = append(like.Env, "npm_config_update_notifier=false"), like.Dir, like.SysProcAttr
		c.WaitDelay = time.Second
		out, err := c.Output()
		var x *exec.ExitError
		if errors.As(err, &x) {
			err = fmt.Errorf("%w\n%s", err, x.Stderr)
		}
		return string(out), err
	}
	out, err := call("--method", "tools/list")
	if err != nil && strings.Contains(err.Error(), "SyntaxError") {
		t.Skipf("this node does not run it: %v", err)
	}
	var list struct {
		Tools []struct {
			Name        string
			InputSchema struct{ Type string }
		}
	}
	if jerr := json.Unmarshal([]byte(out), &list); err != nil || jerr != nil || len(list.Tools) != 8 || list.Tools[0].InputSchema.Type != "object" {
		t.Fatalf("%v, %v\n%s", err, jerr, out)
	}
	var got struct {
		Content           []struct{ Type, Text string }
		StructuredContent struct {
			OK      bool
			Results []string
		}
		IsError bool
	}
	out, err = call("--method", "tools/call", "--tool-name", "run_code", "--tool-arg", "code=6*7")
	if jerr := json.Unmarshal([]byte(out), &got); err != nil || jerr != nil || got.IsError || !got.StructuredContent.OK || len(got.StructuredContent.Results) != 1 || got.StructuredContent.Results[0] != "42" {
		t.Errorf("%v, %v\n%s", err, jerr, out)
	}
	out, err = call("--method", "tools/call", "--tool-name", "run_command", "--tool-arg", "command=exit 3")
	if jerr := json.Unmarshal([]byte(out), &got); err != nil || jerr != nil || !got.IsError || got.StructuredContent.OK || !strings.Contains(got.Content[0].Text, "[exit 3 in kern") {
		t.Errorf("%v, %v\n%s", err, jerr, out)
	}
	out, err = call("--method", "resources/templates/list")
	if err != nil || !strings.Contains(out, "kern-sbx://output/") {
		t.Errorf("%v\n%s", err, out)
	}
	if left := h.left(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
