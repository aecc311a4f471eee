//go:build !embedkern || !linux || !(amd64 || arm64)

package agent

var binary []byte
