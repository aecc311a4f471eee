package hints

// tableTopics explain the rows of the table, but for those that the other lists have.
func tableTopics() []Topic {
	return []Topic{
		{"bad-interpreter", "a script's first line names what the box does not have", `
The kernel reads #!/path/to/program and says "no such file" of the script when that
program is missing. A line that ends in CR LF, as Windows writes it, asks for a program
whose name ends in CR: sed -i 's/\r$//' FILE mends it. This fails outside of a box as
well, unless the interpreter is there.`},
		{"file-caps", "a program whose file carries capabilities", `
ping and others have capabilities on their file (getcap shows them). The kernel refuses
to execute such a program where one of these is not in the bounding set, and a box has
none: EPERM, though the program is there. --cap-add NET_RAW is enough for ping; it
reaches other machines only with --network host.`},
		{"exec-format", "the file is not a program that this machine can run", `
It was built for another processor, or it is a text without #! at its top. A shell runs
such a text all the same, a direct start does not: run it as sh FILE.`},
		{"workdir", "--workdir is not in the box", `
The directory is one of the box: /workspace, one of the image, or the target of a -v.`},
		{"no-such-user", "the box has no other user", `
Root of a box is you. Another user of it needs a uid on this machine, from a range in
/etc/subuid and /etc/subgid that newuidmap hands out. Without, --user and images with a
user of their own cannot start, and what changes to a service user fails.`},
		{"install-offline", "an installer waits for a network", `
npm and others ask a registry again and again before they give up, so that the time of
the run is over first. Install with --setup, which has the network and keeps what it
installs in the workspace, or give the run --network host.`},
		{"short-timeout", "the time that was given is over", `
Either the work takes longer, or the program waits for something that never comes: a
network that is not there, input that was not given, or a signal. PID 1 gets only those
signals that it has a handler for; --init puts a small program in its place.`},
		{"compiler-memory", "a compiler ran out of memory", `
One compiler process of C++ or Rust may take a GiB, and make -j$(nproc) starts one for
each CPU of the host, whatever --cpus says. Fewer at once (--cpus 2 --fit-cpus) or
--memory 2g.`},
		{"memory-cap", "more memory than the box may have", `
The cap is for all of the box: every process, /tmp, /dev/shm and each tmpfs. Give
--memory more, or write to /workspace, which is disk. See oom.`},
		{"workspace-limit", "more data than the workspace may hold", `
--workspace-max says how much; none takes the limit away. See workspace_full.`},
		{"tracer", "debuggers and tracers in a box", `
ptrace, perf events and bpf reach into what the sandbox keeps apart, so its filter of
system calls forbids them, whatever the flags. Debug outside of a box, or have the
program say what it does.`},
		{"killed-inside", "the command ended itself", `
timeout and similar programs end what they start by a signal, which reads like a limit of
the box. The result's fault is null then: the sandbox did nothing.`},
		{"own-error", "the failure is the program's own", `
A spelling that the tool does not know, code that does not parse, an exception: it would
be the same outside of a box, and no flag changes it.`},
		{"missing-module", "a module is not there", `
It is neither in the image nor in the workspace. For Python, --setup 'pip install NAME'
puts it into /workspace/.deps, where the run finds it; -W . gives the box your own
modules. For others, choose an image that has them, or install into the workspace.`},
		{"heap-option", "a heap of a fixed size is full", `
-Xmx (also in JAVA_TOOL_OPTIONS) and --max-old-space-size (also in NODE_OPTIONS) say how
much the runtime may take. More memory for the box changes nothing; a higher number does.`},
		{"heap-follows-cap", "a runtime takes part of --memory for its heap", `
A JVM takes a quarter of the cap, Node about half, and gives up when that is full though
the box has memory left. Give --memory more, or the runtime a number of its own: -Xmx, or
NODE_OPTIONS=--max-old-space-size=MB. Heap and files in /tmp have to fit below the cap.`},
		{"memory-refused", "memory was refused, not taken away", `
A cap of the box ends it (oom) and refuses nothing. "Cannot allocate memory" comes from a
limit on address space (ulimit), or from this machine, which promises no more.`},
		{"pids", "no more processes or threads", `
Threads count as processes. At the cap a fork or a new thread is refused (EAGAIN), which
programs report as "resource temporarily unavailable" or "can't start new thread"; it is
no fault, since a program may cope with it. --pids-limit N raises it; pools of threads
are sized by the CPUs that programs see, so --fit-cpus makes them smaller.`},
		{"files-open", "too many open files", `
Each process has a limit on open files, the one that kern-sbx itself has. A box may have
less with --ulimit nofile=N, and never more than the hard limit here (ulimit -Hn).`},
		{"protected-dir", "some names in a kept workspace are read-only", `
With -W, an existing .git, .kern-sbx.toml, .envrc, .vscode, .idea or .husky is mounted
read-only: what a box writes there is run by your own tools afterwards (hooks, tasks).
--writable NAME lifts that for one; --workspace-copy needs no such care.`},
		{"read-only-deps", "what --setup installed cannot be changed", `
/workspace/.deps is mounted read-only in a run, or one run could change what the next one
imports. Install all that is needed by --setup, or give --deps-readonly=false.`},
		{"mounted-read-only", "a directory that you mounted read-only", `
-v SRC:DST:ro gives a directory to read. Without :ro the code may change it on this
machine. To collect results, mount a directory of their own, or use /workspace.`},
		{"package-manager", "apt, apk and the like in a box", `
The root of a box is read-only, and its user has no rights over other users' files, so
system packages cannot be installed and no flag allows it. Choose an image that has them,
or build one. --setup is for packages of a language.`},
		{"pip-root", "pip would install into the root", `
--setup 'pip install NAME' installs into /workspace/.deps, and the run finds it there. A
virtual environment in the workspace does as well.`},
		{"npm-global", "npm -g would install into the root", `
Install into the project (npm install without -g), or give npm a place in the workspace:
--env npm_config_prefix=/workspace/.npm-global, and its bin directory on PATH.`},
		{"gem-root", "gem would install into the root", `
--env GEM_HOME=/workspace/.gem installs into the workspace.`},
		{"r-library", "R's library is in the root", `
--env R_LIBS=/workspace/lib names another one. R uses it only when it exists beforehand.`},
		{"ssh-home", "ssh takes the home directory from the list of users", `
ssh and ssh-keygen look the user up in /etc/passwd and do not care for HOME. --tmpfs
/root:16m makes that directory one that can be written to, and that ends with the run;
name the file (ssh-keygen -f /workspace/key) to keep a key.`},
		{"npm-cache", "npm cannot make its cache", `
npm keeps a cache in ~/.npm. When it cannot make that directory it says "Invalid response
body while trying to fetch ...", as if the registry were at fault. HOME=/workspace or
npm_config_cache puts it where there is room: an ordinary project needs 81 MiB of it.`},
		{"go-cache", "Go cannot make its build cache", `
Go wants a cache in ~/.cache/go-build (or $GOCACHE) and modules in ~/go. Large packages
are built in /tmp too: --tmpfs /tmp:512m, or --env GOTMPDIR=/workspace. TMPDIR=/workspace
does not do: Go ignores a go.mod in the directory for temporary files.`},
		{"tmp-full", "/tmp is full", `
/tmp is memory of the box, 64 MiB by default or half of --memory if that is less. Many
tools follow --env TMPDIR=/workspace, which is disk; a path that is written in a program
needs --tmpfs /tmp:SIZE, and memory for it. In a kernel /tmp fills over all cells.`},
		{"sqlite-full", "SQLite says that the disk is full", `
SQLite sorts (CREATE INDEX, VACUUM) in a temporary file, in /tmp, and says "database or
disk is full" when that is. Afterwards /tmp is empty again. --env TMPDIR=/workspace.`},
		{"sqlite-open", "SQLite cannot open a database", `
It makes files beside the database, so the directory has to be writable: /workspace, and
not one below HOME or in the root. The file alone, mounted by -v, is not enough.`},
		{"across-file-systems", "a file cannot be renamed out of /tmp", `
/tmp and /workspace are two file systems (EXDEV). A program that writes a temporary file
and renames it into place needs both in one: --env TMPDIR=/workspace.`},
		{"shared-memory", "/dev/shm is memory of the box", `
Shared memory of multiprocessing, PyTorch and databases lies there. It shows half of the
host's memory or so, and what is in it counts against --memory: past the cap the box is
ended (oom, or a bus error). A tmpfs cannot go there; a directory of the host can
(-v DIR:/dev/shm).`},
		{"file-too-large", "one file is larger than a file may be", `
No file may be larger than the workspace (--workspace-max, or --ulimit fsize). The kernel
sends SIGXFSZ (exit 153) or answers EFBIG.`},
		{"own-name", "the box's own name does not resolve", `
A program that looks up its own host name asks a name server when no list of hosts has
it. --hostname localhost is a name that every image knows.`},
		{"egress-domain", "a domain that is not allowed, or leads inside", `
The proxy of --egress-allow answers 403 for a domain that is not in the list and for
ports other than 80 and 443, and 502 for an allowed one that leads to a loopback, private
or metadata address. Redirects and downloads often come from a second domain.`},
		{"pip-offline", "pip finds no versions without a network", `
"Could not find a version ... (from versions: none)" is what pip says when it reaches no
index. --setup 'pip install NAME' has the network, the run itself has none.`},
		{"unreachable", "there is no such name, or no way there", `
The box has this machine's network. What it does not reach or cannot resolve, this
machine does not either: check the name, a VPN, a firewall.`},
		{"git-owner", "git refuses a repository of another user", `
A mounted directory that belongs to another user than you is somebody else's in the box
too. Three variables say that it is safe: GIT_CONFIG_COUNT=1,
GIT_CONFIG_KEY_0=safe.directory, GIT_CONFIG_VALUE_0=*. As your own user it does not occur.`},
		{"git-identity", "git does not know who commits", `
~/.gitconfig is not in the box. EMAIL, or GIT_AUTHOR_NAME, GIT_AUTHOR_EMAIL and the same
for GIT_COMMITTER, say it.`},
		{"tar-owner", "tar wants to give files away", `
As root, tar restores the owners that an archive names. A box has one user, so that fails
though all files are there: --env TAR_OPTIONS=--no-same-owner.`},
		{"sudo", "sudo and su in a box", `
The code is root of its box already, without capabilities; sudo and su gain nothing, and
setuid programs have no effect (no_new_privs). Leave them out, or say --user.`},
		{"unmapped-owner", "an owner that the box does not know", `
Only uids that are mapped exist in a box, and without subuid that is one. chown to any
other is EINVAL, with all capabilities. Most tools can leave owners alone: rsync --no-o
--no-g, cp without -p, tar --no-same-owner, a package option like --no-chown. With a line
for you in /etc/subuid and /etc/subgid, newuidmap (package uidmap) and --cap-drop none, a
box has the users of its image. A file of a user that the box does not know, such as a
server's log, is closed to root of the box as well: a --tmpfs in its place is not.`},
		{"chown", "files cannot be given to another owner", `
chown wants CAP_CHOWN, which no box has by itself. --cap-add CHOWN gives it, a server
that changes its user needs SETUID and SETGID too, and --cap-drop none is the recipe for
nginx and the like. They act in the box's own namespace, and widen what an attack on the
kernel can try.`},
		{"root-refused", "a program refuses to run as root", `
PostgreSQL, Elasticsearch and others do. --user postgres (or a uid) runs the command as
that user of the image, if this machine has uids for it: see no-such-user.`},
		{"low-port", "a port below 1024", `
Binding one wants CAP_NET_BIND_SERVICE, also in a box's own network. Take a port above
1023, or --cap-add NET_BIND_SERVICE.`},
		{"raw-socket", "raw sockets", `
ping, traceroute and captures want CAP_NET_RAW: --cap-add NET_RAW. Without a network they
see the loopback alone.`},
		{"network-setup", "addresses, links and firewall rules of a box", `
A box without --network host has a network of its own, with a loopback only. What sets up
addresses, links or rules in it wants --cap-add NET_ADMIN, which acts on that one alone.`},
		{"forbidden", "what no flag allows", `
Mounts, new namespaces, io_uring, setting the clock, tracing, device nodes, kernel
modules: they belong to the host's kernel, and the filter of system calls
refuses them in every box. Use -v and --tmpfs instead of mount, another engine instead of
io_uring, libfaketime for the clock; browsers run with --no-sandbox, since the box is one.`},
		{"no-device", "a device of this machine", `
A box has the devices that every program needs (null, zero, random, its terminal) and none
of this machine's: no /dev/kvm, /dev/fuse, /dev/net/tun, GPU or disk. A set of devices in
kern.toml gives some: --profile vgpio:NAME.`},
		{"no-daemon", "services of this machine", `
systemd, D-Bus and Docker's daemon are not in a box and their sockets are not either: who
reaches them has this machine. Start the program itself, in the foreground.`},
		{"ascii", "text that is not ASCII", `
No locale is set in a box, so that Ruby, javac, R and others read and write ASCII. --env
LANG=C.UTF-8 is in nearly all images; en_US.UTF-8 is not. Some look at LC_ALL alone.`},
		{"time-zone", "a time zone that the image does not have", `
Slim images have no zoneinfo files: every TZ means UTC, and programs that ask for a zone
fail. An image with tzdata has them; for Python, --setup 'pip install tzdata' does too.`},
		{"no-terminal", "a command that wants a terminal", `
A box gets pipes, so that its output can be told apart and kept. -it gives it a terminal
of its own and your input; many tools have a flag for use without one (--batch, -T, -y).`},
		{"host-path", "a file of this machine, named to the box", `
The box sees its image, /workspace and what is mounted. -W . makes this directory the
workspace, --workspace-copy . a copy of it; -v FILE:FILE:ro gives one file to read.`},
		{"matplotlib-cache", "matplotlib complains of its cache", `
It wants to write below ~/.config, makes a directory for this one run instead, and says so
on stderr. The figure is right. --env MPLCONFIGDIR=/tmp/matplotlib silences it; code given
by -c or -f has that already.`},
		{"cache-noise", "a program goes on without its cache", `
Fontconfig, pip, IPython and others keep caches below HOME, which is read-only, and only
complain. --env HOME=/workspace silences them.`},
		{"locale-noise", "a locale was asked for that is not there", `
The program goes on in plain C. --env LC_ALL=C.UTF-8 is in nearly all images.`},
		{"read-only-root", "something outside the workspace is written to", `
The root of a box is read-only (EROFS), whoever the command is in there: apt and
apk cannot take their lock, servers cannot write /run or /var. What has to be
written can be given memory, --tmpfs PATH:16m, or a directory, -v DIR:PATH.
Packages belong into an image, or into .deps of the workspace (--setup).`},
		{"no-network", "a name or an address cannot be reached", `
A box has no network: names do not resolve, and connect says ENETUNREACH, for
localhost of the machine too. --egress-allow NAME lets it reach single names by
HTTP through a proxy, which Postgres, MySQL and Redis do not speak. --network
host gives all of it, this machine's loopback and a cloud's metadata address
included. Fetching what a job needs beforehand, with --setup, keeps the job itself
without network.`},
		{"no-privilege", "the box lacks a right", `
All capabilities are dropped, also for root of the box: it cannot change owners, bind low
ports, or become another user (nginx, postgres: SETUID, SETGID and uids that the box
knows, see no-such-user). It obeys mode bits, so a directory of mode 0555 cannot be
emptied, and Go's module cache is made of these: chmod -R u+w first, or --cap-add
DAC_OVERRIDE. A file of another user of this machine stays closed whatever the box may do.
--cap-add NAME gives a capability back; --user starts the command as another user. Some
acts, such as mounting, no flag allows: see forbidden.`},
		{"not-in-the-box", "a file or program of this machine is not in the box", `
A box sees its image and the workspace, and nothing else of this machine.
-v FILE:FILE:ro shows one more, --host-tool NAME brings a program with what
belongs to it (--image host), and -W . mounts this directory.`},
	}
}
