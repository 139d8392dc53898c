// Package pool says which addresses of one address family of a network are free.
//
// It does no I/O, has no clock and takes no locks: the caller guards a Pool, and says what time it is. No cost depends on the size of a prefix.
package pool

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
)

// What Take refuses, each wrapped with the address.
var (
	// ErrOutside says that the address is not in a prefix, or beyond the first 2^64 addresses of it.
	ErrOutside = errors.New("address is outside the prefix")
	// ErrGateway says that the address is the gateway's.
	ErrGateway = errors.New("address is the gateway's")
	// ErrEdge says that the address is the network's own or its broadcast address.
	ErrEdge = errors.New("address is the network's own or its broadcast address")
	// ErrReserved says that the address is reserved.
	ErrReserved = errors.New("address is reserved")
	// ErrUnlisted says that the address is neither in a range nor in the static part.
	ErrUnlisted = errors.New("address is in no range to give from and in no static part")
	// ErrHeld says that the address is held already.
	ErrHeld = errors.New("address is held")
)

// maxFreed is how many freed addresses wait for their turn before never-used ones stand back.
const maxFreed = 65536

// A Pool gives out the addresses of a Config.
//
// An address is never-used, held or freed:
//
//	never-used ─ Allocate, Take ─▶ held ─ Release ─▶ freed ─ Allocate, Take ─▶ held
//
// Allocate prefers never-used addresses, in ascending order within each prefix and in the order of the prefixes, and then the one freed longest ago. The order of
// freed addresses is always kept, but no more than 65,536 of them wait behind never-used ones: while more are freed, the one freed longest ago is
// given first. And while 65,536 or more are freed, an address that Take got out of the ascending order is never-used again when it is released before its turn.
// So is an address of the static part whenever it is released. So a Pool remembers at most twice as many addresses as were ever held
// at once, plus 65,536, whatever its prefixes and its history are.
//
// A freed address cools for as long as the caller says. That changes nothing of the order, in which it comes last anyway: it is counted apart.
//
// All methods cost the same at any size and fill, apart from memory that grows by doubling; Allocate also steps over
// addresses that were taken before their turn, over each once, and Counts over those that have cooled since the last time.
type Pool struct {
	parts    []part
	unspent  int // the first part that is not spent
	maxFreed int

	slots []slot // slots[0] is the head of the freed ones: newer is the one freed longest ago
	spare int32  // the first of the slots without an address, linked by newer; 0 is none
	freed int

	cooling int   // freed addresses that have not cooled yet
	warm    int32 // the slot of the first of them; 0 is none

	held, heldStatic int    // of the latter those of the static part
	total, given     uint64 // that a host may have, and of these those that Allocate gives
}

// A slot remembers one address. Freed ones are in a ring in the order of their release, which slots[0] closes.
type slot struct {
	offset       uint64
	freedAt      int64
	older, newer int32
	part         int32
	static, cool bool // cool: it is freed and counts as cooling no more
}

// held stands in slot.newer for an address that is held, and so in no ring.
const held = -1

// New returns a Pool of the addresses of c. In IPv6 only the first 2^64 addresses of a prefix are given out. The error wraps ErrMalformed and says what is
// wrong with c.
func New(c Config) (*Pool, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	p := &Pool{maxFreed: maxFreed, slots: make([]slot, 1)}
	for _, prefix := range c.Prefixes {
		one := newPart(c, prefix)
		p.parts = append(p.parts, one)
		p.total = sum(p.total, one.total())
		p.given = sum(p.given, one.given.size())
	}
	if p.given == 0 && !p.hasStatic() {
		return nil, fmt.Errorf("%w: no address of %s is left to lease", ErrMalformed, join(c.Prefixes))
	}
	return p, nil
}

func (p *Pool) hasStatic() bool {
	for i := range p.parts {
		if len(p.parts[i].static) > 0 {
			return true
		}
	}
	return false
}

// Counts are how many addresses of a Pool have which state. All of them together are Total, unless that is the largest uint64, which stands for at least as many.
type Counts struct {
	Total    uint64 // that a host may have, without the gateways
	Held     uint64
	Reserved uint64 // that Allocate never gives and that are not held: reserved, static, or in no range
	Cooling  uint64 // freed after the time that was asked with
	Free     uint64
}

// Counts counts the addresses of the pool. Those that were freed after the given time are cooling; a later call must not have an earlier time, or counts fewer.
func (p *Pool) Counts(after int64) Counts {
	for p.warm != 0 && p.slots[p.warm].freedAt <= after {
		p.slots[p.warm].cool = true
		p.warm = p.slots[p.warm].newer
		p.cooling--
	}
	heldGiven := uint64(p.held - p.heldStatic)
	return Counts{
		Total: p.total, Held: uint64(p.held), Cooling: uint64(p.cooling),
		Reserved: minus(p.total-min(p.total, p.given), uint64(p.heldStatic)),
		Free:     p.given - heldGiven - uint64(p.cooling),
	}
}

// Available reports whether Allocate would give an address.
func (p *Pool) Available() bool { return uint64(p.held-p.heldStatic) < p.given }

