//go:debug containermaxprocs=0

// The probe is what tests run beside the agent: commands that want to know or to
// do what they should not, and drivers that do not keep to the protocol.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	arg := func(i int) string {
		if len(os.Args) > i {
			return os.Args[i]
		}
		return ""
	}
	n, _ := strconv.Atoi(arg(2))
	switch arg(1) {
	case "init": // become the agent, as kern's PID 1 would: no capabilities, own /proc
		become(os.Args[2:])
	case "show":
		dir, _ := os.Getwd()
		in, err := io.ReadAll(os.Stdin)
		sid, _ := unix.Getsid(0)
		fmt.Printf("args %q\ndir %s\nstdin %q %v\nX=%s Y=%s\nleader %v %v\nparent %d\n", os.Args[2:], dir, in, err, os.Getenv("X"), os.Getenv("Y"),
			sid == os.Getpid(), unix.Getpgrp() == os.Getpid(), os.Getppid())
	case "env":
		for _, kv := range os.Environ() {
			fmt.Println(kv)
		}
	case "exit":
		os.Exit(n)
	case "die":
		restore()
		unix.Kill(os.Getpid(), unix.Signal(n))
		time.Sleep(time.Hour)
	case "syscall":
		syscall.RawSyscall6(uintptr(n), 0, 0, 0, 0, 0, 0)
		os.Exit(3)
	case "sleep":
		fmt.Println("asleep")
		time.Sleep(time.Hour)
	case "catch": // SIGNAL: says when it comes
		c := make(chan os.Signal, 1)
		signal.Notify(c, unix.Signal(n))
		fmt.Println("waiting")
		<-c
		os.Exit(40)
	case "dispositions": // what a program finds its signals to be
		b, _ := os.ReadFile("/proc/self/status")
		for _, l := range strings.Split(string(b), "\n") {
			if strings.HasPrefix(l, "SigBlk") || strings.HasPrefix(l, "SigIgn") {
				fmt.Println(strings.Join(strings.Fields(l), " "))
			}
		}
	case "fds":
		fds()
	case "tty":
		sid, _ := unix.IoctlGetInt(0, unix.TIOCGSID)
		fmt.Println("tty", sid == os.Getpid())
	case "signals":
		signals()
	case "pry":
		pry()
	case "try": // one attack, in a process of its own: a filter may kill for it
		try(arg(2))
	case "orphans": // N processes that lose their parent and end in every way
		orphans(n)
		os.Exit(77)
	case "orphan": // N: leave a child behind, and go
		if n == 0 {
			os.Exit(0)
		}
		start("leaf", strconv.Itoa(n))
	case "leaf":
		time.Sleep(time.Duration(n%20) * time.Millisecond)
		if n%3 == 0 {
			restore()
			unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		os.Exit(n % 256)
	case "daemon": // leaves a process of its own session, and goes
		start("linger")
		time.Sleep(100 * time.Millisecond)
		fmt.Println("left")
		os.Exit(5)
	case "linger":
		unix.Setsid()
		for fd := 0; fd < 256; fd++ {
			unix.Close(fd)
		}
		time.Sleep(time.Hour)
	case "closeall":
		for fd := 0; fd < 1024; fd++ {
			unix.Close(fd)
		}
		unix.Exit(9)
	case "tasks": // tasks of PID 1, and zombies of the box
		e, err := os.ReadDir("/proc/1/task")
		fmt.Println(len(e), err, zombies())
	case "rss":
		b, _ := os.ReadFile("/proc/1/status")
		for _, l := range strings.Split(string(b), "\n") {
			if strings.HasPrefix(l, "VmRSS") || strings.HasPrefix(l, "RssAnon") || strings.HasPrefix(l, "Threads") {
				fmt.Println(strings.Join(strings.Fields(l), " "))
			}
		}
	case "limit": // lower a limit of PID 1
		err := unix.Prlimit(1, n, &unix.Rlimit{Cur: 4, Max: 4}, nil)
		fmt.Println("prlimit", err)
	case "driver":
		driver(arg(2))
	default:
		fmt.Println("no such probe:", arg(1))
		os.Exit(99)
	}
}

