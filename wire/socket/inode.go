package socket

import (
	"encoding/binary"
	"fmt"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Inodes returns the inode of conn's own socket and of the one it is connected to, as ss -xp and lsof show them. The peer's is 0 where
// the kernel does not tell it (no unix_diag module) or the peer is gone. See sock_diag(7).
func Inodes(conn syscall.Conn) (own, peer uint64, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var stat unix.Stat_t
	var statErr error
	if err := raw.Control(func(fd uintptr) { statErr = unix.Fstat(int(fd), &stat) }); err != nil {
		return 0, 0, err
	}
	if statErr != nil {
		return 0, 0, fmt.Errorf("stat a socket: %w", statErr)
	}
	peer, _ = peerInode(uint32(stat.Ino))
	return stat.Ino, peer, nil
}

// The layout of struct unix_diag_req and unix_diag_msg, from linux/unix_diag.h.
const (
	sockDiagByFamily = 20
	diagShowPeer     = 0x4
	diagPeer         = 2
	diagRequestSize  = 24
	diagMessageSize  = 16
)

// peerInode asks the kernel for the inode that the socket with this inode is connected to.
func peerInode(inode uint32) (uint64, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, fmt.Errorf("open a sock_diag socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return 0, err
	}
	if err := unix.Sendto(fd, diagRequest(inode), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fmt.Errorf("ask sock_diag: %w", err)
	}
	b := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, b, 0)
	if err != nil {
		return 0, fmt.Errorf("read from sock_diag: %w", err)
	}
	messages, err := syscall.ParseNetlinkMessage(b[:n])
	if err != nil || len(messages) == 0 || messages[0].Header.Type != sockDiagByFamily || len(messages[0].Data) < diagMessageSize {
		return 0, fmt.Errorf("read from sock_diag: no answer for inode %d", inode)
	}
	return peerAttribute(messages[0].Data[diagMessageSize:]), nil
}

// diagRequest is a netlink message that asks for one Unix socket of any state by its inode.
func diagRequest(inode uint32) []byte {
	b := make([]byte, 0, unix.SizeofNlMsghdr+diagRequestSize)
	b = binary.NativeEndian.AppendUint32(b, unix.SizeofNlMsghdr+diagRequestSize)
	b = binary.NativeEndian.AppendUint16(b, sockDiagByFamily)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...)                 // sequence, port
	b = append(b, unix.AF_UNIX, 0, 0, 0)              // family, protocol, padding
	b = binary.NativeEndian.AppendUint32(b, 0xffffff) // states
	b = binary.NativeEndian.AppendUint32(b, inode)
	b = binary.NativeEndian.AppendUint32(b, diagShowPeer)
	return binary.NativeEndian.AppendUint64(b, ^uint64(0)) // any cookie
}

// peerAttribute finds the peer's inode among netlink attributes, or returns 0.
func peerAttribute(b []byte) uint64 {
	for len(b) >= unix.SizeofNlAttr {
		size, kind := binary.NativeEndian.Uint16(b), binary.NativeEndian.Uint16(b[2:])
		if int(size) < unix.SizeofNlAttr || int(size) > len(b) {
			return 0
		}
		if kind == diagPeer && size >= unix.SizeofNlAttr+uint16(unsafe.Sizeof(uint32(0))) {
			return uint64(binary.NativeEndian.Uint32(b[unix.SizeofNlAttr:]))
		}
		b = b[min((int(size)+3)&^3, len(b)):]
	}
	return 0
}

var _ syscall.Conn = (*net.UnixConn)(nil)
