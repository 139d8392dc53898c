package session_test

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

var oneSeed = flag.Int64("seed", 0, "of the model test, run this history only; goroutines take turns as the scheduler has it, so -count helps")

const (
	someHistories = 200
	allHistories  = 100_000
	batch         = 100 // histories in one bubble
)

// bubble runs f under fake time. yamux keeps timers in a sync.Pool, which two collections empty: those of a bubble must not come into another, nor
// out of it.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	empty := func() { runtime.GC(); runtime.GC() }
	empty()
	defer empty()
	synctest.Test(t, f)
}

// TestRandomHistoriesKeepThePromises has both sides of a session do random things on a connection that fails at random, and compares what was
// seen with what a model allows.
func TestRandomHistoriesKeepThePromises(t *testing.T) {
	leavesNothing(t)
	t.Setenv("GODEBUG", "tracebacklabels=1") // a panic then shows the seed, which the history's goroutines have as a label
	if *oneSeed != 0 {
		bubble(t, func(t *testing.T) { newHistory(*oneSeed).run(t) })
		return
	}
	n := int64(someHistories)
	if *long {
		n = allHistories
	}
	for first := int64(1); first <= n; first += batch {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				for seed := first; seed < first+batch; seed++ {
					newHistory(seed).run(t)
				}
			})
		})
	}
}

// A moment is a place in the history: its number, from 1, and how long after the beginning.
type moment struct {
	n  int
	at time.Duration
}

// was reports whether the moment has come.
func (m moment) was() bool { return m.n > 0 }

// before reports whether m has come, and before o, if that has.
func (m moment) before(o moment) bool { return m.was() && (!o.was() || m.n < o.n) }

// An event is a line of a history.
type event struct {
	moment
	side int
	what string
	op   *operation // nil: of the side as a whole
	of   any
}

// A history is a plan that is carried out, and what was seen.
type history struct {
	*plan
	sides    [2]*side // the opener's first
	began    time.Time
	injected atomic.Int64

	mu     sync.Mutex
	log    []event
	lost   moment // when the connection broke
	wrong  []string
	gates  [2]*gate
	holder chan struct{} // closed when one-way messages may go on
}

// A side is one end of the session.
type side struct {
	*session.Session
	conn  *pipeEnd
	hooks int
	end   wire.End
	ended moment
	told  moment // when it first said that it terminates
	facts map[string]string
}

func newHistory(seed int64) *history {
	h := &history{began: time.Now()}
	h.plan = newPlan(seed, &h.injected)
	for i, f := range h.plan.faults {
		f.lost = func(what string) { h.mark(&h.lost, i, "the connection breaks at a "+what, nil, nil) }
	}
	return h
}

// mark notes that something happens. Only the first time counts for m.
func (h *history) mark(m *moment, side int, what string, op *operation, of any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := moment{len(h.log) + 1, time.Since(h.began)}
	if !m.was() {
		*m = now
	}
	h.log = append(h.log, event{now, side, what, op, of})
}

// fault notes that a promise was broken.
func (h *history) fault(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wrong = append(h.wrong, fmt.Sprintf(format, args...))
}

// report fails the test if a promise was broken.
func (h *history) report(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.wrong) == 0 {
		return
	}
	var b strings.Builder
	for _, e := range h.log {
		fmt.Fprintf(&b, "%4d %12v side %d %s", e.n, e.at, e.side, e.what)
		if e.op != nil {
			fmt.Fprintf(&b, ": %v", e.op)
		}
		if e.of != nil {
			fmt.Fprintf(&b, ": %.200v", e.of)
		}
		b.WriteByte('\n')
	}
	t.Errorf("history %d: run it with -seed=%d\n%s\nlimits %v, lane %t, delays of %v\n%s", h.seed, h.seed, strings.Join(h.wrong, "\n"), h.limits,
		h.lane, h.delays(), b.String())
}

// patient is more than all that a history's operations take.
const patient = 10 * time.Minute

// run carries the plan out and judges it.
func (h *history) run(t *testing.T) {
	pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels("seed", fmt.Sprint(h.seed))))
	before := running()
	defer h.report(t)
	h.begin(t)
	var all sync.WaitGroup
	for _, list := range h.actors {
		all.Go(func() {
			for _, op := range list {
				h.do(op)
			}
		})
	}
	if h.cut > 0 {
		all.Go(func() { time.Sleep(h.cut); h.breaks() })
	}
	acted := make(chan struct{})
	go func() { all.Wait(); close(acted) }()
	if came := h.comes(acted); !came && !h.endless {
		h.fault("operations have not returned after %v", patient)
	} else if came && !h.endless {
		h.probe()
	}
	h.finish(t, acted)
	synctest.Wait()
	if n := running(); n != before {
		h.fault("%d goroutines, before %d\n%s", n, before, stacks())
	}
	h.check()
}

// running returns how many goroutines are in the bubble. runtime.NumGoroutine also counts some that have ended.
func running() int { return strings.Count(stacks(), " synctest bubble ") }

