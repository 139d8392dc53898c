package faults_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/e2e/faults"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

const service = "com.example.kept"

// right is an observation as it should be: two clients, one with a lease, a runtime with another, and one service.
func right() faults.Observation {
	session := func(id, endpoint string, pid int) broker.Session {
		return broker.Session{ID: id, Endpoint: endpoint, State: broker.SessionOpen, Client: wire.Process{PID: pid}}
	}
	lease := func(id, address, mac, hostname, session string, pid int) network.LeaseInfo {
		return network.LeaseInfo{
			ID: id, Network: "default", Addresses: []string{address}, MAC: mac, Hostname: hostname, Session: session, State: network.StateHeld, Holder: network.Holder{PID: pid},
		}
	}
	running := func(name string, pid, keeper, sessions int) broker.ServiceDetails {
		return broker.ServiceDetails{ServiceInfo: broker.ServiceInfo{Name: name, State: broker.ServiceRunning, PID: pid, Sessions: sessions}, Keeper: keeper}
	}
	return faults.Observation{
		Held: []faults.Holding{
			{Session: "s1", Endpoint: service},
			{Session: "s2", Endpoint: network.Endpoint, Lease: "l1", Addresses: []string{"10.0.0.2/24"}, Hostname: "web"},
		},
		Own:      []faults.Holding{{Session: "s3", Endpoint: broker.Endpoint}},
		Networks: map[int]int{40: 1},
		Crowds:   1,
		Sessions: []broker.Session{
			session("s1", service, 30), session("s2", network.Endpoint, 30), session("s3", broker.Endpoint, 1), session("s4", network.Endpoint, 40),
		},
		Leases: []network.LeaseInfo{
			lease("l1", "10.0.0.2/24", "02:00:00:00:00:01", "web", "s2", 30), lease("l2", "10.0.0.3/24", "02:00:00:00:00:02", "", "s4", 40),
		},
		Spaces:   []network.NetworkInfo{{Name: "default", Held: 2, Leases: 2}},
		Services: []broker.ServiceDetails{running(service, 11, 10, 1), running(network.Endpoint, 21, 20, 2)},
		Processes: []faults.Proc{
			{PID: 2, Kind: faults.Brokerd}, {PID: 10, Kind: faults.Keeper}, {PID: 11, Parent: 10, Kind: faults.Instance, Service: service},
			{PID: 20, Kind: faults.Keeper}, {PID: 21, Parent: 20, Kind: faults.Network}, {PID: 30, Kind: faults.Crowd}, {PID: 31, Parent: 30, Kind: faults.Witness},
			{PID: 40, Kind: faults.Runtime}, {PID: 41, Parent: 40, Kind: faults.Init}, {PID: 42, Parent: 41, Kind: faults.Resident},
		},
		Files:  []string{".d/a.lock", ".d/a.log.1"},
		Counts: faults.Counts{"brokerd descriptors": 20, "brokerd goroutines": 30},
	}
}

