package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/internal/nearest"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// A monitor tells what happens: the events of the broker, and what changes of leases while the network service runs, which the broker knows nothing of.
type monitor struct {
	c       *command
	kinds   []string        // that are asked for; none: all
	on      *client.Session // with the broker
	tasks   sync.WaitGroup
	events  chan broker.Event
	failed  chan error // why the broker tells nothing more
	leases  leaseWatch
	waiting []network.Change // what was before, until events that are as old have been told
}

// monitor prints what happens, until ^C or until nobody reads it. Its time is that of its opening alone.
func (c *command) monitor(ctx context.Context) error {
	m := &monitor{c: c, kinds: c.kinds, events: make(chan broker.Event), failed: make(chan error, 1)}
	request, err := c.monitorRequest()
	if err != nil {
		return err
	}
	return c.on(ctx, broker.Endpoint, func(s *client.Session) error {
		m.on = s
		ctx, stop := c.untilUnwanted(ctx)
		defer m.tasks.Wait()
		defer stop()
		if wanted(c.kinds, leaseKinds()...) {
			m.leases.init(m)
			m.leases.begin(ctx, request)
		}
		events, err := client.OpenStreaming[broker.Event, struct{}](ctx, s, broker.MethodMonitor, request)
		if err != nil {
			return err
		}
		defer events.Close()
		m.tasks.Go(func() { m.failed <- m.receive(ctx, events) })
		return m.tell(ctx)
	})
}

// monitorRequest is what the flags ask of the broker. Where leases are asked for, it is to tell when there is a network service.
func (c *command) monitorRequest() (r broker.MonitorRequest, err error) {
	if err := c.parseSince(&r); err != nil {
		return r, err
	}
	if err := checkKinds(c.kinds); err != nil {
		return r, err
	}
	for _, kind := range c.kinds {
		if wanted([]string{kind}, broker.EventKinds()...) {
			r.Kinds = append(r.Kinds, kind)
		}
	}
	if len(c.kinds) > 0 && wanted(c.kinds, leaseKinds()...) {
		r.Kinds = append(r.Kinds, broker.EventInstanceRegistered)
	}
	return r, nil
}

// leaseKinds are the kinds of events of leases.
func leaseKinds() (kinds []string) {
	for _, k := range []string{
		network.ChangeAllocated, network.ChangeReclaimed, network.ChangeDying, network.ChangeOrphaned, network.ChangeReleased, network.ChangeCooling,
	} {
		kinds = append(kinds, leasePrefix+k)
	}
	return kinds
}

const leasePrefix = "lease_"

// monitorKinds are all that --filter takes, but for the words that some begin with.
func monitorKinds() []string { return append(broker.EventKinds(), leaseKinds()...) }

// wanted reports whether one of some kinds is asked for.
func wanted(asked []string, kinds ...string) bool {
	return len(asked) == 0 || slices.ContainsFunc(asked, func(a string) bool {
		return slices.ContainsFunc(kinds, func(k string) bool { return k == a || strings.HasPrefix(k, a+"_") })
	})
}

// checkKinds refuses what is no kind, and says which may be meant.
func checkKinds(asked []string) error {
	words := monitorKinds()
	for _, k := range monitorKinds() {
		if first, _, several := strings.Cut(k, "_"); several && !slices.Contains(words, first) {
			words = append(words, first)
		}
	}
	for _, a := range asked {
		if !wanted([]string{a}, monitorKinds()...) {
			return usageError{fmt.Sprintf("--filter: no event has the kind %s%s", a, nearest.Question(a, words))}
		}
	}
	return nil
}

// parseSince takes --since: a time that has passed, or the number of an event.
func (c *command) parseSince(r *broker.MonitorRequest) error {
	if c.since == "" {
		return nil
	}
	if seq, err := strconv.ParseInt(c.since, 10, 64); err == nil && seq >= 0 {
		r.From = seq + 1
		return nil
	}
	ago, err := time.ParseDuration(c.since)
	if err != nil || ago <= 0 {
		return usageError{fmt.Sprintf("--since %q: want a time, as 90s or 5m, or the number of an event", c.since)}
	}
	r.Since = wire.At(time.Now().Add(-ago))
	return nil
}

