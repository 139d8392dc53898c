package session

import (
	"bufio"
	"context"
	"errors"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/fairlead-dev/fairlead/wire"
)

// begun serves a stream that the peer has opened. A peer may take any time for its first frame, as one that is stopped does; streamsBound bounds their number.
func (s *Session) begun(accepted *yamux.Stream) {
	y := s.conn.flows.claim(accepted)
	r := bufio.NewReaderSize(y, streamRead)
	b, err := r.Peek(wire.HeaderSize)
	if err != nil {
		y.discard()
		return
	}
	h, err := wire.ParseHeader(b)
	if err == nil && h.Kind == wire.KindLarge {
		r.Discard(wire.HeaderSize)
		s.trace(receivedFrame, y.id, wire.Frame{Header: h})
		s.offerLarge(y, r, h)
		return
	}
	placed := s.takePlace()
	defer s.leavePlace()
	if err == nil && !placed {
		s.refuseStream(y, wire.Errorf(wire.OverQuota, "more than %d streams", maxStreams))
		return
	}
	first := wire.Stream{}
	f, err := readFrame(r)
	if err == nil {
		err = wire.Unmarshal(f.Body, &first)
	}
	if err != nil || f.Kind != wire.KindStream || f.Files > 0 {
		s.log().Debug("stream begins malformed", "err", err)
		y.discard()
		return
	}
	s.trace(receivedFrame, y.id, f)
	st := s.newStream(y, r, first.Method)
	st.served, st.value = true, first.Value
	stop := st.bound(first.Within)
	s.answerStream(st)
	stop()
	if st.close(nil) {
		st.drain()
	}
}

// takePlace counts a stream of the peer that is being served, before memory is taken for its first frame, and reports whether there are not too many.
func (s *Session) takePlace() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.served++
	s.held.take(serveCost)
	return s.served <= maxStreams
}

func (s *Session) leavePlace() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.served--
	s.held.give(serveCost)
}

// refuseStream tells the peer why a stream is not served, and drops what comes on it.
func (s *Session) refuseStream(y *flow, err error) {
	y.SetWriteDeadline(time.Now().Add(refusalWait))
	f := s.encode(0, "", nil, err).frame
	s.trace(sentFrame, y.id, f)
	if err := s.conn.writeFrame(s.ctx, y, f); err != nil {
		s.log().Debug("stream was refused in silence", "err", err)
	}
	y.discard()
}

// bound has the handler's context end when the caller's time is over: so many milliseconds from now, unless that is 0.
func (st *Stream) bound(within int64) (stop func()) {
	if within == 0 {
		return func() {}
	}
	ctx, cancel := context.WithTimeout(st.live, duration(within))
	st.ctx = ctx
	forget := context.AfterFunc(ctx, st.expire)
	return func() { forget(); cancel() }
}

// expire has the handler return that still reads or writes when its time is over.
func (st *Stream) expire() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if errors.Is(st.ctx.Err(), context.DeadlineExceeded) && !st.answered {
		st.flow.SetDeadline(longAgo)
	}
}

// answerStream serves a stream, and tells the peer why not.
func (s *Session) answerStream(st *Stream) {
	err := s.serveStream(st)
	st.mu.Lock()
	finished := st.finished
	st.finished, st.answered = true, true
	st.mu.Unlock()
	if err == nil || finished { // then the peer reads nothing more
		return
	}
	st.SetWriteDeadline(time.Now().Add(refusalWait))
	st.writeFrame(st.live, s.encode(0, st.method, nil, err).frame)
}

// serveStream runs the handler of a stream.
func (s *Session) serveStream(st *Stream) (err error) {
	defer s.recovered(st.method, &err)
	s.mu.Lock()
	draining := s.draining
	s.mu.Unlock()
	switch {
	case s.conf.Handler == nil:
		return wire.Errorf(wire.UnknownMethod, "no stream method %q: this side serves none", wire.Printable(st.method, wire.MaxMethod))
	case draining:
		return wire.Errorf(wire.Terminating, "the session is being ended")
	}
	return s.conf.Handler.ServeStream(st.ctx, st)
}
