package validate

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes. The zero value means "none": no limit asked for.
type Size int64

// ParseSize reads a size with a unit: digits, an optional fraction, then one of
// k m g t with an optional i and an optional b, in any case ("64m", "64MiB",
// "1.5g"), or b alone for bytes ("4096b"). Units are powers of 1024, as kern's
// and docker's are. A bare number is refused, because kern would read it as
// bytes and docker users mean something else by it; so is zero, because kern
// reads a zero size as unlimited. "none" is not a size: see ParseLimit.
func ParseSize(s string) (Size, error) {
	digits := strings.TrimLeft(s, "0123456789")
	whole := s[:len(s)-len(digits)]
	frac := ""
	rest := digits
	if strings.HasPrefix(rest, ".") {
		r := strings.TrimLeft(rest[1:], "0123456789")
		frac = rest[1 : len(rest)-len(r)]
		if frac == "" {
			return 0, refuse(s, "not a size", "write a number and a unit, like 64m or 1.5g")
		}
		rest = r
	}
	if whole == "" {
		return 0, refuse(s, "not a size", "write a number and a unit, like 64m or 1.5g")
	}
	if rest == "" {
		if strings.Trim(whole+frac, "0") == "" {
			return 0, refuse(s, "a size of zero would mean unlimited", "write a size with a unit, like 64m, or none for no limit")
		}
		return 0, refuse(s, "a size without a unit would be bytes", "write "+whole+"m for mebibytes, or "+whole+"b for bytes")
	}
	shift, ok := unitShift(lower(rest))
	if !ok {
		return 0, refuse(s, "unknown unit "+quote(rest), "use k, m, g or t (powers of 1024), or b for bytes")
	}
	if frac != "" && shift == 0 {
		return 0, refuse(s, "a fraction of a byte", "write whole bytes")
	}
	n, err := strconv.ParseUint(whole, 10, 63)
	if err != nil || n > math.MaxInt64>>shift {
		return 0, refuse(s, "larger than any machine", "write a smaller size")
	}
	total := n << shift
	if frac != "" {
		if len(frac) > 15 {
			return 0, refuse(s, "too many digits", "write at most 15 digits after the point")
		}
		f, _ := strconv.ParseUint(frac, 10, 63)
		add := uint64(float64(f) / math.Pow10(len(frac)) * float64(uint64(1)<<shift))
		if total > math.MaxInt64-add {
			return 0, refuse(s, "larger than any machine", "write a smaller size")
		}
		total += add
	}
	if total == 0 {
		return 0, refuse(s, "a size of zero would mean unlimited", "write a size above zero, or none for no limit")
	}
	return Size(total), nil
}

func unitShift(u string) (uint, bool) {
	if u == "b" {
		return 0, true
	}
	i := strings.IndexByte("kmgt", u[0])
	if i < 0 {
		return 0, false
	}
	switch u[1:] {
	case "", "b", "i", "ib":
		return uint(i+1) * 10, true
	}
	return 0, false
}

// ParseLimit is ParseSize, with "none" for no limit (Size 0).
func ParseLimit(s string) (Size, error) {
	if s == "none" {
		return 0, nil
	}
	return ParseSize(s)
}

// Kern gives the size as kern's --tmpfs and --memory read it: digits and one
// unit letter, or bare digits for bytes. kern 0.33 knows "b" as a unit for
// --memory alone and fractions for --memory alone, so neither is used.
func (n Size) Kern() string {
	return strings.TrimSuffix(n.String(), "b")
}

// String gives the size in the largest unit that states it exactly, in the
// spelling that ParseLimit reads back.
func (n Size) String() string {
	if n <= 0 {
		return "none"
	}
	units := []string{"b", "k", "m", "g", "t"}
	i := 0
	for i < len(units)-1 && n%1024 == 0 {
		n /= 1024
		i++
	}
	return strconv.FormatInt(int64(n), 10) + units[i]
}

// Human gives the size for a person: "64 MiB", "1.5 GiB", "512 B".
func (n Size) Human() string {
	f, i := float64(n), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for i < len(units)-1 && f >= 1024 {
		f /= 1024
		i++
	}
	prec := 0
	if f < 10 && f != math.Trunc(f) {
		prec = 1
	}
	return strconv.FormatFloat(f, 'f', prec, 64) + " " + units[i]
}

// ParseDuration reads a time budget: Go's spelling with a unit ("30s", "1m30s",
// "500ms"). "none" and "0" mean no limit, as zero. A bare number other than
// zero is refused, because tools disagree about its unit.
func ParseDuration(s string) (time.Duration, error) {
	if s == "none" || s == "0" {
		return 0, nil
	}
	if s != "" && strings.Trim(s, "0123456789.") == "" {
		if _, err := time.ParseDuration(s + "s"); err == nil {
			return 0, refuse(s, "a time without a unit", "write "+s+"s for seconds")
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, refuse(s, "not a time", "write a number and a unit, like 30s, 500ms or 10m, or none")
	}
	if d < time.Millisecond {
		return 0, refuse(s, "too short for anything to run", "write a time above zero, or none for no limit")
	}
	if d > MaxDuration {
		return 0, refuse(s, "longer than "+MaxDuration.String(), "write none for no limit")
	}
	return d, nil
}

// MaxDuration is the longest time budget that can be asked for: a year. Past
// it kern's own timer, which counts whole seconds, and ours would overflow in
// different places.
const MaxDuration = 365 * 24 * time.Hour

// Count reads a whole number of at least least; "none" means no limit, as zero.
func Count(s string, least int) (int, error) {
	if s == "none" {
		return 0, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || strings.HasPrefix(s, "+") {
		return 0, refuse(s, "not a whole number", "write a number like 256, or none")
	}
	if n < least {
		return 0, refuse(s, "too small: the least is "+strconv.Itoa(least), "write a number of at least "+strconv.Itoa(least)+", or none for no limit")
	}
	return n, nil
}

// CPUs reads a number of CPUs for a cap: above 0, at most two digits after the
// point. "none" means no cap, as zero.
func CPUs(s string) (float64, error) {
	if s == "none" {
		return 0, nil
	}
	_, frac, _ := strings.Cut(s, ".")
	if strings.Trim(s, "0123456789.") != "" || strings.Contains(frac, ".") {
		return 0, refuse(s, "not a number of CPUs", "write a number like 0.5 or 2, or none")
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(f, 0) || f > 8192 {
		return 0, refuse(s, "not a number of CPUs", "write a number like 0.5 or 2, or none")
	}
	if len(frac) > 2 {
		return 0, refuse(s, "more than two digits after the point", "write a number like 0.25, or none for no cap")
	}
	if f < 0.01 {
		return 0, refuse(s, "too small: the least is 0.01", "write a number like 0.5, or none for no cap")
	}
	return f, nil
}
