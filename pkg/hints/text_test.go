package hints_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/hints"
)

type change = func(*hints.Facts)

// box is a default box whose command failed with a text.
func box(argv, stderr string, changes ...change) *hints.Facts {
	f := &hints.Facts{
		ExitCode: 1, Argv: strings.Fields(argv), Stderr: []byte(stderr), NoStdin: true, ImageGiven: true,
		Memory: 512 << 20, MemoryCapped: true, PIDs: 256, PIDsCapped: true, Tmp: 64 << 20, Timeout: 30 * time.Second,
	}
	for _, c := range changes {
		c(f)
	}
	return f
}

func given(name string) change {
	return func(f *hints.Facts) { f.EnvGiven = func(k string) bool { return k == name } }
}

func fault(name, message string) change {
	return func(f *hints.Facts) { f.Fault, f.Message = name, message }
}
func home(h string) change     { return func(f *hints.Facts) { f.Home = h } }
func exit(n int) change        { return func(f *hints.Facts) { f.ExitCode = n } }
func here(name string) change  { return func(f *hints.Facts) { f.IsHostFile = word(name) } }
func mounted(d string) change  { return func(f *hints.Facts) { f.ReadOnlyMounts = []string{d} } }
func uncapped(f *hints.Facts)  { f.MemoryCapped, f.PIDsCapped = false, false }
func online(f *hints.Facts)    { f.HostNetwork = true }
func proxied(f *hints.Facts)   { f.Egress = true }
func kept(f *hints.Facts)      { f.Kept = true }
func ended(f *hints.Facts)     { f.ExitCode = 0 }
func withCaps(f *hints.Facts)  { f.Caps = true }
func noTmp(f *hints.Facts)     { f.Tmp, f.NoTmp = 0, true }
func asUser(f *hints.Facts)    { f.User = "1000" }
func onTTY(f *hints.Facts)     { f.TTY = true }
func roomy(f *hints.Facts)     { f.Memory = 2 << 30 }
func depsFixed(f *hints.Facts) { f.ReadOnlyDeps = true }
func head(s string) change {
	return func(f *hints.Facts) { f.ProgramHead = func(string) []byte { return []byte(s) } }
}

const noNetFlag = "--egress-allow DOMAIN for HTTP alone, or --network host"

const notThere = "kern: cannot start it in box: No such file or directory (os error 2)"

