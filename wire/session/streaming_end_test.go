package session_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// waiters are handlers that wait for one thing each, and tell how they ended.
func waiters() (h handler, began chan string, ended chan error) {
	began, ended = make(chan string, 10), make(chan error, 10)
	tell := func(wait func(context.Context, *session.Stream) error) func(context.Context, *session.Stream) error {
		return func(ctx context.Context, st *session.Stream) error {
			st.Send("begun")
			began <- st.Method()
			err := wait(ctx, st)
			<-ctx.Done()
			ended <- err
			return err
		}
	}
	h.streams = streams{
		"wait":    tell(func(ctx context.Context, _ *session.Stream) error { <-ctx.Done(); return ctx.Err() }),
		"receive": tell(func(_ context.Context, st *session.Stream) error { return st.Receive(new(any)) }),
		"send":    tell(pour),
	}
	return h, began, ended
}

func TestACallerThatLetsGoEndsTheHandlersContext(t *testing.T) {
	h, began, ended := waiters()
	c, s := pair(t, session.Config{}, session.Config{Handler: h})
	for method := range h.streams {
		for _, how := range []string{"cancel", "close"} {
			ctx, cancel := context.WithCancel(t.Context())
			st := beginWithin(t, ctx, c, method, nil)
			if method != "send" {
				var v any
				if err := st.Receive(&v); err != nil {
					t.Fatal(err)
				}
			}
			take(t, "the handler", began)
			waiting := make(chan error, 2)
			if method != "send" {
				go func() { waiting <- st.Receive(new(any)) }()
			}
			go func() {
				for {
					if err := st.Send(make([]byte, 60_000)); err != nil {
						waiting <- err
						return
					}
				}
			}()
			want, wantCode := error(context.Canceled), wire.Canceled
			if how == "cancel" {
				cancel()
			} else {
				st.Close()
				want, wantCode = wire.Invalid, wire.Invalid
			}
			for range cap(waiting) {
				if method == "send" && len(waiting) == 0 {
					waiting <- st.Send("more")
				}
				if err := take(t, "who waits", waiting); !errors.Is(err, want) || wire.CodeOf(err) != wantCode {
					t.Errorf("%s, %s: who waits: %v, want %v", method, how, err, want)
				}
			}
			if err := take(t, "the handler's end", ended); !errors.Is(err, context.Canceled) && method != "receive" { // it may have received what was sent
				t.Errorf("%s, %s: the handler: %v, want canceled", method, how, err)
			}
			cancel()
		}
	}
	until(t, "nothing is open", func() bool {
		_, streams := s.Leftovers()
		return streams == 0 && s.Inspect().Streams == 0 && c.Inspect().Streams == 0
	})
}

func TestAHandlerThatReceivesIsToldThatItsCallerHasCanceled(t *testing.T) {
	h, began, ended := waiters()
	c, _ := pair(t, session.Config{}, session.Config{Handler: h})
	ctx, cancel := context.WithCancel(t.Context())
	beginWithin(t, ctx, c, "receive", nil)
	take(t, "the handler", began)
	cancel()
	if err := take(t, "the handler's end", ended); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want canceled", err)
	}
}

func TestTheDeadlineOfAStreamingCallTravels(t *testing.T) {
	const deadline, margin = 300 * time.Millisecond, 5 * time.Second
	h, _, ended := waiters()
	left := make(chan time.Duration, 1)
	h.streams["left"] = func(ctx context.Context, _ *session.Stream) error {
		until, ok := ctx.Deadline()
		if !ok {
			t.Error("no deadline has come")
		}
		left <- time.Until(until)
		return nil
	}
	c, _ := pair(t, session.Config{}, session.Config{Handler: h})
	begin(t, c, "left", nil)
	if d := take(t, "the handler", left); d > 20*time.Second || d < 10*time.Second {
		t.Errorf("%v left of 20 s", d)
	}
	for _, method := range []string{"wait", "receive", "send"} {
		began := time.Now()
		st := beginWithin(t, within(t, deadline), c, method, nil)
		if method != "send" {
			if err := st.Receive(new(any)); err != nil {
				t.Fatal(err)
			}
			if err := st.Receive(new(any)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: the caller: %v, want a deadline", method, err)
			}
		}
		err := take(t, "the handler's end", ended) // the caller's cancel may come first
		if d := time.Since(began); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) || d < deadline || d > deadline+margin {
			t.Errorf("%s: the handler: %v after %v, want a deadline", method, err, d)
		}
	}
}

