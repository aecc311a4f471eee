// Package interp holds the small drivers that run inside a box and turn a
// piece of code into a command line for its interpreter.
package interp
