package config

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
	"github.com/kern-sbx/kern-sbx/pkg/validate"
)

// value is what one key of a file holds, as the texts that flags would get.
type value struct {
	texts   []string          // Scalar, Bool: one; List: any number
	entries map[string]string // Map
}

type table map[string]value

// document is a parsed file: only keys that exist, each in its place and of its
// kind.
type document struct {
	global, box table
	presets     map[string]table
	trust       map[string]string // project file -> hex SHA-256; user file only
	usePreset   string
}

// maxProblems bounds what one file can make us say.
const maxProblems = 64

// parse reads a file and adds what is right in it as a layer. What is wrong is a
// problem of the user's when the file is trusted, and else one of the file's; it
// is returned in the order of the file. A file that is not TOML adds no layer,
// and ok is false.
func (l *loader) parse(layerName, path string, data []byte, trusted bool) (problems []*Problem, ok bool) {
	d := &document{}
	r := &reader{l: l, d: d, layer: layerName, path: path, data: string(data), trusted: trusted}
	var root map[string]any
	if _, err := decode(r.data, &root); err != nil {
		r.problems = []*Problem{syntaxProblem(path, err)}
	} else {
		ok = true
		d.global = make(table)
		for _, name := range sortedKeys(root) {
			r.top(name, root[name])
		}
		if trusted || l.all {
			r.locate()
		}
		l.layers = append(l.layers, &layer{name: layerName, path: path, trusted: trusted, doc: d})
	}
	if trusted {
		l.problems = append(l.problems, r.problems...)
	} else {
		l.foreign = append(l.foreign, r.problems...)
	}
	return r.problems, ok
}

// decode is toml.Decode; text that is not UTF-8 is refused with a sentence that
// does not depend on the library.
func decode(data string, into any) (toml.MetaData, error) {
	if !utf8.ValidString(data) {
		return toml.MetaData{}, errors.New("not UTF-8 text")
	}
	return toml.Decode(data, into)
}

func syntaxProblem(path string, err error) *Problem {
	p := &Problem{Path: path, Err: err}
	var pe toml.ParseError
	if errors.As(err, &pe) {
		p.Line, p.Col = pe.Position.Line, pe.Position.Col
		// The library quotes pieces of the file; they are not all ours.
		p.Err = errors.New(clip(visible(pe.Message)))
	}
	return p
}

type reader struct {
	l           *loader
	d           *document
	layer, path string
	data        string
	trusted     bool
	problems    []*Problem
	paths       [][]string // of problems
}

func (r *reader) refuse(at []string, err error) {
	if len(r.problems) == maxProblems {
		return
	}
	r.problems = append(r.problems, &Problem{Path: r.path, Key: dotted(at), Err: err})
	r.paths = append(r.paths, at)
}

func (r *reader) top(name string, raw any) {
	at := []string{name}
	sub, isTable := raw.(map[string]any)
	switch name {
	case "box":
		if !isTable {
			r.refuse(at, errors.New("has to be one table; write [box]"))
			return
		}
		r.d.box = r.table(at, sub)
		return
	case "preset":
		if !isTable {
			r.refuse(at, errors.New("has to be the table of presets; write "+usePreset+" = 'NAME' to choose one"))
			return
		}
		r.presets(sub)
		return
	case "trust":
		r.trust(raw)
		return
	case usePreset:
		s, ok := raw.(string)
		if !ok || !presetName(s) {
			r.refuse(at, errors.New("has to be the name of a preset, in quotes"))
			return
		}
		r.d.usePreset = s
		return
	case "config":
		r.refuse(at, errors.New("a config file cannot name another; use --config or "+envConfig))
		return
	}
	i, ok := r.l.c.index[name]
	if !ok || !r.l.c.keys[i].Global {
		r.unknown(at, isTable)
		return
	}
	if v, ok := r.value(at, r.l.c.keys[i], raw); ok {
		r.d.global[name] = v
	}
}

