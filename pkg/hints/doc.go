// Package hints holds one table: a pattern of failure, what it means, and the
// flag that helps. Every command that explains something reads it here.
package hints
