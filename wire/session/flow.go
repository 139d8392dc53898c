package session

import (
	"bytes"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/fairlead-dev/fairlead/wire"
)

const (
	// shrinkAbove is how large the empty buffer of a stream must be, in bytes, to be given back while somebody reads it, and shrinkAfter how long nothing has
	// come then, at least, and at most twice that. yamux's buffers only grow; one that is given back while a stream flows is made anew at once. Where the
	// session's budget is tight, each is given back as soon as it is empty.
	shrinkAbove = 64 << 10
	shrinkAfter = 50 * time.Millisecond
)

// A flow is a yamux stream and what the conn under it knows: how much has come that nobody has read, and whether the peer has let go.
//
// A flow begins with the SYN of either side and is then claimed by whom it is for. Two things follow in either order: it is released, when
// this side reads and writes it no more; and it is gone, when the peer's FIN or RST comes. After both it is dropped.
type flow struct {
	*yamux.Stream
	all *flows
	id  uint32

	// The rest is guarded by the mutex of all.
	unread    int
	buffer    int  // what yamux's buffer of it takes, see buffered
	cost      int  // that the budget has of it beside its buffer
	rests     bool // nothing has come since shrinking was last looked at
	gone      bool
	released  bool
	dropped   bool
	unclaimed bool   // by who accepts the peer's streams
	opened    bool   // by this side, and not yet acknowledged
	closing   bool   // as soon as it is
	told      func() // called once, when the flow is gone
}

// flows are the streams of a conn, by their id. Their number is bounded by that of yamux's streams.
type flows struct {
	opener bool // this side's streams have odd ids
	held   *budget

	mu        sync.Mutex
	byID      map[uint32]*flow
	unread    int
	closed    bool
	unclaimed int           // streams of the peer
	settled   chan struct{} // closed when there are none; nil: nobody waits
	shrinker  *time.Timer   // gives buffers back; nil: none is large
}

// settle returns a channel that is closed when all streams of the peer have been claimed, or the connection is closed.
func (a *flows) settle() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	settled := make(chan struct{})
	a.settled = settled
	a.settleLocked()
	return settled
}

func (a *flows) settleLocked() {
	if a.settled != nil && (a.unclaimed == 0 || a.closed) {
		close(a.settled)
		a.settled = nil
	}
}

func (a *flows) claimLocked(f *flow) {
	if f.unclaimed {
		f.unclaimed = false
		a.unclaimed--
		a.settleLocked()
	}
}

// claim returns the flow of a stream that was opened or accepted.
func (a *flows) claim(y *yamux.Stream) *flow {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.byID[y.StreamID()]
	if f == nil { // as when the connection broke
		f = &flow{all: a, id: y.StreamID(), gone: true, dropped: true}
	}
	f.Stream = y
	a.claimLocked(f)
	if a.closed {
		y.SetDeadline(longAgo)
	}
	return f
}

// begins notes a stream that the peer opens. An id that is not the peer's to use is a breach of the protocol: yamux would mistake one stream
// for another.
func (a *flows) begins(id uint32) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, used := a.byID[id]
	if used || id == 0 || (id%2 == 1) == a.opener {
		return wire.Errorf(wire.Malformed, "read a frame: stream %d is opened, which is in use or not the peer's to open", id)
	}
	a.byID[id] = &flow{all: a, id: id, unclaimed: true, cost: streamCost}
	a.unclaimed++
	a.held.take(streamCost)
	return nil
}

// came adds n bytes that have come on f, which may be nil.
func (a *flows) came(f *flow, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if f == nil || f.dropped {
		return // yamux drops them
	}
	f.unread += n
	f.rests = false
	a.unread += n
	if size := buffered(f.unread); size > f.buffer {
		a.held.take(size - f.buffer)
		f.buffer = size
	}
}

// buffered returns how large yamux's buffer of a stream may be when so much is unread. It is made for the first that comes, and doubled, or made twice as large as what is unread, while it
// has no room for a read, see bytes.Buffer: how large it is of these two depends on how large the first frame was, and when what was read, and a peer chooses that.
func buffered(unread int) int { return 2 * (unread + bytes.MinRead) }

// giveEmpty gives the buffers back that are empty.
func (a *flows) giveEmpty() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.byID {
		if f.unread == 0 && f.buffer > 0 {
			f.emptyLocked()
		}
	}
}

// emptyLocked gives the buffer back, of which all was read. yamux fills it only while something is unread, so nobody waits here.
func (f *flow) emptyLocked() {
	f.Shrink()
	f.all.held.give(f.buffer)
	f.buffer = 0
}

// shrinkLocked has shrink run soon, unless it will.
func (a *flows) shrinkLocked() {
	if a.shrinker == nil && !a.closed {
		a.shrinker = time.AfterFunc(shrinkAfter, a.shrink)
	}
}

// shrink gives the empty buffers back of streams on which nothing has come for a while.
func (a *flows) shrink() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.shrinker = nil
	for _, f := range a.byID {
		switch {
		case f.buffer <= shrinkAbove || f.unread > 0:
		case f.rests:
			f.emptyLocked()
		default:
			f.rests = true
			a.shrinkLocked()
		}
	}
}

// find returns the flow of an id, or nil.
func (a *flows) find(id uint32) *flow {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byID[id]
}

