package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/internal/pace"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// A door is a socket that the broker listens at, with its queue of connections. One is for everybody: the kernel has a single queue for each socket, so whoever floods it is in
// everybody's way. So each user who has been let in has another one, at which only that user and root can connect, and waits there behind nobody else.
type door struct {
	file    *os.File        // the socket
	raw     syscall.RawConn // of file
	reserve *os.File        // given up to turn a client away when there are no descriptors left; nil: something else has taken its place
	done    chan struct{}   // closed when nothing more is accepted
	once    sync.Once       // of that
	used    atomic.Int64    // when somebody was let in last, in Unix nanoseconds

	brake pace.Brake // of refusals; only who accepts uses it
}

// newDoor makes a door of a listener, which stays its maker's.
func newDoor(l *net.UnixListener) (*door, error) {
	d := &door{done: make(chan struct{}), brake: pace.Brake{Most: refusals, Each: refusing}}
	var err error
	if d.file, err = l.File(); err != nil { // the net package accepts connections of its own alone
		return nil, fmt.Errorf("listen: %w", err)
	}
	socket.PassRights(d.file, false) // the broker takes none of anybody, so that nobody can have it wait for the close of one
	if d.raw, err = d.file.SyscallConn(); err == nil {
		d.reserve, err = os.Open(os.DevNull)
	}
	if err != nil {
		d.file.Close()
		return nil, fmt.Errorf("listen: %w", err)
	}
	return d, nil
}

// stop stops accepting. Who waits in the queue is told by the kernel, when the last descriptor of the socket is closed.
func (d *door) stop() {
	d.once.Do(func() {
		close(d.done)
		d.file.Close()
	})
}

func (d *door) stopped() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// Those who flood a door have 1,500 refusals a second of it, which costs some 5 % of a processor's time, and else they wait, so that the broker has the time for other doors. Who comes to
// everybody's for the first time meanwhile may have up to 4,096 before it, the most that the kernel has wait (net.core.somaxconn), and so waits 3 s at most.
const (
	refusals = 15
	refusing = 10 * time.Millisecond
)

// Doors are those of users of their own.
type doors struct {
	folder string
	most   int

	mu     sync.Mutex
	open   map[uint32]*door
	closed bool // there are none, and none is opened
}

// newDoors makes the folder of the doors beside a broker's socket, and removes the sockets that a broker that was killed has left there. A broker with few descriptors has
// none, and needs them otherwise.
func newDoors(path string, most int) (*doors, error) {
	ds := &doors{folder: filepath.Dir(socket.Door(path, 0)), most: most, open: map[uint32]*door{}, closed: most <= 0}
	if ds.closed {
		return ds, nil
	}
	err := socket.CheckPath(socket.Door(path, unknownUID)) // the longest
	if err == nil {
		_, err = ds.prepare()
	}
	if err != nil {
		ds.closed = true
		return ds, fmt.Errorf("make the folder of users' sockets: %w", err)
	}
	left, _ := os.ReadDir(ds.folder)
	for _, e := range left {
		if e.Type() == fs.ModeSocket {
			os.Remove(filepath.Join(ds.folder, e.Name()))
		}
	}
	return ds, nil
}

// prepare makes the folder, or checks that it is still one in which nobody else can put anything: what is at a path in another's could be a link by the time its owner is changed. It
// reports whether the folder was not there.
func (ds *doors) prepare() (made bool, err error) {
	if err := socket.CheckFolder(filepath.Dir(ds.folder)); err != nil {
		return false, err
	}
	err = os.Mkdir(ds.folder, 0o755)
	made = err == nil
	if errors.Is(err, fs.ErrExist) {
		err = socket.CheckPrivate(ds.folder)
	}
	if err == nil {
		err = os.Chmod(ds.folder, 0o755) // whatever the umask is
	}
	return made, err
}

// enter notes that a user was let in, and returns a door that it has opened for that user; nil: there is one, or there can be none.
func (ds *doors) enter(uid uint32) (opened *door, err error) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	d := ds.open[uid]
	if d == nil && !ds.closed && (len(ds.open) < ds.most || ds.closeOldestLocked() || operates(uid)) {
		if opened, err = ds.openLocked(uid); err != nil {
			return nil, err
		}
		d, ds.open[uid] = opened, opened
	}
	if d != nil {
		d.used.Store(time.Now().UnixNano())
	}
	return opened, nil
}

// openLocked opens a door for a user. If somebody has removed the folder it is made again, and those who had a door in it get another one when they come next.
func (ds *doors) openLocked(uid uint32) (*door, error) {
	made, err := ds.prepare()
	if err != nil {
		return nil, fmt.Errorf("listen for uid %d: %w", uid, err)
	}
	if made {
		for other, d := range ds.open {
			ds.closeLocked(other, d)
		}
	}
	return listenFor(uid, ds.path(uid))
}

func (ds *doors) path(uid uint32) string {
	return filepath.Join(ds.folder, strconv.FormatUint(uint64(uid), 10))
}

// operates reports whether a user is root or the broker's own, whose doors nobody else can have closed: so an operator gets in.
func operates(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// closeOldestLocked closes the door whose user was let in longest ago, if there is one that may be closed, and reports that. That user has everybody's, and a new one from then on.
func (ds *doors) closeOldestLocked() bool {
	var oldest *door
	var of uint32
	for uid, d := range ds.open {
		if !operates(uid) && (oldest == nil || d.used.Load() < oldest.used.Load()) {
			oldest, of = d, uid
		}
	}
	if oldest != nil {
		ds.closeLocked(of, oldest)
	}
	return oldest != nil
}

func (ds *doors) closeLocked(uid uint32, d *door) {
	delete(ds.open, uid)
	if socket.CheckPrivate(ds.folder) == nil {
		os.Remove(ds.path(uid))
	}
	d.stop()
}

// close closes all of them, and removes them.
func (ds *doors) close() {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	for uid, d := range ds.open {
		ds.closeLocked(uid, d)
	}
	if !ds.closed {
		os.Remove(ds.folder)
	}
	ds.closed = true
}

// listenFor listens at a path for a user. Nobody but the broker's user can make anything there. Who connects before the owner is changed waits in that user's queue, and is who the
// kernel says it is.
func listenFor(uid uint32, path string) (*door, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for uid %d: %w", uid, err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	err = os.Chmod(path, 0o600)
	if err == nil && uid != 0 && int(uid) != os.Geteuid() { // root needs no leave
		err = os.Chown(path, int(uid), -1)
	}
	var d *door
	if err == nil {
		d, err = newDoor(l)
	}
	if err != nil {
		os.Remove(path)
		return nil, fmt.Errorf("listen for uid %d: %w", uid, err)
	}
	return d, nil
}
