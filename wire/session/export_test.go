package session

import "time"

// Leftovers returns how many large bodies are waited for and how many yamux streams are open, the message channel included.
func (s *Session) Leftovers() (bodies, streams int) {
	s.bodies.mu.Lock()
	defer s.bodies.mu.Unlock()
	return len(s.bodies.slots), s.mux.NumStreams()
}

// Unread returns how many bytes on streams have come that nobody has read, and how many streams are followed.
func (s *Session) Unread() (bytes, streams int) {
	all := &s.conn.(*conn).flows
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.unread, len(all.byID)
}

// SetBodyWait sets how long a large body that belongs to nothing is kept, at least; it is kept at most twice that.
func (s *Session) SetBodyWait(d time.Duration) {
	s.bodies.mu.Lock()
	defer s.bodies.mu.Unlock()
	s.bodies.wait = d
}
