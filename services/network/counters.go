package network

import (
	"cmp"
	"context"
	"strings"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/count"
	"github.com/fairlead-dev/fairlead/wire"
)

// Counters say what the network service has done since its instance was started, and how full its networks are.
type Counters struct {
	Networks []NetworkCounters `msgpack:"n"` // by name; "other" also has the requests for networks that are not there
	Reclaims map[string]int64  `msgpack:"r"` // of leases, by outcome, as Allocations
}

// NetworkCounters are those of one network. One that was taken out by a reload keeps what was counted, and has no addresses.
type NetworkCounters struct {
	Name        string           `msgpack:"n"`
	Gone        bool             `msgpack:"g,omitempty"` // there is no such network, so what follows up to Waiting says nothing
	Held        uint64           `msgpack:"h"`           // this and the next four: as in NetworkInfo
	Orphaned    uint64           `msgpack:"o"`
	Free        uint64           `msgpack:"f"`
	Reserved    uint64           `msgpack:"r"`
	Cooling     uint64           `msgpack:"c"`
	Leases      int              `msgpack:"l"`
	Waiting     int              `msgpack:"w"` // requests that wait for what is about to be free
	Allocations map[string]int64 `msgpack:"a"` // that were asked for, but not reclaims, by outcome: "ok", or the code
	Ended       map[string]int64 `msgpack:"e"` // leases that were given back, by why they were: Why…
	Time        Times            `msgpack:"t"` // of allocations with the outcome "ok"
}

// Times say how long something took, each time.
type Times = count.Times

// maxCounts is how many things may be counted apart, and how many bytes the name of one has at most.
const maxCounts = 64

// Validate checks Counters that were received.
func (c *Counters) Validate() error {
	if len(c.Networks) > MaxNetworks+1 {
		return wire.Errorf(wire.Malformed, "counters of %d networks, limit %d", len(c.Networks), MaxNetworks+1)
	}
	if err := checkCounts(c.Reclaims); err != nil {
		return err
	}
	for i, n := range c.Networks {
		if err := CheckNetwork(n.Name); err != nil {
			return err
		}
		if i > 0 && n.Name <= c.Networks[i-1].Name || n.Leases < 0 || n.Waiting < 0 {
			return wire.Errorf(wire.Malformed, "counters of network %s, behind another: %d leases, %d waiting", n.Name, n.Leases, n.Waiting)
		}
		if err := cmp.Or(checkCounts(n.Allocations), checkCounts(n.Ended)); err != nil {
			return err
		}
		if err := n.Time.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// checkCounts checks that what is counted has names that may stand anywhere, and not many.
func checkCounts(counts map[string]int64) error {
	if len(counts) > maxCounts {
		return wire.Errorf(wire.Malformed, "counters of %d things, limit %d", len(counts), maxCounts)
	}
	for name, n := range counts {
		if len(name) > maxCounts || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" || n < 0 {
			return wire.Errorf(wire.Malformed, "counter %q is %d: want lower-case letters, digits and '_', and no negative number", wire.Printable(name, maxCounts), n)
		}
	}
	return nil
}

// Count returns the network service's counters. The caller must be root, or have the uid that the service runs as. It fails with wire.NotPermitted, with
// wire.UnknownMethod for a service that is older, or as Session.Call does.
func Count(ctx context.Context, session *client.Session) (Counters, error) {
	return client.Call[Counters](ctx, session, MethodCounters, struct{}{})
}
