package session

import (
	"errors"
	"slices"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

const (
	// quick is how long a handler takes at most that may run on the reader the next time. To wake a goroutine for it costs up to a fifth of that.
	quick = 50 * time.Microsecond
	// readerWait is how long a handler may keep the reader from reading.
	readerWait = 5 * time.Millisecond
	// maxSlow is how many methods a session knows to be slow, or to have large replies. It forgets them all when there are more.
	maxSlow = 64
)

// A reader is the part of a session that reads its message channel. One goroutine at a time does. It serves a request itself, as waking another goroutine costs
// more than a short handler, and gives the reading on when that takes longer, so that nothing which comes behind is held up.
//
//	reading ── a request that may be served here ────────────▶ handling
//	handling ─ its reply is queued ──────────────────────────▶ reading
//	handling ─ readerWait is over; somebody here waits for the peer; the handler ends its goroutine ──▶ given on
//	reading ── the end, a breach, the loss of the peer ──────▶ over
//	reading ── replies to one caller, one call after another ▶ resting, see lead.go
//	reading ── nothing has come for some seconds ────────────▶ parked, see park.go
//
// Given on: another goroutine is reading, and the one that was the reader is its handler's alone, and ends with it. The places in the session's wait groups
// follow: the new reader takes that of the old one in own, and the old one gets one in handlers.
//
// A request may be served here if it is not large, no one-way message before it is still to be handled, and the handler of its method was quick the last time;
// that of a slow one gets a goroutine at once. One-way messages are the taker's, but for those of a control connection, also slow ones: there the reader is the taker, and goes on
// as one when the reading has been given on.
//
// The session's mutex guards it.
type reader struct {
	handling *Message      // what is being served by the reader; nil: it reads
	since    time.Time     // when that began
	ending   bool          // nothing is served here any more: somebody waits for the session's end
	held     time.Duration // how long handlers have kept the reader from reading, in all
	watching bool          // the timer runs, for this request or an earlier one
	timer    *time.Timer   // nil until it runs for the first time
	slow     []string      // methods that were not quick the last time: few, so that a map would be larger and no faster
	off      off           // why nobody reads, or a caller does
	restless bool          // it does not rest: streams have begun
	kicked   bool          // who waits on the socket has been told to come off it
	brisk    int           // replies in a row that came soon after the one before
	replied  time.Time     // when the last one came
	parking  parking
	method   string // of the last message; only who reads uses it, and without the mutex
	reply    bool   // the last frame was one; likewise
}

// beginReading starts the first reader.
func (s *Session) beginReading() {
	s.own.Add(1)
	s.mu.Lock()
	s.parkLaterLocked()
	s.mu.Unlock()
	go s.read()
}

// read begins the message channel, and reads it.
func (s *Session) read() {
	if !s.conf.Lane {
		if s.link == nil {
			if err := s.establish(); err != nil {
				s.lost(err)
				s.own.Done()
				return
			}
		}
		s.own.Go(s.accept)
	}
	s.readOn()
}

// readOn reads the message channel until the session is over, the reading has been given on, or the reader rests or is parked.
func (s *Session) readOn() {
	for {
		s.link.wait()
		if s.conf.Lane && s.conn.in.interrupted() {
			switch parked, kicked := s.parks(); {
			case parked:
				return
			case kicked:
				continue
			}
		}
		here, err := s.readNext()
		if here != nil && !s.serveHere(here) {
			return
		}
		if err != nil {
			s.readNoMore(err)
			return
		}
		if s.rests() {
			return
		}
	}
}

// readNoMore ends the session, unless it has ended, after the message channel's last frame.
func (s *Session) readNoMore(err error) {
	if _, ours := errors.AsType[*wire.Error](err); ours {
		s.breach(err)
	} else if err != errEnd {
		s.lost(err)
	}
	if s.conf.Lane {
		s.conn.in.close()
	}
	s.own.Done()
}

// errEnd is why nothing is read behind the peer's end.
var errEnd = errors.New("the peer has ended the session")

// readNext reads and takes one frame, and returns the request that is to be served here, if it is one.
func (s *Session) readNext() (here *Message, err error) {
	a, err := s.link.read()
	if err != nil {
		return nil, err
	}
	s.trace(receivedFrame, 0, a.Frame)
	s.reader.reply = a.Kind == wire.KindReply
	if a.Kind != wire.KindEnd {
		return s.receive(a)
	}
	socket.Discard(a.files)
	end := wire.End{}
	if err := wire.Unmarshal(a.Body, &end); err != nil {
		return nil, err
	}
	s.ending(end)
	return nil, errEnd
}

// serveHere serves a request on the reader, and reports whether that is still the reader.
func (s *Session) serveHere(m *Message) (reads bool) {
	returned := false
	defer func() {
		s.mu.Lock()
		reads = s.reader.handling == m
		if reads && returned {
			s.reader.doneLocked()
			s.taking = s.taking && !m.OneWay // nobody else has put anything into the inbox
		} else if reads { // the handler is ending this goroutine
			s.giveOnLocked()
			reads = false
		}
		s.mu.Unlock()
		if reads {
			return
		}
		if m.OneWay {
			s.handlers.Go(s.takeUp)
		}
		s.handlers.Done()
	}()
	if m.OneWay {
		s.takeHere(m)
	} else {
		s.answer(m)
	}
	returned = true
	return true
}

// hereLocked reports whether a request is to be served by the reader, which then is handling it.
func (s *Session) hereLocked(m *Message) bool {
	r := &s.reader
	if slices.Contains(r.slow, m.Method) && !m.OneWay || m.large || r.ending {
		return false
	}
	r.handling, r.since = m, time.Now()
	if !r.watching {
		r.watchLocked(s, readerWait)
	}
	return true
}

func (r *reader) watchLocked(s *Session, wait time.Duration) {
	r.watching = true
	if r.timer == nil {
		r.timer = time.AfterFunc(wait, s.watch)
	} else {
		r.timer.Reset(wait)
	}
}

// watch gives the reading on if what the reader is handling takes too long, or what who leads waits for, or when the rest is over. It runs once for many quick
// requests.
func (s *Session) watch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.reader
	r.watching = false
	if r.handling == nil && r.off == onSocket {
		r.timer = nil // an idle session needs none
		return
	}
	if left := readerWait - time.Since(r.since); left > 0 {
		r.watchLocked(s, left)
		return
	}
	if r.handling == nil {
		s.rouseLocked()
		return
	}
	r.tookLocked(r.handling.Method, readerWait)
	s.giveOnLocked()
}

