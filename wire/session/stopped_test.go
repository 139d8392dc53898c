package session_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A stalled operation is one that cannot succeed while the peer stands still: do is called again until it fails.
type stalledOperation struct {
	name string
	do   func(ctx context.Context) error
}

// What is under way when the peer is stopped. Each runs until ctx ends, and may not fail before.
var underWay = map[string]func(ctx context.Context, c *session.Session) error{
	"nothing": func(ctx context.Context, _ *session.Session) error { <-ctx.Done(); return ctx.Err() },
	"frames of the message channel": func(ctx context.Context, c *session.Session) error {
		for {
			if err := c.Send(ctx, "ignore", strings.Repeat("x", 60_000)); err != nil {
				return err
			}
		}
	},
	"data of streams": func(ctx context.Context, c *session.Session) error {
		return together(4, func() error {
			st, err := c.OpenStream(ctx, "sink")
			if err != nil {
				return err
			}
			defer context.AfterFunc(ctx, func() { st.Close() })()
			for ctx.Err() == nil {
				if _, err := st.Write(make([]byte, 100_000)); err != nil && ctx.Err() == nil {
					return err
				}
			}
			return ctx.Err()
		})
	},
}

// together runs f n times at once, and returns the last error.
func together(n int, f func() error) (err error) {
	results := make(chan error, n)
	for range n {
		go func() { results <- f() }()
	}
	for range n {
		if e := <-results; e != nil {
			err = e
		}
	}
	return err
}

// operations returns all that can wait for the peer, on streams that are open already.
func operations(t *testing.T, c *session.Session) []stalledOperation {
	t.Helper()
	write, read := open(t, c, "sink"), open(t, c, "echo")
	live, end := context.WithCancel(context.Background())
	t.Cleanup(end)
	send, receive, expire := begin(t, c, "repeat", nil), begin(t, c, "repeat", nil), beginWithin(t, live, c, "repeat", nil)
	for _, st := range []*session.Stream{send, receive, expire} {
		v := ""
		if err := errors.Join(st.Send("hi"), st.Receive(&v)); err != nil || v != "hi" {
			t.Fatalf("%q, %v", v, err)
		}
	}
	long := strings.Repeat("x", 60_000)
	until := func(ctx context.Context) time.Time { d, _ := ctx.Deadline(); return d }
	return []stalledOperation{
		{"Call", func(ctx context.Context) error { return c.Call(ctx, "echo", "", nil) }},
		{"Flush", c.Flush},
		{"Write", func(ctx context.Context) error {
			write.SetWriteDeadline(until(ctx))
			_, err := write.Write(make([]byte, 100_000))
			return err
		}},
		{"Read", func(ctx context.Context) error {
			read.SetReadDeadline(until(ctx))
			_, err := read.Read(make([]byte, 1))
			return err
		}},
		{"Send of a stream, by its deadline", func(ctx context.Context) error {
			send.SetWriteDeadline(until(ctx))
			return send.Send(long)
		}},
		{"Send of a stream, by its call's end", func(ctx context.Context) error {
			defer context.AfterFunc(ctx, end)()
			err := expire.Send(long)
			if errors.Is(err, context.Canceled) {
				return ctx.Err()
			}
			return err
		}},
		{"Receive", func(ctx context.Context) error {
			receive.SetReadDeadline(until(ctx))
			return receive.Receive(new(string))
		}},
		{"OpenStream", func(ctx context.Context) error { // more of them than yamux lets be unacknowledged
			st, err := c.OpenStream(ctx, "sink")
			if err == nil {
				t.Cleanup(func() { st.Close() })
			}
			return err
		}},
		{"streaming call", func(ctx context.Context) error {
			st, err := c.OpenStreaming(ctx, "repeat", nil)
			if err != nil {
				return err
			}
			defer st.Close()
			return st.Receive(new(string))
		}},
		{"large Call", func(ctx context.Context) error { return c.Call(ctx, "echo", strings.Repeat("x", 1<<20), nil) }},
		{"Send", func(ctx context.Context) error { return c.Send(ctx, "ignore", strings.Repeat("x", 1000)) }},
		{"Call when all is full", func(ctx context.Context) error { return c.Call(ctx, "echo", "", nil) }},
		{"Flush when all is full", c.Flush},
	}
}

// overshoot is how much later than its deadline an operation may return on a machine that is busy. The promise is 50 ms.
const overshoot = time.Second

// expires does what cannot succeed until it fails, and checks that it does in time.
func expires(t *testing.T, op stalledOperation) (by time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	deadline, _ := ctx.Deadline()
	err := op.do(ctx)
	for err == nil && time.Since(deadline) < overshoot { // there still is credit, or room
		err = op.do(ctx)
	}
	by = time.Since(deadline)
	if !errors.Is(err, context.DeadlineExceeded) || by > overshoot || by < -time.Millisecond {
		t.Errorf("%s: %v, %v after its deadline", op.name, err, by)
	}
	return by
}

