package watch_test

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/watch"
)

// patience is how long an event may take.
const patience = 10 * time.Second

func TestMain(m *testing.M) {
	// The runtime opens what it keeps open, so that tests can count descriptors.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	os.Exit(m.Run())
}

func leavesNothing(t testing.TB) {
	t.Helper()
	descriptors, goroutines := countDescriptors(t), runtime.NumGoroutine()
	t.Cleanup(func() {
		for deadline := time.Now().Add(patience); ; runtime.Gosched() {
			d, g := countDescriptors(t), runtime.NumGoroutine()
			if d <= descriptors && g <= goroutines {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("%d descriptors and %d goroutines are left", d-descriptors, g-goroutines)
				return
			}
		}
	})
}

func countDescriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func newSet(t testing.TB) *watch.Set {
	t.Helper()
	s, err := watch.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// pair returns the ends of a new socket pair, which are closed at the end of the test.
func pair(t testing.TB) (own, other *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	own, other = os.NewFile(uintptr(fds[0]), "own"), os.NewFile(uintptr(fds[1]), "other")
	t.Cleanup(func() {
		own.Close()
		other.Close()
	})
	return own, other
}

func raw(t testing.TB, file *os.File) syscall.RawConn {
	t.Helper()
	conn, err := file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func add(t testing.TB, s *watch.Set, file *os.File, kind watch.Kind, gone func()) *watch.Watch {
	t.Helper()
	w, err := s.Add(raw(t, file), kind, gone)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func ask(t testing.TB, s *watch.Set) {
	t.Helper()
	if err := s.Ask(); err != nil {
		t.Fatal(err)
	}
}

func await(t testing.TB, event <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-event:
	case <-time.After(patience):
		t.Fatalf("%s has not come", what)
	}
}

// startChild starts a process that ends when its input does, and returns it with its pidfd.
func startChild(t testing.TB) (*exec.Cmd, *os.File) {
	t.Helper()
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	t.Cleanup(func() { pidfd.Close() })
	return cmd, pidfd
}
