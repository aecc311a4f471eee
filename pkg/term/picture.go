package term

import (
	"encoding/base64"
	"encoding/binary"
	"io"
	"strconv"
	"strings"
)

// Pictures is a terminal's way of showing a picture among its text; the zero
// value is that of one that has none.
type Pictures int

// The protocols for pictures.
const (
	NoPictures    Pictures = iota
	KittyPictures          // kitty, Ghostty
	ITermPictures          // iTerm2, WezTerm
)

// PicturesOf tells from the environment what the terminal can show. tmux and
// screen show none of it, whatever terminal they were started in.
func PicturesOf(env func(string) string) Pictures {
	t := env("TERM")
	if env("TMUX") != "" || env("STY") != "" || strings.HasPrefix(t, "screen") || strings.HasPrefix(t, "tmux") || t == "dumb" {
		return NoPictures
	}
	switch program := env("TERM_PROGRAM"); {
	case program == "iTerm.app" || program == "WezTerm" || env("LC_TERMINAL") == "iTerm2":
		return ITermPictures
	case env("KITTY_WINDOW_ID") != "" || t == "xterm-kitty" || t == "xterm-ghostty":
		return KittyPictures
	}
	return NoPictures
}

// Sizes beyond which a picture is not given to a terminal: a few bytes can ask
// its decoder for any amount of memory.
const (
	maxPictureSide  = 16384
	maxPicturePixel = 64 << 20
)

// Show writes a PNG, which is given in base64 (standard, in one piece), and a
// newline; false when this terminal cannot show it, or should not.
//
// The terminal is told not to answer: what it says would be typed into the shell.
func (p Pictures) Show(w io.Writer, png string) (bool, error) {
	if p == NoPictures || !modest(png) {
		return false, nil
	}
	var b strings.Builder
	b.Grow(len(png) + len(png)/256 + 64)
	if p == ITermPictures {
		b.WriteString("\x1b]1337;File=inline=1;preserveAspectRatio=1;size=" + strconv.Itoa(base64.StdEncoding.DecodedLen(len(png))-strings.Count(png[len(png)-2:], "=")) + ":")
		b.WriteString(png)
		b.WriteString("\a\n")
	} else {
		const chunk = 4096
		for first := true; first || png != ""; first = false {
			n := min(chunk, len(png))
			b.WriteString("\x1b_G")
			if first {
				b.WriteString("a=T,f=100,")
			}
			more := "0"
			if n < len(png) {
				more = "1"
			}
			b.WriteString("q=2,m=" + more + ";" + png[:n] + "\x1b\\")
			png = png[n:]
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err == nil, err
}

// modest says whether this is base64 of a PNG of a sensible size.
func modest(png string) bool {
	const head = 24 // signature, length and kind of the first chunk, width, height
	if len(png) < head/3*4 || len(png)%4 != 0 {
		return false
	}
	var b [head]byte
	if _, err := base64.StdEncoding.Decode(b[:], []byte(png[:head/3*4])); err != nil {
		return false
	}
	if string(b[:8]) != "\x89PNG\r\n\x1a\n" || string(b[12:16]) != "IHDR" {
		return false
	}
	digits := strings.TrimSuffix(strings.TrimSuffix(png, "="), "=")
	for i := range len(digits) {
		c := digits[i]
		if !(c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '+' || c == '/') {
			return false
		}
	}
	wide, high := uint64(binary.BigEndian.Uint32(b[16:])), uint64(binary.BigEndian.Uint32(b[20:]))
	return wide > 0 && high > 0 && wide <= maxPictureSide && high <= maxPictureSide && wide*high <= maxPicturePixel
}
