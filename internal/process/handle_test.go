package process_test

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/process"
)

func TestAHandleSeesItsProcessDie(t *testing.T) {
	leavesNothing(t)
	c := startChild(t, "wait")
	h := open(t, c.pid())
	if h.Gone() || h.PID() != c.pid() {
		t.Fatalf("gone is %v, pid is %d", h.Gone(), h.PID())
	}
	if err := h.Signal(0); err != nil {
		t.Errorf("signal 0 says %v", err)
	}
	if err := h.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	within(t, "the child is not gone", h.Gone)
	c.end()
	if !h.Gone() {
		t.Error("it came back when it was waited for")
	}
	if err := h.Signal(syscall.SIGKILL); !errors.Is(err, process.ErrGone) {
		t.Errorf("a signal says %v, want ErrGone", err)
	}
	if _, err := process.Open(c.pid()); !errors.Is(err, process.ErrGone) {
		t.Errorf("Open says %v, want ErrGone", err)
	}
}

func TestAClosedHandleClaimsNothing(t *testing.T) {
	leavesNothing(t)
	c := startChild(t, "wait")
	h := open(t, c.pid())
	c.end()
	var closers sync.WaitGroup
	for range 4 {
		closers.Go(func() {
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	closers.Wait()
	if h.Gone() {
		t.Error("a closed handle says gone")
	}
	if err := h.Signal(0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a signal says %v, want os.ErrClosed", err)
	}
	if _, err := h.File(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("File says %v, want os.ErrClosed", err)
	}
	own := open(t, os.Getpid())
	own.Close()
	if got, err := own.DescendantOf(open(t, os.Getppid())); got || !errors.Is(err, os.ErrClosed) {
		t.Errorf("DescendantOf is %v, %v, want os.ErrClosed", got, err)
	}
	if got := h.Program(); got != "" {
		t.Errorf("the program is %q", got)
	}
}

func TestEachDescriptorIsCloseOnExec(t *testing.T) {
	leavesNothing(t)
	h := open(t, os.Getpid())
	file, err := h.File()
	if err != nil {
		t.Fatal(err)
	}
	received, err := process.FromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	defer received.Close()
	raw := socketpair(t)
	peer, _, err := process.FromPeer(raw)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	for name, h := range map[string]*process.Handle{"Open": h, "FromFile": received, "FromPeer": peer} {
		conn, _ := h.SyscallConn()
		conn.Control(func(fd uintptr) {
			if flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("%s: flags are %x, %v", name, flags, err)
			}
		})
	}
}

func TestAReceivedPidfdKnowsItsProcess(t *testing.T) {
	leavesNothing(t)
	c := startChild(t, "wait")
	h := open(t, c.pid())
	take := func() *process.Handle {
		file, err := h.File()
		if err != nil {
			t.Fatal(err)
		}
		received, err := process.FromFile(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { received.Close() })
		return received
	}
	live := take()
	if live.PID() != c.pid() || live.Gone() {
		t.Errorf("it is %d, gone %v; want %d, alive", live.PID(), live.Gone(), c.pid())
	}
	c.end()
	late := take()
	if !live.Gone() || !late.Gone() || late.PID() != 0 {
		t.Errorf("gone is %v and %v, pid is %d; want true, true, 0", live.Gone(), late.Gone(), late.PID())
	}
}

func TestOnlyThePidfdOfAProcessIsTakenAndTheErrorSaysWhatItIs(t *testing.T) {
	leavesNothing(t)
	path := func(path string, flags int) func() (int, error) {
		return func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) }
	}
	tables := []struct {
		kind string // what the error says
		open func() (int, error)
	}{
		{"eventfd", func() (int, error) { return unix.Eventfd(0, unix.EFD_CLOEXEC) }},
		{"eventpoll", func() (int, error) { return unix.EpollCreate1(unix.EPOLL_CLOEXEC) }},
		{"inotify", func() (int, error) { return unix.InotifyInit1(unix.IN_CLOEXEC) }},
		{"file or folder", func() (int, error) { return unix.MemfdCreate("a\nPid:\t1", unix.MFD_CLOEXEC) }},
		{"file or folder", path("/dev/null", unix.O_RDONLY)},
		{"file or folder", path("/dev/null", unix.O_PATH)},
		{"file or folder", path("/proc/self", unix.O_DIRECTORY)},
		{"file or folder", path("/proc/self/fdinfo/0", unix.O_RDONLY)},
		{"net namespace", path("/proc/self/ns/net", unix.O_RDONLY)},
		{"pid namespace", path("/proc/self/ns/pid", unix.O_RDONLY)},
		{"socket", func() (int, error) { return unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) }},
		{"thread", func() (int, error) { return unix.PidfdOpen(unix.Gettid(), unix.PIDFD_THREAD) }},
	}
	for _, tt := range tables {
		t.Run(tt.kind, func(t *testing.T) {
			fd, err := tt.open()
			if errors.Is(err, unix.EINVAL) {
				t.Skip("the kernel has no such descriptor")
			}
			if err != nil {
				t.Fatal(err)
			}
			file := os.NewFile(uintptr(fd), tt.kind)
			defer file.Close()
			h, err := process.FromFile(file)
			if err == nil {
				h.Close()
				t.Fatal("it was taken")
			}
			if !errors.Is(err, process.ErrNotPidfd) || !strings.HasSuffix(err.Error(), " "+tt.kind) {
				t.Errorf("the error is %q, want ErrNotPidfd of the kind %s", err, tt.kind)
			}
			if _, err := unix.FcntlInt(file.Fd(), unix.F_GETFD, 0); err != nil {
				t.Errorf("the file is not the caller's any more: %v", err)
			}
		})
	}
}

