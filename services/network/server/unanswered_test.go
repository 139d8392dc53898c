package server_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/wire"
)

// At each change of its record the service is killed under an allocate, and its reply lost. What was recorded of that goes with the process's next request.
func TestWhatAnAllocateWithoutAnAnswerHoldsGoesWithTheNextOne(t *testing.T) {
	for what, again := range map[string]func(t *testing.T, path string, kept network.Claim) int{
		"an allocate": func(t *testing.T, path string, _ network.Claim) int {
			allocate(t, open(t, path), network.Request{Hostname: "web"})
			return 2
		},
		"a reclaim": func(t *testing.T, path string, kept network.Claim) int {
			if _, err := reclaim(t, open(t, path), kept); err != nil {
				t.Fatal(err)
			}
			return 1
		},
	} {
		t.Run(what, func(t *testing.T) {
			leavesNothing(t)
			orphans := 0
			for n, more := 1, true; more; n++ {
				var orphaned bool
				if orphaned, more = unansweredAt(t, n, again); orphaned {
					orphans++
				}
			}
			if orphans == 0 {
				t.Error("no allocate was recorded and not answered")
			}
		})
	}
}

// unansweredAt kills a service at its n-th change of its state under an allocate, does the next request with another, and checks that this leaves as many leases as
// it says. It returns whether the first one had recorded the lease, and false if there are fewer changes.
func unansweredAt(t *testing.T, n int, again func(t *testing.T, path string, kept network.Claim) int) (orphaned, more bool) {
	t.Helper()
	dir := folder(t)
	path, state, text := dir+"/s", dir+"/state", "default=10.9.0.0/29"
	tr := trapped(t, n, false, path, state, text)
	if line, _ := tr.child.stdout.ReadString('\n'); !strings.HasPrefix(line, "ready <nil>") {
		t.Fatalf("it says %q", line)
	}
	s := open(t, path)
	kept := allocate(t, s, network.Request{Hostname: "kept"}).Claim()
	witness := run(t, "holder", path)                                                                          // which lives to the end
	until(t, "the session is told what it holds", func() bool { return s.Inspect().PeerFacts["lease"] != "" }) // which is an answer, too
	tr.armed.Store(true)
	_, err := network.Allocate(within(t, patience), s, network.Request{Hostname: "web", Witness: witness.pidfd()})
	if err == nil { // whatever it does after that
		return false, false
	}
	if !tr.killed() || !errors.Is(err, wire.Interrupted) {
		t.Fatalf("killed at change %d: %v", n, err)
	}
	<-tr.over
	next := restart(t, path, state, text)
	orphaned = len(list(t, open(t, path))) == 2
	want := again(t, path, kept)
	next.kill() // at once: that it was withdrawn is recorded
	restart(t, path, state, text)
	if leases := list(t, open(t, path)); len(leases) != want {
		t.Errorf("killed at change %d: in the end there are %d leases, want %d: %+v", n, len(leases), want, leases)
	}
	return orphaned, true
}

// restart starts a service in the place of one that was killed.
func restart(t *testing.T, path, state, text string) *child {
	t.Helper()
	os.Remove(path)
	return run(t, "service", path, state, text)
}

func TestOnlyWhatNoSessionHoldsIsWithdrawnByItsToken(t *testing.T) {
	leavesNothing(t)
	state := folder(t) + "/state"
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/29"), StateDir: state})
	const token = "0123456789abcdef"
	request := func(c *client.Session, r network.AllocateRequest) network.LeaseInfo {
		t.Helper()
		info, err := client.Call[network.LeaseInfo](within(t, patience), c, network.MethodAllocate, r)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	holder, other := open(t, s.path), open(t, s.path)
	witness := run(t, "holder", s.path)
	lease := request(holder, network.AllocateRequest{Token: token, Witness: witness.pidfd()})
	request(other, network.AllocateRequest{Withdraw: []string{token}})
	if leases := list(t, other); len(leases) != 2 {
		t.Fatalf("while a session holds it: there are %+v", leases)
	}
	holder.Close()
	until(t, "the lease is dying", func() bool {
		info, err := network.Inspect(within(t, patience), other, network.InspectRequest{Lease: lease.ID})
		return err == nil && info.State == network.StateDying
	})
	request(other, network.AllocateRequest{Withdraw: []string{"fedcba9876543210"}})
	if leases := list(t, other); len(leases) != 3 {
		t.Fatalf("with another token: there are %+v", leases)
	}
	last := request(other, network.AllocateRequest{Withdraw: []string{token}})
	if _, err := network.Inspect(within(t, patience), other, network.InspectRequest{Lease: lease.ID}); !errors.Is(err, wire.NotFound) {
		t.Errorf("with its token: %v", err)
	}
	record, err := os.ReadFile(state + "/leases.log")
	free, hold := strings.Index(string(record), `"kind":"free","lease":"`+lease.ID), strings.Index(string(record), last.ID)
	if err != nil || free < 0 || hold < free {
		t.Errorf("that is recorded at %d, and the request after it at %d: %v", free, hold, err)
	}
}
