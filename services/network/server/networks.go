package server

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/pool"
	"github.com/fairlead-dev/fairlead/wire"
)

const (
	defaultMTU       = 1500  // bytes: that of Ethernet
	minMTU           = 68    // bytes: RFC 791, 3.2
	minMTU6          = 1280  // bytes: RFC 8200, 5
	maxMTU           = 65535 // bytes: the longest IPv4 packet
	maxQuarantine    = 24 * time.Hour
	maxMACPrefix     = 3 // octets: what is left is enough for 16 million leases
	maxRanges        = 1024
	defaultMaxLeases = 65536
	mostLeases       = 4 << 20 // a quarter of the MACs that one prefix leaves
)

// A Network is addresses to lease, and what their hosts are told.
type Network struct {
	// Name is how requests name it; see network.CheckNetwork.
	Name string
	// Prefixes are its IPv4 and IPv6 prefixes: 1 to network.MaxAddresses, in the order in which they are given from. A lease has one address of each family.
	Prefixes []netip.Prefix
	// Gateways are kept out, and told to those who get an address of the same prefix: at most one in each. Empty: the first usable address of each prefix,
	// or with NoGateway none at all.
	Gateways  []netip.Addr
	NoGateway bool
	// Ranges are what is given of a prefix, Static what only those get who ask for it, Reserved what nobody gets: see pool.Config. At most 1,024 of each.
	Ranges, Static, Reserved []pool.Range
	// MTU is that of its links, 68 to 65,535 bytes, and with IPv6 at least 1,280; zero: 1500.
	MTU int
	// MACPrefix is what the MACs that are made begin with: 1 to 3 octets, locally administered and unicast. Empty: any such.
	MACPrefix net.HardwareAddr
	// DNS are servers, at most network.MaxAddresses, and Search domains, at most network.MaxSearch.
	DNS    []netip.Addr
	Search []string
	// Routes lead by addresses of its prefixes; at most network.MaxRoutes.
	Routes []network.Route
	// Quarantine is how long an address that was given back is not given out while there are others; at most 24 h.
	Quarantine time.Duration
	// Forgets: a hostname that comes back gets any address. Otherwise it gets the one that it last had, if that is free.
	Forgets bool
	// MaxLeases is how many leases there may be; at most 4,194,304; zero: 65,536.
	MaxLeases int
}

// String returns the network as ParseNetwork takes it.
func (n Network) String() string {
	texts := make([]string, len(n.Prefixes))
	for i, p := range n.Prefixes {
		texts[i] = p.String()
	}
	return n.Name + "=" + strings.Join(texts, ",")
}

// ParseNetwork takes a network in the form NAME=PREFIX[,PREFIX...], as default=10.88.0.0/24. The error is for people, and names the text.
func ParseNetwork(text string) (Network, error) {
	name, prefixes, found := strings.Cut(text, "=")
	if !found {
		return Network{}, wire.Errorf(wire.Malformed, "network %q: want NAME=PREFIX, as %s=10.88.0.0/24", wire.Printable(text, 128), network.DefaultNetwork)
	}
	n := Network{Name: name}
	for prefix := range strings.SplitSeq(prefixes, ",") {
		p, err := netip.ParsePrefix(prefix)
		if err != nil {
			return Network{}, wire.Errorf(wire.Malformed, "network %q: %q is no prefix: want an address and a length, as 10.88.0.0/24",
				wire.Printable(text, 128), wire.Printable(prefix, 64))
		}
		n.Prefixes = append(n.Prefixes, p)
	}
	if list := n.breaches(); len(list) > 0 {
		return Network{}, list[0].err(n)
	}
	return n, nil
}

// A Breach is a rule that a network breaks.
type Breach struct {
	Network int    // which one it is, from 0 on
	Key     string // what of it, as network.toml calls it, perhaps with an index: "prefixes[1]"
	Rule    string // for people
}

