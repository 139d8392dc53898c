package services_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// odd is an error that cannot say what it is.
type odd struct{}

func (odd) Error() string { panic("oh") }

// everything is a Mux with a method of each kind for each result.
func everything() *services.Mux {
	mux := services.NewMux()
	result := func(what string) error {
		switch what {
		case "conflict":
			return wire.Errorf(wire.Conflict, "oh\x1b[2J")
		case "made up":
			return wire.Code(strings.Repeat("x", 100))
		case "odd":
			return odd{}
		case "panic":
			panic(what)
		}
		return nil
	}
	services.Handle(mux, "call", func(_ context.Context, r text) (text, error) { return r, result(r.Text) })
	services.HandleOneWay(mux, "tell", func(_ context.Context, r text) error { return result(r.Text) })
	services.HandleStream(mux, "raw", func(_ context.Context, s *session.Stream) error {
		b, err := io.ReadAll(s)
		return errors.Join(err, result(string(b)))
	})
	services.HandleStreaming(mux, "typed", func(_ context.Context, r text, _ *services.Streaming[text, text]) error { return result(r.Text) })
	return mux
}

func TestEachCallThatWasServedIsToldOnceWithItsResult(t *testing.T) {
	b := brokertest.Start(t)
	calls := make(chan services.Call, 100)
	b.Serve(services.Server{Endpoints: map[string]*services.Mux{endpoint: everything()}, Called: func(c services.Call) { calls <- c }})
	s := b.Dial(endpoint, client.Options{})
	call := func(method string, value any) error { return s.Call(within(t, 5*time.Second), method, value, nil) }
	tell := func(method string, value any) error { return s.Send(within(t, 5*time.Second), method, value) }
	raw := func(method string, value any) error {
		st, err := s.OpenStream(within(t, 5*time.Second), method)
		if err != nil {
			return err
		}
		defer st.Close()
		io.WriteString(st, value.(text).Text)
		st.CloseWrite()
		_, err = io.ReadAll(st)
		return err
	}
	typed := func(method string, value any) error {
		values, err := client.OpenStreaming[text, text](within(t, 5*time.Second), s, method, value)
		if err != nil {
			return err
		}
		defer values.Close()
		if _, err = values.Receive(); err == io.EOF {
			return nil
		}
		return err
	}
	for _, test := range []struct {
		do     func(string, any) error
		method string
		value  any
		kind   services.Kind
		code   wire.Code
	}{
		{call, "call", text{}, services.KindCall, ""},
		{call, "call", text{"conflict"}, services.KindCall, wire.Conflict},
		{call, "call", text{"panic"}, services.KindCall, wire.Internal},
		{call, "call", text{"odd"}, services.KindCall, wire.Internal},
		{call, "call", text{"made up"}, services.KindCall, wire.Internal},
		{call, "call", text{"bad"}, services.KindCall, wire.Malformed},
		{call, "call", []int{1}, services.KindCall, wire.Malformed},
		{call, "none\x1b[2J", text{}, services.KindCall, wire.UnknownMethod},
		{call, "tell", text{}, services.KindCall, wire.UnknownMethod},
		{tell, "tell", text{}, services.KindOneWay, ""},
		{tell, "tell", text{"conflict"}, services.KindOneWay, wire.Conflict},
		{tell, "tell", text{"panic"}, services.KindOneWay, wire.Internal},
		{tell, "tell", text{"bad"}, services.KindOneWay, wire.Malformed},
		{tell, "none", text{}, services.KindOneWay, wire.UnknownMethod},
		{raw, "raw", text{}, services.KindStream, ""},
		{raw, "raw", text{"conflict"}, services.KindStream, wire.Conflict},
		{raw, "raw", text{"panic"}, services.KindStream, wire.Internal},
		{raw, "none", text{}, services.KindStream, wire.UnknownMethod},
		{typed, "typed", text{}, services.KindStreaming, ""},
		{typed, "typed", text{"conflict"}, services.KindStreaming, wire.Conflict},
		{typed, "typed", text{"panic"}, services.KindStreaming, wire.Internal},
		{typed, "typed", text{"bad"}, services.KindStreaming, wire.Malformed},
		{typed, "typed", []int{1}, services.KindStreaming, wire.Malformed},
	} {
		err := test.do(test.method, test.value)
		c := wait(t, "it is told", calls)
		if test.kind == services.KindStream && test.code == "" {
			err = nil // it is not finished there
		}
		if test.kind != services.KindOneWay && wire.CodeOf(err) != test.code {
			t.Errorf("%s %v: %v, want %s", test.method, test.value, err, test.code)
		}
		if c.Session != s.ID() || c.Endpoint != endpoint || c.Peer.PID != os.Getpid() || c.Peer.UID != uint32(os.Getuid()) || c.Took < 0 {
			t.Errorf("%s %v: told %+v", test.method, test.value, c)
		}
		if c.Method != wire.Printable(test.method, 100) || c.Kind != test.kind || c.Code != test.code {
			t.Errorf("%s %v: told %+v, want %s, %s", test.method, test.value, c, test.kind, test.code)
		}
		if (c.Err == "") != (test.code == "") || strings.ContainsRune(c.Err, '\x1b') || len(c.Err) > 2*wire.MaxText {
			t.Errorf("%s %v: told the error %q", test.method, test.value, c.Err)
		}
	}
	s.Close()
	if len(calls) > 0 {
		t.Errorf("told once more: %+v", <-calls)
	}
}

