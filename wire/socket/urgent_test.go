package socket_test

import (
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire/socket"
)

// sendUrgent sends one urgent byte with a descriptor.
func sendUrgent(t *testing.T, conn *net.UnixConn, b byte, f *os.File) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		err = unix.Sendmsg(int(fd), []byte{b}, unix.UnixRights(int(f.Fd())), nil, unix.MSG_OOB)
	})
	if err == unix.EOPNOTSUPP {
		t.Skip("this kernel has no urgent bytes on Unix sockets: before Linux 5.15, or built without")
	}
	if err != nil {
		t.Fatalf("send an urgent byte: %v", err)
	}
}

// guard: inline in NewReceiver and ReadNow. A read that passes over an urgent byte closes its descriptors on the spot, and all goroutines of an idle process waited for one that lingers.
func TestUrgentBytesComeAmongTheOthersWithTheirDescriptors(t *testing.T) {
	for name, first := range map[string]func(b *net.UnixConn) (read bool){
		"received":       func(*net.UnixConn) bool { return false },
		"looked for now": func(b *net.UnixConn) bool { _, read := socket.ReadNow(b); return read },
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			a, b := sockets(t)
			whole := frame(t, "behind it").Append(nil)
			sendUrgent(t, a, 'u', files(t, 1)[0])
			sendRaw(t, a, whole)
			a.CloseWrite()
			if first(b) {
				t.Fatal("what comes behind a descriptor is read at once")
			}
			receiver, err := socket.NewReceiver(b)
			if err != nil {
				t.Fatal(err)
			}
			var got []byte
			var came []*os.File
			for n, more := 0, []*os.File(nil); err == nil; {
				buf := make([]byte, 100)
				n, more, _, err = receiver.Receive(buf)
				got, came = append(got, buf[:n]...), append(came, more...)
			}
			if want := "u" + string(whole); err != io.EOF || string(got) != want || len(came) != 1 {
				t.Errorf("%q and %d descriptors, %v, want %q and 1", got, len(came), err, want)
			}
			socket.CloseFiles(came)
		})
	}
}
