package server

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/pool"
	"github.com/fairlead-dev/fairlead/wire"
)

const (
	defaultMTU = 1500  // bytes: that of Ethernet
	minMTU     = 68    // bytes: RFC 791, 3.2
	maxMTU     = 65535 // bytes: the longest IPv4 packet
)

// A Network is a range of addresses to lease.
type Network struct {
	// Name is how requests name it; see network.CheckNetwork.
	Name string
	// Prefix is its IPv4 prefix. The gateway is the first usable address of it.
	Prefix netip.Prefix
	// MTU is that of its links, 68 to 65,535 bytes; zero: 1500.
	MTU int
}

// String returns the network as ParseNetwork takes it.
func (n Network) String() string { return n.Name + "=" + n.Prefix.String() }

// ParseNetwork takes a network in the form NAME=PREFIX, as default=10.88.0.0/24. The error is for people, and names the text.
func ParseNetwork(text string) (Network, error) {
	name, prefix, found := strings.Cut(text, "=")
	if !found {
		return Network{}, wire.Errorf(wire.Malformed, "network %q: want NAME=PREFIX, as %s=10.88.0.0/24", wire.Printable(text, 128), network.DefaultNetwork)
	}
	p, err := netip.ParsePrefix(prefix)
	if err != nil {
		return Network{}, wire.Errorf(wire.Malformed, "network %q: %q is no prefix: want an address and a length, as 10.88.0.0/24",
			wire.Printable(text, 128), wire.Printable(prefix, 64))
	}
	n := Network{Name: name, Prefix: p}
	if err := n.check(); err != nil {
		return Network{}, err
	}
	return n, nil
}

// check returns what is wrong with a network by itself.
func (n Network) check() error {
	err := network.CheckNetwork(n.Name)
	if err == nil {
		_, err = pool.New(n.Prefix)
	}
	switch {
	case err != nil:
	case n.Prefix.Addr().Is6():
		err = wire.Errorf(wire.Malformed, "its prefix is IPv6: want an IPv4 prefix")
	case n.MTU != 0 && (n.MTU < minMTU || n.MTU > maxMTU):
		err = wire.Errorf(wire.Malformed, "its MTU is %d: want %d to %d bytes", n.MTU, minMTU, maxMTU)
	}
	if err != nil {
		return wire.Errorf(wire.Malformed, "network %q: %s", wire.Printable(n.String(), 128), textOf(err))
	}
	return nil
}

// textOf returns an error's text without its code.
func textOf(err error) string {
	if e, ok := err.(*wire.Error); ok {
		return e.Text
	}
	return err.Error()
}

// CheckNetworks checks that networks can be served together: each by itself, no name twice, no prefix that overlaps another's.
func CheckNetworks(networks []Network) error {
	if len(networks) == 0 || len(networks) > network.MaxNetworks {
		return wire.Errorf(wire.Malformed, "%d networks: want 1 to %d", len(networks), network.MaxNetworks)
	}
	for i, n := range networks {
		if err := n.check(); err != nil {
			return err
		}
		for _, other := range networks[:i] {
			if n.Name == other.Name {
				return wire.Errorf(wire.Malformed, "network %s is given twice: as %v and as %v", n.Name, other.Prefix, n.Prefix)
			}
			if n.Prefix.Overlaps(other.Prefix) {
				return wire.Errorf(wire.Malformed, "networks %v and %v overlap: an address can be in one network only", other, n)
			}
		}
	}
	return nil
}

// A segment is one network of a Server, with what is leased of it. The Server's mutex guards it.
type segment struct {
	Network
	pool      *pool.Pool
	hostnames map[string]*lease
	macs      map[string]*lease
	dying     int       // addresses whose lease's session is over and that a witness keeps
	orphaned  int       // addresses of leases that are orphaned
	waiters   []*waiter // in the order they came; at most maxWaiters
}

func newSegment(n Network) (*segment, error) {
	p, err := pool.New(n.Prefix)
	if err != nil {
		return nil, fmt.Errorf("network %s: %w", n.Name, err)
	}
	if n.MTU == 0 {
		n.MTU = defaultMTU
	}
	return &segment{Network: n, pool: p, hostnames: map[string]*lease{}, macs: map[string]*lease{}}, nil
}

// info describes the segment. In doubt nothing is known to be free.
func (g *segment) info(doubt bool) network.NetworkInfo {
	total, taken := g.pool.Size(), uint64(g.pool.Len())
	orphaned := uint64(g.orphaned)
	info := network.NetworkInfo{
		Name: g.Name, Prefixes: []string{g.Prefix.String()}, Gateways: g.gateways(), MTU: g.MTU,
		Total: total, Held: taken - orphaned, Orphaned: orphaned, Free: total - taken,
	}
	if doubt {
		info.Orphaned, info.Free = info.Orphaned+info.Free, 0
	}
	return info
}

func (g *segment) gateways() []string { return []string{g.pool.Gateway().String()} }
