package images

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/images/imagetest"
)

var zero = strings.Repeat("0", 64)

func TestParseName(t *testing.T) {
	for _, c := range []struct {
		ref  string
		want string // host repo tag digest; "" is refused
	}{
		{"alpine", "registry-1.docker.io library/alpine latest "},
		{"python:3.12-slim", "registry-1.docker.io library/python 3.12-slim "},
		{"docker.io/alpine", "registry-1.docker.io library/alpine latest "},
		{"index.docker.io/a/b:1", "registry-1.docker.io a/b 1 "},
		{"a/b", "registry-1.docker.io a/b latest "},
		{"alpine@sha256:" + zero, "registry-1.docker.io library/alpine  sha256:" + zero},
		{"alpine:3@sha256:" + zero, "registry-1.docker.io library/alpine 3 sha256:" + zero},
		{"localhost/x", "localhost x latest "},
		{"localhost:5000/x:1", "localhost:5000 x 1 "},
		{"[::1]:5000/x:1", "[::1]:5000 x 1 "},
		{"r.example.com/a/b/c:v1.2_x", "r.example.com a/b/c v1.2_x "},
		{"r.example.com:443/a", "r.example.com:443 a latest "},
		{"", ""},
		{"-x", ""},
		{"a b", ""},
		{"A/b", ""},
		{"a:", ""},
		{"a:.x", ""},
		{"a:-x", ""},
		{"a:x/../..", ""},
		{"r.example.com/../b", ""},
		{"r.example.com/a/../b:1", ""},
		{"r.example.com/./b", ""},
		{"r.example.com//b", ""},
		{"r.example.com/", ""},
		{"r.example.com/a?x=y", ""},
		{"r.example.com/a#b", ""},
		{"r.example.com/a%2f..", ""},
		{"user:pw@r.example.com/a", ""},
		{"r.example.com\\@evil.example/a", ""},
		{"r.example.com:99999x/a", ""},
		{":5000/a", ""},
		{"a:" + strings.Repeat("t", 129), ""},
	} {
		n, err := ParseName(c.ref)
		got := strings.Join([]string{n.Host, n.Repo, n.Tag, n.Digest}, " ")
		if err != nil {
			got = ""
		}
		if got != c.want {
			t.Errorf("ParseName(%q) = %q, %v; want %q", c.ref, got, err, c.want)
		}
	}
}

func FuzzParseName(f *testing.F) {
	for _, s := range []string{"alpine", "localhost:5000/x:1@sha256:" + zero, "[::1]:5/x", "a.b:1/c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, ref string) {
		n, err := ParseName(ref)
		if err != nil {
			return
		}
		c := newClient(n)
		q, err := http.NewRequest(http.MethodHead, c.url(), nil)
		if err != nil {
			t.Fatalf("%q gives the URL %q: %v", ref, c.url(), err)
		}
		if q.URL.Host != n.Host || q.URL.Path != "/v2/"+n.Repo+"/manifests/"+n.wanted() || q.URL.RawQuery != "" || q.URL.Fragment != "" || q.URL.User != nil {
			t.Fatalf("%q gives the URL %q", ref, q.URL)
		}
		if q.URL.Scheme == "http" && !isLoopback(q.URL.Hostname()) {
			t.Fatalf("%q is asked for in the clear at %s", ref, q.URL.Host)
		}
	})
}

func TestParseChallenge(t *testing.T) {
	for _, c := range []struct{ in, realm, service string }{
		{`Bearer realm="https://a/token",service="b"`, "https://a/token", "b"},
		{`bearer  realm="https://a/token?x=1,2" , service=b`, "https://a/token?x=1,2", "b"},
		{`Bearer service="b\"c",realm=x`, "x", `b"c`},
		{`Basic realm="x"`, "", ""},
		{`Bearer`, "", ""},
		{`Bearer realm`, "", ""},
		{`Bearer realm="x`, "", ""},
		{`Bearer realm=""`, "", ""},
		{``, "", ""},
	} {
		p, ok := parseChallenge(c.in)
		if ok != (c.realm != "") || ok && (p["realm"] != c.realm || p["service"] != c.service) {
			t.Errorf("parseChallenge(%q) = %v %v", c.in, p, ok)
		}
	}
}

func FuzzParseChallenge(f *testing.F) {
	f.Add(`Bearer realm="https://a/token",service="b",scope=c`)
	f.Fuzz(func(t *testing.T, s string) {
		if p, ok := parseChallenge(s); ok && p["realm"] == "" {
			t.Fatal("no realm")
		}
	})
}

// serve starts a registry on loopback, and gives the host to ask.
func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return "localhost:" + s.URL[strings.LastIndexByte(s.URL, ':')+1:]
}

