package pool

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// soPeerPidfd is SO_PEERPIDFD, since Linux 6.5.
const soPeerPidfd = 77

var errPeer = errors.New("not a process of this user outside of boxes")

// mayNotSpeak refuses a peer that is not a process of our own user in our own
// pid namespace. The mode of the socket does not keep a box out that has its
// directory mounted, read-only or not, and that the peer's uid is ours says
// nothing: that of a box is too (rule S5).
func mayNotSpeak(fd int) error {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return err
	}
	if int(cred.Uid) != os.Geteuid() || cred.Pid <= 0 {
		return errPeer
	}
	pid := int(cred.Pid)
	// The number may have become another process's since it connected; with a
	// descriptor of the process, that is noticed.
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, soPeerPidfd)
	if err != nil {
		if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			return err
		}
	} else if pid, err = pidOf(pidfd); err != nil {
		unix.Close(pidfd)
		return err
	}
	defer unix.Close(pidfd)
	if !samePidNamespace(pid) {
		return errPeer
	}
	// Still the same process: so the namespace was its own.
	if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); err != nil {
		return err
	}
	return nil
}

// pidOf is the process of a pidfd, in our namespace.
func pidOf(pidfd int) (int, error) {
	b, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(pidfd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Pid:"); ok {
			pid, err := strconv.Atoi(strings.TrimSpace(v))
			if err == nil && pid > 0 {
				return pid, nil
			}
			break
		}
	}
	return 0, fmt.Errorf("%w: it is gone, or in another pid namespace", errPeer)
}

func samePidNamespace(pid int) bool {
	ours, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return false
	}
	theirs, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid")
	return err == nil && theirs == ours
}
