package session_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/internal/watch"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// parkable returns both ends of a session, of which the service's may be parked, and how many there are.
func parkable(t *testing.T, client, service session.Config) (c, s *session.Session, set *watch.Set) {
	t.Helper()
	leavesNothing(t)
	set, err := watch.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	service.Idle, service.Lane, client.Lane = set, true, true
	c, s = paired(t, client, service)
	return c, s, set
}

// park has a session parked that nobody uses.
func park(t *testing.T, s *session.Session) {
	t.Helper()
	until(t, "an idle session is parked", func() bool {
		s.Look()
		return s.Parked()
	})
}

func TestASessionThatIsIdleWaitsOnNoGoroutine(t *testing.T) {
	c, s, set := parkable(t, session.Config{}, session.Config{Handler: usual})
	if err := c.Call(within(t, patience), "ignore", nil, nil); err != nil {
		t.Fatal(err)
	}
	before := standing(t)
	until(t, "an idle session is parked by itself", s.Parked)
	if after := standing(t); after != before-1 || set.Len() != 1 {
		t.Errorf("%d goroutines, and %d before; %d watches", after, before, set.Len())
	}
	if err := c.Call(within(t, patience), "ignore", nil, nil); err != nil {
		t.Fatal(err)
	}
	if s.Parked() || set.Len() != 0 {
		t.Errorf("it has served a call, and is parked: %v, %d watches", s.Parked(), set.Len())
	}
}

func TestAParkedSessionSeesAll(t *testing.T) {
	told := make(chan struct{}, 10)
	tell := func(context.Context, *session.Message) (any, error) { told <- struct{}{}; return nil, nil }
	h := handler{methods: methods{"tell": tell, "echo": echo}, streams: usual.streams}
	ended := func(s *session.Session) error {
		select {
		case <-s.Done():
			return nil
		case <-time.After(patience):
			return fmt.Errorf("the session has not ended")
		}
	}
	for name, happen := range map[string]func(c, s *session.Session) error{
		"a request comes": func(c, _ *session.Session) error { return c.Call(context.Background(), "tell", nil, nil) },
		"a one-way message comes": func(c, _ *session.Session) error {
			defer func() { <-told }()
			return c.Send(context.Background(), "tell", nil)
		},
		"a large request comes": func(c, _ *session.Session) error {
			return c.Call(context.Background(), "echo", strings.Repeat("x", 1<<20), nil)
		},
		"a stream comes":          func(c, _ *session.Session) error { return echoesHere(c) },
		"a stream is opened here": func(_, s *session.Session) error { return echoesHere(s) },
		"a request is made here":  func(_, s *session.Session) error { return s.Call(context.Background(), "tell", nil, nil) },
		"a message is sent here": func(_, s *session.Session) error {
			defer func() { <-told }()
			return s.Send(context.Background(), "tell", nil)
		},
		"what was sent is flushed":   func(_, s *session.Session) error { return s.Flush(context.Background()) },
		"the peer ends the session":  func(c, s *session.Session) error { c.Close(); return ended(s) },
		"the peer is gone":           func(c, s *session.Session) error { c.Abort(wire.End{Code: wire.Invalid}); return ended(s) },
		"the session is ended here":  func(c, s *session.Session) error { s.Close(); return ended(c) },
		"the session is drained":     func(c, s *session.Session) error { s.Drain(context.Background(), "drained"); return ended(c) },
		"the session is given up":    func(c, s *session.Session) error { s.Abort(wire.End{Code: wire.Invalid}); return ended(c) },
		"a second look is had at it": func(c, s *session.Session) error { s.Look(); return c.Call(context.Background(), "tell", nil, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			c, s, set := parkable(t, session.Config{Handler: h}, session.Config{Handler: h})
			for range 2 { // where it has not ended, or a stream has begun, it is parked again
				park(t, s)
				if err := happen(c, s); err != nil {
					t.Fatal(err)
				}
				if s.End().Code != "" {
					closes(t, s)
					if set.Len() > 0 {
						t.Errorf("%d watches are left", set.Len())
					}
					break
				}
				if strings.Contains(name, "stream") || strings.Contains(name, "large") {
					break
				}
				for len(told) > 0 {
					<-told
				}
			}
		})
	}
}

// Whoever reads a frame, also one with descriptors, is not interrupted by a look.
func TestALookAtASessionThatIsInUseLosesNothing(t *testing.T) {
	take := func(_ context.Context, m *session.Message) (any, error) {
		var c carried
		err := m.Decode(&c)
		for _, f := range c.Files {
			f.Close()
		}
		return c.N + int64(len(c.Files)), err
	}
	c, s, _ := parkable(t, session.Config{}, session.Config{Handler: handler{methods: methods{"take": take, "echo": echo}}})
	stop := make(chan struct{})
	var looking sync.WaitGroup
	looking.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				s.Look()
			}
		}
	})
	file := numbered(t, 1)
	defer file.Close()
	parked := 0
	for i := range 100 {
		text := strings.Repeat("x", i*620) // up to a frame of 62 KB, which comes in many reads
		var got string
		if err := c.Call(within(t, patience), "echo", text, &got); err != nil || got != text {
			t.Fatalf("call %d: %d bytes of %d, %v", i, len(got), len(text), err)
		}
		var n int64
		if err := c.Call(within(t, patience), "take", carried{N: 5, Files: []*os.File{file}}, &n); err != nil || n != 6 {
			t.Fatalf("call %d: %d, %v", i, n, err)
		}
		if s.Parked() {
			parked++
		}
	}
	close(stop)
	looking.Wait()
	if parked == 0 {
		t.Error("it was never parked")
	}
	t.Logf("parked behind %d of 100 calls", parked)
}

func TestASessionWhoseReaderWasKickedAsItWentToRestIsParkedLater(t *testing.T) {
	_, s, _ := parkable(t, session.Config{Handler: usual}, session.Config{})
	call := func() {
		if err := s.Call(within(t, patience), "ignore", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		rest(t, s, call)
		s.Kick()
		call()
		until(t, "it looks whether it is idle", s.Looks)
	}
}

func TestWhereNoMoreCanBeWatchedASessionReadsByItself(t *testing.T) {
	c, s, set := parkable(t, session.Config{}, session.Config{Handler: usual})
	set.Close()
	for range 100 {
		s.Look()
		if s.Parked() {
			t.Fatal("it is parked")
		}
		var got []byte
		if err := c.Call(within(t, patience), "echo", "hi", &got); err == nil && !bytes.Equal(got, []byte("hi")) {
			t.Fatalf("%q", got)
		}
	}
}
