package session

import (
	"context"
	"fmt"
	"io"
	"iter"

	"github.com/fairlead-dev/fairlead/wire"
)

// OpenStreaming opens a streaming call to a method of the peer, with a value of its own, which has at most wire.MaxBody bytes together with the method's
// name. Then both sides send and receive values. The peer's answer, also that it has no such method, is what is received.
//
// The call lasts until it is closed, or ctx ends: then all who wait return at once, with an error that errors.Is takes for that of ctx, and the handler's
// context at the other end ends. The deadline of ctx travels. The caller closes the stream. Failures are as those of Call.
func (s *Session) OpenStreaming(ctx context.Context, method string, value any) (*Stream, error) {
	st, err := s.openStreaming(ctx, method, value)
	if err != nil {
		return nil, s.notOpened(method, err)
	}
	st.caller = ctx
	forget := context.AfterFunc(ctx, func() { st.abandon(ctx.Err()) })
	st.mu.Lock()
	defer st.mu.Unlock()
	st.carries, st.forget = wire.KindItem, forget
	return st, nil
}

func (s *Session) openStreaming(ctx context.Context, method string, value any) (*Stream, error) {
	b, err := wire.Marshal(value)
	if err != nil {
		return nil, err
	}
	return s.beginStream(ctx, wire.Stream{Method: method, Within: within(ctx), Value: b})
}

// Decode decodes the value that a streaming call was opened with into v, which must point to a fresh value, and stays so if there is none. It is for
// the handler. It fails with wire.Malformed.
func (st *Stream) Decode(v any) error {
	if len(st.value) == 0 {
		return wire.Unmarshal(noValue, v)
	}
	return wire.Unmarshal(st.value, v)
}

// Send sends one value of a streaming call, of at most wire.MaxBody bytes. It waits while the peer does not receive, until the call's context ends.
// With wire.OverQuota, for a value that is too long, wire.Malformed, for one that cannot be encoded, and wire.Unsupported, for one with descriptors, nothing
// has left, and the stream stays as it is. A peer that has let go of the stream is wire.Interrupted to a caller, who then receives why, and wire.Canceled to a handler.
func (st *Stream) Send(v any) error {
	if err := st.use(wire.KindItem); err != nil {
		return err
	}
	if err := st.over("write"); err != nil {
		return err
	}
	b, err := wire.Marshal(v)
	if err == nil && len(b) > wire.MaxBody {
		err = wire.Errorf(wire.OverQuota, "a value of %d bytes, limit %d", len(b), wire.MaxBody)
	}
	if err != nil {
		return wire.AsError(fmt.Errorf("send on stream %s: %w", st.method, err))
	}
	return st.writeFrame(st.ctx, wire.Frame{Header: wire.Header{Kind: wire.KindItem, Length: uint32(len(b))}, Body: b})
}

// Receive receives the next value of a streaming call into v, which must point to a fresh value, and waits for it until the call's context ends. It
// returns io.EOF once the peer has finished, the peer's error if it ended the call with one, and otherwise fails as Send does. A value that does not
// decode, or that its Validate refuses, is wire.Malformed; those behind it can still be received. End of file is no end: a peer that is lost, or has
// let go before it had finished, is an error.
func (st *Stream) Receive(v any) error {
	st.turn <- struct{}{}
	defer func() { <-st.turn }()
	b, err := st.receive()
	if err != nil {
		return err
	}
	if err := wire.Unmarshal(b, v); err != nil {
		return wire.AsError(fmt.Errorf("receive on stream %s: %w", st.method, err))
	}
	return nil
}

// over returns why the time of a streaming call is over here, or nil. What came before its caller let go is still received.
func (st *Stream) over(what string) error {
	var err error
	if st.caller != nil {
		err = st.caller.Err()
	} else if st.ctx.Err() == context.DeadlineExceeded {
		err = context.DeadlineExceeded
	}
	if err != nil {
		return wire.AsError(fmt.Errorf("%s stream %s: %w", what, st.method, err))
	}
	return nil
}

// receive reads the next item whole.
func (st *Stream) receive() ([]byte, error) {
	if err := st.over("read"); err != nil && st.end == nil { // also where more has come than was received
		return nil, err
	}
	if err := st.arrive(wire.KindItem); err != nil {
		return nil, err
	}
	had := len(st.item)
	var err error
	st.item, err = st.more(st.item, had+int(st.left))
	st.left -= uint32(len(st.item) - had)
	if err != nil {
		return nil, st.failed("read", err) // the rest may come after a deadline of SetReadDeadline
	}
	b := st.item
	st.item = nil
	st.s.trace(receivedFrame, st.flow.id, wire.Frame{Header: wire.Header{Kind: wire.KindItem, Length: uint32(len(b))}, Body: b})
	return b, nil
}

// A Streaming is one side of a streaming call with its types: it receives values of In and sends values of Out. For the other side they are
// the other way round. See Stream for its states, and for what goes on beside each other.
type Streaming[In, Out any] struct{ st *Stream }

// NewStreaming gives a stream its types; it is then a streaming call.
func NewStreaming[In, Out any](st *Stream) *Streaming[In, Out] {
	st.use(wire.KindItem) // a stream that is raw already says so at each use
	return &Streaming[In, Out]{st}
}

// Send sends a value; see Stream.Send.
func (s *Streaming[In, Out]) Send(v Out) error { return s.st.Send(v) }

// Receive receives the next value; see Stream.Receive. It returns io.EOF once the peer has finished.
func (s *Streaming[In, Out]) Receive() (In, error) {
	var v In
	err := s.st.Receive(&v)
	return v, err
}

// All receives all values until the peer has finished. Another error than io.EOF comes with the last pair, once.
func (s *Streaming[In, Out]) All() iter.Seq2[In, error] {
	return func(yield func(In, error) bool) {
		for {
			v, err := s.Receive()
			if err == io.EOF || !yield(v, err) || err != nil {
				return
			}
		}
	}
}

// CloseSend tells the peer that all is sent. Receiving goes on.
func (s *Streaming[In, Out]) CloseSend() error { return s.st.CloseWrite() }

// Close lets the call go; see Stream.Close. A caller cancels by it. One whose peer has finished has nothing to cancel, and closes all the same.
func (s *Streaming[In, Out]) Close() error { return s.st.Close() }
