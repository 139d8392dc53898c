package server_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/pool"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// with is one network, changed.
func with(t *testing.T, text string, change func(*server.Network)) []server.Network {
	t.Helper()
	list := networks(t, text)
	change(&list[0])
	return list
}

func ranges(t *testing.T, texts ...string) []pool.Range {
	t.Helper()
	var list []pool.Range
	for _, text := range texts {
		r, err := pool.ParseRange(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func info(t *testing.T, c *session.Session) network.NetworkInfo {
	t.Helper()
	infos, err := network.Networks(within(t, patience), c)
	if err != nil {
		t.Fatal(err)
	}
	return infos[0]
}

func release(t *testing.T, leases ...*network.Lease) {
	t.Helper()
	for _, l := range leases {
		if err := l.Release(within(t, patience)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestALeaseTellsAllOfItsNetwork(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: with(t, "default=10.9.0.0/24,fd00:9::/64,10.9.1.0/24", func(n *server.Network) {
		n.Gateways = addrs("10.9.0.254", "fd00:9::1")
		n.MTU, n.MACPrefix, n.MaxLeases, n.Quarantine = 1400, net.HardwareAddr{2, 0x42}, 10, time.Minute
		n.DNS, n.Search = addrs("10.9.0.53", "fd00:9::53"), []string{"lab.example"}
		n.Routes = []network.Route{{To: netip.MustParsePrefix("10.0.0.0/8"), Via: netip.MustParseAddr("10.9.0.253")}}
	})})
	c := open(t, s.path)
	l := allocate(t, c, network.Request{Hostname: "Web.", Aliases: []string{"WWW", "www.", "web", "api.example"}})
	if got := fmt.Sprint(l.Addresses, l.Gateways, l.DNS, l.Search, l.Routes, l.MTU, l.Hostname, l.Aliases, l.MACGiven); got !=
		"[10.9.0.1/24 fd00:9::2/64] [10.9.0.254 fd00:9::1] [10.9.0.53 fd00:9::53] [lab.example] [{10.0.0.0/8 10.9.0.253}] 1400web[www api.example] false" {
		t.Errorf("the lease is %s", got)
	}
	if !strings.HasPrefix(l.MAC, "02:42:") {
		t.Errorf("its MAC is %s", l.MAC)
	}
	listed := list(t, c)[0]
	if !slices.Equal(listed.Aliases, l.Aliases) || !slices.Equal(listed.Gateways, []string{"10.9.0.254", "fd00:9::1"}) {
		t.Errorf("listed is %+v", listed)
	}
	n := info(t, c)
	if got := fmt.Sprintf("%+v", n); got != "{Name:default Prefixes:[10.9.0.0/24 fd00:9::/64 10.9.1.0/24] Gateways:[10.9.0.254 fd00:9::1] MTU:1400 "+
		"Total:507 Held:1 Orphaned:0 Free:506 Reserved:0 Cooling:0 Leases:1 MaxLeases:10 Quarantine:1m0s MACPrefix:02:42 DNS:[10.9.0.53 fd00:9::53] Search:[lab.example] "+
		"Routes:[{To:10.0.0.0/8 Via:10.9.0.253}]}" {
		t.Errorf("the network is %s", got)
	}
	release(t, l)
	if n := info(t, c); n.Held != 0 || n.Cooling != 1 || n.Free != 506 || n.Leases != 0 {
		t.Errorf("after the release it is %+v", n)
	}
}

func TestANetworkWithoutAGatewayHasNone(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: with(t, "default=10.9.0.0/31", func(n *server.Network) { n.NoGateway = true })})
	c := open(t, s.path)
	a, b := allocate(t, c, network.Request{}), allocate(t, c, network.Request{})
	if fmt.Sprint(a.Addresses, b.Addresses, a.Gateways) != "[10.9.0.0/31] [10.9.0.1/31] []" {
		t.Errorf("it gives %v and %v, and the gateways are %v", a.Addresses, b.Addresses, a.Gateways)
	}
}

func TestEachRequestThatCannotBeHasItsOwnSentence(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: with(t, "default=10.9.0.0/24,fd00::/120", func(n *server.Network) {
		n.Ranges, n.Static, n.Reserved = ranges(t, "10.9.0.10-10.9.0.19"), ranges(t, "10.9.0.30-10.9.0.39"), ranges(t, "10.9.0.15", "10.9.0.35")
	})})
	c := open(t, s.path)
	said := map[string]string{}
	for _, test := range []struct {
		name    string
		request network.Request
		code    wire.Code
		says    string
	}{
		{"outside", network.Request{Addresses: addrs("10.8.0.5")}, wire.Malformed, "outside of network default=10.9.0.0/24,fd00::/120"},
		{"the gateway", network.Request{Addresses: addrs("10.9.0.1")}, wire.NotPermitted, "is the gateway"},
		{"the IPv6 gateway", network.Request{Addresses: addrs("fd00::1")}, wire.NotPermitted, "is the gateway"},
		{"reserved", network.Request{Addresses: addrs("10.9.0.15")}, wire.NotPermitted, "is reserved"},
		{"reserved and static", network.Request{Addresses: addrs("10.9.0.35")}, wire.NotPermitted, "is reserved"},
		{"in no range", network.Request{Addresses: addrs("10.9.0.20")}, wire.NotPermitted, "in no range"},
		{"the network's", network.Request{Addresses: addrs("10.9.0.0")}, wire.Malformed, "the network's own address of 10.9.0.0/24"},
		{"broadcast", network.Request{Addresses: addrs("10.9.0.255")}, wire.Malformed, "the broadcast address of 10.9.0.0/24"},
		{"anycast", network.Request{Addresses: addrs("fd00::")}, wire.Malformed, "the routers' anycast address of fd00::/120"},
		{"mapped", network.Request{Addresses: addrs("::ffff:10.9.0.12")}, wire.Malformed, "write 10.9.0.12"},
		{"a zone", network.Request{Addresses: addrs("fd00::5%eth0")}, wire.Malformed, "write fd00::5"},
		{"none", network.Request{Addresses: []netip.Addr{{}}}, wire.Malformed, "without a prefix length"},
		{"two of a family", network.Request{Addresses: addrs("10.9.0.11", "10.9.0.12")}, wire.Malformed, "one of each family"},
		{"two preferred of a family", network.Request{Preferred: addrs("fd00::5", "fd00::6")}, wire.Malformed, "one of each family"},
		{"a multicast MAC", network.Request{MAC: net.HardwareAddr{3, 0, 0, 0, 0, 1}}, wire.Malformed, "multicast"},
		{"a MAC of zero", network.Request{MAC: make(net.HardwareAddr, 6)}, wire.Malformed, "no host"},
		{"a long MAC", network.Request{MAC: make(net.HardwareAddr, 8)}, wire.Malformed, "six octets"},
		{"a bad alias", network.Request{Aliases: []string{"a_b"}}, wire.Malformed, "alias"},
		{"an empty alias", network.Request{Aliases: []string{""}}, wire.Malformed, "empty"},
		{"many aliases", network.Request{Aliases: make([]string, 17)}, wire.Malformed, "17 aliases"},
	} {
		_, err := network.Allocate(within(t, patience), c, test.request)
		if !errors.Is(err, test.code) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %s and %q", test.name, err, test.code, test.says)
			continue
		}
		if other := said[err.Error()]; other != "" {
			t.Errorf("%s and %s have the same sentence: %v", test.name, other, err)
		}
		said[err.Error()] = test.name
	}
	if n := info(t, c); n.Leases != 0 || n.Held != 0 {
		t.Errorf("something is held: %+v", n)
	}
}

