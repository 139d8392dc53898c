package session

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// A conn is a session's socket. What leaves on it are whole frames: those of the lane, and those of yamux, a few at a time in turns.
//
// yamux's never block and never fail: what the socket does not take at once is queued, so that a stalled peer holds up nobody's deadline, and a failed
// write does not keep yamux from reading what the peer has written before it went. Writers to streams wait for room in that queue first.
type conn struct {
	net.Conn
	unix  *net.UnixConn // nil: Conn carries no descriptors
	stats *stats
	held  *budget
	flows flows
	in    incoming
	turn  chan struct{} // of who writes; a frame that was begun is finished before it is given on
	try   trier         // writes what the socket takes at once; who has the turn uses it; nil: Conn cannot
	gone  chan struct{} // closed with the conn
	batch *buffer       // of the lane, or what is left of a frame that was begun; only who has the turn uses it; nil: none is
	parts [][]byte      // what is tried to be written; likewise

	mu       sync.Mutex
	queue    []*packet // of yamux; only the first may be begun
	queued   int       // bytes in it
	full     bool      // writers wait
	writers  int       // that were admitted and are inside yamux
	room     bell
	flushing bool
	finished bool // nothing more of yamux's is taken
	broken   bool
	breach   *wire.Error // what the peer did that ended the connection
	flusher  sync.WaitGroup
}

// newConn returns a conn whose side is the session's opener or not.
func newConn(under net.Conn, st *stats, held *budget, opener bool) *conn {
	c := &conn{
		Conn: under, stats: st, held: held, turn: make(chan struct{}, 1), gone: make(chan struct{}),
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

// tryTurn takes the turn if nobody has it.
func (c *conn) tryTurn() bool {
	select {
	case c.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

func (c *conn) endTurn() { <-c.turn }

// tryLane writes what the socket takes at once of a frame of the lane, if nobody has the turn. One that is begun and not whole keeps the turn for writeLane.
func (c *conn) tryLane(o *outgoing) (whole, begun bool) {
	if !c.tryTurn() {
		return false, false
	}
	c.batch = frameBuffer(o.frame)
	c.parts = append(c.parts[:0], c.batch.b)
	n := c.write(o.files...)
	if n > 0 && n < len(c.batch.b) {
		c.batch.b = append(c.batch.b[:0], c.batch.b[n:]...)
		return false, true
	}
	c.letBatchGo()
	c.endTurn()
	return n > 0, n > 0
}

// letBatchGo lets go of the memory of a batch.
func (c *conn) letBatchGo() {
	c.batch.giveBack()
	c.batch = nil
}

// writeLane writes frames of the lane, as soon as it is their turn, which that of one that was begun still is. Only one goroutine calls it.
func (c *conn) writeLane(batch []*outgoing) error {
	first := batch[0]
	if !first.begun && !c.takeTurn() {
		return net.ErrClosed
	}
	defer c.endTurn()
	if len(first.files) > 0 {
		return c.writeFiles(first)
	}
	switch {
	case first.begun:
		batch = batch[1:]
	case len(batch) == 1:
		c.batch = bufferFor(len(first.frame.Body))
	default:
		c.batch = bufferFor(maxChunk / 2)
	}
	c.batch.b = appendFrames(c.batch.b, batch)
	n, err := c.Conn.Write(c.batch.b)
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

// finish writes the last frame of the lane, unless it is nil, and tells the peer that nothing more is written, when all that is queued has left. Were that frame
// to overtake the queue, the peer would have been told of the end before the value of a reply has begun.
func (c *conn) finish(last *wire.Frame) error {
	c.mu.Lock()
	c.finished = true
	c.mu.Unlock()
	c.flusher.Wait()
	if !c.takeTurn() {
		return net.ErrClosed
	}
	defer c.endTurn()
	if last != nil {
		n, err := c.Conn.Write(last.Append(nil))
		c.stats.sent.Add(int64(n))
		if err != nil {
			return err
		}
	}
	return c.Conn.(halfCloser).CloseWrite()
}

// A halfCloser is a connection of which each direction ends by itself.
type halfCloser interface{ CloseWrite() error }

// write writes what the socket takes of the parts without waiting, and returns how much that was. Files are attached to the first byte of the only part. An error
// comes again when the rest is written, or the reader sees it.
func (c *conn) write(files ...*os.File) (n int) {
	switch {
	case len(files) > 0 && c.unix != nil:
		n = socket.TryWrite(c.unix, c.parts[0], files...)
	case len(files) == 0 && c.try != nil:
		n = c.try(c.parts)
	}
	c.stats.sent.Add(int64(n))
	clear(c.parts)
	return n
}

// A trier writes what can be written of the parts without waiting, and returns how much that was.
type trier func(parts [][]byte) int

// newTrier returns nil for a connection that is neither a socket nor knows by itself how to write without waiting. One goroutine at a time uses a trier.
func newTrier(c net.Conn) trier {
	if own, ok := c.(interface{ TryWrite([]byte) int }); ok {
		return func(parts [][]byte) (n int) {
			for _, b := range parts {
				taken := own.TryWrite(b)
				if n += taken; taken < len(b) {
					break
				}
			}
			return n
		}
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	var parts [][]byte
	var n int
	write := func(fd uintptr) bool {
		if len(parts) == 1 {
			n = socket.Send(fd, parts[0])
		} else {
			n, _ = unix.Writev(int(fd), parts)
		}
		return true
	}
	return func(all [][]byte) int {
		parts, n = all, 0
		raw.Write(write)
		parts = nil
		return max(n, 0)
	}
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