func small(t *testing.T, text string) *imagetest.Image {
	t.Helper()
	i, err := imagetest.New([]imagetest.File{{Name: "etc/x", Mode: 0o644, Content: []byte(text)}}, imagetest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestResolve(t *testing.T) {
	type handler = func(http.ResponseWriter, *http.Request) bool
	status := func(code int, body string) handler {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(code)
			fmt.Fprint(w, body)
			return true
		}
	}
	var r *imagetest.Registry
	var host string
	for _, c := range []struct {
		name   string
		ref    string // after the host
		before handler
		limit  time.Duration
		want   string // "tag" is the digest of x:1, else what the error holds
	}{
		{"tag", "/x:1", nil, 0, "tag"},
		{"digest", "/x@DIGEST", nil, 0, "tag"},
		{"tag and digest", "/x:1@DIGEST", nil, 0, "tag"},
		{"missing tag", "/x:2", nil, 0, "there is no x:2"},
		{"missing repository", "/y:1", nil, 0, "there is no y:1"},
		{"wrong digest", "/x@sha256:" + zero, nil, 0, "there is no x@sha256:0"},
		{"another image for a digest", "/x@sha256:" + zero, func(w http.ResponseWriter, q *http.Request) bool {
			q.URL.Path = "/v2/x/manifests/1"
			return false
		}, 0, "another image"},
		{"no HEAD", "/x:1", func(w http.ResponseWriter, q *http.Request) bool {
			return q.Method == http.MethodHead && status(405, "")(w, q)
		}, 0, "tag"},
		{"HEAD without a digest", "/x:1", func(w http.ResponseWriter, q *http.Request) bool {
			return q.Method == http.MethodHead && status(200, "")(w, q)
		}, 0, "tag"},
		{"HEAD with a bad digest", "/x:1", func(w http.ResponseWriter, q *http.Request) bool {
			if q.Method == http.MethodHead {
				w.Header().Set("Docker-Content-Digest", "sha256:../../etc/passwd")
				return status(200, "")(w, q)
			}
			return false
		}, 0, "tag"},
		{"a body with another digest", "/x:1", func(w http.ResponseWriter, q *http.Request) bool {
			if q.Method == http.MethodHead {
				return status(405, "")(w, q)
			}
			w.Header().Set("Docker-Content-Digest", "sha256:"+zero)
			return status(200, `{"schemaVersion":2}`)(w, q)
		}, 0, "it says that the manifest has the digest"},
		{"rubbish", "/x:1", status(200, "<html>\x1b[2J"), 0, "not a manifest"},
		{"rubbish in an error", "/x:1", status(500, "{\"errors\":[{\"message\":\"\\u001b[2Jno\\nnews\"}]}"), 0, `\x1b[2Jno\nnews`},
		{"a long error", "/x:1", status(400, `{"errors":[{"message":"`+strings.Repeat("é", 5000)+`"}]}`), 0, "…"},
		{"too many requests", "/x:1", status(429, ""), 0, "too many requests"},
		{"huge manifest", "/x:1", func(w http.ResponseWriter, q *http.Request) bool {
			if q.Method == http.MethodHead {
				return status(405, "")(w, q)
			}
			fmt.Fprint(w, `{"schemaVersion":2,"x":"`)
			for line := []byte(strings.Repeat("x", 1<<16)); ; {
				if _, err := w.Write(line); err != nil {
					return true
				}
			}
		}, 0, "larger than 8"},
		{"huge headers", "/x:1", func(w http.ResponseWriter, q *http.Request) bool {
			w.Header().Set("X-Fill", strings.Repeat("x", 1<<20))
			return status(200, "")(w, q)
		}, 0, "header"},
		{"redirect loop", "/x:1", func(w http.ResponseWriter, q *http.Request) bool {
			http.Redirect(w, q, q.URL.Path+"x", http.StatusTemporaryRedirect)
			return true
		}, 0, "redirects"},
		{"redirect once", "/old:1", func(w http.ResponseWriter, q *http.Request) bool {
			if strings.Contains(q.URL.Path, "/old/") {
				http.Redirect(w, q, strings.Replace(q.URL.Path, "/old/", "/x/", 1), http.StatusTemporaryRedirect)
				return true
			}
			return false
		}, 0, "tag"},
		{"redirect in the clear", "/x:1", func(w http.ResponseWriter, q *http.Request) bool {
			http.Redirect(w, q, "http://192.0.2.1/v2/x/manifests/1", http.StatusFound)
			return true
		}, 0, "neither https"},
		{"redirect to a file", "/x:1", func(w http.ResponseWriter, q *http.Request) bool {
			http.Redirect(w, q, "file:///etc/passwd", http.StatusFound)
			return true
		}, 0, "neither https"},
		{"a password", "/x:1", func(w http.ResponseWriter, q *http.Request) bool {
			w.Header().Set("Www-Authenticate", `Basic realm="x"`)
			return status(401, "")(w, q)
		}, 0, "wants a password"},
		{"token", "/x:1", func(w http.ResponseWriter, q *http.Request) bool {
			switch {
			case q.URL.Path == "/token":
				if q.URL.Query().Get("scope") != "repository:x:pull" || q.URL.Query().Get("service") != "s" || q.Header.Get("Authorization") != "" {
					return status(400, "")(w, q)
				}
				return status(200, `{"access_token":"abc"}`)(w, q)
			case q.Header.Get("Authorization") != "Bearer abc":
				w.Header().Set("Www-Authenticate", `Bearer realm="http://`+host+`/token",service="s",scope="repository:everything:push"`)
				return status(401, "")(w, q)
			}
			return false
		}, 0, "tag"},
		{"token never enough", "/x:1", func(w http.ResponseWriter, q *http.Request) bool {
			if q.URL.Path == "/token" {
				return status(200, `{"token":"abc"}`)(w, q)
			}
			w.Header().Set("Www-Authenticate", `Bearer realm="http://`+host+`/token"`)
			return status(401, "")(w, q)
		}, 0, "status 401"},
		{"token with a line break", "/x:1", func(w http.ResponseWriter, q *http.Request) bool {
			if q.URL.Path == "/token" {
				return status(200, `{"token":"abc\r\nX-Y: z"}`)(w, q)
			}
			w.Header().Set("Www-Authenticate", `Bearer realm="http://`+host+`/token"`)
			return status(401, "")(w, q)
		}, 0, "cannot be one"},
		{"token elsewhere in the clear", "/x:1", func(w http.ResponseWriter, q *http.Request) bool {
			w.Header().Set("Www-Authenticate", `Bearer realm="http://169.254.169.254/latest"`)
			return status(401, "")(w, q)
		}, 0, "neither https"},
		{"no answer", "/x:1", func(w http.ResponseWriter, q *http.Request) bool {
			<-q.Context().Done()
			return true
		}, 300 * time.Millisecond, "deadline"},
		{"an answer a byte at a time", "/x:1", func(w http.ResponseWriter, q *http.Request) bool {
			if q.Method == http.MethodHead {
				return status(405, "")(w, q)
			}
			for q.Context().Err() == nil {
				fmt.Fprint(w, " ")
				w.(http.Flusher).Flush()
				time.Sleep(10 * time.Millisecond)
			}
			return true
		}, 300 * time.Millisecond, "deadline"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r = &imagetest.Registry{Before: c.before}
			digest := r.Put("x", "1", small(t, "1"))
			host = serve(t, r)
			ctx := context.Background()
			if c.limit > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.limit)
				defer cancel()
			}
			begin := time.Now()
			got, err := Resolve(ctx, host+strings.Replace(c.ref, "DIGEST", digest, 1))
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
			switch {
			case c.want == "tag":
				if err != nil || got != digest {
					t.Errorf("got %q, %v; want %s", got, err, digest)
				}
			case err == nil || !strings.Contains(err.Error(), c.want):
				t.Errorf("got %q, %v; want an error about %q", got, err, c.want)
			default:
				if len(err.Error()) > 1000 || strings.ContainsAny(err.Error(), "\x1b\n\r") {
					t.Errorf("not fit to be shown: %q", err)
				}
			}
		})
	}
}

// TestResolveIndex: a tag's digest is that of the index, not of the one image in
// it that fits this machine.
func TestResolveIndex(t *testing.T) {
	r := &imagetest.Registry{}
	want := r.PutIndex("x", "1", small(t, "1"), runtime.GOARCH)
	got, err := Resolve(context.Background(), serve(t, r)+"/x:1")
	if err != nil || got != want {
		t.Errorf("got %q, %v; want %s", got, err, want)
	}
}

// TestLoopbackStaysHere: a registry elsewhere cannot send us to a service on
// this machine's loopback.
func TestLoopbackStaysHere(t *testing.T) {
	n, err := ParseName("r.example.com/x:1")
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(n)
	for _, u := range []string{"http://localhost:8080/", "http://127.0.0.1/", "http://[::1]/", "http://r.example.com/", "https://u:p@r.example.com/", "ftp://r.example.com/"} {
		q, err := http.NewRequest(http.MethodGet, u, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.allowed(q.URL) == nil {
			t.Errorf("sent on to %s", u)
		}
	}
}
