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

// A scene is a Config, and what it comes to, written out by hand.
type scene struct {
	config        pool.Config
	given, static []pool.Range // in the order in which they are given
	edges         []string
}

func rangesOf(texts ...string) []pool.Range {
	var list []pool.Range
	for _, text := range texts {
		r, err := pool.ParseRange(text)
		if err != nil {
			panic(err)
		}
		list = append(list, r)
	}
	return list
}

func prefixesOf(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func addrsOf(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

// plain is a scene of one prefix and its gateway.
func plain(prefix, given string, edges ...string) scene {
	return scene{config: whole(prefix), given: rangesOf(given), edges: edges}
}

var scenes = []scene{
	plain("10.0.0.0/31", "10.0.0.1"),
	plain("10.0.0.0/30", "10.0.0.2", "10.0.0.0", "10.0.0.3"),
	plain("10.0.0.0/28", "10.0.0.2-10.0.0.14", "10.0.0.0", "10.0.0.15"),
	plain("192.168.1.0/24", "192.168.1.2-192.168.1.254", "192.168.1.0", "192.168.1.255"),
	plain("10.0.0.0/8", "10.0.0.2-10.255.255.254", "10.0.0.0", "10.255.255.255"),
	plain("fd00::/127", "fd00::1"),
	plain("fd00::/126", "fd00::2-fd00::3", "fd00::"),
	plain("fd00::/121", "fd00::2-fd00::7f", "fd00::"),
	plain("fd00::/64", "fd00::2-fd00::ffff:ffff:ffff:ffff", "fd00::"),
	plain("fd00::/8", "fd00::2-fd00::ffff:ffff:ffff:ffff", "fd00::"),
	{ // no gateway
		config: pool.Config{Prefixes: prefixesOf("10.0.0.0/31")},
		given:  rangesOf("10.0.0.0-10.0.0.1"),
	},
	{ // ranges that touch, overlap and are out of order, with a gateway among them
		config: pool.Config{
			Prefixes: prefixesOf("10.0.0.0/26"), Gateways: addrsOf("10.0.0.33"), Ranges: rangesOf("10.0.0.30-10.0.0.34", "10.0.0.4-10.0.0.6", "10.0.0.7-10.0.0.9", "10.0.0.33-10.0.0.36"),
		},
		given: rangesOf("10.0.0.4-10.0.0.9", "10.0.0.30-10.0.0.32", "10.0.0.34-10.0.0.36"),
		edges: []string{"10.0.0.0", "10.0.0.63"},
	},
	{ // a static part, and what is reserved of it and of the rest
		config: pool.Config{
			Prefixes: prefixesOf("10.0.0.0/27"), Gateways: addrsOf("10.0.0.1"), Static: rangesOf("10.0.0.10-10.0.0.19"), Reserved: rangesOf("10.0.0.0-10.0.0.3", "10.0.0.15", "10.0.0.18-10.0.0.21"),
		},
		given:  rangesOf("10.0.0.4-10.0.0.9", "10.0.0.22-10.0.0.30"),
		static: rangesOf("10.0.0.10-10.0.0.14", "10.0.0.16-10.0.0.17"),
		edges:  []string{"10.0.0.0", "10.0.0.31"},
	},
	{ // several prefixes, of which one is given from whole, and one is all static
		config: pool.Config{
			Prefixes: prefixesOf("10.0.1.0/28", "10.0.0.0/29", "10.0.3.0/30"), Gateways: addrsOf("10.0.1.1", "10.0.0.6"), Ranges: rangesOf("10.0.1.8-10.0.1.10"),
			Static: rangesOf("10.0.3.1-10.0.3.2", "10.0.1.4"),
		},
		given:  rangesOf("10.0.1.8-10.0.1.10", "10.0.0.1-10.0.0.5"),
		static: rangesOf("10.0.3.1-10.0.3.2", "10.0.1.4"),
		edges:  []string{"10.0.1.0", "10.0.1.15", "10.0.0.0", "10.0.0.7", "10.0.3.0", "10.0.3.3"},
	},
	{ // nothing but a static part
		config: pool.Config{Prefixes: prefixesOf("fd00::/120"), Static: rangesOf("fd00::1-fd00::ff")},
		static: rangesOf("fd00::1-fd00::ff"),
		edges:  []string{"fd00::"},
	},
	{ // large prefixes with little in them, up to the last address
		config: pool.Config{
			Prefixes: prefixesOf("fd00::/8", "fc00::/64"), Gateways: addrsOf("fd00:1::1", "fc00::5"),
			Ranges:   rangesOf("fd00::40-fd00::42", "fd00::ffff:ffff:ffff:fffe-fd00::ffff:ffff:ffff:ffff", "fc00::1-fc00::60"),
			Reserved: rangesOf("fd00::41", "fc00::20-fc00::ffff:ffff:ffff:ffff"), Static: rangesOf("fd00::5-fd00::8"),
		},
		given:  rangesOf("fd00::40", "fd00::42", "fd00::ffff:ffff:ffff:fffe-fd00::ffff:ffff:ffff:ffff", "fc00::1-fc00::4", "fc00::6-fc00::1f"),
		static: rangesOf("fd00::5-fd00::8"),
		edges:  []string{"fd00::", "fc00::"},
	},
}

var bounds = []int{0, 1, 2, 7, 40, 65536}

// A freed address is one that waits for its turn.
type freed struct {
	addr netip.Addr
	at   int64
}

// A model is a pool that is slow and obvious. Its lists are searched from end to end.
type model struct {
	scene
	maxFreed int
	marks    []netip.Addr // of each range that is given, the next one that was not given in the ascending order
	held     []netip.Addr // sorted
	freed    []freed      // the one freed longest ago is first
	peak     int          // the most addresses that were ever held at once
}

func newModel(s scene, maxFreed int) *model {
	m := &model{scene: s, maxFreed: maxFreed}
	for _, r := range s.given {
		m.marks = append(m.marks, r.First)
	}
	return m
}

func in(list []pool.Range, addr netip.Addr) bool {
	return slices.ContainsFunc(list, func(r pool.Range) bool {
		return r.First.Is4() == addr.Is4() && r.First.Compare(addr) <= 0 && addr.Compare(r.Last) <= 0
	})
}

func (m *model) refusal(addr netip.Addr) error {
	switch {
	case !slices.ContainsFunc(m.config.Prefixes, func(p netip.Prefix) bool { return p.Contains(addr) && near(p.Addr(), addr) }):
		return pool.ErrOutside
	case slices.Contains(m.held, addr):
		return pool.ErrHeld
	case in(m.given, addr), in(m.static, addr):
		return nil
	case slices.Contains(m.config.Gateways, addr):
		return pool.ErrGateway
	case slices.Contains(m.edges, addr.String()):
		return pool.ErrEdge
	case in(m.config.Reserved, addr):
		return pool.ErrReserved
	}
	return pool.ErrUnlisted
}

// near reports whether two addresses differ in their last eight bytes alone.
func near(a, b netip.Addr) bool {
	x, y := a.As16(), b.As16()
	return slices.Equal(x[:8], y[:8])
}

func (m *model) hold(addr netip.Addr) {
	at, _ := slices.BinarySearchFunc(m.held, addr, netip.Addr.Compare)
	m.held = slices.Insert(m.held, at, addr)
	m.peak = max(m.peak, len(m.held))
}

func (m *model) indexFreed(addr netip.Addr) int {
	return slices.IndexFunc(m.freed, func(f freed) bool { return f.addr == addr })
}

func (m *model) allocate() (netip.Addr, bool) {
	if len(m.freed) <= m.maxFreed {
		for i, r := range m.given {
			for m.marks[i].IsValid() {
				addr := m.marks[i]
				m.marks[i] = addr.Next()
				if addr == r.Last {
					m.marks[i] = netip.Addr{}
				}
				if m.refusal(addr) == nil && m.indexFreed(addr) < 0 {
					m.hold(addr)
					return addr, true
				}
			}
		}
	}
	if len(m.freed) == 0 {
		return netip.Addr{}, false
	}
	addr := m.freed[0].addr
	m.freed = slices.Delete(m.freed, 0, 1)
	m.hold(addr)
	return addr, true
}

func (m *model) take(addr netip.Addr) error {
	if err := m.refusal(addr); err != nil {
		return err
	}
	if at := m.indexFreed(addr); at >= 0 {
		m.freed = slices.Delete(m.freed, at, at+1)
	}
	m.hold(addr)
	return nil
}

// ahead reports whether an address has not had its turn in the ascending order.
func (m *model) ahead(addr netip.Addr) bool {
	for i, r := range m.given {
		if in([]pool.Range{r}, addr) {
			return m.marks[i].IsValid() && m.marks[i].Compare(addr) <= 0
		}
	}
	return true // static
}

func (m *model) release(addr netip.Addr, now int64) bool {
	at := slices.Index(m.held, addr)
	if at < 0 {
		return false
	}
	m.held = slices.Delete(m.held, at, at+1)
	if !in(m.static, addr) && (len(m.freed) < m.maxFreed || !m.ahead(addr)) {
		m.freed = append(m.freed, freed{addr, now})
	}
	return true
}

// A pair is a pool and the model of it, which must never differ.
type pair struct {
	pool       *pool.Pool
	model      *model
	candidates []netip.Addr
	total      uint64
	now, after int64
}

func newPair(t *testing.T, which, bound int) *pair {
	t.Helper()
	s, maxFreed := scenes[which], bounds[bound]
	p, err := pool.NewBounded(s.config, maxFreed)
	if err != nil {
		t.Fatal(err)
	}
	pr := &pair{pool: p, model: newModel(s, maxFreed), total: p.Counts(0).Total}
	for _, prefix := range s.config.Prefixes {
		addr := prefix.Addr().Prev()
		for range 130 {
			pr.candidates = append(pr.candidates, addr)
			addr = addr.Next()
		}
	}
	for _, r := range slices.Concat(s.given, s.static, s.config.Reserved) {
		pr.candidates = append(pr.candidates, r.First.Prev(), r.First, r.First.Next(), r.Last, r.Last.Next())
	}
	pr.candidates = append(pr.candidates, s.config.Gateways...)
	pr.candidates = append(pr.candidates, netip.Addr{}, netip.MustParseAddr("::ffff:10.0.0.3"))
	return pr
}

// step makes one operation on both.
func (pr *pair) step(t *testing.T, operation, choice int) {
	t.Helper()
	addr := pr.candidates[choice%len(pr.candidates)]
	switch operation % 10 {
	case 0, 1, 2, 8:
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
	case 9:
		pr.now += int64(choice % 16)
		pr.after = max(pr.after, pr.now-40)
	default:
		if held := pr.model.held; operation%10 > 4 && len(held) > 0 {
			addr = held[choice%len(held)]
		}
		got, want := pr.pool.Release(addr, pr.now), pr.model.release(addr, pr.now)
		if got != want {
			t.Fatalf("Release(%v) is %v, want %v", addr, got, want)
		}
	}
	pr.compare(t, addr)
}

func (pr *pair) compare(t *testing.T, addr netip.Addr) {
	t.Helper()
	m := pr.model
	if got, want := pr.pool.Check(addr), m.refusal(addr); got != want {
		t.Fatalf("Check(%v) says %v, want %v", addr, got, want)
	}
	freedAt, ok := pr.pool.FreedAt(addr)
	if i := m.indexFreed(addr); ok != (i >= 0) || ok && freedAt != m.freed[i].at {
		t.Fatalf("FreedAt(%v) is %v, %v, want number %d of %v", addr, freedAt, ok, i, m.freed)
	}
	if got, most := pr.pool.Remembered(), 2*m.peak+m.maxFreed; got > most {
		t.Fatalf("remembers %d addresses, want no more than %d", got, most)
	}
	want := pr.counts()
	if got := pr.pool.Counts(pr.after); got != want {
		t.Fatalf("Counts are %+v, want %+v", got, want)
	}
	if got := pr.pool.Available(); got != (want.Free+want.Cooling > 0) {
		t.Fatalf("Available is %v and there is %+v", got, want)
	}
}

// counts counts one by one.
func (pr *pair) counts() pool.Counts {
	m := pr.model
	c := pool.Counts{Total: pr.total, Held: uint64(len(m.held))}
	size := func(list []pool.Range) (n uint64) {
		for _, r := range list {
			n += distance(r.First, r.Last) + 1
		}
		return n
	}
	var heldGiven uint64
	for _, addr := range m.held {
		if in(m.given, addr) {
			heldGiven++
		}
	}
	for _, f := range m.freed {
		if f.at > pr.after {
			c.Cooling++
		}
	}
	c.Reserved = c.Total - size(m.given) - (c.Held - heldGiven)
	c.Free = size(m.given) - heldGiven - c.Cooling
	return c
}

// distance returns how far b is behind a, by their last eight bytes.
func distance(a, b netip.Addr) (n uint64) {
	low, high := a.As16(), b.As16()
	for i := 8; i < 16; i++ {
		n = n<<8 + uint64(high[i]) - uint64(low[i])
	}
	return n
}

// drain takes all that is left of a small pool, and so compares the whole order.
func (pr *pair) drain(t *testing.T) {
	t.Helper()
	var order []freed
	for addr, at := range pr.pool.Freed() {
		order = append(order, freed{addr, at})
	}
	if !slices.Equal(order, pr.model.freed) {
		t.Fatalf("Freed are %v, want %v", order, pr.model.freed)
	}
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
	each := operations / (len(scenes) * len(bounds))
	for which := range scenes {
		for bound := range bounds {
			pr := newPair(t, which, bound)
			for range each {
				pr.step(t, random.IntN(10), random.IntN(1<<16))
			}
			pr.drain(t)
		}
	}
}

func FuzzThePoolDoesWhatItsModelDoes(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 4, 2})
	f.Add([]byte{2, 1, 3, 6, 3, 5, 4, 6, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{13, 2, 3, 100, 4, 100, 0, 0, 5, 1, 3, 7, 9, 15})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 2 || len(data) > 1<<12 {
			return
		}
		pr := newPair(t, int(data[0])%len(scenes), int(data[1])%len(bounds))
		for operation := range slices.Chunk(data[2:], 2) {
			pr.step(t, int(operation[0]), int(operation[len(operation)-1]))
		}
		pr.drain(t)
	})
}
