package socket_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire/socket"
)

// listenAt listens at a path, and returns a descriptor of the socket.
func listenAt(t *testing.T, path string, backlog int) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, backlog))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// shortFolder makes a folder of a path to which a socket's name fits.
func shortFolder(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "socket-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	return folder
}

// waits reports whether somebody waits in a listening socket's queue.
func waits(t *testing.T, fd int) bool {
	t.Helper()
	got, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
	if err == unix.EAGAIN {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(got)
	return true
}

func TestAClientWaitsAtTheSocketOfItsUserIfItCan(t *testing.T) {
	for _, test := range []struct {
		name string
		set  func(t *testing.T, door string) (fd int) // 0: nobody listens there
		own  bool                                     // it connects there
	}{
		{"there is none", func(*testing.T, string) int { return 0 }, false},
		{"there is one", func(t *testing.T, door string) int { return listenAt(t, door, 10) }, true},
		{"the broker that made it was killed", func(t *testing.T, door string) int {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: door, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			l.Close()
			return 0
		}, false},
		{"others could have made it", func(t *testing.T, door string) int {
			if err := os.Chmod(filepath.Dir(door), 0o777); err != nil {
				t.Fatal(err)
			}
			return listenAt(t, door, 10)
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(shortFolder(t), "b.sock")
			door := socket.Door(path, uint32(os.Geteuid()))
			if err := os.Mkdir(filepath.Dir(door), 0o755); err != nil {
				t.Fatal(err)
			}
			everybodys, own := listenAt(t, path, 10), test.set(t, door)
			conn, _, err := socket.Connect(context.Background(), path)
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
			if own != 0 && waits(t, own) != test.own {
				t.Errorf("it waits at the user's socket: %v, want %v", !test.own, test.own)
			}
			if waits(t, everybodys) == test.own {
				t.Errorf("it waits at everybody's: %v, want %v", test.own, !test.own)
			}
		})
	}
}

// A user who floods the broker is in nobody's way but its own.
func TestAClientWhoseUsersQueueIsFullDoesNotTakeAPlaceOfOthers(t *testing.T) {
	path := filepath.Join(shortFolder(t), "b.sock")
	door := socket.Door(path, uint32(os.Geteuid()))
	if err := os.Mkdir(filepath.Dir(door), 0o755); err != nil {
		t.Fatal(err)
	}
	everybodys := listenAt(t, path, 10)
	listenAt(t, door, 0) // room for one, see listen(2)
	conn, _, err := socket.Connect(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, _, err := socket.Connect(context.Background(), path); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the second: %v, want %v", err, unix.EAGAIN)
	}
	if waits(t, everybodys) {
		t.Error("somebody waits at everybody's")
	}
}

// guard: ownDoor. Root looks at anybody's broker, but one that is not the broker at the path it has named is none that it has asked for.
func TestRootIsNotLedAwayFromABrokerInAFolderOfEverybodys(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make what belongs to another user")
	}
	for name, test := range map[string]struct {
		mode os.FileMode // of the folder that the broker's socket is in
		own  bool
	}{
		"where everybody can make a folder, as in /tmp":   {0o777 | os.ModeSticky, false},
		"where only root can, at another user's broker's": {0o755, true},
	} {
		t.Run(name, func(t *testing.T) {
			folder := shortFolder(t)
			path := filepath.Join(folder, "b.sock")
			door := socket.Door(path, 0)
			err := errors.Join(os.Chmod(folder, test.mode), os.Mkdir(filepath.Dir(door), 0o755), os.Chown(filepath.Dir(door), nobody, nobody))
			if err != nil {
				t.Fatal(err)
			}
			everybodys, own := listenAt(t, path, 10), listenAt(t, door, 10)
			conn, _, err := socket.Connect(context.Background(), path)
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
			if waits(t, own) != test.own || waits(t, everybodys) == test.own {
				t.Errorf("it waits at the socket that another user has made: %v, want %v", !test.own, test.own)
			}
		})
	}
}