func TestACallThatItsCallerCanceledIsToldAsThat(t *testing.T) {
	b := brokertest.Start(t)
	calls, began := make(chan services.Call, 10), make(chan struct{}, 10)
	mux := services.NewMux()
	services.Handle(mux, "hang", func(ctx context.Context, _ text) (text, error) {
		began <- struct{}{}
		<-ctx.Done()
		return text{}, ctx.Err()
	})
	services.HandleStreaming(mux, "follow", func(_ context.Context, _ text, values *services.Streaming[text, text]) error {
		began <- struct{}{}
		_, err := values.Receive()
		return err
	})
	b.Serve(services.Server{Endpoints: map[string]*services.Mux{endpoint: mux}, Called: func(c services.Call) { calls <- c }})
	s := b.Dial(endpoint, client.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	go s.Call(ctx, "hang", text{}, nil)
	wait(t, "the handler", began)
	cancel()
	if c := wait(t, "the call is told", calls); c.Method != "hang" || c.Code != wire.Canceled {
		t.Errorf("told %+v, want %s", c, wire.Canceled)
	}
	values, err := client.OpenStreaming[text, text](t.Context(), s, "follow", text{})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "the handler", began)
	values.Close()
	if c := wait(t, "the streaming call is told", calls); c.Method != "follow" || c.Code != wire.Canceled {
		t.Errorf("told %+v, want %s", c, wire.Canceled)
	}
}

// safe is a log that may be read while it is written.
type safe struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safe) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *safe) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestAHookThatPanicsChangesNoResult(t *testing.T) {
	b := brokertest.Start(t)
	var logged safe
	b.Serve(services.Server{
		Endpoints: map[string]*services.Mux{endpoint: everything()}, Called: func(services.Call) { panic("hook") }, Logger: slog.New(slog.NewTextHandler(&logged, nil)),
	})
	s := b.Dial(endpoint, client.Options{})
	for _, test := range []struct {
		value text
		want  wire.Code
	}{{text{"hi"}, ""}, {text{"conflict"}, wire.Conflict}, {text{"panic"}, wire.Internal}} {
		reply, err := client.Call[text](within(t, 5*time.Second), s, "call", test.value)
		if wire.CodeOf(err) != test.want || err == nil && reply != test.value {
			t.Errorf("%v: %+v, %v, want %s", test.value, reply, err, test.want)
		}
	}
	for _, want := range []string{"hook for calls panicked", `err=hook`, `handler panicked`, `err=panic`} { // each panic, and not one as the other
		if !strings.Contains(logged.String(), want) {
			t.Errorf("not logged: %s", want)
		}
	}
}
