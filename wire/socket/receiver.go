package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// mostRights is how many descriptors one sendmsg(2) can have: SCM_MAX_FD of the kernel.
const mostRights = 253

// controlSize is room, in bytes, for all descriptors that can come at once: of what there is no room for the kernel lets go itself, and waits for the last copy of a TCP socket as long as
// its sender has said (SO_LINGER, socket(7)).
var controlSize = unix.CmsgSpace(4 * mostRights)

// little is how much may be asked for, in bytes, for it to be looked at first. Of more, a second copy would cost more than it saves.
const little = 4 << 10

// controls are memory for what comes beside the bytes. Only a receiver that has something to read keeps one.
var controls = sync.Pool{New: func() any { b := make([]byte, controlSize); return &b }}

// A Lender has memory to read into.
type Lender interface {
	// Lend returns memory, which is not empty.
	Lend() []byte
	// TakeBack takes it back: nothing is there to be read.
	TakeBack()
}

// A Receiver reads a Unix socket, with the descriptors that come. One goroutine at a time uses it, and nobody else reads the socket. A read costs no memory but
// for descriptors, unlike net.UnixConn.ReadMsgUnix, which names the sender each time.
type Receiver struct {
	conn    *net.UnixConn
	raw     syscall.RawConn
	attempt func(fd uintptr) (done bool) // made once

	// What attempt works with.
	message unix.Msghdr
	data    unix.Iovec
	lender  Lender  // nil: data is there
	oob     *[]byte // nil: nothing is there to be read
	n       int
	errno   unix.Errno
}

// NewReceiver returns a receiver of conn. It fails if conn is closed.
func NewReceiver(conn *net.UnixConn) (*Receiver, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	if closed := raw.Control(func(fd uintptr) { err = inline(fd) }); closed != nil || err != nil {
		return nil, errors.Join(closed, err)
	}
	r := &Receiver{conn: conn, raw: raw}
	r.message.Iov = &r.data
	r.message.SetIovlen(1)
	r.attempt = r.receive
	return r, nil
}

// receive reads once, and reports false if nothing is there.
func (r *Receiver) receive(fd uintptr) (done bool) {
	if r.lender != nil {
		r.fill(r.lender.Lend())
	}
	if r.n, r.errno = r.receiveNow(fd); r.n == 0 && r.errno == 0 {
		r.oob = controls.Get().(*[]byte)
		r.message.Control = &(*r.oob)[0]
		r.message.SetControllen(controlSize)
		r.n, r.errno = recvmsg(fd, &r.message)
	}
	if done = r.errno != unix.EAGAIN; !done {
		r.letGo()
	}
	return done
}

// receiveNow reads what has come if it is little and has no descriptors, and just as much of it as it has looked at: more may come with some meanwhile. It returns EAGAIN if nothing
// has come, and 0 and no error for all that is to be read otherwise.
func (r *Receiver) receiveNow(fd uintptr) (n int, err unix.Errno) {
	size := int(r.data.Len)
	if size > little {
		return 0, 0
	}
	n, err = peek(fd, &r.message)
	switch {
	case err == unix.EAGAIN:
		return 0, err
	case err != 0 || n == 0 || r.message.Flags&unix.MSG_CTRUNC != 0:
		return 0, 0
	}
	r.data.SetLen(n)
	defer r.data.SetLen(size)
	return recvmsgNow(fd, &r.message, 0)
}

// fill has b filled next.
func (r *Receiver) fill(b []byte) {
	r.data.Base = &b[0]
	r.data.SetLen(len(b))
}

// letGo lets go of all memory that only a read needs.
func (r *Receiver) letGo() {
	r.letControlGo()
	if r.lender != nil {
		r.data.Base = nil
		r.lender.TakeBack()
	}
}

func (r *Receiver) letControlGo() {
	if r.oob != nil {
		controls.Put(r.oob)
		r.oob, r.message.Control = nil, nil
	}
}

// Receive reads once, up to len(b) bytes, with the descriptors that come with them: close-on-exec, and the caller's. The flags are those of
// recvmsg(2). End of file is io.EOF. b is not empty.
func (r *Receiver) Receive(b []byte) (n int, files []*os.File, flags int, err error) {
	r.fill(b)
	defer func() { r.data.Base = nil }()
	return r.read()
}

// ReceiveLent is Receive into memory that is lent when there is something to read. It is taken back unless n is more than 0, and while it waits.
func (r *Receiver) ReceiveLent(from Lender) (n int, files []*os.File, flags int, err error) {
	r.lender = from
	defer func() { r.lender, r.data.Base = nil, nil }()
	return r.read()
}

func (r *Receiver) read() (n int, files []*os.File, flags int, err error) {
	r.n, r.errno = 0, 0
	if err = r.raw.Read(r.attempt); err != nil {
		return 0, nil, 0, err
	}
	if r.errno != 0 {
		r.letGo()
		return 0, nil, 0, &net.OpError{Op: "read", Net: "unix", Source: r.conn.LocalAddr(), Addr: r.conn.RemoteAddr(), Err: os.NewSyscallError("recvmsg", r.errno)}
	}
	if size := int(r.message.Controllen); size > 0 {
		files = received((*r.oob)[:size])
	}
	n, flags = r.n, int(r.message.Flags)
	if n == 0 {
		r.letGo()
		return 0, files, flags, io.EOF
	}
	r.letControlGo()
	return n, files, flags, nil
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
