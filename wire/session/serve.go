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

// maxLargeReplies is how many large replies a session sends at a time; others wait for their turn.
const maxLargeReplies = 4

// replyWait is how long replies may wait for a peer that takes none before it is ended.
const replyWait = 10 * time.Second

// A Message is a request or a one-way message from the peer.
type Message struct {
	Method string
	OneWay bool

	s       *Session
	id      uint32
	value   []byte
	size    int64
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
}

// Decode decodes the message's value into v, which must point to a fresh value. It fails with wire.Malformed.
func (m *Message) Decode(v any) error { return wire.Unmarshal(m.value, v) }

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
		s.canceled(f.ID)
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
		s: s, id: f.ID, value: r.Value, size: int64(len(r.Value)) + r.Length, large: f.Flags&wire.FlagLarge != 0, files: files, missing: missing,
	}
	if r.Within > 0 {
		m.until = time.Now().Add(time.Duration(min(r.Within, int64(time.Hour*24*365/time.Millisecond))) * time.Millisecond)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	limits := s.conf.Receive
	switch _, twice := s.serving[m.id]; {
	case s.ended != nil:
		socket.CloseFiles(files)
		return nil
	case m.OneWay && m.large:
		return wire.Errorf(wire.Malformed, "a large one-way message")
	case m.OneWay && s.unhandled >= limits.OneWay:
		return wire.Errorf(wire.OverQuota, "more than %d one-way messages that are not handled", limits.OneWay)
	case m.OneWay:
		s.unhandled++
	case m.id == 0 || twice:
		return wire.Errorf(wire.Malformed, "a second request %d", m.id)
	case int64(len(s.serving)) >= limits.Calls:
		return wire.Errorf(wire.OverQuota, "more than %d requests that are not answered", limits.Calls)
	default:
		s.serving[m.id] = &m.serving
		s.answering++
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
func (s *Session) canceled(id uint32) {
	s.mu.Lock()
	r := s.serving[id]
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
		if n.Handled < 0 || n.Bytes < 0 {
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
		s.mu.Lock()
		if len(s.inbox) == 0 {
			s.taking = false
			s.inbox = nil
			s.mu.Unlock()
			s.tellHandled(handled, bytes)
			return
		}
		m := s.inbox[0]
		s.inbox = s.inbox[1:]
		s.mu.Unlock()
		if !m.OneWay {
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

func (s *Session) tellHandled(handled, bytes int64) {
	if handled > 0 {
		s.notify(wire.Notice{Name: wire.NoticeHandled, Handled: handled, Bytes: bytes})
	}
}

// handle runs the handler of a one-way message. Those that came before the session's end are handled after it too.
func (s *Session) handle(m *Message) {
	if _, err := s.serve(s.ctx, m); err != nil {
		s.log.Debug("one-way message failed", "code", wire.CodeOf(err), "err", err)
	}
	s.mu.Lock()
	s.unhandled--
	s.settleLocked()
	s.mu.Unlock()
}

// answer serves a request and queues its reply.
func (s *Session) answer(m *Message) {
	reply, err := s.serveRequest(m)
	f, large, err := s.encodeReply(m.id, reply, err)
	if err != nil {
		f, _, _ = s.encodeReply(m.id, nil, err)
	}
	if large != nil {
		select {
		case s.turns <- struct{}{}:
			defer func() { <-s.turns }()
		case <-s.done:
		}
	}
	s.pushReply(&outgoing{frame: f, queued: func() { s.answered(m.id) }})
	if large != nil {
		ctx, cancel := context.WithTimeout(s.ctx, replyWait)
		defer cancel()
		if err := s.sendLarge(ctx, wire.Header{Flags: wire.FlagReply, ID: m.id}, large); err != nil {
			s.log.Debug("large reply was not taken", "err", err)
		}
	}
	s.mu.Lock()
	s.answering--
	s.settleLocked()
	s.mu.Unlock()
}

// answered is done with a request whose reply is about to leave: the peer may use its credit as soon as it has.
func (s *Session) answered(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.serving, id)
}

// encodeReply makes the frame of a reply, or of the error err. A value that is too long for a frame is returned as well.
func (s *Session) encodeReply(id uint32, reply any, err error) (f wire.Frame, large []byte, failed error) {
	if err != nil {
		e := *wire.AsError(err)
		e.Text = e.Text[:min(len(e.Text), wire.MaxText)]
		f, err = wire.NewFrame(wire.KindReply, id, &e)
		f.Flags = wire.FlagError
		return f, nil, err
	}
	value, err := wire.Marshal(reply)
	switch {
	case err != nil:
		return f, nil, wire.Errorf(wire.Internal, "%v", err)
	case len(value) > wire.MaxLarge:
		return f, nil, wire.Errorf(wire.OverQuota, "a reply of %d bytes, limit %d", len(value), wire.MaxLarge)
	case len(value) > wire.MaxBody:
		return wire.Frame{Header: wire.Header{Kind: wire.KindReply, Flags: wire.FlagLarge, ID: id}}, value, nil
	}
	return wire.Frame{Header: wire.Header{Kind: wire.KindReply, ID: id, Length: uint32(len(value))}, Body: value}, nil, nil
}

// pushReply queues a reply. A peer that takes none for replyWait is ended: its replies would pile up here.
func (s *Session) pushReply(o *outgoing) {
	stuck := make(chan struct{})
	t := time.AfterFunc(replyWait, func() { close(stuck) })
	defer t.Stop()
	if !s.out.push(o, stuck) {
		s.Abort(wire.End{Code: wire.OverQuota, Origin: wire.Local, Text: fmt.Sprintf("the peer has taken no reply for %v", replyWait)})
	}
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
	switch {
	case canceled:
		return nil, wire.Canceled
	case draining:
		return nil, wire.Errorf(wire.Terminating, "the session is being ended")
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	if m.large {
		var err error
		if m.value, err = s.receiveLarge(ctx, bodyKey{id: m.id}); err != nil {
			return nil, err
		}
	}
	return s.serve(ctx, m)
}

// serve calls the handler. One that panics answers wire.Internal, and the session goes on.
func (s *Session) serve(ctx context.Context, m *Message) (reply any, err error) {
	defer func() { socket.CloseFiles(m.files) }()
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
		s.handlers.Go(func() { s.begun(stream) })
	}
}
