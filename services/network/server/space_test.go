package server_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/netns"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/wire"
)

// needsSpaces skips a test for what only root can do.
func needsSpaces(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root makes network namespaces, and numbers them")
	}
}

// inside starts a process in a network namespace of its own, and returns that namespace, opened. The process has a session with the service at a path, whose
// end of it keeps the namespace until the service has closed it; without a path it has none.
func inside(t *testing.T, path string) (c *child, file *os.File) {
	t.Helper()
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if path == "" {
		c = launch(t, attr, "linger")
	} else {
		c = runIn(t, attr, "holder", path)
	}
	file, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", c.pid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return c, file
}

// leaveTo has a process allocate with a witness, which is closed here, and end.
func leaveTo(t *testing.T, path, hostname string, witness *os.File) {
	t.Helper()
	holder := run(t, "holder", path)
	holder.allocate(order{Hostname: hostname, Space: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), witness.Fd())})
	witness.Close()
	holder.end()
}

// heldCount returns how many addresses are held, without the service asking for namespaces.
func heldCount(t *testing.T, c *client.Session) uint64 {
	t.Helper()
	all, err := network.Networks(within(t, patience), c)
	if err != nil {
		t.Fatal(err)
	}
	return all[0].Held
}

// spacesOf returns the descriptors of a process that keep a network namespace alive.
func spacesOf(t *testing.T, pid int) (found []string) {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name())); err == nil && strings.HasPrefix(target, "net:[") {
			found = append(found, target)
		}
	}
	return found
}

func TestALeaseEndsWithItsNetworkNamespace(t *testing.T) {
	needsSpaces(t)
	leavesNothing(t)
	s := newCrashing(t, "default=10.9.0.0/24")
	c := open(t, s.path())
	var most time.Duration
	for range 5 {
		in, file := inside(t, s.path())
		id, err := netns.Identify(file)
		if err != nil {
			t.Fatal(err)
		}
		leaveTo(t, s.path(), "web", file)
		until(t, "its session is over", func() bool { l := list(t, c); return len(l) == 1 && l[0].State == network.StateDying })
		if l := list(t, c)[0]; len(l.Witnesses) != 1 || l.Witnesses[0].Namespace != id.Inode {
			t.Fatalf("it hangs on %+v, want namespace %d", l.Witnesses, id.Inode)
		}
		if held := spacesOf(t, s.now.pid()); len(held) > 0 {
			t.Errorf("the service holds on to %v", held)
		}
		begun := time.Now()
		in.kill()
		until(t, "the lease is over", func() bool { return heldCount(t, c) == 0 })
		most = max(most, time.Since(begun))
	}
	t.Logf("released at most %v after the SIGKILL of the last process", most)
	if most > 5*time.Second { // some 10 ms on a machine that has nothing else to do
		t.Errorf("it took %v", most)
	}
}

func TestAPinnedNetworkNamespaceKeepsItsLeaseUntilItIsUnmounted(t *testing.T) {
	needsSpaces(t)
	leavesNothing(t)
	s := newCrashing(t, "default=10.9.0.0/24")
	in, file := inside(t, s.path())
	path := s.dir + "/pin"
	pin(t, fmt.Sprintf("/proc/%d/ns/net", in.pid()), path)
	leaveTo(t, s.path(), "web", file)
	in.kill()
	s.crash() // by the next instance it is known, too
	c := open(t, s.path())
	if leases := list(t, c); len(leases) != 1 || len(leases[0].Witnesses) == 0 {
		t.Fatalf("it is mounted, and there is %+v", leases)
	}
	begun := time.Now()
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	until(t, "the lease is over", func() bool { return len(list(t, c)) == 0 })
	t.Logf("released %v after the unmount", time.Since(begun))
}

func TestANamespaceThatEndsWhileNobodyListensEndsItsLease(t *testing.T) {
	needsSpaces(t)
	leavesNothing(t)
	s := newCrashing(t, "default=10.9.0.0/24")
	gone, file := inside(t, s.path())
	leaveTo(t, s.path(), "gone", file)
	lives, file := inside(t, s.path())
	leaveTo(t, s.path(), "lives", file)
	until(t, "both hang on their witnesses", func() bool {
		l := list(t, open(t, s.path()))
		return len(l) == 2 && l[0].State == network.StateDying && l[1].State == network.StateDying
	})
	s.now.kill()
	gone.kill()
	s.crash()
	c := open(t, s.path())
	until(t, "the kernel has let go of it", func() bool { return len(list(t, c)) == 1 })
	if leases := list(t, c); leases[0].Hostname != "lives" {
		t.Errorf("what is left is %+v", leases)
	}
	lives.kill()
	until(t, "the other one is over, too", func() bool { return heldCount(t, c)+uint64(len(list(t, c))) == 0 })
}