func TestWhatIsAskedForIsGivenAndAConflictNamesItsHolder(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: with(t, "default=10.9.0.0/24,fd00::/120", func(n *server.Network) {
		n.Static = ranges(t, "10.9.0.200-10.9.0.209")
	})})
	c, other := open(t, s.path), open(t, s.path)
	mac := net.HardwareAddr{0, 0x16, 0x3e, 0, 0, 1}
	l := allocate(t, c, network.Request{Hostname: "web", Aliases: []string{"www"}, Addresses: addrs("fd00::50", "10.9.0.200"), MAC: mac})
	if fmt.Sprint(l.Addresses) != "[10.9.0.200/24 fd00::50/120]" || l.MAC != mac.String() || !l.MACGiven {
		t.Fatalf("it is given %+v", l)
	}
	for what, r := range map[string]network.Request{
		"hostname web":       {Hostname: "WEB"},
		"alias web":          {Aliases: []string{"web."}},
		"hostname www":       {Hostname: "www"},
		"alias www":          {Hostname: "x", Aliases: []string{"y", "www"}},
		"address 10.9.0.200": {Addresses: addrs("10.9.0.200")},
		"address fd00::50":   {Addresses: addrs("10.9.0.9", "fd00::50")},
		"MAC " + l.MAC:       {MAC: mac},
	} {
		_, err := network.Allocate(within(t, patience), other, r)
		e := wire.AsError(err)
		if !errors.Is(err, wire.Conflict) || !strings.Contains(err.Error(), what+" on network default is held by process") || e.Holder == nil ||
			e.Holder.PID != os.Getpid() || e.Holder.Lease != l.ID {
			t.Errorf("%s: %v, holder %+v", what, err, e.Holder)
		}
	}
	if n := info(t, c); n.Leases != 1 {
		t.Errorf("a conflict holds something: %+v", n)
	}
	if found, err := network.Lookup(within(t, patience), c, "", "WWW"); err != nil || found.ID != l.ID {
		t.Errorf("looked up by its alias it is %+v, %v", found, err)
	}
	release(t, l) // all of it
	allocate(t, other, network.Request{Hostname: "www", Aliases: []string{"web"}, Addresses: addrs("10.9.0.200", "fd00::50"), MAC: mac})
}

