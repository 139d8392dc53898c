package session_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

func TestEveryFailureHasItsCodeAndSaysWhetherTheRequestLeft(t *testing.T) {
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"block": block,
		"panic": panics,
		"fail":  func(context.Context, *session.Message) (any, error) { return nil, io.ErrNoProgress },
		"conflict": func(context.Context, *session.Message) (any, error) {
			e := wire.Errorf(wire.Conflict, "web is taken")
			e.Holder = &wire.Holder{PID: 42}
			return nil, fmt.Errorf("allocate: %w", e)
		},
		"decode": func(_ context.Context, m *session.Message) (any, error) { return nil, m.Decode(new(int)) },
	}}})
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	canceled, cancelNow := context.WithCancel(t.Context())
	cancelNow()
	for _, test := range []struct {
		method string
		ctx    context.Context
		is     error
		sent   bool
	}{
		{"nothing", t.Context(), wire.UnknownMethod, true},
		{"panic", t.Context(), wire.Internal, true},
		{"fail", t.Context(), wire.Internal, true},
		{"conflict", t.Context(), wire.Conflict, true},
		{"decode", t.Context(), wire.Malformed, true},
		{"block", short, context.DeadlineExceeded, true},
		{"block", canceled, context.Canceled, false},
		{"", t.Context(), wire.Malformed, false},
		{strings.Repeat("x", wire.MaxMethod+1), t.Context(), wire.Malformed, false},
	} {
		err := c.Call(test.ctx, test.method, "text", nil)
		e, ok := errors.AsType[*wire.Error](err)
		if !ok || !errors.Is(err, test.is) || e.Sent != test.sent {
			t.Errorf("%s: %v (sent %t), want %v (sent %t)", test.method, err, ok && e.Sent, test.is, test.sent)
		}
		if test.method == "conflict" && (e.Holder == nil || e.Holder.PID != 42) {
			t.Errorf("conflict names %v, want pid 42", e.Holder)
		}
	}
	if err := c.Call(within(t, time.Second), "nothing", nil, nil); !errors.Is(err, wire.UnknownMethod) {
		t.Errorf("the session is not whole afterwards: %v", err)
	}
}

// A trap panics when it is encoded.
type trap struct{}

func (trap) MarshalBinary() ([]byte, error) { panic("oh") }

// A loud error panics when it is asked for its text.
type loud struct{}

func (loud) Error() string { panic("oh") }

func TestWhateverAHandlerReturnsTheSessionIsWhole(t *testing.T) {
	leavesNothing(t)
	var none *wire.Error
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{
		methods: methods{
			"echo":      echo,
			"channel":   func(context.Context, *session.Message) (any, error) { return make(chan int), nil },
			"trap":      func(context.Context, *session.Message) (any, error) { return trap{}, nil },
			"loud":      func(context.Context, *session.Message) (any, error) { return nil, loud{} },
			"no code":   func(context.Context, *session.Message) (any, error) { return nil, &wire.Error{Text: "oh"} },
			"long code": func(context.Context, *session.Message) (any, error) { return nil, wire.Code(strings.Repeat("x", 65)) },
			"long text": func(context.Context, *session.Message) (any, error) {
				return nil, errors.New(strings.Repeat("ä", 1<<20))
			},
			"nil":        func(context.Context, *session.Message) (any, error) { return nil, none },
			"long reply": func(context.Context, *session.Message) (any, error) { return strings.Repeat("x", wire.MaxLarge), nil },
		},
		streams: streams{"loud": func(context.Context, *session.Stream) error { return loud{} }},
	}})
	for method, want := range map[string]error{
		"channel": wire.Internal, "trap": wire.Internal, "loud": wire.Internal, "no code": wire.Internal, "long code": wire.Internal,
		"long text": wire.Internal, "nil": wire.Internal, "long reply": wire.OverQuota,
	} {
		if err := c.Call(within(t, 5*time.Second), method, nil, nil); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", method, err, want)
		}
	}
	st, err := c.OpenStream(within(t, time.Second), "loud")
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if _, err := st.Read(make([]byte, 1)); !errors.Is(err, wire.Internal) {
		t.Errorf("stream: %v, want %v", err, wire.Internal)
	}
	var reply string
	if err := c.Call(within(t, time.Second), "echo", "whole", &reply); err != nil || reply != "whole" {
		t.Errorf("afterwards: %q, %v", reply, err)
	}
}

