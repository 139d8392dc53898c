package network

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/fairlead-dev/fairlead/wire"
)

// Endpoint is the network service's endpoint.
const Endpoint = "fairlead.network"

// The methods of Endpoint.
const (
	MethodAllocate = "allocate" // AllocateRequest, answered with LeaseInfo
	MethodRelease  = "release"  // LeaseRef, answered with nothing
	MethodWithdraw = "withdraw" // Withdrawal, one-way
	MethodWitness  = "witness"  // WitnessRequest, answered with nothing
	MethodLeases   = "leases"   // ListRequest, answered with LeasePage
	MethodLookup   = "lookup"   // LookupRequest, answered with LeaseInfo
	MethodNetworks = "networks" // an empty map, answered with NetworkList
	MethodEvict    = "evict"    // LeaseRef, answered with nothing
	MethodInspect  = "inspect"  // InspectRequest, answered with LeaseInfo
	MethodWatch    = "watch"    // WatchRequest, a streaming call of Changes
	MethodReload   = "reload"   // an empty map, answered with Reloaded
	MethodCounters = "counters" // an empty map, answered with Counters
)

// The states of a lease.
const (
	StateHeld     = "held"     // its session is open
	StateDying    = "dying"    // its session is over, and a witness lives
	StateOrphaned = "orphaned" // the network service was lost meanwhile, and a witness or the former holder lives
)

// Bounds of what the messages may say.
const (
	MaxWitnesses = 16   // witnesses of one lease
	MaxPage      = 2000 // leases in one LeasePage
	MaxAddresses = 16   // addresses, gateways and DNS servers of one lease, and prefixes of one network
	MaxAliases   = 16   // aliases of one lease
	MaxSearch    = 16   // names in a network's search list
	MaxRoutes    = 64   // routes of one network
	MaxNetworks  = 1024 // networks of one service
	MaxWithdraw  = 64   // earlier allocates that one AllocateRequest withdraws

	minWithdraw = 16 // bytes of a token by which that is done: no two of a user's are the same by chance
	maxToken    = 64 // bytes

	secretSize = 32               // bytes of a lease's secret: 128 bits in hexadecimal
	maxKept    = MaxWitnesses + 1 // what a lease may hang on: its former holder, too
)

// An AllocateRequest is a Request on its way.
type AllocateRequest struct {
	Network  string   `msgpack:"n,omitempty"`
	Hostname string   `msgpack:"h,omitempty"`
	Witness  *os.File `msgpack:"w,omitempty"` // a pidfd or a network namespace; nil: none
	Token    string   `msgpack:"k,omitempty"` // names the lease to withdraw, if its reply does not come

	Aliases   []string `msgpack:"l,omitempty"` // further hostnames
	Addresses []string `msgpack:"a,omitempty"` // these and no others: at most one of each family, without a prefix length
	Preferred []string `msgpack:"p,omitempty"` // these where they are free: likewise
	MAC       string   `msgpack:"m,omitempty"` // this and no other; empty: one is made

	Reclaim string `msgpack:"r,omitempty"` // the id of a lease to take back; then nothing of the above is asked for but perhaps a witness
	Secret  string `msgpack:"f,omitempty"` // of that lease

	// Withdraw are the tokens, of 16 bytes or more, of allocates whose replies did not come before their sessions ended. What the caller's uid has by them and no
	// session holds is over, and recorded so, before the request is served.
	Withdraw []string `msgpack:"o,omitempty"`
}

// Validate checks an AllocateRequest that was received.
func (r *AllocateRequest) Validate() error {
	if len(r.Token) > maxToken || !utf8.ValidString(r.Token) {
		return wire.Errorf(wire.Malformed, "allocate: token of %d bytes: want UTF-8 of at most %d", len(r.Token), maxToken)
	}
	if len(r.Withdraw) > MaxWithdraw {
		return wire.Errorf(wire.Malformed, "allocate: %d tokens to withdraw, limit %d", len(r.Withdraw), MaxWithdraw)
	}
	for _, token := range r.Withdraw {
		if len(token) < minWithdraw || len(token) > maxToken {
			return wire.Errorf(wire.Malformed, "allocate: a token to withdraw of %d bytes: want %d to %d", len(token), minWithdraw, maxToken)
		}
	}
	if err := checkNames("allocate", r.Network, r.Hostname); err != nil {
		return err
	}
	if _, err := CanonicalAliases(r.Aliases); err != nil {
		return fmt.Errorf("allocate: %w", err)
	}
	if _, err := ParseAddresses(r.Addresses); err != nil {
		return fmt.Errorf("allocate: %w", err)
	}
	if _, err := ParseAddresses(r.Preferred); err != nil {
		return fmt.Errorf("allocate, preferred: %w", err)
	}
	if _, err := CanonicalMAC(r.MAC); err != nil {
		return fmt.Errorf("allocate: %w", err)
	}
	return r.checkReclaim()
}

