package pool

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// A Config says which addresses a Pool has. The addresses of its prefixes that a host may have, without the gateways, are given by Allocate and Take, unless
// what follows says otherwise. Where two lists have the same address the later one in this order counts.
type Config struct {
	// Prefixes are of one address family, and none overlaps another.
	Prefixes []netip.Prefix
	// Gateways are kept out: at most one in a prefix.
	Gateways []netip.Addr
	// Ranges are what is given of the prefixes that they are in. A prefix in which none is, is given from whole.
	Ranges []Range
	// Static are what Take alone gives. They need not be in Ranges.
	Static []Range
	// Reserved are never given.
	Reserved []Range
}

// A Range is the addresses from First to Last, both of them included.
type Range struct{ First, Last netip.Addr }

// String returns the range as ParseRange takes it.
func (r Range) String() string {
	if r.First == r.Last {
		return r.First.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

// ParseRange takes a range in the form FIRST-LAST, as 10.88.0.10-10.88.0.99, or one address. The error is for people.
func ParseRange(text string) (Range, error) {
	from, to, two := strings.Cut(text, "-")
	first, err := netip.ParseAddr(strings.TrimSpace(from))
	last := first
	if err == nil && two {
		last, err = netip.ParseAddr(strings.TrimSpace(to))
	}
	if err != nil {
		return Range{}, errors.New("want FIRST-LAST, as 10.88.0.10-10.88.0.99, or one address")
	}
	return Range{first, last}, nil
}

// CheckAddr returns why addr is none that a network has by its form, or nil.
func CheckAddr(addr netip.Addr) error {
	switch {
	case !addr.IsValid():
		return fmt.Errorf("%w: no address", ErrMalformed)
	case addr.Zone() != "":
		return fmt.Errorf("%w: %v has a zone; write %v", ErrMalformed, addr, addr.WithZone(""))
	case addr.Is4In6():
		return fmt.Errorf("%w: %v is an IPv4 address in IPv6 form; write %v", ErrMalformed, addr, addr.Unmap())
	}
	return nil
}

// within returns the prefix that has addr, or false.
func within(prefixes []netip.Prefix, addr netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return prefixes[i], true
}

// CheckGateway returns why addr cannot be a gateway of a network with prefixes, or nil. The error wraps ErrMalformed.
func CheckGateway(addr netip.Addr, prefixes []netip.Prefix) error {
	if err := CheckAddr(addr); err != nil {
		return err
	}
	prefix, ok := within(prefixes, addr)
	if !ok {
		return fmt.Errorf("%w: the gateway %v is outside of %s", ErrMalformed, addr, join(prefixes))
	}
	if edge := EdgeOf(prefix, addr); edge != "" {
		return fmt.Errorf("%w: the gateway %v is %s of %v", ErrMalformed, addr, edge, prefix)
	}
	return nil
}

// CheckRange returns why r is no range of a network with prefixes, or nil. A range that is given from begins and ends with addresses that a host may have. The
// error wraps ErrMalformed.
func CheckRange(r Range, prefixes []netip.Prefix, given bool) error {
	for _, addr := range []netip.Addr{r.First, r.Last} {
		if err := CheckAddr(addr); err != nil {
			return err
		}
	}
	var reason string
	prefix, ok := within(prefixes, r.First)
	switch {
	case r.First.Is4() != r.Last.Is4():
		reason = "it starts in one address family and ends in the other"
	case r.Last.Less(r.First):
		reason = fmt.Sprintf("it starts after its end; write %v", Range{r.Last, r.First})
	case !ok:
		reason = "it starts outside of " + join(prefixes)
	case !prefix.Contains(r.Last):
		reason = fmt.Sprintf("it starts in %v and ends outside of it", prefix)
	case !reaches(prefix, r.Last):
		reason = fmt.Sprintf("it ends beyond the first 2^64 addresses of %v, which are all that are given", prefix)
	case given && EdgeOf(prefix, r.First) != "":
		reason = fmt.Sprintf("it starts with %s of %v, which no host may have", EdgeOf(prefix, r.First), prefix)
	case given && EdgeOf(prefix, r.Last) != "":
		reason = fmt.Sprintf("it ends with %s of %v, which no host may have", EdgeOf(prefix, r.Last), prefix)
	}
	if reason == "" {
		return nil
	}
	return fmt.Errorf("%w range %v: %s", ErrMalformed, r, reason)
}

// reaches reports whether addr is among the first 2^64 addresses of its prefix.
func reaches(prefix netip.Prefix, addr netip.Addr) bool {
	_, ok := offsetOf(prefix.Addr(), addr)
	return ok
}

// EdgeOf says which edge of its prefix addr is, with an article, and nothing if it is none or far away.
func EdgeOf(prefix netip.Prefix, addr netip.Addr) string {
	low, high := usable(prefix)
	offset, ok := offsetOf(prefix.Addr(), addr)
	switch {
	case ok && offset < low && addr.Is6():
		return "the routers' anycast address" // RFC 4291, 2.6.1
	case ok && offset < low:
		return "the network's own address"
	case ok && offset > high:
		return "the broadcast address"
	}
	return ""
}

func join(prefixes []netip.Prefix) string {
	var texts []string
	for _, p := range prefixes {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, " and ")
}

// check returns the first rule that c breaks.
func (c Config) check() error {
	if len(c.Prefixes) == 0 {
		return fmt.Errorf("%w: there is no prefix", ErrMalformed)
	}
	for i, p := range c.Prefixes {
		if err := CheckPrefix(p); err != nil {
			return err
		}
		for _, other := range c.Prefixes[:i] {
			if p.Addr().Is4() != other.Addr().Is4() || p.Overlaps(other) {
				return fmt.Errorf("%w: prefixes %v and %v overlap, or are of two address families", ErrMalformed, other, p)
			}
		}
	}
	seen := map[netip.Prefix]netip.Addr{}
	for _, g := range c.Gateways {
		if err := CheckGateway(g, c.Prefixes); err != nil {
			return err
		}
		prefix, _ := within(c.Prefixes, g)
		if other, twice := seen[prefix]; twice {
			return fmt.Errorf("%w: %v and %v are both gateways of %v", ErrMalformed, other, g, prefix)
		}
		seen[prefix] = g
	}
	for _, r := range slices.Concat(c.Ranges, c.Static) {
		if err := CheckRange(r, c.Prefixes, true); err != nil {
			return err
		}
	}
	for _, r := range c.Reserved {
		if err := CheckRange(r, c.Prefixes, false); err != nil {
			return err
		}
	}
	return nil
}
