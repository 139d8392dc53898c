package server

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/pool"
	"github.com/fairlead-dev/fairlead/wire"
)

// A rulebook collects the breaches of one network.
type rulebook []Breach

func (r *rulebook) add(key, format string, args ...any) {
	*r = append(*r, Breach{Key: key, Rule: fmt.Sprintf(format, args...)})
}

// addErr adds what an error says, if there is one.
func (r *rulebook) addErr(key string, i int, err error) {
	if err != nil {
		r.add(fmt.Sprintf("%s[%d]", key, i), "%s", textOf(err))
	}
}

// breaches returns what is wrong with a network by itself.
func (n Network) breaches() []Breach {
	var r rulebook
	if err := network.CheckNetwork(n.Name); err != nil {
		r.add("name", "%s", textOf(err))
	}
	r.prefixes(n)
	if len(r) == 0 { // the rest is held against the prefixes
		r.addresses(n)
	}
	if len(r) == 0 {
		for _, six := range []bool{false, true} {
			if c := n.family(six); len(c.Prefixes) > 0 {
				if _, err := pool.New(c); err != nil {
					r.add("prefixes", "%s", textOf(err))
				}
			}
		}
	}
	r.rest(n)
	return r
}

func (r *rulebook) prefixes(n Network) {
	if len(n.Prefixes) == 0 || len(n.Prefixes) > network.MaxAddresses {
		r.add("prefixes", "%d prefixes: want 1 to %d", len(n.Prefixes), network.MaxAddresses)
		return
	}
	for i, p := range n.Prefixes {
		err := pool.CheckPrefix(p)
		r.addErr("prefixes", i, err)
		for _, other := range n.Prefixes[:i] {
			if err == nil && p.Overlaps(other) {
				r.add(fmt.Sprintf("prefixes[%d]", i), "%v overlaps %v of the same network", p, other)
			}
		}
	}
}

// addresses checks what is in the prefixes.
func (r *rulebook) addresses(n Network) {
	if n.NoGateway && len(n.Gateways) > 0 {
		r.add("gateway", "the network is to have %d gateways, and none", len(n.Gateways))
	}
	taken := map[netip.Prefix]netip.Addr{}
	for i, g := range n.Gateways {
		err := pool.CheckGateway(g, n.Prefixes)
		r.addErr("gateway", i, err)
		if prefix, ok := n.prefixOf(g); ok && err == nil {
			if other, twice := taken[prefix]; twice {
				r.add(fmt.Sprintf("gateway[%d]", i), "%v and %v are both gateways of %v: want one", other, g, prefix)
			}
			taken[prefix] = g
		}
	}
	for _, list := range []struct {
		key    string
		ranges []pool.Range
	}{{"ranges", n.Ranges}, {"static", n.Static}, {"reserved", n.Reserved}} {
		if len(list.ranges) > maxRanges {
			r.add(list.key, "%d ranges: want at most %d", len(list.ranges), maxRanges)
			continue
		}
		for i, one := range list.ranges {
			r.addErr(list.key, i, pool.CheckRange(one, n.Prefixes, list.key != "reserved"))
		}
	}
	r.routes(n)
}

// routes checks where the routes lead, and by which addresses.
func (r *rulebook) routes(n Network) {
	if len(n.Routes) > network.MaxRoutes {
		r.add("routes", "%d routes: want at most %d", len(n.Routes), network.MaxRoutes)
	}
	for i, route := range n.Routes {
		key := fmt.Sprintf("routes[%d]", i)
		_, direct := n.prefixOf(route.Via)
		switch err := pool.CheckAddr(route.Via); {
		case err != nil:
			r.add(key+".via", "%s", textOf(err))
		case !direct:
			r.add(key+".via", "the route leads by %v, which is in no prefix of the network", route.Via)
		}
		switch {
		case !route.To.IsValid():
			r.add(key+".to", "the route leads to no prefix")
		case route.To != route.To.Masked():
			r.add(key+".to", "the prefix %v has bits set after the first %d; write %v", route.To, route.To.Bits(), route.To.Masked())
		case direct && route.To.Addr().Is4() != route.Via.Is4():
			r.add(key+".to", "the route leads to %v by %v, which is of the other address family", route.To, route.Via)
		}
	}
}

// rest checks what has nothing to do with the prefixes.
func (r *rulebook) rest(n Network) {
	least := minMTU
	if slices.ContainsFunc(n.Prefixes, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		least = minMTU6
	}
	if n.MTU != 0 && (n.MTU < least || n.MTU > maxMTU) {
		r.add("mtu", "its MTU is %d: want %d to %d bytes", n.MTU, least, maxMTU)
	}
	switch m := n.MACPrefix; {
	case len(m) == 0:
	case len(m) > maxMACPrefix:
		r.add("mac_prefix", "the prefix %v of MACs has %d octets: want 1 to %d", m, len(m), maxMACPrefix)
	case m[0]&1 != 0:
		r.add("mac_prefix", "the prefix %v of MACs is one of multicast addresses: the first octet must be even", m)
	case m[0]&2 == 0:
		r.add("mac_prefix", "the prefix %v of MACs is one that is assigned to makers: take a locally administered one, as 02:42", m)
	}
	if len(n.DNS) > network.MaxAddresses {
		r.add("dns", "%d servers: want at most %d", len(n.DNS), network.MaxAddresses)
	}
	for i, d := range n.DNS {
		r.addErr("dns", i, pool.CheckAddr(d))
	}
	if len(n.Search) > network.MaxSearch {
		r.add("search", "%d names: want at most %d", len(n.Search), network.MaxSearch)
	}
	for i, name := range n.Search {
		host, err := network.CanonicalHostname(name)
		if err == nil && host == "" {
			err = wire.Errorf(wire.Malformed, "the name is empty")
		}
		r.addErr("search", i, err)
	}
	if n.Quarantine < 0 || n.Quarantine > maxQuarantine {
		r.add("quarantine", "a quarantine of %v: want 0 s to %v", n.Quarantine, maxQuarantine)
	}
	if n.MaxLeases < 0 || n.MaxLeases > mostLeases {
		r.add("max_leases", "%d leases: want 1 to %d", n.MaxLeases, mostLeases)
	}
}

// textOf returns an error's text without its code.
func textOf(err error) string {
	if e, ok := err.(*wire.Error); ok {
		return e.Text
	}
	return err.Error()
}
