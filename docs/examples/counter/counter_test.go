package counter_test

import (
	"errors"
	"testing"

	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/docs/examples/counter"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestCountersAreSharedByAllClients(t *testing.T) {
	b := brokertest.Start(t)
	var counters counter.Counters
	b.Serve(services.Server{Endpoints: map[string]*services.Mux{counter.Endpoint: counters.Mux()}})
	for i := range int64(3) {
		s := b.Dial(counter.Endpoint, client.Options{})
		got, err := client.Call[counter.Total](t.Context(), s, "add", counter.Add{Counter: "visits", By: 1})
		if err != nil || got.Total != i+1 {
			t.Fatalf("add: %+v, %v, want %d", got, err, i+1)
		}
	}
}

func TestBadRequestsAreRefusedWithTheirCode(t *testing.T) {
	var counters counter.Counters
	s, _ := brokertest.Pair(t, counter.Endpoint, counters.Mux(), nil) // no broker is needed for this
	for _, test := range []struct {
		method  string
		request any
		want    wire.Code
	}{
		{"get", "nothing", wire.NotFound},
		{"add", counter.Add{}, wire.Malformed},
		{"sub", counter.Add{Counter: "visits"}, wire.UnknownMethod},
	} {
		if err := s.Call(t.Context(), test.method, test.request, nil); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %s", test.method, err, test.want)
		}
	}
}

func TestACallOnAServiceThatIsKilledIsInterrupted(t *testing.T) {
	b := brokertest.Start(t)
	var counters counter.Counters
	service := b.Serve(services.Server{Endpoints: map[string]*services.Mux{counter.Endpoint: counters.Mux()}})
	s := b.Dial(counter.Endpoint, client.Options{})
	service.Kill()
	<-s.Done()
	if _, err := client.Call[counter.Total](t.Context(), s, "get", "visits"); !errors.Is(err, wire.Interrupted) {
		t.Errorf("%v, want %s", err, wire.Interrupted)
	}
}
