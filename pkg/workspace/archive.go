package workspace

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	// recordName is the first member of a snapshot: what it was taken of. kern's
	// SDK writes and reads the same one. The name is not reserved: it counts only
	// in the first place and with the key in it.
	recordName = ".kern-snapshot.json"
	recordMax  = 4096 // bytes, the SDK's limit as well
	// depsName is the directory of installed packages at the top of a workspace.
	depsName = ".deps"
)

// ArchiveRecord says where a snapshot comes from.
type ArchiveRecord struct {
	// Image is the reference of the image that the workspace was used with.
	Image string `json:"image"`
	// Digest is that image's digest, "sha256:…", if it was known.
	Digest string `json:"digest,omitempty"`
	// Machine is the CPU as uname -m calls it.
	Machine string `json:"machine"`
	// Version is the version of kern-sbx that wrote the snapshot; empty in one
	// that the SDK wrote.
	Version string `json:"version,omitempty"`
	// Deps says that the workspace had installed packages in it (.deps).
	Deps bool `json:"deps"`
}

// Machine is the CPU of this machine as uname -m calls it, which is how
// ArchiveRecord has it.
func Machine() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Machine[:])
}

// encode gives the bytes of the first member. The SDK takes a record only if
// image and machine are 1 to 256 printable ASCII characters, and it would
// restore any other one as a file of the user.
func (r *ArchiveRecord) encode() ([]byte, error) {
	c := *r
	for _, s := range []*string{&c.Image, &c.Machine} {
		if !recordField(*s) {
			*s = "unknown"
		}
	}
	for _, s := range []*string{&c.Digest, &c.Version} {
		if !recordField(*s) {
			*s = ""
		}
	}
	return json.Marshal(struct {
		Key int `json:"kern_snapshot"`
		ArchiveRecord
	}{1, c})
}

