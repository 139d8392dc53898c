package session

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

const (
	// maxChunk is the longest write to a yamux stream at once, so that streams take turns.
	maxChunk = 32 << 10
	// queueLimit is how many bytes may wait under yamux before writers to streams wait for room.
	queueLimit = 64 << 10
	// fullWriters is how many writers may be inside yamux with up to maxChunk each. Further ones write smallChunk at once: writers that wait
	// for their stream's reader hold up nobody, and all of them together stay far below queueBound when their readers read again.
	fullWriters = 16
	smallChunk  = 1 << 10
	// queueBound is how many bytes may wait at all: yamux's own frames, which wait for nothing, are a peer's doing. Beyond it the session ends.
	queueBound = 2 << 20
)

// A conn is a session's socket. What leaves on it are whole frames: those of the lane, and those of yamux, a few at a time in turns.
//
// yamux's never block and never fail: what the socket does not take at once is queued, so that a stalled peer holds up nobody's deadline, and a failed
// write does not keep yamux from reading what the peer has written before it went. Writers to streams wait for room in that queue first.
type conn struct {
	net.Conn
	unix    *net.UnixConn // nil: Conn carries no descriptors
	stats   *stats
	held    *budget
	flows   flows
	in      incoming
	turn    chan struct{} // of who writes; a frame that was begun is finished before it is given on
	try     trier         // writes what the socket takes at once; who has the turn uses it; nil: Conn cannot
	opening chan struct{} // of who may wait for yamux to open a stream
	gone    chan struct{} // closed with the conn
	batch   []byte        // of the lane, or what is left of a frame that was begun; only who has the turn uses it

	mu       sync.Mutex
	queue    [][]byte // whole frames of yamux
	queued   int      // bytes in it
	writers  int      // that were admitted and are inside yamux
	room     chan struct{}
	flushing bool
	finished bool // nothing more of yamux's is taken
	broken   bool
	breach   *wire.Error // what the peer did that ended the connection
	flusher  sync.WaitGroup
}

// newConn returns a conn whose side is the session's opener or not.
func newConn(under net.Conn, st *stats, held *budget, opener bool) *conn {
	c := &conn{
		Conn: under, stats: st, held: held, turn: make(chan struct{}, 1), opening: make(chan struct{}, 1),
		gone: make(chan struct{}), room: make(chan struct{}),
	}
	c.unix, _ = under.(*net.UnixConn)
	c.try = newTrier(under)
	c.flows.opener, c.flows.byID, c.flows.held = opener, map[uint32]*flow{}, held
	return c
}

// breached returns what the peer did that ended the connection, or nil.
func (c *conn) breached() *wire.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.breach
}

// broke notes what the peer did that ends the connection.
func (c *conn) broke(breach *wire.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.breach = breach
}

// SyscallConn gives access to the socket.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if sc, ok := c.Conn.(syscall.Conn); ok {
		return sc.SyscallConn()
	}
	return nil, wire.Errorf(wire.Unsupported, "the session is not on a socket")
}

// takeTurn waits for the turn to write, and reports false when the conn is closed first.
func (c *conn) takeTurn() bool {
	select {
	case c.turn <- struct{}{}:
		return true
	case <-c.gone:
		return false
	}
}

func (c *conn) endTurn() { <-c.turn }

// tryLane writes what the socket takes at once of a frame of the lane, if nobody has the turn. One that is begun and not whole keeps the turn for writeLane.
func (c *conn) tryLane(o *outgoing) (whole, begun bool) {
	select {
	case c.turn <- struct{}{}:
	default:
		return false, false
	}
	c.batch = o.frame.Append(c.batch[:0])
	n := c.write(c.batch)
	if n > 0 && n < len(c.batch) {
		c.batch = append(c.batch[:0], c.batch[n:]...)
		return false, true
	}
	c.letBatchGo()
	c.endTurn()
	return n > 0, n > 0
}

// letBatchGo lets go of the memory of a long batch, which a session that is idle would keep.
func (c *conn) letBatchGo() {
	if cap(c.batch) > maxChunk {
		c.batch = nil
	}
}

// writeLane writes frames of the lane, as soon as it is their turn, which that of one that was begun still is. Only one goroutine calls it.
func (c *conn) writeLane(batch []*outgoing) error {
	first := batch[0]
	if !first.begun && !c.takeTurn() {
		return net.ErrClosed
	}
	defer c.endTurn()
	switch {
	case len(first.files) > 0:
		return c.writeFiles(first)
	case first.begun:
		c.batch = appendFrames(c.batch, batch[1:])
	default:
		c.batch = appendFrames(c.batch[:0], batch)
	}
	n, err := c.Conn.Write(c.batch)
	c.stats.sent.Add(int64(n))
	c.letBatchGo()
	return err
}

// writeFiles writes a frame with descriptors.
func (c *conn) writeFiles(o *outgoing) error {
	if c.unix == nil {
		return unsentError{wire.Errorf(wire.Unsupported, "this session is not on a socket, and carries no descriptors")}
	}
	err := socket.WriteFrame(c.unix, o.frame, o.files...)
	if unsent, ok := errors.AsType[*socket.UnsentError](err); ok {
		return unsentError{wire.Errorf(wire.OverQuota, "%v", unsent)}
	}
	if err == nil {
		c.stats.sent.Add(int64(wire.HeaderSize + len(o.frame.Body)))
	}
	return err
}

