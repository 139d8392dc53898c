package broker_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

func TestALongListComesInPartsAndNamesEachSessionOnceInTheOrderTheyWereOpened(t *testing.T) {
	const all = 2100
	b := brokertest.Start(t)
	control, err := register(b.Socket, wire.Register{Service: echoEndpoint, Endpoints: []string{echoEndpoint}})
	must(t, err)
	defer lose(control)
	tell := func(infos ...wire.SessionInfo) {
		t.Helper()
		must(t, control.Call(within(t, patience), wire.MethodSessions, wire.Sessions{Sessions: infos}, nil))
	}
	began := time.Now().UnixNano()
	var infos []wire.SessionInfo
	for n := range all {
		infos = append(infos, wire.SessionInfo{ // two at a time, as long as they may be
			ID: session.NewID(), Endpoint: echoEndpoint, OpenedAt: began + int64(n/2), Title: strings.Repeat("t", wire.MaxTitle),
		})
		if len(infos)%wire.MaxBatch == 0 {
			tell(infos[len(infos)-wire.MaxBatch:]...)
		}
	}
	tell(infos[len(infos)/wire.MaxBatch*wire.MaxBatch:]...)
	parts, err := client.OpenStreaming[broker.Sessions, struct{}](within(t, patience), b.Dial(broker.Endpoint, client.Options{}), broker.MethodSessions,
		broker.SessionsRequest{Endpoint: echoEndpoint})
	must(t, err)
	defer parts.Close()
	var listed []broker.Session
	part, err := parts.Receive()
	must(t, err)
	listed = append(listed, part.Sessions...)
	first, last := listed[0].ID, slices.MaxFunc(infos, func(a, b wire.SessionInfo) int {
		return cmp.Or(cmp.Compare(a.OpenedAt, b.OpenedAt), cmp.Compare(a.ID, b.ID))
	})
	for _, id := range []string{first, last.ID} { // one that was sent, and the last
		tell(wire.SessionInfo{ID: id, Endpoint: echoEndpoint, ClosedAt: time.Now().UnixNano(), End: &wire.End{Code: wire.Invalid, Origin: wire.Peer}})
	}
	n := 1
	for part, err := range parts.All() {
		must(t, err)
		listed = append(listed, part.Sessions...)
		n++
	}
	if n < 10 || n > all/10 {
		t.Errorf("%d sessions came in %d parts", len(listed), n)
	}
	ids := map[string]bool{}
	for i, s := range listed {
		ids[s.ID] = true
		if i > 0 && (s.OpenedAt < listed[i-1].OpenedAt || s.OpenedAt == listed[i-1].OpenedAt && s.ID <= listed[i-1].ID) {
			t.Errorf("session %d stands where it does not belong", i)
		}
	}
	if len(ids) < all-1 || len(ids) != len(listed) || !ids[first] {
		t.Errorf("%d sessions are listed, of which %d are different, of %d", len(listed), len(ids), all)
	}
}

func TestSessionsOutliveTheBrokerAndAreListedByTheNext(t *testing.T) {
	b := brokertest.Start(t)
	b.Serve(echoServer())
	var all []*client.Session
	for i := range 250 { // more than two batches
		all = append(all, b.Dial(echoEndpoint, client.Options{Title: fmt.Sprint(i)}))
	}
	b.Stop()
	for _, s := range all {
		if _, err := client.Call[echoReply](within(t, 5*time.Second), s, "echo", echoRequest{"hi"}); err != nil {
			t.Fatalf("without a broker: %v", err)
		}
	}
	b.Restart()
	until(t, "all sessions are listed", func() bool {
		open := map[string]bool{}
		for _, s := range sessions(t, b, broker.SessionsRequest{Endpoint: echoEndpoint}) {
			open[s.ID] = true
		}
		return !slices.ContainsFunc(all, func(s *client.Session) bool { return !open[s.ID()] })
	})
}

