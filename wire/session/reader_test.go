package session_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A stay is a method whose first call runs on the reader and stays there until it is told to go.
type stay struct {
	began, gone chan struct{}
}

func newStay() *stay { return &stay{make(chan struct{}), make(chan struct{})} }

func (s *stay) serve(ctx context.Context, _ *session.Message) (any, error) {
	close(s.began)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.gone:
		return "gone", nil
	}
}

func TestASlowHandlerOnTheReaderDelaysNothingElse(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, c, s *session.Session, cancel func()) (want error){
		"another request": func(t *testing.T, c, _ *session.Session, _ func()) error {
			if err := c.Call(within(t, 10*time.Second), "echo", "", nil); err != nil {
				t.Error(err)
			}
			return nil
		},
		"a one-way message and a flush": func(t *testing.T, c, _ *session.Session, _ func()) error {
			if err := errors.Join(c.Send(within(t, 10*time.Second), "ignore", nil), c.Flush(within(t, 10*time.Second))); err != nil {
				t.Error(err)
			}
			return nil
		},
		"a call from there": func(t *testing.T, _, s *session.Session, _ func()) error {
			if err := s.Call(within(t, 10*time.Second), "echo", "", nil); err != nil {
				t.Error(err)
			}
			return nil
		},
		"a stream": func(t *testing.T, c, _ *session.Session, _ func()) error {
			st := open(t, c, "echo")
			st.SetReadDeadline(time.Now().Add(10 * time.Second))
			_, err := io.WriteString(st, "hi")
			err = errors.Join(err, st.CloseWrite())
			if b, e := io.ReadAll(st); err != nil || e != nil || string(b) != "hi" {
				t.Errorf("%q, %v, %v", b, err, e)
			}
			return nil
		},
		"a large call": func(t *testing.T, c, _ *session.Session, _ func()) error {
			if err := c.Call(within(t, 10*time.Second), "echo", strings.Repeat("x", 1<<20), nil); err != nil {
				t.Error(err)
			}
			return nil
		},
		"its cancel": func(_ *testing.T, _, _ *session.Session, cancel func()) error { cancel(); return wire.Canceled },
		"the end from here": func(t *testing.T, c, _ *session.Session, _ func()) error {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			return wire.Invalid
		},
		"the end from there": func(t *testing.T, _, s *session.Session, _ func()) error {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			return wire.Interrupted
		},
		"a drain from there": func(t *testing.T, c, s *session.Session, cancel func()) error {
			drained := make(chan error, 1)
			go func() { drained <- s.Drain(within(t, 10*time.Second), "") }()
			until(t, "the client knows", c.Terminating)
			cancel()
			if err := take(t, "the drain", drained); err != nil {
				t.Error(err)
			}
			return wire.Canceled
		},
		"the loss of the client": func(t *testing.T, c, s *session.Session, _ func()) error {
			c.Abort(wire.End{Code: wire.Invalid, Origin: wire.Local})
			wait(t, "the end", s.Done())
			return wire.Invalid
		},
	} {
		t.Run(name, func(t *testing.T) {
			there := newStay()
			c, s := pair(t, session.Config{Handler: usual}, session.Config{Handler: handler{
				methods: methods{"stay": there.serve, "echo": echo, "ignore": ignore}, streams: usual.streams,
			}})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			staying := make(chan error, 1)
			go func() { staying <- c.Call(ctx, "stay", nil, nil) }()
			wait(t, "the handler begins", there.began)
			want := test(t, c, s, cancel)
			if want == nil {
				close(there.gone)
			}
			if err := take(t, "the call", staying); !errors.Is(err, want) {
				t.Errorf("the call: %v, want %v", err, want)
			}
			until(t, "the handler has returned", func() bool { return s.Inspect().CallsServing == 0 })
			if s.Held() == 0 {
				t.Error("the handler did not run on the reader")
			}
		})
	}
}

