package main

import (
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// What "agent probe" gives for one question is bounded, and so is the number of
// children that it may be asked to make.
const (
	probeFile  = 64 << 10 // bytes of a file
	probeForks = 4096
	probeChunk = 256 << 10
)

// probe answers questions about the box that it runs in, one for each argument:
// a letter, a colon, and what it is about. It writes the question and its answer
// as two fields that each end in a zero byte, which no path and no variable can
// hold, and after the last one an "end" with an empty answer: what is cut short
// is known to be. Whatever question it does not know, it answers with "?".
//
//	e:NAME      the variable, "" where it is not set
//	f:PATH      the beginning of the file
//	w:PATH      whether that, or the directory it would be made in, can be written to; ~ is HOME
//	v:NAME      the same for the path in a variable, "" where it is not set
//	l:PATH      what the path is: dir, file, other, or where a link leads to
//	x:NAME      where the program is on PATH
//	m:          the writable mounts: kind, size and free bytes, path
//	c:IP:PORT   whether a connection to that address (IPv4) is refused, or how it fails
//	a:NAME      the same for an abstract unix socket
//	u:          uid, gid, CPUs that this process may run on
//	t:          the clock, in milliseconds
//	p:          Python's library: path, sources, compiled
//
// and, for the small boxes that are there to be broken:
//
//	T:PATH:N    fills the directory with at most N bytes: how many fit, and why no more
//	P:N         forks at most N times: how often that went well, and why no more
//	M:N         takes N bytes of memory
//	O:N         writes N bytes to standard error
//	S:          sleeps for ever
func probe(questions []string) {
	runtime.LockOSThread()
	var out []byte
	add := func(q, a string) {
		out = append(append(append(append(out, q...), 0), a...), 0)
	}
	flush := func() {
		for len(out) > 0 {
			n, err := unix.Write(1, out)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				unix.Exit(1)
			}
			out = out[n:]
		}
	}
	for _, q := range questions {
		kind, about := "", ""
		if len(q) > 1 && q[1] == ':' {
			kind, about = q[:1], q[2:]
		}
		if kind == "M" || kind == "O" || kind == "S" {
			// What comes next may be the last that this process does.
			flush()
		}
		add(q, answer(kind, about))
	}
	add("end", "")
	flush()
}

func answer(kind, about string) string {
	switch kind {
	case "e":
		return os.Getenv(about)
	case "f":
		return headOf(about)
	case "w":
		if len(about) > 0 && about[0] == '~' {
			about = os.Getenv("HOME") + about[1:]
		}
		return writable(about)
	case "v":
		if path := os.Getenv(about); path != "" {
			return writable(path)
		}
		return ""
	case "l":
		return kindOf(about)
	case "x":
		return onPath(about)
	case "m":
		return writableMounts()
	case "c":
		return connect(about)
	case "a":
		return connectTo(unix.AF_UNIX, &unix.SockaddrUnix{Name: "@" + about})
	case "u":
		return strconv.Itoa(os.Getuid()) + " " + strconv.Itoa(os.Getgid()) + " " + strconv.Itoa(cpus())
	case "t":
		var now unix.Timespec
		if unix.ClockGettime(unix.CLOCK_REALTIME, &now) != nil {
			return ""
		}
		return strconv.FormatInt(now.Nano()/1e6, 10)
	case "p":
		return pythonLibrary()
	case "T":
		path, n := lastCut(about)
		return fill(path, n)
	case "P":
		_, n := lastCut(":" + about)
		return fork(min(n, probeForks))
	case "M":
		_, n := lastCut(":" + about)
		return takeMemory(n)
	case "O":
		_, n := lastCut(":" + about)
		return shout(n)
	case "S":
		for {
			unix.Pause()
		}
	}
	return "?"
}

// lastCut cuts "PATH:N"; N is 0 when it is not a number.
func lastCut(s string) (string, int) {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == ':' {
			n, err := strconv.Atoi(s[i+1:])
			if err != nil || n < 0 {
				n = 0
			}
			return s[:i], n
		}
	}
	return s, 0
}

// why is an error as its name, and "ok" for none.
func why(err error) string {
	if err == nil {
		return "ok"
	}
	if e, is := err.(unix.Errno); is {
		if name := unix.ErrnoName(e); name != "" {
			return name
		}
	}
	return "EIO"
}

func headOf(path string) string {
	// Not a FIFO of the image's: nobody writes into it.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var b []byte
	for len(b) < probeFile {
		var part [8192]byte
		n, err := unix.Read(fd, part[:min(len(part), probeFile-len(b))])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			break
		}
		b = append(b, part[:n]...)
	}
	for i := range b { // /proc/PID/environ and the like
		if b[i] == 0 {
			b[i] = '\n'
		}
	}
	return string(b)
}

// writable tries it, with a file that has no name and leaves nothing: the answer
// is "ok" or the error, and the directory that it is about.
func writable(path string) string {
	var st unix.Stat_t
	for unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		i := len(path) - 1
		for i > 0 && path[i] != '/' {
			i--
		}
		if i <= 0 {
			path = "/"
			break
		}
		path = path[:i]
	}
	fd, err := unix.Open(path, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		unix.Close(fd)
	}
	if err == unix.EOPNOTSUPP || err == unix.EISDIR || err == unix.EINVAL {
		err = unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS)
	}
	return why(err) + " " + path
}

func kindOf(path string) string {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return ""
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "dir"
	case unix.S_IFREG:
		return "file"
	case unix.S_IFLNK:
		to, _ := os.Readlink(path)
		return "-> " + to
	}
	return "other"
}