func become(argv []string) {
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "probe:", err)
			os.Exit(98)
		}
	}
	check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	check(unix.Mount("proc", "/proc", "proc", 0, ""))
	check(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	for c := uintptr(0); c < 64; c++ {
		unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
	}
	check(unix.Exec(argv[0], argv, os.Environ()))
}

// restore gives signals back to the kernel, which the Go runtime has taken.
func restore() {
	for sig := uintptr(1); sig <= 64; sig++ {
		var a [4]uint64
		syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&a)), 0, 8, 0, 0)
	}
}

func start(args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...)
	if err := c.Start(); err != nil {
		fmt.Println("start:", err)
		os.Exit(97)
	}
	return c
}

func zombies() (n int) {
	e, _ := os.ReadDir("/proc")
	for _, d := range e {
		b, err := os.ReadFile("/proc/" + d.Name() + "/stat")
		if i := bytes.LastIndexByte(b, ')'); err == nil && i > 0 && bytes.HasPrefix(b[i:], []byte(") Z")) {
			n++
		}
	}
	return n
}

// fds lists every descriptor that is not the Go runtime's own.
func fds() {
	for fd := 0; fd < 4096; fd++ {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil {
			continue
		}
		to, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if strings.HasPrefix(to, "anon_inode:[event") {
			continue
		}
		kind := map[uint32]string{unix.S_IFIFO: "pipe", unix.S_IFSOCK: "socket", unix.S_IFCHR: "char", unix.S_IFREG: "file", unix.S_IFDIR: "dir"}[st.Mode&unix.S_IFMT]
		fmt.Println(fd, kind)
		if err := unix.Sendmsg(fd, []byte("x"), unix.UnixRights(0), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT); err == nil {
			fmt.Println("sent a descriptor over", fd)
		}
	}
}

func signals() {
	self, err := unix.PidfdOpen(1, 0)
	for round := 0; round < 3; round++ {
		for sig := 1; sig <= 64; sig++ {
			unix.Kill(1, unix.Signal(sig))
			unix.Tgkill(1, 1, unix.Signal(sig))
			if err == nil {
				unix.PidfdSendSignal(self, unix.Signal(sig), nil, 0)
			}
			var info [128]byte
			*(*int32)(unsafe.Pointer(&info[0])) = int32(sig)
			*(*int32)(unsafe.Pointer(&info[8])) = -1 // SI_QUEUE
			syscall.RawSyscall(unix.SYS_RT_SIGQUEUEINFO, 1, uintptr(sig), uintptr(unsafe.Pointer(&info)))
			syscall.RawSyscall6(unix.SYS_RT_TGSIGQUEUEINFO, 1, 1, uintptr(sig), uintptr(unsafe.Pointer(&info)), 0, 0)
			e, _ := os.ReadDir("/proc/1/task")
			for _, d := range e {
				tid, _ := strconv.Atoi(d.Name())
				unix.Tgkill(1, tid, unix.Signal(sig))
			}
		}
	}
	for i := 0; i < 20000; i++ {
		unix.Kill(1, unix.SIGCHLD)
	}
	fmt.Println("sent")
	os.Exit(6)
}

// Not among them: the numbers of descriptors can be listed, and the bits of
// clear_refs reset, by the uid that the files of a process of root's belong to.
var attacks = []string{
	"mem-read", "mem-write", "task-mem", "fd-link", "fd-open", "environ", "maps", "auxv", "syscall", "pagemap", "stack", "map_files",
	"root", "cwd", "exe", "ns", "vm-readv", "vm-writev", "ptrace", "seize", "kcmp", "getfd",
}

func pry() {
	for _, a := range attacks {
		c := exec.Command("/proc/self/exe", "try", a)
		out, err := c.CombinedOutput()
		fmt.Printf("%s %v %s\n", a, err != nil, bytes.TrimSpace(out))
	}
	os.Exit(8)
}

