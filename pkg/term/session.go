package term

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	xterm "golang.org/x/term"
)

// ErrNotTerminal refuses an interactive session without a terminal to type at.
var ErrNotTerminal = errors.New("-t needs a terminal on standard input, and it is not one; leave out -t (keep -i to pass standard input on)")

// Leave is what a Session writes to the caller's terminal at its end, however
// the box ended (rules S10): it closes an unfinished control string, then
// switches off what programs switch on. In order: extended keyboard protocols,
// the alternate screen (the cursor is saved first, because leaving a screen
// that was never entered restores an old one), extended keyboards again since
// each screen has its own, mouse and focus reports, bracketed paste,
// synchronised output, reverse video, application cursor keys and keypad,
// insert mode; autowrap on; the scroll region whole, character set ASCII,
// cursor shown in its usual form, colours off.
const Leave = "\x1b\\" +
	keysOff + "\x1b7\x1b[?1049l" + keysOff +
	"\x1b[?9l\x1b[?1000l\x1b[?1001l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?1016l" +
	"\x1b[?2004l\x1b[?2026l\x1b[?5l\x1b[?1l\x1b>\x1b[4l\x1b[?7h" +
	"\x1b7\x1b[?6l\x1b[r\x1b8" +
	"\x0f\x1b(B\x1b[?25h\x1b[0 q" + ResetColour

// keysOff ends kitty's, xterm's and Windows' extended keyboard modes.
const keysOff = "\x1b[<99u\x1b[=0u\x1b[>4;0m\x1b[?9001l"

const (
	endKey     = 0x1d        // ^]
	endPresses = 3           // within endWindow end the box
	endWindow  = time.Second // rules, "Where a toy would slip in" 4

	// sessionQuiet is how long the box's side has to be silent before Close
	// takes it for finished while some process still holds it open, and
	// sessionDrain how long Close follows one that is never silent.
	sessionQuiet = 100 * time.Millisecond
	sessionDrain = 2 * time.Second
	// sessionStuck is how long Close waits for a terminal that takes no bytes.
	sessionStuck = 5 * time.Second
	// answerWait bounds the wait for the terminal's answers to what the box
	// asked it, answerQuiet is the silence that means there are no more.
	answerWait  = 250 * time.Millisecond
	answerQuiet = 30 * time.Millisecond
	// answerStuck bounds the writing of Leave.
	answerStuck = time.Second
	// typeAhead bounds what is kept for a box that does not read. Beyond it
	// keys are lost, because the relay has to go on looking for ^] ^] ^].
	typeAhead = 1 << 20
)

// SessionOptions say who sits at a Session.
type SessionOptions struct {
	// In is the caller's terminal, standard input. Nil or anything but a
	// terminal is refused with ErrNotTerminal.
	In *os.File
	// Out gets the box's output, unfiltered. It is usually the same terminal;
	// to a pipe or file nothing but the box's bytes is written.
	Out *os.File
	// Kill has to end the box. It is called at most once, on a goroutine of its
	// own, for three ^] within a second and when the terminal is gone.
	Kill func()
}

// Session is an interactive run: the box gets a pseudo-terminal of ours, never
// the caller's, so it cannot type into the caller's shell (TIOCSTI), change
// its modes or outlive it there. Bytes go both ways untouched, Ctrl-C, Ctrl-Z
// and Ctrl-\ included; the window size follows the caller's.
//
//	s, err := OpenSession(o)    // nothing on the caller's terminal has changed
//	defer s.Close()             // restores it, also when we panic
//	…start the child with s.Slave as its terminal…
//	err = s.Start()             // raw mode, relay
//	…wait for the child…
//	err = s.Close()             // the rest of its output, then restores
//
// kern gets the slave as standard input and output together with its own -t,
// and a pipe of ours as standard error: then the box has a second terminal,
// made by kern inside the box, and a session of its own (ours is out of its
// reach, kill(0) too), while what kern itself has to say arrives on the pipe.
//
// Between Start and Close nothing else may write to the terminal: it is in raw
// mode. A SIGKILL of our own process is the one end that restores nothing.
type Session struct {
	// Slave is the child's terminal, to be given to it with Setsid and Setctty.
	// Start closes it.
	Slave *os.File

	in, out *os.File
	kill    func()
	master  *os.File
	mfd     int
	stopR   *os.File
	stopW   *os.File
	outTTY  bool
	state   *xterm.State // non-nil while the caller's terminal is raw

	inDone, outDone chan struct{}
	sigDone         chan struct{}
	sigs            chan os.Signal
	moved           atomic.Int64 // when the terminal last took output, unix ns
	outErr          error        // owned by the output pump until outDone
	queries         queries      // as outErr

	killOnce sync.Once
	ended    atomic.Bool
	closing  sync.Once
	closed   error
}

