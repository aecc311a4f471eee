package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kern-sbx/kern-sbx/pkg/kernbin"
	"github.com/kern-sbx/kern-sbx/pkg/mcp"
	"github.com/kern-sbx/kern-sbx/pkg/runner"
)

// The words that this program is started again with: to go on with a deletion,
// and to compile the library of an image. KERN and what they are about follow.
const (
	sweepWord   = "sweep-inherited"
	compileWord = "compile-in-background"
)

func main() { os.Exit(start(os.Args[1:])) }

func start(args []string) int {
	err := errors.New("this program is for kern-sbx, which starts it: run kern-sbx mcp")
	switch {
	case len(args) > 0 && args[0] == mcp.Word:
		var h *mcp.Handover
		var log *os.File
		if h, log, err = mcp.Inherited(args[1:]); err == nil {
			return serve(h, log)
		}
	case len(args) == 3 && args[0] == sweepWord:
		err = runner.SweepInherited(args[2], args[1])
	case len(args) == 3 && args[0] == compileWord:
		var k *kernbin.Kern
		if k, err = kernbin.Find(context.Background(), kernbin.Options{Flag: args[1]}); err == nil {
			err = runner.CompileInBackground(context.Background(), k, runner.FindDirs(os.Getenv), args[2])
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kern-sbx: error:", err)
		return 125
	}
	return 0
}

const (
	// endTime is how long the end may take in all once calls are ended; before
	// that they have lastCalls, when standard input has ended.
	endTime = 1200 * time.Millisecond
	// goodbye is how long the last answers may take then.
	goodbye = 200 * time.Millisecond
)

// serve is the life of the server.
func serve(h *mcp.Handover, file *os.File) int {
	out, err := takeStdout()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kern-sbx: error:", err)
		return 125
	}
	os.Stdout = os.Stderr
	// A write to a closed pipe shall be an error that we see, and not the end of
	// this process with boxes still there.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	sigs := make(chan os.Signal, 4)
	signal.Notify(sigs, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)

	life, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	log := newLogs(h, file)
	log.Info("started", "kern-sbx", h.Build, "pid", os.Getpid())
	s := newServer(life, h, log)
	for _, n := range h.Notes {
		log.Warn(n)
	}
	wire := newStdio(os.Stdin, out, func() { stop(errEnding) }, func(what string) { log.Warn(what) })
	ended := make(chan error, 1)
	go func() { ended <- s.mcp.Run(context.WithoutCancel(life), wire) }()

	code := 0
	select {
	case <-ended:
	case sig := <-sigs:
		code = 128 + int(sig.(unix.Signal))
		log.Info("ending", "signal", unix.SignalName(sig.(unix.Signal)))
	case <-life.Done(): // nobody reads what we write, or standard input has ended
	}
	// From here on the clock runs, whatever a box, a disk or a log does.
	time.AfterFunc(endTime+2*goodbye, func() { os.Exit(code) })
	limit := time.After(endTime)
	stop(errEnding)
	closed := make(chan struct{})
	go func() {
		s.session.close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-limit:
		// What is left is swept by the next start (rule S8).
		log.Warn("ended before everything was cleared up")
		return code
	}
	select {
	case <-ended:
	case <-time.After(goodbye): // standard input is open still
	}
	log.Info("ended")
	return code
}

// logs is where the server says what happens: the file of --log-file, or standard
// error for what is wrong, and the client.
func newLogs(h *mcp.Handover, file *os.File) *slog.Logger {
	if file != nil {
		return slog.New(slog.NewTextHandler(file, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	level := slog.LevelWarn
	if h.Quiet {
		level = slog.LevelError
	}
	return slog.New(slog.NewTextHandler(newLossy(os.Stderr), &slog.HandlerOptions{Level: level}))
}

// lossy passes on lines to somebody who may have stopped to read them, and leaves
// out what they do not take.
type lossy struct{ lines chan []byte }

func newLossy(to io.Writer) lossy {
	l := lossy{make(chan []byte, 64)}
	go func() {
		for b := range l.lines {
			_, _ = to.Write(b)
		}
	}()
	return l
}

// Write never waits.
func (l lossy) Write(b []byte) (int, error) {
	select {
	case l.lines <- bytes.Clone(b):
	default:
	}
	return len(b), nil
}
