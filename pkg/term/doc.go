// Package term stands between a box and the terminal of whoever runs it: text
// from a box reaches a terminal only with its control sequences made visible
// (Visible, Filter), cannot give orders to a CI log (Fence), and with -t talks
// to a pseudo-terminal of ours that leaves the caller's as it was (Session).
package term
