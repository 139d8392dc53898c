package session_test

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
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
		"a byte too long": {strings.Repeat("x", wire.MaxBody-2), wire.OverQuota}, // such a text has a header of 3 bytes
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
