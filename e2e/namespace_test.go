package e2e_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/services/network"
)

// playKnocker opens a session with the broker, or with the endpoint of its argument, says what became of that, and keeps it until its standard input ends. With the argument
// register it serves something, and with lease it asks for a lease.
func playKnocker(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	endpoint := broker.Endpoint
	switch {
	case len(args) > 0 && args[0] == "register":
		mux := services.NewMux()
		fmt.Println("refused:", services.Server{Endpoints: map[string]*services.Mux{targetEndpoint: mux}, Ready: func() { fmt.Println("registered") }}.Serve(ctx))
		return nil
	case len(args) > 0 && args[0] == "lease":
		endpoint = network.Endpoint
	case len(args) > 0:
		endpoint = args[0]
	}
	s, err := client.Dial(ctx, endpoint, client.Options{NoWait: true})
	if err == nil && endpoint == network.Endpoint {
		_, err = network.Allocate(ctx, s, network.Request{})
	}
	if err != nil {
		fmt.Println("refused:", err)
		return nil
	}
	fmt.Println("opened")
	_, err = io.Copy(io.Discard, os.Stdin)
	s.Close()
	return err
}

// copied returns a copy of this test's program that every user can read.
func (w *world) copied() string {
	w.t.Helper()
	path := filepath.Join(w.dir, "copy")
	program, err := os.ReadFile(self())
	if err == nil {
		if _, there := os.Stat(path); there == nil {
			return path
		}
		err = os.WriteFile(path, program, 0o755)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return path
}

// knock starts a knocker and returns it and what it says.
func (w *world) knock(attr *syscall.SysProcAttr, args ...string) (*process, string) {
	w.t.Helper()
	cmd := exec.Command(w.copied(), args...)
	cmd.Env = []string{roleVariable + "=knocker"}
	cmd.SysProcAttr = attr
	p := w.start(cmd)
	return p, p.stdout.next(w.t)
}

// guard: UnmappedUser and UnmappedGroup in identify of the broker, and UnmappedUser in isOwn and peerUser of wire/socket. Each namespace is a real one.
func TestAUserThatIsNotMappedIsNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes root to play other users")
	}
	one := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	both := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 65534, HostID: 65534, Size: 1}}
	stranger := func(id uint32) *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
	}
	for name, maps := range map[string][]syscall.SysProcIDMap{"root alone is mapped": one, "root and nobody are mapped": both} {
		t.Run("a broker, "+name, func(t *testing.T) {
			w := newWorld(t)
			os.Chmod(w.dir, 0o755)
			cmd := w.serve()
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: maps, GidMappings: maps}
			w.broker = w.start(cmd)
			w.broker.stderr.await(t, "broker started")
			for _, id := range []uint32{1234, 65534} {
				if _, said := w.knock(stranger(id)); !strings.Contains(said, "not mapped in the broker's user namespace") {
					t.Errorf("uid %d: %q", id, said)
				}
			}
			if _, said := w.knock(nil); said != "opened" {
				t.Errorf("root, which is mapped: %q", said)
			}
		})
	}
	t.Run("a broker that is itself not mapped", func(t *testing.T) {
		w := newWorld(t)
		os.Chmod(w.dir, 0o755)
		cmd := w.serve()
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
		w.broker = w.start(cmd)
		w.broker.stderr.await(t, "broker started")
		if _, said := w.knock(stranger(1234)); !strings.Contains(said, "not mapped in the broker's user namespace") {
			t.Errorf("another user: %q", said)
		}
		if _, said := w.knock(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}); said != "opened" {
			t.Errorf("its own user, which is not mapped either: %q", said)
		}
	})
	t.Run("clients that are themselves not mapped", func(t *testing.T) {
		w := newWorld(t)
		os.Chmod(w.dir, 0o755)
		w.startBroker()
		if _, said := w.knock(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}); said != "opened" {
			t.Errorf("of the broker's user: %q", said)
		}
		// A process of another user that then makes a namespace: to it root shows as itself.
		cmd := exec.Command("unshare", "--user", w.copied())
		cmd.Env = []string{roleVariable + "=knocker"}
		cmd.SysProcAttr = stranger(1234)
		if said := w.start(cmd).stdout.next(t); !strings.Contains(said, "not_permitted") {
			t.Errorf("of another user: %q", said)
		}
	})
	t.Run("a group that is not mapped", func(t *testing.T) {
		w := newWorld(t)
		os.Chmod(w.dir, 0o755)
		file := fmt.Sprintf("name = %q\nprogram = [\"/usr/bin/env\", %q, %q]\n[allow]\nopen = [\"gid:65534\"]\n", echoEndpoint, roleVariable+"=server", self())
		if err := os.WriteFile(filepath.Join(w.config(), "services.d", "echo.toml"), []byte(file), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := w.serve()
		users := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 1234, HostID: 1234, Size: 1}}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: users, GidMappings: one}
		w.broker = w.start(cmd)
		w.broker.stderr.await(t, "broker started")
		for what, as := range map[string]syscall.Credential{"its own": {Uid: 1234, Gid: 777}, "supplementary": {Uid: 1234, Gid: 0, Groups: []uint32{777}}} {
			if _, said := w.knock(&syscall.SysProcAttr{Credential: &as}, echoEndpoint); !strings.Contains(said, "not_permitted") {
				t.Errorf("%s, and a rule names what it is shown as: %q", what, said)
			}
		}
	})
	t.Run("a broker whose namespace maps all users serves nobody as any user", func(t *testing.T) {
		w := newWorld(t)
		os.Chmod(w.dir, 0o755)
		w.startBroker()
		if _, said := w.knock(stranger(65534)); said != "opened" {
			t.Errorf("%q", said)
		}
	})
}

// guard: identify of the broker takes who has no number, newInstance and identify of the network service refuse it, and the instance's watch of the pidfd.
func TestAClientWithoutANumberInTheBrokersPIDNamespaceIsKnownByItsHandle(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes root to mount a /proc")
	}
	w := newWorld(t, one)
	serve := w.serve()
	cmd := exec.Command("/bin/sh", append([]string{"-c", `mount -t proc proc /proc && exec "$@"`, "sh"}, serve.Args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	w.broker = w.start(cmd)
	w.broker.stderr.await(t, "broker started")
	p, said := w.knock(nil)
	if said != "opened" {
		t.Fatalf("%q", said)
	}
	for what, want := range map[string]string{ // each asks what cannot be known: whose instance or lease it would be
		"register": "a process in a pid namespace that cannot be seen from here may not",
		"lease":    "in a pid namespace that the network service cannot see into",
	} {
		if _, said := w.knock(nil, what); !strings.Contains(said, want) {
			t.Errorf("%s: %q, want %q", what, said, want)
		}
	}
	open := func() (n int) {
		out, _, _ := w.ctl("session", "list", "--json")
		return strings.Count(out, `"pid": 0`) + strings.Count(out, `"pid":0`)
	}
	with := open()
	p.kill()
	eventually(t, "the session has ended with its client", func() bool { return open() < with })
}
