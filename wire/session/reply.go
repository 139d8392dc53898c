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

// shortReply is how long a reply is, in bytes, that callCost pays for.
const shortReply = 1 << 10

// replyWait is how long replies may wait for a peer that takes none before it is ended.
const replyWait = 10 * time.Second

// answer serves a request and queues its reply.
func (s *Session) answer(m *Message) {
	var reply any
	var took time.Duration
	var err error
	returned := false
	began := time.Now()
	defer func() {
		if !returned {
			err = wire.Errorf(wire.Internal, "the handler of %q has ended its goroutine", wire.Printable(m.Method, wire.MaxMethod))
		}
		s.reply(m, reply, err)
		if all := time.Since(began); all >= readerWait { // the reply has kept the reader from reading, too
			took = all
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.answering--
		s.settleLocked()
		s.reader.tookLocked(m.Method, took)
	}()
	reply, err = s.serveRequest(m)
	returned = true
	took = time.Since(began)
}

// reply queues the reply to a request.
func (s *Session) reply(m *Message, reply any, err error) {
	socket.Discard(m.files) // before the credit for them comes back
	m.letGo()
	r, reserved := s.encodeInTurn(m, reply, err)
	defer s.held.giveReply(reserved)
	if s.ctx.Err() != nil { // that is why the handler returned; the peer is told the end and not its echo
		socket.CloseFiles(r.files)
		s.answered(m.id)
		return
	}
	out := &m.out
	out.frame, out.files, out.body, out.answers = r.frame, r.files, r.body, m
	if r.large != nil {
		s.replyLarge(m, out, r.large)
		return
	}
	if len(out.files) > 0 {
		out.unsent = func(err error) { s.replyUnsent(m, err) }
	}
	s.pushReply(out)
}

// replyUnsent answers with an error in place of a reply whose descriptors could not leave.
func (s *Session) replyUnsent(m *Message, err error) {
	s.out.pushNow(&outgoing{frame: s.encode(m.id, m.Method, nil, err).frame})
}

// encodeInTurn encodes a reply. One that is not short waits for room in the session's budget before it is held; how much it has taken of that is returned, too. Where
// nothing is given back for replyWait the reply is an error. That of a method whose last reply was large waits before it is encoded.
func (s *Session) encodeInTurn(m *Message, reply any, err error) (r encoded, reserved int) {
	size := 0
	if err == nil {
		size = s.lastLarge(m.Method)
	}
	for done := false; !done; {
		if size > reserved && s.awaitRoom(size-reserved) {
			reserved = size
		} else if size > reserved && err == nil {
			err = wire.Errorf(wire.OverQuota, "a reply of %d bytes: the session has had no room for it for %v: read other replies and streams first", size, replyWait)
		}
		r, size, done = s.encodeOnce(m, reply, err, reserved)
	}
	return r, size
}

// encodeOnce encodes a reply, for which so much of the budget was taken, and takes what else it needs. It returns how much that is in all. Where there is no room, nothing is encoded.
func (s *Session) encodeOnce(m *Message, reply any, err error, reserved int) (r encoded, size int, done bool) {
	s.encoding.Lock()
	defer s.encoding.Unlock()
	if size = s.lastLarge(m.Method); err == nil && size > reserved { // as whoever had the turn before has found
		return r, size, false
	}
	r = s.encode(m.id, m.Method, reply, err)
	size = len(r.large) + len(r.frame.Body)
	if r.large != nil {
		defer s.wasLarge(m.Method, size)
	} else {
		defer s.wasLarge(m.Method, 0)
	}
	switch {
	case size <= max(reserved, shortReply), s.ctx.Err() != nil:
		return r, reserved, true
	case s.held.tryTake(size-reserved) == nil:
		return r, size, true
	}
	return encoded{}, size, false
}

// lastLarge returns how long the last reply of a method was in bytes, if it was large.
func (s *Session) lastLarge(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.large[method]
}

// wasLarge notes how long the reply of a method was, 0 for one that was not large. The session knows maxSlow methods of large replies, and forgets them all when
// there are more.
func (s *Session) wasLarge(method string, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case size == 0 && s.large == nil:
		return
	case size == 0:
		delete(s.large, method)
		return
	case s.large == nil, len(s.large) == maxSlow:
		s.large = map[string]int{}
	}
	s.large[method] = size
}

