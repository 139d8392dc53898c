package network_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestHostnamesHaveOneForm(t *testing.T) {
	long := strings.Repeat("a", 63)
	name253 := long + "." + long + "." + long + "." + strings.Repeat("b", 61)
	for _, test := range []struct{ name, want string }{
		{"", ""}, {"web", "web"}, {"WEB", "web"}, {"Web.Example.", "web.example"}, {"3com", "3com"}, {"a-b", "a-b"}, {"10.0.0.x", "10.0.0.x"},
		{long, long}, {name253, name253}, {name253 + ".", name253},
	} {
		if got, err := network.CanonicalHostname(test.name); err != nil || got != test.want {
			t.Errorf("%q is %q, %v, want %q", test.name, got, err, test.want)
		}
	}
	for _, name := range []string{
		".", "..", "web..", ".web", "a..b", "-web", "web-", "a_b", "a b", "wéb", "\u212Aelvin", "web\n", "web\x00", "10.0.0.1", long + "a", name253 + "b", name253 + "..",
	} {
		if got, err := network.CanonicalHostname(name); !errors.Is(err, wire.Malformed) {
			t.Errorf("%q is taken as %q, %v", name, got, err)
		}
	}
}

func TestWhatARequestNamesHasOneForm(t *testing.T) {
	long := make([]string, network.MaxAliases+1)
	for _, test := range []struct {
		aliases []string
		want    string // empty: it is refused
	}{
		{nil, "[]"}, {[]string{"WWW.", "www", "api"}, "[www api]"}, {[]string{"a_b"}, ""}, {[]string{""}, ""}, {[]string{"10.0.0.1"}, ""}, {long, ""},
	} {
		if got, err := network.CanonicalAliases(test.aliases); (err == nil) != (test.want != "") || err == nil && fmt.Sprint(got) != test.want || err != nil && !errors.Is(err, wire.Malformed) {
			t.Errorf("aliases %q are %q, %v", test.aliases, got, err)
		}
	}
	for mac, want := range map[string]string{
		"": "", "02:42:0A:58:00:05": "02:42:0a:58:00:05", "0242.0a58.0005": "02:42:0a:58:00:05", "00-16-3e-00-00-01": "00:16:3e:00:00:01",
	} {
		if got, err := network.CanonicalMAC(mac); got != want || err != nil {
			t.Errorf("MAC %q is %q, %v", mac, got, err)
		}
	}
	for _, mac := range []string{"x", "01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "02:00:00:00:00:00:00:01"} {
		if got, err := network.CanonicalMAC(mac); !errors.Is(err, wire.Malformed) {
			t.Errorf("MAC %q is taken as %q, %v", mac, got, err)
		}
	}
	for _, texts := range [][]string{{"10.0.0.1/24"}, {"::ffff:10.0.0.1"}, {"fd00::1%eth0"}, {"10.0.0.1", "10.0.0.1"}, {"x\x1b"}, {""}, long} {
		if got, err := network.ParseAddresses(texts); !errors.Is(err, wire.Malformed) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("addresses %q are taken as %v, %v", texts, got, err)
		}
	}
}

