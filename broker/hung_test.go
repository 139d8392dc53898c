package broker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

// serveSlowly serves an endpoint with a handler that takes twice the shortest hang_timeout.
func serveSlowly() {
	mux := echoMux()
	services.Handle(mux, "slow", func(context.Context, any) (any, error) {
		time.Sleep(2 * time.Second)
		return nil, nil
	})
	fail(services.Server{Endpoints: map[string]*services.Mux{echoEndpoint: mux}}.Serve(context.Background()))
}

// halt stops a process, and returns when all its threads have stopped: the signal alone leaves them some time.
func halt(t *testing.T, pid int) {
	t.Helper()
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	until(t, "it is stopped", func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		must(t, err)
		for _, path := range tasks {
			stat, err := os.ReadFile(path)
			if _, state, _ := strings.Cut(string(stat), ") "); err == nil && !strings.HasPrefix(state, "T") {
				return false
			}
		}
		return len(tasks) > 0
	})
}

// impatient has a broker find who is hung within a second.
func impatient(b *broker.Broker) { b.SetHung(300*time.Millisecond, 700*time.Millisecond) }

// endOf waits for the end of a session in the broker's table.
func endOf(t *testing.T, b *brokertest.Broker, id string) (end wire.End) {
	t.Helper()
	until(t, "the session has ended", func() bool {
		for _, s := range sessions(t, b, broker.SessionsRequest{State: broker.SessionClosed}) {
			if s.ID == id {
				end = *s.End
				return true
			}
		}
		return false
	})
	return end
}

// The guard is handedLocked, which has look ask for the instance: without, whoever opens waits until its own time is over, and so does everybody after it.
func TestAnInstanceThatReadsNothingIsReplacedAndDelaysNobodyElse(t *testing.T) {
	const clock = "com.example.clock"
	_, b := serving(t, broker.Config{Services: []servicefile.Service{played(t, "serve", echoEndpoint), played(t, "serve", clock)}}, impatient)
	before := b.Dial(echoEndpoint, client.Options{})
	b.Dial(clock, client.Options{}).Close()
	halt(t, before.Peer().PID)
	opened := make(chan *client.Session, 1)
	go func() {
		s, err := client.Dial(within(t, patience), echoEndpoint, client.Options{Socket: b.Socket})
		if err != nil {
			t.Error(err)
		}
		opened <- s
	}()
	until(t, "an open is on its way to it", func() bool {
		return len(sessions(t, b, broker.SessionsRequest{Endpoint: echoEndpoint})) == 2
	})
	for range 100 {
		b.Dial(clock, client.Options{}).Close()
	}
	after := <-opened
	if after == nil {
		t.FailNow()
	}
	defer after.Close()
	if after.Peer().PID == before.Peer().PID {
		t.Error("the session is with the instance that is stopped")
	}
	if end := endOf(t, b, before.ID()); end.Code != wire.Hung || end.Origin != wire.Broker || !strings.Contains(end.Text, "killed") {
		t.Errorf("its session ended with %+v, want %s by the broker", end, wire.Hung)
	}
	<-before.Done()
	if code := before.End().Code; code != wire.Interrupted {
		t.Errorf("its client sees %s, want %s", code, wire.Interrupted)
	}
	d := comesTo(t, b, echoEndpoint, broker.ServiceRunning, 2)
	if d.Last == nil || d.Last.Signal != "killed" || !strings.Contains(d.Last.Why, "has not answered") {
		t.Errorf("its exit is %+v", d.Last)
	}
}

// The guard is the ticker in attend.
func TestAnInstanceThatDoesNotAnswerWithinItsHangTimeoutIsReplaced(t *testing.T) {
	s := played(t, "serve", echoEndpoint)
	s.HangTimeout, s.KeepAlive, s.RunAtLoad = time.Second, servicefile.OnCrash, true
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{s}})
	before := comesTo(t, b, echoEndpoint, broker.ServiceRunning, 1)
	if before.Hang != time.Second {
		t.Errorf("its hang_timeout is shown as %v", before.Hang)
	}
	events := watching(t, b, broker.MonitorRequest{Kinds: []string{broker.EventInstanceEnded}})
	halt(t, before.PID)
	if e := events.next(); e.PID != before.PID || e.Exit == nil || !strings.Contains(e.Exit.Why, "is alive and has not answered within 1s") {
		t.Errorf("the event is %+v", e)
	}
	comesTo(t, b, echoEndpoint, broker.ServiceRunning, 2)
}