// recordField says whether a text is one that a record may hold: it will be
// shown, so nothing else gets in.
func recordField(s string) bool {
	if s == "" || len(s) > 256 {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// parseRecord reads a first member, strictly and as the SDK does: what is not
// wholly a record is an ordinary file of that name.
func parseRecord(b []byte) (*ArchiveRecord, bool) {
	if len(b) > recordMax || !utf8.Valid(b) {
		return nil, false
	}
	// Not into a struct: that would take names in any case.
	var all map[string]json.RawMessage
	if json.Unmarshal(b, &all) != nil {
		return nil, false
	}
	if n, err := strconv.ParseFloat(string(bytes.TrimSpace(all["kern_snapshot"])), 64); err != nil || n != 1 {
		return nil, false
	}
	text := func(key string) string {
		var s string
		if json.Unmarshal(all[key], &s) != nil || !recordField(s) {
			return ""
		}
		return s
	}
	r := &ArchiveRecord{Image: text("image"), Machine: text("machine"), Digest: text("digest"), Version: text("version")}
	if r.Image == "" || r.Machine == "" {
		return nil, false
	}
	r.Deps = string(bytes.TrimSpace(all["deps"])) == "true"
	return r, true
}

// ArchiveLimits bounds what an archive may hold. A zero in a field means no
// limit, except for Name, where it means the default.
type ArchiveLimits struct {
	// Bytes is how much all files may hold together; holes count.
	Bytes int64
	// Entries is how many files and directories there may be.
	Entries int
	// Name is how many bytes a name may have, directories included.
	Name int
	// Ratio is how many bytes of tar there may be for one compressed byte, beyond
	// the first mebibyte of them. deflate reaches 1032, but no snapshot of ours
	// gets to 1000, whatever is in it.
	Ratio int
}

// The limits that apply unless others are asked for. They hold for a save as
// well, so that what was saved can be restored.
const (
	DefaultArchiveBytes   = 10 << 30
	DefaultArchiveEntries = 1_000_000
	// DefaultArchiveName is what the kernel takes for a path; a limit above it
	// would change nothing.
	DefaultArchiveName  = unix.PathMax - 1
	DefaultArchiveRatio = 1000
)

// DefaultArchiveLimits gives the limits that apply unless others are asked for.
func DefaultArchiveLimits() ArchiveLimits {
	return ArchiveLimits{DefaultArchiveBytes, DefaultArchiveEntries, DefaultArchiveName, DefaultArchiveRatio}
}

func (l ArchiveLimits) orNone() ArchiveLimits {
	if l.Bytes <= 0 {
		l.Bytes = math.MaxInt64
	}
	if l.Entries <= 0 {
		l.Entries = math.MaxInt
	}
	if l.Name <= 0 || l.Name > DefaultArchiveName {
		l.Name = DefaultArchiveName
	}
	if l.Ratio <= 0 {
		l.Ratio = math.MaxInt
	}
	return l
}

const (
	tarBlock    = 512
	tarNameMax  = 100
	tarSplitMax = 155
	// octalMax is the largest number in eleven octal digits: of a size in a
	// header without an extended one, and of a time.
	octalMax = 1<<33 - 1
)

// appendTarHeader appends the header of one file or directory: USTAR, with an
// extended (PAX) header in front of it where a name cannot be split into its
// two fields, or a file has 8 GiB and more. Names stay the bytes that they are,
// and what could name a person or a machine is left empty.
func appendTarHeader(b []byte, name string, dir bool, mode uint32, size, mtime int64) []byte {
	if dir {
		name += "/"
	}
	prefix, short, fits := splitTarName(name)
	var pax []byte
	if !fits {
		pax = appendPAX(pax, "path", name)
	}
	if size > octalMax {
		pax = appendPAX(pax, "size", strconv.FormatInt(size, 10))
	}
	if len(pax) > 0 {
		b = appendTarBlock(b, "", "././@PaxHeader", 'x', 0o644, int64(len(pax)), 0)
		b = append(b, pax...)
		b = append(b, make([]byte, padding(int64(len(pax))))...)
	}
	kind := byte('0')
	if dir {
		kind = '5'
	}
	return appendTarBlock(b, prefix, short, kind, mode, min(size, octalMax), min(max(mtime, 0), octalMax))
}

// splitTarName finds the slash that a long name can be cut at.
func splitTarName(name string) (prefix, short string, ok bool) {
	if len(name) <= tarNameMax {
		return "", name, true
	}
	// The last character may be the slash of a directory, which stays with it.
	for i := min(len(name)-2, tarSplitMax); i > 0 && len(name)-i-1 <= tarNameMax; i-- {
		if name[i] == '/' {
			return name[:i], name[i+1:], true
		}
	}
	return "", name[:tarNameMax], false
}

// appendPAX appends one record, whose length counts its own digits.
func appendPAX(b []byte, key, value string) []byte {
	n := len(key) + len(value) + 3
	total := n + len(strconv.Itoa(n))
	if len(strconv.Itoa(total)) != len(strconv.Itoa(n)) {
		total++
	}
	return append(b, strconv.Itoa(total)+" "+key+"="+value+"\n"...)
}

func appendTarBlock(b []byte, prefix, name string, kind byte, mode uint32, size, mtime int64) []byte {
	at := len(b)
	b = append(b, make([]byte, tarBlock)...)
	h := b[at:]
	octal := func(field []byte, n int64) {
		digits := strconv.FormatInt(n, 8)
		copy(field, strings.Repeat("0", len(field)-1-len(digits))+digits)
	}
	copy(h[0:100], name)
	octal(h[100:108], int64(mode))
	octal(h[108:116], 0) // uid
	octal(h[116:124], 0) // gid
	octal(h[124:136], size)
	octal(h[136:148], mtime)
	copy(h[148:156], "        ")
	h[156] = kind
	copy(h[257:265], "ustar\x0000")
	octal(h[329:337], 0)
	octal(h[337:345], 0)
	copy(h[345:500], prefix)
	sum := int64(0)
	for _, c := range h {
		sum += int64(c)
	}
	octal(h[148:155], sum)
	h[154] = 0
	return b
}

// padding is what is missing to a whole number of tar's blocks.
func padding(size int64) int64 { return -size & (tarBlock - 1) }
