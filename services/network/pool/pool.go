// Package pool says which addresses of one prefix are free.
//
// It does no I/O, knows no time and takes no locks: the caller guards a Pool. No cost depends on the size of the prefix.
package pool

import (
	"errors"
	"fmt"
	"net/netip"
)

// What Take refuses, each wrapped with the address.
var (
	// ErrOutside says that the address is not in the prefix, or beyond the first 2^64 addresses of it.
	ErrOutside = errors.New("address is outside the prefix")
	// ErrGateway says that the address is the gateway's.
	ErrGateway = errors.New("address is the gateway's")
	// ErrEdge says that the address is the network's own or its broadcast address.
	ErrEdge = errors.New("address is the network's own or its broadcast address")
	// ErrHeld says that the address is held already.
	ErrHeld = errors.New("address is held")
)

// maxFreed is how many freed addresses wait for their turn before never-used ones stand back.
const maxFreed = 65536

// A Pool gives out the addresses of one prefix.
//
// An address is never-used, held or freed:
//
//	never-used ─ Allocate, Take ─▶ held ─ Release ─▶ freed ─ Allocate, Take ─▶ held
//
// Allocate prefers never-used addresses, in ascending order, and then the one freed longest ago. The order of freed addresses is
// always kept, but no more than 65,536 of them wait behind never-used ones: while more are freed, the one freed longest ago is
// given first. And while 65,536 or more are freed, an address that Take got out of the ascending order is
// never-used again when it is released before its turn. So a Pool remembers at most twice as many addresses as were ever held
// at once, plus 65,536, whatever its prefix and its history are.
//
// All methods cost the same at any size and fill, apart from memory that grows by doubling; Allocate also steps over
// addresses that were taken before their turn, over each once.
type Pool struct {
	prefix   netip.Prefix
	gateway  uint64 // offsets from the first address of prefix, as are all below
	last     uint64
	maxFreed int

	next  uint64 // the never-used mark: each offset below it is in index
	spent bool   // the mark has passed last

	index map[uint64]int // the slot of each address that is held or freed
	slots []slot         // slots[0] is the head of the freed ones: newer is the one freed longest ago
	spare int            // the first of the slots without an address, linked by newer; 0 is none
	freed int
}

// A slot remembers one address. Freed ones are in a ring in the order of their release, which slots[0] closes.
type slot struct {
	offset       uint64
	older, newer int
}

// held stands in slot.newer for an address that is held, and so in no ring.
const held = -1

// New returns a Pool of the addresses of prefix, without its gateway, which is the first usable one. In IPv6 only the first
// 2^64 addresses are given out. The error wraps ErrMalformed and says what is wrong with prefix.
func New(prefix netip.Prefix) (*Pool, error) {
	if err := checkPrefix(prefix); err != nil {
		return nil, err
	}
	gateway, last := bounds(prefix)
	return &Pool{
		prefix:   prefix,
		gateway:  gateway,
		last:     last,
		maxFreed: maxFreed,
		next:     gateway + 1,
		index:    make(map[uint64]int),
		slots:    make([]slot, 1),
	}, nil
}

// Prefix returns the prefix that the addresses are of.
func (p *Pool) Prefix() netip.Prefix { return p.prefix }

// Gateway returns the address that is kept out for the gateway.
func (p *Pool) Gateway() netip.Addr { return at(p.prefix.Addr(), p.gateway) }

// Size returns how many addresses can be held at once.
func (p *Pool) Size() uint64 { return p.last - p.gateway }

// Len returns how many addresses are held.
func (p *Pool) Len() int { return len(p.index) - p.freed }

// Held reports whether addr is held.
func (p *Pool) Held(addr netip.Addr) bool {
	_, ok := p.heldSlot(addr)
	return ok
}

// Allocate returns a free address, which is held from then on. It returns false if all are held.
func (p *Pool) Allocate() (netip.Addr, bool) {
	if p.freed <= p.maxFreed {
		if offset, ok := p.neverUsed(); ok {
			p.remember(offset)
			return at(p.prefix.Addr(), offset), true
		}
	}
	oldest := p.slots[0].newer
	if oldest == 0 {
		return netip.Addr{}, false
	}
	p.unlink(oldest)
	return at(p.prefix.Addr(), p.slots[oldest].offset), true
}

// Take makes addr, and no other, held. The error wraps ErrOutside, ErrEdge, ErrGateway or ErrHeld.
func (p *Pool) Take(addr netip.Addr) error {
	offset, err := p.locate(addr)
	if err != nil {
		return fmt.Errorf("take %v of %v: %w", addr, p.prefix, err)
	}
	i, known := p.index[offset]
	switch {
	case !known:
		p.remember(offset)
	case p.slots[i].newer == held:
		return fmt.Errorf("take %v of %v: %w", addr, p.prefix, ErrHeld)
	default:
		p.unlink(i)
	}
	return nil
}

// Release makes addr free. It returns false, and does nothing, if addr is not held.
func (p *Pool) Release(addr netip.Addr) bool {
	i, ok := p.heldSlot(addr)
	if !ok {
		return false
	}
	early := !p.spent && p.slots[i].offset >= p.next
	if early && p.freed >= p.maxFreed {
		p.forget(i)
	} else {
		p.link(i)
	}
	return true
}

// locate returns the offset of an address that can be held, or why it cannot.
func (p *Pool) locate(addr netip.Addr) (uint64, error) {
	if !p.prefix.Contains(addr) {
		return 0, ErrOutside
	}
	offset, ok := offsetOf(p.prefix.Addr(), addr)
	switch {
	case !ok:
		return 0, ErrOutside
	case offset == p.gateway:
		return 0, ErrGateway
	case offset < p.gateway, offset > p.last:
		return 0, ErrEdge
	}
	return offset, nil
}

// heldSlot returns the slot of addr, if it is held.
func (p *Pool) heldSlot(addr netip.Addr) (int, bool) {
	offset, err := p.locate(addr)
	if err != nil {
		return 0, false
	}
	i, known := p.index[offset]
	return i, known && p.slots[i].newer == held
}

// neverUsed moves the mark past the next address that is never-used, and returns it. Those taken before their turn are in index.
func (p *Pool) neverUsed() (uint64, bool) {
	for !p.spent {
		offset := p.next
		// The last offset may be the last uint64, so the mark never goes beyond it.
		if offset == p.last {
			p.spent = true
		} else {
			p.next++
		}
		if _, known := p.index[offset]; !known {
			return offset, true
		}
	}
	return 0, false
}

// remember gives a never-used address a slot, as held.
func (p *Pool) remember(offset uint64) {
	i := p.spare
	if i == 0 {
		i = len(p.slots)
		p.slots = append(p.slots, slot{})
	} else {
		p.spare = p.slots[i].newer
	}
	p.slots[i] = slot{offset: offset, newer: held}
	p.index[offset] = i
}

// forget makes a held address never-used.
func (p *Pool) forget(i int) {
	delete(p.index, p.slots[i].offset)
	p.slots[i] = slot{newer: p.spare}
	p.spare = i
}

// link makes a held address the one freed last.
func (p *Pool) link(i int) {
	newest := p.slots[0].older
	p.slots[i].older, p.slots[i].newer = newest, 0
	p.slots[newest].newer = i
	p.slots[0].older = i
	p.freed++
}

// unlink makes a freed address held.
func (p *Pool) unlink(i int) {
	older, newer := p.slots[i].older, p.slots[i].newer
	p.slots[older].newer = newer
	p.slots[newer].older = older
	p.slots[i].newer = held
	p.freed--
}
