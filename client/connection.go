package client

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A Caller is what calls can be made on: a Session or a Connection.
type Caller interface {
	// Call sends a request and waits for its reply; see Session.Call.
	Call(ctx context.Context, method string, request, reply any) error
	// Send sends a one-way message; see Session.Send.
	Send(ctx context.Context, method string, value any) error
	// Flush waits until all that was sent has been taken up; see Session.Flush.
	Flush(ctx context.Context) error
	// OpenStreaming opens a streaming call; see Session.OpenStreaming.
	OpenStreaming(ctx context.Context, method string, value any) (*session.Stream, error)
}

// A Connection is a handle on an endpoint's name. It opens a session when it is first used, and a new one at the first use after that was lost. What the service
// knew of the lost session is the caller's to say again. All methods may be called from any goroutine.
//
//	idle ── use ──▶ opening ──▶ open ── lost: reported once ──▶ idle
//	any ── Close, or the endpoint is refused for good ──▶ invalid
type Connection struct {
	endpoint string
	options  Options
	ctx      context.Context // ends when the connection is invalid
	cancel   context.CancelCauseFunc

	mu        sync.Mutex
	session   *Session              // nil unless it is open
	leaving   map[*Session]struct{} // sessions that take no more requests and have not ended
	sent      *Session              // that the last message was sent on, unless it was flushed
	sends     int64                 // messages
	unflushed error                 // why it cannot be told whether messages before that were handled
	opening   *opening              // nil if there is no attempt to open
	end       wire.End              // set when the connection is invalid
}

// An opening is an attempt to open a session, for all who wait for one.
type opening struct {
	done chan struct{} // closed when it has come to something
	err  error         // why it failed, unless that is the business of the one who made it alone
}

// maxRepeats is how often a call that has not left is tried on one more session.
const maxRepeats = 8

// Connect returns a connection with an endpoint. It never fails, and does nothing until the connection is used. Options.Interrupted is told of every
// session that is lost.
func Connect(endpoint string, o Options) *Connection {
	c := &Connection{endpoint: endpoint, options: o, leaving: map[*Session]struct{}{}}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c
}

// Call makes a call on the connection's session, which it opens if need be. A request that has left is never repeated: a call whose session is lost fails with
// wire.Interrupted. On a connection that is over it fails with wire.Invalid.
func (c *Connection) Call(ctx context.Context, method string, request, reply any) error {
	return c.use(ctx, func(s *Session) error { return s.Call(ctx, method, request, reply) })
}

// Send sends a one-way message on the connection's session, which it opens if need be.
func (c *Connection) Send(ctx context.Context, method string, value any) error {
	return c.use(ctx, func(s *Session) error {
		err := s.Send(ctx, method, value)
		if err == nil {
			c.sentOn(s)
		}
		return err
	})
}

// sentOn notes the session that a message was sent on.
func (c *Connection) sentOn(s *Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := c.sent; last != nil && last != s && c.unflushed == nil {
		c.unflushed = wire.Errorf(wire.Interrupted, "messages were sent on a session that was lost or is being ended, and not flushed")
	}
	c.sent = s
	c.sends++
}

