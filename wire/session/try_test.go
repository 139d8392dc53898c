package session_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

func TestAMessageIsTriedWhereNobodyHasToBeWaitedForAndElseNothingIsDone(t *testing.T) {
	leavesNothing(t)
	came, proceed := make(chan int64, 10), make(chan struct{})
	take := func(_ context.Context, m *session.Message) (any, error) {
		var c carried
		err := m.Decode(&c)
		for _, f := range c.Files {
			f.Close()
		}
		came <- c.N + int64(len(c.Files))
		<-proceed
		return nil, err
	}
	limits := wire.Limits{OneWay: 2}
	x, y := controlPair(t, session.Config{Send: limits}, session.Config{Receive: limits, Handler: handler{methods: methods{"take": take}}})
	f := numbered(t, 7)
	if !x.TrySend("take", carried{N: 40, Files: []*os.File{f, nil}}) {
		t.Fatal("it was not sent")
	}
	if got := <-came; got != 42 { // the nil is a file of the list, too
		t.Errorf("%d came", got)
	}
	if _, err := f.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the sender's file, which has left: %v", err)
	}
	if !x.TrySend("take", carried{N: 1}) {
		t.Error("the second was not sent, and there is credit for two")
	}
	for what, sent := range map[string]bool{
		"without credit": x.TrySend("take", carried{N: 2}), "that cannot be encoded": x.TrySend("take", func() {}), "without a method": x.TrySend("", nil),
	} {
		if sent {
			t.Errorf("a message %s was sent", what)
		}
	}
	close(proceed)
	if got := <-came; got != 1 {
		t.Errorf("%d came", got)
	}
	if err := x.Send(within(t, patience), "take", carried{N: 3}); err != nil { // the credit comes back
		t.Error(err)
	}
	if got := <-came; got != 3 {
		t.Errorf("%d came", got)
	}
	closes(t, x)
	if x.TrySend("take", carried{}) || y.TrySend("take", carried{}) {
		t.Error("a session that has ended has sent a message")
	}
	x.Wait()
	y.Wait()
}

// A control connection's one-way messages are handled on the goroutine that reads it, and still in their order, and hold up nothing else for long.
func TestASlowMessageOfAControlConnectionHoldsUpOnlyMessages(t *testing.T) {
	leavesNothing(t)
	order := make(chan int64, 200)
	proceed := make(chan struct{})
	take := func(_ context.Context, m *session.Message) (any, error) {
		var n int64
		err := m.Decode(&n)
		if n == 0 {
			<-proceed
		}
		order <- n
		if n == 1 {
			panic("oh")
		}
		return nil, err
	}
	limits := wire.Limits{OneWay: 300}
	x, y := controlPair(t, session.Config{Send: limits, Handler: usual}, session.Config{Receive: limits, Handler: handler{methods: methods{"take": take, "echo": echo}}})
	for n := range int64(200) {
		if err := x.Send(within(t, patience), "take", n); err != nil {
			t.Fatal(err)
		}
	}
	var reply string
	if err := y.Call(within(t, patience), "echo", "hi", &reply); err != nil || reply != "hi" { // its reply is read behind them
		t.Errorf("%q, %v", reply, err)
	}
	close(proceed)
	if err := x.Flush(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	for i := range int64(200) {
		if n := <-order; n != i {
			t.Fatalf("message %d came as the %d.", n, i)
		}
	}
	closes(t, x)
	y.Wait()
}
