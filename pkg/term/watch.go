package term

import (
	"io"
	"sync/atomic"
)

// CommandWatch passes bytes on and notes whether a line began like an order to
// a CI runner: "::" (GitHub Actions) or "##[" (Azure, and Actions as well). The
// runner also obeys such a line after white space. Not for concurrent use;
// Seen may be asked at any time.
type CommandWatch struct {
	w     io.Writer
	state int // what of a line's beginning has been read
	seen  atomic.Bool
}

const (
	lineStart = iota
	oneColon
	oneHash
	twoHashes
	midLine
)

// NewCommandWatch watches what goes to w.
func NewCommandWatch(w io.Writer) *CommandWatch { return &CommandWatch{w: w} }

// Seen says whether such a line passed.
func (c *CommandWatch) Seen() bool { return c.seen.Load() }

func (c *CommandWatch) Write(p []byte) (int, error) {
	if !c.seen.Load() {
		c.scan(p)
	}
	return c.w.Write(p)
}

func (c *CommandWatch) scan(p []byte) {
	for _, b := range p {
		switch {
		case b == '\n' || b == '\r':
			c.state = lineStart
		case c.state == lineStart && (b == ' ' || b == '\t'):
		case c.state == lineStart && b == ':':
			c.state = oneColon
		case c.state == lineStart && b == '#':
			c.state = oneHash
		case c.state == oneHash && b == '#':
			c.state = twoHashes
		case c.state == oneColon && b == ':', c.state == twoHashes && b == '[':
			c.seen.Store(true)
			return
		default:
			c.state = midLine
		}
	}
}
