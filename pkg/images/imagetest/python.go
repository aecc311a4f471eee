package imagetest

import (
	"debug/elf"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Python gives this machine's own Python, its standard library without any
// bytecode, and the libraries they need; nil where there is none in /usr.
func Python() []File {
	programs, _ := filepath.Glob("/usr/bin/python3.[0-9]*")
	for _, p := range programs {
		name := filepath.Base(p)
		lib := "/usr/lib/" + name
		if _, err := os.Stat(lib + "/os.py"); err != nil || strings.Trim(name, "python.0123456789") != "" {
			continue
		}
		c := &collector{seen: map[string]bool{}}
		c.file(p)
		c.files = append(c.files, File{Name: "usr/bin/python3", Link: name})
		_ = filepath.WalkDir(lib, func(at string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return nil
			case d.IsDir() && (d.Name() == "__pycache__" || d.Name() == "test" || strings.HasPrefix(d.Name(), "config-")):
				return fs.SkipDir
			case !d.IsDir():
				c.file(at)
			}
			return nil
		})
		return c.files
	}
	return nil
}

// collector takes files into an image, with what they are linked against.
type collector struct {
	files []File
	seen  map[string]bool
}

func (c *collector) file(path string) {
	if c.seen[path] {
		return
	}
	c.seen[path] = true
	b, err := os.ReadFile(path) // what a link leads to, under the link's name
	if err != nil {
		return
	}
	c.files = append(c.files, File{Name: strings.TrimPrefix(path, "/"), Mode: 0o755, Content: b})
	f, err := elf.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name := make([]byte, p.Filesz)
		if _, err := p.ReadAt(name, 0); err == nil {
			c.file(strings.TrimRight(string(name), "\x00"))
		}
	}
	libs, _ := f.ImportedLibraries()
	for _, l := range libs {
		for _, dir := range []string{"/lib/x86_64-linux-gnu/", "/lib/aarch64-linux-gnu/", "/lib64/", "/usr/lib64/", "/usr/lib/", "/lib/"} {
			if _, err := os.Stat(dir + l); err == nil {
				c.file(dir + l)
				break
			}
		}
	}
}
