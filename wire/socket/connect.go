package socket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/wire"
)

// Connect connects to the broker's socket, or where there is one to that for this user alone, see Door, after a check of its folder, and returns the uid that the broker runs as. It fails with
// wire.NotPermitted for a folder or a broker that may not be trusted: a broker is root's or this user's own, unless this user is root.
// Failures of the connection itself are those of the net package.
func Connect(ctx context.Context, path string) (conn *net.UnixConn, uid uint32, err error) {
	if err := checkFolder(filepath.Dir(path), os.Geteuid() == 0, true); err != nil { // root may look at anybody's broker
		return nil, 0, err
	}
	var d net.Dialer
	door := ownDoor(path)
	c, err := d.DialContext(ctx, "unix", door)
	if err != nil && door != path && !errors.Is(err, syscall.EAGAIN) { // its broker was killed, or it is closed in this moment
		c, err = d.DialContext(ctx, "unix", path)
	}
	if err != nil {
		return nil, 0, err
	}
	conn = c.(*net.UnixConn)
	uid, own, err := peerUser(conn)
	if err == nil && uid != 0 && !own && os.Geteuid() != 0 {
		err = wire.Errorf(wire.NotPermitted, "the broker at %s runs as uid %d: want this user or root", path, uid)
	}
	if err != nil {
		conn.Close()
		return nil, 0, err
	}
	return conn, uid, nil
}

// PeerUID returns the uid of the process at the other end of conn, which may have exited.
func PeerUID(conn *net.UnixConn) (uint32, error) {
	uid, _, err := peerUser(conn)
	return uid, err
}

// peerUser is PeerUID, and reports whether that user is this one.
func peerUser(conn *net.UnixConn) (uid uint32, own bool, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	cred, err := process.PeerCred(raw)
	if err != nil {
		return 0, false, fmt.Errorf("identify the broker: %w", err)
	}
	own = int(cred.UID) == os.Geteuid()
	if own && process.UnmappedUser(cred.UID) { // the number proves nothing
		h, _, _ := process.FromPeer(raw)
		own = h != nil && h.SameUser()
		h.Close()
	}
	return cred.UID, own, nil
}

// FromFile returns the Unix socket in f, which stays the caller's.
func FromFile(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("take over a connection: %w", err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, wire.Errorf(wire.Malformed, "take over a connection: it is not a Unix socket")
	}
	return conn, nil
}

// WriteFirst writes the first frame of a connection. A peer that has answered without reading it, and closed, is no error: its answer can be read.
func WriteFirst(conn *net.UnixConn, f wire.Frame) error {
	err := WriteFrame(conn, f)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	return err
}
