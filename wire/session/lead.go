package session

import (
	"errors"
	"os"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

const (
	// briskCalls is how many replies come in a row, each within briskGap of the one before and with one other call in flight at most, the caller's next, before the reader rests.
	briskCalls = 4
	briskGap   = time.Millisecond
)

// An off says who reads when the reader is not on the socket.
//
// To hand a reply from the reader to its caller wakes a goroutine, and mostly a thread, and costs as much as the socket does. So where one caller makes one call
// after another, the reader leaves the socket to it: it rests, and who has sent a request reads until its own reply has come. It leads.
//
//	on the socket ─ briskCalls replies to calls that were alone, and nothing more is there ─▶ resting
//	resting ─────── a request was queued, whose deadline is not near ──────────────────────▶ led
//	resting ─────── else, or readerWait is over, or somebody needs the reader ─────────────▶ on the socket
//	led ─────────── the leader's reply has come, nobody waits, and nothing more is there ──▶ resting
//	led ─────────── it has come, and else; something comes that is not a short reply ──────▶ on the socket
//	led ─────────── readerWait is over, or somebody needs the reader: the leader is kicked ▶ on the socket
//
// Who leads only takes short replies that have come whole. All else is left in the incoming for the reader, so that nothing runs on a caller but its call. Nobody is
// off the socket for longer than readerWait, and that is how late the session may see what else its peer sends, that it is gone, and that the leader's
// context has ended. Where a stream has begun, nobody rests any more. A goroutine of the reader's is there only while it is on the socket; its place in own stays.
type off uint8

const (
	onSocket off = iota
	resting
	led
	parked // see park.go
)

// rests reports whether the reader, which has taken a frame, rests from now on.
func (s *Session) rests() bool {
	r := &s.reader
	if !r.reply || !s.conf.Lane {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	r.brisk++
	if len(s.pending) > 1 || now.Sub(r.replied) > briskGap {
		r.brisk = 0
	}
	r.replied = now
	if r.brisk < briskCalls || !s.quietLocked() {
		return false
	}
	s.restLocked(now)
	return true
}

// quietLocked reports whether nobody waits for anything that is to be read. Only who reads calls it.
func (s *Session) quietLocked() bool {
	return len(s.pending) == 0 && s.ended == nil && !s.reader.restless && !s.conn.in.more()
}

func (s *Session) restLocked(now time.Time) {
	r := &s.reader
	r.off, r.since = resting, now
	if !r.watching {
		r.watchLocked(s, readerWait)
	}
}

// rouseLocked has the reader back on the socket, if it is off it: who leads gives the reading back.
func (s *Session) rouseLocked() {
	r := &s.reader
	switch r.off {
	case resting:
		s.returnLocked()
	case led:
		s.kickLocked()
	case parked:
		s.unparkLocked()
	}
}

// kickLocked has who waits on the socket come off it. Nobody else sets a deadline meanwhile: yamux begins only now, and does not end before it is read for.
func (s *Session) kickLocked() {
	s.reader.kicked = true
	s.conn.SetReadDeadline(longAgo)
}

// unkickLocked has reading go on, and reports whether anybody was kicked. A kick that came too late hits nobody behind it, as it is made under the mutex, too.
// Only who reads calls it.
func (s *Session) unkickLocked() bool {
	if !s.reader.kicked {
		return false
	}
	s.reader.kicked = false
	s.conn.SetReadDeadline(time.Time{})
	if in := &s.conn.in; in.interrupted() {
		in.failed = nil
	}
	return true
}

// unkick is unkickLocked for who is in the midst of a frame.
func (s *Session) unkick() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.parkLaterLocked()
	return s.unkickLocked()
}

// returnLocked has a goroutine of the reader's read on.
func (s *Session) returnLocked() {
	s.reader.off, s.reader.brisk = onSocket, 0
	go s.readOn()
}

// takeLead reports whether the caller of p, whose frame is queued, leads. Else somebody else reads.
func (s *Session) takeLead(p *pending) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.reader
	switch r.off {
	case resting:
	case parked:
		s.unparkLocked()
		return false
	default:
		return false
	}
	now := time.Now()
	if !p.until.IsZero() && p.until.Sub(now) < 2*readerWait { // who leads looks at its context too late for that
		s.returnLocked()
		return false
	}
	r.off, r.since = led, now
	return true
}

// lead reads until the reply to p has come, or the reader is needed.
func (s *Session) lead(p *pending) {
	var err error
	for err == nil && len(p.done) == 0 {
		s.link.wait()
		if !s.conn.in.shortReply() {
			break
		}
		_, err = s.readNext()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unkickLocked() {
		s.parkLaterLocked() // it was a look's kick, maybe, that the reader has left behind
	}
	switch {
	case err != nil:
		s.reader.off = onSocket
		go s.readNoMore(err)
	case len(p.done) == 0 || !s.quietLocked():
		s.returnLocked()
	default:
		s.restLocked(time.Now())
	}
}

// restNoMore has the reader not rest any more. If it is off the socket, who is about to use a stream has it return.
func (s *Session) restNoMore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reader.restless = true
}

// shortReply reports whether a reply whose value is not large has come whole, and is next.
func (in *incoming) shortReply() bool {
	b := in.buf[in.r:in.w]
	if len(b) < wire.HeaderSize || b[0] != wire.Version {
		return false
	}
	h, err := wire.ParseHeader(b)
	return err == nil && h.Kind == wire.KindReply && h.Flags&wire.FlagLarge == 0 && len(b) >= wire.HeaderSize+int(h.Length)
}

// interrupted reports whether who waited was kicked.
func (in *incoming) interrupted() bool {
	return in.failed != nil && errors.Is(in.failed, os.ErrDeadlineExceeded)
}
