package network

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-dev/fairlead/wire"
)

// DefaultNetwork is the network that an empty name stands for.
const DefaultNetwork = "default"

const (
	maxNetwork  = 63  // bytes of a network's name
	maxLabel    = 63  // bytes of one part of a hostname: RFC 1035, 2.3.4
	maxHostname = 253 // bytes of a hostname as text, without a dot at its end: what fits in 255 bytes on the wire
)

// CheckNetwork checks the name of a network: 1 to 63 letters, digits, '-', '_' and '.', the first a letter or digit. It fails with wire.Malformed.
func CheckNetwork(name string) error {
	if name == "" || len(name) > maxNetwork {
		return wire.Errorf(wire.Malformed, "network name of %d bytes, want 1 to %d", len(name), maxNetwork)
	}
	for i, c := range []byte(name) {
		if !alphanumeric(c) && (i == 0 || c != '-' && c != '_' && c != '.') {
			return wire.Errorf(wire.Malformed, "network name %q: want letters, digits, '-', '_' and '.', the first a letter or digit",
				wire.Printable(name, maxNetwork))
		}
	}
	return nil
}

// CanonicalHostname returns a hostname in the form in which it is leased and compared: in lower case and without the dot that may end it. It is
// one or more labels of letters, digits and inner hyphens (RFC 1123, 2.1), and no address. Empty stays empty. It fails with wire.Malformed.
func CanonicalHostname(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	if len(name) > maxHostname+1 {
		return "", wire.Errorf(wire.Malformed, "hostname of %d bytes, limit %d", len(name), maxHostname)
	}
	host := strings.TrimSuffix(name, ".")
	if len(host) > maxHostname {
		return "", wire.Errorf(wire.Malformed, "hostname of %d bytes, limit %d", len(host), maxHostname)
	}
	for label := range strings.SplitSeq(host, ".") {
		if !validLabel(label) {
			return "", wire.Errorf(wire.Malformed, "hostname %q: want labels of 1 to %d letters, digits and inner hyphens, joined by dots",
				wire.Printable(name, 64), maxLabel)
		}
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return "", wire.Errorf(wire.Malformed, "hostname %s is an address and no name", host)
	}
	return strings.ToLower(host), nil
}

// CanonicalAliases returns aliases in the form in which they are leased: each as CanonicalHostname has it, and once. It fails with wire.Malformed.
func CanonicalAliases(aliases []string) ([]string, error) {
	if len(aliases) > MaxAliases {
		return nil, wire.Errorf(wire.Malformed, "%d aliases, limit %d", len(aliases), MaxAliases)
	}
	var list []string
	for _, a := range aliases {
		host, err := CanonicalHostname(a)
		if err != nil {
			return nil, fmt.Errorf("alias: %w", err)
		}
		if host == "" {
			return nil, wire.Errorf(wire.Malformed, "an alias is empty")
		}
		if !slices.Contains(list, host) {
			list = append(list, host)
		}
	}
	return list, nil
}

func validLabel(label string) bool {
	if label == "" || len(label) > maxLabel || label[0] == '-' || label[len(label)-1] == '-' {
		return false
	}
	for _, c := range []byte(label) {
		if !alphanumeric(c) && c != '-' {
			return false
		}
	}
	return true
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// CheckLeaseID checks the id of a lease: 16 lower-case hexadecimal digits. It fails with wire.Malformed.
func CheckLeaseID(id string) error {
	if len(id) != 16 || strings.Trim(id, "0123456789abcdef") != "" {
		return wire.Errorf(wire.Malformed, "lease id %q: want 16 hexadecimal digits", wire.Printable(id, 32))
	}
	return nil
}

// ParseAddresses returns the addresses that a request names: at most one of each family. It fails with wire.Malformed.
func ParseAddresses(texts []string) ([]netip.Addr, error) {
	var list []netip.Addr
	for _, text := range texts {
		addr, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			return nil, wire.Errorf(wire.Malformed, "address %q: want one without a prefix length, as 10.88.0.5", wire.Printable(text, 64))
		case addr.Is4In6():
			return nil, wire.Errorf(wire.Malformed, "address %v is an IPv4 address in IPv6 form: write %v", addr, addr.Unmap())
		case addr.Zone() != "":
			return nil, wire.Errorf(wire.Malformed, "address %s has a zone: write %v", wire.Printable(text, 64), addr.WithZone(""))
		case slices.ContainsFunc(list, func(other netip.Addr) bool { return other.Is4() == addr.Is4() }):
			return nil, wire.Errorf(wire.Malformed, "%d addresses: a lease has one of each family", len(texts))
		}
		list = append(list, addr)
	}
	return list, nil
}

// CanonicalMAC returns a hardware address in the form in which it is leased and compared: that of net.HardwareAddr. It has six octets, and is that of one host:
// unicast (IEEE 802, 8.2) and not zero. Empty stays empty. It fails with wire.Malformed.
func CanonicalMAC(text string) (string, error) {
	if text == "" {
		return "", nil
	}
	mac, err := net.ParseMAC(text)
	switch {
	case err != nil || len(mac) != 6:
		return "", wire.Errorf(wire.Malformed, "MAC %q: want six octets, as 02:42:0a:58:00:05", wire.Printable(text, 64))
	case mac[0]&1 != 0:
		return "", wire.Errorf(wire.Malformed, "MAC %v is a multicast address: a host has a unicast one, whose first octet is even", mac)
	case slices.Max(mac) == 0:
		return "", wire.Errorf(wire.Malformed, "MAC %v is that of no host", mac)
	}
	return mac.String(), nil
}
