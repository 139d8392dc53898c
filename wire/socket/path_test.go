package socket_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

func TestPathTakesTheFirstThatIsSaid(t *testing.T) {
	system := socket.SystemPath
	if os.Geteuid() != 0 {
		system = "/run/user/7/fairlead/broker.sock"
	}
	for _, test := range []struct{ name, explicit, variable, want string }{
		{"explicit", "/a/explicit.sock", "/a/variable.sock", "/a/explicit.sock"},
		{"the variable", "", "/a/variable.sock", "/a/variable.sock"},
		{"neither", "", "", system},
	} {
		t.Setenv(socket.Variable, test.variable)
		t.Setenv("XDG_RUNTIME_DIR", "/run/user/7")
		if got, err := socket.Path(test.explicit); err != nil || got != test.want {
			t.Errorf("%s: %s, %v, want %s", test.name, got, err, test.want)
		}
	}
	if got, err := socket.UserPath(); err != nil || got != "/run/user/7/fairlead/broker.sock" {
		t.Errorf("with a runtime folder: %s, %v", got, err)
	}
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", "/elsewhere")
	if got, err := socket.UserPath(); err != nil || got != fmt.Sprintf("/elsewhere/fairlead-%d/broker.sock", os.Geteuid()) {
		t.Errorf("without one: %s, %v", got, err)
	}
}

func TestAPathIsAsLongAsASocketCanBe(t *testing.T) {
	folder := t.TempDir()
	for size, ok := range map[int]bool{107: true, 108: false} {
		path := folder + "/" + strings.Repeat("s", size-len(folder)-1)
		if err := socket.CheckPath(path); (err == nil) != ok || err != nil && !errors.Is(err, wire.Malformed) {
			t.Errorf("%d bytes: %v", size, err)
		}
		if _, err := socket.Path(path); (err == nil) != ok {
			t.Errorf("%d bytes: %v", size, err)
		}
		l, err := net.Listen("unix", path) // the kernel agrees
		if (err == nil) != ok {
			t.Errorf("%d bytes: the kernel says %v", size, err)
		}
		if err == nil {
			l.Close()
		}
	}
}

// guard: checkFolder, and that Connect calls it before it connects.
func TestTheFolderOfASocketIsNobodyElses(t *testing.T) {
	root, err := os.MkdirTemp("", "socket-test") // whose path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	folder := func(name string, mode os.FileMode) string {
		path := filepath.Join(root, name)
		if err := errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link, file := filepath.Join(root, "link"), filepath.Join(root, "file")
	if err := errors.Join(os.Symlink(folder("target", 0o700), link), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, folder string
		ok, private  bool
	}{
		{"private", folder("private", 0o700), true, true},
		{"readable", folder("readable", 0o755), true, true},
		{"group-writable", folder("group", 0o770), false, false},
		{"world-writable", folder("world", 0o777), false, false},
		{"sticky", folder("sticky", 0o777|os.ModeSticky), true, false},
		{"not there", filepath.Join(root, "missing"), true, true},
		{"a link", link, false, false},
		{"a file", file, false, false},
	} {
		err := socket.CheckFolder(test.folder)
		if (err == nil) != test.ok || err != nil && !errors.Is(err, wire.NotPermitted) {
			t.Errorf("%s: %v, want it taken: %t", test.name, err, test.ok)
		}
		if err := socket.CheckPrivate(test.folder); (err == nil) != test.private {
			t.Errorf("%s: %v, want it private: %t", test.name, err, test.private)
		}
		path := filepath.Join(test.folder, "broker.sock")
		if _, _, err := socket.Connect(t.Context(), path); err == nil {
			t.Errorf("%s: connected to nothing", test.name)
		}
		l, err := net.Listen("unix", path)
		if err != nil {
			continue // there is no folder
		}
		conn, _, err := socket.Connect(t.Context(), path)
		if (err == nil) != test.ok || err != nil && !errors.Is(err, wire.NotPermitted) {
			t.Errorf("%s: a client connects to what listens there: %v, want it to: %t", test.name, err, test.ok)
		}
		if err == nil {
			conn.Close()
		}
		l.Close()
	}
}

