package workspace

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// tarOf builds an archive by the standard library, which is not what wrote ours.
func tarOf(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		data := h.Linkname
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg {
			h.Size, h.Linkname = int64(len(data)), ""
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		must(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := io.WriteString(w, data)
			must(t, err)
		}
	}
	must(t, w.Close())
	return b.Bytes()
}

// a is a file with a text, which tarOf takes from Linkname.
func file(name, text string) tar.Header { return tar.Header{Name: name, Linkname: text} }

func zip(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	must(t, err)
	must(t, w.Close())
	return out.Bytes()
}

// raw is one header with its data as our own writer has it, then changed.
func raw(name string, data string, change func(h []byte)) []byte {
	h := appendTarHeader(nil, name, false, 0o644, int64(len(data)), 0)
	if change != nil {
		block := h[len(h)-tarBlock:]
		change(block)
		sum := int64(0)
		copy(block[148:156], "        ")
		for _, c := range block {
			sum += int64(c)
		}
		copy(block[148:156], fmt.Sprintf("%06o\x00 ", sum))
	}
	h = append(h, data...)
	return append(h, make([]byte, padding(int64(len(data))))...)
}

var tarEnd = make([]byte, 2*tarBlock)

func cat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// hostile are archives that must not be restored, with a part of what is said.
var hostile = map[string]struct {
	build func(t testing.TB) []byte
	want  string
}{
	"dot dot":         {func(t testing.TB) []byte { return zip(t, tarOf(t, file("../evil", "x"))) }, `member "../evil": a name that leads out`},
	"dot dot inside":  {func(t testing.TB) []byte { return zip(t, tarOf(t, file("b/../../evil", "x"))) }, "leads out"},
	"dot dot at end":  {func(t testing.TB) []byte { return zip(t, tarOf(t, file("b/..", "x"))) }, "leads out"},
	"dot dot lexical": {func(t testing.TB) []byte { return zip(t, tarOf(t, file("b/../c", "x"))) }, "leads out"},
	"absolute":        {func(t testing.TB) []byte { return zip(t, tarOf(t, file("/tmp/evil", "x"))) }, "an absolute name"},
	"two slashes":     {func(t testing.TB) []byte { return zip(t, tarOf(t, file("//tmp/evil", "x"))) }, "an absolute name"},
	"symlink": {func(t testing.TB) []byte {
		return zip(t, tarOf(t, file("a", "new"), tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}, file("l/evil", "x")))
	}, `member "l": a symbolic link`},
	"hard link": {func(t testing.TB) []byte {
		return zip(t, tarOf(t, file("a", "new"), tar.Header{Name: "l", Typeflag: tar.TypeLink, Linkname: "a"}))
	}, `member "l": a hard link`},
	"hard link outside": {func(t testing.TB) []byte {
		return zip(t, tarOf(t, tar.Header{Name: "l", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}))
	}, "a hard link"},
	"char device":    {func(t testing.TB) []byte { return zip(t, tarOf(t, tar.Header{Name: "d", Typeflag: tar.TypeChar})) }, "a device"},
	"block device":   {func(t testing.TB) []byte { return zip(t, tarOf(t, tar.Header{Name: "d", Typeflag: tar.TypeBlock})) }, "a device"},
	"FIFO":           {func(t testing.TB) []byte { return zip(t, tarOf(t, tar.Header{Name: "p", Typeflag: tar.TypeFifo})) }, "a FIFO"},
	"setuid":         {func(t testing.TB) []byte { return zip(t, tarOf(t, tar.Header{Name: "s", Mode: 0o4755})) }, "a setuid or setgid file"},
	"setgid":         {func(t testing.TB) []byte { return zip(t, tarOf(t, tar.Header{Name: "s", Mode: 0o2755})) }, "a setuid or setgid file"},
	"twice":          {func(t testing.TB) []byte { return zip(t, tarOf(t, file("a", "1"), file("a", "2"))) }, "twice"},
	"twice, spelled": {func(t testing.TB) []byte { return zip(t, tarOf(t, file("a/b", "1"), file("./a//b", "2"))) }, "twice"},
	"directory twice": {func(t testing.TB) []byte {
		return zip(t, tarOf(t, tar.Header{Name: "d/", Typeflag: tar.TypeDir}, tar.Header{Name: "d", Typeflag: tar.TypeDir}))
	}, "twice"},
	"file as directory": {func(t testing.TB) []byte { return zip(t, tarOf(t, file("a", "1"), file("a/b", "2"))) }, "which is a file"},
	"far below a file":  {func(t testing.TB) []byte { return zip(t, tarOf(t, file("a/b", "1"), file("a/b/c/d", "2"))) }, "which is a file"},
	"directory as file": {func(t testing.TB) []byte { return zip(t, tarOf(t, file("a/b", "1"), file("a", "2"))) }, "both as a file and as a directory"},
	"file then directory": {func(t testing.TB) []byte {
		return zip(t, tarOf(t, file("a", "1"), tar.Header{Name: "a/", Typeflag: tar.TypeDir}))
	}, "both as a file and as a directory"},
	"the top as a file":    {func(t testing.TB) []byte { return zip(t, cat(raw(".", "x", nil), tarEnd)) }, "without a name"},
	"unknown type":         {func(t testing.TB) []byte { return zip(t, cat(raw("a", "", func(h []byte) { h[156] = 'V' }), tarEnd)) }, `unknown type "V"`},
	"contiguous":           {func(t testing.TB) []byte { return zip(t, cat(raw("a", "", func(h []byte) { h[156] = '7' }), tarEnd)) }, "unknown type"},
	"GNU sparse":           {func(t testing.TB) []byte { return zip(t, cat(raw("a", "", func(h []byte) { h[156] = 'S' }), tarEnd)) }, ""},
	"directory with bytes": {func(t testing.TB) []byte { return zip(t, cat(raw("a", "x", func(h []byte) { h[156] = '5' }), tarEnd)) }, "contents of a file"},
	"PAX sparse": {func(t testing.TB) []byte {
		x := appendPAX(appendPAX(appendPAX(nil, "GNU.sparse.map", "0,1"), "GNU.sparse.size", "1000000000"), "GNU.sparse.numblocks", "1")
		return zip(t, cat(raw("x", string(x), func(h []byte) { h[156] = 'x' }), raw("a", "1", nil), tarEnd))
	}, "a sparse file"},
	"global header": {func(t testing.TB) []byte {
		return zip(t, cat(raw("g", string(appendPAX(nil, "comment", "x")), func(h []byte) { h[156] = 'g' }), raw("a", "1", nil), tarEnd))
	}, "a global header"},
	"PAX path out": {func(t testing.TB) []byte {
		return zip(t, cat(raw("x", string(appendPAX(nil, "path", "../evil")), func(h []byte) { h[156] = 'x' }), raw("a", "1", nil), tarEnd))
	}, "leads out"},
	"huge PAX header": {func(t testing.TB) []byte {
		return zip(t, cat(raw("x", string(appendPAX(nil, "comment", strings.Repeat("x", 2<<20))), func(h []byte) { h[156] = 'x' }), raw("a", "1", nil), tarEnd))
	}, ""},
	"many PAX headers": {func(t testing.TB) []byte {
		x := raw("x", string(appendPAX(nil, "comment", strings.Repeat("xyz", 300<<10))), func(h []byte) { h[156] = 'x' })
		return zip(t, cat(bytes.Repeat(x, 20), raw("a", "1", nil), tarEnd))
	}, ""},
	"negative size": {func(t testing.TB) []byte {
		return zip(t, cat(raw("a", "", func(h []byte) { copy(h[124:136], "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff") }), tarEnd))
	}, ""},
	"immense size": {func(t testing.TB) []byte {
		return zip(t, cat(raw("a", "", func(h []byte) { copy(h[124:136], "\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff") }), tarEnd))
	}, "more than the limit"},
	"bad checksum":      {func(t testing.TB) []byte { b := tarOf(t, file("a", "1")); b[0] = 'b'; return zip(t, b) }, "damaged"},
	"long part":         {func(t testing.TB) []byte { return zip(t, tarOf(t, file(strings.Repeat("x", 256), "1"))) }, "more than 255 bytes"},
	"long name":         {func(t testing.TB) []byte { return zip(t, tarOf(t, file(strings.Repeat("x/", 2100)+"y", "1"))) }, "more than 4095 bytes"},
	"no end":            {func(t testing.TB) []byte { b := tarOf(t, file("a", "1")); return zip(t, b[:len(b)-1024]) }, "end mark is missing"},
	"nothing in gzip":   {func(t testing.TB) []byte { return zip(t, nil) }, "end mark is missing"},
	"cut gzip":          {func(t testing.TB) []byte { b := zip(t, tarOf(t, file("a", random(100_000)))); return b[:len(b)/2] }, "cut short"},
	"cut trailer":       {func(t testing.TB) []byte { b := zip(t, tarOf(t, file("a", "1"))); return b[:len(b)-4] }, "its end is cut short"},
	"cut plain":         {func(t testing.TB) []byte { b := tarOf(t, file("a", random(100_000))); return b[:len(b)/2] }, "cut short"},
	"wrong CRC":         {func(t testing.TB) []byte { b := zip(t, tarOf(t, file("a", "1"))); b[len(b)-8] ^= 1; return b }, "damaged"},
	"garbage after":     {func(t testing.TB) []byte { return append(zip(t, tarOf(t, file("a", "1"))), "garbage"...) }, "or something follows it"},
	"second archive":    {func(t testing.TB) []byte { b := zip(t, tarOf(t, file("a", "1"))); return cat(b, b) }, "something follows its end"},
	"tar after the end": {func(t testing.TB) []byte { return zip(t, cat(tarOf(t, file("a", "1")), tarOf(t, file("b", "1")))) }, "something follows its end"},
	"byte after plain":  {func(t testing.TB) []byte { return append(tarOf(t, file("a", "1")), 'x') }, "something follows its end"},
	"xz":                {func(t testing.TB) []byte { return []byte("\xfd7zXZ\x00....") }, "compressed with xz"},
	"zstd":              {func(t testing.TB) []byte { return []byte("\x28\xb5\x2f\xfd....") }, "compressed with zstd"},
	"zip":               {func(t testing.TB) []byte { return []byte("PK\x03\x04" + strings.Repeat("x", 600)) }, "not a tar archive"},
	"text":              {func(t testing.TB) []byte { return []byte("hello") }, "not a tar archive"},
	"empty":             {func(t testing.TB) []byte { return nil }, "it is empty"},
	"bomb of zeros":     {func(t testing.TB) []byte { return zeroBomb(t) }, "raise --max-ratio"},
	"endless padding":   {func(t testing.TB) []byte { return zip(t, cat(tarOf(t, file("a", random(8<<10))), make([]byte, 3<<20))) }, ""},
}

