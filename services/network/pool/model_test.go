package pool_test

import (
	"errors"
	"flag"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/fairlead-dev/fairlead/services/network/pool"
)

var long = flag.Bool("long", false, "make 10 million random operations instead of 200,000")

// A model is a pool that is slow and obvious. Its lists are searched from end to end.
type model struct {
	prefix   netip.Prefix
	maxFreed int
	gateway  netip.Addr
	mark     netip.Addr   // the last address that came in the ascending order
	held     []netip.Addr // sorted
	freed    []netip.Addr // the one freed longest ago is first
	peak     int          // the most addresses that were ever held at once
}

func newModel(prefix netip.Prefix, maxFreed int) *model {
	gateway := prefix.Addr()
	if hostBits(prefix) > 1 {
		gateway = gateway.Next()
	}
	return &model{prefix: prefix, maxFreed: maxFreed, gateway: gateway, mark: gateway}
}

func hostBits(prefix netip.Prefix) int { return prefix.Addr().BitLen() - prefix.Bits() }

func (m *model) refusal(addr netip.Addr) error {
	edge := hostBits(m.prefix) > 1 &&
		(addr == m.prefix.Addr() || addr.Is4() && !m.prefix.Contains(addr.Next()))
	switch {
	case !m.prefix.Contains(addr):
		return pool.ErrOutside
	case addr == m.gateway:
		return pool.ErrGateway
	case edge:
		return pool.ErrEdge
	case slices.Contains(m.held, addr):
		return pool.ErrHeld
	}
	return nil
}

func (m *model) hold(addr netip.Addr) {
	at, _ := slices.BinarySearchFunc(m.held, addr, netip.Addr.Compare)
	m.held = slices.Insert(m.held, at, addr)
	m.peak = max(m.peak, len(m.held))
}

func (m *model) allocate() (netip.Addr, bool) {
	for len(m.freed) <= m.maxFreed && m.prefix.Contains(m.mark.Next()) {
		m.mark = m.mark.Next()
		if m.refusal(m.mark) == nil && !slices.Contains(m.freed, m.mark) {
			m.hold(m.mark)
			return m.mark, true
		}
	}
	if len(m.freed) == 0 {
		return netip.Addr{}, false
	}
	addr := m.freed[0]
	m.freed = slices.Delete(m.freed, 0, 1)
	m.hold(addr)
	return addr, true
}

func (m *model) take(addr netip.Addr) error {
	if err := m.refusal(addr); err != nil {
		return err
	}
	if at := slices.Index(m.freed, addr); at >= 0 {
		m.freed = slices.Delete(m.freed, at, at+1)
	}
	m.hold(addr)
	return nil
}

func (m *model) release(addr netip.Addr) bool {
	at := slices.Index(m.held, addr)
	if at < 0 {
		return false
	}
	m.held = slices.Delete(m.held, at, at+1)
	if len(m.freed) < m.maxFreed || addr.Compare(m.mark) <= 0 {
		m.freed = append(m.freed, addr)
	}
	return true
}

// A pair is a pool and the model of it, which must never differ.
type pair struct {
	pool       *pool.Pool
	model      *model
	candidates []netip.Addr
}

var pairPrefixes = []string{
	"10.0.0.0/31", "10.0.0.0/30", "10.0.0.0/28", "192.168.1.0/24", "10.0.0.0/8",
	"fd00::/127", "fd00::/126", "fd00::/121", "fd00::/64", "fd00::/8",
}

var pairBounds = []int{0, 1, 2, 7, 40, 65536}

func newPair(t *testing.T, prefix, bound int) *pair {
	t.Helper()
	pfx, maxFreed := netip.MustParsePrefix(pairPrefixes[prefix]), pairBounds[bound]
	p, err := pool.NewBounded(pfx, maxFreed)
	if err != nil {
		t.Fatal(err)
	}
	pr := &pair{pool: p, model: newModel(pfx, maxFreed)}
	addr := pfx.Addr().Prev()
	for range min(1<<min(hostBits(pfx), 8), 160) + 2 {
		pr.candidates = append(pr.candidates, addr)
		addr = addr.Next()
	}
	pr.candidates = append(pr.candidates, netip.Addr{}, netip.MustParseAddr("::ffff:10.0.0.3"))
	return pr
}

// step makes one operation on both.
func (pr *pair) step(t *testing.T, operation, choice int) {
	t.Helper()
	addr := pr.candidates[choice%len(pr.candidates)]
	switch operation % 8 {
	case 0, 1, 2:
		got, ok := pr.pool.Allocate()
		want, wantOK := pr.model.allocate()
		if got != want || ok != wantOK {
			t.Fatalf("Allocate gave %v, %v, want %v, %v", got, ok, want, wantOK)
		}
	case 3:
		got, want := pr.pool.Take(addr), pr.model.take(addr)
		if !errors.Is(got, want) {
			t.Fatalf("Take(%v) says %v, want %v", addr, got, want)
		}
	default:
		if held := pr.model.held; operation%8 > 4 && len(held) > 0 {
			addr = held[choice%len(held)]
		}
		got, want := pr.pool.Release(addr), pr.model.release(addr)
		if got != want {
			t.Fatalf("Release(%v) is %v, want %v", addr, got, want)
		}
	}
	pr.compare(t, addr)
}

func (pr *pair) compare(t *testing.T, addr netip.Addr) {
	t.Helper()
	if got, want := pr.pool.Len(), len(pr.model.held); got != want {
		t.Fatalf("Len is %d, want %d", got, want)
	}
	if got, want := pr.pool.Held(addr), slices.Contains(pr.model.held, addr); got != want {
		t.Fatalf("Held(%v) is %v, want %v", addr, got, want)
	}
	if got, most := pr.pool.Remembered(), 2*pr.model.peak+pr.model.maxFreed; got > most {
		t.Fatalf("remembers %d addresses, want no more than %d", got, most)
	}
}

// drain takes all that is left of a small pool, and so compares the whole order.
func (pr *pair) drain(t *testing.T) {
	t.Helper()
	for range 300 {
		pr.step(t, 0, 0)
	}
}

func TestThePoolDoesWhatItsModelDoes(t *testing.T) {
	operations := 200_000
	if *long {
		operations = 10_000_000
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	each := operations / (len(pairPrefixes) * len(pairBounds))
	for prefix := range pairPrefixes {
		for bound := range pairBounds {
			pr := newPair(t, prefix, bound)
			for range each {
				pr.step(t, random.IntN(8), random.IntN(1<<16))
			}
			pr.drain(t)
		}
	}
}

func FuzzThePoolDoesWhatItsModelDoes(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 4, 2})
	f.Add([]byte{2, 1, 3, 6, 3, 5, 4, 6, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{9, 2, 3, 100, 4, 100, 0, 0, 5, 1, 3, 7})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 2 || len(data) > 1<<12 {
			return
		}
		pr := newPair(t, int(data[0])%len(pairPrefixes), int(data[1])%len(pairBounds))
		for operation := range slices.Chunk(data[2:], 2) {
			pr.step(t, int(operation[0]), int(operation[len(operation)-1]))
		}
		pr.drain(t)
	})
}
