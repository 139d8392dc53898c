package server

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/pool"
	"github.com/fairlead-dev/fairlead/wire"
)

// A wish is what somebody wants to lease.
type wish struct {
	holder    *holder
	segment   *segment
	hostname  string // empty: none
	aliases   []string
	required  []netip.Addr // at most one of each family, as preferred
	preferred []netip.Addr
	mac       string // empty: one is made
	token     string
	secret    string  // that the reply will tell
	witness   *keeper // nil: none
}

// An obstacle is why a wish cannot be fulfilled now.
type obstacle struct {
	err     error   // there is nothing more to say; nil: one of the following
	gone    bool    // the session is over, or the witness is
	doubt   bool    // it is not known which addresses are free
	other   *lease  // this one has what is wanted
	what    string  // of it, as "hostname web"
	family  *family // no address of it is free
	passing bool    // waiting may help: what is in the way is not held by the living
}

// wish makes a wish of a request. The request's descriptor is its from then on, also when it fails.
func (s *Server) wish(ctx context.Context, r network.AllocateRequest) (*wish, error) {
	w, err := s.plainWish(ctx, r)
	if r.Witness == nil {
		return w, err
	}
	if err != nil {
		r.Witness.Close()
		return nil, err
	}
	w.witness, err = s.witness(w.holder, r.Witness)
	return w, err
}

// plainWish makes a wish without a witness.
func (s *Server) plainWish(ctx context.Context, r network.AllocateRequest) (*wish, error) {
	s.mu.Lock()
	g, err := s.segmentLocked(r.Network)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	w := &wish{segment: g, token: r.Token, secret: newSecret()}
	if w.hostname, err = network.CanonicalHostname(r.Hostname); err != nil {
		return nil, err
	}
	if w.aliases, err = network.CanonicalAliases(r.Aliases); err != nil {
		return nil, err
	}
	w.aliases = slices.DeleteFunc(w.aliases, func(a string) bool { return a == w.hostname })
	if w.required, err = network.ParseAddresses(r.Addresses); err != nil {
		return nil, err
	}
	if w.preferred, err = network.ParseAddresses(r.Preferred); err != nil {
		return nil, err
	}
	if w.mac, err = network.CanonicalMAC(r.MAC); err != nil {
		return nil, err
	}
	w.holder, err = s.holder(services.FromContext(ctx))
	return w, err
}

// takeLocked fulfils a wish in one step, or says what is in the way.
func (s *Server) takeLocked(w *wish) (*lease, *obstacle) {
	g := w.segment
	if w.holder.gone || w.witness != nil && w.witness.gone {
		return nil, &obstacle{gone: true}
	}
	if s.segments[g.Name] != g { // it was taken out of the file
		return nil, &obstacle{err: unknownNetwork(g.Name, s.segments)}
	}
	if err := g.refuses(w.required); err != nil {
		return nil, &obstacle{err: err}
	}
	if o := g.inTheWay(w); o != nil {
		return nil, o
	}
	if err := s.overQuotaLocked(w); err != nil {
		return nil, &obstacle{err: err}
	}
	if s.doubt != nil {
		return nil, &obstacle{doubt: true, passing: true}
	}
	addresses, o := s.addressesLocked(w)
	if o != nil {
		return nil, o
	}
	l := &lease{
		id: s.newIDLocked(), token: w.token, segment: g, hostname: w.hostname, aliases: w.aliases, addresses: addresses,
		mac: w.mac, macGiven: w.mac != "", at: time.Now(), holder: w.holder, from: w.holder, session: w.holder.session.ID(), client: w.holder.client,
		former: w.holder.id, proof: proofOf(w.secret),
	}
	if l.mac == "" {
		l.mac = g.newMAC()
	}
	s.enterLocked(l)
	w.holder.leases = append(w.holder.leases, l)
	if w.witness != nil {
		l.keep(w.witness)
	}
	return l, nil
}