// random is text that does not compress, always the same.
func random(n int) string {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return string(b)
}

// zeroBomb is one gzip stream at its best ratio, over the limit of a gentle one.
func zeroBomb(t testing.TB) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	must(t, err)
	tw := tar.NewWriter(w)
	const size = 40 << 20
	must(t, tw.WriteHeader(&tar.Header{Name: "z", Mode: 0o644, Size: size}))
	_, err = io.CopyN(tw, zeroReader{}, size)
	must(t, err)
	must(t, tw.Close())
	must(t, w.Close())
	return out.Bytes()
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func readBytes(b []byte, o ReadOptions) (ArchiveContents, error) {
	return ReadArchive(context.Background(), bytes.NewReader(b), o)
}

// TestHostileArchives: each is refused by a check alone, and by a restore, which
// then leaves the directory and what is around it as it was.
func TestHostileArchives(t *testing.T) {
	for name, h := range hostile {
		t.Run(name, func(t *testing.T) {
			b := h.build(t)
			o := ReadOptions{Name: "x.tar.gz", Limits: DefaultArchiveLimits()}
			_, err := readBytes(b, o)
			refusedFor(t, err, h.want)

			top := scratch(t)
			dir := filepath.Join(top, "w")
			mkdir(t, dir)
			write(t, filepath.Join(dir, "a"), "old")
			write(t, filepath.Join(top, "x.tar.gz"), string(b))
			f, err := os.Open(filepath.Join(top, "x.tar.gz"))
			must(t, err)
			defer f.Close()
			_, err = RestoreSnapshot(t.Context(), f, dir, RestoreOptions{ReadOptions: o, Replace: true})
			refusedFor(t, err, h.want)
			content(t, filepath.Join(dir, "a"), "old")
			holdsOnly(t, dir, "a")
			holdsOnly(t, top, "w", "x.tar.gz")
		})
	}
}

