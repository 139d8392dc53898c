package services_test

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// An asker does for one service what a broker does, and asks its instances whether they are idle when the test wants it to. It hands opens to the instance that
// registered last.
type asker struct {
	t        *testing.T
	path     string
	serving  sync.WaitGroup
	stopped  context.Context
	listener *net.UnixListener

	mu      sync.Mutex
	control *session.Session // nil: there is no instance
	changed chan struct{}    // closed when there is another one
}

func ask(t *testing.T) *asker {
	t.Helper()
	a := &asker{t: t, path: brokertest.Socket(t), changed: make(chan struct{})}
	var cancel context.CancelFunc
	a.stopped, cancel = context.WithCancel(context.Background())
	var err error
	if a.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: a.path, Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	a.serving.Go(func() {
		for {
			conn, err := a.listener.AcceptUnix()
			if err != nil {
				return
			}
			a.serving.Go(func() { a.take(conn) })
		}
	})
	t.Cleanup(func() {
		cancel()
		a.listener.Close()
		a.serving.Wait()
	})
	return a
}

// take takes a first frame.
func (a *asker) take(conn *net.UnixConn) {
	defer conn.Close()
	f, _, err := socket.ReadFrame(conn)
	if err != nil {
		return
	}
	if f.Kind == wire.KindRegister {
		a.register(conn)
		return
	}
	var o wire.Open
	if err := wire.Unmarshal(f.Body, &o); err != nil {
		a.t.Error(err)
		return
	}
	for a.stopped.Err() == nil && !a.handOver(conn, o) {
	}
}

// register keeps an instance's control connection until it ends.
func (a *asker) register(conn *net.UnixConn) {
	accepted, err := wire.NewFrame(wire.KindAccepted, 0, wire.Accepted{})
	if err != nil {
		a.t.Error(err)
		return
	}
	mux := services.NewMux()
	services.Handle(mux, wire.MethodSessions, func(context.Context, wire.Sessions) (any, error) {
		return nil, nil
	})
	control := session.NewControl(conn, session.Config{Endpoint: "control", Handler: mux}, accepted)
	a.set(control)
	select {
	case <-control.Done():
	case <-a.stopped.Done():
		control.Abort(wire.End{Code: wire.Terminating, Origin: wire.Local, Text: "the test is over"})
	}
	control.Wait()
}

func (a *asker) set(control *session.Session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.control = control
	close(a.changed)
	a.changed = make(chan struct{})
}

// instance returns the control connection of the instance there is, or of the next one; nil when the test is over.
func (a *asker) instance() *session.Session {
	for {
		a.mu.Lock()
		control, changed := a.control, a.changed
		a.mu.Unlock()
		if control != nil && !control.Terminating() {
			return control
		}
		select {
		case <-changed:
		case <-time.After(time.Millisecond): // it may have begun to leave without a change
		case <-a.stopped.Done():
			return nil
		}
	}
}

// handOver hands a client's connection to an instance, and reports whether that was sent.
func (a *asker) handOver(conn *net.UnixConn, o wire.Open) bool {
	control := a.instance()
	if control == nil {
		return true
	}
	id := session.NewID()
	routed, err1 := wire.NewFrame(wire.KindRouted, 0, wire.Routed{Session: id, Service: endpoint, Process: wire.Process{PID: os.Getpid()}})
	file, err2 := conn.File()
	if err := errors.Join(err1, err2); err != nil {
		a.t.Error(err)
		return true
	}
	defer file.Close()
	if socket.WriteFrame(conn, routed) != nil {
		return true // the client is gone
	}
	ctx, cancel := context.WithTimeout(a.stopped, 10*time.Second)
	defer cancel()
	return control.Send(ctx, wire.MethodHandOver, wire.HandOver{
		Session: id, Endpoint: o.Endpoint, Title: o.Title, Features: o.Features, Limits: o.Limits, Client: wire.Process{PID: os.Getpid()}, Socket: file,
	}) == nil
}

// idle asks the instance there is whether it ends, and has it take no more sessions if it does.
func (a *asker) idle() bool {
	a.t.Helper()
	control := a.instance()
	reply, err := client.Call[wire.Idle](within(a.t, 10*time.Second), control, wire.MethodIdle, nil)
	if err != nil {
		a.t.Error(err)
	}
	if reply.Ended {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.control == control {
			a.control = nil
		}
	}
	return reply.Ended
}

// dial opens a session, and ends it with the test.
func (a *asker) dial(title string) *client.Session {
	a.t.Helper()
	s, err := client.Dial(within(a.t, 10*time.Second), endpoint, client.Options{Socket: a.path, Title: title})
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { s.Close(); s.Wait() })
	return s
}

