// Package networkfile reads network.toml: which networks the network service leases addresses of. Reading is strict: what is not understood is a problem with
// file, line, key and rule, and a file with a problem declares nothing.
package networkfile

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-dev/fairlead/internal/nearest"
	"github.com/fairlead-dev/fairlead/internal/strictfile"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/pool"
	"github.com/fairlead-dev/fairlead/services/network/server"
)

// Name is what the file is called in a configuration folder.
const Name = "network.toml"

const (
	maxFile  = 1024 // KiB
	maxLimit = 1 << 30
)

// A Problem is a rule that a network file breaks. As an error it is wire.Malformed.
type Problem = strictfile.Problem

// A Config is what a network file declares.
type Config struct {
	Networks []server.Network
	Limits   server.Limits
}

// Read reads a network file: a regular file of at most 1 MiB, or a link to one, that belongs to root or to this user and that nobody else may write. Every problem
// is returned, in the order of the lines, and then nothing is declared. Two things are not told in full: a document that is no TOML ends at its first
// problem, and the last of more than 100 is how many more there are.
func Read(path string) (Config, []*Problem) {
	f := &file{File: strictfile.New(path)}
	f.Read(maxFile, f.document)
	if f.Broken() {
		return Config{}, f.Problems()
	}
	return f.config, nil
}

// A file is a network file that is being read.
type file struct {
	*strictfile.File
	config Config
}

// document sets the keys of the document, and holds the networks against the rules.
func (f *file) document(values map[string]any) {
	for _, k := range slices.Sorted(maps.Keys(values)) {
		switch k {
		case "limits":
			f.limits(k, strictfile.Typed[map[string]any](f.File, k, values[k]))
		case "network":
			f.networks(k, values[k])
		default:
			f.unknown("", k, []string{"limits", "network"})
		}
	}
	list := f.config.Networks
	if len(list) == 0 || len(list) > network.MaxNetworks {
		if !f.Broken() {
			f.Problem("network", "%d networks: want 1 to %d, each under a [[network]]", len(list), network.MaxNetworks)
		}
		return
	}
	breaches := slices.DeleteFunc(server.Breaches(list), func(b server.Breach) bool {
		return f.Wrong(strictfile.KeyOf(at(b))) // what it is is not known
	})
	for _, b := range breaches {
		f.Problem(at(b), "%s", b.Rule)
	}
}

// at returns the path of what a breach is about.
func at(b server.Breach) string { return strictfile.Index("network", b.Network) + "." + b.Key }

func (f *file) unknown(table, key string, known []string) {
	hint := ""
	if near := nearest.Of(key, known); len(near) > 0 {
		hint = ": did you mean " + strings.Join(near, " or ") + "?"
	}
	path := strictfile.ShowKey(key)
	if table != "" {
		path = table + "." + path
	}
	f.Problem(path, "unknown key%s", hint)
}

func (f *file) limits(table string, values map[string]any) {
	of := map[string]*int{"session": &f.config.Limits.Session, "uid": &f.config.Limits.UID}
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if limit, ok := of[k]; ok {
			*limit = f.integer(table+"."+k, values[k], 1, maxLimit)
		} else {
			f.unknown(table, k, slices.Sorted(maps.Keys(of)))
		}
	}
}

// integer returns an integer within bounds.
func (f *file) integer(key string, v any, least, most int64) int {
	n := strictfile.Typed[int64](f.File, key, v)
	if !f.Wrong(key) && (n < least || n > most) {
		f.Problem(key, "%d: want %d to %d", n, least, most)
	}
	return int(n)
}

func (f *file) networks(key string, v any) {
	for i, item := range strictfile.Typed[[]any](f.File, key, v) {
		path := strictfile.Index(key, i)
		table, ok := item.(map[string]any)
		if !ok {
			f.Problem(path, "want a [[network]], and this is %s", strictfile.KindOf(item))
			return
		}
		f.config.Networks = append(f.config.Networks, f.network(path, table))
	}
}

// network returns what one table declares.
func (f *file) network(path string, values map[string]any) server.Network {
	var n server.Network
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if !f.set(&n, path+"."+strictfile.ShowKey(k), k, values[k]) {
			f.unknown(path, k, networkKeys())
		}
	}
	for _, k := range []string{"name", "prefixes"} {
		if _, there := values[k]; !there {
			f.Problem(path+"."+k, "is missing: a network has a name and at least one prefix")
		}
	}
	return n
}

