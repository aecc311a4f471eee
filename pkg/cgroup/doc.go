// Package cgroup puts caps of our own on a box where kern cannot enforce them.
//
// What it guarantees: a cap that it reports as bound was read back from the
// kernel, an OOM that it reports was counted by the kernel, no mount and no
// cgroup that it did not make is changed, and nothing that it made stays.
package cgroup
