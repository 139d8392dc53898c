package watch_test

import (
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/internal/watch"
)

// handleOn returns another handle on a process.
func handleOn(t testing.TB, pidfd *os.File) *process.Handle {
	t.Helper()
	var fd int
	var err error
	raw(t, pidfd).Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil {
		t.Fatal(err)
	}
	h, err := process.FromFile(os.NewFile(uintptr(fd), "pidfd"))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func join(t testing.TB, p *watch.Processes, pidfd *os.File, gone func()) *watch.Share {
	t.Helper()
	s, err := p.Join(handleOn(t, pidfd), gone)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAProcessIsWatchedByOneDescriptorForAllThatAsk(t *testing.T) {
	leavesNothing(t)
	s := newSet(t)
	p := watch.NewProcesses(s)
	cmd, pidfd := startChild(t)
	_, other := startChild(t)
	before := countDescriptors(t)
	var told, left atomic.Int32
	var all sync.WaitGroup
	shares := make([]*watch.Share, 100)
	all.Add(len(shares) - 1)
	for i := range shares {
		shares[i] = join(t, p, pidfd, func() {
			if told.Add(1); i > 0 {
				all.Done()
			}
		})
	}
	late := join(t, p, other, func() { left.Add(1) })
	if n := countDescriptors(t) - before; n != 2 || s.Len() != 2 {
		t.Errorf("two processes take %d descriptors and %d watches", n, s.Len())
	}
	if !shares[0].Leave() || shares[0].Leave() {
		t.Error("who leaves first is to be told, or leaves twice")
	}
	cmd.Process.Signal(unix.SIGKILL)
	gone := make(chan struct{})
	go func() {
		all.Wait()
		close(gone)
	}()
	await(t, gone, "the callbacks of all that ask still")
	for _, share := range shares[1:] {
		if share.Leave() {
			t.Error("one that was told is not")
		}
	}
	if !late.Leave() || told.Load() != int32(len(shares)-1) || left.Load() != 0 {
		t.Errorf("%d were told of what is gone, and %d of what is not", told.Load(), left.Load())
	}
	if n := countDescriptors(t) - before; n != 0 || s.Len() != 0 {
		t.Errorf("%d descriptors and %d watches are left", n, s.Len())
	}
}

func TestWhoAsksForAProcessThatHasExitedIsTold(t *testing.T) {
	leavesNothing(t)
	s := newSet(t)
	p := watch.NewProcesses(s)
	cmd, pidfd := startChild(t)
	early := make(chan struct{})
	first := join(t, p, pidfd, func() { close(early) })
	cmd.Process.Signal(unix.SIGKILL)
	await(t, early, "the callback")
	late := make(chan struct{})
	second := join(t, p, pidfd, func() { close(late) })
	await(t, late, "the callback of who has asked late")
	first.Leave()
	second.Leave()
}

func TestProcessesMayBeJoinedAndLeftByAll(t *testing.T) {
	leavesNothing(t)
	s := newSet(t)
	p := watch.NewProcesses(s)
	var children []*exec.Cmd
	var files []*os.File
	for range 2 {
		cmd, pidfd := startChild(t)
		children, files = append(children, cmd), append(files, pidfd)
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 200 {
				var told atomic.Bool
				share := join(t, p, files[(i+j)%2], func() { told.Store(true) })
				if share.Leave() && told.Load() {
					t.Error("who has left in time was told")
				}
				if i == 0 && j == 100 {
					children[0].Process.Kill()
				}
			}
		})
	}
	all.Wait()
	if s.Len() != 0 {
		t.Errorf("%d watches are left", s.Len())
	}
}
