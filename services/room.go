package services

import (
	"math"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
)

// spareFiles is how many descriptors stay free for sessions that are being opened, and for hand-overs on their way: one that arrives without a descriptor left is lost, and its
// client is told nothing.
const spareFiles = 8

// openFiles returns how many descriptors this process may have open: RLIMIT_NOFILE of getrlimit(2).
func openFiles() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return int(limit.Cur)
}

// room fails with wire.OverQuota if there is no descriptor to spare beside one that is new. That has the lowest number that was free: so its number says how many there are at least.
func (h *Host) room(arrived syscall.Conn) error {
	raw, err := arrived.SyscallConn()
	if err != nil {
		return err
	}
	number := 0
	if err := raw.Control(func(fd uintptr) { number = int(fd) }); err != nil {
		return err
	}
	if number >= h.files-spareFiles {
		return wire.Errorf(wire.OverQuota, "the service has no room for another session: it may have %d descriptors open", h.files)
	}
	return nil
}
