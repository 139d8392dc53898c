package server_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// A descriptor is something that may pass for a witness.
type descriptor struct {
	name string
	open func() (int, error)
	code wire.Code
	says string
}

// wrongDescriptors are all kinds of what is no witness of this process's.
func wrongDescriptors(gone *os.File) []descriptor {
	path := func(path string, flags int) func() (int, error) {
		return func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) }
	}
	of := func(pid int) func() (int, error) {
		return func() (int, error) { return unix.PidfdOpen(pid, 0) }
	}
	const none = "not the pidfd of a process"
	return []descriptor{
		{"the client itself", of(os.Getpid()), wire.NotPermitted, "no descendant"},
		{"its parent", of(os.Getppid()), wire.NotPermitted, "no descendant"},
		{"process 1", of(1), wire.NotPermitted, "no descendant"},
		{"one that is gone", func() (int, error) { return unix.FcntlInt(gone.Fd(), unix.F_DUPFD_CLOEXEC, 0) }, wire.NotFound, "has exited"},
		{"a thread", func() (int, error) { return unix.PidfdOpen(unix.Gettid(), unix.PIDFD_THREAD) }, wire.Malformed, none + " but that of a thread"},
		{"an eventfd", func() (int, error) { return unix.Eventfd(0, unix.EFD_CLOEXEC) }, wire.Malformed, none + ": its kind is eventfd"},
		{"an epoll set", func() (int, error) { return unix.EpollCreate1(unix.EPOLL_CLOEXEC) }, wire.Malformed, none + ": its kind is eventpoll"},
		{"a device", path("/dev/null", unix.O_RDWR), wire.Malformed, none + ": its kind is file or folder"},
		{"a path", path("/dev/null", unix.O_PATH), wire.Malformed, none + ": its kind is file or folder"},
		{"memory", func() (int, error) { return unix.MemfdCreate("x", unix.MFD_CLOEXEC) }, wire.Malformed, none + ": its kind is file or folder"},
		{"a folder of a process", path("/proc/self", unix.O_DIRECTORY), wire.Malformed, none + ": its kind is file or folder"},
		{"the network namespace of the service", path("/proc/self/ns/net", unix.O_RDONLY), wire.NotPermitted, "keep the lease for ever"},
		{"another namespace", path("/proc/self/ns/mnt", unix.O_RDONLY), wire.Malformed, none + ": its kind is mnt namespace"},
		{"a socket", func() (int, error) { return unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) }, wire.Malformed, none + ": its kind is socket"},
	}
}

func TestOnlyThePidfdOfALivingDescendantIsAWitness(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24")})
	c := open(t, s.path)
	l := allocate(t, c, network.Request{})
	dead, sibling, child := run(t, "holder", s.path), run(t, "holder", s.path), run(t, "holder", s.path)
	gone, outside := dead.pidfd(), sibling.pidfd()
	dead.kill()
	exited := pidfd(t, child.linger("linger").PID())
	child.lingers[0].Signal(syscall.SIGKILL) // a zombie: nobody waits for it
	until(t, "it has exited", child.lingers[0].Gone)
	child.allocate(order{}) // from then on the service watches it

	before := countDescriptors(t)
	for _, test := range wrongDescriptors(gone) {
		refuses(t, c, l, test)
	}
	dup := func(of *os.File) func() (int, error) {
		return func() (int, error) { return unix.FcntlInt(of.Fd(), unix.F_DUPFD_CLOEXEC, 0) }
	}
	refuses(t, c, l, descriptor{"a zombie", dup(exited), wire.NotFound, "has exited"})
	e := child.order(order{Do: "allocate", Witness: sibling.pid()}).Error
	if want := fmt.Sprintf("witness %d is no descendant of process %d", sibling.pid(), child.pid()); e == nil || e.Code != wire.NotPermitted || !strings.Contains(e.Text, want) {
		t.Errorf("a process beside the client: %v, want %q", e, want)
	}
	if err := l.AddWitness(within(t, patience), outside); err != nil {
		t.Errorf("the session is not whole after all that: %v", err)
	}
	until(t, fmt.Sprintf("there are no more descriptors than the %d before, and the one witness", before), func() bool { return countDescriptors(t) == before+1 })
	if leases := list(t, c); len(leases) != 2 {
		t.Errorf("there is %+v, want those without a witness", leases)
	}
}

