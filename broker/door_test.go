package broker_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// connectOnce connects to the path that its argument is, and prints how that went.
func connectOnce() {
	conn, err := net.Dial("unix", os.Getenv(argumentVariable))
	if err == nil {
		conn.Close()
	}
	fmt.Println(err)
}

// strangerConnects has a stranger connect at everybody's socket.
func strangerConnects(t *testing.T, at string) {
	t.Helper()
	if got := playWith(t, asStranger(t), "connects", at, at).line(t); got != "<nil>" {
		t.Fatalf("a stranger connects: %s", got)
	}
}

// guard: serveAt and letIn open a socket for each user.
func TestAUserWhoWasLetInHasASocketOfItsOwn(t *testing.T) {
	needsRoot(t)
	b := brokertest.Start(t)
	must(t, os.Chmod(filepath.Dir(b.Socket), 0o755))
	theirs, folder := socket.Door(b.Socket, nobody), filepath.Dir(socket.Door(b.Socket, 0))
	until(t, "root has one", func() bool { _, err := os.Lstat(socket.Door(b.Socket, 0)); return err == nil })
	if _, err := os.Lstat(theirs); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a user who never came: %v, want no socket", err)
	}
	strangerConnects(t, b.Socket)
	until(t, "the stranger has one, which belongs to it and is nobody else's", func() bool {
		info, err := os.Lstat(theirs)
		return err == nil && info.Mode() == fs.ModeSocket|0o600 && info.Sys().(*syscall.Stat_t).Uid == nobody
	})
	for _, test := range []struct {
		name, path string
		uid        uint32
		want       string
	}{
		{"the stranger at its own", theirs, nobody, "<nil>"},
		{"the stranger at root's", socket.Door(b.Socket, 0), nobody, "dial unix " + socket.Door(b.Socket, 0) + ": connect: permission denied"},
		{"another stranger at the first one's", theirs, nobody - 1, "dial unix " + theirs + ": connect: permission denied"},
	} {
		cmd := asStranger(t)
		cmd.SysProcAttr.Credential.Uid = test.uid
		if got := playWith(t, cmd, "connects", test.path, b.Socket).line(t); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
	b.Stop()
	if _, err := os.Lstat(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of a broker that was stopped: %v, want none", err)
	}
}

func TestAClientConnectsAtTheSocketOfItsOwn(t *testing.T) {
	b := brokertest.Start(t)
	until(t, "there is one", func() bool { _, err := os.Lstat(socket.Door(b.Socket, uint32(os.Geteuid()))); return err == nil })
	away := b.Socket + ".away"
	must(t, os.Rename(b.Socket, away))
	defer os.Rename(away, b.Socket)
	if status := ask[broker.Status](t, b, broker.MethodStatus, nil); status.PID != os.Getpid() {
		t.Errorf("%+v", status)
	}
}

// guard: closeOldestLocked.
func TestAgainstManyUsersThoseWhoCameLastKeepTheirSockets(t *testing.T) {
	needsRoot(t)
	for _, test := range []struct {
		name string
		most int
		came []uint32
		want []string
	}{
		{"the latest", 3, []uint32{10, 11, 12, 10, 13, 14}, []string{"10", "13", "14"}},
		{"and root, however long ago it came", 3, []uint32{0, 10, 11, 12, 13}, []string{"0", "12", "13"}},
		{"root alone, where there are no descriptors for more", 1, []uint32{0, 10, 11}, []string{"0"}},
		{"nobody where there are few descriptors", 0, []uint32{0, 10}, nil},
	} {
		left, err := broker.OpenDoors(brokertest.Socket(t), test.most, test.came...)
		if must(t, err); !slices.Equal(left, test.want) {
			t.Errorf("%s: sockets of %v, want %v", test.name, left, test.want)
		}
	}
}

// guard: CheckPrivate in prepare.
func TestAHostileFolderOfUsersSocketsIsLeftAlone(t *testing.T) {
	for name, set := range map[string]func(x trap, folder string) error{
		"a link": func(x trap, folder string) error { return os.Symlink(x.folder, folder) },
		"a folder others can write": func(_ trap, folder string) error {
			return errors.Join(os.Mkdir(folder, 0o777), os.Chmod(folder, 0o777))
		},
		"a sticky folder, like /tmp's": func(_ trap, folder string) error {
			return errors.Join(os.Mkdir(folder, 0o777), os.Chmod(folder, 0o777|fs.ModeSticky))
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := setTrap(t)
			folder := filepath.Dir(socket.Door(x.socket, 0))
			must(t, set(x, folder))
			defer os.Remove(folder)
			b := brokertest.StartWith(t, broker.Config{Socket: x.socket})
			ask[broker.Status](t, b, broker.MethodStatus, nil)
			if entries, err := os.ReadDir(folder); err != nil || len(entries) > 0 {
				t.Errorf("in it: %v, %v", entries, err)
			}
			x.untouched(t)
		})
	}
}

