package server

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/fairlead-dev/fairlead/internal/count"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// counters are what the service has done since it was started. They are added to without a lock.
type counters struct {
	networks *count.Family[networkCounters]
	reclaims *count.Each
}

type networkCounters struct {
	allocations *count.Each
	ended       *count.Each // leases, by why
	time        count.Durations
}

func newCounters(networks []Network) *counters {
	c := &counters{
		networks: count.NewFamily(network.MaxNetworks, func() *networkCounters {
			return &networkCounters{
				allocations: count.NewOutcomes(),
				ended:       count.NewEach(network.WhySession, network.WhyReleased, network.WhyWithdrawn, network.WhyWitness, network.WhyOperator),
			}
		}),
		reclaims: count.NewOutcomes(),
	}
	c.know(networks)
	return c
}

// know has networks counted apart.
func (c *counters) know(networks []Network) {
	for _, n := range networks {
		c.networks.Add(n.Name)
	}
}

// allocated counts a request for a lease that was answered.
func (c *counters) allocated(name string, err error, took time.Duration) {
	of := c.networks.Of(cmp.Or(name, network.DefaultNetwork))
	of.allocations.AddOutcome(err)
	if err == nil {
		of.time.Add(took)
	}
}

// count serves network.MethodCounters.
func (s *Server) count(ctx context.Context, _ struct{}) (network.Counters, error) {
	if !s.operates(ctx) {
		return network.Counters{}, wire.Errorf(wire.NotPermitted, "uid %d may not see the counters: root and uid %d may", services.FromContext(ctx).Peer().UID, s.uid)
	}
	s.watch.Ask() // what is shown is what the kernel says now; it fails only where the Server is closed
	s.mu.Lock()
	defer s.mu.Unlock()
	all := network.Counters{Reclaims: s.counters.reclaims.Load()}
	for name, c := range s.counters.networks.All() {
		n := network.NetworkCounters{Name: name, Gone: true, Allocations: c.allocations.Load(), Ended: c.ended.Load(), Time: c.time.Load()}
		if g := s.segments[name]; g != nil {
			of := s.countsLocked(g)
			n.Gone, n.Held, n.Orphaned, n.Free, n.Reserved, n.Cooling = false, of.Held, of.orphaned, of.Free, of.Reserved, of.Cooling
			n.Leases, n.Waiting = g.count, len(g.waiters)
		}
		all.Networks = append(all.Networks, n)
	}
	slices.SortFunc(all.Networks, func(a, b network.NetworkCounters) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}
