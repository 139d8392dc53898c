package session

import (
	"context"
	"net"
	"slices"
	"sync"

	"github.com/fairlead-dev/fairlead/wire"
)

const (
	// maxChunk is the most data, in bytes, in a frame of yamux that leaves here, so that frames take turns.
	maxChunk = 32 << 10
	// maxWrite is the most that a stream gives to yamux at once. Each time costs two switches between goroutines. It has room for a frame of 64 KiB.
	maxWrite = 64<<10 + wire.HeaderSize
	// queueLimit is how many bytes may wait under yamux before writers to streams wait for room, and queueLow is how many still wait when they have it: so a
	// writer is woken for a good piece of work.
	queueLimit = 128 << 10
	queueLow   = queueLimit / 2
	// fullWriters is how many writers may be inside yamux with up to maxWrite each. Further ones write smallChunk at once: writers that wait
	// for their stream's reader hold up nobody, and all of them together stay far below queueBound when their readers read again.
	fullWriters = 8
	smallChunk  = 1 << 10
	// queueBound is how many bytes may wait at all: yamux's own frames, which wait for nothing, are a peer's doing. Beyond it the session ends.
	queueBound = 2 << 20
	// flushMost is how many bytes of the queue the socket is offered at once, and flushFrames how many frames.
	flushMost   = 256 << 10
	flushFrames = 64
)

// A packet is what is left to be written of a frame of yamux.
type packet struct{ b []byte }

// packets are those with memory for a frame of maxChunk, of which more than half is used at first.
var packets = sync.Pool{New: func() any { return &packet{make([]byte, 0, yamuxHeader+maxChunk)} }}

// newPacket returns a frame but for its first bytes.
func newPacket(head, body []byte, written int) *packet {
	var p *packet
	if len(body) > maxChunk/2 {
		p = packets.Get().(*packet)
	} else {
		p = &packet{make([]byte, 0, len(head)+len(body))}
	}
	p.b = append(append(p.b[:0], head...), body...)
	p.b = p.b[:copy(p.b, p.b[written:])]
	return p
}

// giveBack has the memory used again.
func (p *packet) giveBack() {
	if cap(p.b) == yamuxHeader+maxChunk {
		packets.Put(p)
	}
}

// cost is what a packet costs the session's budget.
func (p *packet) cost() int { return cap(p.b) + frameCost }

// writeMux takes whole frames of yamux: headers, each with its data behind it.
func (c *conn) writeMux(frames [][]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken || c.finished {
		return
	}
	n, turn := 0, !c.flushing && c.tryTurn()
	if turn {
		c.parts = append(c.parts[:0], frames...)
		n = c.write()
	}
	begun := c.queueLocked(frames, n)
	if turn && !begun {
		c.endTurn()
	}
	if len(c.queue) > 0 && !c.flushing {
		c.flushing = true
		c.flusher.Go(func() { c.flush(begun) })
	}
}

// queueLocked queues frames but for their first bytes, which have been written, and reports whether one is begun.
func (c *conn) queueLocked(frames [][]byte, written int) (begun bool) {
	for ; len(frames) > 0; frames = frames[2:] {
		size := len(frames[0]) + len(frames[1])
		if written >= size {
			written -= size
			continue
		}
		if c.queued+size+len(c.queue)*frameCost > queueBound {
			c.breakLocked()
			return false
		}
		p := newPacket(frames[0], frames[1], written)
		begun = begun || written > 0
		written = 0
		c.held.take(p.cost())
		c.queue = append(c.queue, p)
		c.queued += len(p.b)
	}
	return begun
}

// flush writes the queue until it is empty. It has the turn if the first frame is begun.
func (c *conn) flush(begun bool) {
	var batch []*packet
	for {
		batch = c.next(batch[:0])
		if len(batch) == 0 || !begun && !c.takeTurn() {
			return
		}
		n, err := c.writeBatch(batch)
		c.endTurn()
		begun = false
		c.flushed(n, err)
	}
}

// next returns the next frames that are written in one turn, which stay in the queue. With none the flusher is done.
func (c *conn) next(batch []*packet) []*packet {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := 0
	for _, p := range c.queue {
		if size += len(p.b); len(batch) == flushFrames || len(batch) > 0 && size > flushMost {
			break
		}
		batch = append(batch, p)
	}
	if len(batch) == 0 {
		c.queue = nil
		c.flushing = false
	}
	return batch
}

// writeBatch writes what the socket takes at once of a batch, at least its first frame, and whole frames only. It returns how many.
func (c *conn) writeBatch(batch []*packet) (n int, err error) {
	c.parts = c.parts[:0]
	for _, p := range batch {
		c.parts = append(c.parts, p.b)
	}
	written := c.write()
	for n < len(batch) && written >= len(batch[n].b) {
		written -= len(batch[n].b)
		n++
	}
	if n > 0 && written == 0 {
		return n, nil
	}
	at, err := c.Conn.Write(batch[n].b[written:])
	c.stats.sent.Add(int64(at))
	return n + 1, err
}

// flushed takes the first n frames out of the queue, which have left unless there is an error.
func (c *conn) flushed(n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.broken = true
	}
	if c.broken {
		c.emptyLocked()
		return
	}
	for _, p := range c.queue[:n] {
		c.queued -= len(p.b)
		c.held.give(p.cost())
		p.giveBack()
	}
	c.queue = slices.Delete(c.queue, 0, n)
	if c.full && c.queued <= queueLow {
		c.signalLocked()
	}
}

// signalLocked tells writers that there is room, or that they have nothing to wait for.
func (c *conn) signalLocked() {
	c.full = false
	c.room.ring()
}

func (c *conn) emptyLocked() {
	for _, p := range c.queue {
		c.held.give(p.cost())
	}
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

// admit waits for room in the queue until ctx ends, and returns how many bytes may then be written to a stream at once. The writer leaves
// with left.
func (c *conn) admit(ctx context.Context) (chunk int, err error) {
	for {
		c.mu.Lock()
		if c.broken {
			c.mu.Unlock()
			return 0, net.ErrClosed
		}
		c.full = c.full || c.queued >= queueLimit
		if !c.full {
			c.writers++
			chunk = maxWrite
			if c.writers > fullWriters {
				chunk = smallChunk
			}
			c.mu.Unlock()
			return chunk, nil
		}
		room := c.room.wait()
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

// writeFrame is writeStream for a frame. What goes to yamux with its header is copied when there is room: many may wait for that.
func (c *conn) writeFrame(ctx context.Context, stream *flow, f wire.Frame) error {
	n, err := c.admit(ctx)
	if err != nil {
		return err
	}
	n = min(n-wire.HeaderSize, len(f.Body))
	begin := frameBuffer(wire.Frame{Header: f.Header, Body: f.Body[:n]})
	_, err = stream.Write(begin.b)
	begin.giveBack()
	c.left()
	if err != nil {
		return err
	}
	return c.writeStream(ctx, stream, f.Body[n:])
}

// writeStream writes b to a stream of this connection, in pieces, until ctx ends. The stream's own deadline bounds the wait for its reader.
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
