package hints

// outputTopics are about what programs print when a box is in their way; doctor's
// rules, which know the texts, name them.
func outputTopics() []Topic {
	return []Topic{
		{"home-not-writable", "a tool cannot write to HOME", `
HOME lies in the box's read-only root. Go's build cache, npm, pip, cargo, NuGet,
Gradle and matplotlib want to write there, and many say something else: npm's
"Invalid response body" is one. --env HOME=/workspace gives them room on disk.
With -W, where that would litter your directory: --tmpfs /home:512m with
--env HOME=/home. HOME=/tmp is no remedy below 128 MiB of /tmp: one build cache
fills it.`},
		{"read-only-root", "something outside the workspace is written to", `
The root of a box is read-only (EROFS), whoever the command is in there: apt and
apk cannot take their lock, servers cannot write /run or /var. What has to be
written can be given memory, --tmpfs PATH:16m, or a directory, -v DIR:PATH.
Packages belong into an image, or into .deps of the workspace (--setup).`},
		{"scratch-full", "a file system in memory is full", `
/tmp is memory: 64 MiB or half of --memory, and a write past that fails with
ENOSPC. SQLite calls it "database or disk is full", others stop in the middle.
--env TMPDIR=/workspace moves temporary files to disk; --tmpfs /tmp:SIZE makes
/tmp larger, within the memory cap that it is charged to. /dev/shm is as large as
--memory.`},
		{"too-many-processes", "no further process or thread can be made", `
fork and pthread_create fail with EAGAIN, "Resource temporarily unavailable",
when --pids-limit is reached: threads count. It is no fault of the sandbox, and
the command goes on as it can. --pids-limit N raises it; --fit-cpus keeps tools
that start one process for each CPU from starting too many.`},
		{"memory-short", "a program found too little memory", `
It asked for more than the box may have and was told so, or sizes itself by
what it sees: a JVM takes a share of the memory cap, and files in /tmp and
/dev/shm count against the same cap. --memory raises it.`},
		{"no-network", "a name or an address cannot be reached", `
A box has no network: names do not resolve, and connect says ENETUNREACH, for
localhost of the machine too. --egress-allow NAME lets it reach single names by
HTTP through a proxy, which Postgres, MySQL and Redis do not speak. --network
host gives all of it, this machine's loopback and a cloud's metadata address
included. Fetching what a job needs beforehand, with --setup, keeps the job itself
without network.`},
		{"no-privilege", "the box lacks a right", `
All capabilities are dropped, also for root of the box: it obeys mode bits,
cannot change owners, bind low ports in the host's network, or become another
user (nginx, postgres). --cap-add NAME gives one back; --user NUMBER starts the
command as another user. Some acts, such as mounting, no flag allows.`},
		{"not-in-the-box", "a file or program of this machine is not in the box", `
A box sees its image and the workspace, and nothing else of this machine.
-v FILE:FILE:ro shows one more, --host-tool NAME brings a program with what
belongs to it (--image host), and -W . mounts this directory.`},
		{"tool-configuration", "a tool wants a setting of its own", `
Some tools look for a directory, an identity or an owner that a box does not
have: git refuses repositories of other users ("dubious ownership"), pip, npm
and gem install into the read-only root, tar as root restores owners. Each has a
variable for it, and --env sets it.`},
	}
}
