package server_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestALeaseHasAllThatWasPromised(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24", "lab=10.10.0.0/16")})
	c := open(t, s.path)
	a := allocate(t, c, network.Request{Hostname: "Web.Example."})
	b := allocate(t, c, network.Request{Network: "lab"})
	if a.Network != "default" || a.Hostname != "web.example" || fmt.Sprint(a.Addresses, a.Gateways) != "[10.9.0.2/24] [10.9.0.1]" || a.MTU != 1500 {
		t.Errorf("the first lease is %+v", a)
	}
	if b.Network != "lab" || b.Hostname != "" || fmt.Sprint(b.Addresses, b.Gateways) != "[10.10.0.2/16] [10.10.0.1]" {
		t.Errorf("the second lease is %+v", b)
	}
	mac, err := net.ParseMAC(a.MAC)
	if err != nil || mac[0]&3 != 2 || a.MAC == b.MAC {
		t.Errorf("the MACs are %s and %s, want different ones, locally administered and unicast", a.MAC, b.MAC)
	}
	leases := list(t, c)
	if len(leases) != 2 || leases[0].ID != a.ID || leases[1].ID != b.ID {
		t.Fatalf("listed are %+v", leases)
	}
	if l := leases[0]; l.State != network.StateHeld || l.Holder.PID != os.Getpid() || int(l.Holder.UID) != os.Getuid() || time.Since(l.AllocatedAt.Time()) > time.Minute {
		t.Errorf("listed is %+v", l)
	}
	found, err := network.Lookup(within(t, patience), c, "", "WEB.example")
	if err != nil || found.ID != a.ID {
		t.Errorf("looked up is %+v, %v", found, err)
	}
	if _, err := network.Lookup(within(t, patience), c, "", "nobody"); !errors.Is(err, wire.NotFound) {
		t.Errorf("a name that nobody has: %v", err)
	}
	infos, err := network.Networks(within(t, patience), c)
	if err != nil || len(infos) != 2 || infos[0].Name != "default" || infos[0].Total != 253 || infos[0].Held != 1 || infos[0].Free != 252 {
		t.Errorf("networks are %+v, %v", infos, err)
	}
	until(t, "the session is told what it holds", func() bool {
		return s.session(0).Inspect().Facts["lease"] == "default 10.9.0.2 web.example; lab 10.10.0.2"
	})
}

func TestALeaseEndsWithItsReleaseOrItsSession(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/30")})
	c, other := open(t, s.path), open(t, s.path)
	l := allocate(t, c, network.Request{})
	if _, err := network.Allocate(within(t, patience), other, network.Request{}); !errors.Is(err, wire.Exhausted) {
		t.Fatalf("the only address is given out twice: %v", err)
	}
	if err := other.Call(within(t, patience), network.MethodRelease, network.LeaseRef{Lease: l.ID}, nil); !errors.Is(err, wire.NotFound) {
		t.Errorf("another session releases it: %v", err)
	}
	if l.Err() != nil {
		t.Errorf("a held lease says %v", l.Err())
	}
	for range 2 {
		if err := l.Release(within(t, patience)); err != nil {
			t.Fatal(err)
		}
	}
	<-l.Done()
	if !errors.Is(l.Err(), network.ErrReleased) {
		t.Errorf("a released lease says %v", l.Err())
	}
	l = allocate(t, c, network.Request{})
	c.Close()
	<-l.Done()
	if !errors.Is(l.Err(), wire.Invalid) {
		t.Errorf("the lease of a closed session says %v", l.Err())
	}
	l = allocate(t, other, network.Request{})
	s.session(1).Abort(wire.End{Code: wire.Invalid, Origin: wire.Local})
	<-l.Done()
	if !errors.Is(l.Err(), wire.Interrupted) {
		t.Errorf("the lease of a lost session says %v", l.Err())
	}
}

func TestReleasingTwiceIsNoError(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24")})
	c := open(t, s.path)
	l := allocate(t, c, network.Request{})
	if err := c.Call(within(t, patience), network.MethodRelease, network.LeaseRef{Lease: l.ID}, nil); err != nil { // as one whose reply came too late
		t.Fatal(err)
	}
	if err := l.Release(within(t, patience)); err != nil || !errors.Is(l.Err(), network.ErrReleased) {
		t.Errorf("after one that had arrived: %v, and the lease says %v", err, l.Err())
	}
	for range 20 {
		l := allocate(t, c, network.Request{})
		var releasing sync.WaitGroup
		for range 4 {
			releasing.Go(func() {
				if err := l.Release(within(t, patience)); err != nil {
					t.Errorf("four at a time: %v", err)
				}
			})
		}
		releasing.Wait()
	}
}

