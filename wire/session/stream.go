package session

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
	stream *yamux.Stream
	method string

	r    *bufio.Reader
	left uint32 // of the data frame being read
	end  error  // of reading

	mu       sync.Mutex
	deadline time.Time // for writing
	finished bool      // nothing more is written
	closed   bool
}

// OpenStream opens a raw stream to a method of the peer, until ctx ends. The peer's answer, also that it has no such method, is what is read from
// it. Every failure is a *wire.Error. The caller closes the stream.
func (s *Session) OpenStream(ctx context.Context, method string) (*Stream, error) {
	first := wire.Stream{Method: method}
	err := first.Validate()
	var f wire.Frame
	if err == nil {
		f, err = wire.NewFrame(wire.KindStream, 0, first)
	}
	var y *yamux.Stream
	if err == nil {
		y, err = s.openStream(ctx)
	}
	if err == nil {
		err = s.conn.(*conn).writeStream(ctx, y, f.Append(nil))
	}
	if err == nil {
		return s.newStream(y, bufio.NewReader(y), method), nil
	}
	if y != nil {
		y.Close()
	}
	return nil, wire.AsError(fmt.Errorf("open stream %s of %s: %w", wire.Printable(method, wire.MaxMethod), s.conf.Endpoint, s.endedOr(err)))
}

func (s *Session) newStream(y *yamux.Stream, r *bufio.Reader, method string) *Stream {
	st := &Stream{s: s, stream: y, r: r, method: method}
	s.mu.Lock()
	s.streams[st] = struct{}{}
	s.mu.Unlock()
	return st
}

// Method returns the method that the stream was opened to.
func (st *Stream) Method() string { return st.method }

// Session returns the stream's session.
func (st *Stream) Session() *Session { return st.s }

// Read reads what the peer has written. It returns io.EOF once the peer has finished, and the session's end, as a *wire.Error, if
// the peer was lost before.
func (st *Stream) Read(b []byte) (int, error) {
	if st.end != nil {
		return 0, st.end
	}
	for st.left == 0 {
		if err := st.next(); errors.Is(err, wire.DeadlineExceeded) {
			return 0, err // it may be read again later
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

// next reads the header of the next frame.
func (st *Stream) next() error {
	b, err := st.r.Peek(wire.HeaderSize)
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
		return st.refused(h)
	}
	return wire.Errorf(wire.Malformed, "a %v on a stream", h.Kind)
}

// refused reads the error that the peer's side of the stream ended with.
func (st *Stream) refused(h wire.Header) error {
	b := make([]byte, h.Length)
	if _, err := io.ReadFull(st.r, b); err != nil {
		return st.failed("read", err)
	}
	e := &wire.Error{}
	if err := wire.Unmarshal(b, e); err != nil {
		return err
	}
	e.Origin = wire.Peer
	return e
}

// Write writes all of b, as fast as the peer reads it.
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

// CloseWrite tells the peer that all is written. Reading goes on, for as long as it takes.
func (st *Stream) CloseWrite() error {
	st.mu.Lock()
	finished := st.finished
	st.finished = true
	st.mu.Unlock()
	if finished {
		return nil
	}
	return st.writeFrame(wire.Frame{Header: wire.Header{Kind: wire.KindFinish}})
}

// Close lets the stream go: reads and writes that wait fail. If CloseWrite was not called before, the peer reads a loss and not an end.
func (st *Stream) Close() error {
	st.s.mu.Lock()
	delete(st.s.streams, st)
	st.s.mu.Unlock()
	st.mu.Lock()
	st.finished, st.closed = true, true
	st.mu.Unlock()
	err := st.stream.Close()
	st.stream.SetDeadline(time.Unix(1, 0))
	return err
}

// SetReadDeadline bounds reads; zero is no bound. A read that is over its time fails with wire.DeadlineExceeded.
func (st *Stream) SetReadDeadline(t time.Time) error { return st.stream.SetReadDeadline(t) }

// SetWriteDeadline bounds writes; zero is no bound. A write that is over its time fails with wire.DeadlineExceeded, and the stream cannot be written
// any more: part of it may have left.
func (st *Stream) SetWriteDeadline(t time.Time) error {
	st.mu.Lock()
	st.deadline = t
	st.mu.Unlock()
	return st.stream.SetWriteDeadline(t)
}

func (st *Stream) writeFrame(f wire.Frame) error {
	st.mu.Lock()
	deadline := st.deadline
	st.mu.Unlock()
	ctx := context.Background()
	if !deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	err := st.s.conn.(*conn).writeStream(ctx, st.stream, f.Append(nil))
	if err != nil {
		return st.failed("write", err)
	}
	return nil
}

// failed returns err as an error of the closed set.
func (st *Stream) failed(what string, err error) error {
	st.mu.Lock()
	closed := st.closed
	st.mu.Unlock()
	if closed {
		return wire.Errorf(wire.Invalid, "%s stream %s: it was closed here", what, st.method)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, yamux.ErrTimeout) {
		return wire.Errorf(wire.DeadlineExceeded, "%s stream %s: its time is over", what, st.method)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = wire.Errorf(wire.Interrupted, "%s stream %s: the peer let go of it before its end", what, st.method)
	}
	return st.s.endedOr(err)
}

// begun serves a stream that the peer has opened.
func (s *Session) begun(y *yamux.Stream) {
	y.SetReadDeadline(time.Now().Add(beginWait))
	r := bufio.NewReader(y)
	b, err := r.Peek(wire.HeaderSize)
	if err != nil {
		y.Close()
		return
	}
	h, err := wire.ParseHeader(b)
	if err == nil && h.Kind == wire.KindLarge {
		y.SetReadDeadline(time.Time{})
		r.Discard(wire.HeaderSize)
		s.offerLarge(y, r, h)
		return
	}
	first := wire.Stream{}
	f, err := readFrame(r)
	if err == nil {
		err = wire.Unmarshal(f.Body, &first)
	}
	if err != nil || f.Kind != wire.KindStream {
		s.log.Debug("stream begins malformed", "err", err)
		y.Close()
		return
	}
	y.SetReadDeadline(time.Time{})
	st := s.newStream(y, r, first.Method)
	defer st.Close()
	if err := s.serveStream(st); err != nil {
		st.mu.Lock()
		finished := st.finished
		st.mu.Unlock()
		if finished {
			return // the peer reads nothing more
		}
		st.SetWriteDeadline(time.Now().Add(beginWait))
		f, _ := s.encode(0, st.method, nil, err)
		st.writeFrame(f)
	}
}

// serveStream runs the handler of a stream.
func (s *Session) serveStream(st *Stream) (err error) {
	defer s.recovered(st.method, &err)
	s.mu.Lock()
	n, draining := len(s.streams), s.draining
	s.mu.Unlock()
	switch {
	case s.conf.Handler == nil:
		return wire.Errorf(wire.UnknownMethod, "no stream method %q: this side serves none", wire.Printable(st.method, wire.MaxMethod))
	case draining:
		return wire.Errorf(wire.Terminating, "the session is being ended")
	case n > maxStreams:
		return wire.Errorf(wire.OverQuota, "more than %d streams", maxStreams)
	}
	return s.conf.Handler.ServeStream(s.ctx, st)
}
