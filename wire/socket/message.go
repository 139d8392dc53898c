package socket

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// receiveMessage is recvmsg(2), and sendMessage sendmsg(2), of which neither the standard library nor x/sys has a form that takes no memory. Descriptors are
// close-on-exec. Neither ever waits, also where another process has taken O_NONBLOCK off the socket, and so they do not tell the scheduler, which would wake its
// monitor, a thread of its own, at the first system call after each idle moment: a call would cost a third more.
func receiveMessage(fd uintptr, m *unix.Msghdr, flags int) (n int, err unix.Errno) {
	for {
		got, _, err := unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(m)), uintptr(flags|unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT))
		if err != unix.EINTR {
			return int(got), err
		}
	}
}

func sendMessage(fd uintptr, m *unix.Msghdr) (n int, err unix.Errno) {
	for {
		sent, _, err := unix.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(m)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			return int(sent), err
		}
	}
}

// Send sends what a socket takes of b without waiting, and returns how much that was. An error reads as nothing: whoever writes in earnest then sees it.
func Send(fd uintptr, b []byte) int { return send(fd, b, nil) }

// send is Send with the control data of descriptors, which leave with the first byte.
func send(fd uintptr, b, control []byte) int {
	data := unix.Iovec{Base: unsafe.SliceData(b)}
	data.SetLen(len(b))
	m := unix.Msghdr{Iov: &data}
	m.SetIovlen(1)
	if len(control) > 0 {
		m.Control = &control[0]
		m.SetControllen(len(control))
	}
	n, err := sendMessage(fd, &m)
	if err != 0 {
		return 0
	}
	return n
}

// receive receives up to len(b) bytes that have come, and the flags of recvmsg(2). Descriptors are dropped, which the flags say.
func receive(fd uintptr, b []byte, how int) (n, flags int) {
	data := unix.Iovec{Base: unsafe.SliceData(b)}
	data.SetLen(len(b))
	m := unix.Msghdr{Iov: &data}
	m.SetIovlen(1)
	n, err := receiveMessage(fd, &m, how)
	if err != 0 {
		return 0, 0
	}
	return n, int(m.Flags)
}
