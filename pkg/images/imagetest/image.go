package imagetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"runtime"
)

// The media types of what a Registry serves.
const (
	TypeIndex    = "application/vnd.oci.image.index.v1+json"
	TypeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// File is one entry of an image's only layer. With Link it is a symbolic link;
// with a mode that is a directory's, a directory; else a regular file.
type File struct {
	Name    string
	Mode    fs.FileMode
	Content []byte
	Link    string
}

// Config is what an image says of itself.
type Config struct {
	Env        []string `json:"Env,omitempty"`
	Cmd        []string `json:"Cmd,omitempty"`
	Entrypoint []string `json:"Entrypoint,omitempty"`
	WorkingDir string   `json:"WorkingDir,omitempty"`
	User       string   `json:"User,omitempty"`
}

// Image is one image of one layer, for the machine it is made on.
type Image struct {
	Config, Layer []byte // Layer is a plain tar
	zipped        []byte
}

// Digest names bytes as a registry does.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// New makes an image. The directories that a box needs are added by themselves.
func New(files []File, config Config) (*Image, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	all := make([]File, 0, len(files)+16)
	for _, d := range []string{"bin", "dev", "etc", "proc", "root", "run", "sys", "usr", "var", "workspace"} {
		all = append(all, File{Name: d, Mode: fs.ModeDir | 0o755})
	}
	all = append(all, File{Name: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777})
	for _, f := range append(all, files...) {
		h := tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: int64(f.Mode.Perm()), Size: int64(len(f.Content))}
		switch {
		case f.Link != "":
			h.Typeflag, h.Linkname, h.Mode, h.Size = tar.TypeSymlink, f.Link, 0o777, 0
		case f.Mode.IsDir():
			h.Typeflag, h.Name, h.Size = tar.TypeDir, f.Name+"/", 0
			if f.Mode&fs.ModeSticky != 0 {
				h.Mode |= 0o1000
			}
		}
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(f.Content); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	doc, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{Digest(layer.Bytes())}},
	})
	if err != nil {
		return nil, err
	}
	i := &Image{Config: doc, Layer: layer.Bytes()}
	var z bytes.Buffer
	gz := gzip.NewWriter(&z)
	if _, err := gz.Write(i.Layer); err != nil {
		return nil, err
	}
	if err := gz.Close(); err != nil {
		return nil, err
	}
	i.zipped = z.Bytes()
	return i, nil
}

// Archive gives the image as `docker save` would, for kern load.
func (i *Image) Archive(ref string) ([]byte, error) {
	manifest, err := json.Marshal([]map[string]any{{
		"Config": "config.json", "RepoTags": []string{ref}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return nil, err
	}
	var all bytes.Buffer
	w := tar.NewWriter(&all)
	for _, f := range []File{{Name: "config.json", Content: i.Config}, {Name: "layer.tar", Content: i.Layer}, {Name: "manifest.json", Content: manifest}} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: 0o644, Size: int64(len(f.Content))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.Content); err != nil {
			return nil, err
		}
	}
	err = w.Close()
	return all.Bytes(), err
}

// Manifest gives the document that names the image's parts, as it is served.
func (i *Image) Manifest() []byte {
	part := func(kind string, b []byte) map[string]any {
		return map[string]any{"mediaType": kind, "digest": Digest(b), "size": len(b)}
	}
	b, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": TypeManifest,
		"config": part(typeConfig, i.Config), "layers": []any{part(typeLayer, i.zipped)},
	})
	if err != nil {
		return nil // maps of strings and numbers
	}
	return b
}

// Busybox gives a static busybox with links for the applets, or nil where this
// machine has none.
func Busybox(applets ...string) []File {
	for _, p := range []string{"/bin/busybox", "/usr/bin/busybox", "/bin/busybox.static"} {
		if !static(p) {
			continue
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return nil
		}
		files := []File{{Name: "bin/busybox", Mode: 0o755, Content: b}}
		for _, a := range applets {
			files = append(files, File{Name: "bin/" + a, Link: "busybox"})
		}
		return files
	}
	return nil
}

func static(program string) bool {
	f, err := elf.Open(program)
	if err != nil {
		return false
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false
		}
	}
	return true
}
