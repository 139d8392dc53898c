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
	"time"

	"github.com/hashicorp/yamux"

	"github.com/fairlead-dev/fairlead/wire"
)

// A mux is yamux on a session's conn. It starts with the first stream of either side.
type mux struct {
	s    *Session
	come feed // what the conn's reader passes on

	mu        sync.Mutex
	y         *yamux.Session // nil until it is started
	accepting bool           // somebody takes the streams that the peer opens
	closed    bool
}

func (m *mux) init(s *Session) {
	m.s = s
	m.come.init()
}

// start starts yamux, unless it has been. Who takes the streams that the peer opens is spawned.
func (m *mux) start(spawn func(func()) bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.y != nil:
		return nil
	case m.closed:
		return net.ErrClosed
	case m.s.streamless:
		return wire.Errorf(wire.Unsupported, "a stream on a control connection")
	}
	begin := yamux.Server
	if m.s.conf.Opener {
		begin = yamux.Client
	}
	y, err := begin(&muxConn{Conn: m.s.conn.Conn, mux: m}, yamuxConfig(m.s.log()))
	if err == nil {
		m.y = y
		m.s.restNoMore()
		m.accepting = !m.s.conf.Lane || spawn(m.s.accept) // without a lane that begins behind the message channel
	}
	return err
}

// begin is start for the first frame that comes, also behind the session's end: a peer may have sent that before a stream on which a reply's value comes. Only who
// reads the session calls it.
func (m *mux) begin() error {
	return m.start(func(accept func()) bool {
		m.s.own.Go(accept)
		return true
	})
}

// session returns yamux's session, or nil if it has not been started.
func (m *mux) session() *yamux.Session {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.y
}

// over reports whether yamux has been started, and has ended or is about to.
func (m *mux) over() bool {
	y := m.session()
	return y != nil && (m.s.conn.flows.over() || y.IsClosed())
}

// cut ends yamux behind what was passed on.
func (m *mux) cut(err error) { m.come.finish(err) }

// end tells yamux that nothing more comes, and returns when it has dealt with all that came.
func (m *mux) end(err error) {
	m.mu.Lock()
	y, accepting := m.y, m.accepting
	m.mu.Unlock()
	if accepting {
		select { // when yamux ends it forgets the streams that nobody has accepted
		case <-m.s.conn.flows.settle():
		case <-y.CloseChan():
		}
	}
	m.cut(err)
	if y != nil {
		<-y.CloseChan()
	}
}

// close ends yamux, whose conn is closed.
func (m *mux) close() {
	m.mu.Lock()
	m.closed = true
	y := m.y
	m.mu.Unlock()
	m.come.close()
	if y != nil {
		y.Close()
	}
}

// A muxConn is the connection that yamux sees. It joins the two writes of a frame, cuts one that is long, and never blocks.
type muxConn struct {
	net.Conn // for its addresses
	mux      *mux

	// The rest is of yamux's sender.
	head   [yamuxHeader]byte // of a data frame, until its body comes
	held   bool              // it is there
	heads  []byte            // of the frames that are being written
	frames [][]byte
}

// Read fails when yamux is to end.
func (c *muxConn) Read(b []byte) (int, error) {
	n, err := c.mux.come.Read(b)
	if err != nil {
		c.mux.s.conn.flows.close()
	}
	return n, err
}

// Write takes all of b.
func (c *muxConn) Write(b []byte) (int, error) {
	conn := c.mux.s.conn
	if h := yamuxFrame(b); !c.held && len(b) == yamuxHeader {
		conn.flows.sent(h)
		if h.kind() == yamuxData && h.length() > 0 {
			c.held = true
			copy(c.head[:], b)
			return len(b), nil
		}
	}
	c.frames = append(c.frames[:0], b, nil)
	if c.held {
		c.held = false
		c.cut(b)
	}
	conn.writeMux(c.frames)
	clear(c.frames)
	return len(b), nil
}

// cut makes frames of maxChunk of the one whose header came before.
func (c *muxConn) cut(data []byte) {
	c.heads, c.frames = c.heads[:0], c.frames[:0]
	for h := yamuxFrame(c.head[:]); len(data) > 0; h.clear() { // only the first begins or acknowledges its stream
		n := min(len(data), maxChunk)
		h.setLength(n)
		at := len(c.heads)
		c.heads = append(c.heads, h...)
		c.frames = append(c.frames, c.heads[at:], data[:n])
		data = data[n:]
	}
}

// Close is called by yamux when it ends. The conn's reader, which may wait, then sees why.
func (c *muxConn) Close() error {
	c.mux.s.conn.flows.close()
	c.mux.come.close()
	return c.mux.s.conn.SetReadDeadline(longAgo)
}

// openStream opens a yamux stream as soon as there is room for its first frame.
func (s *Session) openStream(ctx context.Context) (*flow, error) {
	if err := cmp.Or(ctx.Err(), context.Cause(s.ctx)); err != nil {
		return nil, err
	}
	if err := s.mux.start(s.spawn); err != nil {
		return nil, s.endedOr(err)
	}
	s.needReader()
	c := s.conn
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
	y, c := s.mux.session(), s.conn
	if y.NumStreams()+int(opening) < acceptBacklog {
		return y.OpenStream()
	}
	turn := s.semaphore(&s.openingTurn, 1)
	select {
	case turn <- struct{}{}:
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
		defer func() { <-turn }()
		stream, err := y.OpenStream()
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
	if s.mux.over() { // then the session ends, too, and its end says more
		s.needEnd()
		select {
		case <-s.done:
		case <-time.After(endWait):
		}
	}
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

// maxWindow is how many bytes of a stream may be on their way to its reader, after yamuxWindow at first. yamux gives more when half of it has been read: with
// half as much again, writer and reader go on while each is woken up. yamux's buffer for a slow reader grows to some twice this.
const maxWindow = yamuxWindow + yamuxWindow/2

// yamuxConfig has yamux judge nothing by time: deadlines are ours, and a peer stopped under a debugger keeps its session. A stream that
// the peer does not close stays: a reset would take from the peer what it has not yet read. streamsBound bounds their number.
func yamuxConfig(logger *slog.Logger) *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive = false
	c.AcceptBacklog = acceptBacklog
	c.MaxStreamWindowSize = maxWindow
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
