package server

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

const (
	// keptChanges is how many changes are kept for those who watch; older ones are forgotten first.
	keptChanges = 4096
	// watchBatch is how many changes, or leases of the list, are taken under the mutex at a time.
	watchBatch = 64
)

// keptLocked returns the number of the first change from a time on, of those that are kept, and how far back these go. Without a time it is that of what comes.
func (s *Server) keptLocked(since wire.Time) (next int64, reach wire.Time) {
	reach = wire.At(s.began)
	if first := s.feed.First(); first > 1 {
		reach = s.feed.At(first).At
	}
	if since == 0 {
		return s.feed.Last() + 1, reach
	}
	return s.feed.Behind(func(c *network.Change) bool { return c.At < since }), reach
}

// tellLocked tells those who watch of what has become of a lease.
func (s *Server) tellLocked(l *lease, kind, why string, until time.Time) {
	info := l.info()
	if l.state == over {
		info.State = network.StateOver
	}
	c := &network.Change{Seq: s.feed.Last() + 1, At: wire.At(time.Now()), Kind: kind, Why: why, Lease: &info}
	if !until.IsZero() {
		c.Until = wire.At(until)
	}
	s.feed.Add(c)
}

// movedLocked tells that a lease that is not over has another state.
func (s *Server) movedLocked(l *lease, was state) {
	switch {
	case l.state == held && was == taken:
		s.tellLocked(l, network.ChangeAllocated, "", time.Time{})
	case l.state == held:
		s.tellLocked(l, network.ChangeReclaimed, "", time.Time{})
	case l.state == dying:
		s.tellLocked(l, network.ChangeDying, l.reason(was), time.Time{})
	case l.state == orphaned:
		s.tellLocked(l, network.ChangeOrphaned, "", time.Time{})
	}
}

// endedLocked tells that a lease is over. One that was only taken nobody knows.
func (s *Server) endedLocked(l *lease, was state) {
	if was == taken {
		return
	}
	why := l.reason(was)
	s.counters.networks.Of(l.segment.Name).ended.Add(why)
	s.tellLocked(l, network.ChangeReleased, why, time.Time{})
	if l.segment.Quarantine > 0 && slices.ContainsFunc(l.addresses, l.segment.cools) {
		s.tellLocked(l, network.ChangeCooling, "", time.Now().Add(l.segment.Quarantine))
	}
}

// reason says why a lease leaves a state that it was in, and forgets what was said of that.
func (l *lease) reason(was state) string {
	why := l.why
	l.why = ""
	switch {
	case why != "":
		return why
	case was == held:
		return network.WhySession
	}
	return network.WhyWitness
}

// watchLeases serves network.MethodWatch. The list is not of one moment: it is told in parts, and what changes meanwhile is told again behind it.
func (s *Server) watchLeases(ctx context.Context, r network.WatchRequest, out *services.Streaming[struct{}, network.Change]) error {
	s.watch.Ask() // what is shown is what the kernel says; it fails only where the Server is closed
	if r.NoList {
		return s.sendKept(ctx, r, out)
	}
	for {
		next, until, err := s.sendList(ctx, r, out)
		if err != nil {
			return err
		}
		if _, err := s.sendChanges(ctx, r, out, next, until, 0); err != nil {
			return err
		}
	}
}

// sendKept sends the changes that are kept since a time, says how far back that goes, and sends what changes.
func (s *Server) sendKept(ctx context.Context, r network.WatchRequest, out *services.Streaming[struct{}, network.Change]) (err error) {
	s.mu.Lock()
	if r.Network != "" {
		_, err = s.segmentLocked(r.Network)
	}
	next, reach := s.keptLocked(r.Since)
	until := s.feed.Last()
	s.mu.Unlock()
	for err == nil {
		next, err = s.sendChanges(ctx, r, out, next, until, reach)
		until, reach = next-1, 0
	}
	return err
}

// sendList sends the leases that there are. Next is the number of the first change that may not be in the list, and until that of the last which may be in it.
func (s *Server) sendList(ctx context.Context, r network.WatchRequest, out *services.Streaming[struct{}, network.Change]) (next, until int64, err error) {
	if err := s.checkNetwork(r.Network); err != nil {
		return 0, 0, err
	}
	s.mu.Lock()
	next, until = s.feed.Last()+1, s.feed.Last()
	s.mu.Unlock()
	all := s.all(func(l *lease) bool {
		return l.state != taken && s.sees(ctx, l) && (r.Network == "" || r.Network == l.segment.Name)
	})
	for some := range slices.Chunk(all, watchBatch) {
		var batch []network.Change
		s.mu.Lock()
		until = s.feed.Last()
		for _, l := range some {
			if l.state != over { // that comes as a change
				info := l.info()
				batch = append(batch, network.Change{Seq: until, At: wire.At(time.Now()), Kind: network.ChangePresent, Lease: &info})
			}
		}
		s.mu.Unlock()
		for _, c := range batch {
			if err == nil {
				err = out.Send(c)
			}
		}
		if err != nil {
			break
		}
	}
	return next, until, err
}

// sendChanges sends what has changed and then what changes, until some of it is forgotten, and returns the number of what is not. When all up to a number is told, it
// says so, with a time that is that moment's unless one is given.
func (s *Server) sendChanges(ctx context.Context, r network.WatchRequest, out *services.Streaming[struct{}, network.Change], next, until int64, at wire.Time) (int64, error) {
	for synced := false; ; {
		if !synced && next > until {
			synced = true
			if err := out.Send(network.Change{Seq: next - 1, At: cmp.Or(at, wire.At(time.Now())), Kind: network.ChangeSynced}); err != nil {
				return next, err
			}
		}
		s.mu.Lock()
		batch, missed, some := s.feed.Take(next, watchBatch)
		s.mu.Unlock()
		if missed > 0 {
			next += missed
			return next, out.Send(network.Change{Seq: next - 1, At: wire.At(time.Now()), Kind: network.ChangeDropped, Dropped: missed})
		}
		for _, c := range batch {
			next = c.Seq + 1
			if !s.seesOf(ctx, c.Lease.Holder.UID) || r.Network != "" && r.Network != c.Lease.Network {
				continue
			}
			if err := out.Send(*c); err != nil {
				return next, err
			}
		}
		if some == nil {
			continue
		}
		select {
		case <-some:
		case <-ctx.Done():
			return next, ctx.Err()
		}
	}
}
