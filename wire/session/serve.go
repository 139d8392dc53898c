package session

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// received takes up a request or a one-way message. It returns a request that is to be served by the reader.
func (s *Session) received(a arrived) (here *Message, err error) {
	r, err := wire.ParseRequest(a.Body, s.reader.method)
	if err != nil {
		return nil, err
	}
	s.reader.method = r.Method
	m := &Message{
		Method: r.Method, OneWay: a.Kind == wire.KindOneWay,
		s: s, id: a.ID, value: r.Value, large: a.Flags&wire.FlagLarge != 0, files: a.files, missing: a.missing,
		serving: serving{load: load{bytes: int64(len(r.Value)) + r.Length, files: int64(a.Files)}},
	}
	m.out.joins = s.link.more()
	switch {
	case m.large && (m.OneWay || s.streamless):
		return nil, wire.Errorf(wire.Unsupported, "a large %v, and this session takes none", a.Kind)
	case m.large != (r.Length > 0):
		return nil, wire.Errorf(wire.Malformed, "a %v with a value of %d bytes on a stream, large %t", a.Kind, r.Length, m.large)
	}
	if r.Within > 0 {
		m.until = time.Now().Add(duration(r.Within))
	}
	return s.admit(m)
}

// admit takes up a message if the peer had the credit for it. After the session's end it is dropped.
func (s *Session) admit(m *Message) (here *Message, err error) {
	s.mu.Lock()
	ended := s.ended != nil
	if !ended {
		err = s.creditLocked(m)
	}
	if !ended && err == nil && s.takeUpLocked(m) {
		here = m
	}
	s.mu.Unlock()
	if ended {
		socket.Discard(m.files)
	}
	return here, err
}

// takeUpLocked has a message handled behind all that came before, and reports whether that is for the reader to do.
func (s *Session) takeUpLocked(m *Message) (here bool) {
	switch {
	case m.OneWay && !s.taking && s.streamless && s.hereLocked(m):
		s.taking = true
		return true
	case s.taking || m.OneWay:
		s.inbox = append(s.inbox, m)
		if !s.taking {
			s.taking = true
			s.handlers.Go(s.takeUp)
		}
	case s.hereLocked(m):
		return true
	default:
		s.handlers.Go(func() { s.answer(m) })
	}
	return false
}

// creditLocked counts a message against the peer's credit.
func (s *Session) creditLocked(m *Message) error {
	limits, toldLimits := s.conf.Receive, s.conf.Receive.OfOneWay()
	switch _, twice := s.serving[m.id]; {
	case m.OneWay && s.unhandled >= limits.OneWay:
		return wire.Errorf(wire.OverQuota, "more than %d one-way messages that are not handled", limits.OneWay)
	case m.OneWay && !m.load.fits(toldLimits, s.told):
		return wire.Errorf(wire.OverQuota, "more than %d bytes or %d descriptors of one-way messages that are not handled", toldLimits.Bytes, limits.Files)
	case m.OneWay:
		s.unhandled++
		s.told = s.told.plus(m.load)
	case m.id == 0 || twice:
		return wire.Errorf(wire.Malformed, "a second request %d", m.id)
	case int64(len(s.serving)) >= limits.Calls:
		return wire.Errorf(wire.OverQuota, "more than %d requests that are not answered", limits.Calls)
	case !m.load.fits(limits, s.asked):
		return wire.Errorf(wire.OverQuota, "more than %d bytes or %d descriptors of requests that are not answered", limits.Bytes, limits.Files)
	default:
		if m.large {
			s.bodies.slot(bodyKey{id: m.id}) // so that its withdrawal is known as one
		}
		s.serving[m.id] = m
		s.answering++
		s.asked = s.asked.plus(m.load)
		if !m.flush {
			s.stats.callsIn.Add(1)
		}
	}
	if m.OneWay {
		s.held.take(m.costOneWay())
	} else {
		s.held.take(m.cost())
	}
	return nil
}

