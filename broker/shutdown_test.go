package broker_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestAnOperatorShutsTheBrokerDownWithOrWithoutItsInstances(t *testing.T) {
	for _, leave := range []bool{false, true} {
		c := broker.Config{Socket: brokertest.Socket(t), Services: []servicefile.Service{played(t, "ends", echoEndpoint)}}
		b, err := broker.New(c)
		must(t, err)
		served := make(chan error, 1)
		go func() { served <- b.Serve(context.Background()) }()
		s, err := client.Dial(within(t, patience), echoEndpoint, client.Options{Socket: c.Socket})
		must(t, err)
		operator, err := client.Dial(within(t, patience), broker.Endpoint, client.Options{Socket: c.Socket})
		must(t, err)
		status, err := client.Call[broker.Status](within(t, patience), operator, broker.MethodShutdown, broker.ShutdownRequest{Leave: leave})
		if err != nil || status.Socket != c.Socket || status.PID != os.Getpid() {
			t.Fatalf("%+v, %v", status, err)
		}
		operator.Close() // has the answer, and the broker need not wait any longer
		<-b.Stopping()
		must(t, <-served)
		if _, err := os.Lstat(c.Socket); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket: %v, want that it is not there", err)
		}
		select {
		case <-s.Done():
			if leave {
				t.Errorf("a session that was left has ended: %v", s.End())
			}
		default:
			if !leave {
				t.Error("the instance is stopped, and its session goes on")
			}
		}
		s.Close()
		if !leave {
			continue
		}
		next := brokertest.StartWith(t, c) // takes up and stops what was left
		until(t, "what was left is taken up", func() bool { return inspected(t, next, echoEndpoint).State == broker.ServiceRunning })
	}
}

func TestTheBrokerStopsAlsoIfWhoShutItDownHoldsItsSession(t *testing.T) {
	c := broker.Config{Socket: brokertest.Socket(t)}
	b, err := broker.New(c)
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- b.Serve(context.Background()) }()
	s, err := client.Dial(within(t, patience), broker.Endpoint, client.Options{Socket: c.Socket})
	must(t, err)
	_, err = client.Call[broker.Status](within(t, patience), s, broker.MethodShutdown, broker.ShutdownRequest{})
	must(t, err, <-served)
	<-s.Done()
	s.Close()
}

func TestOnlyWhoMayDoEverythingShutsTheBrokerDown(t *testing.T) {
	needsRoot(t)
	b := brokertest.Start(t)
	must(t, os.Chmod(filepath.Dir(b.Socket), 0o755))
	a := asks(t, asStranger(t).Path, b.Socket, syscall.Credential{Uid: 2001, Gid: 2001})
	if g := a.ask(t, wish{Method: broker.MethodShutdown}); g.Code != wire.NotPermitted {
		t.Errorf("a stranger's shutdown: %+v", g)
	}
	ask[broker.Status](t, b, broker.MethodStatus, nil)
}

func TestAnOpenWhoseHandOverWaitsWhenTheBrokerIsStoppedIsToldSo(t *testing.T) {
	const opens = 600 // more than an instance that reads nothing has credit for
	at := brokertest.Socket(t)
	b, err := broker.New(broker.Config{Socket: at})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx) }()
	conn, err := connect(at)
	must(t, err)
	defer conn.Close()
	must(t, say(conn, wire.KindRegister, wire.Register{Service: echoEndpoint, Endpoints: []string{echoEndpoint}}), answer(conn))
	codes := make(chan wire.Code, opens)
	for range opens {
		go func() {
			_, err := client.Dial(within(t, 5*time.Second), echoEndpoint, client.Options{Socket: at})
			codes <- wire.CodeOf(err)
		}()
	}
	until(t, "hand-overs wait", func() bool {
		return b.Has(uint32(os.Getuid()), quota.Waiting) > 0 && b.Has(uint32(os.Getuid()), quota.Sessions) > 100
	})
	stop()
	must(t, <-served)
	conn.Close()
	waited := 0
	for range opens { // those that were handed over ask again, in vain
		switch code := <-codes; code {
		case wire.Unavailable:
			waited++
		case wire.Canceled:
			t.Errorf("an open is answered with %s, want %s", code, wire.Unavailable)
		}
	}
	if waited == 0 {
		t.Error("no hand-over waited")
	}
}
