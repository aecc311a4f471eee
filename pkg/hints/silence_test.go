package hints_test

import (
	"strings"
	"testing"

	"github.com/kern-sbx/kern-sbx/pkg/hints"
)

// TestSilence has what fails for reasons of its own and says words that a box in the
// way would be known by. Nothing may be printed after it: a hint that does not help
// is worse than none, and one that opens the box the worst.
func TestSilence(t *testing.T) {
	traceback := func(before, last string) string {
		return before + "\nTraceback (most recent call last):\n  File \"/workspace/x.py\", line 3, in <module>\n    main()\n" + last
	}
	for _, f := range []*hints.Facts{
		// Their own exceptions, after complaints that they went on from.
		box("python3 x.py", traceback("mkdir: cannot create directory '/root/.cache': Read-only file system", "ValueError: invalid literal for int() with base 10: 'x'")),
		box("python3 x.py", traceback("curl: (6) Could not resolve host: example.org", "myapp.errors.ConfigError: no such section")),
		box("python3 x.py", traceback("OSError: [Errno 28] No space left on device: '/tmp/x'", "myapp.Broken: it was that")),
		box("python3 x.py", traceback("RuntimeError: can't start new thread", "KeyError: 'name'")),
		box("python3 x.py", traceback("Temporary failure in name resolution, using the cache", "AssertionError")),
		box("node x.js", "getaddrinfo EAI_AGAIN telemetry.example\n/workspace/x.js:9\n    throw new ConfigError('port')\n    ^\n\nConfigError: port\n    at f (/workspace/x.js:9:11)\n    at g (/workspace/x.js:12:1)\n    at h (/workspace/x.js:13:1)\n    at i (/workspace/x.js:14:1)\n    at j (/workspace/x.js:15:1)\n    at k (/workspace/x.js:16:1)\n    at l (/workspace/x.js:17:1)\n    at m (/workspace/x.js:17:1)\n\nNode.js v20.20.2"),
		box("java X", "java.net.UnknownHostException: metrics.example\nException in thread \"main\" java.lang.IllegalStateException: two of them\n\tat X.main(X.java:4)"),
		box("./x", "WARN could not connect: Network is unreachable\nthread 'main' panicked at src/main.rs:2:5:\nindex 9\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace", exit(101)),

		// Tests, whatever they are about.
		box("python3 -m unittest", "E\n======\nERROR: test_a (__main__.T.test_a)\n------\nTraceback (most recent call last):\n  File \"x.py\", line 4, in test_a\nOSError: [Errno 101] Network is unreachable\n\n------\nRan 1 test in 0.008s\n\nFAILED (errors=1)"),
		box("python3 -m unittest", "F\nAssertionError: 'Permission denied' != 'No space left on device: /tmp/x'\n\nRan 2 tests in 0.1s\n\nFAILED (failures=1)"),
		box("npx jest", "FAIL src/a.test.js\n  ● fetches\n    getaddrinfo ENOTFOUND api.example\n\nTest Suites: 1 failed, 1 total\nTests:       1 failed, 1 total\nTime:        0.4 s\nRan all test suites."),
		box("cargo test", "   Compiling x v0.1.0\nRead-only file system (os error 30) '/root/x'\nerror: test failed, to rerun pass `--lib`", exit(101)),
		box("ctest", "bind() to 0.0.0.0:80 failed (13: Permission denied)\nErrors while running CTest", exit(8)),
		box("npm test", "npm error code ELIFECYCLE\nlisten EACCES: permission denied 0.0.0.0:80\nnpm error Lifecycle script `test` failed with error:\nnpm error code 1"),

		// Spelling.
		box("npm run biuld", "npm error Missing script: \"biuld\"\nnpm error\nnpm error To see a list of scripts, run:\nnpm error   npm run"),
		box("git comit", "git: 'comit' is not a git command. See 'git --help'."),
		box("ls --colour-scheme", "ls: unrecognized option '--colour-scheme'\nTry 'ls --help' for more information.", exit(2)),
		box("cat fiel.txt", "cat: fiel.txt: No such file or directory"),
		box("sh x.sh", "x.sh: 3: pyhton3: not found", exit(127)),
		box("make instal", "make: *** No rule to make target 'instal'.  Stop.", exit(2)),
		box("curl -s https//x", "curl: (3) URL rejected: Port number was not a decimal number between 0 and 65535", exit(3)),
		box("python3 x.py", "  File \"x.py\", line 1\n    prnt('Permission denied'\n        ^\nSyntaxError: '(' was never closed"),
		box("bash x.sh", "x.sh: line 2: syntax error near unexpected token `done'", exit(2)),

		// Words of a kind, in a text that is about something else.
		box("./app", "user bob: permission denied for table accounts"),
		box("psql", "ERROR:  permission denied for schema public"),
		box("ssh -p 22 git@example.com", "git@example.com: Permission denied (publickey,password).", exit(255), online),
		box("./pay", "error: transfer operation not permitted for this account"),
		box("./app", "18:54:55 bind failed: permission denied by policy"),
		box("nginx", "2026/11/29 18:54:55 [emerg] 1#1: bind() to unix:/workspace/x.sock failed (13: Permission denied)"),
		box("./app", "listen: 10:02 permission denied"),
		box("./app", "bind to 0.0.0.0:8080: permission denied"),
		box("./queue", "queue /data: no space left on device quota of the tenant"),
		box("./app", "cannot write /workspace/out/part-0001: No space left on device"),
		box("./app", "inotify: ENOSPC: System limit for number of file watchers reached, watch '/tmp/x'"),
		box("./fs-tool", "the image is a read-only file system and cannot be converted"),
		box("touch /etc/x", "touch: cannot touch '/etc/x': Read-only file system"),
		box("touch /usr/x", "touch: cannot touch '/usr/x': Read-only file system"),
		box("./app", "read: Resource temporarily unavailable"),
		box("./app", "connect to 127.0.0.1 port 5432: Connection refused"),
		box("./app", "host example.com: no route found in routes.rb"),
		box("./app", "error: 'network' is unreachable code"),
		box("tsc", "src/a.ts(3,1): error TS7027: Unreachable code detected.", exit(2)),
		box("mvn x", "Could not resolve dependencies for project x"),
		box("webpack", "Module not found: Error: Can't resolve './x' in '/workspace'"),
		box("./app", "response 403 from the upstream", proxied),
		box("curl https://x", "curl: (22) The requested URL returned error: 403", proxied, exit(22)),
		box("curl https://x", "curl: (60) SSL certificate problem: self-signed certificate", online, exit(60)),
		box("./app", "x509: certificate has expired or is not yet valid", online),
		box("./build.sh", "cat: /var/lib/apt/lists/partial/x: No such file or directory"),
		box("sh build.sh", "cat: /var/lib/apt/lists/partial/x: No such file or directory"),
		box("./app", "warning: this tool should not be run as root\nerror: no input"),
		box("./app", "mount point of the camera: permission denied by user"),
		box("./app", "ptrace.c:12: undefined reference to `x'"),
		box("./lisp", "tower: chown is not a function, operation skipped"),
		box("./app", "stdin is not a tty, taking defaults\n1\n2\n3\n4\n5\n6\nerror: default x is unknown"),
		box("ruby x.rb", "x.rb:1:in `f': undefined method `us_ascii' for nil (NoMethodError)"),
		box("./app", "out of memory cards"),
		box("./app", "liburing: io_uring support enabled\nfatal: no such job file"),
		box("./app", "git: dubious ownership is nine tenths of the law"),
		box("./app", "sqlite: the database is locked"),
		box("wget x", "usage: wget [URL]", exit(2)),
		box("pip install --no-index x", "ERROR: No matching distribution found for x"),

		// What went on by itself.
		box("./app", "warning: cannot create /root/.config: Read-only file system; continuing without\nerror: no such recipe"),
		box("npm run x", "npm warn getaddrinfo EAI_AGAIN registry.example\nnpm error command failed"),
		box("./app", "telemetry: Could not resolve host: t.example\nfatal: bad config line 3"),
		box("./app", "update check skipping: Network is unreachable\nfatal: bad config line 3"),

		// A signal of its own: nobody wrote down why.
		box("./app", "open /root/.x: Read-only file system", exit(139)),
		box("./app", "Could not resolve host: example.org", exit(143)),
		box("timeout -s KILL 1 ./app", "Could not resolve host: example.org", exit(137)),

		// It ended well.
		box("./app", "ENOSPC: no space left on device, write /tmp/x\nretried, and done", ended),
		box("./app", "curl: (6) Could not resolve host: example.org", ended),
		box("./app", "fork failed: Resource temporarily unavailable", ended),
		box("./app", "bind() to 0.0.0.0:80 failed (13: Permission denied)", ended),
		box("./app", "mkdir() \"/var/lib/nginx/body\" failed (30: Read-only file system)", ended),
		box("./app", "open() \"/var/log/nginx/error.log\" failed (13: Permission denied)", ended, withCaps),
		box("env", "MPLCONFIGDIR=/root/.config/matplotlib", ended),
		box("python3 x.py", "mkdir -p failed for path /root/.config/matplotlib: [Errno 30] Read-only file system\nerror: no such column"),
	} {
		for _, late := range []bool{false, true} {
			if late {
				f.Stderr, f.StderrTail = []byte(strings.Repeat("step\n", 2000)), append([]byte("step\n"), f.Stderr...)
			}
			if h, ok := hints.Find(f); ok {
				t.Errorf("%v, late %v:\n%s\n gives %s: %s; %s", f.Argv, late, strings.TrimLeft(string(f.Stderr)+string(f.StderrTail), "step\n"), h.ID, h.Why, h.Flag)
			}
		}
	}
}

// TestOpens: what opens a box is said to do so, and nothing but network, one
// capability, one name, or a user is offered untried.
func TestOpens(t *testing.T) {
	for _, c := range textCases {
		h, ok := hints.Find(c.f)
		if !ok {
			continue
		}
		opens := strings.Contains(h.Flag, "--cap-") || strings.Contains(h.Flag, "--network") || strings.Contains(h.Flag, "--user") || strings.Contains(h.Flag, "--writable")
		if opens && !h.Relaxes {
			t.Errorf("%s offers %s as if it cost nothing", h.ID, h.Flag)
		}
		if strings.Contains(h.Flag, "--cap-drop none") && h.ID != "file-caps" && h.ID != "unmapped-owner" {
			t.Errorf("%s offers all capabilities", h.ID)
		}
	}
}