func TestAPreferredAddressIsGivenIfItIsFree(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: with(t, "default=10.9.0.0/24", func(n *server.Network) { n.Quarantine, n.Reserved = time.Hour, ranges(t, "10.9.0.80") })})
	c := open(t, s.path)
	for _, test := range []struct {
		name, preferred, want string
	}{
		{"free", "10.9.0.77", "10.9.0.77/24"},
		{"held", "10.9.0.77", "10.9.0.2/24"},
		{"the gateway", "10.9.0.1", "10.9.0.3/24"},
		{"reserved", "10.9.0.80", "10.9.0.4/24"},
		{"outside", "10.8.0.80", "10.9.0.5/24"},
		{"of no family of the network", "fd00::5", "10.9.0.6/24"},
	} {
		if l := allocate(t, c, network.Request{Preferred: addrs(test.preferred)}); l.Addresses[0].String() != test.want {
			t.Errorf("%s: it gets %v, want %v", test.name, l.Addresses, test.want)
		}
	}
	l := allocate(t, c, network.Request{Addresses: addrs("10.9.0.99")})
	release(t, l)
	if l := allocate(t, c, network.Request{Preferred: addrs("10.9.0.99")}); l.Addresses[0] == netip.MustParsePrefix("10.9.0.99/24") {
		t.Error("an address that cools is given to who prefers it")
	}
	if l := allocate(t, c, network.Request{Addresses: addrs("10.9.0.99")}); l.Addresses[0] != netip.MustParsePrefix("10.9.0.99/24") {
		t.Errorf("who demands it gets %v", l.Addresses)
	}
}

