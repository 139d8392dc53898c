package broker_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestAStrangerIsNotToldTheNamesOfWhatItMayNotOpen(t *testing.T) {
	needsRoot(t)
	const may, mayNot = "com.example.may", "com.example.man"
	any, err := servicefile.ParseRule("any")
	must(t, err)
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{
		{Name: may, Endpoints: []string{may}, Program: []string{"/bin/false"}, Allow: servicefile.Allow{Open: servicefile.Rules{any}}},
		{Name: mayNot, Endpoints: []string{mayNot}, Program: []string{"/bin/false"}},
	}})
	must(t, os.Chmod(filepath.Dir(b.Socket), 0o755))
	stranger := asks(t, asStranger(t).Path, b.Socket, syscall.Credential{Uid: nobody, Gid: nobody})
	g := stranger.ask(t, wish{Method: broker.MethodServices})
	if len(g.Seen) != 2 || g.Seen[0] != may || g.Seen[1] != broker.Endpoint {
		t.Errorf("it sees the services %v", g.Seen)
	}
	for _, e := range []string{"com.example.mai", mayNot} { // it is told of what it has named alone
		if g := stranger.ask(t, wish{Open: e}); g.Code != wire.NotPermitted || e != mayNot && strings.Contains(g.Text, mayNot) {
			t.Errorf("open %s: %s, %q", e, g.Code, g.Text)
		}
	}
}

func TestClientsOfTheBrokersOwnEndpointThatAreGoneLeaveNothing(t *testing.T) {
	at := brokertest.Socket(t)
	b, err := broker.New(broker.Config{Socket: at})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-served)
	})
	for range 500 { // they are gone when they know where they are handed to, so that many are not accepted
		conn, err := connect(at)
		must(t, err, say(conn, wire.KindOpen, wire.Open{Endpoint: broker.Endpoint, Limits: wire.DefaultLimits}), answer(conn), conn.Close())
	}
	for range 10 {
		s, err := client.Dial(within(t, patience), broker.Endpoint, client.Options{Socket: at})
		must(t, err)
		defer s.Wait()
		defer s.Close()
	}
	until(t, "the broker knows those who are there alone", func() bool { return b.Callers() == 10 })
}

func TestAProcessThatNoLongerServesDoesNotKeepItsServiceFromStarting(t *testing.T) {
	s := played(t, "serve", startedEndpoint)
	s.StartTimeout = time.Second
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{s}})
	control, err := register(b.Socket, wire.Register{Service: startedEndpoint, Endpoints: []string{startedEndpoint}})
	must(t, err)
	if i := running(t, b, startedEndpoint); i.PID != os.Getpid() {
		t.Fatalf("it is process %d", i.PID)
	}
	lose(control) // this process lives on
	opened := b.Dial(startedEndpoint, client.Options{})
	if opened.Peer().PID == os.Getpid() {
		t.Error("it is still this process")
	}
}