// finish tells the peer that nothing more is written, when all that is queued has left.
func (c *conn) finish() error {
	c.mu.Lock()
	c.finished = true
	c.mu.Unlock()
	c.flusher.Wait()
	if !c.takeTurn() {
		return net.ErrClosed
	}
	defer c.endTurn()
	return c.Conn.(halfCloser).CloseWrite()
}

// A halfCloser is a connection of which each direction ends by itself.
type halfCloser interface{ CloseWrite() error }

// writeMux takes a whole frame of yamux.
func (c *conn) writeMux(frame []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken || c.finished {
		return
	}
	if !c.flushing {
		select {
		case c.turn <- struct{}{}:
			n := c.write(frame)
			if n == len(frame) {
				c.endTurn()
				return
			}
			c.flushLocked(slices.Clone(frame[n:])) // it has the turn
			return
		default:
			c.flushLocked(nil)
		}
	}
	if c.queued+len(frame)+len(c.queue)*frameCost > queueBound {
		c.breakLocked()
		return
	}
	c.held.take(len(frame) + frameCost)
	c.queue = append(c.queue, slices.Clone(frame))
	c.queued += len(frame)
}

// write writes what the socket takes of b without waiting, and returns how much that was. An error comes again when the rest is written, or the reader sees it.
func (c *conn) write(b []byte) int {
	if c.try == nil {
		return 0
	}
	n := c.try(b)
	c.stats.sent.Add(int64(n))
	return n
}

// A trier writes what can be written of b without waiting, and returns how much that was.
type trier func(b []byte) int

// newTrier returns nil for a connection that is neither a socket nor knows by itself how to write without waiting. One goroutine at a time uses a trier.
func newTrier(c net.Conn) trier {
	if own, ok := c.(interface{ TryWrite([]byte) int }); ok {
		return own.TryWrite
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	var b []byte
	var n int
	write := func(fd uintptr) bool {
		n, _ = unix.Write(int(fd), b)
		return true
	}
	return func(all []byte) int {
		b, n = all, 0
		raw.Write(write)
		b = nil
		return max(n, 0)
	}
}

// flushLocked starts the flusher. The rest of a frame, unless it is nil, has the turn.
func (c *conn) flushLocked(rest []byte) {
	c.flushing = true
	c.flusher.Go(func() { c.flush(rest) })
}

// flush writes rest, in the turn that it has, and then the queue until it is empty.
func (c *conn) flush(rest []byte) {
	for ; ; rest = nil {
		if rest == nil {
			if rest = c.next(); rest == nil || !c.takeTurn() {
				return
			}
		}
		n, err := c.Conn.Write(rest)
		c.endTurn()
		c.stats.sent.Add(int64(n))
		if err != nil {
			c.mu.Lock()
			c.broken, c.flushing = true, false
			c.emptyLocked()
			c.mu.Unlock()
			return
		}
	}
}

// next takes the next frames that are written in one turn out of the queue. With nil the flusher is done.
func (c *conn) next() (b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for n < len(c.queue) && (n == 0 || len(b)+len(c.queue[n]) <= maxChunk) {
		b = append(b, c.queue[n]...)
		n++
	}
	c.queue = slices.Delete(c.queue, 0, n)
	c.queued -= len(b)
	c.held.give(len(b) + n*frameCost)
	if n == 0 {
		c.queue = nil
		c.flushing = false
	}
	c.signalLocked()
	return b
}

func (c *conn) signalLocked() {
	close(c.room)
	c.room = make(chan struct{})
}

func (c *conn) emptyLocked() {
	c.held.give(c.queued + len(c.queue)*frameCost)
	c.queue, c.queued = nil, 0
	c.signalLocked()
}

// breakLocked ends the connection because its queue is over its bound.
func (c *conn) breakLocked() {
	c.broken = true
	c.breach = wire.Errorf(wire.OverQuota, "the peer has not read %d bytes that it caused", queueBound)
	c.emptyLocked()
	c.Conn.SetDeadline(longAgo) // reads and writes return at once; the reader then lets go
}

// Close closes the connection, once, and waits for the flusher.
func (c *conn) Close() error {
	c.mu.Lock()
	c.broken = true
	c.signalLocked()
	c.mu.Unlock()
	close(c.gone)
	c.flows.close()
	err := c.Conn.Close()
	c.flusher.Wait()
	return err
}

// admit waits for room in the queue until ctx ends, and returns how many bytes may then be written to a stream at once. The writer leaves
// with left.
func (c *conn) admit(ctx context.Context) (chunk int, err error) {
	for {
		c.mu.Lock()
		if c.broken {
			c.mu.Unlock()
			return 0, net.ErrClosed
		}
		if c.queued < queueLimit {
			c.writers++
			chunk = maxChunk
			if c.writers > fullWriters {
				chunk = smallChunk
			}
			c.mu.Unlock()
			return chunk, nil
		}
		room := c.room
		c.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (c *conn) left() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writers--
}

// writeStream writes b to a stream of this connection, in chunks, until ctx ends. The stream's own deadline bounds the wait for its reader.
func (c *conn) writeStream(ctx context.Context, stream *flow, b []byte) error {
	for len(b) > 0 {
		n, err := c.admit(ctx)
		if err != nil {
			return err
		}
		n = min(n, len(b))
		_, err = stream.Write(b[:n])
		c.left()
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
