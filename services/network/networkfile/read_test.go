package networkfile_test

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/networkfile"
	"github.com/fairlead-dev/fairlead/services/network/pool"
	"github.com/fairlead-dev/fairlead/services/network/server"
)

func write(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), networkfile.Name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const whole = `
[limits]
session = 7
uid = 8

[[network]]
name = "lab"
prefixes = ["10.9.0.0/24", "fd00:9::/64", "10.8.0.0/30"]
gateway = ["10.9.0.254", "fd00:9::1"]
ranges = ["10.9.0.10-10.9.0.99"]
static = ["10.9.0.100-10.9.0.119", "10.9.0.5"]
reserved = ["10.9.0.50-10.9.0.59"]
mtu = 1400
mac_prefix = "02:42"
dns = ["10.9.0.53", "fd00:9::53"]
search = ["Lab.Example."]
routes = [{to = "10.0.0.0/8", via = "10.9.0.253"}]
quarantine = "30s"
sticky = false
max_leases = 100

[[network]]
name = "default"
prefixes = ["10.88.0.0/24"]
gateway = "none"

[[network.routes]]
to = "0.0.0.0/0"
via = "10.88.0.9"
`

func TestAFileSaysAllOfItsNetworks(t *testing.T) {
	config, problems := networkfile.Read(write(t, whole))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	want := networkfile.Config{Limits: server.Limits{Session: 7, UID: 8}, Networks: []server.Network{
		{
			Name: "lab", Prefixes: []netip.Prefix{prefix("10.9.0.0/24"), prefix("fd00:9::/64"), prefix("10.8.0.0/30")},
			Gateways: []netip.Addr{addr("10.9.0.254"), addr("fd00:9::1")},
			Ranges:   []pool.Range{{First: addr("10.9.0.10"), Last: addr("10.9.0.99")}},
			Static:   []pool.Range{{First: addr("10.9.0.100"), Last: addr("10.9.0.119")}, {First: addr("10.9.0.5"), Last: addr("10.9.0.5")}},
			Reserved: []pool.Range{{First: addr("10.9.0.50"), Last: addr("10.9.0.59")}},
			MTU:      1400, MACPrefix: net.HardwareAddr{2, 0x42}, DNS: []netip.Addr{addr("10.9.0.53"), addr("fd00:9::53")}, Search: []string{"lab.example"},
			Routes: []network.Route{{To: prefix("10.0.0.0/8"), Via: addr("10.9.0.253")}}, Quarantine: 30 * time.Second, Forgets: true, MaxLeases: 100,
		},
		{
			Name: "default", Prefixes: []netip.Prefix{prefix("10.88.0.0/24")}, NoGateway: true,
			Routes: []network.Route{{To: prefix("0.0.0.0/0"), Via: addr("10.88.0.9")}},
		},
	}}
	if !reflect.DeepEqual(config, want) {
		t.Errorf("it says\n%+v\nwant\n%+v", config, want)
	}
}

// one is a network called a, in two lines, with further ones behind.
func one(prefixes string, more ...string) string {
	return "[[network]]\nname = \"a\"\nprefixes = [" + prefixes + "]\n" + strings.Join(more, "\n")
}