// refuses returns why nobody gets one of the addresses.
func (g *segment) refuses(required []netip.Addr) error {
	for _, addr := range required {
		err := pool.ErrOutside
		if f := g.familyOf(addr); f != nil {
			err = f.pool.Check(addr)
		}
		prefix, _ := g.prefixOf(addr)
		switch {
		case errors.Is(err, pool.ErrOutside):
			return wire.Errorf(wire.Malformed, "address %v is outside of network %v", addr, g)
		case errors.Is(err, pool.ErrEdge):
			return wire.Errorf(wire.Malformed, "address %v is at the edge of network %v: it is %s of %v", addr, g, pool.EdgeOf(prefix, addr), prefix)
		case errors.Is(err, pool.ErrGateway):
			return wire.Errorf(wire.NotPermitted, "address %v is the gateway of network %v", addr, g)
		case errors.Is(err, pool.ErrReserved):
			return wire.Errorf(wire.NotPermitted, "address %v is reserved in network %s", addr, g.Name)
		case errors.Is(err, pool.ErrUnlisted):
			return wire.Errorf(wire.NotPermitted, "address %v is in no range that network %s gives from, and in no static one", addr, g.Name)
		}
	}
	return nil
}

// inTheWay returns the lease that has something of what is wanted, one of the living before others.
func (g *segment) inTheWay(w *wish) (found *obstacle) {
	note := func(other *lease, what string) {
		if other == nil {
			return
		}
		o := &obstacle{other: other, what: what, passing: other.state == dying || other.state == orphaned}
		if found == nil || found.passing && !o.passing {
			found = o
		}
	}
	if w.hostname != "" {
		note(g.names[w.hostname], "hostname "+w.hostname)
	}
	for _, a := range w.aliases {
		note(g.names[a], "alias "+a)
	}
	for _, a := range w.required {
		note(g.addrs[a], "address "+a.String())
	}
	if w.mac != "" {
		note(g.macs[w.mac], "MAC "+w.mac)
	}
	return found
}

// addressesLocked takes one address of each family, or none and says which family has none.
func (s *Server) addressesLocked(w *wish) ([]netip.Prefix, *obstacle) {
	g := w.segment
	chosen := make([]netip.Addr, len(g.families)) // an invalid one is any
	for i, f := range g.families {
		chosen[i] = s.chooseLocked(w, f)
		if !chosen[i].IsValid() && !f.pool.Available() {
			return nil, &obstacle{family: f, passing: f.dying+f.orphaned > 0}
		}
	}
	addresses := make([]netip.Prefix, len(g.families))
	for i, f := range g.families {
		addr := chosen[i]
		if addr.IsValid() {
			f.pool.Take(addr) // it is free
		} else {
			addr, _ = f.pool.Allocate() // it is available
		}
		addresses[i] = g.addressOf(addr)
	}
	return addresses, nil
}

// chooseLocked returns the address of a family that is asked for, that the hostname last had, or that is preferred, if it is free. One that cools is for who
// demands it, and for the hostname that had it.
func (s *Server) chooseLocked(w *wish, f *family) netip.Addr {
	ofFamily := func(a netip.Addr) bool { return a.Is6() == f.six }
	if i := slices.IndexFunc(w.required, ofFamily); i >= 0 {
		return w.required[i]
	}
	had := w.segment.memory.recall(w.hostname)
	candidates := slices.DeleteFunc(slices.Concat(w.preferred, had), func(a netip.Addr) bool {
		if !ofFamily(a) || f.pool.Check(a) != nil {
			return true
		}
		freedAt, freed := f.pool.FreedAt(a)
		return freed && freedAt > s.cooled(w.segment) && !slices.Contains(had, a)
	})
	if len(candidates) == 0 {
		return netip.Addr{}
	}
	return candidates[0]
}

// now returns the time by which addresses cool: nanoseconds since the Server began.
func (s *Server) now() int64 { return int64(time.Since(s.began)) }

// cooled returns the time up to which what was freed has cooled.
func (s *Server) cooled(g *segment) int64 { return s.now() - int64(g.Quarantine) }
