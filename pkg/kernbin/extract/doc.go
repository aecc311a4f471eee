// Command extract takes the kern executable out of the pinned wheel, and out
// of no other file: the wheel's SHA-256 is checked before a byte of it is
// parsed, and what comes out is one ELF executable for the machine asked for.
package main
