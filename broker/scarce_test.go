package broker_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// leaving leaves this process, and the broker in it, so many descriptors more than it has open, until the returned function is called.
func leaving(t *testing.T, free int) (restore func()) {
	t.Helper()
	var before unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	var taken []*os.File
	highest := 0
	for range 64 { // more than there are gaps below the highest that is open
		f, err := os.Open(os.DevNull)
		must(t, err)
		taken = append(taken, f)
		highest = max(highest, int(f.Fd()))
	}
	few := unix.Rlimit{Cur: uint64(highest) + 1, Max: before.Max}
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	for _, f := range taken[:free] {
		f.Close()
	}
	return func() {
		must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
		for _, f := range taken[free:] {
			f.Close()
		}
	}
}

// Of the copy of the instance's pidfd the broker needs two descriptors at once, and of the registration one. Without the guard, scarcity in life.accompany, the
// service has no life beside its registered instance, and no open reaches that.
func TestAnInstanceThatRegistersWhileDescriptorsAreScarceIsReachedLater(t *testing.T) {
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{{Name: echoEndpoint, Endpoints: []string{echoEndpoint}}}})
	conn, err := connect(b.Socket)
	must(t, err)
	// The broker has taken the connection and read who it is when it answers somebody who came behind it.
	details(t, b.Socket)
	restore := leaving(t, 1)
	err = say(conn, wire.KindRegister, wire.Register{Service: echoEndpoint, Endpoints: []string{echoEndpoint}})
	if err == nil {
		err = answer(conn)
	}
	time.Sleep(100 * time.Millisecond) // it is as long as it is for the wrong to happen, and right without
	restore()
	must(t, err)
	conn.SetDeadline(time.Time{})
	control := session.NewControl(conn, session.Config{Endpoint: "control", Opener: true, Handler: services.NewMux()})
	defer lose(control)
	if d := details(t, b.Socket); d.State != broker.ServiceRunning || d.PID != os.Getpid() {
		t.Errorf("it is registered, and it is %+v", d)
	}
}

// Without the guard, scarcity in service.adopt, an instance that cannot be taken up at once registers by itself later, and is nobody's to end.
func TestAnInstanceIsTakenUpWhenThereAreDescriptorsAgain(t *testing.T) {
	at := brokertest.Socket(t)
	service, mark := actor(t)
	earlier := playBroker(t, service, os.Geteuid() != 0, at)
	open(t, at)
	was := details(t, at)
	earlier.kill()
	for free := range 12 {
		var restore func()
		load := func() ([]servicefile.Service, []*servicefile.Problem) {
			restore = leaving(t, free)
			return []servicefile.Service{service}, nil
		}
		b, err := broker.New(broker.Config{Socket: at, Load: load, LeaveInstances: true})
		restore()
		if err != nil { // too few to begin at all
			continue
		}
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- b.Serve(ctx) }()
		until(t, "the instance is taken up", func() bool {
			d := details(t, at)
			return d.State == broker.ServiceRunning && d.PID == was.PID && d.Keeper == was.Keeper && d.Instance == was.Instance
		})
		stop()
		must(t, arrives(t, "the broker's end", served))
	}
	b := brokertest.StartWith(t, broker.Config{Socket: at, Services: []servicefile.Service{service}})
	running(t, b, echoEndpoint)
	b.Stop()
	if left := marked(mark); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// serveWithFewFiles is a broker that may have so many files open, and whose one service anybody may register and open.
func serveWithFewFiles() {
	files, err := strconv.ParseUint(os.Getenv(argumentVariable), 10, 64)
	fail(err)
	fail(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files}))
	anyone, err := servicefile.ParseRule("any")
	fail(err)
	b, err := broker.New(broker.Config{Socket: os.Getenv(socket.Variable), Services: []servicefile.Service{
		{Name: echoEndpoint, Endpoints: []string{echoEndpoint}, Allow: servicefile.Allow{Open: servicefile.Rules{anyone}, Register: servicefile.Rules{anyone}}},
	}})
	fail(err)
	fmt.Println("listening")
	fail(b.Serve(context.Background()))
}

// openAndReadNothing opens the echo endpoint until it has so many sessions, of which it leaves all answers unread. It says so, and stays.
func openAndReadNothing() {
	n, err := strconv.Atoi(os.Getenv(argumentVariable))
	fail(err)
	var held []net.Conn
	for len(held) < n {
		conn, err := connect(os.Getenv(socket.Variable))
		fail(err)
		fail(say(conn, wire.KindOpen, wire.Open{Endpoint: echoEndpoint}))
		raw, err := conn.SyscallConn()
		fail(err)
		head := make([]byte, wire.HeaderSize)
		fail(raw.Read(func(fd uintptr) bool {
			_, _, err := unix.Recvfrom(int(fd), head, unix.MSG_PEEK)
			return err != unix.EAGAIN
		}))
		h, err := wire.ParseHeader(head)
		fail(err)
		if h.Kind == wire.KindRouted {
			held = append(held, conn)
		} else { // over quota: some are on their way
			conn.Close()
		}
	}
	fmt.Println("held")
	os.Stdin.Read(make([]byte, 1))
	runtime.KeepAlive(held)
}

// The guard is lends: without, the pidfds that a stranger does not read are as many as the kernel lets the broker's user have on their way, and nobody is handed over any more.
func TestWhoReadsNothingLeavesRoomForWhatIsHandedOver(t *testing.T) {
	needsRoot(t)
	program, at := asStranger(t).Path, brokertest.Socket(t)
	must(t, os.Chown(filepath.Dir(at), another, nobody), os.Chmod(filepath.Dir(at), 0o755))
	as := func(uid uint32, role, argument string) player {
		cmd := asStranger(t)
		cmd.Path, cmd.Args, cmd.Dir = program, []string{program}, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: nobody}}
		p := playWith(t, cmd, role, argument, at)
		p.line(t)
		return p
	}
	const files = 256
	as(another, "fewfiles", strconv.Itoa(files))
	as(another, "serve", echoEndpoint)
	unread := as(nobody, "readsnothing", strconv.Itoa(files+44))
	if n := onTheirWay(t, unread.cmd.Process.Pid); n > files/2 {
		t.Errorf("%d descriptors are on their way to who reads nothing, of %d", n, files)
	}
	s, err := client.Dial(within(t, patience), echoEndpoint, client.Options{Socket: at, NoWait: true})
	must(t, err)
	s.Close()
}

// onTheirWay returns how many descriptors wait in the sockets of a process for being read, see proc_pid_fdinfo(5).
func onTheirWay(t *testing.T, pid int) (all int) {
	t.Helper()
	infos, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	must(t, err)
	for _, path := range infos {
		text, err := os.ReadFile(path)
		must(t, err)
		for line := range strings.Lines(string(text)) {
			if value, found := strings.CutPrefix(line, "scm_fds:"); found {
				n, err := strconv.Atoi(strings.TrimSpace(value))
				must(t, err)
				all += n
			}
		}
	}
	return all
}
