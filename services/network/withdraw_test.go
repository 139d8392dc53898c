package network_test

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A losing is an endpoint that loses the session of each allocate, until it is told to answer. It keeps the requests.
type losing struct {
	path string

	mu       sync.Mutex
	answer   error // nil: the session is lost
	requests []network.AllocateRequest
}

func newLosing(t *testing.T) *losing {
	t.Helper()
	e := &losing{path: filepath.Join(t.TempDir(), "s")}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: e.path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	mux := services.NewMux()
	services.Handle(mux, network.MethodAllocate, e.allocate)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			if s, err := session.New(conn, session.Config{ID: session.NewID(), Endpoint: network.Endpoint, Handler: mux, Lane: true}); err == nil {
				serving.Go(s.Wait)
			}
		}
	})
	t.Cleanup(func() { listener.Close(); serving.Wait() })
	return e
}

func (e *losing) allocate(ctx context.Context, r network.AllocateRequest) (network.LeaseInfo, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.requests = append(e.requests, r)
	if e.answer == nil {
		services.FromContext(ctx).Abort(wire.End{Code: wire.Invalid, Origin: wire.Local})
	} else if e.answer != done {
		return network.LeaseInfo{}, e.answer
	}
	return network.LeaseInfo{ID: "46f143cea281c473", Network: "default", MAC: "02:00:00:00:00:01", Addresses: []string{"10.9.0.2/24"}}, nil
}

// done has a losing endpoint lease something.
var done = wire.Errorf(wire.Internal, "none")

// ask allocates on a session of its own.
func (e *losing) ask(t *testing.T, answer error) (network.AllocateRequest, error) {
	t.Helper()
	e.mu.Lock()
	e.answer = answer
	e.mu.Unlock()
	conn, err := net.Dial("unix", e.path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := session.New(conn, session.Config{Endpoint: network.Endpoint, Opener: true, Lane: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Wait()
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = network.Allocate(ctx, (*client.Session)(s), network.Request{})
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.requests[len(e.requests)-1], err
}

func TestAllocatesWithoutAnAnswerAreWithdrawnAtTheirBrokerUntilOneSucceeds(t *testing.T) {
	e, other := newLosing(t), newLosing(t)
	var tokens []string
	for i := range network.MaxWithdraw + 3 {
		r, err := e.ask(t, nil)
		if wire.CodeOf(err) != wire.Interrupted {
			t.Fatalf("a session that is lost: %v", err)
		}
		if want := tokens[max(0, i-network.MaxWithdraw):]; !slices.Equal(r.Withdraw, want) {
			t.Fatalf("request %d withdraws %d, want the last %d", i, len(r.Withdraw), len(want))
		}
		if err := r.Validate(); err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, r.Token)
	}
	tokens = tokens[3:]
	if r, err := other.ask(t, done); err != nil || len(r.Withdraw) != 0 {
		t.Errorf("at another broker %d are withdrawn, %v", len(r.Withdraw), err)
	}
	for _, answer := range []error{wire.Errorf(wire.Exhausted, "none is free"), done} { // a failure may be that it could not be recorded
		if r, err := e.ask(t, answer); !slices.Equal(r.Withdraw, tokens) || (err == nil) != (answer == done) {
			t.Errorf("with the answer %v %d are withdrawn, want %d; %v", answer, len(r.Withdraw), len(tokens), err)
		}
	}
	if r, err := e.ask(t, done); err != nil || len(r.Withdraw) != 0 {
		t.Errorf("after one has succeeded %d are withdrawn, %v", len(r.Withdraw), err)
	}
}

func TestTokensAreBoundedAndThoseToWithdrawLongEnoughToBeAlone(t *testing.T) {
	token := strings.Repeat("x", 16)
	for what, r := range map[string]network.AllocateRequest{
		"a long token":             {Token: strings.Repeat("x", 65)},
		"a token that is no text":  {Token: "\xff"},
		"a short one to withdraw":  {Withdraw: []string{token, token[1:]}},
		"a long one to withdraw":   {Withdraw: []string{strings.Repeat("x", 65)}},
		"too many to withdraw":     {Withdraw: slices.Repeat([]string{token}, network.MaxWithdraw+1)},
		"one with a lease to take": {Withdraw: []string{""}, Reclaim: "46f143cea281c473", Secret: strings.Repeat("0", 32)},
	} {
		if err := r.Validate(); wire.CodeOf(err) != wire.Malformed {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, r := range []network.AllocateRequest{
		{Token: strings.Repeat("x", 64), Withdraw: slices.Repeat([]string{token}, network.MaxWithdraw)},
		{Withdraw: []string{token}, Reclaim: "46f143cea281c473", Secret: strings.Repeat("0", 32)},
	} {
		if err := r.Validate(); err != nil {
			t.Error(err)
		}
	}
}
