package session

import (
	"context"
	"slices"
	"sync"

	"github.com/fairlead-dev/fairlead/wire"
)

// A load is what messages weigh on the side that takes them.
type load struct{ bytes, files int64 }

func (l load) plus(m load) load   { return load{l.bytes + m.bytes, l.files + m.files} }
func (l load) minus(m load) load  { return load{l.bytes - m.bytes, l.files - m.files} }
func (l load) within(m load) bool { return l.bytes <= m.bytes && l.files <= m.files }

// fits reports whether l may come to what is taken already.
func (l load) fits(limits wire.Limits, taken load) bool {
	return l.within(load{limits.Bytes, limits.Files}.minus(taken))
}

// A credit is how many messages, and how much of a load, the peer takes at a time. Senders beyond it wait their turn on their own side.
type credit struct {
	most  int64 // messages
	limit load

	mu      sync.Mutex
	count   int64 // left
	load    load  // left
	waiting []*creditor
}

type creditor struct {
	load  load
	ready chan struct{} // closed when the credit is given, under the mutex
}

func newCredit(count int64, limits wire.Limits) *credit {
	limit := load{limits.Bytes, limits.Files}
	return &credit{most: count, limit: limit, count: count, load: limit}
}

// take takes credit for one message. It waits until ctx or the session ends, whose error it returns.
func (c *credit) take(ctx, session context.Context, l load) error {
	if !l.within(c.limit) {
		return wire.Errorf(wire.OverQuota, "send a message of %d bytes and %d descriptors: the peer takes %d and %d", l.bytes, l.files, c.limit.bytes, c.limit.files)
	}
	c.mu.Lock()
	if c.tryLocked(l) {
		c.mu.Unlock()
		return nil
	}
	w := &creditor{load: l, ready: make(chan struct{})}
	c.waiting = append(c.waiting, w)
	c.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		return c.leave(w, ctx.Err())
	case <-session.Done():
		return c.leave(w, context.Cause(session))
	}
}

// try takes credit for one message if nobody has to wait for that.
func (c *credit) try(l load) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tryLocked(l)
}

func (c *credit) tryLocked(l load) bool {
	if len(c.waiting) > 0 || !c.fitsLocked(l) {
		return false
	}
	c.giveLocked(l)
	return true
}

// leave gives up waiting.
func (c *credit) leave(w *creditor, err error) error {
	c.mu.Lock()
	i := slices.Index(c.waiting, w)
	if i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
		c.serveLocked() // those behind may fit
	}
	c.mu.Unlock()
	if i < 0 {
		c.back(1, w.load)
	}
	return err
}

// back gives credit back.
func (c *credit) back(count int64, l load) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count += count
	c.load = c.load.plus(l)
	c.serveLocked()
}

// lent reports whether that much credit is out.
func (c *credit) lent(count int64, l load) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return count <= c.most-c.count && l.within(c.limit.minus(c.load))
}

func (c *credit) serveLocked() {
	for len(c.waiting) > 0 && c.fitsLocked(c.waiting[0].load) {
		w := c.waiting[0]
		c.waiting[0] = nil
		c.waiting = c.waiting[1:]
		c.giveLocked(w.load)
		close(w.ready)
	}
}

func (c *credit) fitsLocked(l load) bool { return c.count > 0 && l.within(c.load) }

func (c *credit) giveLocked(l load) {
	c.count--
	c.load = c.load.minus(l)
}