func refusedFor(t *testing.T, err error, want string) {
	t.Helper()
	var bad *validate.Error
	if !errors.As(err, &bad) || !strings.Contains(bad.Error(), want) {
		t.Errorf("got %v, want a refusal with %q", err, want)
	}
}

func holdsOnly(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s holds %q, want %q", dir, got, want)
	}
}

func TestArchiveLimits(t *testing.T) {
	limits := DefaultArchiveLimits()
	read := func(b []byte, change func(*ArchiveLimits)) error {
		l := limits
		change(&l)
		_, err := readBytes(b, ReadOptions{Limits: l})
		return err
	}
	b := zip(t, tarOf(t, file("a/b", "12345"), file("c", "12345")))
	for _, tt := range []struct {
		name   string
		change func(*ArchiveLimits)
		want   string // "" for none
	}{
		{"as it is", func(*ArchiveLimits) {}, ""},
		{"exactly its bytes", func(l *ArchiveLimits) { l.Bytes = 10 }, ""},
		{"a byte less", func(l *ArchiveLimits) { l.Bytes = 9 }, `member "c": with it the files hold more than the limit of 9 B`},
		{"exactly its entries", func(l *ArchiveLimits) { l.Entries = 3 }, ""},
		{"one less: a directory without a header counts", func(l *ArchiveLimits) { l.Entries = 2 }, "more than 2 files and directories"},
		{"exactly its names", func(l *ArchiveLimits) { l.Name = 3 }, ""},
		{"a shorter name", func(l *ArchiveLimits) { l.Name = 2 }, `member "a/b": a name of more than 2 bytes`},
		{"none at all", func(l *ArchiveLimits) { *l = ArchiveLimits{} }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := read(b, tt.change); tt.want == "" {
				must(t, err)
			} else {
				refusedFor(t, err, tt.want)
			}
		})
	}
	bomb := zeroBomb(t)
	must(t, read(bomb, func(l *ArchiveLimits) { l.Ratio = 0 }))
	must(t, read(bomb, func(l *ArchiveLimits) { l.Ratio = 1100 }))
	refusedFor(t, read(bomb, func(l *ArchiveLimits) { l.Ratio, l.Bytes = 0, 10<<20 }), "limit of 10 MiB")
	// One name with many parts is many directories.
	deep := zip(t, tarOf(t, file(strings.Repeat("d/", 2000)+"f", "")))
	refusedFor(t, read(deep, func(l *ArchiveLimits) { l.Entries = 2000 }), "more than 2000")
	must(t, read(deep, func(l *ArchiveLimits) { l.Entries = 2001 }))
}