func TestAFolderOfAnotherUserIsForRootToLookAtOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make the folder of another user")
	}
	folder := t.TempDir()
	if err := os.Chown(folder, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	for name, check := range map[string]func(string) error{"of a broker's own": socket.CheckFolder, "of its services": socket.CheckPrivate} {
		if err := check(folder); !errors.Is(err, wire.NotPermitted) || !strings.Contains(err.Error(), folder) {
			t.Errorf("the folder %s: %v, want %s and its name", name, err, wire.NotPermitted)
		}
	}
	if _, _, err := socket.Connect(t.Context(), filepath.Join(folder, "broker.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("connect: %v, want %v", err, os.ErrNotExist)
	}
}

func TestANameThatSaysThereIsNoBrokerSaysSo(t *testing.T) {
	leavesNothing(t)
	path := filepath.Join(t.TempDir(), "broker.sock")
	if _, _, err := socket.Connect(t.Context(), path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v, want %v", err, os.ErrNotExist)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	conn, uid, err := socket.Connect(t.Context(), path)
	if err != nil || int(uid) != os.Geteuid() {
		t.Fatalf("uid %d, %v, want %d", uid, err, os.Geteuid())
	}
	conn.Close()
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, _, err := socket.Connect(t.Context(), path); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a stale file: %v, want %v", err, syscall.ECONNREFUSED)
	}
}

// child returns this test's binary as a child with another uid.
func child(t *testing.T, binary, name string, uid uint32, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary)
	cmd.Env = append(append(os.Environ(), childVariable+"="+name, noSleep), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return cmd
}

// copied returns a copy of this test's binary that every user may run.
func copied(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "socket-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	b, err := os.ReadFile(os.Args[0])
	path := filepath.Join(folder, "child")
	if err := errors.Join(err, os.WriteFile(path, b, 0o755), os.Chmod(folder, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}

const (
	pathVariable = "FAIRLEAD_TEST_PATH"
	nobody       = 65534
)

// listen runs in a child: it listens and says so, until its input ends.
func listen() {
	l, err := net.Listen("unix", os.Getenv(pathVariable))
	if err != nil {
		fail("%v", err)
	}
	defer l.Close()
	if err := os.Chmod(os.Getenv(pathVariable), 0o777); err != nil {
		fail("%v", err)
	}
	fmt.Println("listening")
	os.Stdin.Read(make([]byte, 1))
}

// connect runs in a child: it says what becomes of a connection.
func connect() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, uid, err := socket.Connect(ctx, os.Getenv(pathVariable))
	fmt.Println(wire.CodeOf(err), uid)
	if conn != nil {
		conn.Close()
	}
}

func TestABrokerIsRootsOrTheUsersOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start brokers and clients of other users")
	}
	leavesNothing(t)
	binary := copied(t)
	for _, test := range []struct {
		name           string
		broker, client uint32
		want           string
	}{
		{"nobody's, asked by root", nobody, 0, " 65534"},
		{"nobody's, asked by nobody", nobody, nobody, " 65534"},
		{"root's, asked by nobody", 0, nobody, " 0"},
		{"another user's, asked by nobody", 1234, nobody, "not_permitted 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			folder, err := os.MkdirTemp("", "socket-test")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(folder) })
			if err := os.Chmod(folder, 0o777|os.ModeSticky); err != nil { // as /tmp is
				t.Fatal(err)
			}
			path := pathVariable + "=" + filepath.Join(folder, "broker.sock")
			broker := child(t, binary, "listen", test.broker, path)
			in, err := broker.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := broker.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := broker.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { in.Close(); broker.Wait() }()
			if n, err := out.Read(make([]byte, 100)); err != nil || n == 0 {
				t.Fatalf("the broker said nothing: %v", err)
			}
			said, err := child(t, binary, "connect", test.client, path).Output()
			if got := strings.TrimSuffix(string(said), "\n"); err != nil || got != test.want {
				t.Errorf("%q, %v, want %q", got, err, test.want)
			}
		})
	}
}

func TestThePeersUIDIsKnownAfterItHasClosed(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	a.Close()
	if uid, err := socket.PeerUID(b); err != nil || int(uid) != os.Geteuid() {
		t.Errorf("uid %d, %v", uid, err)
	}
}

func TestOnlyAUnixSocketIsTakenOver(t *testing.T) {
	leavesNothing(t)
	if _, err := socket.FromFile(files(t, 1)[0]); err == nil {
		t.Error("a file was taken for a connection")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := socket.FromFile(f); err == nil {
		t.Error("a TCP listener was taken for a Unix socket")
	}
	a, b := sockets(t)
	f, err = a.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := socket.FromFile(f)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	wantNext(t, c, b)
}

func TestAnInheritedDescriptorIsNotPassedOn(t *testing.T) {
	f := files(t, 1)[0]
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil {
		t.Fatal(err)
	}
	if err := socket.CloseOnExec(int(f.Fd())); err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
	if err := socket.CloseOnExec(1 << 20); !errors.Is(err, syscall.EBADF) {
		t.Errorf("a descriptor that is not open: %v, want %v", err, syscall.EBADF)
	}
}

// guard: UnmappedUser in isOwn and peerUser. To a client that is not mapped in its own user namespace, all users show as itself.
func TestAClientThatIsNotMappedTrustsItsOwnUserAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start brokers and clients of other users")
	}
	leavesNothing(t)
	binary := copied(t)
	const user, another = 1234, 4321
	for _, test := range []struct {
		name           string
		folder, broker uint32
		want           string // how what it says begins
	}{
		{"its own folder and broker", user, user, " "},
		{"another's folder", another, user, "not_permitted"},
		{"another's broker", user, another, "not_permitted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			folder, err := os.MkdirTemp("", "socket-test")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(folder) })
			if err := errors.Join(os.Chown(folder, int(test.folder), int(test.folder)), os.Chmod(folder, 0o777|os.ModeSticky)); err != nil {
				t.Fatal(err)
			}
			path := pathVariable + "=" + filepath.Join(folder, "broker.sock")
			broker := child(t, binary, "listen", test.broker, path)
			in, err := broker.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := broker.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := broker.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { in.Close(); broker.Wait() }()
			if n, err := out.Read(make([]byte, 100)); err != nil || n == 0 {
				t.Fatalf("the broker said nothing: %v", err)
			}
			client := child(t, "/usr/bin/unshare", "connect", user, path)
			client.Args = append(client.Args, "--user", binary)
			said, err := client.Output()
			if err != nil || !strings.HasPrefix(string(said), test.want) {
				t.Errorf("%q, %v, want %q", said, err, test.want)
			}
		})
	}
}