func (r *reader) presets(sub map[string]any) {
	r.d.presets = make(map[string]table, len(sub))
	for _, name := range sortedKeys(sub) {
		at := []string{"preset", name}
		t, ok := sub[name].(map[string]any)
		switch {
		case !presetName(name):
			r.refuse(at, errors.New("a preset's name is up to 64 lower-case letters, digits, dashes and underscores"))
		case !ok:
			r.refuse(at, errors.New("has to be one table; write [preset."+name+"]"))
		default:
			r.d.presets[name] = r.table(at, t)
		}
	}
}

// presetName keeps names printable and usable in a shell line.
func presetName(s string) bool {
	return s != "" && len(s) <= 64 && s[0] != '-' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-_") == ""
}

func (r *reader) trust(raw any) {
	at := []string{"trust"}
	t, ok := raw.(map[string]any)
	switch {
	case r.layer != LayerUser:
		r.refuse(at, errors.New("only the user file can say what is trusted; run kern-sbx config trust"))
		return
	case !ok:
		r.refuse(at, errors.New("has to be one table; write [trust]"))
		return
	}
	r.d.trust = make(map[string]string, len(t))
	for _, p := range sortedKeys(t) {
		sum, _ := t[p].(string)
		sum = strings.TrimPrefix(sum, "sha256:")
		if !hexSum(sum) || !strings.HasPrefix(p, "/") {
			r.refuse([]string{"trust", p}, errors.New("has to be '/absolute/path/"+projectName+"' = 'SHA-256 in hex'"))
			continue
		}
		r.d.trust[p] = sum
	}
}

// table reads [box] or one preset.
func (r *reader) table(at []string, raw map[string]any) table {
	t := make(table, len(raw))
	for _, name := range sortedKeys(raw) {
		here := append(slices.Clone(at), name)
		i, ok := r.l.c.index[name]
		if !ok || r.l.c.keys[i].Global || reserved(name) {
			_, isTable := raw[name].(map[string]any)
			r.unknown(here, isTable)
			continue
		}
		if v, ok := r.value(here, r.l.c.keys[i], raw[name]); ok {
			t[name] = v
		}
	}
	return t
}

// reserved names are flags and variables that no file can set under that name.
func reserved(name string) bool { return name == "config" || name == "preset" || name == usePreset }

func (r *reader) value(at []string, k Key, raw any) (value, bool) {
	v, err := k.read(raw)
	if err == nil && !r.trusted && k.Tighter == nil && k.AlwaysSafe == nil {
		// It will not be applied, so a check, which may look at the disk or
		// take its time, does not see it either.
		return v, true
	}
	if err == nil {
		err = k.check(v.texts)
	}
	for _, name := range sortedKeys(v.entries) {
		if err == nil {
			if err = k.check([]string{name + "=" + v.entries[name]}); err != nil {
				at = append(slices.Clone(at), name)
			}
		}
	}
	if err != nil {
		r.refuse(at, err)
		return value{}, false
	}
	return v, true
}

// read turns a TOML value into the texts of its key's kind.
func (k Key) read(raw any) (value, error) {
	switch k.Kind {
	case Bool:
		b, ok := raw.(bool)
		if !ok {
			return value{}, errors.New("has to be true or false, without quotes")
		}
		return value{texts: []string{strconv.FormatBool(b)}}, nil
	case List:
		list, ok := raw.([]any)
		if !ok {
			list = []any{raw}
		}
		v := value{texts: make([]string, 0, len(list))}
		for _, e := range list {
			s, err := text(e)
			if err != nil {
				return value{}, err
			}
			v.texts = append(v.texts, s)
		}
		return v, nil
	case Map:
		m, ok := raw.(map[string]any)
		if !ok {
			return value{}, errors.New("has to be a table; write [box." + k.Name + "] and NAME = 'value' below it")
		}
		v := value{entries: make(map[string]string, len(m))}
		for name, e := range m {
			if name == "" || strings.ContainsAny(name, "=\x00") {
				return value{}, &validate.Error{Value: name, Reason: "not a name", Fix: "a name is not empty and holds no ="}
			}
			s, err := text(e)
			if b, ok := e.(bool); ok {
				s, err = strconv.FormatBool(b), nil
			}
			if err != nil {
				return value{}, errors.New(bare(name) + " " + err.Error())
			}
			v.entries[name] = s
		}
		return v, nil
	default:
		s, err := text(raw)
		return value{texts: []string{s}}, err
	}
}

