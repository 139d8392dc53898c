package session_test

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// checkEnd checks that a side ended once, for a reason that there was, and says so to who asks later.
func (h *history) checkEnd(i int) {
	s := h.sides[i]
	if s.hooks != 1 {
		h.fault("side %d was told %d times that it ended", i, s.hooks)
	}
	var late wire.End
	s.OnEnd(func(end wire.End) { late = end })
	if late != s.end || s.End() != s.end || !errors.Is(context.Cause(s.Context()), s.end.Code) {
		h.fault("side %d ended with %v, says %v, tells %v, and its context %v", i, s.end, s.End(), late, context.Cause(s.Context()))
	}
	if in := s.Inspect(); in.CallsWaiting+in.CallsServing+in.Streams > 0 {
		h.fault("side %d has ended, and has %+v", i, in)
	}
	if !h.mayEnd(i) {
		h.fault("side %d ended with %v, for which there was no reason", i, s.end)
	}
}

// mayEnd reports whether a side had reason to end as it did.
func (h *history) mayEnd(i int) bool {
	s := h.sides[i]
	for _, op := range h.ops {
		if !op.ends() || !op.called.before(s.ended) {
			continue
		}
		if op.side == i && s.end == op.end || op.side != i && op.what != aborts && s.end == op.told() {
			return true
		}
	}
	end := s.end
	end.Text, _, _ = strings.Cut(end.Text, ":")
	switch end {
	case wire.End{Code: lostCode(i), Origin: wire.Peer, Text: "the peer is gone"}:
		return h.lost.before(s.ended) || h.letGo(1-i, s.ended, nil)
	case wire.End{Code: wire.OverQuota, Origin: wire.Local, Text: "the peer has taken no reply for 10s"}:
		return h.delays() >= 10*time.Second
	}
	return false
}

// told returns the end that the operation is to the other side.
func (op *operation) told() wire.End {
	end := wire.End{Code: op.end.Code, Origin: wire.Peer, Text: op.end.Text}
	if op.side == 1 && op.end.Origin == wire.Broker {
		end.Origin = wire.Broker
	}
	switch end.Code {
	case wire.Invalid, wire.Interrupted, wire.Terminating:
		end.Code = lostCode(1 - op.side)
	}
	return end
}

// letGo reports whether something else than op on a side, which may be nil, had let the transport go by then without waiting for the other.
func (h *history) letGo(side int, by moment, op *operation) bool {
	for _, o := range h.ops {
		over := func(wait time.Duration) bool { return wait > 0 && o.called.at+wait <= by.at }
		switch {
		case o == op, !o.ends(), !o.called.before(by):
		case o.side == side && (o.what == aborts || o.err != nil && over(o.within)):
			return true
		case o.side != side && o.what != aborts && over(closeWait): // the session itself waits no longer for who has told it the end
			return true
		}
	}
	s := h.sides[side]
	stuck := s.end.Code == wire.OverQuota && s.end.Origin == wire.Local && s.end.Text != tooMany
	return stuck && s.ended.before(by)
}

// checkBothEnd checks that no side goes on long without the other.
func (h *history) checkBothEnd() {
	a, b := h.sides[0].ended, h.sides[1].ended
	if !a.was() || !b.was() {
		return // which was told already
	}
	if apart := (a.at - b.at).Abs(); apart > closeWait+h.delays() {
		h.fault("the sides ended %v apart", apart)
	}
}

// checkHalves checks that a side has finished what it writes before it let a connection go that nobody has broken.
func (h *history) checkHalves(i int) {
	conn := h.sides[i].conn
	went := moment{n: len(h.log) + 1, at: conn.wentAt.Sub(h.began)}
	hasty := h.letGo(0, went, nil) || h.letGo(1, went, nil)
	if h.lane && !conn.halfGone.Load() && !h.lost.was() && !hasty {
		h.fault("side %d has let the connection go without having half-closed it", i)
	}
}

// checkDelivery checks that what a side sent before it ended in peace was handled, and that who drains answers all it has taken.
func (h *history) checkDelivery(from int) {
	end := h.onlyEnd()
	if end == nil || end.side != from || end.err != nil || h.lost.was() || h.sides[1-from].end != end.told() {
		return
	}
	inTime := end.within == 0 || end.returned.at < end.called.at+end.within
	s, idle := h.sides[from], end.called.at // then the drain had nothing left to wait for
	for _, op := range h.ops {
		if op.message() && op.side != from && op.started.before(s.ended) {
			idle = max(idle, op.left.at)
		}
	}
	if late := s.ended.at - idle; end.what == drains && late > drainFlush+h.delays() {
		h.fault("%v has waited for %v with nothing left to answer", end, late)
	}
	drained := end.what == drains && inTime && s.end.Code == end.end.Code
	for _, op := range h.ops {
		if op.what == sends && op.side == from && op.err == nil && op.returned.was() && op.returned.n < end.called.n && !op.left.was() {
			h.fault("%v was sent before %v, and not handled", op, end)
		}
		taken := op.what == calls && op.side != from && op.started.was()
		if e, failed := op.err.(*wire.Error); drained && taken && failed && h.endedBy(op, e) {
			h.fault("%v was taken before %v had drained, and returned %v", op, end, e)
		}
	}
}

// onlyEnd returns what ended the session, if that was one operation.
func (h *history) onlyEnd() (end *operation) {
	for _, op := range h.ops {
		if !op.ends() || !op.called.was() {
			continue
		}
		if end != nil {
			return nil
		}
		end = op
	}
	return end
}