// try ends with 0 when an attack got somewhere.
func try(name string) {
	read := func(path string) {
		f, err := os.OpenFile(path, os.O_RDONLY, 0)
		if err != nil {
			return
		}
		if n, err := f.Read(make([]byte, 64)); err == nil && n > 0 {
			fmt.Println("read", path)
			os.Exit(0)
		}
	}
	word := []byte("word")
	local := []unix.Iovec{{Base: &word[0], Len: 4}}
	remote := []unix.RemoteIovec{{Base: 0x400000, Len: 4}}
	switch name {
	case "mem-read", "mem-write":
		flag := map[string]int{"mem-read": os.O_RDONLY, "mem-write": os.O_RDWR}[name]
		f, err := os.OpenFile("/proc/1/mem", flag, 0)
		if err == nil {
			_, err = f.ReadAt(make([]byte, 4), 0x400000)
		}
		if err == nil {
			fmt.Println("opened")
			os.Exit(0)
		}
	case "task-mem":
		read("/proc/1/task/1/mem")
		read("/proc/1/task/1/environ")
	case "fd-link":
		for fd := 0; fd < 1024; fd++ {
			if to, err := os.Readlink("/proc/1/fd/" + strconv.Itoa(fd)); err == nil {
				fmt.Println(to)
				os.Exit(0)
			}
		}
	case "fd-open":
		for fd := 0; fd < 1024; fd++ {
			for _, dir := range []string{"/proc/1/fd/", "/proc/1/fdinfo/", "/proc/1/task/1/fd/"} {
				if f, err := unix.Open(dir+strconv.Itoa(fd), unix.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
					fmt.Println("opened", dir, fd, f)
					os.Exit(0)
				}
			}
		}
	case "environ", "maps", "auxv", "syscall", "pagemap", "stack":
		read("/proc/1/" + name)
	case "map_files":
		if e, err := os.ReadDir("/proc/1/map_files"); err == nil && len(e) > 0 {
			os.Exit(0)
		}
	case "root", "cwd", "exe":
		if to, err := os.Readlink("/proc/1/" + name); err == nil {
			fmt.Println(to)
			os.Exit(0)
		}
	case "ns":
		if to, err := os.Readlink("/proc/1/ns/pid"); err == nil {
			fmt.Println(to)
			os.Exit(0)
		}
	case "vm-readv":
		if n, err := unix.ProcessVMReadv(1, local, remote, 0); err == nil && n > 0 {
			os.Exit(0)
		}
	case "vm-writev":
		if n, err := unix.ProcessVMWritev(1, local, remote, 0); err == nil && n > 0 {
			os.Exit(0)
		}
	case "ptrace":
		if unix.PtraceAttach(1) == nil {
			os.Exit(0)
		}
	case "seize":
		if unix.PtraceSeize(1) == nil {
			os.Exit(0)
		}
	case "kcmp":
		if _, _, e := syscall.RawSyscall6(unix.SYS_KCMP, 1, 1, 2, 0, 0, 0); e == 0 {
			os.Exit(0)
		}
	case "getfd":
		p, err := unix.PidfdOpen(1, 0)
		for fd := 0; err == nil && fd < 1024; fd++ {
			if f, err := unix.PidfdGetfd(p, fd, 0); err == nil {
				fmt.Println("got", f)
				os.Exit(0)
			}
		}
	}
	os.Exit(1)
}

func orphans(n int) {
	for i := 0; i < n; i++ {
		c := start("orphan", strconv.Itoa(1+i))
		c.Wait()
	}
}

