package hints

import (
	"strings"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/term"
)

// Facts is what a hint may look at. Texts in it come from the user or from the
// box; a hint that quotes one makes it safe to print first.
type Facts struct {
	Fault    string // fault type, "" for none
	ExitCode int
	Argv     []string
	// ImageGiven is true when the user chose a root; Image is its name.
	ImageGiven bool
	Image      string
	// IsImage says whether a word is the name of an image on this machine.
	IsImage func(string) bool
	// IsHostFile says whether a word is the path of a regular file here.
	IsHostFile func(string) bool
	// ColdImage is true when the start took too long with an image that was
	// unpacked only just now.
	ColdImage bool
	// PullFailed is true when the image could not be fetched.
	PullFailed bool
	// HostTool is where the command was found on the host outside what the
	// host root brings, "" when it was not looked for or not found.
	HostTool string
	// Lang is the language of -c or -f, "" with a command.
	Lang string
	// StdinWaiting is true when bytes wait on a standard input that the box
	// was not given.
	StdinWaiting bool
	// TimeoutIsDefault is true when the user set no --timeout.
	TimeoutIsDefault bool
	Timeout          time.Duration
	// Stderr is the beginning of what the code wrote there.
	Stderr []byte
	// Egress is true when the box had kern's proxy and nothing else.
	Egress bool
	// NoTmp is true when the user took the default /tmp away.
	NoTmp bool
	// CIOrders is true when the box printed what the CI runner would obey.
	CIOrders bool
	// SecretFlag is a variable that looks like a secret and whose value was
	// written on the command line.
	SecretFlag string
}

// Hint is one entry of the table.
type Hint struct {
	// ID names it in JSON and for `kern-sbx explain`.
	ID string
	// Why is one sentence about what happened.
	Why string
	// Flag is what to add or change, as typed; "" when no flag helps.
	Flag string
}

// rule is one row: match gives the hint that applies, or false.
type rule struct {
	id    string
	match func(*Facts) (why, flag string, ok bool)
}

// imageNames are the images that people name most. A first word that is one of
// them was meant as docker means it.
var imageNames = map[string]bool{
	"alpine": true, "ubuntu": true, "debian": true, "busybox": true, "fedora": true, "archlinux": true,
	"node": false, "python": false, // commands as well
}

