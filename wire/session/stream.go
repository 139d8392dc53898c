package session

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/fairlead-dev/fairlead/wire"
)

const (
	// maxStreams is how many streams of a peer a session serves at a time; a further one is closed.
	maxStreams = 256
	// streamsBound is how many yamux streams of both sides there may be at all, also those that have not begun, carry large bodies, or wait
	// for their other half to be closed. A peer that leaves more is ended.
	streamsBound = 6 * maxStreams
	// beginWait is how long a peer may take for a stream's first frame.
	beginWait = 10 * time.Second
)

// A Stream is a raw stream: bytes both ways, with flow control of its own. A side's bytes end with a finish frame: end of file without one
// is a loss. One goroutine may read and one may write it.
type Stream struct {
	s      *Session
	flow   *flow
	method string
	ctx    context.Context // ends when the stream is closed here, when the peer lets go of it, and with the session
	cancel context.CancelCauseFunc

	turn    chan struct{} // of who reads
	r       *bufio.Reader
	left    uint32 // of the data frame being read
	refusal []byte // the body of the peer's error, as far as it was read
	end     error  // of reading

	mu       sync.Mutex
	deadline time.Time               // for writing
	writing  context.CancelCauseFunc // of the write that is under way
	timer    *time.Timer             // cancels it at the deadline
	finished bool                    // nothing more is written
	gone     bool                    // the peer reads nothing more
	closed   bool
}

// errLetGo is why the context of a stream ends whose peer has let go of it.
var errLetGo = wire.Errorf(wire.Interrupted, "the peer has let go of the stream")

// OpenStream opens a raw stream to a method of the peer, until ctx ends. The peer's answer, also that it has no such method, is what is read from
// it. Every failure is a *wire.Error. The caller closes the stream.
func (s *Session) OpenStream(ctx context.Context, method string) (*Stream, error) {
	first := wire.Stream{Method: method}
	err := first.Validate()
	var f wire.Frame
	if err == nil {
		f, err = wire.NewFrame(wire.KindStream, 0, first)
	}
	var y *flow
	if err == nil {
		y, err = s.openStream(ctx)
	}
	if err == nil {
		err = s.conn.writeStream(ctx, y.Stream, f.Append(nil))
	}
	if err == nil {
		return s.newStream(y, bufio.NewReader(y), method), nil
	}
	if y != nil {
		y.Close()
	}
	return nil, wire.AsError(fmt.Errorf("open stream %s of %s: %w", wire.Printable(method, wire.MaxMethod), s.conf.Endpoint, s.endedOr(err)))
}

func (s *Session) newStream(y *flow, r *bufio.Reader, method string) *Stream {
	st := &Stream{s: s, flow: y, r: r, method: method, turn: make(chan struct{}, 1)}
	st.ctx, st.cancel = context.WithCancelCause(s.ctx)
	s.mu.Lock()
	s.streams[st] = struct{}{}
	s.mu.Unlock()
	y.whenGone(st.letGo)
	return st
}

// letGo notes that the peer reads nothing more: who writes fails, also who waits for the peer to read. What it has written can still be read.
func (st *Stream) letGo() {
	st.mu.Lock()
	st.gone = true
	st.mu.Unlock()
	st.cancel(errLetGo) // first, so that who writes knows why
	st.flow.SetWriteDeadline(longAgo)
}

// Method returns the method that the stream was opened to.
func (st *Stream) Method() string { return st.method }

// Session returns the stream's session.
func (st *Stream) Session() *Session { return st.s }

// Read reads what the peer has written. It returns io.EOF once the peer has finished, and the session's end, as a *wire.Error, if
// the peer was lost before.
func (st *Stream) Read(b []byte) (int, error) {
	st.turn <- struct{}{}
	defer func() { <-st.turn }()
	if st.isClosed() {
		return 0, st.failed("read", io.EOF)
	}
	if st.end != nil {
		return 0, st.end
	}
	for st.left == 0 {
		if err := st.next(); timedOut(err) {
			return 0, st.failed("read", err) // it may be read again later
		} else if err != nil {
			st.end = err
			return 0, err
		}
	}
	n, err := st.r.Read(b[:min(len(b), int(st.left))])
	st.left -= uint32(n)
	if n > 0 {
		return n, nil // an error comes again
	}
	return 0, st.failed("read", err)
}

// next reads the header of the next frame. When the time for that is over, it returns what timedOut tells, and can be called again.
func (st *Stream) next() error {
	if st.refusal != nil {
		return st.refused()
	}
	b, err := st.r.Peek(wire.HeaderSize)
	if timedOut(err) {
		return err
	}
	if err != nil {
		if len(b) > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return st.failed("read", err)
	}
	h, err := wire.ParseHeader(b)
	st.r.Discard(wire.HeaderSize)
	switch {
	case err != nil:
		return err
	case h.Kind == wire.KindData:
		st.left = h.Length
		return nil
	case h.Kind == wire.KindFinish && h.Length == 0:
		return io.EOF
	case h.Kind == wire.KindReply && h.Flags == wire.FlagError:
		st.refusal = make([]byte, 0, h.Length)
		return st.refused()
	}
	return wire.Errorf(wire.Malformed, "a %v on a stream", h.Kind)
}

