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

	"github.com/vmihailenco/msgpack/v5"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

func TestCallReturnsTheReplyOfAnySize(t *testing.T) {
	c, s := both(t, usual)
	const most = wire.MaxLarge - 5 // a text of that length has a header of 5 bytes
	for _, size := range []int{0, 1, 1000, 65_000, wire.MaxBody - 1, wire.MaxBody, wire.MaxBody + 1, 300_000, most - 1, most} {
		for _, from := range []*session.Session{c, s} {
			text, reply := strings.Repeat("x", size), ""
			if err := from.Call(within(t, 10*time.Second), "echo", text, &reply); err != nil || reply != text {
				t.Fatalf("%d bytes: %d bytes, %v", size, len(reply), err)
			}
		}
	}
	if err := c.Call(within(t, time.Second), "echo", strings.Repeat("x", most+1), nil); !errors.Is(err, wire.OverQuota) {
		t.Errorf("a byte more: %v, want %v", err, wire.OverQuota)
	}
	for _, side := range []*session.Session{c, s} {
		until(t, "no stream is left", func() bool {
			bodies, streams := side.Leftovers()
			return bodies == 0 && streams == 0
		})
	}
}

func TestLargeValuesTravelBothWaysAtOnce(t *testing.T) {
	c, s := both(t, usual)
	var all sync.WaitGroup
	for i := range 16 {
		from := []*session.Session{c, s}[i%2]
		r := rand.New(rand.NewPCG(2, uint64(i)))
		all.Go(func() {
			for range 2 {
				text, reply := strings.Repeat(string(rune('a'+i)), wire.MaxBody-1+r.IntN(1<<20)), ""
				if err := from.Call(within(t, 20*time.Second), "echo", text, &reply); err != nil || reply != text {
					t.Errorf("%d bytes: %d bytes, %v", len(text), len(reply), err)
				}
			}
		})
	}
	all.Wait()
}

// A seen is a value that counts how often it is encoded.
type seen struct {
	text  string
	times *atomic.Int32
}

func (v seen) EncodeMsgpack(e *msgpack.Encoder) error {
	v.times.Add(1)
	return e.EncodeString(v.text)
}

// guard: lastLarge in encodeInTurn, within the turn. Else each is encoded in vain, beside the one that waits to leave.
func TestALargeReplyThatIsKnownToBeOneIsNotEncodedBeforeThereIsRoom(t *testing.T) {
	const replies, large = 8, 3 << 20
	var times atomic.Int32
	var begun sync.WaitGroup
	begun.Add(replies)
	c, _ := both(t, handler{methods: methods{"large": func(context.Context, *session.Message) (any, error) {
		begun.Done()
		begun.Wait()
		return seen{strings.Repeat("x", large), &times}, nil
	}}})
	var all sync.WaitGroup
	for range replies {
		all.Go(func() {
			var reply string
			if err := c.Call(within(t, 20*time.Second), "large", nil, &reply); err != nil || len(reply) != large {
				t.Errorf("%d bytes, %v, want %d", len(reply), err, large)
			}
		})
	}
	all.Wait()
	if got := times.Load(); got != replies {
		t.Errorf("%d replies are encoded %d times", replies, got)
	}
}

// Large calls that are given up on their way there, in the handler and on their way back leave nothing, and take no credit with them.
func TestLargeCallsThatAreGivenUpLeaveNothing(t *testing.T) {
	h := handler{methods: methods{"echo": echo, "block": block}}
	gates := []*gate{newGate(wire.DefaultLimits.Calls), newGate(wire.DefaultLimits.Calls)}
	h.methods["first"], h.methods["second"] = gates[0].serve, gates[1].serve
	c, s := both(t, h)
	var all sync.WaitGroup
	var given, whole atomic.Int64
	for i := range 8 {
		from := []*session.Session{c, s}[i%2]
		r := rand.New(rand.NewPCG(3, uint64(i)))
		all.Go(func() {
			for given.Load() < 200 {
				ctx, cancel := context.WithCancel(context.Background())
				name := "echo"
				if r.IntN(4) == 0 {
					name = "block"
				}
				most := []int{1000, 20_000, 400_000}[r.IntN(3)]
				stop := time.AfterFunc(time.Duration(r.IntN(most))*time.Microsecond, cancel)
				text, reply := strings.Repeat("x", wire.MaxBody+r.IntN(600_000)), ""
				err := from.Call(ctx, name, text, &reply)
				switch {
				case err == nil && reply == text:
					whole.Add(1)
				case errors.Is(err, context.Canceled):
					given.Add(1)
				default:
					t.Errorf("%s: %d bytes, %v", name, len(reply), err)
				}
				stop.Stop()
				cancel()
			}
		})
	}
	all.Wait()
	t.Logf("%d given up, %d whole", given.Load(), whole.Load())
	idle(t, c, s)
	for _, side := range []*session.Session{c, s} {
		until(t, "no body and no stream is left", func() bool {
			bodies, streams := side.Leftovers()
			return bodies == 0 && streams == 0
		})
	}
	gates[0].pass(t, c, "first")
	gates[1].pass(t, s, "second")
	for _, from := range []*session.Session{c, s} { // as many bytes as there is credit
		if err := from.Call(within(t, 10*time.Second), "echo", strings.Repeat("x", wire.MaxLarge-5), nil); err != nil {
			t.Error(err)
		}
	}
}

func TestALargeRequestThatIsRefusedLeavesNothing(t *testing.T) {
	hold := make(chan struct{})
	c, s := pair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"hold": func(ctx context.Context, _ *session.Message) (any, error) {
			select {
			case <-hold:
			case <-ctx.Done():
			}
			return nil, nil
		},
	}}})
	if err := c.Call(within(t, 5*time.Second), "nothing", strings.Repeat("x", 1<<20), nil); !errors.Is(err, wire.UnknownMethod) {
		t.Errorf("unknown method: %v", err)
	}
	if err := c.Send(within(t, time.Second), "hold", nil); err != nil { // what follows waits in the inbox until its time is over
		t.Fatal(err)
	}
	if err := c.Call(within(t, 50*time.Millisecond), "nothing", strings.Repeat("x", 1<<20), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("late: %v", err)
	}
	close(hold)
	idle(t, c, s)
	s.Terminate()
	// The client has not been told yet, or has.
	if err := c.Call(within(t, 5*time.Second), "nothing", strings.Repeat("x", 1<<20), nil); !errors.Is(err, wire.Terminating) {
		t.Errorf("draining: %v", err)
	}
	for _, side := range []*session.Session{c, s} {
		until(t, "no body and no stream is left", func() bool {
			bodies, streams := side.Leftovers()
			return bodies == 0 && streams == 0
		})
	}
}