func TestEveryBrokenRuleIsToldWithItsLine(t *testing.T) {
	const p = `"10.9.0.0/24"`
	for _, test := range []struct {
		name, text string
		want       string // without the file; further problems follow it
	}{
		{"nothing", "", "network: 0 networks: want 1 to 1024, each under a [[network]]"},
		{"no TOML", "x = [", "1: no TOML: array is incomplete"},
		{"unknown table", "[[networks]]\nname = \"a\"\n", "1: networks: unknown key: did you mean network?"},
		{"a table and no array of them", "[network]\nname = \"a\"\n", "1: network: want an array, and this is a table"},
		{"no tables in it", "network = [1]", "1: network: want a [[network]], and this is an integer"},
		{"unknown key", one(p, `prefix = 1`), "4: network[0].prefix: unknown key: did you mean prefixes?"},
		{"unknown limit", "[limits]\nusers = 1\n" + one(p), "2: limits.users: unknown key"},
		{"a limit of none", "[limits]\nuid = 0\n" + one(p), "2: limits.uid: 0: want 1 to 1073741824"},
		{"no name", "[[network]]\nprefixes = [" + p + "]", "1: network[0].name: is missing: a network has a name and at least one prefix"},
		{"no prefixes", "[[network]]\nname = \"a\"", "1: network[0].prefixes: is missing: a network has a name and at least one prefix"},
		{"an empty list", one(""), "3: network[0].prefixes: is empty: leave the key out for its default"},
		{"a bad name", "[[network]]\nname = \"a b\"\nprefixes = [" + p + "]", `2: network[0].name: network name "a b": want letters, digits, '-', '_' and '.', the first a letter or digit`},
		{"no prefix", one(`"10.9.0.0"`), `3: network[0].prefixes: "10.9.0.0": want an address and a length, as 10.88.0.0/24`},
		{"no string", one(`1`), `3: network[0].prefixes: want strings, and this is an integer`},
		{"/32", one(`"10.9.0.1/32"`), "3: network[0].prefixes: malformed prefix 10.9.0.1/32: it is a single address and has no room beside the gateway"},
		{"/128", one(`"fd00::1/128"`), "3: network[0].prefixes: malformed prefix fd00::1/128: it is a single address and has no room beside the gateway"},
		{"host bits", one(`"10.9.0.1/24"`), "3: network[0].prefixes: malformed prefix 10.9.0.1/24: it has bits set after the first 24; write 10.9.0.0/24"},
		{"v4-mapped", one(`"::ffff:10.9.0.0/120"`), "3: network[0].prefixes: malformed prefix ::ffff:10.9.0.0/120: it is an IPv4 prefix in IPv6 form; write 10.9.0.0/24"},
		{"multicast", one(`"224.0.0.0/24"`), "3: network[0].prefixes: malformed prefix 224.0.0.0/24: it holds multicast addresses"},
		{"overlap within", one("\n" + p + ",\n\"10.9.0.128/25\"\n"), "5: network[0].prefixes: 10.9.0.128/25 overlaps 10.9.0.0/24 of the same network"},
		{"overlap", one(p) + "\n[[network]]\nname = \"b\"\nprefixes = [\"10.0.0.0/8\"]", "7: network[1].prefixes: 10.0.0.0/8 and 10.9.0.0/24 of network a overlap: an address can be in one network only"},
		{"the same name", one(p) + "\n" + one(`"10.8.0.0/24"`), "6: network[1].name: network a is there twice: as a=10.9.0.0/24 and as a=10.8.0.0/24"},
		{"gateway outside", one(p, `gateway = "10.8.0.1"`), "4: network[0].gateway: malformed: the gateway 10.8.0.1 is outside of 10.9.0.0/24"},
		{"gateway of the other family", one(p, `gateway = ["10.9.0.1", "fd00::1"]`), "4: network[0].gateway: malformed: the gateway fd00::1 is outside of 10.9.0.0/24"},
		{"gateway at the network address", one(p, `gateway = "10.9.0.0"`), "4: network[0].gateway: malformed: the gateway 10.9.0.0 is the network's own address of 10.9.0.0/24"},
		{"gateway at the broadcast address", one(p, `gateway = "10.9.0.255"`), "4: network[0].gateway: malformed: the gateway 10.9.0.255 is the broadcast address of 10.9.0.0/24"},
		{"gateway at the anycast address", one(`"fd00::/64"`, `gateway = "fd00::"`), "4: network[0].gateway: malformed: the gateway fd00:: is the routers' anycast address of fd00::/64"},
		{"gateway in IPv6 form", one(p, `gateway = "::ffff:10.9.0.1"`), "4: network[0].gateway: malformed: ::ffff:10.9.0.1 is an IPv4 address in IPv6 form; write 10.9.0.1"},
		{"two gateways", one(p, `gateway = ["10.9.0.1", "10.9.0.2"]`), "4: network[0].gateway: 10.9.0.1 and 10.9.0.2 are both gateways of 10.9.0.0/24: want one"},
		{"no gateway", one(p, `gateway = "second"`), `4: network[0].gateway: "second": want "first", "none", or addresses, as 10.88.0.1`},
		{"no range", one(p, `ranges = ["10.9.0.0/28"]`), `4: network[0].ranges: "10.9.0.0/28": want FIRST-LAST, as 10.88.0.10-10.88.0.99, or one address`},
		{"start after end", one(p, `ranges = ["10.9.0.9-10.9.0.5"]`), "4: network[0].ranges: malformed range 10.9.0.9-10.9.0.5: it starts after its end; write 10.9.0.5-10.9.0.9"},
		{"start outside", one(p, `ranges = ["10.8.0.5-10.9.0.9"]`), "4: network[0].ranges: malformed range 10.8.0.5-10.9.0.9: it starts outside of 10.9.0.0/24"},
		{"end outside", one(p, `reserved = ["10.9.0.5-10.9.1.9"]`), "4: network[0].reserved: malformed range 10.9.0.5-10.9.1.9: it starts in 10.9.0.0/24 and ends outside of it"},
		{"start at the network address", one(p, `ranges = ["10.9.0.0-10.9.0.9"]`), "4: network[0].ranges: malformed range 10.9.0.0-10.9.0.9: it starts with the network's own address of 10.9.0.0/24, which no host may have"},
		{"start at the broadcast address", one(p, `ranges = ["10.9.0.255"]`), "4: network[0].ranges: malformed range 10.9.0.255: it starts with the broadcast address of 10.9.0.0/24, which no host may have"},
		{"end at the broadcast address", one(p, `static = ["10.9.0.9-10.9.0.255"]`), "4: network[0].static: malformed range 10.9.0.9-10.9.0.255: it ends with the broadcast address of 10.9.0.0/24, which no host may have"},
		{"two families", one(p+`, "fd00::/64"`, `ranges = ["10.9.0.9-fd00::9"]`), "4: network[0].ranges: malformed range 10.9.0.9-fd00::9: it starts in one address family and ends in the other"},
		{"a zone", one(`"fd00::/64"`, `ranges = ["fd00::5%eth0-fd00::9"]`), "4: network[0].ranges: malformed: fd00::5%eth0 has a zone; write fd00::5"},
		{"mapped range", one(p, `ranges = ["::ffff:10.9.0.5-10.9.0.9"]`), "4: network[0].ranges: malformed: ::ffff:10.9.0.5 is an IPv4 address in IPv6 form; write 10.9.0.5"},
		{"beyond 2^64", one(`"fd00::/8"`, `ranges = ["fd00::5-fd01::"]`), "4: network[0].ranges: malformed range fd00::5-fd01::: it ends beyond the first 2^64 addresses of fd00::/8, which are all that are given"},
		{"nothing is left", one(`"10.9.0.0/30"`, `reserved = ["10.9.0.2"]`), "3: network[0].prefixes: malformed: no address of 10.9.0.0/30 is left to lease"},
		{"small MTU", one(p, `mtu = 67`), "4: network[0].mtu: its MTU is 67: want 68 to 65535 bytes"},
		{"small MTU for IPv6", one(`"fd00::/64"`, `mtu = 1279`), "4: network[0].mtu: its MTU is 1279: want 1280 to 65535 bytes"},
		{"MTU in a string", one(p, `mtu = "1500"`), "4: network[0].mtu: want an integer, and this is a string"},
		{"long MAC", one(p, `mac_prefix = "02:42:00:00"`), "4: network[0].mac_prefix: the prefix 02:42:00:00 of MACs has 4 octets: want 1 to 3"},
		{"multicast MAC", one(p, `mac_prefix = "03"`), "4: network[0].mac_prefix: the prefix 03 of MACs is one of multicast addresses: the first octet must be even"},
		{"a maker's MAC", one(p, `mac_prefix = "00:16:3e"`), "4: network[0].mac_prefix: the prefix 00:16:3e of MACs is one that is assigned to makers: take a locally administered one, as 02:42"},
		{"no MAC", one(p, `mac_prefix = "2:4x"`), `4: network[0].mac_prefix: "2:4x": want 1 to 3 octets, as 02:42`},
		{"no DNS server", one(p, `dns = ["dns.example"]`), `4: network[0].dns: "dns.example": want an address, as 10.88.0.1`},
		{"no name to search", one(p, `search = ["a_b"]`), `4: network[0].search: hostname "a_b": want labels of 1 to 63 letters, digits and inner hyphens, joined by dots`},
		{"route by nowhere", one(p, `routes = [{to = "10.0.0.0/8", via = "10.8.0.1"}]`), "4: network[0].routes[0].via: the route leads by 10.8.0.1, which is in no prefix of the network"},
		{"route with host bits", one(p, `routes = [{to = "10.0.0.1/8", via = "10.9.0.5"}]`), "4: network[0].routes[0].to: the prefix 10.0.0.1/8 has bits set after the first 8; write 10.0.0.0/8"},
		{"route of two families", one(p, `routes = [{to = "fd00::/8", via = "10.9.0.5"}]`), "4: network[0].routes[0].to: the route leads to fd00::/8 by 10.9.0.5, which is of the other address family"},
		{"route without an end", one(p, "[[network.routes]]", `via = "10.9.0.5"`), "4: network[0].routes[0].to: is missing: a route has to and via"},
		{"the second route", one(p, "[[network.routes]]", `via = "10.9.0.5"`, `to = "10.0.0.0/8"`, "[[network.routes]]", `via = "10.9.0.5"`, `to = "x"`), "9: network[0].routes[1].to: want a prefix, as 10.0.0.0/8"},
		{"unknown of a route", one(p, `routes = [{to = "10.0.0.0/8", via = "10.9.0.5", metric = 1}]`), "4: network[0].routes[0].metric: unknown key"},
		{"a quarantine without a unit", one(p, `quarantine = 30`), `4: network[0].quarantine: 30 has no unit: write "30s" for seconds`},
		{"a long quarantine", one(p, `quarantine = "25h"`), "4: network[0].quarantine: a quarantine of 25h0m0s: want 0 s to 24h0m0s"},
		{"a negative quarantine", one(p, `quarantine = "-1s"`), "4: network[0].quarantine: a quarantine of -1s: want 0 s to 24h0m0s"},
		{"many leases", one(p, `max_leases = 5000000`), "4: network[0].max_leases: 5000000 leases: want 1 to 4194304"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := write(t, test.text)
			config, problems := networkfile.Read(path)
			if len(problems) == 0 || len(config.Networks) > 0 {
				t.Fatalf("it is taken: %+v", config)
			}
			if got := strings.TrimPrefix(strings.TrimPrefix(problems[0].Error(), path), ":"); strings.TrimSpace(got) != test.want {
				t.Errorf("it says\n%s\nwant\n%s", got, test.want)
			}
			if len(problems) > 1 && test.name != "overlap within" {
				t.Errorf("there are more: %v", problems[1:])
			}
		})
	}
}

