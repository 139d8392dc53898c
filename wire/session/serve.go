package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// A Message is a request or a one-way message from the peer.
type Message struct {
	Method string
	OneWay bool

	s       *Session
	id      uint32
	value   []byte
	large   bool
	files   []*os.File
	missing error
	until   time.Time // zero: no deadline
	serving
}

// serving is the part of a request that the reader changes while it is being served. The session's mutex guards it.
type serving struct {
	canceled bool
	cancel   context.CancelFunc // nil until a handler has it
	size     int64              // of the body; never changed
}

// noValue is how the value of a request without one reads: msgpack's nil.
var noValue = []byte{0xc0}

// Decode decodes the message's value into v, which must point to a fresh value, and stays so if the message has no value. It fails with wire.Malformed.
func (m *Message) Decode(v any) error {
	if len(m.value) == 0 {
		return wire.Unmarshal(noValue, v)
	}
	return wire.Unmarshal(m.value, v)
}

// TakeFiles returns the descriptors that came with the message. The caller owns them; what nobody takes is closed when the handler has returned.
// It fails with wire.OverQuota if they did not all arrive, as when this process has too many files open.
func (m *Message) TakeFiles() ([]*os.File, error) {
	files := m.files
	m.files = nil
	return files, m.missing
}

// read reads the link until the session is over.
func (s *Session) read() {
	if s.link == nil {
		if err := s.establish(); err != nil {
			s.lost(err)
			return
		}
	}
	if s.mux != nil {
		s.own.Go(s.accept)
	}
	for {
		f, files, err := s.link.read()
		var missing error // the descriptors did not all arrive: that is this message's failure, not the session's
		if errors.Is(err, wire.OverQuota) {
			missing, err = err, nil
		}
		if err == nil && f.Kind == wire.KindEnd {
			end := wire.End{}
			if err = wire.Unmarshal(f.Body, &end); err == nil {
				socket.CloseFiles(files)
				s.ending(end)
				return
			}
		} else if err == nil {
			err = s.receive(f, files, missing)
		}
		if err == nil {
			continue
		}
		if _, ours := errors.AsType[*wire.Error](err); ours {
			s.breach(err)
		} else {
			s.lost(err)
		}
		return
	}
}

// establish opens or accepts the message channel.
func (s *Session) establish() error {
	open := s.mux.AcceptStream
	if s.conf.Opener {
		open = s.mux.OpenStream
	}
	stream, err := open()
	if err != nil {
		return err
	}
	l := newStreamLink(stream, s.conn.(*conn))
	s.mu.Lock()
	s.link = l
	s.mu.Unlock()
	s.out.open(l)
	return nil
}

// receive takes one frame of the message channel. It never waits. An error is a breach of the protocol.
func (s *Session) receive(f wire.Frame, files []*os.File, missing error) error {
	if f.Kind != wire.KindRequest && f.Kind != wire.KindOneWay {
		socket.CloseFiles(files)
	}
	switch f.Kind {
	case wire.KindRequest, wire.KindOneWay:
		err := s.received(f, files, missing)
		if err != nil {
			socket.CloseFiles(files)
		}
		return err
	case wire.KindReply:
		return s.replied(f)
	case wire.KindCancel:
		s.canceled(f)
		return nil
	case wire.KindNotice:
		n := wire.Notice{}
		if err := wire.Unmarshal(f.Body, &n); err != nil {
			return err
		}
		return s.noticed(n)
	}
	return wire.Errorf(wire.Malformed, "a %v on the message channel", f.Kind)
}

// received puts a request or one-way message into the inbox.
func (s *Session) received(f wire.Frame, files []*os.File, missing error) error {
	r := wire.Request{}
	if err := wire.Unmarshal(f.Body, &r); err != nil {
		return err
	}
	m := &Message{
		Method: r.Method, OneWay: f.Kind == wire.KindOneWay,
		s: s, id: f.ID, value: r.Value, large: f.Flags&wire.FlagLarge != 0, files: files, missing: missing,
		serving: serving{size: int64(len(r.Value)) + r.Length},
	}
	switch {
	case m.large && (m.OneWay || s.mux == nil):
		return wire.Errorf(wire.Unsupported, "a large %v, and this session takes none", f.Kind)
	case m.large != (r.Length > 0):
		return wire.Errorf(wire.Malformed, "a %v with a value of %d bytes on a stream, large %t", f.Kind, r.Length, m.large)
	}
	if r.Within > 0 {
		m.until = time.Now().Add(time.Duration(min(r.Within, int64(time.Hour*24*365/time.Millisecond))) * time.Millisecond)
	}
	s.mu.Lock()
	ended := s.ended != nil
	var err error
	if !ended {
		err = s.admitLocked(m)
	}
	s.mu.Unlock()
	if ended {
		socket.CloseFiles(files)
	}
	return err
}

