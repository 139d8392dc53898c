package session

import (
	"context"
	"fmt"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// maxLargeReplies is how many large replies a session sends at a time; others wait for their turn.
const maxLargeReplies = 4

// maxLargeBytes is how many bytes of large replies a session holds for its peer; what goes beyond is answered with wire.OverQuota.
const maxLargeBytes = 32 << 20

// replyWait is how long replies may wait for a peer that takes none before it is ended.
const replyWait = 10 * time.Second

// answer serves a request and queues its reply.
func (s *Session) answer(m *Message) {
	defer func() {
		socket.CloseFiles(m.files)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.answering--
		s.settleLocked()
	}()
	reply, err := s.serveRequest(m)
	if s.ctx.Err() != nil { // that is why the handler returned; the peer is told the end and not its echo
		s.answered(m.id)
		return
	}
	f, large := s.encode(m.id, m.Method, reply, err)
	if large != nil && !s.reserveLarge(len(large)) {
		f, _ = s.encode(m.id, m.Method, nil, wire.Errorf(wire.OverQuota, "more than %d bytes of replies wait to be taken", maxLargeBytes))
		large = nil
	}
	out := &outgoing{frame: f, queued: func() { s.answered(m.id) }}
	if large == nil {
		s.pushReply(out)
		return
	}
	defer s.reserveLarge(-len(large))
	if err := s.answerLarge(out, large); err != nil {
		s.log.Debug("large reply was not taken", "err", err)
		s.answered(m.id)
		s.giveUpOn(stuck)
	}
}

// reserveLarge notes that n more bytes of large replies wait, and reports whether that is not too much.
func (s *Session) reserveLarge(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.largeBytes+n > maxLargeBytes {
		return false
	}
	s.largeBytes += n
	return true
}

// answerLarge queues a reply and sends its value on a stream, as soon as it is its turn. The stream begins first: who reads the reply can
// count on its value, or on the end of its stream.
func (s *Session) answerLarge(out *outgoing, value []byte) error {
	select {
	case s.turns <- struct{}{}:
		defer func() { <-s.turns }()
	case <-s.done:
		return context.Cause(s.ctx)
	}
	ctx, cancel := context.WithTimeout(s.ctx, replyWait)
	defer cancel()
	y, err := s.beginLarge(ctx, wire.Header{Flags: wire.FlagReply, ID: out.frame.ID}, len(value))
	if err != nil {
		return err
	}
	s.pushReply(out)
	return s.sendLarge(ctx, y, value)
}

// answered is done with a request whose reply is about to leave: the peer may use its credit as soon as it has.
func (s *Session) answered(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.serving[id]; m != nil {
		s.asked -= m.size
		delete(s.serving, id)
	}
}

// encode makes the frame of a reply, or of the error err, or of the error that comes of trying.
func (s *Session) encode(id uint32, method string, reply any, err error) (f wire.Frame, large []byte) {
	f, large, err = s.tryEncode(id, method, reply, err)
	if err != nil {
		f, _, _ = s.encodeReply(id, nil, err)
	}
	return f, large
}

// tryEncode is encodeReply for values and errors of which a method may panic.
func (s *Session) tryEncode(id uint32, method string, reply any, err error) (f wire.Frame, large []byte, failed error) {
	defer s.recovered(method, &failed)
	return s.encodeReply(id, reply, err)
}

// encodeReply makes the frame of a reply, or of the error err. A value that is too long for a frame is returned as well.
func (s *Session) encodeReply(id uint32, reply any, err error) (f wire.Frame, large []byte, failed error) {
	if err != nil {
		f, err = wire.NewFrame(wire.KindReply, id, wire.AsError(err).Bounded())
		f.Flags = wire.FlagError
		return f, nil, err
	}
	value, err := wire.Marshal(reply)
	switch {
	case err != nil:
		return f, nil, wire.Errorf(wire.Internal, "%v", err)
	case len(value) > wire.MaxLarge, len(value) > wire.MaxBody && s.mux == nil:
		return f, nil, wire.Errorf(wire.OverQuota, "a reply of %d bytes is too long for this session", len(value))
	case len(value) > wire.MaxBody:
		return wire.Frame{Header: wire.Header{Kind: wire.KindReply, Flags: wire.FlagLarge, ID: id}}, value, nil
	}
	return wire.Frame{Header: wire.Header{Kind: wire.KindReply, ID: id, Length: uint32(len(value))}, Body: value}, nil, nil
}

// pushReply queues a reply. A peer that takes nothing for replyWait is ended: its replies would pile up here.
func (s *Session) pushReply(o *outgoing) {
	if !s.out.pushWhile(o, replyWait) {
		s.giveUpOn(stuck)
	}
}

// stuck is the end of a session whose peer takes no replies.
var stuck = wire.End{Code: wire.OverQuota, Origin: wire.Local, Text: fmt.Sprintf("the peer has taken no reply for %v", replyWait)}