// A caller that states its time and then neither sends, reads nor closes.
func TestAHandlersTimeEndsWithoutItsCallersDoing(t *testing.T) {
	for _, method := range []string{"wait", "receive", "send"} {
		hand, _, ended := waiters()
		leavesNothing(t)
		h, _ := withHostileServing(t, hand)
		f, _ := wire.NewFrame(wire.KindStream, 0, wire.Stream{Method: method, Within: 100})
		y := h.stream(f.Append(nil))
		if err := take(t, "the handler's end", ended); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: the handler: %v, want a deadline", method, err)
		}
		if method == "send" {
			continue // part of an item has left
		}
		y.SetReadDeadline(time.Now().Add(10 * time.Second))
		readYamux(t, y) // begun
		if last := readYamux(t, y); last.Kind != wire.KindReply || last.Flags != wire.FlagError {
			t.Errorf("%s: the answer is a %v", method, last.Kind)
		} else if e, err := wire.DecodeError(last.Body); err != nil || e.Code != wire.DeadlineExceeded {
			t.Errorf("%s: the answer is %v, %v", method, e, err)
		}
	}
}

func readYamux(t *testing.T, r io.Reader) wire.Frame {
	t.Helper()
	f, err := wire.ReadFrame(func(n int) ([]byte, error) {
		b := make([]byte, n)
		_, err := io.ReadFull(r, b)
		return b, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestAKilledPeerIsALossToStreamingCallsAndNoEnd(t *testing.T) {
	c, child := withChild(t, usual)
	receiving, sending, idle := begin(t, c, "pour", nil), begin(t, c, "pour", nil), begin(t, c, "repeat", nil)
	if err := errors.Join(receiving.Receive(new(any)), sending.Receive(new(any)), idle.Send("hi"), idle.Receive(new(any))); err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 3)
	go func() { _, err := receiveAll[any](receiving); results <- err }()
	go func() { _, err := receiveAll[any](idle); results <- err }()
	go func() {
		for {
			if err := sending.Send(make([]byte, 10_000)); err != nil { // it is not received
				results <- err
				return
			}
		}
	}()
	if err := child.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range cap(results) {
		if err := take(t, "who waits", results); !errors.Is(err, wire.Interrupted) {
			t.Errorf("%v, want %v", err, wire.Interrupted)
		}
	}
	if _, err := c.OpenStreaming(within(t, time.Second), "repeat", nil); !errors.Is(err, wire.Interrupted) {
		t.Errorf("opened afterwards: %v, want %v", err, wire.Interrupted)
	}
}

func TestNoStreamingCallBeginsOnASessionThatIsBeingEnded(t *testing.T) {
	var served atomic.Int64
	c, s := pair(t, session.Config{}, session.Config{Handler: handler{streams: streams{
		"any": func(context.Context, *session.Stream) error { served.Add(1); return nil },
	}}})
	s.Terminate()
	for ctx := within(t, 20*time.Second); ctx.Err() == nil; { // it may not know yet
		st, err := c.OpenStreaming(within(t, 5*time.Second), "any", nil)
		if e, ok := errors.AsType[*wire.Error](err); ok {
			if e.Code != wire.Terminating || e.Sent {
				t.Errorf("%v, sent %t, want %v", e, e.Sent, wire.Terminating)
			}
			if n := served.Load(); n > 0 {
				t.Errorf("%d were served", n)
			}
			return
		}
		if err := st.Receive(new(any)); !errors.Is(err, wire.Terminating) {
			t.Errorf("%v, want %v", err, wire.Terminating)
		}
		st.Close()
	}
	t.Error("it is still opened")
}

func TestAStreamingCallWhoseContextHasEndedIsNotOpened(t *testing.T) {
	c, _ := both(t, usual)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.OpenStreaming(ctx, "repeat", nil)
	if e, ok := errors.AsType[*wire.Error](err); !ok || e.Sent || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want canceled", err)
	}
}
