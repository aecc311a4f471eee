// Package imagetest makes small images for tests, as an archive that kern
// loads and as a registry that it pulls from. No program links it.
package imagetest