func TestAnInstanceEndsWhenItIsIdleAndNotBefore(t *testing.T) {
	a := ask(t)
	began, proceed, opened := make(chan struct{}, 1), make(chan struct{}), make(chan *session.Session, 10)
	hang := func() { // whatever becomes of the session
		began <- struct{}{}
		<-proceed
	}
	server := echoServer(endpoint)
	mux := server.Endpoints[endpoint]
	services.Handle(mux, "call", func(context.Context, any) (any, error) { hang(); return nil, nil })
	services.HandleOneWay(mux, "tell", func(context.Context, any) error { hang(); return nil })
	services.HandleStream(mux, "stream", func(context.Context, *session.Stream) error { hang(); return nil })
	server.Socket = a.path
	server.Opened = func(s *session.Session) { opened <- s }
	server.Accept = func(_ context.Context, o services.Opening) error {
		if o.Title == "slow" || o.Title == "refused" {
			hang()
		}
		if o.Title == "refused" {
			return wire.NotPermitted
		}
		return nil
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(t.Context()) }()

	busy := func(when string) {
		t.Helper()
		if a.idle() {
			t.Fatalf("it ends %s", when)
		}
	}
	s := a.dial("")
	echo(t, s)
	busy("with a session")
	for _, title := range []string{"slow", "refused"} {
		dialed := make(chan *client.Session, 1)
		go func() {
			s, err := client.Dial(within(t, 10*time.Second), endpoint, client.Options{Socket: a.path, Title: title})
			if (err == nil) != (title == "slow") {
				t.Errorf("%s: %v", title, err)
			}
			dialed <- s
		}()
		s.Close()
		wait(t, "the accept check", began)
		busy("while a session is being opened: " + title)
		proceed <- struct{}{}
		if next := wait(t, "the open", dialed); next != nil {
			s = next
		}
	}
	s.Close()
	for method, use := range map[string]func(*client.Session){
		"call":   func(s *client.Session) { s.Call(s.Context(), "call", nil, nil) },
		"tell":   func(s *client.Session) { s.Send(s.Context(), "tell", nil) },
		"stream": func(s *client.Session) { s.OpenStream(s.Context(), "stream") },
	} {
		s := a.dial("")
		for len(opened) > 1 {
			<-opened
		}
		its := wait(t, "the session", opened)
		used := make(chan struct{})
		go func() { use(s); close(used) }()
		wait(t, "the handler of a "+method, began)
		brokertest.Kill(s)
		wait(t, "the client's end", used)
		wait(t, "the session's end", its.Done())
		busy("while a handler of a session that has ended runs: " + method)
		proceed <- struct{}{}
	}
	until(t, "it ends when nothing is to do", a.idle)
	if err := wait(t, "the end", served); err != nil {
		t.Errorf("serve: %v", err)
	}
}

func TestAHandOverToAnInstanceThatWasIdleIsToldToAskAgain(t *testing.T) {
	path := brokertest.Socket(t)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	server := echoServer(endpoint)
	server.Socket = path
	served := make(chan error, 1)
	go func() { served <- server.Serve(t.Context()) }()
	control, err := listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	control.SetDeadline(time.Now().Add(10 * time.Second))
	say := func(kind wire.Kind, id uint32, v any, files ...*os.File) {
		t.Helper()
		f, err := wire.NewFrame(kind, id, v)
		f.Files = uint8(len(files))
		if err == nil {
			err = socket.WriteFrame(control, f, files...)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	hear := func(conn *net.UnixConn, kind wire.Kind) wire.Frame {
		t.Helper()
		for { // behind what is not asked for
			f, _, err := socket.ReadFrame(conn)
			if err != nil {
				t.Fatal(err)
			}
			if f.Kind == kind {
				return f
			}
		}
	}
	hear(control, wire.KindRegister)
	say(wire.KindAccepted, 0, wire.Accepted{})
	say(wire.KindRequest, 1, wire.Request{Method: wire.MethodIdle})
	var reply wire.Idle
	if err := wire.Unmarshal(hear(control, wire.KindReply).Body, &reply); err != nil || !reply.Ended {
		t.Fatalf("%+v, %v, want that it ends", reply, err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	mine, its := os.NewFile(uintptr(fds[0]), "client"), os.NewFile(uintptr(fds[1]), "handed over")
	defer mine.Close()
	defer its.Close()
	conn, err := socket.FromFile(mine)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	value, files, err := wire.MarshalFiles(wire.HandOver{Session: session.NewID(), Endpoint: endpoint, Socket: its})
	if err != nil {
		t.Fatal(err)
	}
	say(wire.KindOneWay, 0, wire.Request{Method: wire.MethodHandOver, Value: value}, files...) // it was on its way
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	if refusal, err := wire.DecodeError(hear(conn, wire.KindRefused).Body); err != nil || refusal.Code != wire.Terminating {
		t.Errorf("%v, %v, want %s", refusal, err, wire.Terminating)
	}
	control.Close()
	if err := wait(t, "the end", served); err != nil {
		t.Errorf("serve: %v", err)
	}
}

func TestNoOpenIsLostBetweenAnInstanceThatWasIdleAndTheNext(t *testing.T) {
	const clients, instances = 3, 30
	a := ask(t)
	server := echoServer(endpoint)
	server.Socket = a.path
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	var ended atomic.Int64
	running.Go(func() { // a service whose instances are started one after the other
		for ctx.Err() == nil {
			if err := server.Serve(ctx); err != nil {
				t.Errorf("serve: %v", err)
			}
		}
	})
	defer stop()
	var using sync.WaitGroup
	for range clients {
		using.Go(func() {
			for ended.Load() < instances && !t.Failed() {
				s, err := client.Dial(within(t, 10*time.Second), endpoint, client.Options{Socket: a.path})
				if err != nil {
					t.Error(err)
					return
				}
				if reply, err := client.Call[text](within(t, 10*time.Second), s, "echo", text{"hi"}); err != nil || reply.Text != "hi" {
					t.Errorf("%+v, %v", reply, err)
				}
				s.Close()
				s.Wait()
			}
		})
	}
	for ended.Load() < instances && !t.Failed() {
		if a.idle() {
			ended.Add(1)
		}
	}
	using.Wait()
}