func TestBothFamiliesOrNone(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24,fd00::/126")})
	c := open(t, s.path)
	a, b := allocate(t, c, network.Request{}), allocate(t, c, network.Request{})
	_, err := network.Allocate(within(t, patience), c, network.Request{Addresses: addrs("10.9.0.4")})
	if !errors.Is(err, wire.Exhausted) || !strings.Contains(err.Error(), "no free IPv6 address: of 2, 2 are held") {
		t.Errorf("without an IPv6 address: %v", err)
	}
	release(t, a)
	if l := allocate(t, c, network.Request{Addresses: addrs("10.9.0.4")}); fmt.Sprint(l.Addresses) != "[10.9.0.4/24 "+a.Addresses[1].String()+"]" {
		t.Errorf("then it gets %v", l.Addresses)
	}
	release(t, b)
	if n := info(t, c); n.Total != 2 || n.Held != 1 || n.Free != 1 {
		t.Errorf("it counts those of the family that has fewer: %+v", n)
	}
}

func TestAHostnameThatComesBackGetsItsAddresses(t *testing.T) {
	leavesNothing(t)
	for _, forgets := range []bool{false, true} {
		s := start(t, server.Config{Networks: with(t, "default=10.9.0.0/24,fd00::/64", func(n *server.Network) { n.Quarantine, n.Forgets = time.Hour, forgets })})
		c := open(t, s.path)
		first := allocate(t, c, network.Request{Hostname: "web"})
		release(t, first)
		allocate(t, c, network.Request{Hostname: "other"})
		again := allocate(t, c, network.Request{Hostname: "WEB."})
		if same := slices.Equal(again.Addresses, first.Addresses); same == forgets {
			t.Errorf("forgets: %t, and it had %v and gets %v", forgets, first.Addresses, again.Addresses)
		}
		release(t, again)
		taken := allocate(t, c, network.Request{Addresses: addrs(again.Addresses[0].Addr().String())})
		last := allocate(t, c, network.Request{Hostname: "web"})
		if last.Addresses[0] == taken.Addresses[0] {
			t.Errorf("it gets %v, which is held", last.Addresses)
		}
		if same := last.Addresses[1] == again.Addresses[1]; same == forgets {
			t.Errorf("forgets: %t, and of the other family it gets %v", forgets, last.Addresses)
		}
	}
}

func TestTheMemoryOfHostnamesIsBounded(t *testing.T) {
	var m server.Memory
	if m.Recall("h") != nil {
		t.Error("an empty one remembers something")
	}
	one := addrs("10.9.0.2")
	for i := range 4096 {
		m.Remember(fmt.Sprint("h", i), one)
	}
	m.Remember("h0", addrs("10.9.0.3")) // it came back
	m.Remember("h4096", one)
	if a, b, c := m.Recall("h0"), m.Recall("h1"), m.Recall("h2"); !slices.Equal(a, addrs("10.9.0.3")) || b != nil || !slices.Equal(c, one) {
		t.Errorf("it remembers %v, %v and %v, want all but the second", a, b, c)
	}
}

func TestQuarantineIsAWish(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: with(t, "default=10.9.0.0/29", func(n *server.Network) { n.Quarantine = time.Hour })})
	c := open(t, s.path)
	var leases []*network.Lease
	for range 5 {
		leases = append(leases, allocate(t, c, network.Request{}))
	}
	order := []int{3, 0, 4}
	for _, i := range order {
		release(t, leases[i])
	}
	if n := info(t, c); n.Total != 5 || n.Held != 2 || n.Cooling != 3 || n.Free != 0 {
		t.Errorf("it has %+v", n)
	}
	for _, i := range order { // that which has cooled for longest comes first
		if l := allocate(t, c, network.Request{}); l.Addresses[0] != leases[i].Addresses[0] {
			t.Errorf("it gets %v, want %v", l.Addresses, leases[i].Addresses)
		}
	}
	_, err := network.Allocate(within(t, patience), c, network.Request{})
	if !errors.Is(err, wire.Exhausted) {
		t.Errorf("when all are held: %v", err)
	}
}

