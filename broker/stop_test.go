package broker_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/keeper"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

const (
	markVariable = "BROKER_TEST_MARK" // is in the environment of all that an actor's service starts
	deafVariable = "BROKER_TEST_DEAF" // has an actor ignore SIGTERM, and wait for its calls for ever
)

type at struct{ Path string }

// serveActor serves the echo endpoint, and does what a test asks of it besides.
func serveActor() {
	server := services.Server{Endpoints: map[string]*services.Mux{echoEndpoint: echoMux()}}
	if os.Getenv(deafVariable) != "" {
		signal.Ignore(syscall.SIGTERM)
		server.Drain = time.Hour
	}
	mux := server.Endpoints[echoEndpoint]
	services.Handle(mux, "hold", func(_ context.Context, r at) (any, error) { return nil, hold(r.Path) })
	services.Handle(mux, "exit", func(_ context.Context, code int) (any, error) { os.Exit(code); return nil, nil })
	services.Handle(mux, "daemonise", func(_ context.Context, r at) (any, error) { return nil, daemonise(r.Path) })
	fail(server.Serve(context.Background()))
}

// hold says that it has begun by one file, and returns when there is another.
func hold(path string) error {
	if err := os.WriteFile(path+".began", nil, 0o600); err != nil {
		return err
	}
	awaitFile(path + ".go")
	return nil
}

func awaitFile(path string) {
	for {
		if _, err := os.Stat(path); err == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// daemonise starts a process that leaves its process group, its session and its parent, and ignores SIGTERM. It returns when that process does.
func daemonise(path string) error {
	const daemon = `trap "" TERM HUP INT; : > "$0"; while :; do sleep 1000; done`
	err := exec.Command("/bin/sh", "-c", `setsid sh -c '`+daemon+`' "$0" </dev/null >/dev/null 2>&1 &`, path).Run()
	if err == nil {
		awaitFile(path)
	}
	return err
}

// actor declares the echo service, served by an actor. All its processes have the mark.
func actor(t *testing.T) (s servicefile.Service, mark string) {
	t.Helper()
	s, err := echoService("actor")
	must(t, err)
	mark = rand.Text()
	s.Environment = map[string]string{markVariable: mark}
	s.ThrottleInterval = time.Millisecond
	return s, mark
}

// marked returns the processes that have a mark.
func marked(mark string) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		environ, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err == nil && slices.Contains(strings.Split(string(environ), "\x00"), markVariable+"="+mark) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// command has a broker do something to the echo service.
func command(t *testing.T, at, method string) (broker.ServiceDetails, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := client.Dial(ctx, broker.Endpoint, client.Options{Socket: at})
	if err != nil {
		return broker.ServiceDetails{}, err
	}
	defer s.Close()
	return client.Call[broker.ServiceDetails](ctx, s, method, broker.ServiceRequest{Name: echoEndpoint})
}

// commanded is command for what must succeed.
func commanded(t *testing.T, at, method string) broker.ServiceDetails {
	t.Helper()
	d, err := command(t, at, method)
	if err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	return d
}

// details asks how the echo service is.
func details(t *testing.T, at string) broker.ServiceDetails {
	t.Helper()
	return commanded(t, at, broker.MethodService)
}

// in begins a command.
func in(t *testing.T, at, method string) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := command(t, at, method)
		done <- err
	}()
	return done
}

// arrives waits for what a goroutine sends.
func arrives[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
	}
	return v
}

// open opens the echo service at a socket, and ends the session with the test.
func open(t *testing.T, at string) *client.Session {
	t.Helper()
	s, err := client.Dial(within(t, patience), echoEndpoint, client.Options{Socket: at})
	must(t, err)
	t.Cleanup(func() { s.Close(); s.Wait() })
	return s
}

// do calls a method that answers nothing.
func do(t *testing.T, s *client.Session, method string, request any) {
	t.Helper()
	if err := s.Call(within(t, patience), method, request, nil); err != nil {
		t.Fatalf("%s: %v", method, err)
	}
}

