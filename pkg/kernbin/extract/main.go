package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/kern-sbx/kern-sbx/pkg/kernbin/pin"
)

const (
	// maxWheel and maxKern are about thirty times today's sizes: a pin that
	// needs more should be looked at by a person.
	maxWheel = 64 << 20
	maxKern  = 64 << 20
)

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

func main() {
	arch := flag.String("arch", "", "architecture to extract, as GOARCH spells it")
	wheels := flag.String("wheel-dir", "", "directory the wheel was downloaded into")
	out := flag.String("out", "", "directory to write ARCH/kern and ARCH/kern.sha256 into")
	pinFile := flag.String("pin", "pkg/kernbin/kern.pin", "the pin file")
	flag.Parse()
	if err := run(*pinFile, *arch, *wheels, *out); err != nil {
		fmt.Fprintln(os.Stderr, "extract: error:", err)
		os.Exit(1)
	}
}

func run(pinFile, arch, wheelDir, out string) error {
	if arch == "" || wheelDir == "" || out == "" {
		return errors.New("-arch, -wheel-dir and -out are required")
	}
	b, err := os.ReadFile(pinFile)
	if err != nil {
		return err
	}
	p, err := pin.Parse(b)
	if err != nil {
		return err
	}
	w, ok := p.For(arch)
	if !ok {
		return fmt.Errorf("%s has no wheel for architecture %q", pinFile, arch)
	}
	wheel, err := findWheel(wheelDir, p, w)
	if err != nil {
		return err
	}
	kern, err := takeKern(wheel, arch)
	if err != nil {
		return fmt.Errorf("wheel for %s: %w", arch, err)
	}
	dir := filepath.Join(out, arch)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := writeAtomic(filepath.Join(dir, "kern"), kern, 0o755); err != nil {
		return err
	}
	sum := sha256.Sum256(kern)
	// The format of sha256sum, so that a person can check it with -c.
	line := hex.EncodeToString(sum[:]) + "  kern\n"
	return writeAtomic(filepath.Join(dir, "kern.sha256"), []byte(line), 0o644)
}

// findWheel gives the bytes of the one file in dir that has the pinned hash.
// The name only narrows the search: it proves nothing.
func findWheel(dir string, p pin.Pin, w pin.Wheel) ([]byte, error) {
	pattern := strings.ReplaceAll(p.Package, "-", "_") + "-" + p.Version + "-*.whl"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var seen []string
	for _, e := range entries {
		if ok, _ := path.Match(pattern, e.Name()); !ok {
			continue
		}
		b, err := readBounded(filepath.Join(dir, e.Name()), maxWheel)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(b)
		got := hex.EncodeToString(sum[:])
		if got == w.SHA256 {
			return b, nil
		}
		seen = append(seen, fmt.Sprintf("%q has %s", e.Name(), got))
	}
	if len(seen) == 0 {
		return nil, fmt.Errorf("no %s in %s", pattern, dir)
	}
	return nil, fmt.Errorf("no wheel in %s has the pinned SHA-256 %s: %s", dir, w.SHA256, strings.Join(seen, "; "))
}

func readBounded(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", name, limit)
	}
	return b, err
}

// takeKern gives the one member DIST.data/scripts/kern of a wheel.
func takeKern(wheel []byte, arch string) ([]byte, error) {
	z, err := zip.NewReader(bytes.NewReader(wheel), int64(len(wheel)))
	if err != nil {
		return nil, err
	}
	var found *zip.File
	for _, f := range z.File {
		if ok, _ := path.Match("*.data/scripts/kern", f.Name); !ok {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("two members are kern: %q and %q", found.Name, f.Name)
		}
		found = f
	}
	switch {
	case found == nil:
		return nil, errors.New("no member *.data/scripts/kern")
	case !found.Mode().IsRegular():
		return nil, fmt.Errorf("member %q is not a regular file", found.Name)
	case found.UncompressedSize64 > maxKern:
		return nil, fmt.Errorf("member %q is larger than %d bytes", found.Name, maxKern)
	}
	r, err := found.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	// The header's size is only a claim, so the bytes are counted too.
	kern, err := io.ReadAll(io.LimitReader(r, maxKern+1))
	if err != nil {
		return nil, err
	}
	if len(kern) > maxKern {
		return nil, fmt.Errorf("member %q is larger than %d bytes", found.Name, maxKern)
	}
	return kern, checkELF(kern, arch)
}

func checkELF(b []byte, arch string) error {
	want, ok := machines[arch]
	if !ok {
		return fmt.Errorf("kern is not built for architecture %q", arch)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("kern is not an ELF file: %w", err)
	}
	if f.Machine != want || f.Class != elf.ELFCLASS64 || f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return fmt.Errorf("kern is %v %v %v, not a 64-bit executable for %s", f.Class, f.Machine, f.Type, arch)
	}
	return nil
}

func writeAtomic(name string, b []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already when all went well
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
