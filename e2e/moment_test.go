package e2e_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services/network"
)

func TestAClientKilledAtAnySystemCallOfItsAllocateLeavesNoLease(t *testing.T) {
	w := newWorld(t, one)
	w.startBroker()
	next := w.dial(network.Endpoint)
	step := count(3, 1)
	for n := 1; ; n += step {
		v, err := w.trace(n)
		if errors.Is(err, unix.EPERM) {
			t.Skipf("tracing is not permitted here (%v): the test of moments in time stands alone", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		w.checkNothingIsHeld(next, fmt.Sprintf("killed at stop %d, system call %d", n, v.call))
		if v.completed {
			t.Logf("the client was killed at %d points of %d: at the entry to and the return from its system calls", n/step, n)
			return
		}
	}
}

func TestAClientKilledAtAnyMomentOfItsAllocateLeavesNoLease(t *testing.T) {
	w := newWorld(t, one)
	w.startBroker()
	next := w.dial(network.Endpoint)
	const span = 30 * time.Millisecond
	kills, completed := count(30, 300), 0
	for i := range kills {
		v := w.holder(1, "default", "")
		v.opened(t)
		v.say(t, "allocate")
		time.Sleep(time.Duration(float64(span) * math.Pow(float64(i)/float64(kills), 3))) // dense where the allocate is
		v.kill()
		if v.stdout.whole(t) != "open" {
			completed++
		}
		w.checkNothingIsHeld(next, fmt.Sprintf("kill %d", i))
	}
	t.Logf("%d of %d clients had their lease when they were killed", completed, kills)
	if completed == kills {
		t.Error("no client was killed before it had its lease")
	}
}

// checkNothingIsHeld checks that the one address can be leased at once, and that no other lease is left.
func (w *world) checkNothingIsHeld(next *client.Session, after string) {
	w.t.Helper()
	lease, err := network.Allocate(within(w.t, patience), next, network.Request{})
	if err != nil {
		w.t.Fatalf("%s: the next allocate: %v", after, err)
	}
	all, err := network.List(w.t.Context(), next, network.ListRequest{})
	if err != nil || len(all) != 1 || all[0].ID != lease.ID {
		w.t.Fatalf("%s: leases %+v, want the next one only: %v", after, all, err)
	}
	if err := lease.Release(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// A traced victim was killed at one of its stops, or had its lease before.
type traced struct {
	completed bool
	call      uint64 // the system call at whose stop it was killed
}

// trace starts a victim, and kills it at its n-th stop after it began to open its session. It stops at the entry to and at the return from each system
// call of any of its threads, see ptrace(2).
func (w *world) trace(n int) (traced, error) {
	runtime.LockOSThread() // a tracer is a thread
	defer runtime.UnlockOSThread()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return traced{}, err
	}
	defer null.Close()
	fd := null.Fd()
	pid, err := syscall.ForkExec(self(), []string{self()}, &syscall.ProcAttr{
		Env: append(w.environ(), roleVariable+"=victim"), Files: []uintptr{fd, fd, os.Stderr.Fd()},
		Sys: &syscall.SysProcAttr{Ptrace: true, Setpgid: true},
	})
	if err != nil {
		return traced{}, err
	}
	v := tracer{pid: pid, target: n}
	err = v.follow()
	syscall.Kill(pid, syscall.SIGKILL)
	for err == nil && !v.gone {
		_, err = v.wait()
	}
	return v.result, err
}

// A tracer follows one victim.
type tracer struct {
	pid    int
	target int // the stop at which it is killed
	begun  bool
	stops  int
	gone   bool
	result traced
}

// follow lets the victim run until it is to be killed.
func (v *tracer) follow() error {
	const exitKill = 0x100000 // PTRACE_O_EXITKILL
	if _, err := v.wait(); err != nil {
		return err
	}
	if err := unix.PtraceSetOptions(v.pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|exitKill); err != nil {
		return err
	}
	for thread := v.pid; ; {
		if err := unix.PtraceSyscall(thread, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		s, err := v.wait()
		if err != nil {
			return err
		}
		if v.gone {
			return fmt.Errorf("the victim ended by itself: %#x", s.status)
		}
		thread = s.thread
		if s.status.StopSignal() == unix.SIGTRAP|0x80 {
			if over, err := v.stopped(thread); over || err != nil {
				return err
			}
		}
	}
}

type stop struct {
	thread int
	status unix.WaitStatus
}

// wait returns the next stop of any thread of the victim. All are in its process group, and nobody else is.
func (v *tracer) wait() (stop, error) {
	for {
		var s stop
		var err error
		s.thread, err = unix.Wait4(-v.pid, &s.status, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return s, fmt.Errorf("wait for the victim: %w", err)
		case s.thread == v.pid && !s.status.Stopped():
			v.gone = true
			return s, nil
		case !s.status.Stopped(): // another thread's end
		case s.status.StopSignal() != unix.SIGURG:
			return s, nil
		default: // the Go runtime's own
			if err := unix.PtraceSyscall(s.thread, int(unix.SIGURG)); err != nil && !errors.Is(err, unix.ESRCH) {
				return s, err
			}
		}
	}
}

// A callInfo is what PTRACE_GET_SYSCALL_INFO says of a stop: the beginning of struct ptrace_syscall_info of linux/ptrace.h.
type callInfo struct {
	op   uint8
	_    [3]uint8
	arch uint32
	_    [2]uint64
	nr   uint64 // at an entry, as args is
	args [6]uint64
}

// stopped takes a stop at a system call, and reports whether it is the last one.
func (v *tracer) stopped(thread int) (over bool, err error) {
	const getSyscallInfo = 0x420e
	var info callInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(thread), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		return false, fmt.Errorf("ask for the system call of a stop: %w", errno)
	}
	const entry = 1
	if info.op == entry {
		v.result.call = info.nr
		if info.nr == unix.SYS_PRCTL && info.args[0] == markOption {
			v.begun = true
			v.result.completed = info.args[1] == markEnd
			return v.result.completed, nil
		}
	}
	if v.begun {
		v.stops++
	}
	return v.begun && v.stops == v.target, nil
}
