package session

import (
	"bufio"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/fairlead-dev/fairlead/wire"
)

// A bodyKey names the large body of a request of the peer, or of the reply to one of ours.
type bodyKey struct {
	reply bool
	id    uint32
}

// A largeBody is a body that the peer has begun to send.
type largeBody struct {
	stream *yamux.Stream
	r      *bufio.Reader
	length uint32
}

// bodies brings large bodies, which come on streams of their own, together with the messages they belong to. Either may come first. At most maxStreams
// bodies wait.
type bodies struct {
	mu    sync.Mutex
	slots map[bodyKey]chan largeBody
}

// slot returns the place where the body of key is handed over, or nil if too many wait.
func (b *bodies) slot(key bodyKey) chan largeBody {
	b.mu.Lock()
	defer b.mu.Unlock()
	ch, ok := b.slots[key]
	if !ok && len(b.slots) < maxStreams*2 {
		ch = make(chan largeBody, 1)
		b.slots[key] = ch
	}
	return ch
}

func (b *bodies) drop(key bodyKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.slots, key)
}

// offerLarge hands a large body over to the message it belongs to.
func (s *Session) offerLarge(y *yamux.Stream, r *bufio.Reader, h wire.Header) {
	select {
	case s.bodies.slot(bodyKey{reply: h.Flags&wire.FlagReply != 0, id: h.ID}) <- largeBody{stream: y, r: r, length: h.Length}:
	default: // one is there already, or too many are
		y.Close()
	}
}

// sendLarge sends a large body on a stream of its own, as fast as the peer reads it, until ctx ends.
func (s *Session) sendLarge(ctx context.Context, h wire.Header, value []byte) error {
	y, err := s.openStream(ctx)
	if err != nil {
		return err
	}
	defer y.Close()
	stop := context.AfterFunc(ctx, func() { y.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	expired, stopTimer := timer(ctx)
	defer stopTimer()
	h.Kind, h.Length = wire.KindLarge, uint32(len(value))
	c := s.conn.(*conn)
	if err := c.writeStream(y, h.Append(nil), expired); err != nil {
		return err
	}
	return c.writeStream(y, value, expired)
}

// receiveLarge waits for a large body and reads it, until ctx ends.
func (s *Session) receiveLarge(ctx context.Context, key bodyKey) ([]byte, error) {
	slot := s.bodies.slot(key)
	if slot == nil {
		return nil, wire.Errorf(wire.OverQuota, "too many large messages at a time")
	}
	var body largeBody
	select {
	case body = <-slot:
		s.bodies.drop(key)
	case <-ctx.Done():
		s.spawn(func() { s.discardLarge(key) })
		return nil, ctx.Err()
	case <-s.done:
		return nil, s.endedOr(io.EOF)
	}
	defer body.stream.Close()
	stop := context.AfterFunc(ctx, func() { body.stream.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	b := make([]byte, body.length)
	if _, err := io.ReadFull(body.r, b); err != nil {
		return nil, errors.Join(ctx.Err(), s.endedOr(err))
	}
	return b, nil
}

// discardLarge takes a large body that nobody wants any more and drops it.
func (s *Session) discardLarge(key bodyKey) {
	slot := s.bodies.slot(key)
	if slot == nil {
		return
	}
	defer s.bodies.drop(key)
	ctx, cancel := context.WithTimeout(s.ctx, replyWait)
	defer cancel()
	select {
	case body := <-slot:
		defer body.stream.Close()
		stop := context.AfterFunc(ctx, func() { body.stream.SetReadDeadline(time.Unix(1, 0)) })
		defer stop()
		io.CopyN(io.Discard, body.r, int64(body.length))
	case <-ctx.Done():
	}
}