// Flush returns when the service has taken up all that was sent on the connection before. It fails with wire.Interrupted, once, if a session was lost since
// the last Flush on which messages had been sent: nothing tells which of them were handled. Other failures are as those of Session.Flush.
func (c *Connection) Flush(ctx context.Context) error {
	c.mu.Lock()
	s, sends, err := c.sent, c.sends, c.unflushed
	c.unflushed = nil
	c.mu.Unlock()
	if err != nil || s == nil {
		return err
	}
	err = s.Flush(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent == s && (err != nil && s.Context().Err() != nil || err == nil && c.sends == sends) { // else there is something left to flush
		c.sent = nil
	}
	return err
}

// OpenStreaming opens a streaming call on the connection's session, which it opens if need be. A call that has begun stays with its session: it fails with
// wire.Interrupted when that is lost, and is not opened again.
func (c *Connection) OpenStreaming(ctx context.Context, method string, value any) (st *session.Stream, err error) {
	err = c.use(ctx, func(s *Session) error {
		st, err = s.OpenStreaming(ctx, method, value)
		return err
	})
	return st, err
}

// use runs f on the session, and on a new one as long as the session turns out to be going and nothing has left.
func (c *Connection) use(ctx context.Context, f func(*Session) error) error {
	for repeats := 0; ; repeats++ {
		s, err := c.Session(ctx)
		if err != nil {
			return err
		}
		err = f(s)
		e, ok := errors.AsType[*wire.Error](err)
		if !ok || e.Sent || !s.Terminating() || ctx.Err() != nil || repeats == maxRepeats {
			return err
		}
	}
}

// Session returns the connection's session, which it opens if there is none. It waits and fails as Dial does, and with wire.Invalid if the connection is over.
func (c *Connection) Session(ctx context.Context) (*Session, error) {
	for {
		c.mu.Lock()
		if c.end.Code != "" {
			defer c.mu.Unlock()
			return nil, c.end.Err()
		}
		if s := c.session; s != nil && !s.Terminating() {
			c.mu.Unlock()
			return s, nil
		}
		o := c.opening
		if o == nil {
			o = &opening{done: make(chan struct{})}
			c.opening = o
			c.mu.Unlock()
			return c.open(ctx, o)
		}
		c.mu.Unlock()
		select {
		case <-o.done:
			if o.err != nil {
				return nil, o.err
			}
		case <-ctx.Done():
			return nil, wire.AsError(ctx.Err())
		}
	}
}

// open opens a session for all who wait.
func (c *Connection) open(ctx context.Context, o *opening) (*Session, error) {
	dialing, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	s, err := Dial(dialing, c.endpoint, c.options)
	c.mu.Lock()
	c.opening = nil
	if ctx.Err() == nil {
		o.err = err
	}
	over := c.end
	if err == nil && over.Code == "" {
		if c.session != nil {
			c.leaving[c.session] = struct{}{}
		}
		c.session = s
	}
	close(o.done)
	c.mu.Unlock()
	switch {
	case over.Code != "":
		if s != nil {
			s.Close()
		}
		return nil, over.Err()
	case err != nil:
		if forGood(err) {
			e := wire.AsError(err)
			c.over(wire.End{Code: wire.Invalid, Origin: e.Origin, Text: e.Error()})
		}
		return nil, err
	}
	s.OnEnd(func(end wire.End) { c.lost(s, end) })
	return s, nil
}

// forGood reports whether a refusal will not change by asking again.
func forGood(err error) bool {
	switch wire.CodeOf(err) {
	case wire.NotPermitted, wire.Malformed, wire.Unsupported:
		return true
	}
	return false
}

// lost reports the end of a session, unless it was ended on this side.
func (c *Connection) lost(s *Session, end wire.End) {
	c.mu.Lock()
	delete(c.leaving, s)
	if c.session == s {
		c.session = nil
	}
	c.mu.Unlock()
	if end.Origin != wire.Local && c.options.Interrupted != nil {
		c.options.Interrupted(end)
	}
}

// over makes the connection invalid, once, and returns the sessions that are still to be ended.
func (c *Connection) over(end wire.End) (sessions []*Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end.Code != "" {
		return nil
	}
	c.end = end
	if c.session != nil {
		sessions = append(sessions, c.session)
		c.session = nil
	}
	sessions = slices.AppendSeq(sessions, maps.Keys(c.leaving))
	c.cancel(end.Err())
	return sessions
}

// Close makes the connection invalid, ends its session, and returns when the service has let go, or after 5 s.
func (c *Connection) Close() error {
	var err error
	for _, s := range c.over(wire.End{Code: wire.Invalid, Origin: wire.Local, Text: "the connection is closed"}) {
		err = errors.Join(err, s.Close())
	}
	return err
}

// Done is closed when the connection is invalid: it was closed, or its endpoint refused for good.
func (c *Connection) Done() <-chan struct{} { return c.ctx.Done() }

// End returns why the connection is invalid. It is zero until Done is closed.
func (c *Connection) End() wire.End {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end
}
