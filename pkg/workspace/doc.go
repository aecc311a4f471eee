// Package workspace handles, from the host's side, directories that hostile
// code could write: nothing in it follows a symbolic link or crosses a mount
// point below the directory it was given, blocks on a FIFO or device, or needs
// more descriptors or memory because a tree is deep or wide.
package workspace