func table() []rule {
	return []rule{
		{"image-as-command", func(f *Facts) (string, string, bool) {
			if f.Fault != "exec_failed" && f.Fault != "startup_failed" || f.ImageGiven || f.Lang != "" || len(f.Argv) == 0 {
				return "", "", false
			}
			word := f.Argv[0]
			name, _, tagged := strings.Cut(word, ":")
			if !imageNames[name] && !(tagged && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789./_-") == "") &&
				(f.IsImage == nil || !f.IsImage(word)) {
				return "", "", false
			}
			return quote(word) + " looks like an image", "--image " + quote(word) + " --" + join(f.Argv[1:]), true
		}},
		{"host-file", func(f *Facts) (string, string, bool) {
			if f.Fault != "exec_failed" || f.Lang != "" || len(f.Argv) == 0 || f.IsHostFile == nil || !f.IsHostFile(f.Argv[0]) {
				return "", "", false
			}
			if strings.HasSuffix(f.Argv[0], ".py") || strings.HasSuffix(f.Argv[0], ".js") || strings.HasSuffix(f.Argv[0], ".sh") {
				return quote(f.Argv[0]) + " is a file on this machine, which the box does not see", "-f " + quote(f.Argv[0]), true
			}
			return quote(f.Argv[0]) + " is a file on this machine, which the box does not see", "-W .", true
		}},
		{"host-tool", func(f *Facts) (string, string, bool) {
			if f.Fault != "exec_failed" || f.HostTool == "" || len(f.Argv) == 0 {
				return "", "", false
			}
			return quote(f.Argv[0]) + " is on this machine at " + quote(f.HostTool) + ", outside what the host image brings", "--host-tool " + quote(f.Argv[0]), true
		}},
		{"no-interpreter", func(f *Facts) (string, string, bool) {
			if f.Fault != "exec_failed" || f.Lang == "" {
				return "", "", false
			}
			return "the image has no interpreter for " + f.Lang, "--image REF with one in it, or another --lang", true
		}},
		{"no-image", func(f *Facts) (string, string, bool) {
			return "no registry answered, and the image is not on this machine; this machine's own programs need neither", "--image host", f.Fault == "startup_failed" && f.PullFailed
		}},
		{"cold-image", func(f *Facts) (string, string, bool) {
			return "the image was unpacked only just now, and its first read can be slow; a second run may do", "--start-timeout 2m", f.Fault == "startup_failed" && f.ColdImage
		}},
		{"default-timeout", func(f *Facts) (string, string, bool) {
			if f.Fault != "timeout" || !f.TimeoutIsDefault {
				return "", "", false
			}
			return "a run may take " + f.Timeout.String() + " unless told otherwise", "--timeout 10m", true
		}},
		{"home-read-only", func(f *Facts) (string, string, bool) {
			if f.ExitCode == 0 || f.Fault != "" || !mentionsReadOnlyHome(f.Stderr) {
				return "", "", false
			}
			return "HOME lies in the box's read-only root", "--env HOME=/workspace", true
		}},
		{"egress-not-http", func(f *Facts) (string, string, bool) {
			if !f.Egress || f.ExitCode == 0 || !mentionsNoRoute(f.Stderr) {
				return "", "", false
			}
			return "with --egress-allow a box has no route and no name server, only an HTTP proxy (HTTP_PROXY, HTTPS_PROXY); a client that cannot use one has no way out", "--network host, if the code may have all of the network", true
		}},
		{"tmp-missing", func(f *Facts) (string, string, bool) {
			return "without a /tmp, writes there fail with EROFS, and what picks a place by itself (tempfile, mktemp -p) leaves its scratch in the workspace", "--tmpfs /tmp:64m", f.NoTmp
		}},
		{"ci-orders", func(f *Facts) (string, string, bool) {
			return "the box printed lines that GitHub Actions obeys as workflow commands", "--ci-fence", f.CIOrders
		}},
		{"secret-in-argv", func(f *Facts) (string, string, bool) {
			name := quote(f.SecretFlag)
			return "a value on the command line can be read by every user of this machine; " + name + " looks like a secret", "-e " + name + " with the value in your environment, or --env-file <(...)", f.SecretFlag != ""
		}},
		{"stdin-not-attached", func(f *Facts) (string, string, bool) {
			return "standard input was not given to the box", "-i", f.StdinWaiting
		}},
	}
}

func quote(s string) string {
	s = term.VisibleLine(s)
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func join(words []string) string {
	s := ""
	for _, w := range words {
		s += " " + quote(w)
	}
	return s
}

func mentionsReadOnlyHome(b []byte) bool {
	for line := range strings.Lines(string(b)) {
		if strings.Contains(strings.ToLower(line), "read-only file system") && (strings.Contains(line, "/root") || strings.Contains(line, "/home")) {
			return true
		}
	}
	return false
}

// mentionsNoRoute knows what a client says that found no route or no name.
func mentionsNoRoute(b []byte) bool {
	text := strings.ToLower(string(b))
	for _, s := range []string{
		"network is unreachable", "enetunreach", "name or service not known", "temporary failure in name resolution",
		"could not resolve", "could not translate host name", "getaddrinfo", "no such host", "eai_again", "enotfound",
	} {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}

// Find gives the first hint of the table that applies.
func Find(f *Facts) (Hint, bool) {
	for _, r := range table() {
		if why, flag, ok := r.match(f); ok {
			return Hint{r.id, why, flag}, true
		}
	}
	return Hint{}, false
}

// IDs lists the table's entries in order.
func IDs() []string {
	var ids []string
	for _, r := range table() {
		ids = append(ids, r.id)
	}
	return ids
}
