package session_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// churn does something many times, by 16 goroutines at once, and checks that memory and goroutines are the same after a tenth and after all.
func churn(t *testing.T, once func(n int), sides ...*session.Session) {
	t.Helper()
	const at, grows = 16, 1 << 20
	n := 5000
	if *long {
		n = 1_000_000
	}
	do := func(from, to int) {
		var all sync.WaitGroup
		var next atomic.Int64
		next.Store(int64(from))
		for range at {
			all.Go(func() {
				for i := int(next.Add(1)) - 1; i < to && !t.Failed(); i = int(next.Add(1)) - 1 {
					once(i)
				}
			})
		}
		all.Wait()
		idle(t, sides...)
		leavesNoBodies(t, sides...)
	}
	began := time.Now()
	do(0, n/10)
	goroutines, bytes := standing(t), heap()
	do(n/10, n)
	d := time.Since(began)
	until(t, "no goroutine is left over", func() bool { return runtime.NumGoroutine() <= goroutines })
	after := heap()
	t.Logf("%s: %d in %v; after a tenth %d KiB and %d goroutines, after all %d KiB and %d; %s",
		channel(), n, d.Round(time.Millisecond), bytes>>10, goroutines, after>>10, runtime.NumGoroutine(), machineLoad())
	if after > bytes+grows {
		t.Errorf("%d KiB are in use after %d, and %d KiB after a tenth of them", after>>10, n, bytes>>10)
	}
}

// Streams of both sides, which are let go at once, after some use, when they are over, when they were refused, and when their context ends.
func TestStreamsThatAreOverLeaveNothingHoweverMany(t *testing.T) {
	c, s := both(t, usual)
	churn(t, func(n int) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		from := []*session.Session{c, s}[n%2]
		if err := oneStream(ctx, cancel, from, n/2); err != nil && !errors.Is(err, wire.OverQuota) { // those before are still being let go of
			t.Errorf("stream %d: %v", n, err)
		}
	}, c, s)
	if s.Context().Err() != nil || c.Context().Err() != nil {
		t.Errorf("the session has ended: %+v, %+v", c.End(), s.End())
	}
}

// oneStream opens a stream, uses it in the way that n says, and closes it.
func oneStream(ctx context.Context, cancel func(), from *session.Session, n int) error {
	way := n % 5
	if way > 2 {
		st, err := from.OpenStreaming(ctx, "repeat", nil)
		if err != nil {
			return err
		}
		defer st.Close()
		if way == 3 {
			cancel()
			return nil
		}
		return errors.Join(st.Send("hi"), st.Receive(new(string)))
	}
	st, err := from.OpenStream(ctx, []string{"echo", "echo", "nothing"}[way])
	if err != nil {
		return err
	}
	defer st.Close()
	switch way {
	case 1:
		_, err := st.Write(make([]byte, 100))
		err = errors.Join(err, st.CloseWrite())
		b, readErr := io.ReadAll(st)
		if err == nil && readErr == nil && len(b) != 100 {
			err = io.ErrUnexpectedEOF
		}
		return errors.Join(err, readErr)
	case 2:
		if _, err := st.Read(make([]byte, 1)); !errors.Is(err, wire.UnknownMethod) {
			return errors.Join(err, errors.New("an unknown method is served"))
		}
	}
	return nil
}

// yamux never acknowledges a stream that was let go before it was accepted, and its opener must not wait for that for ever.
func TestStreamsThatAreLetGoBeforeTheyAreAcceptedAreForgotten(t *testing.T) {
	c, s := both(t, usual)
	for _, from := range []*session.Session{c, s} {
		for range 500 {
			st, err := from.OpenStream(within(t, 20*time.Second), "echo")
			if err != nil {
				t.Fatal(err)
			}
			st.Close()
		}
	}
	leavesNoBodies(t, c, s)
	for _, side := range []*session.Session{c, s} {
		if n := side.Unacknowledged(); n > 0 {
			t.Errorf("%d of 500 streams that are over are kept as unacknowledged", n)
		}
	}
}

// Calls of both sides, which are all canceled: most of them when a handler has them, some on their way.
func TestCallsThatAreCanceledLeaveNothingHoweverMany(t *testing.T) {
	var cancels sync.Map // of calls, by their number
	h := handler{methods: methods{"caught": func(ctx context.Context, m *session.Message) (any, error) {
		var n int
		if err := m.Decode(&n); err != nil {
			return nil, err
		}
		if cancel, there := cancels.Load(n); there {
			cancel.(context.CancelFunc)()
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}}}
	g := []*gate{newGate(wire.DefaultLimits.Calls), newGate(wire.DefaultLimits.Calls)}
	h.methods["first"], h.methods["second"] = g[0].serve, g[1].serve
	c, s := both(t, h)
	churn(t, func(n int) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		cancels.Store(n, cancel)
		defer cancels.Delete(n)
		if n%8 == 0 {
			go cancel()
		}
		if err := []*session.Session{c, s}[n%2].Call(ctx, "caught", n, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("call %d: %v, want canceled", n, err)
		}
	}, c, s)
	g[0].pass(t, c, "first")
	g[1].pass(t, s, "second")
	t.Logf("%d and %d late replies", c.Inspect().LateReplies, s.Inspect().LateReplies)
}
