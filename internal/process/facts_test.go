package process_test

import (
	"os"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/process"
)

// needs skips a test for what the kernel lacks.
func needs(t *testing.T, what string, has bool) {
	t.Helper()
	if !has {
		t.Skip("the kernel has no " + what)
	}
}

func TestTheInodeOfAPidfdIsItsProcess(t *testing.T) {
	leavesNothing(t)
	c, other := startChild(t, "wait"), startChild(t, "wait")
	h := open(t, c.pid())
	inode, ok := h.Inode()
	needs(t, "inodes of pidfds (Linux 6.9)", ok)
	again, ok := open(t, c.pid()).Inode()
	if !ok || again != inode {
		t.Errorf("another handle has the inode %d, %v, want %d", again, ok, inode)
	}
	if others, ok := open(t, other.pid()).Inode(); !ok || others == inode {
		t.Errorf("another process has the inode %d, %v", others, ok)
	}
	c.end()
	if late, ok := h.Inode(); !ok || late != inode {
		t.Errorf("when it is gone the inode is %d, %v, want %d", late, ok, inode)
	}
	h.Close()
	if late, ok := h.Inode(); ok {
		t.Errorf("a closed handle has the inode %d", late)
	}
}

func TestHandlesAreTheSameOnlyForOneProcess(t *testing.T) {
	for name, same := range map[string]func(a, b *process.Handle) bool{"by inode": (*process.Handle).Same, "by number": process.SameByNumber} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			c, other := startChild(t, "wait"), startChild(t, "wait")
			h, again, another := open(t, c.pid()), open(t, c.pid()), open(t, other.pid())
			if !same(h, again) || !same(h, h) {
				t.Error("two handles on one process are not the same")
			}
			if same(h, another) || same(another, h) {
				t.Error("handles on two processes are the same")
			}
			again.Close()
			if same(h, again) {
				t.Error("a closed handle is the same as an open one")
			}
		})
	}
}

func TestADeadProcessIsTheSameByItsInodeOnly(t *testing.T) {
	leavesNothing(t)
	c := startChild(t, "wait")
	h, again := open(t, c.pid()), open(t, c.pid())
	_, inodes := h.Inode()
	c.end()
	if got := h.Same(again); got != inodes {
		t.Errorf("it is the same: %v, want %v", got, inodes)
	}
	if process.SameByNumber(h, again) {
		t.Error("by its number, which may be another's, it is the same")
	}
}

func TestTheExitStatusIsKnownOnceTheProcessWasWaitedFor(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(t *testing.T, c *child)
		want func(syscall.WaitStatus) bool
	}{
		{"exit", func(_ *testing.T, c *child) { c.stdin.Close() }, func(s syscall.WaitStatus) bool { return s.Exited() && s.ExitStatus() == 0 }},
		{"signal", func(t *testing.T, c *child) { c.kill(t) }, func(s syscall.WaitStatus) bool { return s.Signaled() && s.Signal() == unix.SIGKILL }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			leavesNothing(t)
			c := startChild(t, "wait")
			h := open(t, c.pid())
			if status, ok := h.ExitStatus(); ok {
				t.Fatalf("a live process has the status %v", status)
			}
			tt.end(t, c)
			within(t, "the child is not gone", h.Gone)
			if status, ok := h.ExitStatus(); ok {
				t.Errorf("one that was not waited for has the status %v", status)
			}
			c.cmd.Wait()
			status, ok := h.ExitStatus()
			needs(t, "exit status by a pidfd (Linux 6.15)", ok)
			if !tt.want(status) {
				t.Errorf("the status is %v", status)
			}
		})
	}
}

func TestTheExitStatusOfAForeignProcessIsKnown(t *testing.T) {
	leavesNothing(t)
	c := startChild(t, "parent")
	grandchild := open(t, number(t, c.said))
	if err := grandchild.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c.cmd.Wait() // the parent waits for its child, and then ends
	status, ok := grandchild.ExitStatus()
	needs(t, "exit status by a pidfd (Linux 6.15)", ok)
	if !status.Signaled() || status.Signal() != unix.SIGTERM {
		t.Errorf("the status is %v, want the signal SIGTERM", status)
	}
}

func TestThePeersGroupsAreThoseOfItsMoment(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can have other groups")
	}
	leavesNothing(t)
	many := make([]uint32, 100) // more than there is room for at first
	for i := range many {
		many[i] = uint32(1000 + i)
	}
	for _, groups := range [][]uint32{nil, {7}, {7, 1000, 4_000_000_000}, many} {
		_, raw := acceptedWith(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 0, Gid: 5, Groups: groups}})
		cred, err := process.PeerCred(raw)
		if err != nil || cred.GID != 5 || !slices.Equal(cred.Groups, groups) {
			t.Errorf("the groups are %v, %v, want %v", cred, err, groups)
		}
		h, cred, err := process.FromPeer(raw)
		if err != nil || !slices.Equal(cred.Groups, groups) {
			t.Errorf("FromPeer says %v, %v, want %v", cred.Groups, err, groups)
		}
		h.Close()
	}
}
