package agent

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func pair(t *testing.T) (*Conn, *Conn) {
	t.Helper()
	a, f, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewConn(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	for _, c := range []*Conn{a, b} {
		c.File().SetDeadline(time.Now().Add(10 * time.Second))
	}
	return a, b
}

func TestConn(t *testing.T) {
	a, b := pair(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	body := Body{ID: "x", Argv: [][]byte{[]byte("a")}, Code: make([]byte, 1<<20)}
	packed, err := Pack(&body)
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	want := Request{Op: OpExec, ID: "x", Stdin: true}
	if err := a.Send(want, packed, w); err != nil {
		t.Fatal(err)
	}
	w.Close()
	var got Request
	files, err := b.Receive(&got)
	if err != nil || got != want || len(files) != 2 {
		t.Fatalf("%+v %v %v", got, files, err)
	}
	defer files[0].Close()
	var y Body
	if err := Unpack(files[0], &y); err != nil || y.ID != "x" || len(y.Argv) != 1 || len(y.Code) != 1<<20 {
		t.Errorf("%v %d", err, len(y.Code))
	}
	for _, f := range files {
		if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Error("a received descriptor would be inherited")
		}
	}
	if _, err := files[0].WriteAt([]byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("sealed memory was written: %v", err)
	}
	io.WriteString(files[1], "here")
	files[1].Close()
	if said, err := io.ReadAll(r); err != nil || string(said) != "here" {
		t.Errorf("%q %v", said, err)
	}

	// Anything else is JSON, either way.
	type doc struct{ A []string }
	if err := b.Send(doc{[]string{"x\n"}}); err != nil {
		t.Fatal(err)
	}
	var d doc
	if _, err := a.Receive(&d); err != nil || !reflect.DeepEqual(d, doc{[]string{"x\n"}}) {
		t.Errorf("%+v %v", d, err)
	}
	if err := a.Send(strings.Repeat("x", 1<<17)); err == nil {
		t.Error("a long message was sent")
	}
	b.Close()
	if _, err := a.Receive(&d); err != io.EOF {
		t.Errorf("the other side is gone: %v", err)
	}
}

// TestReceiveRefuses: what is no such message leaves no descriptors behind, and
// the next message is read as if it had not been.
func TestReceiveRefuses(t *testing.T) {
	a, b := pair(t)
	count := func() int {
		e, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(e)
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd := int(null.Fd())
	before := count()
	for _, bad := range []struct {
		bytes []byte
		files int
	}{
		{[]byte("{}"), 1},
		{[]byte("5\nready"), 3},
		{make([]byte, 70<<10), 2},
		{(&Event{Event: Ready}).Append(nil), 20},
	} {
		fds := make([]int, bad.files)
		for i := range fds {
			fds[i] = fd
		}
		if err := unix.Sendmsg(int(a.File().Fd()), bad.bytes, unix.UnixRights(fds...), nil, 0); err != nil {
			t.Fatal(err)
		}
		var e Event
		if files, err := b.Receive(&e); err == nil || len(files) > 0 {
			t.Errorf("%.20q with %d descriptors is %+v", bad.bytes, bad.files, e)
		}
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	if err := a.Send(Event{Event: Ready}); err != nil {
		t.Fatal(err)
	}
	var e Event
	if _, err := b.Receive(&e); err != nil || e.Event != Ready {
		t.Errorf("%+v %v", e, err)
	}
	b.File().SetReadDeadline(time.Now().Add(-time.Second))
	if _, err := b.Receive(&e); !errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, unix.EAGAIN) {
		t.Errorf("after its deadline: %v", err)
	}
}

func TestUnpackRefuses(t *testing.T) {
	plain, err := os.Create(filepath.Join(t.TempDir(), "plain"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	plain.Write((&Body{}).Append(nil))
	r, w, err := os.Pipe() // would block
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	loose := os.NewFile(uintptr(fd), "loose")
	defer loose.Close()
	loose.Write((&Body{}).Append(nil))
	unix.FcntlInt(loose.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	wrong, err := Seal([]byte("5\nx"))
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	for name, f := range map[string]*os.File{"plain file": plain, "pipe": r, "writable memory": loose, "other bytes": wrong} {
		if err := Unpack(f, &Body{}); err == nil {
			t.Errorf("a %s was read", name)
		}
	}
	if _, err := Pack(Body{Code: make([]byte, MaxBody)}); err == nil {
		t.Error("a long body was packed")
	}
}
