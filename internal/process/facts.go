package process

import (
	"math/bits"
	"syscall"

	"golang.org/x/sys/unix"
)

// Inode returns the inode of the pidfd, which no other process has until the next boot. It is false where inodes do not tell processes apart: the file system of
// pidfds (pidfs) came with Linux 6.9, see pidfd_open(2), and on a machine of 32 bits its inodes are cut.
func (h *Handle) Inode() (inode uint64, ok bool) {
	_ = h.control(func(fd uintptr) {
		var system unix.Statfs_t
		var file unix.Stat_t
		if bits.UintSize == 64 && unix.Fstatfs(int(fd), &system) == nil && system.Type == unix.PID_FS_MAGIC && unix.Fstat(int(fd), &file) == nil {
			inode, ok = file.Ino, true
		}
	})
	return inode, ok
}

// Same reports whether both are handles on one process. Where their inodes do not tell, they must have one number while both processes live: it is false for one
// that is gone.
func (h *Handle) Same(other *Handle) bool {
	own, ok := h.Inode()
	others, otherOK := other.Inode()
	if ok && otherOK {
		return own == others
	}
	return sameByNumber(h, other)
}

// sameByNumber is the way before Linux 6.9. Whoever lives at the second question lived at the first.
func sameByNumber(h, other *Handle) bool {
	return h.pid > 0 && h.pid == other.pid && h.check() == nil && other.check() == nil
}

// ExitStatus returns how the process has ended, also if it is no child of the caller's. The kernel tells once its parent has waited for it, on
// Linux 6.15 and later (PIDFD_INFO_EXIT of PIDFD_GET_INFO, see linux/pidfd.h). Before, and elsewhere, it is false.
func (h *Handle) ExitStatus() (status syscall.WaitStatus, ok bool) {
	_ = h.control(func(fd uintptr) {
		info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
		if unix.IoctlPidfdInfo(int(fd), &info) == nil && info.Mask&unix.PIDFD_INFO_EXIT != 0 {
			status, ok = syscall.WaitStatus(info.Exit_code), true
		}
	})
	return status, ok
}
