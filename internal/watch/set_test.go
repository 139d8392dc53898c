package watch_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/watch"
)

func TestASocketIsGoneWhenItsOtherEndCloses(t *testing.T) {
	leavesNothing(t)
	s := newSet(t)
	own, other := pair(t)
	gone := make(chan struct{})
	w := add(t, s, own, watch.Socket, func() { close(gone) })
	other.Close()
	await(t, gone, "the callback")
	if s.Remove(w) || s.Len() != 0 {
		t.Error("the watch is not over")
	}
}

func TestDataAndAHalfCloseAreNotAHangUp(t *testing.T) {
	leavesNothing(t)
	s := newSet(t)
	own, other := pair(t)
	var fired atomic.Bool
	w := add(t, s, own, watch.Socket, func() { fired.Store(true) })
	other.Write([]byte("data"))
	raw(t, other).Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_WR) })
	ask(t, s)
	if fired.Load() || !s.Remove(w) {
		t.Error("it fired")
	}
}

func TestASilenceIsOverWhenSomethingCanBeRead(t *testing.T) {
	for name, end := range map[string]func(other *os.File){
		"data":         func(other *os.File) { other.Write([]byte("data")) },
		"a half-close": func(other *os.File) { raw(t, other).Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_WR) }) },
		"the end":      func(other *os.File) { other.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			s := newSet(t)
			own, other := pair(t)
			for range 2 { // the second time it is over already
				over := make(chan struct{})
				w := add(t, s, own, watch.Silence, func() { close(over) })
				end(other)
				await(t, over, "the callback")
				if s.Remove(w) || s.Len() != 0 {
					t.Error("the watch is not over")
				}
				end = func(*os.File) {}
			}
		})
	}
}

func TestUnreadDataDoesNotHideAHangUp(t *testing.T) {
	leavesNothing(t)
	s := newSet(t)
	own, other := pair(t)
	gone := make(chan struct{})
	add(t, s, own, watch.Socket, func() { close(gone) })
	other.Write([]byte("data"))
	other.Close()
	await(t, gone, "the callback")
	data, err := io.ReadAll(own)
	if string(data) != "data" || err != nil {
		t.Errorf("the data is %q, %v", data, err)
	}
}

func TestAProcessIsGoneWhenItIsKilledWaitedForOrNot(t *testing.T) {
	leavesNothing(t)
	s := newSet(t)
	cmd, pidfd := startChild(t)
	gone := make(chan struct{})
	add(t, s, pidfd, watch.Process, func() { close(gone) })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	await(t, gone, "the callback")
	cmd.Wait()
	late := make(chan struct{})
	add(t, s, pidfd, watch.Process, func() { close(late) })
	await(t, late, "the callback of one that was waited for before")
}

// The promise that leases rest on: no event needs to have been delivered before.
func TestAskSeesAProcessThatWasJustWaitedFor(t *testing.T) {
	leavesNothing(t)
	s := newSet(t)
	for range 30 {
		own, other := pair(t)
		cmd := exec.Command("cat")
		cmd.Stdin = other
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		other.Close()
		var fired atomic.Int32
		add(t, s, own, watch.Socket, func() { fired.Add(1) })
		ask(t, s)
		if fired.Load() != 0 {
			t.Fatal("a live child is gone")
		}
		cmd.Process.Kill()
		cmd.Wait()
		ask(t, s)
		if fired.Load() != 1 {
			t.Fatalf("Ask has returned after %d callbacks, want 1", fired.Load())
		}
		own.Close()
	}
}

func TestWhatIsGoneAlreadyFiresAtOnce(t *testing.T) {
	leavesNothing(t)
	s := newSet(t)
	own, other := pair(t)
	other.Close()
	gone := make(chan struct{})
	add(t, s, own, watch.Socket, func() { close(gone) })
	await(t, gone, "the callback")
}

func TestAskRunsMoreCallbacksThanOneBatchHolds(t *testing.T) {
	leavesNothing(t)
	s := newSet(t)
	const sockets = 1000
	var fired atomic.Int32
	var others []*os.File
	for range sockets {
		own, other := pair(t)
		others = append(others, other)
		add(t, s, own, watch.Socket, func() { fired.Add(1) })
	}
	for _, other := range others {
		other.Close()
	}
	ask(t, s)
	if fired.Load() != sockets || s.Len() != 0 {
		t.Errorf("%d callbacks ran, %d watches live; want %d and 0", fired.Load(), s.Len(), sockets)
	}
	ask(t, s)
	if fired.Load() != sockets {
		t.Error("a callback ran twice")
	}
}

func TestAskReturnsOnlyWhenTheCallbacksOfOthersAreDone(t *testing.T) {
	leavesNothing(t)
	s := newSet(t)
	own, other := pair(t)
	started, asked, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	add(t, s, own, watch.Socket, func() {
		close(started)
		select {
		case <-asked:
			t.Error("Ask has returned while a callback ran")
		case <-time.After(100 * time.Millisecond):
		}
		close(done)
	})
	other.Close()
	await(t, started, "the callback")
	ask(t, s)
	close(asked)
	select {
	case <-done:
	default:
		t.Error("the callback has not finished")
	}
}

func TestARemovedWatchNeverFires(t *testing.T) {
	leavesNothing(t)
	s, another := newSet(t), newSet(t)
	own, other := pair(t)
	w := add(t, s, own, watch.Socket, func() { t.Error("it fired") })
	add(t, another, own, watch.Socket, func() {}) // so that the numbers are the same
	if another.Remove(w) {
		t.Error("another Set has removed it")
	}
	if !s.Remove(w) || s.Remove(w) {
		t.Error("Remove is true not exactly once")
	}
	other.Close()
	ask(t, s)
}

