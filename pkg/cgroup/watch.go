package cgroup

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Watch ends the group's processes when the kernel is out of its memory, where
// the kernel would end one of them only (cgroup v1), and closes the channel
// then. The channel is nil, which never becomes ready, where the kernel ends the
// whole group itself (v2) or memory is not capped. It stops with ctx or when
// the group is removed.
//
// A shell in the box could carry on after a process that the kernel killed. The
// kernel says so on an eventfd before it picks that process, and then writes a
// report and tears its memory down before its parent hears of it. So whoever
// listens is first if it runs at once, and therefore it is a thread of its own,
// with a realtime priority where we may have one. Without it, on a busy machine,
// such a shell may have printed something; OOM is true all the same.
//
// The kernel's own killer stays on. With oom_kill_disable a box would freeze
// where it is, but only where the program itself touches memory: a read(2) into
// memory that is not there yet fails with EFAULT instead, which looks like the
// program's own fault and of which nobody is told. And a box whose keeper was
// killed would stay frozen for ever.
func (g *Group) Watch(ctx context.Context) <-chan struct{} {
	if g.memory == nil || g.memory.v2 {
		return nil
	}
	n := g.memory
	out := make(chan struct{})
	event, err := n.oomEvents()
	if err != nil {
		// A kernel built without them (PREEMPT_RT).
		go g.poll(ctx, n, out)
		return out
	}
	ready := make(chan struct{})
	go func() {
		defer hurry()()
		defer unix.Close(event)
		close(ready)
		woken := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			unix.Write(event, []byte{1, 0, 0, 0, 0, 0, 0, 1})
			close(woken)
		})
		defer func() {
			if !stop() {
				<-woken // the descriptor is not closed under it
			}
		}()
		buf := make([]byte, 8)
		for {
			if _, err := unix.Read(event, buf); err != nil && !errors.Is(err, unix.EINTR) {
				return
			}
			switch {
			case ctx.Err() != nil || !n.there():
				return
			case n.outOfMemory():
				g.end(n)
				close(out)
				return
			}
		}
	}()
	<-ready
	return out
}

// hurry gives this goroutine a thread of its own, with a realtime priority where
// we may have one, until the function it returns is called. The thread goes on
// then as it was: were it ended, so would be the children it may have started that
// want to go with it.
func hurry() (enough func()) {
	runtime.LockOSThread()
	was, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return runtime.UnlockOSThread
	}
	err = unix.SchedSetAttr(0, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
	}, 0)
	if err != nil {
		return runtime.UnlockOSThread
	}
	return func() {
		// An unprivileged thread may not take the flag back, and may keep it.
		if unix.SchedSetAttr(0, was, 0) != nil {
			was.Flags |= unix.SCHED_FLAG_RESET_ON_FORK
			if unix.SchedSetAttr(0, was, 0) != nil {
				return // still hurried, so it must not serve others
			}
		}
		runtime.UnlockOSThread()
	}
}

// end notes an OOM and kills what is in the group. That is once; who calls
// Watch waits for the box to be gone.
func (g *Group) end(n *node) {
	g.oom.Store(true)
	g.kill(n)
}

// oomEvents asks the kernel to count OOM situations on a descriptor.
func (n *node) oomEvents() (int, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	control, err := open(n.dir+"/memory.oom_control", unix.O_RDONLY)
	if err == nil {
		err = writeFile(n.dir+"/cgroup.event_control", strconv.Itoa(event)+" "+strconv.Itoa(control))
		unix.Close(control)
	}
	if err != nil {
		unix.Close(event)
		return -1, err
	}
	return event, nil
}

func (n *node) there() bool {
	_, err := os.Stat(n.dir)
	return err == nil
}

// nearFull is how far below its limit a group may be when the kernel gives up:
// the largest piece for which it does, and what each CPU has set aside.
const nearFull = 1 << 20

// outOfMemory says whether an event was about this group. One about a cgroup
// around it comes here too, and the process that is killed then may be
// anybody's; if it is one of ours, the count says so soon.
func (n *node) outOfMemory() bool {
	for range 100 {
		for _, kind := range []string{"memory.", "memory.memsw."} {
			limit, err1 := number(n.dir + "/" + kind + "limit_in_bytes")
			used, err2 := number(n.dir + "/" + kind + "usage_in_bytes")
			if err1 == nil && err2 == nil && used > limit-nearFull {
				return true
			}
		}
		if n.kills() > 0 {
			return true
		}
		time.Sleep(500 * time.Microsecond)
	}
	return false
}

// pollEvery is how often the count is read where there are no events.
const pollEvery = 2 * time.Millisecond

func (g *Group) poll(ctx context.Context, n *node, out chan struct{}) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			switch {
			case n.kills() > 0:
				g.end(n)
				close(out)
				return
			case !n.there():
				return
			}
		}
	}
}