// refuses checks that a service does not take a witness, neither at allocate nor later.
func refuses(t *testing.T, c *session.Session, l *network.Lease, d descriptor) {
	t.Helper()
	fd, err := d.open()
	if errors.Is(err, unix.EINVAL) {
		return // the kernel has no such descriptor
	}
	if err != nil {
		t.Fatalf("%s: %v", d.name, err)
	}
	file := os.NewFile(uintptr(fd), d.name)
	defer file.Close()
	_, allocErr := network.Allocate(within(t, patience), c, network.Request{Hostname: "x", Witness: file})
	for how, err := range map[string]error{"allocate": allocErr, "witness": l.AddWitness(within(t, patience), file)} {
		if !errors.Is(err, d.code) || !strings.Contains(err.Error(), d.says) {
			t.Errorf("%s, %s: %v, want %v and %q", how, d.name, err, d.code, d.says)
		}
	}
	if _, err := unix.FcntlInt(file.Fd(), unix.F_GETFD, 0); err != nil {
		t.Errorf("%s is not the caller's any more: %v", d.name, err)
	}
}

func TestNothingThatIsNamedByItsNumberIsAWitness(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24")})
	c := open(t, s.path)
	l := allocate(t, c, network.Request{})
	helper := run(t, "holder", s.path)
	for _, pid := range []int{-1, 0, 3, helper.pid()} {
		for _, request := range []struct {
			method string
			value  map[string]any
		}{
			{network.MethodAllocate, map[string]any{"h": "x", "w": pid}},
			{network.MethodWitness, map[string]any{"l": l.ID, "w": pid}},
			{network.MethodWitness, map[string]any{"l": l.ID, "p": pid}},
			{network.MethodWitness, map[string]any{"l": l.ID}},
		} {
			if err := c.Call(within(t, patience), request.method, request.value, nil); !errors.Is(err, wire.Malformed) {
				t.Errorf("%s %v: %v, want malformed", request.method, request.value, err)
			}
		}
	}
	if err := l.AddWitness(within(t, patience), nil); !errors.Is(err, wire.Malformed) {
		t.Errorf("no witness at all: %v", err)
	}
	if err := l.Release(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	if leases := list(t, c); len(leases) > 0 {
		t.Errorf("there is %+v", leases)
	}
}

func TestASessionWithoutALaneCarriesNoWitnessAndSaysWhatToDo(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24")})
	c := withoutLane(t, s)
	helper := run(t, "holder", s.path)
	witness := helper.pidfd()
	l := allocate(t, c, network.Request{})
	_, err := network.Allocate(within(t, patience), c, network.Request{Witness: witness})
	for how, err := range map[string]error{"allocate": err, "witness": l.AddWitness(within(t, patience), witness)} {
		if !errors.Is(err, wire.Unsupported) || !strings.Contains(err.Error(), "FAIRLEAD_LANE") {
			t.Errorf("%s: %v, want unsupported and what to do", how, err)
		}
	}
	if leases := list(t, c); len(leases) != 1 {
		t.Errorf("there is %+v, want the one without a witness", leases)
	}
}

// withoutLane opens a session without a lane.
func withoutLane(t *testing.T, s *service) *session.Session {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*session.Session
	for i, c := range []session.Config{{Endpoint: network.Endpoint, Opener: true}, {Endpoint: network.Endpoint, Handler: s.Mux()}} {
		file := os.NewFile(uintptr(fds[i]), "session")
		var conn *net.UnixConn
		if conn, err = socket.FromFile(file); err == nil {
			ends[i], err = session.New(conn, c)
		}
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, end := range ends {
			end.Close()
			end.Wait()
		}
	})
	return ends[0]
}

func TestAServiceThatHasNoDescriptorLeftSaysSoAndGoesOn(t *testing.T) {
	leavesNothing(t)
	dir := folder(t)
	service := run(t, "service", dir+"/s", dir+"/state", "default=10.9.0.0/24")
	c := open(t, dir+"/s")
	l := allocate(t, c, network.Request{})
	witness := service.pidfd()
	var before unix.Rlimit
	if err := unix.Prlimit(service.pid(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: 1024}, &before); err != nil {
		t.Fatal(err)
	}
	if err := l.AddWitness(within(t, patience), witness); !errors.Is(err, wire.OverQuota) {
		t.Errorf("it says %v, want over_quota", err)
	}
	if err := unix.Prlimit(service.pid(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1024, Max: 1024}, nil); err != nil {
		t.Fatal(err)
	}
	if err := l.AddWitness(within(t, patience), witness); err != nil {
		t.Errorf("with descriptors again: %v", err)
	}
}
