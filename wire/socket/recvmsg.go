package socket

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// recvmsg is recvmsg(2), of which neither the standard library nor x/sys has a form that takes no memory. Descriptors are close-on-exec.
func recvmsg(fd uintptr, m *unix.Msghdr) (n int, err unix.Errno) {
	got, _, err := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(m)), unix.MSG_CMSG_CLOEXEC)
	return int(got), err
}
