package runner

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/process"
)

// termPasses bounds how often SIGTERM looks for processes that it has missed, because they
// were started or got a new parent meanwhile. SIGKILL finds the others.
const termPasses = 10

// setUpKeeper makes this process adopt all its orphaned descendants. On failure it says at
// which step.
func setUpKeeper() (step string, err error) {
	nameProcess()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return "adopt the container's orphans", err
	}
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return "find this process in /proc, which must be that of its pid namespace", unix.ESRCH
	}
	if _, err := process.Descendants(os.Getpid()); err != nil { // what it must know for killing, it knows from then on
		return "read the processes in /proc", err
	}
	return "", nil
}

// signalFamily sends sig to all descendants of this process. SIGKILL is for a caller that
// repeats it: a process that forks while /proc is read may leave a child out.
func signalFamily(sig syscall.Signal) {
	told := map[process.ID]bool{}
	passes := termPasses
	if sig == syscall.SIGKILL {
		passes = 1
	}
	for range passes {
		missed := false
		family, _ := process.Descendants(os.Getpid()) // for want of descriptors none are found; SIGKILL comes again
		for _, id := range family {
			if !told[id] {
				told[id] = true
				missed = true
				signalProcess(id, sig)
			}
		}
		if !missed {
			return
		}
	}
}

// signalProcess sends sig to that process and no other: its number may have gone to a stranger
// since it was read.
func signalProcess(id process.ID, sig syscall.Signal) {
	h, err := process.OpenID(id)
	if err != nil {
		return
	}
	defer h.Close()
	_ = h.Signal(sig) // it is gone, or may not be signalled; Run waits for such a one
}
