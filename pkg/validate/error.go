package validate

import "strconv"

// Error is one refused input. Its fields are plain text; none of them carries
// a trailing full stop, so that they can be joined into one line.
type Error struct {
	// Field is the flag or config key, as the user spells it ("--memory",
	// "--volume", "box.env"). Empty when the caller has to add it.
	Field string
	// Value is the refused text exactly as given. Error() shows it quoted, so
	// that control characters in it never reach a terminal raw, and cut when it
	// is long. A value that may be a secret (an environment variable's) is never
	// here: its name is.
	Value string
	// Reason says why, in lower case.
	Reason string
	// Fix says what to write instead. Empty when nothing would be accepted.
	Fix string
}

// Error gives the one line that is shown: field, value, reason and fix.
func (e *Error) Error() string {
	s := ""
	if e.Field != "" {
		s = e.Field + " "
	}
	s += quote(e.Value) + ": " + e.Reason
	if e.Fix != "" {
		s += "; " + e.Fix
	}
	return s
}

// In names the flag or key that an *Error belongs to and returns it; any other
// error, nil included, comes back unchanged.
func In(field string, err error) error {
	if e, ok := err.(*Error); ok && e != nil && e.Field == "" { //nolint:errorlint // only our own, unwrapped
		c := *e
		c.Field = field
		return &c
	}
	return err
}

func refuse(value, reason, fix string) error {
	return &Error{Value: value, Reason: reason, Fix: fix}
}

// quote makes text from outside safe to stand in a message: quoted, without
// control or format characters, and short.
func quote(s string) string {
	const most = 160
	if len(s) <= most {
		return strconv.QuoteToGraphic(s)
	}
	cut := most
	for cut > most-4 && s[cut]&0xc0 == 0x80 { // not in the middle of a character
		cut--
	}
	return strconv.QuoteToGraphic(s[:cut]) + "…"
}
