package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// echo calls the echo service.
func echo(t *testing.T, s *client.Session, d time.Duration, words string) error {
	t.Helper()
	reply, err := client.Call[text](within(t, d), s, "echo", text{words})
	if err == nil && reply.Text != words {
		t.Errorf("the echo of %q is %q", words, reply.Text)
	}
	return err
}

func TestAStoppedInstanceCostsItsCallersTheirTimeAndNothingElse(t *testing.T) {
	w := newWorld(t, one)
	w.startBroker()
	service := w.role("echo")
	service.stdout.await(t, "ready")
	s, other := w.dial(echoEndpoint), w.dial(network.Endpoint)
	if err := echo(t, s, patience, "before"); err != nil {
		t.Fatal(err)
	}
	giveUp := held(t, s) // one call is with its handler when the instance is stopped, and the others come while it is
	service.stdout.await(t, "waiting")
	service.freeze(t)
	defer service.cmd.Process.Signal(syscall.SIGCONT)

	const calls = 8
	var calling sync.WaitGroup
	for range calls {
		calling.Go(func() { callStopped(t, s, 300*time.Millisecond) })
	}
	if _, err := network.Networks(within(t, patience), other); err != nil {
		t.Errorf("another session of the same client: %v", err)
	}
	calling.Wait()
	giveUp()
	if _, errs, code := w.ctl("session", "inspect", s.ID(), "--timeout", "300ms"); code != 6 {
		t.Errorf("brokerctl session inspect exits %d and says %q, want 6: timed out", code, errs)
	}
	if in := s.Inspect(); in.CallsWaiting != calls+1 || in.LateReplies != 0 {
		t.Errorf("%d calls in flight and %d late replies, want %d and 0", in.CallsWaiting, in.LateReplies, calls+1)
	}

	service.cmd.Process.Signal(syscall.SIGCONT)
	service.say(t, "go on")
	if err := echo(t, s, patience, "after"); err != nil {
		t.Fatalf("the same session after SIGCONT: %v", err)
	}
	eventually(t, "late replies are counted", func() bool { return s.Inspect().LateReplies == calls+1 })
	if in := s.Inspect(); in.CallsWaiting != 0 {
		t.Errorf("%d calls are in flight", in.CallsWaiting)
	}
}

// held begins a call that waits in its handler. The returned function gives it up.
func held(t *testing.T, s *client.Session) (giveUp func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := client.Call[text](ctx, s, "wait", text{})
		done <- err
	}()
	return func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("a call that was given up: %v", err)
		}
	}
}

// callStopped calls an instance that is stopped, with so much time.
func callStopped(t *testing.T, s *client.Session, d time.Duration) {
	begun := time.Now()
	err := echo(t, s, d, "meanwhile")
	took := time.Since(begun)
	failed, _ := errors.AsType[*wire.Error](err)
	if !errors.Is(err, context.DeadlineExceeded) || failed == nil || !failed.Sent || took < d || took > d+5*time.Second {
		t.Errorf("a call to a stopped instance returned after %v: %v (%+v), want its deadline, and that it had left", took, err, failed)
	}
}

func TestALargeReplyIsReadWholeAlthoughItsInstanceExitsAtOnce(t *testing.T) {
	w := newWorld(t, one)
	w.startBroker()
	want := make([]byte, lastWords)
	for i := range want {
		want[i] = byte(i * 7)
	}
	runs := count(60, 300)
	for i := range runs {
		service := w.role("lastwords")
		service.stdout.await(t, "ready")
		s := w.dial(lastWordsEndpoint)
		stop := func() {}
		if i%2 == 1 {
			stop = noise(t, s)
		}
		reply, err := client.Call[[]byte](within(t, patience), s, "last", nil)
		if err != nil || !bytes.Equal(reply, want) {
			t.Errorf("run %d of %d: a reply of %d bytes: %v", i, runs, len(reply), err)
		}
		if code := service.exit(t); code != 0 {
			t.Errorf("the instance exits %d\n%v", code, service.stderr)
		}
		stop()
		s.Close()
	}
}

// noise sends one-way messages without a pause until it is stopped or the session ends.
func noise(t *testing.T, s *client.Session) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() {
		for s.Send(ctx, "noise", make([]byte, 1024)) == nil {
		}
	})
	return func() {
		cancel()
		sending.Wait()
	}
}
