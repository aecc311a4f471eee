package kernbin

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fileID is what must stay the same for a file to count as the one that was
// looked at. ctime is in it because, unlike mtime, nobody but the clock sets it.
type fileID struct {
	Dev, Ino           uint64
	Size, Mtime, Ctime int64 // bytes; nanoseconds since 1970
	UID, Mode          uint32
}

func identityOf(st *unix.Stat_t) fileID {
	return fileID{
		Dev: uint64(st.Dev), Ino: st.Ino, Size: st.Size,
		Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(),
		UID: st.Uid, Mode: st.Mode,
	}
}

// record is what is remembered about one executable.
type record struct {
	Subject string // the SHA-256 of a bundled kern, the real path of a foreign one
	Version string
	Ran     bool // it answered --version where it lies
	ID      fileID
}

const (
	recordHead = "kern-sbx kern identity 1"
	// maxRecord leaves room for a path of PATH_MAX bytes, quoted.
	maxRecord = 20 << 10
)

func (r record) encode() []byte {
	b := append(make([]byte, 0, 256), recordHead+"\nsubject "...)
	b = strconv.AppendQuoteToASCII(b, r.Subject)
	b = append(b, "\nversion "+r.Version+"\nran "...)
	b = strconv.AppendBool(b, r.Ran)
	b = append(b, "\nid"...)
	i := r.ID
	for _, n := range [...]uint64{i.Dev, i.Ino} {
		b = strconv.AppendUint(append(b, ' '), n, 10)
	}
	for _, n := range [...]int64{i.Size, i.Mtime, i.Ctime, int64(i.UID), int64(i.Mode)} {
		b = strconv.AppendInt(append(b, ' '), n, 10)
	}
	return append(b, '\n')
}

// parseRecord accepts what encode writes and nothing else: a record that reads
// back differently is a record somebody edited.
func parseRecord(b []byte) (record, bool) {
	var r record
	lines := strings.Split(string(b), "\n")
	if len(b) > maxRecord || len(lines) != 6 || lines[0] != recordHead {
		return record{}, false
	}
	for i, key := range [...]string{"subject ", "version ", "ran ", "id "} {
		v, ok := strings.CutPrefix(lines[i+1], key)
		if !ok {
			return record{}, false
		}
		lines[i+1] = v
	}
	var err error
	if r.Subject, err = strconv.Unquote(lines[1]); err != nil {
		return record{}, false
	}
	r.Version = lines[2]
	if _, ok := parseVersion(r.Version); !ok {
		return record{}, false
	}
	r.Ran = lines[3] == "true"
	nums := strings.Split(lines[4], " ")
	if len(nums) != 7 {
		return record{}, false
	}
	for i, to := range [...]*uint64{&r.ID.Dev, &r.ID.Ino} {
		if *to, err = strconv.ParseUint(nums[i], 10, 64); err != nil {
			return record{}, false
		}
	}
	for i, to := range [...]*int64{&r.ID.Size, &r.ID.Mtime, &r.ID.Ctime} {
		if *to, err = strconv.ParseInt(nums[2+i], 10, 64); err != nil {
			return record{}, false
		}
	}
	for i, to := range [...]*uint32{&r.ID.UID, &r.ID.Mode} {
		n, err := strconv.ParseUint(nums[5+i], 10, 32)
		if err != nil {
			return record{}, false
		}
		*to = uint32(n)
	}
	return r, string(r.encode()) == string(b)
}

// readRecord gives the record at name; ok is false unless the file is a regular
// one of ours that nobody else can write.
func readRecord(name string) (r record, ok bool) {
	// O_NONBLOCK, because opening a FIFO would wait for a writer.
	fd, err := open(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC)
	if err != nil {
		return record{}, false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o022 != 0 ||
		int(st.Uid) != os.Geteuid() || st.Size > maxRecord {
		return record{}, false
	}
	b := make([]byte, st.Size+1) // one more, to see a file that grew
	n, err := unix.Read(fd, b)
	if err != nil {
		return record{}, false
	}
	return parseRecord(b[:n])
}

// writeRecord replaces the record at name, or leaves the old one.
func writeRecord(name string, r record) error {
	f, err := os.CreateTemp(filepath.Dir(name), tempPrefix+"*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(r.encode())
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// open is unix.Open, again after a signal.
func open(name string, flags int) (int, error) {
	for {
		fd, err := unix.Open(name, flags, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// lstat describes name itself, not what a link there leads to.
func lstat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	for {
		err := unix.Lstat(name, &st)
		if err == nil {
			return st, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return st, &os.PathError{Op: "lstat", Path: name, Err: err}
		}
	}
}
