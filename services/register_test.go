package services_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

// echoServer returns a server of one endpoint that echoes.
func echoServer(endpoint string) services.Server {
	mux := services.NewMux()
	services.Handle(mux, "echo", func(_ context.Context, r text) (text, error) { return r, nil })
	return services.Server{Endpoints: map[string]*services.Mux{endpoint: mux}}
}

func echo(t *testing.T, on client.Caller) {
	t.Helper()
	if reply, err := client.Call[text](within(t, 10*time.Second), on, "echo", text{"hi"}); err != nil || reply.Text != "hi" {
		t.Fatalf("echo: %+v, %v", reply, err)
	}
}

// sessions returns a broker's sessions.
func sessions(t *testing.T, b *brokertest.Broker, state string) []broker.Session {
	t.Helper()
	return b.Sessions(broker.SessionsRequest{State: state})
}

// until waits until something holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 15 s: %s", what)
		}
	}
}

func TestOfTwoServersOfAProcessTheSecondWithAnEndpointIsRefused(t *testing.T) {
	b := brokertest.Start(t)
	b.Serve(echoServer(endpoint))
	for name, service := range map[string]string{"the same service": "", "another service": "com.example.another"} {
		second := echoServer(endpoint)
		second.Socket, second.Service = b.Socket, service
		err := second.Serve(within(t, 10*time.Second))
		e, ok := errors.AsType[*wire.Error](err)
		if !ok || e.Code != wire.Conflict || e.Holder == nil || e.Holder.Service != endpoint || e.Holder.PID != os.Getpid() {
			t.Errorf("%s: %v, want %s naming the first", name, err, wire.Conflict)
		}
	}
	echo(t, b.Dial(endpoint, client.Options{}))
}

func TestTwoServersOfAProcessOutliveABrokerWithTheirSessions(t *testing.T) {
	b := brokertest.Start(t)
	registered := make(chan string, 100)
	open := map[string]*client.Session{}
	for _, e := range []string{"com.example.a", "com.example.b"} {
		server := echoServer(e)
		server.Ready = func() { registered <- e }
		b.Serve(server)
		wait(t, "the first registration", registered)
		s := b.Dial(e, client.Options{})
		open[s.ID()] = s
	}
	for range 3 {
		b.Restart()
		again := map[string]bool{}
		for len(again) < len(open) {
			again[wait(t, "the next registration", registered)] = true
		}
		until(t, "both sessions are listed once, with their own endpoint", func() bool {
			listed := 0
			for _, s := range sessions(t, b, broker.SessionOpen) {
				if own := open[s.ID]; own != nil && own.Endpoint() == s.Endpoint {
					listed++
				}
			}
			return listed == len(open)
		})
		for _, s := range open {
			echo(t, s)
			echo(t, b.Dial(s.Endpoint(), client.Options{}))
		}
	}
}

// A log keeps what is logged.
type log struct {
	mu    sync.Mutex
	lines []string
}

func (l *log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, strings.TrimSpace(string(line)))
	return len(line), nil
}

func (l *log) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}

func TestAServiceSaysOnceForEachLossThatThereIsNoBroker(t *testing.T) {
	at, logged, registered := brokertest.Socket(t), &log{}, make(chan string, 10)
	server := echoServer(endpoint)
	server.Socket, server.Ready = at, func() { registered <- endpoint }
	server.Logger = slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx) }()
	defer func() { cancel(); <-served }()

	waits := fmt.Sprintf(`level=INFO msg="no broker: waiting" service=%s socket=%s err="connect: no such file or directory"`, endpoint, at)
	lost := fmt.Sprintf(`level=INFO msg="broker lost: sessions go on" service=%s`, endpoint)
	want := []string{waits}
	says := func() {
		t.Helper()
		until(t, "it says that there is no broker", func() bool { return len(logged.all()) >= len(want) })
		time.Sleep(200 * time.Millisecond) // for some attempts more, of which nothing is to be said
		if got := logged.all(); !slices.Equal(got, want) {
			t.Fatalf("it says %q, want %q", got, want)
		}
	}
	says()
	b := brokertest.StartWith(t, broker.Config{Socket: at})
	wait(t, "the registration", registered)
	s := b.Dial(endpoint, client.Options{})
	for range 2 {
		b.Stop()
		want = append(want, lost, waits)
		says()
		echo(t, s)
		b.Restart()
		wait(t, "the next registration", registered)
	}
	cancel()
	if err := wait(t, "the end", served); err != nil || len(logged.all()) != len(want) {
		t.Errorf("%v, and it says %q when it is stopped, want %q", err, logged.all(), want)
	}
	served <- nil // for the end of the test
}

// stop stops a child, and returns when it is stopped.
func stop(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || !status.Stopped() {
			t.Fatalf("process %d has not stopped: %v, %#x", pid, err, status)
		}
		return
	}
}

// state is how much a process has open.
type state struct{ Goroutines, Descriptors int }

// serveState serves a method that tells its process's state.
func serveState() {
	mux := services.NewMux()
	services.Handle(mux, "state", func(context.Context, any) (state, error) {
		entries, err := os.ReadDir("/proc/self/fd")
		return state{runtime.NumGoroutine(), len(entries)}, err
	})
	services.Server{
		Endpoints: map[string]*services.Mux{endpoint: mux}, Ready: func() { fmt.Println("registered") },
	}.Serve(context.Background())
}

// A counter counts the warnings with which a broker refuses a registration.
type counter struct{ refused atomic.Int64 }

func (c *counter) Write(line []byte) (int, error) {
	if strings.Contains(string(line), "registration refused") {
		c.refused.Add(1)
	}
	return len(line), nil
}

func TestAnInstanceThatIsRefusedOverAndOverLeavesNothingAndKeepsItsSessions(t *testing.T) {
	const attempts = 20
	refusals := &counter{}
	b := brokertest.StartWith(t, broker.Config{Logger: slog.New(slog.NewTextHandler(refusals, nil))})
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), noSleep, roleVariable+"=server", "FAIRLEAD_SOCKET="+b.Socket)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	s := b.Dial(endpoint, client.Options{})
	look := func() state {
		t.Helper()
		now, err := client.Call[state](within(t, 10*time.Second), s, "state", nil)
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	look()

	stop(t, cmd.Process.Pid) // while another takes its name
	b.Restart()
	b.Serve(echoServer(endpoint))
	cmd.Process.Signal(syscall.SIGCONT)
	refused := func(n int64) {
		t.Helper()
		until(t, "registrations are refused", func() bool { return refusals.refused.Load() >= n })
	}
	refused(2)
	before := look()
	refused(2 + attempts)
	const attempt = 5 // what one that is under way may have open
	if after := look(); after.Goroutines > before.Goroutines+attempt || after.Descriptors > before.Descriptors+attempt {
		t.Errorf("%+v after %d attempts, and %+v before", after, attempts, before)
	}
}

// The guard is registerWait: without, a broker that is stopped, or another's program at its path, has the instance for as long as it likes.
func TestABrokerThatDoesNotAnswerARegistrationIsAskedAgain(t *testing.T) {
	t.Parallel() // it takes 10 s
	path := brokertest.Socket(t)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	server := echoServer(endpoint)
	server.Socket = path
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx) }()
	listener.SetDeadline(time.Now().Add(time.Minute))
	for range 2 {
		conn, err := listener.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	stop()
	if err := wait(t, "the server's end", served); err != nil {
		t.Error(err)
	}
}
