// Package doctor examines this machine and a box with given settings, and says of
// each check what was measured, why it matters, and what one thing to change.
package doctor
