package socket_test

import (
	"bytes"
	"net"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// FuzzReadFrame reads the first frame of a connection, as a broker does, from any bytes, with descriptors at any two places of them. It takes exactly the frame's
// bytes, returns as many descriptors as the frame says, and leaves none open otherwise.
func FuzzReadFrame(f *testing.F) {
	open, err := wire.NewFrame(wire.KindOpen, 0, wire.Open{Endpoint: "com.example.echo", Features: []string{wire.FeatureLane}})
	if err != nil {
		f.Fatal(err)
	}
	whole := open.Append(nil)
	with := bytes.Clone(whole)
	with[2] = 2 // descriptors
	for _, b := range [][]byte{nil, whole, whole[:5], whole[:20], append(bytes.Clone(whole), whole...), with, with[:12], {2, 1}, []byte("GET / HTTP/1.1\r\n\r\n")} {
		f.Add(b, uint16(0), uint8(0), uint8(0))
		f.Add(b, uint16(0), uint8(2), uint8(0))
		f.Add(b, uint16(6), uint8(1), uint8(1))
		f.Add(b, uint16(12), uint8(0), uint8(17))
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { null.Close() })
	f.Fuzz(func(t *testing.T, b []byte, at uint16, first, second uint8) {
		if len(b) > 50_000 { // it must fit into the socket
			return
		}
		from, to := sockets(t)
		before := countOpen(t)
		cut := min(int(at), len(b))
		send(from, b[:cut], int(first%32), null)
		send(from, b[cut:], int(second%32), null)
		from.CloseWrite()
		frame, files, err := socket.ReadFrame(to)
		switch {
		case err != nil && len(files) > 0:
			t.Errorf("%d descriptors with %v", len(files), err)
		case err == nil && (len(files) != int(frame.Files) || !bytes.Equal(frame.Append(nil), b[:wire.HeaderSize+len(frame.Body)])):
			t.Errorf("a %v with %d descriptors, which says %d, of %d bytes", frame.Kind, len(files), frame.Files, len(b))
		}
		socket.CloseFiles(files)
		if after := countOpen(t); after != before {
			t.Errorf("%d descriptors are open, before %d", after, before)
		}
	})
}

// send sends b, if there is any, and with its first byte so many descriptors.
func send(to *net.UnixConn, b []byte, files int, null *os.File) {
	if len(b) == 0 {
		return
	}
	if files == 0 {
		to.Write(b)
		return
	}
	n, _, err := to.WriteMsgUnix(b, unix.UnixRights(slices.Repeat([]int{int(null.Fd())}, files)...), nil)
	if err == nil {
		to.Write(b[n:])
	}
}

func countOpen(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
