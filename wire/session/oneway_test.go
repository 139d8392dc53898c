package session_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

func TestOneWayMessagesAreHandledInOrderBeforeLaterRequests(t *testing.T) {
	var next atomic.Int64
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"tell": func(_ context.Context, m *session.Message) (any, error) {
			var n int64
			if err := m.Decode(&n); err != nil {
				return nil, err
			}
			if !next.CompareAndSwap(n, n+1) {
				t.Errorf("message %d came when %d was due", n, next.Load())
			}
			return nil, nil
		},
		"count": func(context.Context, *session.Message) (any, error) { return next.Load(), nil },
	}}})
	for i := range int64(2000) { // far more than the credit
		if err := c.Send(within(t, 10*time.Second), "tell", i); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			var n int64
			if err := c.Call(within(t, 10*time.Second), "count", nil, &n); err != nil || n != i+1 {
				t.Fatalf("count after %d: %d, %v", i, n, err)
			}
		}
	}
}

func TestAOneWayMessageBeyondTheCreditWaitsOnItsOwnSide(t *testing.T) {
	hold := make(chan struct{})
	var handled atomic.Int64
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"hold": func(context.Context, *session.Message) (any, error) { <-hold; handled.Add(1); return nil, nil },
	}}})
	sent := int64(0)
	for ; ; sent++ {
		if err := c.Send(within(t, 200*time.Millisecond), "hold", nil); errors.Is(err, context.DeadlineExceeded) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if sent != wire.DefaultLimits.OneWay {
		t.Errorf("%d were sent, limit %d", sent, wire.DefaultLimits.OneWay)
	}
	close(hold)
	if err := c.Send(within(t, 5*time.Second), "hold", nil); err != nil {
		t.Errorf("when they are handled: %v", err)
	}
	until(t, "all are handled", func() bool { return handled.Load() == sent+1 })
}

func TestAOneWayHandlerThatPanicsOrFailsHoldsNothingUp(t *testing.T) {
	c, _ := pair(t, session.Config{}, session.Config{Handler: usual})
	for range 600 { // more than the credit
		for _, method := range []string{"panic", "nothing"} {
			if err := c.Send(within(t, 5*time.Second), method, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Call(within(t, 5*time.Second), "echo", "", nil); err != nil {
		t.Error(err)
	}
}

func TestASendThatCannotBeSentFailsAlone(t *testing.T) {
	c, _ := pair(t, session.Config{}, session.Config{Handler: usual})
	for name, test := range map[string]struct {
		method string
		value  any
		want   error
	}{
		"no method":     {"", nil, wire.Malformed},
		"a long method": {strings.Repeat("x", wire.MaxMethod+1), nil, wire.Malformed},
		"a long value":  {"ignore", strings.Repeat("x", wire.MaxBody), wire.OverQuota},
		"no value":      {"ignore", make(chan int), wire.Malformed},
	} {
		if err := c.Send(within(t, time.Second), test.method, test.value); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	if err := c.Call(within(t, time.Second), "echo", "", nil); err != nil {
		t.Error(err)
	}
}