// textCases are what real tools print, each with the row that has to know it (first
// of Match, when run prints it), the flag that run has to print ("-" when it prints
// nothing), and remedies that have to be among those to try, if any.
var textCases = []struct {
	id, flag string
	f        *hints.Facts
	remedies []string
}{
	{"bad-interpreter", "", box("./run.sh", "", fault("exec_failed", notThere), head("#!/bin/sh\r\necho\r\n")), nil},
	{"bad-interpreter", "", box("./run.sh", "", fault("exec_failed", notThere), head("#!/usr/bin/foo -x\n")), nil},
	{"", "-", box("./run.sh", "", fault("exec_failed", "kern: cannot start it in box: Permission denied (os error 13)"), head("#!/bin/sh\n")), nil}, // not executable
	{"", "-", box("./run", "", fault("exec_failed", notThere), head("\x7fELF\n")), nil},
	{"", "-", box("run", "", fault("exec_failed", notThere), head("#!/x\n")), nil},
	{"file-caps", "--cap-add NET_RAW", box("ping -c1 127.0.0.1", "", fault("exec_failed", "kern: cannot start 'ping' in box: Operation not permitted (os error 1)")), []string{"--cap-drop none"}},
	{"file-caps", "--cap-drop none", box("tool", "", fault("exec_failed", "kern: cannot start 'tool' in box: Operation not permitted (os error 1)")), nil},
	{"file-caps", "--cap-add NET_RAW", box("sh -c ping", "sh: 1: ping: Operation not permitted", exit(126)), nil},
	{"exec-format", "", box("./x", "", fault("exec_failed", "kern: cannot start './x' in box: Exec format error (os error 8)")), nil},
	{"workdir", "-w /workspace, or -v to mount the directory at that path", box("true", "", fault("startup_failed", "--workdir /x: chdir(workdir) failed: No such file or directory (os error 2)")), nil},
	{"no-such-user", "", box("true", "", fault("startup_failed", "cannot drop to the target gid - it isn't mapped into the box")), nil},
	{"install-offline", "--network host", box("npm install x", "", fault("timeout", "")), nil},
	{"short-timeout", "-", box("npm install x", "", fault("timeout", ""), online), nil},
	{"short-timeout", "-", box("npm test", "", fault("timeout", "")), []string{"--init", "--timeout 2m0s"}},
	{"compiler-memory", "--memory 1g", box("make -j8", "g++: fatal error: Killed signal terminated program cc1plus", fault("oom", "")), []string{"--memory 2g"}},
	{"memory-cap", "-", box("python3 x.py", "", fault("oom", "")), []string{"--memory 1g"}},
	{"workspace-limit", "-", box("dd", "", fault("workspace_full", "")), []string{"--workspace-max none"}},
	{"tracer", "", box("strace true", "", fault("escape_blocked", "")), nil},
	{"killed-inside", "-", box("timeout -s KILL 1 sleep 9", "", exit(137)), nil},

	// The program's own.
	{"own-error", "-", box("python3 x.py", "open /root/.x: Read-only file system\nTraceback (most recent call last):\nValueError: no"), nil},
	{"own-error", "-", box("node x.js", "ReferenceError: x is not defined\n    at x.js:1\n\nNode.js v20.20.2"), nil},
	{"own-error", "-", box("npm run biuld", "npm error Missing script: \"biuld\"\nnpm error\nnpm error Log files were not written due to an error writing to the directory: /root/.npm/_logs"), nil},
	{"own-error", "-", box("python3 -c x.flock", "BlockingIOError: [Errno 11] Resource temporarily unavailable"), nil},
	{"own-error", "-", box("pip install x", "error: externally-managed-environment"), nil},
	{"own-error", "-", box("python3 x", "OSError: [Errno 98] Address already in use"), nil},
	{"", "-", box("python3 x", "OSError: [Errno 98] Address already in use", online), nil},
	{"missing-module", "-", box("python3 x.py", "ModuleNotFoundError: No module named 'numpy'"), nil},
	{"missing-module", "-", box("node x.js", "Error: Cannot find module 'x'\nNode.js v20"), nil},
	{"heap-option", "", box("java -Xmx64m H", "Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space\n\tat H.main(H.java:1)"), nil},
	{"heap-option", "", box("node x.js", "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory", given("NODE_OPTIONS")), nil},
	{"heap-follows-cap", "--memory 2g", box("node x.js", "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory\n 1: 0xb7 node::OOMErrorHandler", exit(134)), []string{"--memory 1g"}},
	{"", "-", box("node x.js", "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory", uncapped), nil},
	{"memory-refused", "-", box("java H", "# There is insufficient memory for the Java Runtime Environment to continue."), nil},

	// Processes and files.
	{"pids", "--pids-limit 1024", box("python3 x", "  File \"/usr/lib/python3.11/threading.py\", line 957, in start\nRuntimeError: can't start new thread"), nil},
	{"pids", "--pids-limit 1024", box("sh x", "sh: 0: Cannot fork", exit(2)), nil},
	{"pids", "--pids-limit 1024", box("bash x", "bash: fork: retry: Resource temporarily unavailable"), nil},
	{"pids", "--pids-limit 1024", box("node x", "  errno: -11,\n  code: 'EAGAIN',\n  syscall: 'spawn sleep',\n}\nNode.js v20.20.2"), nil},
	{"pids", "--pids-limit 1024", box("java x", "java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory or process/resource limits reached"), nil},
	{"pids", "--pids-limit 1024", box("x", "runtime: failed to create new OS thread (have 9 already; errno=11)"), nil},
	{"pids", "--pids-limit 1024", box("x", "thread 'main' panicked: failed to spawn thread: Os { code: 11, kind: WouldBlock, message: \"Resource temporarily unavailable\" }", exit(101)), nil},
	{"pids", "--pids-limit 1024", box("x", "OpenBLAS blas_thread_init: pthread_create failed for thread 5 of 64: Resource temporarily unavailable"), nil},
	{"", "-", box("sh x", "sh: 0: Cannot fork", uncapped), nil},
	{"", "-", box("x", "read: Resource temporarily unavailable"), nil},
	{"", "-", box("x", "spawn failed: [Errno 111] Connection refused"), nil},
	{"files-open", "-", box("x", "OSError: [Errno 24] Too many open files: '/dev/null'"), nil},

	// Places that cannot be written to.
	{"protected-dir", "--writable .git", box("git init", "fatal: cannot copy '/usr/share/git-core/templates/description' to '/workspace/.git/description': Read-only file system", kept, exit(128)), nil},
	{"protected-dir", "--writable .git", box("touch .git/x", "touch: cannot touch '.git/x': Read-only file system", kept), nil},
	{"", "-", box("touch .github/x", "touch: cannot touch '.github/x': Read-only file system", kept), nil},
	{"read-only-deps", "--deps-readonly=false", box("x", "open: /workspace/.deps/a: Read-only file system", depsFixed), nil},
	{"mounted-read-only", "-v without :ro", box("touch /data/x", "touch: cannot touch '/data/x': Read-only file system", mounted("/data")), nil},
	{"", "-", box("touch /database/x", "touch: cannot touch '/database/x': Read-only file system", mounted("/data")), nil},
	{"package-manager", "--image REF with the package in it", box("apk add git", "ERROR: Unable to lock database: Read-only file system\nERROR: Failed to open apk database: Read-only file system"), nil},
	{"package-manager", "--image REF with the package in it", box("apt-get install hello", "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (30: Read-only file system)\nE: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), are you root?", exit(100)), nil},
	{"pip-root", "--setup 'pip install NAME'", box("pip install x", "ERROR: Could not install packages due to an OSError: [Errno 30] Read-only file system: '/usr/local/lib/python3.12/site-packages/x'"), []string{"--env PIP_TARGET=/workspace/.deps --env PYTHONPATH=/workspace/.deps"}},
	{"npm-global", "--env npm_config_prefix=/workspace/.npm-global", box("npm i -g x", "npm error code EROFS\nnpm error syscall mkdir\nnpm error path /usr/local/lib/node_modules/x\nnpm error rofs EROFS: read-only file system"), nil},
	{"gem-root", "--env GEM_HOME=/workspace/.gem", box("gem install x", "ERROR:  While executing gem ... (Gem::FilePermissionError)\n    You don't have write permissions for the /var/lib/gems/3.1.0 directory."), nil},
	{"r-library", "--env R_LIBS=/workspace", box("R CMD INSTALL rp", "Error: ERROR: no permission to install to directory '/usr/local/lib/R/site-library'"), nil},
	{"ssh-home", "--tmpfs /root:16m", box("ssh-keygen", "Could not create directory '/root/.ssh' (Read-only file system).\nSaving key \"/root/.ssh/id_ed25519\" failed: No such file or directory"), nil},
	{"ssh-home", "--tmpfs /root:16m", box("ssh-keygen", "Could not create directory '/root/.ssh' (Read-only file system).", home("/workspace")), nil},
	{"npm-cache", "--env HOME=/workspace", box("npm install tiny", "npm error code ENOENT\nnpm error syscall mkdir\nnpm error path /root/.npm\nnpm error enoent Invalid response body while trying to fetch http://127.0.0.1:4873/tiny: ENOENT: no such file or directory, mkdir '/root/.npm'"), nil},
	{"go-cache", "--env HOME=/workspace", box("go build", "failed to initialize build cache at /root/.cache/go-build: mkdir /root/.cache: read-only file system"), nil},
	{"go-cache", "--env HOME=/workspace", box("go build", "build cache is required, but could not be located: GOCACHE is not defined and neither $XDG_CACHE_HOME nor $HOME are defined", kept), []string{"--tmpfs /home:256m --env HOME=/home"}},
	{"home-read-only", "--env HOME=/workspace", box("cargo install", "error: failed to open: /root/.cargo/.crates.toml\n\nCaused by:\n  Read-only file system (os error 30)", exit(101)), nil},
	{"home-read-only", "--env HOME=/workspace", box("gpg", "gpg: Fatal: can't create directory '/root/.gnupg': Read-only file system", exit(2)), nil},
	{"home-read-only", "--env HOME=/workspace", box("x", "mkdir /.cache: permission denied", asUser, home("/")), nil},
	{"home-read-only", "--tmpfs /root:64m", box("x", "mkdir /root/.x: read-only file system", home("/workspace")), nil},
	{"", "-", box("x", "mkdir /workspace/x/y: read-only file system", home("/workspace")), nil},
	{"", "-", box("x", "open /rootfs/x: read-only file system"), nil},
	{"cache-noise", "-", box("x", "WARNING: cannot create /root/.cache: Read-only file system, it has been disabled\nfailed"), nil},
	{"tmp-full", "--env TMPDIR=/workspace", box("sort -o out in", "sort: write failed: /tmp/sorte3VN2u: No space left on device", exit(2)), []string{"--tmpfs /tmp:256m", "--tmpfs /tmp:512m --memory 1g"}},
	{"tmp-full", "--env GOTMPDIR=/workspace", box("go build", "write /tmp/go-build12/b001/x: no space left on device"), nil},
	{"tmp-full", "--tmpfs /tmp:256m", box("x", "cannot write /tmp/out.bin: No space left on device"), nil},
	{"tmp-full", "--tmpfs /tmp:256m", box("node x.js", "node:fs:600\n    throw\n    ^\n\nError: ENOSPC: no space left on device, write '/tmp/out'\n    at f (x.js:1)\n  errno: -28,\n  code: 'ENOSPC'\n}\n\nNode.js v20.20.2"), nil},
	{"tmp-full", "--tmpfs /tmp:512m", box("x", "cannot write /tmp/out.bin: No space left on device", roomy), nil},
	{"tmp-full", "--env HOME=/workspace", box("npm i x", "npm error ENOSPC: no space left on device, write /tmp/.npm/_cacache/tmp/a", home("/tmp")), nil},
	{"", "-", box("x", "cannot write /workspace/out.bin: No space left on device"), nil},
	{"tmp-missing", "--tmpfs /tmp:64m", box("x", "cannot write /tmp/out.bin: No space left on device", noTmp), nil},
	{"", "-", box("x", "Error: ENOSPC: System limit for number of file watchers reached, watch '/tmp/x'"), nil},
	{"sqlite-full", "--env TMPDIR=/workspace for temporary files, or --tmpfs /tmp:256m", box("sqlite3 x.db q", "Error: stepping, database or disk is full (13)", exit(13)), nil},
	{"sqlite-full", "--tmpfs /tmp:256m", box("sqlite3 /tmp/x.db q", "Error: stepping, database or disk is full (13)", exit(13)), nil},
	{"sqlite-open", "-", box("sqlite3 /root/x.db q", "Error: unable to open database \"/root/x.db\": unable to open database file"), nil},
	{"across-file-systems", "--env TMPDIR=/workspace", box("python3 x", "OSError: [Errno 18] Invalid cross-device link: '/tmp/tmprdvuwzie' -> '/workspace/out'"), nil},
	{"", "-", box("ln /tmp/a b", "ln: failed to create hard link 'b' => '/tmp/a': Invalid cross-device link"), nil},
	{"read-only-root", "--tmpfs /run:16m", box("sh x", "mkdir: cannot create directory '/run/sshd': Read-only file system"), nil},
	{"read-only-root", "--tmpfs /run:16m", box("nginx", "open(\"/var/run/nginx.pid\") failed (30: Read-only file system)"), nil},
	{"read-only-root", "--tmpfs /var/cache/nginx:16m", box("nginx", "mkdir() \"/var/cache/nginx/client_temp\" failed (30: Read-only file system)"), nil},
	{"read-only-root", "--tmpfs /var/lib/nginx:16m", box("nginx", "mkdir() \"/var/lib/nginx/body\" failed (30: Read-only file system)"), nil},
	{"read-only-root", "--tmpfs /var/lib/app:16m", box("app", "mkdir /var/lib/app: read-only file system"), nil},
	{"read-only-root", "--tmpfs /var/lib/app:16m", box("sh x", "x: 1: cannot create /var/lib/app/state: Read-only file system"), nil},
	{"read-only-root", "--tmpfs /var/log/app:4m", box("sh x", "x: 1: cannot create /var/log/app/x.log: Read-only file system"), []string{"--tmpfs /var/log/app:4m"}},
	// What is there may be what it is about, and no single program has all of /var/lib.
	{"read-only-root", "-", box("redis-server", "Can't open the append-only file /var/lib/redis/aof: Read-only file system"), []string{"--tmpfs /var/lib/redis:16m"}},
	{"read-only-root", "-", box("postgres", "could not create lock file \"/var/lib/postgresql/15/main/postmaster.pid\": Read-only file system"), nil},
	{"", "-", box("sh x", "x: 1: cannot create /var/lib/state: Read-only file system"), nil},
	{"", "-", box("x", "touch: cannot touch '/etc/x': Read-only file system"), nil},
	{"shared-memory", "-", box("python3 x", "It is possible that dataloader's workers are out of shared memory."), nil},
	{"file-too-large", "-", box("dd", "File size limit exceeded", exit(153)), nil},

	// Networks.
	{"own-name", "--hostname localhost", box("python3 -c socket.gethostbyname(socket.gethostname())", "socket.gaierror: [Errno -3] Temporary failure in name resolution"), nil},
	{"egress-domain", "--egress-allow with that domain as well", box("curl https://x", "curl: (56) CONNECT tunnel failed, response 403", proxied), nil},
	{"egress-domain", "", box("pip x", "OSError: Tunnel connection failed: 502 Bad Gateway", proxied), nil},
	{"egress-not-http", "--network host", box("psql", "could not translate host name \"db\" to address: Temporary failure in name resolution", proxied), nil},
	{"pip-offline", "--setup 'pip install NAME'", box("pip install six", "ERROR: Could not find a version that satisfies the requirement six (from versions: none)\nERROR: No matching distribution found for six"), []string{"--network host"}},
	{"", "-", box("pip install sixx", "ERROR: No matching distribution found for sixx", online), nil},
	{"", "-", box("pip install --no-index s", "ERROR: No matching distribution found for s"), nil},
	{"no-network", noNetFlag, box("git clone", "fatal: unable to access 'http://example.com/x/': Could not resolve host: example.com", exit(128)), []string{"--network host"}},
	{"no-network", noNetFlag, box("node x", "  code: 'EAI_AGAIN',\n  syscall: 'getaddrinfo',\nNode.js v20"), nil},
	{"no-network", "-", box("curl", "curl: (7) Failed to connect to 127.0.0.1 port 5432: Connection refused"), nil},
	{"", "-", box("python3 x", "FileNotFoundError: [Errno 2] No such file or directory: '/var/tmp/d.csv'"), nil},
	{"", "-", box("mvn x", "Could not resolve dependencies for project x"), nil},
	{"no-network", noNetFlag, box("python3 x.py", "WARNING: slow\nTraceback (most recent call last):\n  File \"a.py\", line 1, in f\nsocket.gaierror: [Errno -2] Name or service not known\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  File \"b.py\", line 2, in g\nrequests.exceptions.ConnectionError: HTTPSConnectionPool(host='x', port=443): Max retries exceeded"), nil},
	{"no-network", noNetFlag, box("python3 x.py", "fatal: unable to access 'https://x/': Could not resolve host: x\nTraceback (most recent call last):\n  File \"a.py\", line 1, in f\nsubprocess.CalledProcessError: Command '['git', 'clone']' returned non-zero exit status 128."), nil},
	{"no-network", noNetFlag, box("java X", "Exception in thread \"main\" java.lang.RuntimeException: java.net.UnknownHostException: x\n\tat X.main(X.java:4)\nCaused by: java.net.UnknownHostException: x\n\t... 1 more"), nil},
	{"no-network", noNetFlag, box("wget x", "wget: unable to resolve host address 'example.com'", exit(4)), nil},
	{"unreachable", "-", box("curl", "curl: (6) Could not resolve host: exmaple.com", online), nil},
	{"certificates", "--volume /etc/ssl/certs:/etc/ssl/certs:ro, or --image REF with ca-certificates", box("curl", "curl: (77) error setting certificate verify locations", online), nil},
	{"", "-", box("curl", "curl: (60) SSL certificate problem: self-signed certificate", online), nil},

	// Rights.
	{"git-owner", "--env GIT_CONFIG_COUNT=1 --env GIT_CONFIG_KEY_0=safe.directory --env 'GIT_CONFIG_VALUE_0=*'", box("git log", "fatal: detected dubious ownership in repository at '/workspace'", exit(128)), nil},
	{"git-identity", "-e EMAIL=YOU@EXAMPLE", box("git commit", "*** Please tell me who you are.\nfatal: unable to auto-detect email address (got 'root@x.(none)')", exit(128)), nil},
	{"tar-owner", "--env TAR_OPTIONS=--no-same-owner", box("tar xf a.tar", "tar: f: Cannot change ownership to uid 1000, gid 1000: Invalid argument\ntar: Exiting with failure status due to previous errors", exit(2)), nil},
	{"sudo", "", box("sudo -n id", "sudo: PERM_SUDOERS: setresuid(-1, 1, -1): Invalid argument"), nil},
	{"unmapped-owner", "", box("rsync -a g/ out/", "rsync: [generator] chown \"/workspace/out/.\" failed: Invalid argument (22)", exit(23)), nil},
	{"unmapped-owner", "", box("chown 1000 f", "chown: changing ownership of 'f': Invalid argument"), nil},
	{"unmapped-owner", "", box("sh x", "cp: changing ownership of 'f': Invalid argument"), []string{"--cap-drop none"}},
	{"unmapped-owner", "--cap-drop none", box("nginx", "chown(\"/var/lib/nginx/body\", 33) failed (22: Invalid argument)"), nil},
	{"unmapped-owner", "", box("nginx", "chown(\"/var/lib/nginx/body\", 33) failed (22: Invalid argument)", withCaps), nil}, // it has that, and no numbers
	{"unmapped-owner", "--tmpfs /var/log/nginx:4m", box("nginx", "open() \"/var/log/nginx/error.log\" failed (13: Permission denied)", withCaps), nil},
	{"", "-", box("nginx", "open() \"/var/log/nginx/error.log\" failed (13: Permission denied)", withCaps, asUser), nil},
	{"", "-", box("app", "open /var/lib/app/key: permission denied", withCaps), nil},
	{"no-privilege", "-", box("nginx", "open() \"/var/log/nginx/error.log\" failed (13: Permission denied)"), nil},
	{"chown", "--cap-add CHOWN", box("nginx", "chown(\"/var/cache/nginx/client_temp\", 101) failed (1: Operation not permitted)"), []string{"--cap-drop none"}},
	{"", "-", box("nginx", "chown(\"/x\", 101) failed (1: Operation not permitted)", withCaps), nil},
	{"root-refused", "--user postgres", box("initdb -D pg", "initdb: error: cannot be run as root"), []string{"--user nobody"}},
	{"", "-", box("initdb -D pg", "initdb: error: cannot be run as root", asUser), nil},
	{"low-port", "--cap-add NET_BIND_SERVICE", box("nginx", "bind() to 0.0.0.0:80 failed (13: Permission denied)"), nil},
	{"low-port", "--cap-add NET_BIND_SERVICE", box("node x", "Error: listen EACCES: permission denied 0.0.0.0:443"), nil},
	{"", "-", box("x", "bind unix /workspace/x/s.sock: permission denied"), nil},
	{"", "-", box("ssh git@example.com", "git@example.com: Permission denied (publickey)."), nil},
	{"raw-socket", "--cap-add NET_RAW", box("ping", "ping: socktype: SOCK_RAW\nping: socket: Operation not permitted", exit(2)), nil},
	{"no-privilege", "-", box("x", "setgroups: Operation not permitted"), nil},
	{"no-device", "-", box("qemu-system-x86_64 -enable-kvm", "Could not access KVM kernel module: No such file or directory\nqemu: failed to open /dev/kvm"), nil},
	{"no-daemon", "-", box("docker ps", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"), nil},
	{"network-setup", "--cap-add NET_ADMIN", box("ip addr add 10.0.0.1/8 dev lo", "RTNETLINK answers: Operation not permitted", exit(2)), nil},
	{"", "-", box("ip addr", "RTNETLINK answers: Operation not permitted", online), nil},
	{"forbidden", "", box("fio x", "fio: your kernel doesn't support io_uring"), nil},
	{"forbidden", "", box("date -s 12:00", "date: cannot set date: Operation not permitted"), nil},
	{"forbidden", "", box("mknod x c 1 3", "mknod: x: Operation not permitted"), nil},
	{"", "-", box("x", "withdrawal amount: not permitted"), nil},
	{"no-privilege", "-", box("rm -rf mod", "rm: cannot remove 'mod/a/f': Permission denied"), []string{"--cap-add DAC_OVERRIDE"}},

	// What a box does not have around it.
	{"ascii", "--env LANG=C.UTF-8", box("ruby x", "-e:1:in `split': invalid byte sequence in US-ASCII (ArgumentError)"), nil},
	{"ascii", "--env LC_ALL=C.UTF-8", box("javac X.java", "X.java:1: error: unmappable character (0xC3) for encoding US-ASCII"), nil},
	{"", "-", box("ruby x", "invalid byte sequence in US-ASCII", given("LANG")), nil},
	{"", "-", box("javac X.java", "X.java:1: error: unmappable character (0xC3) for encoding UTF-8"), nil},
	{"time-zone", "", box("x", "Traceback\nzoneinfo._common.ZoneInfoNotFoundError: 'No time zone found with key Europe/Berlin'"), nil},
	{"no-terminal", "-it", box("stty -a", "stty: 'standard input': Inappropriate ioctl for device"), nil},
	{"", "-", box("stty -a", "stty: 'standard input': Inappropriate ioctl for device", onTTY), nil},
	{"stdin-not-attached", "-i", box("python3 x", "Traceback\nEOFError: EOF when reading a line"), nil},
	{"host-path", "-W ., or --workspace-copy . for a copy of this directory", box("python3 a.py", "python3: can't open file '/workspace/a.py': [Errno 2] No such file or directory", here("./a.py"), exit(2)), nil},
	{"host-path", "--volume /data/a.csv:/data/a.csv:ro", box("cat /data/a.csv", "cat: /data/a.csv: No such file or directory", here("/data/a.csv")), nil},
	{"", "-", box("cat a.csv", "cat: /root/.ssh/id: No such file or directory", here("/root/.ssh/id")), nil},
	{"", "-", box("cat a.csv", "cat: a.csv: No such file or directory", here("./a.csv"), kept), nil},

	// Complaints of what goes on.
	{"matplotlib-cache", "--env MPLCONFIGDIR=/tmp/matplotlib", box("python3 x", "mkdir -p failed for path /root/.config/matplotlib: [Errno 30] Read-only file system\nMatplotlib created a temporary cache directory", ended), nil},
	{"matplotlib-cache", "--env MPLCONFIGDIR=/tmp/matplotlib", box("python3 x", "mkdir -p failed for path /root/.config/matplotlib: [Errno 13] Permission denied: '/root/.config/matplotlib'", ended), nil},
	{"", "-", box("python3 x", "mkdir -p failed for path /root/.config/matplotlib: [Errno 30] Read-only file system", ended, given("MPLCONFIGDIR")), nil},
	{"matplotlib-cache", "-", box("python3 x", "mkdir -p failed for path /root/.config/matplotlib: [Errno 30] Read-only file system\nno such column"), nil}, // that was not why
	{"cache-noise", "-", box("pip list", "WARNING: The directory '/root/.cache/pip' or its parent directory is not owned or is not writable by the current user. The cache has been disabled.", ended), nil},
	{"cache-noise", "-", box("x", "Fontconfig error: No writable cache directories", ended), nil},
	{"locale-noise", "-", box("perl x", "perl: warning: Setting locale failed.", ended), []string{"--env LC_ALL=C.UTF-8"}},
}

// tabled are the rows that TestTable has.
var tabled = []string{"image-as-command", "host-file", "host-tool", "no-interpreter", "no-image", "cold-image", "default-timeout", "ci-orders", "secret-in-argv"}

func TestText(t *testing.T) {
	var seen []string
	for _, c := range textCases {
		name := c.id + ": " + string(c.f.Stderr) + c.f.Message
		all := hints.Match(c.f)
		var first hints.Hint
		if c.id != "" {
			i := slices.IndexFunc(all, func(h hints.Hint) bool { return h.ID == c.id })
			if i < 0 || i > 0 && c.flag != "-" {
				t.Errorf("%s: it is at %d of %v", name, i, all)
				continue
			}
			first = all[i]
		}
		seen = append(seen, c.id)
		h, ok := hints.Find(c.f)
		switch {
		case c.flag == "-" && ok:
			t.Errorf("%s: run says %s, %s", name, h.ID, h.Flag)
		case c.flag != "-" && (!ok || h.ID != c.id || h.Flag != c.flag):
			t.Errorf("%s: run says %q, %q, want %q", name, h.ID, h.Flag, c.flag)
		}
		for _, h := range all {
			if h.Why == "" || strings.HasSuffix(h.Why, ".") || strings.ContainsAny(h.Why+h.Flag, "\n\x1b") {
				t.Errorf("%s: %q is not one clear sentence", name, h.Why)
			}
			if (h.NotSandbox || h.Unfixable) && len(h.Remedies) > 0 {
				t.Errorf("%s: %s has remedies, and none helps", name, h.ID)
			}
		}
		for _, want := range c.remedies {
			if !slices.ContainsFunc(first.Remedies, func(r hints.Remedy) bool { return r.String() == want }) {
				t.Errorf("%s: no remedy %q in %v", name, want, first.Remedies)
			}
		}
		// The end of a long stderr tells as much as its beginning.
		late := *c.f
		late.Stderr, late.StderrTail = []byte(strings.Repeat("compiling\n", 1000)), append([]byte("compiling\n"), c.f.Stderr...)
		if l, _ := hints.Find(&late); l.ID != h.ID {
			t.Errorf("%s: at the end of much output it gives %q", name, l.ID)
		}
		// A run that ended well is not explained by what it printed, but for the one
		// complaint that all take for a failure.
		good := *c.f
		if good.ExitCode = 0; good.Fault == "" && !good.NoTmp {
			if h, ok := hints.Find(&good); ok && (h.ID != "matplotlib-cache" || c.id != h.ID) {
				t.Errorf("%s: exit 0, and still %s", name, h.ID)
			}
		}
	}
	for _, id := range hints.IDs() {
		if !slices.Contains(seen, id) && !slices.Contains(tabled, id) {
			t.Errorf("no case triggers %s", id)
		}
	}
}

// TestRelaxes: what opens the box says so, and nothing else does.
func TestRelaxes(t *testing.T) {
	opens := []string{"network", "egress-allow", "cap-add", "cap-drop", "user", "volume", "writable", "host-tool", "deps-readonly"}
	for _, c := range textCases {
		for _, h := range hints.Match(c.f) {
			for _, r := range h.Remedies {
				if slices.ContainsFunc(r.Changes, func(x hints.Change) bool { return slices.Contains(opens, x.Flag) }) != r.Relaxes {
					t.Errorf("%s: %s: relaxes=%v", h.ID, r, r.Relaxes)
				}
			}
		}
	}
}

// TestLies: what hostile code prints cannot name a path of this machine to give
// it, nor put anything but plain letters into a hint.
func TestLies(t *testing.T) {
	for _, text := range []string{
		"cat: /root/.ssh/id_rsa: No such file or directory\n",
		"open /root/.aws/credentials: Read-only file system\n",
		"mkdir '/run/$(reboot)': Read-only file system\n",
		"mkdir '/var/log/../../etc/x': Read-only file system\n",
		"mkdir '/var/log/\x1b[2J/x': Read-only file system\n",
		"touch: /data:/etc/x: Read-only file system\n",
	} {
		for _, h := range hints.Match(box("cat x", text, func(f *hints.Facts) { f.IsHostFile = func(string) bool { return true } })) {
			s := h.Why + h.Flag
			for _, r := range h.Remedies {
				s += r.String()
			}
			for _, bad := range []string{".ssh/id", ".aws", "$(", "/etc", "\x1b", ".."} {
				if strings.Contains(s, bad) {
					t.Errorf("%q gives %q", text, s)
				}
			}
		}
	}
}

// TestManyLines: a hint costs little, whatever was printed.
func TestManyLines(t *testing.T) {
	noise := []byte(strings.Repeat("x\n", 1<<15))
	start := time.Now()
	hints.Match(&hints.Facts{ExitCode: 1, Stderr: noise, StderrTail: noise, Argv: []string{"x"}})
	if d := time.Since(start); d > 500*time.Millisecond {
		t.Errorf("%v", d)
	}
}
