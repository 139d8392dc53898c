package broker

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-dev/fairlead/internal/nearest"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

const (
	// partSize is about how many bytes of sessions are sent in one part of a list, which has to fit into wire.MaxBody with the longest of them.
	partSize = 24 << 10
	// trafficWait bounds how long an instance may take to say what its sessions have carried.
	trafficWait = 500 * time.Millisecond
	// bareSession is more than a Session has beside its texts, in bytes.
	bareSession = 256
)

// A place is where a session stands in a list.
type place struct {
	at wire.Time
	id string
}

// listSessions lists the sessions that the caller may see. What is sent is made as it is sent: the
// broker keeps no more of the list than the ids of what is in it.
func (b *Broker) listSessions(ctx context.Context, r SessionsRequest, out *services.Streaming[struct{}, Sessions]) error {
	visible := b.seesSessions(ctx)
	wanted := func(s *Session) bool { return r.matches(s) && visible(s) }
	silent := map[*instance]bool{}
	for places := b.table.places(wanted); len(places) > 0; {
		part, of, taken := b.table.part(places, wanted)
		places = places[taken:]
		if len(part.Sessions) == 0 {
			continue
		}
		if r.Traffic {
			b.tellTraffic(ctx, part.Sessions, of, silent)
		}
		if err := out.Send(part); err != nil {
			return err
		}
	}
	return nil
}

// seesSessions returns whether the caller may see a session: it is its own user's, or of a service that it administers.
func (b *Broker) seesSessions(ctx context.Context) func(*Session) bool {
	w, administered := b.caller(ctx).who(), map[string]bool{}
	if b.trusted(w.UID) {
		return func(*Session) bool { return true }
	}
	for _, e := range b.endpointNames() {
		administered[e] = b.administers(w, b.owner(e))
	}
	return func(s *Session) bool { return s.Client.UID == w.UID || administered[s.Endpoint] }
}

// alike asks whether one of the sessions that the caller may see was meant by a mistyped beginning of an id. A short one is near to too many.
func (b *Broker) alike(ctx context.Context, prefix string) string {
	const leastAlike = 6
	if len(prefix) < leastAlike {
		return ""
	}
	var beginnings []string
	for _, p := range b.table.places(b.seesSessions(ctx)) {
		beginnings = append(beginnings, p.id[:min(len(prefix), len(p.id))])
	}
	return nearest.Question(prefix, beginnings)
}

// places returns the sessions that are wanted, in the order they were opened.
func (t *table) places(wanted func(*Session) bool) (list []place) {
	t.mu.Lock()
	t.expireLocked()
	for id, e := range t.live {
		if wanted(&e.Session) {
			list = append(list, place{e.OpenedAt, id})
		}
	}
	for id, s := range t.closed {
		if wanted(&s) {
			list = append(list, place{s.OpenedAt, id})
		}
	}
	t.mu.Unlock()
	slices.SortFunc(list, func(a, b place) int { return cmp.Or(cmp.Compare(a.at, b.at), strings.Compare(a.id, b.id)) })
	return list
}

// part returns the first of the sessions that stand at places, as they are and if they are still wanted, the instances of those that are live, and how many
// places that took.
func (t *table) part(places []place, wanted func(*Session) bool) (part Sessions, of []*instance, taken int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for size := 0; taken < len(places) && size < partSize && len(of) < wire.MaxBatch; taken++ {
		var i *instance
		s, known := t.closed[places[taken].id]
		if e := t.live[places[taken].id]; e != nil {
			s, i, known = e.Session, e.instance, true
		}
		if known && wanted(&s) {
			part.Sessions, of = append(part.Sessions, s), append(of, i)
			size += bareSession + s.texts()
		}
	}
	return part, of, taken
}

// tellTraffic asks the instances of sessions what these have carried. One that does not answer in time is silent from then on, and is not asked again.
func (b *Broker) tellTraffic(ctx context.Context, sessions []Session, of []*instance, silent map[*instance]bool) {
	indices := map[*instance][]int{}
	for n, i := range of {
		if i != nil && !silent[i] && sessions[n].State == SessionOpen {
			indices[i] = append(indices[i], n)
		}
	}
	for i, list := range indices {
		var refs wire.SessionRefs
		for _, n := range list {
			refs.Sessions = append(refs.Sessions, sessions[n].ID)
		}
		traffic, err := b.traffic(ctx, i, refs)
		silent[i] = err != nil || len(traffic) != len(list)
		for at, n := range list {
			if !silent[i] {
				sessions[n].Traffic = &traffic[at]
			}
		}
	}
}

// traffic asks one instance.
func (b *Broker) traffic(ctx context.Context, i *instance, refs wire.SessionRefs) ([]wire.Traffic, error) {
	if i.local != nil {
		return i.local.Traffic(refs.Sessions), nil
	}
	ctx, cancel := context.WithTimeout(ctx, trafficWait)
	defer cancel()
	var list wire.TrafficList
	err := i.control.Call(ctx, wire.MethodTraffic, refs, &list)
	return list.Traffic, err
}

// texts is how long the texts of a session are that others wrote, in bytes.
func (s *Session) texts() int {
	n := len(s.Endpoint) + len(s.Title) + len(s.Client.Program) + len(s.Instance.Program)
	if s.End != nil {
		n += len(s.End.Text)
	}
	return n
}

// matches reports whether a session has what the request wants.
func (r *SessionsRequest) matches(s *Session) bool {
	open := s.State != SessionClosed
	return (r.State == "all" || open == (r.State != SessionClosed)) &&
		(r.Endpoint == "" || s.Endpoint == r.Endpoint) &&
		(r.PID == 0 || s.Client.PID == r.PID || s.Instance.PID == r.PID) &&
		(r.UID == nil || s.Client.UID == *r.UID) &&
		(r.End == "" || s.End != nil && s.End.Code == r.End) &&
		strings.Contains(s.Title, r.Title)
}
