package runner

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// boxPipe is a pipe as a box has one: its end blocks, ours is polled.
func boxPipe(t testing.TB) (own, box *os.File) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	unix.SetNonblock(p[0], true)
	own, box = os.NewFile(uintptr(p[0]), "own"), os.NewFile(uintptr(p[1]), "box")
	t.Cleanup(func() { own.Close(); box.Close() })
	return own, box
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8) ^ byte(i>>16)
	}
	return b
}

// feed writes b into the box's end in uneven pieces and closes it.
func feed(box *os.File, b []byte) {
	for n := 1; len(b) > 0; n = n*3%9973 + 1 {
		k, err := box.Write(b[:min(n, len(b))])
		if err != nil {
			break
		}
		b = b[k:]
	}
	box.Close()
}

// TestRelayTo sends the same bytes to everything that standard output may be.
func TestRelayTo(t *testing.T) {
	data := pattern(700_003)
	dir := t.TempDir()
	open := func(flags int) func(*testing.T) (*os.File, func() []byte) {
		return func(t *testing.T) (*os.File, func() []byte) {
			name := filepath.Join(t.TempDir(), "out")
			if err := os.WriteFile(name, []byte("before"), 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(name, os.O_WRONLY|flags, 0)
			if err != nil {
				t.Fatal(err)
			}
			f.Seek(6, io.SeekStart)
			return f, func() []byte {
				b, err := os.ReadFile(name)
				if err != nil || !bytes.HasPrefix(b, []byte("before")) {
					t.Fatalf("the file's own beginning is gone (%v)", err)
				}
				return b[6:]
			}
		}
	}
	pipe := func(nonblock bool, pause time.Duration) func(*testing.T) (*os.File, func() []byte) {
		return func(t *testing.T) (*os.File, func() []byte) {
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			unix.SetNonblock(p[1], nonblock)
			r, w := os.NewFile(uintptr(p[0]), "r"), os.NewFile(uintptr(p[1]), "w")
			got := make(chan []byte)
			go func() {
				var b bytes.Buffer
				buf := make([]byte, 16<<10)
				for {
					n, err := r.Read(buf)
					b.Write(buf[:n])
					time.Sleep(pause)
					if err != nil {
						break
					}
				}
				r.Close()
				got <- b.Bytes()
			}()
			return w, func() []byte { w.Close(); return <-got }
		}
	}
	socket := func(t *testing.T) (*os.File, func() []byte) {
		p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		r, w := os.NewFile(uintptr(p[0]), "r"), os.NewFile(uintptr(p[1]), "w")
		got := make(chan []byte)
		go func() { b, _ := io.ReadAll(r); r.Close(); got <- b }()
		return w, func() []byte { w.Close(); return <-got }
	}
	null := func(t *testing.T) (*os.File, func() []byte) {
		f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		return f, nil
	}
	for _, to := range []struct {
		name string
		make func(*testing.T) (*os.File, func() []byte)
	}{
		{"file", open(0)},
		{"append", open(os.O_APPEND)},
		{"null", null},
		{"pipe", pipe(false, 0)},
		{"nonblocking pipe", pipe(true, 0)},
		{"slow pipe", pipe(false, 2*time.Millisecond)},
		{"slow nonblocking pipe", pipe(true, 2*time.Millisecond)},
		{"socket", socket},
	} {
		for _, limit := range []int64{0, 1, 65536, 300_000, int64(len(data)) - 1, int64(len(data)), int64(len(data)) + 1} {
			for _, kept := range []bool{false, true} {
				out, got := to.make(t)
				own, box := boxPipe(t)
				var keep *capture
				if kept {
					keep = &capture{dir: dir}
				}
				r := newRelay(own, out, keep, limit)
				go r.run()
				feed(box, data)
				if !r.await(nil) {
					t.Fatalf("%s, limit %d: given up", to.name, limit)
				}
				want := data
				if limit > 0 && limit < int64(len(data)) {
					want = data[:limit]
				}
				if p := r.outErr.Load(); p != nil {
					t.Errorf("%s, limit %d: %v", to.name, limit, *p)
				}
				if got != nil && !bytes.Equal(got(), want) {
					t.Errorf("%s, limit %d, kept %v: other bytes came out", to.name, limit, kept)
				}
				if r.truncated.Load() != (len(want) < len(data)) || r.passed.Load() != int64(len(want)) {
					t.Errorf("%s, limit %d: truncated %v after %d", to.name, limit, r.truncated.Load(), r.passed.Load())
				}
				if kept {
					if b := text(t, &Text{[]span{{keep, 0, keep.size}}}); b != string(want) {
						t.Errorf("%s, limit %d: other bytes were kept", to.name, limit)
					}
					keep.close()
				}
				out.Close()
			}
		}
	}
}

// TestRelayToClosed: nobody reads any more. It is noticed, and the job can go
// on writing.
func TestRelayToClosed(t *testing.T) {
	for _, kept := range []bool{false, true} {
		r0, w0, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r0.Close()
		own, box := boxPipe(t)
		var keep *capture
		if kept {
			keep = &capture{dir: t.TempDir()}
			defer keep.close()
		}
		r := newRelay(own, w0, keep, 0)
		go r.run()
		data := pattern(500_000)
		feed(box, data)
		select {
		case <-r.outGone:
		case <-time.After(30 * time.Second):
			t.Fatal("not noticed")
		}
		r.await(nil)
		if !isClosedOutput(*r.outErr.Load()) {
			t.Errorf("%v is not seen as a closed output", *r.outErr.Load())
		}
		if kept && keep.size != int64(len(data)) {
			t.Errorf("%d bytes kept of %d", keep.size, len(data))
		}
		w0.Close()
	}
}

// TestRelayToFull: a full disk is an error that is remembered, not a reason to
// stop the job.
func TestRelayToFull(t *testing.T) {
	for name, want := range map[string]error{"/dev/full": unix.ENOSPC, os.DevNull: unix.EBADF} {
		flags := os.O_WRONLY
		if want == unix.EBADF {
			flags = os.O_RDONLY
		}
		out, err := os.OpenFile(name, flags, 0)
		if err != nil {
			t.Skip(err)
		}
		own, box := boxPipe(t)
		r := newRelay(own, out, nil, 0)
		go r.run()
		feed(box, pattern(300_000))
		r.await(nil)
		if p := r.outErr.Load(); p == nil || !errors.Is(*p, want) || isClosedOutput(*p) {
			t.Errorf("%s: %v, want %v", name, p, want)
		}
		out.Close()
	}
}

// TestRelayHeldOpen: somebody we do not know of holds the box's end. We do not
// wait for them, whatever the output is.
func TestRelayHeldOpen(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, out := range []io.Writer{file, null, io.Discard, nil} {
		own, box := boxPipe(t)
		r := newRelay(own, out, nil, 0)
		go r.run()
		box.Write([]byte("x"))
		done := make(chan struct{})
		go func() { r.await(nil); close(done) }()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatalf("%T: waits for whoever holds the pipe", out)
		}
		if r.passed.Load() != 1 {
			t.Errorf("%T: passed on %d bytes", out, r.passed.Load())
		}
	}
}

