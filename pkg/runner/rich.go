package runner

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"strconv"
	"strings"
)

// Rich is one rich result: an object that the code displayed, the value of its
// last expression, or a figure that was open at its end.
type Rich struct {
	// Data are its representations by MIME type, of RichTypes: text as it is (what
	// is not UTF-8 in it is replaced), pictures in base64. They come out of the
	// box, where anybody can have written them.
	Data map[string]string `json:"data"`
	// Files are the files that --out made of it.
	Files []string `json:"files"`
}

// RichType is a kind of representation.
type RichType struct {
	MIME string
	// Ending is that of a file which holds it.
	Ending string
	// Magic begins the bytes of a picture; "" for text.
	Magic string
}

// RichTypes are the kinds of representation that a result can have.
var RichTypes = [...]RichType{
	{"image/png", ".png", "\x89PNG\r\n\x1a\n"},
	{"image/jpeg", ".jpg", "\xff\xd8\xff"},
	{"image/svg+xml", ".svg", ""},
	{"text/html", ".html", ""},
	{"text/markdown", ".md", ""},
	{"text/latex", ".tex", ""},
	{"application/json", ".json", ""},
	{"text/plain", ".txt", ""},
}

// What one run, or one cell, may show. The drivers keep to the same numbers.
const (
	MaxResults     = 1000     // results
	MaxResultValue = 16 << 20 // bytes of one representation
	MaxResultBytes = 64 << 20 // bytes of all
	maxPairs       = 16       // representations of one result
	// maxResultFile is more than a driver ever writes.
	maxResultFile = MaxResultBytes + 1<<20
)

// readRich reads what a driver wrote:
//
//	bundle PAIRS LEFTOUT\n
//	MIME LENGTH\n BYTES \n     PAIRS times
//
// LEFTOUT is the number of representations that were too large. The code in the
// box can write there as well, so nothing of it is believed: what is not in this
// form ends the reading, and what came before it is kept; representations of an
// unknown kind, pictures that are none and JSON that is none are left out.
// truncated says that there was more than is given.
func readRich(from io.Reader) (results []Rich, truncated bool) {
	results = []Rich{}
	limited := &io.LimitedReader{R: from, N: maxResultFile}
	r := &richReader{r: bufio.NewReaderSize(limited, 4096)}
	for {
		_, err := r.r.Peek(1)
		if err != nil {
			return results, r.truncated || err != io.EOF || limited.N <= 0
		}
		one, ok := r.bundle()
		if len(one.Data) > 0 {
			if len(results) == MaxResults {
				return results, true
			}
			results = append(results, one)
		}
		if !ok {
			return results, true
		}
	}
}

type richReader struct {
	r         *bufio.Reader
	size      int64 // of the representations so far
	truncated bool
}

// bundle reads one result; false when nothing after it can be read.
func (r *richReader) bundle() (Rich, bool) {
	words, ok := r.line(3)
	if !ok || words[0] != "bundle" {
		return Rich{}, false
	}
	pairs, ok1 := decimal(words[1])
	left, ok2 := decimal(words[2])
	if !ok1 || !ok2 || pairs > maxPairs {
		return Rich{}, false
	}
	r.truncated = r.truncated || left > 0
	one := Rich{Data: make(map[string]string, pairs), Files: []string{}}
	for range pairs {
		words, ok := r.line(2)
		if !ok {
			return Rich{}, false
		}
		size, ok := decimal(words[1])
		if !ok {
			return Rich{}, false
		}
		kind := richType(words[0])
		if size > MaxResultValue {
			r.truncated, kind = true, nil
		} else if kind != nil {
			if r.size += size; r.size > MaxResultBytes {
				return one, false
			}
		}
		var b bytes.Buffer
		var w io.Writer = &b
		if kind == nil {
			w = io.Discard
		}
		// Not as much memory as the length promises, but as there are bytes.
		if n, err := io.CopyN(w, r.r, size); n < size || err != nil {
			return Rich{}, false
		}
		if c, err := r.r.ReadByte(); err != nil || c != '\n' {
			return Rich{}, false
		}
		if kind == nil || one.Data[kind.MIME] != "" {
			continue
		}
		if text, ok := kind.text(b.Bytes()); ok {
			one.Data[kind.MIME] = text
		}
	}
	return one, true
}

// line reads a short line of so many words.
func (r *richReader) line(words int) ([]string, bool) {
	const longest = 100
	b, err := r.r.ReadSlice('\n')
	if err != nil || len(b) > longest {
		return nil, false
	}
	w := strings.Split(string(b[:len(b)-1]), " ")
	return w, len(w) == words
}

// decimal reads a length in its only spelling.
func decimal(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n >= 0 && strconv.FormatInt(n, 10) == s
}

func richType(mime string) *RichType {
	for i := range RichTypes {
		if RichTypes[i].MIME == mime {
			return &RichTypes[i]
		}
	}
	return nil
}

// text is how a representation stands in the document; false when it is not what
// its kind says.
func (k *RichType) text(b []byte) (string, bool) {
	switch {
	case k.Magic != "":
		if !bytes.HasPrefix(b, []byte(k.Magic)) {
			// Some objects give a picture in base64 already.
			raw := make([]byte, base64.StdEncoding.DecodedLen(len(b)))
			n, err := base64.StdEncoding.Decode(raw, b)
			if err != nil || !bytes.HasPrefix(raw[:n], []byte(k.Magic)) {
				return "", false
			}
			b = raw[:n]
		}
		return base64.StdEncoding.EncodeToString(b), true
	case k.MIME == "application/json" && !json.Valid(b):
		return "", false
	}
	return strings.ToValidUTF8(string(b), "\ufffd"), true
}

// Bytes is a representation as a file holds it.
func (k *RichType) Bytes(text string) ([]byte, error) {
	if k.Magic != "" {
		return base64.StdEncoding.DecodeString(text)
	}
	return []byte(text), nil
}
