package main

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const dist = "kern_sandbox-0.2.49.data/scripts/kern"

// elfHeader is the smallest file debug/elf takes for an executable.
func elfHeader(machine uint16) []byte {
	b := make([]byte, 64)
	copy(b, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(b[16:], 2) // ET_EXEC
	binary.LittleEndian.PutUint16(b[18:], machine)
	binary.LittleEndian.PutUint32(b[20:], 1)
	binary.LittleEndian.PutUint16(b[52:], 64)
	binary.LittleEndian.PutUint16(b[58:], 64)
	return append(b, "the rest"...)
}

var amd64ELF = elfHeader(62)

type member struct {
	name string
	data []byte
	mode os.FileMode
}

func wheel(t *testing.T, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, m := range members {
		h := &zip.FileHeader{Name: m.name, Method: zip.Deflate}
		h.SetMode(m.mode)
		w, err := z.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(m.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// place writes a wheel and a pin that asks for hash (the wheel's own if "").
func place(t *testing.T, b []byte, hash string) (pinFile, dir string) {
	t.Helper()
	dir = t.TempDir()
	if hash == "" {
		sum := sha256.Sum256(b)
		hash = hex.EncodeToString(sum[:])
	}
	pinFile = filepath.Join(dir, "kern.pin")
	text := fmt.Sprintf("package kern-sandbox\nversion 0.2.49\nkern 0.33.0\nwheel amd64 p %s\nwheel arm64 q %s\n", hash, hash)
	for name, data := range map[string][]byte{pinFile: []byte(text), filepath.Join(dir, "kern_sandbox-0.2.49-py3-none-x.whl"): b} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return pinFile, dir
}

func TestExtract(t *testing.T) {
	pinFile, dir := place(t, wheel(t, member{"kern_sandbox/__init__.py", []byte("x"), 0o644}, member{dist, amd64ELF, 0o755}), "")
	// A wheel beside it that has the name but not the hash is passed over.
	if err := os.WriteFile(filepath.Join(dir, "kern_sandbox-0.2.49-a.whl"), []byte("PK"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	for range 2 {
		if err := run(pinFile, "amd64", dir, out); err != nil {
			t.Fatal(err)
		}
	}
	check(t, filepath.Join(out, "amd64"), amd64ELF)
}

func check(t *testing.T, dir string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(dir, "kern"))
	if err != nil || want != nil && !bytes.Equal(got, want) {
		t.Fatalf("kern: %d bytes, %v", len(got), err)
	}
	st, err := os.Stat(filepath.Join(dir, "kern"))
	if err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("%v %v", st.Mode(), err)
	}
	sum := sha256.Sum256(got)
	line, err := os.ReadFile(filepath.Join(dir, "kern.sha256"))
	if err != nil || string(line) != hex.EncodeToString(sum[:])+"  kern\n" {
		t.Errorf("kern.sha256: %q %v", line, err)
	}
	if e, _ := os.ReadDir(dir); len(e) != 2 {
		t.Errorf("left behind: %v", e)
	}
}

func TestExtractRefuses(t *testing.T) {
	one := member{dist, amd64ELF, 0o755}
	good := wheel(t, one)
	for name, c := range map[string]struct {
		wheel      []byte
		hash, arch string
		want       string
	}{
		"wrong hash":         {good, strings.Repeat("0", 64), "amd64", "has the pinned SHA-256"},
		"not a zip":          {[]byte("hello"), "", "amd64", "zip"},
		"cut short":          {good[:len(good)-5], "", "amd64", "zip"},
		"no kern":            {wheel(t, member{"kern", amd64ELF, 0o755}, member{"a.data/scripts/kern2", amd64ELF, 0o755}), "", "amd64", "no member"},
		"kern deeper":        {wheel(t, member{"x/a.data/scripts/kern", amd64ELF, 0o755}), "", "amd64", "no member"},
		"two kerns":          {wheel(t, one, member{"b.data/scripts/kern", amd64ELF, 0o755}), "", "amd64", "two members"},
		"the same twice":     {wheel(t, one, one), "", "amd64", "two members"},
		"a link":             {wheel(t, member{dist, []byte("/bin/sh"), 0o777 | os.ModeSymlink}), "", "amd64", "not a regular file"},
		"a directory":        {wheel(t, member{dist, nil, 0o755 | os.ModeDir}), "", "amd64", "not a regular file"},
		"another machine":    {good, "", "arm64", "not a 64-bit executable for arm64"},
		"unknown arch":       {good, "", "riscv64", "no wheel for architecture"},
		"a script":           {wheel(t, member{dist, []byte("#!/bin/sh\n"), 0o755}), "", "amd64", "not an ELF file"},
		"empty":              {wheel(t, member{dist, nil, 0o755}), "", "amd64", "not an ELF file"},
		"an object file":     {wheel(t, member{dist, append(append([]byte{}, amd64ELF[:16]...), append([]byte{1}, amd64ELF[17:]...)...), 0o755}), "", "amd64", "not a 64-bit executable"},
		"larger than bounds": {lying(t, maxKern+1), "", "amd64", "larger than"},
		"lies about size":    {lying(t, 100), "", "amd64", "zip: not a valid zip file"},
		"damaged data":       {damaged(t), "", "amd64", "checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			pinFile, dir := place(t, c.wheel, c.hash)
			out := t.TempDir()
			err := run(pinFile, c.arch, dir, out)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
			if e, _ := os.ReadDir(out); len(e) != 0 {
				t.Errorf("wrote %v", e)
			}
		})
	}
	if err := run("/nope", "amd64", "/nope", "/nope"); err == nil {
		t.Error("a missing pin was accepted")
	}
	pinFile, dir := place(t, good, "")
	if err := run(pinFile, "", dir, dir); err == nil {
		t.Error("no -arch was accepted")
	}
	if err := run(pinFile, "amd64", t.TempDir(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "no kern_sandbox-0.2.49-*.whl in") {
		t.Errorf("empty wheel directory: %v", err)
	}
}

// lying gives a wheel whose member unpacks to 1 MiB and says it has claim bytes.
func lying(t *testing.T, claim uint64) []byte {
	t.Helper()
	var packed bytes.Buffer
	w, err := flate.NewWriter(&packed, flate.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	h := &zip.FileHeader{Name: dist, Method: zip.Deflate, CompressedSize64: uint64(packed.Len()), UncompressedSize64: claim}
	h.SetMode(0o755)
	raw, err := z.CreateRaw(h)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Write(packed.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// damaged gives a wheel with one bit of kern's stored bytes turned.
func damaged(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	h := &zip.FileHeader{Name: dist, Method: zip.Store}
	h.SetMode(0o755)
	w, err := z.CreateHeader(h)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(amd64ELF); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	out := b.Bytes()
	out[bytes.Index(out, []byte("the rest"))] ^= 1
	return out
}

// The wheels that make has fetched: as they are, and with one byte changed.
func TestRealWheels(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			dir := filepath.Join("..", "..", "..", ".cache", "wheels", arch)
			found, _ := filepath.Glob(filepath.Join(dir, "*.whl"))
			if len(found) == 0 {
				t.Skipf("no wheel in %s: make kern GOARCH=%s has not run", dir, arch)
			}
			out := t.TempDir()
			if err := run("../kern.pin", arch, dir, out); err != nil {
				t.Fatal(err)
			}
			check(t, filepath.Join(out, arch), nil)
			b, err := os.ReadFile(found[0])
			if err != nil {
				t.Fatal(err)
			}
			b[len(b)/2] ^= 1
			bad := t.TempDir()
			if err := os.WriteFile(filepath.Join(bad, filepath.Base(found[0])), b, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := run("../kern.pin", arch, bad, t.TempDir()); err == nil || !strings.Contains(err.Error(), "pinned SHA-256") {
				t.Errorf("a changed byte: %v", err)
			}
		})
	}
}
