package server

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/fairlead-dev/fairlead/services/network/pool"
	"github.com/fairlead-dev/fairlead/wire"
)

// Reload has other networks and limits from now on. Every lease stays as it is, also where there are more than a limit allows. A change after which an address of
// a lease would be in no network of the lease's name, or could not be given out, is refused as a whole with wire.Conflict, which names the lease. While it is
// not known what is held, it fails with wire.Unavailable. Other failures are those of CheckNetworks.
func (s *Server) Reload(networks []Network, limits Limits) error {
	_, err := s.replace(networks, limits)
	return err
}

// replace does what Reload does, and reports whether the networks or limits are others than they were.
func (s *Server) replace(networks []Network, limits Limits) (changed bool, err error) {
	if err := CheckNetworks(networks); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.unlock()
	if s.doubt != nil {
		return false, wire.Errorf(wire.Unavailable, "the networks stay as they are: it is not known yet which addresses are held")
	}
	next := map[string]*segment{}
	for _, n := range networks {
		g, err := newSegment(n)
		if err != nil {
			return false, err
		}
		next[n.Name] = g
	}
	if err := s.fitLocked(next); err != nil {
		return false, err
	}
	limits = limits.withDefaults()
	changed = limits != s.limits || len(next) != len(s.segments)
	for name, g := range next {
		before := s.segments[name]
		changed = changed || before == nil || !reflect.DeepEqual(before.Network, g.Network)
	}
	s.limits = limits
	s.counters.know(networks)
	s.replaceLocked(next)
	return changed, nil
}

// fitLocked takes the addresses of all leases in the networks that are to come.
func (s *Server) fitLocked(next map[string]*segment) error {
	var misfits []string
	var first *lease
	for _, name := range slices.Sorted(maps.Keys(s.segments)) {
		for l := s.segments[name].oldest; l != nil; l = l.after {
			reason := l.misfit(next[name])
			if reason == "" {
				continue
			}
			if first == nil {
				first = l
			}
			misfits = append(misfits, fmt.Sprintf("lease %s of %s on network %s, which process %d has%s", l.id, strings.Join(texts(l.addresses), " and "), name, l.client.PID, reason))
		}
	}
	if first == nil {
		return nil
	}
	e := wire.Errorf(wire.Conflict, "the networks stay as they are: the change would leave without an address: %s", wire.Cut(some(misfits), wire.MaxText/2))
	e.Holder = first.wireHolder()
	return e
}

// misfit takes the addresses of the lease in the network that is to come, or says why one of them is not there; nil: there is no such network.
func (l *lease) misfit(g *segment) string {
	if g == nil {
		return " (the network is gone)"
	}
	for _, a := range l.plain() {
		err := pool.ErrOutside
		if f := g.familyOf(a); f != nil {
			err = f.pool.Take(a)
		}
		if err != nil {
			return fmt.Sprintf(" (%v)", err)
		}
	}
	return ""
}

// replaceLocked puts the networks that are to come in the place of those that are. What was given back keeps its order, and those who wait ask again.
func (s *Server) replaceLocked(next map[string]*segment) {
	for name, g := range s.segments {
		n := next[name]
		if n == nil {
			delete(s.segments, name)
			s.serveLocked(g)
			continue
		}
		delete(next, name)
		if !reflect.DeepEqual(addressing(g.Network), addressing(n.Network)) {
			g.inherit(n.families)
		}
		if g.Network = n.Network; g.Forgets {
			g.memory.forget()
		}
		s.serveLocked(g)
	}
	maps.Copy(s.segments, next)
}

// addressing returns what says which addresses a network gives.
func addressing(n Network) []pool.Config { return []pool.Config{n.family(false), n.family(true)} }

// inherit puts families, in which what the leases have is held, in the place of those of the segment.
func (g *segment) inherit(families []*family) {
	for _, f := range families {
		i := slices.IndexFunc(g.families, func(old *family) bool { return old.six == f.six })
		if i < 0 {
			continue
		}
		old := g.families[i]
		f.dying, f.orphaned = old.dying, old.orphaned
		for addr, at := range old.pool.Freed() {
			if f.pool.Take(addr) == nil {
				f.pool.Release(addr, at)
			}
		}
	}
	g.families = families
}
