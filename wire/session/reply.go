package session

import (
	"context"
	"fmt"
	"os"
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
	r := s.encode(m.id, m.Method, reply, err)
	if s.ctx.Err() != nil { // that is why the handler returned; the peer is told the end and not its echo
		socket.CloseFiles(r.files)
		s.answered(m.id)
		return
	}
	if r.large != nil && !s.reserveLarge(len(r.large)) {
		socket.CloseFiles(r.files)
		r = s.encode(m.id, m.Method, nil, wire.Errorf(wire.OverQuota, "more than %d bytes of replies wait to be taken", maxLargeBytes))
	}
	sending, stop := context.WithCancel(s.ctx) // its value, if that is large
	defer stop()
	out := &outgoing{frame: r.frame, files: r.files, queued: func() { s.answered(m.id) }}
	out.unsent = func(err error) {
		stop()
		s.out.pushNow(&outgoing{frame: s.encode(m.id, m.Method, nil, err).frame})
	}
	if r.large == nil {
		s.pushReply(out)
		return
	}
	defer s.reserveLarge(-len(r.large))
	if err := s.answerLarge(sending, out, r.large); err != nil {
		s.log.Debug("large reply was not taken", "err", err)
		s.answered(m.id)
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

// answerLarge queues a reply and sends its value on a stream, as soon as it is its turn, until ctx ends. The stream begins first: who reads the reply
// can count on its value, or on the end of its stream.
func (s *Session) answerLarge(ctx context.Context, out *outgoing, value []byte) error {
	select {
	case s.turns <- struct{}{}:
		defer func() { <-s.turns }()
	case <-s.done:
		return context.Cause(s.ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, replyWait)
	defer cancel()
	y, err := s.beginLarge(ctx, wire.Header{Flags: wire.FlagReply, ID: out.frame.ID}, len(value))
	if err == nil {
		s.pushReply(out)
		err = s.sendLarge(ctx, y, value)
	}
	if ctx.Err() == context.DeadlineExceeded { // else the peer does not want it, or is gone, which is for the reader to tell
		s.giveUpOn(stuck)
	}
	return err
}

// answered is done with a request whose reply is about to leave: the peer may use its credit as soon as it has.
func (s *Session) answered(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.serving[id]; m != nil {
		s.asked = s.asked.minus(m.load)
		delete(s.serving, id)
	}
}

// An encoded reply is its frame, its descriptors, and, if that is too long for the frame, its value.
type encoded struct {
	frame wire.Frame
	files []*os.File
	large []byte
}

// encode encodes a reply, or the error err, or the error that comes of trying. Descriptors in reply are the session's from then on.
func (s *Session) encode(id uint32, method string, reply any, err error) encoded {
	e, err := s.tryEncode(id, method, reply, err)
	if err != nil {
		socket.CloseFiles(e.files)
		e, _ = s.encodeReply(id, nil, err)
	}
	return e
}

// tryEncode is encodeReply for values and errors of which a method may panic.
func (s *Session) tryEncode(id uint32, method string, reply any, err error) (e encoded, failed error) {
	defer s.recovered(method, &failed)
	return s.encodeReply(id, reply, err)
}

// encodeReply encodes a reply, or the error err.
func (s *Session) encodeReply(id uint32, reply any, err error) (e encoded, failed error) {
	if err != nil {
		e.frame, err = wire.NewFrame(wire.KindReply, id, wire.AsError(err).Bounded())
		e.frame.Flags = wire.FlagError
		return e, err
	}
	value, files, err := wire.MarshalFiles(reply)
	e = encoded{files: files, frame: wire.Frame{Header: wire.Header{Kind: wire.KindReply, Files: uint8(len(files)), ID: id}}}
	switch {
	case err != nil:
		return e, wire.Errorf(wire.Internal, "%v", err)
	case len(files) > 0 && !s.conf.Lane:
		return e, errNoLane
	case len(value) > wire.MaxLarge, len(value) > wire.MaxBody && s.streamless:
		return e, wire.Errorf(wire.OverQuota, "a reply of %d bytes is too long for this session", len(value))
	case len(value) > wire.MaxBody:
		e.frame.Flags = wire.FlagLarge
		e.large = value
	default:
		e.frame.Body, e.frame.Length = value, uint32(len(value))
	}
	return e, nil
}

// pushReply queues a reply. A peer that takes nothing for replyWait is ended: its replies would pile up here.
func (s *Session) pushReply(o *outgoing) {
	if !s.out.pushWhile(o, replyWait) {
		s.giveUpOn(stuck)
	}
}

// stuck is the end of a session whose peer takes no replies.
var stuck = wire.End{Code: wire.OverQuota, Origin: wire.Local, Text: fmt.Sprintf("the peer has taken no reply for %v", replyWait)}
