package broker_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

// run has a broker serve until the returned function is called.
func run(t *testing.T, c broker.Config) (stop func()) {
	t.Helper()
	b, err := broker.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Serve(ctx) }()
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	return stop
}

// serve has a server serve until the test or the returned function ends it.
func serve(t *testing.T, s services.Server) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{}, 100)
	s.Ready = func() { ready <- struct{}{} }
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	select {
	case <-ready:
	case err := <-done:
		cancel()
		t.Fatal(err)
	case <-time.After(10 * time.Second):
		t.Fatal("no registration within 10 s")
	}
	return func() error {
		cancel()
		return <-done
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

type echoRequest struct{ Text string }
type echoReply struct{ Text string }

func echoMux() *services.Mux {
	mux := services.NewMux()
	services.Handle(mux, "echo", func(_ context.Context, r echoRequest) (echoReply, error) { return echoReply(r), nil })
	return mux
}

const echoEndpoint = "com.example.echo"

func path(t *testing.T) string { return filepath.Join(t.TempDir(), "b.sock") }

func TestASessionIsOpenedUsedListedAndClosed(t *testing.T) {
	at := path(t)
	defer run(t, broker.Config{Socket: at})()
	stop := serve(t, services.Server{Socket: at, Endpoints: map[string]*services.Mux{echoEndpoint: echoMux()}})
	s, err := client.Dial(within(t, 5*time.Second), echoEndpoint, client.Options{Socket: at, Title: "a test"})
	if err != nil {
		t.Fatal(err)
	}
	reply, err := client.Call[echoReply](within(t, 5*time.Second), s, "echo", echoRequest{"hi"})
	if err != nil || reply.Text != "hi" {
		t.Fatalf("echo: %+v, %v", reply, err)
	}
	operator, err := client.Dial(within(t, 5*time.Second), broker.Endpoint, client.Options{Socket: at})
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	list, err := client.Call[broker.Sessions](within(t, 5*time.Second), operator, broker.MethodSessions, broker.SessionsRequest{Endpoint: echoEndpoint})
	if err != nil || len(list.Sessions) != 1 || list.Sessions[0].ID != s.ID() || list.Sessions[0].Title != "a test" || list.Sessions[0].State != broker.SessionOpen {
		t.Fatalf("sessions: %+v, %v", list, err)
	}
	d, err := client.Call[broker.Details](within(t, 5*time.Second), operator, broker.MethodInspect, broker.SessionRequest{ID: s.ID()[:6]})
	if err != nil || d.Inspection == nil || d.Inspection.CallsServed != 1 || d.Inspection.Socket == 0 || d.Inspection.PeerSocket == 0 {
		t.Fatalf("inspect: %+v, %v", d, err)
	}
	closed, err := client.Call[broker.Session](within(t, 5*time.Second), operator, broker.MethodClose, broker.SessionRequest{ID: s.ID()[:6], Text: "enough"})
	if err != nil || closed.State != broker.SessionClosed {
		t.Fatalf("close: %+v, %v", closed, err)
	}
	<-s.Done()
	if got, want := s.End(), (wire.End{Code: wire.Interrupted, Origin: wire.Broker, Text: "enough"}); got != want {
		t.Errorf("end %+v, want %+v", got, want)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestATakenEndpointIsRefusedAndItsOwnerNamed(t *testing.T) {
	at := path(t)
	defer run(t, broker.Config{Socket: at})()
	s := services.Server{Socket: at, Service: "com.example.first", Endpoints: map[string]*services.Mux{echoEndpoint: echoMux()}}
	stop := serve(t, s)
	defer stop()
	// The same process registers again as the same instance, so the second one is another process.
	out := second(t, at)
	if want := "conflict"; out.Code != wire.Conflict || out.Holder == nil || out.Holder.Service != "com.example.first" {
		t.Errorf("second registration: %+v, want %s naming the owner", out, want)
	}
}

func TestABrokerIsKeptOffAPathThatAnotherHolds(t *testing.T) {
	at := path(t)
	defer run(t, broker.Config{Socket: at})()
	if _, err := broker.New(broker.Config{Socket: at}); !errors.Is(err, wire.Conflict) {
		t.Errorf("second broker: %v, want %v", err, wire.Conflict)
	}
}

func TestSessionsOutliveTheBrokerAndAreListedByTheNext(t *testing.T) {
	at := path(t)
	stopBroker := run(t, broker.Config{Socket: at})
	stop := serve(t, services.Server{Socket: at, Endpoints: map[string]*services.Mux{echoEndpoint: echoMux()}})
	defer stop()
	var all []*client.Session
	for i := range 250 { // more than two batches
		s, err := client.Dial(within(t, 5*time.Second), echoEndpoint, client.Options{Socket: at, Title: fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		all = append(all, s)
	}
	stopBroker()
	for _, s := range all {
		if _, err := client.Call[echoReply](within(t, 5*time.Second), s, "echo", echoRequest{"hi"}); err != nil {
			t.Fatalf("without a broker: %v", err)
		}
	}
	defer run(t, broker.Config{Socket: at})()
	operator, err := client.Dial(within(t, 5*time.Second), broker.Endpoint, client.Options{Socket: at})
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	for deadline := time.Now().Add(5 * time.Second); ; {
		list, err := client.Call[broker.Sessions](within(t, 5*time.Second), operator, broker.MethodSessions, broker.SessionsRequest{Endpoint: echoEndpoint})
		if err != nil {
			t.Fatal(err)
		}
		ids := map[string]bool{}
		for _, s := range list.Sessions {
			ids[s.ID] = true
		}
		missing := 0
		for _, s := range all {
			if !ids[s.ID()] {
				missing++
			}
		}
		if missing == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d sessions are not listed", missing, len(all))
		}
	}
}

func TestRefusalsReachTheClientWithTheirCode(t *testing.T) {
	at := path(t)
	defer run(t, broker.Config{Socket: at, Services: []broker.Service{
		{Name: "com.example.false", Endpoints: []string{"com.example.false"}, Program: []string{"/bin/false"}},
		{Name: "com.example.none", Endpoints: []string{"com.example.none"}, Program: []string{"/does/not/exist"}},
		{Name: "com.example.slow", Endpoints: []string{"com.example.slow"}, Program: []string{"/bin/sleep", "1000"}},
	}, StartTimeout: 300 * time.Millisecond})()
	stop := serve(t, services.Server{Socket: at, Endpoints: map[string]*services.Mux{echoEndpoint: echoMux()}, Accept: func(_ context.Context, o services.Opening) error {
		if o.Title == "stranger" {
			return wire.Errorf(wire.NotPermitted, "not you")
		}
		return errors.New("no")
	}})
	defer stop()
	for _, test := range []struct {
		endpoint, title string
		want            wire.Code
	}{
		{"com.example.nobody", "", wire.UnknownEndpoint},
		{"not a name", "", wire.Malformed},
		{echoEndpoint, "stranger", wire.NotPermitted},
		{echoEndpoint, "", wire.Refused},
		{"com.example.false", "", wire.StartFailed},
		{"com.example.none", "", wire.StartFailed},
		{"com.example.slow", "", wire.StartTimeout},
	} {
		_, err := client.Dial(within(t, 5*time.Second), test.endpoint, client.Options{Socket: at, Title: test.title})
		if !errors.Is(err, test.want) {
			t.Errorf("open %s as %q: %v, want %s", test.endpoint, test.title, err, test.want)
		}
	}
}

func TestDialWaitsForABrokerUnlessToldNotTo(t *testing.T) {
	at := path(t)
	if _, err := client.Dial(within(t, 5*time.Second), broker.Endpoint, client.Options{Socket: at, NoWait: true}); err == nil {
		t.Error("no broker, and no error")
	} else if e, ok := errors.AsType[*client.NoBrokerError](err); !ok || e.Path != at {
		t.Errorf("%v, want a NoBrokerError for %s", err, at)
	}
	if _, err := client.Dial(within(t, 50*time.Millisecond), broker.Endpoint, client.Options{Socket: at}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want deadline exceeded", err)
	}
	opened := make(chan error, 1)
	go func() {
		s, err := client.Dial(within(t, 10*time.Second), broker.Endpoint, client.Options{Socket: at})
		if err == nil {
			s.Close()
		}
		opened <- err
	}()
	defer run(t, broker.Config{Socket: at})()
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

func TestAnOpenRightAfterABrokersRestartWaitsForTheInstanceToRegister(t *testing.T) {
	at := path(t)
	stopBroker := run(t, broker.Config{Socket: at})
	stop := serve(t, services.Server{Socket: at, Endpoints: map[string]*services.Mux{echoEndpoint: echoMux()}})
	defer stop()
	for range 5 {
		stopBroker()
		stopBroker = run(t, broker.Config{Socket: at})
		s, err := client.Dial(within(t, 5*time.Second), echoEndpoint, client.Options{Socket: at})
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	stopBroker()
}
