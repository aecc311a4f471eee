// Package cmd holds the subcommands: flags, printing and exit codes. It decides
// nothing about sandboxes; what it is asked for it hands to pkg/ as a Spec, and
// what comes back it prints.
package cmd