func TestAConflictNamesTheHolderUntilItIsKilled(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24")})
	first, second := run(t, "holder", s.path), run(t, "holder", s.path)
	a := first.allocate(order{Hostname: "web"})
	e := second.order(order{Do: "allocate", Hostname: "WEB."}).Error
	if e == nil || e.Code != wire.Conflict || e.Holder == nil || e.Holder.PID != first.pid() || e.Holder.Lease != a.Lease || int(e.Holder.UID) != os.Getuid() {
		t.Fatalf("the second one gets %+v, want a conflict with process %d and lease %s", e, first.pid(), a.Lease)
	}
	first.kill()
	if b := second.allocate(order{}); b.Address == a.Address {
		t.Errorf("a freed address is used again while others were never used: %v", b.Address)
	}
	if b := second.allocate(order{Hostname: "web"}); b.Address != a.Address {
		t.Errorf("the hostname comes back and gets %v, want %v, which it had", b.Address, a.Address)
	}
}

func TestOneAddressSurvivesAnyNumberOfKills(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/30")})
	last := run(t, "holder", s.path)
	last.allocate(order{Hostname: "web"})
	for range 300 {
		next := run(t, "holder", s.path) // its session is open already
		last.kill()
		next.allocate(order{Hostname: "web"})
		last.end()
		last = next
	}
}

func TestAClientKilledAtAnyTimeLeavesNoLease(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/30")})
	c := open(t, s.path)
	for i := range 60 {
		h := run(t, "holder", s.path)
		h.ask(order{Do: "allocate", Hostname: "web"})
		for began := time.Now(); time.Since(began) < time.Duration(i)*20*time.Microsecond; { // spread over the time that an allocate takes
		}
		h.kill()
		if leases := list(t, c); len(leases) > 0 {
			t.Fatalf("after kill %d there is %+v", i, leases)
		}
		h.end()
	}
	allocate(t, c, network.Request{Hostname: "web"})
}

func TestALateEndOfAnOldSessionLeavesTheNewLeaseAlone(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/30")})
	first, second := run(t, "holder", s.path), run(t, "holder", s.path)
	first.allocate(order{Hostname: "web"})
	keeper := first.linger("hand")
	first.kill() // the socket of its session stays open: only its process is gone
	b := second.allocate(order{Hostname: "web"})
	keeper.Signal(syscall.SIGKILL)
	old := s.session(0)
	select {
	case <-old.Done():
	case <-time.After(patience):
		t.Fatal("the old session does not end")
	}
	leases := list(t, open(t, s.path))
	if len(leases) != 1 || leases[0].ID != b.Lease || leases[0].State != network.StateHeld || leases[0].Hostname != "web" {
		t.Errorf("after the old session's end there is %+v", leases)
	}
}

func TestAWitnessKeepsTheAddressOfADeadHolder(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/30")})
	first, second := run(t, "holder", s.path), run(t, "holder", s.path)
	witness := first.linger("linger")
	a := first.allocate(order{Hostname: "web", Witness: witness.PID()})
	first.kill()

	e, took := second.waits(order{Within: 2 * time.Second})
	if e == nil || e.Code != wire.Unavailable || took < 1700*time.Millisecond || !strings.Contains(e.Text, fmt.Sprint(witness.PID())) ||
		e.Holder == nil || e.Holder.Lease != a.Lease {
		t.Fatalf("after %v it gets %+v, want unavailable because of process %d, shortly before its deadline", took, e, witness.PID())
	}
	e, _ = second.waits(order{Hostname: "web", Within: time.Second})
	if e == nil || e.Code != wire.Unavailable || !strings.Contains(e.Text, fmt.Sprint(witness.PID())) {
		t.Errorf("the hostname of a dying lease: %+v", e)
	}
	watcher := open(t, s.path)
	if leases := list(t, watcher); len(leases) != 1 || leases[0].State != network.StateDying {
		t.Errorf("listed is %+v", leases)
	}

	done := make(chan answer)
	go func() { done <- second.order(order{Do: "allocate", Hostname: "web"}) }()
	until(t, "the request waits", func() bool { return s.Waiting() == 1 })
	witness.Signal(syscall.SIGKILL)
	if b := <-done; b.Error != nil || b.Address != a.Address || !witness.Gone() {
		t.Errorf("once the witness is gone: %+v", b)
	}
}

// waits has a holder allocate what it has to wait for in vain, and returns what it was told, and when. On a machine that is busy the answer, which leaves a tenth of the
// time before its end, may come too late: then it is asked again.
func (c *child) waits(o order) (e *wire.Error, took time.Duration) {
	c.t.Helper()
	o.Do = "allocate"
	for range 10 {
		began := time.Now()
		e, took = c.order(o).Error, time.Since(began)
		if e == nil || e.Code != wire.DeadlineExceeded {
			break
		}
	}
	return e, took
}

