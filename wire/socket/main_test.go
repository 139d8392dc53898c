package socket_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// children are what this test's binary does when it is started as a child, by the name in its environment.
var children = map[string]func(){
	"few files": fewFiles,
	"listen":    listen,
	"connect":   connect,
}

const (
	childVariable = "FAIRLEAD_TEST_CHILD"
	noSleep       = "GORACE=atexit_sleep_ms=0" // the race detector's own rest before an exit
)

func TestMain(m *testing.M) {
	if child := children[os.Getenv(childVariable)]; child != nil {
		child()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fail ends a child with what is wrong.
func fail(format string, args ...any) {
	fmt.Printf(format+"\n", args...)
	os.Exit(1)
}

// sockets returns both ends of a connected pair of Unix sockets.
func sockets(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := make([]*net.UnixConn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
		ends[i].SetDeadline(time.Now().Add(20 * time.Second))
		t.Cleanup(func() { c.Close() })
	}
	return ends[0], ends[1]
}

// descriptors returns what the open descriptors of this process lead to, but for the poller's own.
func descriptors(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var open []string
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err == nil && !strings.HasPrefix(to, "anon_inode:") { // the folder itself is closed by now
			open = append(open, e.Name()+" "+to)
		}
	}
	return open
}

// leavesNothing checks, when the test and what it cleans up are over, that it has left no descriptor open.
func leavesNothing(t testing.TB) {
	t.Helper()
	before := descriptors(t)
	t.Cleanup(func() {
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
			left := slices.DeleteFunc(descriptors(t), func(d string) bool { return slices.Contains(before, d) })
			if len(left) == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("left open: %v", left)
				return
			}
		}
	})
}

// files opens n files, which the test closes.
func files(t testing.TB, n int) (list []*os.File) {
	t.Helper()
	for i := range n {
		f, err := os.Create(filepath.Join(t.TempDir(), fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if _, err := fmt.Fprint(f, i); err != nil {
			t.Fatal(err)
		}
		list = append(list, f)
	}
	return list
}
