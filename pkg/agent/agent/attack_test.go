package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/agent"
)

// TestSignalsFromWithin: every signal to PID 1 and each of its threads, in every
// way there is. The command's own exit code is what comes out.
func TestSignalsFromWithin(t *testing.T) {
	both(t, func(t *testing.T, b *box) {
		out, e := b.run("signals")
		if e.Code != 6 || e.Signal != 0 || out != "sent\n" {
			t.Errorf("%+v %q", e, out)
		}
		if _, e := b.run("exit", "7"); e.Code != 7 {
			t.Errorf("afterwards %+v", e)
		}
	})
}

// TestPry: neither the memory nor the descriptors of the agent can be had.
func TestPry(t *testing.T) {
	both(t, func(t *testing.T, b *box) {
		out, e := b.run("pry")
		if e.Code != 8 || strings.Count(out, "\n") < 20 {
			t.Fatalf("%+v %s", e, out)
		}
		for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
			if name, rest, _ := strings.Cut(line, " "); !strings.HasPrefix(rest, "true") {
				t.Errorf("%s: %s", name, rest)
			}
		}
	})
}

// TestDescriptors: a command has what it was given, and nothing that could carry
// a descriptor away.
func TestDescriptors(t *testing.T) {
	both(t, func(t *testing.T, b *box) {
		if out, _ := b.run("fds"); out != "0 char\n1 pipe\n2 pipe\n" {
			t.Errorf("a command has\n%s", out)
		}
		// Not after failures either, nor with a driver before it.
		b.exec("/no/such")
		b.event()
		b.warm("good")
		b.want(agent.Event{Event: agent.Warm})
		if out, _ := b.run("fds"); out != "0 char\n1 pipe\n2 pipe\n" {
			t.Errorf("a command after a driver has\n%s", out)
		}
		if out, e := b.run("closeall"); e.Code != 9 {
			t.Errorf("%+v %s", e, out)
		}
	})
}

// TestOrphans: hundreds of processes that end in the agent's hands, in every
// way, while the command's own status is told from theirs. None stays a zombie.
func TestOrphans(t *testing.T) {
	both(t, func(t *testing.T, b *box) {
		if _, e := b.run("orphans", "200"); e.Code != 77 || e.Signal != 0 {
			t.Errorf("%+v", e)
		}
		if _, e := b.run("daemon"); e.Code != 5 {
			t.Errorf("%+v", e)
		}
		time.Sleep(50 * time.Millisecond)
		out, _ := b.run("tasks")
		f := strings.Fields(out)
		if n, err := strconv.Atoi(f[0]); err != nil || n > agent.Threads || f[2] != "0" {
			t.Errorf("tasks of the agent, error, zombies: %s; at most %d tasks", out, agent.Threads)
		}
	})
}

// TestThreads: what the agent itself counts against the box's pids, idle and
// with a command.
func TestThreads(t *testing.T) {
	most := 0
	for i := range 10 {
		b := start(t, false, "GOMAXPROCS="+strconv.Itoa(1+13*i)) // as on a large machine
		for range 5 {
			out, _ := b.run("tasks")
			n, err := strconv.Atoi(strings.Fields(out)[0])
			if err != nil || n > agent.Threads {
				t.Fatalf("%s tasks, at most %d", out, agent.Threads)
			}
			most = max(most, n)
		}
		b.conn.Close()
		b.end()
	}
	t.Logf("%d threads", most)
}

// TestLimits: the limits of a PID 1 are anybody's of its uid. That ends the box,
// and forges nothing.
func TestLimits(t *testing.T) {
	b := start(t, false)
	out, e := b.run("limit", fmt.Sprint(unix.RLIMIT_NOFILE))
	if e.Code != 0 {
		t.Fatalf("%+v %s", e, out)
	}
	b.exec(b.probe, "exit", "3")
	if e := b.event(); e.Event != "none" && (e.Event != agent.Failed || e.What == "") {
		t.Errorf("%+v", e)
	}
}

// TestFull: a box that is at its cap of pids costs a command, not the agent,
// even when that has to collect its garbage then.
func TestFull(t *testing.T) {
	const hierarchy = "/sys/fs/cgroup/pids"
	if _, err := os.Stat(hierarchy + "/cgroup.procs"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root, and the pids controller of cgroup v1")
	}
	own, err := os.MkdirTemp(hierarchy, "agent-test-")
	if err != nil {
		t.Skip(err)
	}
	defer func() {
		for until := time.Now().Add(5 * time.Second); os.Remove(own) != nil && time.Now().Before(until); {
			time.Sleep(10 * time.Millisecond)
		}
	}()
	b := start(t, false, "GOGC=1")
	defer func() {
		b.conn.Close()
		b.end()
	}()
	if err := os.WriteFile(own+"/cgroup.procs", []byte(strconv.Itoa(b.cmd.Process.Pid)), 0); err != nil {
		t.Skip(err)
	}
	current := func() int {
		have, err := os.ReadFile(own + "/pids.current")
		if err != nil {
			t.Fatal(err)
		}
		n, _ := strconv.Atoi(strings.TrimSpace(string(have)))
		return n
	}
	if err := os.WriteFile(own+"/pids.max", []byte(strconv.Itoa(current())), 0); err != nil {
		t.Fatal(err)
	}
	long := agent.Body{Argv: words(b.probe, "exit", "0"), Env: words("LONG=" + strings.Repeat("x", 60<<10))}
	for range 500 {
		j := b.request(agent.OpExec, long, "-")
		b.want(agent.Event{Event: agent.Failed, ID: j.id, What: "exec", Errno: int(unix.EAGAIN)})
	}
	if err := os.WriteFile(own+"/pids.max", []byte("max"), 0); err != nil {
		t.Fatal(err)
	}
	if _, e := b.run("exit", "3"); e.Code != 3 {
		t.Errorf("%+v", e)
	}
}