// Check returns the error that Take would.
func (p *Pool) Check(addr netip.Addr) error {
	i, offset, _, err := p.locate(addr)
	if err == nil && p.isHeld(p.parts[i].index[offset]) {
		err = ErrHeld
	}
	return err
}

// FreedAt returns when addr was freed, and false if it is held or counts as never-used.
func (p *Pool) FreedAt(addr netip.Addr) (int64, bool) {
	i, offset, _, err := p.locate(addr)
	if err != nil {
		return 0, false
	}
	s := p.parts[i].index[offset]
	return p.slots[s].freedAt, s != 0 && !p.isHeld(s)
}

// Freed returns the freed addresses and when each was freed, the one freed longest ago first.
func (p *Pool) Freed() iter.Seq2[netip.Addr, int64] {
	return func(yield func(netip.Addr, int64) bool) {
		for i := p.slots[0].newer; i != 0; i = p.slots[i].newer {
			if s := p.slots[i]; !yield(p.parts[s.part].addr(s.offset), s.freedAt) {
				return
			}
		}
	}
}

// Allocate returns a free address, which is held from then on. It returns false if all that it gives are held.
func (p *Pool) Allocate() (netip.Addr, bool) {
	if p.freed <= p.maxFreed {
		for ; p.unspent < len(p.parts); p.unspent++ {
			one := &p.parts[p.unspent]
			if offset, ok := one.neverUsed(); ok {
				p.remember(p.unspent, offset, false)
				return one.addr(offset), true
			}
		}
	}
	oldest := p.slots[0].newer
	if oldest == 0 {
		return netip.Addr{}, false
	}
	p.unlink(oldest)
	return p.parts[p.slots[oldest].part].addr(p.slots[oldest].offset), true
}

// Take makes addr, and no other, held. The error wraps ErrOutside, ErrEdge, ErrGateway, ErrReserved, ErrUnlisted or ErrHeld.
func (p *Pool) Take(addr netip.Addr) error {
	i, offset, static, err := p.locate(addr)
	if err != nil {
		return fmt.Errorf("take %v: %w", addr, err)
	}
	s, known := p.parts[i].index[offset]
	switch {
	case !known:
		p.remember(i, offset, static)
	case p.isHeld(s):
		return fmt.Errorf("take %v: %w", addr, ErrHeld)
	default:
		p.unlink(s)
	}
	return nil
}

// Release makes addr free. It cools from now on, which must not be before an earlier now. It returns false, and does nothing, if addr is not held.
func (p *Pool) Release(addr netip.Addr, now int64) bool {
	i, offset, static, err := p.locate(addr)
	if err != nil {
		return false
	}
	s := p.parts[i].index[offset]
	if !p.isHeld(s) {
		return false
	}
	if static || p.freed >= p.maxFreed && p.parts[i].ahead(offset) {
		p.forget(s)
	} else {
		p.link(s, now)
	}
	return true
}

// locate returns where an address is that can be held, or why it cannot.
func (p *Pool) locate(addr netip.Addr) (i int, offset uint64, static bool, err error) {
	for i = range p.parts {
		if p.parts[i].prefix.Contains(addr) {
			offset, static, err = p.parts[i].locate(addr)
			return i, offset, static, err
		}
	}
	return 0, 0, false, ErrOutside
}

// isHeld reports whether the address of a slot is held. No address has slot 0.
func (p *Pool) isHeld(s int32) bool { return p.slots[s].newer == held }

// remember gives a never-used address a slot, as held.
func (p *Pool) remember(part int, offset uint64, static bool) {
	s := p.spare
	if s == 0 {
		s = int32(len(p.slots))
		p.slots = append(p.slots, slot{})
	} else {
		p.spare = p.slots[s].newer
	}
	p.slots[s] = slot{offset: offset, newer: held, part: int32(part), static: static}
	p.parts[part].index[offset] = s
	p.held++
	if static {
		p.heldStatic++
	}
}

// forget makes a held address never-used.
func (p *Pool) forget(s int32) {
	gone := p.slots[s]
	delete(p.parts[gone.part].index, gone.offset)
	p.slots[s] = slot{newer: p.spare}
	p.spare = s
	p.held--
	if gone.static {
		p.heldStatic--
	}
}

// link makes a held address the one freed last.
func (p *Pool) link(s int32, now int64) {
	newest := p.slots[0].older
	one := &p.slots[s]
	one.older, one.newer, one.freedAt, one.cool = newest, 0, now, false
	p.slots[newest].newer = s
	p.slots[0].older = s
	p.freed++
	p.held--
	p.cooling++
	if p.warm == 0 {
		p.warm = s
	}
}

// unlink makes a freed address held.
func (p *Pool) unlink(s int32) {
	one := &p.slots[s]
	if !one.cool {
		p.cooling--
	}
	if p.warm == s {
		p.warm = one.newer
	}
	p.slots[one.older].newer = one.newer
	p.slots[one.newer].older = one.older
	one.newer, one.cool = held, false
	p.freed--
	p.held++
}
