package session

// Leftovers returns how many large bodies are waited for and how many yamux streams are open, the message channel included.
func (s *Session) Leftovers() (bodies, streams int) {
	s.bodies.mu.Lock()
	defer s.bodies.mu.Unlock()
	return len(s.bodies.slots), s.mux.NumStreams()
}
