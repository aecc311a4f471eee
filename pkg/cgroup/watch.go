package cgroup

import (
	"context"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Watch tells when the kernel is out of the group's memory and whoever runs the
// box has to end it: the channel is closed then, once. It is nil, which never
// becomes ready, where the kernel ends the whole group itself (cgroup v2) or
// memory is not capped. It stops with ctx or when the group is removed.
//
// On v1 the kernel ends one process only, and a shell in the box could carry
// on after it. The kernel says so on an eventfd before it picks that process,
// and writes a report and tears the process down before its parent hears of
// it, so a caller that kills PID 1 of the box at once is first, save on a
// machine so busy that it does not run for that long. OOM is true either way:
// what remains is that such a shell may have printed something.
//
// The kernel's own killer is not switched off (oom_kill_disable), though a box would then
// freeze where it is: a read(2) into memory that is not there yet then fails
// with EFAULT instead, with nothing said to anybody, and a box whose keeper was killed
// would stay frozen for ever.
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
	stop := context.AfterFunc(ctx, func() { event.Close() })
	go func() {
		defer stop()
		defer event.Close()
		buf := make([]byte, 8)
		for {
			if _, err := event.Read(buf); err != nil || !n.there() {
				return
			}
			if n.outOfMemory() {
				g.oom.Store(true)
				close(out)
				return
			}
		}
	}()
	return out
}

// oomEvents asks the kernel to count OOM situations on a descriptor.
func (n *node) oomEvents() (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	event := os.NewFile(uintptr(fd), "oom")
	control, err := open(n.dir+"/memory.oom_control", unix.O_RDONLY)
	if err == nil {
		err = writeFile(n.dir+"/cgroup.event_control", strconv.Itoa(fd)+" "+strconv.Itoa(control))
		unix.Close(control)
	}
	if err != nil {
		event.Close()
		return nil, err
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
				g.oom.Store(true)
				close(out)
				return
			case !n.there():
				return
			}
		}
	}
}