func TestAHandlerThatNeverReturnsHoldsUpOnlyItself(t *testing.T) {
	began, returns := make(chan struct{}), make(chan struct{})
	c, s := pair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"never": func(context.Context, *session.Message) (any, error) { close(began); <-returns; return nil, nil },
		"echo":  echo,
	}}})
	ctx, cancel := context.WithCancel(t.Context())
	never := make(chan error, 1)
	go func() { never <- c.Call(ctx, "never", nil, nil) }()
	wait(t, "the handler begins", began)
	for range 100 {
		if err := c.Call(within(t, 10*time.Second), "echo", "", nil); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := take(t, "the call", never); !errors.Is(err, context.Canceled) {
		t.Errorf("the call: %v", err)
	}
	if in := s.Inspect(); in.CallsServing != 1 {
		t.Errorf("%d calls are being served, want that one", in.CallsServing)
	}
	if err := errors.Join(c.Close(), s.Close()); err != nil {
		t.Errorf("the end: %v", err)
	}
	over := make(chan struct{})
	go func() { s.Wait(); close(over) }()
	select {
	case <-over:
		t.Error("the session is over, and a handler is not")
	case <-time.After(20 * time.Millisecond):
	}
	close(returns)
	wait(t, "the session is over", over)
}

func TestAHandlerMayPanicOrEndItsGoroutineOnTheReader(t *testing.T) {
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"panic": panics,
		"exit":  func(context.Context, *session.Message) (any, error) { runtime.Goexit(); return nil, nil },
		"later": func(ctx context.Context, _ *session.Message) (any, error) {
			time.Sleep(20 * time.Millisecond) // the reading has been given on
			runtime.Goexit()
			return nil, nil
		},
		"echo": echo,
	}}})
	for i := range 300 { // more than the credit
		for _, method := range []string{"panic", "exit", "later"} {
			if method == "later" && i > 0 {
				continue
			}
			if err := c.Call(within(t, 10*time.Second), method, nil, nil); !errors.Is(err, wire.Internal) {
				t.Fatalf("%s: %v, want %v", method, err, wire.Internal)
			}
		}
		if err := c.Call(within(t, 10*time.Second), "echo", "", nil); err != nil {
			t.Fatal(err)
		}
	}
}

// goroutine returns which goroutine calls it.
func goroutine() string {
	b := make([]byte, 64)
	number, _, _ := strings.Cut(strings.TrimPrefix(string(b[:runtime.Stack(b, false)]), "goroutine "), " ")
	return number
}

func TestAMethodThatWasSlowTheLastTimeHasAGoroutineOfItsOwn(t *testing.T) {
	var slow atomic.Bool
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"sometimes": func(context.Context, *session.Message) (any, error) {
			if slow.Load() {
				time.Sleep(time.Millisecond)
			}
			return goroutine(), nil
		},
		"reader": func(context.Context, *session.Message) (any, error) { return goroutine(), nil },
	}}})
	where := func(method string) (number string) {
		if err := c.Call(within(t, 10*time.Second), method, nil, &number); err != nil {
			t.Fatal(err)
		}
		return number
	}
	onReader := func() bool { reader := where("reader"); return where("sometimes") == reader } // a machine that is busy makes anything slow at times
	until(t, "a quick method is served by the reader", onReader)
	slow.Store(true)
	where("sometimes")
	for range 5 {
		if onReader() {
			t.Error("a slow method is served by the reader")
		}
	}
	slow.Store(false)
	until(t, "a method that is quick again is served by the reader", onReader)
}

func TestRequestsOnTheReaderComeBehindTheOneWayMessagesBefore(t *testing.T) {
	const senders = 4
	var handled [senders]atomic.Int64
	c, s := pair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"tell": func(_ context.Context, m *session.Message) (any, error) {
			var from int
			if err := m.Decode(&from); err != nil {
				return nil, err
			}
			if handled[from].Load()%5 == 0 {
				time.Sleep(100 * time.Microsecond)
			}
			handled[from].Add(1)
			return nil, nil
		},
		"count": func(_ context.Context, m *session.Message) (any, error) {
			var from int
			err := m.Decode(&from)
			return handled[from].Load(), err
		},
	}}})
	var all sync.WaitGroup
	for from := range senders {
		all.Go(func() {
			for i := range int64(200) {
				var n int64
				if i%3 > 0 { // two of three calls find a message before them
					if err := c.Send(within(t, 10*time.Second), "tell", from); err != nil {
						t.Error(err)
						return
					}
				}
				if err := c.Call(within(t, 10*time.Second), "count", from, &n); err != nil || n != i-i/3 {
					t.Errorf("%d of %d messages were handled before the call, %v", n, i-i/3, err)
					return
				}
			}
		})
	}
	all.Wait()
	if s.Held() == 0 {
		t.Error("no request was served by the reader")
	}
}