// TestArchiveTolerated: what other tars write and is harmless.
func TestArchiveTolerated(t *testing.T) {
	good := tarOf(t, tar.Header{Name: "./", Typeflag: tar.TypeDir}, file("./a//b", "1"), tar.Header{Name: "a", Typeflag: tar.TypeDir, Mode: 0o3755},
		file("t", "x"), tar.Header{Name: "far", ModTime: time.Unix(1<<40, 0)})
	bz, err := os.ReadFile("testdata/snapshot.tar.bz2")
	must(t, err)
	for name, b := range map[string][]byte{
		"plain":             good,
		"gzip":              zip(t, good),
		"gzip in two parts": cat(zip(t, good[:700]), zip(t, good[700:])),
		"padded":            zip(t, cat(good, make([]byte, 10<<10))),
		"bzip2":             bz,
	} {
		t.Run(name, func(t *testing.T) {
			got := map[string]string{}
			sum, err := readBytes(b, ReadOptions{Limits: DefaultArchiveLimits(), Member: func(m *ArchiveMember, r io.Reader) error {
				text, err := io.ReadAll(r)
				got[m.Name] = fmt.Sprintf("%v %o %s", m.Dir, m.Mode, text)
				return err
			}})
			must(t, err)
			if sum.Files != 3 || sum.Dirs != 1 || got["a/b"] != "false 644 1" || got["a"] != "true 755 " {
				t.Errorf("%+v, %q", sum, got)
			}
		})
	}
	// With the bit only on request, and then without it.
	b := zip(t, tarOf(t, tar.Header{Name: "s", Mode: 0o6755}))
	_, err = readBytes(b, ReadOptions{StripSetuid: true, Member: func(m *ArchiveMember, _ io.Reader) error {
		if m.Mode != 0o755 {
			t.Errorf("mode %o", m.Mode)
		}
		return nil
	}})
	must(t, err)
}

