package pool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
)

// ErrMalformed is wrapped by each reason for which New refuses a Config.
var ErrMalformed = errors.New("malformed")

var (
	thisNetwork = netip.MustParsePrefix("0.0.0.0/8")          // RFC 1122, 3.2.1.3
	multicast4  = netip.MustParsePrefix("224.0.0.0/4")        // RFC 5771
	multicast6  = netip.MustParsePrefix("ff00::/8")           // RFC 4291, 2.7
	mapped4     = netip.MustParsePrefix("::ffff:0.0.0.0/96")  // RFC 4291, 2.5.5.2
	broadcast4  = netip.MustParseAddr("255.255.255.255")      // RFC 919, 7
	lastLink4   = netip.MustParsePrefix("255.255.255.254/31") // the one prefix that would give out broadcast4
)

// CheckPrefix returns why no addresses can be given out of prefix, or nil. The error wraps ErrMalformed and names the prefix.
func CheckPrefix(prefix netip.Prefix) error {
	if !prefix.IsValid() {
		return fmt.Errorf("%w prefix: it is empty, or longer than its address", ErrMalformed)
	}
	reason := formReason(prefix)
	if reason == "" {
		reason = reservedReason(prefix)
	}
	if reason == "" {
		return nil
	}
	return fmt.Errorf("%w prefix %v: %s", ErrMalformed, prefix, reason)
}

// formReason says what is wrong with how a prefix is written, or how long it is.
func formReason(prefix netip.Prefix) string {
	addr, bits := prefix.Addr(), prefix.Bits()
	switch {
	case addr.Is4In6() && bits >= mapped4.Bits():
		return fmt.Sprintf("it is an IPv4 prefix in IPv6 form; write %v", netip.PrefixFrom(addr.Unmap(), bits-mapped4.Bits()))
	case prefix != prefix.Masked():
		return fmt.Sprintf("it has bits set after the first %d; write %v", bits, prefix.Masked())
	case prefix.IsSingleIP():
		return "it is a single address and has no room beside the gateway"
	}
	return ""
}

// reservedReason says which addresses of a prefix no host may have. It ends where each host needs its own.
func reservedReason(prefix netip.Prefix) string {
	switch {
	case prefix.Bits() == 0:
		return "it is every address there is"
	case prefix.Overlaps(multicast4), prefix.Overlaps(multicast6):
		return "it holds multicast addresses"
	case prefix.Overlaps(thisNetwork):
		return fmt.Sprintf("it holds addresses of %v, which mean a host of this network and cannot be given to one", thisNetwork)
	case prefix == lastLink4:
		return fmt.Sprintf("it holds %v, the broadcast address of every network", broadcast4)
	case prefix.Contains(netip.IPv6Unspecified()):
		return "it holds ::, the address of no host"
	case prefix.Overlaps(mapped4):
		return fmt.Sprintf("it holds addresses of %v, which mean IPv4", mapped4)
	}
	return ""
}

// usable returns the offsets of the first and the last address of a prefix that a host may have. In IPv6 the last is at most that of the first 2^64 addresses.
//
// Offset 0 is the network's own address, and in IPv6 the anycast address of its routers (RFC 4291, 2.6.1); the last one is
// the broadcast address, in IPv4 only. A link of two addresses has neither (RFC 3021, RFC 6164).
func usable(prefix netip.Prefix) (low, high uint64) {
	hostBits := prefix.Addr().BitLen() - prefix.Bits()
	high = math.MaxUint64
	if hostBits < 64 {
		high = 1<<hostBits - 1
	}
	if hostBits == 1 {
		return 0, high
	}
	if prefix.Addr().Is4() {
		high--
	}
	return 1, high
}

// FirstUsable returns the first address of prefix that a host may have. The prefix has passed CheckPrefix.
func FirstUsable(prefix netip.Prefix) netip.Addr {
	low, _ := usable(prefix)
	return at(prefix.Addr(), low)
}

// at returns the address at an offset from the first address of its prefix.
func at(first netip.Addr, offset uint64) netip.Addr {
	if first.Is4() {
		octets := first.As4()
		binary.BigEndian.PutUint32(octets[:], binary.BigEndian.Uint32(octets[:])+uint32(offset))
		return netip.AddrFrom4(octets)
	}
	octets := first.As16()
	low := octets[8:]
	binary.BigEndian.PutUint64(low, binary.BigEndian.Uint64(low)+offset)
	return netip.AddrFrom16(octets)
}

// offsetOf returns how far addr, of the prefix that begins with first, is from it.
// It returns false if that is more than an uint64 holds.
func offsetOf(first, addr netip.Addr) (uint64, bool) {
	if first.Is4() {
		a, b := first.As4(), addr.As4()
		return uint64(binary.BigEndian.Uint32(b[:]) - binary.BigEndian.Uint32(a[:])), true
	}
	a, b := first.As16(), addr.As16()
	return binary.BigEndian.Uint64(b[8:]) - binary.BigEndian.Uint64(a[8:]), [8]byte(a[:8]) == [8]byte(b[:8])
}
