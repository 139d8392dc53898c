package session

import (
	"bufio"
	"cmp"
	"context"
	"io"
	"sync"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// A bodyKey names the large body of a request of the peer, or of the reply to one of ours.
type bodyKey struct {
	reply bool
	id    uint32
}

// A largeBody is a body that the peer has begun to send, or, without a stream, one that it never will.
type largeBody struct {
	stream *flow
	r      *bufio.Reader
	length uint32
	taken  chan struct{} // closed by who takes the body
}

// bodies brings large bodies, which come on streams of their own, together with the messages they belong to. Either may come first. At most twice maxStreams
// bodies wait.
type bodies struct {
	mu    sync.Mutex
	slots map[bodyKey]chan largeBody
	wait  time.Duration // see patience; 0: replyWait
}

// slot returns the place where the body of key is handed over, or nil if too many wait.
func (b *bodies) slot(key bodyKey) chan largeBody {
	b.mu.Lock()
	defer b.mu.Unlock()
	ch, ok := b.slots[key]
	if !ok && len(b.slots) < maxStreams*2 {
		ch = make(chan largeBody, 1)
		if b.slots == nil {
			b.slots = map[bodyKey]chan largeBody{}
		}
		b.slots[key] = ch
	}
	return ch
}

// known returns the place of key if somebody waits there or something does, else nil.
func (b *bodies) known(key bodyKey) chan largeBody {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.slots[key]
}

// put hands a body over at ch, unless one is there already. A nil ch takes none.
func (b *bodies) put(ch chan largeBody, body largeBody) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case ch <- body:
		return true
	default:
		return false
	}
}

// takeBack takes a body away that was put at ch, and reports whether it was still there.
func (b *bodies) takeBack(key bodyKey, ch chan largeBody, body largeBody) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case other := <-ch:
		if other.stream != body.stream {
			ch <- other // there is room: all are put under the mutex
			return false
		}
		if b.slots[key] == ch {
			delete(b.slots, key)
		}
		return true
	default:
		return false
	}
}

// patience is how often it is asked whether a body that waits belongs to something.
func (b *bodies) patience() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return cmp.Or(b.wait, replyWait)
}

func (b *bodies) drop(key bodyKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.slots, key)
}

// offerLarge hands a large body over to the message it belongs to. One that belongs to nothing for as long as its message may take to follow
// is dropped.
func (s *Session) offerLarge(y *flow, r *bufio.Reader, h wire.Header) {
	key := bodyKey{reply: h.Flags&wire.FlagReply != 0, id: h.ID}
	body := largeBody{stream: y, r: r, length: h.Length, taken: make(chan struct{})}
	slot := s.bodies.slot(key)
	if !s.bodies.put(slot, body) { // one is there already, or too many are
		y.discard()
		return
	}
	every := time.NewTicker(s.bodies.patience())
	defer every.Stop()
	for belonged := true; ; {
		select {
		case <-every.C:
		case <-body.taken:
			return
		case <-s.done:
			return
		}
		belongs := s.belongs(key)
		lost := !belongs && !belonged // twice: who has just got the message is about to take its body
		belonged = belongs
		if lost && s.bodies.takeBack(key, slot, body) {
			y.discard()
			return
		}
	}
}

// belongs reports whether the message that a large body is for is known and not done with.
func (s *Session) belongs(key bodyKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key.reply {
		return s.pending[key.id] != nil
	}
	return s.serving[key.id] != nil
}

// beginLarge begins a large body on a stream of its own, until ctx ends. From then on the peer drops what it does not want of it.
func (s *Session) beginLarge(ctx context.Context, h wire.Header, length int) (*flow, error) {
	y, err := s.openStream(ctx)
	if err != nil {
		return nil, err
	}
	h.Kind, h.Length = wire.KindLarge, uint32(length)
	s.trace(sentFrame, y.id, wire.Frame{Header: h})
	if err := s.conn.writeStream(ctx, y, h.Append(nil)); err != nil {
		y.Close()
		return nil, err
	}
	return y, nil
}