// opening opens a session of the echo endpoint in the background and closes it again. It tells how the open has ended.
func opening(t *testing.T, at string) <-chan error {
	opened := make(chan error, 1)
	ctx := within(t, patience)
	go func() {
		s, err := client.Dial(ctx, echoEndpoint, client.Options{Socket: at})
		if err == nil {
			s.Close()
		}
		opened <- err
	}()
	return opened
}

// held begins a call that is answered when letGo is called. It returns when its handler runs.
func held(t *testing.T, s *client.Session) (letGo func(), answered <-chan error) {
	t.Helper()
	path, done := filepath.Join(t.TempDir(), "held"), make(chan error, 1)
	ctx := within(t, 2*patience)
	go func() { done <- s.Call(ctx, "hold", at{path}, nil) }()
	until(t, "the call is with its handler", func() bool { _, err := os.Stat(path + ".began"); return err == nil })
	return func() { must(t, os.WriteFile(path+".go", nil, 0o600)) }, done
}

// An actorBroker says how an actor's broker is.
type actorBroker struct {
	Service servicefile.Service
	Cgroups bool // it may make some
}

// serveActorBroker is a broker whose one service is as its argument says. It prints a line when it listens.
func serveActorBroker() {
	var c actorBroker
	fail(json.Unmarshal([]byte(os.Getenv(argumentVariable)), &c))
	if !c.Cgroups { // its mounts are its own
		fail(unmountCgroups())
	}
	b, err := broker.New(broker.Config{Socket: os.Getenv(socket.Variable), Services: []servicefile.Service{c.Service}})
	fail(err)
	fmt.Println("listening")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fail(b.Serve(ctx))
}

func unmountCgroups() error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " - cgroup2 ") {
			if err := unix.Unmount(strings.Fields(line)[4], unix.MNT_DETACH); err != nil {
				return err
			}
		}
	}
	if _, err := keeper.Cgroups(); err == nil {
		return errors.New("there are cgroups still")
	}
	return nil
}

// playBroker starts a broker of a service in a process of its own, with cgroups or without. Its instances end with the test.
func playBroker(t *testing.T, s servicefile.Service, cgroups bool, at string) player {
	t.Helper()
	argument, err := json.Marshal(actorBroker{s, cgroups})
	must(t, err)
	cmd := exec.Command("/proc/self/exe")
	if !cgroups {
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	}
	t.Cleanup(func() { endsAll(t, s.Environment[markVariable]) }) // after the broker, as clean-ups go backwards
	p := playWith(t, cmd, "actorbroker", string(argument), at)
	p.line(t)
	return p
}

// endsAll kills what has a mark: all that a test which has failed, or a broker that was killed, leaves behind.
func endsAll(t *testing.T, mark string) {
	t.Helper()
	until(t, "all processes are gone", func() bool {
		left := marked(mark)
		for _, pid := range left {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(left) == 0
	})
}

// eachWay runs a test with cgroups and without.
func eachWay(t *testing.T, test func(t *testing.T, cgroups bool)) {
	needsRoot(t)
	for _, cgroups := range []bool{true, false} {
		t.Run(fmt.Sprintf("cgroups=%t", cgroups), func(t *testing.T) {
			if _, err := keeper.Cgroups(); cgroups && err != nil {
				t.Skip(err)
			}
			test(t, cgroups)
		})
	}
}

// inCgroup reports whether a process is in a cgroup of an instance's.
func inCgroup(pid int) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return strings.Contains(string(text), "/fairlead-")
}

func TestAfterAStopNothingIsLeftOfAnInstance(t *testing.T) {
	eachWay(t, func(t *testing.T, cgroups bool) {
		at := brokertest.Socket(t)
		service, mark := actor(t)
		playBroker(t, service, cgroups, at)
		s := open(t, at)
		daemon := filepath.Join(t.TempDir(), "daemon")
		do(t, s, "daemonise", struct{ Path string }{daemon})
		until(t, "there are the program, the daemon and its child", func() bool { return len(marked(mark)) == 3 })
		all := marked(mark)
		if in := inCgroup(all[0]); in != cgroups {
			t.Fatalf("the processes %v are in a cgroup: %t", all, in)
		}
		d := commanded(t, at, broker.MethodStop)
		if left := marked(mark); len(left) > 0 {
			t.Errorf("of %v are left %v", all, left)
		}
		if d.State != broker.ServiceStopped || d.PID != 0 || d.Keeper != 0 || d.Failures != 0 || d.Last == nil || d.Last.Status != "exit status 0" {
			t.Errorf("it is %+v, and ended %+v", d, d.Last)
		}
	})
}

