package session_test

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// check compares what was seen with what the promises allow. It looks at everything as often as it takes to be plain.
func (h *history) check() {
	for _, op := range h.ops {
		if !op.called.was() {
			continue
		}
		if !op.returned.was() {
			h.fault("%v has not returned", op)
			continue
		}
		switch {
		case op.message():
			h.checkMessage(op)
			h.checkHandler(op)
		case op.what == flushes:
			h.checkFlush(op)
		case op.what == opens:
			h.checkStream(op)
		case op.what == states && op.err != nil:
			h.fault("%v: %v", op, op.err)
		case op.ends():
			h.checkReturn(op)
		}
	}
	for i := range h.sides {
		h.checkOrder(i)
		h.checkCredit(i)
		h.checkEnd(i)
		h.checkHalves(i)
		h.checkDelivery(i)
	}
	h.checkBothEnd()
}

// failed returns the error of an operation, which its context ends at once, but for a call that is canceled where its caller may read for itself.
func (h *history) failed(op *operation) *wire.Error {
	e, typed := op.err.(*wire.Error)
	if op.err != nil && !typed {
		h.fault("%v: %T", op, op.err)
		e = wire.AsError(op.err)
	}
	if op.within > 0 && op.returned.at > op.deadline {
		h.fault("%v has returned %v after its deadline", op, op.returned.at-op.deadline)
	}
	late := time.Duration(0)
	if op.what == calls || op.what == flushes {
		late = h.off()
	}
	if op.canceled.was() && op.returned.at > op.canceled.at+late {
		h.fault("%v has returned %v after it was canceled", op, op.returned.at-op.canceled.at)
	}
	return e
}

// checkMessage checks how a call or Send came back, and whether that goes with what the handler saw.
func (h *history) checkMessage(op *operation) {
	e := h.failed(op)
	ran := op.started.was()
	switch {
	case op.runs > 1:
		h.fault("%v was handled %d times", op, op.runs)
	case e != nil && op.what == sends && ran:
		h.fault("%v has failed and was handled: %v", op, e)
	case e != nil && op.what == calls && ran && !e.Sent:
		h.fault("%v says that it was not sent, and was handled: %v", op, e)
	case !h.allowed(op, e):
		h.fault("%v: %v is not what it may return", op, op.err)
	}
	told := h.sides[1-op.side].told
	if op.what == calls && ran && op.size < wire.MaxBody/2 && told.was() && told.at < op.started.at { // a large one may have been taken before
		h.fault("%v was handled by a side that had terminated", op)
	}
	if reply := op.left.at + h.delays(); op.what == calls && op.left.was() && op.returned.at > reply && !h.over(op.returned.at) {
		h.fault("%v was answered at %v and has returned at %v", op, op.left.at, op.returned.at)
	}
}

// over reports whether either side had ended by then, or the connection had broken.
func (h *history) over(by time.Duration) bool {
	for _, m := range []moment{h.lost, h.sides[0].ended, h.sides[1].ended} {
		if m.was() && m.at <= by {
			return true
		}
	}
	return false
}

// delays returns how long what is on its way may have been held up, by the connection and by handlers that ran on a side's reader.
func (h *history) delays() time.Duration { return time.Duration(h.injected.Load()) + h.held() }

// off returns how long a side may be off the socket, so that it sees nothing of the other.
func (h *history) off() time.Duration {
	if h.lane {
		return offSocket
	}
	return 0
}

// held returns how long handlers have kept the sides from reading.
func (h *history) held() time.Duration { return h.sides[0].Held() + h.sides[1].Held() }

// allowed reports whether a call or Send may have returned e.
func (h *history) allowed(op *operation, e *wire.Error) bool {
	answered := op.left.was() && op.left.n < op.returned.n
	switch {
	case e == nil && op.what == sends:
		return true
	case e == nil:
		return answered && !op.over.was() && op.reply == op.wanted() && (op.does == echoes || op.does == sleeps)
	case h.common(op, e):
		return true
	}
	switch e.Code {
	case wire.OverQuota: // a value is encoded with a header
		return int64(len(op.value)) > h.limits[1-op.side].Bytes-5 && !e.Sent && !op.started.was()
	case wire.Conflict:
		return answered && op.does == fails && e.Origin == wire.Peer && strings.Contains(e.Text, "op of")
	case wire.Internal:
		cut := op.answer > wire.MaxBody-200 && h.sides[1-op.side].ended.before(op.returned) && h.delays() >= time.Second // the end came too late to say why
		return answered && op.what == calls && (op.does == raises && e.Origin == wire.Peer || cut)
	case wire.UnknownMethod:
		return op.does == unknown && e.Origin == wire.Peer
	}
	return false
}

// common reports whether e may come of anything that is sent: its context or the session had ended, or the peer had terminated.
func (h *history) common(op *operation, e *wire.Error) bool {
	if h.endedBy(op, e) {
		return true
	}
	switch e.Code {
	case wire.DeadlineExceeded:
		return op.within > 0 && op.returned.at >= op.deadline
	case wire.Canceled:
		return op.canceled.before(op.returned)
	case wire.Terminating:
		return h.sides[1-op.side].told.before(op.returned) && !op.started.was()
	}
	return false
}