func TestAHandlerThatTakesLongIsNoHang(t *testing.T) {
	s := played(t, "slowly", echoEndpoint)
	s.HangTimeout = time.Second
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{s}})
	do(t, open(t, b.Socket), "slow", nil)
	if d := inspected(t, b, echoEndpoint); d.State != broker.ServiceRunning || d.Starts != 1 || d.Last != nil {
		t.Errorf("it is %+v", d)
	}
}

// The guard is the Abort in replace: without, a process that goes on never learns that it is registered no more.
func TestAnotherTakesThePlaceOfAProcessThatReadsNothingAndIsNotTheBrokersToEnd(t *testing.T) {
	_, b := serving(t, broker.Config{}, impatient)
	conn, err := connect(b.Socket)
	must(t, err)
	defer conn.Close()
	must(t, say(conn, wire.KindRegister, wire.Register{Service: echoEndpoint, Endpoints: []string{echoEndpoint}}), answer(conn))
	opened := make(chan error, 1)
	go func() {
		s, err := client.Dial(within(t, patience), echoEndpoint, client.Options{Socket: b.Socket, NoWait: true})
		if err == nil {
			s.Close()
		}
		opened <- err
	}()
	p := play(t, "second", "", b.Socket) // it is refused while the first is registered
	if refused := p.line(t); !strings.Contains(refused, "taken by") {
		t.Errorf("another is refused with %s", refused)
	}
	until(t, "the place is free", func() bool {
		_, err := client.Dial(within(t, 200*time.Millisecond), echoEndpoint, client.Options{Socket: b.Socket, NoWait: true})
		return errors.Is(err, wire.UnknownEndpoint)
	})
	play(t, "serve", echoEndpoint, b.Socket).line(t)
	b.Dial(echoEndpoint, client.Options{}).Close()
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) { // what it was handed is closed, as who reads takes no descriptors
		t.Error("its control connection is still the broker's")
	}
	if err := <-opened; err != nil {
		t.Errorf("who was handed over to it: %v", err)
	}
}

// The guard is that drop is no progress: without, an instance that takes nothing is never asked while clients come, find that it takes no more, and go.
func TestAnInstanceThatReadsNothingIsReplacedAlsoWhileClientsComeAndGo(t *testing.T) {
	for name, features := range map[string][]string{"handed over at once": {wire.FeatureRelay}, "handed over the long way": nil} {
		t.Run(name, func(t *testing.T) {
			_, b := serving(t, broker.Config{}, impatient)
			control, err := connect(b.Socket)
			must(t, err)
			defer control.Close() // nobody reads it
			must(t, say(control, wire.KindRegister, wire.Register{Service: echoEndpoint, Endpoints: []string{echoEndpoint}, Features: features}), answer(control))
			comes := func() {
				conn, err := connect(b.Socket)
				must(t, err)
				t.Cleanup(func() { conn.Close() })
				must(t, say(conn, wire.KindOpen, wire.Open{Endpoint: echoEndpoint, Within: 50, Features: features, Limits: wire.DefaultLimits}))
			}
			for range wire.DefaultLimits.Files { // what it has given credit for
				comes()
			}
			until(t, "its place is free", func() bool {
				comes()
				_, err := client.Dial(within(t, 20*time.Millisecond), echoEndpoint, client.Options{Socket: b.Socket, NoWait: true})
				return errors.Is(err, wire.UnknownEndpoint)
			})
		})
	}
}

// The guard is that look has what is lost expire: without, who was being handed over stays charged for that until somebody lists the sessions.
func TestAHandOverThatIsLostIsChargedToNobodyAnyMore(t *testing.T) {
	b, at := serving(t, broker.Config{}, func(b *broker.Broker) {
		b.SetHung(50*time.Millisecond, patience)
		b.SetLost(time.Second)
	})
	control, err := register(at.Socket, wire.Register{Service: echoEndpoint, Endpoints: []string{echoEndpoint}}) // it takes nothing up, and answers
	must(t, err)
	defer lose(control)
	conn, err := connect(at.Socket)
	must(t, err, say(conn, wire.KindOpen, wire.Open{Endpoint: echoEndpoint}), answer(conn))
	defer conn.Close()
	self := uint32(os.Geteuid())
	until(t, "it is charged to nobody", func() bool { return b.Has(self, quota.Sessions) == 0 && b.Has(self, quota.Descriptors) == 0 })
	visit := func() error {
		_, err := b.Visit(within(t, 50*time.Millisecond), echoEndpoint, "test")
		return err
	}
	if err := visit(); err == nil || errors.Is(err, wire.Unavailable) {
		t.Fatalf("a visit that is lost: %v", err)
	}
	until(t, "it may be visited again", func() bool { return !errors.Is(visit(), wire.Unavailable) })
}
