package session

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
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
	streamsBound = 4 * maxStreams
	// streamRead is how much is read from a stream at once where only a header is wanted, in bytes. There may be many that wait for one.
	streamRead = 512
	// refusalWait is how long a peer may take for the error that its stream ends with.
	refusalWait = 10 * time.Second
)

// A Stream goes both ways beside the session's messages, with flow control of its own. It is a raw stream, of bytes, or a streaming call, of values.
// Which of the two is its method's own: the first use of a side decides what it reads and writes, and what else the peer sends is malformed.
//
//	opened ── Read, Write ────────▶ raw ─────────────┐
//	   └───── Receive, Send ──────▶ streaming call ──┴─ CloseWrite ──▶ read only
//	any of them ── Close; the end of a streaming call's context ──▶ closed
//
// What a side sends ends with a finish frame: end of file without one is a loss. One goroutine may read and one may write at a time; others wait for
// their turn.
type Stream struct {
	s      *Session
	flow   *flow
	method string
	since  time.Time
	served bool            // the peer has opened it
	value  wire.Raw        // that the peer has opened it with
	live   context.Context // ends when the stream is closed here, when the peer lets go of it, and with the session
	cancel context.CancelCauseFunc
	ctx    context.Context // live, and at a handler also the caller's time
	caller context.Context // of who opened a streaming call

	turn    chan struct{} // of who reads
	r       *bufio.Reader
	left    uint32 // of the data or item being read
	item    []byte // as far as it was read
	refusal []byte // the body of the peer's error, as far as it was read; nil: none has come
	refused int    // its length
	end     error  // of reading

	writer chan struct{} // the turn of who writes

	mu       sync.Mutex
	carries  wire.Kind               // KindData or KindItem; 0: that is not decided
	deadline time.Time               // for writing
	writing  context.CancelCauseFunc // of the write that is under way
	timer    *time.Timer             // cancels it at the deadline
	torn     error                   // why a frame was not written whole: nothing can follow it
	finished bool                    // nothing more is written
	answered bool                    // the handler has returned, and its error is being written
	gone     bool                    // the peer reads nothing more
	closed   bool
	why      error       // why it is closed, unless by Close
	forget   func() bool // has the caller's context end nothing any more
}

// errLetGo is why the context of a stream ends whose peer has let go of it.
var errLetGo = wire.Errorf(wire.Interrupted, "the peer has let go of the stream")

// OpenStream opens a raw stream to a method of the peer, until ctx ends. The peer's answer, also that it has no such method, is what is read from
// it. Every failure is a *wire.Error. The caller closes the stream.
func (s *Session) OpenStream(ctx context.Context, method string) (*Stream, error) {
	st, err := s.beginStream(ctx, wire.Stream{Method: method})
	if err != nil {
		return nil, s.notOpened(method, err)
	}
	return st, nil
}

func (s *Session) notOpened(method string, err error) error {
	return wire.AsError(fmt.Errorf("open stream %s of %s: %w", wire.Printable(method, wire.MaxMethod), s.conf.Endpoint, err))
}

// beginStream opens a stream with its first frame. The error's Sent says whether that may have left.
func (s *Session) beginStream(ctx context.Context, first wire.Stream) (*Stream, error) {
	err := first.Validate()
	s.mu.Lock()
	if err == nil && s.terminating && s.ended == nil {
		err = wire.Errorf(wire.Terminating, "the session is being ended")
	}
	s.mu.Unlock()
	var f wire.Frame
	if err == nil {
		f, err = wire.NewFrame(wire.KindStream, 0, first)
	}
	var y *flow
	if err == nil {
		y, err = s.openStream(ctx)
	}
	if err == nil {
		s.trace(sentFrame, y.id, f)
		err = s.conn.writeFrame(ctx, y, f)
	}
	if err == nil {
		return s.newStream(y, bufio.NewReaderSize(y, streamRead), first.Method), nil
	}
	if y != nil {
		y.Close()
	}
	failed := *wire.AsError(s.endedOr(err))
	failed.Sent = y != nil
	return nil, &failed
}

func (s *Session) newStream(y *flow, r *bufio.Reader, method string) *Stream {
	st := &Stream{s: s, flow: y, r: r, method: method, since: time.Now(), turn: make(chan struct{}, 1), writer: make(chan struct{}, 1)}
	st.live, st.cancel = context.WithCancelCause(s.ctx)
	st.ctx = st.live
	s.mu.Lock()
	if s.streams == nil {
		s.streams = map[*Stream]struct{}{}
	}
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
	if len(b) == 0 {
		return 0, nil
	}
	st.turn <- struct{}{}
	defer func() { <-st.turn }()
	if err := st.arrive(wire.KindData); err != nil {
		return 0, err
	}
	n, err := st.r.Read(b[:min(len(b), int(st.left))])
	st.left -= uint32(n)
	if n > 0 {
		return n, nil // an error comes again
	}
	return 0, st.failed("read", err)
}

// arrive waits until some of the body of a frame of this kind is still to be read.
func (st *Stream) arrive(kind wire.Kind) error {
	if err := st.use(kind); err != nil {
		return err
	}
	if st.end != nil {
		return st.end
	}
	if st.isClosed() {
		return st.failed("read", io.EOF)
	}
	for st.left == 0 {
		if err := st.next(kind); timedOut(err) {
			return st.failed("read", err) // it may be read again later
		} else if err != nil {
			st.end = err
			return err
		}
	}
	return nil
}

