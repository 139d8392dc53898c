package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestAReloadKeepsEveryLeaseThatFits(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/28", "old=10.8.0.0/24")})
	c := open(t, s.path)
	freed := allocate(t, c, network.Request{Hostname: "freed"})
	kept := allocate(t, c, network.Request{Hostname: "web", Aliases: []string{"www"}})
	release(t, freed)
	change := with(t, "default=10.9.0.0/24,fd00::/64", func(n *server.Network) {
		n.Gateways, n.MTU, n.Reserved = addrs("10.9.0.99"), 1400, ranges(t, "10.9.0.4-10.9.0.19")
	})
	change = append(change, networks(t, "new=10.7.0.0/24")...)
	if err := s.Reload(change, server.Limits{Session: 4}); err != nil {
		t.Fatal(err)
	}
	if leases := list(t, c); len(leases) != 1 || leases[0].ID != kept.ID || leases[0].State != network.StateHeld || leases[0].MTU != 1400 ||
		leases[0].Addresses[0] != kept.Addresses[0].String() {
		t.Errorf("there is %+v", leases)
	}
	infos, err := network.Networks(within(t, patience), c)
	if err != nil || len(infos) != 2 || infos[0].Name != "default" || infos[0].Total != 253 || infos[0].Held != 1 || infos[0].Reserved != 16 || infos[1].Name != "new" {
		t.Errorf("the networks are %+v, %v", infos, err)
	}
	if _, err := network.Allocate(within(t, patience), c, network.Request{Network: "old"}); !errors.Is(err, wire.NotFound) {
		t.Errorf("the network that is gone: %v", err)
	}
	if _, err := network.Allocate(within(t, patience), c, network.Request{Hostname: "www"}); !errors.Is(err, wire.Conflict) {
		t.Errorf("its alias is given out: %v", err)
	}
	// 10.9.0.1 was the gateway's and never used, 10.9.0.2 was given back, 10.9.0.3 is held.
	for _, want := range []string{"[10.9.0.1/24 fd00::1/64]", "[10.9.0.20/24 fd00::2/64]"} {
		if l := allocate(t, c, network.Request{}); fmt.Sprint(l.Addresses) != want {
			t.Errorf("it gives %v, want %v", l.Addresses, want)
		}
	}
	if l := allocate(t, c, network.Request{Hostname: "freed"}); l.Addresses[0] != netip.MustParsePrefix("10.9.0.2/24") {
		t.Errorf("the hostname that comes back gets %v", l.Addresses)
	}
	_, err = network.Allocate(within(t, patience), c, network.Request{})
	over(t, wire.AsError(err), "the limit of a session is 4")
}

func TestAReloadThatWouldOrphanALeaseIsRefusedAsAWhole(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24", "lab=10.8.0.0/24")})
	c := open(t, s.path)
	l := allocate(t, c, network.Request{Addresses: addrs("10.9.0.200")})
	holder := run(t, "holder", s.path)
	holder.allocate(order{Witness: holder.linger("linger").PID()})
	holder.kill() // it is dying, and kept as well
	for name, test := range map[string]struct {
		networks []server.Network
		says     string
	}{
		"gone":       {networks(t, "lab=10.8.0.0/24"), "the network is gone"},
		"smaller":    {networks(t, "default=10.9.0.0/25"), "outside"},
		"elsewhere":  {networks(t, "default=10.7.0.0/24", "lab=10.9.0.0/24"), "outside"},
		"family":     {networks(t, "default=fd00::/64"), "outside"},
		"reserved":   {with(t, "default=10.9.0.0/24", func(n *server.Network) { n.Reserved = ranges(t, "10.9.0.200") }), "reserved"},
		"gateway":    {with(t, "default=10.9.0.0/24", func(n *server.Network) { n.Gateways = addrs("10.9.0.200") }), "the gateway's"},
		"no range":   {with(t, "default=10.9.0.0/24", func(n *server.Network) { n.Ranges = ranges(t, "10.9.0.2-10.9.0.99") }), "in no range"},
		"the edge":   {networks(t, "default=10.9.0.200/29"), "the network's own"},
		"overlapped": {networks(t, "default=10.9.0.0/24", "lab=10.9.0.0/16"), "overlap"},
	} {
		err := s.Reload(test.networks, server.Limits{})
		e := wire.AsError(err)
		if name == "overlapped" {
			if !errors.Is(err, wire.Malformed) {
				t.Errorf("%s: %v", name, err)
			}
		} else if !errors.Is(err, wire.Conflict) || !strings.Contains(e.Text, l.ID) || !strings.Contains(e.Text, "10.9.0.200/24") || e.Holder == nil {
			t.Errorf("%s: %v, want a conflict with lease %s", name, err, l.ID)
		}
		if err != nil && !strings.Contains(e.Text, test.says) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
	}
	infos, err := network.Networks(within(t, patience), c)
	if err != nil || len(infos) != 2 || infos[0].Held != 2 || infos[1].Prefixes[0] != "10.8.0.0/24" {
		t.Errorf("the networks are %+v, %v", infos, err)
	}
	if l := allocate(t, c, network.Request{}); l.Addresses[0] != netip.MustParsePrefix("10.9.0.3/24") {
		t.Errorf("then it gives %v", l.Addresses)
	}
}

func TestThoseWhoWaitAreServedByAReload(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/30", "lab=10.8.0.0/30")})
	holder := run(t, "holder", s.path)
	witness := holder.linger("linger")
	holder.allocate(order{Witness: witness.PID()})
	holder.kill()
	c := open(t, s.path)
	done := make(chan error, 1)
	go func() {
		_, err := network.Allocate(t.Context(), c, network.Request{})
		done <- err
	}()
	until(t, "it waits", func() bool { return s.Waiting() == 1 })
	if err := s.Reload(networks(t, "default=10.9.0.0/29"), server.Limits{}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("it waits on although there is an address")
	}
}

func TestInDoubtNothingIsReloaded(t *testing.T) {
	leavesNothing(t)
	old := crashed(t, "10.9.0.0/24")
	os.Remove(filepath.Join(old.dir, "leases.log"))
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24"), StateDir: old.dir, Suspects: func(context.Context) ([]int, error) {
		return []int{old.holder.pid()}, nil
	}})
	if err := s.Reload(networks(t, "default=10.7.0.0/24"), server.Limits{}); !errors.Is(err, wire.Unavailable) {
		t.Errorf("it says %v", err)
	}
}
