package session

import (
	"context"
	"os"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// A Message is a request or a one-way message from the peer.
type Message struct {
	Method string
	OneWay bool

	s       *Session
	id      uint32
	value   []byte
	large   bool
	flush   bool // and nothing else
	files   []*os.File
	missing error     // why files did not all arrive
	until   time.Time // zero: no deadline
	out     outgoing  // the reply, unless it is large
	serving
}

// serving is the part of a request that the reader changes while it is being served. The session's mutex guards it.
type serving struct {
	canceled bool
	left     bool               // the handler has returned
	ctx      context.Context    // nil until the handler needs it
	cancel   context.CancelFunc // ends it
	load     load               // never changed
	let      bool               // the value was let go, which then costs nothing more
}

// cost is what a request costs the session's budget.
func (r *serving) cost() int {
	if r.let {
		return callCost
	}
	return callCost + int(r.load.bytes)
}

// costOneWay is cost for a one-way message.
func (m *Message) costOneWay() int { return oneWayCost + int(m.load.bytes) }

// letGo lets go of the value of a message whose handler has returned.
func (m *Message) letGo() {
	m.value = nil
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if !m.let {
		m.let = true
		m.s.held.give(int(m.load.bytes))
	}
}

// A requestContext is the context of a request's handler. It ends with the caller's time, its cancel, the session, and when the handler returns. It costs nothing
// until somebody asks for more than the session and the deadline, as most handlers never do: then it becomes one of the standard library's.
type requestContext Message

// Deadline returns the end of the caller's time.
func (c *requestContext) Deadline() (time.Time, bool) { return c.until, !c.until.IsZero() }

// Done is closed when the context ends.
func (c *requestContext) Done() <-chan struct{} { return c.real().Done() }

// Err returns why the context has ended.
func (c *requestContext) Err() error { return c.real().Err() }

// Value returns the session's values. The standard library asks for one of its own, too, to end what is made of the context with it.
func (c *requestContext) Value(key any) any {
	if key == (sessionKey{}) {
		return c.s
	}
	return c.real().Value(key)
}

// real returns the standard library's context, which is made the first time.
func (c *requestContext) real() context.Context {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.ctx != nil {
		return c.ctx
	}
	if c.until.IsZero() {
		c.ctx, c.cancel = context.WithCancel(c.s.ctx)
	} else {
		c.ctx, c.cancel = context.WithDeadline(c.s.ctx, c.until)
	}
	if c.canceled || c.left {
		c.cancel()
	}
	return c.ctx
}

// leave ends the context of a request whose handler has returned.
func (m *Message) leave() {
	m.s.mu.Lock()
	m.left = true
	cancel := m.cancel
	m.s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// noValue is how the value of a request without one reads: msgpack's nil.
var noValue = []byte{0xc0}

// orNil returns a value, or nil's where there is none.
func orNil(value []byte) []byte {
	if len(value) == 0 {
		return noValue
	}
	return value
}

// Decode decodes the message's value into v, which must point to a fresh value, and stays so if the message has no value. Descriptors that v takes, as fields of
// type *os.File, are the caller's from then on; what nobody takes is closed when the handler has returned. It fails with wire.Malformed, and
// with wire.OverQuota if v, of a one-way message, wants descriptors that did not all arrive, as when this process has too many files open. A request that
// fares so is answered before it comes here.
func (m *Message) Decode(v any) error {
	var err error
	m.files, err = wire.UnmarshalFiles(orNil(m.value), m.files, v)
	if err != nil && m.missing != nil {
		err = m.missing
	}
	return err
}

// maxWithin is the longest time left that is told apart from any longer one.
const maxWithin = 365 * 24 * time.Hour

// within returns the time that is left to ctx, as it travels: in milliseconds, 0 for no deadline. The peer's deadline is not the earlier one.
func within(ctx context.Context) int64 {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return max(1, (time.Until(deadline) + time.Millisecond - 1).Milliseconds())
}

// duration returns a time left that has travelled.
func duration(within int64) time.Duration {
	return time.Duration(min(within, maxWithin.Milliseconds())) * time.Millisecond
}
