package server

import (
	"maps"
	"slices"
)

// walkStep is how many leases are looked at in one go.
const walkStep = 256

// A walk goes over the leases of the table, some at a time, so that the mutex is never held for as long as they are many. It comes to each that is there all the while
// once, and to some of those that come or go meanwhile. The Server's mutex guards it.
type walk struct {
	segments []*segment // that are to come
	at, last *lease     // of the segment before these: the leases that are to come, in its order; nil: none are
}

// beginLocked begins a walk, which the Server knows until endLocked.
func (w *walk) beginLocked(s *Server) {
	w.segments, w.at, w.last = slices.Collect(maps.Values(s.segments)), nil, nil
	s.walks[w] = struct{}{}
}

func (w *walk) endLocked(s *Server) { delete(s.walks, w) }

// nextLocked returns the next leases, at most n, and whether they are the last.
func (w *walk) nextLocked(n int) (leases []*lease, done bool) {
	for len(leases) < n {
		switch {
		case w.at != nil:
			leases = append(leases, w.at)
			w.passLocked(w.at)
		case len(w.segments) > 0:
			w.at, w.last = w.segments[0].oldest, w.segments[0].newest
			w.segments = w.segments[1:]
		default:
			return leases, true
		}
	}
	return leases, false
}

// passLocked goes on behind a lease, or has one left out that is over and not to come any more.
func (w *walk) passLocked(l *lease) {
	switch {
	case l == w.at && l == w.last:
		w.at, w.last = nil, nil
	case l == w.at:
		w.at = l.after
	case l == w.last:
		w.last = l.before
	}
}

// all returns the leases that a caller wants. Wanted is called with the mutex.
func (s *Server) all(wanted func(*lease) bool) (leases []*lease) {
	var w walk
	s.mu.Lock()
	w.beginLocked(s)
	s.mu.Unlock()
	for done := false; !done; {
		var some []*lease
		s.mu.Lock()
		some, done = w.nextLocked(walkStep)
		for _, l := range some {
			if wanted(l) {
				leases = append(leases, l)
			}
		}
		if done {
			w.endLocked(s)
		}
		s.mu.Unlock()
	}
	return leases
}

// beginCopy begins a copy of the table for the record, and returns what is to be recorded beside leases.
func (s *Server) beginCopy() (entries []entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copied.beginLocked(s)
	if s.doubt != nil { // also where it is not known yet whether there is a reason: this instance may be killed before it is
		entries = append(entries, entry{Kind: entryDoubt})
		for k := range s.doubt.suspects {
			entries = append(entries, entry{Kind: entrySuspect, Process: k.id})
		}
	}
	return entries
}

// copySome returns the next leases of the copy, at most n, and whether they are the last.
func (s *Server) copySome(n int) (entries []entry, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	leases, done := s.copied.nextLocked(n)
	for _, l := range leases {
		entries = append(entries, l.entry())
	}
	return entries, done
}
