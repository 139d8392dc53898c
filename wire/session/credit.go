package session

import (
	"context"
	"slices"
	"sync"

	"github.com/fairlead-dev/fairlead/wire"
)

// A credit is how many messages, and bytes of them, the peer takes at a time. Senders beyond it wait their turn on their own side.
type credit struct {
	most  int64 // messages
	limit int64 // of bytes

	mu      sync.Mutex
	count   int64 // left
	bytes   int64 // left
	waiting []*creditor
}

type creditor struct {
	bytes int64
	ready chan struct{} // closed when the credit is given, under the mutex
}

func newCredit(count, bytes int64) *credit {
	return &credit{most: count, limit: bytes, count: count, bytes: bytes}
}

// take takes credit for one message of n bytes. It waits until ctx or the session ends, whose error it returns.
func (c *credit) take(ctx, session context.Context, n int64) error {
	if n > c.limit {
		return wire.Errorf(wire.OverQuota, "send a message of %d bytes: the peer takes %d", n, c.limit)
	}
	c.mu.Lock()
	if len(c.waiting) == 0 && c.fitsLocked(n) {
		c.giveLocked(n)
		c.mu.Unlock()
		return nil
	}
	w := &creditor{bytes: n, ready: make(chan struct{})}
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
		c.back(1, w.bytes)
	}
	return err
}

// back gives credit back.
func (c *credit) back(count, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count += count
	c.bytes += bytes
	c.serveLocked()
}

// lent reports whether that much credit is out.
func (c *credit) lent(count, bytes int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return count <= c.most-c.count && bytes <= c.limit-c.bytes
}

func (c *credit) serveLocked() {
	for len(c.waiting) > 0 && c.fitsLocked(c.waiting[0].bytes) {
		w := c.waiting[0]
		c.waiting[0] = nil
		c.waiting = c.waiting[1:]
		c.giveLocked(w.bytes)
		close(w.ready)
	}
}

func (c *credit) fitsLocked(n int64) bool { return c.count > 0 && c.bytes >= n }

func (c *credit) giveLocked(n int64) {
	c.count--
	c.bytes -= n
}