func TestProgramAndArgumentsAreThoseOfALiveProcess(t *testing.T) {
	leavesNothing(t)
	c := startChild(t, "wait", "one", "", "two words")
	h := open(t, c.pid())
	if h.Program() == "" || h.Program() != open(t, os.Getpid()).Program() {
		t.Errorf("the program is %q", h.Program())
	}
	args, err := h.Arguments()
	if err != nil || len(args) != 4 || args[1] != "one" || args[2] != "" || args[3] != "two words" {
		t.Errorf("the arguments are %q, %v", args, err)
	}
	c.kill(t)
	within(t, "the child is not gone", h.Gone)
	if got := h.Program(); got != "" {
		t.Errorf("a zombie's program is %q", got)
	}
	if _, err := h.Arguments(); !errors.Is(err, process.ErrGone) {
		t.Errorf("a zombie's arguments: %v, want ErrGone", err)
	}
}

func TestOnlyADescendantDescends(t *testing.T) {
	leavesNothing(t)
	c := startChild(t, "parent")
	sibling := startChild(t, "wait")
	self, parent := open(t, os.Getpid()), open(t, c.pid())
	grandchild, other := open(t, number(t, c.said)), open(t, sibling.pid())
	tables := []struct {
		name            string
		child, ancestor *process.Handle
		want            bool
	}{
		{"child", parent, self, true},
		{"grandchild", grandchild, self, true},
		{"grandchild of its parent", grandchild, parent, true},
		{"itself", self, self, false},
		{"parent of its child", self, parent, false},
		{"sibling", other, parent, false},
		{"nephew", grandchild, other, false},
	}
	for _, tt := range tables {
		if got, err := tt.child.DescendantOf(tt.ancestor); got != tt.want || err != nil {
			t.Errorf("%s: it is %v, %v, want %v", tt.name, got, err, tt.want)
		}
	}
	sibling.end()
	if got, err := other.DescendantOf(self); got || err != nil {
		t.Errorf("a child that is gone descends: %v, %v", got, err)
	}
	c.kill(t)
	within(t, "the parent is not gone", parent.Gone)
	if got, err := parent.DescendantOf(self); got || err != nil { // guard: bothLive. /proc has it still
		t.Errorf("a child that has exited, and was not waited for, descends: %v, %v", got, err)
	}
	if got, err := grandchild.DescendantOf(parent); got || err != nil {
		t.Errorf("an orphan descends from its dead parent: %v, %v", got, err)
	}
	c.end()
	within(t, "the orphan lives on after its input ended", grandchild.Gone)
}

func TestDescendantsAreAllThatWereNotWaitedFor(t *testing.T) {
	leavesNothing(t)
	c := startChild(t, "parent")
	sibling := startChild(t, "wait")
	grandchild := number(t, c.said)
	descendants := func(ancestor int) []process.ID {
		t.Helper()
		ids, err := process.Descendants(ancestor)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(ids, func(a, b process.ID) int { return cmp.Compare(a.PID, b.PID) })
		return ids
	}
	all := []process.ID{identify(t, c.pid()), identify(t, sibling.pid()), identify(t, grandchild)}
	slices.SortFunc(all, func(a, b process.ID) int { return cmp.Compare(a.PID, b.PID) })
	if got := descendants(os.Getpid()); !slices.Equal(got, all) {
		t.Errorf("descendants are %v, want %v", got, all)
	}
	if got := descendants(c.pid()); len(got) != 1 || got[0].PID != grandchild {
		t.Errorf("descendants of the parent are %v, want process %d", got, grandchild)
	}
	sibling.kill(t)
	within(t, "the sibling is not gone", open(t, sibling.pid()).Gone)
	if got := descendants(os.Getpid()); !slices.Equal(got, all) {
		t.Errorf("with one that was not waited for, descendants are %v, want %v", got, all)
	}
	sibling.end()
	if got := descendants(sibling.pid()); len(got) != 0 {
		t.Errorf("descendants of one that is gone are %v", got)
	}
}

func TestHandlesServeManyGoroutines(t *testing.T) {
	leavesNothing(t)
	h := open(t, os.Getpid())
	var users sync.WaitGroup
	for range 4 {
		users.Go(func() {
			for range 200 {
				h.Gone()
				h.Signal(0)
				if file, err := h.File(); err == nil {
					file.Close()
				}
			}
		})
	}
	h.Close()
	users.Wait()
	if _, err := h.File(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("File after Close says %v", err)
	}
}
