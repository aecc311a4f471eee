// Package runner starts kern and reports what happened. It is the only package
// that does. A Result is never inferred from what the code in the box printed:
// its verdict comes from the descriptors that kern writes and that nothing in
// a box can reach, from kern's wait status, and from our own clock.
package runner
