package pool

import "net/netip"

// A part is one prefix of a Pool. Its addresses are known by their offsets from its first one.
type part struct {
	prefix     netip.Prefix
	low, high  uint64 // the offsets that a host may have
	gateway    uint64
	hasGateway bool
	given      spans // by Allocate and Take
	static     spans // by Take alone
	reserved   spans // by nobody, as the Config says

	// The never-used mark: each offset of given before next is in index. The part is spent when span is len(given).
	span  int
	next  uint64
	index map[uint64]int32 // the slot of each address that is held or freed
}

// newPart returns the part of c that one of its prefixes is. c has been checked.
func newPart(c Config, prefix netip.Prefix) part {
	p := part{prefix: prefix, index: map[uint64]int32{}}
	p.low, p.high = usable(prefix)
	p.reserved = p.spansOf(c.Reserved)
	out := []span(p.reserved)
	for _, g := range c.Gateways {
		if offset, near := offsetOf(prefix.Addr(), g); near && prefix.Contains(g) { // one beyond the first 2^64 is in nobody's way
			p.gateway, p.hasGateway = offset, true
			out = append(out[:len(out):len(out)], span{p.gateway, p.gateway})
		}
	}
	p.static = p.spansOf(c.Static).without(spansOf(out))
	p.given = p.spansOf(c.Ranges)
	if len(p.given) == 0 {
		p.given = spans{{p.low, p.high}}
	}
	p.given = p.given.without(spansOf(out)).without(p.static)
	if len(p.given) > 0 {
		p.next = p.given[0].first
	}
	return p
}

// spansOf returns what ranges have of the part.
func (p *part) spansOf(ranges []Range) spans {
	var list []span
	for _, r := range ranges {
		if p.prefix.Contains(r.First) {
			list = append(list, span{p.offset(r.First), p.offset(r.Last)})
		}
	}
	return spansOf(list)
}

// offset returns the offset of an address of the part that is known to have one.
func (p *part) offset(addr netip.Addr) uint64 {
	offset, _ := offsetOf(p.prefix.Addr(), addr)
	return offset
}

func (p *part) addr(offset uint64) netip.Addr { return at(p.prefix.Addr(), offset) }

// total returns how many addresses a host may have, without the gateway's.
func (p *part) total() uint64 {
	total := p.high - p.low // one less than there are: 2^64 is none of them, but 2^64-1 may be
	if !p.hasGateway {
		total++
	}
	return total
}

// locate returns the offset of an address of the prefix that can be held, or why it cannot.
func (p *part) locate(addr netip.Addr) (offset uint64, static bool, err error) {
	offset, ok := offsetOf(p.prefix.Addr(), addr)
	switch {
	case !ok:
		return 0, false, ErrOutside
	case p.given.has(offset):
		return offset, false, nil
	case p.static.has(offset):
		return offset, true, nil
	case p.hasGateway && offset == p.gateway:
		return 0, false, ErrGateway
	case offset < p.low, offset > p.high:
		return 0, false, ErrEdge
	case p.reserved.has(offset):
		return 0, false, ErrReserved
	}
	return 0, false, ErrUnlisted
}

// neverUsed moves the mark past the next address that is never-used, and returns it. Those taken before their turn are in index.
func (p *part) neverUsed() (uint64, bool) {
	for p.span < len(p.given) {
		offset := p.next
		// The last offset may be the last uint64, so the mark never goes beyond it.
		if offset < p.given[p.span].last {
			p.next++
		} else if p.span++; p.span < len(p.given) {
			p.next = p.given[p.span].first
		}
		if _, known := p.index[offset]; !known {
			return offset, true
		}
	}
	return 0, false
}

// ahead reports whether an offset is one that the mark has not passed.
func (p *part) ahead(offset uint64) bool { return p.span < len(p.given) && offset >= p.next }
