//go:build !linux || !amd64

package rig

import "time"

const elsewhere = Unavailable("cannot: user-mode Linux needs linux/amd64")

// Guest is a booted user-mode Linux; there is none on this platform.
type Guest struct {
	// BootTime stays 0.
	BootTime time.Duration
}

// Available says why there is no guest here.
func Available() (reason string, ok bool) { return string(elsewhere), false }

// Start always fails on this platform.
func Start(Options) (*Guest, error) { return nil, elsewhere }

// Exec always fails on this platform.
func (*Guest) Exec(Options, ...string) (Result, error) { return Result{}, elsewhere }

// Close does nothing on this platform.
func (*Guest) Close() {}
