package counter_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

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

func TestWhoFollowsACounterSeesEachChangeInOrderAndTheLast(t *testing.T) {
	var counters counter.Counters
	s, _ := brokertest.Pair(t, counter.Endpoint, counters.Mux(), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	totals, err := client.OpenStreaming[counter.Total, struct{}](ctx, s, "follow", "visits")
	if err != nil {
		t.Fatal(err)
	}
	defer totals.Close()
	const last = 100
	for want := range int64(last) {
		got, err := totals.Receive()
		if err != nil || got.Total != want {
			t.Fatalf("%+v, %v, want %d", got, err, want)
		}
		if want%2 == 0 { // this changes nothing that is followed
			if err := s.Call(ctx, "add", counter.Add{Counter: "other", By: 1}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Call(ctx, "add", counter.Add{Counter: "visits", By: 1}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := counter.Follow(ctx, s, "visits", last); err != nil {
		t.Error(err)
	}
}

func TestAFollowersHandlerEndsWithIt(t *testing.T) {
	var counters counter.Counters
	s, service := brokertest.Pair(t, counter.Endpoint, counters.Mux(), nil)
	for range 10 {
		if err := counter.Follow(t.Context(), s, "visits", 0); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); service.Inspect().Streams > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d followers are left", service.Inspect().Streams)
		}
	}
}

func TestTheExamplesOfTheManualAreTheOnesThatAreCompiled(t *testing.T) {
	var source []byte
	for _, name := range []string{"counter.go", "counterd/main.go", "counterctl/main.go", "counter_test.go"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, b...)
	}
	manual, err := os.ReadFile("../../services.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for i, block := range strings.Split(string(manual), "```") {
		code, isGo := strings.CutPrefix(block, "go\n")
		if i%2 == 0 || !isGo {
			continue
		}
		found++
		if !strings.Contains(string(source), strings.TrimSpace(code)) {
			t.Errorf("this example is not compiled:\n%s", code)
		}
	}
	if found != 6 {
		t.Errorf("%d examples, want 6", found)
	}
}