// number gives a namespace a number, as the kernel gives one to each that a link leads to: see rtnetlink(7).
func number(t *testing.T, file *os.File, nsid uint32) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	message := make([]byte, unix.SizeofNlMsghdr+4, 64)
	native := binary.NativeEndian
	native.PutUint16(message[4:], unix.RTM_NEWNSID)
	native.PutUint16(message[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	for kind, value := range map[uint16]uint32{unix.NETNSA_FD: uint32(file.Fd()), unix.NETNSA_NSID: nsid} {
		message = native.AppendUint16(message, unix.SizeofRtAttr+4)
		message = native.AppendUint32(native.AppendUint16(message, kind), value)
	}
	native.PutUint32(message, uint32(len(message)))
	answer := make([]byte, 4096)
	until(t, "the number is given", func() bool { // it may still be that of one which is just going
		err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if err == nil {
			_, _, err = unix.Recvfrom(fd, answer, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		return native.Uint32(answer[unix.SizeofNlMsghdr:]) == 0
	})
}

func TestANumberThatAnotherNamespaceHasGotSinceKeepsNoLease(t *testing.T) {
	needsSpaces(t)
	low := 1<<20 + rand.Uint32N(1<<29) // as the kernel's own, but nobody else's
	for _, test := range []struct {
		name      string
		meanwhile func(t *testing.T, s *crashing, change func())
		mounted   bool // the other one, and no process is in it
	}{
		{"while no instance runs", func(t *testing.T, s *crashing, change func()) { s.now.kill(); change(); s.crash() }, false},
		{"while no instance runs, and is mounted", func(t *testing.T, s *crashing, change func()) { s.now.kill(); change(); s.crash() }, true},
		{"before what the kernel tells is read", func(t *testing.T, s *crashing, change func()) {
			s.now.cmd.Process.Signal(syscall.SIGSTOP)
			if err := unix.Waitid(unix.P_PID, s.now.pid(), nil, unix.WSTOPPED|unix.WNOWAIT, nil); err != nil {
				t.Fatal(err)
			}
			change()
			s.now.cmd.Process.Signal(syscall.SIGCONT)
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			leavesNothing(t)
			s := newCrashing(t, "default=10.9.0.0/24")
			in, file := inside(t, "")
			number(t, file, low)
			kept := netns.Unique(file)
			leaveTo(t, s.path(), "web", file)
			var other *child
			test.meanwhile(t, s, func() {
				in.kill()
				until(t, "the number is free", func() bool { exists, err := netns.Exists(int32(low)); return !exists && err == nil })
				var file *os.File
				other, file = inside(t, "")
				number(t, file, low)
				if kept == 0 || kept == netns.Unique(file) {
					t.Skip("this kernel has no unique numbers of namespaces, and the other one may have the same inode")
				}
				if test.mounted {
					pin(t, fmt.Sprintf("/proc/%d/ns/net", other.pid()), s.dir+"/pin")
					other.kill()
				}
				file.Close()
			})
			c := open(t, s.path())
			until(t, "the lease is over", func() bool { return heldCount(t, c)+uint64(len(list(t, c))) == 0 })
			if exists, err := netns.Exists(int32(low)); !exists || err != nil {
				t.Errorf("the other one has gone meanwhile: %v, %v", exists, err)
			}
		})
	}
}

// The guard is same in keeper.go. The kernel gives an inode again at once, and tells the end of who had it some time later.
func TestANamespaceWithTheInodeOfOneThatIsGoneIsAnotherWitness(t *testing.T) {
	one := server.Space{ID: netns.ID{Inode: 4026532000, Dev: 4}, Unique: 11, Number: netns.FirstOwn + 1, Home: netns.ID{Inode: 4026531840, Dev: 4}}
	if !server.SameWitness(one, one) {
		t.Error("a namespace is not itself")
	}
	for name, change := range map[string]func(other *server.Space){
		"another unique number": func(other *server.Space) { other.Unique++ },
		"another nsid":          func(other *server.Space) { other.Number++ },
		"another inode":         func(other *server.Space) { other.Inode++ },
	} {
		other := one
		change(&other)
		if server.SameWitness(one, other) {
			t.Errorf("%s: it counts as the same", name)
		}
	}
}

func TestANamespaceThatTheKernelHasNumberedKeepsItsLeaseOverARestart(t *testing.T) {
	needsSpaces(t)
	leavesNothing(t)
	s := newCrashing(t, "default=10.9.0.0/24")
	in, file := inside(t, "")
	number(t, file, 1<<20+rand.Uint32N(1<<29))
	leaveTo(t, s.path(), "web", file)
	s.crash()
	c := open(t, s.path())
	if leases := list(t, c); len(leases) != 1 || len(leases[0].Witnesses) == 0 {
		t.Errorf("it lives, and there is %+v", leases)
	}
	in.kill()
	until(t, "the lease is over", func() bool { return len(list(t, c)) == 0 })
}

// pin mounts a namespace at a path until the test ends, or skips the test where that cannot be.
func pin(t *testing.T, namespace, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(namespace, path, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("a namespace cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
}

func TestNewsOfNamespacesThatAreLostAreAskedFor(t *testing.T) {
	needsSpaces(t)
	leavesNothing(t)
	s := newCrashing(t, "default=10.9.0.0/24")
	in, file := inside(t, "")
	leaveTo(t, s.path(), "web", file)
	c := open(t, s.path())
	until(t, "it hangs on its witness", func() bool { return list(t, c)[0].State == network.StateDying })
	s.now.cmd.Process.Signal(syscall.SIGSTOP)
	if err := unix.Waitid(unix.P_PID, s.now.pid(), nil, unix.WSTOPPED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	fill(t, s.now.pid())
	in.kill()
	until(t, "what the kernel tells is lost", func() bool { _, drops := listener(t, s.now.pid()); return drops > 0 })
	s.now.cmd.Process.Signal(syscall.SIGCONT)
	until(t, "the lease is over", func() bool { return heldCount(t, c) == 0 })
}

// listener returns the port of the socket by which a process hears of namespaces, and how many messages were lost to it. See /proc/net/netlink.
func listener(t *testing.T, pid int) (port, drops int) {
	t.Helper()
	text, err := os.ReadFile("/proc/net/netlink")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) >= 10 && f[3] == "08000000" && hasSocket(pid, f[9]) {
			port, _ = strconv.Atoi(f[2])
			drops, _ = strconv.Atoi(f[8])
			return port, drops
		}
	}
	t.Fatalf("process %d listens to no namespaces:\n%s", pid, text)
	return 0, 0
}

// fill sends the socket by which a process hears of namespaces as much as it can hold.
func fill(t *testing.T, pid int) {
	t.Helper()
	port, _ := listener(t, pid)
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, size := range []int{4096, 16} {
		for err == nil {
			err = unix.Sendto(fd, make([]byte, size), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: uint32(port)})
		}
		if err != unix.EAGAIN {
			t.Fatal(err)
		}
		err = nil
	}
}

// hasSocket reports whether a process has the socket of an inode.
func hasSocket(pid int, inode string) bool {
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name()))
		return target == "socket:["+inode+"]"
	})
}

