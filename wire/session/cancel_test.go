package session_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// How a call is given up.
const (
	kept        = iota
	late        // by its deadline
	canceled    // at a random time
	caughtThere // when a handler has it
	ways
)

// A trial is many calls, with what the test does to each and what becomes of it.
type trial []tried

type tried struct {
	how     int
	panics  bool
	text    string
	cancel  atomic.Pointer[context.CancelFunc]
	handled atomic.Int32
	ended   atomic.Int32
	err     error
}

type asked struct {
	N    int
	Text string
}

// draw returns n calls: half of them are given up, and one of a hundred meets a handler that panics.
func draw(r *rand.Rand, n int) trial {
	l := make(trial, n)
	for i := range l {
		c := &l[i]
		if r.IntN(2) == 0 {
			c.how = 1 + r.IntN(ways-1)
		}
		size := r.IntN(3000)
		if r.IntN(500) == 0 {
			size = wire.MaxBody + r.IntN(200_000)
		}
		c.panics, c.text = r.IntN(100) == 0, strings.Repeat("x", size)
	}
	return l
}

// work is the handler.
func (l trial) work(ctx context.Context, m *session.Message) (any, error) {
	v := asked{}
	if err := m.Decode(&v); err != nil {
		return nil, err
	}
	c := &l[v.N]
	c.handled.Add(1)
	switch {
	case c.how == caughtThere:
		(*c.cancel.Load())()
		<-ctx.Done()
		if c.panics {
			panic("oh")
		}
		return nil, ctx.Err()
	case c.panics:
		panic("oh")
	case v.N%7 == 0:
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return v.Text, nil
}

// make makes call n.
func (l trial) make(from *session.Session, r *rand.Rand, n int) {
	c := &l[n]
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c.cancel.Store(&cancel)
	after := time.Duration(r.IntN(500)) * time.Microsecond
	switch c.how {
	case late:
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, after)
		defer stop()
	case canceled:
		defer time.AfterFunc(after, cancel).Stop()
	}
	reply := ""
	c.err = from.Call(ctx, "work", asked{n, c.text}, &reply)
	c.ended.Add(1)
	if c.err == nil && reply != c.text {
		c.err = errors.New("another call's reply")
	}
}

// outcome returns what became of a call, or "" for what may not.
func (c *tried) outcome() string {
	handled := c.handled.Load()
	e, ours := errors.AsType[*wire.Error](c.err)
	switch {
	case c.ended.Load() != 1, handled > 1, c.err != nil && !ours, ours && !e.Sent && handled > 0:
		return ""
	case c.err == nil && handled == 1 && !c.panics && c.how != caughtThere:
		return "served"
	case errors.Is(c.err, wire.Internal) && handled == 1 && c.panics && c.how != caughtThere:
		return "panicked"
	case errors.Is(c.err, context.DeadlineExceeded) && c.how == late && e.Sent:
		return "late"
	case errors.Is(c.err, context.Canceled) && c.how == caughtThere && e.Sent && handled == 1:
		return "canceled in the handler"
	case errors.Is(c.err, context.Canceled) && c.how == canceled && e.Sent:
		return "canceled on the way"
	case (c.how == late && errors.Is(c.err, context.DeadlineExceeded)) || (c.how == canceled && errors.Is(c.err, context.Canceled)):
		return "not sent"
	}
	return ""
}

// Calls from both sides, half of which are given up at some point and some of which meet a handler that panics.
func TestEveryCallCompletesOnceAndIsHandledAtMostOnce(t *testing.T) {
	const calls, at = 10_000, 50
	l := draw(rand.New(rand.NewPCG(4, 0)), calls)
	h := handler{methods: methods{"work": l.work, "echo": echo}}
	gates := []*gate{newGate(wire.DefaultLimits.Calls), newGate(wire.DefaultLimits.Calls)}
	h.methods["first"], h.methods["second"] = gates[0].serve, gates[1].serve
	c, s := both(t, h)
	var all sync.WaitGroup
	for worker := range at {
		r := rand.New(rand.NewPCG(5, uint64(worker)))
		from := []*session.Session{c, s}[worker%2]
		all.Go(func() {
			for n := worker; n < calls; n += at {
				l.make(from, r, n)
			}
		})
	}
	all.Wait()
	idle(t, c, s)
	counts := map[string]int{}
	for n := range l {
		what := l[n].outcome()
		counts[what]++
		if what == "" {
			t.Errorf("call %d (given up %d, panics %t): handled %d times, ended %d times: %v", n, l[n].how, l[n].panics, l[n].handled.Load(), l[n].ended.Load(), l[n].err)
		}
	}
	t.Logf("%s: %v", channel(), counts)
	for _, what := range []string{"served", "panicked", "late", "canceled in the handler", "canceled on the way"} {
		if counts[what] == 0 {
			t.Errorf("no call was %s", what)
		}
	}
	leavesNoBodies(t, c, s)
	gates[0].pass(t, c, "first") // all credit is back on both sides
	gates[1].pass(t, s, "second")
	for _, from := range []*session.Session{c, s} {
		if err := callSoon(from, "echo", strings.Repeat("x", wire.MaxLarge-5)); err != nil {
			t.Errorf("all bytes of credit: %v", err)
		}
	}
}

// leavesNoBodies waits until no large body and no stream is left.
func leavesNoBodies(t testing.TB, sides ...*session.Session) {
	t.Helper()
	for _, side := range sides {
		until(t, "no body and no stream is left", func() bool {
			bodies, there := side.Leftovers()
			unread, followed := side.Unread()
			return bodies == 0 && there == 0 && unread == 0 && followed == 0
		})
	}
}
