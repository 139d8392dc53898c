package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
)

// trappedCalls are the system calls by which the files of a record are changed.
var trappedCalls = []uint32{unix.SYS_OPENAT, unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_FTRUNCATE, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_UNLINKAT, unix.SYS_MKDIRAT}

// layTrap has this process wait at the entry to each of the trapped calls until whoever has the listener lets it go on: seccomp_unotify(2). The listener is one of
// its descriptors.
func layTrap() error {
	const allow = 0x7fff0000 // SECCOMP_RET_ALLOW
	n := len(trappedCalls)
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the call's number
	for i, nr := range trappedCalls {
		program = append(program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: uint8(n - i), K: nr})
	}
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: allow}, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return errno
	}
	return nil
}

// A notification is struct seccomp_notif of linux/seccomp.h, and a response what answers it.
type notification struct {
	id    uint64
	pid   uint32
	flags uint32
	nr    int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

type response struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

// A trap lets a service go on until it is about to change its state for the n-th time after it was armed, and then kills it.
type trap struct {
	child *child
	state string // the folder
	fd    int
	armed atomic.Bool
	left  int           // changes until it is killed
	over  chan struct{} // closed when the service is gone
}

// trapped starts a service in a trap that is armed, or not yet.
func trapped(t *testing.T, n int, armed bool, path, state, text string) *trap {
	t.Helper()
	tr := &trap{child: launch(t, nil, "trapped", path, state, text), state: state, left: n, over: make(chan struct{})}
	tr.armed.Store(armed)
	until(t, "the trap is laid", func() bool { return tr.attach() })
	go tr.watch()
	t.Cleanup(func() {
		tr.child.kill()
		<-tr.over
		unix.Close(tr.fd)
	})
	return tr
}

// attach takes the listener.
func (tr *trap) attach() bool {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", tr.child.pid()))
	for _, link := range links {
		if to, _ := os.Readlink(link); to != "anon_inode:seccomp notify" {
			continue
		}
		var number int
		fmt.Sscan(filepath.Base(link), &number)
		pidfd, err := unix.PidfdOpen(tr.child.pid(), 0)
		if err != nil {
			return false
		}
		defer unix.Close(pidfd)
		tr.fd, err = unix.PidfdGetfd(pidfd, number, 0)
		return err == nil
	}
	return false
}

// watch answers until the service is gone.
func (tr *trap) watch() {
	defer close(tr.over)
	for {
		poll := []unix.PollFd{{Fd: int32(tr.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			if poll[0].Revents != 0 {
				return
			}
			continue
		}
		var n notification
		if tr.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)) != nil {
			continue // the thread is gone
		}
		if tr.armed.Load() && tr.changes(n) {
			if tr.left--; tr.left == 0 {
				tr.child.cmd.Process.Kill()
				continue
			}
		}
		r := response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		tr.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
	}
}

func (tr *trap) ioctl(request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(tr.fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// changes reports whether a call is about the service's state.
func (tr *trap) changes(n notification) bool {
	switch n.nr {
	case unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_FTRUNCATE:
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", n.pid, n.args[0]))
		return err == nil && strings.HasPrefix(to, tr.state)
	}
	path := make([]byte, 256)
	read, err := unix.ProcessVMReadv(int(n.pid), []unix.Iovec{{Base: &path[0], Len: uint64(len(path))}}, []unix.RemoteIovec{{Base: uintptr(n.args[1]), Len: len(path)}}, 0)
	if err != nil && read <= 0 { // the end of a page
		path = path[:1]
	}
	name, _, _ := bytes.Cut(path, []byte{0})
	return bytes.HasPrefix(name, []byte(tr.state)) || err != nil
}

// killed reports whether the service was killed in the trap.
func (tr *trap) killed() bool { return tr.left <= 0 }

func TestKilledAtAnyChangeOfItsStateAServiceStartsAndGivesNothingOutThatIsHeld(t *testing.T) {
	leavesNothing(t)
	const prefix = "10.9.0.0/29" // 5 addresses
	old := crashed(t, prefix)
	n, kills := 1, 0
	for ; ; n++ { // the same state, over and over
		dir := folder(t)
		tr := trapped(t, n, true, dir+"/s", old.dir, "default="+prefix)
		line, _ := tr.child.stdout.ReadString('\n')
		if strings.HasPrefix(line, "ready <nil>") {
			tr.child.kill()
			<-tr.over
			break
		}
		<-tr.over
		if !tr.killed() {
			t.Fatalf("it says %q", line)
		}
		kills++
	}
	heldAfterAll(t, old.dir, prefix, "10.9.0.2")
	if kills < 4 {
		t.Errorf("it was killed %d times: a start changes more than that", kills)
	}
	old.holder.kill()
	heldAfterAll(t, old.dir, prefix)
}

// heldAfterAll starts a service on a state, and checks that it gives out all addresses but some.
func heldAfterAll(t *testing.T, state, prefix string, held ...string) {
	t.Helper()
	s, err := listen(filepath.Join(folder(t), "s"), server.Config{Networks: networks(t, "default="+prefix), StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	defer s.end()
	c := open(t, s.path)
	defer c.Close()
	for range 5 - len(held) {
		if l := allocate(t, c, network.Request{}); slices.Contains(held, l.Addresses[0].Addr().String()) {
			t.Errorf("%v is given out, and is held", l.Addresses)
		}
	}
}

func TestKilledAtAnyChangeOfItsStateAServiceLosesNoLease(t *testing.T) {
	leavesNothing(t)
	const prefix = "10.9.0.0/29"
	kills := 0
	for n := 1; ; n++ {
		dir := folder(t)
		tr := trapped(t, n, false, dir+"/s", dir+"/state", "default="+prefix)
		if line, _ := tr.child.stdout.ReadString('\n'); !strings.HasPrefix(line, "ready <nil>") {
			t.Fatalf("it says %q", line)
		}
		first, second := run(t, "holder", dir+"/s"), run(t, "holder", dir+"/s")
		a := first.allocate(order{Hostname: "a"})
		tr.armed.Store(true)
		b := second.order(order{Do: "allocate", Hostname: "b"})
		released := first.order(order{Do: "release", Lease: a.Lease})
		c := first.order(order{Do: "allocate", Hostname: "c", Witness: first.linger("linger").PID()})
		tr.child.kill()
		<-tr.over
		var held []string
		if released.Error != nil && !released.Error.Sent { // the release never left
			held = append(held, a.Address.Addr().String())
		}
		for _, got := range []answer{b, c} {
			if got.Error == nil {
				held = append(held, got.Address.Addr().String())
			}
		}
		checkHeld(t, dir+"/state", prefix, held)
		first.end()
		second.end()
		heldAfterAll(t, dir+"/state", prefix)
		if !tr.killed() {
			break
		}
		kills++
	}
	if kills < 4 {
		t.Errorf("it was killed %d times: two leases and a release change more than that", kills)
	}
}

// checkHeld starts a service on a state whose holders live, and checks that it gives out none of their addresses.
func checkHeld(t *testing.T, state, prefix string, held []string) {
	t.Helper()
	s, err := listen(filepath.Join(folder(t), "s"), server.Config{Networks: networks(t, "default="+prefix), StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	defer s.end()
	c := open(t, s.path)
	defer c.Close()
	for range info(t, c).Free {
		l := allocate(t, c, network.Request{Preferred: addrs(held[:min(1, len(held))]...)})
		if slices.Contains(held, l.Addresses[0].Addr().String()) {
			t.Errorf("%v is given out, and is held", l.Addresses)
		}
	}
}
