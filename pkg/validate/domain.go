package validate

import (
	"slices"
	"strings"
)

// Domains reads the list of --egress-allow, separated by commas. Every entry
// covers the name and all names below it, which is how kern's proxy matches; it
// knows no other wildcard. A name kern cannot use does not stop a box, it leaves
// the box without any network and a warning among kern's notes, hence what kern
// would not take is refused here.
//
// An entry is a fully qualified name: at least one dot, labels of letters,
// digits and inner dashes of at most 63, the last one of letters alone (or
// Punycode), 253 in all, without scheme, port, path or blank. Upper case and one
// final dot are folded away, doubles dropped.
func Domains(list string) ([]string, error) {
	var names []string
	for s := range strings.SplitSeq(list, ",") {
		s = strings.Trim(s, " \t")
		name := lower(strings.TrimSuffix(s, "."))
		if why, fix := badDomain(name); why != "" {
			return nil, refuse(s, why, fix)
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

func badDomain(s string) (why, fix string) {
	const full = "write a full name like pypi.org"
	switch {
	case s == "":
		return "an empty name in the list", full
	case strings.Contains(s, "://"):
		return "a scheme is not part of a name", "write the name alone: all of http and https on ports 80 and 443 is allowed to it"
	case strings.ContainsAny(s, "*?"):
		fix = "write the name without a wildcard"
		if rest, ok := strings.CutPrefix(s, "*."); ok {
			if w, _ := badDomain(rest); w == "" {
				fix = "write " + rest + ", which covers all names below it"
			}
		}
		return "kern knows no wildcard", fix
	case strings.HasPrefix(s, "."):
		return "a name cannot begin with a dot", "write it without: a name covers all names below it"
	case strings.ContainsAny(s, "/@"):
		return "a path is not part of a name", "write the name alone"
	case strings.Count(s, ":") > 1, strings.Trim(s, "0123456789.") == "":
		return "an address is not a name", "write the name: kern's proxy dials names alone"
	case strings.Contains(s, ":"):
		return "a port is not part of a name", "write the name alone: ports 80 and 443 are allowed to it"
	case len(s) > 253:
		return "longer than the 253 bytes of any name", full
	}
	labels := strings.Split(s, ".")
	for _, l := range labels {
		switch {
		case l == "":
			return "two dots in a row", full
		case len(l) > 63:
			return "a part longer than 63 bytes", full
		case l[0] == '-' || l[len(l)-1] == '-':
			return "a part of a name cannot begin or end with a dash", full
		case !word(l, "-", "", 63):
			return "a name holds letters, digits and dashes only", "write a name outside ASCII in Punycode (xn--…)"
		}
	}
	if len(labels) < 2 {
		return "not a full name: it has no dot", full
	}
	top := labels[len(labels)-1]
	if len(top) < 2 || (strings.Trim(top, "abcdefghijklmnopqrstuvwxyz") != "" && !strings.HasPrefix(top, "xn--")) {
		return "its last part is no top-level domain", full
	}
	return "", ""
}
