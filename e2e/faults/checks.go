package faults

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-dev/fairlead/broker"
	leases "github.com/fairlead-dev/fairlead/services/network"
)

// An observation is what is seen of everything at a time when nobody does anything. The checks are functions of it alone.
type observation struct {
	Held      []holding   // what the clients say that they have
	Own       []holding   // sessions of the machine, which has one with each endpoint
	Networks  map[int]int // of each runtime, by its pid: how many networks it leases on
	Crowds    int         // that there must be
	Sessions  []broker.Session
	Leases    []leases.LeaseInfo
	Spaces    []leases.NetworkInfo
	Services  []broker.ServiceDetails
	Processes []proc
	Files     []string
	Counts    counts // of what is open and runs
}

// counts are numbers of descriptors and goroutines, by whose and what they are.
type counts map[string]int

// checkLedgers checks that what clients were told agrees with what workers have executed.
func checkLedgers(executed map[uint64]int, outcomes []outcome) (found []Finding) {
	for id, n := range executed {
		if n > 1 {
			found = append(found, finding(twice, "act %x, %d times", id, n))
		}
	}
	for _, o := range outcomes {
		n := executed[o.ID]
		switch {
		case !o.Act.executes():
		case o.Code == "" && n == 0:
			found = append(found, finding(notExecuted, "%s %x", actNames[o.Act], o.ID))
		case o.Code != "" && !o.Sent && n > 0:
			found = append(found, finding(notSent, "%s %x failed with %s", actNames[o.Act], o.ID, o.Code))
		}
	}
	return found
}

// check checks an observation against itself, and against the counts of before the first fault.
func (o *observation) check(base counts, files []string) []Finding {
	return slices.Concat(o.checkSessions(), o.checkLeases(), o.checkServices(), o.checkProcesses(), o.checkCounts(base), o.checkFiles(files))
}

// checkSessions checks that the broker's table has the sessions that there are, and no others.
func (o *observation) checkSessions() (found []Finding) {
	want := map[string]holding{}
	for _, h := range append(slices.Clone(o.Held), o.Own...) {
		want[h.Session] = h
	}
	runtimes := map[int]int{}
	for _, s := range o.Sessions {
		h, known := want[s.ID]
		delete(want, s.ID)
		switch _, runtime := o.Networks[s.Client.PID]; {
		case runtime:
			runtimes[s.Client.PID]++
		case !known:
			found = append(found, finding(sessionTable, "%s is there, with %s of process %d (%s), and nobody has it: %+v", s.ID, s.Endpoint, s.Client.PID, s.Title, s))
		case h.Endpoint != s.Endpoint || s.State != broker.SessionOpen:
			found = append(found, finding(sessionTable, "%s is %s with %s, and its client has it open with %s", s.ID, s.State, s.Endpoint, h.Endpoint))
		}
	}
	for id, h := range want {
		found = append(found, finding(sessionTable, "%s is not there, and its client has it, with %s", id, h.Endpoint))
	}
	for pid, n := range o.Networks {
		if runtimes[pid] != n {
			found = append(found, finding(sessionTable, "runtime %d has %d sessions, want %d", pid, runtimes[pid], n))
		}
	}
	return found
}

// checkLeases checks that the table of leases has what is held, and no others, and nothing in it twice.
func (o *observation) checkLeases() (found []Finding) {
	want := map[string]holding{}
	for _, h := range o.Held {
		if h.Lease != "" {
			want[h.Lease] = h
		}
	}
	users, runtimes, held := map[string]string{}, map[int]int{}, map[string]uint64{}
	for _, l := range o.Leases {
		held[l.Network]++
		for _, what := range append(slices.Clone(l.Addresses), l.Network+" "+l.MAC, l.Network+" "+l.Hostname) {
			if other := users[what]; other != "" && !strings.HasSuffix(what, " ") {
				found = append(found, finding(duplicateAddress, "%s is of the leases %s and %s", what, other, l.ID))
			}
			users[what] = l.ID
		}
		h, known := want[l.ID]
		delete(want, l.ID)
		switch _, runtime := o.Networks[l.Holder.PID]; {
		case l.State != leases.StateHeld:
			found = append(found, finding(leaseTable, "%s is %s: %+v", l.ID, l.State, l))
		case runtime:
			runtimes[l.Holder.PID]++
		case !known:
			found = append(found, finding(leaseTable, "%s is held by process %d, and nobody has it: %+v", l.ID, l.Holder.PID, l))
		case h.Session != l.Session || !slices.Equal(h.Addresses, l.Addresses) || h.Hostname != l.Hostname:
			found = append(found, finding(leaseTable, "%s is %+v, and its holder has %+v", l.ID, l, h))
		}
	}
	for id, h := range want {
		found = append(found, finding(leaseTable, "%s with %v is not there, and its holder has it", id, h.Addresses))
	}
	for pid, n := range o.Networks {
		if runtimes[pid] != n {
			found = append(found, finding(leaseTable, "runtime %d has %d leases, want %d", pid, runtimes[pid], n))
		}
	}
	for _, s := range o.Spaces {
		if s.Held != held[s.Name] || s.Orphaned > 0 || s.Leases != int(held[s.Name]) {
			found = append(found, finding(leaseTable, "network %s says %d held, %d orphaned and %d leases, and there are %d", s.Name, s.Held, s.Orphaned, s.Leases, held[s.Name]))
		}
	}
	return found
}

