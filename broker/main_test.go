package broker_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// patience is how long an event may take.
const patience = 15 * time.Second

const (
	roleVariable     = "BROKER_TEST_ROLE"         // has the test's own program play a process that a test needs
	argumentVariable = "BROKER_TEST_ARGUMENT"     // of that role
	noSleep          = "GORACE=atexit_sleep_ms=0" // the race detector's own rest before an exit
)

// roles are the processes that tests need.
var roles = map[string]func(){
	"second":    serveSecond,
	"serve":     serveEcho,
	"linger":    lingerAfterServing,
	"broker":    serveBroker,
	"crowd":     openMany,
	"strangers": knockAsStrangers,
	"connects":  connectOnce,
	"lineage":   registerOverAndOver,

	"actor":       serveActor,
	"actorbroker": serveActorBroker,

	"ends":     serveUntilToldHowToEnd,
	"poison":   serveUntilPoisoned,
	"poisoner": openWithPoison,
	"several":  serveSeveral,
	"asks":     askAsTold,

	"registerandlose": registerAndLose,
	"alone":           serveAlone,

	"rolls":        serveAndLinger,
	"leaves":       serveUntilToldToLeave,
	"vain":         registerInVain,
	"tells":        tellOfMany,
	"waiters":      openAndWait,
	"takes":        takeAsTold,
	"drops":        registerAsTwo,
	"lies":         tellOfAnother,
	"fewfiles":     serveWithFewFiles,
	"readsnothing": openAndReadNothing,
	"slowly":       serveSlowly,

	"serveandopen": serveAndOpen,

	"monitors": monitorAll,
}

func TestMain(m *testing.M) {
	if role := roles[os.Getenv(roleVariable)]; role != nil {
		role()
		os.Exit(0)
	}
	// The runtime opens what it keeps open, so that tests can count descriptors.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	os.Exit(m.Run())
}

// fail ends a role's process with what is wrong.
func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serveSecond tries to serve an endpoint, and prints why it cannot.
func serveSecond() {
	s := echoServer()
	s.Service = "com.example.second"
	fail(json.NewEncoder(os.Stdout).Encode(wire.AsError(s.Serve(context.Background()))))
}

// serveEcho serves an endpoint until it is stopped, and prints a line when it is registered.
func serveEcho() {
	fail(services.Server{
		Endpoints: map[string]*services.Mux{os.Getenv(argumentVariable): echoMux()},
		Ready:     func() { fmt.Println("registered") },
	}.Serve(context.Background()))
}

// lingerAfterServing serves until it is stopped, and exits a while after its control connection is closed.
func lingerAfterServing() {
	serveEcho()
	time.Sleep(300 * time.Millisecond)
}

// A player is a process that plays a role. It is killed with the test, and its input is a pipe.
type player struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// play starts a process that plays a role at a broker's socket.
func play(t *testing.T, role, argument, at string) player {
	t.Helper()
	return playWith(t, exec.Command("/proc/self/exe"), role, argument, at)
}

// playWith is play with a command of the test's own.
func playWith(t *testing.T, cmd *exec.Cmd, role, argument, at string) player {
	t.Helper()
	cmd.Env = append(os.Environ(), noSleep, roleVariable+"="+role, argumentVariable+"="+argument, socket.Variable+"="+at)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := player{cmd, in, bufio.NewReader(out)}
	t.Cleanup(p.kill)
	return p
}

// line waits for a line of the process.
func (p player) line(t *testing.T) string {
	t.Helper()
	late := time.AfterFunc(patience, p.kill)
	defer late.Stop()
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("a process that plays a role said %q: %v", line, err)
	}
	return line[:len(line)-1]
}

func (p player) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// until waits until something holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// keepsWhatIsLeft has what a fault leaves open stay open: the garbage collector would close it.
func keepsWhatIsLeft(t *testing.T) {
	before := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(before) })
}

// leavesNothing checks, when the test is over, that it has left no descriptor and no goroutine.
func leavesNothing(t *testing.T) {
	t.Helper()
	keepsWhatIsLeft(t)
	files, goroutines := descriptors(t, os.Getpid()), runtime.NumGoroutine()
	t.Cleanup(func() { settles(t, files, goroutines) })
}

// settles waits until this process has no more descriptors and goroutines than these.
func settles(t *testing.T, files, goroutines int) {
	t.Helper()
	for deadline := time.Now().Add(patience); descriptors(t, os.Getpid()) > files || runtime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 16<<10)
			t.Fatalf("%d descriptors, want %d, and %d goroutines, want %d:\n%s", descriptors(t, os.Getpid()), files, runtime.NumGoroutine(), goroutines, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

func descriptors(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// sessions returns a broker's sessions.
func sessions(t *testing.T, b *brokertest.Broker, r broker.SessionsRequest) []broker.Session {
	t.Helper()
	return b.Sessions(r)
}

// ask asks the broker's own endpoint.
func ask[Reply any](t *testing.T, b *brokertest.Broker, method string, request any) Reply {
	t.Helper()
	s := b.Dial(broker.Endpoint, client.Options{})
	defer s.Close()
	reply, err := client.Call[Reply](within(t, patience), s, method, request)
	if err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	return reply
}

// connect returns a connection to a broker, on which nothing has been said.
func connect(at string) (*net.UnixConn, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: at, Net: "unix"})
	if err == nil {
		conn.SetDeadline(time.Now().Add(patience))
	}
	return conn, err
}

// say writes the first frame of a connection.
func say(conn *net.UnixConn, kind wire.Kind, value any) error {
	f, err := wire.NewFrame(kind, 0, value)
	if err != nil {
		return err
	}
	return socket.WriteFirst(conn, f)
}

// answer reads the answer to a first frame: it fails with the refusal.
func answer(conn *net.UnixConn) error {
	f, files, err := socket.ReadFrame(conn)
	socket.CloseFiles(files)
	if err != nil || f.Kind != wire.KindRefused {
		return err
	}
	refusal := &wire.Error{}
	if err := wire.Unmarshal(f.Body, refusal); err != nil {
		return err
	}
	return refusal
}

// register registers this process as an instance, by hand, and returns its control connection.
func register(at string, r wire.Register) (*session.Session, error) {
	conn, err := connect(at)
	if err != nil {
		return nil, err
	}
	if err = say(conn, wire.KindRegister, r); err == nil {
		err = answer(conn)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	conn.SetDeadline(time.Time{})
	return session.NewControl(conn, session.Config{Endpoint: "control", Opener: true, Handler: services.NewMux()}), nil
}

// lose ends a control connection without a word.
func lose(control *session.Session) {
	brokertest.Kill(control)
	control.Wait()
}
