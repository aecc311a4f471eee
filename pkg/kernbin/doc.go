// Package kernbin answers which kern to run. What Find returns was named by
// the user or shipped with this program, has proved to be kern, and is of a
// version this program knows how to read; a kern that was named and is not
// usable is refused, never replaced by another one.
//
// "Has proved to be kern" means that it answers --version as kern does. That
// finds mistakes, not malice: a program made to answer the same passes, because
// whoever may choose the program that is run may choose what it does.
package kernbin
