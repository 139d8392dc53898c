package session_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

var long = flag.Bool("long", false, "run as often as the promises say")

const (
	childVariable = "FAIRLEAD_TEST_CHILD"
	filesVariable = "FAIRLEAD_TEST_FILES"      // how many files a child may have open
	noSleep       = "GORACE=atexit_sleep_ms=0" // the race detector's own rest before an exit
)

// lane says whether the sessions of the tests have one.
var lane = len(session.Offer()) > 0

// TestMain runs a service instead of the tests when this binary was started as a child. The tests run both ways: with the lane, and again in
// a process where it is not offered.
func TestMain(m *testing.M) {
	switch os.Getenv(childVariable) {
	case "":
	case rawChild:
		serveRaw()
		os.Exit(0)
	default:
		serveChild()
		os.Exit(0)
	}
	flag.Parse()
	code := m.Run()
	once := false // where the second run has nothing to do, or would write over what the first has written
	for _, name := range []string{"fuzz", "list", "cpuprofile", "memprofile", "blockprofile", "mutexprofile", "trace"} {
		once = once || flag.Lookup("test."+name).Value.String() != ""
	}
	if lane && !once {
		code = max(code, runWithoutLane())
	}
	os.Exit(code)
}

// runWithoutLane runs the same tests where no lane is offered.
func runWithoutLane() int {
	fmt.Println("again, without the lane")
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Env = append(os.Environ(), "FAIRLEAD_LANE=0")
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	again.Run()
	return again.ProcessState.ExitCode()
}

type (
	method  = func(ctx context.Context, m *session.Message) (any, error)
	methods = map[string]method
	streams = map[string]func(ctx context.Context, s *session.Stream) error
)

// A handler serves methods by name.
type handler struct {
	methods methods
	streams streams
}

func (h handler) Serve(ctx context.Context, m *session.Message) (any, error) {
	if f := h.methods[m.Method]; f != nil {
		return f(ctx, m)
	}
	return nil, wire.Errorf(wire.UnknownMethod, "no method %s", m.Method)
}

func (h handler) ServeStream(ctx context.Context, s *session.Stream) error {
	if f := h.streams[s.Method()]; f != nil {
		return f(ctx, s)
	}
	return wire.Errorf(wire.UnknownMethod, "no stream %s", s.Method())
}

func echo(_ context.Context, m *session.Message) (any, error) {
	var text string
	err := m.Decode(&text)
	return text, err
}

func block(ctx context.Context, _ *session.Message) (any, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func panics(context.Context, *session.Message) (any, error) { panic("oh") }

func ignore(context.Context, *session.Message) (any, error) { return nil, nil }

func echoStream(_ context.Context, s *session.Stream) error {
	_, err := io.Copy(s, s)
	return errors.Join(err, s.CloseWrite())
}

// flood writes until nobody takes it.
func flood(_ context.Context, s *session.Stream) error {
	for b := make([]byte, 32<<10); ; {
		if _, err := s.Write(b); err != nil {
			return err
		}
	}
}

// stall reads nothing.
func stall(ctx context.Context, _ *session.Stream) error {
	<-ctx.Done()
	return ctx.Err()
}

func sink(_ context.Context, s *session.Stream) error {
	_, err := io.Copy(io.Discard, s)
	return err
}

// usual serves what most tests need.
var usual = handler{
	methods: methods{"echo": echo, "note": noted, "block": block, "panic": panics, "ignore": ignore},
	streams: streams{"echo": echoStream, "flood": flood, "sink": sink, "stall": stall, "repeat": repeat, "pour": pour},
}

const endpoint = "com.example.test"

// sockets returns both ends of a connected pair of Unix sockets.
func sockets(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := make([]*net.UnixConn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		ends[i], err = socket.FromFile(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	return ends[0], ends[1]
}

// pair returns both ends of a session, which the test closes. Nothing may be left of it then.
func pair(t testing.TB, client, service session.Config) (c, s *session.Session) {
	t.Helper()
	client.Lane, service.Lane = lane, lane
	return paired(t, client, service)
}

// paired is pair for a session that has a lane only if the configuration says so.
func paired(t testing.TB, client, service session.Config) (c, s *session.Session) {
	t.Helper()
	leavesNothing(t)
	a, b := sockets(t)
	client.Opener = true
	client.Endpoint, service.Endpoint = endpoint, endpoint
	c, err := session.New(a, client)
	if err != nil {
		t.Fatal(err)
	}
	s, err = session.New(b, service)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closes(t, c, s) })
	return c, s
}

// both returns a session whose sides serve the same.
func both(t testing.TB, h handler) (c, s *session.Session) {
	t.Helper()
	return pair(t, session.Config{Handler: h}, session.Config{Handler: h})
}

// closes closes sessions and waits for all that is theirs.
func closes(t testing.TB, list ...*session.Session) {
	t.Helper()
	for _, s := range list {
		s.Close()
	}
	gone := make(chan struct{})
	go func() {
		for _, s := range list {
			s.Wait()
		}
		close(gone)
	}()
	wait(t, "goroutines and handlers of a closed session return", gone)
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func wait(t testing.TB, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		stacks := make([]byte, 1<<20)
		t.Fatalf("%s: not within 20 s\n%s", what, stacks[:runtime.Stack(stacks, true)])
	}
}

// until waits for a state that nothing announces.
func until(t testing.TB, what string, held func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !held(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// descriptors returns what the open descriptors of this process lead to, but for the poller's own.
func descriptors() (open []string) {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err == nil && !strings.HasPrefix(to, "anon_inode:") { // the folder itself is closed by now
			open = append(open, e.Name()+" "+to)
		}
	}
	return open
}

// leavesNothing checks, when the test and what it cleans up are over, that no goroutine and no descriptor is left of it.
func leavesNothing(t testing.TB) {
	t.Helper()
	goroutines, open := runtime.NumGoroutine(), descriptors()
	t.Cleanup(func() {
		defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector closes files that nobody else does
		var left []string
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			left = slices.DeleteFunc(descriptors(), func(d string) bool { return slices.Contains(open, d) })
			if runtime.NumGoroutine() <= goroutines && len(left) == 0 {
				return
			}
		}
		stacks := make([]byte, 1<<20)
		t.Errorf("%d goroutines, and before %d; left open: %v\n%s", runtime.NumGoroutine(), goroutines, left, stacks[:runtime.Stack(stacks, true)])
	})
}

// idle waits until neither side waits for anything of the other.
func idle(t testing.TB, sides ...*session.Session) {
	t.Helper()
	for _, s := range sides {
		until(t, "no call is in flight", func() bool {
			in := s.Inspect()
			return in.CallsWaiting == 0 && in.CallsServing == 0
		})
	}
}

// A gate is a method whose calls return when as many as it waits for are being served at once.
type gate struct {
	want int64
	n    atomic.Int64
	open chan struct{}
}

func newGate(want int64) *gate { return &gate{want: want, open: make(chan struct{})} }

func (g *gate) serve(ctx context.Context, _ *session.Message) (any, error) {
	if g.n.Add(1) == g.want {
		close(g.open)
	}
	select {
	case <-g.open:
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// pass makes as many calls as the gate waits for.
func (g *gate) pass(t testing.TB, from *session.Session, name string) {
	t.Helper()
	var all sync.WaitGroup
	var failed atomic.Pointer[error]
	for range g.want {
		all.Go(func() {
			if err := from.Call(within(t, 10*time.Second), name, nil, nil); err != nil {
				failed.Store(&err)
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		t.Fatalf("%d calls at once: %v", g.want, *err)
	}
}
