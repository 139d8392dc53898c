package socket

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// recvmsg is recvmsg(2), of which neither the standard library nor x/sys has a form that takes no memory. Descriptors are close-on-exec. It waits for no data, also where
// another process has taken O_NONBLOCK off the socket. But it may wait for a TCP socket that it cannot pass on, as at RLIMIT_NOFILE, see Discard.
func recvmsg(fd uintptr, m *unix.Msghdr) (n int, err unix.Errno) {
	for {
		got, _, err := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(m)), unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			return int(got), err
		}
	}
}

// recvmsgNow is recvmsg where no descriptor can come or be let go, see inline, and sendmsgNow is sendmsg(2). Neither waits, so they do not tell the scheduler, which would wake its
// monitor, a thread of its own, at the first system call after each idle moment: a call would cost a third more. What waited here all the same would hold up an idle process as a whole, as nobody
// looks at the network meanwhile. Before Linux 6.9 sendmsg waits while the kernel looks for sockets that are in flight and nobody's.
func recvmsgNow(fd uintptr, m *unix.Msghdr, flags int) (n int, err unix.Errno) {
	for {
		got, _, err := unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(m)), uintptr(flags|unix.MSG_DONTWAIT))
		if err != unix.EINTR {
			return int(got), err
		}
	}
}

func sendmsgNow(fd uintptr, m *unix.Msghdr) (n int, err unix.Errno) {
	for {
		sent, _, err := unix.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(m)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			return int(sent), err
		}
	}
}

// message returns a message of b, which data describes.
func message(data *unix.Iovec, b []byte) unix.Msghdr {
	data.Base = unsafe.SliceData(b)
	data.SetLen(len(b))
	m := unix.Msghdr{Iov: data}
	m.SetIovlen(1)
	return m
}

// Send sends what a socket takes of b without waiting, and returns how much that was. An error reads as nothing: whoever writes in earnest then sees it.
func Send(fd uintptr, b []byte) int { return send(fd, b, nil) }

// send is Send with the control data of descriptors, which leave with the first byte.
func send(fd uintptr, b, control []byte) int {
	var data unix.Iovec
	m := message(&data, b)
	if len(control) > 0 {
		m.Control = &control[0]
		m.SetControllen(len(control))
	}
	n, err := sendmsgNow(fd, &m)
	if err != 0 {
		return 0
	}
	return n
}

// inline has the urgent bytes of a peer (MSG_OOB) come among its others, with their descriptors. Else a read passes over them, and closes what came with them on the spot, which may
// take as long as the sender has said (SO_LINGER): in a read that does not tell the scheduler the whole process may wait for that.
func inline(fd uintptr) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1))
}

// peek reads what has come, and leaves it there. It takes no descriptors, and says that there are some by MSG_CTRUNC in the message's flags.
func peek(fd uintptr, m *unix.Msghdr) (n int, err unix.Errno) {
	m.Control = nil
	m.SetControllen(0)
	return recvmsgNow(fd, m, unix.MSG_PEEK)
}
