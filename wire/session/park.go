package session

import (
	"time"

	"github.com/fairlead-dev/fairlead/internal/watch"
)

// parkAfter is for how long nothing has come, at least, and twice that at most, when a session is parked.
const parkAfter = time.Second

// A parking is how a session waits on no goroutine. Idle sessions are most of those that hold a lease, and a goroutine is half of what one costs: so where there is a Set
// of watches, the reader leaves the socket to it, and comes back when something has come or somebody needs it. Where a stream has begun nobody is parked any more: yamux waits on goroutines of its own.
//
//	on the socket ─ nothing has come for parkAfter: the reader is kicked off it, if it waits there ─▶ parked
//	parked ──────── something can be read, or somebody needs the reader ────────────────────────────▶ on the socket
//
// The session's mutex guards it.
type parking struct {
	timer *time.Timer  // nil while it is parked, and where it never is
	seen  int64        // bytes that had come when the timer last ran
	watch *watch.Watch // nil: it is not parked
}

// parkLaterLocked begins to look whether the session is idle.
func (s *Session) parkLaterLocked() {
	if s.conf.Idle != nil && s.conf.Lane && s.conn.unix != nil && s.ended == nil && s.reader.parking.timer == nil {
		s.reader.parking.timer = time.AfterFunc(parkAfter, s.look)
	}
}

// look has the reader parked if nothing has come since it last looked.
func (s *Session) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, p := &s.reader, &s.reader.parking
	if p.timer == nil { // it was stopped
		return
	}
	came := s.stats.received.Load()
	switch idle := came == p.seen && r.off == onSocket && r.handling == nil && len(s.pending) == 0; {
	case s.ended != nil || r.restless:
		p.timer = nil
	case idle:
		p.timer = nil
		s.kickLocked()
	default:
		p.seen = came
		p.timer.Reset(parkAfter)
	}
}

// stopLocked ends that.
func (p *parking) stopLocked() {
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}

// parks reports whether the reader, whose wait was interrupted, is parked from now on, and else whether it was kicked for that.
func (s *Session) parks() (is, kicked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.unkickLocked() {
		return false, false
	}
	if s.quietLocked() {
		raw, err := s.conn.SyscallConn()
		var w *watch.Watch
		if err == nil {
			w, err = s.conf.Idle.Add(raw, watch.Silence, s.unpark) // which waits for the mutex, if something has come already
		}
		if err == nil {
			s.reader.off, s.reader.parking.watch = parked, w
			return true, true
		}
	}
	s.parkLaterLocked()
	return false, true
}

// unpark is called when something has come.
func (s *Session) unpark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reader.off == parked {
		s.unparkLocked()
	}
}

func (s *Session) unparkLocked() {
	p := &s.reader.parking
	s.conf.Idle.Remove(p.watch)
	p.watch = nil
	s.parkLaterLocked()
	s.returnLocked()
}