func TestCancellingACallCancelsItsHandler(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"block": func(ctx context.Context, _ *session.Message) (any, error) {
			close(began)
			<-ctx.Done()
			close(ended)
			return nil, ctx.Err()
		},
	}}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	if err := c.Call(ctx, "block", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("call: %v, want canceled", err)
	}
	wait(t, "the handler's context ends", ended)
}

func TestTheDeadlineTravelsWithoutTheTimeSpentWaitingForCredit(t *testing.T) {
	deadline := make(chan time.Duration, 1)
	release := make(chan struct{})
	limits := wire.Limits{Calls: 1}
	c, _ := pair(t, session.Config{Send: limits}, session.Config{Receive: limits, Handler: handler{methods: methods{
		"hold": func(ctx context.Context, _ *session.Message) (any, error) {
			select {
			case <-release:
			case <-ctx.Done():
			}
			return nil, nil
		},
		"deadline": func(ctx context.Context, _ *session.Message) (any, error) {
			until, ok := ctx.Deadline()
			if !ok {
				return nil, wire.Errorf(wire.Internal, "no deadline")
			}
			deadline <- time.Until(until)
			return nil, nil
		},
	}}})
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { c.Call(within(t, 10*time.Second), "hold", nil, nil) })
	until(t, "the credit is used up", func() bool { return c.Inspect().CallsWaiting == 1 })
	time.AfterFunc(500*time.Millisecond, func() { close(release) })
	if err := c.Call(within(t, 10*time.Second), "deadline", nil, nil); err != nil {
		t.Fatal(err)
	}
	if d := <-deadline; d > 9700*time.Millisecond {
		t.Errorf("%v were left at the other end of 10 s, of which half a second was spent here", d)
	}
}

func TestACallBeyondTheCreditWaitsOnItsOwnSide(t *testing.T) {
	var serving atomic.Int64
	release := make(chan struct{})
	c, s := pair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"hold": func(ctx context.Context, _ *session.Message) (any, error) {
			serving.Add(1)
			select {
			case release <- struct{}{}:
			case <-ctx.Done():
			}
			return nil, nil
		},
	}}})
	limit := wire.DefaultLimits.Calls
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range limit {
		all.Go(func() { c.Call(ctx, "hold", nil, nil) })
	}
	until(t, "all credit is used", func() bool { return serving.Load() == limit })
	err := c.Call(within(t, 50*time.Millisecond), "hold", nil, nil)
	if e, ok := errors.AsType[*wire.Error](err); !ok || !errors.Is(err, context.DeadlineExceeded) || e.Sent {
		t.Errorf("one more: %v, want a deadline of a request that has not left", err)
	}
	if n := s.Inspect().CallsServed; n != limit {
		t.Errorf("%d requests arrived, limit %d", n, limit)
	}
	next := make(chan error, 1)
	all.Go(func() { next <- c.Call(ctx, "hold", nil, nil) })
	<-release // one reply
	until(t, "the waiting call is served", func() bool { return serving.Load() == limit+1 })
	cancel()
	all.Wait()
	if err := <-next; err == nil {
		t.Error("the call returned before its handler did")
	}
	idle(t, c, s)
}

