package validate

import (
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Mount is a directory or file of the host that a box sees at Target. Source is
// absolute once parsed; SourceRules.Check says whether it may be mounted.
type Mount struct {
	Source, Target string
	ReadOnly       bool
}

// ParseVolume reads the argument of -v: SRC:DST, with :ro or :rw behind it. It is
// read from the right, so SRC may hold colons and DST may not: "/a:b:/data" is
// the directory a:b. A SRC that ends in ":ro" needs an explicit mode or --mount:
// in "/x:ro:/data" the last field is the target, as it is absolute. A relative
// SRC with a slash in it, "." and ".." are taken from cwd, which must be
// absolute.
func ParseVolume(s, cwd string) (Mount, error) {
	const form = "write SOURCE:TARGET or SOURCE:TARGET:ro"
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return Mount{}, refuse(s, "one path, where a source and a target are needed", form)
	}
	src, dst, m := s[:i], s[i+1:], Mount{}
	moded := dst == "ro" || dst == "rw"
	if moded {
		m.ReadOnly = dst == "ro"
		if i = strings.LastIndexByte(src, ':'); i < 0 {
			return Mount{}, refuse(s, "no target", form)
		}
		src, dst = src[:i], src[i+1:]
	}
	if !strings.HasPrefix(dst, "/") {
		if !moded && strings.Contains(src, ":/") && strings.Trim(dst, "abcdefghijklmnopqrstuvwxyzZ,") == "" {
			return Mount{}, refuse(s, "unknown mode "+quote(dst), "there are ro and rw")
		}
		return Mount{}, refuse(s, "the target is not an absolute path", form+", with a target that begins with / (a target that holds a colon needs --mount)")
	}
	return m.finish(s, src, dst, cwd)
}

// finish checks both ends of a mount that was written as spec.
func (m Mount) finish(spec, src, dst, cwd string) (Mount, error) {
	var err error
	if m.Source, err = absSource(spec, src, cwd); err != nil {
		return Mount{}, err
	}
	if m.Target, err = Target(dst); err != nil {
		return Mount{}, err
	}
	return m, nil
}

// absSource makes a source absolute. It is not cleaned: what ".." means depends
// on the links before it, and SourceRules.Check follows those.
func absSource(spec, src, cwd string) (string, error) {
	switch {
	case src == "":
		return "", refuse(spec, "no source", "name a directory or file of the host")
	case strings.ContainsAny(src, "\x00\n\r"):
		return "", refuse(spec, "the source holds a line break or NUL", "rename it")
	case src[0] == '/':
		return src, nil
	case src[0] == '~':
		return "", refuse(spec, "~ is for a shell to expand, and none did", "write $HOME or the whole path, or ./~ for a directory of that name")
	case src != "." && src != ".." && !strings.Contains(src, "/"):
		return "", refuse(spec, "a bare name would be a named volume, and there are none", "write ./"+clean(src)+" for a directory here, or an absolute path")
	case !filepath.IsAbs(cwd):
		return "", refuse(spec, "a relative source, and the current directory is not known", "write an absolute path")
	}
	return strings.TrimSuffix(cwd, "/") + "/" + src, nil
}

// clean gives text that may stand in a message unquoted.
func clean(s string) string {
	if word(s, "._", "-+", 64) {
		return s
	}
	return "NAME"
}

var mountKeys = []string{"type", "source", "src", "target", "dst", "destination", "readonly", "ro"}

