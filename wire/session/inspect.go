package session

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// Inspect returns what this side of the session looks like now. It is put together from what the session has anyway, so that nothing else is slower for it.
func (s *Session) Inspect() wire.Inspection {
	own, peer, _ := socket.Inodes(s.conn) // 0 where the socket is gone
	in, out, _ := socket.Queues(s.conn)
	channel := wire.ChannelStream
	if s.conf.Lane {
		channel = wire.ChannelLane
	}
	s.mu.Lock()
	i := wire.Inspection{
		CallsMade: s.stats.callsMade.Load(), CallsServed: s.stats.callsIn.Load(),
		CallsWaiting: len(s.pending), CallsServing: len(s.serving),
		LateReplies: s.stats.late.Load(), Streams: len(s.streams),
		Received: s.stats.received.Load(), Sent: s.stats.sent.Load(),
		Facts: maps.Clone(s.facts), PeerFacts: maps.Clone(s.peerFacts),
		Channel: channel, Socket: own, PeerSocket: peer,
		SocketIn: in, SocketOut: out,
		Calls: s.callsLocked(),
	}
	streams := slices.Collect(maps.Keys(s.streams))
	s.mu.Unlock()
	i.OpenStreams = s.inspectStreams(streams)
	i.Queued, i.Unread = s.out.waiting()+s.conn.waiting(), s.conn.flows.waiting()
	return i
}

// Traffic returns what the session has carried. It holds nobody up.
func (s *Session) Traffic() wire.Traffic {
	return wire.Traffic{
		Calls: s.stats.callsMade.Load() + s.stats.callsIn.Load(), Received: s.stats.received.Load(), Sent: s.stats.sent.Load(),
	}
}

// callsLocked returns the calls that are in flight, those with the least time first. The peer's come by what is left of their time here.
func (s *Session) callsLocked() (list []wire.CallInfo) {
	for _, p := range s.pending {
		if !p.flush {
			list = append(list, wire.CallInfo{Method: p.method, Deadline: deadline(p.until)})
		}
	}
	for _, m := range s.serving {
		if !m.flush {
			list = append(list, wire.CallInfo{Method: m.Method, Served: true, Deadline: deadline(m.until)})
		}
	}
	slices.SortFunc(list, func(a, b wire.CallInfo) int {
		return cmp.Or(cmp.Compare(uint64(a.Deadline-1), uint64(b.Deadline-1)), cmp.Compare(a.Method, b.Method)) // without a deadline last
	})
	return list[:min(len(list), wire.MaxInspected)]
}

// deadline is a deadline as it is told; 0 of none.
func deadline(t time.Time) wire.Time {
	if t.IsZero() {
		return 0
	}
	return wire.At(t)
}

// inspectStreams returns what there is to know of streams, the oldest first.
func (s *Session) inspectStreams(streams []*Stream) (list []wire.StreamInfo) {
	slices.SortFunc(streams, func(a, b *Stream) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.flow.id, b.flow.id)) })
	for _, st := range streams[:min(len(streams), wire.MaxInspected)] {
		info := wire.StreamInfo{Method: st.method, OpenedAt: wire.At(st.since), Served: st.flow.id%2 == 1 != s.conf.Opener} // the opener's have odd ids
		st.mu.Lock()
		switch st.carries {
		case wire.KindData:
			info.Kind = wire.StreamRaw
		case wire.KindItem:
			info.Kind = wire.StreamCall
		}
		st.mu.Unlock()
		list = append(list, info)
	}
	return list
}

// waiting returns how many bytes of frames wait to be written.
func (o *outbox) waiting() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes
}

// waiting returns how many bytes of yamux's frames wait to be written.
func (c *conn) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queued
}

// waiting returns how many bytes of streams have come and were not read.
func (a *flows) waiting() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.unread
}
