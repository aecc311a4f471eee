// Package pool holds the background processes that keep boxes alive between two
// command lines: where they live, how one is started, and how it is talked to.
package pool
