package client_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

const endpoint = "com.example.test"

// server returns a server that echoes, and one method that never answers.
func server() services.Server {
	mux := services.NewMux()
	services.Handle(mux, "echo", func(_ context.Context, text string) (string, error) { return text, nil })
	return services.Server{Endpoints: map[string]*services.Mux{endpoint: mux}}
}

// streaming returns a server with a streaming call that counts until it is canceled.
func streaming() services.Server {
	mux := services.NewMux()
	services.HandleStreaming(mux, "count", func(_ context.Context, _ any, numbers *services.Streaming[any, int]) error {
		for i := 0; ; i++ {
			if err := numbers.Send(i); err != nil {
				return err
			}
		}
	})
	return services.Server{Endpoints: map[string]*services.Mux{endpoint: mux}}
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// connect returns a connection and the ends of the sessions that it loses.
func connect(t *testing.T, socket, endpoint string) (*client.Connection, <-chan wire.End) {
	lost := make(chan wire.End, 100)
	c := client.Connect(endpoint, client.Options{Socket: socket, Interrupted: func(end wire.End) { lost <- end }})
	t.Cleanup(func() { c.Close() })
	return c, lost
}

func echo(t *testing.T, c client.Caller) {
	t.Helper()
	if reply, err := client.Call[string](within(t, 10*time.Second), c, "echo", "hi"); err != nil || reply != "hi" {
		t.Fatalf("echo: %q, %v", reply, err)
	}
}

func TestAConnectionReportsEachInterruptionOnceAndOpensAgainAtTheNextUse(t *testing.T) {
	b := brokertest.Start(t)
	c, lost := connect(t, b.Socket, endpoint)
	for range 3 {
		hangs := server()
		begun := make(chan struct{})
		services.Handle(hangs.Endpoints[endpoint], "hang", func(ctx context.Context, _ string) (string, error) { close(begun); <-ctx.Done(); return "", ctx.Err() })
		s := b.Serve(hangs)
		echo(t, c)
		echo(t, c)
		hung := make(chan error, 1)
		go func() {
			_, err := client.Call[string](within(t, 10*time.Second), c, "hang", "")
			hung <- err
		}()
		select {
		case <-begun: // one that has not left is made again
		case <-time.After(10 * time.Second):
			t.Fatal("the call is not served within 10 s")
		}
		s.Kill()
		if err := <-hung; !errors.Is(err, wire.Interrupted) {
			t.Errorf("call on the lost session: %v, want %s", err, wire.Interrupted)
		}
		select {
		case end := <-lost:
			if end.Code != wire.Interrupted {
				t.Errorf("interruption %+v, want %s", end, wire.Interrupted)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the interruption is not reported within 10 s")
		}
	}
	if len(lost) > 0 {
		t.Errorf("%d interruptions too many", len(lost))
	}
	if c.End() != (wire.End{}) {
		t.Errorf("end %+v of a connection that is not over", c.End())
	}
}

func TestAConnectionIsOverWhenItIsClosed(t *testing.T) {
	b := brokertest.Start(t)
	b.Serve(server())
	c, lost := connect(t, b.Socket, endpoint)
	echo(t, c)
	c.Close()
	select {
	case <-c.Done():
	default:
		t.Error("closed, and not done")
	}
	if _, err := client.Call[string](within(t, time.Second), c, "echo", "hi"); !errors.Is(err, wire.Invalid) {
		t.Errorf("call: %v, want %s", err, wire.Invalid)
	}
	if len(lost) > 0 {
		t.Error("its own close is reported as an interruption")
	}
}

func TestAConnectionIsOverWhenItsEndpointIsRefusedForGood(t *testing.T) {
	b := brokertest.Start(t)
	refusing := server()
	refusing.Accept = func(context.Context, services.Opening) error { return wire.NotPermitted }
	b.Serve(refusing)
	c, _ := connect(t, b.Socket, endpoint)
	if _, err := client.Call[string](within(t, 10*time.Second), c, "echo", "hi"); !errors.Is(err, wire.NotPermitted) {
		t.Errorf("first use: %v, want %s", err, wire.NotPermitted)
	}
	if _, err := client.Call[string](within(t, time.Second), c, "echo", "hi"); !errors.Is(err, wire.Invalid) {
		t.Errorf("next use: %v, want %s", err, wire.Invalid)
	}
	if end := c.End(); end.Code != wire.Invalid {
		t.Errorf("end %+v, want %s", end, wire.Invalid)
	}
}

func TestManyFirstUsesOpenOneSession(t *testing.T) {
	b := brokertest.Start(t)
	b.Serve(server())
	c, _ := connect(t, b.Socket, endpoint)
	sessions := make(chan *client.Session, 50)
	for range cap(sessions) {
		go func() {
			s, err := c.Session(within(t, 10*time.Second))
			if err != nil {
				t.Error(err)
			}
			sessions <- s
		}()
	}
	first := <-sessions
	for range cap(sessions) - 1 {
		if s := <-sessions; s != first {
			t.Fatal("a second session was opened")
		}
	}
}

func TestAConnectionMovesOnFromAServiceThatIsBeingStopped(t *testing.T) {
	b := brokertest.Start(t)
	c, _ := connect(t, b.Socket, endpoint)
	for range 5 {
		s := b.Serve(server())
		echo(t, c)
		stopped := make(chan error, 1)
		go func() { stopped <- s.Stop() }()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	}
}

func TestAConnectionWithAnUnknownEndpointMayBeUsedWhenItIsThere(t *testing.T) {
	b := brokertest.Start(t)
	c, _ := connect(t, b.Socket, endpoint)
	if _, err := client.Call[string](within(t, 10*time.Second), c, "echo", "hi"); !errors.Is(err, wire.UnknownEndpoint) {
		t.Errorf("before: %v, want %s", err, wire.UnknownEndpoint)
	}
	b.Serve(server())
	echo(t, c)
}

func TestAStreamingCallStaysWithItsSessionAndTheNextOneOpensAnother(t *testing.T) {
	b := brokertest.Start(t)
	c, _ := connect(t, b.Socket, endpoint)
	for range 3 {
		s := b.Serve(streaming())
		numbers, err := client.OpenStreaming[int, any](within(t, 10*time.Second), c, "count", nil)
		if err != nil {
			t.Fatal(err)
		}
		for want := range 100 {
			if n, err := numbers.Receive(); err != nil || n != want {
				t.Fatalf("%d, %v, want %d", n, err, want)
			}
		}
		s.Kill()
		for err == nil { // what had come is received
			_, err = numbers.Receive()
		}
		if !errors.Is(err, wire.Interrupted) {
			t.Errorf("%v, want %s", err, wire.Interrupted)
		}
		numbers.Close()
	}
	c.Close()
	if _, err := client.OpenStreaming[int, any](within(t, time.Second), c, "count", nil); !errors.Is(err, wire.Invalid) {
		t.Errorf("on a connection that is closed: %v, want %s", err, wire.Invalid)
	}
}

func TestAFlushOfAConnectionTellsThatWhatWasSentWasTakenUpOrThatNobodyKnows(t *testing.T) {
	b := brokertest.Start(t)
	c, _ := connect(t, b.Socket, endpoint)
	var noted atomic.Int64
	mux := services.NewMux()
	services.HandleOneWay(mux, "note", func(_ context.Context, _ int) error { noted.Add(1); return nil })
	serve := func() *brokertest.Service {
		return b.Serve(services.Server{Endpoints: map[string]*services.Mux{endpoint: mux}})
	}
	send := func(n int) {
		for i := range n {
			if err := c.Send(within(t, 10*time.Second), "note", i); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Flush(within(t, time.Second)); err != nil {
		t.Errorf("nothing was sent: %v", err)
	}
	s := serve()
	send(100)
	if err := c.Flush(within(t, 10*time.Second)); err != nil || noted.Load() != 100 {
		t.Errorf("%d of 100 were taken up, %v", noted.Load(), err)
	}
	send(1)
	on, err := c.Session(within(t, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	s.Kill()
	<-on.Done()
	serve()
	send(1)
	if err := c.Flush(within(t, 10*time.Second)); !errors.Is(err, wire.Interrupted) {
		t.Errorf("after a loss: %v, want %s", err, wire.Interrupted)
	}
	send(1)
	if err := c.Flush(within(t, 10*time.Second)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