func TestADescriptorNumberUsedAgainDoesNotFireTheOldWatch(t *testing.T) {
	leavesNothing(t)
	s := newSet(t)
	for _, removeFirst := range []bool{true, false} {
		own, other := pair(t)
		w := add(t, s, own, watch.Socket, func() { t.Error("the old watch fired") })
		if removeFirst {
			s.Remove(w)
		}
		number := own.Fd()
		own.Close()
		other.Close()
		own, other = pair(t)
		if n := own.Fd(); n != number {
			t.Logf("the number is not used again: %d, %d", number, n)
		}
		fired := 0
		add(t, s, own, watch.Socket, func() { fired++ })
		if got := s.Remove(w); got == removeFirst {
			t.Errorf("Remove after the close is %v, want %v", got, !removeFirst)
		}
		ask(t, s)
		other.Close()
		ask(t, s)
		if fired != 1 {
			t.Errorf("the new watch fired %d times, want 1", fired)
		}
	}
}

func TestASocketKeptOpenElsewhereDoesNotFireOrSpinOnceItsOwnerHasClosedIt(t *testing.T) {
	leavesNothing(t)
	s := newSet(t)
	own, other := pair(t)
	var copied int
	raw(t, own).Control(func(fd uintptr) { copied, _ = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	defer unix.Close(copied)
	w := add(t, s, own, watch.Socket, func() { t.Error("it fired") })
	own.Close()
	if !s.Remove(w) {
		t.Error("Remove after the close is false")
	}
	other.Close()
	ask(t, s)
	before := cpuTime(t)
	ask(t, s)
	time.Sleep(50 * time.Millisecond) // what is measured is that nothing happens meanwhile
	if used := cpuTime(t) - before; used > 25*time.Millisecond {
		t.Errorf("%v of processor time were used in 50 ms", used)
	}
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func TestCallbacksMayAddAndRemove(t *testing.T) {
	leavesNothing(t)
	s := newSet(t)
	own, other := pair(t)
	next, nextOther := pair(t)
	third, _ := pair(t)
	gone := make(chan struct{})
	w := add(t, s, third, watch.Socket, func() { t.Error("the third fired") })
	add(t, s, own, watch.Socket, func() {
		s.Remove(w)
		add(t, s, next, watch.Socket, func() { close(gone) })
		nextOther.Close()
	})
	other.Close()
	await(t, gone, "the callback of the one added by a callback")
}

func TestWhatCannotBeWatchedIsRefused(t *testing.T) {
	leavesNothing(t)
	s := newSet(t)
	file, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	closed, _ := pair(t)
	closed.Close()
	twice, _ := pair(t)
	w := add(t, s, twice, watch.Socket, func() {})
	tables := []struct {
		name string
		conn *os.File
		kind watch.Kind
		want error
	}{
		{"regular file", file, watch.Socket, unix.EPERM},
		{"closed", closed, watch.Socket, nil},
		{"twice", twice, watch.Socket, unix.EEXIST},
		{"kind", file, watch.Kind(7), nil},
	}
	for _, tt := range tables {
		_, err := s.Add(raw(t, tt.conn), tt.kind, func() {})
		if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s: Add says %v, want %v", tt.name, err, tt.want)
		}
	}
	if s.Len() != 1 || !s.Remove(w) {
		t.Errorf("%d watches live, want the first one", s.Len())
	}
}

func TestNothingRunsAfterClose(t *testing.T) {
	leavesNothing(t)
	s := newSet(t)
	own, other := pair(t)
	started, finish := make(chan struct{}), make(chan struct{})
	var running atomic.Bool
	add(t, s, own, watch.Socket, func() {
		running.Store(true)
		close(started)
		<-finish
		running.Store(false)
	})
	late, lateOther := pair(t)
	w := add(t, s, late, watch.Socket, func() { t.Error("a callback ran after Close had begun") })
	other.Close()
	await(t, started, "the callback")
	closing := make(chan struct{})
	var closer sync.WaitGroup
	closer.Go(func() {
		close(closing)
		s.Close()
		if running.Load() {
			t.Error("Close has returned while a callback ran")
		}
	})
	await(t, closing, "the closer")
	for s.Len() > 0 {
		runtime.Gosched()
	}
	lateOther.Close()
	close(finish)
	closer.Wait()
	if err := s.Ask(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Ask says %v, want os.ErrClosed", err)
	}
	if _, err := s.Add(raw(t, late), watch.Socket, func() {}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Add says %v, want os.ErrClosed", err)
	}
	if s.Remove(w) {
		t.Error("Remove is true after Close")
	}
	if err := s.Close(); err != nil {
		t.Errorf("the second Close says %v", err)
	}
}

func TestEachOfManySocketsFiresExactlyOnceWhileAllIsAsked(t *testing.T) {
	leavesNothing(t)
	s := newSet(t)
	const workers, rounds = 4, 200
	var expected, fired atomic.Int64
	var work sync.WaitGroup
	for range workers {
		work.Go(func() {
			for i := range rounds {
				own, other := pair(t)
				w := add(t, s, own, watch.Socket, func() { fired.Add(1) })
				other.Close()
				if i%3 != 0 || !s.Remove(w) {
					expected.Add(1)
				}
				ask(t, s)
				own.Close()
			}
		})
	}
	work.Wait()
	ask(t, s)
	if fired.Load() != expected.Load() || s.Len() != 0 {
		t.Errorf("%d callbacks ran, %d watches live; want %d and 0", fired.Load(), s.Len(), expected.Load())
	}
}
