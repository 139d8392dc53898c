package broker

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/internal/count"
	"github.com/fairlead-dev/fairlead/internal/nearest"
	"github.com/fairlead-dev/fairlead/internal/pace"
	"github.com/fairlead-dev/fairlead/internal/ring"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

const (
	// keptEvents is how many events the broker keeps; older ones are forgotten first.
	keptEvents = 10_000
	// eventBatch is how many events a reader takes at a time.
	eventBatch = 64
	// maxEventText bounds each text of an event that others wrote, in bytes: so what is kept has its bound.
	maxEventText = 512
)

// The events are what has happened last, numbered from 1 on, for those who monitor.
type events struct {
	rate     pace.Limiter // of refusals, which peers can cause any number of
	refusals *count.Each  // by kind, also those that are not told

	mu   sync.Mutex
	ring *ring.Ring[*Event]
}

// add numbers an event and keeps it.
func (k *events) add(e Event) {
	e.At = wire.At(time.Now())
	k.mu.Lock()
	defer k.mu.Unlock()
	e.Seq = k.ring.Last() + 1
	k.ring.Add(&e)
}

// refused adds a refusal, as many a second as are logged; the next one that is added says how many were not.
func (k *events) refused(e Event, err error) {
	k.refusals.Add(e.Kind)
	tell, untold := k.rate.Admit(time.Now())
	if !tell {
		return
	}
	refusal := wire.AsError(err)
	e.Code, e.Text, e.More = refusal.Code, wire.Cut(refusal.Text, maxEventText), untold
	k.add(e)
}

// take returns the events from a number on, some at a time, as ring.Ring.Take does.
func (k *events) take(from int64) (batch []*Event, missed int64, some <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ring.Take(from, eventBatch)
}

// start returns the number of the first event that a request asks for.
func (k *events) start(r MonitorRequest) (int64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	next := k.ring.Last() + 1
	switch {
	case r.From > next:
		return 0, wire.Errorf(wire.NotFound, "event %d has not been: this broker's last one is %d", r.From-1, next-1)
	case r.From > 0:
		return r.From, nil
	case r.Since == 0:
		return next, nil
	}
	return k.ring.Behind(func(e *Event) bool { return e.At < r.Since }), nil
}

// monitor sends what has happened, as far as it is asked for, and then what happens. Events that were forgotten before there was time to send them are told by how many
// they were.
func (b *Broker) monitor(ctx context.Context, r MonitorRequest, out *session.Streaming[struct{}, Event]) error {
	w := b.caller(ctx).who()
	next, err := b.events.start(r)
	if err != nil {
		return err
	}
	for {
		batch, missed, some := b.events.take(next)
		if missed > 0 {
			next += missed
			if err := out.Send(Event{Seq: next - 1, At: wire.At(time.Now()), Kind: EventDropped, Dropped: missed}); err != nil {
				return err
			}
		}
		for _, e := range batch {
			next = e.Seq + 1
			if !r.wants(e.Kind) || !b.seesEvent(w, e) {
				continue
			}
			if err := out.Send(*e); err != nil {
				return err
			}
		}
		if some == nil {
			continue
		}
		select {
		case <-some:
		case <-ctx.Done():
			return ctx.Err()
		case <-b.ctx.Done():
			return wire.Errorf(wire.Terminating, "the broker is being stopped")
		}
	}
}

// seesEvent reports whether somebody is told of an event: of what is their own, and of the services that they administer.
func (b *Broker) seesEvent(w servicefile.Who, e *Event) bool {
	switch {
	case b.trusted(w.UID), e.Client != nil && e.Client.UID == w.UID:
		return true
	case e.Endpoint != "":
		return b.administers(w, b.owner(e.Endpoint))
	}
	return e.Service != "" && b.administers(w, b.service(e.Service))
}

// wants reports whether a kind is asked for.
func (r *MonitorRequest) wants(kind string) bool {
	return len(r.Kinds) == 0 || slices.ContainsFunc(r.Kinds, func(k string) bool { return k == kind || strings.HasPrefix(kind, k+"_") })
}

// Validate checks a MonitorRequest that was received.
func (r *MonitorRequest) Validate() error {
	known := EventKinds()
	words := slices.Clone(known)
	for _, k := range known {
		if first, _, several := strings.Cut(k, "_"); several && !slices.Contains(words, first) {
			words = append(words, first)
		}
	}
	if len(r.Kinds) > len(known) || r.From < 0 || r.Since < 0 {
		return wire.Errorf(wire.Malformed, "monitor: %d kinds from event %d: want at most %d, from 0 on", len(r.Kinds), r.From, len(known))
	}
	for _, k := range r.Kinds {
		if one := (&MonitorRequest{Kinds: []string{k}}); slices.ContainsFunc(known, one.wants) {
			continue
		}
		return wire.Errorf(wire.Malformed, "no event has the kind %s%s", wire.Printable(k, 64), nearest.Question(k, words))
	}
	return nil
}
