package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// A listener is the broker's socket, the door for everybody. Whoever holds the lock beside it owns the path; the lock file is never removed.
type listener struct {
	*net.UnixListener
	*door // the same
	path  string
	lock  *os.File
}

// listen takes the socket's path over and listens, or uses the listener given, which stays its maker's. It fails with wire.Conflict while another broker
// holds the path.
func listen(path string, given *net.UnixListener) (*listener, error) {
	if err := socket.CheckPath(path); err != nil {
		return nil, err
	}
	mode := fs.FileMode(0o700)
	if path == socket.SystemPath {
		mode = 0o755
	}
	// One folder at most: a mistyped path is no wish for a tree.
	if err := os.Mkdir(filepath.Dir(path), mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the folder of the broker's socket: %w", err)
	}
	if err := socket.CheckFolder(filepath.Dir(path)); err != nil {
		return nil, err
	}
	lock, err := patientLock(path + ".lock")
	if errors.Is(err, wire.Conflict) {
		return nil, wire.Errorf(wire.Conflict, "another broker runs at %s: it holds %s.lock", path, path)
	}
	if err != nil {
		return nil, err
	}
	l := given
	if l != nil {
		l.SetUnlinkOnClose(false)
	} else if l, err = bind(path); err != nil {
		lock.Close()
		return nil, err
	}
	d, err := newDoor(l)
	if err != nil {
		lock.Close()
		l.Close()
		return nil, err
	}
	return &listener{UnixListener: l, door: d, path: path, lock: lock}, nil
}

// bind replaces a stale socket, which the lock proves it to be.
func bind(path string) (*net.UnixListener, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("look at the broker's socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return nil, wire.Errorf(wire.Conflict, "%s is not a socket: remove it, or choose another path", path)
	default:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove a stale socket: %w", err)
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	// Who may do what is decided by credentials. The umask, which is the process's, has taken bits from whatever mode was set before bind; nobody else can
	// replace what is at the path meanwhile.
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, fmt.Errorf("let others connect to the broker's socket: %w", err)
	}
	return l, nil
}

// Lock locks a file in the folder of a broker's services, which it makes, for as long as the returned file, or a copy of its descriptor, stays open; see
// LockPath. It fails with wire.Conflict if the lock is held, and with wire.NotPermitted if others can write the folder.
func Lock(path string) (*os.File, error) {
	if err := makePrivate(filepath.Dir(path)); err != nil {
		return nil, err
	}
	return lockFile(path)
}

// makePrivate makes the folder of the services, or checks that others cannot write it, nor put another in its place.
func makePrivate(folder string) error {
	if err := socket.CheckFolder(filepath.Dir(folder)); err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("make the folder of the services: %w", err)
	}
	return socket.CheckPrivate(folder)
}

// patientLock is lockFile, and waits a moment where the lock is held: a broker that was killed while it started a process leaves it to that process until it has
// executed its program.
func patientLock(path string) (*os.File, error) {
	for until := time.Now().Add(lockWait); ; time.Sleep(lockPoll) {
		f, err := lockFile(path)
		if !errors.Is(err, wire.Conflict) || time.Now().After(until) {
			return f, err
		}
	}
}

// lockFile opens and locks a file of this user, which it makes. It follows no link.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open a lock: %w", err)
	}
	if info, err := f.Stat(); err != nil || !ownRegular(info) {
		f.Close()
		return nil, wire.Errorf(wire.NotPermitted, "lock %s is not a file of this user's: remove it", path)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, wire.Errorf(wire.Conflict, "lock %s is held by another process", path)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

func ownRegular(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode().IsRegular() && int(stat.Uid) == os.Geteuid()
}

// lockWait is how long a broker waits for the lock of one that is going.
const lockWait = time.Second

// stop stops listening: accept fails.
func (l *listener) stop() {
	l.door.stop()
	l.UnixListener.Close() // also removes the socket, if it is the broker's own
}

// close stops listening and gives the path up.
func (l *listener) close() {
	l.stop()
	l.reserve.Close()
	l.lock.Close()
}
