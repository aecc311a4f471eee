package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// Bounds on what a registry may do to us.
const (
	mostOfManifest = 8 << 20
	mostOfToken    = 1 << 20
	mostOfHeaders  = 256 << 10
	mostRedirects  = 5
	// connectTime and answerTime bound one request; the context bounds all.
	connectTime = 10 * time.Second
	answerTime  = 30 * time.Second
)

// accepted are the kinds of manifest, as kern asks for them: an index first,
// whose digest is what a tag's digest means.
const accepted = "application/vnd.oci.image.index.v1+json,application/vnd.oci.image.manifest.v1+json," +
	"application/vnd.docker.distribution.manifest.list.v2+json,application/vnd.docker.distribution.manifest.v2+json"

// The registry that a reference without a host means, and its API's host.
const (
	defaultRegistry = "docker.io"
	defaultAPI      = "registry-1.docker.io"
)

// Name is a reference taken apart.
type Name struct {
	Host string // of the registry, with its port
	Repo string
	// Tag is "latest" when the reference has neither tag nor digest, and ""
	// when it has only a digest.
	Tag, Digest string
}

// ParseName takes a reference apart as docker and kern do: the first component
// is a host when it has a dot or a port, or is localhost.
func ParseName(ref string) (Name, error) {
	if err := validate.ImageRef(ref); err != nil {
		return Name{}, err
	}
	refuse := func(reason string) (Name, error) {
		return Name{}, &validate.Error{Value: ref, Reason: reason, Fix: "write [HOST[:PORT]/]NAME[:TAG][@sha256:…] in lower case"}
	}
	var n Name
	rest, digest, _ := strings.Cut(ref, "@")
	n.Digest = digest
	if i := strings.LastIndexByte(rest, ':'); i >= 0 && strings.IndexByte(rest[i:], '/') < 0 {
		rest, n.Tag = rest[:i], rest[i+1:]
		if !isTag(n.Tag) {
			return refuse("the tag has characters that a tag cannot have")
		}
	}
	first, more, ok := strings.Cut(rest, "/")
	if ok && (strings.ContainsAny(first, ".:") || first == "localhost") {
		n.Host, rest = first, more
	} else {
		n.Host = defaultRegistry
	}
	if n.Host == defaultRegistry || n.Host == "index."+defaultRegistry {
		n.Host = defaultAPI
		if !strings.Contains(rest, "/") {
			rest = "library/" + rest
		}
	}
	n.Repo = rest
	for part := range strings.SplitSeq(n.Repo, "/") {
		if part == "" || strings.Trim(part, "abcdefghijklmnopqrstuvwxyz0123456789._-") != "" || strings.Trim(part, ".") == "" {
			return refuse("the name has parts that a name cannot have")
		}
	}
	if u, err := url.Parse("https://" + n.Host + "/"); err != nil || u.Host != n.Host || u.User != nil || u.Hostname() == "" || strings.HasSuffix(n.Host, ":") {
		return refuse("the registry's host cannot be one")
	}
	if n.Tag == "" && n.Digest == "" {
		n.Tag = "latest"
	}
	return n, nil
}

func isTag(s string) bool {
	return s != "" && len(s) <= 128 && s[0] != '.' && s[0] != '-' &&
		strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == ""
}

// wanted is the digest of the reference, else its tag.
func (n Name) wanted() string {
	if n.Digest != "" {
		return n.Digest
	}
	return n.Tag
}

// Pinned gives ref with the digest in place of its own, keeping the tag for
// people to read.
func Pinned(ref, digest string) string {
	name, _, _ := strings.Cut(ref, "@")
	return name + "@" + digest
}

