package session

import (
	"bufio"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/fairlead-dev/fairlead/wire"
)

// begun serves a stream that the peer has opened.
func (s *Session) begun(accepted *yamux.Stream) {
	y := s.conn.flows.claim(accepted)
	y.SetReadDeadline(time.Now().Add(beginWait))
	r := bufio.NewReader(y)
	b, err := r.Peek(wire.HeaderSize)
	if err != nil {
		y.discard()
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
		y.discard()
		return
	}
	y.SetReadDeadline(time.Time{})
	st := s.newStream(y, r, first.Method)
	s.answerStream(st)
	if st.close() {
		st.drain()
	}
}

// answerStream serves a stream, and tells the peer why not.
func (s *Session) answerStream(st *Stream) {
	if err := s.serveStream(st); err != nil {
		st.mu.Lock()
		finished := st.finished
		st.mu.Unlock()
		if finished {
			return // the peer reads nothing more
		}
		st.SetWriteDeadline(time.Now().Add(beginWait))
		st.writeFrame(s.encode(0, st.method, nil, err).frame)
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
	return s.conf.Handler.ServeStream(st.ctx, st)
}