// OpenSession makes the pseudo-terminal, with the caller's window size. It
// refuses with ErrNotTerminal when o.In is not a terminal.
func OpenSession(o SessionOptions) (*Session, error) {
	if !IsTerminal(o.In) {
		return nil, ErrNotTerminal
	}
	master, slave, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("cannot open a pseudo-terminal for -t: %w", err)
	}
	s := &Session{
		Slave: slave, in: o.In, out: o.Out, kill: o.Kill,
		master: master, mfd: int(master.Fd()), outTTY: IsTerminal(o.Out),
	}
	if s.stopR, s.stopW, err = os.Pipe(); err == nil {
		err = unix.SetNonblock(s.mfd, true)
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	s.resize()
	return s, nil
}

// Start closes our copy of Slave, puts the caller's terminal into raw mode and
// begins to relay. Call it once, after the child was started.
func (s *Session) Start() error {
	_ = s.Slave.Close()
	state, err := xterm.MakeRaw(int(s.in.Fd()))
	if err != nil {
		return fmt.Errorf("cannot put the terminal into raw mode: %w", err)
	}
	s.state = state
	s.sigs = make(chan os.Signal, 1)
	signal.Notify(s.sigs, unix.SIGWINCH, unix.SIGCONT)
	s.resize() // it may have changed since OpenSession
	s.inDone, s.outDone, s.sigDone = make(chan struct{}), make(chan struct{}), make(chan struct{})
	go s.follow()
	go s.pumpIn()
	go s.pumpOut()
	return nil
}

// Ended says whether three ^] asked for the box's end.
func (s *Session) Ended() bool { return s.ended.Load() }

// Close relays what the box has still written, takes the relay down and gives
// the caller back the terminal as it was: what arrives in answer to the box's
// queries is thrown away, Leave is written, the modes are restored. It returns
// within a bounded time, whoever still holds the box's side open. The error is
// the first one met in writing the box's output. Close may come at any time
// after OpenSession and may be called again.
func (s *Session) Close() error {
	s.closing.Do(s.close)
	return s.closed
}

func (s *Session) close() {
	_ = s.Slave.Close()
	if s.stopW != nil {
		_ = s.stopW.Close() // every poll sees the hang-up
	}
	leaked := false
	if s.state != nil {
		signal.Stop(s.sigs)
		close(s.sigs)
		<-s.sigDone
		stuck := s.stuck()
		if stuck {
			s.closed = errors.New("the terminal takes no output; the rest of the box's was dropped")
		} else {
			s.closed = s.outErr
		}
		leaked = stuck
		select {
		case <-s.inDone:
		case <-time.After(sessionQuiet): // someone else took the key it was woken for
			leaked = true
		}
		fd := int(s.in.Fd())
		if s.outTTY && !stuck {
			s.leave(fd)
		}
		_ = unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH)
		if err := xterm.Restore(fd, s.state); err != nil && s.closed == nil && !gone(err) {
			s.closed = fmt.Errorf("cannot restore the terminal, type reset: %w", err)
		}
	}
	if leaked {
		return // a pump may yet use the descriptors; we are about to exit
	}
	_ = s.master.Close()
	if s.stopR != nil {
		_ = s.stopR.Close()
	}
}

// stuck waits for the end of the output and says whether the terminal stopped
// taking it instead.
func (s *Session) stuck() bool {
	s.moved.Store(time.Now().UnixNano())
	for {
		left := sessionStuck - time.Since(time.Unix(0, s.moved.Load()))
		if left <= 0 {
			return true
		}
		select {
		case <-s.outDone:
			return false
		case <-time.After(left):
		}
	}
}

// gone says whether an error means that the terminal hung up.
func gone(err error) bool { return errors.Is(err, unix.EIO) || errors.Is(err, unix.ENXIO) }