// refused reads the error that the peer's side of the stream ended with.
func (st *Stream) refused() error {
	n, err := io.ReadFull(st.r, st.refusal[len(st.refusal):cap(st.refusal)])
	st.refusal = st.refusal[:len(st.refusal)+n]
	if timedOut(err) {
		return err
	}
	if err != nil {
		return st.failed("read", err)
	}
	e, err := wire.DecodeError(st.refusal)
	if err != nil {
		return err
	}
	e.Origin = wire.Peer
	return e
}

// Write writes all of b, as fast as the peer reads it. It fails with wire.Interrupted when the peer has let go of the stream; what that wrote before,
// as why it refused the stream, can still be read.
func (st *Stream) Write(b []byte) (n int, err error) {
	st.mu.Lock()
	finished := st.finished
	st.mu.Unlock()
	if finished {
		return 0, wire.Errorf(wire.Invalid, "write stream %s: it was finished here", st.method)
	}
	for n < len(b) {
		chunk := b[n:min(len(b), n+maxChunk-wire.HeaderSize)]
		f := wire.Frame{Header: wire.Header{Kind: wire.KindData, Length: uint32(len(chunk))}, Body: chunk}
		if err := st.writeFrame(f); err != nil {
			return n, err
		}
		n += len(chunk)
	}
	return n, nil
}

// CloseWrite tells the peer that all is written. Reading goes on, for as long as it takes. A peer that has let go of the stream is told nothing,
// and that is no failure.
func (st *Stream) CloseWrite() error {
	st.mu.Lock()
	finished := st.finished
	st.finished = true
	st.mu.Unlock()
	if finished {
		return nil
	}
	err := st.writeFrame(wire.Frame{Header: wire.Header{Kind: wire.KindFinish}})
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.gone && !st.closed && st.s.ctx.Err() == nil {
		return nil
	}
	return err
}

// Close lets the stream go: reads and writes that wait fail. If CloseWrite was not called before, the peer reads a loss and not an end. The
// handler's context at the other end ends, also if it has not handled all yet: who wants to know that it has waits for its finish.
func (st *Stream) Close() error {
	if first := st.close(); first {
		st.s.spawn(st.drain)
	}
	return nil
}

// close is Close without what the peer still sends, and reports whether the stream was not closed yet.
func (st *Stream) close() (first bool) {
	st.s.mu.Lock()
	delete(st.s.streams, st)
	st.s.mu.Unlock()
	st.mu.Lock()
	first = !st.closed
	st.finished, st.closed = true, true
	st.flow.SetDeadline(longAgo)
	st.mu.Unlock()
	st.cancel(nil)
	if first {
		st.flow.Close()
	}
	return first
}

// drain drops what the peer still sends on a closed stream: it would be kept, and its sender wait.
func (st *Stream) drain() {
	st.turn <- struct{}{} // who waited in Read has left, and nobody does again
	<-st.turn
	st.flow.discard()
}

func (st *Stream) isClosed() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.closed
}

// SetReadDeadline bounds reads; zero is no bound. A read that is over its time fails with wire.DeadlineExceeded.
func (st *Stream) SetReadDeadline(t time.Time) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.closed {
		st.flow.SetReadDeadline(t)
	}
	return nil
}

// SetWriteDeadline bounds writes, also the one that is under way; zero is no bound. A write that is over its time fails with
// wire.DeadlineExceeded, and the stream cannot be written any more: part of it may have left.
func (st *Stream) SetWriteDeadline(t time.Time) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.deadline = t
	st.armLocked()
	if !st.closed && !st.gone {
		st.flow.SetWriteDeadline(t)
	}
	return nil
}

// armLocked has the write that is under way end at the deadline.
func (st *Stream) armLocked() {
	if st.timer != nil {
		st.timer.Stop()
		st.timer = nil
	}
	if cancel := st.writing; cancel != nil && !st.deadline.IsZero() {
		st.timer = time.AfterFunc(time.Until(st.deadline), func() { cancel(context.DeadlineExceeded) })
	}
}

func (st *Stream) writeFrame(f wire.Frame) error {
	ctx, cancel := context.WithCancelCause(st.ctx)
	st.write(cancel)
	err := context.Cause(ctx)
	if err == nil {
		err = st.s.conn.writeStream(ctx, st.flow.Stream, f.Append(nil))
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	st.write(nil)
	cancel(nil)
	if err != nil {
		return st.failed("write", err)
	}
	return nil
}

// write notes how to cancel the write that begins, or with nil that it is over.
func (st *Stream) write(cancel context.CancelCauseFunc) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.writing = cancel
	st.armLocked()
}

// failed returns err as an error of the closed set.
func (st *Stream) failed(what string, err error) error {
	switch {
	case st.isClosed():
		return wire.Errorf(wire.Invalid, "%s stream %s: it was closed here", what, st.method)
	case timedOut(err):
		return wire.Errorf(wire.DeadlineExceeded, "%s stream %s: its time is over", what, st.method)
	case st.s.mux.over():
		err = io.EOF
	case errors.Is(err, errLetGo):
		err = wire.Errorf(wire.Interrupted, "%s stream %s: the peer has let go of it", what, st.method)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, yamux.ErrConnectionReset):
		err = wire.Errorf(wire.Interrupted, "%s stream %s: the peer let go of it before its end", what, st.method)
	}
	return wire.AsError(st.s.endedOr(err))
}

// timedOut reports whether the time for a read or write was over here. A peer's own error of that kind is none.
func timedOut(err error) bool {
	return err == context.DeadlineExceeded || err == yamux.ErrTimeout
}

// longAgo is a deadline that is over.
var longAgo = time.Unix(1, 0)
