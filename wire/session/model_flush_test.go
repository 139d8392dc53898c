package session_test

// checkFlush checks how a flush came back, and that all that was sent before it had been taken up.
func (h *history) checkFlush(op *operation) {
	if e := h.failed(op); e != nil {
		if !h.common(op, e) {
			h.fault("%v: %v is not what it may return", op, e)
		}
		return
	}
	ready := h.ready(op)
	for _, o := range h.ops {
		if o.side != op.side || !o.called.before(op.called) {
			continue
		}
		if o.what == sends && o.err == nil && o.returned.before(op.called) && !o.left.before(op.returned) {
			h.fault("%v has returned, and %v had not been handled", op, o)
		}
		queued := ready && o.what == calls && !o.large() && o.called.at < op.called.at
		if queued && o.started.was() && o.started.at > op.returned.at { // at the same time: it has a goroutine
			h.fault("%v has returned, and %v was not taken up", op, o)
		}
	}
}

// ready reports whether the credit was enough for all that op's side had called before it, so that it waited for none.
func (h *history) ready(op *operation) bool {
	var n, bytes int64
	for _, o := range h.ops {
		if o.side == op.side && (o.what == calls || o.what == flushes) && o.called.before(op.called) {
			n, bytes = n+1, bytes+int64(len(o.value))+5
		}
	}
	limits := h.limits[1-op.side]
	return n < limits.Calls && bytes <= limits.Bytes
}
