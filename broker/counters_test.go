package broker_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/count"
	"github.com/fairlead-dev/fairlead/wire"
)

// inProcess starts a broker whose own methods a test can call. It ends with the test.
func inProcess(t *testing.T, services ...servicefile.Service) (b *broker.Broker, at string) {
	t.Helper()
	at = brokertest.Socket(t)
	b, err := broker.New(broker.Config{Socket: at, Services: services})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-served)
	})
	return b, at
}

// refused opens an endpoint, which must be refused with a code.
func refused(t *testing.T, at, endpoint string, code wire.Code) {
	t.Helper()
	s, err := client.Dial(within(t, patience), endpoint, client.Options{Socket: at})
	if !errors.Is(err, code) {
		t.Errorf("open %s: %v, want %s", endpoint, err, code)
	}
	if err == nil {
		s.Close()
	}
}

func TestTheCountersAreWhatWasDone(t *testing.T) {
	leavesNothing(t)
	echo, err := echoService("serve")
	must(t, err)
	echo.ThrottleInterval = time.Millisecond
	fails := shell("com.example.fails", "exit 3", "")
	missing := servicefile.Service{Name: "com.example.missing", Endpoints: []string{"com.example.missing"}, Program: []string{"/nonexistent"}}
	b, at := inProcess(t, echo, fails, missing)

	for range 3 {
		open(t, at).Close()
	}
	d := details(t, at)
	until(t, "the instance has told of their ends", func() bool { return b.Counters().Ends[string(wire.Invalid)] == 4 })
	must(t, syscall.Kill(d.PID, syscall.SIGKILL))
	until(t, "the killed instance has ended", func() bool { return b.Counters().Services[echoEndpoint].Exits["signal"] == 1 })
	kept := open(t, at)
	refused(t, at, "com.example.fails", wire.StartFailed)
	refused(t, at, "com.example.missing", wire.StartFailed)
	refused(t, at, "com.example.made.up", wire.UnknownEndpoint)
	conn, err := connect(at)
	must(t, err)
	must(t, say(conn, wire.KindOpen, "no open"))
	if err := answer(conn); !errors.Is(err, wire.Malformed) {
		t.Errorf("what is no open: %v", err)
	}
	conn.Close()

	var c broker.Counters
	until(t, "all is counted", func() bool {
		c = b.Counters()
		return c.Opens[echoEndpoint][count.OK] == 4 && c.Services["com.example.fails"].Exits["failed"] == 1
	})
	if want := map[string]int64{count.OK: 4}; !maps.Equal(c.Opens[echoEndpoint], want) {
		t.Errorf("opens of %s: %v, want %v", echoEndpoint, c.Opens[echoEndpoint], want)
	}
	if want := map[string]int64{count.OK: 1}; !maps.Equal(c.Opens[broker.Endpoint], want) { // details
		t.Errorf("opens of %s: %v, want %v", broker.Endpoint, c.Opens[broker.Endpoint], want)
	}
	for _, e := range []string{"com.example.fails", "com.example.missing"} {
		if want := map[string]int64{count.OK: 0, string(wire.StartFailed): 1}; !maps.Equal(c.Opens[e], want) {
			t.Errorf("opens of %s: %v, want %v", e, c.Opens[e], want)
		}
	}
	if want := map[string]int64{count.OK: 0, string(wire.UnknownEndpoint): 1, string(wire.Malformed): 1}; !maps.Equal(c.Opens[count.Other], want) {
		t.Errorf("opens of what nobody knows: %v, want %v", c.Opens[count.Other], want)
	}
	if want := map[string]int64{string(wire.Invalid): 4}; !maps.Equal(c.Ends, want) {
		t.Errorf("ends: %v, want %v", c.Ends, want)
	}
	if len(c.Opens) != 5 {
		t.Errorf("endpoints are %v", c.Opens)
	}
	if c.Sessions[echoEndpoint] != 1 || len(c.Sessions) != 1 {
		t.Errorf("open are %v, want one of %s", c.Sessions, echoEndpoint)
	}
	if want := map[string]int64{broker.CauseOpen: 2}; !maps.Equal(c.Services[echoEndpoint].Starts, want) {
		t.Errorf("starts of %s: %v, want %v", echoEndpoint, c.Services[echoEndpoint].Starts, want)
	}
	for name, want := range map[string]map[string]int64{
		echoEndpoint: {"ok": 0, "signal": 1}, "com.example.fails": {"ok": 0, "failed": 1}, "com.example.missing": {"ok": 0, "not_started": 1},
	} {
		if got := c.Services[name].Exits; !maps.Equal(got, want) {
			t.Errorf("exits of %s: %v, want %v", name, got, want)
		}
	}
	var opened, handed int64
	for i := range c.OpenTime.Counts {
		opened, handed = opened+c.OpenTime.Counts[i], handed+c.HandOver.Counts[i]
	}
	if opened != 5 || handed != 5 || c.HandOver.Sum > c.OpenTime.Sum || c.HandOver.Sum <= 0 {
		t.Errorf("%d opens took %v, of these %d hand-overs %v: want 5", opened, c.OpenTime.Sum, handed, c.HandOver.Sum)
	}
	if c.States[broker.ServiceRunning] != 1 || c.Denied != 0 || c.OverQuota != 0 {
		t.Errorf("states %v, %d denied, %d over quota", c.States, c.Denied, c.OverQuota)
	}
	kept.Close()
}

