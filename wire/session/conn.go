package session

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
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
	queueBound = 3 << 20
)

// A conn is the connection under yamux. Its Write never blocks and never fails: it queues what the socket does not take at once, so that a stalled
// peer holds up nobody's deadline, and a failed write does not keep yamux from reading what the peer has written before it went.
// Writers to streams wait for room in the queue first. A frame's header and body leave in one write.
type conn struct {
	net.Conn
	stats *stats
	flows flows
	guard guard         // only the reader's
	turn  chan struct{} // of who may wait for yamux to open a stream

	mu       sync.Mutex
	held     []byte // a data frame's header, until its body comes
	queue    bytes.Buffer
	writers  int           // that were admitted and are inside yamux
	room     chan struct{} // closed when there is more room
	flushing bool
	broken   bool
	breach   *wire.Error // what the peer did that ended the connection
	flusher  sync.WaitGroup
}

// newConn returns a conn whose side is the session's opener or not.
func newConn(under net.Conn, st *stats, opener bool) *conn {
	c := &conn{Conn: under, stats: st, room: make(chan struct{}), turn: make(chan struct{}, 1)}
	c.flows.opener, c.flows.byID = opener, map[uint32]*flow{}
	c.guard.flows = &c.flows
	return c
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.stats.received.Add(int64(n))
	if breach := c.guard.look(b[:n]); breach != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.breach = wire.AsError(breach)
		return 0, breach
	}
	return n, err
}

// breached returns what the peer did that ended the connection, or nil.
func (c *conn) breached() *wire.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.breach
}

// SyscallConn gives access to the socket.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if sc, ok := c.Conn.(syscall.Conn); ok {
		return sc.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// Write takes all of b. Only yamux's sender calls it.
