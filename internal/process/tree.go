package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
)

const (
	// maxDepth bounds the walk from a process to its ancestor, in steps.
	maxDepth = 1024
	// maxWalks is how often a walk is made when processes on the way end meanwhile.
	maxWalks = 3
)

// Descendants returns the processes that are children of the process ancestor, or children of these, and so on, and have not been
// waited for: each as it was when its part of /proc was read. One that is forked or gets another parent meanwhile may be missing.
//
// The error says that /proc itself could not be read. A process that cannot be read is left out.
func Descendants(ancestor int) ([]ID, error) {
	boot, err := bootID()
	if err != nil {
		return nil, fmt.Errorf("look for descendants of process %d: %w", ancestor, err)
	}
	pids, err := numbers()
	if err != nil {
		return nil, fmt.Errorf("look for descendants of process %d: %w", ancestor, err)
	}
	children := map[int][]ID{}
	for _, pid := range pids {
		if pid == ancestor {
			continue // whose parent's number may by now be that of a descendant
		}
		if st, err := readStat(pid); err == nil {
			children[st.parent] = append(children[st.parent], ID{PID: pid, Start: st.start, Boot: boot})
		}
	}
	found := children[ancestor]
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].PID]...)
	}
	return found, nil
}

// numbers returns the numbers of all processes in /proc.
func numbers() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	if err := errors.Join(err, dir.Close()); err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// A link is one step from a process to its parent.
type link struct {
	pid    int
	parent int
	start  uint64
}

// DescendantOf reports whether the process is a child of ancestor, or a child of its child, and so on.
// No process is its own descendant; one that is gone is nobody's, and nobody's ancestor.
//
// True means that at one moment during the call every process on the way was alive and the child of the
// next. It is the word for that moment: when a process on the way ends, its children get another parent. So false does not
// prove that ancestor did not start the process: one whose parent has ended is then a child of the nearest sub-reaper or of
// process 1. Numbers of processes on the way are told apart by their start time, which has a resolution of 10 ms.
//
// The error says what could not be read, or that the way is longer than 1024 steps.
func (h *Handle) DescendantOf(ancestor *Handle) (bool, error) {
	if h.pid <= 0 || ancestor.pid <= 0 {
		return false, errors.New("look for an ancestor: the process has no number in this pid namespace")
	}
	for range maxWalks {
		chain, err := ascend(h.pid, ancestor.pid)
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("look for an ancestor of process %d: %w", h.pid, err)
		}
		if chain == nil {
			return false, nil
		}
		if unchanged(chain) {
			return bothLive(h, ancestor)
		}
	}
	return false, nil
}

func bothLive(child, ancestor *Handle) (bool, error) {
	for _, h := range []*Handle{child, ancestor} {
		if gone, err := h.poll(); gone || err != nil {
			return false, err
		}
	}
	return true, nil
}

// ascend returns the links from pid up to ancestor, and none if the way does not lead there.
// The error is ErrGone if a process ended meanwhile.
func ascend(pid, ancestor int) ([]link, error) {
	var chain []link
	for range maxDepth {
		st, err := readStat(pid)
		if err != nil {
			return nil, err
		}
		chain = append(chain, link{pid: pid, parent: st.parent, start: st.start})
		if st.parent == ancestor {
			return chain, nil
		}
		if st.parent == 0 {
			return nil, nil
		}
		pid = st.parent
	}
	return nil, fmt.Errorf("it is more than %d processes away from the first one", maxDepth)
}

// unchanged reports whether each link is still as it was. Then all of them were there at once, at the
// moment between the two readings: a process never gets a parent back that it has lost.
func unchanged(chain []link) bool {
	for _, l := range chain {
		st, err := readStat(l.pid)
		if err != nil || st.start != l.start || st.parent != l.parent {
			return false
		}
	}
	return true
}