// checkServices checks that the table of services says what runs.
func (o *observation) checkServices() (found []Finding) {
	sessions := map[string]int{}
	for _, s := range o.Sessions {
		sessions[s.Endpoint]++
	}
	for _, s := range o.Services {
		var living []proc
		for _, p := range o.Processes {
			if p.Service == s.Name || p.Kind == network && s.Name == leases.Endpoint {
				living = append(living, p)
			}
		}
		bad := func(format string, args ...any) {
			found = append(found, finding(serviceTable, "%s: %s: %+v", s.Name, fmt.Sprintf(format, args...), s))
		}
		switch {
		case len(living) > 1:
			found = append(found, finding(duplicateInstance, "%s: %v", s.Name, living))
		case s.State != broker.ServiceRunning:
			bad("it is %s, and has a session", s.State)
		case len(living) == 0 || living[0].PID != s.PID:
			bad("its process is %d, and there is %v", s.PID, living)
		case s.Name == byItself && s.Keeper != 0, s.Name != byItself && living[0].Parent != s.Keeper:
			bad("its keeper is %d, and there is %v", s.Keeper, living)
		case s.Waiting != 0 || s.Sessions != sessions[s.Name]:
			bad("%d opens wait, and %d sessions are open, want 0 and %d", s.Waiting, s.Sessions, sessions[s.Name])
		}
	}
	return found
}

// checkProcesses checks that each process has an owner.
func (o *observation) checkProcesses() (found []Finding) {
	known := map[int]bool{}
	for _, s := range o.Services {
		known[s.PID], known[s.Keeper] = true, true
	}
	for pid := range o.Networks {
		known[pid] = true
	}
	number := map[string]int{}
	for _, p := range o.Processes {
		number[p.Kind]++
		ok := known[p.PID]
		switch p.Kind {
		case brokerd, crowd:
			ok = true
		case initial:
			ok = known[p.Parent]
			known[p.PID] = ok
		case residents:
			ok = slices.ContainsFunc(o.Processes, func(q proc) bool { return q.PID == p.Parent && q.Kind == initial })
		case witnesses:
			ok = len(o.Held) > 0
		}
		if !ok {
			found = append(found, finding(leakedProcess, "%v", p))
		}
	}
	for _, want := range []struct {
		kind string
		n    int
	}{{brokerd, 1}, {crowd, o.Crowds}, {initial, len(o.Networks)}, {residents, len(o.Networks)}} {
		if number[want.kind] != want.n {
			found = append(found, finding(leakedProcess, "%d times %s, want %d", number[want.kind], want.kind, want.n))
		}
	}
	return found
}

// spare is by how much a count may differ for what comes and goes by itself, as a timer or a poller of the Go runtime.
const spare = 3

// checkCounts checks that nothing is more than it was before the first fault.
func (o *observation) checkCounts(base counts) (found []Finding) {
	for what, n := range o.Counts {
		if most, known := base[what]; known && n > most+spare {
			check := leakedDescriptor
			if strings.HasSuffix(what, goroutines) {
				check = leakedGoroutine
			}
			found = append(found, finding(check, "%s: %d, and %d before the first fault", what, n, most))
		}
	}
	return found
}

// checkFiles checks that there is no file that was not there before the first fault, but for logs.
func (o *observation) checkFiles(before []string) (found []Finding) {
	for _, name := range o.Files {
		if before != nil && !slices.Contains(before, name) && !strings.Contains(name, ".log") {
			found = append(found, finding(leakedFile, "%s", name))
		}
	}
	return found
}