func TestAProgramThatDoesNotStopIsKilledInTimeAndTheLogNamesItsSessions(t *testing.T) {
	leavesNothing(t)
	service, mark := actor(t)
	service.Environment[deafVariable] = "1"
	service.StopTimeout = 400 * time.Millisecond
	l := &log{}
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{service}, Logger: l.logger()})
	idle, busy := open(t, b.Socket), open(t, b.Socket)
	_, answered := held(t, busy)
	d := commanded(t, b.Socket, broker.MethodStop)
	if left := marked(mark); len(left) > 0 || d.Last == nil || d.Last.Signal != "killed" || d.Failures != 0 {
		t.Errorf("left: %v, it ended: %+v, %d failures", left, d.Last, d.Failures)
	}
	if err := arrives(t, "the call's end", answered); !errors.Is(err, wire.Interrupted) {
		t.Errorf("the call: %v, want %s", err, wire.Interrupted)
	}
	if end := idle.End(); end.Code != wire.Interrupted || end.Origin != wire.Peer {
		t.Errorf("the idle session: %+v, want %s of the peer", end, wire.Interrupted)
	}
	if n := l.count("did not stop in time and is killed", "service="+echoEndpoint, busy.ID()[:8]); n != 1 {
		t.Errorf("%d lines say that it is killed, and which session was open:\n%s", n, l.text.String())
	}
}

func TestAStopTellsSessionsFirstAndLetsCallsFinishAndOpensWaitForTheNextInstance(t *testing.T) {
	leavesNothing(t)
	service, _ := actor(t)
	service.KeepAlive = servicefile.Always
	l := &log{}
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{service}, Logger: l.logger()})
	s := open(t, b.Socket)
	first := details(t, b.Socket)
	letGo, answered := held(t, s)
	stopped := in(t, b.Socket, broker.MethodStop)
	until(t, "the session is told", s.Terminating)
	const opens = 5
	opened := make(chan int, opens)
	for range opens {
		go func() {
			next, err := client.Dial(within(t, patience), echoEndpoint, client.Options{Socket: b.Socket})
			if err != nil {
				t.Errorf("an open while it stops: %v", err)
				opened <- 0
				return
			}
			defer next.Close()
			opened <- next.Peer().PID
		}()
	}
	until(t, "the opens wait", func() bool { return details(t, b.Socket).Waiting == opens })
	if d := details(t, b.Socket); d.State != broker.ServiceStopping || d.PID != first.PID {
		t.Errorf("it is %+v", d)
	}
	letGo()
	if err := arrives(t, "the answer", answered); err != nil {
		t.Errorf("a call that was in flight: %v", err)
	}
	if err := arrives(t, "the stop", stopped); err != nil {
		t.Error(err)
	}
	if end := s.End(); end.Code != wire.Interrupted || end.Origin != wire.Peer {
		t.Errorf("the session: %+v, want %s of the peer", end, wire.Interrupted)
	}
	next := running(t, b, echoEndpoint)
	if next.Instance != first.Instance+1 || next.Starts != 2 || l.count("killed") > 0 {
		t.Errorf("the next one is %+v; the log:\n%s", next, l.text.String())
	}
	for range opens {
		if pid := arrives(t, "an open", opened); pid != next.PID {
			t.Errorf("an open went to process %d, want %d", pid, next.PID)
		}
	}
}

func TestAStoppedServiceIsNotKeptAliveAndAStopOfWhatDoesNotRunReturnsAtOnce(t *testing.T) {
	leavesNothing(t)
	service, _ := actor(t)
	service.KeepAlive = servicefile.Always
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{service}})
	running(t, b, echoEndpoint)
	for range 3 {
		if d := commanded(t, b.Socket, broker.MethodStop); d.State != broker.ServiceStopped || d.Starts != 1 {
			t.Errorf("it is %+v", d)
		}
	}
	if d := commanded(t, b.Socket, broker.MethodStart); d.State != broker.ServiceRunning || d.Instance != 2 || d.Cause == nil || d.Cause.Kind != broker.CauseCommand {
		t.Errorf("started, it is %+v", d)
	}
}