// use decides what the stream carries, at its first use. It fails with wire.Invalid if it carries something else.
func (st *Stream) use(kind wire.Kind) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.carries == 0 {
		st.carries = kind
	}
	if st.carries != kind {
		return wire.Errorf(wire.Invalid, "use stream %s: it carries %vs here, and no %v", st.method, st.carries, kind)
	}
	return nil
}

// next reads the header of the next frame. When the time for that is over, it returns what timedOut tells, and can be called again.
func (st *Stream) next(kind wire.Kind) error {
	if st.refusal != nil {
		return st.readRefusal()
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
	if err == nil && (h.Kind == wire.KindData || h.Kind == wire.KindFinish) { // others are traced with their bodies
		st.s.trace(receivedFrame, st.flow.id, wire.Frame{Header: h})
	}
	switch {
	case err != nil:
		return err
	case h.Files > 0:
		return wire.Errorf(wire.Malformed, "a %v with descriptors on a stream", h.Kind)
	case h.Kind == kind && (kind == wire.KindData || h.Length > 0): // an item is a value
		st.left = h.Length
		return nil
	case h.Kind == wire.KindFinish && h.Length == 0:
		return io.EOF
	case h.Kind == wire.KindReply && h.Flags == wire.FlagError:
		st.refusal, st.refused = []byte{}, int(h.Length)
		return st.readRefusal()
	}
	return wire.Errorf(wire.Malformed, "a %v of %d bytes on a stream of %vs", h.Kind, h.Length, kind)
}

// more reads the rest of a body of so many bytes, for which memory is taken as it comes.
func (st *Stream) more(b []byte, length int) ([]byte, error) {
	for len(b) < length {
		if len(b) == cap(b) {
			b = slices.Grow(b, min(length-len(b), max(len(b), streamRead)))
		}
		n, err := st.r.Read(b[len(b):min(cap(b), length)])
		b = b[:len(b)+n]
		if err != nil && len(b) < length {
			return b, err
		}
	}
	return b, nil
}

// readRefusal reads the error that the peer's side of the stream ended with.
func (st *Stream) readRefusal() (err error) {
	st.refusal, err = st.more(st.refusal, st.refused)
	if timedOut(err) {
		return err
	}
	if err != nil {
		return st.failed("read", err)
	}
	st.s.trace(receivedFrame, st.flow.id, wire.Frame{Header: wire.Header{Kind: wire.KindReply, Flags: wire.FlagError, Length: uint32(st.refused)}, Body: st.refusal})
	e, err := wire.DecodeError(st.refusal)
	if err != nil {
		return err
	}
	e.Origin = wire.Peer
	return e
}

// Close lets the stream go: reads and writes that wait fail. If CloseWrite was not called before, the peer reads a loss and not an end. The
// handler's context at the other end ends, also if it has not handled all yet: who wants to know that it has waits for its finish.
func (st *Stream) Close() error {
	st.abandon(nil)
	return nil
}

// abandon is Close for a reason.
func (st *Stream) abandon(why error) {
	if first := st.close(why); first {
		st.s.spawn(st.drain)
	}
}

// close is abandon without what the peer still sends, and reports whether the stream was not closed yet.
func (st *Stream) close(why error) (first bool) {
	st.s.mu.Lock()
	delete(st.s.streams, st)
	st.s.mu.Unlock()
	st.mu.Lock()
	first = !st.closed
	if first {
		st.why = why
	}
	st.finished, st.closed = true, true
	st.flow.SetDeadline(longAgo)
	forget := st.forget
	st.mu.Unlock()
	st.cancel(nil)
	if forget != nil {
		forget()
	}
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
	closed, _ := st.closedBy()
	return closed
}

func (st *Stream) closedBy() (closed bool, why error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.closed, st.why
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

// failed returns err as an error of the closed set.
func (st *Stream) failed(what string, err error) error {
	switch closed, why := st.closedBy(); {
	case why != nil:
		return wire.AsError(fmt.Errorf("%s stream %s: %w", what, st.method, why))
	case closed:
		return wire.Errorf(wire.Invalid, "%s stream %s: it was closed here", what, st.method)
	case timedOut(err):
		return wire.Errorf(wire.DeadlineExceeded, "%s stream %s: its time is over", what, st.method)
	case st.s.mux.over():
		err = io.EOF
	case errors.Is(err, errLetGo):
		err = wire.Errorf(st.lostCode(), "%s stream %s: the peer has let go of it", what, st.method)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, yamux.ErrConnectionReset):
		err = wire.Errorf(st.lostCode(), "%s stream %s: the peer let go of it before its end", what, st.method)
	}
	return wire.AsError(st.s.endedOr(err))
}

// lostCode is the code for a peer that has let go before its end: the caller of a streaming call has canceled it.
func (st *Stream) lostCode() wire.Code {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.served && st.carries == wire.KindItem {
		return wire.Canceled
	}
	return wire.Interrupted
}

// timedOut reports whether the time for a read or write was over here. A peer's own error of that kind is none.
func timedOut(err error) bool {
	return err == context.DeadlineExceeded || err == yamux.ErrTimeout
}

// longAgo is a deadline that is over.
var longAgo = time.Unix(1, 0)
