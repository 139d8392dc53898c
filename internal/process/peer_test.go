package process_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/process"
)

// ways are how a peer is found, by name.
var ways = map[string]func(syscall.RawConn) (*process.Handle, process.Cred, error){
	"by pidfd":  process.FromPeer,
	"by number": process.FromPeerByNumber,
}

// rawConn gives access to a descriptor, and closes it at the end of the test.
func rawConn(t *testing.T, fd int) syscall.RawConn {
	t.Helper()
	file := os.NewFile(uintptr(fd), "socket")
	t.Cleanup(func() { file.Close() })
	raw, err := file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// socketpair returns one end of a pair that this process made.
func socketpair(t *testing.T) syscall.RawConn {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	rawConn(t, fds[1])
	return rawConn(t, fds[0])
}

// accepted starts a child that connects, and returns it and this side's socket.
func accepted(t *testing.T) (*child, syscall.RawConn) {
	t.Helper()
	return acceptedWith(t, nil)
}

// acceptedWith is accepted with attributes of the test's own for the child.
func acceptedWith(t *testing.T, attr *syscall.SysProcAttr) (*child, syscall.RawConn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c := startWith(t, attr, "/proc/self/exe", "dial", path)
	conn, err := listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return c, raw
}

// ownGroups returns the supplementary groups of this process.
func ownGroups(t *testing.T) (groups []uint32) {
	t.Helper()
	ids, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		groups = append(groups, uint32(id))
	}
	return groups
}

func TestThePeerIsTheProcessThatConnected(t *testing.T) {
	for name, fromPeer := range ways {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			c, raw := accepted(t)
			h, cred, err := fromPeer(raw)
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			want := process.Cred{PID: c.pid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Groups: ownGroups(t)}
			if !reflect.DeepEqual(cred, want) || h.PID() != c.pid() || h.Gone() {
				t.Errorf("it is %+v, pid %d, gone %v; want %+v, alive", cred, h.PID(), h.Gone(), want)
			}
			c.kill(t)
			within(t, "the peer is not gone", h.Gone)
		})
	}
}

func TestThePeerOfASocketpairIsItsMaker(t *testing.T) {
	for name, fromPeer := range ways {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			h, cred, err := fromPeer(socketpair(t))
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			if cred.PID != os.Getpid() || h.Gone() {
				t.Errorf("it is %+v, gone %v", cred, h.Gone())
			}
		})
	}
}

func TestADeadPeerIsGone(t *testing.T) {
	for name, fromPeer := range ways {
		for _, waited := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				leavesNothing(t)
				c, raw := accepted(t)
				watcher := open(t, c.pid())
				c.kill(t)
				within(t, "the child is not gone", watcher.Gone)
				if waited {
					c.end()
				}
				h, cred, err := fromPeer(raw)
				if err == nil {
					defer h.Close()
				}
				if !errors.Is(err, process.ErrGone) && (err != nil || !h.Gone()) {
					t.Errorf("it says %v, want ErrGone or a handle that is gone", err)
				}
				if cred.PID != c.pid() {
					t.Errorf("the credentials are %+v", cred)
				}
			})
		}
	}
}

func TestByNumberAHungUpSocketDoesNotProveWhoItsPeerWas(t *testing.T) {
	leavesNothing(t)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	raw := rawConn(t, fds[0])
	unix.Close(fds[1])
	if h, _, err := process.FromPeerByNumber(raw); !errors.Is(err, process.ErrGone) {
		t.Errorf("it is %v, %v, want ErrGone", h, err)
	}
}

func TestWhatHasNoPeerIsRefused(t *testing.T) {
	leavesNothing(t)
	for name, domain := range map[string]int{"not connected": unix.AF_UNIX, "not of Unix": unix.AF_INET} {
		fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		raw := rawConn(t, fd)
		for way, fromPeer := range ways {
			if h, _, err := fromPeer(raw); err == nil {
				h.Close()
				t.Errorf("%s, %s: it was taken", name, way)
			}
		}
	}
}

func TestThePeersCredentialsOutliveIt(t *testing.T) {
	leavesNothing(t)
	c, conn := accepted(t)
	want := process.Cred{PID: c.pid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Groups: ownGroups(t)}
	for range 2 {
		if got, err := process.PeerCred(conn); !reflect.DeepEqual(got, want) || err != nil {
			t.Errorf("the peer is %v, %v, want %v", got, err, want)
		}
		c.end()
	}
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	raw, err := file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := process.PeerCred(raw); err == nil {
		t.Errorf("a file has the peer %v", got)
	}
}

// The guard is unknown: without, whom the kernel does not name is a process without a number whose user is root.
func TestWhomTheKernelDoesNotNameIsNobody(t *testing.T) {
	r, w, err := os.Pipe() // it has no peer
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	raw, err := r.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	closed, err := w.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	for name, conn := range map[string]syscall.RawConn{"no socket": raw, "closed": closed} {
		h, cred, err := process.FromPeer(conn)
		if err == nil || h != nil || cred.PID >= 0 || cred.UID == 0 || cred.GID == 0 {
			t.Errorf("%s: %+v, %v", name, cred, err)
		}
		if cred, err := process.PeerCred(conn); err == nil || cred.PID >= 0 || cred.UID == 0 || cred.GID == 0 {
			t.Errorf("%s: %+v, %v", name, cred, err)
		}
	}
}
