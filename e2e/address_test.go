package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// one is a network with one address that can be leased: onlyAddress.
const (
	one         = "default=10.9.0.0/30"
	onlyAddress = "10.9.0.2/30"
)

// say is a container's command that says its address and stays.
var say = []string{"--", "sh", "-c", "echo $FAIRLEAD_ADDRESS; exec sleep 1000"}

func TestOneAddressServesRuntimesThatAreKilledOneAfterAnother(t *testing.T) {
	w := newWorld(t, one)
	w.startBroker()
	runs := count(60, 1000)
	for i := range runs {
		r := w.run(say...)
		address, err := r.stdout.TryNext()
		if err != nil || address != onlyAddress {
			t.Fatalf("runtime %d: address %q: %v\n%v", i, address, err, r.stderr)
		}
		if i == runs-1 {
			w.checkNothingWasRepeated(runs)
		}
		r.kill()
	}
}

// checkNothingWasRepeated checks that each runtime needed one session, and one call in it. The last one lives.
func (w *world) checkNothingWasRepeated(runs int) {
	w.t.Helper()
	all := ctlJSON[[]struct{ ID string }](w, "sessions", "session", "list", "--state", "all", "--endpoint", network.Endpoint)
	if len(all) != min(runs, 1001) { // the broker keeps 1000 that are closed
		w.t.Errorf("%d sessions for %d runtimes", len(all), runs)
	}
	last := ctlJSON[struct {
		Served int `json:"calls_served"`
	}](w, "session", "session", "inspect", all[len(all)-1].ID)
	if last.Served != 1 {
		w.t.Errorf("the last runtime's session has %d calls, want 1", last.Served)
	}
}

// window is how many holders are started ahead of their turn.
const window = 4

// relay has holders lease one after another, each at once after the one before was killed, with their sessions open already. After each lease it
// calls check with what the holder before had.
func (w *world) relay(turns int, hostname string, check func(before, now told)) {
	w.t.Helper()
	var waiting []holder
	var last holder
	var before told
	for i := range turns {
		for len(waiting) < min(window, turns-i) {
			waiting = append(waiting, w.holder(1, "default", hostname))
		}
		next := waiting[0]
		waiting = waiting[1:]
		next.opened(w.t)
		if i > 0 {
			last.kill()
		}
		now := next.allocate(w.t)[0]
		if now.Error != nil {
			w.t.Fatalf("allocate %d: %v", i, now.Error)
		}
		if i > 0 {
			check(before, now)
		}
		last, before = next, now
	}
	last.kill()
}

func TestOneAddressIsGivenToASessionThatWasOpenWhenItsHolderWasKilled(t *testing.T) {
	w := newWorld(t, one)
	w.startBroker()
	w.relay(count(200, 1000), "", func(_, now told) {
		if now.Address != onlyAddress {
			t.Fatalf("address %s", now.Address)
		}
	})
}

func TestAConflictNamesTheHolderOfTheHostname(t *testing.T) {
	w := newWorld(t, "default=10.9.0.0/24")
	w.startBroker()
	first := w.holder(1, "default", "web")
	first.opened(t)
	first.leased(t)
	second := w.holder(1, "default", "WEB.")
	second.opened(t)
	refusal := second.allocate(t)[0].Error
	if refusal == nil || refusal.Code != wire.Conflict || refusal.Holder == nil || refusal.Holder.PID != first.pid() {
		t.Fatalf("the second is answered %+v, want conflict with the holder's pid %d", refusal, first.pid())
	}
	first.kill()
	second.leased(t)

	run := w.run("--hostname", "web", "--", "true")
	if code := run.exit(t); code != 125 {
		t.Errorf("broker-run exits %d, want 125", code)
	}
	if text := run.stderr.whole(t); !strings.Contains(text, "conflict") || !strings.Contains(text, "process "+fmt.Sprint(second.pid())) {
		t.Errorf("broker-run says %q, want the conflict and the holder's pid %d", text, second.pid())
	}
	second.kill()
	run = w.run("--hostname", "web", "--", "sh", "-c", "echo $FAIRLEAD_HOSTNAME")
	if name := run.stdout.next(t); name != "web" {
		t.Errorf("the container's hostname is %q", name)
	}
}

func TestTheLateEndOfASessionDoesNotFreeTheNextOnesHostname(t *testing.T) {
	w := newWorld(t, "default=10.9.0.0/24")
	w.startBroker()
	table, leases := w.dial(broker.Endpoint), w.dial(network.Endpoint)
	w.relay(count(30, 300), "web", func(before, now told) {
		closed(t, table, before.Session)
		info, err := network.Lookup(t.Context(), leases, "default", "web")
		if err != nil || info.ID != now.Lease || info.State != network.StateHeld {
			t.Fatalf("after the end of session %s, web is %+v: %v, want lease %s", before.Session, info, err, now.Lease)
		}
	})
}

// closed waits until the broker knows that a session is closed, which the network service has told it.
func closed(t *testing.T, eyes *client.Session, id string) {
	t.Helper()
	eventually(t, "the broker knows that session "+id+" is closed", func() bool {
		d, err := client.Call[broker.Details](t.Context(), eyes, broker.MethodInspect, broker.SessionRequest{ID: id})
		return err == nil && d.Session.State == broker.SessionClosed
	})
}