// leave writes Leave and, if the box may have asked the terminal anything,
// reads the answers away. A terminal answers in order, so the answer to a
// question of ours (ESC[5n, "are you well?") is the last. It says nothing when
// the box has asked for a status itself: then the whole time is waited.
func (s *Session) leave(fd int) {
	text := Leave
	if s.queries.asked {
		text += "\x1b[5n"
	}
	written := make(chan error, 1)
	go func() {
		_, err := s.out.WriteString(text)
		written <- err
	}()
	select {
	case err := <-written:
		if err != nil || !s.queries.asked {
			return
		}
	case <-time.After(answerStuck):
		return
	}
	var got []byte
	buf := make([]byte, 4096)
	for end := time.Now().Add(answerWait); ; {
		wait := time.Until(end)
		if !s.queries.status && bytes.Contains(got, []byte("\x1b[0n")) {
			wait = min(wait, answerQuiet)
		}
		if wait <= 0 || !readable(fd, wait) {
			return
		}
		n, err := unix.Read(fd, buf)
		if err != nil || n <= 0 {
			return
		}
		got = append(got[max(0, len(got)-3):], buf[:n]...)
		if bytes.Contains(got, []byte("\x1b[0n")) {
			got = append(got[:0], "\x1b[0n"...)
		}
	}
}

func readable(fd int, wait time.Duration) bool {
	end := time.Now().Add(wait)
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, max(0, int(time.Until(end).Milliseconds())))
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n > 0
		}
	}
}

// follow keeps the box's window as large as the caller's, and the caller's
// terminal raw after a shell has stopped and continued us.
func (s *Session) follow() {
	defer close(s.sigDone)
	for sig := range s.sigs {
		if sig == unix.SIGCONT {
			_, _ = xterm.MakeRaw(int(s.in.Fd()))
		}
		s.resize()
	}
}

func (s *Session) resize() {
	if ws, err := unix.IoctlGetWinsize(int(s.in.Fd()), unix.TIOCGWINSZ); err == nil {
		_ = unix.IoctlSetWinsize(s.mfd, unix.TIOCSWINSZ, ws)
	}
}

func (s *Session) end() {
	s.killOnce.Do(func() {
		if s.kill != nil {
			go s.kill()
		}
	})
}

// pumpIn carries keys to the box until Close.
func (s *Session) pumpIn() {
	defer close(s.inDone)
	in, stop := int32(s.in.Fd()), int32(s.stopR.Fd())
	buf := make([]byte, 4096)
	var pending []byte
	var keys endKeys
	for {
		p := []unix.PollFd{{Fd: stop, Events: unix.POLLIN}, {Fd: in, Events: unix.POLLIN}, {Fd: -1, Events: unix.POLLOUT}}
		if len(pending) > 0 {
			p[2].Fd = int32(s.mfd)
		}
		if _, err := unix.Poll(p, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return
		}
		if p[0].Revents != 0 {
			return
		}
		if p[1].Revents != 0 {
			n, err := unix.Read(int(in), buf)
			switch {
			case err != nil && (errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN)):
			case err != nil || n == 0: // hung up: nobody can reach this box any more
				s.end()
				return
			default:
				if keys.press(buf[:n], time.Now()) {
					s.ended.Store(true)
					s.end()
				}
				pending = append(pending, buf[:min(n, typeAhead-len(pending))]...)
			}
		}
		if p[2].Revents != 0 {
			n, err := unix.Write(s.mfd, pending)
			switch {
			case err == nil:
				pending = pending[n:]
			case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
			default:
				pending = nil // no one is left to read
			}
		}
	}
}

