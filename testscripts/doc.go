// Package testscripts holds the end-to-end tests: every *.txtar script drives
// the built program and a real kern, in every set-up that setups lists. It has
// nothing to import; README.md says how a script is written.
package testscripts
