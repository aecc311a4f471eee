package runner

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestProcHostileNames: a process may call itself anything.
func TestProcHostileNames(t *testing.T) {
	for _, name := range []string{"plain", ") R 1 1 1", ") (", "a\nNSpid:\t9 1", "))))))))", "\xff\xfe", " ", "\nSigCgt: ffff"} {
		ready, stop := make(chan int), make(chan struct{})
		go func() {
			runtime.LockOSThread() // and the thread dies with its name
			b := append([]byte(name), 0)
			unix.Prctl(unix.PR_SET_NAME, uintptr(bytesPtr(b)), 0, 0, 0)
			ready <- unix.Gettid()
			<-stop
		}()
		tid := <-ready
		f, ok := procStat(tid)
		if !ok || string(f[0]) != "S" && string(f[0]) != "R" {
			t.Errorf("%q: %v %q", name, ok, f)
		}
		if a, b := procStart(tid), procStart(os.Getpid()); a < b || a > b+1<<32 {
			t.Errorf("%q: started at %d", name, a)
		}
		if isBoxInit(tid) {
			t.Errorf("%q is taken for PID 1 of a box", name)
		}
		if got := procStatus(tid, "SigCgt"); len(got) != 16 {
			t.Errorf("%q: SigCgt is %q", name, got)
		}
		close(stop)
	}
}

func TestProcGone(t *testing.T) {
	c := exec.Command("true")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	pid := c.Process.Pid
	if procStart(pid) != 0 || isBoxInit(pid) || catches(pid, unix.SIGTERM) || len(children(pid)) > 0 || procSession(pid) != 0 {
		t.Error("a process that is gone has properties")
	}
	for _, p := range []proc{{}, {1, 1}, {-1, 5}, {0, 5}, {pid, 0}, {pid, 1}, {os.Getpid(), 1}} {
		p.kill() // of none of these; the last is us, with another start time
	}
}

func TestChildren(t *testing.T) {
	c := exec.Command("sh", "-c", "trap : TERM; sleep 300 & echo $! ; wait; wait")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	buf := make([]byte, 20)
	n, _ := out.Read(buf)
	kids, scan := children(c.Process.Pid), childrenByScan(c.Process.Pid)
	if len(kids) != 1 || !slices.Equal(kids, scan) || strings.TrimSpace(string(buf[:n])) == "" {
		t.Errorf("children %v, by scan %v", kids, scan)
	}
	for range 500 { // until it is sleep, and no longer a copy of the shell
		if !catches(kids[0], unix.SIGTERM) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if !catches(c.Process.Pid, unix.SIGTERM) || catches(kids[0], unix.SIGTERM) {
		t.Error("the wrong one catches TERM")
	}
	p := proc{kids[0], procStart(kids[0])}
	proc{p.pid, p.start + 1}.kill()
	time.Sleep(50 * time.Millisecond)
	if procStart(p.pid) != p.start {
		t.Error("another process was killed")
	}
	p.kill()
	for range 500 {
		if f, ok := procStat(p.pid); !ok || string(f[0]) == "Z" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("not killed")
}
