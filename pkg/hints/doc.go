// Package hints holds the one table of what failures are known by (the verdict, the
// command line, what programs print), with whose failure it is and what helps: run
// prints what is sure enough untried (Find), doctor tries the rest (Match); and the
// texts of explain.
package hints