func TestAnExhaustedErrorCountsAndNamesThoseWhoHoldForLongest(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: with(t, "default=10.9.0.0/28", func(n *server.Network) {
		n.Ranges, n.Static = ranges(t, "10.9.0.4-10.9.0.7"), ranges(t, "10.9.0.10-10.9.0.11")
	})})
	c := open(t, s.path)
	holder := run(t, "holder", s.path)
	first := holder.allocate(order{Hostname: "first"})
	for _, name := range []string{"", "third", "fourth"} {
		allocate(t, c, network.Request{Hostname: name})
	}
	_, err := network.Allocate(within(t, patience), c, network.Request{})
	want := fmt.Sprintf(`network default has no free IPv4 address: of 13, 4 are held, 9 reserved, 0 cooling and 0 orphaned; held for longest by process %d \(first\) for \d+s, `+
		`process %[2]d for \d+s, process %[2]d \(third\) for \d+s`, holder.pid(), os.Getpid())
	e := wire.AsError(err)
	if !errors.Is(err, wire.Exhausted) || !regexp.MustCompile(want).MatchString(e.Text) || e.Holder == nil || e.Holder.Lease != first.Lease {
		t.Errorf("it says %v, want %s", err, want)
	}
}

func TestEveryLimitSaysItselfAndWhatIsUsed(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: with(t, "default=10.9.0.0/24", func(n *server.Network) { n.MaxLeases = 5 }), Limits: server.Limits{Session: 3, UID: 4}})
	c := open(t, s.path)
	var leases []*network.Lease
	for range 3 {
		leases = append(leases, allocate(t, c, network.Request{}))
	}
	_, err := network.Allocate(within(t, patience), c, network.Request{})
	over(t, wire.AsError(err), "this session holds 3 leases, and the limit of a session is 3")
	second := open(t, s.path)
	for range 2 { // this uid is the service's own, whose leases are not counted
		allocate(t, second, network.Request{})
	}
	_, err = network.Allocate(within(t, patience), second, network.Request{})
	over(t, wire.AsError(err), "network default has 5 leases, and its limit is 5")
	release(t, leases...)
	for range 3 {
		allocate(t, c, network.Request{})
	}
}

// over checks that an error says which limit is reached.
func over(t *testing.T, e *wire.Error, says string) {
	t.Helper()
	if e == nil || e.Code != wire.OverQuota || !strings.Contains(e.Text, says) {
		t.Errorf("it says %v, want over_quota and %q", e, says)
	}
}

func TestAUsersLeasesAreCountedOverAllSessionsAndStates(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start processes of other users")
	}
	leavesNothing(t)
	s := start(t, server.Config{Networks: with(t, "default=10.9.0.0/24", func(n *server.Network) { n.MaxLeases = 5 }), Limits: server.Limits{UID: 4}})
	if err := errors.Join(os.Chmod(filepath.Dir(s.path), 0o755), os.Chmod(s.path, 0o777)); err != nil {
		t.Fatal(err)
	}
	one, other, third := runAs(t, 65532, "holder", s.path), runAs(t, 65532, "holder", s.path), runAs(t, 65533, "holder", s.path)
	for range 2 {
		one.allocate(order{Witness: one.linger("linger").PID()})
		other.allocate(order{})
	}
	over(t, other.order(order{Do: "allocate"}).Error, "uid 65532 has 4 leases, and the limit of a user is 4")
	third.allocate(order{})
	over(t, third.order(order{Do: "allocate"}).Error, "network default has 5 leases, and its limit is 5")
	third.kill()
	one.kill() // its leases are dying, and count
	over(t, other.order(order{Do: "allocate"}).Error, "uid 65532 has 4 leases")
	one.end()
	other.allocate(order{})
}
