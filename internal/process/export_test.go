package process

import "syscall"

// FromPeerByNumber is FromPeer as it works before Linux 6.5.
func FromPeerByNumber(conn syscall.RawConn) (*Handle, Cred, error) {
	return fromPeer(conn, peerPidfdByNumber)
}

// SameByNumber is Handle.Same as it works before Linux 6.9.
func SameByNumber(h, other *Handle) bool { return sameByNumber(h, other) }

// ParseStat returns what is read of a line of /proc/PID/stat.
func ParseStat(text []byte) (parent int, start uint64, err error) {
	st, err := parseStat(text)
	return st.parent, st.start, err
}