// onPath is where a shell would find a program.
func onPath(name string) string {
	list := os.Getenv("PATH")
	for list != "" {
		var dir string
		dir, list, _ = cut(list, ':')
		if dir == "" || dir[0] != '/' {
			continue
		}
		var st unix.Stat_t
		if p := dir + "/" + name; unix.Stat(p, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && unix.Access(p, unix.X_OK) == nil {
			return p
		}
	}
	return ""
}

// cpus is what nproc says.
func cpus() int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return 0
	}
	return set.Count()
}

// writableMounts is a line for each mount that can be written to: the kind of file
// system, its size and what is free in bytes, and the path as mountinfo spells it.
func writableMounts() string {
	text := headOf("/proc/self/mountinfo")
	var out []byte
	for text != "" {
		var line string
		line, text, _ = cut(text, '\n')
		var f [12]string
		n, sep := 0, 0
		for line != "" && n < len(f) {
			f[n], line, _ = cut(line, ' ')
			if f[n] == "-" && sep == 0 {
				sep = n
			}
			n++
		}
		if n < 6 || sep == 0 || sep+1 >= n || len(f[5]) < 2 || f[5][:2] != "rw" {
			continue
		}
		kind := f[sep+1]
		switch kind {
		case "proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2":
			continue
		}
		var st unix.Statfs_t
		var file unix.Stat_t
		path := f[4]
		if unix.Stat(path, &file) != nil || file.Mode&unix.S_IFMT != unix.S_IFDIR || unix.Statfs(path, &st) != nil || st.Flags&unix.ST_RDONLY != 0 {
			continue
		}
		size := uint64(st.Frsize)
		if size == 0 {
			size = uint64(st.Bsize)
		}
		out = append(out, kind...)
		for _, n := range []uint64{st.Blocks * size, st.Bavail * size} {
			out = strconv.AppendUint(append(out, ' '), n, 10)
		}
		out = append(append(append(out, ' '), path...), '\n')
	}
	return string(out)
}

// connect tries an address for 200 ms; who is on the other side hears nothing.
func connect(about string) string {
	ip, port := lastCut(about)
	sa := &unix.SockaddrInet4{Port: port}
	for i := range sa.Addr {
		var part string
		part, ip, _ = cut(ip, '.')
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 || n > 255 {
			return "EINVAL"
		}
		sa.Addr[i] = byte(n)
	}
	return connectTo(unix.AF_INET, sa)
}

func connectTo(family int, sa unix.Sockaddr) string {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return why(err)
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, sa)
	if err != unix.EINPROGRESS {
		return why(err)
	}
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if n, err := unix.Poll(p, 200); err != nil || n != 1 {
		return "ETIMEDOUT"
	}
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && n != 0 {
		err = unix.Errno(n)
	}
	return why(err)
}

// pythonLibrary counts, for the first one found, the modules that lie directly in
// it and those of them that are compiled beside their source.
func pythonLibrary() string {
	for _, base := range []string{"/usr/local/lib", "/usr/lib", "/opt/python/lib"} {
		for _, name := range names(base) {
			if len(name) < 9 || name[:8] != "python3." || name[8] < '0' || name[8] > '9' {
				continue
			}
			sources := endings(base+"/"+name, ".py")
			if sources < 50 {
				continue // site-packages alone
			}
			return base + "/" + name + " " + strconv.Itoa(sources) + " " + strconv.Itoa(endings(base+"/"+name+"/__pycache__", ".pyc"))
		}
	}
	return ""
}

func names(dir string) []string {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil
	}
	defer d.Close()
	all, _ := d.Readdirnames(5000)
	return all
}

func endings(dir, with string) (n int) {
	for _, name := range names(dir) {
		if len(name) > len(with) && name[len(name)-len(with):] == with {
			n++
		}
	}
	return n
}

// fill writes into a file without a name, which is gone with this process. The
// answer is how many bytes there was room for, and what the next write failed
// with.
func fill(dir string, most int) string {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return "0 " + why(err)
	}
	defer unix.Close(fd)
	b := make([]byte, probeChunk)
	n := 0
	for n < most {
		k, err := unix.Write(fd, b[:min(len(b), most-n)])
		if err == unix.EINTR {
			continue
		}
		if err != nil || k <= 0 {
			return strconv.Itoa(n) + " " + why(err)
		}
		n += k
	}
	return strconv.Itoa(n) + " ok"
}

// fork makes children that do nothing, and ends them again. A child is a copy of
// this thread alone: it must not come near the runtime, whose other threads it
// lacks.
func fork(most int) string {
	var pids []int
	result := "ok"
	for len(pids) < most {
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			result = why(errno)
			break
		}
		if pid == 0 {
			for {
				unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
			}
		}
		pids = append(pids, int(pid))
	}
	for _, p := range pids {
		unix.Kill(p, unix.SIGKILL)
	}
	for _, p := range pids {
		for {
			if _, err := unix.Wait4(p, nil, 0, nil); err != unix.EINTR {
				break
			}
		}
	}
	return strconv.Itoa(len(pids)) + " " + result
}

// takeMemory takes bytes page by page, from the kernel and not from the runtime.
func takeMemory(n int) string {
	b, err := unix.Mmap(-1, 0, max(n, 1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return "0 " + why(err)
	}
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	unix.Munmap(b)
	return strconv.Itoa(n) + " ok"
}

func shout(n int) string {
	b := make([]byte, 4096)
	for i := range b {
		b[i] = '.'
	}
	done := 0
	for done < n {
		k, err := unix.Write(2, b[:min(len(b), n-done)])
		if err == unix.EINTR {
			continue
		}
		if err != nil || k <= 0 {
			return strconv.Itoa(done) + " " + why(err)
		}
		done += k
	}
	return strconv.Itoa(done) + " ok"
}