// pumpOut carries output to the caller: until the box's side is closed by all
// who held it, or after Close until it is silent or the time is up.
func (s *Session) pumpOut() {
	defer close(s.outDone)
	buf := make([]byte, 32<<10)
	var deadline time.Time // zero before Close
	for {
		p := []unix.PollFd{{Fd: int32(s.mfd), Events: unix.POLLIN}, {Fd: int32(s.stopR.Fd()), Events: unix.POLLIN}}
		wait := -1
		if !deadline.IsZero() {
			p, wait = p[:1], int(sessionQuiet.Milliseconds())
		}
		k, err := unix.Poll(p, wait)
		if err != nil && !errors.Is(err, unix.EINTR) {
			s.outErr = err
			return
		}
		if deadline.IsZero() {
			if len(p) > 1 && p[1].Revents != 0 {
				deadline = time.Now().Add(sessionDrain)
			}
		} else if (k == 0 && err == nil) || (p[0].Revents&unix.POLLHUP == 0 && time.Now().After(deadline)) {
			return // what is left after a hang-up is little, and is all relayed
		}
		if err != nil || p[0].Revents == 0 {
			continue
		}
		n, err := unix.Read(s.mfd, buf)
		if err != nil && (errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN)) {
			continue
		}
		if err != nil || n == 0 {
			return // EIO: everything was read and no one holds the other side
		}
		if s.outErr != nil {
			continue // the terminal is gone; the box must not block on that
		}
		s.queries.see(buf[:n])
		if _, err := s.out.Write(buf[:n]); err != nil {
			s.outErr = err
			s.end()
		}
		s.moved.Store(time.Now().UnixNano())
	}
}

// queries watches what the box sends for what a terminal may answer.
type queries struct {
	asked  bool  // an enquiry, an ESC, a byte that may be a C1 control
	status bool  // a status report (CSI … n), which Close uses itself
	state  uint8 // 1 after ESC, 2 within CSI
}

func (q *queries) see(b []byte) {
	for _, c := range b {
		switch {
		case c == 0x1b:
			q.asked, q.state = true, 1
		case c == 0x9b:
			q.asked, q.state = true, 2
		case c == 0x05 || c == 0x90 || c == 0x9a || c == 0x9d:
			q.asked = true
		case q.state == 1 && c == '[':
			q.state = 2
		case q.state == 1 && c >= 0x20:
			q.state = 0
		case q.state == 2 && c >= 0x40:
			q.status = q.status || c == 'n'
			q.state = 0
		}
	}
}

// endKeys counts presses of ^] within a second, as the byte or as the sequence
// that stands for it once a program has switched on an extended keyboard:
// otherwise a box could take the key away from the caller.
type endKeys struct {
	at  [endPresses]time.Time // of the last presses, oldest first
	seq []byte                // an unfinished CSI sequence, ESC included
}

// press takes what was typed and says whether it completes the three.
func (k *endKeys) press(b []byte, now time.Time) bool {
	hit := false
	for _, c := range b {
		switch {
		case c == endKey:
			k.seq = k.seq[:0]
		case c == 0x1b:
			k.seq = append(k.seq[:0], c)
			continue
		case len(k.seq) == 0:
			continue
		case len(k.seq) == 1 && c != '[', len(k.seq) >= maxSequence:
			k.seq = k.seq[:0]
			continue
		case len(k.seq) == 1 || c < 0x40:
			k.seq = append(k.seq, c)
			continue
		default:
			is := isEndKey(string(k.seq[2:]), c)
			k.seq = k.seq[:0]
			if !is {
				continue
			}
		}
		copy(k.at[:], k.at[1:])
		k.at[endPresses-1] = now
		if !k.at[0].IsZero() && now.Sub(k.at[0]) <= endWindow {
			k.at = [endPresses]time.Time{}
			hit = true
		}
	}
	return hit
}

// isEndKey knows a press of Ctrl-] among CSI sequences: kitty's
// "93[:…];MODS[:EVENT]u", xterm's "27;MODS;93~" and Windows' "…;29;1;…_". MODS
// is one more than a mask in which 4 is Ctrl; EVENT 3 is a key let go.
func isEndKey(params string, final byte) bool {
	p := strings.Split(params, ";")
	num := func(i, sub, otherwise int) int {
		if i < len(p) {
			if f := strings.Split(p[i], ":"); sub < len(f) {
				if n, err := strconv.Atoi(f[sub]); err == nil {
					return n
				}
			}
		}
		return otherwise
	}
	ctrl := (num(1, 0, 1)-1)&4 != 0
	switch final {
	case 'u':
		return ctrl && num(0, 0, 0) == ']' && num(1, 1, 1) != 3
	case '~':
		return ctrl && num(0, 0, 0) == 27 && num(2, 0, 0) == ']'
	case '_':
		return num(2, 0, 0) == endKey && num(3, 0, 0) == 1
	}
	return false
}
