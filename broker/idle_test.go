package broker_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
)

// clockEndpoint is that of a service which is idle as soon as another: when it has ended by that several times, the other has been asked, too.
const clockEndpoint = "com.example.clock"

// idleBroker starts a broker of the echo service, which an actor serves, and of a clock for it. A start that had to wait for a pause would never be.
func idleBroker(t *testing.T, idle time.Duration) *brokertest.Broker {
	t.Helper()
	service, _ := actor(t)
	clock, err := echoService("serve")
	must(t, err)
	clock.Name, clock.Endpoints = clockEndpoint, []string{clockEndpoint}
	clock.Program[2] = argumentVariable + "=" + clockEndpoint
	service.IdleExit, clock.IdleExit = idle, idle
	service.ThrottleInterval, clock.ThrottleInterval = time.Hour, time.Hour
	return brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{service, clock}})
}

// isIdle waits until a service's instance has ended by itself.
func isIdle(t *testing.T, b *brokertest.Broker, service string) (d broker.ServiceDetails) {
	t.Helper()
	until(t, service+" has ended", func() bool {
		d = ask[broker.ServiceDetails](t, b, broker.MethodService, broker.ServiceRequest{Name: service})
		return d.State == broker.ServiceStopped
	})
	return d
}

// aWhile returns when a service that is as soon idle as the echo service would have ended several times.
func aWhile(t *testing.T, b *brokertest.Broker) {
	t.Helper()
	for range 3 {
		b.Dial(clockEndpoint, client.Options{}).Close()
		isIdle(t, b, clockEndpoint)
	}
}

func TestAnIdleInstanceEndsWhichIsNoFailureAndTheNextOpenStartsAnotherAtOnce(t *testing.T) {
	leavesNothing(t)
	b := idleBroker(t, 50*time.Millisecond)
	for n := int64(1); n <= 3; n++ {
		s := open(t, b.Socket)
		if i := running(t, b, echoEndpoint); i.Instance != n || i.Starts != n {
			t.Errorf("instance %d, start %d, want %d", i.Instance, i.Starts, n)
		}
		s.Close()
		d := isIdle(t, b, echoEndpoint)
		if d.Failures != 0 || d.Last == nil || d.Last.Instance != n || d.Last.Status != "exit status 0" || d.DueAt != 0 {
			t.Errorf("it is %+v, and ended %+v", d, d.Last)
		}
	}
}

func TestASessionThatIsHeldKeepsItsInstance(t *testing.T) {
	leavesNothing(t)
	b := idleBroker(t, 50*time.Millisecond)
	s := open(t, b.Socket)
	aWhile(t, b)
	if reply, err := client.Call[echoReply](within(t, patience), s, "echo", echoRequest{"hi"}); err != nil || reply.Text != "hi" {
		t.Errorf("%+v, %v", reply, err)
	}
	if d := details(t, b.Socket); d.State != broker.ServiceRunning || d.Instance != 1 {
		t.Errorf("it is %+v", d)
	}
	s.Close()
	isIdle(t, b, echoEndpoint)
}

func TestAHandlerThatRunsAfterItsSessionHasEndedKeepsItsInstance(t *testing.T) {
	leavesNothing(t)
	b := idleBroker(t, 50*time.Millisecond)
	s := open(t, b.Socket)
	letGo, answered := held(t, s)
	brokertest.Kill(s)
	arrives(t, "the call's end", answered)
	until(t, "no session is open", func() bool { return len(sessions(t, b, broker.SessionsRequest{Endpoint: echoEndpoint})) == 0 })
	aWhile(t, b)
	if d := details(t, b.Socket); d.State != broker.ServiceRunning || d.Instance != 1 || d.Sessions != 0 {
		t.Errorf("it is %+v", d)
	}
	letGo()
	isIdle(t, b, echoEndpoint)
}

func TestNoOpenFallsBetweenAnInstanceThatIsIdleAndTheNext(t *testing.T) {
	const clients, idle = 20, 2 * time.Millisecond
	b := idleBroker(t, idle)
	opened, began := 0, time.Now()
	enough := func() bool { // a loaded machine has fewer idle moments
		return time.Since(began) > 3*time.Second && details(t, b.Socket).Starts >= 5 || time.Since(began) > patience
	}
	for !enough() && !t.Failed() { // all at once, and then a moment in which the instance may be asked
		var opening sync.WaitGroup
		for range clients {
			opening.Go(func() {
				for range 1 + rand.IntN(3) {
					s, err := client.Dial(within(t, patience), echoEndpoint, client.Options{Socket: b.Socket})
					if err != nil {
						t.Error(err)
						return
					}
					if reply, err := client.Call[echoReply](within(t, patience), s, "echo", echoRequest{"hi"}); err != nil || reply.Text != "hi" {
						t.Errorf("%+v, %v", reply, err)
					}
					s.Close()
				}
			})
		}
		opening.Wait()
		opened += clients
		time.Sleep(rand.N(2 * idle))
	}
	d := details(t, b.Socket)
	t.Logf("at least %d sessions of %d instances", opened, d.Starts)
	if d.Starts < 5 || d.Failures > 0 {
		t.Errorf("%d instances were started, of which %d have failed: want several that were idle, and none that failed", d.Starts, d.Failures)
	}
}
