package server

import (
	"maps"
	"slices"
)

// A table is what the record copies: all leases, some at a time. The Server's mutex guards it.
type table struct {
	server   *Server
	segments []*segment // that are to come
	at, last *lease     // of the segment before these: the leases that are to come, in its order; nil: none are
}

// rewind goes back to the first lease, and returns what is to be recorded beside leases.
func (t *table) rewind() (entries []entry) {
	t.server.mu.Lock()
	defer t.server.mu.Unlock()
	t.segments, t.at, t.last = slices.Collect(maps.Values(t.server.segments)), nil, nil
	if t.server.doubt != nil { // also where it is not known yet whether there is a reason: this instance may be killed before it is
		entries = append(entries, entry{Kind: entryDoubt})
		for k := range t.server.doubt.suspects {
			entries = append(entries, entry{Kind: entrySuspect, Process: k.id})
		}
	}
	return entries
}

// some returns the next leases, at most n, and whether they are the last. Those that come into the table meanwhile may be missing.
func (t *table) some(n int) (entries []entry, done bool) {
	t.server.mu.Lock()
	defer t.server.mu.Unlock()
	for len(entries) < n {
		switch {
		case t.at != nil:
			entries = append(entries, t.at.entry())
			t.passLocked(t.at)
		case len(t.segments) > 0:
			t.at, t.last = t.segments[0].oldest, t.segments[0].newest
			t.segments = t.segments[1:]
		default:
			return entries, true
		}
	}
	return entries, false
}

// passLocked leaves out a lease, which may have been returned already or belong to no segment any more.
func (t *table) passLocked(l *lease) {
	switch {
	case l == t.at && l == t.last:
		t.at, t.last = nil, nil
	case l == t.at:
		t.at = l.after
	case l == t.last:
		t.last = l.before
	}
}