// Resolve asks the registry of a reference for the digest that it has there now,
// "sha256:" and 64 hex digits. A reference with a digest is asked for by it. No
// credentials are sent; the token that public registries give to everybody is
// fetched where it is asked for. Errors say what the registry answered, safe to
// print.
//
// The registry is distrusted: answers, redirects and waiting are bounded, plain
// http goes to loopback alone and only when the reference names it, and a
// manifest that was fetched has to have the digest it is said to have.
func Resolve(ctx context.Context, ref string) (digest string, err error) {
	n, err := ParseName(ref)
	if err != nil {
		return "", err
	}
	c := newClient(n)
	defer c.http.CloseIdleConnections()
	digest, err = c.digest(ctx)
	if err != nil {
		return "", fmt.Errorf("%s: %w", n.Host, visibleError(ctx, err))
	}
	if n.Digest != "" && digest != n.Digest {
		return "", fmt.Errorf("%s: it answers with another image, %s", n.Host, digest)
	}
	return digest, nil
}

type client struct {
	name  Name
	local bool // plain http, on loopback
	http  *http.Client
	token string
}

func newClient(n Name) *client {
	host := n.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	c := &client{name: n, local: isLoopback(strings.Trim(host, "[]"))}
	c.http = &http.Client{
		Timeout: answerTime,
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: connectTime}).DialContext,
			TLSHandshakeTimeout:    connectTime,
			MaxResponseHeaderBytes: mostOfHeaders,
			ForceAttemptHTTP2:      true,
		},
		CheckRedirect: func(q *http.Request, via []*http.Request) error {
			if len(via) > mostRedirects {
				return fmt.Errorf("more than %d redirects", mostRedirects)
			}
			return c.allowed(q.URL)
		},
	}
	return c
}

// isLoopback is kern's rule for plain http.
func isLoopback(host string) bool {
	return host == "localhost" || host == "127.0.0.1" || host == "::1"
}

// allowed refuses where a registry's answer may not send us.
func (c *client) allowed(u *url.URL) error {
	switch {
	case u.User != nil:
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && c.local && isLoopback(u.Hostname()):
		return nil
	}
	return fmt.Errorf("it sends us on to %q, which is neither https nor the loopback registry that was asked for", u.Redacted())
}

func (c *client) url() string {
	scheme := "https"
	if c.local {
		scheme = "http"
	}
	return scheme + "://" + c.name.Host + "/v2/" + c.name.Repo + "/manifests/" + c.name.wanted()
}

func (c *client) digest(ctx context.Context) (string, error) {
	resp, err := c.ask(ctx, http.MethodHead)
	if err != nil {
		return "", err
	}
	resp.Body.Close()
	d := resp.Header.Get("Docker-Content-Digest")
	if resp.StatusCode == http.StatusOK && isDigest(d) {
		return d, nil
	}
	// Registries need not answer a HEAD, and a HEAD has no reason in it.
	if resp, err = c.ask(ctx, http.MethodGet); err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", c.refusal(resp)
	}
	b, err := readAll(resp.Body, mostOfManifest)
	if err != nil {
		return "", err
	}
	var m struct {
		Version int `json:"schemaVersion"`
	}
	if json.Unmarshal(b, &m) != nil || m.Version == 0 {
		return "", errors.New("its answer is not a manifest: is this address a registry?")
	}
	sum := sha256.Sum256(b)
	got := "sha256:" + hex.EncodeToString(sum[:])
	if d = resp.Header.Get("Docker-Content-Digest"); d != "" && d != got {
		return "", fmt.Errorf("it says that the manifest has the digest %q, and it has %s", d, got)
	}
	return got, nil
}

// ask makes one request, and a second one with a token when that is wanted.
func (c *client) ask(ctx context.Context, method string) (*http.Response, error) {
	for {
		q, err := http.NewRequestWithContext(ctx, method, c.url(), nil)
		if err != nil {
			return nil, err
		}
		q.Header.Set("Accept", accepted)
		if c.token != "" {
			q.Header.Set("Authorization", "Bearer "+c.token)
		}
		resp, err := c.http.Do(q)
		if err != nil || resp.StatusCode != http.StatusUnauthorized || c.token != "" {
			return resp, err
		}
		challenge := resp.Header.Get("Www-Authenticate")
		resp.Body.Close()
		if err := c.authorize(ctx, challenge); err != nil {
			return nil, err
		}
	}
}

