package server_test

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// counted returns the counters of the networks by name.
func counted(t *testing.T, s *session.Session) (map[string]network.NetworkCounters, network.Counters) {
	t.Helper()
	c, err := network.Count(within(t, patience), s)
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]network.NetworkCounters{}
	for _, n := range c.Networks {
		by[n.Name] = n
	}
	return by, c
}

func TestTheCountersAreWhatWasAllocatedAndGivenBack(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/29", "gone=10.8.0.0/24")})
	c := open(t, s.path)
	first := allocate(t, c, network.Request{Hostname: "web"})
	for range 4 {
		allocate(t, c, network.Request{})
	}
	for _, test := range []struct {
		request network.Request
		code    wire.Code
	}{
		{network.Request{}, wire.Exhausted}, {network.Request{}, wire.Exhausted}, {network.Request{Hostname: "web"}, wire.Conflict},
		{network.Request{Network: "nowhere"}, wire.NotFound},
	} {
		if _, err := network.Allocate(within(t, patience), c, test.request); !errors.Is(err, test.code) {
			t.Errorf("%+v: %v, want %s", test.request, err, test.code)
		}
	}
	allocate(t, c, network.Request{Network: "gone"}).Release(within(t, patience))
	release(t, first)
	other := open(t, s.path)
	allocate(t, other, network.Request{})
	other.Close()
	if err := s.Reload(networks(t, "default=10.9.0.0/29", "new=10.7.0.0/24"), server.Limits{}); err != nil {
		t.Fatal(err)
	}
	allocate(t, c, network.Request{Network: "new"})

	by, all := counted(t, c)
	for name, want := range map[string]network.NetworkCounters{
		"default": {Allocations: map[string]int64{"ok": 6, "exhausted": 2, "conflict": 1}, Ended: map[string]int64{"session": 1, "released": 1}, Leases: 4, Held: 4, Free: 1},
		"gone":    {Allocations: map[string]int64{"ok": 1}, Ended: map[string]int64{"session": 0, "released": 1}, Gone: true},
		"new":     {Allocations: map[string]int64{"ok": 1}, Ended: map[string]int64{"session": 0}, Leases: 1, Held: 1, Free: 252},
		"other":   {Allocations: map[string]int64{"ok": 0, "not_found": 1}, Ended: map[string]int64{"session": 0}, Gone: true},
	} {
		got := by[name]
		if !maps.Equal(got.Allocations, want.Allocations) || !maps.Equal(got.Ended, want.Ended) || got.Gone != want.Gone ||
			got.Leases != want.Leases || got.Held != want.Held || got.Free != want.Free {
			t.Errorf("network %s: %+v, want %+v", name, got, want)
		}
		var timed int64
		for _, n := range got.Time.Counts {
			timed += n
		}
		if timed != want.Allocations["ok"] || timed > 0 && got.Time.Sum <= 0 {
			t.Errorf("network %s: %d times, %v in all, want %d", name, timed, got.Time.Sum, want.Allocations["ok"])
		}
	}
	if names := slices.Sorted(maps.Keys(by)); len(all.Networks) != 4 || all.Networks[0].Name != names[0] {
		t.Errorf("there are %d networks, by name %v", len(all.Networks), names)
	}
}

func TestLeasesThatAWitnessKeptAndThoseTakenBackAreCounted(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24")})
	witness := run(t, "holder", s.path)
	first, next, watcher := open(t, s.path), open(t, s.path), open(t, s.path)
	lease := allocate(t, first, network.Request{Hostname: "web", Witness: witness.pidfd()})
	if _, err := reclaim(t, next, lease.Claim()); !errors.Is(err, wire.Conflict) {
		t.Errorf("a lease that is held is taken back: %v", err)
	}
	first.Close()
	if _, err := reclaim(t, next, lease.Claim()); err != nil {
		t.Errorf("a lease that nobody holds is not taken back: %v", err)
	}
	next.Close()
	if by, _ := counted(t, watcher); by["default"].Leases != 1 || by["default"].Held != 1 || !maps.Equal(by["default"].Ended, map[string]int64{"session": 0}) {
		t.Errorf("a lease that is dying counts as over: %+v", by["default"])
	}
	witness.kill()
	by, all := counted(t, watcher)
	if want := map[string]int64{"session": 0, "witness": 1}; by["default"].Leases != 0 || !maps.Equal(by["default"].Ended, want) {
		t.Errorf("%d leases, ended are %v, want %v", by["default"].Leases, by["default"].Ended, want)
	}
	if want := map[string]int64{"ok": 1, "conflict": 1}; !maps.Equal(all.Reclaims, want) || by["default"].Allocations["ok"] != 1 {
		t.Errorf("reclaims are %v, allocations %v, want %v and 1", all.Reclaims, by["default"].Allocations, want)
	}
}
