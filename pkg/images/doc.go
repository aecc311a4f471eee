// Package images knows the images that are on this machine, what a registry says
// of one, and which registry digest a cached image is known to have: it never
// guesses one. It starts no process and changes nothing of kern's.
package images
