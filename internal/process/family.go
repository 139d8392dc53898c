package process

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// termPasses bounds how often a signal looks for processes that it has missed, because they were started or got a new parent meanwhile.
const termPasses = 10

// AdoptOrphans makes this process the parent of all its descendants that lose their own (PR_SET_CHILD_SUBREAPER, see prctl(2)), and makes sure that it can find
// them. The process must wait for them. On failure step says what was attempted.
func AdoptOrphans() (step string, err error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return "adopt orphans", err
	}
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return "find this process in /proc, which must be that of its pid namespace", unix.ESRCH
	}
	if _, err := Identify(os.Getpid()); err != nil { // what it must know for killing, it knows from then on
		return "read the processes in /proc", err
	}
	return "", nil
}

// Reap takes the status of every child that has ended, tells it, and reports whether a child is left.
func Reap(ended func(pid int, status syscall.WaitStatus)) (left bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return false
		case pid == 0:
			return true
		default:
			ended(pid, status)
		}
	}
}

// CloseOnExec keeps the descriptors from first on from being inherited by what this process executes, also those that it has inherited itself.
func CloseOnExec(first int) error {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// SignalDescendants sends sig to all descendants of this process. SIGKILL is for a caller that repeats it until none is left: a process that forks while /proc
// is read may leave a child out.
func SignalDescendants(sig syscall.Signal) {
	told := map[ID]bool{}
	passes := termPasses
	if sig == syscall.SIGKILL {
		passes = 1
	}
	for range passes {
		missed := false
		family, _ := Descendants(os.Getpid()) // for want of descriptors none are found; SIGKILL comes again
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

// signalProcess sends sig to that process and no other: its number may have gone to a stranger since it was read.
func signalProcess(id ID, sig syscall.Signal) {
	h, err := OpenID(id)
	if err != nil {
		return
	}
	defer h.Close()
	_ = h.Signal(sig) // it is gone, or may not be signalled; the caller waits for such a one
}