// text is the flag spelling of a TOML string or number.
func text(raw any) (string, error) {
	switch v := raw.(type) {
	case string:
		if strings.IndexByte(v, 0) >= 0 {
			return "", errors.New("holds a NUL byte, which no program can be given")
		}
		return v, nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float64:
		if !math.IsInf(v, 0) && !math.IsNaN(v) {
			return strconv.FormatFloat(v, 'f', -1, 64), nil
		}
	}
	return "", errors.New("has to be a text or a number; write it in quotes")
}

// unknown refuses a key that does not exist or is in the wrong place.
func (r *reader) unknown(at []string, isTable bool) {
	name := at[len(at)-1]
	inBox := len(at) > 1
	if i, ok := r.l.c.index[name]; ok && !reserved(name) {
		switch {
		case !inBox:
			r.refuse(at, errors.New("belongs in [box]"))
		case at[0] == "preset" && r.l.c.keys[i].Global:
			r.refuse(at, errors.New("cannot be in a preset; it belongs at the top of the file"))
		default:
			r.refuse(at, errors.New("belongs at the top of the file, above [box]"))
		}
		return
	}
	var names []string
	if !inBox {
		names = append(names, "box", "preset", usePreset, "trust")
	}
	for _, k := range r.l.c.keys {
		if k.Global != inBox && !reserved(k.Name) && (!isTable || k.Kind == Map) {
			names = append(names, k.Name)
		}
	}
	kind := "unknown key"
	if isTable {
		kind = "unknown table"
	}
	if n := validate.Nearest(name, names); n != "" {
		kind += "; the nearest is " + n
	}
	r.refuse(at, errors.New(kind))
}

// failing makes the library tell the position of the value it is given.
type failing struct{}

var errPosition = errors.New("position")

func (failing) UnmarshalTOML(any) error { return errPosition }

// locate finds the lines of the problems and puts these in the file's order.
// The file is decoded again, this time into values that know their place, which
// only those who made a mistake pay for.
func (r *reader) locate() {
	if len(r.problems) == 0 {
		return
	}
	root := map[string]toml.Primitive{}
	md, err := decode(r.data, &root)
	if err != nil {
		return
	}
	for i, at := range r.paths {
		level, n := root, len(at)
		for depth, name := range at {
			p, ok := level[name]
			if !ok {
				break
			}
			// The nearest enclosing value with a known line has to do for one
			// that has none, like a table that dotted keys made.
			var pe toml.ParseError
			if errors.As(md.PrimitiveDecode(p, failing{}), &pe) && pe.Position.Line > 0 {
				r.problems[i].Line = pe.Position.Line
			}
			if depth == n-1 {
				break
			}
			level = map[string]toml.Primitive{}
			if md.PrimitiveDecode(p, &level) != nil {
				break
			}
		}
	}
	slices.SortStableFunc(r.problems, func(a, b *Problem) int { return cmp.Compare(a.Line, b.Line) })
}

// hostile says why a file that nobody vouched for is not handed to the parser,
// or "" when it may be. The parser's time grows with the cube of the nesting: 64
// KiB of "a.a.a…" or "{a={a=…" take it a minute. Strings and comments are not
// told apart from keys, so that no disagreement with the parser about where one
// ends can hide anything; a settings file is far below the bounds. (A key cannot
// continue on the next line, hence the count by line.)
func hostile(data []byte) string {
	const maxDots, maxBraces = 32, 8
	if len(data) > maxUntrusted {
		return "it is larger than " + strconv.Itoa(maxUntrusted>>10) + " KiB"
	}
	dots, braces := 0, 0
	for _, b := range data {
		switch b {
		case '.':
			if dots++; dots > maxDots {
				return "it has more than " + strconv.Itoa(maxDots) + " dots in one line"
			}
		case '{':
			if braces++; braces > maxBraces {
				return "it has more than " + strconv.Itoa(maxBraces) + " inline tables"
			}
		case '\n':
			dots = 0
		}
	}
	return ""
}
