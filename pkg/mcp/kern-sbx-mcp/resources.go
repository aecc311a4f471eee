package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/kern-sbx/kern-sbx/pkg/runner"
)

const (
	// mostKept is how many streams that were too long for their answers are kept.
	mostKept = 32
	// maxRead is how many bytes of one are given at once.
	maxRead = 1 << 20

	outputURI = "kern-sbx://output/"
)

// outputs are the streams that were longer than an answer shows.
type outputs struct {
	server *sdk.Server
	mu     sync.Mutex
	all    []kept
}

type kept struct {
	uri  string
	text *runner.Text
}

func outputName(call int64, stream string) string {
	return outputURI + strconv.FormatInt(call, 10) + "/" + stream
}

// keep makes a stream a resource, in place of the oldest.
func (o *outputs) keep(uri string, text *runner.Text) {
	o.mu.Lock()
	o.all = append(o.all, kept{uri, text})
	var old []string
	for len(o.all) > mostKept {
		old = append(old, o.all[0].uri)
		o.all = o.all[1:]
	}
	o.mu.Unlock()
	o.server.AddResource(&sdk.Resource{
		URI: uri, Name: strings.TrimPrefix(uri, outputURI), MIMEType: "text/plain", Size: text.Len(),
		Description: "All that a call wrote there, as far as it is kept.",
	}, o.read)
	if len(old) > 0 {
		o.server.RemoveResources(old...)
	}
}

func (o *outputs) find(uri string) *runner.Text {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range o.all {
		if k.uri == uri {
			return k.text
		}
	}
	return nil
}

// read gives a part of a stream, neutralised as in an answer.
func (o *outputs) read(_ context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	u, err := url.Parse(req.Params.URI)
	if err != nil {
		return nil, sdk.ResourceNotFoundError(req.Params.URI)
	}
	base, query, _ := strings.Cut(req.Params.URI, "?")
	text := o.find(base)
	if text == nil {
		return nil, sdk.ResourceNotFoundError(req.Params.URI)
	}
	at, size := int64(0), int64(maxRead)
	if query != "" {
		for name, to := range map[string]*int64{"offset": &at, "limit": &size} {
			if v := u.Query().Get(name); v != "" {
				n, err := strconv.ParseInt(v, 10, 64)
				if err != nil || n < 0 {
					return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: name + " is not a number of bytes"}
				}
				*to = n
			}
		}
	}
	if size == 0 { // counts as not given, as with read_file
		size = maxRead
	}
	at, size = min(at, text.Len()), min(size, maxRead)
	part := clean(string(text.Slice(at, size)))
	if end := at + size; end < text.Len() {
		part += fmt.Sprintf("\n...[truncated: %d more bytes; %s?offset=%d]", text.Len()-end, base, end)
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: req.Params.URI, MIMEType: "text/plain", Text: part}}}, nil
}

func (s *server) addResources() {
	s.mcp.AddResourceTemplate(&sdk.ResourceTemplate{
		Name: "output", Title: "Output of a call", MIMEType: "text/plain", URITemplate: outputURI + "{call}/{stream}{?offset,limit}",
		Description: "What a call wrote to stdout or stderr, when its answer could not show all of it; offset and limit are in bytes.",
	}, s.outputs.read)
}
