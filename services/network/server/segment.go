package server

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/pool"
)

// A segment is one network of a Server, with what is leased of it. The Server's mutex guards it.
type segment struct {
	Network
	families []*family         // IPv4 before IPv6
	names    map[string]*lease // by hostname and alias
	addrs    map[netip.Addr]*lease
	macs     map[string]*lease
	memory   memory
	count    int                 // leases
	oldest   *lease              // of these the first one, in the order in which they were allocated
	newest   *lease              // and the last one
	unheld   map[*lease]struct{} // of these those that are dying or orphaned
	waiters  []*waiter           // in the order they came; at most maxWaiters
}

// A family is the addresses of one address family of a segment.
type family struct {
	six      bool
	pool     *pool.Pool
	dying    int // addresses whose lease's session is over and that a witness keeps
	orphaned int // addresses of leases that are orphaned
}

func newSegment(n Network) (*segment, error) {
	g := &segment{names: map[string]*lease{}, addrs: map[netip.Addr]*lease{}, macs: map[string]*lease{}, unheld: map[*lease]struct{}{}}
	families, err := newFamilies(n)
	if err != nil {
		return nil, err
	}
	g.Network, g.families = n.withDefaults(), families
	return g, nil
}

func newFamilies(n Network) ([]*family, error) {
	var list []*family
	for _, six := range []bool{false, true} {
		c := n.family(six)
		if len(c.Prefixes) == 0 {
			continue
		}
		p, err := pool.New(c)
		if err != nil {
			return nil, fmt.Errorf("network %s: %w", n.Name, err)
		}
		list = append(list, &family{six: six, pool: p})
	}
	return list, nil
}

// familyOf returns the family of an address; nil if the network has none of it.
func (g *segment) familyOf(addr netip.Addr) *family {
	i := slices.IndexFunc(g.families, func(f *family) bool { return f.six == addr.Is6() })
	if i < 0 {
		return nil
	}
	return g.families[i]
}

// addressOf returns an address of the segment with the length of its prefix.
func (g *segment) addressOf(addr netip.Addr) netip.Prefix {
	p, _ := g.prefixOf(addr)
	return netip.PrefixFrom(addr, p.Bits())
}

// cools reports whether an address that was given back may be in quarantine: static ones are not.
func (g *segment) cools(addr netip.Prefix) bool {
	f := g.familyOf(addr.Addr())
	if f == nil {
		return false
	}
	_, freed := f.pool.FreedAt(addr.Addr())
	return freed
}

// counts are those of one family. What is freed after the given time is cooling.
type counts struct {
	pool.Counts
	orphaned uint64 // not in Held
}

// counts counts the addresses of a family. In doubt nothing is known to be free.
func (f *family) counts(after int64, doubt bool) counts {
	c := counts{Counts: f.pool.Counts(after), orphaned: uint64(f.orphaned)}
	c.Held -= c.orphaned
	if doubt {
		c.orphaned += c.Free + c.Cooling
		c.Free, c.Cooling = 0, 0
	}
	return c
}

// countsLocked returns the counts of the family that has the fewest addresses.
func (s *Server) countsLocked(g *segment) counts {
	var least counts
	for i, f := range g.families {
		if c := f.counts(s.cooled(g), s.doubt != nil); i == 0 || c.Total < least.Total {
			least = c
		}
	}
	return least
}

// infoLocked describes the segment.
func (s *Server) infoLocked(g *segment) network.NetworkInfo {
	c := s.countsLocked(g)
	info := network.NetworkInfo{
		Name: g.Name, Gateways: texts(g.gateways()), MTU: g.MTU,
		Total: c.Total, Held: c.Held, Orphaned: c.orphaned, Free: c.Free, Reserved: c.Reserved, Cooling: c.Cooling,
		Leases: g.count, MaxLeases: g.MaxLeases, Quarantine: g.Quarantine, MACPrefix: g.MACPrefix.String(),
		DNS: texts(g.DNS), Search: g.Search, Routes: g.routes(),
	}
	info.Prefixes = texts(g.Prefixes)
	return info
}

func (g *segment) routes() []network.RouteInfo {
	var list []network.RouteInfo
	for _, r := range g.Routes {
		list = append(list, network.RouteInfo{To: r.To.String(), Via: r.Via.String()})
	}
	return list
}

// texts returns values as they are written. It is never nil.
func texts[T fmt.Stringer](values []T) []string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = v.String()
	}
	return list
}

// enter takes a lease in. Its addresses are held in the pool.
func (g *segment) enter(l *lease) {
	g.macs[l.mac] = l
	for _, name := range l.names() {
		g.names[name] = l
	}
	for _, a := range l.addresses {
		g.addrs[a.Addr()] = l
	}
	g.count++
	l.before = g.newest
	if g.newest == nil {
		g.oldest = l
	} else {
		g.newest.after = l
	}
	g.newest = l
	g.tally(l, 1)
}

// leave takes a lease out, and frees what it has.
func (g *segment) leave(l *lease, now int64) {
	g.tally(l, -1)
	delete(g.macs, l.mac)
	for _, name := range l.names() {
		delete(g.names, name)
	}
	for _, a := range l.addresses {
		delete(g.addrs, a.Addr())
		if f := g.familyOf(a.Addr()); f != nil {
			f.pool.Release(a.Addr(), now)
		}
	}
	g.count--
	if l.before == nil {
		g.oldest = l.after
	} else {
		l.before.after = l.after
	}
	if l.after == nil {
		g.newest = l.before
	} else {
		l.after.before = l.before
	}
	l.before, l.after = nil, nil
}

// tally adds a lease, n times, and its addresses to those of its state.
func (g *segment) tally(l *lease, n int) {
	switch {
	case l.state != dying && l.state != orphaned:
	case n > 0:
		g.unheld[l] = struct{}{}
	default:
		delete(g.unheld, l)
	}
	for _, a := range l.addresses {
		f := g.familyOf(a.Addr())
		switch l.state {
		case dying:
			f.dying += n
		case orphaned:
			f.orphaned += n
		}
	}
}

// newMAC makes a hardware address that nobody in the segment has: with its prefix or, without one, locally administered and unicast, by the two lowest bits of its
// first octet (IEEE 802, 8.2). The limit of leases leaves most of them free.
func (g *segment) newMAC() string {
	for {
		mac := make(net.HardwareAddr, 6)
		rand.Read(mac)
		mac[0] = mac[0]&^0x01 | 0x02
		copy(mac, g.MACPrefix)
		if text := mac.String(); g.macs[text] == nil {
			return text
		}
	}
}

// newIDLocked returns the id of a new lease.
func (s *Server) newIDLocked() string {
	for {
		var b [8]byte
		rand.Read(b[:])
		if id := hex.EncodeToString(b[:]); s.leases[id] == nil {
			return id
		}
	}
}