// admitLocked puts a message into the inbox if the peer had the credit for it.
func (s *Session) admitLocked(m *Message) error {
	limits := s.conf.Receive
	switch _, twice := s.serving[m.id]; {
	case m.OneWay && s.unhandled >= limits.OneWay:
		return wire.Errorf(wire.OverQuota, "more than %d one-way messages that are not handled", limits.OneWay)
	case m.OneWay && m.size > limits.Bytes-s.told:
		return wire.Errorf(wire.OverQuota, "more than %d bytes of one-way messages that are not handled", limits.Bytes)
	case m.OneWay:
		s.unhandled++
		s.told += m.size
	case m.id == 0 || twice:
		return wire.Errorf(wire.Malformed, "a second request %d", m.id)
	case int64(len(s.serving)) >= limits.Calls:
		return wire.Errorf(wire.OverQuota, "more than %d requests that are not answered", limits.Calls)
	case m.size > limits.Bytes-s.asked:
		return wire.Errorf(wire.OverQuota, "more than %d bytes of requests that are not answered", limits.Bytes)
	default:
		if m.large {
			s.bodies.slot(bodyKey{id: m.id}) // so that its withdrawal is known as one
		}
		s.serving[m.id] = &m.serving
		s.answering++
		s.asked += m.size
		s.stats.callsIn.Add(1)
	}
	s.inbox = append(s.inbox, m)
	if !s.taking {
		s.taking = true
		s.handlers.Go(s.takeUp)
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
		if n.Handled < 0 || n.Bytes < 0 || !s.oneWay.lent(n.Handled, n.Bytes) {
			return wire.Errorf(wire.Malformed, "a notice of %d messages handled", n.Handled)
		}
		s.oneWay.back(n.Handled, n.Bytes)
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
	var handled, bytes int64 // not yet told to the peer
	for {
		m := s.takeNext(handled == 0)
		switch {
		case m == nil && handled == 0:
			return
		case m == nil:
			s.tellHandled(handled, bytes)
			handled, bytes = 0, 0
			continue
		case !m.OneWay:
			s.handlers.Go(func() { s.answer(m) })
			continue
		}
		s.handle(m)
		handled, bytes = handled+1, bytes+m.size
		if handled >= s.conf.Receive.OneWay/4 || bytes >= s.conf.Receive.Bytes/4 {
			s.tellHandled(handled, bytes)
			handled, bytes = 0, 0
		}
	}
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
func (s *Session) tellHandled(handled, bytes int64) {
	f, err := wire.NewFrame(wire.KindNotice, 0, wire.Notice{Name: wire.NoticeHandled, Handled: handled, Bytes: bytes})
	if err == nil {
		s.out.push(&outgoing{frame: f}, s.done)
	}
}

// handle runs the handler of a one-way message. Those that came before the session's end are handled after it too.
func (s *Session) handle(m *Message) {
	defer func() { socket.CloseFiles(m.files) }()
	if _, err := s.serve(s.ctx, m); err != nil {
		s.log.Debug("one-way message failed", "code", wire.CodeOf(err), "err", err)
	}
	s.mu.Lock()
	s.unhandled--
	s.told -= m.size
	s.settleLocked()
	s.mu.Unlock()
}

// serveRequest runs the handler of a request, unless its time is over or nobody waits for it.
func (s *Session) serveRequest(m *Message) (any, error) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	if !m.until.IsZero() {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, m.until)
		defer stop()
	}
	s.mu.Lock()
	m.cancel = cancel
	canceled, draining := m.canceled, s.draining
	s.mu.Unlock()
	var err error
	switch {
	case canceled:
		err = wire.Canceled
	case draining:
		err = wire.Errorf(wire.Terminating, "the session is being ended")
	default:
		err = ctx.Err()
	}
	key := bodyKey{id: m.id}
	switch {
	case err != nil && m.large:
		s.discardLarge(key)
	case m.large:
		m.value, err = s.receiveLarge(ctx, key, m.size)
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
		s.log.Error("handler panicked", "method", wire.Printable(method, wire.MaxMethod), "err", r, "stack", string(debug.Stack()))
		*err = wire.Errorf(wire.Internal, "the handler of %q panicked", wire.Printable(method, wire.MaxMethod))
	}
}

// accept takes the streams that the peer opens.
func (s *Session) accept() {
	for {
		stream, err := s.mux.AcceptStream()
		if err != nil {
			return
		}
		if s.mux.NumStreams() > streamsBound {
			s.giveUpOn(wire.End{Code: wire.OverQuota, Origin: wire.Local, Text: fmt.Sprintf("more than %d streams are open", streamsBound)})
			return
		}
		s.handlers.Go(func() { s.begun(stream) })
	}
}