func TestWhoseNamespaceMayBeAWitness(t *testing.T) {
	needsSpaces(t)
	leavesNothing(t)
	s := newCrashing(t, "default=10.9.0.0/24")
	for _, path := range []string{s.dir, s.path()} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	strange, _ := inside(t, s.path())
	foreign := fmt.Sprintf("/proc/%d/ns/net", strange.pid())
	root, user := run(t, "holder", s.path()), runAs(t, 65532, "holder", s.path())
	owned := user.order(order{Do: "linger", Flags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET}).PID
	own := fmt.Sprintf("/proc/%d/ns/net", owned)
	for _, test := range []struct {
		what string
		by   *child
		path string
		want error
	}{
		{"root, its own, which is the service's", root, "/proc/self/ns/net", wire.NotPermitted},
		{"root, another's", root, foreign, nil},
		{"a user, the host's", user, "/proc/self/ns/net", wire.NotPermitted},
		{"a user, its own", user, own, nil},
		{"another namespace", root, "/proc/self/ns/mnt", wire.Malformed},
	} {
		a := test.by.order(order{Do: "allocate", Space: test.path})
		var err error
		if a.Error != nil {
			err = a.Error
		}
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.what, err, test.want)
		}
	}
	// A user may open what root has made, and mounted for all to read.
	path := s.dir + "/pin"
	pin(t, foreign, path)
	if a := user.order(order{Do: "allocate", Space: path}); a.Error == nil || a.Error.Code != wire.NotPermitted {
		t.Errorf("a user, root's: %v", a.Error)
	}
	if held := spacesOf(t, s.now.pid()); len(held) > 0 {
		t.Errorf("the service holds on to %v", held)
	}
}

func TestAServiceThatMayNotNumberNamespacesSaysSo(t *testing.T) {
	needsSpaces(t)
	leavesNothing(t)
	dir := folder(t)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	runAs(t, 65531, "service", dir+"/s", dir+"/state", "default=10.9.0.0/24")
	user := runAs(t, 65531, "holder", dir+"/s")
	owned := user.order(order{Do: "linger", Flags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET}).PID
	a := user.order(order{Do: "allocate", Space: fmt.Sprintf("/proc/%d/ns/net", owned)})
	if a.Error == nil || a.Error.Code != wire.Unsupported || !strings.Contains(a.Error.Text, "CAP_NET_ADMIN") {
		t.Errorf("it says %v", a.Error)
	}
}
