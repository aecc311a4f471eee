// The probe is a static program that the end-to-end tests run inside boxes: a
// little language of steps (print, signal, forge, flood, wait, exit) with which
// code in a box tries to get its way, on any root, without an interpreter.
package main