func TestNetworkNamesAreBounded(t *testing.T) {
	for _, name := range []string{"default", "a", "9", "lab-2_x.y", strings.Repeat("a", 63)} {
		if err := network.CheckNetwork(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", "-a", ".a", "a b", "a=b", "ä", "a\x1b[0m", strings.Repeat("a", 64)} {
		if err := network.CheckNetwork(name); !errors.Is(err, wire.Malformed) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestALeaseInJSONIsAContract(t *testing.T) {
	l := network.LeaseInfo{
		ID: "0123456789abcdef", Network: "default", Hostname: "web", Addresses: []string{"10.88.0.2/24"}, Gateways: []string{"10.88.0.1"},
		MAC: "02:00:00:00:00:01", MTU: 1500, State: network.StateHeld, AllocatedAt: 1_700_000_000_123_456_789, Session: "5", Holder: network.Holder{PID: 7},
	}
	const want = `{"id":"0123456789abcdef","network":"default","hostname":"web","addresses":["10.88.0.2/24"],"gateways":["10.88.0.1"],"mac":"02:00:00:00:00:01",` +
		`"mtu":1500,"state":"held","allocated_at":"2023-11-14T22:13:20.123456789Z","session":"5","holder":{"pid":7,"uid":0}}`
	text, err := json.Marshal(l)
	if err != nil || string(text) != want {
		t.Errorf("it is %s, %v", text, err)
	}
	var back network.LeaseInfo
	if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(back, l) {
		t.Errorf("read back it is %+v, %v", back, err)
	}
}

func TestTheClientsSideImportsLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Skip("no go command: ", err)
	}
	for pkg := range strings.FieldsSeq(string(out)) {
		first, _, _ := strings.Cut(pkg, "/")
		if !strings.Contains(first, ".") {
			continue
		}
		allowed := false
		for _, module := range []string{"github.com/fairlead-dev/fairlead/", "github.com/hashicorp/yamux", "github.com/vmihailenco/", "golang.org/x/sys/"} {
			allowed = allowed || strings.HasPrefix(pkg, module)
		}
		if !allowed || strings.Contains(pkg, "/broker") || strings.HasSuffix(pkg, "/services") || strings.HasSuffix(pkg, "/server") {
			t.Errorf("it pulls in %s", pkg)
		}
	}
}

// message is what each message of the endpoint is when it is received.
type message interface{ Validate() error }

func messages() []message {
	return []message{
		&network.AllocateRequest{}, &network.LeaseRef{}, &network.Withdrawal{}, &network.WitnessRequest{}, &network.ListRequest{}, &network.LookupRequest{},
		&network.LeaseInfo{}, &network.LeasePage{}, &network.NetworkList{}, &network.InspectRequest{}, &network.WatchRequest{}, &network.Change{}, &network.Counters{},
	}
}

func FuzzDecodeMessages(f *testing.F) {
	files := []*os.File{os.Stdin} // what each message came with
	for _, m := range []any{
		network.AllocateRequest{Network: "default", Hostname: "web", Witness: os.Stdin, Token: "t"},
		network.AllocateRequest{Hostname: "web"},
		network.AllocateRequest{Aliases: []string{"www"}, Addresses: []string{"10.88.0.5", "fd00::5"}, Preferred: []string{"10.88.0.6"}, MAC: "02:00:00:00:00:01"},
		network.WitnessRequest{Lease: "0123456789abcdef", Witness: os.Stdin},
		network.LeasePage{Leases: []network.LeaseInfo{{
			ID: "0123456789abcdef", Network: "default", Addresses: []string{"10.88.0.2/24"}, Gateways: []string{"10.88.0.1"}, MAC: "02:00:00:00:00:01",
		}}, Next: "0123456789abcdef"},
		network.InspectRequest{Network: "lab", Address: "10.88.0.2"},
		network.Change{Seq: 7, Kind: network.ChangeReleased, Why: network.WhySession, Lease: &network.LeaseInfo{
			ID: "0123456789abcdef", Network: "default", Addresses: []string{"10.88.0.2/24"}, Gateways: []string{"10.88.0.1"}, MAC: "02:00:00:00:00:01",
		}},
		network.Change{Seq: 9, Kind: network.ChangeDropped, Dropped: 2},
		network.NetworkList{Networks: []network.NetworkInfo{{
			Name: "default", Prefixes: []string{"10.88.0.0/24"}, Total: 1 << 63, Cooling: 1, Quarantine: 1, DNS: []string{"10.88.0.1"}, Search: []string{"lab"},
			Routes: []network.RouteInfo{{To: "10.0.0.0/8", Via: "10.88.0.1"}},
		}}},
		network.Counters{Reclaims: map[string]int64{"ok": 1}, Networks: []network.NetworkCounters{{
			Name: "default", Held: 2, Free: 251, Leases: 2, Allocations: map[string]int64{"ok": 2, "exhausted": 1}, Ended: map[string]int64{network.WhySession: 0},
			Time: network.Times{Bounds: []time.Duration{1, 2}, Counts: []int64{1, 0, 1}, Sum: 5},
		}}},
	} {
		b, _, err := wire.MarshalFiles(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, m := range messages() {
			if _, err := wire.UnmarshalFiles(b, files, m); err != nil {
				if !errors.Is(err, wire.Malformed) {
					t.Errorf("%T: %v", m, err)
				}
				continue
			}
			again, named, err := wire.MarshalFiles(m)
			if err == nil {
				_, err = wire.UnmarshalFiles(again, named, reflect.New(reflect.TypeOf(m).Elem()).Interface())
			}
			if err != nil {
				t.Errorf("%T was taken and is not when encoded again: %v", m, err)
			}
		}
	})
}
