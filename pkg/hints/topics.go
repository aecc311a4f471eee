package hints

// Topic is one text of `kern-sbx explain`.
type Topic struct {
	ID, Title, Text string
}

// Topics lists what can be explained: every fault, every hint of the table, and
// what surprises people in a box. A test holds the table and this list together.
func Topics() []Topic {
	return append([]Topic{
		{"timeout", "the code ran longer than --timeout", `
The clock of --timeout starts when the command starts, so the time for building
the box does not count (that is --start-timeout). The default is 30 seconds;
--timeout none removes it. kern-sbx exits with 124, and exit_code is null.
Output that was written before the end is kept.`},
		{"oom", "the box needed more memory than --memory allows", `
The verdict is the kernel's: it counted an out-of-memory kill in the box's own
cgroup. The whole box ends, so a shell cannot go on after it. /tmp and /dev/shm
are memory too and count. Raise --memory, or write large data to /workspace,
which is disk. kern-sbx exits with 137.`},
		{"killed", "the run was ended by a signal", `
There are three kinds, and the message says which. kern-sbx itself was told to
end, by Ctrl-C or by a CI system that cancels a job. Or the box was killed from
outside, perhaps because the host ran out of memory while the box's own cap was
not in force. Or kern, which supervises the box, was ended by a signal; code in
a box can do that to it, and gains nothing by it.
A limit that the code set for itself (RLIMIT_CPU) ends it with SIGKILL as well:
kern's descriptor cannot tell that from a kill from outside.`},
		{"escape_blocked", "the code made a system call that the sandbox forbids", `
The box's seccomp filter ended the program with SIGSYS. Mounting, unshare, ptrace,
bpf, loading kernel modules and the like are not for code in a box. kern-sbx
exits with 159.
The verdict is about PID 1 of the box. In a child process, the same call ends the
child, and what its parent makes of that is an ordinary exit code. A program that
sets a seccomp filter of its own and dies of it looks the same: the kernel reports
both as SIGSYS, and there is no way to tell them apart.`},
		{"workspace_full", "the workspace grew past its limit", `
The box was ended because /workspace held more than it may. kern-sbx exits
with 122.`},
		{"exec_failed", "the command could not be executed in the box", `
The box was built, and its first program is not there (exit 127) or is not
executable (126). The command is looked up in the box, along the box's PATH: a
program of the host is there only with --image host, and only from /usr and /opt.
A script of yours is given with -f FILE, or lies in a directory given with -W or -v.
A program linked against libraries that the image lacks fails like this too.`},
		{"startup_failed", "the box never started", `
Nothing of the code ran. kern-sbx exits with 125 and the message holds kern's own
reason: the image is not there, a cap is refused, user namespaces are not allowed
on this host. When the box was still being built after --start-timeout, a longer
time seldom helps: the source of a mount, the workspace or the image lies on a file
system that does not answer, such as a network mount whose server is gone.`},
		{"image-as-command", "the first word looks like an image", `
kern-sbx run takes the command, not the image: kern-sbx run --image alpine -- echo hi.`},
		{"host-file", "the command is a file on this machine", `
The box does not see the current directory. Run a script with -f FILE; give a
directory with -W DIR (kept, writable) or -v DIR:/data:ro.`},
		{"host-tool", "the program is on this machine, outside /usr", `
--image host brings /usr and /opt, read-only. A toolchain below the home directory
is brought with --host-tool NAME, which mounts the directory it is installed in.`},
		{"no-interpreter", "the image has no interpreter for the code", `
--lang says what the code is; the image has to have the program that runs it:
python3, node, bash or sh. python:3.12-slim, the default, has no node.`},
		{"no-image", "the image is not on this machine and could not be fetched", `
kern fetches an image from its registry the first time. Without a network, use
--image host (this machine's own /usr, read-only), --rootfs DIR, or an image that
kern load has put into the local cache.`},
		{"cold-image", "the first read of an image is slow", `
An image that was unpacked a moment ago has to come from the disk, file by file; on
a small machine that can take the whole of --start-timeout, where later starts take
a tenth of a second. Run it again: if that is fast, it was the first read. Give the
first start more with --start-timeout 2m. The time of the pull itself does not
count: that is --pull-timeout.`},
		{"default-timeout", "a run ends after 30 seconds unless told otherwise", `
Give --timeout 10m, or --timeout none, or set timeout in the configuration.`},
		{"home-read-only", "HOME lies in the read-only root", `
Toolchains keep caches below $HOME: Go, npm, cargo, pip, NuGet. In a box $HOME is
/root, and the root is read-only. --env HOME=/workspace puts them into the
workspace, where they stay for the next run. With a workspace that you keep (-W) and do
not want them in, --tmpfs /home:512m --env HOME=/home gives them room that ends with the
run. HOME=/tmp works for small caches only: /tmp holds 64 MiB, and an ordinary npm install
needs 81. A toolchain that cannot start looks like code that failed: exit 1 and no fault.`},
		{"egress-not-http", "under --egress-allow only HTTP gets out", `
The box has a loopback interface and nothing else: no route (ENETUNREACH) and no
name server. kern's proxy, named by HTTP_PROXY and HTTPS_PROXY, connects to the
allowed domains and those below them on ports 80 and 443; it answers 403 for others,
and 502 for an allowed name that leads to a private address. A client that speaks
no HTTP proxy (PostgreSQL, MySQL, Redis) has no way out.`},
		{"tmp-missing", "the box has no /tmp", `
--tmpfs none takes the default /tmp away, and the root is read-only. A write that
names /tmp fails with EROFS; tempfile falls back to the current directory, which is
the workspace, and leaves its scratch there.`},
		{"ci-orders", "the box printed workflow commands", `
GitHub Actions obeys lines such as ::add-mask:: or ::error:: on the output of a
step, whoever printed them. --ci-fence puts the box's output between
::stop-commands::TOKEN and ::TOKEN::, with a token the box cannot know. It is off
by itself, because the output may be captured by V=$(kern-sbx run ...), where the
fence would end up in the value.`},
		{"secret-in-argv", "a secret on the command line", `
What is written as -e K=VALUE is in the argument list of kern-sbx, which ps shows
to every user. -e K takes the value from your environment, --env-file <(...) from
another program. Neither puts it into an argument list: kern gets the variables of
a box through a descriptor.`},
		{"stdin-not-attached", "standard input was not given to the box", `
A box reads nothing from you unless -i is given, so that it cannot eat the input
of a loop around it. Add -i to give it.`},
		{"limits", "who enforces memory, processes and CPUs", `
kern caps a box through a cgroup v2 of its own. Where the host hands it none, the
box runs isolated but uncapped, and the result says enforced_by "none".
--require-limits refuses to run there.`},
		{"setup", "a command that readies the workspace before the run", `
--setup 'pip install numpy' runs first, in a box of its own with this machine's
network (its loopback included) and the same caps; --timeout counts for it too, but
gives it two minutes at least. The network settings of the run do not apply to it,
and it does not see --env unless --setup-env is given. /tmp is on disk there.
A command that begins with pip install puts its packages into /workspace/.deps, which
the run finds on PYTHONPATH, compiled and read-only; --deps-readonly=false leaves it
writable. It starts in /, lest a file of the workspace is taken for a module: write
pip install -r /workspace/requirements.txt.
With -W, a .deps that the same setup made is used again, in that run and in later
ones without --setup, for as long as the image, the command, the files that it names
and .deps itself stay what they were; --setup-force runs it anyway. A .deps that came
from elsewhere is never used: what it holds would run in every box.
System packages cannot be installed, the root is read-only: choose another --image.`},
		{"images", "where images come from, and which one ran", `
kern keeps images in its cache and fetches a missing one. A tag can be moved, so a
run that has to be repeatable names a digest: kern-sbx image resolve REF prints the
reference pinned to what the registry has now. image.digest in a result is the
digest of the reference, or the one that kern-sbx image pull found in the registry
before and after the pull; else it is null, because kern records none. image.id
says whether two runs on this machine had the same image.`},
		{"pyc-cache", "the compiled library of an image's Python", `
Some images, python:3.12-slim among them, hold Python's library as source alone, and
every start compiles what it imports. After the first run of python3 in such an
image, its library is compiled in the background, in a box that holds only the image;
later runs find it at /kern-pyc, read-only. Bytecode is checked against its source
when it is used. Python then writes no bytecode of its own, so it is left out where
that would cost more: with PYTHONPATH or PYTHONPYCACHEPREFIX set, or a workspace
that holds .deps, .venv, venv or __pycache__. --pyc-cache off leaves it out always.
kern-sbx image precompile REF NEWREF makes an image that holds its bytecode.`},
		{"workspace", "what is writable in a box, and what is kept", `
/workspace is a directory of the host: a private one that is removed when the run
ends, or the one given with -W, which is kept. --workspace-copy DIR makes the
private one begin as a copy of DIR, so that nothing the box does to it reaches the
original: the safe way to run a project's code in CI. A copy shares its blocks with
the original where the file system can do that; sockets, FIFOs, devices, mount
points and what you may not read are left out, and said. /tmp is memory, 64 MiB or half of
--memory, and counts against it. /dev/shm is memory too. All else is read-only.
As root, files that a run changed in a kept directory lose setuid bits and file
capabilities when it ends: root in the box is root of the host to the file system.`},
	}, append(tableTopics(), doctorTopics()...)...)
}
