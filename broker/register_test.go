package broker_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

func TestARegistrationThatClaimsWhatIsAnothersIsRefused(t *testing.T) {
	const declared, its = "com.example.declared", "com.example.declared.endpoint"
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{
		{Name: declared, Endpoints: []string{declared, its}, Program: []string{"/bin/false"}},
	}})
	b.Serve(echoServer())
	for _, test := range []struct {
		name, service string
		endpoints     []string
		holder        string
		code          wire.Code
	}{
		{"a live instance's name", echoEndpoint, []string{"com.example.new"}, echoEndpoint, wire.Conflict},
		{"a live instance's endpoint", "com.example.new", []string{echoEndpoint}, echoEndpoint, wire.Conflict},
		{"the broker's name", broker.Endpoint, []string{"com.example.new"}, broker.Endpoint, wire.Conflict},
		{"the broker's endpoint", "com.example.new", []string{broker.Endpoint}, broker.Endpoint, wire.Conflict},
		{"a declared service's name without its endpoints", declared, []string{"com.example.new"}, "", wire.Conflict},
		{"a declared service's name without one of its endpoints", declared, []string{declared}, "", wire.Conflict},
		{"a declared service's endpoint", "com.example.new", []string{its}, "", wire.Conflict},
		{"what is nobody's", "com.example.new", []string{"com.example.new"}, "", ""},
		{"what was declared", declared, []string{its, declared, "com.example.more"}, "", ""},
	} {
		control, err := register(b.Socket, wire.Register{Service: test.service, Endpoints: test.endpoints})
		if wire.CodeOf(err) != test.code {
			t.Errorf("%s: %v, want code %q", test.name, err, test.code)
		}
		if control != nil {
			lose(control)
		}
		if e, ok := errors.AsType[*wire.Error](err); test.holder != "" && (!ok || e.Holder == nil || e.Holder.Service != test.holder || e.Holder.PID != os.Getpid()) {
			t.Errorf("%s: %+v does not name the holder", test.name, e)
		}
	}
}

const lineageRounds = 200

// liveSession is what a process says of the one session that it has.
func liveSession(endpoint string) []wire.SessionInfo {
	return []wire.SessionInfo{{
		ID: session.NewID(), Endpoint: endpoint, OpenedAt: time.Now().UnixNano(), Client: wire.Process{PID: os.Getpid(), Program: "client"},
	}}
}

// registerOverAndOver registers and loses the control connection, over and over, when it is told to begin. It says when it is done, and stays.
func registerOverAndOver() {
	r := wire.Register{Service: echoEndpoint, Endpoints: []string{echoEndpoint}}
	if os.Getenv(argumentVariable) == "with a session" {
		r.Sessions = liveSession(echoEndpoint)
	}
	fmt.Println("ready")
	os.Stdin.Read(make([]byte, 1))
	for range lineageRounds {
		control, err := register(os.Getenv(socket.Variable), r)
		for ; errors.Is(err, wire.Conflict); control, err = register(os.Getenv(socket.Variable), r) {
			// the broker does not know yet that the one before is lost
		}
		fail(err)
		lose(control)
		r.Sessions = nil // that it is still there goes without saying
	}
	fmt.Println("done")
	os.Stdin.Read(make([]byte, 1))
}

func TestAProcessThatRegistersOverAndOverLeavesNothingInTheBroker(t *testing.T) {
	for _, test := range []struct {
		argument string
		sessions int
	}{{"without a session", 0}, {"with a session", 1}} {
		t.Run(test.argument, func(t *testing.T) {
			keepsWhatIsLeft(t)
			b := brokertest.Start(t)
			ask[broker.Status](t, b, broker.MethodStatus, nil)
			p := play(t, "lineage", test.argument, b.Socket)
			p.line(t)
			files, goroutines := descriptors(t, os.Getpid()), runtime.NumGoroutine()
			_, err := p.in.Write([]byte("\n"))
			must(t, err)
			p.line(t)
			settles(t, files+test.sessions, goroutines+test.sessions) // one handle and one goroutine wait for the process
			if list := sessions(t, b, broker.SessionsRequest{State: "all", Endpoint: echoEndpoint}); len(list) != test.sessions || test.sessions > 0 && list[0].State != broker.SessionOpen {
				t.Errorf("sessions %+v, want %d open", list, test.sessions)
			}
			p.kill()
			until(t, "no session is open", func() bool { return len(sessions(t, b, broker.SessionsRequest{Endpoint: echoEndpoint})) == 0 })
			closed := sessions(t, b, broker.SessionsRequest{State: broker.SessionClosed, Endpoint: echoEndpoint})
			if len(closed) != test.sessions || test.sessions > 0 && closed[0].End.Code != wire.Interrupted {
				t.Errorf("closed %+v, want %d with %s", closed, test.sessions, wire.Interrupted)
			}
		})
	}
}

func TestARegistrationAtTheMomentOfABrokersStopDoesNotKeepItFromStopping(t *testing.T) {
	at := brokertest.Socket(t)
	leavesNothing(t)
	for range 50 {
		b := brokertest.StartWith(t, broker.Config{Socket: at})
		var registering sync.WaitGroup
		for n := range 4 {
			registering.Go(func() {
				name := fmt.Sprint("com.example.n", n)
				if control, err := register(at, wire.Register{Service: name, Endpoints: []string{name}, Sessions: liveSession(name)}); err == nil {
					control.Wait() // the broker ends it
				}
			})
		}
		runtime.Gosched()
		b.Stop()
		registering.Wait()
		if t.Failed() {
			return
		}
	}
}