func TestArchiveRecord(t *testing.T) {
	ok := `{"kern_snapshot": 1, "image": "a:1", "machine": "x86_64", "deps": true, "more": [1]}`
	for text, want := range map[string]bool{
		ok:                                       true,
		strings.Replace(ok, " 1,", " 1e0,", 1):   true,
		strings.Replace(ok, " 1,", " true,", 1):  false,
		strings.Replace(ok, " 1,", " \"1\",", 1): false,
		strings.Replace(ok, " 1,", " 2,", 1):     false,
		strings.Replace(ok, "kern_snapshot", "Kern_Snapshot", 1): false,
		strings.Replace(ok, "a:1", "a b", 1):                     false,
		strings.Replace(ok, "a:1", `\u001b[31m`, 1):              false,
		strings.Replace(ok, "a:1", `\ud800`, 1):                  false,
		strings.Replace(ok, "a:1", strings.Repeat("a", 257), 1):  false,
		strings.Replace(ok, `"a:1"`, "null", 1):                  false,
		"\ufeff" + ok:                                            false,
		ok + "x":                                                 false,
		ok[:40] + "\xff" + ok[41:]:                               false,
		"[]":                                                     false,
		"null":                                                   false,
		"":                                                       false,
		ok + strings.Repeat(" ", 4096):                           false,
	} {
		r, got := parseRecord([]byte(text))
		if got != want || want && (r.Image != "a:1" || !r.Deps) {
			t.Errorf("%.80q: %v %+v", text, got, r)
		}
	}
	for _, in := range []ArchiveRecord{
		{Image: "a:1", Machine: "x86_64", Version: "1.2", Digest: "sha256:00", Deps: true},
		{Image: "bad name\x1b", Machine: "", Version: "ü"},
	} {
		b, err := in.encode()
		must(t, err)
		if r, ok := parseRecord(b); !ok || r.Deps != in.Deps || r.Image == "" {
			t.Errorf("%s does not come back", b)
		}
	}

	// Only the first member, only a whole record; else it is a file of the user.
	for _, tt := range []struct {
		name   string
		b      []byte
		record bool
		files  int
	}{
		{"record", tarOf(t, file(recordName, ok), file("a", "1")), true, 1},
		{"second", tarOf(t, file("a", "1"), file(recordName, ok)), false, 2},
		{"no record", tarOf(t, file(recordName, "{}")), false, 1},
		{"record and a file of its name", tarOf(t, file(recordName, ok), file(recordName, "{}")), true, 1},
	} {
		sum, err := readBytes(tt.b, ReadOptions{Limits: DefaultArchiveLimits(), Member: func(m *ArchiveMember, r io.Reader) error {
			b, err := io.ReadAll(r)
			if int64(len(b)) != m.Size {
				t.Errorf("%s: %d bytes of %d", m.Name, len(b), m.Size)
			}
			return err
		}})
		if err != nil || (sum.Record != nil) != tt.record || sum.Files != tt.files {
			t.Errorf("%s: %+v %v", tt.name, sum, err)
		}
	}
}