// Each of these has just as many addresses as it should: what Total is where only one is given to who does not ask.
func TestEdgesThatAreServed(t *testing.T) {
	for _, text := range []string{
		one(`"10.9.0.0/31"`), one(`"10.9.0.0/31"`, `gateway = "none"`), one(`"10.9.0.0/30"`), one(`"fd00::/127"`), one(`"fd00::/126"`), one(`"255.255.255.0/24"`),
		one(`"10.9.0.0/31"`, `gateway = "none"`, `ranges = ["10.9.0.0-10.9.0.1"]`), one(`"10.0.0.0/8", "fd00::/8"`),
		one(`"10.9.0.0/24"`, `ranges = ["10.9.0.1-10.9.0.254"]`), one(`"10.9.0.0/24"`, `reserved = ["10.9.0.0-10.9.0.9", "10.9.0.200-10.9.0.255"]`),
		one(`"10.9.0.0/30"`, `static = ["10.9.0.2"]`),
	} {
		if _, problems := networkfile.Read(write(t, text)); len(problems) > 0 {
			t.Errorf("%s\n%v", text, problems)
		}
	}
}

func TestOneFileMayHaveManyNetworks(t *testing.T) {
	var text strings.Builder
	for i := range 1024 {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0})
		text.WriteString("[[network]]\nname = \"n" + strings.ReplaceAll(addr.String(), ".", "-") + "\"\nprefixes = [\"" + addr.String() + "/24\"]\n")
	}
	if config, problems := networkfile.Read(write(t, text.String())); len(problems) > 0 || len(config.Networks) != 1024 {
		t.Errorf("%d networks, %v", len(config.Networks), problems)
	}
	text.WriteString(one(`"10.200.0.0/24"`))
	if _, problems := networkfile.Read(write(t, text.String())); len(problems) != 1 || !strings.Contains(problems[0].Rule, "1025 networks") {
		t.Errorf("of one too many it says %v", problems)
	}
}

