package services_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

// texts is a Mux with streaming calls of texts.
func texts() *services.Mux {
	mux := services.NewMux()
	services.HandleStreaming(mux, "upper", func(_ context.Context, prefix text, values *services.Streaming[text, text]) error {
		for v, err := range values.All() {
			if err != nil {
				return err
			}
			if v.Text == "conflict" {
				return wire.Errorf(wire.Conflict, "oh")
			}
			if err := values.Send(text{prefix.Text + strings.ToUpper(v.Text)}); err != nil {
				return err
			}
		}
		return nil
	})
	services.HandleStreaming(mux, "count", func(_ context.Context, n int, values *services.Streaming[struct{}, int]) error {
		for i := range n {
			if err := values.Send(i); err != nil {
				return err
			}
		}
		return nil
	})
	services.HandleStreaming(mux, "wait", func(ctx context.Context, _ any, _ *services.Streaming[any, any]) error {
		<-ctx.Done()
		return ctx.Err()
	})
	services.HandleStreaming(mux, "panic", func(context.Context, any, *services.Streaming[any, any]) error { panic("oh") })
	return mux
}

func openStreaming[In, Out any](t *testing.T, on client.Caller, method string, request any) *client.Streaming[In, Out] {
	t.Helper()
	values, err := client.OpenStreaming[In, Out](within(t, 10*time.Second), on, method, request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { values.Close() })
	return values
}

func TestAStreamingCallHasItsTypesOnBothSides(t *testing.T) {
	c, _ := brokertest.Pair(t, endpoint, texts(), nil)
	upper := openStreaming[text, text](t, c, "upper", text{"> "})
	for _, word := range []string{"one", "two"} {
		err := upper.Send(text{word})
		if got, received := upper.Receive(); errors.Join(err, received) != nil || got.Text != "> "+strings.ToUpper(word) {
			t.Errorf("%+v, %v, %v", got, err, received)
		}
	}
	if err := upper.CloseSend(); err != nil {
		t.Error(err)
	}
	if got, err := upper.Receive(); err != io.EOF {
		t.Errorf("%+v, %v, want the end", got, err)
	}
	next := 0
	for n, err := range openStreaming[int, struct{}](t, c, "count", 1000).All() {
		if err != nil || n != next {
			t.Fatalf("%d, %v, want %d", n, err, next)
		}
		next++
	}
	if next != 1000 {
		t.Errorf("%d values, and that is the end", next)
	}
}

func TestABadStreamingCallIsAnsweredWithItsCode(t *testing.T) {
	c, s := brokertest.Pair(t, endpoint, texts(), nil)
	for name, test := range map[string]struct {
		on      client.Caller
		method  string
		request any
		send    any
		want    wire.Code
	}{
		"a request that is none":     {c, "upper", []int{1}, nil, wire.Malformed},
		"a request that is refused":  {c, "upper", text{"bad"}, nil, wire.Malformed},
		"a value that is none":       {c, "upper", text{}, []int{1}, wire.Malformed},
		"a value that is refused":    {c, "upper", text{}, text{"bad"}, wire.Malformed},
		"a handler's error":          {c, "upper", text{}, text{"conflict"}, wire.Conflict},
		"a handler's panic":          {c, "panic", nil, nil, wire.Internal},
		"a method that is not there": {c, "none\x1b[2J", nil, nil, wire.UnknownMethod},
		"a side that serves none":    {s, "upper", text{}, nil, wire.UnknownMethod},
	} {
		values := openStreaming[any, any](t, test.on, test.method, test.request)
		if test.send != nil {
			values.Send(test.send)
		}
		if v, err := values.Receive(); !errors.Is(err, test.want) || strings.ContainsRune(fmt.Sprint(err), '\x1b') {
			t.Errorf("%s: %v, %q, want %s", name, v, err, test.want)
		}
	}
	if _, err := openStreaming[text, any](t, c, "count", 1).Receive(); !errors.Is(err, wire.Malformed) {
		t.Errorf("another type: %v, want %s", err, wire.Malformed)
	}
}

func TestAllEndsWithOneError(t *testing.T) {
	c, _ := brokertest.Pair(t, endpoint, texts(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	values, err := client.OpenStreaming[any, any](ctx, c, "wait", nil)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	var errs []error
	for _, err := range values.All() {
		errs = append(errs, err)
	}
	if len(errs) != 1 || !errors.Is(errs[0], context.Canceled) {
		t.Errorf("%v, want canceled once", errs)
	}
}

func TestMethodsOfStreamsAreAddedOnce(t *testing.T) {
	mux := texts()
	for _, name := range []string{"upper", "", strings.Repeat("x", wire.MaxMethod+1)} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a method with a name of %d bytes was added", len(name))
				}
			}()
			services.HandleStreaming(mux, name, func(context.Context, any, *services.Streaming[any, any]) error { return nil })
		}()
	}
}

func TestAServerThatIsStoppedBeginsNoStreamingCallAndEndsThoseThereAre(t *testing.T) {
	b := brokertest.Start(t)
	mux, begun := texts(), make(chan bool, 1)
	services.HandleStreaming(mux, "hold", func(ctx context.Context, _ any, _ *services.Streaming[any, any]) error {
		begun <- true
		<-ctx.Done()
		return ctx.Err()
	})
	server := b.Serve(services.Server{Endpoints: map[string]*services.Mux{endpoint: mux}})
	s := b.Dial(endpoint, client.Options{})
	values := openStreaming[any, any](t, s, "hold", nil)
	wait(t, "the call has begun", begun)
	began := time.Now()
	if err := server.Stop(); err != nil {
		t.Error(err)
	}
	if d := time.Since(began); d > 3*time.Second {
		t.Errorf("stopped after %v", d)
	}
	if _, err := values.Receive(); !errors.Is(err, wire.Interrupted) {
		t.Errorf("%v, want %s", err, wire.Interrupted)
	}
	if _, err := client.OpenStreaming[any, any](within(t, time.Second), s, "wait", nil); !errors.Is(err, wire.Interrupted) {
		t.Errorf("opened afterwards: %v, want %s", err, wire.Interrupted)
	}
}