func TestOfManyWaitersOneIsServedAndTheOthersAreTold(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/30")})
	first := run(t, "holder", s.path)
	witness := first.linger("linger")
	first.allocate(order{Witness: witness.PID()})
	first.kill()
	const waiters = 64
	results := make(chan error, waiters)
	var order []int
	var mu sync.Mutex
	for i := range waiters {
		c := open(t, s.path)
		go func() {
			_, err := network.Allocate(within(t, patience), c, network.Request{})
			if err == nil {
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
			}
			results <- err
		}()
		until(t, "it waits", func() bool { return s.Waiting() == i+1 })
	}
	witness.Signal(syscall.SIGKILL)
	refused := 0
	for range waiters {
		if err := <-results; errors.Is(err, wire.Exhausted) {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if refused != waiters-1 || !slices.Equal(order, []int{0}) {
		t.Errorf("%d are refused and served are %v, want %d and the first", refused, order, waiters-1)
	}
}

func TestParallelClientsNeverShareAnything(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/26")})
	var mu sync.Mutex
	held := map[string]string{}
	var clients sync.WaitGroup
	rounds := 100
	if *long {
		rounds = 1000
	}
	for i := range 32 {
		c := open(t, s.path)
		clients.Go(func() {
			for range rounds {
				l, err := network.Allocate(t.Context(), c, network.Request{Hostname: fmt.Sprint("host", i)})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, key := range []string{l.Addresses[0].String(), l.MAC, l.ID} {
					if other := held[key]; other != "" {
						t.Errorf("%s is held by %s and %s", key, other, l.ID)
					}
					held[key] = l.ID
				}
				mu.Unlock()
				mu.Lock()
				for _, key := range []string{l.Addresses[0].String(), l.MAC, l.ID} {
					delete(held, key)
				}
				mu.Unlock()
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	clients.Wait()
	if leases := list(t, open(t, s.path)); len(leases) != 0 {
		t.Errorf("left are %+v", leases)
	}
}

func TestAFailedAllocateHoldsNothing(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24")})
	c := open(t, s.path)
	lost := 0
	for i := range 500 {
		l, err := network.Allocate(within(t, time.Duration(i%50)*10*time.Microsecond), c, network.Request{Hostname: "web"})
		if err != nil {
			lost++
		} else if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if leases := list(t, c); len(leases) != 0 {
			t.Fatalf("after %v there is %+v", err, leases)
		}
	}
	if lost == 0 {
		t.Error("no allocate failed")
	}
	for name, r := range map[wire.Code]network.Request{
		wire.NotFound:  {Network: "nowhere"},
		wire.Malformed: {Hostname: "under_score"},
	} {
		if _, err := network.Allocate(within(t, patience), c, r); !errors.Is(err, name) {
			t.Errorf("%+v: %v, want %v", r, err, name)
		}
	}
}

func TestALongListComesWhole(t *testing.T) {
	leavesNothing(t)
	const count = network.MaxPage + 5
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/16"), Limits: server.Limits{Session: count}})
	c := open(t, s.path)
	var allocating sync.WaitGroup
	for i := range 5 {
		allocating.Go(func() {
			for range count / 5 {
				if _, err := network.Allocate(t.Context(), c, network.Request{Hostname: ""}); err != nil {
					t.Error(i, err)
					return
				}
			}
		})
	}
	allocating.Wait()
	leases := list(t, c)
	seen := map[string]bool{}
	for _, l := range leases {
		seen[l.ID] = true
	}
	if len(leases) != count || len(seen) != count {
		t.Errorf("the list has %d leases, %d of them different, want %d", len(leases), len(seen), count)
	}
}

func TestALeaseThatIsThereAllTheWhileIsListedOnceWhateverComesAndGoes(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/20", "other=10.8.0.0/20"), Limits: server.Limits{Session: 4096}})
	staying, churning := open(t, s.path), open(t, s.path)
	stays := map[string]bool{}
	var goes []*network.Lease
	for i := range 400 {
		on := []string{"default", "other"}[i%2]
		stays[allocate(t, staying, network.Request{Network: on}).ID] = true
		goes = append(goes, allocate(t, churning, network.Request{Network: on}))
	}
	stop := make(chan struct{})
	var changing sync.WaitGroup
	changing.Go(func() {
		for i := 0; ; i = (i + 7) % len(goes) {
			select {
			case <-stop:
				return
			default:
			}
			err := goes[i].Release(t.Context())
			if err == nil {
				goes[i], err = network.Allocate(t.Context(), churning, network.Request{Network: goes[i].Network})
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	c := open(t, s.path)
	for range 5 {
		seen := map[string]int{}
		for _, l := range list(t, c) {
			seen[l.ID]++
		}
		for id := range stays {
			if seen[id] != 1 {
				t.Fatalf("lease %s is listed %d times", id, seen[id])
			}
		}
	}
	close(stop)
	changing.Wait()
}

func TestOfManyLeasesInTheWaySomeAreNamed(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/28")}) // 13 addresses
	holder := run(t, "holder", s.path)
	witness := holder.linger("linger")
	for range 13 {
		holder.allocate(order{Witness: witness.PID()})
	}
	holder.kill()
	c := open(t, s.path)
	until(t, "all leases are dying", func() bool {
		for _, l := range list(t, c) {
			if l.State != network.StateDying {
				return false
			}
		}
		return true
	})
	_, err := network.Allocate(within(t, 500*time.Millisecond), c, network.Request{})
	if !errors.Is(err, wire.Unavailable) || strings.Count(err.Error(), " is dying and kept by ") != 8 || !strings.Contains(err.Error(), " and 5 more (") {
		t.Errorf("it says %v, want 8 leases and 5 more", err)
	}
}
