package socket

import (
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// dropped is how much is read at a time of what nobody wants, in bytes.
const dropped = 16 << 10

// A Socket is a connection, or the file of one.
type Socket interface {
	syscall.Conn
	io.Closer
}

// Drop closes a Unix socket of which nobody reads the rest, for nobody to wait: close(2) lets go of the descriptors that are in its queue, and of the last copy of a TCP socket as
// slowly as its sender has said (SO_LINGER, socket(7)). So these are received first, and discarded. Nobody else may read it meanwhile.
func Drop(s Socket) error {
	if raw, err := s.SyscallConn(); err == nil {
		raw.Control(empty)
	}
	return s.Close()
}

// DropFD is Drop for a descriptor.
func DropFD(fd int) {
	empty(uintptr(fd))
	unix.Close(fd)
}

// empty has nothing more come to a socket, and takes what has.
func empty(fd uintptr) {
	if unix.Shutdown(int(fd), unix.SHUT_RD) != nil {
		return // it is not connected any more, or something else
	}
	var data unix.Iovec
	m, oob := message(&data, make([]byte, dropped)), make([]byte, controlSize)
	m.Control = &oob[0]
	for {
		m.SetControllen(controlSize)
		if n, err := recvmsg(fd, &m); err != 0 || n == 0 {
			return
		}
		if size := int(m.Controllen); size > 0 {
			Discard(received(oob[:size]))
		}
	}
}

// PassRights says whether descriptors may be sent to a Unix socket, or to those that connect at one that listens: SO_PASSRIGHTS, unix(7). Before Linux 6.16 they always may.
func PassRights(s syscall.Conn, pass bool) {
	value := 0
	if pass {
		value = 1
	}
	if raw, err := s.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, value) })
	}
}
