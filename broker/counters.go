package broker

import (
	"time"

	"github.com/fairlead-dev/fairlead/broker/keeper"
	"github.com/fairlead-dev/fairlead/internal/count"
	"github.com/fairlead-dev/fairlead/wire"
)

// maxCounted is how many endpoints, and how many services, are counted apart; more count together as count.Other.
const maxCounted = 1000

// How an instance has ended, as Counters.Services has it.
const (
	exitOK      = "ok"          // status 0
	exitFailed  = "failed"      // another status
	exitSignal  = "signal"      // a signal has ended it
	exitUnknown = "unknown"     // no kernel tells
	notStarted  = "not_started" // it could not be started
)

// counters are what the broker has done since it was started. They are added to without a lock.
type counters struct {
	opens      *count.Family[count.Each] // by endpoint, and by what came of them
	services   *count.Family[serviceCounts]
	opened     count.Durations // from an open's frame until it is handed over
	handedOver count.Durations // from when there is an instance
	ends       *count.Each     // of sessions, by code
	refusals   *count.Each     // by the kind of their event
}

type serviceCounts struct{ starts, exits *count.Each }

func newCounters() *counters {
	return &counters{
		opens: count.NewFamily(maxCounted, count.NewOutcomes),
		services: count.NewFamily(maxCounted, func() *serviceCounts {
			return &serviceCounts{
				count.NewEach(CauseOpen, CauseLoad, CauseKeepAlive, CauseCommand), count.NewEach(exitOK, exitFailed, exitSignal, exitUnknown, notStarted),
			}
		}),
		ends:     count.NewCodes(wire.Invalid),
		refusals: count.NewEach(EventDenied, EventOverQuota),
	}
}

// open counts an open that has come to something.
func (c *counters) open(endpoint string, err error, since time.Time) {
	c.opens.Of(endpoint).AddOutcome(err)
	if err == nil {
		c.opened.Add(time.Since(since))
	}
}

// handOver counts a hand-over that has left.
func (c *counters) handOver(err error, since time.Time) {
	if err == nil {
		c.handedOver.Add(time.Since(since))
	}
}

// exit counts the end of an instance of a service.
func (c *counters) exit(service, how string) { c.services.Of(service).exits.Add(how) }

// howEnded is an outcome as it is counted.
func howEnded(o keeper.Outcome) string {
	switch {
	case !o.Known:
		return exitUnknown
	case o.Signal != 0:
		return exitSignal
	case o.Code != 0:
		return exitFailed
	}
	return exitOK
}

// Counters say what a broker has done since it was started, and how much it has to do. Endpoints and services are those that a service file has declared or an
// instance has registered, the first 1,000 of each; all others are one, count.Other.
type Counters struct {
	Version   string
	Opens     map[string]map[string]int64 // by endpoint and outcome: a code, or count.OK
	OpenTime  count.Times                 // of opens that were handed over, from their frame on; also the start of a service that they waited for
	HandOver  count.Times                 // of these, from when there was an instance
	Sessions  map[string]int              // that are open or being opened, by endpoint
	Ends      map[string]int64            // of sessions that have closed, by code
	Services  map[string]ServiceCounters  // by name
	States    map[string]int              // how many declared services are in each state
	Denied    int64                       // opens, registrations and commands that the policy has refused
	OverQuota int64                       // connections, opens and registrations that a limit of the broker's has refused
}

// ServiceCounters are those of a declared service.
type ServiceCounters struct {
	Starts  map[string]int64 // that were begun, also those that failed, by what they were for: Cause…
	Exits   map[string]int64 // of instances, by how they ended: ok, failed, signal, unknown, not_started
	Waiting int              // opens that wait for an instance
}

// Counters returns the broker's counters. Each is of the moment when it is read, and they are read one after the other.
func (b *Broker) Counters() Counters {
	c := b.counters
	all := Counters{
		Version: b.conf.Version, Opens: map[string]map[string]int64{}, OpenTime: c.opened.Load(), HandOver: c.handedOver.Load(),
		Sessions: b.table.countBy(c.opens.Name), Ends: c.ends.Load(), Services: map[string]ServiceCounters{}, States: map[string]int{},
		Denied: c.refusals.Of(EventDenied), OverQuota: c.refusals.Of(EventOverQuota),
	}
	for name, outcomes := range c.opens.All() {
		all.Opens[name] = outcomes.Load()
	}
	for name, s := range c.services.All() {
		all.Services[name] = ServiceCounters{Starts: s.starts.Load(), Exits: s.exits.Load()}
	}
	for _, state := range []string{ServiceStopped, ServiceStarting, ServiceRunning, ServiceStopping, ServiceWaiting, ServiceSuspended} {
		all.States[state] = 0
	}
	for _, s := range b.all() {
		state, waiting := s.queued()
		all.States[state]++
		name := c.services.Name(s.name)
		counted := all.Services[name]
		counted.Waiting += waiting
		all.Services[name] = counted
	}
	return all
}

// queued returns the service's state, and how many opens wait for an instance.
func (s *service) queued() (state string, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stateLocked(), len(s.queue)
}