func TestAFileThatOthersMayWriteIsRefused(t *testing.T) {
	path := write(t, one(`"10.9.0.0/24"`))
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, problems := networkfile.Read(path); len(problems) != 1 || !strings.Contains(problems[0].Rule, "chmod go-w") {
		t.Errorf("it says %v", problems)
	}
	if _, problems := networkfile.Read(path + ".missing"); len(problems) != 1 || !strings.Contains(problems[0].Rule, "no such file") {
		t.Errorf("of a missing one it says %v", problems)
	}
}

// FuzzRead holds that whatever a file has in it is either networks that go together or problems that can be shown.
func FuzzRead(f *testing.F) {
	f.Add(whole)
	f.Add(one(`"10.9.0.0/24"`, `gateway = "10.9.0.255"`, `ranges = ["10.9.0.9-10.9.0.1"]`))
	f.Add(one(`"fd00::/8", "fd00::/64"`, `routes = [{to = "::/0", via = "fd00::5"}]`))
	f.Add("[[network]]\n[[network.routes]]\nto.x = 1\n[network.\"a[0]\".b]\n")
	path := filepath.Join(f.TempDir(), networkfile.Name)
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		config, problems := networkfile.Read(path)
		for _, p := range problems {
			if line := p.Error(); strings.ContainsAny(line, "\n\x1b") || p.Line > strings.Count(text, "\n")+1 {
				t.Errorf("a problem is %q", line)
			}
		}
		if len(problems) > 0 {
			return
		}
		if err := server.CheckNetworks(config.Networks); err != nil {
			t.Errorf("taken, and does not go: %v", err)
		}
	})
}
