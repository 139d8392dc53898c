package main_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
)

// A manager is systemd's end of sd_notify(3).
type manager struct {
	t    *testing.T
	conn *net.UnixConn
}

func newManager(t *testing.T, path string) *manager {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &manager{t: t, conn: conn}
}

// next returns the lines of the next message.
func (m *manager) next() []string {
	m.t.Helper()
	b := make([]byte, 4096)
	m.conn.SetReadDeadline(time.Now().Add(patience))
	n, err := m.conn.Read(b)
	if err != nil {
		m.t.Fatalf("brokerd says nothing: %v", err)
	}
	return strings.Split(string(b[:n]), "\n")
}

// want checks the next messages, which have one line each.
func (m *manager) want(texts ...string) {
	m.t.Helper()
	for _, text := range texts {
		if got := m.next(); len(got) != 1 || got[0] != text {
			m.t.Errorf("brokerd says %q, want %q", got, text)
		}
	}
}

func monotonic(t *testing.T) int64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return now.Nano() / 1000
}

func TestSystemdIsToldWhenTheBrokerServesReloadsAndStops(t *testing.T) {
	p := newPlace(t)
	p.write("a.toml", `name = "com.example.a"`)
	m := newManager(t, filepath.Join(p.dir, "notify"))
	argv := p.command()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = []string{"NOTIFY_SOCKET=" + filepath.Join(p.dir, "notify")}
	d := start(t, cmd)
	m.want("STATUS=2 services", "READY=1")
	p.dial(broker.Endpoint)

	p.write("b.toml", `name = "com.example.b"`)
	p.write("c.toml", "nonsense")
	before := monotonic(t)
	d.cmd.Process.Signal(syscall.SIGHUP)
	got := m.next()
	at, err := int64(0), errors.New("no time")
	if len(got) == 2 {
		at, err = strconv.ParseInt(strings.TrimPrefix(got[1], "MONOTONIC_USEC="), 10, 64)
	}
	if got[0] != "RELOADING=1" || err != nil || at < before || at > monotonic(t) {
		t.Errorf("brokerd says %q (%v), want RELOADING=1 and the time", got, err)
	}
	m.want("STATUS=3 services, 1 skipped", "READY=1")
	d.cmd.Process.Signal(syscall.SIGTERM)
	m.want("STOPPING=1")
	if code := d.exit(); code != 0 {
		t.Errorf("brokerd exits %d", code)
	}
}

func TestTheBrokerServesWhereSystemdDoesNotListen(t *testing.T) {
	p := newPlace(t)
	argv := p.command()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = []string{"NOTIFY_SOCKET=" + filepath.Join(p.dir, "nobody")}
	d := start(t, cmd)
	d.await("systemd was not told", 1)
	p.dial(broker.Endpoint)
	d.stop()
}

// activate starts a broker with descriptors as systemd passes them on.
func (p *place) activate(files ...*os.File) *daemon {
	p.t.Helper()
	script := fmt.Sprintf(`export LISTEN_PID=$$ LISTEN_FDS=%d LISTEN_FDNAMES=fairlead.socket NOTIFY_SOCKET=%s; exec "$0" "$@"`, len(files), filepath.Join(p.dir, "notify"))
	cmd := exec.Command("/bin/sh", append([]string{"-c", script}, p.command()...)...)
	cmd.ExtraFiles = files
	return start(p.t, cmd)
}

// listen listens at a path as systemd does: the socket is there whoever serves it.
func listen(t *testing.T, network, path string) *os.File {
	t.Helper()
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestASocketOfSystemdsIsServedAndKept(t *testing.T) {
	p := newPlace(t)
	newManager(t, filepath.Join(p.dir, "notify"))
	seen := filepath.Join(p.dir, "seen")
	p.write("look.toml", fmt.Sprintf("name = 'com.example.look'\nrun_at_load = true\nprogram = ['/bin/sh', '-c', '{ env; ls /proc/$$/fd; echo all; } >%s; exec sleep 1000']\n", seen))
	f := listen(t, "unix", p.socket)
	for round := range 2 { // what comes while there is no broker waits for the next
		early := make(chan error, 1)
		go func() {
			s, err := client.Dial(within(t), broker.Endpoint, p.options())
			if err == nil {
				s.Close()
			}
			early <- err
		}()
		d := p.activate(f)
		if err := <-early; err != nil {
			t.Errorf("round %d: a client that came early: %v", round, err)
		}
		if round == 0 {
			checkSeen(t, seen)
		}
		d.stop()
		if info, err := os.Lstat(p.socket); err != nil || info.Mode().Type() != os.ModeSocket {
			t.Errorf("round %d: the socket of systemd's is gone: %v, %v", round, info, err)
		}
	}
}

// checkSeen checks what a service has inherited: nothing of what systemd has passed to the broker.
func checkSeen(t *testing.T, path string) {
	t.Helper()
	var seen []byte
	if !soon(func() bool { seen, _ = os.ReadFile(path); return strings.HasSuffix(string(seen), "\nall\n") }) {
		t.Fatalf("the service has not told what it sees: %q", seen)
	}
	for line := range strings.Lines(string(seen)) {
		if strings.HasPrefix(line, "LISTEN_") || strings.HasPrefix(line, "NOTIFY_SOCKET") || line == "5\n" {
			t.Errorf("a service inherits %q", line)
		}
	}
	for _, want := range []string{"FAIRLEAD_CONTROL=3\n", "\n4\n"} { // it has looked at all
		if !strings.Contains(string(seen), want) {
			t.Errorf("a service sees no %q in %q", want, seen)
		}
	}
}

func TestWhatIsNotTheBrokersSocketIsRefused(t *testing.T) {
	p := newPlace(t)
	good := listen(t, "unix", p.socket)
	other := listen(t, "unix", p.socket+".other")
	packets := listen(t, "unixpacket", p.socket+".packets")
	device, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	internet, err := tcp.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer internet.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	pair := os.NewFile(uintptr(fds[1]), "pair")
	defer pair.Close()
	for _, test := range []struct {
		files []*os.File
		want  string
	}{
		{[]*os.File{other}, "systemd listens at " + p.socket + ".other, and the broker is to serve at " + p.socket},
		{[]*os.File{good, other}, "systemd has passed on 2 descriptors: want one"},
		{[]*os.File{packets}, "it is no stream socket: want ListenStream=" + p.socket},
		{[]*os.File{internet}, "it is no Unix socket"},
		{[]*os.File{device}, "it is no socket"},
		{[]*os.File{pair}, "it does not listen"},
	} {
		d := p.activate(test.files...)
		if code := d.exit(); code != 1 {
			t.Errorf("%s: brokerd exits %d, want 1", test.want, code)
		}
		if !soon(func() bool { return len(d.log(test.want)) == 1 }) {
			t.Errorf("brokerd says %q, want %q", d.log(""), test.want)
		}
	}
}

func TestDescriptorsForAnotherProcessAreLeftAlone(t *testing.T) {
	p := newPlace(t)
	argv := p.command()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = []string{"LISTEN_PID=1", "LISTEN_FDS=1"}
	d := start(t, cmd)
	d.await("broker started", 1)
	p.dial(broker.Endpoint)
	d.stop()
	if _, err := os.Lstat(p.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the broker leaves its own socket: %v", err)
	}
}