// checkReclaim checks that a request that takes a lease back asks for nothing else.
func (r *AllocateRequest) checkReclaim() error {
	if r.Reclaim == "" && r.Secret == "" {
		return nil
	}
	if err := CheckLeaseID(r.Reclaim); err != nil {
		return fmt.Errorf("reclaim: %w", err)
	}
	if len(r.Secret) != secretSize {
		return wire.Errorf(wire.Malformed, "reclaim lease %s: secret of %d bytes, want %d", r.Reclaim, len(r.Secret), secretSize)
	}
	if r.Token != "" || r.Network != "" || r.Hostname != "" || r.MAC != "" || len(r.Aliases)+len(r.Addresses)+len(r.Preferred) > 0 {
		return wire.Errorf(wire.Malformed, "reclaim lease %s: the request asks for more than the lease, which is as it was", r.Reclaim)
	}
	return nil
}

// A LeaseRef names a lease: of the caller's session, or one that no session holds.
type LeaseRef struct {
	Lease string `msgpack:"l"`
}

// Validate checks a LeaseRef that was received.
func (r *LeaseRef) Validate() error { return CheckLeaseID(r.Lease) }

// A Withdrawal gives back, whole and at once, the lease that was asked for with a token and whose reply did not reach the caller.
type Withdrawal struct {
	Token string `msgpack:"k"`
}

// Validate checks a Withdrawal that was received.
func (w *Withdrawal) Validate() error {
	if w.Token == "" || len(w.Token) > maxToken {
		return wire.Errorf(wire.Malformed, "withdraw: token of %d bytes", len(w.Token))
	}
	return nil
}

// A WitnessRequest adds a witness to a lease of the caller's session.
type WitnessRequest struct {
	Lease   string   `msgpack:"l"`
	Witness *os.File `msgpack:"w"` // a pidfd, or a network namespace
}

// Validate checks a WitnessRequest that was received.
func (r *WitnessRequest) Validate() error {
	if r.Witness == nil {
		return wire.Errorf(wire.Malformed, "add a witness: its descriptor is missing")
	}
	return CheckLeaseID(r.Lease)
}

// A ListRequest asks for the leases of one network, or of all if Network is empty. They come in pages, in the order of their ids.
type ListRequest struct {
	Network string `msgpack:"n,omitempty"`
	Session string `msgpack:"s,omitempty"` // only those that this session holds, or has held; empty: those of all
	After   string `msgpack:"a,omitempty"` // the Next of the page before; List sets it
}

// Validate checks a ListRequest that was received.
func (r *ListRequest) Validate() error {
	if r.After != "" {
		if err := CheckLeaseID(r.After); err != nil {
			return err
		}
	}
	if r.Session != "" {
		if err := wire.CheckID(r.Session); err != nil {
			return err
		}
	}
	return checkNames("list leases", r.Network, "")
}

// A LookupRequest asks who has a hostname.
type LookupRequest struct {
	Network  string `msgpack:"n,omitempty"`
	Hostname string `msgpack:"h"`
}

// Validate checks a LookupRequest that was received.
func (r *LookupRequest) Validate() error {
	if r.Hostname == "" {
		return wire.Errorf(wire.Malformed, "look up: no hostname is given")
	}
	return checkNames("look up", r.Network, r.Hostname)
}