func networkKeys() []string {
	var list []string
	for _, k := range keys {
		if !strings.Contains(k.Name, ".") {
			list = append(list, k.Name)
		}
	}
	return list
}

// set sets one key of a network, and reports whether there is one of that name.
func (f *file) set(n *server.Network, path, key string, v any) bool {
	switch key {
	case "name":
		n.Name = f.Text(path, v)
	case "prefixes":
		n.Prefixes = parseAll(f, path, v, netip.ParsePrefix, "an address and a length, as 10.88.0.0/24")
	case "gateway":
		f.gateway(n, path, v)
	case "ranges":
		n.Ranges = f.ranges(path, v)
	case "static":
		n.Static = f.ranges(path, v)
	case "reserved":
		n.Reserved = f.ranges(path, v)
	case "mtu":
		n.MTU = f.integer(path, v, 1, maxLimit)
	case "mac_prefix":
		n.MACPrefix = f.macPrefix(path, v)
	case "dns":
		n.DNS = parseAll(f, path, v, netip.ParseAddr, "an address, as 10.88.0.1")
	case "search":
		f.Each(path, v, func(at, text string) {
			name, err := network.CanonicalHostname(text)
			if err != nil {
				f.Problem(at, "%s", strictfile.TextOf(err))
			}
			n.Search = append(n.Search, name)
		})
	case "routes":
		n.Routes = f.routes(path, v)
	case "quarantine":
		n.Quarantine = f.Duration(path, v)
	case "sticky":
		n.Forgets = !strictfile.Typed[bool](f.File, path, v)
	case "max_leases":
		n.MaxLeases = f.integer(path, v, 1, maxLimit)
	default:
		return false
	}
	return true
}

// parseAll parses the strings of an array that has some.
func parseAll[T any](f *file, path string, v any, parse func(string) (T, error), want string) []T {
	var list []T
	f.Each(path, v, func(at, text string) {
		one, err := parse(text)
		if err != nil {
			f.Problem(at, "%s: want %s", strictfile.Quote(text), want)
		}
		list = append(list, one)
	})
	if len(list) == 0 && !f.Wrong(path) {
		f.Problem(path, "is empty: leave the key out for its default")
	}
	return list
}

func (f *file) ranges(path string, v any) []pool.Range {
	return parseAll(f, path, v, pool.ParseRange, "FIRST-LAST, as 10.88.0.10-10.88.0.99, or one address")
}

// gateway sets what is kept out for gateways.
func (f *file) gateway(n *server.Network, path string, v any) {
	if text, ok := v.(string); ok {
		switch text {
		case "first":
			return
		case "none":
			n.NoGateway = true
			return
		}
		v = []any{text}
	}
	n.Gateways = parseAll(f, path, v, netip.ParseAddr, `"first", "none", or addresses, as 10.88.0.1`)
}

func (f *file) macPrefix(path string, v any) net.HardwareAddr {
	text := f.Text(path, v)
	if f.Wrong(path) {
		return nil
	}
	// What is missing of a MAC is filled in, so that a whole one is left to be parsed.
	octets := strings.Count(text, ":") + 1
	mac, err := net.ParseMAC(text + strings.Repeat(":00", max(0, 6-octets)))
	if err != nil || len(mac) != 6 {
		f.Problem(path, "%s: want 1 to 3 octets, as 02:42", strictfile.Quote(text))
		return nil
	}
	return mac[:octets]
}

func (f *file) routes(path string, v any) []network.Route {
	var list []network.Route
	for i, item := range strictfile.Typed[[]any](f.File, path, v) {
		list = append(list, f.route(strictfile.Index(path, i), item))
	}
	return list
}

func (f *file) route(path string, v any) network.Route {
	var r network.Route
	var err error
	values := strictfile.Typed[map[string]any](f.File, path, v)
	for _, k := range slices.Sorted(maps.Keys(values)) {
		at := path + "." + k
		switch k {
		case "to":
			if r.To, err = netip.ParsePrefix(f.Text(at, values[k])); err != nil && !f.Wrong(at) {
				f.Problem(at, "want a prefix, as 10.0.0.0/8")
			}
		case "via":
			if r.Via, err = netip.ParseAddr(f.Text(at, values[k])); err != nil && !f.Wrong(at) {
				f.Problem(at, "want an address, as 10.88.0.1")
			}
		default:
			f.unknown(path, k, []string{"to", "via"})
		}
	}
	for _, k := range []string{"to", "via"} {
		if _, there := values[k]; !there && values != nil {
			f.Problem(path+"."+k, "is missing: a route has to and via")
		}
	}
	return r
}
