// Package wire is what the program inside a box and its host say to each other,
// as bytes: it is linked into that program, so it imports next to nothing, and
// its parsers never allocate more than they were given.
package wire
