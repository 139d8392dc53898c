package process_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/internal/process"
)

func TestASignalReachesAllDescendantsAndOrphansAreAdopted(t *testing.T) {
	leavesNothing(t)
	c := startChild(t, "reaper")
	grandchild := open(t, number(t, c.said))
	orphan, err := grandchild.DescendantOf(open(t, c.pid()))
	if err != nil || !orphan {
		t.Fatalf("the orphan is not its sub-reaper's: %v, %v", orphan, err)
	}
	stranger := startChild(t, "wait")
	c.stdin.Close() // then it kills its family
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("the sub-reaper has not ended all: %v", err)
	}
	if !grandchild.Gone() {
		t.Error("the orphan lives")
	}
	if open(t, stranger.pid()).Gone() {
		t.Error("a stranger was killed, too")
	}
}

// reap starts a child whose own child becomes this process's, says the number of that, and at the end of its input kills them.
func reap() {
	if step, err := process.AdoptOrphans(); err != nil {
		println(step, err.Error())
		os.Exit(1)
	}
	orphan()
	os.Stdin.Read(make([]byte, 1))
	process.SignalDescendants(syscall.SIGKILL)
	for {
		if _, err := syscall.Wait4(-1, nil, 0, nil); err == syscall.ECHILD {
			return
		}
	}
}