func driver(kind string) {
	say := func(words string) { unix.Sendmsg(3, []byte(words), nil, nil, unix.MSG_NOSIGNAL) }
	if words, ok := strings.CutPrefix(kind, "late:"); ok {
		time.Sleep(150 * time.Millisecond)
		say(words)
		os.Exit(0)
	}
	switch kind {
	case "deaf-at-start":
		time.Sleep(time.Hour)
	case "dies-at-start":
		os.Exit(21)
	case "babbles-at-start":
		say("hello")
		time.Sleep(time.Hour)
	case "closes-at-start":
		unix.Close(3)
		time.Sleep(300 * time.Millisecond)
		os.Exit(22)
	}
	say("ready")
	switch kind {
	case "early": // an answer before the question
		say("done x 0")
		time.Sleep(time.Hour)
	case "empty-idle":
		say("")
		time.Sleep(time.Hour)
	case "closes-idle":
		unix.Close(3)
		time.Sleep(time.Hour)
	case "shuts-idle":
		unix.Shutdown(3, unix.SHUT_WR)
		time.Sleep(time.Hour)
	case "dies-idle":
		time.Sleep(100 * time.Millisecond)
		os.Exit(23)
	case "deaf":
		time.Sleep(time.Hour)
	case "last-words": // speaks and goes at once
		say("done x 0")
		os.Exit(24)
	}
	for {
		var words [256]byte
		oob := make([]byte, 256)
		n, oobn, _, _, err := unix.Recvmsg(3, words[:], oob, unix.MSG_CMSG_CLOEXEC)
		if err != nil || n == 0 {
			os.Exit(20)
		}
		id := strings.TrimSuffix(strings.TrimPrefix(string(words[:n]), "cell "), "\n")
		msgs, _ := unix.ParseSocketControlMessage(oob[:oobn])
		var got []int
		for i := range msgs {
			more, _ := unix.ParseUnixRights(&msgs[i])
			got = append(got, more...)
		}
		body, out, errs := os.NewFile(uintptr(got[0]), "body"), os.NewFile(uintptr(got[1]), "out"), os.NewFile(uintptr(got[2]), "err")
		b, err := io.ReadAll(body)
		body.Close()
		fields := parse(b)
		code := fields[len(fields)-1]
		fmt.Fprintf(out, "%v %q\n", err, fields)
		if len(got) > 3 {
			in, err := io.ReadAll(os.NewFile(uintptr(got[3]), "in"))
			fmt.Fprintf(out, "stdin %q %v\n", in, err)
			unix.Close(got[3])
		}
		fmt.Fprint(errs, "err")
		out.Close()
		errs.Close()
		switch kind {
		case "good":
			if strings.HasPrefix(code, "fds") {
				for fd := 0; fd < 1024; fd++ {
					if to, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err == nil && strings.HasPrefix(to, "socket:") && fd != 3 {
						say("done " + id + " 66")
					}
				}
			}
			if rest, ok := strings.CutPrefix(code, "exit "); ok {
				n, _ := strconv.Atoi(rest)
				os.Exit(n)
			}
			if code == "hang" {
				c := make(chan os.Signal, 1)
				signal.Notify(c, unix.SIGINT)
				<-c
				say("done " + id + " 130")
				continue
			}
			if code == "SIGKILL" {
				unix.Kill(os.Getpid(), unix.SIGKILL)
			}
			say("done " + id + " " + strconv.Itoa(len(code)))
		case "wrong-id":
			say("done " + id + "x 0")
		case "garbage":
			say("\x00\xff\xfe")
		case "empty":
			say("")
		case "huge":
			say("done " + id + " 0" + strings.Repeat("\n", 60000))
		case "long":
			say("done " + id + " 0\n\n")
		case "negative":
			say("done " + id + " -1")
		case "too-much":
			say("done " + id + " 256")
		case "zeros":
			say("done " + id + " 00")
		case "half":
			say("done " + id)
		case "half-dies":
			say("done ")
			os.Exit(25)
		case "twice":
			say("done " + id + " 1")
			say("done " + id + " 2")
		case "done-dies":
			say("done " + id + " 1")
			os.Exit(26)
		case "flood":
			for unix.Sendmsg(3, []byte("done "+id+" 1"), nil, nil, unix.MSG_NOSIGNAL) == nil {
			}
		case "rights": // descriptors with an otherwise good answer
			unix.Sendmsg(3, []byte("done "+id+" 7"), unix.UnixRights(0, 1, 2), nil, unix.MSG_NOSIGNAL)
		case "closes":
			unix.Close(3)
			time.Sleep(200 * time.Millisecond)
			os.Exit(27)
		case "forks": // a child of the cell keeps the channel and speaks after the end
			start2("done " + id + " 3")
			say("done " + id + " 4")
		}
		if kind != "good" && kind != "rights" && kind != "forks" {
			time.Sleep(time.Hour)
		}
	}
}

// start2 starts a child that has the channel, and says something on it later.
func start2(words string) {
	c := exec.Command("/proc/self/exe", "driver", "late:"+words)
	fd, _ := unix.Dup(3) // the file's finalizer must not close the channel
	f := os.NewFile(uintptr(fd), "channel")
	c.ExtraFiles = []*os.File{f}
	c.Start()
	f.Close()
}

func parse(b []byte) (fields []string) {
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		n, err := strconv.Atoi(string(b[:max(i, 0)]))
		if err != nil || n > len(b)-i-1 {
			return append(fields, "bad framing")
		}
		fields = append(fields, string(b[i+1:i+1+n]))
		b = b[i+1+n:]
	}
	return fields
}
