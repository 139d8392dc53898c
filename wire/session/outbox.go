package session

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// An outgoing frame waits in the outbox until it is taken to be written: from then on it has left.
type outgoing struct {
	frame wire.Frame
	files []*os.File // owned by the outbox, closed when they have been written or dropped
	body  *buffer    // that has the frame's body and is used again when it has been written; nil: none is
	// answers is done with before the frame can leave, also if it is dropped; nil: it is no reply. That takes the session's mutex under the outbox's, and nobody
	// takes the outbox's under the session's.
	answers *Message
	taken   bool // to be written: it has left, as far as anybody can tell; guarded by the outbox's mutex
	joins   bool // others are about to come that can leave in the same write: it is left to the writer
	begun   bool // a part of it has been written, and the link has the rest; guarded likewise
	// left, unless it is nil, is closed when the frame has been written. It stays open if that fails.
	left    chan struct{}
	written atomic.Bool // likewise; and the outbox has forgotten it
	// unsent, unless it is nil, is called in place of that if the frame could not be written for its descriptors' sake, and has not left.
	unsent func(error)
}

// done is done with the request that the frame answers.
func (m *outgoing) done() {
	if m.answers != nil {
		m.answers.s.answered(m.answers.id)
	}
}

// wrote lets go of a frame that has been written.
func (m *outgoing) wrote() {
	socket.CloseFiles(m.files)
	if m.left != nil {
		close(m.left)
	}
	m.body.giveBack()
	m.body, m.frame.Body = nil, nil
	m.written.Store(true) // from then on it may be another frame
}

// An unsentError is why a frame was not written, after which others can be.
type unsentError struct{ error }

// outboxLimit is how many bytes wait in an outbox before senders wait for room.
const outboxLimit = 256 << 10

// An outbox is the queue of frames on their way out.
//
//	idle ──── a frame comes that the link may take at once ──▶ direct: who brings the frame writes what needs no waiting
//	idle ──── a frame comes that joins ──────────────────────▶ writing: a writer runs, and joins what waits into one write
//	direct ── all was written, and nothing waits ────────────▶ idle
//	direct ── else ──────────────────────────────────────────▶ writing: what is left of the frame comes first
//	writing ─ nothing waits any more ────────────────────────▶ idle
//
// So nobody waits for the peer who has only brought a frame, and nobody is woken to write one that can be written on the spot. After a failed write everything
// is dropped.
type outbox struct {
	owner    *sync.WaitGroup
	failed   func(error) // told of the write that failed
	trace    func(direction rune, stream uint32, f wire.Frame)
	finished chan struct{} // closed when nothing more is written
	over     sync.Once     // closes it

	mu      sync.Mutex
	link    link
	queue   []*outgoing
	facts   *outgoing // a frame of facts that waits
	bytes   int
	room    bell        // rings when the queue has shrunk
	writing bool        // or direct
	last    bool        // nothing more is queued; the writer finishes the link when the queue is empty
	end     *wire.Frame // with this frame; nil: with none
	broken  bool
}

func (o *outbox) init(s *Session) {
	o.owner, o.failed, o.trace = &s.own, s.writeFailed, s.trace
	o.finished = make(chan struct{})
}

// open gives the outbox the link to write to.
func (o *outbox) open(l link) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.link = l
	o.startLocked()
}

// push queues a frame as soon as there is room. When give is closed first, it returns false and nothing is queued.
func (o *outbox) push(m *outgoing, give <-chan struct{}) bool {
	for {
		room, done := o.tryPush(m)
		if done {
			return true
		}
		select {
		case <-room:
		case <-give:
			return false
		}
	}
}

// pushWhile queues a frame as soon as there is room. When nothing has left for the given time, it returns false and nothing is queued.
func (o *outbox) pushWhile(m *outgoing, patience time.Duration) bool {
	for {
		room, done := o.tryPush(m)
		if done {
			return true
		}
		select {
		case <-room:
		case <-time.After(patience):
			return false
		}
	}
}

// tryPush queues a frame if there is room, or drops it if nothing is queued any more. Else it returns a channel that is closed when there is more room.
func (o *outbox) tryPush(m *outgoing) (room <-chan struct{}, done bool) {
	o.mu.Lock()
	if o.bytes >= outboxLimit && !o.last && !o.broken {
		defer o.mu.Unlock()
		return o.room.wait(), false
	}
	if o.directLocked(m) {
		o.mu.Unlock()
		o.writeDirect(m, true)
		return nil, true
	}
	added := o.addLocked(m)
	o.mu.Unlock()
	if !added {
		socket.CloseFiles(m.files)
	}
	return nil, true
}

// pushFacts queues a frame of facts, in place of an earlier one that has not left: there is never more than one.
func (o *outbox) pushFacts(f wire.Frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.facts != nil && slices.Contains(o.queue, o.facts) {
		o.bytes += len(f.Body) - len(o.facts.frame.Body)
		o.facts.frame = f
		return
	}
	o.facts = &outgoing{frame: f}
	o.addLocked(o.facts)
}

// pushNow queues a frame even where there is no room: for the few whose number is bounded elsewhere.
func (o *outbox) pushNow(m *outgoing) {
	o.mu.Lock()
	added := o.addLocked(m)
	o.mu.Unlock()
	if !added {
		socket.CloseFiles(m.files)
	}
}

