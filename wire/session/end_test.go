package session_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// patience is less than what a session waits for a peer that does not let go: who takes longer has met that watchdog.
const patience = 4 * time.Second

func TestTheEndComesOnceAndSaysWhoAndWhy(t *testing.T) {
	leavesNothing(t)
	for _, test := range []struct {
		name            string
		act             func(c, s *session.Session)
		client, service wire.End
	}{
		{"client closes", func(c, _ *session.Session) { c.Close() },
			wire.End{Code: wire.Invalid, Origin: wire.Local}, wire.End{Code: wire.Invalid, Origin: wire.Peer}},
		{"instance closes", func(_, s *session.Session) { s.Close() },
			wire.End{Code: wire.Interrupted, Origin: wire.Peer}, wire.End{Code: wire.Invalid, Origin: wire.Local}},
		{"instance drains", func(_, s *session.Session) { s.Drain(context.Background(), "stopping") },
			wire.End{Code: wire.Interrupted, Origin: wire.Peer}, wire.End{Code: wire.Terminating, Origin: wire.Local}},
		{"instance is lost", func(_, s *session.Session) { s.Abort(wire.End{Code: wire.Invalid, Origin: wire.Local}) },
			wire.End{Code: wire.Interrupted, Origin: wire.Peer}, wire.End{Code: wire.Invalid, Origin: wire.Local}},
		{"client is lost", func(c, _ *session.Session) { c.Abort(wire.End{Code: wire.Invalid, Origin: wire.Local}) },
			wire.End{Code: wire.Invalid, Origin: wire.Local}, wire.End{Code: wire.Invalid, Origin: wire.Peer}},
		{"the broker ends it", func(_, s *session.Session) {
			s.Shutdown(context.Background(), wire.End{Code: wire.Interrupted, Origin: wire.Broker, Text: "operator"})
		}, wire.End{Code: wire.Interrupted, Origin: wire.Broker}, wire.End{Code: wire.Interrupted, Origin: wire.Broker}},
		{"with a reason of its own", func(_, s *session.Session) {
			s.Shutdown(context.Background(), wire.End{Code: wire.OverQuota, Origin: wire.Local, Text: "too many"})
		}, wire.End{Code: wire.OverQuota, Origin: wire.Peer}, wire.End{Code: wire.OverQuota, Origin: wire.Local}},
		{"with a text that is too long", func(_, s *session.Session) {
			s.Drain(context.Background(), strings.Repeat("x", 10*wire.MaxText))
		}, wire.End{Code: wire.Interrupted, Origin: wire.Peer}, wire.End{Code: wire.Terminating, Origin: wire.Local}},
		{"with no reason at all", func(_, s *session.Session) { s.Shutdown(context.Background(), wire.End{}) },
			wire.End{Code: wire.Interrupted, Origin: wire.Peer}, wire.End{Code: wire.Invalid}},
		{"twice", func(_, s *session.Session) { s.Close(); s.Drain(context.Background(), "again"); s.Abort(wire.End{}) },
			wire.End{Code: wire.Interrupted, Origin: wire.Peer}, wire.End{Code: wire.Invalid, Origin: wire.Local}},
		{"both close", func(c, s *session.Session) {
			done := make(chan struct{})
			go func() { c.Close(); close(done) }()
			s.Close()
			<-done
		}, wire.End{}, wire.End{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, s := pair(t, session.Config{}, session.Config{})
			var hooks atomic.Int64
			c.OnEnd(func(wire.End) { hooks.Add(1) })
			s.OnEnd(func(wire.End) { hooks.Add(1) })
			began := time.Now()
			test.act(c, s)
			for _, side := range []struct {
				s    *session.Session
				want wire.End
			}{{c, test.client}, {s, test.service}} {
				wait(t, "the end", side.s.Done())
				got := side.s.End()
				if got.Text = ""; side.want != (wire.End{}) && got != side.want {
					t.Errorf("end %+v, want %+v", got, side.want)
				}
				if cause := context.Cause(side.s.Context()); !errors.Is(cause, got.Code) {
					t.Errorf("the context's cause is %v, want %v", cause, got.Code)
				}
				late := make(chan struct{})
				side.s.OnEnd(func(wire.End) { close(late) })
				wait(t, "a late listener", late)
			}
			if d := time.Since(began); d > patience {
				t.Errorf("took %v: somebody waited for the watchdog", d)
			}
			if n := hooks.Load(); n != 2 {
				t.Errorf("%d listeners were told, want 2", n)
			}
		})
	}
}

func TestThePeerHasTakenNoteWhenCloseReturns(t *testing.T) {
	for range 20 {
		c, s := pair(t, session.Config{}, session.Config{})
		var noted atomic.Bool
		c.OnEnd(func(wire.End) { time.Sleep(5 * time.Millisecond); noted.Store(true) })
		if err := s.Close(); err != nil || !noted.Load() {
			t.Fatalf("closed with %v, and the peer has taken note: %t", err, noted.Load())
		}
	}
}

// load keeps a session busy from one side with all it has, until that ends.
func load(all *sync.WaitGroup, from *session.Session) {
	for range 4 {
		all.Go(func() {
			for from.Call(context.Background(), "echo", strings.Repeat("x", 20_000), nil) == nil {
			}
		})
		all.Go(func() {
			for from.Call(context.Background(), "echo", strings.Repeat("x", 200_000), nil) == nil {
			}
		})
		all.Go(func() {
			for from.Send(context.Background(), "ignore", "x") == nil {
			}
		})
		all.Go(func() {
			st, err := from.OpenStream(context.Background(), "sink")
			if err != nil {
				return
			}
			defer st.Close()
			for err == nil {
				_, err = st.Write(make([]byte, 50_000))
			}
		})
	}
}