func TestOpensThatWaitAndThoseBeyondTheLimitAreCounted(t *testing.T) {
	leavesNothing(t)
	never := servicefile.Service{Name: "com.example.never", Endpoints: []string{"com.example.never"}, Program: []string{"/bin/sleep", "1000"}, StopTimeout: time.Second}
	b, at := inProcess(t, never)
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan struct{})
	const most, more = 128, 3
	for range most {
		go func() {
			client.Dial(ctx, "com.example.never", client.Options{Socket: at})
			done <- struct{}{}
		}()
	}
	until(t, "all wait", func() bool { return b.Counters().Services["com.example.never"].Waiting == most })
	for range more {
		if _, err := client.Dial(ctx, "com.example.never", client.Options{Socket: at, NoWait: true}); !errors.Is(err, wire.OverQuota) {
			t.Errorf("one more: %v, want %s", err, wire.OverQuota)
		}
	}
	leave()
	for range most {
		<-done
	}
	until(t, "all have left", func() bool { return b.Counters().Opens["com.example.never"][string(wire.Canceled)] == most })
	c := b.Counters()
	if c.OverQuota != more || c.Opens["com.example.never"][string(wire.OverQuota)] != more || c.Services["com.example.never"].Waiting != 0 {
		t.Errorf("%d over quota, opens %v, %d wait", c.OverQuota, c.Opens["com.example.never"], c.Services["com.example.never"].Waiting)
	}
}

func TestWhatAStrangerMayNotIsCounted(t *testing.T) {
	needsRoot(t)
	echo, err := echoService("serve")
	must(t, err)
	b, at := inProcess(t, echo)
	must(t, os.Chmod(filepath.Dir(at), 0o755))
	stranger := asks(t, asStranger(t).Path, at, syscall.Credential{Uid: nobody, Gid: nobody})
	const times = 20 // more than are told of in a second
	for n := range times {
		for _, w := range []wish{{Open: echoEndpoint}, {Open: fmt.Sprintf("com.example.n%d", n)}, {Register: echoEndpoint}} {
			if g := stranger.ask(t, w); g.Code != wire.NotPermitted {
				t.Errorf("%+v: %s, %s", w, g.Code, g.Text)
			}
		}
	}
	c := b.Counters()
	if denied := c.Opens[echoEndpoint][string(wire.NotPermitted)]; denied != times || c.Opens[count.Other][string(wire.NotPermitted)] != times || c.Denied != 3*times {
		t.Errorf("%d denied, opens %v", c.Denied, c.Opens)
	}
	if len(c.Opens) != 3 || c.OverQuota != 0 {
		t.Errorf("endpoints %v, %d over quota", c.Opens, c.OverQuota)
	}
}

func TestAVisitStartsNothingAndIsNoOpen(t *testing.T) {
	leavesNothing(t)
	echo, err := echoService("serve")
	must(t, err)
	b, at := inProcess(t, echo)
	if _, err := b.Visit(within(t, patience), echoEndpoint, "test"); !errors.Is(err, wire.Unavailable) {
		t.Errorf("a visit of what does not run: %v, want %s", err, wire.Unavailable)
	}
	if d := details(t, at); d.Starts != 0 || d.State != broker.ServiceStopped {
		t.Fatalf("it was started: %+v", d)
	}
	open(t, at).Close()
	until(t, "the open session is over", func() bool { return b.Counters().Ends[string(wire.Invalid)] == 2 }) // details had the other
	for range 50 {                                                                                            // each at once behind the one before
		s, err := b.Visit(within(t, patience), echoEndpoint, "test")
		must(t, err)
		if reply, err := client.Call[echoReply](within(t, patience), s, "echo", echoRequest{"hi"}); err != nil || reply.Text != "hi" {
			t.Errorf("%+v, %v", reply, err)
		}
		s.Close()
		s.Wait()
	}
	if c := b.Counters(); c.Opens[echoEndpoint][count.OK] != 1 || c.Ends[string(wire.Invalid)] != 2 || len(c.Sessions) != 0 {
		t.Errorf("visits are counted: %+v", c)
	}
}

func TestAVisitorDoesNotKeepAnInstanceFromBeingIdle(t *testing.T) {
	leavesNothing(t)
	echo, err := echoService("serve")
	must(t, err)
	echo.IdleExit = 300 * time.Millisecond
	b, at := inProcess(t, echo)
	open(t, at).Close()
	until(t, "it has ended although it is visited", func() bool {
		if s, err := b.Visit(within(t, patience), echoEndpoint, "test"); err == nil {
			s.Close()
			s.Wait()
		}
		return b.Counters().Services[echoEndpoint].Exits["ok"] == 1
	})
}

func TestAnInstanceThatIsStoppedIsVisitedOnceUntilItGoesOn(t *testing.T) {
	leavesNothing(t)
	echo, err := echoService("serve")
	must(t, err)
	b, at := inProcess(t, echo)
	open(t, at).Close()
	d := details(t, at)
	halt(t, d.PID)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := b.Visit(ctx, echoEndpoint, "test"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the first visit: %v", err)
	}
	if _, err := b.Visit(within(t, patience), echoEndpoint, "test"); !errors.Is(err, wire.Unavailable) {
		t.Errorf("the second one: %v, want %s", err, wire.Unavailable)
	}
	must(t, syscall.Kill(d.PID, syscall.SIGCONT))
	until(t, "it is visited again", func() bool {
		s, err := b.Visit(within(t, patience), echoEndpoint, "test")
		if err != nil {
			return false
		}
		s.Close()
		s.Wait()
		return true
	})
	until(t, "no visit is left", func() bool { return len(sessionsAt(t, at)) == 0 })
}

// sessionsAt lists the live sessions of the echo service.
func sessionsAt(t *testing.T, at string) []broker.Session {
	t.Helper()
	s, err := client.Dial(within(t, patience), broker.Endpoint, client.Options{Socket: at})
	must(t, err)
	defer s.Close()
	list, err := brokertest.Sessions(within(t, patience), s, broker.SessionsRequest{Endpoint: echoEndpoint})
	must(t, err)
	return list
}
