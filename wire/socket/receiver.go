package socket

import (
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
)

// controlSize is room, in bytes, for more descriptors than a frame may have, so that too many are seen as such and closed.
var controlSize = unix.CmsgSpace(4 * (wire.MaxFiles + 1))

// A Receiver reads a Unix socket, with the descriptors that come. One goroutine at a time uses it, and nobody else reads the socket. A read costs no memory but
// for descriptors, unlike net.UnixConn.ReadMsgUnix, which names the sender each time.
type Receiver struct {
	conn    *net.UnixConn
	raw     syscall.RawConn
	attempt func(fd uintptr) (done bool) // made once

	// What attempt works with.
	message unix.Msghdr
	data    unix.Iovec
	oob     []byte
	n       int
	errno   unix.Errno
}

// NewReceiver returns a receiver of conn. It fails if conn is closed.
func NewReceiver(conn *net.UnixConn) (*Receiver, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &Receiver{conn: conn, raw: raw, oob: make([]byte, controlSize)}
	r.message.Iov, r.message.Control = &r.data, &r.oob[0]
	r.message.SetIovlen(1)
	r.attempt = r.receive
	return r, nil
}

// receive reads once, and reports false if nothing is there.
func (r *Receiver) receive(fd uintptr) (done bool) {
	for {
		r.message.SetControllen(len(r.oob))
		n, err := recvmsg(fd, &r.message)
		if err == unix.EINTR {
			continue
		}
		r.n, r.errno = n, err
		return err != unix.EAGAIN
	}
}

// Receive reads once, up to len(b) bytes, with the descriptors that come with them: close-on-exec, and the caller's. The flags are those of
// recvmsg(2). End of file is io.EOF. b is not empty.
func (r *Receiver) Receive(b []byte) (n int, files []*os.File, flags int, err error) {
	r.data.Base = &b[0]
	r.data.SetLen(len(b))
	r.n, r.errno = 0, 0
	err = r.raw.Read(r.attempt)
	r.data.Base = nil
	if err != nil {
		return 0, nil, 0, err
	}
	if r.errno != 0 {
		return 0, nil, 0, &net.OpError{Op: "read", Net: "unix", Source: r.conn.LocalAddr(), Addr: r.conn.RemoteAddr(), Err: os.NewSyscallError("recvmsg", r.errno)}
	}
	if controls := int(r.message.Controllen); controls > 0 {
		files = received(r.oob[:controls])
	}
	if r.n == 0 {
		err = io.EOF
	}
	return r.n, files, int(r.message.Flags), err
}

// received wraps the descriptors in a message's control data.
func received(oob []byte) []*os.File {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files
}