// guard: prepare in openLocked. What is at a path in another's folder could be a link by the time its owner is changed.
func TestAFolderOfUsersSocketsThatIsReplacedWhileTheBrokerRunsGetsNone(t *testing.T) {
	needsRoot(t)
	for name, set := range map[string]func(x trap, folder string) error{
		"a link": func(x trap, folder string) error { return os.Symlink(x.folder, folder) },
		"another user's folder": func(_ trap, folder string) error {
			return errors.Join(os.Mkdir(folder, 0o755), os.Chown(folder, nobody, nobody))
		},
		"the folder above, which is another user's now": func(_ trap, folder string) error {
			return os.Chown(filepath.Dir(folder), nobody, nobody)
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := setTrap(t)
			must(t, os.Chmod(filepath.Dir(x.socket), 0o755))
			folder := filepath.Dir(socket.Door(x.socket, 0))
			b := brokertest.StartWith(t, broker.Config{Socket: x.socket})
			until(t, "root has one", func() bool { _, err := os.Lstat(socket.Door(x.socket, 0)); return err == nil })
			must(t, os.RemoveAll(folder), set(x, folder))
			strangerConnects(t, x.socket)
			ask[broker.Status](t, b, broker.MethodStatus, nil) // behind the stranger
			if entries, err := os.ReadDir(folder); !errors.Is(err, fs.ErrNotExist) && (err != nil || len(entries) > 0) {
				t.Errorf("in it: %v, %v", entries, err)
			}
			b.Stop()
			x.untouched(t)
		})
	}
}

func TestAFolderOfUsersSocketsThatIsRemovedIsMadeAgain(t *testing.T) {
	needsRoot(t)
	b := brokertest.Start(t)
	must(t, os.Chmod(filepath.Dir(b.Socket), 0o755))
	has := func(uid uint32) bool { _, err := os.Lstat(socket.Door(b.Socket, uid)); return err == nil }
	until(t, "root has one", func() bool { return has(0) })
	must(t, os.RemoveAll(filepath.Dir(socket.Door(b.Socket, 0))))
	strangerConnects(t, b.Socket)
	until(t, "the stranger has one", func() bool { return has(nobody) })
	ask[broker.Status](t, b, broker.MethodStatus, nil)
	until(t, "root has another one", func() bool { return has(0) })
}

// accept gives up the descriptor in reserve and makes another one: that is the one to close.
func TestADoorThatWasShortOfDescriptorsLeavesNoneOpen(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which closes what was forgotten
	before := nulls(t)
	b := brokertest.Start(t)
	own := socket.Door(b.Socket, uint32(os.Geteuid()))
	until(t, "there is a socket of its own", func() bool { _, err := os.Lstat(own); return err == nil })
	restore := leaving(t, 1)
	conn, err := net.Dial("unix", own) // the broker has none for it, and turns it away
	if err == nil {
		err = answer(conn.(*net.UnixConn))
		conn.Close()
	}
	restore()
	if !errors.Is(err, wire.OverQuota) {
		t.Errorf("who comes while there are none: %v, want %v", err, wire.OverQuota)
	}
	b.Stop()
	if after := nulls(t); after != before {
		t.Errorf("%d descriptors of %s are open, and %d were before the broker was started", after, os.DevNull, before)
	}
}

// nulls returns how many descriptors of the null device this process has.
func nulls(t *testing.T) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, e := range entries {
		if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); to == os.DevNull {
			n++
		}
	}
	return n
}

// Otherwise the folder of the next broker could be removed under it.
func TestWhenABrokerHasStoppedItsUsersSocketsAreGone(t *testing.T) {
	at := brokertest.Socket(t)
	for range 50 {
		b, err := broker.New(broker.Config{Socket: at})
		must(t, err)
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- b.Serve(ctx) }()
		until(t, "there is a socket of root's", func() bool { _, err := os.Lstat(socket.Door(at, 0)); return err == nil })
		stop()
		must(t, arrives(t, "the broker's end", served))
		if _, err := os.Lstat(filepath.Dir(socket.Door(at, 0))); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("the folder of a broker that was stopped: %v, want none", err)
		}
	}
}

// The folder may be somebody's own who has never heard of a broker.
func TestWhatIsNoSocketInTheFolderOfUsersSocketsStays(t *testing.T) {
	at := brokertest.Socket(t)
	folder := filepath.Dir(socket.Door(at, 0))
	stale := filepath.Join(folder, "77")
	must(t, os.Mkdir(folder, 0o700), os.WriteFile(filepath.Join(folder, "file"), []byte("precious"), 0o600))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
	b := brokertest.StartWith(t, broker.Config{Socket: at})
	if _, err := os.Lstat(stale); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket of a broker that was killed: %v, want none", err)
	}
	b.Stop()
	if text, err := os.ReadFile(filepath.Join(folder, "file")); err != nil || string(text) != "precious" {
		t.Errorf("a file: %q, %v", text, err)
	}
}
