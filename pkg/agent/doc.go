// Package agent carries one small static program that runs inside a box,
// mounted read-only: what has to be done in there before the first line of
// untrusted code, and cannot be done from outside.
package agent
