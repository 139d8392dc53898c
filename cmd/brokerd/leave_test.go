package main_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestABrokerThatLeavesItsInstancesIsFollowedByOneThatTakesThemUp(t *testing.T) {
	p := newPlace(t)
	const endpoint = "com.example.echo"
	p.echo(endpoint, "")
	d := p.serve("--leave-instances")
	s := p.dial(endpoint)
	pid, err := client.Call[int](within(t), s, "pid", nil)
	if err != nil {
		t.Fatal(err)
	}
	instance, err := process.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer instance.Close()
	number := p.inspect(endpoint).Instance

	d.stop()
	if again, err := client.Call[int](within(t), s, "pid", nil); again != pid || err != nil {
		t.Fatalf("without a broker the session answers %d, %v, want %d", again, err, pid)
	}

	d = p.serve() // it leaves nothing
	if !soon(func() bool { return p.inspect(endpoint).State == broker.ServiceRunning }) {
		t.Errorf("the next broker does not take the service up: %+v", p.inspect(endpoint))
	}
	if now := p.inspect(endpoint); now.PID != pid || now.Instance != number || now.Starts != 1 {
		t.Errorf("the next broker has instance %d, pid %d, after %d starts; want %d and %d after 1", now.Instance, now.PID, now.Starts, number, pid)
	}
	known := func() bool {
		list, err := console.Sessions(within(t), p.options(), broker.SessionsRequest{Endpoint: endpoint})
		return err == nil && slices.ContainsFunc(list, func(l broker.Session) bool { return l.ID == s.ID() && l.State == broker.SessionOpen })
	}
	if !soon(known) {
		t.Error("the next broker does not know the session")
	}
	for _, session := range []*client.Session{s, p.dial(endpoint)} {
		if again, err := client.Call[int](within(t), session, "pid", nil); again != pid || err != nil {
			t.Errorf("the session answers %d, %v, want %d", again, err, pid)
		}
	}

	d.stop()
	if !instance.Gone() {
		t.Error("the instance outlives a broker that is to stop it")
	}
	<-s.Done()
	if _, err := client.Call[int](within(t), s, "pid", nil); !errors.Is(err, wire.Interrupted) {
		t.Errorf("a session of a stopped instance: %v, want %s", err, wire.Interrupted)
	}
}
