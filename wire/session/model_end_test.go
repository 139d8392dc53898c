package session_test

import (
	"context"
	"errors"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// broken reports whether the connection broke, or a side let it go without a word.
func (h *history) broken() bool {
	for _, op := range h.ops {
		if op.what == aborts && op.called.was() {
			return true
		}
	}
	return h.lost.was()
}

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
	s, peer := h.sides[i], h.sides[1-i]
	end := wire.End{Code: s.end.Code, Origin: s.end.Origin}
	for _, op := range h.ops {
		if !op.ends() || !op.called.was() || op.called.n > s.ended.n {
			continue
		}
		told := wire.End{Code: op.end.Code, Origin: wire.Peer}
		if i == 0 && op.end.Origin == wire.Broker {
			told.Origin = wire.Broker
		}
		switch told.Code {
		case wire.Invalid, wire.Interrupted, wire.Terminating:
			told.Code = lostCode(i)
		}
		own := wire.End{Code: op.end.Code, Origin: op.end.Origin}
		if op.side == i && end == own || op.side != i && op.what != aborts && end == told {
			return true
		}
	}
	switch end {
	case wire.End{Code: lostCode(i), Origin: wire.Peer}:
		return h.lost.was() && h.lost.n < s.ended.n || peer.ended.was() && peer.ended.n < s.ended.n
	case wire.End{Code: wire.OverQuota, Origin: wire.Local}: // the other has taken no reply for 10 s
		return h.delays() >= 10*time.Second
	}
	return false
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

// checkDelivery checks that what a side sent before it ended in peace was handled, and that who drains answers all it has taken.
func (h *history) checkDelivery(from int) {
	end := h.onlyEnd()
	if end == nil || end.side != from || end.err != nil || h.broken() {
		return
	}
	inTime := end.within == 0 || end.returned.at < end.called.at+end.within
	drained := end.what == drains && inTime && h.sides[from].end.Code == end.end.Code
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
