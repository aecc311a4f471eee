package term

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
	"testing"
)

func pngOf(wide, high uint32, rest int) string {
	b := []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR")
	b = binary.BigEndian.AppendUint32(b, wide)
	b = binary.BigEndian.AppendUint32(b, high)
	b = append(b, bytes.Repeat([]byte{7}, rest)...)
	return base64.StdEncoding.EncodeToString(b)
}

func TestPicturesOf(t *testing.T) {
	for _, c := range []struct {
		env  string
		want Pictures
	}{
		{"", NoPictures},
		{"TERM=xterm-256color", NoPictures},
		{"TERM=xterm-kitty", KittyPictures},
		{"TERM=xterm-256color KITTY_WINDOW_ID=1", KittyPictures},
		{"TERM=xterm-ghostty", KittyPictures},
		{"TERM_PROGRAM=iTerm.app", ITermPictures},
		{"LC_TERMINAL=iTerm2", ITermPictures},
		{"TERM_PROGRAM=WezTerm", ITermPictures},
		{"TERM_PROGRAM=Apple_Terminal", NoPictures},
		{"TERM=dumb LC_TERMINAL=iTerm2", NoPictures},
		{"TERM=screen LC_TERMINAL=iTerm2", NoPictures},
		{"TERM=xterm-kitty TMUX=/tmp/x", NoPictures},
		{"TERM=tmux-256color KITTY_WINDOW_ID=1", NoPictures},
		{"TERM=xterm-kitty STY=1.x", NoPictures},
	} {
		got := PicturesOf(func(k string) string {
			for _, kv := range strings.Fields(c.env) {
				if v, ok := strings.CutPrefix(kv, k+"="); ok {
					return v
				}
			}
			return ""
		})
		if got != c.want {
			t.Errorf("%s: %v, want %v", c.env, got, c.want)
		}
	}
}

func TestShow(t *testing.T) {
	for _, rest := range []int{0, 1, 2, 3, 3048, 3049, 10000} {
		png := pngOf(640, 480, rest)
		raw, _ := base64.StdEncoding.DecodeString(png)

		var b bytes.Buffer
		if shown, err := KittyPictures.Show(&b, png); !shown || err != nil {
			t.Fatalf("%d: %v %v", rest, shown, err)
		}
		commands := strings.Split(strings.TrimSuffix(b.String(), "\x1b\\\n"), "\x1b\\")
		var got strings.Builder
		for i, c := range commands {
			head, data, ok := strings.Cut(c, ";")
			want := "\x1b_Gq=2,m=1"
			if i == 0 {
				want = "\x1b_Ga=T,f=100,q=2,m=1"
			}
			if i == len(commands)-1 {
				want = want[:len(want)-1] + "0"
			}
			if !ok || head != want || len(data) > 4096 || i < len(commands)-1 && len(data)%4 != 0 {
				t.Fatalf("%d: command %d is %q, %d bytes; want %q", rest, i, head, len(data), want)
			}
			got.WriteString(data)
		}
		if got.String() != png {
			t.Errorf("%d: another picture", rest)
		}

		b.Reset()
		if shown, err := ITermPictures.Show(&b, png); !shown || err != nil {
			t.Fatalf("%d: %v %v", rest, shown, err)
		}
		head, data, _ := strings.Cut(b.String(), ":")
		want := "\x1b]1337;File=inline=1;preserveAspectRatio=1;size=" + strconv.Itoa(len(raw))
		if head != want || data != png+"\a\n" {
			t.Errorf("%d: %q, want %q", rest, head, want)
		}
	}
}

// TestShowRefuses: nothing that is not a modest picture reaches the terminal.
func TestShowRefuses(t *testing.T) {
	good := pngOf(1, 1, 30)
	for name, png := range map[string]string{
		"empty":        "",
		"short":        good[:20],
		"not PNG":      base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("GIF89a"), 10)),
		"no header":    base64.StdEncoding.EncodeToString([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\x0dTEXT\x00\x00\x00\x01\x00\x00\x00\x01abcdef")),
		"padding":      good[:40] + "ab==" + good[40:],
		"not base64":   good[:40] + "!!!!",
		"escape":       good[:40] + "\x1b\\ab",
		"bell":         good[:40] + "abc\a",
		"newline":      good[:40] + "abc\n",
		"odd length":   good + "A",
		"no width":     pngOf(0, 5, 30),
		"too wide":     pngOf(1<<20, 1, 30),
		"most of all":  pngOf(1<<32-1, 1<<32-1, 30),
		"too large":    pngOf(16000, 16000, 30),
		"sign and all": pngOf(1<<31, 1<<31, 30),
	} {
		for _, p := range []Pictures{KittyPictures, ITermPictures} {
			var b bytes.Buffer
			if shown, err := p.Show(&b, png); shown || err != nil || b.Len() > 0 {
				t.Errorf("%s: %v %v %q", name, shown, err, b.String())
			}
		}
	}
	if shown, _ := NoPictures.Show(nil, good); shown {
		t.Error("shown without a protocol")
	}
	if shown, err := KittyPictures.Show(closedWriter{}, good); shown || err == nil {
		t.Errorf("to a closed output: %v %v", shown, err)
	}
}

type closedWriter struct{}

func (closedWriter) Write([]byte) (int, error) { return 0, errors.New("closed") }

func FuzzShow(f *testing.F) {
	f.Add(pngOf(640, 480, 5000))
	f.Add("iVBORw0KGgo=")
	f.Fuzz(func(t *testing.T, png string) {
		var b bytes.Buffer
		for _, p := range []Pictures{KittyPictures, ITermPictures} {
			b.Reset()
			if shown, _ := p.Show(&b, png); !shown {
				continue
			}
			text := strings.NewReplacer("\x1b_G", "", "\x1b\\", "", "\x1b]1337;", "", "\a\n", "").Replace(b.String())
			if i := strings.IndexFunc(strings.TrimSuffix(text, "\n"), func(c rune) bool { return c < 0x20 || c > 0x7e }); i >= 0 {
				t.Fatalf("%q at %d", text[i], i)
			}
		}
	})
}
