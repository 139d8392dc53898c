package session_test

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// repeat sends what it receives.
func repeat(_ context.Context, s *session.Stream) error {
	for {
		var v any
		if err := s.Receive(&v); err == io.EOF {
			return s.CloseWrite()
		} else if err != nil {
			return err
		}
		if err := s.Send(v); err != nil {
			return err
		}
	}
}

// pour sends 0, 1, 2 and so on, each with some ballast, until nobody takes it.
func pour(_ context.Context, s *session.Stream) error {
	for i := 0; ; i++ {
		if err := s.Send(poured{i, make([]byte, 1000)}); err != nil {
			return err
		}
	}
}

type poured struct {
	N       int
	Ballast []byte
}

// take waits for what a channel brings.
func take[T any](t testing.TB, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: not within 20 s", what)
	}
	return v
}

// begin opens a streaming call that the test ends.
func begin(t testing.TB, from *session.Session, method string, value any) *session.Stream {
	t.Helper()
	return beginWithin(t, within(t, 20*time.Second), from, method, value)
}

func beginWithin(t testing.TB, ctx context.Context, from *session.Session, method string, value any) *session.Stream {
	t.Helper()
	st, err := from.OpenStreaming(ctx, method, value)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// receiveAll returns what is received until the end, and how it ended: nil is the peer's finish.
func receiveAll[T any](st *session.Stream) (all []T, err error) {
	for v, err := range session.NewStreaming[T, any](st).All() {
		if err != nil {
			return all, err
		}
		all = append(all, v)
	}
	return all, nil
}

func TestStreamingCallsCarryValuesBothWaysAndEndOnlyByTheirEnd(t *testing.T) {
	c, s := pair(t, session.Config{}, session.Config{Handler: handler{streams: streams{
		"repeat": repeat,
		"count": func(_ context.Context, st *session.Stream) error {
			var n int
			if err := st.Decode(&n); err != nil {
				return err
			}
			for i := range n {
				if err := st.Send(i); err != nil {
					return err
				}
			}
			return st.CloseWrite()
		},
		"sum": func(_ context.Context, st *session.Stream) error {
			all, err := receiveAll[int](st)
			sum := 0
			for _, n := range all {
				sum += n
			}
			return errors.Join(err, st.Send(sum), st.CloseWrite())
		},
		"drop":  func(_ context.Context, st *session.Stream) error { return st.Send(1) },
		"fail":  func(_ context.Context, st *session.Stream) error { st.Send(1); return wire.Errorf(wire.Conflict, "oh") },
		"panic": func(_ context.Context, st *session.Stream) error { st.Send(1); panic("oh") },
		"finish and fail": func(_ context.Context, st *session.Stream) error {
			st.Send(1)
			st.CloseWrite()
			return wire.Errorf(wire.Conflict, "oh")
		},
	}}})
	const many = 5000
	for method, test := range map[string]struct {
		value      any
		send, want int
		err        error
	}{
		"repeat": {nil, many, many, nil}, "count": {many, 0, many, nil}, "sum": {nil, many, 1, nil},
		"drop": {nil, 0, 1, wire.Interrupted}, "fail": {nil, 0, 1, wire.Conflict}, "panic": {nil, 0, 1, wire.Internal},
		"finish and fail": {nil, 0, 1, nil}, "nothing": {nil, 0, 0, wire.UnknownMethod},
	} {
		st := begin(t, c, method, test.value)
		var sender sync.WaitGroup
		sender.Go(func() {
			for i := range test.send {
				if err := st.Send(i); err != nil {
					t.Errorf("%s: send: %v", method, err)
					return
				}
			}
			if err := st.CloseWrite(); err != nil {
				t.Errorf("%s: finish: %v", method, err)
			}
		})
		got, err := receiveAll[int](st)
		sender.Wait()
		if len(got) != test.want || !errors.Is(err, test.err) {
			t.Errorf("%s: %d values, %v, want %d, %v", method, len(got), err, test.want, test.err)
		}
		for i, n := range got {
			if test.want == many && n != i {
				t.Fatalf("%s: value %d is %d", method, i, n)
			}
		}
		if method == "sum" && got[0] != many*(many-1)/2 {
			t.Errorf("sum %d", got[0])
		}
		var n int
		if again := st.Receive(&n); test.err == nil && again != io.EOF || test.err != nil && again != err {
			t.Errorf("%s: the end is not the end: %v and then %v", method, err, again)
		}
	}
	if _, err := receiveAll[int](begin(t, s, "any", nil)); !errors.Is(err, wire.UnknownMethod) {
		t.Errorf("to a side that serves none: %v, want %v", err, wire.UnknownMethod)
	}
	if _, err := c.OpenStreaming(within(t, time.Second), "", nil); !errors.Is(err, wire.Malformed) {
		t.Errorf("without a method: %v, want %v", err, wire.Malformed)
	}
}

func TestValuesOfManySendersArriveWhole(t *testing.T) {
	const senders, each = 8, 20
	c, s := both(t, usual)
	for _, from := range []*session.Session{c, s} {
		st := begin(t, from, "repeat", nil)
		var all sync.WaitGroup
		for i := range senders {
			all.Go(func() {
				for j := range each {
					if err := st.Send(strings.Repeat(string(rune('a'+i)), j*3000)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		go func() { all.Wait(); st.CloseWrite() }()
		got, err := receiveAll[string](st)
		if err != nil || len(got) != senders*each {
			t.Fatalf("%d values, %v", len(got), err)
		}
		for _, text := range got {
			if text != "" && strings.Trim(text, text[:1]) != "" || len(text)%3000 != 0 {
				t.Fatalf("a value of %d bytes that nobody sent", len(text))
			}
		}
	}
}

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

func TestASlowReceiverHoldsUpItsSenderAndNothingElse(t *testing.T) {
	c, s := both(t, usual)
	slow := begin(t, c, "pour", nil)
	var first poured
	if err := slow.Receive(&first); err != nil {
		t.Fatal(err)
	}
	until(t, "the sender stands still", func() bool {
		before := s.Inspect().Sent
		time.Sleep(20 * time.Millisecond)
		return s.Inspect().Sent == before && before > 200_000
	})
	if sent := s.Inspect().Sent; sent > 1<<20 {
		t.Errorf("%d bytes have left for a receiver that stands still", sent)
	}
	for _, from := range []*session.Session{c, s} {
		var reply string
		if err := from.Call(within(t, 5*time.Second), "echo", "hi", &reply); err != nil || reply != "hi" {
			t.Errorf("a call: %q, %v", reply, err)
		}
		st := begin(t, from, "repeat", nil)
		if err := errors.Join(st.Send("hi"), st.Receive(&reply)); err != nil || reply != "hi" {
			t.Errorf("another streaming call: %q, %v", reply, err)
		}
	}
	for i := 1; i < 5000; i++ {
		var v poured
		if err := slow.Receive(&v); err != nil || v.N != i || len(v.Ballast) != 1000 {
			t.Fatalf("value %d: %d, %v", i, v.N, err)
		}
	}
}

func TestAValueThatCannotTravelIsRefusedHereAndLeavesTheStreamAsItIs(t *testing.T) {
	c, _ := both(t, usual)
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st := begin(t, c, "repeat", nil)
	for name, test := range map[string]struct {
		value any
		want  wire.Code
	}{
		"a byte too long": {strings.Repeat("x", wire.MaxBody-2), wire.Malformed}, // such a text has a header of 3 bytes
		"a descriptor":    {struct{ File *os.File }{f}, wire.Unsupported},
		"a channel":       {make(chan int), wire.Malformed},
	} {
		if err := st.Send(test.value); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
		if _, err := c.OpenStreaming(within(t, time.Second), "repeat", test.value); !errors.Is(err, test.want) {
			t.Errorf("opened with %s: %v, want %v", name, err, test.want)
		}
	}
	want, got := strings.Repeat("x", wire.MaxBody-3), ""
	if err := errors.Join(st.Send(want), st.Receive(&got)); err != nil || got != want {
		t.Errorf("the longest: %d bytes, %v", len(got), err)
	}
	nothing := &picky{}
	if err := errors.Join(st.Send(nil), st.Receive(&nothing)); err != nil || nothing != nil {
		t.Errorf("nil: %v, %v", nothing, err)
	}
}

type picky struct{ Text string }

func (p *picky) Validate() error {
	if p.Text == "bad" {
		return wire.Errorf(wire.Malformed, "bad text")
	}
	return nil
}

func TestAValueThatIsRefusedIsMalformedAndTheNextIsReceived(t *testing.T) {
	c, _ := both(t, usual)
	st := begin(t, c, "repeat", nil)
	if err := errors.Join(st.Send(picky{"bad"}), st.Send(1), st.Send(picky{"good"})); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := st.Receive(new(picky)); !errors.Is(err, wire.Malformed) {
			t.Errorf("%v, want %v", err, wire.Malformed)
		}
	}
	var v picky
	if err := st.Receive(&v); err != nil || v.Text != "good" {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestAReceiveThatWasOverItsTimeCanBeRepeated(t *testing.T) {
	c, _ := both(t, usual)
	st := begin(t, c, "repeat", nil)
	for range 3 {
		st.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if err := st.Receive(new(any)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%v, want a deadline", err)
		}
		st.SetReadDeadline(time.Time{})
		want, got := strings.Repeat("x", 50_000), ""
		if err := errors.Join(st.Send(want), st.Receive(&got)); err != nil || got != want {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
}

func TestAStreamIsUsedAsWhatItIs(t *testing.T) {
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{streams: streams{
		"raw":   func(_ context.Context, st *session.Stream) error { st.Write([]byte("x")); return st.CloseWrite() },
		"typed": func(_ context.Context, st *session.Stream) error { st.Send("x"); return st.CloseWrite() },
		"read":  func(_ context.Context, st *session.Stream) error { _, err := io.ReadAll(st); return err },
		"receive": func(_ context.Context, st *session.Stream) error {
			_, err := receiveAll[any](st)
			return err
		},
	}}})
	typed, raw := begin(t, c, "typed", nil), open(t, c, "raw")
	if _, err := io.ReadAll(raw); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"Read": second(typed.Read(make([]byte, 1))), "Write": second(typed.Write([]byte("x"))),
		"Receive": raw.Receive(new(any)), "Send": raw.Send(1),
	} {
		if !errors.Is(err, wire.Invalid) {
			t.Errorf("%s: %v, want %v", name, err, wire.Invalid)
		}
	}
	if got, err := receiveAll[string](typed); err != nil || len(got) != 1 {
		t.Errorf("then: %q, %v", got, err)
	}
	for name, err := range map[string]error{
		"data to a caller":  second(receiveAll[any](begin(t, c, "raw", nil))),
		"an item to a read": second(io.ReadAll(open(t, c, "typed"))),
		"data to a handler": func() error { st := open(t, c, "receive"); st.Write([]byte("x")); return second(io.ReadAll(st)) }(),
		"an item to a raw":  func() error { st := begin(t, c, "read", nil); st.Send("x"); return st.Receive(new(any)) }(),
	} {
		if !errors.Is(err, wire.Malformed) {
			t.Errorf("%s: %v, want %v", name, err, wire.Malformed)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestMalformedItemsFailTheirStreamAndNothingElse(t *testing.T) {
	header := func(kind wire.Kind, flags uint8, length uint32) []byte {
		return wire.Header{Kind: kind, Flags: flags, Length: length}.Append(nil)
	}
	failed := make(chan error, 1)
	h, s := withHostileServing(t, handler{methods: usual.methods, streams: streams{
		"take": func(_ context.Context, st *session.Stream) error {
			_, err := receiveAll[any](st)
			failed <- err
			return err
		},
	}})
	for name, test := range map[string]struct {
		then []byte
		want wire.Code
	}{
		"data":                   {append(header(wire.KindData, 0, 1), 0xc0), wire.Malformed},
		"an item of nothing":     {header(wire.KindItem, 0, 0), wire.Malformed},
		"an item of two values":  {append(header(wire.KindItem, 0, 2), 0xc0, 0xc0), wire.Malformed},
		"an item that is cut":    {append(header(wire.KindItem, 0, 2), 0xa5, 'x'), wire.Malformed},
		"a bomb":                 {append(header(wire.KindItem, 0, 5), 0xdd, 0xff, 0xff, 0xff, 0xff), wire.Malformed},
		"an item over its limit": {header(wire.KindItem, 0, wire.MaxBody+1), wire.Malformed},
		"unknown flags":          {append(header(wire.KindItem, 0x80, 1), 0xc0), wire.Malformed},
		"a finish of something":  {append(header(wire.KindFinish, 0, 1), 0xc0), wire.Malformed},
		"a reply that is none":   {append(header(wire.KindReply, 0, 1), 0xc0), wire.Malformed},
		"a stream in a stream":   {begins(t, "take"), wire.Malformed},
		"another version":        {append([]byte{9}, header(wire.KindItem, 0, 1)[1:]...), wire.Unsupported},
		"an error": {func() []byte {
			f, _ := wire.NewFrame(wire.KindReply, 0, wire.Error{Code: wire.Conflict})
			f.Flags = wire.FlagError
			return f.Append(nil)
		}(), wire.Conflict},
	} {
		y := h.stream(append(begins(t, "take"), test.then...))
		if err := take(t, "the handler's end", failed); wire.CodeOf(err) != test.want {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
		y.Close()
	}
	for name, then := range map[string][]byte{"nothing": nil, "half a header": header(wire.KindItem, 0, 1)[:7], "half an item": append(header(wire.KindItem, 0, 9), 0xa8)} {
		h.stream(append(begins(t, "take"), then...)).Close()
		if err := take(t, "the handler's end", failed); wire.CodeOf(err) != wire.Canceled {
			t.Errorf("%s and then end of file: %v, want %v", name, err, wire.Canceled)
		}
	}
	if end := s.End(); end != (wire.End{}) {
		t.Errorf("the session has ended: %+v", end)
	}
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

func TestTheTimeOfAStreamingCallHoldsAgainstAPeerThatIsAliveAndSilent(t *testing.T) {
	const deadline, margin = 200 * time.Millisecond, 3 * time.Second
	c, child := withChild(t, nil)
	if err := c.Call(within(t, 10*time.Second), "echo", "", nil); err != nil {
		t.Fatal(err)
	}
	child.stop(t)
	for name, f := range map[string]func(*session.Stream) error{
		"Send": func(st *session.Stream) error {
			for {
				if err := st.Send(make([]byte, 60_000)); err != nil {
					return err
				}
			}
		},
		"Receive": func(st *session.Stream) error { return st.Receive(new(any)) },
	} {
		began := time.Now()
		err := f(beginWithin(t, within(t, deadline), c, "repeat", nil))
		if d := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || d > deadline+margin {
			t.Errorf("%s: %v after %v, want a deadline", name, err, d)
		}
	}
	child.goOn(t)
	st, v := begin(t, c, "repeat", nil), ""
	if err := errors.Join(st.Send("hi"), st.Receive(&v)); err != nil || v != "hi" {
		t.Errorf("afterwards: %q, %v", v, err)
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
