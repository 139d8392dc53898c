package process

import "syscall"

// FromPeerByNumber is FromPeer as it works before Linux 6.5.
func FromPeerByNumber(conn syscall.RawConn) (*Handle, Cred, error) {
	return fromPeer(conn, peerPidfdByNumber)
}

// SameByNumber is Handle.Same as it works before Linux 6.9.
func SameByNumber(h, other *Handle) bool { return sameByNumber(h, other) }
