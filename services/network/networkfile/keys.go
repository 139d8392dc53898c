package networkfile

import "slices"

// A Key is one key of a network file, for the documentation.
type Key struct {
	Name    string // with its table's, as in limits.uid; those of a network without one
	Type    string
	Default string
	Text    string
}

// Keys returns every key of a network file, in the order in which one writes them. The caller may change what it gets.
func Keys() []Key { return slices.Clone(keys) }

const rangeType = "array of `\"FIRST-LAST\"` or `\"ADDRESS\"`"

var keys = []Key{
	{"limits.session", "integer", "256", "How many leases a session may hold."},
	{"limits.uid", "integer", "16384", "How many leases a user may have on all networks, also dying and orphaned ones. Root and the service's own user have no such limit."},
	{"name", "string", "none: required", "The network's name, see [the endpoint](#the-endpoint). The one called `default` is what an empty name stands for."},
	{"prefixes", "array of `\"ADDRESS/LENGTH\"`", "none: required", "1 to 16 IPv4 and IPv6 prefixes, given from in this order. A lease has one address of each family that is there. " +
		"None may overlap another, of this network or of any other. /32 and /128 have no room; a /31 and a /127 have two addresses and no edges (RFC 3021, RFC 6164). " +
		"Of a large IPv6 prefix the first 2^64 addresses are given."},
	{"gateway", "`\"first\"`, `\"none\"`, an address, or an array of these", "`\"first\"`", "The gateways, which are kept out: the first usable address of each prefix, none, or at most one address in each prefix. " +
		"A prefix in which none of the addresses is has no gateway."},
	{"ranges", rangeType, "the prefixes", "What is given of the prefixes that they are in. A prefix in which no range is, is given from whole. At most 1,024."},
	{"static", rangeType, "none", "Addresses that only those get who ask for them, in `ranges` or not. At most 1,024."},
	{"reserved", rangeType, "none", "Addresses that nobody gets. At most 1,024."},
	{"mtu", "integer", "1500", "The MTU of its links in bytes: 68 to 65535, and with IPv6 at least 1280."},
	{"mac_prefix", "string", "any", "What the MACs that are made begin with: 1 to 3 octets, as `\"02:42\"`, locally administered and unicast."},
	{"dns", "array of addresses", "none", "DNS servers for the hosts of the network: at most 16."},
	{"search", "array of names", "none", "Domains in which hosts look names up: at most 16."},
	{"routes", "array of `{to = \"PREFIX\", via = \"ADDRESS\"}`", "none", "Routes beside the one by the gateway, each by an address in one of the prefixes: at most 64."},
	{"quarantine", "duration", "`\"0s\"`", "How long an address that was given back cools: it is not given out while there are others, at most `\"24h\"`. See [the order](#the-order-of-addresses)."},
	{"sticky", "boolean", "`true`", "Whether a hostname that comes back gets the address that it last had, if that is free. The last 4,096 hostnames are remembered, not over a restart."},
	{"max_leases", "integer", "65536", "How many leases the network may have: at most 4194304."},
}
