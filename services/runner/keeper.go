package runner

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// termPasses bounds how often SIGTERM looks for processes that it has missed, because they
// were started or got a new parent meanwhile. SIGKILL finds the others.
const termPasses = 10

// A process is a descendant of the keeper as it was when /proc was read. Its start time, in
// clock ticks since boot, tells it from a later process of the same pid.
type process struct {
	pid, parent int
	start       uint64
}

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
	return "", nil
}

// signalFamily sends sig to all descendants of this process. SIGKILL is for a caller that
// repeats it: a process that forks while /proc is read may leave a child out.
func signalFamily(sig syscall.Signal) {
	told := map[process]bool{}
	passes := termPasses
	if sig == syscall.SIGKILL {
		passes = 1
	}
	for range passes {
		missed := false
		for _, p := range family(os.Getpid()) {
			key := process{pid: p.pid, start: p.start}
			if !told[key] {
				told[key] = true
				missed = true
				p.signal(sig)
			}
		}
		if !missed {
			return
		}
	}
}

// signal sends sig through a pidfd, once that is known to be p's: its pid may have gone to a
// stranger since p was read.
func (p process) signal(sig syscall.Signal) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if now, ok := readProcess(p.pid); ok && now.start == p.start {
		unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}

// family returns the descendants of root that have not been reaped.
func family(root int) []process {
	names, err := readNames("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]process{}
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := readProcess(pid); ok {
				children[p.parent] = append(children[p.parent], p)
			}
		}
	}
	found := children[root]
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].pid]...)
	}
	return found
}

// readProcess reads /proc/PID/stat, see proc_pid_stat(5). A zombie counts too: only its first
// thread may be gone.
func readProcess(pid int) (process, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	// The name, field 2, is in parentheses and may itself contain any byte.
	end := bytes.LastIndexByte(text, ')')
	fields := strings.Fields(string(text[end+1:]))
	if end < 0 || len(fields) < 20 {
		return process{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return process{}, false
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return process{pid: pid, parent: parent, start: start}, err == nil
}

func readNames(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}
