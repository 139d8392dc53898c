package network

import (
	"net/netip"
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
