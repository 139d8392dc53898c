package socket

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Queues returns how much is in conn's two directions: in are the bytes that the peer has written and nobody has read here, out is what the peer has not read, as
// memory of the kernel's, which is more than the bytes. See SIOCINQ and SIOCOUTQ in unix(7) and tcp(7).
func Queues(conn syscall.Conn) (in, out int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var asked error
	err = raw.Control(func(fd uintptr) {
		if in, asked = unix.IoctlGetInt(int(fd), unix.SIOCINQ); asked == nil {
			out, asked = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		}
	})
	if err == nil && asked != nil {
		err = fmt.Errorf("ask for a socket's queues: %w", asked)
	}
	return in, out, err
}
