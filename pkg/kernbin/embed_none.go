//go:build !embedkern || !(amd64 || arm64)

package kernbin

// A build without the tag carries no kern: `go install` must work without the
// bytes that make fetches.
var bundledKern, bundledSum string
