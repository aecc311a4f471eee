package runner

import "bytes"

// egressMark begins the lines that kern's proxy prints, while the code runs, on
// the stderr that it shares with the code.
const egressMark = "kern: egress proxy:"

// unverified begins such a line among the notes: the code can print the same.
const unverified = "(unverified) "

// diverter takes lines that begin with egressMark out of a stream and keeps them
// as notes (rule F1). Everything else passes at once, but for the first bytes of
// a line for as long as they may still be the mark.
type diverter struct {
	notes *capture
	held  []byte // the beginning of a line, a part of the mark
	in    bool   // in a line that is diverted
	mid   bool   // past the beginning of one that is not
}

// pass gives what of p goes on. The rest is kept, at most notesLimit of it.
func (d *diverter) pass(p []byte) []byte {
	var out []byte
	for len(p) > 0 {
		switch {
		case d.in || d.mid:
			end := bytes.IndexByte(p, '\n') + 1
			whole := end > 0
			if !whole {
				end = len(p)
			}
			if d.in {
				d.keep(p[:end])
			} else {
				out = append(out, p[:end]...)
			}
			if p = p[end:]; whole {
				d.in, d.mid = false, false
			}
		case p[0] == egressMark[len(d.held)]:
			d.held = append(d.held, p[0])
			p = p[1:]
			if len(d.held) == len(egressMark) {
				d.in = true
				d.keep([]byte(unverified))
				d.keep(d.held)
				d.held = d.held[:0]
			}
		default:
			out = append(out, d.held...)
			d.held, d.mid = d.held[:0], true
		}
	}
	return out
}

// end gives what is held when the stream has ended, and ends a diverted line.
func (d *diverter) end() []byte {
	if d.in {
		d.keep([]byte("\n"))
		d.in = false
	}
	held := d.held
	d.held = nil
	return held
}

func (d *diverter) keep(p []byte) {
	if d.notes.size < notesLimit {
		d.notes.Write(p)
	}
}
