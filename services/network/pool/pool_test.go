package pool_test

import (
	"errors"
	"math"
	"net/netip"
	"runtime"
	"testing"

	"github.com/fairlead-dev/fairlead/services/network/pool"
)

func newPool(t testing.TB, prefix string) *pool.Pool {
	t.Helper()
	p, err := pool.New(whole(prefix))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// whole is a prefix with its first usable address as the gateway.
func whole(prefix string) pool.Config {
	p := netip.MustParsePrefix(prefix)
	return pool.Config{Prefixes: []netip.Prefix{p}, Gateways: []netip.Addr{pool.FirstUsable(p)}}
}

func allocate(t testing.TB, p *pool.Pool) string {
	t.Helper()
	addr, ok := p.Allocate()
	if !ok {
		return "none"
	}
	return addr.String()
}

func expectOrder(t *testing.T, p *pool.Pool, want ...string) {
	t.Helper()
	for i, w := range want {
		if got := allocate(t, p); got != w {
			t.Fatalf("address %d is %s, want %s", i, got, w)
		}
	}
}

func release(t *testing.T, p *pool.Pool, addrs ...string) {
	t.Helper()
	for _, a := range addrs {
		if !p.Release(netip.MustParseAddr(a), 0) {
			t.Fatalf("%s was not held", a)
		}
	}
}

func take(t *testing.T, p *pool.Pool, addrs ...string) {
	t.Helper()
	for _, a := range addrs {
		if err := p.Take(netip.MustParseAddr(a)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEachUnusablePrefixIsRefusedWithItsOwnSentence(t *testing.T) {
	empty := netip.Prefix{}
	parse := netip.MustParsePrefix
	tables := []struct {
		name   string
		prefix netip.Prefix
		want   string
	}{
		{"zero", empty, "malformed prefix: it is empty, or longer than its address"},
		{"too long", netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), 33), "malformed prefix: it is empty, or longer than its address"},
		{"single", parse("10.0.0.1/32"), "malformed prefix 10.0.0.1/32: it is a single address and has no room beside the gateway"},
		{"single v6", parse("fd00::1/128"), "malformed prefix fd00::1/128: it is a single address and has no room beside the gateway"},
		{"host bits", parse("10.1.2.3/24"), "malformed prefix 10.1.2.3/24: it has bits set after the first 24; write 10.1.2.0/24"},
		{"host bits v6", parse("fd00::1/64"), "malformed prefix fd00::1/64: it has bits set after the first 64; write fd00::/64"},
		{"mapped", netip.PrefixFrom(netip.MustParseAddr("::ffff:10.0.0.0"), 120), "malformed prefix ::ffff:10.0.0.0/120: it is an IPv4 prefix in IPv6 form; write 10.0.0.0/24"},
		{"all v4", parse("0.0.0.0/0"), "malformed prefix 0.0.0.0/0: it is every address there is"},
		{"all v6", parse("::/0"), "malformed prefix ::/0: it is every address there is"},
		{"multicast", parse("239.1.0.0/16"), "malformed prefix 239.1.0.0/16: it holds multicast addresses"},
		{"around multicast", parse("128.0.0.0/1"), "malformed prefix 128.0.0.0/1: it holds multicast addresses"},
		{"multicast v6", parse("ff02::/64"), "malformed prefix ff02::/64: it holds multicast addresses"},
		{"this network", parse("0.0.0.0/24"), "malformed prefix 0.0.0.0/24: it holds addresses of 0.0.0.0/8, which mean a host of this network and cannot be given to one"},
		{"limited broadcast", parse("255.255.255.254/31"), "malformed prefix 255.255.255.254/31: it holds 255.255.255.255, the broadcast address of every network"},
		{"unspecified v6", parse("::/127"), "malformed prefix ::/127: it holds ::, the address of no host"},
		{"mapped inside", parse("::ffff:0:0/95"), "malformed prefix ::fffe:0:0/95: it holds addresses of ::ffff:0.0.0.0/96, which mean IPv4"},
	}
	for _, tt := range tables {
		t.Run(tt.name, func(t *testing.T) {
			prefix := tt.prefix
			if tt.name == "mapped inside" {
				prefix = prefix.Masked()
			}
			p, err := pool.New(pool.Config{Prefixes: []netip.Prefix{prefix}})
			if p != nil || !errors.Is(err, pool.ErrMalformed) {
				t.Fatalf("New gave %v and %v, want ErrMalformed", p, err)
			}
			if err.Error() != tt.want {
				t.Errorf("it says\n%s\nwant\n%s", err, tt.want)
			}
		})
	}
}

func TestEachPrefixGivesExactlyWhatItHas(t *testing.T) {
	tables := []struct {
		prefix, gateway, first, last string
		size                         uint64
	}{
		{"10.0.0.0/31", "10.0.0.0", "10.0.0.1", "10.0.0.1", 1},
		{"10.0.0.0/30", "10.0.0.1", "10.0.0.2", "10.0.0.2", 1},
		{"10.0.0.4/30", "10.0.0.5", "10.0.0.6", "10.0.0.6", 1},
		{"10.0.0.0/29", "10.0.0.1", "10.0.0.2", "10.0.0.6", 5},
		{"192.168.7.0/24", "192.168.7.1", "192.168.7.2", "192.168.7.254", 253},
		{"172.16.0.0/16", "172.16.0.1", "172.16.0.2", "172.16.255.254", 65533},
		{"127.0.0.0/24", "127.0.0.1", "127.0.0.2", "127.0.0.254", 253},
		{"255.255.255.0/24", "255.255.255.1", "255.255.255.2", "255.255.255.254", 253},
		{"255.255.255.252/30", "255.255.255.253", "255.255.255.254", "255.255.255.254", 1},
		{"fd00::/127", "fd00::", "fd00::1", "fd00::1", 1},
		{"fd00::2/127", "fd00::2", "fd00::3", "fd00::3", 1},
		{"fd00::/126", "fd00::1", "fd00::2", "fd00::3", 2},
		{"fd00::100/120", "fd00::101", "fd00::102", "fd00::1ff", 254},
		{"::1:0/120", "::1:1", "::1:2", "::1:ff", 254},
	}
	for _, tt := range tables {
		t.Run(tt.prefix, func(t *testing.T) {
			p := newPool(t, tt.prefix)
			if got := pool.FirstUsable(netip.MustParsePrefix(tt.prefix)).String(); got != tt.gateway {
				t.Errorf("gateway is %s, want %s", got, tt.gateway)
			}
			if n := p.Counts(0); n != (pool.Counts{Total: tt.size, Free: tt.size}) {
				t.Errorf("it has %+v, want %d", n, tt.size)
			}
			seen, last := giveAll(t, p, netip.MustParseAddr(tt.first))
			if seen != tt.size || last.String() != tt.last {
				t.Errorf("gave %d addresses up to %v, want %d up to %s", seen, last, tt.size, tt.last)
			}
			if n := p.Counts(0); n != (pool.Counts{Total: tt.size, Held: tt.size}) {
				t.Errorf("it has %+v, want %d held", n, tt.size)
			}
		})
	}
}

func TestWithoutAGatewayItsAddressIsGivenToo(t *testing.T) {
	for _, tt := range []struct {
		prefix, first, last string
		size                uint64
	}{
		{"10.0.0.0/31", "10.0.0.0", "10.0.0.1", 2},
		{"10.0.0.0/30", "10.0.0.1", "10.0.0.2", 2},
		{"10.0.0.0/24", "10.0.0.1", "10.0.0.254", 254},
		{"255.255.255.0/24", "255.255.255.1", "255.255.255.254", 254},
		{"fd00::/127", "fd00::", "fd00::1", 2},
		{"fd00::/126", "fd00::1", "fd00::3", 3},
		{"fd00::/120", "fd00::1", "fd00::ff", 255},
	} {
		p, err := pool.New(pool.Config{Prefixes: []netip.Prefix{netip.MustParsePrefix(tt.prefix)}})
		if err != nil {
			t.Fatal(err)
		}
		seen, last := giveAll(t, p, netip.MustParseAddr(tt.first))
		if n := p.Counts(0); seen != tt.size || last.String() != tt.last || n != (pool.Counts{Total: tt.size, Held: tt.size}) {
			t.Errorf("%s gives %d addresses up to %v, and has %+v, want %d up to %s", tt.prefix, seen, last, n, tt.size, tt.last)
		}
	}
}

func TestTheLargestPrefixIsCountedToItsLastAddress(t *testing.T) {
	const most = math.MaxUint64
	for _, tt := range []struct {
		config      pool.Config
		total, free uint64
	}{
		{pool.Config{Prefixes: prefixesOf("fd00::/64")}, most, most},
		{pool.Config{Prefixes: prefixesOf("fd00::/64", "fc00::/64")}, most, most},
		{pool.Config{Prefixes: prefixesOf("fd00::/64"), Ranges: rangesOf("fd00::1-fd00::ffff:ffff:ffff:ffff"), Static: rangesOf("fd00::5-fd00::6")}, most, most - 2},
		{pool.Config{Prefixes: prefixesOf("fd00::/64"), Reserved: rangesOf("fd00::-fd00::ffff:ffff:ffff:fffe")}, most, 1},
	} {
		p, err := pool.New(tt.config)
		if err != nil {
			t.Fatal(err)
		}
		if n := p.Counts(0); n.Total != tt.total || n.Free != tt.free {
			t.Errorf("%+v has %+v, want %d and %d free", tt.config, n, tt.total, tt.free)
		}
	}
}

func TestNothingLeftToLeaseIsRefused(t *testing.T) {
	for _, c := range []pool.Config{
		{},
		{Prefixes: prefixesOf("10.0.0.0/30"), Reserved: rangesOf("10.0.0.0-10.0.0.3")},
		{Prefixes: prefixesOf("10.0.0.0/31"), Gateways: addrsOf("10.0.0.0"), Reserved: rangesOf("10.0.0.1")},
		{Prefixes: prefixesOf("10.0.0.0/30"), Ranges: rangesOf("10.0.0.1"), Gateways: addrsOf("10.0.0.1")},
		{Prefixes: prefixesOf("10.0.0.0/24", "10.0.0.0/25")},
		{Prefixes: prefixesOf("10.0.0.0/24", "fd00::/64")},
		{Prefixes: prefixesOf("10.0.0.0/24"), Gateways: addrsOf("10.0.0.1", "10.0.0.2")},
	} {
		if _, err := pool.New(c); !errors.Is(err, pool.ErrMalformed) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// giveAll allocates until nothing is left, and checks that the addresses ascend without a gap from first on.
func giveAll(t *testing.T, p *pool.Pool, first netip.Addr) (count uint64, last netip.Addr) {
	t.Helper()
	for want := first; ; want = want.Next() {
		addr, ok := p.Allocate()
		if !ok {
			return count, last
		}
		if addr != want {
			t.Fatalf("address %d is %v, want %v", count, addr, want)
		}
		count, last = count+1, addr
	}
}

func TestTheLargestPrefixesAreServedToTheirLastAddress(t *testing.T) {
	tables := []struct {
		prefix string
		size   uint64
		skip   uint64
		want   []string
	}{
		{"10.0.0.0/8", 1<<24 - 3, 1<<24 - 3, []string{"10.255.255.253", "10.255.255.254", "none"}},
		{"64.0.0.0/2", 1<<30 - 3, 1<<30 - 2, []string{"127.255.255.254", "none"}},
		{"fd00::/65", 1<<63 - 2, 1<<63 - 1, []string{"fd00::7fff:ffff:ffff:ffff", "none"}},
		{"fd00::/64", math.MaxUint64 - 1, math.MaxUint64 - 1, []string{"fd00::ffff:ffff:ffff:fffe", "fd00::ffff:ffff:ffff:ffff", "none"}},
		{"fd00::/8", math.MaxUint64 - 1, math.MaxUint64, []string{"fd00::ffff:ffff:ffff:ffff", "none"}},
	}
	for _, tt := range tables {
		t.Run(tt.prefix, func(t *testing.T) {
			p := newPool(t, tt.prefix)
			if n := p.Counts(0); n.Total != tt.size || n.Free != tt.size {
				t.Errorf("it has %+v, want %d", n, tt.size)
			}
			p.SkipTo(tt.skip)
			expectOrder(t, p, tt.want...)
			release(t, p, tt.want[0])
			expectOrder(t, p, tt.want[0], "none")
		})
	}
}

func TestTakeSaysWhyAnAddressCannotBeHeld(t *testing.T) {
	tables := []struct {
		prefix, addr string
		want         error
	}{
		{"10.0.0.0/24", "10.0.0.0", pool.ErrEdge},
		{"10.0.0.0/24", "10.0.0.255", pool.ErrEdge},
		{"10.0.0.0/24", "10.0.0.1", pool.ErrGateway},
		{"10.0.0.0/24", "10.0.1.0", pool.ErrOutside},
		{"10.0.0.0/24", "9.255.255.255", pool.ErrOutside},
		{"10.0.0.0/24", "fd00::5", pool.ErrOutside},
		{"10.0.0.0/24", "::ffff:10.0.0.5", pool.ErrOutside},
		{"10.0.0.0/24", "10.0.0.9", pool.ErrHeld},
		{"10.0.0.0/24", "10.0.0.254", nil},
		{"10.0.0.0/31", "10.0.0.0", pool.ErrGateway},
		{"10.0.0.0/31", "10.0.0.1", nil},
		{"255.255.255.0/24", "255.255.255.255", pool.ErrEdge},
		{"fd00::/64", "fd00::", pool.ErrEdge},
		{"fd00::/64", "fd00::1", pool.ErrGateway},
		{"fd00::/64", "fd00::ffff:ffff:ffff:ffff", nil},
		{"fd00::/64", "fd00::5%eth0", pool.ErrOutside},
		{"fd00::/64", "10.0.0.5", pool.ErrOutside},
		{"fd00::/8", "fd00:0:0:1::5", pool.ErrOutside},
		{"fd00::/127", "fd00::", pool.ErrGateway},
		{"fd00::/127", "fd00::1", nil},
	}
	for _, tt := range tables {
		t.Run(tt.prefix+" "+tt.addr, func(t *testing.T) {
			p := newPool(t, tt.prefix)
			addr := netip.MustParseAddr(tt.addr)
			if tt.want == pool.ErrHeld {
				take(t, p, tt.addr)
			}
			if err := p.Take(addr); !errors.Is(err, tt.want) {
				t.Fatalf("Take says %v, want %v", err, tt.want)
			}
			want := tt.want
			if want == nil {
				want = pool.ErrHeld
			}
			if got := p.Check(addr); !errors.Is(got, want) {
				t.Errorf("Check says %v, want %v", got, want)
			}
			if got, want := p.Release(addr, 0), tt.want == nil || tt.want == pool.ErrHeld; got != want {
				t.Errorf("Release is %v, want %v", got, want)
			}
			if n := p.Counts(0); n.Held != 0 {
				t.Errorf("holds %d after the release", n.Held)
			}
		})
	}
	if err := newPool(t, "10.0.0.0/24").Take(netip.Addr{}); !errors.Is(err, pool.ErrOutside) {
		t.Errorf("Take of no address says %v", err)
	}
}

func TestNeverUsedComesFirstThenTheOneFreedLongestAgo(t *testing.T) {
	p := newPool(t, "10.0.0.0/29")
	expectOrder(t, p, "10.0.0.2", "10.0.0.3", "10.0.0.4")
	release(t, p, "10.0.0.4", "10.0.0.2")
	expectOrder(t, p, "10.0.0.5", "10.0.0.6", "10.0.0.4", "10.0.0.2", "none")
	release(t, p, "10.0.0.3", "10.0.0.6", "10.0.0.2", "10.0.0.5")
	take(t, p, "10.0.0.6")
	expectOrder(t, p, "10.0.0.3", "10.0.0.2", "10.0.0.5", "none")
	if p.Release(netip.MustParseAddr("10.0.0.3"), 0) != true || p.Release(netip.MustParseAddr("10.0.0.3"), 0) != false {
		t.Error("a second release of an address did something")
	}
}

func TestAnAddressTakenBeforeItsTurnIsNeverGivenTwice(t *testing.T) {
	p := newPool(t, "10.0.0.0/29")
	take(t, p, "10.0.0.3", "10.0.0.5", "10.0.0.2")
	release(t, p, "10.0.0.5")
	expectOrder(t, p, "10.0.0.4", "10.0.0.6", "10.0.0.5", "none")
}

func TestBeyondItsBoundTheFreedOrderIsReusedBeforeANeverUsedAddress(t *testing.T) {
	const bound = 65536
	p := newPool(t, "10.0.0.0/8")
	first := allocate(t, p)
	addrs := []string{first}
	for range bound {
		addrs = append(addrs, allocate(t, p))
	}
	release(t, p, addrs[:bound]...)
	expectOrder(t, p, "10.1.0.3") // at the bound: never-used
	release(t, p, addrs[bound])
	expectOrder(t, p, first) // beyond it
	expectOrder(t, p, "10.1.0.4")
}

func TestMemoryFollowsTheLeasesAndNotTheHistory(t *testing.T) {
	const bound = 16
	p, err := pool.NewBounded(whole("fd00::/64"), bound)
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr("fd00::1:0")
	for range 10 * bound {
		addr = addr.Next()
		take(t, p, addr.String())
		release(t, p, addr.String())
		if a, ok := p.Allocate(); !ok || !p.Release(a, 0) {
			t.Fatalf("%v, %v could not be released", a, ok)
		}
	}
	if got := p.Remembered(); got > bound+2 {
		t.Errorf("remembers %d addresses, want no more than %d: one was held at a time", got, bound+2)
	}
}

func TestAPoolCostsNothingUntilItIsUsed(t *testing.T) {
	cost := func(prefix string) (bytes uint64) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p := newPool(t, prefix)
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(p)
		return after.TotalAlloc - before.TotalAlloc
	}
	for _, prefix := range []string{"10.0.0.0/30", "10.0.0.0/8", "fd00::/64", "fd00::/8"} {
		// Reading the statistics may allocate by itself: the least of a few runs is the pool's.
		least := uint64(math.MaxUint64)
		for range 5 {
			least = min(least, cost(prefix))
		}
		if least > 1024 {
			t.Errorf("a pool of %s costs %d bytes, want no more than 1024", prefix, least)
		}
	}
}

func TestALeaseCostsNoMoreThan250Bytes(t *testing.T) {
	const leases = 200_000
	if got := bytesPerLease(t, leases); got > 250 {
		t.Errorf("a lease costs %.0f bytes", got)
	}
}

// bytesPerLease returns what the heap grows by for each address held.
func bytesPerLease(t testing.TB, leases int) float64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	p := newPool(t, "10.0.0.0/8")
	for range leases {
		p.Allocate()
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(p)
	return float64(int64(after.HeapAlloc)-int64(before.HeapAlloc)) / float64(leases)
}