// endedBy reports whether e is the end of the session, which had come.
func (h *history) endedBy(op *operation, e *wire.Error) bool {
	s := h.sides[op.side]
	return s.ended.was() && s.ended.at <= op.returned.at && (e.Code == s.end.Code || e.Code == lostCode(op.side))
}

// lostCode is what the loss of its peer is to a side.
func lostCode(side int) wire.Code {
	if side == 0 {
		return wire.Interrupted
	}
	return wire.Invalid
}

// checkHandler checks that a handler was told to stop when there was reason to, and only then.
func (h *history) checkHandler(op *operation) {
	if !op.started.was() {
		return
	}
	if !op.left.was() {
		h.fault("the handler of %v has not returned", op)
		return
	}
	ended, own := h.sides[1-op.side].ended, h.sides[op.side].ended
	isCall := op.what == calls
	canceled := isCall && op.canceled.was()
	timed := isCall && op.within > 0
	if op.over.was() {
		reason := ended.was() && ended.at <= op.over.at || canceled && op.canceled.n < op.over.n || timed && op.deadline <= op.over.at
		if !reason {
			h.fault("the handler of %v was told to stop at %v for no reason", op, op.over.at)
		}
	}
	if !op.watches() {
		return
	}
	from := op.started.at // the earliest that it can be told
	late := func(reason time.Duration) bool { return op.left.at > max(from, reason) }
	if ended.was() && late(ended.at) {
		h.fault("the handler of %v ran on to %v, and its session ended at %v", op, op.left.at, ended.at)
	}
	way := from - op.called.at // at least as long as the request had, rounded to the protocol's unit
	if timed && late(op.deadline+way+time.Millisecond) {
		h.fault("the handler of %v ran on to %v, and its time was over at %v", op, op.left.at, op.deadline)
	}
	if canceled && op.canceled.before(op.returned) && !h.lost.was() && !(own.was() && own.at <= op.canceled.at) && late(op.canceled.at+h.delays()) {
		h.fault("the handler of %v ran on to %v, and was canceled at %v", op, op.left.at, op.canceled.at)
	}
}

// checkStream checks what came back on a stream.
func (h *history) checkStream(op *operation) {
	e := h.failed(op)
	if !strings.HasPrefix(op.value, op.reply) || e == nil && op.reply != op.value {
		h.fault("%v: %d bytes came back, of %d, or others: %v", op, len(op.reply), len(op.value), op.err)
	}
	switch {
	case e == nil, h.common(op, e):
	case h.over(op.returned.at) && (e.Code == wire.Interrupted || e.Code == lostCode(op.side)):
	case e.Code == wire.Invalid && op.canceled.before(op.returned):
	default:
		h.fault("%v: %v is not what it may return", op, op.err)
	}
}

// checkOrder checks that what one side sent was taken up in order.
func (h *history) checkOrder(from int) {
	for _, a := range h.ops {
		if a.side != from || a.what != sends {
			continue
		}
		for _, b := range h.ops {
			if b == a || b.side != from || !b.message() || !b.started.was() {
				continue
			}
			if b.what == sends && a.started.was() && a.started.n < b.started.n && !(a.left.was() && a.left.n < b.started.n) {
				h.fault("%v was handled while %v still was", b, a)
			}
			earlier := a.returned.was() && a.err == nil && a.returned.n < b.called.n
			if earlier && !(a.left.was() && a.left.n < b.started.n) {
				h.fault("%v was handled before %v, which was sent before", b, a)
			}
		}
	}
}

// checkCredit checks that a side was never given more than it accepts.
func (h *history) checkCredit(to int) {
	limits := h.limits[to]
	var serving, bytes, unhandled int64
	for _, e := range h.log {
		op := e.op
		if op == nil || !op.message() || op.side == to {
			continue
		}
		switch {
		case op.what == calls && e.moment == op.started:
			serving, bytes = serving+1, bytes+int64(len(op.value))
		case op.what == calls && e.moment == op.left:
			serving, bytes = serving-1, bytes-int64(len(op.value))
		case op.what == sends && e.moment == op.returned && op.err == nil:
			unhandled++
		case op.what == sends && e.moment == op.left:
			unhandled--
		}
		if serving > limits.Calls || unhandled > limits.OneWay || bytes > limits.Bytes {
			h.fault("side %d accepts %+v, and at %d has %d requests, %d bytes of them, %d one-way messages", to, limits, e.n, serving, bytes, unhandled)
			return
		}
	}
}

// checkReturn checks how an operation that ends a session returned: whether the other side had taken note, or why nobody waits for that any more.
func (h *history) checkReturn(op *operation) {
	last := op.lastWords()
	timed := last > 0 && op.returned.at >= op.called.at+op.within
	if took := op.returned.at - op.called.at; last > 0 && took > last {
		h.fault("%v took %v", op, took)
	}
	if waited := op.returned.at - max(op.called.at, h.sides[op.side].ended.at); waited > h.delays()+h.off() {
		h.fault("%v has waited for %v for a side that was there, or known to be lost", op, waited)
	}
	noted := h.sides[1-op.side].ended
	switch {
	case op.what == aborts:
	case op.err == nil:
		if !h.lost.before(op.returned) && !noted.before(op.returned) {
			h.fault("%v has returned before the other side had taken note", op)
		}
	case !errors.Is(op.err, context.DeadlineExceeded) || !timed && !h.letGo(op.side, op.returned, op):
		h.fault("%v: %v", op, op.err)
	}
}
