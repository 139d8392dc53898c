package session_test

import (
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// Faults of the session that the model has found and that are not mended. What they excuse is checked as soon as their function is removed.

// excusedStuck: when the peer is lost while a large reply is on its way to it, a side may end as if the peer took no replies (over_quota). It is
// promised to read as a lost peer.
func (h *history) excusedStuck(i int) bool {
	for _, op := range h.ops {
		if op.what == calls && op.side != i && op.answer > wire.MaxBody-5 && op.left.was() && op.left.n < h.sides[i].ended.n {
			return h.broken() || h.sides[1-i].ended.n < h.sides[i].ended.n
		}
	}
	return false
}

// excusedNote: when one end of a side gives up waiting for the other and lets the transport go, another that still waits returns no error, as if
// the other side had taken note.
func (h *history) excusedNote(op *operation) bool {
	for _, o := range h.ops {
		if o != op && o.side == op.side && o.ends() && o.err != nil && o.returned.n < op.returned.n {
			return true
		}
	}
	return false
}

// excusedCut: a call whose large reply is cut off by the session's end may return internal, if it sees that before its own side has ended. It is promised
// the code of the end.
func (h *history) excusedCut(op *operation) bool {
	return h.over(op.returned.at) && op.answer > wire.MaxBody-5 && op.left.was()
}

// excusedStall: a large value whose stream has come, and its first frame 10 s later or more, is dropped, and its call never returns while the session
// lives.
func (h *history) excusedStall() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, op := range h.ops {
		if op.what == calls && op.called.was() && !op.returned.was() && max(op.size, op.answer) > wire.MaxBody-200 {
			return h.delays() >= 10*time.Second
		}
	}
	return false
}
