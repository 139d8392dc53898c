package pool_test

import (
	"net/netip"
	"testing"

	"github.com/fairlead-dev/fairlead/services/network/pool"
)

// filled returns a pool of prefix with so many addresses held.
func filled(b *testing.B, prefix string, leases int) (*pool.Pool, []netip.Addr) {
	p := newPool(b, prefix)
	addrs := make([]netip.Addr, 0, leases)
	for range leases {
		addr, ok := p.Allocate()
		if !ok {
			b.Fatalf("%s holds only %d", prefix, len(addrs))
		}
		addrs = append(addrs, addr)
	}
	return p, addrs
}

func benchmarkPair(b *testing.B, p *pool.Pool) {
	b.ReportAllocs()
	for b.Loop() {
		addr, ok := p.Allocate()
		if !ok || !p.Release(addr, 0) {
			b.Fatal("could not allocate and release")
		}
	}
}

// One operation is an Allocate and a Release.
func BenchmarkAllocateRelease(b *testing.B) {
	b.Run("empty", func(b *testing.B) {
		benchmarkPair(b, newPool(b, "10.0.0.0/8"))
	})
	b.Run("held=1000000", func(b *testing.B) {
		p, _ := filled(b, "10.0.0.0/8", 1_000_000)
		benchmarkPair(b, p)
	})
	b.Run("one_hole_in_a_16", func(b *testing.B) {
		p, addrs := filled(b, "172.16.0.0/16", 65533)
		p.Release(addrs[31000], 0)
		benchmarkPair(b, p)
	})
	b.Run("v6", func(b *testing.B) {
		p, _ := filled(b, "fd00::/64", 10_000)
		benchmarkPair(b, p)
	})
}

// Each operation lets one of a million leases go, none twice in a row, and allocates again.
func BenchmarkTurnover(b *testing.B) {
	p, addrs := filled(b, "10.0.0.0/8", 1_000_000)
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i = (i + 7919) % len(addrs)
		p.Release(addrs[i], 0)
		addrs[i], _ = p.Allocate()
	}
}

// Each operation takes a freed address out of the middle of the order, and releases it.
func BenchmarkTakeFromTheMiddle(b *testing.B) {
	p, addrs := filled(b, "172.16.0.0/16", 65533)
	for _, addr := range addrs {
		p.Release(addr, 0)
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i = (i + 7919) % len(addrs)
		if p.Take(addrs[i]) != nil || !p.Release(addrs[i], 0) {
			b.Fatal("could not take and release")
		}
	}
}

func BenchmarkMemory(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		b.ReportMetric(bytesPerLease(b, 1_000_000), "B/lease")
	}
}
