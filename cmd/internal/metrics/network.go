package metrics

import (
	"context"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// networkTime is how long the network service may take to answer.
const networkTime = time.Second

// What the network service shows.
var (
	networkUp = describe("network_up", "1 if an instance of the network service runs and has answered this scrape, else 0: then there is nothing else of it.")
	addresses = describe("network_addresses", "Addresses in each state: held, orphaned, reserved, cooling, free. "+
		"A network with both address families has those of the one that has fewer.", "network", "state")
	leases        = describe("network_leases", "Leases, also those that are dying or orphaned.", "network")
	leasesWaiting = describe("network_allocations_waiting", "Requests that wait for an address that is about to be free.", "network")
	allocations   = describe("network_allocations_total", "Requests for a lease that were answered, by what came of them: ok, or the code of the error. "+
		"Those on networks that are not there are other.", "network", "outcome")
	allocationTime = describe("network_allocation_duration_seconds", "Time of allocations that were granted.", "network")
	leasesEnded    = describe("network_leases_ended_total", "Leases that are over: session (it has ended), released, withdrawn, witness (the last that kept it is gone), "+
		"operator (released by name).", "network", "why")
	reclaims = describe("network_reclaims_total", "Requests to take a lease back, by what came of them.", "outcome")
)

// askNetwork asks the network service for its counters, if an instance of it runs. It starts none.
func askNetwork(b *broker.Broker) (network.Counters, error) {
	ctx, cancel := context.WithTimeout(context.Background(), networkTime)
	defer cancel()
	s, err := b.Visit(ctx, network.Endpoint, "metrics")
	if err != nil {
		return network.Counters{}, err
	}
	defer s.Close()
	counters, err := network.Count(ctx, s)
	if err != nil { // who does not answer in time may not close in time either
		s.Abort(wire.End{Code: wire.Invalid, Origin: wire.Local, Text: "the scrape is over"})
	}
	return counters, err
}

func (s sink) network(c network.Counters, up bool) {
	if !up {
		s.gauge(networkUp, 0)
		return
	}
	s.gauge(networkUp, 1)
	s.counters(reclaims, c.Reclaims)
	for _, n := range c.Networks {
		s.counters(allocations, n.Allocations, n.Name)
		s.counters(leasesEnded, n.Ended, n.Name)
		s.times(allocationTime, n.Time, n.Name)
		if n.Gone {
			continue
		}
		for state, addrs := range map[string]uint64{"held": n.Held, "orphaned": n.Orphaned, "reserved": n.Reserved, "cooling": n.Cooling, "free": n.Free} {
			s.gauge(addresses, float64(addrs), n.Name, state)
		}
		s.gauge(leases, float64(n.Leases), n.Name)
		s.gauge(leasesWaiting, float64(n.Waiting), n.Name)
	}
}
