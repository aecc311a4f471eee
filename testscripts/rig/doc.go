// Package rig gives tests a Linux with a real, unified cgroup v2, whatever the
// machine they run on has: it boots Debian's user-mode Linux as an ordinary
// process and runs commands in it, many to a boot.
//
// What a guest promises: it is gone when its runner is, however the runner ended;
// all it wrote on the host is in one locked directory, which the next run sweeps;
// nothing of the host can be written from it but the directories named RW.
package rig