// begin begins the session at both ends.
func (h *history) begin(t *testing.T) {
	var conns [2]*pipeEnd
	conns[0], conns[1] = newPipe(h.room, h.faults[0], h.faults[1])
	for i, conn := range conns {
		h.sides[i] = &side{conn: conn, facts: map[string]string{}}
		s, err := session.New(conn, session.Config{
			Endpoint: endpoint, Opener: i == 0, Handler: h.handler(i), Send: h.limits[1-i], Receive: h.limits[i], Lane: h.lane,
		})
		if err != nil {
			t.Fatalf("history %d: begin: %v", h.seed, err)
		}
		h.sides[i].Session = s
		s.OnEnd(func(end wire.End) {
			h.mark(&h.sides[i].ended, i, "ended", nil, end)
			h.sides[i].hooks, h.sides[i].end = h.sides[i].hooks+1, end
		})
	}
}

// breaks breaks the connection.
func (h *history) breaks() {
	h.mark(&h.lost, 0, "the connection breaks", nil, nil)
	h.sides[0].conn.cut()
}

// comes waits for something that must come, in fake time.
func (h *history) comes(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-time.After(patient):
		return false
	}
}

// finish ends the session, unless an operation has, and waits for all that is left of it.
func (h *history) finish(t *testing.T, acted <-chan struct{}) {
	open := func(i int) bool { return h.sides[i].End() == wire.End{} }
	var all sync.WaitGroup
	if open(0) && open(1) && h.last == 3 {
		h.breaks()
	} else if open(0) && open(1) {
		for i := range h.sides {
			if h.last == i || h.last == 2 {
				all.Go(func() { h.do(h.closers[i]) })
			}
		}
	}
	all.Wait()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		<-acted
		for _, s := range h.sides {
			s.Wait()
		}
	}()
	if h.comes(gone) {
		return
	}
	h.fault("the session has not ended at both sides, or left something behind, after %v\n%s", patient, stacks())
	for _, s := range h.sides {
		s.Abort(closed)
	}
	if !h.comes(gone) {
		t.FailNow() // the bubble then panics: it cannot end
	}
}

// stacks returns what the bubble's goroutines do, as far as all go into 64 KiB.
func stacks() string {
	b := make([]byte, 64<<10)
	all := strings.SplitAfter(string(b[:runtime.Stack(b, true)]), "\n\n")
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return !strings.Contains(s, " synctest bubble ") }), "")
}

// probe checks, when nothing is under way, that nothing is left of it, and that all credit is back.
func (h *history) probe() {
	alive := func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.sides[0].End() == wire.End{} && h.sides[1].End() == wire.End{} && !h.lost.was()
	}
	if !alive() {
		return
	}
	for _, s := range h.sides {
		s.conn.in.calm()
	}
	time.Sleep(30*time.Second + h.delays()) // what belongs to nothing is discarded 20 s after it came
	if !alive() {
		return
	}
	for i, s := range h.sides {
		in, peer := s.Inspect(), h.sides[1-i]
		bodies, streams := s.Leftovers()
		unread, followed := s.Unread()
		if in.CallsWaiting+in.CallsServing+in.Streams+bodies+streams+unread+followed > 0 {
			h.fault("side %d, when all is quiet: %+v, %d large bodies, %d streams, %d followed, %d bytes unread", i, in, bodies, streams, followed, unread)
		}
		if got := peer.Inspect().PeerFacts; fmt.Sprint(got) != fmt.Sprint(in.Facts) || fmt.Sprint(got) != fmt.Sprint(s.facts) {
			h.fault("side %d, when all is quiet: its facts are %v, and the other sees %v; it has set %v", i, in.Facts, got, s.facts)
		}
	}
	for i := range h.sides {
		if !h.sides[1-i].told.was() {
			h.probeCredit(i)
		}
	}
}

// probeCredit has one side use all its credit at once. Time stands still while it does.
func (h *history) probeCredit(from int) {
	s, limits := h.sides[from], h.limits[1-from]
	began, held := time.Now(), h.held()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	h.mu.Lock()
	h.gates[1-from], h.holder = newGate(limits.Calls), make(chan struct{})
	h.mu.Unlock()
	var all sync.WaitGroup
	for range limits.Calls {
		all.Go(func() {
			if err := s.Call(ctx, "gate", nil, nil); err != nil {
				h.fault("side %d, when all is quiet: one of %d calls at once: %v", from, limits.Calls, err)
			}
		})
	}
	all.Wait()
	for range limits.OneWay {
		if err := s.Send(ctx, "hold", nil); err != nil {
			h.fault("side %d, when all is quiet: one of %d one-way messages: %v", from, limits.OneWay, err)
		}
	}
	for range limits.Calls + 1 {
		all.Go(func() {
			if err := s.Flush(ctx); err != nil {
				h.fault("side %d, when all is quiet: one of %d flushes: %v", from, limits.Calls+1, err)
			}
		})
	}
	synctest.Wait()
	if n := int64(h.sides[1-from].Inspect().CallsServing); n != limits.Calls {
		h.fault("side %d, when all is quiet: it has sent %d flushes behind messages that are being handled, of %d calls", from, n, limits.Calls)
	}
	close(h.holder)
	all.Wait()
	whole := filler[:limits.Bytes-5] // and a string's header
	if err := s.Call(ctx, "ignore", whole, nil); err != nil {
		h.fault("side %d, when all is quiet: a call of %d bytes: %v", from, limits.Bytes, err)
	}
	if d := time.Since(began); d > h.held()-held {
		h.fault("side %d, when all is quiet: to use its credit took %v", from, d)
	}
}
