package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

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

// echoServer returns a server of the echo endpoint.
func echoServer() services.Server {
	return services.Server{Endpoints: map[string]*services.Mux{echoEndpoint: echoMux()}}
}

func TestASessionIsOpenedUsedListedAndClosed(t *testing.T) {
	b := brokertest.Start(t)
	server := b.Serve(echoServer())
	s := b.Dial(echoEndpoint, client.Options{Title: "a test"})
	reply, err := client.Call[echoReply](within(t, 5*time.Second), s, "echo", echoRequest{"hi"})
	if err != nil || reply.Text != "hi" {
		t.Fatalf("echo: %+v, %v", reply, err)
	}
	operator := b.Dial(broker.Endpoint, client.Options{})
	for ctx, state := within(t, 5*time.Second), ""; state != broker.SessionOpen; { // the instance's news follows
		list, err := brokertest.Sessions(ctx, operator, broker.SessionsRequest{Endpoint: echoEndpoint})
		if err != nil || len(list) != 1 || list[0].ID != s.ID() || list[0].Title != "a test" {
			t.Fatalf("sessions: %+v, %v", list, err)
		}
		state = list[0].State
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
	if err := server.Stop(); err != nil {
		t.Error(err)
	}
}

func TestATakenEndpointIsRefusedAndItsOwnerNamed(t *testing.T) {
	b := brokertest.Start(t)
	first := echoServer()
	first.Service = "com.example.first"
	b.Serve(first)
	refusal := wire.Error{}
	if err := json.NewDecoder(play(t, "second", "", b.Socket).out).Decode(&refusal); err != nil {
		t.Fatal(err)
	}
	if refusal.Code != wire.Conflict || refusal.Holder == nil || refusal.Holder.Service != "com.example.first" || refusal.Holder.PID != os.Getpid() {
		t.Errorf("second registration: %+v, want %s naming the owner", refusal, wire.Conflict)
	}
}

func TestABrokerIsKeptOffAPathThatAnotherHolds(t *testing.T) {
	b := brokertest.Start(t)
	if _, err := broker.New(broker.Config{Socket: b.Socket}); !errors.Is(err, wire.Conflict) {
		t.Errorf("second broker: %v, want %v", err, wire.Conflict)
	}
}

func TestRefusalsReachTheClientWithTheirCode(t *testing.T) {
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{
		{Name: "com.example.false", Endpoints: []string{"com.example.false"}, Program: []string{"/bin/false"}},
		{Name: "com.example.none", Endpoints: []string{"com.example.none"}, Program: []string{"/does/not/exist"}},
		{Name: "com.example.slow", Endpoints: []string{"com.example.slow"}, Program: []string{"/bin/sleep", "1000"}, StartTimeout: 300 * time.Millisecond},
	}})
	server := echoServer()
	server.Accept = func(_ context.Context, o services.Opening) error {
		if o.Title == "stranger" {
			return wire.Errorf(wire.NotPermitted, "not you")
		}
		return errors.New("no")
	}
	b.Serve(server)
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
		_, err := client.Dial(within(t, 5*time.Second), test.endpoint, client.Options{Socket: b.Socket, Title: test.title})
		if !errors.Is(err, test.want) {
			t.Errorf("open %s as %q: %v, want %s", test.endpoint, test.title, err, test.want)
		}
	}
}

func TestDialWaitsForABrokerUnlessToldNotTo(t *testing.T) {
	at := brokertest.Socket(t)
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
	brokertest.StartWith(t, broker.Config{Socket: at})
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

func TestAnOpenRightAfterABrokersRestartWaitsForTheInstanceToRegister(t *testing.T) {
	b := brokertest.Start(t)
	b.Serve(echoServer())
	for range 5 {
		b.Restart()
		b.Dial(echoEndpoint, client.Options{}).Close()
	}
}

// The guard is that take closes the broker's connection when it has left: a copy that is kept keeps the kernel from telling the other end.
func TestTheBrokerKeepsNothingOfAConnectionThatItHandsOver(t *testing.T) {
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{played(t, "serve", echoEndpoint)}})
	b.Dial(echoEndpoint, client.Options{}).Close()
	keepsWhatIsLeft(t)
	before := descriptors(t, os.Getpid())
	for range 10 {
		b.Dial(echoEndpoint, client.Options{}).Close()
	}
	until(t, "there are no more descriptors than before", func() bool { return descriptors(t, os.Getpid()) <= before })
}