func (c *conn) Write(b []byte) (int, error) {
	n := len(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken {
		return n, nil
	}
	if h := yamuxFrame(b); c.held == nil && n == yamuxHeader {
		c.flows.sent(h)
		if h.kind() == yamuxData && h.length() > 0 {
			c.held = bytes.Clone(b)
			return n, nil
		}
	}
	if c.held != nil {
		b, c.held = append(c.held, b...), nil
	}
	if !c.flushing {
		b = b[c.tryLocked(b):]
	}
	if len(b) == 0 || c.broken {
		return n, nil
	}
	if c.queue.Len()+len(b) > queueBound {
		c.breakLocked()
		return n, nil
	}
	c.queue.Write(b)
	if !c.flushing {
		c.flushing = true
		c.flusher.Go(c.flush)
	}
	return n, nil
}

// tryLocked writes what the socket takes of b without waiting, and returns how much that was.
func (c *conn) tryLocked(b []byte) (n int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	raw.Write(func(fd uintptr) bool {
		n, err = unix.Write(int(fd), b)
		return true
	})
	if n > 0 {
		c.stats.sent.Add(int64(n))
		return n
	}
	return 0 // an error comes again in flush, or the reader sees it
}

// flush writes the queue until it is empty.
func (c *conn) flush() {
	for {
		c.mu.Lock()
		b := bytes.Clone(c.queue.Next(maxChunk))
		if len(b) == 0 {
			c.queue = bytes.Buffer{}
			c.flushing = false
		}
		c.signalLocked()
		c.mu.Unlock()
		if len(b) == 0 {
			return
		}
		n, err := c.Conn.Write(b)
		c.stats.sent.Add(int64(n))
		if err != nil {
			c.mu.Lock()
			c.broken, c.flushing = true, false
			c.queue = bytes.Buffer{}
			c.signalLocked()
			c.mu.Unlock()
			return
		}
	}
}

func (c *conn) signalLocked() {
	close(c.room)
	c.room = make(chan struct{})
}

// breakLocked ends the connection because its queue is over its bound.
func (c *conn) breakLocked() {
	c.broken = true
	c.breach = wire.Errorf(wire.OverQuota, "the peer has not read %d bytes that it caused", queueBound)
	c.queue = bytes.Buffer{}
	c.signalLocked()
	c.Conn.SetDeadline(time.Unix(1, 0)) // Read and Write return at once; the reader then lets go
}

// Close closes the connection and waits for the flusher.
func (c *conn) Close() error {
	c.mu.Lock()
	c.broken = true
	c.signalLocked()
	c.mu.Unlock()
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
		if c.queue.Len() < queueLimit {
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
func (c *conn) writeStream(ctx context.Context, stream *yamux.Stream, b []byte) error {
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

// openStream opens a yamux stream as soon as there is room for its first frame.
func (s *Session) openStream(ctx context.Context) (*flow, error) {
	if s.mux == nil {
		return nil, wire.Errorf(wire.Unsupported, "open a stream: this session has none")
	}
	if err := cmp.Or(ctx.Err(), context.Cause(s.ctx)); err != nil {
		return nil, err
	}
	c := s.conn.(*conn)
	if _, err := c.admit(ctx); err != nil {
		return nil, s.endedOr(err)
	}
	defer c.left()
	stream, err := s.openWithin(ctx)
	if err != nil {
		return nil, s.endedOr(err)
	}
	return c.flows.claim(stream), nil
}

// openWithin opens a yamux stream until ctx ends. yamux itself waits without a bound once the peer owes it its backlog of acknowledgements:
// then one at a time waits there, and the others for their turn.
func (s *Session) openWithin(ctx context.Context) (*yamux.Stream, error) {
	opening := s.opening.Add(1)
	defer s.opening.Add(-1)
	if s.mux.NumStreams()+int(opening) < acceptBacklog {
		return s.mux.OpenStream()
	}
	c := s.conn.(*conn)
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.done:
		return nil, context.Cause(s.ctx)
	}
	type result struct {
		stream *yamux.Stream
		err    error
	}
	opened := make(chan result)
	spawned := s.spawn(func() {
		defer func() { <-c.turn }()
		stream, err := s.mux.OpenStream()
		select {
		case opened <- result{stream, err}:
		case <-ctx.Done():
			if err == nil {
				c.flows.claim(stream).Close()
			}
		}
	})
	if !spawned {
		return nil, context.Cause(s.ctx)
	}
	select {
	case r := <-opened:
		return r.stream, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// endedOr returns the session's end as an error if it has ended, else err.
func (s *Session) endedOr(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return s.ended.Err()
	}
	for _, gone := range []error{io.EOF, net.ErrClosed, yamux.ErrSessionShutdown, yamux.ErrConnectionReset, yamux.ErrStreamClosed} {
		if errors.Is(err, gone) {
			return wire.Errorf(s.lostCode(), "the peer is gone")
		}
	}
	return err
}

// acceptBacklog is how many streams may wait to be acknowledged, see yamux.Config.
const acceptBacklog = 256

// yamuxConfig has yamux judge nothing by time: deadlines are ours, and a peer stopped under a debugger keeps its session. A stream that
// the peer does not close stays: a reset would take from the peer what it has not yet read. streamsBound bounds their number.
func yamuxConfig(logger *slog.Logger) *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive = false
	c.AcceptBacklog = acceptBacklog
	c.ConnectionWriteTimeout = 1 << 62 // our Write never blocks
	c.StreamOpenTimeout = 0
	c.StreamCloseTimeout = 0
	c.LogOutput = nil
	c.Logger = log.New(&yamuxLog{logger: logger}, "", 0)
	return c
}

// yamuxLogLines is how many of yamux's lines a session logs: a peer can cause any number.
const yamuxLogLines = 8

// A yamuxLog passes yamux's first lines on at debug level.
type yamuxLog struct {
	logger *slog.Logger
	lines  atomic.Int64
}

func (l *yamuxLog) Write(b []byte) (int, error) {
	if l.lines.Add(1) <= yamuxLogLines {
		l.logger.Debug("yamux", "err", wire.Printable(string(bytes.TrimSpace(b)), wire.MaxText))
	}
	return len(b), nil
}