// checkNames checks the network and the hostname of a request, either of which may be empty.
func checkNames(what, network, hostname string) error {
	if network != "" {
		if err := CheckNetwork(network); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	if _, err := CanonicalHostname(hostname); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// A Holder is the process whose session allocated a lease. PID is its number in the pid namespace of the network service.
type Holder struct {
	PID int    `msgpack:"p,omitempty" json:"pid"`
	UID uint32 `msgpack:"u,omitempty" json:"uid"`
}

// A LeaseInfo describes a lease.
type LeaseInfo struct {
	ID          string    `msgpack:"i" json:"id"`
	Network     string    `msgpack:"n" json:"network"`
	Hostname    string    `msgpack:"h,omitempty" json:"hostname"`
	Addresses   []string  `msgpack:"a" json:"addresses"` // each with its prefix length, as 10.88.0.2/24
	Gateways    []string  `msgpack:"g" json:"gateways"`
	MAC         string    `msgpack:"m" json:"mac"`
	MTU         int       `msgpack:"u" json:"mtu"`   // in bytes
	State       string    `msgpack:"s" json:"state"` // State…
	AllocatedAt wire.Time `msgpack:"t" json:"allocated_at"`
	Session     string    `msgpack:"e" json:"session"`     // the id of the session that allocated it
	Holder      Holder    `msgpack:"o" json:"holder"`      // the client of that session
	Broker      string    `msgpack:"b,omitempty" json:"-"` // only in the reply to allocate: the path of the broker's socket
	Secret      string    `msgpack:"f,omitempty" json:"-"` // only in the reply to allocate: proves that one held the lease

	Aliases  []string    `msgpack:"l,omitempty" json:"aliases,omitempty"`
	MACGiven bool        `msgpack:"x,omitempty" json:"mac_given,omitempty"` // the MAC was asked for, and not made
	DNS      []string    `msgpack:"d,omitempty" json:"dns,omitempty"`       // this, Search and Routes: the network's, only in the reply to allocate
	Search   []string    `msgpack:"c,omitempty" json:"search,omitempty"`
	Routes   []RouteInfo `msgpack:"r,omitempty" json:"routes,omitempty"`

	Witnesses []WitnessInfo `msgpack:"w,omitempty" json:"witnesses,omitempty"` // what its addresses are kept for beside the session; not in the reply to allocate
}

// A WitnessInfo names what a lease hangs on: a process, by its number in the pid namespace of the network service, or a network namespace, by its inode,
// as 'ls -iL' shows it of /proc/PID/ns/net.
type WitnessInfo struct {
	PID       int    `msgpack:"p,omitempty" json:"pid,omitempty"`
	Namespace uint64 `msgpack:"n,omitempty" json:"namespace,omitempty"`
}

// A RouteInfo is a Route on its way.
type RouteInfo struct {
	To  string `msgpack:"t" json:"to"`  // a prefix
	Via string `msgpack:"v" json:"via"` // an address
}

// Validate checks a LeaseInfo that was received.
func (l *LeaseInfo) Validate() error {
	if err := CheckLeaseID(l.ID); err != nil {
		return err
	}
	if err := CheckNetwork(l.Network); err != nil {
		return err
	}
	host, err := CanonicalHostname(l.Hostname)
	if err == nil && host != l.Hostname {
		err = wire.Errorf(wire.Malformed, "hostname %s is not in its canonical form", host)
	}
	if err != nil {
		return err
	}
	if _, err := net.ParseMAC(l.MAC); err != nil {
		return wire.Errorf(wire.Malformed, "lease %s: MAC of %d bytes", l.ID, len(l.MAC))
	}
	if len(l.Addresses) == 0 || l.MTU < 0 || l.Holder.PID < 0 || len(l.State) > 32 || len(l.Session) > 64 || len(l.Broker) > 107 ||
		len(l.Secret) > secretSize || len(l.Witnesses) > maxKept {
		return wire.Errorf(wire.Malformed, "lease %s: %d addresses, MTU %d", l.ID, len(l.Addresses), l.MTU)
	}
	if aliases, err := CanonicalAliases(l.Aliases); err != nil || !slices.Equal(aliases, l.Aliases) {
		return wire.Errorf(wire.Malformed, "lease %s: %d aliases, not in their canonical form", l.ID, len(l.Aliases))
	}
	if err := checkAddresses(l.Addresses, l.Gateways); err != nil {
		return err
	}
	return checkResolution(l.DNS, l.Search, l.Routes)
}

// checkResolution checks what else a network tells its hosts.
func checkResolution(dns, search []string, routes []RouteInfo) error {
	if len(search) > MaxSearch || len(routes) > MaxRoutes {
		return wire.Errorf(wire.Malformed, "%d names to search and %d routes, limits %d and %d", len(search), len(routes), MaxSearch, MaxRoutes)
	}
	for _, name := range search {
		if host, err := CanonicalHostname(name); err != nil || host == "" {
			return wire.Errorf(wire.Malformed, "name to search %q: want a DNS name", wire.Printable(name, 64))
		}
	}
	for _, r := range routes {
		if err := checkAddresses([]string{r.To}, []string{r.Via}); err != nil {
			return err
		}
	}
	return checkAddresses(nil, dns)
}

// checkAddresses checks that prefixes are addresses with a prefix length, and gateways are addresses.
func checkAddresses(prefixes, gateways []string) error {
	if len(prefixes) > MaxAddresses || len(gateways) > MaxAddresses {
		return wire.Errorf(wire.Malformed, "%d addresses and %d gateways, limit %d", len(prefixes), len(gateways), MaxAddresses)
	}
	for _, p := range prefixes {
		if _, err := netip.ParsePrefix(p); err != nil {
			return wire.Errorf(wire.Malformed, "address %q: want one with a prefix length, as 10.88.0.2/24", wire.Printable(p, 64))
		}
	}
	for _, g := range gateways {
		if _, err := netip.ParseAddr(g); err != nil {
			return wire.Errorf(wire.Malformed, "gateway %q: want an address", wire.Printable(g, 64))
		}
	}
	return nil
}

// A LeasePage is a part of a list.
type LeasePage struct {
	Leases []LeaseInfo `msgpack:"l"`
	Next   string      `msgpack:"n,omitempty"` // what the next request has as After; empty: there is no more
}

// Validate checks a LeasePage that was received.
func (p *LeasePage) Validate() error {
	if len(p.Leases) > MaxPage {
		return wire.Errorf(wire.Malformed, "%d leases in one page, limit %d", len(p.Leases), MaxPage)
	}
	for i := range p.Leases {
		if err := p.Leases[i].Validate(); err != nil {
			return err
		}
	}
	if p.Next != "" && (len(p.Leases) == 0 || p.Next != p.Leases[len(p.Leases)-1].ID) {
		return wire.Errorf(wire.Malformed, "a page of leases goes on after a lease that is not its last")
	}
	return nil
}

// A NetworkInfo describes a network and how many of its addresses have which state: Held, Orphaned, Reserved, Cooling and Free together are Total. A network with
// both address families counts those of the one that has fewer: a lease has one of each. The largest uint64 stands for itself and more.
type NetworkInfo struct {
	Name     string   `msgpack:"n" json:"name"`
	Prefixes []string `msgpack:"p" json:"prefixes"`
	Gateways []string `msgpack:"g" json:"gateways"`
	MTU      int      `msgpack:"u" json:"mtu"`      // in bytes
	Total    uint64   `msgpack:"t" json:"total"`    // addresses that hosts may have, without the gateways
	Held     uint64   `msgpack:"h" json:"held"`     // also those of dying leases
	Orphaned uint64   `msgpack:"o" json:"orphaned"` // while the record of an earlier instance cannot be read: all that could be given out, too
	Free     uint64   `msgpack:"f" json:"free"`

	Reserved   uint64        `msgpack:"r,omitempty" json:"reserved"` // not given to who does not ask for them, if at all: reserved, static, or in no range
	Cooling    uint64        `msgpack:"c,omitempty" json:"cooling"`  // in quarantine: given only where none is free
	Leases     int           `msgpack:"l,omitempty" json:"leases"`
	MaxLeases  int           `msgpack:"x,omitempty" json:"max_leases"`
	Quarantine time.Duration `msgpack:"q,omitempty" json:"quarantine"` // in nanoseconds
	MACPrefix  string        `msgpack:"m,omitempty" json:"mac_prefix,omitempty"`
	DNS        []string      `msgpack:"d,omitempty" json:"dns,omitempty"`
	Search     []string      `msgpack:"s,omitempty" json:"search,omitempty"`
	Routes     []RouteInfo   `msgpack:"w,omitempty" json:"routes,omitempty"`
}

// A NetworkList is all networks, by name.
type NetworkList struct {
	Networks []NetworkInfo `msgpack:"n"`
}

// Validate checks a NetworkList that was received.
func (l *NetworkList) Validate() error {
	if len(l.Networks) > MaxNetworks {
		return wire.Errorf(wire.Malformed, "%d networks, limit %d", len(l.Networks), MaxNetworks)
	}
	for _, n := range l.Networks {
		if err := CheckNetwork(n.Name); err != nil {
			return err
		}
		if err := checkAddresses(n.Prefixes, n.Gateways); err != nil {
			return err
		}
		if err := checkResolution(n.DNS, n.Search, n.Routes); err != nil {
			return err
		}
		if len(n.MACPrefix) > 17 || n.Leases < 0 || n.MaxLeases < 0 || n.Quarantine < 0 {
			return wire.Errorf(wire.Malformed, "network %s: %d leases of %d, quarantine %v", n.Name, n.Leases, n.MaxLeases, n.Quarantine)
		}
	}
	return nil
}