// needReader has another goroutine read on if the reader is handling a request, or nobody else reads: who calls it is about to wait for the peer, and may be that
// handler.
func (s *Session) needReader() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.needReaderLocked()
}

// needEnd is needReader for who waits for the end of the session, which is known to have come.
func (s *Session) needEnd() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reader.ending = true
	s.needReaderLocked()
}

func (s *Session) needReaderLocked() {
	s.giveOnLocked()
	s.rouseLocked()
}

// giveOnLocked has another goroutine read on if the reader's is handling a request.
func (s *Session) giveOnLocked() {
	if s.reader.handling == nil {
		return
	}
	s.reader.doneLocked()
	s.handlers.Add(1)
	go s.readOn()
}

// doneLocked notes that the reader is not handling anything any more.
func (r *reader) doneLocked() {
	r.handling = nil
	r.held += time.Since(r.since)
}

// tookLocked notes how long a handler of a method took.
func (r *reader) tookLocked(method string, took time.Duration) {
	i := slices.Index(r.slow, method)
	switch {
	case took <= quick && i >= 0:
		r.slow = slices.Delete(r.slow, i, i+1)
	case took <= quick || i >= 0:
	case len(r.slow) == maxSlow:
		r.slow = []string{method}
	default:
		r.slow = append(r.slow, method)
	}
}

// pump passes what comes to yamux, where that carries the message channel too.
func (s *Session) pump() {
	defer s.conn.in.close()
	_, err := s.conn.in.next() // unless the peer has broken the protocol, yamux has ended by now
	if breach, ok := errors.AsType[*wire.Error](err); ok {
		s.conn.broke(breach)
		s.mux.cut(breach)
	}
}

// establish opens or accepts the message channel.
func (s *Session) establish() error {
	open := s.mux.session().AcceptStream
	if s.conf.Opener {
		open = s.mux.session().OpenStream
	}
	stream, err := open()
	if err != nil {
		return err
	}
	l := newStreamLink(stream, s.conn)
	s.mu.Lock()
	s.link = l
	s.mu.Unlock()
	s.out.open(l)
	return nil
}

// receive takes one frame of the message channel, and returns the request that is to be served here, if it is one. It never waits. An error is a breach of the
// protocol.
func (s *Session) receive(a arrived) (here *Message, err error) {
	switch a.Kind {
	case wire.KindRequest, wire.KindOneWay, wire.KindReply:
		if a.Kind == wire.KindReply {
			err = s.replied(a)
		} else {
			here, err = s.received(a)
		}
		if err != nil {
			socket.Discard(a.files)
		}
		return here, err
	}
	if a.Files > 0 {
		socket.Discard(a.files)
		return nil, wire.Errorf(wire.Malformed, "a %v with %d descriptors", a.Kind, a.Files)
	}
	switch a.Kind {
	case wire.KindCancel:
		s.canceled(a.Frame)
		return nil, nil
	case wire.KindFlush:
		return s.admit(&Message{s: s, id: a.ID, flush: true})
	case wire.KindNotice:
		n := wire.Notice{}
		if err := wire.Unmarshal(a.Body, &n); err != nil {
			return nil, err
		}
		return nil, s.noticed(n)
	}
	return nil, wire.Errorf(wire.Malformed, "a %v on the message channel", a.Kind)
}