// awaitRoom takes n bytes of the session's budget as soon as there is room, and returns false when nothing is given back for replyWait or the session ends.
func (s *Session) awaitRoom(n int) bool {
	for {
		room := s.held.tryTake(n)
		if room == nil {
			return true
		}
		select {
		case <-room:
		case <-time.After(replyWait):
			return false
		case <-s.done:
			return false
		}
	}
}

// replyLarge queues a reply and sends its value on a stream, as soon as it is its turn. The stream begins first: who reads the reply can count on its
// value, or on the end of its stream.
func (s *Session) replyLarge(m *Message, out *outgoing, value []byte) {
	turns := s.semaphore(&s.turns, maxLargeReplies)
	select {
	case turns <- struct{}{}:
		defer func() { <-turns }()
	case <-s.done:
		socket.CloseFiles(out.files)
		s.answered(m.id)
		return
	}
	sending, stop := context.WithCancel(s.ctx)
	defer stop()
	out.unsent = func(err error) {
		stop()
		s.replyUnsent(m, err)
	}
	y, err := s.beginReply(out, len(value))
	if err != nil {
		socket.CloseFiles(out.files)
		s.pushReply(&outgoing{frame: s.encode(m.id, m.Method, nil, err).frame, answers: m})
		return
	}
	s.pushReply(out)
	if err := s.sendLarge(sending, y, value, replyWait); err != nil { // the peer does not want it, or is gone, which is for the reader to tell
		s.log().Debug("large reply was not taken", "err", err)
	}
}

// beginReply begins the value of a large reply.
func (s *Session) beginReply(out *outgoing, length int) (*flow, error) {
	ctx, cancel := context.WithTimeout(s.ctx, replyWait)
	defer cancel()
	y, err := s.beginLarge(ctx, wire.Header{Flags: wire.FlagReply, ID: out.frame.ID}, length)
	if ctx.Err() == context.DeadlineExceeded {
		s.giveUpOn(stuck)
	}
	return y, err
}

// answered is done with a request whose reply is about to leave: the peer may use its credit as soon as it has.
func (s *Session) answered(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.serving[id]; m != nil {
		s.asked = s.asked.minus(m.load)
		s.held.give(m.cost())
		delete(s.serving, id)
	}
}

// An encoded reply is its frame, its descriptors, and, if that is too long for the frame, its value.
type encoded struct {
	frame wire.Frame
	files []*os.File
	body  *buffer // that has the frame's body; nil: none is used again
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
		if reply != nil {
			_, files, _ := wire.MarshalFiles(reply) // a reply that comes with an error is not sent
			socket.CloseFiles(files)
		}
		e.frame, err = wire.NewFrame(wire.KindReply, id, wire.AsError(err).Bounded())
		e.frame.Flags = wire.FlagError
		return e, err
	}
	body := takeBuffer()
	value, files, err := wire.AppendFiles(body.b, reply)
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
		body.b, e.body = value, body
		e.frame.Body, e.frame.Length = value, uint32(len(value))
	}
	return e, nil
}

// pushReply queues a reply. A peer that takes nothing for replyWait is ended: its replies would pile up here.
func (s *Session) pushReply(o *outgoing) {
	if !s.out.pushWhile(o, s.held.wait()) {
		socket.CloseFiles(o.files)
		s.giveUpOn(stuck)
	}
}

// stuck is the end of a session whose peer takes no replies.
var stuck = wire.End{Code: wire.OverQuota, Origin: wire.Local, Text: fmt.Sprintf("the peer has taken no reply for %v", replyWait)}