func TestAStopInThePauseAfterAFailureLeavesThoseWhoWaitTheNextStart(t *testing.T) {
	leavesNothing(t)
	service, _ := actor(t)
	service.ThrottleInterval = 700 * time.Millisecond
	service.Program = append([]string{"/bin/sh", "-c", `[ -e "$0" ] && exec "$@"; : > "$0"; exit 3`, filepath.Join(t.TempDir(), "second")}, service.Program...)
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{service}})
	if _, err := client.Dial(within(t, patience), echoEndpoint, client.Options{Socket: b.Socket}); !errors.Is(err, wire.StartFailed) {
		t.Fatalf("the first open: %v, want %s", err, wire.StartFailed)
	}
	opened := opening(t, b.Socket)
	until(t, "the open waits", func() bool { return details(t, b.Socket).Waiting == 1 })
	d := commanded(t, b.Socket, broker.MethodStop)
	paused := d.Last != nil && time.Since(d.Last.At.Time()) < service.ThrottleInterval // else it may be on its way again
	if paused && d.Waiting > 0 && d.State != broker.ServiceWaiting {
		t.Errorf("it is %s, and an open waits", d.State)
	}
	if err := arrives(t, "the open", opened); err != nil {
		t.Error(err)
	}
}

func TestAStartThatIsStoppedIsNoFailureAndIsToldToWhoAskedForIt(t *testing.T) {
	for _, test := range []struct {
		name   string
		locked bool // somebody else has the service's lock, so that the program is not even executed
	}{{"the program has not registered", false}, {"the lock is held", true}} {
		t.Run(test.name, func(t *testing.T) {
			leavesNothing(t)
			service, mark := actor(t)
			gate := filepath.Join(t.TempDir(), "gate")
			service.Program = append([]string{"/bin/sh", "-c", `until [ -e "$0" ]; do sleep 0.01; done; exec "$@"`, gate}, service.Program...)
			b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{service}})
			var lock *os.File
			if test.locked {
				var err error
				lock, err = broker.Lock(broker.LockPath(b.Socket, echoEndpoint))
				must(t, err)
				defer lock.Close()
			}
			started := in(t, b.Socket, broker.MethodStart)
			until(t, "it starts", func() bool {
				return details(t, b.Socket).State == broker.ServiceStarting && (test.locked || len(marked(mark)) > 0)
			})
			d := commanded(t, b.Socket, broker.MethodStop)
			if left := marked(mark); d.State != broker.ServiceStopped || d.Failures != 0 || len(left) > 0 {
				t.Errorf("it is %+v, and left are %v", d, left)
			}
			if err := arrives(t, "the start", started); !errors.Is(err, wire.Terminating) {
				t.Errorf("who started it is told %v, want %s", err, wire.Terminating)
			}

			// An open waits for the start after the one that is stopped.
			opened := opening(t, b.Socket)
			until(t, "the open waits", func() bool { return details(t, b.Socket).Waiting == 1 })
			before := details(t, b.Socket).Starts
			commanded(t, b.Socket, broker.MethodStop)
			must(t, os.WriteFile(gate, nil, 0o600))
			if lock != nil {
				lock.Close()
			}
			if err := arrives(t, "the open", opened); err != nil {
				t.Error(err)
			}
			if d := running(t, b, echoEndpoint); d.Starts != before+1 {
				t.Errorf("%d starts, want one more than %d", d.Starts, before)
			}
		})
	}
}

func TestAStartOfAServiceThatStopsWaitsForTheNextInstance(t *testing.T) {
	leavesNothing(t)
	service, _ := actor(t)
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{service}})
	letGo, answered := held(t, open(t, b.Socket))
	stopped := in(t, b.Socket, broker.MethodStop)
	until(t, "it stops", func() bool { return details(t, b.Socket).State == broker.ServiceStopping })
	started := in(t, b.Socket, broker.MethodStart)
	select {
	case err := <-started:
		t.Errorf("the start returns while the instance stops: %v", err)
	case <-time.After(20 * time.Millisecond): // it may be on its way: then the instance's number tells
	}
	letGo()
	for what, c := range map[string]<-chan error{"the answer": answered, "the stop": stopped, "the start": started} {
		if err := arrives(t, what, c); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if d := running(t, b, echoEndpoint); d.Instance != 2 {
		t.Errorf("instance %d runs, want 2", d.Instance)
	}
}