// sendLarge sends a large body that has begun, as fast as the peer reads it, until ctx ends or the peer lets go of it, and closes its stream. A peer that
// reads none of it for as long as patience, unless that is 0, is ended.
func (s *Session) sendLarge(ctx context.Context, y *flow, value []byte, patience time.Duration) error {
	defer y.Close()
	y.whenGone(func() { y.SetWriteDeadline(longAgo) })
	stop := context.AfterFunc(ctx, func() { y.SetWriteDeadline(longAgo) })
	defer stop()
	if patience > 0 {
		progress := time.AfterFunc(patience, func() { s.giveUpOn(stuck) })
		defer progress.Stop()
		for len(value) > maxChunk {
			if err := s.conn.writeStream(ctx, y, value[:maxChunk]); err != nil {
				return err
			}
			progress.Reset(patience)
			value = value[maxChunk:]
		}
	}
	return s.conn.writeStream(ctx, y, value)
}

// endWait is how long the session's end may come after that of a stream that it has cut off.
const endWait = time.Second

// anyLength is the length of a large body that was not announced.
const anyLength = -1

// receiveLarge waits for a large body of the given length and reads it, until ctx ends. What is then still to come is dropped.
func (s *Session) receiveLarge(ctx context.Context, key bodyKey, length int64) ([]byte, error) {
	body, err := s.awaitLarge(ctx, key)
	if err != nil {
		return nil, err
	}
	if length != anyLength && length != int64(body.length) {
		s.skip(body)
		return nil, wire.Errorf(wire.Malformed, "a large body of %d bytes, announced were %d", body.length, length)
	}
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		body.stream.SetReadDeadline(longAgo)
		close(cut)
	})
	b, err := readLarge(body.r, int(body.length))
	if !stop() {
		<-cut
	}
	switch {
	case err == nil:
		body.stream.Close()
		return b, nil
	case ctx.Err() != nil:
		body.length -= uint32(len(b))
		s.skip(body)
		return nil, ctx.Err()
	}
	body.stream.Close()
	select { // the stream may be over before the session, as its end then says
	case <-s.done:
	case <-ctx.Done():
	case <-time.After(endWait):
	}
	return nil, s.endedOr(wire.Errorf(wire.Internal, "the peer let go of a large body after %d of %d bytes", len(b), body.length))
}

// readLarge reads length bytes, or those that come before an error. Their memory is taken as they come: a window of yamux, and four times as much whenever it is
// full.
func readLarge(r io.Reader, length int) ([]byte, error) {
	b := make([]byte, 0, min(length, yamuxWindow))
	for len(b) < length {
		if len(b) == cap(b) {
			b = append(make([]byte, 0, min(length, 4*cap(b))), b...)
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err != nil && len(b) < length {
			return b, err
		}
	}
	return b, nil
}

// awaitLarge waits until the peer begins a large body.
func (s *Session) awaitLarge(ctx context.Context, key bodyKey) (largeBody, error) {
	slot := s.bodies.slot(key)
	if slot == nil {
		return largeBody{}, wire.Errorf(wire.OverQuota, "too many large messages at a time")
	}
	var body largeBody
	select {
	case body = <-slot:
	case <-ctx.Done():
		s.discardLarge(key)
		return largeBody{}, ctx.Err()
	case <-s.forsaken:
		select {
		case body = <-slot: // it came before the end
		default:
			return largeBody{}, s.endedOr(io.EOF)
		}
	}
	s.bodies.drop(key)
	if body.stream == nil {
		return largeBody{}, wire.Canceled
	}
	close(body.taken)
	return body, nil
}

// discardLarge takes a large body that nobody wants any more, if it comes within replyWait, and drops it. It waits for nothing.
func (s *Session) discardLarge(key bodyKey) {
	slot := s.bodies.slot(key)
	if slot == nil {
		return
	}
	s.spawn(func() {
		defer s.bodies.drop(key)
		t := time.NewTimer(replyWait)
		defer t.Stop()
		select {
		case body := <-slot:
			if body.stream != nil {
				close(body.taken)
				s.skip(body)
			}
		case <-t.C:
		case <-s.done:
		}
	})
}

// withdrawn notes that the large body of a request will not come.
func (s *Session) withdrawn(id uint32) {
	s.bodies.put(s.bodies.known(bodyKey{id: id}), largeBody{}) // unless nobody waits for it, or it has come
}

// skip reads the rest of a large body and drops it: its sender waits for a reader.
func (s *Session) skip(body largeBody) {
	skipped := s.spawn(func() {
		defer body.stream.Close()
		body.stream.SetReadDeadline(time.Now().Add(replyWait))
		io.CopyN(io.Discard, body.r, int64(body.length))
	})
	if !skipped {
		body.stream.Close()
	}
}