// TestTarHeader: what we write, the standard library reads.
func TestTarHeader(t *testing.T) {
	for _, name := range []string{
		"a", "ü\nb\\", "\xff\xfe", strings.Repeat("x", 100), strings.Repeat("x", 101), strings.Repeat("d/", 60) + "f",
		strings.Repeat("p", 155) + "/" + strings.Repeat("n", 99), strings.Repeat("p", 155) + "/" + strings.Repeat("n", 100), strings.Repeat("p", 156) + "/" + strings.Repeat("n", 100),
		strings.Repeat("p", 200) + "/" + strings.Repeat("n", 200), strings.Repeat("q/", 2047) + "z",
	} {
		for _, dir := range []bool{false, true} {
			for _, size := range []int64{0, octalMax, octalMax + 1, 1 << 50} {
				h, err := tar.NewReader(bytes.NewReader(appendTarHeader(nil, name, dir, 0o751, size, 12345))).Next()
				must(t, err)
				if strings.TrimSuffix(h.Name, "/") != name || h.Size != size || h.Mode != 0o751 || h.ModTime.Unix() != 12345 ||
					(h.Typeflag == tar.TypeDir) != dir || h.Uid != 0 || h.Uname != "" {
					t.Errorf("%.40q %v %d: %+v", name, dir, size, h)
				}
			}
		}
	}
	for mtime, want := range map[int64]int64{-5: 0, 1 << 40: octalMax} {
		h, err := tar.NewReader(bytes.NewReader(appendTarHeader(nil, "a", false, 0, 0, mtime))).Next()
		if err != nil || h.ModTime.Unix() != want {
			t.Errorf("%d: %v %v", mtime, h.ModTime.Unix(), err)
		}
	}
}

func FuzzReadArchive(f *testing.F) {
	for _, h := range hostile {
		if b := h.build(f); len(b) < 64<<10 {
			f.Add(b)
		}
	}
	f.Add(tarOf(f, file(recordName, `{"kern_snapshot":1,"image":"a","machine":"b"}`), file("a/b", "1"), tar.Header{Name: "c", Typeflag: tar.TypeDir}))
	f.Fuzz(func(t *testing.T, b []byte) {
		l := DefaultArchiveLimits()
		l.Bytes = 1 << 20
		n, total := 0, int64(0)
		seen := map[string]bool{}
		sum, err := readBytes(b, ReadOptions{Limits: l, Member: func(m *ArchiveMember, r io.Reader) error {
			k, err := io.Copy(io.Discard, r)
			if err == nil && k != m.Size {
				t.Errorf("%q has %d bytes and not %d", m.Name, k, m.Size)
			}
			total += k
			n++
			clean, cerr := memberName(m.Name, l.Name)
			if cerr != nil || clean != m.Name || clean == "" || m.Mode&^0o777 != 0 || seen[clean] || !filepath.IsLocal(clean) {
				t.Errorf("%q came through (%v)", m.Name, cerr)
			}
			seen[clean] = true
			return err
		}})
		if total > l.Bytes {
			t.Errorf("%d bytes came out", total)
		}
		var bad *validate.Error
		if err != nil && !errors.As(err, &bad) {
			t.Errorf("%v is not a refusal", err)
		}
		if err == nil && (sum.Files+sum.Dirs != n || sum.Bytes != total) {
			t.Errorf("%+v, but %d members with %d bytes", sum, n, total)
		}
	})
}

func FuzzMemberName(f *testing.F) {
	for _, s := range []string{"a", "../a", "/a", "a/../b", "./a//b/", "a/..b", "..", ".", "", "a\x00", "\xff/é", strings.Repeat("a/", 3000)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		clean, err := memberName(s, DefaultArchiveName)
		if err != nil || clean == "" {
			return
		}
		if !filepath.IsLocal(clean) || filepath.Clean(clean) != clean || len(clean) > DefaultArchiveName || strings.Contains(clean, "\x00") {
			t.Errorf("%q became %q", s, clean)
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"kern_snapshot":1,"image":"a","machine":"b","deps":true}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, ok := parseRecord(b); ok {
			for _, s := range []string{r.Image, r.Machine, r.Digest, r.Version} {
				if s != "" && !recordField(s) {
					t.Errorf("%q came through", s)
				}
			}
		}
	})
}
