package faults

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	leases "github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// The ends of the names of counts.
const (
	descriptors = " descriptors"
	goroutines  = " goroutines"
)

// Eyes are the machine's own sessions, one with each endpoint. So each service has an instance while it is looked at.
type eyes map[string]*client.Session

// look opens them.
func (m *machine) look(ctx context.Context) (eyes, error) {
	all := eyes{}
	for _, endpoint := range append([]string{broker.Endpoint, leases.Endpoint}, Services...) {
		s, err := client.Dial(ctx, endpoint, client.Options{Socket: m.socket(), Title: "the machine"})
		if err != nil {
			all.close()
			return nil, err
		}
		all[endpoint] = s
	}
	return all, nil
}

func (e eyes) close() {
	for _, s := range e {
		s.Close()
	}
}

// observe looks at everything. The counts are only taken where all have let go.
func (m *machine) observe(ctx context.Context, e eyes, held []holding, counted bool) (*observation, error) {
	o := &observation{Held: held, Crowds: m.Crowds, Networks: map[int]int{}, Counts: counts{}}
	for endpoint, s := range e {
		o.Own = append(o.Own, holding{Session: s.ID(), Endpoint: endpoint})
	}
	for i, a := range m.runtimes {
		o.Networks[a.pid()] = 1
		if i%3 == 0 {
			o.Networks[a.pid()] = 2
		}
	}
	delete(o.Networks, 0)
	var err error
	if o.Sessions, err = brokertest.Sessions(ctx, e[broker.Endpoint], broker.SessionsRequest{}); err != nil {
		return nil, err
	}
	if o.Leases, err = leases.List(ctx, e[leases.Endpoint], leases.ListRequest{}); err != nil {
		return nil, err
	}
	if o.Spaces, err = leases.Networks(ctx, e[leases.Endpoint]); err != nil {
		return nil, err
	}
	for _, name := range append([]string{leases.Endpoint}, Services...) {
		d, err := client.Call[broker.ServiceDetails](ctx, e[broker.Endpoint], broker.MethodService, broker.ServiceRequest{Name: name})
		if err != nil {
			return nil, err
		}
		o.Services = append(o.Services, d)
	}
	o.Processes = m.processes()
	o.Files = m.files()
	if counted {
		err = m.count(ctx, e, o)
	}
	return o, err
}

// count counts what is open and runs.
func (m *machine) count(ctx context.Context, e eyes, o *observation) error {
	o.Counts[brokerd+descriptors] = countDescriptors(strconv.Itoa(m.broker.pid()))
	for _, s := range o.Services {
		if s.Name == leases.Endpoint {
			o.Counts[network+descriptors] = countDescriptors(strconv.Itoa(s.PID))
			continue
		}
		of, err := client.Call[self](ctx, e[s.Name], "self", nil)
		if err != nil {
			return err
		}
		o.Counts[s.Name+descriptors], o.Counts[s.Name+goroutines] = of.Descriptors, of.Goroutines
	}
	return nil
}

// files are those beside the socket, without what is only being written.
func (m *machine) files() (all []string) {
	filepath.WalkDir(m.socket()+".d", func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			all = append(all, strings.TrimPrefix(strings.TrimSuffix(path, ".new"), m.socket()))
		}
		return nil
	})
	return all
}

var goroutineLine = regexp.MustCompile(`(?m)^goroutine \d+ `)

// autopsy ends brokerd and then the network service by SIGQUIT, and counts the goroutines that they say they had. The end of the first is no event for the second.
func (m *machine) autopsy(o *observation) error {
	for _, name := range []string{brokerd, network} {
		p := of(m.processes(), name)
		if len(p) != 1 {
			return finding(machineFault, "there is no %s to look into: %v", name, p)
		}
		before, err := m.log.Stat()
		if err != nil {
			return err
		}
		if name == brokerd {
			m.broker.signal(syscall.SIGQUIT)
		} else if err := syscall.Kill(p[0].PID, syscall.SIGQUIT); err != nil {
			return err
		}
		for deadline := time.Now().Add(patience); slices.ContainsFunc(m.processes(), func(q proc) bool { return q.PID == p[0].PID }); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				return finding(machineFault, "%s does not end by SIGQUIT", name)
			}
		}
		text, err := m.saidSince(before.Size())
		if err != nil {
			return err
		}
		o.Counts[name+goroutines] = len(goroutineLine.FindAll(text, -1))
		if o.Counts[name+goroutines] < 5 {
			return finding(machineFault, "%s, %v, has not said what its goroutines are: %.4000s", name, p, text)
		}
		os.WriteFile(m.at(strings.Fields(name)[0]+".goroutines"), text, 0o600) // for who looks into a finding
	}
	return nil
}

// saidSince returns what was added to the log of brokerd, when nothing more comes: a keeper passes on what the network service says, and may outlive it by a while.
func (m *machine) saidSince(at int64) ([]byte, error) {
	deadline := time.Now().Add(dying)
	for last := int64(-1); ; {
		now, err := m.log.Stat()
		if err != nil {
			return nil, err
		}
		if now.Size() == last && (last > at || time.Now().After(deadline)) {
			break
		}
		last = now.Size()
		m.pause(200 * time.Millisecond)
	}
	text, err := os.ReadFile(m.log.Name())
	return text[min(int(at), len(text)):], err
}

func (f Finding) Error() string { return f.String() }

// resetAll forgets the failures of all services: so many would suspend them.
func (m *machine) resetAll(ctx context.Context) error {
	s, err := client.Dial(ctx, broker.Endpoint, client.Options{Socket: m.socket(), Title: "operator"})
	if err != nil {
		return err
	}
	defer s.Close()
	for _, name := range append([]string{leases.Endpoint}, Services...) {
		if err := s.Call(ctx, broker.MethodReset, broker.ServiceRequest{Name: name}, nil); err != nil && wire.CodeOf(err) != wire.NotFound {
			return err
		}
	}
	return nil
}
