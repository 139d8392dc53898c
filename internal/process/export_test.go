package process

import "syscall"

// FromPeerByNumber is FromPeer as it works before Linux 6.5.
func FromPeerByNumber(conn syscall.RawConn) (*Handle, Cred, error) {
	return fromPeer(conn, peerPidfdByNumber)
}