// letGo notes that the peer has let go of f, which may be nil, and calls who waits for that.
func (a *flows) letGo(f *flow) {
	a.mu.Lock()
	var told func()
	closing := false
	if f != nil && !f.gone {
		f.gone = true
		told, f.told = f.told, nil
		closing, f.closing = f.closing, false
		a.dropLocked(f)
	}
	a.mu.Unlock()
	if told != nil {
		told()
	}
	if closing {
		f.Stream.Close()
	}
}

// sent notes what a header that is about to leave does to its stream.
func (a *flows) sent(h yamuxFrame) {
	if h.kind() != yamuxData && h.kind() != yamuxUpdate {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if h.has(yamuxSYN) {
		a.byID[h.id()] = &flow{all: a, id: h.id(), opened: true}
	}
	if f := a.byID[h.id()]; f != nil && h.has(yamuxRST) { // yamux has too many that wait to be accepted: nobody ever claims it
		f.gone, f.released = true, true
		a.dropLocked(f)
	}
}

// close has nobody wait on a stream any more: yamux has readers and writers spin from its end until it has closed their streams one by one, and
// many of them leave it no processor to do so. What has come can still be read. It is called before yamux ends.
func (a *flows) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	a.closed = true
	a.settleLocked()
	for _, f := range a.byID {
		if f.Stream != nil {
			f.Stream.SetDeadline(longAgo)
		}
	}
}

// over reports whether the connection is closed, or about to be.
func (a *flows) over() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.closed
}

// dropLocked forgets a flow that neither side has any more.
func (a *flows) dropLocked(f *flow) {
	if !f.gone || !f.released || f.dropped {
		return
	}
	f.dropped = true
	a.claimLocked(f)
	a.unread -= f.unread
	a.held.give(f.cost + f.buffer)
	f.buffer = 0
	delete(a.byID, f.id)
}

// whenGone has told called once the peer has let go, at once if it has. It is called by yamux's reader and must not wait.
func (f *flow) whenGone(told func()) {
	f.all.mu.Lock()
	gone := f.gone
	if !gone {
		f.told = told
	}
	f.all.mu.Unlock()
	if gone {
		told()
	}
}

// SetDeadline bounds reading and writing. It changes nothing once the connection is closed, and neither do the other two.
func (f *flow) SetDeadline(t time.Time) error { return f.bound(f.Stream.SetDeadline, t) }

// SetReadDeadline bounds reading.
func (f *flow) SetReadDeadline(t time.Time) error { return f.bound(f.Stream.SetReadDeadline, t) }

// SetWriteDeadline bounds writing.
func (f *flow) SetWriteDeadline(t time.Time) error { return f.bound(f.Stream.SetWriteDeadline, t) }

func (f *flow) bound(set func(time.Time) error, t time.Time) error {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	if f.all.closed {
		return nil
	}
	return set(t)
}

// Write writes to the stream. It fails with net.ErrClosed once the connection is closed.
func (f *flow) Write(b []byte) (int, error) {
	n, err := f.Stream.Write(b)
	if err != nil && f.all.over() {
		err = net.ErrClosed
	}
	return n, err
}

// Read reads from the stream, and gives a large buffer back when it is empty. It returns io.EOF once the connection is closed and all that came was
// read.
func (f *flow) Read(b []byte) (int, error) {
	n, err := f.Stream.Read(b)
	a := f.all
	if timedOut(err) && a.over() { // yamux looks for data first and at the deadline then, and the last data and close's deadline may have come between
		n, err = f.Stream.Read(b)
	}
	a.mu.Lock()
	if a.closed && timedOut(err) {
		err = io.EOF
	}
	if !f.dropped {
		f.unread -= n
		a.unread -= n
	}
	switch {
	case f.unread > 0 || f.buffer == 0:
	case f.released || a.held.tight():
		f.emptyLocked()
	case f.buffer > shrinkAbove:
		a.shrinkLocked()
	}
	a.mu.Unlock()
	return n, err
}

// Close releases the stream. What the peer still sends counts as unread until it lets go too. One that this side has opened is closed when the peer has
// acknowledged it: yamux never acknowledges a stream that was closed before it was accepted, and never forgets one that was not acknowledged.
func (f *flow) Close() error {
	f.all.mu.Lock()
	f.released = true
	f.told = nil
	f.closing = f.opened && !f.gone && !f.all.closed
	later := f.closing
	f.all.dropLocked(f)
	f.all.mu.Unlock()
	if later {
		return nil
	}
	return f.Stream.Close()
}

// acknowledged notes that the peer has accepted f, which may be nil, and closes it if that waits.
func (a *flows) acknowledged(f *flow) {
	if f == nil {
		return
	}
	a.mu.Lock()
	closing := f.closing
	f.opened, f.closing = false, false
	a.mu.Unlock()
	if closing {
		f.Stream.Close()
	}
}

// discard releases the stream and drops what the peer still sends, until it lets go too or the session ends. Nobody else reads the stream.
func (f *flow) discard() {
	f.Close()
	f.SetReadDeadline(time.Time{})
	var b [1 << 10]byte
	for {
		if _, err := f.Read(b[:]); err != nil {
			return
		}
	}
}