func TestWhatIsSeenAndIsNotRightIsFound(t *testing.T) {
	base, files := faults.Counts{"brokerd descriptors": 20, "brokerd goroutines": 30}, []string{".d/a.lock"}
	for _, c := range []struct {
		name  string
		wrong func(o *faults.Observation)
		want  []string
	}{
		{"nothing", func(*faults.Observation) {}, nil},
		{"a session that nobody has", func(o *faults.Observation) { o.Held = o.Held[1:] }, []string{faults.SessionTable}},
		{"a session that is not in the table", func(o *faults.Observation) { o.Own = append(o.Own, faults.Holding{Session: "s9"}) }, []string{faults.SessionTable}},
		{"a session that is said to be closed", func(o *faults.Observation) { o.Sessions[0].State = broker.SessionClosed }, []string{faults.SessionTable}},
		{"a session of another endpoint", func(o *faults.Observation) { o.Held[0].Endpoint = broker.Endpoint }, []string{faults.SessionTable}},
		{"a runtime with a session too many", func(o *faults.Observation) {
			o.Sessions = append(o.Sessions, broker.Session{ID: "s5", Endpoint: broker.Endpoint, State: broker.SessionOpen, Client: wire.Process{PID: 40}})
		}, []string{faults.SessionTable}},
		{"an address twice", func(o *faults.Observation) {
			o.Leases[1].Addresses = o.Leases[0].Addresses
		}, []string{faults.DuplicateAddress}},
		{"a MAC twice", func(o *faults.Observation) { o.Leases[1].MAC = o.Leases[0].MAC }, []string{faults.DuplicateAddress}},
		{"a hostname twice", func(o *faults.Observation) { o.Leases[1].Hostname = "web" }, []string{faults.DuplicateAddress}},
		{"a lease that nobody has", func(o *faults.Observation) { o.Held[1].Lease = "" }, []string{faults.LeaseTable}},
		{"a lease that is lost", func(o *faults.Observation) {
			o.Leases = o.Leases[1:]
			o.Spaces[0].Held, o.Spaces[0].Leases = 1, 1
		}, []string{faults.LeaseTable}},
		{"a lease that is dying", func(o *faults.Observation) { o.Leases[0].State = network.StateDying }, []string{faults.LeaseTable}},
		{"a lease of another session", func(o *faults.Observation) { o.Leases[0].Session = "s1" }, []string{faults.LeaseTable}},
		{"a runtime's lease is lost", func(o *faults.Observation) {
			o.Leases = o.Leases[:1]
			o.Spaces[0].Held, o.Spaces[0].Leases = 1, 1
		}, []string{faults.LeaseTable}},
		{"a network that counts wrong", func(o *faults.Observation) { o.Spaces[0].Held = 3 }, []string{faults.LeaseTable}},
		{"two instances", func(o *faults.Observation) {
			o.Processes = append(o.Processes, faults.Proc{PID: 12, Parent: 10, Kind: faults.Instance, Service: service})
		}, []string{faults.DuplicateInstance, faults.LeakedProcess}},
		{"a service that is said to be stopped", func(o *faults.Observation) { o.Services[0].State = broker.ServiceStopped }, []string{faults.ServiceTable}},
		{"another instance than the one that is said", func(o *faults.Observation) { o.Services[0].PID = 13 }, []string{faults.ServiceTable, faults.LeakedProcess}},
		{"another keeper than the one that is said", func(o *faults.Observation) { o.Services[0].Keeper = 14 }, []string{faults.ServiceTable, faults.LeakedProcess}},
		{"a service that counts its sessions wrong", func(o *faults.Observation) { o.Services[0].Sessions = 2 }, []string{faults.ServiceTable}},
		{"an open that waits", func(o *faults.Observation) { o.Services[0].Waiting = 1 }, []string{faults.ServiceTable}},
		{"a keeper without an instance", func(o *faults.Observation) {
			o.Processes = append(o.Processes, faults.Proc{PID: 50, Kind: faults.Keeper})
		}, []string{faults.LeakedProcess}},
		{"a container without a runtime", func(o *faults.Observation) { o.Networks = map[int]int{} }, []string{
			faults.SessionTable, faults.LeaseTable, faults.LeakedProcess, faults.LeakedProcess, faults.LeakedProcess, faults.LeakedProcess,
		}},
		{"two brokers", func(o *faults.Observation) {
			o.Processes = append(o.Processes, faults.Proc{PID: 3, Kind: faults.Brokerd})
		}, []string{faults.LeakedProcess}},
		{"descriptors", func(o *faults.Observation) { o.Counts["brokerd descriptors"] = 24 }, []string{faults.LeakedDescriptor}},
		{"goroutines", func(o *faults.Observation) { o.Counts["brokerd goroutines"] = 34 }, []string{faults.LeakedGoroutine}},
		{"a file", func(o *faults.Observation) { o.Files = append(o.Files, ".d/b") }, []string{faults.LeakedFile}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := right()
			c.wrong(&o)
			if got := faults.Check(o, base, files); !slices.Equal(got, c.want) {
				t.Errorf("found are %q, want %q", got, c.want)
			}
		})
	}
}

func TestWhatWasExecutedOtherwiseThanItsClientWasToldIsFound(t *testing.T) {
	for _, c := range []struct {
		executed int
		code     wire.Code
		sent     bool
		want     []string
	}{
		{1, "", false, nil},
		{0, "", false, []string{faults.NotExecuted}},
		{2, "", false, []string{faults.Twice}},
		{0, wire.Interrupted, false, nil},
		{0, wire.Interrupted, true, nil},
		{1, wire.Interrupted, true, nil},
		{1, wire.Interrupted, false, []string{faults.NotSent}},
		{2, wire.DeadlineExceeded, true, []string{faults.Twice}},
	} {
		if got := faults.CheckCall(c.executed, c.code, c.sent); !slices.Equal(got, c.want) {
			t.Errorf("executed %d times, told %q, sent %t: found are %q, want %q", c.executed, c.code, c.sent, got, c.want)
		}
	}
}

// Each guard that is taken out here is one of the actors' own: what it keeps from happening happens, among real processes, and must be seen.
func TestAnActorThatBreaksAPromiseIsFound(t *testing.T) {
	lies := slices.Sorted(maps.Keys(faults.Lies))
	if !*long {
		lies = []string{"squat", "twice"}
	}
	for _, lie := range lies {
		t.Run(lie, func(t *testing.T) {
			c := small(t)
			c.Break, c.Quiet, c.Crowds, c.Runtimes, c.Lessees = lie, true, 3, 0, 3
			report, err := faults.Run(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			want := faults.Lies[lie]
			if !slices.ContainsFunc(report.Findings, func(f faults.Finding) bool { return f.Check == want }) {
				t.Errorf("found is %v, want %q", report.Findings, want)
			}
		})
	}
}

func TestAPlanIsAFunctionOfItsSeed(t *testing.T) {
	seen := map[string]bool{}
	for seed := range int64(3) {
		for number := range 4 {
			first, second := faults.NewRound(seed, number), faults.NewRound(seed, number)
			if !slices.Equal(first.Faults, second.Faults) || first.Autopsy != second.Autopsy {
				t.Errorf("seed %d, round %d: two plans are not the same", seed, number)
			}
			var text strings.Builder
			for _, f := range first.Faults {
				text.WriteString(f.String() + "\n")
			}
			if seen[text.String()] || len(first.Faults) < 20 {
				t.Errorf("seed %d, round %d: the plan is another's, or short: %s", seed, number, text.String())
			}
			seen[text.String()] = true
		}
	}
}

func TestAMachineThatIsToldToEndLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	c := small(t)
	c.For = time.Hour
	report, err := faults.Run(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Findings {
		if f.Check == faults.LeakedProcess || f.Check == faults.LeakedFile {
			t.Errorf("%v", f)
		}
	}
}