// ParseMountSpec reads the argument of --mount in docker's spelling: one line of
// CSV, "type=bind,src=…,dst=…[,ro]". A field that holds a comma or a quote stands
// in double quotes as a whole, with quotes in it doubled. Only type=bind is
// known. A relative source is taken from cwd.
func ParseMountSpec(s, cwd string) (Mount, error) {
	const form = "write type=bind,src=SOURCE,dst=TARGET[,ro]"
	fields, ok := splitCSV(s)
	if !ok {
		return Mount{}, refuse(s, "a quote out of place", `quote a whole field and double the quotes in it: "src=/a,""b"""`)
	}
	var m Mount
	seen := map[string]string{}
	for _, f := range fields {
		key, value, has := strings.Cut(f, "=")
		key = lower(key)
		name := key
		switch key {
		case "type":
		case "source", "src":
			name = "src"
		case "target", "dst", "destination":
			name = "dst"
		case "readonly", "ro":
			name = "ro"
			if !has {
				value = "true"
			}
		default:
			fix := form
			if near := Nearest(key, mountKeys); near != "" {
				fix = "did you mean " + near + "?"
			}
			return Mount{}, refuse(s, "unknown field "+quote(key), fix)
		}
		if _, twice := seen[name]; twice {
			return Mount{}, refuse(s, name+" is given twice", form)
		}
		seen[name] = value
	}
	switch t := lower(seen["type"]); t {
	case "bind":
	case "tmpfs":
		return Mount{}, refuse(s, "a tmpfs has a flag of its own", "write --tmpfs PATH:SIZE")
	case "volume":
		return Mount{}, refuse(s, "there are no named volumes", "mount a directory: type=bind,src=SOURCE,dst=TARGET")
	case "":
		return Mount{}, refuse(s, "no type", form)
	default:
		return Mount{}, refuse(s, "unknown type "+quote(t), form)
	}
	switch lower(seen["ro"]) {
	case "true", "1":
		m.ReadOnly = true
	case "false", "0", "":
		// ro= with nothing behind it is neither.
		if v, given := seen["ro"]; given && v == "" {
			return Mount{}, refuse(s, "ro without a value", "write ro, ro=true or ro=false")
		}
	default:
		return Mount{}, refuse(s, "ro is neither true nor false", "write ro, ro=true or ro=false")
	}
	return m.finish(s, seen["src"], seen["dst"], cwd)
}

// splitCSV splits one CSV record as RFC 4180 has it. ok is false for a quote
// inside an unquoted field, text behind a closing quote, or none that closes.
func splitCSV(s string) (fields []string, ok bool) {
	for {
		if !strings.HasPrefix(s, `"`) {
			f, rest, more := strings.Cut(s, ",")
			if strings.Contains(f, `"`) {
				return nil, false
			}
			if fields = append(fields, f); !more {
				return fields, true
			}
			s = rest
			continue
		}
		f := ""
		for s = s[1:]; ; {
			part, rest, closed := strings.Cut(s, `"`)
			if f += part; !closed {
				return nil, false
			}
			if s = rest; !strings.HasPrefix(s, `"`) {
				break
			}
			f, s = f+`"`, s[1:]
		}
		fields = append(fields, f)
		if s == "" {
			return fields, true
		}
		if s[0] != ',' {
			return nil, false
		}
		s = s[1:]
	}
}

// MountArg gives the flag and its value by which kern mounts m. It is always
// --mount, which refuses a source that is missing; -v would create it, as root
// on the host. Refused is what kern 0.33 would mount somewhere else: it drops
// white space at the end of a field, quoted or not, and reads its arguments as
// UTF-8.
func MountArg(m Mount) (flag, value string, err error) {
	for _, p := range []string{m.Source, m.Target} {
		switch r, _ := utf8.DecodeLastRuneInString(p); {
		case !strings.HasPrefix(p, "/"):
			return "", "", refuse(p, "not an absolute path", "write an absolute path")
		case strings.ContainsAny(p, "\x00\n\r"):
			return "", "", refuse(p, "holds a line break or NUL", "rename it")
		case !utf8.ValidString(p):
			return "", "", refuse(p, "not UTF-8, which kern cannot name", "rename it, or mount the directory above it")
		case unicode.IsSpace(r):
			return "", "", refuse(p, "ends in white space, which kern would cut off", "rename it, or mount the directory above it")
		}
	}
	value = "type=bind," + csvField("src="+m.Source) + "," + csvField("dst="+m.Target)
	if m.ReadOnly {
		value += ",ro"
	}
	return "--mount", value, nil
}

func csvField(s string) string {
	if !strings.ContainsAny(s, `,":`) {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}