// authorize fetches the token that a registry gives to everybody.
func (c *client) authorize(ctx context.Context, challenge string) error {
	p, ok := parseChallenge(challenge)
	if !ok {
		return errors.New("it wants a password, and images are asked for without one")
	}
	u, err := url.Parse(p["realm"])
	if err != nil || u.Host == "" {
		return errors.New("it names no place that gives tokens")
	}
	if err := c.allowed(u); err != nil {
		return err
	}
	v := u.Query()
	if p["service"] != "" {
		v.Set("service", p["service"])
	}
	v.Set("scope", "repository:"+c.name.Repo+":pull")
	u.RawQuery = v.Encode()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it gives no token to us (%d): the image is not public, or not there", resp.StatusCode)
	}
	b, err := readAll(resp.Body, mostOfToken)
	if err != nil {
		return err
	}
	var t struct {
		Token  string `json:"token"`
		Access string `json:"access_token"`
	}
	if err := json.Unmarshal(b, &t); err != nil {
		return errors.New("its token cannot be read")
	}
	if t.Token == "" {
		t.Token = t.Access
	}
	for i := range len(t.Token) {
		if t.Token[i] <= ' ' || t.Token[i] >= 0x7f {
			return errors.New("its token cannot be one")
		}
	}
	if t.Token == "" {
		return errors.New("its token is empty")
	}
	c.token = t.Token
	return nil
}

// parseChallenge reads a header like Bearer realm="…",service="…". ok is false
// for another scheme and for what cannot be read.
func parseChallenge(s string) (params map[string]string, ok bool) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(s), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, false
	}
	params = map[string]string{}
	for rest = strings.TrimLeft(rest, " \t,"); rest != ""; rest = strings.TrimLeft(rest, " \t,") {
		key, more, found := strings.Cut(rest, "=")
		if !found {
			return nil, false
		}
		key = strings.ToLower(strings.TrimSpace(key))
		if !strings.HasPrefix(more, `"`) {
			i := strings.IndexAny(more, " \t,")
			if i < 0 {
				i = len(more)
			}
			params[key], rest = more[:i], more[i:]
			continue
		}
		quoted, err := strconv.QuotedPrefix(more)
		if err != nil {
			return nil, false
		}
		if params[key], err = strconv.Unquote(quoted); err != nil {
			return nil, false
		}
		rest = more[len(quoted):]
	}
	return params, params["realm"] != ""
}

// refusal says in one line what a registry answered instead of a manifest.
func (c *client) refusal(resp *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	var doc struct {
		Errors []struct{ Code, Message string }
	}
	why := ""
	if json.Unmarshal(b, &doc) == nil && len(doc.Errors) > 0 {
		if why = doc.Errors[0].Message; why == "" {
			why = doc.Errors[0].Code
		}
	}
	what := c.name.Repo + ":" + c.name.Tag
	if c.name.Digest != "" {
		what = c.name.Repo + "@" + c.name.Digest
	}
	switch {
	case resp.StatusCode == http.StatusNotFound && why == "":
		return fmt.Errorf("there is no %s", what)
	case resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("there is no %s (%s)", what, short(why))
	case resp.StatusCode == http.StatusTooManyRequests:
		return errors.New("it has had too many requests from here; try later")
	case why == "":
		return fmt.Errorf("it answers with status %d", resp.StatusCode)
	}
	return fmt.Errorf("it answers with status %d (%s)", resp.StatusCode, short(why))
}

// short makes text of a registry fit into one line.
func short(s string) string {
	const most = 200
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.QuoteToGraphic(s)
}

func readAll(r io.Reader, most int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("its answer is larger than %s", validate.Size(most).Human())
	}
	return b, err
}

// visibleError takes the URL and the verb out of an error of the client, which
// says more than a person needs, and names a limit of ours as what it is.
func visibleError(ctx context.Context, err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		if u.Timeout() && ctx.Err() == nil {
			return fmt.Errorf("no answer within %s", answerTime)
		}
		err = u.Err
	}
	if ctx.Err() != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
	}
	return err
}