func TestBytesAreCreditToo(t *testing.T) {
	limits := wire.Limits{Calls: 8, OneWay: 8, Bytes: 100_000}
	c, s := pair(t, session.Config{Send: limits}, session.Config{Receive: limits, Handler: usual})
	if err := c.Call(within(t, time.Second), "echo", strings.Repeat("x", 100_001), nil); !errors.Is(err, wire.OverQuota) {
		t.Errorf("more than there is: %v, want %v", err, wire.OverQuota)
	}
	var all sync.WaitGroup
	for range 50 { // each of 30 KB: three at a time
		all.Go(func() {
			if err := c.Call(within(t, 10*time.Second), "echo", strings.Repeat("x", 30_000), nil); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if err := c.Send(within(t, 10*time.Second), "ignore", strings.Repeat("x", 30_000)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	idle(t, c, s)
}

func TestTheCreditOfAnAbandonedCallComesBackWithItsReply(t *testing.T) {
	release := make(chan struct{})
	limits := wire.Limits{Calls: 1}
	c, _ := pair(t, session.Config{Send: limits}, session.Config{Receive: limits, Handler: handler{methods: methods{
		"echo": echo,
		"slow": func(context.Context, *session.Message) (any, error) { <-release; return "late", nil }, // deaf to its context
	}}})
	if err := c.Call(within(t, 20*time.Millisecond), "slow", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v, want a deadline", err)
	}
	if err := c.Call(within(t, 20*time.Millisecond), "echo", "", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("before the reply: %v, want a deadline", err)
	}
	close(release)
	if err := c.Call(within(t, 5*time.Second), "echo", "", nil); err != nil {
		t.Errorf("after the reply: %v", err)
	}
	if n := c.Inspect().LateReplies; n != 1 {
		t.Errorf("%d late replies, want 1", n)
	}
}

func TestARequestWhoseTimeIsOverIsNotServed(t *testing.T) {
	var served atomic.Int64
	hold := make(chan struct{})
	c, s := pair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"hold":  func(context.Context, *session.Message) (any, error) { <-hold; return nil, nil },
		"serve": func(context.Context, *session.Message) (any, error) { served.Add(1); return nil, nil },
		"echo":  echo,
	}}})
	if err := c.Send(within(t, time.Second), "hold", nil); err != nil { // what follows waits in the inbox
		t.Fatal(err)
	}
	if err := c.Call(within(t, 30*time.Millisecond), "serve", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want a deadline", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(30*time.Millisecond, cancel)
	if err := c.Call(ctx, "serve", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want canceled", err)
	}
	c.SetFact("canceled", "yes") // comes after the cancel
	until(t, "the cancel has come", func() bool { return s.Inspect().PeerFacts["canceled"] == "yes" })
	close(hold)
	if err := c.Call(within(t, 5*time.Second), "echo", "", nil); err != nil {
		t.Fatal(err)
	}
	idle(t, c)
	if n := served.Load(); n != 0 {
		t.Errorf("%d requests were served that nobody waited for", n)
	}
}

func TestTheEndCompletesEveryCallOnce(t *testing.T) {
	for name, act := range map[string]func(c, s *session.Session){
		"closed here":  func(c, _ *session.Session) { c.Close() },
		"closed there": func(_, s *session.Session) { s.Close() },
		"lost":         func(_, s *session.Session) { s.Abort(wire.End{Code: wire.Invalid, Origin: wire.Local}) },
	} {
		t.Run(name, func(t *testing.T) {
			c, s := both(t, usual)
			var all sync.WaitGroup
			var completed atomic.Int64
			const n = 400 // more than the credit
			for range n {
				all.Go(func() {
					err := c.Call(context.Background(), "block", nil, nil)
					if e, ok := errors.AsType[*wire.Error](err); !ok || e.Code != c.End().Code {
						t.Errorf("%v, want %v", err, c.End().Code)
					}
					completed.Add(1)
				})
			}
			until(t, "the credit is used up", func() bool { return c.Inspect().CallsWaiting == int(wire.DefaultLimits.Calls) })
			act(c, s)
			all.Wait()
			if got := completed.Load(); got != n {
				t.Errorf("%d of %d calls completed", got, n)
			}
		})
	}
}
