package socket_test

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/fairlead-dev/fairlead/wire/socket"
)

// inode returns what /proc shows of a socket's descriptor.
func inode(t *testing.T, conn *net.UnixConn) (n uint64) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscanf(to, "socket:[%d]", &n); err != nil {
			t.Fatalf("%s: %v", to, err)
		}
	})
	return n
}

func TestInodesAreThoseThatProcShows(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	for _, end := range [][2]*net.UnixConn{{a, b}, {b, a}} {
		own, peer, err := socket.Inodes(end[0])
		if err != nil || own != inode(t, end[0]) {
			t.Errorf("own inode %d, %v, want %d", own, err, inode(t, end[0]))
		}
		if peer == 0 {
			t.Log("this kernel does not tell the peer's inode")
		} else if want := inode(t, end[1]); peer != want {
			t.Errorf("peer's inode %d, want %d", peer, want)
		}
	}
	b.Close()
	if own, peer, err := socket.Inodes(a); err != nil || own == 0 || peer != 0 {
		t.Errorf("without a peer: %d and %d, %v", own, peer, err)
	}
	a.Close()
	if _, _, err := socket.Inodes(a); err == nil {
		t.Error("a closed socket has an inode")
	}
}