// TestRelayHurry: a reader that does not read is waited for, until the user
// has told us to end.
func TestRelayHurry(t *testing.T) {
	r0, w0, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r0.Close()
	own, box := boxPipe(t)
	r := newRelay(own, w0, nil, 0)
	go r.run()
	go feed(box, pattern(1<<20))
	hurry, done := make(chan struct{}), make(chan bool, 1)
	go func() { done <- r.await(hurry) }()
	select {
	case <-done:
		t.Fatal("the end of the output was thrown away")
	case <-time.After(2500 * time.Millisecond):
	}
	close(hurry)
	select {
	case whole := <-done:
		if whole {
			t.Error("says that all was taken")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("a user cannot end us")
	}
}

// TestDrainNow takes what is there, and only that.
func TestDrainNow(t *testing.T) {
	own, box := boxPipe(t)
	into := &capture{}
	drainNow(own, into, 100)
	if into.size != 0 {
		t.Error("found something in an empty pipe")
	}
	box.Write(pattern(40_000))
	if n := queued(own); n != 40_000 {
		t.Errorf("%d bytes wait", n)
	}
	drainNow(own, into, 100)
	if n := queued(own); n != 0 || into.size > 100+8<<10 {
		t.Errorf("%d bytes left, %d kept", n, into.size)
	}
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		for {
			if _, err := box.Write(pattern(1 << 16)); err != nil {
				return
			}
		}
	}()
	done := make(chan struct{})
	go func() { drainNow(own, into, 100); close(done) }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("a writer that never stops keeps it")
	}
	own.Close()
	<-stop
}

// FuzzDescriptors reads hostile bytes as kern's two descriptors are read.
func FuzzDescriptors(f *testing.F) {
	f.Add([]byte("A"), []byte{1, 1, 0, 0})
	f.Add([]byte("APPx"), []byte{1, 2, 1, 9, 0})
	f.Add([]byte{}, []byte{0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, alive, payload []byte) {
		if len(alive) > 32<<10 || len(payload) > 32<<10 {
			return
		}
		own, box := boxPipe(t)
		a := &kernAlive{parked: make(chan struct{}), closed: make(chan struct{})}
		box.Write(alive)
		box.Close()
		a.watch(own)
		if a.ack.Load() != bytes.ContainsRune(alive, 'A') || a.fail.Load() != bytes.ContainsRune(alive, 'x') || !a.eof.Load() {
			t.Errorf("%q: ack %v fail %v", alive, a.ack.Load(), a.fail.Load())
		}
		own, box = boxPipe(t)
		box.Write(payload)
		box.Close()
		got := (&kernBox{started: own}).payload()
		if want := len(payload) == 4 && payload[0] == 1; want != (got != nil) || (want && !bytes.Equal(got, payload)) {
			t.Errorf("%v was read as %v", payload, got)
		}
		own.Close()
	})
}

type (
	kernBox   = box // both names are others here
	kernAlive = alive
)

// What was written before the end is there, also what the relay had just taken out
// of the pipe when it was asked.
func TestAwaitNowLosesNothing(t *testing.T) {
	dir := t.TempDir()
	for i := range 3000 {
		src, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		keep := &capture{dir: dir}
		r := newRelay(src, nil, keep, 0)
		go r.run()
		if i%2 == 0 {
			runtime.Gosched()
		}
		w.WriteString("x")
		r.awaitNow(nil)
		if keep.size != 1 {
			t.Fatalf("round %d: %d bytes are kept", i, keep.size)
		}
		w.Close()
		src.Close()
	}
}
