package socket

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
)

// soon is the longest frame that is read without being waited for, in bytes.
const soon = 1 << 10

// ReadNow reads exactly one frame from a socket, and not a byte more, if all of it has come. A frame of more than 1 KiB, one that comes with descriptors or is
// malformed, and one that has not come is left where it is, and reads as false, for a reader that waits or says what is wrong.
func ReadNow(conn syscall.Conn) (frame wire.Frame, ok bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return frame, false
	}
	raw.Control(func(fd uintptr) { frame, ok = readNow(fd) })
	return frame, ok
}

func readNow(fd uintptr) (frame wire.Frame, ok bool) {
	if inline(fd) != nil {
		return frame, false
	}
	b := make([]byte, soon)
	var data unix.Iovec
	m := message(&data, b)
	n, errno := peek(fd, &m)
	if errno != 0 || m.Flags&unix.MSG_CTRUNC != 0 {
		return frame, false
	}
	h, err := wire.ParseHeader(b[:n])
	size := wire.HeaderSize + int(h.Length)
	if err != nil || h.Files > 0 || n < size {
		return frame, false
	}
	data.SetLen(size)
	if n, errno = recvmsgNow(fd, &m, 0); errno != 0 || n != size { // nobody else reads it
		return frame, false
	}
	return wire.Frame{Header: h, Body: b[wire.HeaderSize:size]}, true
}

// TryWrite writes what conn takes of b without waiting, with files attached to its first byte, and returns how much that was. An error reads as nothing: whoever
// writes in earnest then sees it. The caller keeps its files.
func TryWrite(conn syscall.Conn, b []byte, files ...*os.File) int {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	fds := make([]int, len(files))
	n, _ := withFDs(files, fds, func() (n int, err error) {
		var rights []byte
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		err = raw.Control(func(fd uintptr) { n = send(fd, b, rights) })
		return n, err
	})
	return n
}