// addLocked queues a frame, and reports false if nothing is queued any more.
func (o *outbox) addLocked(m *outgoing) bool {
	m.done()
	if o.last || o.broken {
		return false
	}
	o.queue = append(o.queue, m)
	o.bytes += wire.HeaderSize + len(m.frame.Body)
	o.startLocked()
	return true
}

// offer writes a frame if the link takes it at once, at least a part of it, with its descriptors. Else it does nothing, and reports false.
func (o *outbox) offer(m *outgoing) bool {
	o.mu.Lock()
	direct := o.directLocked(m)
	o.mu.Unlock()
	return direct && o.writeDirect(m, false)
}

// directLocked takes a frame for who brings it to write, and reports false if there is more to write or it may have to wait.
func (o *outbox) directLocked(m *outgoing) bool {
	if o.link == nil || !o.link.direct() || o.writing || o.last || o.broken || len(o.queue) > 0 || m.joins {
		return false
	}
	m.done()
	m.taken, o.writing = true, true
	return true
}

// writeDirect writes what the link takes of a frame at once, and leaves the rest, and what came meanwhile, to a writer. A frame that the link has not begun is left to it only with keep.
func (o *outbox) writeDirect(m *outgoing, keep bool) (begun bool) {
	whole, begun := o.link.try(m)
	if begun { // its descriptors have left
		socket.CloseFiles(m.files)
		m.files = nil
	}
	if whole {
		o.trace(sentFrame, 0, m.frame)
		m.wrote()
	}
	o.mu.Lock()
	o.writing = false
	left := !whole && (begun || keep)
	dropped := left && o.broken // meanwhile
	if left {
		m.taken, m.begun = begun, begun
	}
	if left && !dropped {
		o.queue = slices.Insert(o.queue, 0, m)
		o.bytes += wire.HeaderSize + len(m.frame.Body)
	}
	o.startLocked()
	o.mu.Unlock()
	if dropped {
		socket.CloseFiles(m.files)
	}
	return begun
}

func (o *outbox) startLocked() {
	if o.link != nil && !o.writing && !o.broken && (len(o.queue) > 0 || o.last) {
		o.writing = true
		o.owner.Go(o.write)
	}
}

// withdraw takes back a frame, and reports whether it had not left.
func (o *outbox) withdraw(m *outgoing) bool {
	o.mu.Lock()
	if m.taken {
		o.mu.Unlock()
		return false
	}
	i := slices.Index(o.queue, m)
	if i >= 0 { // else it was dropped
		o.queue = slices.Delete(o.queue, i, i+1)
		o.bytes -= wire.HeaderSize + len(m.frame.Body)
		o.room.ring()
	}
	o.mu.Unlock()
	if i >= 0 {
		socket.CloseFiles(m.files)
	}
	return true
}

// finish has the link finished behind all that is queued, with a last frame if there is one. The first call counts.
func (o *outbox) finish(end *wire.Frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last {
		return
	}
	o.last, o.end = true, end
	o.room.ring() // who waits for room has nothing to wait for
	o.startLocked()
}

// fail drops all that is queued.
func (o *outbox) fail() {
	o.mu.Lock()
	dropped := o.queue
	o.queue, o.bytes, o.broken = nil, 0, true
	o.room.ring()
	o.mu.Unlock()
	for _, m := range dropped {
		socket.CloseFiles(m.files)
	}
	o.over.Do(func() { close(o.finished) })
}

// write writes what is queued, and ends when the queue is empty.
func (o *outbox) write() {
	runtime.Gosched() // who is about to bring another frame does so first
	for {
		batch := o.take()
		if batch == nil {
			return
		}
		var err error
		for _, m := range batch {
			o.trace(sentFrame, 0, m.frame)
		}
		if len(batch) > 0 {
			err = o.link.write(batch)
		} else {
			err = o.finishLink()
		}
		for _, m := range batch {
			if err == nil {
				m.wrote()
			} else {
				socket.CloseFiles(m.files)
			}
		}
		if e, ok := errors.AsType[unsentError](err); ok {
			o.unsent(batch[0], e.error)
		} else if err != nil {
			o.fail()
			o.failed(err)
		}
		if len(batch) == 0 {
			o.over.Do(func() { close(o.finished) })
		}
	}
}

// finishLink finishes the link. Nobody changes end any more.
func (o *outbox) finishLink() error {
	if o.end != nil {
		o.trace(sentFrame, 0, *o.end)
	}
	return o.link.finish(o.end)
}

// unsent notes that a frame has not left after all.
func (o *outbox) unsent(m *outgoing, err error) {
	o.mu.Lock()
	m.taken = false
	o.mu.Unlock()
	if m.unsent != nil {
		m.unsent(err)
	}
}

// take takes the next frames to write in one go. An empty batch asks to finish the link, nil to stop.
func (o *outbox) take() []*outgoing {
	o.mu.Lock()
	defer o.mu.Unlock()
	size, n := 0, 0
	for _, m := range o.queue {
		if n > 0 && (size+len(m.frame.Body) > maxChunk/2 || len(m.files) > 0) {
			break
		}
		size += wire.HeaderSize + len(m.frame.Body)
		m.taken = true
		if m == o.facts {
			o.facts = nil
		}
		n++
		if len(m.files) > 0 {
			break
		}
	}
	switch {
	case n > 0:
		batch := slices.Clone(o.queue[:n])
		o.queue = slices.Delete(o.queue, 0, n) // which clears what is behind
		o.bytes -= size
		o.room.ring()
		return batch
	case o.last && !o.broken:
		o.broken = true // the link is finished once
		return []*outgoing{}
	}
	o.writing = false
	return nil
}
