package validate

import (
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ParseEnvFile reads an env-file in docker's grammar. A line "K=V" gives K all
// that follows the sign, to the end of the line: no quotes, no expansion, no
// comments behind it, white space kept. "K" alone takes the value that lookup
// has for it, and is skipped when there is none. White space before a line is
// dropped; empty lines, and lines whose first character is then #, are skipped.
// A UTF-8 byte order mark before the first line and one CR at the end of each
// are dropped. At most MaxEnv bytes are read.
//
// Variables come back in the order of the file; of two with one name the later
// counts. A refusal names the line, never what stands in it. A failure to read
// comes back as r gave it.
func ParseEnvFile(r io.Reader, lookup func(string) (string, bool)) ([]KV, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxEnv+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxEnv {
		n := 1 + strings.Count(string(data), "\n")
		return nil, refuse(line(n), "the file is larger than "+Size(MaxEnv).Human(), "put large values into a file and mount that")
	}
	rest := strings.TrimPrefix(string(data), "\ufeff")
	var list []KV
	for n := 1; rest != ""; n++ {
		var l string
		l, rest, _ = strings.Cut(rest, "\n")
		l = strings.TrimSuffix(l, "\r")
		if !utf8.ValidString(l) {
			return nil, refuse(line(n), "not UTF-8, and kern refuses an env-file that is not", "encode the value, with base64 say")
		}
		l = strings.TrimLeftFunc(l, unicode.IsSpace)
		if l == "" || l[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(l, "=")
		if !envKey(key) {
			fix := "write NAME=VALUE, with a name of letters, digits and _"
			if strings.HasPrefix(key, "export ") {
				fix = "write NAME=VALUE without export: this is docker's grammar, not the shell's"
			}
			return nil, refuse(line(n), "no name of a variable at its start", fix)
		}
		if !ok {
			if value, ok = lookup(key); !ok {
				continue
			}
		}
		kv := KV{key, value}
		if err := kv.Check(); err != nil {
			e := err.(*Error) //nolint:errorlint,forcetypeassert // Check gives no other
			return nil, refuse(line(n), e.Reason, e.Fix)
		}
		list = append(list, kv)
	}
	return list, nil
}

// EncodeEnvFile writes variables so that kern's --env-file gives the box exactly
// these values. kern reads that file as dotenv: unquoted it would expand $NAME
// from our own environment, which is how a secret of the host gets into a box,
// and cut at " #". Single quotes keep everything but themselves; the rest goes
// in double quotes with what is special there escaped. Every variable must have
// passed KV.Check.
func EncodeEnvFile(list []KV) []byte {
	var b []byte
	for _, kv := range list {
		b = append(append(b, kv.Key...), '=')
		if strings.ContainsAny(kv.Value, "'\n\r") {
			b = append(b, '"')
			for i := range len(kv.Value) {
				switch c := kv.Value[i]; c {
				case '\\', '"':
					b = append(b, '\\', c)
				case '$':
					b = append(b, '$', '$')
				case '\n':
					b = append(b, '\\', 'n')
				case '\r':
					b = append(b, '\\', 'r')
				default:
					b = append(b, c)
				}
			}
			b = append(b, '"', '\n')
			continue
		}
		b = append(b, '\'')
		b = append(b, kv.Value...)
		b = append(b, '\'', '\n')
	}
	return b
}