// stopUnder stops the child while something is under way, which is then stuck, and returns how to end that.
func stopUnder(t *testing.T, c *session.Session, child service, what string) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	before, failed := c.Inspect().Sent, make(chan error, 1)
	go func() { failed <- underWay[what](ctx, c) }()
	until(t, "it is under way", func() bool { return what == "nothing" || c.Inspect().Sent > before+1<<20 })
	child.stop(t)
	until(t, "nothing leaves any more", func() bool {
		before := c.Inspect().Sent
		time.Sleep(10 * time.Millisecond)
		return c.Inspect().Sent == before
	})
	return sync.OnceFunc(func() {
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) && c.Context().Err() == nil {
			t.Errorf("what was under way: %v", err)
		}
	})
}

// whole checks that all that a session can do can be done.
func whole(t *testing.T, c *session.Session) {
	t.Helper()
	reply, value := "", ""
	if err := c.Call(within(t, 10*time.Second), "echo", "whole", &reply); err != nil || reply != "whole" {
		t.Errorf("a call: %q, %v", reply, err)
	}
	if err := errors.Join(c.Send(within(t, 10*time.Second), "ignore", nil), c.Flush(within(t, 10*time.Second))); err != nil {
		t.Errorf("a message: %v", err)
	}
	st := open(t, c, "echo")
	st.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err := st.Write([]byte("whole"))
	err = errors.Join(err, st.CloseWrite())
	if b, e := io.ReadAll(st); err != nil || e != nil || string(b) != "whole" {
		t.Errorf("a stream: %q, %v, %v", b, e, err)
	}
	items := begin(t, c, "repeat", nil)
	if err := errors.Join(items.Send("whole"), items.Receive(&value)); err != nil || value != "whole" {
		t.Errorf("a streaming call: %q, %v", value, err)
	}
	large := strings.Repeat("x", 1<<20)
	if err := c.Call(within(t, 10*time.Second), "echo", large, &reply); err != nil || reply != large {
		t.Errorf("a large call: %d bytes, %v", len(reply), err)
	}
	idle(t, c)
}

func TestDeadlinesHoldAgainstAPeerThatIsStoppedAndTheSessionGoesOnWithIt(t *testing.T) {
	for what := range underWay {
		t.Run("with "+what+" under way", func(t *testing.T) {
			c, child := withChild(t, nil)
			ops := operations(t, c)
			end := stopUnder(t, c, child, what)
			for _, op := range ops {
				t.Logf("%s: %s: %v after its deadline, %s", channel(), op.name, expires(t, op), machineLoad())
			}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(100*time.Millisecond, cancel)
			if _, err := c.OpenStream(ctx, "sink"); !errors.Is(err, context.Canceled) {
				t.Errorf("OpenStream: %v, want canceled", err)
			}
			if end := c.End(); end != (wire.End{}) {
				t.Fatalf("the session has ended: %+v", end)
			}
			child.goOn(t)
			whole(t, c)
			end()
			whole(t, c)
			if n := c.Inspect().LateReplies; n == 0 && what == "nothing" {
				t.Error("no late reply was counted")
			}
			endsInTime(t, c, child, what)
		})
	}
}

// endsInTime stops the child again and ends the session in this state: with -long by Close, which takes 5 s.
func endsInTime(t *testing.T, c *session.Session, child service, what string) {
	t.Helper()
	end := stopUnder(t, c, child, what)
	defer end()
	close, bound := (*session.Session).Close, 5*time.Second
	if !*long {
		bound = 100 * time.Millisecond
		close = func(c *session.Session) error {
			return c.Shutdown(within(t, bound), wire.End{Code: wire.Invalid, Origin: wire.Local})
		}
	}
	waiting := make(chan error, 1)
	go func() { waiting <- c.Call(context.Background(), "echo", "", nil) }()
	until(t, "a call is waiting", func() bool { return c.Inspect().CallsWaiting > 0 })
	began := time.Now()
	err := close(c)
	by := time.Since(began) - bound
	t.Logf("%s: the end: %v after its deadline of %v, %s", channel(), by, bound, machineLoad())
	if !errors.Is(err, context.DeadlineExceeded) || by > overshoot {
		t.Errorf("the end: %v, %v after its deadline", err, by)
	}
	if err := take(t, "the call that waits", waiting); !errors.Is(err, wire.Invalid) {
		t.Errorf("the call that waited: %v, want %v", err, wire.Invalid)
	}
}