func TestClosingUnderLoadNeedsNoWatchdog(t *testing.T) {
	leavesNothing(t)
	for name, act := range map[string]func(c, s *session.Session){
		"both at once": func(c, s *session.Session) {
			var all sync.WaitGroup
			defer all.Wait()
			all.Go(func() { c.Close() })
			all.Go(func() { s.Close() })
		},
		"client":           func(c, _ *session.Session) { c.Close() },
		"service":          func(_, s *session.Session) { s.Close() },
		"drain":            func(_, s *session.Session) { s.Drain(context.Background(), "") },
		"drain and close":  func(c, s *session.Session) { go c.Close(); s.Drain(context.Background(), "") },
		"close many times": func(c, _ *session.Session) { go c.Close(); go c.Close(); c.Close() },
		"abort and close":  func(c, s *session.Session) { go c.Close(); s.Abort(wire.End{Code: wire.Invalid, Origin: wire.Local}) },
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 {
				c, s := both(t, usual)
				var all sync.WaitGroup
				load(&all, c)
				load(&all, s)
				until(t, "the load is on", func() bool { return s.Inspect().Received > 200_000 && c.Inspect().Received > 200_000 })
				began := time.Now()
				act(c, s)
				all.Wait()
				c.Wait()
				s.Wait()
				if d := time.Since(began); d > patience {
					t.Errorf("took %v: somebody waited for the watchdog", d)
				}
			}
		})
	}
}

func TestDrainingAnswersWhatWasTakenAndNothingNew(t *testing.T) {
	release, taken := make(chan struct{}), make(chan struct{}, 2)
	var told atomic.Bool
	c, s := pair(t, session.Config{}, session.Config{Handler: handler{
		methods: methods{
			"hold": func(context.Context, *session.Message) (any, error) {
				taken <- struct{}{}
				<-release
				return strings.Repeat("x", 100_000), nil
			},
			"tell": func(context.Context, *session.Message) (any, error) {
				taken <- struct{}{}
				<-release
				told.Store(true)
				return nil, nil
			},
		},
		streams: usual.streams,
	}})
	replied := make(chan error, 1)
	go func() {
		var reply string
		err := c.Call(within(t, 10*time.Second), "hold", nil, &reply)
		if err == nil && len(reply) != 100_000 {
			err = errors.New("half a reply")
		}
		replied <- err
	}()
	<-taken
	if err := c.Send(within(t, time.Second), "tell", nil); err != nil {
		t.Fatal(err)
	}
	<-taken
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(within(t, 10*time.Second), "stopping") }()
	until(t, "the client is told first", c.Terminating)
	if end := c.End(); end != (wire.End{}) {
		t.Errorf("the session has ended: %+v", end)
	}
	if err := c.Call(within(t, 5*time.Second), "hold", nil, nil); !errors.Is(err, wire.Terminating) {
		t.Errorf("a new call: %v, want %v", err, wire.Terminating)
	}
	if _, err := c.OpenStream(within(t, 5*time.Second), "echo"); !errors.Is(err, wire.Terminating) {
		t.Errorf("a new stream: %v, want %v", err, wire.Terminating)
	}
	close(release)
	if err := <-replied; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	if err := <-drained; err != nil || !told.Load() {
		t.Errorf("drained with %v, and the message was handled: %t", err, told.Load())
	}
	wait(t, "the end", c.Done())
	if end := c.End(); end.Code != wire.Interrupted || end.Text != "stopping" {
		t.Errorf("end %+v", end)
	}
}

func TestDrainingIsOverWhenItsTimeIs(t *testing.T) {
	c, s := both(t, usual)
	replied := make(chan error, 1)
	go func() { replied <- c.Call(context.Background(), "block", nil, nil) }()
	until(t, "the call is served", func() bool { return s.Inspect().CallsServing == 1 })
	if err := s.Drain(within(t, 50*time.Millisecond), "stopping"); err != nil {
		t.Error(err)
	}
	if err := <-replied; !errors.Is(err, wire.Interrupted) {
		t.Errorf("the call in flight: %v, want %v", err, wire.Interrupted)
	}
}

func TestASessionWhosePeerNeverBeginsEndsInTime(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	s, err := session.New(b, session.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Shutdown(within(t, 100*time.Millisecond), wire.End{Code: wire.Invalid, Origin: wire.Local}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want a deadline", err)
	}
	s.Wait()
	a.Close()
}

func TestAStreamThatBeginsAfterTheEndHoldsUpNoClose(t *testing.T) {
	leavesNothing(t)
	peer, conn := sockets(t)
	s, err := session.New(conn, session.Config{Endpoint: endpoint, Handler: usual, Lane: true})
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error)
	began := time.Now()
	go func() { closed <- s.Close() }()
	wait(t, "the end", s.Done())
	peer.Write(frame(1, 1, 1, 0)) // the peer has not read of it
	peer.CloseWrite()
	if err := <-closed; err != nil || time.Since(began) > 4*time.Second {
		t.Errorf("%v after %v: it waited for who accepts the stream", err, time.Since(began))
	}
	peer.Close()
	s.Wait()
}
