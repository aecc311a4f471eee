// Package validate decides, before anything starts, whether what a user asked
// for can be honoured: every refusal is an *Error that says what was refused,
// why, and what to write instead.
//
// The checks are pure. The one exception is the resolution of symbolic links
// on the source of a mount, because a rule about a path means nothing before
// the path is known; functions that do so say it in their names or comments.
package validate