func (b Breach) err(n Network) error {
	return wire.Errorf(wire.Malformed, "network %q: %s", wire.Printable(n.String(), 128), b.Rule)
}

// CheckNetworks checks that networks can be served together. The error is the first of Breaches.
func CheckNetworks(networks []Network) error {
	if len(networks) == 0 || len(networks) > network.MaxNetworks {
		return wire.Errorf(wire.Malformed, "%d networks: want 1 to %d", len(networks), network.MaxNetworks)
	}
	if list := Breaches(networks); len(list) > 0 {
		return list[0].err(networks[list[0].Network])
	}
	return nil
}

// Breaches returns what is wrong with networks: with each by itself, names that are there twice, and prefixes that overlap those of others.
func Breaches(networks []Network) []Breach {
	var all []Breach
	names := map[string]int{}
	for i, n := range networks {
		list := n.breaches()
		if first, twice := names[n.Name]; twice {
			list = append(list, Breach{Key: "name", Rule: fmt.Sprintf("network %s is there twice: as %v and as %v", n.Name, networks[first], n)})
		} else {
			names[n.Name] = i
		}
		for _, b := range list {
			b.Network = i
			all = append(all, b)
		}
	}
	return append(all, overlaps(networks)...)
}

// overlaps returns the prefixes that overlap those of other networks. Two prefixes do so only where one has the other in it.
func overlaps(networks []Network) []Breach {
	type place struct {
		prefix         netip.Prefix
		network, index int
	}
	var places []place
	for i, n := range networks {
		for j, p := range n.Prefixes {
			if p.IsValid() {
				places = append(places, place{p.Masked(), i, j})
			}
		}
	}
	slices.SortStableFunc(places, func(a, b place) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
	})
	var list []Breach
	for i, wide := 1, 0; i < len(places); i++ {
		a, b := places[wide], places[i]
		if !a.prefix.Overlaps(b.prefix) {
			wide = i
			continue
		}
		if a.network == b.network { // told by the network itself
			continue
		}
		if a.network > b.network {
			a, b = b, a
		}
		list = append(list, Breach{Network: b.network, Key: fmt.Sprintf("prefixes[%d]", b.index), Rule: fmt.Sprintf(
			"%v and %v of network %s overlap: an address can be in one network only", b.prefix, a.prefix, wire.Printable(networks[a.network].Name, 64))})
	}
	return list
}

// prefixOf returns the prefix that addr is in.
func (n Network) prefixOf(addr netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(n.Prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return n.Prefixes[i], true
}

// gateways returns the addresses that are kept out as gateways, in the order of the prefixes. These are right.
func (n Network) gateways() []netip.Addr {
	var list []netip.Addr
	for _, p := range n.Prefixes {
		switch i := slices.IndexFunc(n.Gateways, p.Contains); {
		case i >= 0:
			list = append(list, n.Gateways[i])
		case len(n.Gateways) == 0 && !n.NoGateway:
			list = append(list, pool.FirstUsable(p))
		}
	}
	return list
}

// family returns what a pool has of one address family of the network.
func (n Network) family(six bool) pool.Config {
	other := func(addr netip.Addr) bool { return addr.Is6() != six }
	ranges := func(list []pool.Range) []pool.Range {
		return slices.DeleteFunc(slices.Clone(list), func(r pool.Range) bool { return other(r.First) })
	}
	return pool.Config{
		Prefixes: slices.DeleteFunc(slices.Clone(n.Prefixes), func(p netip.Prefix) bool { return other(p.Addr()) }),
		Gateways: slices.DeleteFunc(n.gateways(), other),
		Ranges:   ranges(n.Ranges), Static: ranges(n.Static), Reserved: ranges(n.Reserved),
	}
}

// withDefaults returns the network with its defaults in place of zero values.
func (n Network) withDefaults() Network {
	n.MTU = cmp.Or(n.MTU, defaultMTU)
	n.MaxLeases = cmp.Or(n.MaxLeases, defaultMaxLeases)
	return n
}
