package imagetest

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// Registry is one that serves what was put into it, for reading. The zero value
// is empty and ready.
type Registry struct {
	// Before is called for each request and may answer it itself: true ends it.
	// It is set before the first request.
	Before func(http.ResponseWriter, *http.Request) bool

	mu    sync.Mutex
	blobs map[string][]byte // by digest
	docs  map[string]doc    // manifests, by REPO:TAG and REPO@DIGEST
	log   []string
}

type doc struct {
	kind string
	body []byte
}

// Put serves an image under a tag, in the place of what had it before, and gives
// the digest that the tag now has.
func (r *Registry) Put(repo, tag string, i *Image) string {
	m := i.Manifest()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.blobs == nil {
		r.blobs = map[string][]byte{}
	}
	r.blobs[Digest(i.Config)], r.blobs[Digest(i.zipped)] = i.Config, i.zipped
	return r.put(repo, tag, TypeManifest, m)
}

// PutIndex serves an image as one of an index of platforms, as public
// registries mostly do, and gives the index's digest.
func (r *Registry) PutIndex(repo, tag string, i *Image, arch string) string {
	r.Put(repo, "by-digest-alone", i)
	m := i.Manifest()
	b, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": TypeIndex,
		"manifests": []any{map[string]any{
			"mediaType": TypeManifest, "digest": Digest(m), "size": len(m),
			"platform": map[string]any{"architecture": arch, "os": "linux"},
		}},
	})
	if err != nil {
		return "" // maps of strings and numbers
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.put(repo, tag, TypeIndex, b)
}

// PutManifest serves any bytes as the manifest of a tag.
func (r *Registry) PutManifest(repo, tag, kind string, body []byte) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.put(repo, tag, kind, body)
}

func (r *Registry) put(repo, tag, kind string, body []byte) string {
	if r.docs == nil {
		r.docs = map[string]doc{}
	}
	d := Digest(body)
	r.docs[repo+":"+tag], r.docs[repo+"@"+d] = doc{kind, body}, doc{kind, body}
	return d
}

// Requests lists what was asked for so far, as "METHOD PATH".
func (r *Registry) Requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.log...)
}

// ServeHTTP answers what a client needs for a pull.
func (r *Registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	r.log = append(r.log, q.Method+" "+q.URL.Path)
	r.mu.Unlock()
	if r.Before != nil && r.Before(w, q) {
		return
	}
	path, ok := strings.CutPrefix(q.URL.Path, "/v2/")
	if !ok {
		http.NotFound(w, q)
		return
	}
	if path == "" {
		w.WriteHeader(http.StatusOK)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if repo, digest, ok := strings.Cut(path, "/blobs/"); ok && repo != "" {
		if b, ok := r.blobs[digest]; ok {
			reply(w, q, "application/octet-stream", b)
			return
		}
	}
	if repo, name, ok := strings.Cut(path, "/manifests/"); ok {
		sep := ":"
		if strings.HasPrefix(name, "sha256:") {
			sep = "@"
		}
		if d, ok := r.docs[repo+sep+name]; ok {
			reply(w, q, d.kind, d.body)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNotFound)
	_, _ = w.Write([]byte(`{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`))
}

func reply(w http.ResponseWriter, q *http.Request, kind string, b []byte) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.Header().Set("Docker-Content-Digest", Digest(b))
	if q.Method != http.MethodHead {
		_, _ = w.Write(b)
	}
}
