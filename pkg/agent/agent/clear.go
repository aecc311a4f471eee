package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// clearAll deletes everything in directories, but not these themselves.
func clearAll(dirs []string) int {
	code := 0
	for _, path := range dirs {
		d, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil || !clearDir(d) {
			code = 1
		}
	}
	return code
}

// clearDir needs two descriptors however deep the tree is: what lies in a
// directory is moved up, so that each is empty when its turn comes. Links are
// deleted and not followed. Nothing else runs in this box.
func clearDir(top *os.File) bool {
	moved, at := 0, int(top.Fd())
	for {
		top.Seek(0, 0)
		names, _ := top.Readdirnames(1000)
		if len(names) == 0 {
			return true
		}
		gone := 0
		for _, name := range names {
			if unix.Unlinkat(at, name, 0) == nil || unix.Unlinkat(at, name, unix.AT_REMOVEDIR) == nil {
				gone++
				continue
			}
			fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if err != nil {
				continue
			}
			sub := os.NewFile(uintptr(fd), name)
			for {
				inside, _ := sub.Readdirnames(1000)
				for _, n := range inside {
					if unix.Unlinkat(fd, n, 0) == nil {
						gone++
						continue
					}
					moved++
					if unix.Renameat(fd, n, at, ".up-"+strconv.Itoa(os.Getpid())+"-"+strconv.Itoa(moved)) == nil {
						gone++
					}
				}
				if len(inside) == 0 {
					break
				}
			}
			sub.Close()
			if unix.Unlinkat(at, name, unix.AT_REMOVEDIR) == nil {
				gone++
			}
		}
		if gone == 0 {
			return false
		}
	}
}