func TestTheEndOfASessionWhoseInstanceIsKilledNamesItAndSaysWhatIsKnown(t *testing.T) {
	started, err := echoService("serve")
	must(t, err)
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{started}})
	const byHand = "com.example.by-hand"
	play(t, "serve", byHand, b.Socket).line(t)
	for endpoint, text := range map[string]string{
		byHand:       "com.example.by-hand (pid %d) is gone",
		echoEndpoint: echoEndpoint + " (instance 1, pid %d) is gone: signal: killed",
	} {
		s := b.Dial(endpoint, client.Options{})
		must(t, syscall.Kill(s.Peer().PID, syscall.SIGKILL))
		<-s.Done()
		want := wire.End{Code: wire.Interrupted, Origin: wire.Local, Text: fmt.Sprintf(text, s.Peer().PID)}
		var end *wire.End
		until(t, "the session is listed as closed", func() bool {
			for _, listed := range sessions(t, b, broker.SessionsRequest{State: broker.SessionClosed, Endpoint: endpoint}) {
				end = listed.End
			}
			return end != nil
		})
		if *end != want {
			t.Errorf("%v, want %v", *end, want)
		}
	}
}

const crowd = 1500

// openMany opens sessions, says when they are open, and stays.
func openMany() {
	for range crowd {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		_, err := client.Dial(ctx, echoEndpoint, client.Options{})
		fail(err)
		cancel()
	}
	fmt.Println("open")
	os.Stdin.Read(make([]byte, 1))
}

func TestAllSessionsOfAClientThatIsKilledAreClosed(t *testing.T) {
	b := brokertest.Start(t)
	server := b.Serve(echoServer())
	files := descriptors(t, os.Getpid())
	p := play(t, "crowd", "", b.Socket)
	p.line(t)
	until(t, "all are listed", func() bool { return len(sessions(t, b, broker.SessionsRequest{Endpoint: echoEndpoint})) == crowd })
	p.kill()
	until(t, "none is listed as open", func() bool { return len(sessions(t, b, broker.SessionsRequest{Endpoint: echoEndpoint})) == 0 })
	until(t, "none has left a descriptor", func() bool { return descriptors(t, os.Getpid()) <= files })
	if status := ask[broker.Status](t, b, broker.MethodStatus, nil); status.Closed < crowd {
		t.Errorf("%d sessions have closed, want %d at least", status.Closed, crowd)
	}
	must(t, server.Stop())
}

func TestAListTellsWhatSessionsHaveCarriedAndWaitsForNoInstanceThatIsStopped(t *testing.T) {
	const stopped = "com.example.stopped"
	b := brokertest.Start(t)
	b.Serve(echoServer())
	still := play(t, "serve", stopped, b.Socket)
	still.line(t)
	s, other := b.Dial(echoEndpoint, client.Options{}), b.Dial(stopped, client.Options{})
	for range 3 {
		_, err := client.Call[echoReply](within(t, patience), s, "echo", echoRequest{"hi"})
		must(t, err)
	}
	traffic := func() map[string]*wire.Traffic {
		of := map[string]*wire.Traffic{}
		for _, l := range b.Sessions(broker.SessionsRequest{Traffic: true}) {
			of[l.ID] = l.Traffic
		}
		return of
	}
	until(t, "both sessions are open, and their traffic is told", func() bool {
		of := traffic()
		return of[s.ID()] != nil && of[other.ID()] != nil
	})
	if got := traffic()[s.ID()]; got.Calls != 3 || got.Received == 0 || got.Sent == 0 {
		t.Errorf("after 3 calls: %+v", got)
	}
	halt(t, still.cmd.Process.Pid)
	of := traffic()
	must(t, syscall.Kill(still.cmd.Process.Pid, syscall.SIGCONT))
	if got, listed := of[other.ID()]; got != nil || !listed || of[s.ID()] == nil {
		t.Errorf("beside an instance that is stopped: %v, of which the session is listed: %v; the other's is %v", got, listed, of[s.ID()])
	}
	for _, l := range b.Sessions(broker.SessionsRequest{}) {
		if l.Traffic != nil {
			t.Errorf("nobody asked for the traffic of %s", l.Endpoint)
		}
	}
}
