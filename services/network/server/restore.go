package server

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/services/network"
)

// restore takes over the leases of an earlier instance that living processes keep, and is in doubt where their record is not whole. The Server does not
// serve yet, but what it watches may be gone already.
func (s *Server) restore(read *reading) error {
	r := restorer{Server: s, keepers: map[process.ID]*keeper{}}
	defer r.release()
	slices.SortStableFunc(read.holds, func(a, b entry) int { return cmp.Compare(a.AllocatedAt, b.AllocatedAt) }) // a record that was written anew has no order
	for _, e := range read.holds {
		if err := r.restore(e); err != nil {
			return fmt.Errorf("take over lease %s of an earlier instance: %w", e.Lease, err)
		}
	}
	s.mu.Lock()
	if read.damage != nil || read.doubt || read.fresh {
		s.doubt = newDoubt(read.reason())
	}
	orphans := len(s.leases)
	s.mu.Unlock()
	if read.damage != nil {
		what := "is damaged"
		if read.version > 0 {
			what = "is of a later version"
		}
		s.log.Warn("the record of leases "+what+": no address is given out until the processes that could hold one are gone", "err", read.damage)
	}
	if orphans > 0 {
		s.log.Info(fmt.Sprintf("%d leases of an earlier instance are kept until their former holders and witnesses are gone", orphans))
	}
	r.report()
	return nil
}

// reason says why there is doubt; nil on a first start.
func (r *reading) reason() error {
	switch {
	case r.damage != nil:
		return r.damage
	case r.doubt:
		return errors.New("an earlier record of leases could not be read")
	}
	return nil
}

// A restorer takes leases over. Leases may have keepers in common.
type restorer struct {
	*Server
	keepers map[process.ID]*keeper // nil: the process is gone
	misfits int
}

// release lets the keepers go that got no lease.
func (r *restorer) release() {
	r.mu.Lock()
	defer r.unlock()
	for _, k := range r.keepers {
		if k != nil {
			r.releaseLocked(k)
		}
	}
}

// report says which leases were not taken over although their holders may live.
func (r *restorer) report() {
	if r.misfits > 0 {
		r.log.Warn(fmt.Sprintf("%d leases of an earlier instance are held by living processes and are in no network of this one", r.misfits))
	}
}

// restore takes one lease over, if a keeper lives and its address is in a network.
func (r *restorer) restore(e entry) error {
	ids := e.Witnesses
	if !e.Holder.IsZero() {
		ids = append(slices.Clone(ids), e.Holder)
	}
	var living []*keeper
	for _, id := range ids {
		k, err := r.keeper(id)
		if err != nil {
			return err
		}
		if k != nil {
			living = append(living, k)
		}
	}
	for _, sp := range e.Spaces {
		if k := r.restoreSpace(sp); k != nil {
			living = append(living, k)
		}
	}
	if len(living) == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.unlock()
	l := r.placeLocked(e)
	if l == nil {
		r.misfits++
		for _, k := range living {
			if k.space != (space{}) {
				r.releaseLocked(k)
			}
		}
		return nil
	}
	r.enterLocked(l)
	for _, k := range living {
		if !k.gone {
			l.keep(k)
		}
	}
	if len(l.keepers) == 0 {
		r.endLocked(l)
	}
	return nil
}

// keeper returns the keeper for a process, or nil if it is gone.
func (r *restorer) keeper(id process.ID) (*keeper, error) {
	if k, known := r.keepers[id]; known {
		return k, nil
	}
	k, err := r.openKeeper(id)
	if err == nil {
		r.keepers[id] = k
	}
	return k, err
}

// openKeeper returns a new keeper for a process that was written down, or nil if it is gone.
func (s *Server) openKeeper(id process.ID) (*keeper, error) {
	handle, err := process.OpenID(id)
	if errors.Is(err, process.ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return s.newKeeper(handle, id)
}

// placeLocked takes the addresses of a lease in the network that has them, which should be the one of its name. It returns nil if none has.
func (s *Server) placeLocked(e entry) *lease {
	l := &lease{
		id: e.Lease, mac: e.MAC, macGiven: e.MACGiven, at: time.Unix(0, e.AllocatedAt), state: orphaned,
		session: e.Session, client: network.Holder{PID: e.PID, UID: e.UID}, former: e.Holder, proof: e.Proof, token: e.Token,
	}
	for _, a := range e.Addresses {
		g := s.segmentOf(e.Network, a.Addr())
		if g == nil || l.segment != nil && g != l.segment || g.familyOf(a.Addr()).pool.Take(a.Addr()) != nil {
			continue
		}
		l.segment = g
		l.addresses = append(l.addresses, a)
	}
	if l.segment == nil {
		return nil
	}
	free := func(name string) bool { return name != "" && l.segment.names[name] == nil }
	if free(e.Hostname) {
		l.hostname = e.Hostname
	}
	for _, a := range e.Aliases {
		if free(a) && a != l.hostname {
			l.aliases = append(l.aliases, a)
		}
	}
	l.cut = e.Cut || len(l.addresses) < len(e.Addresses) || l.hostname != e.Hostname || len(l.aliases) < len(e.Aliases)
	return l
}

// segmentOf returns the network that addr is in; nil: none. Networks may have changed since it was leased.
func (s *Server) segmentOf(name string, addr netip.Addr) *segment {
	if g := s.segments[name]; g != nil {
		if _, in := g.prefixOf(addr); in {
			return g
		}
	}
	for _, g := range s.segments {
		if _, in := g.prefixOf(addr); in {
			return g
		}
	}
	return nil
}
