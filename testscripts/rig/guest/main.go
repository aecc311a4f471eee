// Command guest runs one command in a cgroup v2 guest, as the tests do: see package
// rig. It exits with the command's status, 99 when there was no guest to run it in
// or it passed its time, and 2 on wrong usage.
//
//	go run ./testscripts/rig/guest -user tester -delegate -- cat /proc/self/cgroup
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/kern-sbx/kern-sbx/testscripts/rig"
)

type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func main() {
	var o rig.Options
	flag.StringVar(&o.User, "user", rig.Root, "root or tester")
	flag.BoolVar(&o.Delegate, "delegate", false, "let the user write its part of the cgroup tree")
	flag.BoolVar(&o.Manager, "manager", false, "for tester: start a systemd --user first")
	flag.IntVar(&o.Mem, "mem", rig.DefaultMem, "the guest's memory in `MiB`")
	flag.DurationVar(&o.Timeout, "timeout", rig.DefaultTimeout, "end the command after this `time`")
	flag.Var((*list)(&o.RO), "ro", "a host `path` to show read-only (repeatable)")
	flag.Var((*list)(&o.RW), "rw", "a host `directory` to share writable (repeatable)")
	flag.Var((*list)(&o.Env), "env", "`K=V` for the command (repeatable)")
	verbose := flag.Bool("v", false, "print times on stderr")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "guest: no command")
		flag.Usage()
		os.Exit(2)
	}
	os.Exit(run(o, *verbose))
}

func run(o rig.Options, verbose bool) int {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	g, err := rig.Start(o)
	o.Mem, o.RW = 0, nil
	if err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		return 99
	}
	defer g.Close()
	began := time.Now()
	done := make(chan int, 1)
	go func() {
		res, err := g.Exec(o, flag.Args()...)
		os.Stdout.WriteString(res.Stdout)
		os.Stderr.WriteString(res.Stderr)
		if err != nil {
			fmt.Fprintln(os.Stderr, "guest:", err)
			res.Status = 99
		}
		done <- res.Status
	}()
	select {
	case status := <-done:
		if verbose {
			fmt.Fprintf(os.Stderr, "guest: booted in %v, command took %v\n",
				g.BootTime.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
		}
		return status
	case sig := <-stop:
		return 128 + int(sig.(syscall.Signal))
	}
}
