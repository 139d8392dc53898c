package session_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A service that drains and exits at once has lost nothing of its last reply, whatever the client is doing meanwhile.
func TestTheLastReplyOfAProcessThatExitsIsReadWhole(t *testing.T) {
	leavesNothing(t)
	runs := 60
	if *long {
		runs = 300
	}
	for i := range runs {
		c, child := withChild(t, usual)
		var all sync.WaitGroup
		if i%3 > 0 { // the client writes all it can
			for range 2 {
				st := open(t, c, "sink")
				all.Go(func() {
					for {
						if _, err := st.Write(make([]byte, 32<<10)); err != nil {
							return
						}
					}
				})
			}
			all.Go(func() {
				for c.Send(context.Background(), "ignore", "x") == nil {
				}
			})
		}
		size := []int{wire.MaxBody, 60_000}[i%2]
		var reply string
		if err := c.Call(within(t, 10*time.Second), "last", size, &reply); err != nil || len(reply) != size {
			t.Fatalf("run %d: %d of %d bytes, %v", i, len(reply), size, err)
		}
		wait(t, "the end", c.Done())
		if end := c.End(); end.Code != wire.Interrupted || end.Text != "the child exits" {
			t.Errorf("run %d: end %+v", i, end)
		}
		<-child.reaped
		if !child.ProcessState.Success() {
			t.Errorf("run %d: %v", i, child.ProcessState)
		}
		all.Wait()
		closes(t, c)
	}
}

func TestClosingEndsInTimeAgainstAPeerThatIsAliveAndSilent(t *testing.T) {
	leavesNothing(t)
	var all sync.WaitGroup
	for _, test := range []struct {
		name  string
		close func(c *session.Session) error
		most  time.Duration
	}{
		{"Close", (*session.Session).Close, 8 * time.Second},
		{"Shutdown", func(c *session.Session) error {
			return c.Shutdown(within(t, 200*time.Millisecond), wire.End{Code: wire.Invalid, Origin: wire.Local})
		}, 3 * time.Second},
		{"Drain", func(c *session.Session) error { return c.Drain(within(t, 200*time.Millisecond), "") }, 4 * time.Second},
	} {
		c, child := withChild(t, nil)
		if err := c.Call(within(t, 10*time.Second), "echo", "", nil); err != nil {
			t.Fatal(err)
		}
		child.stop(t)
		waiting := make(chan error, 1)
		go func() { waiting <- c.Call(context.Background(), "echo", strings.Repeat("x", 1<<20), nil) }()
		until(t, "a call is waiting", func() bool { return c.Inspect().CallsWaiting == 1 })
		all.Go(func() {
			began := time.Now()
			err := test.close(c)
			d := time.Since(began)
			t.Logf("%s: %s took %v, %s", channel(), test.name, d, machineLoad())
			if !errors.Is(err, context.DeadlineExceeded) || d > test.most {
				t.Errorf("%s: %v after %v, want a deadline within %v", test.name, err, d, test.most)
			}
			if err := <-waiting; err == nil {
				t.Errorf("%s: the call that waited succeeded", test.name)
			}
		})
	}
	all.Wait()
}

func TestAKilledInstanceIsKnownAtOnce(t *testing.T) {
	leavesNothing(t)
	var took []time.Duration
	for range 7 {
		c, child := withChild(t, nil)
		if err := c.Call(within(t, 10*time.Second), "echo", "", nil); err != nil {
			t.Fatal(err)
		}
		waiting := make(chan error, 1)
		go func() { waiting <- c.Call(context.Background(), "block", nil, nil) }()
		until(t, "a call is waiting", func() bool { return c.Inspect().CallsWaiting == 1 })
		began := time.Now()
		if err := child.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wait(t, "the end", c.Done())
		took = append(took, time.Since(began))
		if end := c.End(); end.Code != wire.Interrupted || end.Origin != wire.Peer {
			t.Errorf("end %+v", end)
		}
		if err := <-waiting; !errors.Is(err, wire.Interrupted) {
			t.Errorf("the call in flight: %v, want %v", err, wire.Interrupted)
		}
		closes(t, c)
	}
	slices.Sort(took)
	if median := took[len(took)/2]; median > 100*time.Millisecond { // what the design promises
		t.Errorf("%v passed until the client knew", took)
	}
}
