package process

import (
	"errors"
	"fmt"
	"math"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Cred says which process and user are at the other end of a Unix socket, by SO_PEERCRED, see unix(7).
type Cred struct {
	// PID is 0 if the process is in a pid namespace that cannot be seen from here, and -1 if the kernel has not said who it is: then UID and GID are nobody's.
	PID int
	// UID and GID are the effective ones.
	UID, GID uint32
	// Groups are the supplementary groups, by SO_PEERGROUPS. The kernel tells them since Linux 4.13; before, there are none.
	Groups []uint32
}

// unknown is nobody: whoever looks at it beside the error does not take it for root. No user and no group has its numbers, see setreuid(2).
var unknown = Cred{PID: -1, UID: math.MaxUint32, GID: math.MaxUint32}

// PeerCred returns the credentials of the process at the other end of a Unix stream socket, for a caller that needs no handle on it. They are those of the
// process that called connect, listen or socketpair, also after it has exited.
func PeerCred(conn syscall.RawConn) (Cred, error) {
	var cred Cred
	var err error
	ctlErr := conn.Control(func(socket uintptr) { cred, err = peerCred(int(socket)) })
	if err := errors.Join(ctlErr, err); err != nil {
		return unknown, fmt.Errorf("identify the peer of a socket: %w", err)
	}
	return cred, nil
}

// FromPeer returns a handle on the process at the other end of a Unix stream socket, and its credentials.
// Both are those of the process that called connect, listen or socketpair, and not of one that the socket was passed to.
//
// The kernel names the process by SO_PEERPIDFD since Linux 6.5. On an older one the handle is
// opened by number and the socket must not be hung up after that. What this lacks: a peer that died and
// whose socket a child of its own keeps open may have its number taken by another process before it is looked
// at; and a peer in a foreign pid namespace cannot be had.
//
// The error wraps ErrGone if the peer has exited, though not in every such case: the newest kernels give a handle that
// is Gone. The credentials are right with ErrGone too, and with any error of a peer whose PID is 0; with PID -1 there are none.
func FromPeer(conn syscall.RawConn) (*Handle, Cred, error) {
	return fromPeer(conn, peerPidfd)
}

func fromPeer(conn syscall.RawConn, open func(socket int, cred Cred) (int, error)) (*Handle, Cred, error) {
	cred := unknown
	var fd int
	var err error
	ctlErr := conn.Control(func(socket uintptr) {
		if cred, err = peerCred(int(socket)); err == nil {
			fd, err = open(int(socket), cred)
		}
	})
	if err := errors.Join(ctlErr, err); err != nil {
		return nil, cred, fmt.Errorf("identify the peer of a socket: %w", err)
	}
	h, err := newHandle(os.NewFile(uintptr(fd), "pidfd"), cred.PID)
	return h, cred, err
}

func peerCred(socket int) (Cred, error) {
	ucred, err := unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return unknown, os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	groups, err := peerGroups(socket)
	if err != nil {
		return unknown, os.NewSyscallError("getsockopt SO_PEERGROUPS", err)
	}
	return Cred{PID: int(ucred.Pid), UID: ucred.Uid, GID: ucred.Gid, Groups: groups}, nil
}

// someGroups is for how many groups there is room at first. A process has at most 65536, see getgroups(2).
const someGroups = 32

// peerGroups asks again with the room that the kernel names, which cannot change: the groups are those of the moment of connecting.
func peerGroups(socket int) ([]uint32, error) {
	for groups := make([]uint32, someGroups); ; {
		size := uint32(len(groups)) * 4
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0 && size == 0, errno == unix.ENOPROTOOPT, errno == unix.ENODATA:
			return nil, nil
		case errno == 0:
			return groups[:size/4], nil
		case errno != unix.ERANGE || int(size) <= len(groups)*4:
			return nil, errno
		}
		groups = make([]uint32, size/4)
	}
}

func peerPidfd(socket int, cred Cred) (int, error) {
	fd, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	switch {
	case errors.Is(err, unix.ENOPROTOOPT):
		return peerPidfdByNumber(socket, cred)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ESRCH):
		return -1, ErrGone
	case errors.Is(err, unix.ENODATA):
		return -1, errors.New("it is not a connected Unix socket")
	}
	return fd, os.NewSyscallError("getsockopt SO_PEERPIDFD", err)
}

// peerPidfdByNumber is the way before Linux 6.5. The number belonged to one process all the while if it started
// at the same time before and after. It is the peer if the peer still lives, of which a socket that is not hung up is the sign.
func peerPidfdByNumber(socket int, cred Cred) (int, error) {
	if cred.PID <= 0 {
		return -1, errors.New("it has no number in this pid namespace")
	}
	before, err := readStat(cred.PID)
	if err != nil {
		return -1, err
	}
	fd, err := pidfdOpen(cred.PID)
	if err != nil {
		return -1, err
	}
	after, err := readStat(cred.PID)
	if err == nil && after.start != before.start {
		err = ErrGone
	}
	if err == nil {
		var hungUp bool
		if hungUp, err = pollNow(socket, 0); hungUp {
			err = ErrGone
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
