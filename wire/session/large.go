package session

import (
	"bufio"
	"bytes"
	"context"
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

// A largeBody is a body that the peer has begun to send, or, without a stream, one that it never will.
type largeBody struct {
	stream *yamux.Stream
	r      *bufio.Reader
	length uint32
}

// bodies brings large bodies, which come on streams of their own, together with the messages they belong to. Either may come first. At most twice maxStreams
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

// known returns the place of key if somebody waits there or something does, else nil.
func (b *bodies) known(key bodyKey) chan largeBody {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.slots[key]
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

// beginLarge begins a large body on a stream of its own, until ctx ends. From then on the peer drops what it does not want of it.
func (s *Session) beginLarge(ctx context.Context, h wire.Header, length int) (*yamux.Stream, error) {
	y, err := s.openStream(ctx)
	if err != nil {
		return nil, err
	}
	h.Kind, h.Length = wire.KindLarge, uint32(length)
	if err := s.conn.(*conn).writeStream(ctx, y, h.Append(nil)); err != nil {
		y.Close()
		return nil, err
	}
	return y, nil
}

// sendLarge sends a large body that has begun, as fast as the peer reads it, until ctx ends, and closes its stream.
func (s *Session) sendLarge(ctx context.Context, y *yamux.Stream, value []byte) error {
	defer y.Close()
	stop := context.AfterFunc(ctx, func() { y.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	return s.conn.(*conn).writeStream(ctx, y, value)
}

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
		body.stream.SetReadDeadline(time.Unix(1, 0))
		close(cut)
	})
	var b bytes.Buffer
	b.Grow(min(int(body.length), yamuxWindow) + bytes.MinRead) // the rest when it comes
	n, err := io.CopyN(&b, body.r, int64(body.length))
	if !stop() {
		<-cut
	}
	switch {
	case err == nil:
		body.stream.Close()
		return b.Bytes(), nil
	case ctx.Err() != nil:
		body.length -= uint32(n)
		s.skip(body)
		return nil, ctx.Err()
	}
	body.stream.Close()
	return nil, s.endedOr(wire.Errorf(wire.Internal, "the peer let go of a large body after %d of %d bytes", n, body.length))
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
				s.skip(body)
			}
		case <-t.C:
		case <-s.done:
		}
	})
}

// withdrawn notes that the large body of a request will not come.
func (s *Session) withdrawn(id uint32) {
	select {
	case s.bodies.known(bodyKey{id: id}) <- largeBody{}:
	default: // nobody waits for it, or it has come
	}
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
