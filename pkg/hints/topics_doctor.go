package hints

// doctorTopics explain the checks of `kern-sbx doctor`, by their ids. "limits" is
// among the other topics.
func doctorTopics() []Topic {
	return []Topic{
		{"kern", "doctor: the kern that is used", `
kern is the runtime that builds boxes. It is looked for in --kern, $KERN_BIN, the
configuration, in this program itself, and on PATH; one that is named and cannot be
used is refused, and no other is taken. One that was bundled is written below
$XDG_DATA_HOME, which has to allow programs (no noexec).`},
		{"kern-doctor", "doctor: what kern says of this machine", `
The rows of kern's own doctor. A blocker keeps boxes from starting. Its warnings are
mostly about things that kern-sbx has no use for (sshd, sshfs, GPUs), and what it
says of caps is about kern's alone: see limits. --verbose shows them.`},
		{"user-namespaces", "doctor: whether boxes can be isolated", `
A box is a set of namespaces that an ordinary user may make. Some systems forbid it:
by user.max_user_namespaces=0, by kernel.unprivileged_userns_clone=0, or, on Ubuntu
since 23.10, by an AppArmor rule that takes the rights away inside. In a container,
the engine's seccomp profile refuses them; the engine has to be told otherwise, for
docker with --security-opt seccomp=unconfined and the like.`},
		{"lsm", "doctor: SELinux and AppArmor", `
Both can refuse what a box does, whatever its owner may do. Where SELinux enforces, a
mounted directory has to have a label that the box's processes may use.`},
		{"subuid", "doctor: uids for other users of a box", `
Root of a box is you. Any other user of it needs a uid of its own on this machine,
from a range in /etc/subuid and /etc/subgid, which newuidmap hands out. Without,
a box has one uid, and a server that changes to a service user fails when it does.`},
		{"overlay", "doctor: overlay file systems", `
The layers of an image are stacked by the kernel's overlayfs. --image host and
--rootfs do without.`},
		{"cgroups", "doctor: who can cap memory, processes and CPUs", `
Caps are kept by cgroups. kern needs version 2 with its controllers handed down to
you, which a systemd login does. Where it cannot, kern-sbx puts the box into a cgroup
of its own, if it may make one. Where the tree is read-only or belongs to somebody
else, nothing is capped, the box stays isolated, and --require-limits refuses to run.
kern-sbx never mounts anything anew to get there.`},
		{"limits-above", "doctor: limits around this process", `
A CI job or a container has limits of its own, and its boxes are inside them. When the
job has less memory than one box may take, the kernel may end the job instead of the
box, so give the box less than the job has. A quota of CPUs is shared the same way.
What lies above a cgroup namespace cannot be seen from within.`},
		{"host-memory", "doctor: memory and swap of this machine", `
A cap is a ceiling and no reservation. When the machine itself runs out, the kernel
ends what it likes. The cap of a box leaves no swap beside it.`},
		{"disk", "doctor: room for caches, data and workspaces", `
Images, the host's root and private workspaces lie in the cache directory. A workspace
on a tmpfs is memory: what a box writes there counts against the box.`},
		{"leftovers", "doctor: what processes that died left", `
Each run locks its directory for as long as it lives. A free lock is a run that was
killed; the next run ends its box and removes its files. A kernel or pool whose
process was killed is cleared away when one of its kind is started or stopped.`},
		{"image", "doctor: the root of the box", `
The image has to be on this machine, or is fetched by the first run, which takes its
time. Which digest a tag had is known when kern-sbx image pull fetched it.`},
		{"config", "doctor: configuration files", `
Files are read from the system, the user, and the project. A project file comes with
the code: until it is trusted (kern-sbx config trust), only what makes a box tighter
is taken from it.`},
		{"directories", "doctor: our own directories", `
They have to belong to you and be closed to others, because whoever can write there
could choose what is run. Otherwise /tmp/kern-sbx-UID is used, and caches are lost.`},
		{"environment", "doctor: containers, WSL and CI around us", `
A container may forbid what a box is made of (see user-namespaces) and has limits of
its own (see limits-above). On WSL, version 2 is needed. GitHub Actions obeys what a
box prints: see ci-orders.`},
		{"box", "doctor: a box with these settings", `
A real box is started with exactly the flags given, and a small program of ours in it
answers all questions. --setup is not run, and --workspace-copy copies nothing. When
that box does not start, neither does a run: the reason is kern's own.`},
		{"home", "doctor: HOME and the XDG directories", `
HOME lies in the read-only root. Toolchains keep caches there and seldom say so: npm
takes a cache that it cannot make for a network fault. --env HOME=/workspace puts them
into the workspace; with a workspace that is kept, --tmpfs /home:512m --env HOME=/home
throws them away. /tmp is too small for it: an ordinary npm install needs 81 MiB.`},
		{"tool-caches", "doctor: caches of the toolchains in the image", `
Go, npm, cargo, pip, NuGet and Gradle each have a variable for their cache, and else a
place below HOME. The one that counts is the one that is tried here. A toolchain that
cannot write its cache fails like code that is wrong.`},
		{"cpus", "doctor: the CPUs that programs see, and those they get", `
nproc counts the CPUs that a process may run on and knows nothing of a quota. Under
--cpus 0.5 on 28 CPUs, make -j$(nproc) starts 28 jobs. --fit-cpus restricts the box to
as many CPUs as the quota is worth, and tells Go, OpenMP and others. Each job is a
process, which counts against --pids-limit.`},
		{"memory-files", "doctor: what the writable paths are charged to", `
/tmp, /dev/shm and every --tmpfs are memory of the box. One that is smaller than the
cap answers ENOSPC when it is full, and the box goes on; one that is not smaller gets
the box ended (oom) first. df does not know the cap: /dev/shm is shown larger than it
can become. /workspace is disk, and not counted.`},
		{"workspace-size", "doctor: a limit for the workspace", `
--memory does not count what lies in the workspace. The private one may hold 10 GiB, or
half of what is free, and is removed afterwards. A directory given with -W has no limit
unless --workspace-max gives one. df in the box shows this machine's disk.`},
		{"jvm", "doctor: a JVM's heap beside /tmp", `
A JVM takes a quarter of the cap for its heap, and /tmp half at most, so both fit. With
-Xmx that is no longer sure: heap and files in memory together have to stay below
--memory, or the box is ended.`},
		{"tmpdir", "doctor: where temporary files go", `
SQLite, sort and Python's tempfile use $TMPDIR, else /tmp, which is small. SQLite says
"database or disk is full" of it, and cleans up before one can look.
--env TMPDIR=/workspace, or a larger --tmpfs /tmp:1g.`},
		{"network", "doctor: what the box reaches", `
A box has no network unless one is given. --network host shares this machine's: its
loopback, with whatever listens there unguarded, its abstract sockets, the local network
and a cloud's metadata. --egress-allow lets HTTP to named domains through, by a proxy,
and nothing else. A port and a socket of ours are tried from the box.`},
		{"privileges", "doctor: capabilities, seccomp and no_new_privs", `
A box has no capabilities by default, a filter for system calls, and cannot gain
rights by running a setuid program. --cap-add and --cap-drop none give capabilities
within the box's own namespaces.`},
		{"root", "doctor: whether the root can be written to", `
The root is read-only, so that no run changes what the next one finds. Package managers
therefore fail in a box: choose an image that has what is needed.`},
		{"user", "doctor: who the box is on this machine", `
Root of a box is whoever started kern-sbx. When that is root, files that a box makes in
a mounted directory belong to root of this machine; setuid bits are taken off them.`},
		{"bytecode", "doctor: whether Python's library is compiled", `
Some images hold the library as source alone, and each start compiles what it imports.
kern-sbx compiles it once, after the first run: see pyc-cache. kern-sbx image
precompile makes an image of it.`},
		{"import-cost", "doctor --deep: what importing costs in Python", `
Six modules are imported by a new interpreter, as the image has them, and again when
they are compiled. The difference is what each start pays.`},
		{"mount-points", "doctor: mounts at a path that is a link", `
In many images /var/run is a link to /run. A tmpfs for the one name leaves programs
that open the other without it: mount at what the link leads to.`},
		{"locale", "doctor: locale and time zone", `
Without LANG, some programs take all text for ASCII. Without the zoneinfo files, every
TZ means UTC, and nothing says so.`},
		{"certificates", "doctor: certificates of authorities", `
A slim image may have none, and then no HTTPS server can be checked. Mount this
machine's read-only, or choose an image with ca-certificates.`},
		{"interpreters", "doctor: interpreters in the image", `
What -c and -f can be written in: python3, node, bash or sh have to be in the image.
They are found by name; --deep asks each for its version.`},
		{"versions", "doctor --deep: versions of the interpreters", `
Each interpreter of the image is started with --version, in a box.`},
		{"clock", "doctor: the clock of the box", `
A box has this machine's clock. When that is wrong, certificates are not valid and
builds think that files come from the future.`},
		{"promise-memory", "doctor: a box that takes too much memory is ended", `
A box with a cap of 64 MiB (--deep: yours) takes 8 MiB more. Where its cap is in force
the verdict is oom. It stops there by itself where it is not.`},
		{"promise-pids", "doctor: a box cannot have more processes than its cap", `
A box with a cap of 32 (--deep: yours) forks until it is refused (EAGAIN), or 8 times
more than the cap. Threads count. A refused fork is no fault of the box: the program
may catch it and end well.`},
		{"promise-deadline", "doctor: a box that runs too long is ended", `
A box that sleeps for ever is given 150 ms (--deep: your --timeout, up to 30 s).`},
		{"promise-tmp", "doctor: /tmp holds what it shall and no more", `
A /tmp of 1 MiB (--deep: yours) is filled. The answer has to be ENOSPC, from the kernel,
and the box goes on.`},
		{"promise-output", "doctor: too much output is cut, and the program runs on", `
A box writes twice what may pass. --max-output is what you receive: the rest is thrown
away, and the program never notices.`},
		{"promise-network", "doctor: the network is what was asked for", `
From the box, a packet is sent to an address that leads nowhere, and a port and an
abstract socket that doctor opened on this machine are tried.`},
	}
}