// canceled tells the handler of a request that nobody waits for it. Unknown ids are of requests that have been answered.
func (s *Session) canceled(f wire.Frame) {
	if f.Flags&wire.FlagLarge != 0 {
		s.withdrawn(f.ID)
	}
	s.mu.Lock()
	r := s.serving[f.ID]
	var cancel context.CancelFunc
	if r != nil {
		r.canceled = true
		cancel = r.cancel
	}
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// noticed takes a notice from the peer.
func (s *Session) noticed(n wire.Notice) error {
	switch n.Name {
	case wire.NoticeTerminating:
		s.mu.Lock()
		s.terminating = true
		s.mu.Unlock()
	case wire.NoticeHandled:
		handled := load{n.Bytes, n.Files}
		if n.Handled < 0 || n.Bytes < 0 || n.Files < 0 || !s.oneWay.lent(n.Handled, handled) {
			return wire.Errorf(wire.Malformed, "a notice of %d messages handled", n.Handled)
		}
		s.oneWay.back(n.Handled, handled)
	case wire.NoticeFacts:
		if err := wire.CheckFacts(n.Facts); err != nil {
			return err
		}
		s.mu.Lock()
		s.peerFacts = n.Facts
		s.mu.Unlock()
	}
	return nil
}

// takeUp takes messages out of the inbox in the order they came, and ends when it is empty. Requests run beside each other; a one-way message's
// handler returns before the next message is taken.
func (s *Session) takeUp() {
	var handled int64 // not yet told to the peer
	var sum load      // of these
	tell := func() {
		s.tellHandled(handled, sum)
		handled, sum = 0, load{}
	}
	returned := false
	defer func() {
		if !returned { // a handler has ended its goroutine, which is this one
			s.handlers.Go(s.takeUp)
			tell()
		}
	}()
	for {
		m := s.takeNext(handled == 0)
		switch {
		case m == nil && handled == 0:
			returned = true
			return
		case m == nil:
			tell()
			continue
		case m.flush:
			s.answer(m)
			continue
		case !m.OneWay:
			s.handlers.Go(func() { s.answer(m) })
			continue
		}
		handled, sum = handled+1, sum.plus(m.load)
		s.handle(m)
		if most := s.conf.Receive.OfOneWay(); handled >= most.OneWay/4 || sum.bytes >= most.Bytes/4 || sum.files >= most.Files/4 {
			tell()
		}
	}
}

// takeHere handles a one-way message on the reader, as the taker would.
func (s *Session) takeHere(m *Message) {
	defer s.tellHandled(1, m.load) // also if the handler ends its goroutine
	s.handle(m)
}

// takeNext takes the next message out of the inbox. If there is none, the taker is done if it may stop.
func (s *Session) takeNext(stop bool) *Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.inbox) == 0 {
		s.inbox = nil
		s.taking = !stop
		return nil
	}
	m := s.inbox[0]
	s.inbox[0] = nil
	s.inbox = s.inbox[1:]
	return m
}

// tellHandled gives the peer its credit back. It waits while notices cannot leave: then messages are taken no faster than the peer takes their notices.
func (s *Session) tellHandled(handled int64, sum load) {
	f, err := wire.NewFrame(wire.KindNotice, 0, wire.Notice{Name: wire.NoticeHandled, Handled: handled, Bytes: sum.bytes, Files: sum.files})
	if err == nil {
		s.out.push(&outgoing{frame: f}, s.done)
	}
}

// handle runs the handler of a one-way message. Those that came before the session's end are handled after it too.
func (s *Session) handle(m *Message) {
	defer func() {
		socket.Discard(m.files)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unhandled--
		s.told = s.told.minus(m.load)
		s.held.give(m.costOneWay())
		s.settleLocked()
	}()
	if _, err := s.serve(s.ctx, m); err != nil {
		s.log().Debug("one-way message failed", "code", wire.CodeOf(err), "err", err)
	}
}

// serveRequest runs the handler of a request, unless its time is over or nobody waits for it.
func (s *Session) serveRequest(m *Message) (any, error) {
	defer m.leave()
	s.mu.Lock()
	canceled, draining, ended := m.canceled, s.draining, s.ended != nil
	s.mu.Unlock()
	var err error
	switch {
	case m.flush:
		return nil, nil
	case canceled:
		err = wire.Canceled
	case m.missing != nil:
		err = m.missing
	case draining:
		err = wire.Errorf(wire.Terminating, "the session is being ended")
	case ended:
		err = context.Canceled
	case !m.until.IsZero() && time.Now().After(m.until):
		err = context.DeadlineExceeded
	}
	ctx := (*requestContext)(m)
	key := bodyKey{id: m.id}
	switch {
	case err != nil && m.large:
		s.discardLarge(key)
	case m.large:
		m.value, err = s.receiveLarge(ctx, key, m.load.bytes)
	}
	if err != nil {
		return nil, err
	}
	return s.serve(ctx, m)
}

// serve calls the handler. One that panics answers wire.Internal, and the session goes on.
func (s *Session) serve(ctx context.Context, m *Message) (reply any, err error) {
	defer s.recovered(m.Method, &err)
	if s.conf.Handler == nil {
		return nil, wire.Errorf(wire.UnknownMethod, "no method %q: this side serves none", wire.Printable(m.Method, wire.MaxMethod))
	}
	return s.conf.Handler.Serve(ctx, m)
}

func (s *Session) recovered(method string, err *error) {
	if r := recover(); r != nil {
		s.log().Error("handler panicked", "method", wire.Printable(method, wire.MaxMethod), "err", r, "stack", string(debug.Stack()))
		*err = wire.Errorf(wire.Internal, "the handler of %q panicked", wire.Printable(method, wire.MaxMethod))
	}
}

// accept takes the streams that the peer opens.
func (s *Session) accept() {
	y := s.mux.session()
	for {
		stream, err := y.AcceptStream()
		if err != nil {
			return
		}
		if y.NumStreams() > streamsBound {
			s.giveUpOn(wire.End{Code: wire.OverQuota, Origin: wire.Local, Text: fmt.Sprintf("more than %d streams are open", streamsBound)})
			return
		}
		s.handlers.Go(func() { s.begun(stream) })
	}
}
