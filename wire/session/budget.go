package session

import (
	"cmp"
	"sync"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

const (
	// heldBound is how much memory a session with wire.DefaultLimits holds for its peer, in bytes: with what a session costs by itself, less than 8 MiB. The
	// costs below were measured, see TestMemoryThatOneHostilePeerCanHoldIsBounded in e2e.
	heldBound = 6656 << 10
	// readRoom is how much of it no reply takes, so that some is left for what comes.
	readRoom = 1 << 20
	// replyRoom is how much replies may always take, also where it is full of something else: streams that nobody reads hold up no reply of ordinary length.
	replyRoom = 512 << 10
	// streamCost is what a stream of the peer costs: yamux's part of it, its goroutine, its reader's buffer.
	streamCost = 8 << 10
	// serveCost is what it costs besides that a stream has a handler, with a small buffer of the handler's own.
	serveCost = 12 << 10
	// callCost is what a request costs beside its value: its goroutine, and a short reply that is not yet queued.
	callCost = 4 << 10
	// oneWayCost is what a one-way message costs beside its value. One goroutine takes them all.
	oneWayCost = 512
	// frameCost is what a frame of yamux that waits to leave costs beside its bytes.
	frameCost = 48
)

// A budget counts the memory that a session holds because of its peer: messages that are not yet answered or handled, streams, what came on them and was not
// read, and what waits for the peer to read it. Messages and streams have limits of their own, which the peer is told or finds in the protocol. Where the budget is
// over its bound, no further reply is encoded beyond replyRoom, and without its replies nothing more is taken off the socket either, from the first frame on that would add to it, until
// something of it was given back.
type budget struct {
	bound int // never changed

	mu       sync.Mutex
	held     int
	replies  int           // of it
	patience time.Duration // of wait; 0: replyWait
	room     bell          // rings when held has shrunk
}

// limit sets the bound for what the peer has been told that it may send.
func (b *budget) limit(l wire.Limits) {
	b.bound = heldBound + max(0, weight(l)-weight(wire.DefaultLimits))
}

// weight is what a peer may cause within its limits, but for streams.
func weight(l wire.Limits) int {
	const most = 1 << 40 // so that nothing overflows
	return int(min(l.Bytes, most) + min(l.OneWayBytes, most) + min(l.Calls, most)*callCost + min(l.OneWay, most)*oneWayCost)
}

// take adds n bytes, also if they are too many.
func (b *budget) take(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held += n
}

// full returns a channel that is closed when something is given back, or nil if no more than the bound is held.
func (b *budget) full() (room <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held-b.replies <= b.bound { // the leave for replies to go on comes off the socket, so they do not stop that
		return nil
	}
	return b.room.wait()
}

// tryTake adds n bytes of a reply if there is room for them, and readRoom is left, or if replies take no more than replyRoom then. Else it returns a channel that is closed when something was given back.
func (b *budget) tryTake(n int) (room <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held+n <= b.bound-readRoom || b.replies+n <= replyRoom {
		b.held += n
		b.replies += n
		return nil
	}
	return b.room.wait()
}

// giveReply gives back what tryTake took.
func (b *budget) giveReply(n int) {
	b.mu.Lock()
	b.replies -= n
	b.mu.Unlock()
	b.give(n)
}

// give gives n bytes back.
func (b *budget) give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= n
	if n > 0 {
		b.room.ring()
	}
}

// await waits until no more than the bound is held, and fails with wire.OverQuota when nothing is given back for replyWait. It returns at once when the conn is closed.
func (b *budget) await(gone <-chan struct{}) error {
	patience := b.wait()
	for room := b.full(); room != nil; room = b.full() {
		select {
		case <-room:
		case <-gone:
			return nil
		case <-time.After(patience):
			return wire.Errorf(wire.OverQuota, "more than %d bytes in memory for one session, of messages, and of streams that nobody reads, and none was let go for %v", b.bound, patience)
		}
	}
	return nil
}

// wait returns how long a peer may take to make room.
func (b *budget) wait() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return cmp.Or(b.patience, replyWait)
}

// tight reports whether more than half of it is taken.
func (b *budget) tight() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held > b.bound/2
}