// receive takes the broker's events, until it tells nothing more.
func (m *monitor) receive(ctx context.Context, events *client.Streaming[broker.Event, struct{}]) error {
	for e, err := range events.All() {
		if code := wire.CodeOf(err); code == wire.Interrupted || code == wire.Terminating {
			err = wire.Errorf(code, "the broker has stopped, or is lost: what happened is not kept")
		}
		if err != nil {
			return err
		}
		select {
		case m.events <- e:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// pastWait is how long the broker may be silent before what was known of leases is told all the same.
const pastWait = 100 * time.Millisecond

// tell prints what comes, until ctx ends. What was before comes by its time, whoever knows it.
func (m *monitor) tell(ctx context.Context) error {
	for {
		var past, look <-chan time.Time
		if len(m.waiting) > 0 {
			past = time.After(pastWait)
		}
		if m.leases.idle() {
			look = time.After(lookPause)
		}
		var err error
		select {
		case e := <-m.events:
			if err = m.past(e.At); err == nil {
				err = m.event(ctx, e)
			}
		case c := <-m.leases.changes:
			if err = m.past(c.At); err == nil {
				err = m.c.printLease(m.kinds, c)
			}
		case <-past:
			err = m.past(wire.At(time.Now()))
		case <-look:
			m.leases.look(ctx)
		case lost := <-m.leases.ended:
			m.leases.over(ctx, lost)
		case err = <-m.failed:
			if ctx.Err() != nil {
				err = nil
			}
			return err
		case <-ctx.Done():
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// past tells what of before was known of leases, up to a time.
func (m *monitor) past(until wire.Time) error {
	for len(m.waiting) > 0 && m.waiting[0].At <= until {
		if err := m.c.printLease(m.kinds, m.waiting[0]); err != nil {
			return err
		}
		m.waiting = m.waiting[1:]
	}
	return nil
}

// event tells an event of the broker, and takes up the network service where it says that there is one.
func (m *monitor) event(ctx context.Context, e broker.Event) error {
	if e.Kind == broker.EventInstanceRegistered && e.Service == network.Endpoint {
		m.leases.registered(ctx, e.At)
	}
	if e.Kind != broker.EventDropped && !wanted(m.kinds, e.Kind) {
		return nil
	}
	return m.c.printEvent(e)
}

// A monitored event is an event as JSON, on a line of its own.
type monitored struct {
	Version int `json:"version"`
	broker.Event
}

func (c *command) printEvent(e broker.Event) error {
	if c.json {
		return c.printLine(monitored{1, e})
	}
	return c.printTold(e.At, e.Kind, eventWidth, eventTone(e), told(e))
}

// A monitored change is a change of a lease as JSON, on a line of its own.
type monitoredLease struct {
	Version int                `json:"version"`
	At      wire.Time          `json:"at"`
	Kind    string             `json:"kind"`
	Change  int64              `json:"change"` // its number, which the network service has given
	Why     string             `json:"why,omitempty"`
	Lease   *network.LeaseInfo `json:"lease,omitempty"`
	Until   wire.Time          `json:"until,omitzero"`
	Dropped int64              `json:"dropped,omitempty"`
}

func (c *command) printLease(kinds []string, change network.Change) error {
	kind := leasePrefix + change.Kind
	if change.Kind == network.ChangeSynced || change.Kind != network.ChangeDropped && !wanted(kinds, kind) {
		return nil
	}
	if c.json {
		return c.printLine(monitoredLease{1, change.At, kind, change.Seq, change.Why, change.Lease, change.Until, change.Dropped})
	}
	text := changeTold(change)
	if change.Kind == network.ChangeDropped {
		text = fmt.Sprintf("%d changes of leases are missing: there was no time for them", change.Dropped)
	}
	return c.printTold(change.At, kind, eventWidth, changeTone(change), text)
}

// eventWidth is how wide the kinds of events are.
const eventWidth = len(broker.EventInstanceUnregistered)

// printTold prints one line of what has happened.
func (c *command) printTold(at wire.Time, kind string, width int, tone cli.Tone, text string) error {
	kind = fmt.Sprintf("%-*s", width, wire.Printable(kind, 64))
	if c.view.Color {
		kind = tone.Paint(kind)
	}
	_, err := fmt.Fprintf(c.out, "%s  %s  %s\n", eventTime(at.Time().Local(), time.Now()), kind, wire.Printable(text, 2048))
	return err
}

// printLine prints one object of a stream.
func (c *command) printLine(value any) error {
	b, err := encode(value)
	if err != nil {
		return err
	}
	_, err = c.out.Write(append(b, '\n'))
	return err
}
