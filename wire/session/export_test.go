package session

import (
	"log/slog"
	"reflect"
	"time"

	"github.com/hashicorp/yamux"
)

// YamuxConfig returns how yamux is set up.
func YamuxConfig() *yamux.Config { return yamuxConfig(slog.New(slog.DiscardHandler)) }

// Unacknowledged returns for how many streams yamux expects the peer's acknowledgement. Nothing may go on in the session.
func (s *Session) Unacknowledged() int {
	y := s.mux.session()
	y.NumStreams() // its lock orders what was done before
	return reflect.ValueOf(y).Elem().FieldByName("inflight").Len()
}

// Leftovers returns how many large bodies are waited for and how many yamux streams are open, but for the message channel.
func (s *Session) Leftovers() (bodies, streams int) {
	if y := s.mux.session(); y != nil {
		streams = y.NumStreams()
	}
	if !s.conf.Lane {
		streams--
	}
	s.bodies.mu.Lock()
	defer s.bodies.mu.Unlock()
	return len(s.bodies.slots), streams
}

// Unread returns how many bytes on streams have come that nobody has read, and how many streams are followed, but for the message channel.
func (s *Session) Unread() (bytes, streams int) {
	all := &s.conn.flows
	all.mu.Lock()
	defer all.mu.Unlock()
	streams = len(all.byID)
	if !s.conf.Lane {
		streams--
	}
	return all.unread, streams
}

// SetBodyWait sets how long a large body that belongs to nothing is kept, at least; it is kept at most twice that.
func (s *Session) SetBodyWait(d time.Duration) {
	s.bodies.mu.Lock()
	defer s.bodies.mu.Unlock()
	s.bodies.wait = d
}

// Held returns how long handlers that ran on the session's reader have kept it from reading, in all.
func (s *Session) Held() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reader.held
}

// SetPatience sets how long a session whose budget is full, or whose peer takes no replies, waits before it ends.
func (s *Session) SetPatience(d time.Duration) {
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	s.held.patience = d
}

// InMemory returns what the session holds for its peer by its own count, in bytes.
func (s *Session) InMemory() int {
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	return s.held.held
}

// Buffered returns how large yamux's buffer of a stream counts as when so much is unread.
func Buffered(unread int) int { return buffered(unread) }

// Resting reports whether the session's reader is off the socket, and no caller reads.
func (s *Session) Resting() bool { return s.isOff(resting) }

// Led reports whether a caller reads.
func (s *Session) Led() bool { return s.isOff(led) }

// Parked reports whether the session waits on no goroutine.
func (s *Session) Parked() bool { return s.isOff(parked) }

// Looks reports whether the session is parked, or looks later whether it may be.
func (s *Session) Looks() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reader.off == parked || s.reader.parking.timer != nil
}

// Look has the session parked if nothing has come since Look or the session's own timer last looked.
func (s *Session) Look() { s.look() }

// Kick kicks the reader as Look does, at a moment when a look that was late by a rest would.
func (s *Session) Kick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reader.parking.stopLocked()
	s.kickLocked()
}

func (s *Session) isOff(as off) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reader.off == as
}