// openAndCall opens sessions of the echo service and calls on each, without a pause, until stop is called. A call that has not left because the instance
// stops is made again on the next session.
func openAndCall(t *testing.T, at string, clients int) (opened *atomic.Int64, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	opened = new(atomic.Int64)
	var opening sync.WaitGroup
	for range clients {
		opening.Go(func() {
			for ctx.Err() == nil {
				if err := openAndCallOnce(t.Context(), at); err != nil {
					t.Error(err)
					return
				}
				opened.Add(1)
			}
		})
	}
	return opened, func() {
		cancel()
		opening.Wait()
	}
}

func openAndCallOnce(ctx context.Context, at string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	s, err := client.Dial(ctx, echoEndpoint, client.Options{Socket: at})
	if err != nil {
		return err
	}
	defer s.Close()
	reply, err := client.Call[echoReply](ctx, s, "echo", echoRequest{"hi"})
	if e := wire.AsError(err); err != nil && e.Code == wire.Terminating {
		return nil // it was told in time, and nothing was executed
	}
	if err != nil || reply.Text != "hi" {
		return fmt.Errorf("call: %q, %w", reply.Text, err)
	}
	return nil
}

func TestARestartLosesNoOpenAndTheNextInstanceHasTheNextNumber(t *testing.T) {
	service, _ := actor(t)
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{service}})
	const clients, restarts = 50, 3
	opened, stop := openAndCall(t, b.Socket, clients)
	defer stop()
	for n := range restarts {
		before := opened.Load()
		until(t, "all open sessions", func() bool { return opened.Load() > before+clients || t.Failed() })
		was := details(t, b.Socket)
		if d := commanded(t, b.Socket, broker.MethodRestart); d.Instance != was.Instance+1 || d.Starts != was.Starts+1 || d.State != broker.ServiceRunning || d.PID == was.PID {
			t.Errorf("restart %d: it is %+v and was %+v", n, d, was)
		}
		if d := details(t, b.Socket); d.Cause == nil || d.Cause.Kind != broker.CauseCommand || d.Failures != 0 {
			t.Errorf("the cause is %+v, and there are %d failures", d.Cause, d.Failures)
		}
	}
	before := opened.Load()
	until(t, "sessions are opened still", func() bool { return opened.Load() > before+clients || t.Failed() })
}

func TestARestartWithFiftyOpensThatWaitLosesNone(t *testing.T) {
	leavesNothing(t)
	service, _ := actor(t)
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{service}})
	letGo, answered := held(t, open(t, b.Socket))
	was := details(t, b.Socket)
	restarted := in(t, b.Socket, broker.MethodRestart)
	until(t, "it stops", func() bool { return details(t, b.Socket).State == broker.ServiceStopping })
	const opens = 50
	var opening sync.WaitGroup
	for range opens {
		opening.Go(func() {
			if err := openAndCallOnce(t.Context(), b.Socket); err != nil {
				t.Error(err)
			}
		})
	}
	until(t, "the opens wait", func() bool { return details(t, b.Socket).Waiting == opens })
	letGo()
	for what, c := range map[string]<-chan error{"the answer": answered, "the restart": restarted} {
		if err := arrives(t, what, c); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	opening.Wait()
	if d := running(t, b, echoEndpoint); d.Instance != was.Instance+1 {
		t.Errorf("instance %d runs, want %d", d.Instance, was.Instance+1)
	}
}

func TestARestartOfWhatDoesNotRunStartsIt(t *testing.T) {
	leavesNothing(t)
	service, _ := actor(t)
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{service}})
	if d := commanded(t, b.Socket, broker.MethodRestart); d.State != broker.ServiceRunning || d.Instance != 1 || d.Starts != 1 {
		t.Errorf("it is %+v", d)
	}
}
