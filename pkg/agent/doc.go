// Package agent carries one small static program that runs inside a box, mounted
// read-only, and the host's end of the talk with it: what has to be done in
// there before the first line of untrusted code, or beside it, and cannot be
// done from outside.
package agent