func TestACallerThatFindsTheSocketFullKeepsItsDeadline(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	c, err := session.New(a, session.Config{Endpoint: endpoint, Opener: true, Lane: lane})
	if err != nil {
		t.Fatal(err)
	}
	const calls = 20
	text := strings.Repeat("x", 60_000)
	sent := calls
	for i := range calls { // nobody reads
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		err := c.Call(ctx, "echo", text, nil)
		deadline, _ := ctx.Deadline()
		late := time.Since(deadline)
		cancel()
		e, _ := errors.AsType[*wire.Error](err)
		if !errors.Is(err, context.DeadlineExceeded) || late > overshoot {
			t.Fatalf("call %d: %v, %v after its deadline", i, err, late)
		}
		if !e.Sent {
			sent = min(sent, i)
		} else if i > sent {
			t.Errorf("call %d has left, and call %d before it has not", i, sent)
		}
	}
	if sent == 0 || sent == calls {
		t.Errorf("%d of %d calls have left on a socket that nobody reads", sent, calls)
	}
	s, err := session.New(b, session.Config{Endpoint: endpoint, Handler: usual, Lane: lane})
	if err != nil {
		t.Fatal(err)
	}
	defer closes(t, c, s)
	var reply string
	if err := c.Call(within(t, 10*time.Second), "echo", text, &reply); err != nil || reply != text {
		t.Errorf("when somebody reads: %d bytes, %v", len(reply), err)
	}
	idle(t, c, s)
	if n := s.Inspect().CallsServed; n != int64(sent)+1 {
		t.Errorf("%d calls came, and %d have left", n, sent+1)
	}
}

// guard: outboxLimit in tryPush.
func TestWhatWaitsToLeaveIsBounded(t *testing.T) {
	leavesNothing(t)
	const most = 1 << 20 // the outbox, and what the kernel and yamux take
	a, b := sockets(t)
	limits := wire.DefaultLimits // with a credit that is no bound here
	limits.OneWay, limits.OneWayBytes = 10_000, 64<<20
	c, err := session.New(a, session.Config{Endpoint: endpoint, Opener: true, Lane: lane, Send: limits})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("x", 10_000)
	queued := 0
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := c.Send(ctx, "ignore", text)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if queued += len(text); queued > most {
			t.Fatalf("%d bytes are queued, and nobody reads", queued)
		}
	}
	s, err := session.New(b, session.Config{Endpoint: endpoint, Handler: usual, Lane: lane, Receive: limits})
	if err != nil {
		t.Fatal(err)
	}
	defer closes(t, c, s)
	if err := errors.Join(c.Send(within(t, 10*time.Second), "ignore", text), c.Flush(within(t, 10*time.Second))); err != nil {
		t.Errorf("when somebody reads: %v", err)
	}
}

func TestASmallTypedCallCostsFewAllocations(t *testing.T) {
	c, _ := both(t, usual)
	call := func() {
		var reply note
		if err := c.Call(t.Context(), "note", note{"text", 1}, &reply); err != nil || reply != (note{"text", 1}) {
			t.Fatalf("%+v, %v", reply, err)
		}
	}
	for range 100 {
		call()
	}
	most := float64(mostAllocations)
	if !lane {
		most += 20 // yamux's, and those of goroutines
	}
	if n := testing.AllocsPerRun(1000, call); n > most {
		t.Errorf("%s: %v allocations, limit %v", channel(), n, most)
	} else {
		t.Logf("%s: %v allocations", channel(), n)
	}
}

// A slowReply takes long to be encoded.
type slowReply struct{}

func (slowReply) MarshalBinary() ([]byte, error) {
	time.Sleep(20 * time.Millisecond)
	return nil, nil
}

func TestAMethodWhoseReplyTakesLongIsServedBesideTheReaderTheNextTime(t *testing.T) {
	c, s := pair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"slow": func(context.Context, *session.Message) (any, error) { return slowReply{}, nil },
	}}})
	call := func() {
		if err := c.Call(within(t, 10*time.Second), "slow", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	call()
	idle(t, c, s)
	held := s.Held()
	for range 5 {
		call()
	}
	if again := s.Held() - held; again > 0 {
		t.Errorf("it has kept the reader for %v, and then for %v more", held, again)
	}
}
